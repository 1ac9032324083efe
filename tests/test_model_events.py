"""Messages that instrumentations of model clients send as log events: the real `openai` package and its real instrumentation,
against a server that answers as OpenAI's does."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest
import requests
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import LogsServiceStub

PROGRAM = """
import sys
from openai import OpenAI
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

protocol, processor, openai, grpc, http, repeats = sys.argv[1:]
if protocol == "grpc":
    from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
    exporter = OTLPLogExporter(endpoint=grpc, insecure=True)
elif protocol == "json":
    from opentelemetry.exporter.otlp.json.http._log_exporter import OTLPLogExporter
    exporter = OTLPLogExporter(endpoint=http + "/v1/logs")
else:
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    exporter = OTLPLogExporter(endpoint=http + "/v1/logs")
resource = Resource.create({"service.name": "agent"})
spans, logs = TracerProvider(resource=resource), LoggerProvider(resource=resource)
spans.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=http + "/v1/traces")))
# One by one: every message of a call is a request of its own.
logs.add_log_record_processor({"one by one": SimpleLogRecordProcessor, "together": BatchLogRecordProcessor}[processor](exporter))
OpenAIInstrumentor().instrument(tracer_provider=spans, logger_provider=logs)
client = OpenAI(base_url=openai + "/v1", api_key="none")
call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Basel"}'}}
messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "Rain in Basel?"},
            {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1", "content": "rain"}]
for _ in range(int(repeats)):
    client.chat.completions.create(model="tiny", messages=messages)
logs.shutdown()
spans.shutdown()
"""

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Basel"}'}}


class OpenAi(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({
            "id": "chat-1", "object": "chat.completion", "created": 1_790_000_000, "model": "tiny-2026",
            "choices": [{"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "It rains."}}],
            "usage": {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23}}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def openai():
    server = ThreadingHTTPServer(("127.0.0.1", 0), OpenAi)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def talk(server, openai, protocol, processor, repeats=1, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "ROLLSCOPE_", "OPENAI_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, protocol, processor, openai, server.grpc, server.http, str(repeats)],
        env={**clean, **env}, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stderr


def conversations(server):
    rows = server.sql("select id, run_id, messages, metadata, status, encode(trace_id, 'hex'), encode(span_id, 'hex') from conversations order by logged_ns")
    return [{"id": id, "run": run, "messages": json.loads(messages), "metadata": json.loads(metadata), "status": status, "trace": trace, "span": span}
            for id, run, messages, metadata, status, trace, span in rows]


def check(server, found):
    """The messages as they were sent and answered, on the run and the span of the call."""
    roles = [m["role"] for m in found["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    system, user, asks, told, answer = found["messages"]
    assert (system["content"], user["content"], answer["content"]) == ("be brief", "Rain in Basel?", "It rains.")
    assert asks["tool_calls"][0]["id"] == "c1" and asks["tool_calls"][0]["function"]["name"] == "weather"
    assert json.loads(asks["tool_calls"][0]["function"]["arguments"]) == {"city": "Basel"}
    assert (told["tool_call_id"], told["content"]) == ("c1", "rain")
    assert (found["run"], found["status"], found["metadata"]["finish_reason"]) == ("agent", "truncated", "length")
    assert server.one(f"select name from spans where trace_id = trace_id('{found['trace']}') and span_id = span_id('{found['span']}')") == "chat tiny"
    assert server.get(f"/api/v1/conversations/{found['id']}").ok


@pytest.mark.parametrize("processor", ["one by one", "together"])
@pytest.mark.parametrize("protocol", ["grpc", "protobuf", "json"])
def test_messages_as_events_of_their_own(server, openai, protocol, processor):
    talk(server, openai, protocol, processor, repeats=2, OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="true")
    found = conversations(server)
    assert len(found) == 2
    for one in found:
        check(server, one)


@pytest.mark.parametrize("capture", ["event_only", "span_and_event"])
@pytest.mark.parametrize("protocol", ["grpc", "protobuf", "json"])
def test_a_whole_call_as_one_event(server, openai, protocol, capture):
    talk(server, openai, protocol, "together", OTEL_SEMCONV_STABILITY_OPT_IN="gen_ai_latest_experimental",
         OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=capture)
    (found,) = conversations(server)
    check(server, found)
    assert (found["metadata"]["model"], found["metadata"]["prompt_tokens"], found["metadata"]["completion_tokens"]) == ("tiny-2026", 20, 3)


def test_events_without_content_are_refused_with_what_to_do(server, openai):
    """As the instrumentation sends them where nobody allowed it to send content. What a tool call is named is content enough."""
    records = [{"eventName": "gen_ai.user.message", "traceId": "01" * 16, "spanId": "02" * 8, "observedTimeUnixNano": "1790000000000000000"}]
    said = export_json(server, records)["partialSuccess"]
    assert said["rejectedLogRecords"] == "1" and "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT" in said["errorMessage"]
    assert conversations(server) == []


def export_json(server, records):
    body = {"resourceLogs": [{"resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "agent"}}]}, "scopeLogs": [{"logRecords": records}]}]}
    answer = requests.post(server.http + "/v1/logs", json=body, timeout=30)
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json", answer.text
    return answer.json()


def test_the_same_events_again_change_nothing(server):
    records = [
        {"eventName": "gen_ai.user.message", "traceId": "01" * 16, "spanId": "02" * 8, "timeUnixNano": "1790000000000000001",
         "body": {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "again?"}}]}}},
        # The name as senders wrote it before there was a field for it.
        {"traceId": "01" * 16, "spanId": "02" * 8, "timeUnixNano": "1790000000000000002",
         "attributes": [{"key": "event.name", "value": {"stringValue": "gen_ai.assistant.message"}}],
         "body": {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "once"}}]}}},
    ]
    for sent in [records, records, records[1:], records[:1]]:
        assert export_json(server, sent) == {}
    (found,) = conversations(server)
    assert [m["content"] for m in found["messages"]] == ["again?", "once"]


def test_other_log_records_are_refused_alike_over_every_protocol(server):
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for text in ["starting", "done"]:
        records.add(time_unix_nano=1_790_000_000_000_000_000, severity_text="INFO").body.string_value = text
    words = "2 rejected: log records are not stored"
    with grpc.insecure_channel(server.grpc_target) as channel:
        over_grpc = LogsServiceStub(channel).Export(request, timeout=30).partial_success
    answer = requests.post(server.http + "/v1/logs", data=request.SerializeToString(), headers={"content-type": "application/x-protobuf"}, timeout=30)
    over_http = ExportLogsServiceResponse.FromString(answer.content).partial_success
    for said in (over_grpc, over_http):
        assert said.rejected_log_records == 2 and said.error_message.startswith(words)
    plain = [{"timeUnixNano": "1790000000000000000", "severityText": "INFO", "body": {"stringValue": text}} for text in ["starting", "done"]]
    said = export_json(server, plain)["partialSuccess"]
    assert said == {"rejectedLogRecords": "2", "errorMessage": over_grpc.error_message}
