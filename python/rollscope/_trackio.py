"""What programs written for Trackio log besides numbers, conversations and images: tables, histograms, alerts, and the spans of
a conversation. The signatures are the same, so you only change the import: `import rollscope as trackio`."""

from __future__ import annotations

import math
from enum import Enum
from itertools import pairwise

from . import _core
from ._media import Image
from ._trace import Trace, plain, to_json

# Not imported at run time: the package must be quick to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Literal

#: Rows of a table that are shown as text. The metadata holds all of them.
_ROWS_SHOWN = 100
_CELL_SHOWN = 250
#: Spans of one conversation.
_MAX_SPANS = 10_000
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

#: Trackio's names that rollscope does not have, and what to do instead.
ABSENT = {
    **dict.fromkeys(("Audio", "Html", "Object3D", "Video"), "rollscope keeps images only; use rollscope.Image"),
    **dict.fromkeys(("Artifact", "log_artifact", "save", "use_artifact"), "rollscope does not keep files"),
    **dict.fromkeys(
        ("log_cpu", "log_gpu", "log_system"), "log numbers with rollscope.log; the server scrapes engines and exporters"
    ),
    **dict.fromkeys(("delete_project", "freeze", "import_csv", "import_tf_events", "show", "sync"), "see `rollscope --help`"),
    "Api": "use rollscope.Client",
    "Markdown": "log a Trace with one message",
}


class AlertLevel(str, Enum):
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class Table:
    """Rows with named columns. A cell may hold anything that a conversation's metadata may hold, including images.

    A table is kept as a conversation with one message, which shows the first hundred rows. Its metadata has `columns` and all
    `rows`.
    """

    def __init__(
        self,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any | None = None,
        rows: list[list[Any]] | None = None,
        optional: bool | list[bool] = True,
        allow_mixed_types: bool = False,
        log_mode: Literal["IMMUTABLE", "MUTABLE", "INCREMENTAL"] | None = "IMMUTABLE",
    ):
        if dataframe is not None:
            try:
                data = list(dataframe.to_dict(orient="records"))
            except Exception as error:
                raise TypeError("The `dataframe` argument must support `to_dict(orient='records')`.") from error
            columns = None
        data = rows if data is None else data
        names: dict[str, None] = dict.fromkeys(str(column) for column in columns or ())
        self.data: list[dict[str, Any]] = []
        for row in data if data is not None else ():
            if isinstance(row, dict):
                cells = {str(key): value for key, value in row.items()}
            else:
                values = list(row)
                keys = [str(column) for column in columns or ()]
                keys += [str(at) for at in range(len(keys), len(values))]
                cells = {key: values[at] if at < len(values) else None for at, key in enumerate(keys)}
            names.update(dict.fromkeys(cells))
            self.data.append(cells)
        self.columns = list(names)

    def to_trace(self) -> Trace:
        pictures: list[Image] = []

        def cell(value: Any) -> str:
            if isinstance(value, Image):
                pictures.append(value)
                return f"image {len(pictures)}"
            if isinstance(value, (list, tuple)) and value and all(isinstance(item, Image) for item in value):
                return ", ".join(cell(item) for item in value)
            text = "" if value is None else str(value)
            text = text if len(text) <= _CELL_SHOWN else f"{text[:_CELL_SHOWN]}…"
            return " ".join(text.split()).replace("|", "\\|")

        lines = [[cell(name) for name in self.columns], ["---"] * len(self.columns)]
        lines += [[cell(row.get(name)) for name in self.columns] for row in self.data[:_ROWS_SHOWN]]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        if len(self.data) > _ROWS_SHOWN:
            text += f"\n\n{_ROWS_SHOWN} of {len(self.data)} rows. The metadata has all of them."
        content: Any = [{"type": "text", "text": text}, *pictures] if pictures else text
        return Trace([{"role": "user", "content": content}], {"type": "table", "columns": self.columns, "rows": self.data})

    def __repr__(self) -> str:
        return f"Table({len(self.data)} rows of {', '.join(self.columns)})"


class Histogram:
    """The distribution of a sequence, or of counts and bin edges as returned by numpy's `histogram`.

    A histogram is kept as numbers: `NAME/count`, `mean`, `std`, `min`, `p05`, `p25`, `p50`, `p75`, `p95`, `max`. For a sequence,
    they are exact. For bins, they are estimated. The bins are not kept.
    """

    def __init__(
        self, sequence: Sequence[float] | Any | None = None, np_histogram: tuple[Any, Any] | None = None, num_bins: int = 64
    ):
        if sequence is None and np_histogram is None:
            raise ValueError("Must provide either sequence or np_histogram")
        if sequence is not None and np_histogram is not None:
            raise ValueError("Cannot provide both sequence and np_histogram")
        if np_histogram is not None:
            counts, edges = (_numbers(part) for part in np_histogram)
            if len(edges) != len(counts) + 1 and (counts or edges):
                raise ValueError(f"{len(counts)} bins need {len(counts) + 1} edges, got {len(edges)}")
            self.statistics = _of_bins(counts, edges)
        else:
            self.statistics = _of_values(sequence)

    def __repr__(self) -> str:
        return f"Histogram({self.statistics})"


def _numbers(values: Any) -> list[float]:
    """All numbers in a sequence or an array of any shape."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().reshape(-1)
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, (list, tuple, range)) and not hasattr(values, "__iter__"):
        values = [values]
    out: list[float] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            out.extend(_numbers(value))
        else:
            out.append(float(value))
    return out


def _of_values(sequence: Any) -> dict[str, float]:
    values = sorted(value for value in _numbers(sequence) if math.isfinite(value))
    if not values:
        return {"count": 0.0}
    mean = math.fsum(values) / len(values)
    found = {
        "count": float(len(values)),
        "mean": mean,
        "std": math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values)),
        "min": values[0],
    }
    for q in _QUANTILES:
        at = q * (len(values) - 1)
        low = int(at)
        high = min(low + 1, len(values) - 1)
        found[f"p{round(q * 100):02}"] = values[low] + (values[high] - values[low]) * (at - low)
    found["max"] = values[-1]
    return found


def _of_bins(counts: list[float], edges: list[float]) -> dict[str, float]:
    total = math.fsum(counts)
    if not total > 0:
        return {"count": 0.0}
    filled = [(count, low, high) for count, (low, high) in zip(counts, pairwise(edges), strict=True) if count > 0]
    mean = math.fsum(count * (low + high) / 2 for count, low, high in filled) / total
    spread = math.fsum(count * ((low + high) / 2 - mean) ** 2 for count, low, high in filled) / total
    found = {"count": total, "mean": mean, "std": math.sqrt(spread), "min": filled[0][1]}
    for q in _QUANTILES:
        left = q * total
        for count, low, high in filled:
            if left <= count:
                found[f"p{round(q * 100):02}"] = low + (high - low) * left / count
                break
            left -= count
        else:
            found[f"p{round(q * 100):02}"] = filled[-1][2]
    found["max"] = filled[-1][2]
    return found


def time_ns(value: Any) -> int | None:
    """Converts a time to nanoseconds since the epoch: a datetime, its ISO text (UTC by default), or a number of seconds,
    milliseconds, microseconds or nanoseconds, told apart by size."""
    from datetime import datetime, timezone

    if value is None or value == "" or isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        if not math.isfinite(value) or value <= 0:
            return None
        for limit, factor in ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3), (2**63, 1)):
            if value < limit:
                return int(value * factor)
        return None
    text = str(value).strip()
    if text[-1:] in "Zz":
        text = f"{text[:-1]}+00:00"
    # Before Python 3.11 only three or six digits of a fraction are read.
    whole, dot, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    try:
        parsed = datetime.fromisoformat(whole + rest[len(digits) :])
    except ValueError:
        return None
    parsed = parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)
    return int(parsed.timestamp()) * 10**9 + int(f"{digits:0<9.9}" if dot else 0)


def record_spans(trace: Trace, name: str, step: int | None, now: int, media: list[Image]) -> Any:
    """Records the spans of a conversation under a new span, and returns that. Spans without times end now."""
    spans = [(span, *_times(span, now)) for span in trace.spans[:_MAX_SPANS]]
    by_id = {str(entry[0]["id"]): entry for entry in spans if entry[0].get("id") is not None}
    children: dict[str | None, list[Any]] = {}
    for entry in spans:
        parent_id = str(entry[0].get("parent_id"))
        children.setdefault(parent_id if parent_id in by_id else None, []).append(entry)
    metadata = trace.metadata
    root = _core.span(
        name,
        {"trackio.trace": True},
        start_ns=min(start for _, start, _ in spans),
        step=step,
        sample=_identity(metadata.get("sample_id")),
        group=_identity(metadata.get("group_id")),
    )
    made: set[int] = set()
    # What only names parents that name it in turn is under nothing else: it hangs from the root too.
    for under, first in [(root, children.get(None, [])), (root, spans)]:
        waiting = [(under, entry) for entry in first]
        while waiting:
            parent, (span, start, end) = waiting.pop()
            if id(span) in made:
                continue
            made.add(id(span))
            kind = str(span.get("kind") or "span")
            recorded = _core.span(
                str(span.get("name") or kind), _attributes(span, kind, media), parent=parent, start_ns=start, step=step
            )
            status, error = str(span.get("status") or "").lower(), span.get("error")
            if error or status in ("error", "failed"):
                recorded.set_status("error", str(error) if error else None)
            elif status in ("ok", "success", "completed"):
                recorded.set_status("ok")
            recorded.end(end)
            waiting += [(recorded, child) for child in children.get(str(span.get("id")), ()) if span.get("id") is not None]
    root.end(max(end for _, _, end in spans))
    return root


def _identity(value: Any) -> int | str | None:
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None


def _times(span: dict[str, Any], now: int) -> tuple[int, int]:
    start, end = time_ns(span.get("start_time")), time_ns(span.get("end_time"))
    milliseconds = span.get("duration_ms")
    lasted = (
        int(milliseconds * 1e6)
        if isinstance(milliseconds, (int, float)) and math.isfinite(milliseconds) and milliseconds > 0
        else 0
    )
    if start is None:
        end = now if end is None else end
        start = end - lasted
    elif end is None:
        end = start + lasted
    return start, max(start, end)


def _attributes(span: dict[str, Any], kind: str, media: list[Image]) -> dict[str, Any]:
    """Uses OpenTelemetry's name for an attribute if it has one, else the attribute's own name."""
    attrs: dict[str, Any] = {"trackio.kind": kind}
    operation = {"generation": "chat", "tool": "execute_tool"}.get(kind)
    if operation:
        attrs["gen_ai.operation.name"] = operation
    if kind == "tool" and span.get("name"):
        attrs["gen_ai.tool.name"] = str(span["name"])
    if span.get("model"):
        attrs["gen_ai.request.model"] = str(span["model"])
    usage = span.get("usage")
    for key, value in (usage if isinstance(usage, dict) else {}).items():
        side = {"input_tokens": "input", "prompt_tokens": "input", "output_tokens": "output", "completion_tokens": "output"}.get(
            key
        )
        attrs[f"gen_ai.usage.{side}_tokens" if side else f"usage.{key}"] = value
    for key in ("input", "output"):
        if span.get(key) is not None:
            attrs[f"{key}.value"] = _text(span[key], media, key)
    metadata = span.get("metadata")
    for key, value in (metadata if isinstance(metadata, dict) else {}).items():
        attrs[f"metadata.{key}"] = value if isinstance(value, (bool, int, float, str)) else _text(value, media, str(key))
    known = {
        "id",
        "parent_id",
        "name",
        "kind",
        "start_time",
        "end_time",
        "duration_ms",
        "status",
        "error",
        "input",
        "output",
        "model",
        "usage",
        "metadata",
    }
    for key, value in span.items():
        if key not in known and value is not None:
            attrs[str(key)] = value if isinstance(value, (bool, int, float, str)) else _text(value, media, str(key))
    return attrs


def _text(value: Any, media: list[Image], place: str) -> str:
    return value if isinstance(value, str) else to_json(plain(value, media, place))
