"""The server is away, slow, hanging, refusing, killed; the process forks, ends, is out of luck. The program does not notice,
and nothing that was promised is lost."""

import json
import os
import socket
import threading
import time

import pytest
from conftest import wait_until

BURST = 1_000_000 if os.environ.get("FULL") else 200_000

RECORD = """
import json, os, random, sys, time
import rollscope
rollscope.init(project="p", name="n")
def record(n, **attrs):
    for i in range(n):
        with rollscope.span("s", {"i": i, "b": 2.5, "c": "text", "d": True, "e": "more"}):
            pass
"""


def stats_of(program, code, endpoint=None, **env):
    return program.run(RECORD + code, endpoint, **env)


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class BadServer:
    """Takes connections and does what it was made for: `hang`, `close`, `garbage`."""

    def __init__(self, what):
        self.what = what
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = "http://127.0.0.1:%d" % self.socket.getsockname()[1]
        self.open = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.open.append(connection)
            if self.what == "close":
                connection.close()
            elif self.what == "garbage":
                connection.sendall(b"HTTP/9.9 what?\r\n\r\n" * 100)


@pytest.mark.parametrize("what", ["away", "hang", "close", "garbage"])
def test_a_bad_server_costs_nothing_and_loses_nothing(what, program, serve, tmp_path):
    address = f"http://127.0.0.1:{closed_port()}" if what == "away" else BadServer(what).address
    got = stats_of(program, """
record(5000)
t = time.monotonic()
rollscope.log({"a": 1.0}, step=1)
rollscope.shutdown()
s = rollscope.stats()
s["exit"] = time.monotonic() - t
print(json.dumps(s))
""", address, ROLLSCOPE_EXIT_TIMEOUT="1")
    # 5000 spans, the run's beginning and end, one record of metrics.
    assert got["recorded"] == 5003 and got["dropped"] == 0 and got["errors"] == 0
    assert got["spilled"] >= 5003 and got["sent"] == 0 and got["last_error"]
    assert "kept on disk" in program.stderr
    assert list((tmp_path / "spill").rglob("*.otlp"))


def test_what_was_kept_is_sent_by_the_next_process(program, serve_at, tmp_path):
    port = closed_port()
    address = f"http://127.0.0.1:{port}"
    got = stats_of(program, "record(3000)\nrollscope.finish()\nrollscope.shutdown()\nprint(json.dumps(rollscope.stats()))", address,
                   ROLLSCOPE_EXIT_TIMEOUT="1")
    assert got["spilled"] >= 3002 and got["sent"] == 0
    again = serve_at(port)
    got = stats_of(program, """
record(10)
deadline = time.monotonic() + 60
while rollscope.stats()["recovered"] < 3000 and time.monotonic() < deadline:
    time.sleep(0.05)
rollscope.shutdown()
print(json.dumps(rollscope.stats()))
""", address, ROLLSCOPE_EXIT_TIMEOUT="30")
    assert got["recovered"] >= 3000 and got["dropped"] == 0
    assert again.one("select count(*) from spans where name = 's'") == 3010
    assert again.sql("select status, count(*) from runs group by status") == [["finished", 2]]
    assert not list((tmp_path / "spill").rglob("*.otlp"))


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(program, serve_at):
    port = closed_port()
    server = serve_at(port)
    process = program.start(RECORD + """
for i in range(40):
    record(500)
    time.sleep(0.1)
rollscope.finish()
deadline = time.monotonic() + 90
while time.monotonic() < deadline:
    rollscope.flush(5)
    s = rollscope.stats()
    if s["sent"] + s["recovered"] >= s["recorded"]:
        break
rollscope.shutdown()
print(json.dumps(rollscope.stats()))
""", f"http://127.0.0.1:{port}", ROLLSCOPE_TIMEOUT="3")
    time.sleep(2)
    server.kill()
    time.sleep(3)
    again = serve_at(port)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    got = json.loads(out.strip().splitlines()[-1])
    assert got["dropped"] == 0 and got["rejected"] == 0, got
    assert again.one("select count(*) from spans where name = 's'") == 20_000
    assert again.one("select count(*) from (select distinct trace_id, span_id from spans where name = 's')") == 20_000


def test_a_burst_with_a_healthy_server_loses_nothing(program, server):
    got = stats_of(program, f"record({BURST})\nok = rollscope.flush(200)\ns = rollscope.stats()\ns['ok'] = ok\nprint(json.dumps(s))",
                   server.grpc, ROLLSCOPE_EXIT_TIMEOUT="60")
    assert got["ok"] and got["dropped"] == 0 and got["rejected"] == 0, got
    wait_until(lambda: server.one("select count(*) from spans where name = 's'") == BURST, 60)


def test_memory_is_bounded_with_the_server_away(program):
    got = stats_of(program, f"""
import resource
record(1000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
record({max(BURST, 500_000)})
s = rollscope.stats()
s["grown"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
print(json.dumps(s))
rollscope.shutdown(1)
""", f"http://127.0.0.1:{closed_port()}", ROLLSCOPE_QUEUE_BYTES=16 << 20, ROLLSCOPE_SPILL_BYTES=8 << 20)
    assert got["dropped"] > 0 and got["queued_bytes"] <= 16 << 20
    assert got["spilled"] + got["dropped"] <= got["recorded"]
    assert got["grown"] < 48 << 20, got


def test_exit_is_not_delayed(program):
    hanging = BadServer("hang")
    got = stats_of(program, """
record(100000)
open("began", "w").write(str(time.time()))
""", hanging.address, ROLLSCOPE_EXIT_TIMEOUT="1")
    assert got is None
    ended = time.time()
    assert ended - float((program.tmp_path / "began").read_text()) < 30


FORKS = """
import threading
stop = False
def noise():
    while not stop:
        record(50)
threads = [threading.Thread(target=noise) for _ in range(3)]
[t.start() for t in threads]
children = []
for n in range(20):
    with rollscope.span("parent"):
        pid = os.fork()
        if pid == 0:
            with rollscope.span("child", {"n": n}):
                pass
            ok = rollscope.flush(30)
            os._exit(0 if ok else 7)
        children.append(pid)
codes = [os.waitpid(pid, 0)[1] for pid in children]
stop = True
[t.join() for t in threads]
rollscope.flush(30)
print(json.dumps([codes, rollscope.stats()["dropped"]]))
"""


def test_fork_in_the_middle_neither_deadlocks_nor_doubles(program, server):
    codes, dropped = stats_of(program, FORKS, server.grpc, ROLLSCOPE_EXIT_TIMEOUT="30")
    assert codes == [0] * 20 and dropped == 0
    assert server.one("select count(*) from spans where name = 'child'") == 20
    assert server.one("select count(*) from spans where name = 'parent'") == 20
    assert server.one("select count(*) from spans c join spans p on c.parent_span_id = p.span_id where c.name = 'child'") == 20
    assert server.one("select count(distinct pid) from spans where name = 'child'") == 20
    assert server.one("select count(*) from (select trace_id, span_id from spans group by 1, 2 having count(*) > 1)") == 0


POOL = """
import multiprocessing
def work(n):
    random.seed(0)
    record(200)
    return os.getpid()
if __name__ == "__main__":
    context = multiprocessing.get_context(%r)
    with context.Pool(8) as pool:
        pool.map(work, range(8), chunksize=1)
        pool.close()
        pool.join()
    rollscope.shutdown()
    print(json.dumps(rollscope.stats()))
"""


def test_seeded_workers_have_their_own_ids(program, server):
    stats_of(program, POOL % "fork", server.grpc, ROLLSCOPE_EXIT_TIMEOUT="20")
    wait_until(lambda: server.one("select count(*) from spans where name = 's'") == 1600, 30)
    assert server.one("select count(distinct span_id) from spans") == 1600
    assert server.one("select count(distinct trace_id) from spans") == 1600
    assert server.one("select count(distinct run_id) from spans") == 1


def test_open_spans_are_seen_while_they_run(program, server):
    process = program.start(RECORD + """
from rollscope.slime import trace_span
class Sample: index = 3; group_index = 4; trace = None
with rollscope.step(5):
    with rollscope.span("long", {"a": 1}, phase="train"):
        with trace_span([Sample(), Sample()], "slow sample"):
            time.sleep(8)
rollscope.shutdown()
print(1)
""", server.grpc)
    open_now = "select name, state, step, attr(start_attrs, 'a') from spans where state = 'open' order by name"
    wait_until(lambda: len(server.sql(open_now)) == 4, 20)
    assert server.sql(open_now)[0] == ["long", "open", 5, 1]
    process.communicate(timeout=60)
    assert server.sql("select distinct state from spans") == [["closed"]]
    assert server.one("select count(*) from spans") == 4


def test_the_server_sets_the_level(program, server):
    import requests

    assert requests.put(server.url + "/api/v1/trace-level", json={"level": 1}, timeout=10).ok
    got = stats_of(program, """
record(1); rollscope.flush(10)
heard = rollscope.get_level()
with rollscope.span("detail", level=2) as span:
    recorded = span.is_recording()
print(json.dumps([heard, recorded]))
""", server.grpc)
    assert got == [1, False]


def test_over_http_and_with_a_token(program, serve, tmp_path):
    server = serve(None, "--token", "secret-token-for-tests")
    for address in (server.grpc, server.http):
        got = stats_of(program, "record(10)\nrollscope.log({'a': 1}, step=2)\nrollscope.flush(20)\nprint(json.dumps(rollscope.stats()))",
                       address, ROLLSCOPE_TOKEN="secret-token-for-tests",
                       **({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"} if address == server.http else {}))
        assert got["sent"] == 12 and got["last_error"] == "", got
    got = stats_of(program, "record(10)\nrollscope.flush(3)\nprint(json.dumps(rollscope.stats()))", server.grpc, ROLLSCOPE_TOKEN="wrong",
                   ROLLSCOPE_EXIT_TIMEOUT="1")
    assert got["sent"] == 0 and "16" in got["last_error"]


def test_disabled_and_unreachable_folders(program):
    got = stats_of(program, "record(10)\nrollscope.log({'a': 1})\nrollscope.finish()\nprint(json.dumps(rollscope.stats()))",
                   "http://127.0.0.1:1", ROLLSCOPE_DISABLED="1")
    assert got["recorded"] == 0
    got = stats_of(program, "record(10)\nrollscope.shutdown(1)\nprint(json.dumps(rollscope.stats()))", "http://127.0.0.1:1",
                   ROLLSCOPE_SPILL_DIR="/proc/nowhere")
    assert got["dropped"] == 12
    got = stats_of(program, "record(10)\nprint(json.dumps(rollscope.stats()))", "what is this?")
    assert got["recorded"] == 0


def test_a_failed_program_is_a_failed_run(program, server):
    process = program.start(RECORD + "record(5)\nraise RuntimeError('boom')", server.grpc, ROLLSCOPE_EXIT_TIMEOUT="10")
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert server.sql("select status, ended_ns is not null from runs") == [["failed", True]]
    assert server.one("select count(*) from spans") == 5


def test_import_brings_nothing_that_is_slow_to_import(program):
    got = program.run("""
        import json, sys
        before = set(sys.modules)
        import rollscope
        print(json.dumps(sorted({m.split(".")[0] for m in set(sys.modules) - before})))
    """)
    slow = {"aiohttp", "asyncio", "dataclasses", "email", "http", "httpx", "inspect", "json", "multiprocessing", "numpy", "opentelemetry",
            "requests", "torch", "typing", "urllib"}
    assert "rollscope" in got and not slow & set(got), got
