"""Passes context between processes: W3C `traceparent` and `tracestate` in dicts and headers."""

from __future__ import annotations

from . import _core
from ._core import Attached, NoSpan, Span, SpanContext, current_span
from ._errors import harmless

# Not imported at run time: the package must be quick to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from typing import Any

__all__ = ["attach", "current_span", "extract", "inject"]


@harmless
def _inject(carrier: MutableMapping[str, str], span: Span | SpanContext | NoSpan | None) -> None:
    context = _core.context_of(span) if not isinstance(span, NoSpan) else None
    if context is not None:
        carrier["traceparent"] = context.traceparent
        if context.trace_state:
            carrier["tracestate"] = context.trace_state


def inject(
    carrier: MutableMapping[str, str] | None = None, span: Span | SpanContext | NoSpan | None = None
) -> MutableMapping[str, str]:
    """Writes the context of a span into a dict or headers, and returns it. Uses the current span by default."""
    carrier = {} if carrier is None else carrier
    _inject(carrier, span)
    return carrier


@harmless
def extract(carrier: Mapping[str, Any] | None) -> SpanContext | None:
    """Reads a context from a dict or headers, ignoring case. Returns `None` if there is none."""
    if not carrier:
        return None
    parent = carrier.get("traceparent")
    state = carrier.get("tracestate")
    if parent is None:
        for key in carrier:
            name = key.decode("latin-1") if isinstance(key, bytes) else str(key)
            if name.lower() == "traceparent":
                parent = carrier[key]
            elif name.lower() == "tracestate":
                state = carrier[key]
    if isinstance(parent, (list, tuple)):
        parent = parent[0] if parent else None
    if isinstance(parent, bytes):
        parent = parent.decode("latin-1")
    if not isinstance(parent, str):
        return None
    return _core.parse_context(parent, state if isinstance(state, str) else "")


def attach(context: Span | SpanContext | NoSpan | Mapping[str, Any] | None) -> Attached:
    """Makes spans inside a `with` block children of `context`: a span, a context, or a dict with `traceparent`."""
    if isinstance(context, NoSpan):
        context = current_span()
    elif context is not None and not isinstance(context, (Span, SpanContext)) and hasattr(context, "get"):
        context = extract(context)
    return Attached(context)
