"""slime's tracing calls, unchanged, on samples that are generated concurrently. In slime itself only the import differs."""

import asyncio
import random
from dataclasses import dataclass, field

import rollscope
from rollscope.slime import bind_trace, build_sglang_meta_trace_attrs, trace_event, trace_function, trace_span


@dataclass
class Sample:
    index: int
    group_index: int
    response: str = ""
    reward: float | None = None
    trace: dict | None = field(default=None)


async def engine(prompt: str) -> dict:
    """Stands for a request to SGLang."""
    seconds = random.uniform(0.01, 0.05)
    await asyncio.sleep(seconds)
    meta = {
        "id": f"{random.getrandbits(64):016x}",
        "prompt_tokens": len(prompt),
        "completion_tokens": 20,
        "e2e_latency": seconds,
        "finish_reason": {"type": "stop"},
        "pd_prefill_forward_duration": seconds / 3,
        "pd_decode_forward_duration": seconds / 2,
    }
    return {"text": random.choice(["4", "5"]), "meta_info": meta}


@trace_function("generate_and_rm", target="sample")
async def generate(args, sample: Sample) -> Sample:
    with trace_span(sample, "sglang_generate", attrs={"max_new_tokens": 32}) as span:
        output = await engine("2 + 2 = ?")
        span.update(build_sglang_meta_trace_attrs(output["meta_info"]))
    sample.response = output["text"]
    with trace_span(sample, "reward_model"):
        sample.reward = float(sample.response == "4")
    trace_event(sample, "done", attrs={"reward": sample.reward})
    return sample


async def rollout(step: int) -> list[Sample]:
    groups = [[Sample(g * 4 + i, g) for i in range(4)] for g in range(4)]

    async def one(group):
        for sample in group:
            bind_trace(sample)
        with trace_span(group, "generate_group"):
            return await asyncio.gather(*(generate(None, sample) for sample in group))

    with rollscope.step(step):
        done = await asyncio.gather(*(one(group) for group in groups))
    samples = [sample for group in done for sample in group]
    rollscope.log({"rollout/reward": sum(s.reward for s in samples) / len(samples)}, step=step)
    return samples


if __name__ == "__main__":
    with rollscope.init(project="toy", name="slime-style", framework="slime"):
        for step in range(3):
            samples = asyncio.run(rollout(step))
    print(f"{len(samples)} samples; the carrier of the first has {len(samples[0].trace['events'])} events")
