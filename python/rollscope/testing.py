"""For tests of instrumented code: records into memory, with a deterministic clock and ids.

from rollscope.testing import capture

def test_generate():
    with capture() as seen:
        generate(sample)
    assert [span.name for span in seen.spans] == ["generate"]
    assert seen.spans[0].attributes["tokens"] == 12
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from . import _core, _run, _settings
from ._names import SPAN_KINDS, STATUSES

#: Where the fake clock begins: 2024-01-01T00:00:00Z.
EPOCH_NS = 1_704_067_200_000_000_000


@dataclass
class RecordedSpan:
    """A span as it would have been sent."""

    name: str = ""
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str | None = None
    start_ns: int = 0
    end_ns: int | None = None
    #: `closed`, `open` or `instant`.
    state: str = "closed"
    #: `unset`, `ok` or `error`.
    status: str = "unset"
    message: str = ""
    kind: str = "internal"
    start_attributes: dict[str, Any] = field(default_factory=dict)
    end_attributes: dict[str, Any] = field(default_factory=dict)
    events: list[RecordedEvent] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)

    @property
    def attributes(self) -> dict[str, Any]:
        """All attributes. Those set later win."""
        return {**self.start_attributes, **self.end_attributes}

    @property
    def duration_ns(self) -> int | None:
        return None if self.end_ns is None else self.end_ns - self.start_ns


@dataclass
class RecordedEvent:
    name: str
    time_ns: int
    attributes: dict[str, Any]


@dataclass
class Record:
    """A record other than a span: a run, metrics, a conversation or a file."""

    name: str
    time_ns: int
    attributes: dict[str, Any]
    body: Any
    trace_id: str | None = None
    span_id: str | None = None


class Captured:
    """Everything recorded so far."""

    def __init__(self) -> None:
        self._spans: list[RecordedSpan] = []
        self._records: list[Record] = []

    def _take(self) -> None:
        for is_spans, resource, data in _core.take_memory():
            attributes = dict(_pair(value) for number, value in _fields(resource) if number == 1)
            for _, item in _fields(data):
                if is_spans:
                    self._spans.append(_span(item, attributes))
                else:
                    self._records.append(_record(item))

    @property
    def spans(self) -> list[RecordedSpan]:
        """Finished spans, in the order in which they ended."""
        self._take()
        return self._spans

    @property
    def records(self) -> list[Record]:
        self._take()
        return self._records

    def span(self, name: str) -> RecordedSpan:
        """The only span of that name."""
        found = [span for span in self.spans if span.name == name]
        if len(found) != 1:
            raise AssertionError(f"{len(found)} spans are named {name!r}; recorded: {[span.name for span in self.spans]}")
        return found[0]

    def metrics(self) -> dict[str, list[tuple[int | None, float]]]:
        """Logged numbers by name, as pairs of step and value."""
        out: dict[str, list[tuple[int | None, float]]] = {}
        for record in self.records:
            if record.name == "rollscope.metrics":
                for name, value in record.body.items():
                    out.setdefault(name, []).append((record.attributes.get("rl.step"), value))
        return out

    def advance(self, seconds: float) -> None:
        """Moves the fake clock."""
        _core.advance_clock(int(seconds * 1e9))


class capture:
    """Context manager; also usable as a pytest fixture: `with capture() as seen: yield seen`."""

    def __init__(self, *, fake_clock: bool = True, tick_ns: int = 1000, level: int = 3):
        self.fake_clock = fake_clock
        self.tick_ns = tick_ns
        self.level = level

    def __enter__(self) -> Captured:
        self._before = _run._configured_for
        self._level = _core.get_level()
        settings = _settings.settings("http://127.0.0.1:4317", "memory")
        settings["queue_bytes"] = 1 << 30
        settings["resource"] = list(_settings.resource().items())
        _core.configure(settings)
        _core.set_level(self.level)
        _run._configured_for = "memory"
        if self.fake_clock:
            _core.fake_clock(EPOCH_NS, self.tick_ns)
        return Captured()

    def __exit__(self, *_: Any) -> None:
        _core.fake_clock(None, 0)
        _core.switch(False)
        _run._configured_for = None
        _core.set_level(self._level)
        if self._before not in (None, "memory"):
            _run._start_from_environment()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and raw values of a protobuf message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        value: Any
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<Q", data, at)[0], at + 8
        elif kind == 5:
            value, at = struct.unpack_from("<I", data, at)[0], at + 4
        else:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        yield tag >> 3, value


def _any(data: bytes) -> Any:
    for number, value in _fields(data):
        if number == 1:
            return value.decode()
        if number == 2:
            return bool(value)
        if number == 3:
            return value - (1 << 64) if value >= 1 << 63 else value
        if number == 4:
            return struct.unpack("<d", struct.pack("<Q", value))[0]
        if number == 5:
            return [_any(item) for _, item in _fields(value)]
        if number == 6:
            return dict(_pair(item) for _, item in _fields(value))
        if number == 7:
            return bytes(value)
    return None


def _pair(data: bytes) -> tuple[str, Any]:
    key, value = "", None
    for number, raw in _fields(data):
        if number == 1:
            key = raw.decode()
        elif number == 2:
            value = _any(raw)
    return key, value


def _span(data: bytes, resource: dict[str, Any]) -> RecordedSpan:
    span = RecordedSpan(resource=resource)
    pairs: list[tuple[str, Any]] = []
    reserved: dict[str, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            span.trace_id = value.hex()
        elif number == 2:
            span.span_id = value.hex()
        elif number == 4:
            span.parent_span_id = value.hex()
        elif number == 5:
            span.name = value.decode()
        elif number == 6:
            span.kind = SPAN_KINDS[value]
        elif number == 7:
            span.start_ns = value
        elif number == 8:
            span.end_ns = value
        elif number == 9:
            key, item = _pair(value)
            if key in ("rollscope.start_attrs", "rollscope.state") or key.startswith("rollscope.original_"):
                reserved[key] = item
            else:
                pairs.append((key, item))
        elif number == 11:
            parts = list(_fields(value))
            span.events.append(
                RecordedEvent(
                    name=next((v.decode() for n, v in parts if n == 2), ""),
                    time_ns=next((v for n, v in parts if n == 1), 0),
                    attributes=dict(_pair(v) for n, v in parts if n == 3),
                )
            )
        elif number == 13:
            link = dict(_fields(value))
            span.links.append((link[1].hex(), link[2].hex()))
        elif number == 15:
            for inner, item in _fields(value):
                if inner == 2:
                    span.message = item.decode()
                elif inner == 3:
                    span.status = STATUSES[item]
    at_start = reserved.get("rollscope.start_attrs", 0)
    span.start_attributes = dict(pairs[:at_start])
    span.end_attributes = dict(pairs[at_start:])
    span.state = reserved.get("rollscope.state") or ("closed" if span.end_ns is not None else "open")
    return span


def _record(data: bytes) -> Record:
    record = Record(name="", time_ns=0, attributes={}, body=None)
    for number, value in _fields(data):
        if number == 1:
            record.time_ns = value
        elif number == 5:
            record.body = _any(value)
        elif number == 6:
            key, item = _pair(value)
            record.attributes[key] = item
        elif number == 9:
            record.trace_id = value.hex()
        elif number == 10:
            record.span_id = value.hex()
        elif number == 12:
            record.name = value.decode()
    return record
