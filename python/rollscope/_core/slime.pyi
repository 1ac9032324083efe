"""slime's traces on the recorder."""

from types import TracebackType
from typing import Any, Literal, final

from typing_extensions import Self

@final
class TraceHandle:
    """A trace that can be recorded on."""

    trace_id: str
    carrier: dict[str, Any]
    sample_id: int | str | None
    group_id: int | str | None
    attempt: int
    parent_span_id: str | None
    def __new__(
        cls,
        trace_id: str,
        carrier: dict[str, Any],
        sample_id: int | str | None = None,
        group_id: int | str | None = None,
        attempt: int | None = None,
        parent_span_id: str | None = None,
    ) -> Self: ...

@final
class SlimeSpan:
    """A span over one sample or a group, as returned by `trace_span`."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]: ...
    def set(self, key: str, value: Any) -> Self:
        """Sets one attribute of the end. Also works after the block."""
    def set_attr(self, key: str, value: Any) -> Self: ...
    def update(self, attrs: dict[str, Any] | None = None) -> Self:
        """Sets several attributes of the end."""
    def update_attrs(self, attrs: dict[str, Any] | None = None) -> Self: ...
    @property
    def target(self) -> TraceHandle | list[TraceHandle]: ...
    @property
    def handles(self) -> list[TraceHandle]: ...
    @property
    def span_records(self) -> list[tuple[TraceHandle, str]]: ...
    @property
    def step(self) -> int | None: ...
    @property
    def start_ts(self) -> float: ...
    @property
    def end_attrs(self) -> dict[str, Any]: ...
    @property
    def end_events(self) -> list[dict[str, Any]]: ...
    @property
    def closed(self) -> bool: ...

@final
class Frame: ...

def trace_span(target: Any, name: str, *, attrs: dict[str, Any] | None = None, record_error: bool = True) -> SlimeSpan:
    """Starts a span on every target: a sample, a handle, or a list of them."""

def trace_event(target: Any, name: str, *, attrs: dict[str, Any] | None = None) -> None:
    """Records an instant on every target."""

def bind(sample: Any) -> TraceHandle: ...
def bind_parts(
    carrier: dict[str, Any] | None,
    trace_id: str | None = None,
    sample_id: int | str | None = None,
    group_id: int | str | None = None,
    attempt: int | None = None,
    parent_span_id: str | None = None,
) -> TraceHandle: ...
def coerce_handles(target: Any) -> list[TraceHandle]: ...
def current_parent(trace_id: str) -> str | None: ...
def current_handles() -> list[TraceHandle]: ...
def emit_child(
    handle: TraceHandle,
    name: str,
    span_id: str,
    parent: str,
    start_s: float,
    end_s: float,
    attrs: dict[str, Any] | None,
    index: int,
) -> None: ...
