"""The answers, as a user reads them: report and diff in the terminal, and the same over HTTP."""

import json

import pytest

from conftest import run


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
