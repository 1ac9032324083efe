"""What slime's, SGLang's and ROLL's own modules wrote, with their own clocks as truth. `fixtures/README.md` says how each file was made.

What a person would expect and does not get today is marked as a strict failure: whoever makes it hold removes the mark.
"""

import json
from itertools import pairwise

import pyarrow as pa
import pytest

from conftest import FIXTURES, Server, run, spans_in

AGENT = FIXTURES / "slime" / "agent"
DUMPS = sorted(AGENT.glob("rollout_*.pt"))
ENGINES = AGENT / "engines.jsonl.gz"


class Store(Server):
    """A store with these files, imported as a person would, and a server over it."""

    def __init__(self, data, *files):
        run("import", *files, "--data", data)
        super().__init__(data)

    def runs(self):
        """The runs, without the services that are listed apart from them."""
        return {r["run_id"]: r for r in self.get("/api/v1/runs").json()["runs"] if not r.get("service")}

    def steps(self, name):
        return {s["step"]: s for s in self.get(f"/api/v1/runs/{name}/steps").json()["steps"]}

    def report(self, name, step):
        answer = self.get(f"/api/v1/runs/{name}/steps/{step}/report")
        assert answer.ok, answer.text
        return answer.json()

    def findings(self, name):
        return self.get(f"/api/v1/runs/{name}/findings").json()

    def timeline(self, name, step):
        answer = self.get(f"/api/v1/runs/{name}/timeline", params={"step": step})
        assert answer.ok, answer.text
        return pa.ipc.open_stream(answer.content).read_all().to_pylist()

    def printed(self, *args):
        return run("report", *args, "--server", self.url).stdout


def store(*files):
    """A fixture of a test: these files in a store of their own."""
    @pytest.fixture(scope="module")
    def made(tmp_path_factory):
        server = Store(tmp_path_factory.mktemp("real") / "data", *files)
        yield server
        server.stop()

    return made


slime = store(*DUMPS)
engines = store(ENGINES)
slime_and_engines = store(*DUMPS, ENGINES)
roll_sync = store(FIXTURES / "roll" / "agentic_sync.jsonl.gz")
roll_async = store(FIXTURES / "roll" / "agentic_async.jsonl.gz")


def phases(report):
    return {p["name"]: p["seconds"] for p in report["phases"]}


def by_kind(parts, field="seconds"):
    totals = {}
    for part in parts:
        totals[part.get("kind") or part["part"]] = totals.get(part.get("kind") or part["part"], 0) + part[field]
    return totals


def adds_up(report):
    assert sum(phases(report).values()) == pytest.approx(report["wall_s"])
    assert sum(p["seconds"] for p in report["critical_path"]["totals"]) == pytest.approx(report["wall_s"])


# slime: three rollouts of an agent with tools. Its dumps know the requests' ids, its engines know nothing else.

ROLLOUTS = json.loads((AGENT / "truth.json").read_text())


@pytest.fixture(params=["slime", "slime_and_engines"])
def with_or_without_engines(request):
    return request.getfixturevalue(request.param)


def test_slime_rollouts_are_steps(with_or_without_engines):
    store = with_or_without_engines
    mine = store.runs()["agent"]
    assert (mine["framework"], mine["samples"], mine["steps"]) == ("slime", 24, 3)
    steps = store.steps("agent")
    assert sorted(steps) == [0, 1, 2]
    for truth in ROLLOUTS:
        number = truth["rollout_id"]
        report = store.report("agent", number)
        assert report["wall_s"] == pytest.approx(truth["rollout_s"], abs=1e-3)
        assert phases(report) == {"rollout": pytest.approx(truth["rollout_s"], abs=1e-3)}, "slime writes no spans of its training"
        adds_up(report)
        assert (int(steps[number]["end_ns"]) - int(steps[number]["start_ns"])) / 1e9 == pytest.approx(truth["rollout_s"], abs=1e-3)
        assert report["stragglers"]["samples"] == steps[number]["samples"] == truth["samples"]
        assert {row["sample"] for row in store.timeline("agent", number)} == set(truth["sample_s"])
        last = max(truth["sample_s"], key=truth["sample_s"].get)
        assert f"The rollout ended with sample {last}." in store.printed("agent", "--step", number)
        # The time of all samples, in parts that leave nothing out.
        assert sum(p["more_s"] for p in report["stragglers"]["parts"]) == pytest.approx(sum(truth["sample_s"].values()), abs=1e-3)
        assert sum(t["calls"] for t in report["health"]["tools"]) == truth["requests"] - truth["samples"]


def test_slime_alone_the_path_knows_what_the_samples_know(slime):
    report = slime.report("agent", 2)
    assert by_kind(report["stragglers"]["parts"], "more_s")["decode"] > 20
    assert by_kind(report["critical_path"]["totals"])["decode"] > 4


def test_slime_the_long_rollout_is_not_passed_over(with_or_without_engines):
    assert "Nothing stands out" not in with_or_without_engines.findings("agent")["text"]


def test_slime_engines_are_no_runs(slime_and_engines):
    assert list(slime_and_engines.runs()) == ["agent"]


def test_slime_and_its_engines_are_joined(slime_and_engines):
    of_engines = slime_and_engines.one("select count(*) from spans where service = 'sglang'")
    seen = 0
    for truth in ROLLOUTS:
        report = slime_and_engines.report("agent", truth["rollout_id"])
        assert by_kind(report["critical_path"]["totals"])["decode"] > 0.5
        names = {n["name"]: n["spans"] for n in report["breakdown"]["by_name"]}
        assert names["sglang_generate"] == truth["requests"] and names["prefill_forward"] == 2 * truth["requests"], "two ranks"
        rows = slime_and_engines.timeline("agent", truth["rollout_id"])
        assert len(rows) == report["health"]["data"]["spans"]
        seen += len(rows) - 64
    assert seen == of_engines


def test_slime_fields_and_engine_spans_say_the_same(slime, slime_and_engines):
    """Of the same requests: what slime keeps of `meta_info`, and what the engines traced."""
    for number in range(3):
        fields = by_kind(slime.report("agent", number)["stragglers"]["parts"], "more_s")
        spans = by_kind(slime_and_engines.report("agent", number)["stragglers"]["parts"], "more_s")
        assert "prefill" in spans
        for part in ("decode", "queue", "tool", "reward"):
            assert fields.get(part, 0) == pytest.approx(spans.get(part, 0), rel=0.1, abs=0.05), part


def test_slime_the_slow_engine_is_found(slime_and_engines):
    [first, *_] = slime_and_engines.report("agent", 2)["findings"]
    assert "engine" in first["kind"] and first["cost_s"] > 2


# SGLang alone: no trainer sends anything.


def test_sglang_alone_requests_are_listed(engines):
    traces = engines.get("/api/v1/traces", params={"limit": 100}).json()
    assert traces["total"] == sum(t["requests"] for t in ROLLOUTS)
    assert {t["request_id"] is not None and t["step"] is None for t in traces["traces"]} == {True}


def test_sglang_alone_requests_are_requests(engines):
    text = engines.printed("sglang")
    assert "request" in text
    for wrong in ("sample", "rollout", "the step itself", "This run took"):
        assert wrong not in text, text


# ROLL: its agentic pipeline, its workers, its environments; synchronous and asynchronous.

CLOCKS = {way: json.loads((FIXTURES / "roll" / f"agentic_{way}_clock.json").read_text()) for way in ("sync", "async")}
# The driver's spans, and the names that ROLL's own timers around them have.
TIMERS = {"model_update": "model_update", "cal_ref_log_probs": "ref_log_probs_values_reward", "cal_old_log_probs_values": "old_log_probs_values",
          "compute_advantage": "adv", "train": "train"}


@pytest.fixture(params=["sync", "async"])
def way(request):
    return request.param


@pytest.fixture
def roll(way, request):
    return request.getfixturevalue(f"roll_{way}")


def test_roll_is_one_run_with_its_roles(roll):
    assert list(roll.runs()) == ["roll"] and roll.runs()["roll"]["framework"] == "roll"
    assert sorted(roll.steps("roll")) == [0, 1, 2]
    assert {s for [s] in roll.sql("select distinct service from spans")} == {"driver", "actor_train", "reference", "train_env"}


def test_roll_s_own_timers(roll, way):
    for clock in CLOCKS[way]:
        report = roll.report("roll", clock["step"])
        assert report["wall_s"] == pytest.approx(clock["time/step_total"], abs=0.005)
        for name, timer in TIMERS.items():
            assert phases(report)[name] == pytest.approx(clock[f"time/step_{timer}"], abs=0.005), name
        adds_up(report)


def all_count_the_same(store):
    for number, step in store.steps("roll").items():
        assert store.report("roll", number)["health"]["data"]["spans"] == len(store.timeline("roll", number)) == step["spans"]


def test_roll_all_count_the_same_spans_sync(roll_sync):
    all_count_the_same(roll_sync)


def test_roll_all_count_the_same_spans_async(roll_async):
    all_count_the_same(roll_async)


def test_roll_all_exports_of_a_step_have_the_same_spans(roll_sync, tmp_path):
    of_step = roll_sync.report("roll", 0)["health"]["data"]["spans"]
    which = ("--run", "roll", "--step", 0, "--data", roll_sync.data)
    assert f": {of_step} spans" in run("export", "perfetto", *which, "-o", tmp_path / "step.pftrace").stderr
    assert f": {of_step} spans" in run("export", "html", *which, "-o", tmp_path / "step.html").stdout
    assert spans_in(run("export", "otlp", *which).stdout) == of_step


def test_roll_a_rollout_takes_what_it_took(roll_sync):
    for clock in CLOCKS["sync"]:
        assert phases(roll_sync.report("roll", clock["step"]))["rollout"] == pytest.approx(clock["time/step_rollout"], abs=0.005)


def test_roll_trajectories_are_samples(roll_sync):
    assert roll_sync.runs()["roll"]["samples"] == 24
    for number in range(3):
        report = roll_sync.report("roll", number)
        assert report["stragglers"]["samples"] == 8
        rows = roll_sync.timeline("roll", number)
        assert len({row["sample"] for row in rows if row["name"] == "trajectory"}) == 8
        assert all(row["sample"] for row in rows if row["name"] in ("trajectory", "generate", "step"))


def test_roll_a_step_of_an_environment_is_no_training_step(roll):
    for number in range(3):
        [kind] = {n["kind"] for n in roll.report("roll", number)["breakdown"]["by_name"] if n["name"] == "step"}
        assert kind != "step"


def test_roll_what_a_worker_executes_is_what_it_was_asked_for(roll):
    for clock in CLOCKS["sync"]:
        held = by_kind(roll.report("roll", clock["step"])["critical_path"]["totals"])
        assert held["train"] > 0.4 and held["log_probs"] > 0.25 and held.get("other", 0) < 0.1


def test_roll_validation_is_validation(roll):
    assert {n["name"]: n["kind"] for n in roll.report("roll", 0)["breakdown"]["by_name"]}["val"] == "validation"


def test_roll_the_list_of_steps_has_the_report_s_phases(roll_sync):
    for number, step in roll_sync.steps("roll").items():
        assert step["exclusive"]["train"] == pytest.approx(phases(roll_sync.report("roll", number))["train"], abs=0.05)


def test_roll_how_long_rollouts_took_is_a_metric(roll_sync):
    stored = dict(roll_sync.sql("select step, value from metrics where name = 'perf/rollout_time' order by step"))
    assert stored == {clock["step"]: pytest.approx(clock["time/step_rollout"], abs=0.02) for clock in CLOCKS["sync"]}


def test_roll_too_few_steps_are_not_called_usual(roll_sync):
    assert "Nothing stands out" not in roll_sync.findings("roll")["text"]


def test_roll_clocks_of_one_machine_agree_sync(roll_sync):
    assert [f for number in range(3) for f in roll_sync.report("roll", number)["findings"] if f["kind"] == "clock_skew"] == []


def test_roll_clocks_of_one_machine_agree_async(roll_async):
    assert [f for number in range(3) for f in roll_async.report("roll", number)["findings"] if f["kind"] == "clock_skew"] == []


def test_roll_a_step_ends_once(roll_async):
    for number, step in roll_async.steps("roll").items():
        report = roll_async.report("roll", number)
        assert (step["start_ns"], step["end_ns"]) == (report["start_ns"], report["end_ns"])


def test_roll_nothing_takes_longer_by_itself_than_with_its_children(roll_async):
    for number in range(3):
        for part in roll_async.report("roll", number)["breakdown"]["by_kind"]:
            assert part["exclusive_s"] <= part["inclusive_s"] + 1e-6, part


roll_loop = store(FIXTURES / "roll" / "roll_traces.jsonl")


def test_roll_a_loop_of_one_s_own_that_says_step(roll_loop):
    assert sorted(roll_loop.steps("roll")) == [0, 1, 2, 3]
    assert roll_loop.findings("roll")["text"].startswith("4 steps")


# ROLL's RLVR pipeline: two schedulers, one per domain, whose `get_batch` names the step again, below the driver's `generate`.

rlvr = store(FIXTURES / "roll" / "rlvr.jsonl.gz")
RLVR_CLOCK = json.loads((FIXTURES / "roll" / "rlvr_clock.json").read_text())
RLVR_TIMERS = {"stop_server": "step_stop_server", "model_update": "step_model_update", "validation": "val_step",
               "ref_log_probs": "ref_log_probs_values", "old_log_probs_and_values": "old_log_probs", "train": "step_train"}


def test_rlvr_s_own_timers(rlvr):
    assert list(rlvr.runs()) == ["roll"]
    for clock in RLVR_CLOCK:
        report = rlvr.report("roll", clock["step"])
        for name, timer in RLVR_TIMERS.items():
            assert phases(report).get(name, 0) == pytest.approx(clock.get(f"time/{timer}", 0), abs=0.02), name
        adds_up(report)


def test_rlvr_the_rollout_is_a_phase(rlvr):
    for clock in RLVR_CLOCK:
        report = rlvr.report("roll", clock["step"])
        assert phases(report)["generate"] == pytest.approx(clock["time/step_generate"], abs=0.02)
        assert "get_batch" not in phases(report)


def test_rlvr_nothing_is_missing(rlvr):
    assert rlvr.one("select count(*) from spans") == sum(rlvr.report("roll", n)["health"]["data"]["spans"] for n in range(3))
    assert [f for n in range(3) for f in rlvr.report("roll", n)["findings"] if f["kind"] == "dropped_data"] == []


def test_rlvr_kinds(rlvr):
    kinds = {n["name"]: n["kind"] for n in rlvr.report("roll", 1)["breakdown"]["by_name"]}
    assert (kinds["rollout.generate"], kinds["rollout.compute_rewards"]) == ("generate", "reward")


# verl: its rollout tracing over MLflow, which sends OTLP. Step, sample and experiment are tags of the trace, as text, on the root alone.

verl = store(FIXTURES / "verl" / "agent_loop.jsonl.gz")
GENERATIONS = json.loads((FIXTURES / "verl" / "agent_loop_truth.json").read_text())


def test_verl_trajectories_are_traces(verl):
    traces = verl.get("/api/v1/traces", params={"limit": 100}).json()["traces"]
    took = sorted(t["duration_ns"] / 1e9 for t in traces)
    # Two more were for validation, before the first step.
    assert len(took) == sum(len(g["samples"]) for g in GENERATIONS) + 2
    for seconds in sorted(s["seconds"] for g in GENERATIONS for s in g["samples"])[-4:]:
        assert any(abs(seconds - t) < 0.02 for t in took), (seconds, took)
    assert {(t["root"], t["spans"]) for t in traces} == {("agent_loop", 7)}


def test_verl_steps_and_samples(verl):
    [name] = verl.runs()
    steps = verl.steps(name)
    assert {1, 2, 3} <= set(steps)
    for truth in GENERATIONS:
        report = verl.report(name, truth["step"])
        adds_up(report)
        assert report["wall_s"] == pytest.approx(truth["gen_s"], abs=0.02)
        assert report["stragglers"]["samples"] == len(truth["samples"]), "`rollout_n` tells the samples of a prompt apart"
        assert {row["group"] for row in verl.timeline(name, truth["step"]) if row["name"] == "agent_loop"} == {"0", "1", "2", "3"}


def test_verl_the_run_has_a_name(verl):
    assert verl.runs() and "default" not in verl.runs()


def test_verl_the_report_speaks_of_its_steps(verl):
    [name] = verl.runs()
    text = verl.printed(name)
    assert "the step itself" not in text and "This run took" not in text
    assert "4 steps" in text, "the validation before the first one is step 0"


# A GRPO loop of an H200, recorded with our package: `test_answers.py` holds its phases against the loop's clock.


h200 = store(FIXTURES / "gpu" / "h200_grpo_run.jsonl.gz")
CLOCK = json.loads((FIXTURES / "gpu" / "h200_grpo_truth.json").read_text())["clock_of_the_loop"]


def test_h200_differences_are_those_of_the_clock(h200):
    for before, after in pairwise(CLOCK):
        difference = h200.get("/api/v1/runs/grpo-h200/diff", params={"step": before["step"], "with": after["step"]}).json()
        change = after["wall"] - before["wall"]
        assert difference["change_s"] == pytest.approx(change, abs=0.02)
        assert sum(c["change_s"] for c in difference["changes"]) == pytest.approx(difference["change_s"])
        # Decoding is what differs from step to step on this machine.
        assert difference["changes"][0]["name"] == "decode_step" or abs(change) < 0.1


def test_h200_walls_are_those_of_the_clock(h200):
    walls = {s["step"]: s["wall_s"] for s in h200.findings("grpo-h200")["steps"]}
    steps = {number: (int(s["end_ns"]) - int(s["start_ns"])) / 1e9 for number, s in h200.steps("grpo-h200").items()}
    for clock in CLOCK:
        assert walls[clock["step"]] == steps[clock["step"]] == pytest.approx(clock["wall"], rel=0.02)
    assert {s["samples"] for s in h200.steps("grpo-h200").values()} == {128}


def test_h200_training_has_no_samples_to_blame(h200):
    difference = h200.get("/api/v1/runs/grpo-h200/diff", params={"step": 3, "with": 12}).json()
    for change in difference["changes"]:
        if change["name"] in ("train", "forward_backward", "optimizer_step"):
            assert "samples" not in json.dumps(change), change


def test_h200_the_rollout_does_not_end_with_a_score(h200):
    assert "The rollout ended with sample" not in h200.printed("grpo-h200", "--step", 12)
