"""SGLang's request tracing, under SGLang's names, for your own serving code.

    from rollscope.sglang import process_tracing_init, trace_set_thread_info, TraceReqContext

    process_tracing_init("localhost:4317", "sglang")
    trace_set_thread_info("scheduler", tp_rank=0)
    request = TraceReqContext(rid)
    request.trace_req_start()

Times are nanoseconds since the epoch. You can pickle a context. In another process, it is a copy that continues the same request
after `rebuild_thread_context()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import _core, _run
from ._core import sglang as _sglang

TraceReqContext = _sglang.TraceReqContext
trace_set_thread_info = _sglang.trace_set_thread_info
set_global_trace_level = _sglang.set_global_trace_level
get_global_trace_level = _sglang.get_global_trace_level
get_cur_time_ns = _core.now_ns

TRACE_HEADERS = ["traceparent", "tracestate"]


@dataclass
class TraceEvent:
    """Something that happened within a slice."""

    event_name: str
    ts: int
    attrs: dict[str, Any] | None = None


@dataclass
class TraceSliceContext:
    """A slice that has already ended."""

    slice_name: str
    start_time_ns: int
    end_time_ns: int | None = None
    span: Any = None
    level: int = 1
    attrs: dict[str, Any] | None = None
    events: list[TraceEvent] | None = None


@dataclass
class TraceNullContext:
    """Takes every call and does nothing."""

    tracing_enable: bool = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> TraceNullContext:
        return self


def process_tracing_init(otlp_traces_endpoint: str, server_name: str, trace_modules: str | None = None) -> None:
    """Starts tracing in this process. `trace_modules` lists the modules to trace, separated by commas."""
    modules = None
    if trace_modules is not None:
        modules = [name.strip() for name in trace_modules.split(",") if name.strip()]
    try:
        _run._start(otlp_traces_endpoint, server_name)
    except ValueError as error:
        _sglang.initialize(False, modules)
        raise RuntimeError(f"initialize opentelemetry error:{error}. Please set correct otlp endpoint.") from error
    _sglang.initialize(True, modules)


def get_global_tracing_enabled() -> bool:
    return _sglang.initialized()


def extract_trace_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a request that carry its caller's context."""
    return {name: headers[name] for name in TRACE_HEADERS if name in headers}


def _rebuild(state: dict[str, Any]) -> TraceReqContext:
    return _sglang.rebuild(state)


__all__ = [
    "TraceEvent",
    "TraceNullContext",
    "TraceReqContext",
    "TraceSliceContext",
    "extract_trace_headers",
    "get_cur_time_ns",
    "get_global_trace_level",
    "get_global_tracing_enabled",
    "process_tracing_init",
    "set_global_trace_level",
    "trace_set_thread_info",
]
