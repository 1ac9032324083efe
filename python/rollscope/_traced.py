"""Spans for whole functions, steps and samples."""

from __future__ import annotations

import functools

from ._core import NoSpan, Span, span
from ._errors import swallowed

# Not imported at run time: the package must be quick to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, TypeVar, overload

    F = TypeVar("F", bound=Callable[..., Any])


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
    """A span that is ended by `end()`, not by a block. It is not the current span."""
    return span(name, attrs, **options)


if TYPE_CHECKING:

    @overload
    def traced(function: F) -> F: ...
    @overload
    def traced(
        name: str | None = None,
        *,
        attrs: Mapping[str, Any] | Callable[..., Mapping[str, Any] | None] | None = None,
        phase: str | None = None,
        level: int = 1,
    ) -> Callable[[F], F]: ...


def traced(name=None, *, attrs=None, phase=None, level=1):
    """Decorator: every call is a span. For functions, coroutines, generators and asynchronous generators.

    `attrs` is a dict, or a function of the call's arguments that returns one. The span of a generator is the current one
    while the generator's own code runs, not while its consumer's does.
    """
    if callable(name):
        return _wrap(name, None, attrs, phase, level)
    return lambda function: _wrap(function, name, attrs, phase, level)


def _wrap(function, name, attrs, phase, level):
    import inspect

    name = name or getattr(function, "__qualname__", None) or repr(function)
    if callable(attrs):
        of_call = attrs

        def begin(args, kwargs):
            try:
                found = of_call(*args, **kwargs)
            except Exception as error:
                swallowed(error)
                found = None
            return span(name, found, phase=phase, level=level)

    else:

        def begin(args, kwargs):
            return span(name, attrs, phase=phase, level=level)

    plain = not callable(attrs)

    if inspect.iscoroutinefunction(function):
        if plain:

            @functools.wraps(function)
            async def wrapper(*args, **kwargs):
                with span(name, attrs, phase=phase, level=level):
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            async def wrapper(*args, **kwargs):
                with begin(args, kwargs):
                    return await function(*args, **kwargs)

    elif inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def wrapper(*args, **kwargs):
            async for item in _drive_async(begin(args, kwargs), function(*args, **kwargs)):
                yield item

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return (yield from _drive(begin(args, kwargs), function(*args, **kwargs)))

    elif plain:

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            with span(name, attrs, phase=phase, level=level):
                return function(*args, **kwargs)

    else:

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            with begin(args, kwargs):
                return function(*args, **kwargs)

    return wrapper


def _drive(current, generator):
    """Runs a generator with the span current inside it and only there."""
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


async def _drive_async(current, generator):
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
