"""Bad input gets a clear answer, and the next request is served."""

import gzip
import json
import time

import grpc
import pytest
import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue

from conftest import Server, run
from otlp import attribute, request, span

YEAR_2500 = 16_725_225_600_000_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("bad") / "data")
    yield server
    # After everything below it still serves.
    good = TraceServiceStub(grpc.insecure_channel(server.grpc_target)).Export(request([span(10**6)]), timeout=10)
    assert good.partial_success.rejected_spans == 0
    assert server.stop() == 0


def deep(levels):
    value = AnyValue(int_value=1)
    for _ in range(levels):
        value = AnyValue(array_value=ArrayValue(values=[value]))
    return value


BAD_SPANS = {
    "no trace id": {"trace_id": b""},
    "a zero trace id": {"trace_id": bytes(16)},
    "a short span id": {"span_id": b"123"},
    "a zero span id": {"span_id": bytes(8)},
    "an end before the start": {"start_time_unix_nano": time.time_ns(), "end_time_unix_nano": time.time_ns() - 10**9},
    "a start in 1970": {"start_time_unix_nano": 1000, "end_time_unix_nano": 2000},
    "a start in 2500": {"start_time_unix_nano": YEAR_2500, "end_time_unix_nano": YEAR_2500 + 1},
    "a million attributes": {"attributes": [attribute(f"k{i}", i) for i in range(10**6)]},
    "deep nesting": {"attributes": [KeyValue(key="deep", value=deep(40))]},
    "a gigantic attribute": {"attributes": [attribute("big", "x" * (5 << 20))]},
}


@pytest.mark.parametrize("what", BAD_SPANS)
def test_one_bad_span_is_rejected_alone(server, what):
    first = 1000 * (1 + list(BAD_SPANS).index(what))
    before = server.get("/api/v1/health").json()
    stub = TraceServiceStub(grpc.insecure_channel(server.grpc_target))
    answer = stub.Export(request([span(first), span(first + 10, **BAD_SPANS[what]), span(first + 20)]), timeout=30)
    assert answer.partial_success.rejected_spans == 1
    assert len(answer.partial_success.error_message) > 10
    kept = server.sql(f"select attr(end_attrs, 'number') from spans where attr(end_attrs, 'number') between {first} and {first + 20} order by 1")
    assert kept == [[first], [first + 20]]
    assert before != server.get("/api/v1/health").json(), "rejections are counted"
    assert "rejected" in server.get("/metrics").text


def post(server, body, **headers):
    headers = {"content-type": "application/x-protobuf", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return requests.post(server.http + "/v1/traces", data=body, headers=headers, timeout=60)


GOOD = request([span(1)]).SerializeToString()
BAD_BODIES = {
    "truncated protobuf": (GOOD[:-3], {}, 400),
    "nonsense": (b"\xff" * 100, {}, 400),
    "truncated gzip": (gzip.compress(GOOD)[:-10], {"content_encoding": "gzip"}, 400),
    "no gzip at all": (b"hello", {"content_encoding": "gzip"}, 400),
    "a gzip bomb": (gzip.compress(bytes(200 << 20)), {"content_encoding": "gzip"}, 413),
    "an unknown encoding": (GOOD, {"content_encoding": "lzma"}, 415),
    "an unknown content type": (GOOD, {"content_type": "text/html"}, 415),
    "truncated JSON": (b'{"resourceSpans": [', {"content_type": "application/json"}, 400),
    "JSON of the wrong shape": (b'{"resourceSpans": 7}', {"content_type": "application/json"}, 400),
    "deep JSON": (b'{"resourceSpans":' + b"[" * 100_000, {"content_type": "application/json"}, 400),
    "invalid UTF-8 in JSON": (b'{"resourceSpans": "\xff\xfe"}', {"content_type": "application/json"}, 400),
    "an oversized message": (bytes(70 << 20), {}, 413),
}


@pytest.mark.parametrize("what", BAD_BODIES)
def test_a_bad_body_is_refused_and_the_next_is_served(server, what):
    body, headers, status = BAD_BODIES[what]
    answer = post(server, body, **headers)
    assert answer.status_code == status, answer.content[:300]
    assert answer.content, "an error says what was wrong"
    good = post(server, GOOD)
    assert good.status_code == 200
    assert ExportTraceServiceResponse.FromString(good.content).partial_success.rejected_spans == 0


def test_json_as_the_wild_writes_it(server):
    now = time.time_ns()
    spans = [
        {"traceId": "00000000000000000000000000abcd01", "spanId": "00000000000abc01", "name": "hex", "kind": 2,
         "startTimeUnixNano": str(now), "endTimeUnixNano": str(now + 5), "status": {"code": "STATUS_CODE_ERROR"}},
        {"traceId": "AAAAAAAAAAAAAAAAAKvNAg==", "spanId": "AAAAAAAKvAI=", "name": "base64", "kind": "SPAN_KIND_SERVER",
         "startTimeUnixNano": now, "endTimeUnixNano": now + 5,
         "attributes": [{"key": "n", "value": {"intValue": 7}}, {"key": "m", "value": {"intValue": "8"}}, {"key": "empty"}]},
    ]
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})
    answer = post(server, body.encode(), content_type="application/json")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("application/json")
    rows = server.sql("select name, kind, status, hex(trace_id), attr_int(end_attrs, 'n') + attr_int(end_attrs, 'm') from spans where name in ('hex', 'base64') order by 1")
    assert rows == [["base64", "server", "unset", "00000000000000000000000000abcd02", 15],
                    ["hex", "server", "error", "00000000000000000000000000abcd01", None]]


@pytest.mark.parametrize("query", ["", "select", "select nope from spans", "drop table spans", "insert into runs values (1)",
                                   "create table x (a int)", "select 1; select 2", "copy spans to 'x.csv'", "(" * 5000])
def test_bad_sql_is_refused_with_words(server, query):
    answer = requests.post(server.url + "/api/v1/sql", json={"query": query}, timeout=30)
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == "application/problem+json" and len(answer.json()["detail"]) > 5


def test_usage_errors_exit_with_2_and_failures_with_1(server, tmp_path):
    assert run("serve", "--no-such-flag", check=False).returncode == 2
    assert run("sql", "--data", server.data, "select nope from spans", check=False).returncode == 2
    missing = run("sql", "--data", tmp_path / "nothing", "select 1", check=False)
    assert missing.returncode == 1 and "is not a rollscope store" in missing.stderr
    open_door = run("serve", "--data", tmp_path / "d", "--listen", "0.0.0.0:0", check=False)
    assert open_door.returncode == 2 and "--token" in open_door.stderr
    no_file = run("import", tmp_path / "no.jsonl", "--data", tmp_path / "d", check=False)
    assert no_file.returncode == 1 and "no.jsonl" in no_file.stderr
    (tmp_path / "bad.toml").write_text("[server]\nlisten_on = 1\n")
    bad_config = run("serve", "--config", tmp_path / "bad.toml", check=False)
    assert bad_config.returncode == 2 and "listen_on" in bad_config.stderr
