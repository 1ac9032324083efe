"""The store through the real binary: every row once, whatever comes again, and nobody who dies in silence."""

import hashlib
import json
import threading
import time

import pytest
import requests
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue, KeyValueList

from conftest import run, sql, wait_until
from otlp import attribute, records, request, span

PROTOBUF = {"content-type": "application/x-protobuf"}


def post(server, path, message, **kwargs):
    answer = requests.post(server.http + path, data=message.SerializeToString(), headers=PROTOBUF, timeout=60, **kwargs)
    assert answer.ok, answer.text
    return answer


def logged(values):
    return AnyValue(kvlist_value=KeyValueList(
        values=[KeyValue(key=k, value=AnyValue(double_value=v)) for k, v in values.items()]))


def test_metrics_sent_again_while_a_flush_commits_are_there_once(serve, tmp_path):
    """An exporter that retries, and a server that flushes all the time. Everything else is as it is by default."""
    config = tmp_path / "config.toml"
    config.write_text("[store]\nflush_rows = 100\n")
    server = serve(tmp_path / "data", "--config", str(config))
    start = time.time_ns()

    def send(sender, rounds=60):
        for round in range(rounds):
            values = {f"s{sender}/m{n}": float(round) for n in range(50)}
            message = records("again", ("rollscope.metrics", logged(values), {"rl.step": 1}, start + sender))
            post(server, "/v1/logs", message)
            post(server, "/v1/logs", message)

    senders = [threading.Thread(target=send, args=(n,)) for n in range(4)]
    [s.start() for s in senders]
    [s.join() for s in senders]
    assert server.get("/readyz").status_code == 200
    assert server.get("/api/v1/health").json()["status"] == "ok"
    question = "select count(*), count(distinct name), min(value), max(value) from metrics where source is null"
    wanted = [[200, 200, 59.0, 59.0]]
    assert server.sql(question) == wanted
    assert server.get("/api/v1/health").json()["store"]["stats"]["flushes"] > 3
    server.kill()
    server.start()
    assert server.sql(question) == wanted
    assert server.stop() == 0
    assert "panicked" not in (tmp_path / "data.log").read_text()
    [row] = sql(tmp_path / "data", question)
    assert list(row.values()) == wanted[0]


def points(run_id, n=100):
    message = ExportMetricsServiceRequest()
    group = message.resource_metrics.add()
    group.resource.attributes.extend([attribute("service.name", "engine"), attribute("rl.run.id", run_id)])
    metric = group.scope_metrics.add().metrics.add(name="queue")
    for i in range(n):
        metric.gauge.data_points.add(time_unix_nano=1_790_000_000_000_000_000 + i * 10**9, as_double=i / 3)
    return message


def test_the_same_series_sent_twice_are_there_once(server):
    message = points("r")
    for _ in range(2):
        post(server, "/v1/metrics", message)
    count = "select count(*) from series where name = 'queue'"
    assert server.one(count) == 100
    server.kill()
    server.start()
    post(server, "/v1/metrics", message)
    assert server.one(count) == 100
    server.stop()
    server.start()
    post(server, "/v1/metrics", message)
    assert server.one(count) == 100, "now they are in a segment"
    post(server, "/v1/metrics", points("another run"))
    assert server.one(count) == 200


def test_a_kill_in_the_first_flush_of_a_new_folder_doubles_nothing(serve, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("[store]\nflush_rows = 1000\n")
    for attempt in range(5):
        data = tmp_path / f"data{attempt}"
        server = serve(data, "--config", str(config))
        message = points("r", 20_000)
        post(server, "/v1/metrics", message)
        # The file of the first segment is there, or about to be.
        deadline = time.monotonic() + 30
        while not list((data / "series").glob("*/*")) and time.monotonic() < deadline:
            pass
        server.kill()
        server.start()
        assert server.one("select count(*) from series where name = 'queue'") == 20_000
        server.stop()


def test_the_same_spans_under_a_second_run_are_stored(server):
    spans = [span(n) for n in range(10)]
    post(server, "/v1/traces", request(spans, rl__run__id="first"))
    post(server, "/v1/traces", request(spans, rl__run__id="second"))
    post(server, "/v1/traces", request(spans, rl__run__id="second"))
    count = "select run_id, count(*) from spans group by run_id order by run_id"
    assert server.sql(count) == [["first", 10], ["second", 10]]
    runs = {r["run_id"]: r["spans"] for r in server.get("/api/v1/runs").json()["runs"]}
    assert runs == {"first": 10, "second": 10}
    # By its id alone it is one trace.
    trace = spans[0].trace_id.hex()
    answer = server.get(f"/jaeger/api/traces/{trace}").json()["data"][0]
    assert len(answer["spans"]) == 10
    server.stop()
    server.start()
    assert server.sql(count) == [["first", 10], ["second", 10]]


def test_a_file_imported_under_two_names_is_two_runs(tmp_path):
    file = tmp_path / "traces.jsonl"
    from google.protobuf.json_format import MessageToDict
    body = MessageToDict(request([span(n) for n in range(10)]))
    for group in body["resourceSpans"]:
        for scope in group["scopeSpans"]:
            for one, n in zip(scope["spans"], range(10), strict=True):
                one["traceId"], one["spanId"] = f"{n // 10 + 1:032x}", f"{n + 1:016x}"
    file.write_text(json.dumps(body) + "\n")
    for name in ("one", "two"):
        run("import", file, "--data", tmp_path / "data", "--run", name)
    rows = sql(tmp_path / "data", "select run_id, count(*) as n from spans group by run_id order by run_id")
    assert rows == [{"run_id": "one", "n": 10}, {"run_id": "two", "n": 10}]


def test_a_deleted_run_leaves_nothing(server):
    png = b"\x89PNG\r\n\x1a\n" + bytes(64)
    only, both = png + b"only", png + b"both"
    names = [hashlib.sha256(data).hexdigest() for data in (only, both)]

    def talk(*media):
        content = [{"type": "image", "media": name} for name in media]
        body = AnyValue(string_value=json.dumps([{"role": "user", "content": content}]))
        return "rollscope.conversation", body, {"rl.step": 1}, time.time_ns()

    def picture(data):
        return "rollscope.media", AnyValue(bytes_value=data), {}, time.time_ns()

    def everything(run_id, first, *talks):
        still_open = [span(first + n, end_time_unix_nano=0) for n in range(100, 105)]
        post(server, "/v1/traces", request([span(first + n) for n in range(10)] + still_open, rl__run__id=run_id))
        post(server, "/v1/metrics", points(run_id))
        post(server, "/v1/logs", records(run_id, *talks, ("rollscope.metrics", logged({"loss": 1.0}), {"rl.step": 1}, time.time_ns())))

    everything("gone", 0, picture(only), picture(both), talk(*names))
    everything("stays", 1000, talk(names[1]))
    assert all(server.get("/api/v1/media/" + name).ok for name in names)
    wait_until(lambda: server.get("/api/v1/conversations?limit=1").json()["total"] == 2)
    answer = requests.delete(server.url + "/api/v1/runs/gone", timeout=60)
    assert answer.status_code == 204, answer.text

    def left():
        tables = [t for t in ("runs", "spans", "samples", "conversations", "metrics", "series")
                  if server.one(f"select count(*) from {t} where run_id = 'gone'")]
        listed = [r["run_id"] for r in server.get("/api/v1/runs").json()["runs"]]
        found = [server.get("/api/v1/media/" + name).status_code for name in names]
        return tables, listed, found

    wanted = ([], ["stays"], [404, 200])
    assert left() == wanted
    assert server.one("select count(*) from spans where run_id = 'stays' and state = 'open'") == 5
    wait_until(lambda: server.get("/api/v1/conversations?limit=1").json()["total"] == 1)
    # The watcher of steps has had its chance to write their figures.
    time.sleep(3)
    assert left() == wanted
    server.kill()
    server.start()
    assert left() == wanted
    assert requests.delete(server.url + "/api/v1/runs/gone", timeout=60).status_code == 404
    wait_until(lambda: not list(server.data.glob("*/run=gone/*.parquet")))


def test_a_missing_segment_of_one_run_does_not_stop_the_others(serve, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("[store]\nflush_age_s = 1\n")
    server = serve(tmp_path / "data", "--config", str(config))
    at = time.time_ns()

    def send(run_id, value):
        post(server, "/v1/logs", records(run_id, ("rollscope.metrics", logged({"loss": value}), {"rl.step": 1}, at)))

    def in_the_tail():
        return server.get("/api/v1/health").json()["store"]["stats"]["tail_rows"]["metrics"]

    for run_id in ("good", "bad"):
        send(run_id, 1.0)
    wait_until(lambda: in_the_tail() == 0)
    [file] = server.data.glob("metrics/run=bad/*.parquet")
    file.unlink()
    for value in (2.0, 3.0):
        for run_id in ("good", "bad"):
            send(run_id, value)
        wait_until(lambda: in_the_tail() == 0)
    wait_until(lambda: server.get("/api/v1/health").json()["status"] == "degraded")
    health = server.get("/api/v1/health").json()
    assert len(health["problems"]) == 1 and "run=bad" in health["problems"][0]
    assert health["store"]["writable"] and server.get("/readyz").ok
    assert server.sql("select run_id, value from metrics order by run_id") == [["bad", 3.0], ["good", 3.0]]
    assert server.stop() == 0


PARTS = ["store-writer", "store-upkeep", "step-watcher", "search-index", "listener"]


@pytest.mark.parametrize("part", PARTS)
def test_the_death_of_a_part_ends_the_server(serve, tmp_path, part):
    config = tmp_path / "config.toml"
    config.write_text("[server.limits]\nfailed_linger_s = 0\n")
    server = serve(tmp_path / "data", "--config", str(config), env={"ROLLSCOPE_TEST_PANIC": part})
    assert server.process.wait(timeout=60) == 1
    server.stop()
    log = (tmp_path / "data.log").read_text()
    assert f"{part} has failed" in log and "restart rollscope" in log


def test_a_dead_writer_is_seen_at_once(serve, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("[server.limits]\nfailed_linger_s = 3600\n")
    server = serve(tmp_path / "data", "--config", str(config), env={"ROLLSCOPE_TEST_PANIC": "store-writer"})
    wait_until(lambda: server.get("/readyz").status_code == 503)
    assert "store-writer has failed" in server.get("/readyz").text
    assert server.get("/healthz").ok
    health = server.get("/api/v1/health").json()
    assert health["status"] == "failed" and not health["store"]["writable"]
    assert "ROLLSCOPE_TEST_PANIC" in health["problems"][0]
    message = request([span(1)]).SerializeToString()
    answer = requests.post(server.http + "/v1/traces", data=message, headers=PROTOBUF, timeout=30)
    assert answer.status_code == 503 and b"store-writer has failed" in answer.content
    # Told to stop, it says so once more.
    assert server.stop() == 1
