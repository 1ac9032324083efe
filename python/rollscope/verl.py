"""verl's rollout trace: the decorator and context of `verl.utils.rollout_trace`, recording to rollscope.

from rollscope.verl import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op

RolloutTraceConfig.init(project_name="math", experiment_name="grpo")
with rollout_trace_attr(step=12, sample_index=7, rollout_n=0):
    ...

class AgentLoop:
    @rollout_trace_op
    async def run(self, sampling_params, messages): ...
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from . import _core, _run
from ._errors import harmless

_MAX_TEXT = 16_384


class RolloutTraceConfig:
    """Configures tracing as verl's class of this name does. `backend` and `token2text` are accepted and ignored."""

    _initialized = False
    token2text = False

    @classmethod
    def init(
        cls, project_name: str, experiment_name: str, backend: str | None = None, token2text: bool = False, **_others: Any
    ) -> None:
        if cls._initialized:
            return
        cls._initialized = True
        cls.token2text = token2text
        if _run._run is None:
            _run.init(project=project_name, name=experiment_name, framework="verl")

    @classmethod
    def reset(cls) -> None:
        cls._initialized = False


def rollout_trace_attr(
    sample_index: int | None = None,
    step: int | None = None,
    rollout_n: int | None = None,
    name: str = "rollout_trace",
    validate: bool = False,
    trace: bool = True,
) -> Any:
    """For a `with` block around one rollout: everything inside belongs to this sample and step."""
    attrs: dict[str, Any] = {"validate": bool(validate)}
    if rollout_n is not None:
        attrs["rollout_n"] = rollout_n
    sample = None
    if sample_index is not None:
        sample = sample_index if rollout_n is None else f"{sample_index}/{rollout_n}"
    return _core.span(
        name,
        attrs,
        phase="eval" if validate else "rollout",
        step=step,
        sample=sample,
        group=sample_index,
        level=1 if trace else 255,
    )


@harmless
def _inputs(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = signature.bind_partial(*args, **kwargs).arguments
    return {f"input.{k}": _short(v) for k, v in bound.items() if k != "self"}


def _short(value: Any) -> Any:
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    return (value if isinstance(value, str) else repr(value))[:_MAX_TEXT]


def rollout_trace_op(function: Any) -> Any:
    """Decorator for methods and functions: every call is a span with its inputs and its output."""
    signature = inspect.signature(function)
    name = getattr(function, "__qualname__", repr(function))

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not _core.enabled():
                return await function(*args, **kwargs)
            with _core.span(name, _inputs(signature, args, kwargs)) as span:
                result = await function(*args, **kwargs)
                _output(span, result)
                return result

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not _core.enabled():
                return function(*args, **kwargs)
            with _core.span(name, _inputs(signature, args, kwargs)) as span:
                result = function(*args, **kwargs)
                _output(span, result)
                return result

    return wrapper


@harmless
def _output(span: Any, result: Any) -> None:
    span.set("output", _short(result))
