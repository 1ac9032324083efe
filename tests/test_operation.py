"""Running it: demo, health, figures, configuration, doors."""

import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from conftest import BINARY, Server, run, wait_until
from otlp import request, span


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("demo") / "data", "--steps", "4", "--samples", "16", command="demo")
    yield server
    assert server.stop() == 0


def test_the_demo_has_every_kind_of_data(demo):
    for table in ["runs", "spans", "samples", "conversations", "metrics", "series"]:
        assert demo.one(f"select count(*) from {table}") > 0, table
    assert demo.one("select count(distinct step) from samples") >= 4
    assert demo.one("select count(*) from spans e join spans g on e.request_id = g.request_id where e.service = 'sglang' and g.name = 'sglang_generate'") > 0
    assert demo.one("select count(*) from spans e join spans g on e.parent_span_id = g.span_id where e.service = 'sglang' and g.service = 'smg'") > 0
    runs = {r["run_id"]: r for r in demo.get("/api/v1/runs").json()["runs"]}
    assert [name for name, run in runs.items() if not run.get("service")] == ["demo"] and runs["demo"]["spans"] > 0
    assert demo.get("/").headers["content-type"].startswith("text/html")


def test_the_demo_goes_on(demo):
    before = demo.one("select count(*) from spans")
    wait_until(lambda: demo.one("select count(*) from spans where state = 'open'") > 0)
    wait_until(lambda: demo.one("select count(*) from spans") > before)


def test_the_demo_is_the_same_for_the_same_seed(tmp_path):
    answers = []
    for name in ["a", "b"]:
        run("demo", "--no-serve", "--steps", "2", "--samples", "8", "--data", tmp_path / name)
        query = "select hex(span_id) as id, name, end_ns - start_ns as ns, end_attrs from spans order by 1"
        answers.append(run("sql", "--data", tmp_path / name, "--format", "json", query).stdout)
    assert answers[0] == answers[1]


def test_health_and_figures(demo):
    assert demo.get("/healthz").ok and demo.get("/readyz").ok
    health = demo.get("/api/v1/health").json()
    assert health["status"] == "ok" and health["problems"] == []
    text = demo.get("/metrics").text
    for line in text.splitlines():
        assert line.startswith("#") or re.match(r'^[a-z_:]+(\{[^}]*\})? [0-9.e+-]+$', line), line
    for word in ["spans", "rejected", "flush", "quer", "resident"]:
        assert word in text, word
    api = demo.get("/api/v1/openapi.json").json()
    assert api["openapi"].startswith("3.") and "/api/v1/sql" in api["paths"]


def test_configuration_by_flag_environment_and_file(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('data = "from-file"\n[server]\nlisten = "127.0.0.1:1111"\notlp_grpc = "127.0.0.1:2222"\notlp_http = "127.0.0.1:3333"\n')
    done = subprocess.run(
        [BINARY, "serve", "--config", file, "--print-config", "--listen", "127.0.0.1:9"], capture_output=True, text=True,
        env={"ROLLSCOPE_LISTEN": "127.0.0.1:8", "ROLLSCOPE_OTLP_GRPC": "127.0.0.1:8", "ROLLSCOPE_TOKEN": "s3cret"}, check=True)
    assert 'listen = "127.0.0.1:9"' in done.stdout and 'otlp_grpc = "127.0.0.1:8"' in done.stdout
    assert 'otlp_http = "127.0.0.1:3333"' in done.stdout and 'data = "from-file"' in done.stdout
    assert "s3cret" not in done.stdout


def test_a_token_closes_every_door(serve):
    server = serve(None, "--token", "s3cret")
    assert server.get("/healthz").ok
    assert server.get("/api/v1/runs").status_code == 401
    assert requests.post(server.http + "/v1/traces", data=b"", headers={"content-type": "application/x-protobuf"}, timeout=10).status_code == 401
    stub = TraceServiceStub(grpc.insecure_channel(server.grpc_target))
    with pytest.raises(grpc.RpcError) as refused:
        stub.Export(request([span(1)]), timeout=10)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    stub.Export(request([span(1)]), timeout=10, metadata=[("authorization", "Bearer s3cret")])
    assert server.get("/api/v1/runs", headers={"authorization": "Bearer s3cret"}).ok
    assert run("sql", "--server", server.url, "--token", "s3cret", "--format", "csv", "select count(*) as n from spans").stdout.split() == ["n", "1"]


def test_tls(serve, tmp_path):
    if not shutil.which("openssl"):
        pytest.fail("this test needs openssl")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
    server = serve(None, "--tls-cert", str(cert), "--tls-key", str(key))
    assert server.url.startswith("https://")
    assert requests.get(server.url + "/healthz", verify=str(cert), timeout=10).ok
    channel = grpc.secure_channel(server.grpc_target, grpc.ssl_channel_credentials(cert.read_bytes()))
    TraceServiceStub(channel).Export(request([span(1)]), timeout=10)


def test_a_run_can_be_deleted(server):
    stub = TraceServiceStub(grpc.insecure_channel(server.grpc_target))
    stub.Export(request([span(1)], rl__run__id="a/b c"))
    stub.Export(request([span(100)], rl__run__id="other"))
    assert requests.delete(server.url + "/api/v1/runs/a%2Fb%20c", timeout=10).ok
    assert server.sql("select run_id from spans") == [["other"]]
    assert server.sql("select run_id from runs") == [["other"]]
    assert requests.delete(server.url + "/api/v1/runs/a%2Fb%20c", timeout=10).status_code == 404


def test_a_query_ends_when_its_client_goes(demo):
    slow = "select count(*) from spans a, spans b, spans c where a.start_ns + b.start_ns < c.end_ns"
    with pytest.raises(requests.exceptions.Timeout):
        requests.post(demo.url + "/api/v1/sql", json={"query": slow}, timeout=0.5)
    wait_until(lambda: not [q for q in demo.get("/api/v1/queries").json()["queries"] if "spans c" in q["sql"]])


def test_a_query_is_cancelled_whatever_it_does_then(server):
    """At any moment, and afterwards the next query finds free threads."""
    slow = "select count(*) from generate_series(1, 1000000) a cross join generate_series(1, 1000000) b where a.value + b.value < 0"
    for wait in (0, 0.02, 0.3, 2):
        with ThreadPoolExecutor() as pool:
            asked = [pool.submit(requests.post, server.url + "/api/v1/sql", json={"query": slow}, timeout=60) for _ in range(3)]
            # The server asks queries of its own, too: for alarms.
            queries = lambda: [q for q in server.get("/api/v1/queries").json()["queries"] if "generate_series" in q["sql"]]
            wait_until(lambda: len(queries()) == 3)
            time.sleep(wait)
            for query in queries():
                assert requests.delete(f"{server.url}/api/v1/queries/{query['id']}", timeout=10).status_code == 204
            for answer in asked:
                assert answer.result().status_code == 503 and "cancelled" in answer.result().json()["detail"]
        assert server.one("select 1") == 1


def test_the_last_hour_can_be_asked(server):
    TraceServiceStub(grpc.insecure_channel(server.grpc_target)).Export(request([span(1)]))
    assert server.one("select count(*) from spans where start_ns > cast(now() - interval '1 hour' as bigint)") == 1
    assert server.one("select count(*) from spans where to_timestamp_nanos(start_ns) > now() - interval '1 hour'") == 1
    assert server.one("select count(*) from spans where to_timestamp_nanos(start_ns) > current_timestamp") == 0
    assert server.one("select current_date >= date '2024-01-01'") is True


def test_logs_are_structured_when_asked(tmp_path):
    import json
    server = Server(tmp_path / "data", "--log-json")
    time.sleep(0.2)
    assert server.stop() == 0
    lines = (tmp_path / "data.log").read_text().splitlines()
    assert lines and all("message" in json.loads(line)["fields"] for line in lines)
