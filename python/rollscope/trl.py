"""TRL and transformers: a callback.

    from rollscope.trl import RollscopeCallback

    trainer = GRPOTrainer(..., callbacks=[RollscopeCallback(project="math", name="grpo")])

Steps become spans, and logged values become metrics. Evaluations and saves become events. To keep completions as conversations,
wrap a reward function: `reward_funcs=[callback.reward(my_reward)]`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from . import _core, _run
from ._errors import harmless
from ._trace import Trace

try:
    from transformers import TrainerCallback as _Base
except ImportError:  # The callback works with anything that calls it the same way.
    _Base = object


class RollscopeCallback(_Base):  # type: ignore[misc]  # Any to mypy: transformers need not be there
    """Records what a trainer of TRL or transformers does."""

    def __init__(self, project: str | None = None, name: str | None = None, config: dict[str, Any] | None = None, **options: Any):
        self._init = {"project": project, "name": name, "config": config, **options}
        self._run: _run.Run | None = None
        self._step: Any = None
        self._number: int | None = None

    def _begin(self, args: Any) -> None:
        if self._run is None:
            wanted = dict(self._init)
            wanted["name"] = wanted["name"] or getattr(args, "run_name", None)
            config = getattr(args, "to_dict", None)
            wanted["config"] = {**(config() if callable(config) else {}), **(wanted["config"] or {})}
            wanted.setdefault("framework", "trl")
            self._run = _run.init(**wanted)

    @harmless
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if getattr(state, "is_world_process_zero", True):
            self._begin(args)

    @harmless
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_step()
        self._number = int(getattr(state, "global_step", 0))
        self._step = _core.span("step", phase="step", step=self._number)
        self._step.__enter__()

    @harmless
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_step()

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    @harmless
    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs and self._run is not None and getattr(state, "is_world_process_zero", True):
            numbers = {k: v for k, v in logs.items() if not isinstance(v, str)}
            self._run.log(numbers, step=int(getattr(state, "global_step", 0)))

    @harmless
    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, Any] | None = None, **kwargs: Any) -> None:
        _core.event("evaluated", {k: v for k, v in (metrics or {}).items() if isinstance(v, (int, float))})

    @harmless
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _core.event("saved", {"step": int(getattr(state, "global_step", 0))})

    @harmless
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_step()
        if self._run is not None:
            self._run.finish()
            self._run = None

    def reward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a reward function. Its calls become spans, and its completions become conversations with their rewards."""

        def log(prompts: Any, completions: Any, rewards: Any) -> None:
            traces = []
            for prompt, completion, value in zip(prompts or [], completions or [], rewards or [], strict=False):
                messages = [*_messages(prompt, "user"), *_messages(completion, "assistant")]
                traces.append(Trace(messages, {"reward": value, "reward_function": getattr(function, "__name__", "reward")}))
            if traces:
                _run.log({getattr(function, "__name__", "reward"): traces}, step=self._number)

        keep = harmless(log)
        name = getattr(function, "__name__", "reward")

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapped(*args: Any, **kwargs: Any) -> Any:
                with _core.span(name, phase="reward"):
                    rewards = await function(*args, **kwargs)
                keep(kwargs.get("prompts"), kwargs.get("completions"), rewards)
                return rewards

        else:

            @functools.wraps(function)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                with _core.span(name, phase="reward"):
                    rewards = function(*args, **kwargs)
                keep(kwargs.get("prompts"), kwargs.get("completions"), rewards)
                return rewards

        return wrapped


def _messages(text: Any, role: str) -> list[dict[str, Any]]:
    if isinstance(text, list) and all(isinstance(m, dict) for m in text):
        return text
    return [{"role": role, "content": text if isinstance(text, str) else str(text)}]
