"""Runs: `init`, `log`, `finish`, and the life of the recorder in this process."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping

from . import _core, _settings, _stacks
from ._context import attach
from ._errors import harmless, logger, swallowed
from ._media import Image
from ._names import CONVERSATION_BYTES
from ._trace import Trace, plain, to_json
from ._trackio import AlertLevel, Histogram, Table, record_spans

# Not imported at run time: the package must be quick to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ._embedded import Embedded

_MAX_METRICS = 10_000
_MAX_METRIC_DEPTH = 8
_MEDIA_REMEMBERED = 10_000
#: Arguments of Trackio's `init` without which things would not be where their user looks for them.
_ELSEWHERE = ("space_id", "server_url", "dataset_id", "bucket_id", "webhook_url")

_lock = threading.RLock()
_run: Run | None = None
_owner_pid = 0
_own_run_id: str | None = None
_configured_for: str | None = None
_exit_registered: set[int] = set()
_media_sent: OrderedDict[str, None] = OrderedDict()
#: How many records had been lost when `_media_sent` was last looked at: the media may be among them.
_lost_before = 0
_warned: set[str] = set()
_embedded: Embedded | None = None


def _start(endpoint: str | None, service: str | None = None, instance: str | None = None, exporter: str = "network") -> None:
    """Points the recorder at an address. For the same address again, only the resource changes."""
    global _configured_for
    with _lock:
        settings = _settings.settings(endpoint, exporter)
        resource = _settings.resource(service, instance)
        key = f"{exporter} {settings['host']}:{settings['port']} {settings['protocol']} {settings['tls']}"
        if _configured_for == key and exporter == "network":
            _core.set_resource(list(resource.items()))
            _core.switch(True)
        else:
            if _configured_for is not None:
                _core.shutdown(_settings.exit_timeout())
            settings["resource"] = list(resource.items())
            _core.configure(settings)
            _configured_for = key
            _media_sent.clear()
        _core.set_level(_settings.level())
        if exporter == "network":
            _register_exit()
            _stacks.start()


def _start_from_environment() -> None:
    """Starts recording at import if the environment names an address."""
    if _settings.disabled():
        return
    endpoint = _settings.endpoint_from_environment()
    if endpoint:
        try:
            _start(endpoint)
        except Exception as error:
            swallowed(error)


def _register_exit() -> None:
    pid = os.getpid()
    if pid in _exit_registered:
        return
    _exit_registered.add(pid)
    if len(_exit_registered) == 1:
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_after_fork)
    # Children of multiprocessing end without atexit.
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        _register_finalizer()


def _after_fork() -> None:
    """The child process belongs to the run but does not end it."""
    global _lock, _embedded
    _lock = threading.RLock()
    _embedded = None
    if _run is not None:
        _run._owner = False
    _stacks.start()
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # It forgets every finalizer when the child starts, and calls these right after.
        util.register_after_fork(_after_fork, lambda _: _register_finalizer())


def _register_finalizer() -> None:
    from multiprocessing import util

    util.Finalize(None, _at_exit, exitpriority=10)


def _at_exit() -> None:
    try:
        shutdown()
        counts = stats()
        lost = counts["dropped"] + counts["rejected"]
        waiting = counts.get("spilled", 0) - counts.get("recovered", 0)
        if counts.get("recorded"):
            level = logging.WARNING if lost or waiting > 0 else logging.INFO
            logger.log(
                level,
                "rollscope: %d recorded, %d sent, %d kept on disk for later, %d dropped, %d rejected by the server%s",
                counts["recorded"],
                counts["sent"] + counts["recovered"],
                max(waiting, 0),
                counts["dropped"],
                counts["rejected"],
                f" ({counts['last_error']})" if level == logging.WARNING and counts.get("last_error") else "",
            )
    except Exception as error:
        swallowed(error)
    finally:
        if _embedded is not None:
            _embedded.stop()


class Run:
    """A training run, as returned by `rollscope.init`. As a context manager, it finishes the run at the end of the block."""

    def __init__(
        self,
        run_id: str,
        project: str | None,
        name: str | None,
        config: Mapping[str, Any] | None,
        tags: Iterable[str] | None,
        framework: str | None,
        owner: bool,
    ):
        self.id = run_id
        self.project = project
        self.name = name
        self.config = dict(config) if config else {}
        self.tags = list(tags) if tags else []
        self.framework = framework
        self.started_ns = _core.now_ns()
        self.finished = False
        #: The address of the page, if `init` started a server.
        self.url: str | None = None
        self._owner = owner
        self._next_step = 0

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """See `rollscope.log`."""
        _log(self, metrics, step)

    def alert(
        self,
        title: str,
        text: str | None = None,
        level: AlertLevel | str = AlertLevel.WARN,
        step: int | None = None,
        webhook_url: str | None = None,
    ) -> None:
        """See `rollscope.alert`."""
        _alert(self, title, text, level, step, webhook_url)

    def finish(self, status: str = "finished", *, flush: bool = True) -> None:
        """Marks the run as ended and sends everything recorded so far."""
        global _run, _own_run_id
        if self.finished:
            return
        self.finished = True
        if self._owner:
            self._report(status, _core.now_ns())
        if flush:
            _core.flush(_settings.exit_timeout())
        _say_losses()
        with _lock:
            if _run is self:
                _run = None
            if self._owner and os.environ.get("ROLLSCOPE_RUN_ID") == self.id and _own_run_id == self.id:
                # The next init in this process is another run.
                os.environ.pop("ROLLSCOPE_RUN_ID", None)
                _own_run_id = None

    @harmless
    def _report(self, status: str, ended_ns: int | None) -> None:
        attrs: dict[str, Any] = {
            "rl.run.id": self.id,
            "rollscope.status": status,
            "rollscope.started_ns": self.started_ns,
        }
        for key, value in (("rl.project", self.project), ("rl.run.name", self.name), ("rl.system", self.framework)):
            if value:
                attrs[key] = str(value)
        if self.config:
            attrs["rollscope.config"] = _config_json(self.config)
        if self.tags:
            attrs["rollscope.tags"] = to_json([str(tag) for tag in self.tags])
        if ended_ns is not None:
            attrs["rollscope.ended_ns"] = ended_ns
        _core.record("rollscope.run", attrs)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.finish("failed" if error is not None else "finished")

    def __repr__(self) -> str:
        return f"Run({self.id!r}, project={self.project!r}, name={self.name!r})"


def _config_json(config: Mapping[str, Any]) -> str:
    try:
        text = to_json(plain(dict(config), [], "config"))
    except (ValueError, RecursionError) as error:
        text = to_json({"error": f"cannot encode the configuration: {error}"})
    return text if len(text) < 1 << 20 else to_json({"error": "the configuration is larger than 1 MiB"})


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text)[:120].strip("-.")


def init(
    project: str | None = None,
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    id: str | None = None,
    endpoint: str | None = None,
    tags: Iterable[str] | None = None,
    framework: str | None = None,
    service: str | None = None,
    embedded: bool | str = False,
    level: int | None = None,
    **others: Any,
) -> Run:
    """Begins a run, or joins the one that a parent process began.

    The server is at `endpoint`, else at `ROLLSCOPE_ENDPOINT`, `OTEL_EXPORTER_OTLP_ENDPOINT` or http://127.0.0.1:4317.
    `embedded=True` starts a server that keeps its data in the folder `rollscope-data` (pass a path to choose another). Its page
    is at `run.url`.

    Processes belong to the same run if they share `id` or the environment variable `ROLLSCOPE_RUN_ID`. `init` sets the variable
    for processes started from this one. `init` never raises. Without a server, everything recorded is kept on disk.
    """
    global _run, _own_run_id, _owner_pid
    project = project or os.environ.get("ROLLSCOPE_PROJECT") or None
    inherited = os.environ.get("ROLLSCOPE_RUN_ID") or None
    if inherited is not None and inherited == _own_run_id and _owner_pid == os.getpid():
        inherited = None
    run_id = id or inherited
    owner = inherited is None or id is not None
    if run_id is None:
        words = [w for w in (_slug(project or ""), _slug(name or "")) if w]
        run_id = "-".join([*words, _core.random_bytes(4).hex()])
    run = Run(str(run_id)[:256], project, name, config, tags, framework, owner)
    try:
        with _lock:
            if _run is not None and not _run.finished:
                _run.finish(flush=False)
            if embedded and not _settings.disabled():
                endpoint = _start_embedded(embedded, run) or endpoint
            os.environ["ROLLSCOPE_RUN_ID"] = run.id
            if endpoint:
                os.environ["ROLLSCOPE_ENDPOINT"] = endpoint
            if owner:
                _own_run_id, _owner_pid = run.id, os.getpid()
            if not _settings.disabled():
                _start(endpoint or _settings.endpoint_from_environment(), service)
                resource = dict(_core.get_resource())
                for key, value in (("rl.project", project), ("rl.run.name", name), ("rl.system", framework)):
                    if value:
                        resource[key] = str(value)
                _core.set_resource(list(resource.items()))
            if level is not None:
                _core.set_level(max(0, min(3, int(level))))
            _run = run
        if owner and not _settings.disabled():
            run._report("running", None)
        if "opentelemetry.trace" in sys.modules:
            from ._otel import bridge

            bridge()
        elsewhere = sorted(name for name in _ELSEWHERE if others.get(name))
        if elsewhere:
            logger.warning(
                "rollscope.init: ignored %s; data goes to the rollscope server only",
                ", ".join(elsewhere),
            )
        if others:
            logger.debug("init: ignored %s", ", ".join(sorted(others)))
    except Exception as error:
        swallowed(error)
        logger.warning("rollscope.init failed; nothing is recorded: %s", error)
    return run


def _start_embedded(embedded: bool | str, run: Run) -> str | None:
    global _embedded
    from ._embedded import Embedded

    if _embedded is None:
        _embedded = Embedded(embedded if isinstance(embedded, str) else "rollscope-data")
    run.url = _embedded.url
    return _embedded.endpoint


def log(metrics: Mapping[str, Any], step: int | None = None, **_others: Any) -> None:
    """Logs numbers, conversations and images of a step.

    A value is a number (from Python, numpy or torch; NaN is kept), a `Trace`, an `Image`, a `Table`, a list of these, a
    `Histogram`, or a dict of all of these. `step` defaults to the step of the surrounding `rollscope.step(...)`, else to the
    next one.
    """
    _log(_run, metrics, step)


def alert(title: str, text: str | None = None, level: AlertLevel | str = AlertLevel.WARN, webhook_url: str | None = None) -> None:
    """Reports that something needs attention: through Python's logging, and as a span named `alert` under the current span.

    `level` is an `AlertLevel` or its text. Webhooks are not called.
    """
    _alert(_run, title, text, level, None, webhook_url)


def _alert(
    run: Run | None, title: str, text: str | None, level: AlertLevel | str, step: int | None, webhook_url: str | None
) -> None:
    try:
        level = str(getattr(level, "value", level)).lower()
        severity = {"info": logging.INFO, "error": logging.ERROR}.get(level, logging.WARNING)
        logger.log(severity, "alert: %s", title if text is None else f"{title}: {text}")
        if webhook_url:
            _warn_once("webhook", "rollscope.alert: the alert is recorded; webhooks are not called")
        if step is None and _current_step() is None and run is not None:
            step = max(run._next_step - 1, 0)
        attrs = {"alert.title": str(title), "alert.level": level}
        if text is not None:
            attrs["alert.text"] = str(text)
        span = _core.span("alert", attrs, step=step)
        if level == "error":
            span.set_status("error", str(title))
        span.end()
    except Exception as error:
        swallowed(error)


def _current_step() -> int | None:
    current = _core.current_span()
    return getattr(current, "step", None)


def _log(run: Run | None, values: Mapping[str, Any], step: int | None) -> None:
    if not _core.enabled() and _settings.disabled():
        return
    try:
        if run is None and not _core.enabled():
            _warn_once("log", "rollscope.log: nothing is recorded; call rollscope.init first")
            return
        if not isinstance(values, Mapping):
            _warn_once("values", f"rollscope.log: expected a dict, got {type(values).__name__}")
            return
        if step is None:
            step = _current_step()
        if step is None and run is not None:
            step = run._next_step
        if run is not None and isinstance(step, int):
            run._next_step = step + 1
        number = None if step is None else _core.as_number(step)
        step = None if number is None else int(number)
        now = _core.now_ns()
        numbers: dict[str, float] = {}
        _sort_values(values, "", numbers, step, now, 0)
        if numbers:
            attrs: dict[str, Any] = {} if step is None else {"rl.step": step}
            _core.record("rollscope.metrics", attrs, numbers, now)
        _say_losses()
    except Exception as error:
        _core.count_error()
        logger.error("rollscope.log: %s", error)


def _sort_values(
    values: Mapping[str, Any], prefix: str, numbers: dict[str, float], step: int | None, now: int, depth: int
) -> None:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if type(value) is float or type(value) is int:
            numbers[name] = float(value)
        elif isinstance(value, Trace):
            _conversation(value, name, 0, step, now)
        elif isinstance(value, (Image, Table)):
            _conversation(_as_trace(value), name, 0, step, now)
        elif isinstance(value, Histogram):
            numbers.update((f"{name}/{key}", number) for key, number in value.statistics.items())
            _warn_once(
                f"histogram {name}",
                f"rollscope.log: the histogram {name!r} is kept as count, mean, std and quantiles, not the bins",
            )
        elif isinstance(value, (list, tuple)) and value and all(isinstance(v, (Trace, Image, Table)) for v in value):
            for index, item in enumerate(value):
                _conversation(_as_trace(item), name, index, step, now)
        elif isinstance(value, Mapping) and depth < _MAX_METRIC_DEPTH:
            _sort_values(value, f"{name}/", numbers, step, now, depth + 1)
        else:
            number = _core.as_number(value) if value is not None and not isinstance(value, str) else None
            if number is None:
                kind = type(value).__name__
                _warn_once(
                    f"value {name}",
                    f"rollscope.log: skipped {name!r} of type {kind}; expected a number, Trace, Image, Table or Histogram",
                )
            elif len(numbers) < _MAX_METRICS:
                numbers[name] = number


def _as_trace(value: Trace | Image | Table) -> Trace:
    if isinstance(value, Table):
        return value.to_trace()
    return value if isinstance(value, Trace) else Trace([{"role": "user", "content": [value]}])


def _conversation(trace: Trace, key: str, index: int, step: int | None, now: int) -> None:
    media: list[Image] = []
    try:
        messages = to_json(plain(trace.messages, media, f"{key}.messages"))
        metadata = to_json(plain(trace.metadata, media, f"{key}.metadata")) if trace.metadata else None
    except (ValueError, RecursionError) as error:
        _core.count_error()
        logger.error("rollscope.log: skipped a conversation: %s", error)
        return
    if len(messages) + len(metadata or "") > CONVERSATION_BYTES:
        _core.count_error()
        logger.error("rollscope.log: skipped %r: larger than %d bytes", key, CONVERSATION_BYTES)
        return
    produced_by = None
    try:
        if trace.spans:
            produced_by = record_spans(trace, key, step, now, media)
    except (ValueError, RecursionError) as error:
        _core.count_error()
        logger.error("rollscope.log: skipped the spans of a conversation: %s", error)
    for image in media:
        _send_once(image, now)
    attrs: dict[str, Any] = {"rollscope.id": _core.random_bytes(16).hex(), "rollscope.key": key, "rollscope.index": index}
    if step is not None:
        attrs["rl.step"] = step
    if metadata is not None:
        attrs["rollscope.metadata"] = metadata
    if produced_by is None:
        _core.record("rollscope.conversation", attrs, messages, now, True)
        return
    with attach(produced_by):
        _core.record("rollscope.conversation", attrs, messages, now, True)


def _send_once(image: Image, now: int) -> None:
    """Sends the content of an image, unless the server has it or will get it."""
    global _lost_before
    lost = _core.losses()[1]
    if lost != _lost_before:
        _lost_before = lost
        _media_sent.clear()
    if image.sha256 in _media_sent:
        return
    if _core.record("rollscope.media", {"rollscope.mime": image.mime}, image.data, now):
        _media_sent[image.sha256] = None
        if len(_media_sent) > _MEDIA_REMEMBERED:
            _media_sent.popitem(last=False)


def _say_losses() -> None:
    """Says once that data is lost, when it begins. The counts are said at exit."""
    if _core.losses()[0] and "lost" not in _warned:
        counts = stats()
        _warn_once(
            "lost",
            f"rollscope: data is being lost. {counts['dropped']} records were dropped because there was no room in memory "
            f"(ROLLSCOPE_QUEUE_BYTES) or on disk (ROLLSCOPE_SPILL_BYTES), and {counts['rejected']} were rejected by the server. "
            f"rollscope.stats() has the counts. The last error: {counts['last_error'] or 'none'}",
        )


def _warn_once(key: str, text: str) -> None:
    if key not in _warned and len(_warned) < 1000:
        _warned.add(key)
        logger.warning("%s", text)


def finish(status: str = "finished") -> None:
    """Ends the run that `init` began."""
    if _run is not None:
        _run.finish(status)
    else:
        _core.flush(_settings.exit_timeout())


def flush(timeout: float = 10.0) -> bool:
    """Waits until everything recorded so far has reached the server. Returns whether it has."""
    sent = _core.flush(float(timeout))
    _say_losses()
    return sent


def shutdown(timeout: float | None = None) -> None:
    """Ends the run, sends what it can within `timeout`, keeps the rest on disk, and stops recording. Called at exit."""
    global _configured_for
    failed = getattr(sys, "last_value", None) is not None or getattr(sys, "last_exc", None) is not None
    if _run is not None and _run._owner and not _run.finished:
        _run.finish("failed" if failed else "finished", flush=False)
    _core.shutdown(_settings.exit_timeout() if timeout is None else float(timeout))
    # The recorder takes nothing any more. The next `init` needs another one.
    _configured_for = None


def stats() -> dict[str, Any]:
    """Returns the counters of this process: recorded, sent, spilled (to disk), recovered (sent from disk), dropped (no room in
    memory or on disk), rejected (by the server, or set aside because the server fails on them again and again), errors (of the
    package itself), and the last error of sending."""
    empty = dict.fromkeys(("recorded", "sent", "spilled", "recovered", "dropped", "rejected", "errors", "requests"), 0)
    return {**empty, "queued_bytes": 0, "last_error": "", **_core.stats()}


def set_level(level: int) -> None:
    """Sets what is recorded: 0 nothing, 1 important spans, 2 all but nested spans, 3 everything. The server can set it too."""
    _core.set_level(max(0, min(3, int(level))))


def get_level() -> int:
    return _core.get_level()


_start_from_environment()
