"""Errors of the package itself: counted and logged, never raised into the caller."""

from __future__ import annotations

import functools
import logging

# Not imported at run time: the package must be quick to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

logger = logging.getLogger("rollscope")

_MAX_STACK = 16_384
_MAX_MESSAGE = 4_096


def swallowed(error: BaseException) -> None:
    """Logs an error of the package itself."""
    logger.debug("recording skipped: %r", error, exc_info=error)


def warn(text: str) -> None:
    logger.warning("%s", text)


def describe(error: BaseException) -> dict[str, str]:
    """Describes an exception as attributes of an event, of bounded size."""
    attrs = {"exception.type": type(error).__qualname__}
    if type(error).__module__ not in ("builtins", "__main__"):
        attrs["exception.type"] = f"{type(error).__module__}.{type(error).__qualname__}"
    try:
        attrs["exception.message"] = str(error)[:_MAX_MESSAGE]
    except Exception:
        attrs["exception.message"] = "<no message>"
    try:
        import traceback

        stack = "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-32, chain=False))
        attrs["exception.stacktrace"] = stack[-_MAX_STACK:]
    except Exception:
        pass
    return attrs


def harmless(function: Callable[P, R]) -> Callable[P, R | None]:
    """Decorator: an error inside is counted and logged, and `None` is returned."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            from . import _core

            _core.count_error()
            swallowed(error)
            return None

    return guarded
