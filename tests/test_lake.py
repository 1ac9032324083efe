"""A lake: the real binary on a real S3 server (SeaweedFS), and what other programs read there."""

import time
from pathlib import Path

import polars
import pytest
import requests

from conftest import FIXTURES, spans_in, wait_until
from lake import BUCKET, COUNT, Lake, Seaweed, numbers, send, total


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """The environment of a client of a SeaweedFS that runs for these tests."""
    weed = Seaweed(tmp_path_factory.mktemp("seaweed"))
    yield weed.env
    weed.stop()


@pytest.fixture
def lake(s3, tmp_path, request):
    """A prefix of its own, and how to start nodes there."""
    lake = Lake(f"{request.node.name}/deep", tmp_path, s3)
    yield lake
    lake.stop()


def test_one_node_on_s3_keeps_everything_through_kills(lake):
    server = lake.node("a")
    send(server, "run one", 0, 500)
    assert total(server.sql(COUNT)) == numbers(500)
    assert total(lake.sql(COUNT)) == numbers(500), "another machine reads what is only in the log"
    server.kill()
    assert total(lake.sql(COUNT)) == numbers(500), "and so when the server is gone"
    server.start()
    assert total(server.sql(COUNT)) == numbers(500)
    for round in range(1, 4):
        send(server, "run one", round * 500, 500)
        # What was sent before, as a client does that has lost an answer.
        send(server, "run one", round * 500 - 20, 20)
        server.kill()
        server.start()
        assert total(server.sql(COUNT)) == numbers(500 * (round + 1))
    assert server.stop() == 0
    assert total(lake.sql(COUNT)) == numbers(2000)
    table = lake.delta("spans")
    assert table.to_pyarrow_table(columns=["span_id"]).num_rows == 2000, "a shutdown leaves everything in the tables"
    exported = lake.run("export", "otlp", "--data", lake.url, "--run", "run one")
    assert exported.returncode == 0 and spans_in(exported.stdout) == 2000, exported.stderr


def test_commands_work_on_a_lake(lake):
    """The same as on a folder, from a dump to the words of the model."""
    dump, folder = str(FIXTURES / "slime" / "small.pt"), str(lake.folder / "folder")
    answers = {}
    for data in (folder, lake.url):
        imported = lake.run("import", "--data", data, "--run", "r", dump)
        assert imported.returncode == 0, imported.stderr
        counts = [lake.run("sql", "--data", data, "--format", "json", f"select count(*) as n from {table}").stdout
                  for table in ("spans", "samples", "conversations", "metrics", "runs")]
        report = lake.run("report", "--data", data, "r")
        found = lake.run("conversations", "--data", data)
        assert report.returncode == 0 and found.returncode == 0, report.stderr + found.stderr
        answers[data] = counts, report.stdout, found.stdout
    assert answers[folder] == answers[lake.url]
    assert any('"n": 0' not in count and '"n":0' not in count for count in answers[folder][0])
    for command in ("compact", "reindex"):
        refused = lake.run(command, "--data", lake.url)
        assert refused.returncode == 2 and "works on a folder" in refused.stderr, refused.stderr


def test_other_programs_read_the_tables(lake):
    server = lake.node("a")
    send(server, "a/b %2F ü", 0, 300)
    send(server, "second", 300, 200)
    assert server.stop() == 0
    ours = lake.sql("select run_id, count(*) as n from spans where name like 'work%' group by run_id order by run_id")
    ours = sorted((row["run_id"], row["n"]) for row in ours)
    assert ours == [("a/b %2F ü", 300), ("second", 200)]
    frame = polars.scan_delta(f"{lake.url}/spans", storage_options=lake.options)
    theirs = frame.filter(polars.col("name").str.starts_with("work")).group_by("run_id").len().collect()
    assert sorted(theirs.rows()) == ours
    rows = lake.delta("spans").to_pyarrow_table(columns=["run_id", "step", "trace_id", "start_attrs", "end_attrs", "events", "links"])
    assert rows.num_rows == 500
    for name in ["runs", "samples", "conversations", "metrics", "series", "tokens"]:
        assert lake.delta(name).to_pyarrow_table().num_rows >= 0, name


def test_two_nodes_write_one_lake(lake):
    a, b = lake.node("a"), lake.node("b")
    for i in range(6):
        send((a, b)[i % 2], "shared", i * 100, 100)
    assert total(lake.sql(COUNT)) == numbers(600)
    b.kill()
    assert total(lake.sql(COUNT)) == numbers(600)
    # The same node comes back, while the other one goes on.
    send(a, "shared", 600, 100)
    b.start()
    send(b, "shared", 700, 100)
    assert a.stop() == 0 and b.stop() == 0
    assert total(lake.sql(COUNT)) == numbers(800)
    assert lake.delta("spans").to_pyarrow_table(columns=["span_id"]).num_rows == 800


def test_a_process_that_takes_a_name_ends_the_one_before(lake):
    old = lake.node("a")
    send(old, "r", 0, 100)
    new = lake.node("a")
    assert total(new.sql(COUNT)) == numbers(100)
    refused = requests.post(old.http + "/v1/traces", json={"resourceSpans": [{"scopeSpans": [{"spans": [{
        "traceId": "f" * 32, "spanId": "f" * 16, "name": "late", "startTimeUnixNano": "1790000000000000000", "endTimeUnixNano": "1790000000000000001"}]}]}]}, timeout=60)
    assert refused.status_code == 503, refused.text
    assert "taken over" in refused.text
    send(new, "r", 100, 100)
    assert total(lake.sql(COUNT)) == numbers(200)
    ready = old.get("/readyz")
    assert ready.status_code == 503, ready.text
    old.kill()


@pytest.mark.parametrize(("change", "url", "code", "says"), [
    ({"AWS_SECRET_ACCESS_KEY": "wrong"}, f"s3://{BUCKET}/x", 1, "check the bucket"),
    ({}, "s3://no-such-bucket-here/x", 1, "check the bucket"),
    ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, f"s3://{BUCKET}/x", 1, "check the bucket"),
    ({}, "ftp://bucket/x", 2, "expected s3://BUCKET/PREFIX"),
    ({}, f"s3://{BUCKET}/nothing-here", 1, "there is no lake"),
])
def test_what_cannot_be_opened_says_why(lake, change, url, code, says):
    begun = time.monotonic()
    done = lake.run("sql", "--data", url, "select 1", env={**lake.env, **change})
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    # SeaweedFS makes a bucket that somebody writes to.
    if not url.startswith(("s3://no-such", f"s3://{BUCKET}/nothing")):
        done = lake.run("serve", "--data", url, "--listen", "127.0.0.1:0", "--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0",
                        env={**lake.env, **change})
        assert done.returncode == code and says in done.stderr, done.stderr
    assert time.monotonic() - begun < 100


def test_workers_share_the_queries_of_a_node(lake, tmp_path):
    """Ingest, query and two workers, each a process. A worker that is killed costs nothing but time."""
    config = tmp_path / "cluster.toml"
    config.write_text("[query]\nspread_bytes = 1\n[store]\nflush_age_s = 1\n")
    ingest = lake.node("in", "--role", "ingest", "--config", str(config))
    for i in range(8):
        send(ingest, "shared", i * 500, 500)
        time.sleep(1.5)
    first, second = lake.worker(), lake.worker()
    asked = lake.node("ask", "--role", "query", "--config", str(config))
    wait_until(lambda: total(asked.sql(COUNT)) == numbers(4000), 60)

    def plan():
        return str(asked.sql("explain select name, count(distinct span_id) from spans group by name"))

    wait_until(lambda: "DistributedExec" in plan(), 60)
    assert "Stage 1" in plan()
    slow = "select name, count(*), min(start_ns), max(end_ns - start_ns) from spans where name like 'work%' group by name order by name"
    joined = ("select a.name, count(*) from spans a join spans b on a.trace_id = b.trace_id where a.name like 'work%' and b.name like 'work%' "
              "group by a.name order by 1")
    for query in (slow, joined):
        assert [list(row) for row in asked.sql(query)] == [list(row.values()) for row in lake.sql(query)]
    assert "a query on workers failed" not in Path(asked.log.name).read_text()
    # One of them is gone, and then the other.
    first.kill()
    assert total(asked.sql(COUNT)) == numbers(4000)
    assert total(asked.sql(COUNT)) == numbers(4000)
    second.kill()
    assert total(asked.sql(COUNT)) == numbers(4000)
    # One that ends in order signs off, and nobody asks it again.
    third = lake.worker()
    wait_until(lambda: "DistributedExec" in plan(), 60)
    third.terminate()
    assert third.wait(20) == 0
    wait_until(lambda: "DistributedExec" not in plan(), 60)
    assert total(asked.sql(COUNT)) == numbers(4000)


def test_roles_are_for_lakes(lake, tmp_path):
    done = lake.run("serve", "--data", str(tmp_path / "folder"), "--role", "query")
    assert done.returncode == 2 and "--role is for a lake" in done.stderr
    done = lake.run("executor", "--data", str(tmp_path / "folder"))
    assert done.returncode == 2 and "lake" in done.stderr
    done = lake.run("executor", "--data", lake.url)
    assert done.returncode == 1 and "there is no lake at" in done.stderr
    done = lake.run("executor", "--data", lake.url, "--internal", "127.0.0.1:0", "--advertise", "a b/c")
    assert done.returncode == 2 and "--advertise" in done.stderr
