"""Conversations, which `rollscope.log` accepts besides numbers."""

from __future__ import annotations

import math

from ._media import Image

# Not imported at run time: the package must be quick to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Deeper values are refused.
MAX_DEPTH = 64


class Trace:
    """One conversation: messages in OpenAI's format (`role`, `content`, `tool_calls`, ...) and metadata.

    `metadata` may hold anything. rollscope reads `reward`, `status`, `sample_id` and `group_id` from it. Both may contain images
    anywhere. `spans` describe how the conversation was produced, in Trackio's format: dictionaries with `id`, `parent_id`,
    `name`, `kind` (`"span"`, `"generation"` or `"tool"`), `start_time`, `end_time`, `duration_ms`, `status`, `error`, `input`,
    `output`, `model`, `usage`, `metadata`. They become spans of a trace that the conversation belongs to.
    """

    def __init__(
        self,
        messages: list[dict[str, Any]],
        metadata: dict[str, Any] | None = None,
        spans: list[dict[str, Any]] | None = None,
    ):
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise TypeError("`messages` must be a list of dictionaries.")
        if metadata is not None and not isinstance(metadata, dict):
            raise TypeError("`metadata` must be a dictionary.")
        if spans is not None and (not isinstance(spans, list) or not all(isinstance(span, dict) for span in spans)):
            raise TypeError("`spans` must be a list of dictionaries.")
        plain(messages, [], "messages")
        plain(metadata or {}, [], "metadata")
        plain(spans or [], [], "spans")
        self.messages = [dict(message) for message in messages]
        self.metadata = dict(metadata) if metadata is not None else {}
        self.spans = [dict(span) for span in spans] if spans is not None else []

    def __repr__(self) -> str:
        return f"Trace({len(self.messages)} messages, metadata={list(self.metadata)})"


def plain(value: Any, media: list[Image], place: str, depth: int = 0, above: tuple[int, ...] = ()) -> Any:
    """Converts `value` to what JSON can express. Images are collected in `media` and referred to by their hash.

    Raises `ValueError`, with the place, if the nesting is too deep or contains a cycle.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return {"$double": "NaN" if value != value else ("inf" if value > 0 else "-inf")}
    if isinstance(value, Image):
        media.append(value)
        return value.reference()
    if isinstance(value, Trace):
        return plain({"messages": value.messages, "metadata": value.metadata}, media, place, depth, above)
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        if depth >= MAX_DEPTH:
            raise ValueError(f"{_shorten(place)} is nested more than {MAX_DEPTH} levels deep")
        if id(value) in above:
            raise ValueError(f"{_shorten(place)} contains itself")
        above = (*above, id(value))
        if isinstance(value, dict):
            return {
                name: plain(item, media, f"{place}.{name}", depth + 1, above)
                for name, item in ((_text(key, str), item) for key, item in value.items())
            }
        return [plain(item, media, f"{place}[{at}]", depth + 1, above) for at, item in enumerate(value)]
    return _other(value, media, place, depth, above)


def _other(value: Any, media: list[Image], place: str, depth: int, above: tuple[int, ...]) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value)} bytes>"
    try:
        converted = _converted(value)
    except Exception:
        converted = ()
    return plain(converted[0], media, place, depth + 1, above) if converted else _text(value, repr)


def _converted(value: Any) -> tuple[Any, ...]:
    """What scalars and arrays of numpy and torch, pydantic's models and dataclasses of clients say that they are."""
    for convert in ("tolist", "model_dump", "to_dict"):
        method = getattr(value, convert, None)
        if callable(method) and not isinstance(value, type):
            size = getattr(value, "size", 0)
            count = size if isinstance(size, int) else getattr(value, "numel", lambda: 0)()
            if isinstance(count, int) and count > 100_000:
                return (f"<{type(value).__name__} of {count} values>",)
            return (method(),)
    return ()


def _text(value: Any, to_text: Callable[[Any], str]) -> str:
    if isinstance(value, str):
        return value
    try:
        return to_text(value)[:4096]
    except Exception:
        return f"<{type(value).__name__}>"


def _shorten(place: str) -> str:
    return place if len(place) <= 200 else f"{place[:120]}…{place[-60:]}"


def to_json(value: Any) -> str:
    import json

    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-8", "replace").decode()
    return text
