"""ROLL's telemetry, under ROLL's names.

    from rollscope.roll import get_tracer, inject_trace_context, attach_trace_context, init_telemetry, shutdown_telemetry

    init_telemetry("driver", "http://127.0.0.1:4317")
    with get_tracer("pipeline").start_as_current_span("pipeline_step"):
        inject_trace_context(batch.meta_info)

Telemetry is off until `init_telemetry` finds an address. From then on, `get_tracer` records spans as `rollscope.span` does.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

from . import _core, _run, _settings
from ._context import attach, extract, inject
from ._core import NoSpan, Span, SpanContext

logger = logging.getLogger("rollscope.roll")

_OTEL_CTX_KEY = "_otel_ctx"
_suppressed: ContextVar[bool] = ContextVar("rollscope_roll_suppressed", default=False)
_initialized = False
_collector: subprocess.Popen[bytes] | None = None


def is_enabled() -> bool:
    """Returns whether `ROLL_OTEL_ENABLED` is on."""
    return os.environ.get("ROLL_OTEL_ENABLED", "0").strip().lower() in ("1", "true", "yes", "on")


class Tracer:
    """Makes spans, as OpenTelemetry's tracer does."""

    def __init__(self, name: str = "roll"):
        self.name = name

    @contextlib.contextmanager
    def start_as_current_span(
        self,
        name: str,
        context: Any = None,
        kind: Any = None,
        attributes: Mapping[str, Any] | None = None,
        links: Any = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        end_on_exit: bool = True,
    ) -> Iterator[Span | NoSpan]:
        """Starts a span for a `with` block."""
        span = self.start_span(name, context, kind, attributes, links, start_time)
        if record_exception and set_status_on_exception and end_on_exit:
            with span:
                yield span
            return
        with attach(span):
            try:
                yield span
            except BaseException as error:
                if record_exception or set_status_on_exception:
                    span.record_exception(error)
                raise
            finally:
                if end_on_exit:
                    span.end()

    def start_span(
        self,
        name: str,
        context: Any = None,
        kind: Any = None,
        attributes: Mapping[str, Any] | None = None,
        links: Any = None,
        start_time: int | None = None,
        **_others: Any,
    ) -> Span | NoSpan:
        """Starts a span that you end with `end()`."""
        links = [getattr(link, "context", link) for link in links or ()]
        return _core.span(name, attributes, kind=kind, links=links or None, parent=context or None, start_ns=start_time)


class _NoTracer(Tracer):
    @contextlib.contextmanager
    def start_as_current_span(self, name: str, *args: Any, **kwargs: Any) -> Iterator[NoSpan]:
        yield _nothing()

    def start_span(self, name: str, *args: Any, **kwargs: Any) -> NoSpan:
        return _nothing()


def _nothing() -> NoSpan:
    # Above the highest level: never recorded.
    span = _core.span("", level=255)
    assert isinstance(span, NoSpan)
    return span


_no_tracer = _NoTracer()


def get_tracer(name: str = "roll") -> Tracer:
    """Returns a tracer. It does nothing while telemetry is off or suppressed by `attach_trace_context`."""
    if not _initialized or _suppressed.get():
        return _no_tracer
    return Tracer(name)


def inject_trace_context(meta_info: dict[str, Any], context: Span | SpanContext | None = None) -> dict[str, Any]:
    """Writes the current context into `meta_info["_otel_ctx"]`, as a plain dict that can be serialized."""
    carrier: MutableMapping[str, str] = {}
    if _initialized and not _suppressed.get():
        inject(carrier, context)
    meta_info[_OTEL_CTX_KEY] = dict(carrier)
    return meta_info


def extract_trace_context(meta_info: Mapping[str, Any] | None) -> SpanContext | None:
    """Returns the context that `inject_trace_context` wrote, or `None`."""
    return extract((meta_info or {}).get(_OTEL_CTX_KEY) or {})


@contextlib.contextmanager
def attach_trace_context(meta_info: Mapping[str, Any] | None) -> Iterator[SpanContext | None]:
    """Makes spans inside children of the context in `meta_info`. Without a context, nothing inside is recorded."""
    context = extract_trace_context(meta_info)
    token = _suppressed.set(meta_info is None or _OTEL_CTX_KEY not in meta_info)
    try:
        with attach(context):
            yield context
    finally:
        _suppressed.reset(token)


def init_telemetry(service_name: str, otlp_endpoint: str | None = None, instance_id: str | None = None) -> None:
    """Starts recording if there is an address: `otlp_endpoint`, `OTEL_EXPORTER_OTLP_ENDPOINT` or `ROLLSCOPE_ENDPOINT`."""
    global _initialized
    if _initialized:
        logger.warning("Telemetry already initialized, skipping.")
        return
    endpoint = otlp_endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("ROLLSCOPE_ENDPOINT")
    if not endpoint:
        logger.info("Telemetry: no OTLP endpoint available, skipping init.")
        return
    try:
        _run._start(endpoint, service_name, instance_id)
        # A service is a role here. The server makes one run of all roles.
        resource = dict(_core.get_resource())
        resource.setdefault("rl.system", "roll")
        _core.set_resource(list(resource.items()))
    except Exception as error:
        logger.warning("Telemetry: %s; nothing is recorded", error)
        return
    _initialized = True
    logger.info("Telemetry initialized: service=%s, endpoint=%s, instance=%s", service_name, endpoint, instance_id)


def shutdown_telemetry() -> None:
    """Sends what was recorded, and stops the collector if this process started one. Also happens at exit."""
    global _initialized
    if _initialized:
        _core.flush(max(_settings.exit_timeout(), 5.0))
        _initialized = False
        logger.info("Telemetry shut down.")
    stop_otel_collector()


def resolve_otel_endpoint() -> str:
    """Returns this node's address with a free port."""
    import socket

    address = "127.0.0.1"
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Nothing is sent: this only asks which address would be used.
        probe.connect(("10.255.255.255", 1))
        address = probe.getsockname()[0]
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    return f"http://{address}:{port}"


def start_otel_collector(endpoint: str, output_dir: str) -> None:
    """Starts `rollscope collect` on the port of `endpoint`. It writes `<output_dir>/traces/traces.jsonl`."""
    global _collector
    if _collector is not None:
        logger.warning("OTel Collector already running, skipping.")
        return
    from ._embedded import find_binary

    binary = find_binary()
    if binary is None:
        raise RuntimeError("cannot find the rollscope program; install the wheel, or set ROLLSCOPE_BIN to its path")
    port = urlsplit(endpoint).port or 4317
    folder = os.path.join(output_dir, "traces")
    os.makedirs(folder, exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ROLLSCOPE_")}
    # Workers on other nodes send here, as with ROLL's own collector, so it listens on every address.
    command = [binary, "collect", "--out", output_dir, "--otlp-grpc", f"0.0.0.0:{port}", "--insecure-no-auth"]
    with open(os.path.join(folder, "rollscope-collect.log"), "ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None and not _listens(port):
        time.sleep(0.05)
    if process.poll() is not None:
        raise RuntimeError(f"`rollscope collect` exited with code {process.returncode}; see {folder}/rollscope-collect.log")
    _collector = process
    atexit.register(shutdown_telemetry)


def _listens(port: int) -> bool:
    import socket

    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.2):
        return True
    return False


def stop_otel_collector() -> None:
    """Stops what `start_otel_collector` started."""
    global _collector
    if _collector is None:
        return
    _collector.terminate()
    try:
        _collector.wait(timeout=5)
    except subprocess.TimeoutExpired:
        _collector.kill()
    _collector = None


__all__ = [
    "Tracer",
    "attach_trace_context",
    "extract_trace_context",
    "get_tracer",
    "init_telemetry",
    "inject_trace_context",
    "is_enabled",
    "resolve_otel_endpoint",
    "shutdown_telemetry",
    "start_otel_collector",
    "stop_otel_collector",
]
