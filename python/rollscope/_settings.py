"""Every environment variable that the package reads, and how it parses an address."""

from __future__ import annotations

import os
import sys

# Not imported at run time: the package must be quick to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULT_ENDPOINT = "http://127.0.0.1:4317"

ENVIRONMENT = {
    "ROLLSCOPE_ENDPOINT": "OTLP address of the server, such as http://host:4317",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "used if ROLLSCOPE_ENDPOINT is not set",
    "ROLLSCOPE_TOKEN": "the server's token",
    "OTEL_EXPORTER_OTLP_HEADERS": "more headers, as key=value,key=value",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc (default) or http/protobuf",
    "OTEL_EXPORTER_OTLP_CERTIFICATE": "PEM file of the certificates to trust with https",
    "OTEL_SERVICE_NAME": "service.name; defaults to the name of the program",
    "OTEL_RESOURCE_ATTRIBUTES": "more attributes of this process, as key=value,key=value",
    "ROLLSCOPE_RUN_ID": "the run that this process belongs to; init() sets it for its children",
    "ROLLSCOPE_PROJECT": "the project, if init() does not name one",
    "ROLLSCOPE_LEVEL": "0 nothing, 1 important spans, 2 all but nested spans, 3 everything (default)",
    "ROLLSCOPE_DISABLED": "1 records nothing",
    "ROLLSCOPE_QUEUE_BYTES": "memory for data that waits to be sent (64 MiB)",
    "ROLLSCOPE_SPILL_DIR": "folder for data that cannot be sent yet (rollscope/spill in the user's cache); empty turns it off",
    "ROLLSCOPE_SPILL_BYTES": "largest size of that folder per address, for all processes together (1 GiB)",
    "ROLLSCOPE_FLUSH_INTERVAL": "seconds between sends (0.2)",
    "ROLLSCOPE_TIMEOUT": "longest time for one request, in seconds (10)",
    "ROLLSCOPE_EXIT_TIMEOUT": "longest delay of the process's exit, in seconds (2)",
    "ROLLSCOPE_PENDING_AFTER": "seconds after which an open span is reported as running (1)",
    "ROLLSCOPE_BIN": "path of the rollscope program, for init(embedded=True)",
}


def _env(name: str) -> str | None:
    value = os.environ.get(name)
    return value if value else None


def _number(name: str, default: float, low: float, high: float) -> float:
    try:
        value = float(os.environ[name])
    except (KeyError, ValueError):
        return default
    return min(max(value, low), high) if value == value else default


def exit_timeout() -> float:
    return _number("ROLLSCOPE_EXIT_TIMEOUT", 2.0, 0.0, 3600.0)


def level() -> int:
    return int(_number("ROLLSCOPE_LEVEL", 3, 0, 3))


def disabled() -> bool:
    return (os.environ.get("ROLLSCOPE_DISABLED") or "0").lower() not in ("0", "false", "no", "")


def endpoint_from_environment() -> str | None:
    return _env("ROLLSCOPE_ENDPOINT") or _env("OTEL_EXPORTER_OTLP_ENDPOINT")


def _pairs(text: str | None) -> list[tuple[str, str]]:
    """`key=value,key=value`, as OpenTelemetry writes it."""
    if not text:
        return []
    from urllib.parse import unquote

    found = []
    for part in (text or "").split(","):
        key, equals, value = part.partition("=")
        if equals and key.strip():
            found.append((key.strip(), unquote(value.strip())))
    return found


def parse_endpoint(endpoint: str) -> dict[str, Any]:
    """Splits an address into host, port, protocol and the rest. Port 4318 or a path means HTTP, everything else gRPC."""
    from urllib.parse import urlsplit

    text = endpoint if "://" in endpoint else f"http://{endpoint}"
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https", "grpc") or not parts.hostname or any(c.isspace() for c in endpoint):
        raise ValueError(f"invalid address {endpoint!r}; expected http://HOST:4317 or https://HOST:4317")
    prefix = parts.path.rstrip("/")
    if prefix.endswith("/v1/traces"):
        prefix = prefix[: -len("/v1/traces")]
    asked = (os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "").strip()
    is_http = asked.startswith("http") or (not asked and (parts.port == 4318 or parts.path not in ("", "/")))
    headers = _pairs(os.environ.get("OTEL_EXPORTER_OTLP_HEADERS"))
    token = _env("ROLLSCOPE_TOKEN")
    if token and not any(key.lower() == "authorization" for key, _ in headers):
        headers.append(("authorization", f"Bearer {token}"))
    return {
        "host": parts.hostname,
        "port": parts.port or (4318 if is_http else 4317),
        "tls": parts.scheme == "https",
        "prefix": prefix,
        "protocol": "http" if is_http else "grpc",
        "headers": [(key.lower(), value) for key, value in headers],
        "ca_file": _env("OTEL_EXPORTER_OTLP_CERTIFICATE"),
    }


def spill_folder(host: str, port: int) -> str | None:
    """One folder per address, so that data meant for one server never reaches another."""
    given = os.environ.get("ROLLSCOPE_SPILL_DIR")
    if given == "":
        return None
    if given:
        root = given
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        root = f"/tmp/rollscope-spill-{os.getuid()}" if cache.startswith("~") else os.path.join(cache, "rollscope", "spill")
    name = "".join(c if c.isalnum() or c in ".-" else "_" for c in f"{host}_{port}")
    return os.path.join(root, name)


def service_name() -> str:
    named = _env("OTEL_SERVICE_NAME")
    if named:
        return named
    program = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) and sys.argv[0] else ""
    return program if program and program != "-c" else "python"


def resource(service: str | None = None, instance: str | None = None) -> dict[str, str]:
    host = os.uname().nodename
    attributes = {
        "service.name": service or service_name(),
        "service.instance.id": instance or f"{host}:{os.getpid()}",
        "host.name": host,
        "process.pid": str(os.getpid()),
        "telemetry.sdk.name": "rollscope",
        "telemetry.sdk.language": "python",
    }
    for key, value in _pairs(os.environ.get("OTEL_RESOURCE_ATTRIBUTES")):
        if key not in ("service.instance.id", "process.pid"):
            attributes[key] = value
    if service:
        attributes["service.name"] = service
    run = _env("ROLLSCOPE_RUN_ID")
    if run:
        attributes["rl.run.id"] = run
    rank = _env("RANK")
    if rank and rank.isdecimal():
        attributes.setdefault("rl.rank", rank)
    return attributes


def settings(endpoint: str | None, exporter: str = "network") -> dict[str, Any]:
    """Everything that the recorder needs to know."""
    where = parse_endpoint(endpoint or DEFAULT_ENDPOINT)
    return {
        "exporter": exporter,
        **where,
        "queue_bytes": int(_number("ROLLSCOPE_QUEUE_BYTES", 64 << 20, 1 << 16, 1 << 40)),
        "spill_dir": spill_folder(where["host"], where["port"]),
        "spill_bytes": int(_number("ROLLSCOPE_SPILL_BYTES", 1 << 30, 0, 1 << 50)),
        "flush_interval": _number("ROLLSCOPE_FLUSH_INTERVAL", 0.2, 0.001, 3600),
        "timeout": _number("ROLLSCOPE_TIMEOUT", 10.0, 0.001, 3600),
        "pending_after": _number("ROLLSCOPE_PENDING_AFTER", 1.0, 0.01, 1e6),
        "stats_interval": 10.0,
    }
