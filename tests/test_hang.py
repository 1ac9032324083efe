"""What everyone is waiting for: runs that stand still, asked over the API and the command line; and a few seeds of the judge."""

import copy
import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from conftest import FIXTURES, run
from otlp import attribute, request
from truth.hangs import judge

S = 1_000_000_000


def span(number, name, start, end, parent=None, trace=1, **attributes):
    return Span(
        trace_id=trace.to_bytes(16, "big"), span_id=number.to_bytes(8, "big"), parent_span_id=parent.to_bytes(8, "big") if parent else b"",
        name=name, start_time_unix_nano=start, end_time_unix_nano=end or 0,
        attributes=[attribute(key.replace("__", "."), value) for key, value in attributes.items()],
    )


def send(server, spans, **resource):
    body = request(spans, **resource).SerializeToString()
    answer = requests.post(server.http + "/v1/traces", data=body, headers={"content-type": "application/x-protobuf"}, timeout=30)
    assert answer.ok, answer.text


def a_run(server, run_id, hung_for):
    """Four steps of a minute, and a fifth in which a tool does not answer one of four samples."""
    now = time.time_ns()
    begin = now - (hung_for + 300) * S
    spans, number = [], 0
    for step in range(5):
        at = begin + step * 60 * S
        last = step == 4
        trace, root, rollout = step + 1, 1000 * step + 1, 1000 * step + 2
        for sample in range(4):
            number += 1
            of = 1000 * step + 10 * (sample + 1)
            hangs = last and sample == 2
            spans.append(span(of, "generate_and_rm", at + S, None if hangs else at + 40 * S, rollout, trace, rl__sample__id=f"s{sample}"))
            spans.append(span(of + 1, "sglang_generate", at + S, at + 20 * S, of, trace))
            spans.append(span(of + 2, "tool_call", at + 20 * S, None if hangs else at + 30 * S, of, trace, tool="search"))
        spans.append(span(rollout, "rollout", at + S, None if last else at + 41 * S, root, trace))
        spans.append(span(root, "step", at, None if last else at + 60 * S, None, trace, rl__step=step))
    send(server, spans, service="trainer", rl__run__id=run_id, service__instance__id="driver")
    return begin


def test_a_tool_that_never_answers(server):
    begin = a_run(server, "stuck", hung_for=900)
    found = server.get("/api/v1/runs/stuck/hang").json()
    assert found["state"] == "hanging", found["text"]
    first = found["suspects"][0]
    assert (first["kind"], first["name"], first["known"]) == ("tool", "search", True)
    assert [found["nodes"][at]["kind"] for at in found["chain"]] == ["step", "phase", "samples", "tool"]
    assert "1 of 4 samples" in found["text"] and "UTC" in found["text"]
    assert found["nodes"][first["node"]]["spans"][0]["sample_id"] == "s2"
    assert found["workers"][0]["doing"] == "tool_call"

    # As it was before: nothing hung. What ended later was open then.
    before = server.get("/api/v1/runs/stuck/hang", params={"at": (begin + 130 * S) / 1e9}).json()
    assert before["state"] == "moving" and before["step"] == 2 and before["suspects"] == []

    # The command line says the same, from the server and from its folder, which is still being written.
    for where in (["--server", server.url], ["--data", server.data]):
        assert json.loads(run("hang", "stuck", "--json", *where).stdout)["suspects"][0]["name"] == "search"
        said = run("hang", *where).stdout
        assert "Nothing has moved since" in said and "tool `search` has not answered" in said and "Who waits for whom" in said
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime((begin + 130 * S) / 1e9))
    assert run("hang", "stuck", "--server", server.url, "--at", at).stdout.startswith("stuck: ")


def test_other_runs_are_left_out(server):
    """Their open spans are there at the same time. Only what serves this run counts: an engine that has its request open."""
    now = time.time_ns()
    a_run(server, "stuck", hung_for=900)
    send(server, [span(1, "all_reduce", now - 500 * S, None, trace=90)], service="trainer", rl__run__id="other", service__instance__id="driver-of-another")
    send(server, [span(2, "Req 7", now - 800 * S, None, trace=91, rid="r7")], service="sglang", service__instance__id="10.0.0.7:30000")
    names = lambda: {worker["name"] for worker in server.get("/api/v1/runs/stuck/hang").json()["workers"]}
    assert names() == {"driver"}
    send(server, [span(3, "sglang_generate", now - 800 * S, None, 4030, 5, rid="r7", rl__sample__id="s2")], service="trainer", rl__run__id="stuck", service__instance__id="driver")
    assert names() == {"driver", "10.0.0.7:30000"}


def test_what_moves_does_not_hang(server):
    a_run(server, "live", hung_for=-30)
    found = server.get("/api/v1/runs/live/hang").json()
    assert found["state"] in ("moving", "slow") and found["suspects"] == [], found["text"]


def test_mistakes_are_named(server):
    a_run(server, "stuck", hung_for=900)
    assert server.get("/api/v1/runs/nobody/hang").status_code == 404
    for bad in ("yesterday", "-5", "1e300"):
        answer = server.get("/api/v1/runs/stuck/hang", params={"at": bad})
        assert answer.status_code == 400 and "`at`" in answer.json()["detail"], answer.text
    failed = run("hang", "stuck", "--at", "yesterday", "--server", server.url, check=False)
    assert failed.returncode == 2 and "yesterday" in failed.stderr
    assert run("hang", "nobody", "--server", server.url, check=False).returncode == 2


STUCK = """
import threading, time, sys
def tokenize():
    print("here", flush=True)
    threading.Event().wait(600)
def main():
    tokenize()
main()
"""


@pytest.fixture
def stuck(tmp_path):
    """A Python process that hangs, and where py-spy sees it."""
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    spy = Path(sys.executable).with_name("py-spy")
    text = subprocess.run([spy, "dump", "--pid", str(process.pid)], capture_output=True, text=True)
    as_json = subprocess.run([spy, "dump", "--json", "--pid", str(process.pid)], capture_output=True, text=True)
    process.kill()
    process.wait()
    process.stdout.close()
    if text.returncode or as_json.returncode:
        pytest.skip("py-spy may not look into processes here: " + text.stderr)
    return text.stdout, as_json.stdout


def flight_dumps(folder, ranks=4, lost=2):
    """Dumps of several ranks, made from one that PyTorch wrote on a GPU: all ranks but one wait in the last collective."""
    real = pickle.loads((FIXTURES / "hang" / "nccl_trace_rank_0").read_bytes())
    for rank in range(ranks):
        dump = copy.deepcopy(real)
        dump["pg_config"]["0"]["ranks"] = str(list(range(ranks)))
        if rank == lost:
            dump["entries"].pop()
        else:
            dump["entries"][-1]["state"] = "started"
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))


def test_dumps_name_the_rank_that_is_missing(server, tmp_path, stuck):
    a_run(server, "stuck", hung_for=900)
    text, as_json = stuck
    for name, dump in (("text", text), ("json", as_json)):
        folder = tmp_path / name
        folder.mkdir()
        flight_dumps(folder)
        (folder / "py-spy.rank2").write_text(dump)
        (folder / "nvidia-smi.txt").write_bytes((FIXTURES / "hang" / "nvidia-smi.txt").read_bytes())
        (folder / "notes.txt").write_text("Nothing that rollscope knows.")
        done = run("hang", "stuck", "--json", "--server", server.url, "--add", folder)
        found = json.loads(done.stdout)
        first = found["suspects"][0]
        assert first["kind"] == "process" and first["known"] and first["waiting"] == 3
        assert first["text"].startswith("rank 2 never entered all_reduce #3 of group 0; ranks 0, 1, 3 wait in it; its stack is in `tokenize` ("), first
        assert "By the dumps: rank 2 never entered" in found["text"]
        assert any("NVIDIA H200" in said for said in found["dumps"])
        assert "notes.txt" in done.stderr
    assert "What stacks, dumps and Ray say" in run("hang", "stuck", "--server", server.url, "--add", tmp_path / "text").stdout


def test_what_pytorch_wrote_is_read(server):
    a_run(server, "stuck", hung_for=900)
    for name in ("nccl_trace_rank_0", "nccl_trace_json_rank_0"):
        found = json.loads(run("hang", "stuck", "--json", "--server", server.url, "--add", FIXTURES / "hang" / name).stdout)
        assert found["dumps"] == ["The Flight Recorder of 1 rank shows no collective that has not completed."]


def test_what_sglang_dumped_when_it_crashed(server):
    """The requests that were under way, on which engine, and since when."""
    a_run(server, "stuck", hung_for=900)
    done = run("hang", "stuck", "--json", "--server", server.url, "--add", FIXTURES / "sglang" / "crash_dump")
    (said,) = json.loads(done.stdout)["dumps"]
    assert said.startswith("Engine node-7:30000 dumped its requests at 2026-09-21T14:13:25Z, as SGLang does when it crashes: 3 requests were under way, the oldest first: "
                           "req-3 for 72 s (7 tokens so far), req-5 for 32 s (1 tokens so far), req-4 for 6 s (0 tokens so far)."), said
    assert said.endswith("3 had finished in the five minutes before.")
    assert "node-7:30000" in run("hang", "stuck", "--server", server.url, "--add", FIXTURES / "sglang" / "crash_dump").stdout


def test_dumps_that_are_none(server, tmp_path):
    a_run(server, "stuck", hung_for=900)
    bad = tmp_path / "bad"
    bad.write_bytes(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00echo\x85R.")
    for path in (bad, tmp_path / "missing", tmp_path):
        failed = run("hang", "stuck", "--server", server.url, "--add", path, check=False)
        assert failed.returncode == 2 and str(path) in failed.stderr, failed.stderr


# One of each. `python -m truth.hangs` judges many more.
@pytest.mark.parametrize("seed,cause", [(0, "engine dead"), (1, "queue not served"), (2, "tool"), (3, "judge"), (4, "rank killed"),
                                        (5, "rank stuck"), (6, "trainer exited"), (7, "deadlock"), (8, "slow tool")])
def test_the_culprit_is_named_first(server, seed, cause):
    record = judge(server, seed, cause, minutes=4)
    assert not record["false"], record
    if record["hung"]:
        assert record["named"], record
