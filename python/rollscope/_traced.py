"""Spans for whole functions, steps and samples."""

from __future__ import annotations

import functools

from ._core import NoSpan, Span, span
from ._errors import swallowed

# Not imported at run time: the package must be quick to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping
    from typing import Any, TypeVar, overload

    F = TypeVar("F", bound=Callable[..., Any])
    Attrs = Mapping[str, Any] | Callable[..., Mapping[str, Any] | None] | None


def step(number: int, attrs: Mapping[str, Any] | None = None) -> Span | NoSpan:
    """One step of training. Everything recorded inside belongs to it."""
    return span("step", attrs, phase="step", step=number)


def sample(
    sample_id: int | str,
    group: int | str | None = None,
    attempt: int | None = None,
    attrs: Mapping[str, Any] | None = None,
    *,
    name: str = "sample",
) -> Span | NoSpan:
    """One rollout sample. Everything recorded inside belongs to it."""
    return span(name, attrs, phase="rollout", sample=sample_id, group=group, attempt=attempt)


def start_span(name: str, attrs: Mapping[str, Any] | None = None, **options: Any) -> Span | NoSpan:
    """Starts a span that you end with `end()`. It does not become the current span."""
    return span(name, attrs, **options)


if TYPE_CHECKING:

    @overload
    def traced(name: F) -> F: ...
    @overload
    def traced(
        name: str | None = None,
        *,
        attrs: Attrs = None,
        phase: str | None = None,
        level: int = 1,
    ) -> Callable[[F], F]: ...


def traced(name: Any = None, *, attrs: Attrs = None, phase: str | None = None, level: int = 1) -> Any:
    """Decorator: every call is a span. For functions, coroutines, generators and asynchronous generators.

    `attrs` is a dict, or a function of the call's arguments that returns one. The span of a generator is current while the
    generator's own code runs, not while its consumer's does.
    """
    if callable(name):
        return _wrap(name, None, attrs, phase, level)
    return lambda function: _wrap(function, name, attrs, phase, level)


def _wrap(function: Any, name: str | None, attrs: Attrs, phase: str | None, level: int) -> Any:
    import inspect

    label = name or getattr(function, "__qualname__", None) or repr(function)
    fixed: Mapping[str, Any] | None = None
    if callable(attrs):
        of_call = attrs

        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span | NoSpan:
            try:
                found = of_call(*args, **kwargs)
            except Exception as error:
                swallowed(error)
                found = None
            return span(label, found, phase=phase, level=level)

    else:
        fixed = attrs

        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span | NoSpan:
            return span(label, fixed, phase=phase, level=level)

    plain = not callable(attrs)

    if inspect.iscoroutinefunction(function):
        if plain:

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with span(label, fixed, phase=phase, level=level):
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with begin(args, kwargs):
                    return await function(*args, **kwargs)

    elif inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            async for item in _drive_async(begin(args, kwargs), function(*args, **kwargs)):
                yield item

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return (yield from _drive(begin(args, kwargs), function(*args, **kwargs)))

    elif plain:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with span(label, fixed, phase=phase, level=level):
                return function(*args, **kwargs)

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with begin(args, kwargs):
                return function(*args, **kwargs)

    return wrapper


def _drive(current: Span | NoSpan, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Runs a generator with the span current inside it, and only there."""
    from ._context import attach

    send, value, error = generator.send, None, None
    try:
        while True:
            try:
                with attach(current):
                    item = generator.throw(error) if error is not None else send(value)
            except StopIteration as stop:
                return stop.value
            value = error = None
            try:
                value = yield item
            except GeneratorExit:
                with attach(current):
                    generator.close()
                raise
            except BaseException as thrown:
                error = thrown
    except BaseException as failure:
        current.record_exception(failure)
        raise
    finally:
        current.end()


async def _drive_async(current: Span | NoSpan, generator: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
    from ._context import attach

    value, error = None, None
    try:
        while True:
            try:
                with attach(current):
                    item = await (generator.athrow(error) if error is not None else generator.asend(value))
            except StopAsyncIteration:
                return
            value = error = None
            try:
                value = yield item
            except GeneratorExit:
                with attach(current):
                    await generator.aclose()
                raise
            except BaseException as thrown:
                error = thrown
    except BaseException as failure:
        current.record_exception(failure)
        raise
    finally:
        current.end()
