"""What is known of each token of a sample: ids, log-probabilities, masks, advantages."""

from __future__ import annotations

import sys
from array import array

from . import _core, _settings
from ._errors import logger, swallowed
from ._names import CONVERSATION_BYTES
from ._run import _current_step, _say_losses, _warn_once
from ._trace import to_json

# Not imported at run time: the package must be quick to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

_FLOATS = ("logprobs", "trainer_logprobs", "entropy", "advantages", "ratios")
_FLAGS = ("mask", "clipped")
_PART = ("start", "turn", "engine", "weight_version", "differs_at")


def log_tokens(
    sample: str | int,
    *,
    ids: Any = None,
    logprobs: Any = None,
    trainer_logprobs: Any = None,
    mask: Any = None,
    advantages: Any = None,
    entropy: Any = None,
    ratios: Any = None,
    clipped: Any = None,
    texts: Sequence[str] | None = None,
    prompt_tokens: int | None = None,
    engine: str | None = None,
    weight_version: str | int | None = None,
    parts: Iterable[Mapping[str, Any]] | None = None,
    step: int | None = None,
    group: str | int | None = None,
    source: str | None = None,
    split: str = "train",
) -> None:
    """Logs what is known of the tokens of a sample, those after the prompt.

    Every list has one entry per token: an array of numpy, a tensor of torch, or a list. Leave out what you do not have. A
    second call for the same sample and step replaces the first, except that what a trainer sends without `logprobs` is joined
    with what the engine's process sends. `step` defaults to that of the surrounding `rollscope.step(...)`.

    `engine` and `weight_version` say who produced the tokens. If that changes within a sample, pass `parts` instead: dicts with
    `start` (the first token), `turn`, `engine`, `weight_version`, and `differs_at` (the first token of what stood before the turn
    that is not the one which had been produced).

    A tensor on a GPU is copied, which waits for the GPU. Pass what is on the CPU already.
    """
    if not _core.enabled():
        if not _settings.disabled():
            _warn_once("tokens", "rollscope.log_tokens: nothing is recorded; call rollscope.init first")
        return
    try:
        given = {
            "logprobs": logprobs,
            "trainer_logprobs": trainer_logprobs,
            "entropy": entropy,
            "advantages": advantages,
            "ratios": ratios,
            "mask": mask,
            "clipped": clipped,
        }
        body: dict[str, Any] = {}
        counts: dict[str, int] = {}
        if ids is not None:
            body["ids"], counts["ids"] = _bytes(ids, "i", "int32")
        for name in _FLOATS:
            if given[name] is not None:
                body[name], counts[name] = _bytes(given[name], "f", "float32")
        for name in _FLAGS:
            if given[name] is not None:
                body[name], counts[name] = _bytes(given[name], "b", "bool")
        if texts is not None:
            texts = [str(text) for text in texts]
            body["texts"], counts["texts"] = to_json(texts), len(texts)
        if len(set(counts.values())) > 1:
            _core.count_error()
            lengths = ", ".join(f"{name} {count}" for name, count in counts.items())
            logger.error("rollscope.log_tokens: skipped sample %s: the lists differ in length: %s", sample, lengths)
            return
        if not any(counts.values()):
            return
        if parts is None and (engine is not None or weight_version is not None):
            parts = [{"start": 0, "engine": engine, "weight_version": weight_version}]
        if parts is not None:
            body["parts"] = to_json([_part(part) for part in parts])
        if prompt_tokens is not None:
            body["prompt_tokens"] = int(prompt_tokens)
        if sum(len(value) for value in body.values() if not isinstance(value, int)) > CONVERSATION_BYTES:
            _core.count_error()
            logger.error("rollscope.log_tokens: skipped sample %s: larger than %d bytes", sample, CONVERSATION_BYTES)
            return
        if step is None:
            step = _current_step()
        attrs: dict[str, Any] = {"rl.sample.id": str(sample), "rollscope.split": split}
        for name, value in (("rl.step", step), ("rl.group.id", group), ("rollscope.source", source)):
            if value is not None:
                attrs[name] = int(value) if name == "rl.step" else str(value)
        _core.record("rollscope.tokens", attrs, body, _core.now_ns())
        _say_losses()
    except Exception as error:
        swallowed(error)


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {name: part[name] for name in _PART if part.get(name) is not None}
    for name in ("start", "turn", "differs_at"):
        if name in known:
            known[name] = int(known[name])
    for name in ("engine", "weight_version"):
        if name in known:
            known[name] = str(known[name])
    return {"start": 0, **known}


def _bytes(values: Any, code: str, dtype: str) -> tuple[bytes, int]:
    """Numbers as bytes in little-endian order, and how many they are. Nothing is done per token where the values are an array."""
    if hasattr(values, "detach"):
        # A tensor. numpy has no bfloat16.
        values = values.detach().to("cpu")
        values = values.float().numpy() if values.is_floating_point() else values.numpy()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        flat = numpy.asarray(values)
        if flat.dtype == object:
            # None where nothing is known.
            flat = numpy.array([float("nan") if value is None else value for value in values])
        flat = flat.reshape(-1)
        if code == "i" and flat.size > 0 and (flat.min() < -(2**31) or flat.max() >= 2**31):
            raise ValueError("rollscope.log_tokens: a token id does not fit into 32 bits")
        flat = flat.astype(dtype, copy=False)
        return (flat if sys.byteorder == "little" else flat.byteswap()).tobytes(), flat.size
    if code == "b":
        flags = bytes(bool(value) for value in values)
        return flags, len(flags)
    numbers = array(code, (float("nan") if value is None else value for value in values))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes(), len(numbers)
