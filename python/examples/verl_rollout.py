"""verl's rollout trace with its names from `rollscope.verl`: an agent loop over two turns."""

import asyncio

import rollscope
from rollscope.verl import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op


class Agent:
    @rollout_trace_op
    async def generate(self, prompt: str) -> str:
        await asyncio.sleep(0.01)
        return "search(weather)" if "search" not in prompt else "it is sunny"

    @rollout_trace_op
    async def call_tool(self, call: str) -> str:
        await asyncio.sleep(0.02)
        return "search: sunny"

    async def run(self, question: str) -> str:
        call = await self.generate(question)
        found = await self.call_tool(call)
        return await self.generate(f"{question}\n{found}")


async def rollout(step: int) -> list[str]:
    async def one(index: int) -> str:
        with rollout_trace_attr(step=step, sample_index=index, rollout_n=0):
            return await Agent().run("How is the weather?")

    with rollscope.step(step):
        return await asyncio.gather(*(one(index) for index in range(4)))


if __name__ == "__main__":
    RolloutTraceConfig.init(project_name="toy", experiment_name="verl")
    for step in range(2):
        answers = asyncio.run(rollout(step))
        rollscope.log({"answers": len(answers)}, step=step)
    rollscope.finish()
    print(answers)
