"""The bridge to OpenTelemetry's API: one context for both."""

from __future__ import annotations

from typing import Any

from . import _core


def span_context(trace_id: int, span_id: int) -> Any:
    """Builds OpenTelemetry's `SpanContext` for one of our spans."""
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def bridge() -> bool:
    """Joins the two contexts. Returns false if OpenTelemetry's API is not installed."""
    try:
        from opentelemetry import context as theirs
        from opentelemetry import trace
    except ImportError:
        return False
    trace.Span.register(_core.Span)
    trace.Span.register(_core.NoSpan)

    def current() -> Any:
        found = trace.get_current_span()
        if isinstance(found, _core.Span):
            return found
        identity = found.get_span_context()
        if identity.trace_id and identity.span_id:
            return _core.SpanContext(f"{identity.trace_id:032x}", f"{identity.span_id:016x}")
        # slime's spans and attached contexts are only in our own variable.
        return _core.own_current()

    def enter(span: Any) -> Any:
        if span is None:
            return theirs.attach(trace.set_span_in_context(trace.INVALID_SPAN))
        if not isinstance(span, _core.Span):
            context = _core.context_of(span)
            if context is None:
                return None
            span = trace.NonRecordingSpan(span_context(int(context.trace_id, 16), int(context.span_id, 16)))
        return theirs.attach(trace.set_span_in_context(span))

    def leave(token: Any) -> None:
        if token is not None:
            theirs.detach(token)

    _core.set_bridge(current, enter, leave)
    return True
