"""The answers, as a user reads them: report and diff in the terminal, and the same over HTTP."""

import json
import os
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
    mine = json.loads(rollscope("report", "demo", "--step", 23, "--data", demo, "--json").stdout)
    theirs = server.get("/api/v1/runs/demo/steps/23/report").json()
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
    assert "is no step" in rollscope("diff", "x", "1", "--run", "demo", "--data", demo, code=2).stderr
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
