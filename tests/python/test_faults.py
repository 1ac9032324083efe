"""What the package does when the server, the disk or the interpreter is out of order: nothing raises into the program, memory
stays within its bound, and what is lost is counted and said."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import grpc
import pytest
from conftest import BINARY, wait_until
from faults import DOWN, FAULTS, FaultyGrpcServer, FaultyServer, for_seconds, poisoned

BEGIN = """
import gc, json, logging, os, sys, threading, time
import rollscope
logging.basicConfig(format="%(message)s")
rollscope.init(project="p", name="n")
def record(n, start=0):
    for i in range(start, start + n):
        with rollscope.span("s", {"i": i}):
            pass
def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
def settled():
    rollscope.flush(5)
    s = rollscope.stats()
    return s["sent"] + s["recovered"] + s["rejected"] + s["dropped"] >= s["recorded"]
"""
END = "\nprint(json.dumps(rollscope.stats()))\n"


WELL = grpc.StatusCode.OK


def servers(kind):
    started = []

    def start(answer):
        started.append(kind(answer))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def faulty():
    yield from servers(FaultyServer)


@pytest.fixture
def faulty_grpc():
    yield from servers(FaultyGrpcServer)


@pytest.mark.parametrize("fault", [500, "reset", 418, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
def test_a_record_that_the_server_always_fails_on_does_not_block_others(fault, program, faulty, faulty_grpc):
    server = faulty_grpc(poisoned(fault, WELL)) if isinstance(fault, grpc.StatusCode) else faulty(poisoned(fault))
    got = program.run(BEGIN + """
record(20)
with rollscope.span("poison", {"i": -1}):
    pass
record(20, 20)
rollscope.flush(10)
number = 100
def lost():
    # Others pass all the time.
    global number
    record(1, number)
    number += 1
    rollscope.log({"loss": 1.0}, step=number)
    rollscope.flush(5)
    return rollscope.stats()["rejected"]
until(lost, 120)
rollscope.finish()
until(settled)
s = rollscope.stats()
s["number"] = number
print(json.dumps(s))
""", server.address)
    assert got["rejected"] == 1 and got["dropped"] == 0, got
    assert got["sent"] == got["recorded"] - 1
    assert server.numbers == [*range(40), *range(100, got["number"])]
    assert program.stderr.count("data is being lost") == 1 and "1 were rejected" in program.stderr
    assert "1 rejected by the server" in program.stderr


@pytest.mark.parametrize("fault", [502, 503, grpc.StatusCode.UNAVAILABLE])
def test_a_record_that_the_server_is_never_available_for_lets_others_pass(fault, program, faulty, faulty_grpc):
    server = faulty_grpc(poisoned(fault, WELL)) if isinstance(fault, grpc.StatusCode) else faulty(poisoned(fault))
    got = program.run(BEGIN + """
record(20)
with rollscope.span("poison", {"i": -1}):
    pass
record(20, 20)
number = 100
def others():
    global number
    record(1, number)
    number += 1
    rollscope.flush(1)
    s = rollscope.stats()
    return s["sent"] == s["recorded"] - 1
until(others, 120)
rollscope.shutdown(5)
s = rollscope.stats()
s["number"] = number
print(json.dumps(s))
""", server.address, ROLLSCOPE_SPILL_DIR="")
    # It was never said to be lost before the end: the server might have been unavailable after all.
    assert got["rejected"] == 0 and got["dropped"] == 1, got
    assert server.numbers == [*range(40), *range(100, got["number"])]


def test_a_record_that_the_server_always_fails_on_is_found_on_disk_too(program, faulty):
    answers = [lambda path, body: 503]
    server = faulty(lambda path, body: answers[0](path, body))
    got = program.run(BEGIN + """
record(50)
with rollscope.span("poison", {"i": -1}):
    pass
record(50, 50)
rollscope.shutdown(2)
""" + END, server.address)
    assert got["spilled"] == got["recorded"] == 103 and got["sent"] == 0
    answers[0] = poisoned(500)
    got = program.run(BEGIN + """
number = 1000
def found():
    global number
    record(1, number)
    number += 1
    rollscope.flush(5)
    return rollscope.stats()["rejected"]
until(found, 120)
rollscope.finish()
""" + END, server.address)
    assert got["rejected"] == 1 and got["recovered"] == 102 and got["dropped"] == 0, got
    assert server.numbers[:100] == [*range(100)]
    assert not list((program.tmp_path / "spill").rglob("*.otlp"))


UNWELL = [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED]


@pytest.mark.parametrize("fault", [500, 503, "reset", "hang", 418, *UNWELL])
def test_a_server_that_is_unwell_for_a_while_loses_nothing(fault, program, faulty, faulty_grpc):
    server = faulty_grpc(for_seconds(4, fault, WELL)) if isinstance(fault, grpc.StatusCode) else faulty(for_seconds(4, fault))
    got = program.run(BEGIN + """
for n in range(100):
    record(10, n * 10)
    time.sleep(0.05)
rollscope.finish()
until(settled, 120)
""" + END, server.address, ROLLSCOPE_TIMEOUT="1")
    assert got["rejected"] == got["dropped"] == 0, got
    assert server.numbers == [*range(1000)]
    assert got["requests"] > len(server.taken)


def test_one_kind_of_data_that_the_server_always_fails_on_is_kept(program, faulty):
    # The records pass. That does not show that the spans are to blame.
    server = faulty(lambda path, body: 500 if path.endswith("traces") else 200)
    got = program.run(BEGIN + """
deadline = time.monotonic() + 12
n = 0
while time.monotonic() < deadline:
    record(10, n * 10)
    rollscope.log({"loss": 1.0}, step=n)
    n += 1
    rollscope.flush(5)
rollscope.shutdown()
s = rollscope.stats()
s["spans"], s["steps"] = n * 10, n
print(json.dumps(s))
""", server.address)
    assert got["rejected"] == got["dropped"] == 0, got
    assert got["spilled"] >= got["spans"] and got["sent"] >= got["steps"]


@pytest.mark.parametrize("what", FAULTS)
def test_every_fault_of_a_server_stays_within_the_bounds(what, program, faulty):
    fault = FAULTS[what]
    address = faulty(fault).address if fault else DOWN
    got = program.run(BEGIN + """
import resource
record(1000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for n in range(20):
    record(10_000)
    rollscope.log({"loss": 1.0, "t": rollscope.Trace([{"role": "user", "content": "x" * 10_000}])}, step=n)
    time.sleep(0.05)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
rollscope.shutdown()
s = rollscope.stats()
s["grown"] = grown * 1024
print(json.dumps(s))
""", address, ROLLSCOPE_QUEUE_BYTES=4 << 20, ROLLSCOPE_SPILL_BYTES=2 << 20, ROLLSCOPE_TIMEOUT="1", ROLLSCOPE_EXIT_TIMEOUT="1")
    assert got["errors"] == 0 and got["recorded"] == 201_000 + 40 + 2
    # A request that got no answer in time may be counted twice: as sent later, and as kept.
    assert got["sent"] + got["spilled"] + got["dropped"] + got["rejected"] >= got["recorded"], got
    # Twice the queue: what waits, and what is being sent.
    assert got["grown"] < 24 << 20, got
    folder = sum(f.stat().st_size for f in (program.tmp_path / "spill").rglob("*.otlp"))
    assert folder <= 2 << 20
    if got["dropped"] or got["rejected"]:
        assert f"{got['dropped']} dropped" in program.stderr
    if what in ("healthy", "slow"):
        assert got["rejected"] == 0 and got["sent"] > 0
    elif what != "garbage":
        assert got["sent"] == 0 and got["last_error"]


def test_the_folder_has_one_limit_for_all_processes(program):
    limit = 1 << 20
    got = program.run(BEGIN + """
import subprocess
code = '''
import json, rollscope
rollscope.init()
for _ in range(60):
    rollscope.log({"t": rollscope.Trace([{"role": "user", "content": "x" * 10_000}])}, step=0)
    rollscope.flush(5)
rollscope.shutdown(5)
print(json.dumps(rollscope.stats()))
'''
children = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(8)]
print(json.dumps([json.loads(child.communicate()[0]) for child in children]))
""", DOWN, ROLLSCOPE_SPILL_BYTES=limit)
    files = list((program.tmp_path / "spill").rglob("*.otlp"))
    size = sum(f.stat().st_size for f in files)
    assert files and limit / 4 < size <= limit
    assert all(s["spilled"] + s["dropped"] == s["recorded"] for s in got), got
    assert sum(s["dropped"] for s in got) > 0
    assert all(s["dropped"] == 0 or "ROLLSCOPE_SPILL_BYTES" in s["last_error"] for s in got), got


def test_what_is_kept_is_for_its_owner_only(program):
    program.run(BEGIN + "record(10)\nrollscope.shutdown(1)", DOWN)
    spill = program.tmp_path / "spill"
    assert list(spill.rglob("*.otlp"))
    assert {oct(p.stat().st_mode & 0o777) for p in spill.rglob("*") if p.is_dir()} == {"0o700"}
    assert {oct(p.stat().st_mode & 0o777) for p in spill.rglob("*") if p.is_file()} == {"0o600"}


def test_a_full_disk_under_what_is_kept(program, faulty, tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small disk needs the right to mount a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        ill = [True]
        server = faulty(lambda path, body: 503 if ill[0] else 200)
        process = program.start(BEGIN + """
for n in range(30):
    record(2000, n * 2000)
    time.sleep(0.2)
print("full", flush=True)
sys.stdin.readline()
rollscope.finish()
until(settled, 120)
rollscope.shutdown()
""" + END, server.address, ROLLSCOPE_SPILL_DIR=place, ROLLSCOPE_QUEUE_BYTES=64 << 20)
        assert process.stdout.readline().strip() == "full"
        ill[0] = False
        out, err = process.communicate("go on\n", timeout=200)
        assert process.returncode == 0, err
        got = json.loads(out.strip().splitlines()[-1])
        # What had no room on the disk stayed in memory, which had room.
        assert got["dropped"] == got["rejected"] == 0, got
        assert 0 < got["spilled"] < got["recorded"]
        assert server.numbers == [*range(60_000)]

        # With no room in memory either, it is dropped and said.
        got = program.run(BEGIN + "record(100_000)\nrollscope.log({'a': 1})\ntime.sleep(3)\nrecord(100_000)\nrollscope.log({'a': 1})\n"
                          "rollscope.shutdown(2)" + END, DOWN, ROLLSCOPE_SPILL_DIR=place,
                          ROLLSCOPE_QUEUE_BYTES=2 << 20)
        assert got["dropped"] > 0 and got["spilled"] + got["dropped"] == got["recorded"], got
        assert "data is being lost" in program.stderr and f"{got['dropped']} dropped" in program.stderr
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_damaged_or_unreadable_file_is_counted_and_blocks_nothing(program, faulty):
    for _ in range(2):
        program.run(BEGIN + "record(100)\nrollscope.shutdown(1)", DOWN)
    spans = [f for f in (program.tmp_path / "spill").rglob("*.otlp") if f.stat().st_size > 2000]
    assert len(spans) == 2
    spans[0].write_bytes(spans[0].read_bytes()[:-1] + b"!")
    server = faulty(lambda path, body: 200)
    server.send_what_waits_here(program.tmp_path / "spill")
    got = program.run(BEGIN + """
def sent():
    record(1, 1000)
    rollscope.flush(5)
    return rollscope.stats()["recovered"] >= 104
until(sent)
rollscope.finish()
""" + END, server.address)
    assert got["dropped"] == 100 and got["recovered"] == 104 and got["rejected"] == 0, got
    assert len(list((program.tmp_path / "spill").rglob("*.damaged"))) == 1


IMAGE = """
import base64
image = rollscope.Image(base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="))
def say(step):
    rollscope.log({"t": rollscope.Trace([{"role": "user", "content": [image]}])}, step=step)
"""


def test_media_that_found_no_room_are_sent_later(program, faulty):
    gate = [True]
    server = faulty(lambda path, body: 503 if gate[0] else 200)
    process = program.start(BEGIN + IMAGE + """
# A queue of 64 KiB, full of spans.
record(2000)
say(1)
print(json.dumps(rollscope.stats()), flush=True)
sys.stdin.readline()
until(lambda: rollscope.flush(5))
say(2)
say(3)
rollscope.finish()
until(settled)
""" + END, server.address, ROLLSCOPE_QUEUE_BYTES=1 << 16, ROLLSCOPE_SPILL_DIR="")
    assert json.loads(process.stdout.readline())["dropped"] > 0
    gate[0] = False
    err = process.communicate("\n", timeout=120)[1]
    assert process.returncode == 0, err
    assert len(server.records("media")) == 1
    assert len(server.records("conversation")) == 2


def test_media_that_the_server_rejected_are_sent_again(program, faulty):
    refuse = [True]

    def answer(path, body):
        return 400 if refuse and b"rollscope.media" in body and refuse.pop() else 200

    server = faulty(answer)
    program.run(BEGIN + IMAGE + """
say(1)
rollscope.flush(10)
say(2)
say(3)
rollscope.finish()
""" + END, server.address)
    assert len(server.records("media")) == 1


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_embedded_server_ends_when_its_parent_is_killed(program):
    process = program.start("""
import sys, threading, rollscope
# Started from a thread that ends: the server goes on.
thread = threading.Thread(target=lambda: rollscope.init(project="p", embedded="here"))
thread.start()
thread.join()
with rollscope.span("s"):
    pass
print(rollscope.flush(30), rollscope._run._embedded.process.pid, flush=True)
sys.stdin.readline()
print(rollscope._run._embedded.process.poll(), flush=True)
sys.stdin.readline()
""", ROLLSCOPE_BIN=BINARY)
    sent, pid = process.stdout.readline().split()
    assert sent == "True" and alive(pid)
    assert b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes()
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not alive(pid), 60)


def test_a_server_that_does_not_start_is_not_waited_for_for_ever(program):
    fake = program.tmp_path / "hangs"
    fake.write_text("#!/bin/sh\nexec sleep 1000\n")
    fake.chmod(0o755)
    got = program.run("""
import json, rollscope
import rollscope._embedded
rollscope._embedded._START_SECONDS = 1
run = rollscope.init(project="p", embedded="here")
with rollscope.span("s"):
    pass
print(json.dumps([run.url]))
""", ROLLSCOPE_BIN=fake)
    assert got == [None]
    assert "did not start within 1 seconds" in program.stderr


def test_a_program_that_is_shut_down_can_begin_again(program, faulty):
    server = faulty(lambda path, body: 200)
    got = program.run(BEGIN + "record(5)\nrollscope.shutdown()\nrecord(5, 50)\nrollscope.init()\nrecord(5, 10)\nrollscope.finish()"
                      + END, server.address)
    assert got["dropped"] == 0
    assert server.numbers == [*range(5), *range(10, 15)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_with_the_server_down(method, program, faulty):
    (program.tmp_path / "work.py").write_text("""
import rollscope
def work(n):
    for i in range(500):
        with rollscope.span("s", {"i": i}):
            pass
    return rollscope.stats()["recorded"]
""")
    got = program.run(BEGIN + """
if __name__ == "__main__":
    import multiprocessing, work
    with multiprocessing.get_context(%r).Pool(4) as pool:
        done = pool.map(work.work, range(8), chunksize=1)
        pool.close()
        pool.join()
    rollscope.shutdown()
    print(json.dumps(rollscope.stats()))
""" % method, DOWN, ROLLSCOPE_EXIT_TIMEOUT="1", PYTHONPATH=program.tmp_path)
    assert got["spilled"] == got["recorded"] and got["dropped"] == got["errors"] == 0
    server = faulty(lambda path, body: 200)
    server.send_what_waits_here(program.tmp_path / "spill")
    got = program.run(BEGIN + """
def sent():
    rollscope.log({"a": 1})
    rollscope.flush(5)
    return rollscope.stats()["recovered"] >= 8 * 500 + 2
until(sent, 200)
rollscope.finish()
""" + END, server.address)
    assert got["recovered"] == 8 * 500 + 2 and got["rejected"] == got["dropped"] == 0, got


def test_threads_that_record_while_the_interpreter_ends(program, faulty):
    server = faulty(lambda path, body: 200)
    for daemon in (True, False):
        process = program.start(BEGIN + f"""
stop = time.monotonic() + 1.5
def work():
    while {daemon} or time.monotonic() < stop:
        record(10)
        rollscope.log({{"a": 1.0}})
for _ in range(4):
    threading.Thread(target=work, daemon={daemon}).start()
time.sleep(0.5)
""", server.address)
        err = process.communicate(timeout=60)[1]
        assert process.returncode == 0 and "Traceback" not in err and "Fatal" not in err, (process.returncode, err)


def test_threads_that_wait_for_python_in_our_code_while_it_ends(program, faulty):
    """Before Python 3.14 such a thread is ended by `pthread_exit`, which unwinds through our code."""
    process = program.start(BEGIN + """
class Late:
    def __del__(self):
        time.sleep(0.3)
kept = Late()
def work():
    while True:
        rollscope.flush(0.01)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
""", faulty(lambda path, body: 200).address)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 0 and "Fatal" not in err, (process.returncode, err)


def test_spans_after_the_end_and_in_finalizers(program, faulty):
    server = faulty(lambda path, body: 200)
    process = program.start("import atexit, sys\natexit.register(lambda: late())\n" + BEGIN + """
def late():
    with rollscope.span("late"):
        rollscope.event("e")
    rollscope.log({"a": 1.0}, step=1)
    rollscope.flush(1)
    rollscope.finish()
class Holder:
    def __init__(self):
        self.span = rollscope.start_span("held")
    def __del__(self):
        with rollscope.span("in a finalizer"):
            pass
        self.span.end()
        late()
def generator():
    with rollscope.span("generator"):
        yield 1
        yield 2
holder, running, me = Holder(), generator(), sys.modules[__name__]
next(running)
me.cycle = [me, holder]
rollscope._kept = Holder()
# Runs before ours. The one at the top runs after it.
atexit.register(late)
record(10)
""", server.address)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 0, err
    assert "Traceback" not in err and "Fatal" not in err and "Exception ignored" not in err, err
    assert server.numbers == [*range(10)]


def test_cancelled_tasks(program, faulty):
    server = faulty(lambda path, body: 200)
    got = program.run("import asyncio\n" + BEGIN + """
@rollscope.traced("work")
async def work(i):
    with rollscope.span("inner", {"i": i}):
        try:
            await asyncio.sleep(100)
        finally:
            with rollscope.span("cleaning up", {"i": 1000 + i}):
                await asyncio.sleep(0)
@rollscope.traced("stream")
async def stream():
    for n in range(1000):
        yield n
        await asyncio.sleep(0.01)
async def main():
    tasks = [asyncio.create_task(work(i)) for i in range(200)]
    await asyncio.sleep(0.1)
    for task in tasks[::2]:
        task.cancel()
    done = await asyncio.gather(*tasks[::2], return_exceptions=True)
    async for n in stream():
        break
    try:
        await asyncio.wait_for(work(777), 0.05)
    except asyncio.TimeoutError:
        pass
    assert rollscope.current_span() is None
    # The others are cancelled by asyncio.run.
    return all(isinstance(d, asyncio.CancelledError) for d in done)
ok = asyncio.run(main())
assert rollscope.current_span() is None
rollscope.finish()
s = rollscope.stats()
s["ok"] = ok
print(json.dumps(s))
""", server.address)
    assert got["ok"] and got["errors"] == got["dropped"] == 0 and got["sent"] == got["recorded"]
    assert {s.attributes["i"] for s in server.spans("inner")} == {*range(200), 777}
    assert {s.status for s in server.spans("inner")} == {"error"}
    assert len(server.spans("cleaning up")) == 201


BAD = """
class Bad:
    def __init__(self, error=ValueError):
        self.error = error
    def fail(self, *a, **k):
        raise self.error("bad")
    __repr__ = __str__ = __float__ = __int__ = __index__ = __bool__ = __len__ = __iter__ = __hash__ = __eq__ = __format__ = fail
    __array__ = item = tolist = detach = keys = __getitem__ = fail
class Worse(Bad):
    def __getattr__(self, name):
        raise self.error("worse")
class Endless:
    def __repr__(self):
        return repr(self)
class Huge:
    def __repr__(self):
        return "x" * (64 << 20)
class NotText:
    def __repr__(self):
        return 5
class Surrogates:
    def __repr__(self):
        return chr(0xd800)
"""


def test_values_that_raise(program, faulty):
    server = faulty(lambda path, body: 200)
    got = program.run(BEGIN + BAD + """
from rollscope.slime import trace_span
values = [Bad(), Worse(), Endless(), Huge(), NotText(), Surrogates(), Bad(RecursionError), Bad(MemoryError), Bad(AttributeError)]
for i, value in enumerate(values):
    with rollscope.span("s", {"i": i, "v": value, "list": [value], "dict": {"k": value}, value.__class__: 1}) as span:
        span.set("again", value)
        span.update({"x": value})
        span.update(value)
        span.event("e", {"v": value})
        span.event("e", value)
        span.set_status("error", value)
        span.set_status(value)
        span.add_link(value)
        span.record_exception(value)
    with rollscope.span("t", value, phase=value, sample=value, group=value, step=value, attempt=value, links=[value], parent=value):
        pass
    with rollscope.span(value):
        pass
    rollscope.event("e", {"v": value})
    rollscope.log({"a": value, "b": 1.0}, step=i)
    rollscope.log({"a": 1.0}, step=value)
    rollscope.log({"t": rollscope.Trace([{"role": "user", "content": "x"}], {"m": value})}, step=i)
    rollscope.log({"t": rollscope.Trace([{"role": "user", "content": "x"}], {"m": "fine"})}, step=i)
    rollscope.alert("title", value, value)
    with trace_span(value, "slime", attrs={"v": value}):
        pass
    try:
        with rollscope.span("raises", {"i": 100 + i}):
            class Error(Exception):
                def __str__(self):
                    raise ValueError("no text")
                __repr__ = __str__
            raise Error()
    except Error:
        pass
rollscope.finish()
""" + END, server.address)
    assert got["sent"] == got["recorded"] and got["dropped"] == got["rejected"] == 0, got
    assert server.numbers == [*range(9)]
    assert {s.attributes["i"] for s in server.spans("raises")} == {*range(100, 109)}
    assert max(len(s.attributes["v"]) for s in server.spans()) < 10_000
    assert len(server.records("metrics")) >= 9 and len(server.records("conversation")) == 18


def test_storms_of_garbage_collection(program, faulty):
    server = faulty(lambda path, body: 200)
    got = program.run(BEGIN + """
gc.set_threshold(1, 1, 1)
class Node:
    def __init__(self, n):
        self.me, self.n = self, n
        self.span = rollscope.start_span("held", {"n": n})
    def __del__(self):
        with rollscope.span("s", {"i": self.n}):
            rollscope.event("gone")
        self.span.end()
        if self.n % 50 == 0:
            gc.collect()
def work(base):
    for n in range(base, base + 250):
        Node(n)
        with rollscope.span("outer", {"list": [Node, {"n": n}], "self": object()}):
            Node(n + 1000)
threads = [threading.Thread(target=work, args=(k * 250,)) for k in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
gc.set_threshold(700, 10, 10)
gc.collect()
rollscope.finish()
until(settled)
""" + END, server.address)
    assert got["errors"] == got["dropped"] == 0 and got["sent"] == got["recorded"], got
    assert server.numbers == [*range(2000)]


def test_a_process_without_descriptors_or_threads(program):
    got = program.run("""
import json, os, resource, time
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import rollscope
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
rollscope.init()
for i in range(100):
    with rollscope.span("s"):
        pass
rollscope.flush(2)
for descriptor in held:
    os.close(descriptor)
rollscope.shutdown(2)
print(json.dumps(rollscope.stats()))
""", DOWN)
    assert got["recorded"] == 102 and got["spilled"] + got["dropped"] == 102, got


def test_a_killed_process_leaves_what_it_had_put_on_disk(program, faulty):
    process = program.start(BEGIN + """
record(100)
until(lambda: rollscope.stats()["spilled"] >= 101)
print(rollscope.stats()["spilled"], flush=True)
time.sleep(100)
""", DOWN)
    kept = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert kept == 101
    server = faulty(lambda path, body: 200)
    server.send_what_waits_here(program.tmp_path / "spill")
    got = program.run(BEGIN + """
def sent():
    rollscope.log({"a": 1})
    rollscope.flush(5)
    return rollscope.stats()["recovered"] >= 101
until(sent)
rollscope.finish()
""" + END, server.address)
    assert got["recovered"] == 101 and server.numbers == [*range(100)]
