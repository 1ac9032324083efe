"""OpenTelemetry's own SDK, unchanged."""

import json
import subprocess
import sys

import pytest
from conftest import run, sql

PROGRAM = """
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.exporter.otlp.proto.{protocol}.trace_exporter import OTLPSpanExporter

provider = TracerProvider(resource=Resource.create({{"service.name": "their-program", "rl.run.id": "their-run"}}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
tracer = provider.get_tracer("theirs", "1.2")
for step in range(20):
    with tracer.start_as_current_span("pipeline_step", attributes={{"rl.step": step}}):
        with tracer.start_as_current_span("generate") as span:
            span.set_attribute("completion_tokens", 100 + step)
            span.set_attribute("temperature", 0.5)
            span.set_attribute("tags", ["a", "ü"])
            span.add_event("tool_call", {{"tool": "bash"}})
        with tracer.start_as_current_span("train", links=[trace.Link(span.get_span_context())]) as train:
            train.set_status(trace.StatusCode.ERROR, "diverged")
provider.shutdown()
"""


@pytest.mark.parametrize("compression", [{}, {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}], ids=["plain", "gzip"])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_their_program_unchanged(server, protocol, compression):
    endpoint = server.grpc if protocol == "grpc" else server.http
    subprocess.run(
        [sys.executable, "-c", PROGRAM.format(protocol=protocol)], check=True, timeout=60,
        env={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "PATH": "/usr/bin", **compression})
    rows = server.sql("select service, name, count(*), avg(end_ns - start_ns)/1e6 as ms from spans group by 1,2 order by 2 desc")
    assert [r[:3] for r in rows] == [["their-program", "train", 20], ["their-program", "pipeline_step", 20], ["their-program", "generate", 20]]
    assert all(r[3] > 0 for r in rows)
    assert server.sql("select run_id, name, status from runs") == [["their-run", None, "running"]]
    # Attributes keep their types, and attr() has the type of what it finds.
    total = server.one("select sum(attr(end_attrs, 'completion_tokens')) from spans")
    assert total == sum(100 + s for s in range(20))
    assert server.one("select avg(attr(end_attrs, 'temperature')) from spans") == 0.5
    assert server.one("select count(*) from spans where attr(end_attrs, 'completion_tokens') >= 110") == 10
    assert server.one("select max(step) from spans") == 19
    span = server.sql("select end_attrs, events, status from spans where name = 'generate' limit 1")[0]
    assert span[0]["tags"] == ["a", "ü"] and span[1][0]["name"] == "tool_call" and span[2] == "unset"
    failed = server.sql("select status, status_message, links from spans where name = 'train' limit 1")[0]
    assert failed[:2] == ["error", "diverged"]
    assert server.one(f"select name from spans where span_id = '{failed[2][0]['span_id']}'") == "generate"
    # The same from the command line, while the server runs.
    assert sql(server.data, "select count(*) as n from spans") == [{"n": 60}]
    through_server = run("sql", "--server", server.url, "--format", "json", "select count(*) as n from spans").stdout
    assert json.loads(through_server) == [{"n": 60}]


def test_metrics_go_into_series(server):
    program = """
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=60000)
provider = MeterProvider(metric_readers=[reader])
meter = provider.get_meter("theirs")
meter.create_counter("tokens").add(5, {"engine": "0"})
meter.create_histogram("latency").record(0.2)
provider.shutdown()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60,
                   env={"OTEL_EXPORTER_OTLP_ENDPOINT": server.grpc, "OTEL_SERVICE_NAME": "engine", "PATH": "/usr/bin"})
    rows = server.sql("select name, kind, attr(labels, 'engine'), value from series where name = 'tokens'")
    assert rows == [["tokens", "counter", "0", 5.0]]
    assert server.one("select value from series where name = 'latency_count'") == 1.0
