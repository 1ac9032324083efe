"""What was acknowledged survives SIGKILL and a full disk, and is there exactly once."""

import json
import os
import subprocess
import time

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from conftest import Server, run, sql
from otlp import request, span
from torture import torture

RUN = {"rl__run__id": "load"}


def test_sigkill_again_and_again_under_load(tmp_path):
    """A small part of `make test-torture`."""
    killed, found = torture(tmp_path, 16)
    assert killed.total() >= 16
    assert all(found[what] > 0 for what in ("spans", "metrics", "conversations", "tokens", "images", "searches", "run rows", "series")), found


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 48 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", place], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk needs the right to mount a tmpfs: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_refuses_and_resumes(small_disk):
    ballast = small_disk / "ballast"
    server = Server(small_disk / "data")
    try:
        stub = TraceServiceStub(grpc.insecure_channel(server.grpc_target))
        ballast.write_bytes(os.urandom(40 << 20))
        acknowledged, refused, first = set(), None, 0
        for first in range(0, 400_000, 1000):
            try:
                stub.Export(request([span(n) for n in range(first, first + 1000)], **RUN), timeout=20)
                acknowledged.update(range(first, first + 1000))
            except grpc.RpcError as error:
                refused = error
                break
        assert refused is not None, "the disk never filled up"
        assert refused.code() == grpc.StatusCode.UNAVAILABLE and "full" in refused.details()
        assert server.get("/healthz").ok
        count = server.one("select count(*) from spans")
        assert count == len(acknowledged)
        # Room again: the same request goes through.
        ballast.unlink()
        deadline = time.monotonic() + 30
        while True:
            try:
                stub.Export(request([span(n) for n in range(first, first + 1000)], **RUN), timeout=20)
                acknowledged.update(range(first, first + 1000))
                break
            except grpc.RpcError:
                assert time.monotonic() < deadline, "service did not resume"
                time.sleep(0.2)
        server.kill()
        rows = sql(server.data, "select count(*) as n, count(distinct attr(end_attrs, 'number')) as d from spans")
        assert rows == [{"n": len(acknowledged), "d": len(acknowledged)}]
    finally:
        server.stop()


def fill(place, leaving=0):
    """Takes the last byte of the disk, or leaves a few."""
    (place / "room").write_bytes(b"x" * leaving)
    with open(place / "last", "wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                pass
    (place / "room").unlink()


def test_a_flush_that_finds_no_room_loses_nothing(small_disk):
    server = Server(small_disk / "data")
    try:
        stub = TraceServiceStub(grpc.insecure_channel(server.grpc_target))
        for first in range(0, 10_000, 1000):
            stub.Export(request([span(n) for n in range(first, first + 1000)], **RUN), timeout=20)
        fill(small_disk)
        server.stop()
        assert sql(server.data, "select count(*) as n from spans") == [{"n": 10_000}], "the log has it"
        (small_disk / "last").unlink()
        server.start()
        server.stop()
        rows = sql(server.data, "select count(*) as n, count(distinct attr(end_attrs, 'number')) as d from spans")
        assert rows == [{"n": 10_000, "d": 10_000}]
        assert list(server.data.glob("spans/**/*.parquet")), "with room it was flushed"
    finally:
        server.stop()


def test_a_compaction_that_finds_no_room_loses_nothing(small_disk):
    server = Server(small_disk / "data")
    try:
        for part in range(4):
            stub = TraceServiceStub(grpc.insecure_channel(server.grpc_target))
            for first in range(part * 5000, (part + 1) * 5000, 1000):
                stub.Export(request([span(n) for n in range(first, first + 1000)], **RUN), timeout=20)
            server.stop()
            if part < 3:
                server.start()
        before = sorted(server.data.glob("spans/**/*.parquet"))
        assert len(before) > 1
        # Room for a log, not for what the merge makes.
        fill(small_disk, leaving=100 << 10)
        refused = run("compact", "--data", server.data, check=False)
        assert refused.returncode == 1 and "space" in refused.stderr, refused.stderr
        count = "select count(*) as n, count(distinct attr(end_attrs, 'number')) as d from spans"
        assert sql(server.data, count) == [{"n": 20_000, "d": 20_000}]
        (small_disk / "last").unlink()
        run("compact", "--data", server.data)
        assert sql(server.data, count) == [{"n": 20_000, "d": 20_000}]
        live = {s["path"] for s in json.loads((server.data / "manifest.json").read_text())["segments"]}
        assert not live & {str(file.relative_to(server.data)) for file in before}, "the small files were merged"
    finally:
        server.stop()


def test_a_server_that_is_stopped_as_soon_as_it_is_there_ends_in_order(tmp_path):
    """Whoever has read the address may stop it: a signal must not find it unprepared."""
    for _ in range(10):
        server = Server(tmp_path / "data")
        assert server.stop() == 0, "it was ended by the signal itself"


def test_a_stop_flushes_and_a_second_process_is_refused(tmp_path):
    data = tmp_path / "data"
    server = Server(data)
    stub = TraceServiceStub(grpc.insecure_channel(server.grpc_target))
    stub.Export(request([span(n) for n in range(100)], **RUN))
    second = subprocess.run(
        [str(Server.start.__globals__["BINARY"]), "serve", "--data", data, "--listen", "127.0.0.1:0", "--otlp-grpc", "", "--otlp-http", ""],
        capture_output=True, text=True, timeout=30)
    assert second.returncode == 1
    assert "in use by another rollscope" in second.stderr and str(server.process.pid) in second.stderr
    assert server.stop() == 0
    assert list(data.glob("spans/run=load/*.parquet"))
    assert sql(data, "select count(*) as n from spans") == [{"n": 100}]
