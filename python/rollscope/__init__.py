"""Records what happens in a reinforcement-learning run of a language model, and shows it.

    import rollscope

    run = rollscope.init(project="math", name="grpo-7b", config={...})
    with rollscope.step(12):
        with rollscope.span("generate", phase="rollout"):
            ...
    rollscope.log({"reward/mean": 0.42, "loss": 1.3}, step=12)
    rollscope.log({"agent": rollscope.Trace(messages=[...], metadata={"reward": 1.0})}, step=12)

Nothing here raises into your program, waits for the network, or needs a server. Data that cannot be sent is kept on disk and
sent later. Every setting is an environment variable. `rollscope.ENVIRONMENT` lists them.
"""

from __future__ import annotations

from ._client import Client
from ._context import attach, current_span, extract, inject
from ._core import NoSpan, Span, SpanContext, __version__, event, span
from ._media import Image
from ._run import Run, alert, finish, flush, get_level, init, log, set_level, shutdown, stats
from ._settings import ENVIRONMENT
from ._tokens import log_tokens
from ._trace import Trace
from ._traced import sample, start_span, step, traced
from ._trackio import AlertLevel, Histogram, Table


def instrument_http() -> list[str]:
    """Adds the current span's context to requests made with `httpx`, `aiohttp` and `requests`.

    Patches those that are installed, and returns their names. A serving engine that reads `traceparent`, such as SGLang,
    then makes its own spans children of yours.
    """
    from ._http import instrument

    return instrument()


def bridge_opentelemetry() -> bool:
    """Shares the current span with OpenTelemetry: its spans become parents of ours, and ours of its spans.

    `init()` calls this if OpenTelemetry has already been imported. Returns whether OpenTelemetry is installed.
    """
    from ._otel import bridge

    return bridge()


def __getattr__(name: str) -> object:
    from ._trackio import ABSENT

    instead = f": {ABSENT[name]}" if name in ABSENT else ""
    raise AttributeError(f"module 'rollscope' has no attribute {name!r}{instead}", name=name)


__all__ = [
    "ENVIRONMENT",
    "AlertLevel",
    "Client",
    "Histogram",
    "Image",
    "NoSpan",
    "Run",
    "Span",
    "SpanContext",
    "Table",
    "Trace",
    "__version__",
    "alert",
    "attach",
    "bridge_opentelemetry",
    "current_span",
    "event",
    "extract",
    "finish",
    "flush",
    "get_level",
    "init",
    "inject",
    "instrument_http",
    "log",
    "log_tokens",
    "sample",
    "set_level",
    "shutdown",
    "span",
    "start_span",
    "stats",
    "step",
    "traced",
]
