"""slime's tracing, under slime's names: change the import, keep the code.

    from rollscope.slime import trace_span, trace_event, trace_function, bind_trace, build_sglang_meta_trace_attrs

The carrier on `sample.trace` is written exactly as slime writes it, so dumps stay the same. The same spans also go to the
rollscope server as they happen. `install()` patches slime's own module, so that you need not change any import.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from . import _core, _names
from ._core import slime as _slime
from ._errors import swallowed

TraceHandle = _slime.TraceHandle
TraceSpanContext = _slime.SlimeSpan
trace_span = _slime.trace_span
trace_event = _slime.trace_event

TRACE_VERSION = 1
TRACE_CHILDREN_KEY = "_trace_children"
SGLANG_TRACE_META_KEYS = ("prompt_tokens", "completion_tokens", "cached_tokens", "queue_time", "e2e_latency", "decode_throughput")
SGLANG_PD_PREFILL_SEGMENTS = _names.PD_PREFILL
SGLANG_PD_DECODE_SEGMENTS = _names.PD_DECODE
SGLANG_PD_SUMMARY_KEYS = _names.PD_SUMMARY

logger = logging.getLogger("rollscope.slime")
_inferred: set[str] = set()
F = TypeVar("F", bound=Callable[..., Any])


def _failed(error: Exception) -> None:
    _core.count_error()
    swallowed(error)


def _noop_handle() -> TraceHandle:
    carrier = {"version": TRACE_VERSION, "trace_id": "", "events": [], "sample_id": None, "group_id": None, "attempt": 0}
    return TraceHandle("", carrier)


def bind_trace(sample: Any) -> TraceHandle:
    """Returns a handle on a sample's carrier. Adds a carrier if there is none."""
    try:
        return _slime.bind(sample)
    except Exception as error:
        _failed(error)
        return _noop_handle()


def bind_trace_carrier(
    carrier: dict[str, Any] | None,
    *,
    trace_id: str | None = None,
    sample_id: int | str | None = None,
    group_id: int | str | None = None,
    attempt: int = 0,
    parent_span_id: str | None = None,
) -> TraceHandle:
    """Returns a handle on a carrier without a sample."""
    try:
        return _slime.bind_parts(carrier, trace_id, sample_id, group_id, attempt, parent_span_id)
    except Exception as error:
        _failed(error)
        handle = _noop_handle()
        handle.parent_span_id = parent_span_id
        return handle


def export_trace(handle: TraceHandle) -> dict[str, Any]:
    """Returns what another process needs to continue a trace, as a plain dict."""
    try:
        return {
            "version": TRACE_VERSION,
            "trace_id": handle.trace_id,
            "sample_id": handle.sample_id,
            "group_id": handle.group_id,
            "attempt": handle.attempt,
            "parent_span_id": handle.parent_span_id or _slime.current_parent(handle.trace_id),
        }
    except Exception as error:
        _failed(error)
        return {
            "version": TRACE_VERSION,
            "trace_id": "",
            "sample_id": None,
            "group_id": None,
            "attempt": 0,
            "parent_span_id": None,
        }


def import_trace(payload: dict[str, Any], carrier: dict[str, Any] | None = None) -> TraceHandle:
    """Continues a trace that `export_trace` returned."""
    try:
        return bind_trace_carrier(
            carrier,
            trace_id=payload.get("trace_id"),
            sample_id=payload.get("sample_id"),
            group_id=payload.get("group_id"),
            attempt=int(payload.get("attempt", 0)),
            parent_span_id=payload.get("parent_span_id"),
        )
    except Exception as error:
        _failed(error)
        return _noop_handle()


def trace_next_attempt(target: Any, *, attrs: dict[str, Any] | None = None) -> Any:
    """Begins the next attempt at a sample."""
    try:
        handles = _slime.coerce_handles(target)
        for handle in handles:
            attempt = int(handle.carrier.get("attempt", 0)) + 1
            handle.carrier["attempt"] = attempt
            handle.attempt = attempt
            trace_event(handle, "attempt_start", attrs={"attempt": attempt, **(attrs or {})})
        if not handles:
            return target
        return handles[0] if len(handles) == 1 else handles
    except Exception as error:
        _failed(error)
        return target


def build_sglang_meta_trace_attrs(meta: dict[str, Any]) -> dict[str, Any]:
    """Picks the attributes of a request's span from SGLang's `meta_info`. With disaggregation, adds the spans inside it."""
    attrs: dict[str, Any] = {}
    try:
        attrs.update((key, meta[key]) for key in SGLANG_TRACE_META_KEYS if meta.get(key) is not None)
        reason = meta.get("finish_reason")
        if isinstance(reason, dict) and reason.get("type") is not None:
            attrs["finish_reason"] = reason["type"]
        elif reason is not None:
            attrs["finish_reason"] = reason
        if meta.get("id") is not None:
            attrs["sglang_request_id"] = meta["id"]
        children = _disaggregation(meta)
        if children:
            attrs[TRACE_CHILDREN_KEY] = children
    except Exception as error:
        _failed(error)
    return attrs


def _disaggregation(meta: dict[str, Any]) -> list[dict[str, Any]]:
    """Lays out prefill and decode as slime does: one after the other."""
    children: list[dict[str, Any]] = []
    at = 0.0
    for phase, segments in (("prefill", SGLANG_PD_PREFILL_SEGMENTS), ("decode", SGLANG_PD_DECODE_SEGMENTS)):
        parts: list[dict[str, Any]] = []
        length = 0.0
        for key, name in segments:
            if meta.get(key) is None or float(meta[key]) <= 0.0:
                continue
            end = length + float(meta[key])
            parts.append({"type": "span", "name": name, "start_offset": length, "end_offset": end, "attrs": {key: meta[key]}})
            length = end
        if parts:
            children.append(
                {
                    "type": "span",
                    "name": f"sglang_pd_{phase}",
                    "start_offset": at,
                    "end_offset": at + length,
                    "attrs": {"phase": phase, "duration_s": length},
                    "children": parts,
                }
            )
            at += length
    summary = {key: meta[key] for key in SGLANG_PD_SUMMARY_KEYS if meta.get(key) is not None}
    if summary:
        children.append({"type": "event", "name": "sglang_pd_summary", "start_offset": at, "attrs": summary})
    return children


def _append_event(
    handle: TraceHandle,
    kind: str,
    name: str,
    timestamp: float,
    span_id: str | None = None,
    parent: str | None = None,
    attrs: dict[str, Any] | None = None,
) -> None:
    event = {
        "type": kind,
        "name": name,
        "ts": timestamp,
        "trace_id": handle.trace_id,
        "sample_id": handle.sample_id,
        "group_id": handle.group_id,
        "attempt": int(handle.carrier.get("attempt", handle.attempt)),
    }
    if span_id is not None:
        event["span_id"] = span_id
    if parent is not None:
        event["parent_span_id"] = parent
    if attrs:
        event["attrs"] = dict(attrs)
    handle.carrier["events"].append(event)


def _append_trace_children(parents: list[tuple[TraceHandle, str]], children: Any, start: float) -> None:
    """Adds spans that the engine reported afterwards under `parents` (pairs of handle and span id)."""
    if isinstance(children, dict):
        children = [children]
    if not isinstance(children, list):
        return
    for child in children:
        if not isinstance(child, dict) or child.get("type") not in ("span", "event") or not child.get("name"):
            continue
        name, begin = child["name"], start + float(child["start_offset"])
        attrs = child["attrs"] if isinstance(child.get("attrs"), dict) else None
        if child["type"] == "event":
            for handle, parent in parents:
                place = len(handle.carrier["events"])
                _append_event(handle, "event", name, begin, parent=parent, attrs=attrs)
                _slime.emit_child(handle, name, "", parent, begin, begin, attrs, place)
            continue
        end = start + float(child["end_offset"])
        if end < begin:
            continue
        inside = []
        for handle, parent in parents:
            span_id = _core.random_bytes(16).hex()
            _append_event(handle, "span_start", name, begin, span_id=span_id, parent=parent)
            inside.append((handle, span_id))
        _append_trace_children(inside, child.get("children"), begin)
        for (handle, span_id), (_, parent) in zip(inside, parents, strict=True):
            _append_event(handle, "span_end", name, end, span_id=span_id, attrs=attrs)
            _slime.emit_child(handle, name, span_id, parent, begin, end, attrs, -1)


def _is_target(value: Any) -> bool:
    if value is None or isinstance(value, (str, bytes, int, float, dict)):
        return False
    if isinstance(value, list):
        return bool(value) and all(_is_target(item) for item in value)
    if isinstance(value, TraceHandle) or (hasattr(value, "index") and hasattr(value, "group_index")):
        return True
    if type(value).__name__ == "SampleBox":
        return _is_target(getattr(value, "generation", None) or getattr(value, "prompt_sample", None))
    return hasattr(value, "carrier") and hasattr(value, "parent_span_id")


def trace_function(
    name: str,
    *,
    target: str | None = None,
    target_getter: Callable[..., Any] | None = None,
    attrs_getter: Callable[..., dict[str, Any] | None] | None = None,
    record_error: bool = True,
) -> Callable[[F], F]:
    """Decorator: every call is a span on its target. `target` names an argument. `target_getter` is called with all arguments.
    Without either, the target is looked up among the arguments, else it is the target of the current span."""

    def decorator(function: Any) -> Any:
        label = getattr(function, "__qualname__", repr(function))
        find = _target_finder(function, label, target, target_getter)

        def attributes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
            if attrs_getter is None:
                return None
            try:
                attrs = attrs_getter(*args, **kwargs)
                if attrs is None or isinstance(attrs, dict):
                    return attrs
                logger.warning("trace_function attrs_getter for %s returned %s, not a dict", label, type(attrs).__name__)
            except Exception as error:
                _failed(error)
            return None

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                found = find(args, kwargs)
                if found is None:
                    return await function(*args, **kwargs)
                with trace_span(found, name, attrs=attributes(args, kwargs), record_error=record_error):
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                found = find(args, kwargs)
                if found is None:
                    return function(*args, **kwargs)
                with trace_span(found, name, attrs=attributes(args, kwargs), record_error=record_error):
                    return function(*args, **kwargs)

        return wrapper

    return decorator


def _target_finder(
    function: Any, label: str, target: str | None, target_getter: Callable[..., Any] | None
) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Decides once how to find the target of a call."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        signature = None

    if target is not None:
        place = _place_of(signature, target)

        def named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if target in kwargs:
                found = kwargs[target]
            elif place is not None and place < len(args):
                found = args[place]
            else:
                logger.warning("trace_function target '%s' not found for %s; tracing disabled for this call", target, label)
                return None
            if _is_target(found):
                return found
            logger.warning(
                "trace_function target '%s' for %s is not a supported trace target; tracing disabled for this call", target, label
            )
            return None

        return named

    if target_getter is not None:

        def gotten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                found = target_getter(*args, **kwargs)
            except Exception as error:
                _failed(error)
                return None
            return found if _is_target(found) else None

        return gotten

    def inferred(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for value in (*args, *kwargs.values()):
            if _is_target(value):
                key = f"{getattr(function, '__module__', '')}.{label}"
                if key not in _inferred:
                    _inferred.add(key)
                    logger.warning(
                        "trace_function auto-inferred target for %s; inference may be ambiguous, prefer explicit target=...",
                        label,
                    )
                return value
        handles = _slime.current_handles()
        if not handles:
            return None
        return handles[0] if len(handles) == 1 else handles

    return inferred


def _place_of(signature: inspect.Signature | None, name: str) -> int | None:
    """Returns the position of an argument, or `None` if it must be named."""
    if signature is None:
        return None
    for place, parameter in enumerate(signature.parameters.values()):
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            break
        if parameter.name == name:
            return place
    return None


_PATCHED_NAMES = (
    "TraceHandle",
    "TraceSpanContext",
    "bind_trace",
    "bind_trace_carrier",
    "build_sglang_meta_trace_attrs",
    "export_trace",
    "import_trace",
    "trace_event",
    "trace_function",
    "trace_next_attempt",
    "trace_span",
)
_MODULES = ("slime.observability.trace_utils", "slime.utils.trace_utils")
_originals: list[tuple[Any, str, Any]] = []


def install() -> list[str]:
    """Replaces slime's functions with ours, in slime's module and wherever they have already been imported from it.

    Returns the modules found, or an empty list if slime cannot be imported. Functions decorated before stay as they are.
    """
    import importlib

    if _originals:
        return sorted({module.__name__ for module, _, _ in _originals if module.__name__ in _MODULES})
    found = []
    for module_name in _MODULES:
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue
        except Exception as error:
            _failed(error)
            continue
        found.append(module_name)
        theirs = {id(getattr(module, name)): name for name in _PATCHED_NAMES if hasattr(module, name)}
        for user in [module, *list(sys.modules.values())]:
            if user is None or user is sys.modules[__name__] or not isinstance(getattr(user, "__dict__", None), dict):
                continue
            if user is not module and not getattr(user, "__name__", "").startswith(("slime", "__main__", "examples")):
                continue
            for attribute, value in list(vars(user).items()):
                name = theirs.get(id(value))
                if name is not None:
                    _originals.append((user, attribute, value))
                    setattr(user, attribute, globals()[name])
    return found


def uninstall() -> None:
    """Undoes `install()`."""
    while _originals:
        module, name, original = _originals.pop()
        setattr(module, name, original)


__all__ = [
    "TraceHandle",
    "TraceSpanContext",
    "bind_trace",
    "bind_trace_carrier",
    "build_sglang_meta_trace_attrs",
    "export_trace",
    "import_trace",
    "install",
    "trace_event",
    "trace_function",
    "trace_next_attempt",
    "trace_span",
    "uninstall",
]
