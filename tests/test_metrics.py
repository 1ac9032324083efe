"""perf/ and rollout/ of a step against an independent computation, and where metrics go."""

import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import requests

from conftest import FIXTURES, run, sql, wait_until

FIELDS = {
    "e2e_latency": "perf/request/e2e_latency",
    "queue_time": "perf/request/queue_time",
    "decode_throughput": "perf/decode/throughput",
    "pd_transfer_speed_gb_s": "perf/prefill/transfer_speed_gb_s",
    "pd_transfer_total_mb": "perf/prefill/transfer_total_mb",
    "pd_prefill_retry_count": "perf/prefill/retry_count",
    **{f"pd_{side}_{part}_duration": f"perf/{side}/{part}_duration" for side, parts in {
        "prefill": ["bootstrap_queue", "bootstrap", "alloc_wait", "forward", "transfer_queue"],
        "decode": ["prealloc", "bootstrap", "alloc_wait", "transfer", "forward"]}.items() for part in parts},
}


def number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def stats(name, values):
    if not values:
        return {}
    v = np.array(values, dtype=float)
    return {f"{name}/{k}": float(x) for k, x in {
        "mean": v.mean(), "median": np.median(v), "max": v.max(), "min": v.min(), "p90": np.percentile(v, 90),
        "p95": np.percentile(v, 95), "p99": np.percentile(v, 99), "count": len(v)}.items()}


def expected(cache):
    """From slime's own picture of the dump: every closed sglang_generate, with what stands in it or below it."""
    values, count, profiled = {f: [] for f in FIELDS}, 0, 0
    for row in cache["rows"]:
        items = {i["span_id"]: i for i in row["items"] if i.get("span_id")}

        def below(item, request):
            parent = item.get("parent_span_id")
            # Parents may go round in circles.
            for _ in range(4):
                if parent == request["span_id"]:
                    return True
                parent = items.get(parent, {}).get("parent_span_id")
            return False

        for request in row["items"]:
            if request["name"] != "sglang_generate" or request["state"] != "closed_span":
                continue
            count += 1
            found = {}
            for item in row["items"]:
                if item["name"].endswith((" [P]", " [D]")) or not (item is request or below(item, request)):
                    continue
                attrs = item["attrs"]
                for part in (attrs.get("end_attrs", {}), attrs.get("start_attrs", {}), attrs):
                    for field in FIELDS:
                        if field in part and number(part[field]) and (item is request or field.startswith("pd_")):
                            found.setdefault(field, part[field])
            profiled += bool(found)
            for field, value in found.items():
                values[field].append(value)
    out = {"perf/request/count": count, "perf/request/profiled_count": profiled}
    for field, name in FIELDS.items():
        out.update(stats(name, values[field]))
    return out


def metrics_of(data, run_id, *flags):
    rows = json.loads(run("metrics", run_id, "--data", data, "--format", "json", *flags).stdout)
    return {r["name"]: r["value"] for r in rows}


@pytest.mark.parametrize("dump", ["small", "legacy", "sample_objects"])
def test_perf_of_a_dump_is_what_numpy_says(tmp_path, dump):
    data = tmp_path / "data"
    run("import", FIXTURES / "slime" / f"{dump}.pt", "--data", data, "--run", "dump")
    found = metrics_of(data, "dump")
    cache = json.loads((FIXTURES / "slime" / f"{dump}.trace_timeline_cache.json").read_text())
    want = expected(cache)
    if want["perf/request/count"] == 0:
        want = {}
    got = {k: v for k, v in found.items() if k.startswith(("perf/request", "perf/prefill", "perf/decode"))}
    assert got.keys() == want.keys(), got.keys() ^ want.keys()
    for name, value in want.items():
        assert math.isclose(got[name], value, rel_tol=1e-9, abs_tol=1e-12), (name, value, got[name])

    # And the figures of the samples.
    samples = sql(data, "select status, reward, group_id, coalesce(response_length, response_tokens) as n, start_ns, end_ns, "
                        "non_generation_s from samples where split = 'train'")
    lengths = [s["n"] for s in samples if s["n"] is not None]
    for name, value in stats("rollout/response_len", lengths).items():
        assert math.isclose(found[name], value, rel_tol=1e-9), name
    known = [s["status"] for s in samples if s["status"]]
    assert found["rollout/truncated_ratio"] == known.count("truncated") / len(known)
    groups = {}
    for s in samples:
        if s["group_id"] is not None:
            groups.setdefault(s["group_id"], []).append(s["reward"])
    flat = [g[0] for g in groups.values() if None not in g and len(set(g)) == 1]
    for reward in set(flat):
        assert found[f"rollout/zero_std/count_{float(round(reward, 1))}"] == flat.count(reward)
    times = [s for s in samples if s["start_ns"] is not None and s["end_ns"] is not None]
    if times:
        took = (max(s["end_ns"] for s in times) - min(s["start_ns"] for s in times)) / 1e9
        assert math.isclose(found["perf/rollout_time"], took, rel_tol=1e-9)
        assert math.isclose(found["perf/longest_sample_tokens_per_sec"], max(lengths) / took, rel_tol=1e-9)


def test_a_dump_with_nan_gives_only_finite_figures(tmp_path):
    run("import", FIXTURES / "slime" / "breaks_nan.pt", "--data", tmp_path / "data", "--run", "dump")
    found = metrics_of(tmp_path / "data", "dump")
    assert found and all(math.isfinite(v) for v in found.values())


def generate(step, end, **attrs):
    """A request of a step over OTLP JSON."""
    kv = lambda k, v: {"key": k, "value": {"boolValue": v} if isinstance(v, bool) else {"doubleValue": v}}
    start = time.time_ns() - 10_000_000_000
    generate.n = getattr(generate, "n", 0) + 1
    return {"traceId": f"{generate.n:032x}", "spanId": f"{generate.n:016x}", "name": "sglang_generate",
            "startTimeUnixNano": str(start), "endTimeUnixNano": str(end or start + 1_000_000_000),
            "attributes": [{"key": "rl.step", "value": {"intValue": str(step)}}] + [kv(k, v) for k, v in attrs.items()]}


def send(server, *spans):
    body = {"resourceSpans": [{"resource": {"attributes": [{"key": "rl.run.id", "value": {"stringValue": "live"}}]},
                               "scopeSpans": [{"spans": list(spans)}]}]}
    assert requests.post(server.http + "/v1/traces", json=body, timeout=30).ok


def test_a_step_is_worked_out_when_the_next_begins_and_again_for_late_rows(serve, tmp_path):
    lines = tmp_path / "metrics.jsonl"
    board = tmp_path / "board"
    server = serve(None, "--metrics-jsonl", lines, "--tensorboard", board)
    value = lambda name, step: server.sql(f"select value from metrics where run_id = 'live' and step = {step} and name = '{name}'")
    send(server, generate(1, None, e2e_latency=1.0, queue_time=True), generate(1, None, e2e_latency=3.0))
    time.sleep(3)
    assert value("perf/request/count", 1) == []
    send(server, generate(2, None, e2e_latency=5.0))
    wait_until(lambda: value("perf/request/count", 1) == [[2.0]])
    assert value("perf/request/e2e_latency/mean", 1) == [[2.0]]
    # A boolean is no number, and what has no value is not there.
    assert value("perf/request/queue_time/mean", 1) == []
    assert value("perf/request/count", 2) == []
    wait_until(lambda: lines.exists() and lines.read_text().count("\n") == 1)
    send(server, generate(1, None, e2e_latency=8.0))
    wait_until(lambda: value("perf/request/count", 1) == [[3.0]])
    assert value("perf/request/e2e_latency/max", 1) == [[8.0]]
    wait_until(lambda: lines.read_text().count("\n") == 2)
    first, again = map(json.loads, lines.read_text().splitlines())
    assert (first["run"], first["step"], first["metrics"]["perf/request/count"]) == ("live", 1, 2.0)
    # Only what changed.
    assert again["metrics"]["perf/request/count"] == 3.0 and "perf/request/e2e_latency/min" not in again["metrics"]
    # A span that stands for the step ends it too.
    send(server, {**generate(2, None), "name": "pipeline_step"})
    wait_until(lambda: value("perf/request/count", 2) == [[1.0]])
    text = server.get("/metrics/run/live").text
    assert 'perf_request_e2e_latency_mean{run="live",name="perf/request/e2e_latency/mean"} 5\n' in text
    assert 'rollscope_step{run="live"} 2\n' in text
    assert server.get("/metrics/run/nobody").status_code == 404
    sinks = {s["name"]: s for s in server.get("/api/v1/sinks").json()["sinks"]}
    wait_until(lambda: all(s["written"] == 3 for s in server.get("/api/v1/sinks").json()["sinks"]))
    assert sinks.keys() == {"json_lines", "tensorboard"}
    assert scalars(board / "live")["perf/request/count"] == [(1, 2.0), (1, 3.0), (2, 1.0)]


def scalars(folder):
    """What TensorBoard's own reader finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


class TensorBoard:
    """The real server with its default loader, asked as its page asks."""

    def __init__(self, folder, log):
        self.log = open(log, "w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1", "--port", "0",
             "--reload_interval", "1"], stdout=self.log, stderr=self.log)
        said = lambda: re.search(r"at (http://127\.0\.0\.1:\d+)", Path(log).read_text())
        wait_until(lambda: said() or self.process.poll() is not None, 120)
        assert said(), Path(log).read_text()
        self.url = said().group(1)

    def get(self, path, **params):
        answer = requests.get(f"{self.url}/data/plugin/scalars/{path}", params=params, timeout=60)
        return answer.json() if answer.ok else None

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.log.close()


def test_tensorboard_shows_what_we_export(tmp_path):
    data = tmp_path / "data"
    run("demo", "--data", data, "--no-serve", "--steps", "4", "--samples", "8")
    out = run("export", "tensorboard", "--data", data, "-o", tmp_path / "board").stdout
    assert "1 runs" in out
    found = scalars(tmp_path / "board" / "demo")
    stored = sql(data, "select name, step, value from metrics where step is not null")
    assert sum(map(len, found.values())) == len(stored) > 200
    for row in stored:
        assert (row["step"], float(np.float32(row["value"]))) in found[row["name"]]

    board = TensorBoard(tmp_path / "board", tmp_path / "tensorboard.log")
    try:
        wait_until(lambda: (board.get("tags") or {}).get("demo", {}).keys() == found.keys(), 120)
        for tag in ["perf/request/count", "rollout/response_len/mean", "train/loss"]:
            shown = lambda: [(step, value) for _, step, value in board.get("scalars", run="demo", tag=tag) or []]
            wait_until(lambda: sorted(shown()) == sorted(found[tag]), 60)
            assert found[tag]
    finally:
        board.stop()


def test_what_rollscope_works_out_of_the_demo_is_what_the_demo_did(tmp_path):
    data = tmp_path / "data"
    run("demo", "--data", data, "--no-serve", "--steps", "3", "--samples", "16")
    passes = []
    for step in range(3):
        found = metrics_of(data, "demo", "--step", str(step))
        assert found["perf/request/count"] == sql(
            data, f"select count(*) as n from spans where step = {step} and name = 'sglang_generate' and state = 'closed'")[0]["n"]
        assert 0 < found["rollout/spec_accept_rate"] < 1 < found["rollout/spec_accept_length"]
        assert 0 <= found["rollout/prefix_cache_hit_rate"] <= 1
        assert found["perf/tokens_per_gpu_per_sec"] > 0 and found["perf/rollout_time"] > 0
        if "rollout/pass@1" in found:
            passes.append((found["rollout/pass@1"], found["rollout/pass@2"]))
    # No sample of the first step is right.
    assert len(passes) == 2 and all(0 < one < two <= 1 for one, two in passes), passes
    assert metrics_of(data, "demo", "--prefix", "train/").keys() == {n for n in metrics_of(data, "demo") if n.startswith("train/")}
    nobody = run("metrics", "nobody", "--data", data, check=False)
    assert nobody.returncode == 2 and "there is no run `nobody`; the newest runs are: `demo`" in nobody.stderr


def test_wandb_offline(serve, tmp_path):
    import sys
    config = tmp_path / "config.toml"
    config.write_text(f'[server.sinks.wandb]\nmode = "offline"\ndir = "{tmp_path}/w"\npython = "{sys.executable}"\n')
    server = serve(None, "--config", config)
    send(server, generate(1, None, e2e_latency=1.0), generate(2, None, e2e_latency=2.0))
    status = lambda: server.get("/api/v1/sinks").json()["sinks"][0]
    wait_until(lambda: status()["written"] + status()["failed"] >= 1, 120)
    assert status()["written"] == 1, status()
    assert list((tmp_path / "w").rglob("*.wandb"))


def test_a_sink_that_fails_stops_nothing(serve, tmp_path):
    server = serve(None, "--metrics-jsonl", tmp_path / "no" / "folder" / "x.jsonl")
    send(server, generate(1, None, e2e_latency=1.0), generate(2, None, e2e_latency=2.0))
    wait_until(lambda: server.get("/api/v1/sinks").json()["sinks"][0]["failed"] == 1)
    sink = server.get("/api/v1/sinks").json()["sinks"][0]
    assert "x.jsonl" in sink["last_error"] and sink["backlog"] == 0
    assert server.one("select count(*) from spans") == 2


def test_points_for_charts_never_hide_a_spike(server):
    send(server, *[generate(i, None, e2e_latency=100.0 if i == 9 else 1.0) for i in range(1, 16)])
    wait_until(lambda: server.one("select count(*) from metrics where name = 'perf/request/e2e_latency/max'") == 14, 120)
    get = lambda **q: server.get("/api/v1/runs/live/metrics/points", params={"names": "perf/request/e2e_latency/max", **q})
    whole = get(points=3).json()["series"][0]
    assert len(whole["x"]) <= 4 and sum(whole["n"]) == 14
    assert max(whole["hi"]) == 100.0 and max(whole["last"]) == 1.0 and min(whole["lo"]) == 1.0
    one = get(**{"from": 8, "to": 10}).json()["series"][0]
    assert one["x"] == one["step"] == [8, 9, 10] and one["last"] == [1.0, 100.0, 1.0]
    by_time = get(x="time").json()
    assert by_time["x"] == "time" and abs(by_time["series"][0]["x"][0] / 1000 - time.time()) < 3600
    assert get(x="tokens").json()["series"] == []
    for bad in ({"x": "depth"}, {"points": 0}, {"from": "a"}, {"names": "[1]"}):
        assert get(**bad).status_code == 400, bad
    info = {m["name"]: m for m in server.get("/api/v1/runs/live/metrics").json()["metrics"]}
    latency = info["perf/request/e2e_latency/max"]
    assert (latency["points"], latency["last_step"], latency["computed"]) == (14, 14, True)
    assert (latency["max"], latency["max_step"], latency["last"]) == (100.0, 9, 1.0)
