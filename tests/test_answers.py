"""The answers, as a user reads them: report and diff in the terminal, and the same over HTTP."""

import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest

from conftest import FIXTURES, run


def rollscope(*args, code=0):
    done = run(*args, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo run up to its planted step."""
    data = tmp_path_factory.mktemp("answers")
    rollscope("demo", "--no-serve", "--data", data, "--steps", 26)
    return data


def test_a_step_says_why_it_was_slow(demo):
    report = json.loads(rollscope("report", "demo", "--step", 23, "--data", demo, "--json").stdout)
    first = report["findings"][0]
    assert first["kind"] == "slow_tool"
    assert first["evidence"]["tool"] == "browser"
    assert first["evidence"]["count"] == 4
    assert len(first["evidence"]["spans"]) == 4
    assert 30 < first["cost_s"] < 70
    # The span that is named exists, and is the slow one.
    span = first["evidence"]["spans"][0]
    query = f"select name, (end_ns - start_ns) / 1e9 as s from spans where span_id = span_id('{span['span_id']}')"
    found = json.loads(rollscope("sql", "--data", demo, "--format", "json", query).stdout)
    assert found[0]["name"] == "tool_call" and abs(found[0]["s"] - span["seconds"]) < 1e-6
    # Sums add up.
    assert sum(p["seconds"] for p in report["phases"]) == pytest.approx(report["wall_s"])
    assert sum(p["seconds"] for p in report["critical_path"]["totals"]) == pytest.approx(report["wall_s"])


def test_the_terminal_and_markdown_say_the_same(demo):
    text = rollscope("report", "demo", "--step", 23, "--data", demo).stdout
    assert "browser" in text and "longer than usual" in text and "Critical path" in text
    assert max(map(len, text.splitlines())) <= 140
    markdown = rollscope("report", "demo", "--step", 23, "--data", demo, "--markdown").stdout
    assert "### Findings" in markdown and "| phase |" in markdown


def test_an_ordinary_step_has_no_findings(demo):
    report = json.loads(rollscope("report", "demo", "--step", 12, "--data", demo, "--json").stdout)
    assert report["findings"] == []
    assert report["text"].startswith("Step 12 took ")


def test_a_run_lists_its_findings_by_cost(demo):
    report = json.loads(rollscope("report", "demo", "--data", demo, "--json").stdout)
    assert [f["step"] for f in report["findings"]] == [23]
    assert len(report["steps"]) == 26
    assert "browser" in rollscope("report", "demo", "--data", demo).stdout


def test_what_changed_between_two_steps(demo):
    difference = json.loads(rollscope("diff", "demo:22", "demo:23", "--data", demo, "--json").stdout)
    assert difference["changes"][0]["name"] == "browser (tool)"
    total = sum(c["change_s"] for c in difference["changes"])
    assert total == pytest.approx(difference["change_s"])
    assert "browser" in rollscope("diff", "22", "23", "--run", "demo", "--data", demo).stdout


def test_over_http_it_is_the_same(demo, serve):
    server = serve(demo)

    def read(text: str):
        # The program reads the JSON that it prints, which may change the last of seventeen digits.
        return json.loads(text, parse_float=lambda number: float(f"{float(number):.14g}"))

    mine = read(rollscope("report", "demo", "--step", 23, "--data", demo, "--json").stdout)
    theirs = read(server.get("/api/v1/runs/demo/steps/23/report").text)
    assert theirs == mine
    again = server.get("/api/v1/runs/demo/findings").json()
    assert [f["kind"] for f in again["findings"]] == ["slow_tool"]
    difference = server.get("/api/v1/runs/demo/diff?step=22&with=23").json()
    assert difference["changes"][0]["name"] == "browser (tool)"
    printed = rollscope("report", "demo", "--step", 23, "--server", server.url).stdout
    assert printed == rollscope("report", "demo", "--step", 23, "--data", demo).stdout


def test_what_is_not_there_is_said(demo, serve):
    assert "there is no run `nope`" in rollscope("report", "nope", "--data", demo, code=2).stderr
    missing = rollscope("report", "demo", "--step", 99, "--data", demo, code=2).stderr
    assert "no step 99" in missing and "0 to 25" in missing
    assert "is not a step number" in rollscope("diff", "x", "1", "--run", "demo", "--data", demo, code=2).stderr
    server = serve(demo)
    assert server.get("/api/v1/runs/demo/steps/99/report").status_code == 404
    assert server.get("/api/v1/runs/demo/steps/x/report").status_code == 400
    assert server.get("/api/v1/runs/demo/diff?step=1").status_code == 400


def test_answers_are_tables_in_sql(demo):
    def rows(query):
        return json.loads(rollscope("sql", "--data", demo, "--format", "json", query).stdout)

    report = json.loads(rollscope("report", "demo", "--step", 23, "--data", demo, "--json").stdout)
    assert rows("select kind, cost_s from findings('demo', 23)") == [
        {"kind": f["kind"], "cost_s": f["cost_s"]} for f in report["findings"]]
    assert [r["step"] for r in rows("select step from findings('demo')")] == [23]
    (path,) = rows("select sum(seconds) as s, count(*) as n from critical_path('demo', 23)")
    assert path["s"] == pytest.approx(report["wall_s"]) and path["n"] == len(report["critical_path"]["parts"])
    # Joined with the tables they are about.
    joined = rows("select s.sample_id, p.part from stragglers('demo', 23) p join samples s on s.sample_id = p.sample_id "
                  "where s.step = 23 and p.more_s > 10 order by p.more_s desc")
    assert joined and joined[0]["part"] == "tool"
    assert rows("select name from breakdown('demo', 23) order by exclusive_s desc limit 1")
    idle = rows("select sum(seconds) as s from idle('demo', 23)")
    assert idle[0]["s"] == pytest.approx(report["idle"]["idle_s"], rel=1e-6)
    change = rows("select sum(change_s) as s from difference('demo', 22, 'demo', 23)")
    diff = json.loads(rollscope("diff", "demo:22", "demo:23", "--data", demo, "--json").stdout)
    assert change[0]["s"] == pytest.approx(diff["change_s"])
    for wrong, told in [("findings()", "call it as findings("), ("breakdown('demo')", "call it as breakdown("),
                        ("findings('nobody')", "nobody"), ("idle('demo', 999)", "no step 999")]:
        done = run("sql", "--data", demo, f"select * from {wrong}", check=False)
        assert done.returncode == 2 and told in done.stderr, done.stderr


GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("fixture", ["slime/small.pt", "slime/odd_traces.pt", "sglang/sglang_otel.jsonl", "roll/roll_traces.jsonl", "demo"])
def test_the_words_do_not_change_by_accident(demo, fixture, tmp_path):
    """`UPDATE_GOLDEN=1 make test-e2e` writes them anew; look at the difference before it is committed."""
    if fixture == "demo":
        data, name, which = demo, "demo", ("demo", "--step", 23)
    else:
        data, name = tmp_path / "data", Path(fixture).stem
        rollscope("import", FIXTURES / fixture, "--data", data, "--run", name)
        steps = json.loads(rollscope("sql", "--data", data, "--format", "json", "select max(step) as s from spans").stdout)
        step = steps[0]["s"]
        which = (name, *(("--step", step) if step is not None else ()))
    text = rollscope("report", *which, "--data", data).stdout
    golden = GOLDEN / f"report_{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def imported(tmp_path, *files, **flags):
    data = tmp_path / "data"
    rollscope("import", *files, "--data", data, *(part for k, v in flags.items() for part in (f"--{k}", v)))
    return data


@pytest.fixture(scope="module")
def h200(tmp_path_factory):
    """A real GRPO loop on a GPU, recorded with our package: one trace per step; only the scores name a sample."""
    return imported(tmp_path_factory.mktemp("h200"), FIXTURES / "gpu" / "h200_grpo_run.jsonl.gz")


def test_a_trace_per_step_agrees_with_the_clock_of_the_loop(h200, serve):
    truth = json.loads((FIXTURES / "gpu" / "h200_grpo_truth.json").read_text())["clock_of_the_loop"]
    assert len(truth) >= 20
    for clock in truth:
        report = json.loads(rollscope("report", "grpo-h200", "--step", clock["step"], "--data", h200, "--json").stdout)
        phases = {p["name"]: p["seconds"] for p in report["phases"]}
        assert report["wall_s"] == pytest.approx(clock["wall"], rel=0.02)
        for name in ("rollout", "reward", "train"):
            assert phases[name] == pytest.approx(clock[name], rel=0.02, abs=0.005), (clock, phases)
        assert sum(phases.values()) == pytest.approx(report["wall_s"])
        # All answers speak of the same step.
        kinds = {k["kind"]: k["wall_s"] for k in report["breakdown"]["by_kind"]}
        assert kinds["train"] == pytest.approx(phases["train"], rel=0.01)
        held = {}
        for part in report["critical_path"]["totals"]:
            held[part["kind"]] = held.get(part["kind"], 0) + part["seconds"]
        assert held["train"] == pytest.approx(phases["train"], rel=0.02)
        assert held["rollout"] + held["decode"] == pytest.approx(phases["rollout"], rel=0.02)
        # A sample takes what its own span takes, and only spans of samples are told to be theirs.
        assert report["stragglers"]["samples"] == 128
        assert report["stragglers"]["median_s"] < 0.001
        assert all(s["seconds"] < 0.001 for s in report["stragglers"]["tail"])
        assert all(not p.get("sample_id") for p in report["critical_path"]["parts"] if p["kind"] in ("train", "decode", "rollout"))
        assert not any("sample" in f["text"] for f in report["findings"]), report["findings"]
    # The steps of the run's page agree, too.
    steps = {s["step"]: s for s in serve(h200).get("/api/v1/runs/grpo-h200/steps").json()["steps"]}
    for clock in truth:
        assert steps[clock["step"]]["exclusive"]["train"] == pytest.approx(clock["train"], rel=0.02, abs=0.005)


def test_a_sample_takes_what_it_took(h200):
    ask = lambda query: json.loads(rollscope("sql", "--data", h200, "--format", "json", query).stdout)
    [step] = [row["step"] for row in ask("select distinct step from spans where sample_id = '4000'")]
    report = json.loads(rollscope("report", "grpo-h200", "--step", step, "--data", h200, "--json").stdout)
    known = {s["sample_id"]: s["seconds"] for s in report["stragglers"]["tail"]}
    known[report["stragglers"]["median_sample_id"]] = report["stragglers"]["median_s"]
    took = ask(f"select sample_id, (max(end_ns) - min(start_ns)) / 1e9 as s from spans where step = {step} and sample_id is not null group by 1")
    took = {row["sample_id"]: row["s"] for row in took}
    assert len(known) > 1 and max(known.values()) < 0.001
    assert known == {id: pytest.approx(took[id]) for id in known}


def test_a_run_is_found_by_id_name_project_or_beginning(h200, demo, serve, tmp_path):
    identity = "gpu-grpo-h200-13dd042b"
    want = rollscope("report", identity, "--data", h200, "--json").stdout
    server = serve(h200)
    for name in ("grpo-h200", "gpu/grpo-h200", "gpu-grpo", "gpu/gr", identity):
        path = name.replace("/", "%2F")
        assert rollscope("report", name, "--data", h200, "--json").stdout == want
        assert json.loads(rollscope("report", name, "--server", server.url, "--json").stdout) == json.loads(want)
        assert server.get(f"/api/v1/runs/{path}").json()["run_id"] == identity
        for part in ("steps", "findings", "metrics", "steps/3/report", "diff?step=3&with=4", "samples"):
            assert server.get(f"/api/v1/runs/{path}/{part}").status_code == 200, part
        timeline = server.get(f"/api/v1/runs/{path}/timeline?step=3")
        assert timeline.content == server.get(f"/api/v1/runs/{identity}/timeline?step=3").content
        found = server.get("/api/v1/traces", params={"run": name})
        assert found.json()["total"] == 25
        assert server.get("/api/v1/conversations", params={"run": name}).json()["total"] == 0
        for where in (("--data", h200), ("--server", server.url)):
            assert "change_s" in json.loads(rollscope("diff", f"{name}:3", f"{name}:4", *where, "--json").stdout)
            assert "rollout_time" in rollscope("metrics", name, "--step", 3, *where).stdout
            rollscope("conversations", "--run", name, *where)
    rollscope("diff", "3", "4", "--run", "grpo-h200", "--data", h200)
    lines = rollscope("export", "otlp", "--run", "grpo-h200", "--data", h200).stdout
    assert lines.count('"spanId"') >= 5733
    rollscope("export", "perfetto", "--run", "gpu/grpo-h200", "--step", 3, "--data", h200, "-o", tmp_path / "a.pftrace")
    rollscope("export", "tensorboard", "--run", "gpu-", "--data", h200, "--out", tmp_path / "board")
    assert "spans" in rollscope("export", "html", "--run", "grpo-h200", "--step", 3, "--data", h200, "-o", tmp_path / "a.html").stdout
    # In SQL's answers, too.
    rows = rollscope("sql", "--data", h200, "--format", "json", "select count(*) as n from critical_path('grpo-h200', 3)").stdout
    assert json.loads(rows)[0]["n"] > 0


def runs_of(tmp_path, *runs):
    """A store with these runs: id, project, name."""
    lines = []
    for n, (identity, project, name) in enumerate(runs):
        attributes = [{"key": k, "value": {"stringValue": v}} for k, v in
                      (("service.name", "t"), ("rl.run.id", identity), ("rl.project", project), ("rl.run.name", name)) if v]
        start = 1_700_000_000_000_000_000 + n * 60_000_000_000
        spans = [{"traceId": f"{n + 1:032x}", "spanId": f"{n + 1:016x}", "name": "step", "startTimeUnixNano": str(start),
                  "endTimeUnixNano": str(start + 10**9), "attributes": [{"key": "rl.step", "value": {"intValue": "1"}}]}]
        lines.append(json.dumps({"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": [{"scope": {}, "spans": spans}]}]}))
    file = tmp_path / "runs.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return imported(tmp_path, file)


def test_several_runs_that_fit_are_listed_and_none_is_guessed(tmp_path, serve):
    data = runs_of(tmp_path, ("toy-grpo-1111", "toy", "grpo"), ("toy-grpo-2222", "toy", "grpo"), ("math-grpo-3333", "math", "grpo"),
                   ("grpo-x", "toy", "other"), ("other", "", ""))
    server = serve(data)
    for name, candidates, others in [("grpo", ["toy-grpo-1111", "toy-grpo-2222", "math-grpo-3333"], ["grpo-x"]),
                                     ("toy/grpo", ["toy-grpo-1111", "toy-grpo-2222"], ["math-grpo-3333"]),
                                     ("toy-grpo", ["toy-grpo-1111", "toy-grpo-2222"], ["math-grpo-3333"])]:
        told = rollscope("report", name, "--data", data, code=2).stderr
        assert "ambiguous" in told and all(f"`{c}`" in told for c in candidates), told
        assert not any(o in told for o in others), told
        assert "started 2023-11-14 22:" in told
        answer = server.get(f"/api/v1/runs/{name.replace('/', '%2F')}/findings")
        assert answer.status_code == 400 and answer.json()["detail"] in told
    # A run's own id wins over another's name; a name that only one has is enough.
    assert server.get("/api/v1/runs/other").json()["run_id"] == "other"
    assert server.get("/api/v1/runs/math%2Fgrpo").json()["run_id"] == "math-grpo-3333"
    # What is near is listed; everywhere in the same words.
    for wrong, near in (("tyo-grpo-1111", "toy-grpo-1111"), ("GRPO-X", "grpo-x")):
        told = rollscope("report", wrong, "--data", data, code=2).stderr
        assert f"there is no run `{wrong}`; did you mean:" in told and f"`{near}`" in told, told
        for path in ("findings", "steps", "timeline?step=1", "metrics", "samples", "steps/1/report", "diff?step=1&with=1", "tags"):
            method = server.put if path == "tags" else server.get
            answer = method(f"/api/v1/runs/{wrong}/{path}", **({"json": {"tags": []}} if path == "tags" else {}))
            assert answer.status_code == 404 and f"`{near}`" in answer.json()["detail"], path
        assert server.get("/api/v1/traces", params={"run": wrong}).status_code == 404
        assert server.get("/api/v1/conversations", params={"run": wrong}).status_code == 404
        for command in (("metrics", wrong), ("diff", f"{wrong}:1", "other:1"), ("export", "otlp", "--run", wrong),
                        ("export", "html", "--run", wrong), ("export", "perfetto", "--run", wrong),
                        ("export", "tensorboard", "--run", wrong, "--out", tmp_path / "board"), ("conversations", "--run", wrong)):
            assert f"`{near}`" in rollscope(*command, "--data", data, code=2).stderr, command
    # What cannot be undone wants the id.
    gone = server.delete("/api/v1/runs/math%2Fgrpo")
    assert gone.status_code == 404 and "math-grpo-3333" in gone.json()["detail"]
    assert server.delete("/api/v1/runs/math-grpo-3333").status_code == 204


def dump(folder, events, **fields):
    """A dump as torch writes it, with one sample and these events."""
    folder.mkdir()
    sample = {"index": 0, "group_index": 0, "prompt": "p", "response": "r", "status": "completed", "reward": 1.0,
              "trace": {"version": 1, "trace_id": "ab" * 16, "attempt": 0, "events": events}, **fields}
    file = folder / "rollout_0.pt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("rollout_0/data.pkl", pickle.dumps({"rollout_id": 0, "samples": [sample]}, protocol=2))
        archive.writestr("rollout_0/version", "3\n")
    return file


def event(kind, name, at, span, parent=None, **attrs):
    return {"type": kind, "name": name, "ts": 1_756_000_000.0 + at, "attempt": 0, "span_id": f"{span:032x}",
            "parent_span_id": parent and f"{parent:032x}", "attrs": attrs}


def spanned(name, start, end, span, parent=None, **attrs):
    return [event("span_start", name, start, span, parent, **attrs), event("span_end", name, end, span)]


def test_tool_calls_of_a_sample_are_those_of_the_report(tmp_path):
    events = spanned("generate_and_rm", 0, 100, 1)
    names = ["tool_call", "tool:bash", "execute_tool python", "env_step", "sandbox_exec"]
    for n in range(15):
        events += spanned(names[n % 5], 5 * n + 1, 5 * n + 3, 10 + n, 1, tool="bash")
    # A call inside a call is part of it; what only its phase calls a tool is one.
    events += spanned("tool_call", 1.5, 2, 40, 10) + spanned("look_up", 90, 91, 41, 1, **{"rl.phase": "tool"})
    data = imported(tmp_path, dump(tmp_path / "dumps", events), run="tools")
    [row] = json.loads(rollscope("sql", "--data", data, "--format", "json", "select tool_calls from samples").stdout)
    report = json.loads(rollscope("report", "tools", "--step", 0, "--data", data, "--json").stdout)
    assert row["tool_calls"] == sum(t["calls"] for t in report["health"]["tools"]) == 16


def test_a_dump_with_a_span_that_never_ended_is_not_running(tmp_path, serve):
    events = [event("span_start", "generate_and_rm", 0, 1), *spanned("sglang_generate", 1, 4, 2, 1)]
    data = imported(tmp_path, dump(tmp_path / "dumps", events), run="cut")
    [opened] = json.loads(rollscope("sql", "--data", data, "--format", "json", "select count(*) as n from spans where state = 'open'").stdout)
    assert opened["n"] == 1
    text = rollscope("report", "cut", "--step", 0, "--data", data).stdout
    assert "running" not in text and "Step 0 took 4.0 s" in text and "1 spans without an end" in text, text
    server = serve(data)
    report = server.get("/api/v1/runs/cut/steps/0/report").json()
    assert report["running"] is False and "has been running" not in report["text"]
    [step] = server.get("/api/v1/runs/cut/steps").json()["steps"]
    assert (step["open"], step["running"]) == (1, False)
    assert server.get("/api/v1/runs/cut").json()["status"] == "finished"
    assert server.get("/api/v1/runs/cut/findings").json()["steps"][0]["running"] is False


def test_numbers_that_json_has_none_for_are_not_lost(server):
    query = "select 'nan'::double as n, 'inf'::double as i, '-inf'::double as m, cast(null as double) as nothing, 'nan'::float as f"
    for where in (("--data", server.data), ("--server", server.url)):
        csv = rollscope("sql", *where, "--format", "csv", query).stdout.splitlines()
        assert csv == ["n,i,m,nothing,f", "NaN,Infinity,-Infinity,,NaN"]
        cells = [c.strip() for c in rollscope("sql", *where, query).stdout.splitlines()[3].strip("│").split("┆")]
        assert cells == ["NaN", "Infinity", "-Infinity", "null", "NaN"]
        [row] = json.loads(rollscope("sql", *where, "--format", "json", query).stdout, parse_constant=lambda c: pytest.fail(c))
        assert row == {"n": "NaN", "i": "Infinity", "m": "-Infinity", "nothing": None, "f": "NaN"}
        assert [float(row[k]) for k in "im"] == [float("inf"), float("-inf")]
    assert server.sql(query) == [["NaN", "Infinity", "-Infinity", None, "NaN"]]
    answer = server.post("/api/v1/sql", json={"query": query, "format": "csv"})
    assert answer.text.splitlines() == csv
