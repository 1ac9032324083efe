"""SGLang's request tracing on the recorder."""

from collections.abc import Mapping
from typing import Any, final

from typing_extensions import Self

@final
class TraceReqContext:
    """The trace of one request. Times are nanoseconds since the epoch."""

    def __new__(
        cls,
        rid: Any,
        bootstrap_room: int | None = None,
        role: str = "unified",
        module_name: str = "",
        external_trace_header: Mapping[str, str] | None = None,
        trace_level: int | None = None,
    ) -> Self: ...
    def is_tracing_enabled(self) -> bool: ...
    @property
    def tracing_enable(self) -> bool: ...
    @property
    def rid(self) -> str: ...
    @property
    def trace_level(self) -> int: ...
    @property
    def bootstrap_room(self) -> int | None: ...
    @property
    def role(self) -> str: ...
    @property
    def module_name(self) -> str: ...
    @property
    def start_time_ns(self) -> int | None: ...
    @property
    def is_copy(self) -> bool: ...
    @property
    def traceparent(self) -> str | None: ...
    def trace_req_start(self, ts: int | None = None) -> None:
        """The request begins."""
    def trace_req_finish(self, ts: int | None = None, attrs: Mapping[str, Any] | None = None) -> None:
        """The request ends."""
    def trace_slice_start(self, name: str, level: int, ts: int | None = None) -> None: ...
    def trace_slice_end(
        self,
        name: str,
        level: int,
        ts: int | None = None,
        attrs: Mapping[str, Any] | None = None,
        thread_finish_flag: bool = False,
    ) -> None: ...
    def trace_slice(self, slice: Any, thread_finish_flag: bool = False) -> None:
        """Records a slice that has already ended."""
    def trace_event(self, name: str, level: int, ts: int | None = None, attrs: Mapping[str, Any] | None = None) -> None: ...
    def trace_set_root_attrs(self, attrs: Mapping[str, Any]) -> None: ...
    def trace_set_thread_attrs(self, attrs: Mapping[str, Any]) -> None: ...
    def rebuild_thread_context(self, ts: int | None = None, pid: int | None = None) -> None:
        """Starts a copy in the thread that works on it."""
    def copy_for_thread(self) -> TraceReqContext | Any:
        """Returns a copy for another thread, where `rebuild_thread_context()` starts it."""
    def abort(self, ts: int | None = None, abort_info: Mapping[str, Any] | Any | None = None) -> None:
        """Ends all spans of this thread. `abort_info` marks them as failed."""
    def flush(self) -> None: ...

def rebuild(travelled: dict[str, Any]) -> TraceReqContext: ...
def initialize(on: bool, modules: list[str] | None = None) -> None: ...
def initialized() -> bool: ...
def trace_set_thread_info(
    thread_label: str, tp_rank: int | None = None, dp_rank: int | None = None, pp_rank: int | None = None
) -> None:
    """Names the calling thread. Only the first call has an effect."""

def set_global_trace_level(level: int) -> None: ...
def get_global_trace_level() -> int: ...
