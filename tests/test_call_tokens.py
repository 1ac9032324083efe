"""Log-probabilities of model calls on their spans: the real `openai` package with OpenInference's real instrumentation, against a server that answers
as vLLM and SGLang do."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

PROGRAM = """
import sys
from openai import OpenAI
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

openai, http = sys.argv[1:]
spans = TracerProvider(resource=Resource.create({"service.name": "agent"}))
spans.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=http + "/v1/traces")))
OpenAIInstrumentor().instrument(tracer_provider=spans)
client = OpenAI(base_url=openai + "/v1", api_key="none")
client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], logprobs=True, n=2)
client.completions.create(model="tiny", prompt="Hi", logprobs=1)
# As OpenLLMetry's instrumentation for JavaScript sends them.
with spans.get_tracer("@traceloop/instrumentation-openai").start_as_current_span("openai.chat") as span:
    span.add_event("logprobs", {"logprobs": '[{"token": "Hel", "logprob": -0.5}, {"token": "lo", "logprob": -0.25}]'})
with spans.get_tracer("x").start_as_current_span("damaged") as span:
    span.set_attribute("output.value", '{"choices": [{"logprobs": {"content": [')
    span.add_event("logprobs", {"logprobs": "[{"})
spans.shutdown()
"""

TOKENS = [{"token": token, "logprob": -0.5, "bytes": list(token.encode()), "top_logprobs": []} for token in ("It", " rains", ".")]


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        if self.path.endswith("/chat/completions"):
            ids = [{**token, "token": f"token_id:{n}"} for n, token in enumerate(TOKENS)]
            message = {"role": "assistant", "content": "It rains."}
            choices = [{"index": 0, "finish_reason": "stop", "message": message, "token_ids": [1026, 62263, 13], "logprobs": {"content": TOKENS}},
                       {"index": 1, "finish_reason": "stop", "message": message, "logprobs": {"content": ids}}]
        else:
            choices = [{"index": 0, "finish_reason": "length", "text": "!?", "logprobs": {"tokens": ["!", "?"], "token_logprobs": [-0.25, -2.0], "text_offset": [0, 1], "top_logprobs": None}}]
        kind = "chat.completion" if self.path.endswith("/chat/completions") else "text_completion"
        body = json.dumps({"id": "c", "object": kind, "created": 1_790_000_000, "model": "tiny", "choices": choices,
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
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_log_probs_on_spans_become_tokens(server, openai):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "ROLLSCOPE_", "OPENAI_"))}
    done = subprocess.run([sys.executable, "-c", PROGRAM, openai, server.http], env=clean, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    chat, completion, event, damaged = [row[0] for row in server.sql("select hex(span_id) from spans order by start_ns")]
    found = {row[0]: row[1:] for row in server.sql("select sample_id, ids, texts, logprobs, prompt_tokens from tokens where run_id = 'agent'")}
    assert found == {
        chat: [[1026, 62263, 13], ["It", " rains", "."], [-0.5] * 3, 20],
        chat + "-1": [[0, 1, 2], None, [-0.5] * 3, 20],
        completion: [None, ["!", "?"], [-0.25, -2.0], 20],
        event: [None, ["Hel", "lo"], [-0.5, -0.25], None],
    }
    # The conversation of the call has the id of its span, by which the page finds the tokens.
    assert [chat] in server.sql("select hex(span_id) from conversations")
    assert damaged not in found
