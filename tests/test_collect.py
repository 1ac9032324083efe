"""`rollscope collect`: durable before it acknowledges, also under the name otelcol, also as an agent."""

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import grpc
import pytest
import requests
from google.protobuf.json_format import MessageToDict
from opentelemetry import trace as otel
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from conftest import BINARY, run, sql, wait_until
from otlp import request, span

ROLL = """\
receivers:
  otlp:
    protocols:
      grpc:
        endpoint: "127.0.0.1:{port}"
exporters:
  file:
    path: "{path}"
service:
  telemetry:
    metrics:
      level: none
  pipelines:
    traces:
      receivers: [otlp]
      exporters: [file]
"""


class Collector:
    def __init__(self, argv):
        env = {k: v for k, v in os.environ.items() if not k.startswith("ROLLSCOPE_")}
        self.process = subprocess.Popen([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        self.grpc = self.http = self.path = None
        for line in self.process.stdout:
            words = line.split()
            if line.startswith("OTLP gRPC"):
                self.grpc = words[-1].split("//")[1]
            elif line.startswith("OTLP HTTP"):
                self.http = words[-1]
            elif line.startswith("writing"):
                self.path = Path(words[-1])
                break
        else:
            raise RuntimeError(self.process.stderr.read())

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(timeout=60)
        self.process.stdout.close()
        self.process.stderr.close()
        return self.process.returncode


@pytest.fixture
def collect(tmp_path):
    started = []

    def start(*flags, out=tmp_path / "out"):
        collector = Collector([BINARY, "collect", "--out", out, "--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", *flags])
        started.append(collector)
        return collector

    yield start
    for collector in started:
        collector.stop()


def files(folder: Path):
    def number(path):
        parts = path.name.split(".")
        return int(parts[1]) if len(parts) == 3 else 0
    return sorted(folder.glob("traces*.jsonl"), key=number)


def spans_in(folder: Path):
    for path in files(folder):
        for line in path.read_text().splitlines():
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    yield from scope["spans"]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_the_sdk_sends_and_the_files_hold_it(collect, tmp_path, protocol):
    collector = collect()
    assert collector.path == tmp_path / "out" / "traces" / "traces.jsonl"
    exporter = (GrpcExporter(endpoint=collector.grpc, insecure=True) if protocol == "grpc"
                else HttpExporter(endpoint=collector.http + "/v1/traces"))
    provider = TracerProvider(resource=Resource({"service.name": "pipeline"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("roll")
    with tracer.start_as_current_span("step", attributes={"n": 3, "text": 'h\u00e9 "x"', "list": [1, 2], "half": 0.5, "yes": True}) as step:
        step.add_event("tool", {"name": "bash"})
        with pytest.raises(ValueError), tracer.start_as_current_span("fails", links=[otel.Link(step.get_span_context(), {"rel": "prev"})]):
            raise ValueError("no")
    provider.shutdown()
    found = {s["name"]: s for s in spans_in(collector.path.parent)}
    assert found.keys() == {"step", "fails"}
    step_span, fails = found["step"], found["fails"]
    assert len(step_span["traceId"]) == 32 and fails["parentSpanId"] == step_span["spanId"]
    assert step_span["kind"] == 1 and fails["status"]["code"] == 2, "numbers, as the specification has it"
    attributes = {a["key"]: a["value"] for a in step_span["attributes"]}
    assert attributes["n"] == {"intValue": "3"} and attributes["text"] == {"stringValue": 'h\u00e9 "x"'}
    assert attributes["list"] == {"arrayValue": {"values": [{"intValue": "1"}, {"intValue": "2"}]}}
    assert attributes["half"] == {"doubleValue": 0.5} and attributes["yes"] == {"boolValue": True}
    assert step_span["events"][0]["name"] == "tool" and fails["links"][0]["spanId"] == step_span["spanId"]
    # What it wrote is what import reads.
    run("import", "--data", tmp_path / "data", collector.path)
    assert sql(tmp_path / "data", "select count(*) as n from spans where service = 'pipeline'") == [{"n": 2}]


def test_a_message_is_the_same_in_the_file(collect):
    """Against protobuf's own JSON, apart from ids and enumerations, which OTLP writes differently."""
    collector = collect()
    message = request([span(n) for n in range(20)], service="svc", **{"host__name": "a"})
    with grpc.insecure_channel(collector.grpc) as channel:
        TraceServiceStub(channel).Export(message, timeout=30)
    want = MessageToDict(message)["resourceSpans"][0]
    got = json.loads(collector.path.read_text())["resourceSpans"][0]
    assert got["resource"] == want["resource"]
    for a, b, c in zip(got["scopeSpans"][0]["spans"], want["scopeSpans"][0]["spans"], message.resource_spans[0].scope_spans[0].spans, strict=True):
        assert a["traceId"] == c.trace_id.hex() and a["spanId"] == c.span_id.hex()
        assert a["attributes"] == b["attributes"] and a["startTimeUnixNano"] == b["startTimeUnixNano"]
        assert a["endTimeUnixNano"] == b["endTimeUnixNano"] and a["name"] == b["name"]


def test_files_rotate(collect):
    collector = collect("--max-file-bytes", "20000")
    with grpc.insecure_channel(collector.grpc) as channel:
        for n in range(30):
            TraceServiceStub(channel).Export(request([span(n * 10 + i) for i in range(10)]), timeout=30)
    there = files(collector.path.parent)
    assert len(there) > 2 and there[1].name == "traces.1.jsonl"
    assert {path.stat().st_mode & 0o777 for path in there} == {0o600}, "prompts may be in them"
    assert len({s["spanId"] for s in spans_in(collector.path.parent)}) == 300


def test_kill_under_load_loses_nothing_that_was_acknowledged(collect, tmp_path):
    collector = collect("--max-file-bytes", "300000")
    acknowledged, stop = [[] for _ in range(4)], threading.Event()

    def send(worker):
        with grpc.insecure_channel(collector.grpc) as channel:
            stub = TraceServiceStub(channel)
            for n in range(100_000):
                numbers = [(n * 4 + worker) * 20 + i for i in range(20)]
                try:
                    stub.Export(request([span(i) for i in numbers]), timeout=10)
                except grpc.RpcError:
                    return
                acknowledged[worker] += numbers
                if stop.is_set():
                    return

    threads = [threading.Thread(target=send, args=(w,)) for w in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(map(len, acknowledged)) > 4000, seconds=120)
    collector.stop(signal.SIGKILL)
    stop.set()
    for thread in threads:
        thread.join()
    # Started again, it cuts off a line that was not finished and goes on.
    again = collect("--max-file-bytes", "300000")
    with grpc.insecure_channel(again.grpc) as channel:
        TraceServiceStub(channel).Export(request([span(10**9)]), timeout=30)
    found = {int(s["spanId"], 16) - 1 for s in spans_in(again.path.parent)}
    missing = {n for list in acknowledged for n in list} - found
    assert not missing and 10**9 in found


def test_bad_input_is_refused_and_metrics_are_not_for_it(collect):
    collector = collect("--max-message-bytes", "100000")
    post = lambda body, kind="application/x-protobuf", path="/v1/traces": requests.post(collector.http + path, data=body, headers={"content-type": kind}, timeout=30)
    assert post(b"\xff\xff\xff").status_code == 400
    assert post(b"{", "application/json").status_code == 400
    assert post(b"x", "text/plain").status_code == 415
    assert post(b"\0" * 200_000).status_code == 413
    assert post(b"", path="/v1/metrics").status_code == 415
    assert post(request([]).SerializeToString()).status_code == 200
    assert requests.get(collector.http + "/healthz", timeout=10).ok
    assert collector.path.read_text() == ""


def test_listening_beyond_this_machine_needs_a_token(tmp_path):
    done = run("collect", "--out", tmp_path, "--otlp-grpc", "0.0.0.0:0", "--otlp-http", "", check=False)
    assert done.returncode == 2 and "--token" in done.stderr


@pytest.mark.parametrize("name", ["otelcol", "otelcol-contrib"])
def test_as_otelcol_with_rolls_configuration(tmp_path, name):
    """What roll.utils.telemetry.start_otel_collector does: write the file, start, look after a second, terminate."""
    binary = tmp_path / "bin" / name
    binary.parent.mkdir()
    binary.symlink_to(BINARY)
    target = tmp_path / "output" / "otlp" / "traces" / "traces.jsonl"
    config = tmp_path / "otelcol-config.yaml"
    config.write_text(ROLL.format(port=0, path=target))
    collector = Collector([binary, "--config", config])
    time.sleep(1)
    assert collector.process.poll() is None
    with grpc.insecure_channel(collector.grpc) as channel:
        TraceServiceStub(channel).Export(request([span(1)]), timeout=30)
    assert [s["name"] for s in spans_in(target.parent)] == ["work 1"]
    assert collector.stop() == 0


def test_another_configuration_is_refused_by_name(tmp_path):
    binary = tmp_path / "otelcol"
    binary.symlink_to(BINARY)
    config = tmp_path / "c.yaml"
    for change, name in [(("exporters: [file]", "exporters: [file, otlphttp]"), "otlphttp"), (("  file:\n", "  kafka: {}\n  file:\n"), "kafka"),
                         (("service:", "extensions: {}\nservice:"), "extensions")]:
        config.write_text(ROLL.format(port=0, path=tmp_path / "t.jsonl").replace(*change))
        done = subprocess.run([binary, "--config", config], capture_output=True, text=True, timeout=30)
        assert done.returncode == 2 and name in done.stderr, done.stderr
    assert subprocess.run([binary, "--config", tmp_path / "none.yaml"], capture_output=True, timeout=30).returncode == 1


def test_forwarding_survives_an_absent_server(collect, serve, tmp_path):
    server = serve()
    url, listen = server.url, server.url.split("//")[1]
    server.stop()
    collector = collect("--forward", url, "--max-file-bytes", "20000")
    with grpc.insecure_channel(collector.grpc) as channel:
        for n in range(30):
            TraceServiceStub(channel).Export(request([span(n * 10 + i) for i in range(10)], service="fwd"), timeout=30)
    assert collector.stop() == 0
    again = collect("--forward", url, "--max-file-bytes", "20000")
    server = serve(tmp_path / "data", "--listen", listen)
    wait_until(lambda: server.one("select count(*) from spans where service = 'fwd'") == 300, seconds=60)
    # What the server has is not kept; the file being written stays.
    wait_until(lambda: len(files(again.path.parent)) <= 1, seconds=30)
    assert json.loads((again.path.parent / "forward.json").read_text())["file"] > 0
