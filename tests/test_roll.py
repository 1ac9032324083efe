"""ROLL as it sends: one trace per step over several roles, the step named on the root alone, and the root last."""

import json
import re

from conftest import run, sql
from test_view import blocks

SECOND = 10**9
START = 1_760_000_000 * SECOND


def attributes(values):
    kind = {str: "stringValue", int: "intValue"}
    return [{"key": k, "value": {kind[type(v)]: v if isinstance(v, str) else str(v)}} for k, v in values.items()]


def message(service, instance, tracer, spans):
    """One export of one process, as OTLP JSON."""
    resource = {"telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry", "service.name": service}
    if instance:
        resource["service.instance.id"] = instance
    return {"resourceSpans": [{"resource": {"attributes": attributes(resource)},
                               "scopeSpans": [{"scope": {"name": tracer}, "spans": spans}]}]}


def step(number):
    """The exports of one step: 10 spans of the driver, a scheduler and a worker, in the order in which processes flush them."""
    trace, base = f"{number + 1:032x}", START + number * 100 * SECOND

    def span(local, name, start, end, parent=None, **named):
        return {"traceId": trace, "spanId": f"{number * 100 + local:016x}", "name": name, "kind": 1,
                "parentSpanId": f"{number * 100 + parent:016x}" if parent else "",
                "startTimeUnixNano": str(base + int(start * SECOND)), "endTimeUnixNano": str(base + int(end * SECOND)),
                "attributes": attributes(named)}

    return [
        message("scheduler", "scheduler-math", "scheduler", [span(5, "get_batch", 11, 59, 3), span(6, "to_remote", 58, 59, 5)]),
        message("driver", "", "driver", [span(2, "model_update", 0, 10, 1), span(3, "rollout", 10, 60, 1)]),
        message("actor_train", "actor_train-0", "worker",
                [span(8, "prefetch", 61, 62, 7), span(9, "exec", 62, 88, 7), span(10, "to_remote", 88, 89, 7), span(7, "worker.train_step", 61, 89, 4)]),
        message("driver", "", "driver", [span(4, "train", 60, 90, 1), span(1, "pipeline_step", 0, 91, global_step=number)]),
    ]


def check_report(report):
    assert report["wall_s"] == 91
    phases = {p["name"]: p["seconds"] for p in report["phases"]}
    assert phases == {"model_update": 10, "rollout": 50, "train": 30, "between phases": 1}
    assert sum(p["seconds"] for p in report["critical_path"]["totals"]) == 91
    names = {n["name"] for n in report["breakdown"]["by_name"]}
    assert {"exec", "get_batch", "worker.train_step"} <= names
    assert sum(n["spans"] for n in report["breakdown"]["by_name"]) == 10


def test_a_file_of_all_roles_is_one_run(tmp_path):
    file = tmp_path / "traces.jsonl"
    lines = [m for number in range(3) for m in step(number)]
    file.write_text("".join(json.dumps(m) + "\n" for m in lines))
    data = tmp_path / "data"
    run("import", file, "--data", data)
    assert sql(data, "select run_id, framework from runs") == [{"run_id": "roll", "framework": "roll"}]
    assert sql(data, "select run_id, count(*) as n from spans group by 1") == [{"run_id": "roll", "n": 30}]
    # Roles stay what they are: services.
    assert {r["service"] for r in sql(data, "select distinct service from spans")} == {"driver", "scheduler", "actor_train"}
    for number in range(3):
        check_report(json.loads(run("report", "roll", "--step", number, "--data", data, "--json").stdout))
    assert len(json.loads(run("report", "roll", "--data", data, "--json").stdout)["steps"]) == 3
    # The page that opens from disk counts every span once.
    for command in (("view", file, "--no-serve", "--out", tmp_path), ("export", "html", "--data", data, "-o", tmp_path / "roll.html")):
        done = run(*command)
        page = tmp_path / ("roll.html" if command[0] == "export" else "traces.trace_timeline_viewer.html")
        found = blocks(page)
        [of_run] = json.loads(found["manifest"])["per_run"]
        assert of_run["run_id"] == "roll"
        assert [s["spans"] for s in json.loads(found[of_run["steps"]])["steps"]] == [10, 10, 10]
    assert re.search(r": 30 spans,", done.stdout), done.stdout


def test_steps_are_inherited_across_exports(server):
    """Every process sends for itself; the root, which alone names the step, comes last."""
    for number in range(2):
        messages = step(number)
        for n, sent in enumerate(messages):
            # Seen before the root came: nothing names a step yet, or what was seen is out of date.
            if number == 1:
                assert server.get("/api/v1/runs/roll/steps").json()["steps"][-1]["step"] == 0
            answer = server.otlp_json(sent)
            assert answer.status_code == 200, answer.text
            if number == 1 and n == 2:
                assert server.get("/api/v1/runs/roll/steps/0/report").status_code == 200
    assert [r["run_id"] for r in server.get("/api/v1/runs").json()["runs"]] == ["roll"]
    steps = server.get("/api/v1/runs/roll/steps").json()["steps"]
    assert [(s["step"], s["spans"]) for s in steps] == [(0, 10), (1, 10)]
    for number in range(2):
        check_report(server.get(f"/api/v1/runs/roll/steps/{number}/report").json())
    # A worker that comes after its root is counted too.
    late = step(1)[2]
    late["resourceSpans"][0]["scopeSpans"][0]["spans"] = [
        {**late["resourceSpans"][0]["scopeSpans"][0]["spans"][1], "spanId": "00000000000000ff", "name": "late"}]
    assert server.otlp_json(late).status_code == 200
    after = server.get("/api/v1/runs/roll/steps").json()["steps"]
    assert [s["spans"] for s in after] == [10, 11]
    # A page reads a step again when its version is another.
    assert after[1]["version"] != steps[1]["version"]
    assert server.get("/api/v1/runs/roll/steps").json()["steps"] == after
    names = server.get("/api/v1/runs/roll/steps/1/report").json()["breakdown"]["by_name"]
    assert "late" in {n["name"] for n in names}


def test_a_run_that_says_its_name_keeps_it(server):
    """`OTEL_RESOURCE_ATTRIBUTES=rl.run.id=...` in the environment of all roles."""
    for sent in step(0):
        sent["resourceSpans"][0]["resource"]["attributes"] += attributes({"rl.run.id": "mine"})
        assert server.otlp_json(sent).status_code == 200
    assert [r["run_id"] for r in server.get("/api/v1/runs").json()["runs"]] == ["mine"]
    check_report(server.get("/api/v1/runs/mine/steps/0/report").json())


def test_others_that_call_a_tracer_so_stay_what_they_are(server):
    for service, instance, tracer in (("shop", "shop", "worker"), ("shop", "", "driver"), ("cart", "", "scheduler")):
        assert server.otlp_json(message(service, instance, tracer, step(0)[0]["resourceSpans"][0]["scopeSpans"][0]["spans"])).status_code == 200
    assert "roll" not in {r["run_id"] for r in server.get("/api/v1/runs").json()["runs"]}


def test_a_span_around_the_whole_training_belongs_to_no_step(tmp_path):
    """One trace for all: a root around the steps, the steps named on their own spans only."""
    def span(local, name, start, end, parent=None, **named):
        return {"traceId": "ab" * 16, "spanId": f"{local:016x}", "name": name, "parentSpanId": f"{parent:016x}" if parent else "",
                "startTimeUnixNano": str(START + start * SECOND), "endTimeUnixNano": str(START + end * SECOND), "attributes": attributes(named)}

    spans = [span(1, "fit", 0, 1000), span(2, "load", 0, 100, 1)]
    for number in range(4):
        at = 100 + number * 200
        spans += [span(10 + number, "pipeline_step", at, at + 200, 1, global_step=number),
                  span(20 + number, "rollout", at, at + 150, 10 + number), span(30 + number, "train", at + 150, at + 200, 10 + number)]
    file = tmp_path / "traces.jsonl"
    file.write_text(json.dumps(message("trainer", "", "mine", spans)) + "\n")
    run("import", file, "--data", tmp_path / "data")
    for number in range(4):
        report = json.loads(run("report", "trainer", "--step", number, "--data", tmp_path / "data", "--json").stdout)
        assert report["wall_s"] == 200
        assert {p["name"]: p["seconds"] for p in report["phases"]} == {"rollout": 150, "train": 50}
        assert sum(n["spans"] for n in report["breakdown"]["by_name"]) == 3
