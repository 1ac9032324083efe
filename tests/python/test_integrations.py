"""TRL's callback and verl's rollout trace, driven as their owners drive them."""

import asyncio
import types

import pytest
import rollscope
from rollscope import _run
from rollscope.trl import RollscopeCallback
from rollscope.verl import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op


@pytest.fixture(autouse=True)
def in_memory(seen, monkeypatch):
    monkeypatch.setattr(_run, "_start", lambda *a, **k: None)
    monkeypatch.setenv("ROLLSCOPE_RUN_ID", "")
    yield
    rollscope.finish()


def test_trl(seen):
    def reward(completions, **kwargs):
        return [float(len(c)) for c in completions]

    callback = RollscopeCallback(project="p")
    scored = callback.reward(reward)
    args = types.SimpleNamespace(run_name="trl-run", to_dict=lambda: {"lr": 1})
    state = types.SimpleNamespace(global_step=0, is_world_process_zero=True)
    callback.on_train_begin(args, state, None)
    for step in range(2):
        state.global_step = step
        callback.on_step_begin(args, state, None)
        assert scored(prompts=["a", [{"role": "user", "content": "b"}]], completions=["xx", "yyy"]) == [2.0, 3.0]
        callback.on_step_end(args, state, None)
        callback.on_log(args, state, None, logs={"loss": 0.5, "note": "text"})
    callback.on_evaluate(args, state, None, metrics={"eval": 1.0})
    callback.on_train_end(args, state, None)
    assert [s.name for s in seen.spans] == ["reward", "step", "reward", "step", "evaluated"]
    assert seen.spans[0].attributes == {"rl.step": 0, "rl.phase": "reward"}
    assert seen.metrics() == {"loss": [(0, 0.5), (1, 0.5)]}
    said = [r for r in seen.records if r.name == "rollscope.conversation"]
    assert len(said) == 4 and '"reward":3.0' in said[1].attributes["rollscope.metadata"]
    runs = [r.attributes for r in seen.records if r.name == "rollscope.run"]
    assert runs[0]["rl.run.name"] == "trl-run" and runs[1]["rollscope.status"] == "finished"
    callback.on_log(None, None, None, logs={"x": 1})
    callback.on_step_begin(None, types.SimpleNamespace(global_step="x"), None)


def test_verl(seen):
    RolloutTraceConfig.reset()
    RolloutTraceConfig.init("p", "e", backend="weave", token2text=True)

    class Agent:
        @rollout_trace_op
        async def run(self, messages, n=1):
            return self.tool(n)

        @rollout_trace_op
        def tool(self, n):
            return n + 1

    with rollout_trace_attr(step=3, sample_index=7, rollout_n=1):
        assert asyncio.run(Agent().run("hello")) == 2
    with rollout_trace_attr(step=3, trace=False):
        pass
    tool, run, rollout = seen.spans
    assert run.attributes["input.messages"] == "hello" and run.attributes["output"] == 2
    assert tool.parent_span_id == run.span_id and run.parent_span_id == rollout.span_id
    assert rollout.attributes == {"rl.step": 3, "rl.sample.id": "7/1", "rl.group.id": 7, "rl.phase": "rollout", "validate": False, "rollout_n": 1}
