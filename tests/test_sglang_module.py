"""SGLang's own tracing in the loop: two engines of three processes each send what SGLang sends, a trainer sends its steps with the
plain OpenTelemetry SDK. Nothing is stamped for us: engines know no run, no step, no sample.

Once the trainer passes `traceparent` to the engines (one trace per step). Once it does not (one trace per sample): the engines'
traces are their own, and only the request id connects. See `sglang_engine.py` for what is SGLang's and what is ours.
"""

import json
import os
import subprocess
import sys
import types

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import inject
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from conftest import ROOT, Server, run, spans_in
from test_traces import view

# Of September 2026. A wheel of 39 MB; of its dependencies, the two modules that run here need only OpenTelemetry.
SGLANG = "0.5.23"
START = 1_790_000_000.0
STEPS, GROUPS, SIZE, TURNS = 6, 2, 4, 2
SLOW_STEP, SLOW = 5, "engine-b"
RANKS = 2
TRANSFER = 0.08
TRAIN, SYNC, GAP = 2.0, 0.5, 0.1
RUN = "math-7b"


@pytest.fixture(scope="module")
def wheel():
    """A folder with SGLang, kept for the next time."""
    folder = ROOT / "target" / "test-clients" / f"sglang-{SGLANG}"
    if not (folder / "sglang").exists():
        done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", folder,
                               f"sglang=={SGLANG}"], capture_output=True, text=True)
        assert done.returncode == 0, f"cannot install sglang {SGLANG}: {done.stderr}"
    return folder


class Engine:
    """An SGLang server in processes of its own."""

    def __init__(self, name, wheel, endpoint, named, role="null"):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "SGLANG_"))}
        if named:
            env["OTEL_RESOURCE_ATTRIBUTES"] = f"service.instance.id={name}"
        self.name = name
        self.process = subprocess.Popen([sys.executable, ROOT / "tests" / "sglang_engine.py", wheel, endpoint, str(RANKS), role],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def serve(self, requests):
        self.process.stdin.write(json.dumps(requests) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0
        self.process.stdout.close()


class Pair:
    """A prefill and a decode server behind SGLang's router. The router gives both a room and the caller's headers; each server
    makes a request id of its own, and the caller gets that of the decode side."""

    def __init__(self, name, wheel, endpoint, named):
        self.name, self.room = name, 0x5EED00
        self.prefill, self.decode = (Engine(f"{name}-{role}", wheel, endpoint, named, role) for role in ("prefill", "decode"))

    def serve(self, requests):
        for request in requests:
            self.room += 1
            request["room"] = self.room
        first = self.prefill.serve([{**r, "rid": f"{r['room']:08x}-of-the-prefill-side", "output": 1} for r in requests])
        ready = {f"{r['room']:08x}-of-the-prefill-side": r for r in requests}
        for rid, answer in first.items():
            ready[rid]["ready"] = answer["end"]
        return self.decode.serve(requests)

    def stop(self):
        self.prefill.stop()
        self.decode.stop()

    @property
    def process(self):
        return types.SimpleNamespace(kill=lambda: (self.prefill.process.kill(), self.decode.process.kill()))


class Trainer:
    """A loop with a synchronous rollout of two turns with a tool call between them, as its own clock has it."""

    def __init__(self, engines, endpoint, passes_context):
        self.engines, self.passes_context = engines, passes_context
        self.provider = TracerProvider(resource=Resource({"service.name": "trainer", "rl.run.id": RUN}))
        self.provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=True)))
        self.tracer = self.provider.get_tracer("loop")
        self.truth = []

    def span(self, name, start, parent=None, **attributes):
        context = trace.set_span_in_context(parent) if parent else None
        return self.tracer.start_span(name, context=context, start_time=int(start * 1e9),
                                      attributes={key.replace("__", "."): value for key, value in attributes.items()})

    def step(self, number, now):
        begin = now
        root = self.span("train_step", now, global_step=number)
        rollout = self.span("rollout", now, root)
        truth = {"step": number, "samples": {}, "requests": {engine.name: [] for engine in self.engines}, "aborted": []}
        samples = []
        for index in range(GROUPS * SIZE):
            at = now + 0.05 + 0.01 * index
            id, group = f"{number}-{index}", f"{number}-g{index // SIZE}"
            if self.passes_context:
                span = self.span("sample", at, rollout, rl__sample__id=id, rl__group__id=group)
            else:
                span = self.span("sample", at, rl__step=number, rl__sample__id=id, rl__group__id=group)
            samples.append({"id": id, "span": span, "now": at, "engine": self.engines[index % len(self.engines)], "index": index})
        for turn in range(TURNS):
            # One request is aborted, and asked for again: the sample keeps waiting.
            retried = number == 3 and turn == 0
            for engine in self.engines:
                mine = [s for s in samples if s["engine"] is engine]
                asked = [self.ask(number, turn, s, abort=retried and s["index"] == 1) for s in mine]
                self.hear(engine, mine, engine.serve(asked), truth)
                again = [s for s in mine if s.pop("again", False)]
                if again:
                    asked = [self.ask(number, f"{turn}-again", s) for s in again]
                    self.hear(engine, again, engine.serve(asked), truth)
            for s in samples:
                if turn + 1 < TURNS:
                    with_tool = self.span("tool_call", s["now"], s["span"], gen_ai__tool__name="python")
                    s["now"] += 0.2
                    with_tool.end(int(s["now"] * 1e9))
        for s in samples:
            reward = self.span("reward", s["now"], s["span"])
            s["now"] += 0.05
            reward.end(int(s["now"] * 1e9))
            s["span"].end(int(s["now"] * 1e9))
            truth["samples"][s["id"]] = s["now"]
        now = max(s["now"] for s in samples)
        rollout.end(int(now * 1e9))
        truth["rollout"] = now - begin
        for name, seconds in (("train", TRAIN), ("weight_sync", SYNC)):
            now += GAP
            phase = self.span(name, now, root)
            now += seconds
            phase.end(int(now * 1e9))
        root.end(int(now * 1e9))
        truth["wall"] = now - begin
        self.truth.append(truth)
        return now

    def ask(self, step, turn, sample, abort=False):
        rid = f"{step:02x}{sample['index']:02x}{turn}-rid-of-{RUN}".replace("_", "-")
        sample["rid"], sample["client"] = rid, self.span("sglang_generate", sample["now"], sample["span"])
        sample["client"].set_attribute("sglang_request_id", rid)
        headers = {}
        if self.passes_context:
            inject(headers, trace.set_span_in_context(sample["client"]))
        slow = 4 if step == SLOW_STEP and sample["engine"].name == SLOW else 1
        return {"rid": rid, "at": sample["now"] + 0.002, "prompt": 60 + sample["index"], "cached": 20, "output": 8 + sample["index"],
                "pace": 0.05 * slow, "headers": headers, "abort": abort}

    def hear(self, engine, samples, answers, truth):
        for s in samples:
            answer = answers[s["rid"]]
            aborted = answer["finish_reason"]["type"] == "abort"
            (truth["aborted"] if aborted else truth["requests"][engine.name]).append(s["rid"])
            s["now"] = answer["end"] + 0.002
            s["again"] = aborted
            s["client"].end(int(s["now"] * 1e9))


def trained(tmp_path_factory, wheel, passes_context, kind=Engine, steps=STEPS):
    data = tmp_path_factory.mktemp("sglang") / "data"
    server, engines = Server(data), []
    try:
        engines = [kind(name, wheel, server.grpc, named=passes_context) for name in ("engine-a", "engine-b")]
        trainer, now = Trainer(engines, server.grpc, passes_context), START
        for number in range(steps):
            now = trainer.step(number, now) + 0.2
        trainer.provider.shutdown()
        for engine in engines:
            engine.stop()
        server.truth = trainer.truth
    except BaseException:
        for engine in engines:
            engine.process.kill()
        server.stop()
        raise
    return server


@pytest.fixture(scope="module")
def by_traceparent(tmp_path_factory, wheel):
    server = trained(tmp_path_factory, wheel, passes_context=True)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def by_request_id(tmp_path_factory, wheel):
    server = trained(tmp_path_factory, wheel, passes_context=False)
    yield server
    server.stop()


def pairs(tmp_path_factory, wheel, passes_context):
    server = trained(tmp_path_factory, wheel, passes_context, Pair, steps=2)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def pairs_by_traceparent(tmp_path_factory, wheel):
    yield from pairs(tmp_path_factory, wheel, True)


@pytest.fixture(scope="module")
def pairs_by_request_id(tmp_path_factory, wheel):
    yield from pairs(tmp_path_factory, wheel, False)


def report(server, step):
    answer = server.get(f"/api/v1/runs/{RUN}/steps/{step}/report")
    assert answer.ok, answer.text
    return answer.json()


def printed(server, step):
    """As a person reads it in the terminal."""
    return run("report", RUN, "--step", step, "--server", server.url).stdout


def timeline(server, step):
    answer = server.get(f"/api/v1/runs/{RUN}/timeline", params={"step": step})
    assert answer.ok, answer.text
    return pa.ipc.open_stream(answer.content).read_all().to_pylist()


def held(answer):
    """The critical path by kind. The path may go through either of two ranks that did the same."""
    totals = {}
    for part in answer["critical_path"]["totals"]:
        totals[part["kind"]] = totals.get(part["kind"], 0) + part["seconds"]
    return totals


def engine_spans(truth):
    """How many spans the engines send for a step, as the two modules are written."""
    served = sum(4 + RANKS * (6 + 8 + int(rid[2:4], 16)) for rids in truth["requests"].values() for rid in rids)
    return served + len(truth["aborted"]) * (4 + RANKS * 2)


def trainer_spans(truth):
    return 4 + GROUPS * SIZE * (1 + TURNS + (TURNS - 1) + 1) + len(truth["aborted"])


BOTH = pytest.mark.parametrize("way", ["by_traceparent", "by_request_id"])


@pytest.fixture
def served(way, request):
    return request.getfixturevalue(way)


@BOTH
def test_everything_arrives(served):
    """All processes of the engines, with links and events, thread names and ranks."""
    assert served.one("select count(*) from spans where service = 'trainer'") == sum(map(trainer_spans, served.truth))
    assert served.one("select count(*) from spans where service = 'sglang'") == sum(map(engine_spans, served.truth))
    threads = served.sql("select thread, tp_rank, count(distinct pid) from spans where thread is not null group by 1, 2 order by 1, 2")
    assert threads == [["Scheduler", 0, 2], ["Scheduler", 1, 2], ["Tokenizer", None, 2]], "two engines"
    assert served.one("select count(*) from spans where name = 'prefill_forward' and array_length(links) = 1 and array_length(events) > 0") == (
        RANKS * sum(len(rids) for truth in served.truth for rids in truth["requests"].values()))
    assert served.one("select count(*) from spans where status = 'error'") == RANKS, "the aborted request, in each rank"


@BOTH
def test_the_loop_s_own_clock(served):
    for truth in served.truth:
        answer = report(served, truth["step"])
        assert answer["wall_s"] == pytest.approx(truth["wall"], abs=1e-3)
        phases = {p["name"]: p["seconds"] for p in answer["phases"]}
        assert phases == {"rollout": pytest.approx(truth["rollout"], abs=1e-3), "train": pytest.approx(TRAIN, abs=1e-3),
                          "weight_sync": pytest.approx(SYNC, abs=1e-3), "between phases": pytest.approx(2 * GAP, abs=1e-3)}
        assert sum(p["seconds"] for p in answer["critical_path"]["totals"]) == pytest.approx(truth["wall"], abs=1e-3)
        assert answer["stragglers"]["samples"] == GROUPS * SIZE
        last = max(truth["samples"], key=truth["samples"].get)
        assert f"sample {last}" in printed(served, truth["step"])


def test_with_traceparent_the_step_has_its_engines(by_traceparent):
    for truth in by_traceparent.truth:
        answer = report(by_traceparent, truth["step"])
        assert answer["health"]["data"]["spans"] == engine_spans(truth) + trainer_spans(truth)
        assert held(answer)["decode"] > 1 and "generate" in held(answer)
        names = {n["name"] for n in answer["breakdown"]["by_name"]}
        assert {"prefill_waiting", "prefill_forward", "decode_forward", "decode_loop", "tokenize"} <= names


def test_with_traceparent_the_timeline_has_its_engines(by_traceparent):
    for truth in by_traceparent.truth:
        rows = timeline(by_traceparent, truth["step"])
        assert len(rows) == engine_spans(truth) + trainer_spans(truth)
        roots = [row for row in rows if " Req " in row["name"]]
        assert {(row["name"].split()[1], row["sample"]) for row in roots} == {
            (rid[:8], f"{truth['step']}-{int(rid[2:4], 16)}")
            for rids in [*truth["requests"].values(), truth["aborted"]] for rid in rids}
        loose = [row["name"] for row in rows if row["sample"] is None]
        assert sorted(loose) == ["rollout", "train", "train_step", "weight_sync"]


def test_without_traceparent_a_sample_s_trace_shows_its_requests(by_request_id):
    traces = by_request_id.sql("select encode(trace_id, 'hex') from spans where name = 'sample' and step = 2")
    assert len(traces) == GROUPS * SIZE
    for [trace_id] in traces:
        summary, _ = view(by_request_id, trace_id)
        assert summary["joined"] == TURNS


def check_parts_of_pairs(server):
    """Of all samples' time: what the prefill side did, and how long caches travelled."""
    for truth in server.truth:
        parts = {p["part"]: p["more_s"] for p in report(server, truth["step"])["stragglers"]["parts"]}
        requests = sum(map(len, truth["requests"].values()))
        assert parts["transfer"] == pytest.approx(requests * TRANSFER, rel=0.05)
        assert parts["prefill"] == pytest.approx(requests * 0.054, rel=0.05)
        assert parts["decode"] > 5


def test_disaggregated_with_traceparent(pairs_by_traceparent):
    check_parts_of_pairs(pairs_by_traceparent)
    assert pairs_by_traceparent.one("select count(distinct pid) from spans where thread like 'Prefill%' or thread like 'Decode%'") == 2 * 2 * (1 + RANKS)


@BOTH
def test_engines_are_no_runs(served):
    # What is listed apart from the runs says so.
    assert [r["run_id"] for r in served.get("/api/v1/runs").json()["runs"] if not r.get("service")] == [RUN]


@BOTH
def test_a_run_starts_with_its_first_step(served):
    [mine] = [r for r in served.get("/api/v1/runs").json()["runs"] if r["run_id"] == RUN]
    assert int(mine["started_ns"]) == int(START * 1e9)


@BOTH
def test_a_run_counts_its_samples(served):
    [mine] = [r for r in served.get("/api/v1/runs").json()["runs"] if r["run_id"] == RUN]
    assert mine["samples"] == STEPS * GROUPS * SIZE


@BOTH
def test_the_list_of_steps_and_the_report_count_the_same_spans(served):
    steps = {s["step"]: s["spans"] for s in served.get(f"/api/v1/runs/{RUN}/steps").json()["steps"]}
    assert steps == {t["step"]: engine_spans(t) + trainer_spans(t) for t in served.truth}


@BOTH
def test_the_list_of_steps_has_the_report_s_phases(served):
    for step in served.get(f"/api/v1/runs/{RUN}/steps").json()["steps"]:
        assert step["exclusive"]["train"] == pytest.approx(TRAIN, abs=0.05)


def test_all_exports_of_a_run_have_the_same_spans(by_traceparent, tmp_path):
    spans = sum(map(engine_spans, by_traceparent.truth)) + sum(map(trainer_spans, by_traceparent.truth))
    which = ("--run", RUN, "--data", by_traceparent.data)
    assert f": {spans:,} spans" in run("export", "html", *which, "-o", tmp_path / "run.html").stdout
    assert f": {spans:,} spans" in run("export", "perfetto", *which, "-o", tmp_path / "run.pftrace").stderr
    assert spans_in(run("export", "otlp", *which).stdout) == spans


def test_the_request_id_connects_as_well_as_the_trace(by_traceparent, by_request_id):
    """The same dice: only what connects differs, so the answers do not."""
    for number in range(STEPS):
        one, other = report(by_traceparent, number), report(by_request_id, number)
        assert held(other) == {kind: pytest.approx(seconds, abs=1e-3) for kind, seconds in held(one).items()}
        parts = lambda answer: {p["part"]: pytest.approx(p["more_s"], abs=1e-3) for p in answer["stragglers"]["parts"]}
        assert parts(other) == parts(one)
        assert other["health"]["data"]["spans"] == one["health"]["data"]["spans"]


def test_the_timeline_joins_by_request_id(by_request_id):
    for truth in by_request_id.truth:
        rows = timeline(by_request_id, truth["step"])
        assert len(rows) == engine_spans(truth) + trainer_spans(truth)
        assert all(row["sample"] for row in rows if " Req " in row["name"])


@BOTH
def test_a_slow_engine_is_named(served, way):
    [first, *_] = report(served, SLOW_STEP)["findings"]
    assert "engine" in first["kind"]
    # Engines that say no name are known by host and process.
    assert SLOW in first["text"] or way == "by_request_id"
    usual = served.truth[0]["wall"]
    assert first["cost_s"] == pytest.approx(served.truth[SLOW_STEP]["wall"] - usual, rel=0.2)


@BOTH
def test_the_run_names_its_slow_step(served):
    answer = served.get(f"/api/v1/runs/{RUN}/findings").json()
    assert "Nothing stands out" not in answer["text"]
    assert SLOW_STEP in {finding["step"] for finding in answer["findings"]}


def test_the_timeline_tells_engines_and_ranks_apart(by_traceparent):
    schedulers = {row["worker"] for row in timeline(by_traceparent, 1) if row["name"].startswith("Scheduler")}
    assert len(schedulers) == 2 * RANKS
    assert len({row["worker"] for row in timeline(by_traceparent, 1) if row["name"] == "decode_loop"}) == 2 * RANKS


def test_the_cache_hit_rate_of_the_engines(by_traceparent):
    prompts = [60 + index for index in range(GROUPS * SIZE)]
    assert report(by_traceparent, 1)["health"]["cache_hit_rate"] == pytest.approx(20 * len(prompts) / sum(prompts), abs=0.01)


@BOTH
def test_a_request_that_was_asked_for_again(served):
    assert report(served, 3)["health"]["retried"] == 1


def test_the_trace_of_a_step_is_no_sample(by_traceparent):
    traces = by_traceparent.get("/api/v1/traces").json()["traces"]
    assert {t["sample_id"] for t in traces} == {None}


def test_disaggregated_without_traceparent(pairs_by_request_id):
    check_parts_of_pairs(pairs_by_request_id)


def test_disaggregated_the_path_enters_the_prefill_side(pairs_by_traceparent):
    for truth in pairs_by_traceparent.truth:
        path = held(report(pairs_by_traceparent, truth["step"]))
        assert path["transfer"] == pytest.approx(TURNS * TRANSFER, abs=0.02)
        assert path["prefill"] > 0.05
