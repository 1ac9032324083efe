"""The OpenAPI document says what the API answers: real answers of the real binary, held against its schemas."""

import json
from dataclasses import replace

import pytest
import requests
from conftest import FIXTURES, Server, run, wait_until
from jsonschema import Draft202012Validator
from truth.mismatch import plan, requests_of

REF = "#/components/schemas/"


def closed(schema, schemas):
    """The same schema without room for fields that it does not name. Parts of `allOf` become one object."""
    if isinstance(schema, list):
        return [closed(item, schemas) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "allOf" in schema:
        whole = {"type": "object", "properties": {}, "required": []}
        for part in schema["allOf"]:
            while "$ref" in part or "allOf" in part:
                part = schemas[part["$ref"].removeprefix(REF)] if "$ref" in part else closed(part, schemas)
            whole["properties"] |= part["properties"]
            whole["required"] += part.get("required", [])
        return closed(whole, schemas)
    out = {key: closed(value, schemas) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        out.setdefault("additionalProperties", False)
    return out


class Api:
    """A server whose answers are held against its own document."""

    def __init__(self, server):
        self.server = server
        self.document = server.get("/api/v1/openapi.json").json()
        schemas = self.document["components"]["schemas"]
        self.closed = {"components": {"schemas": {name: closed(schema, schemas) for name, schema in schemas.items()}}}
        self.seen = set()

    def fits(self, answer, schema):
        Draft202012Validator({**schema, **self.closed}).validate(answer)

    def fits_name(self, answer, name):
        self.fits(answer, {"$ref": REF + name})

    def ask(self, method, template, status=200, path=None, json=None, params=None, **parts):
        """Sends a request to a documented path and returns its answer, which fits."""
        address = self.server.url + (path or template).format(**parts)
        answer = getattr(self.server, method)(address.removeprefix(self.server.url), json=json, params=params)
        assert answer.status_code == status, answer.text
        content = self.document["paths"][template][method]["responses"][str(status)]["content"]
        kind = answer.headers["content-type"].split(";")[0]
        body = answer.json()
        self.fits(body, content[kind]["schema"])
        self.seen.add((method, template, status))
        return body

    def get(self, template, status=200, params=None, **parts):
        return self.ask("get", "/api/v1" + template, status, params=params, **parts)


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    """The demo run up to its planted step, and real files of other systems."""
    data = tmp_path_factory.mktemp("schemas") / "data"
    run("demo", "--no-serve", "--data", data, "--steps", 24)
    run("import", FIXTURES / "slime" / "small.pt", "--data", data, "--run", "slime")
    run("import", FIXTURES / "sglang" / "sglang_otel.jsonl", "--data", data, "--run", "sglang")
    server = Server(data)
    stored = server.one("select count(*) from conversations")
    wait_until(lambda: server.get("/api/v1/conversations-stats").json()["conversations"] == stored)
    yield Api(server)
    server.stop()


RUNS = ["demo", "slime", "sglang"]


@pytest.mark.parametrize("name", RUNS)
def test_runs_steps_and_metrics(api, name):
    # The demo's gateway names no run: it is listed as a service.
    assert {run["run_id"] for run in api.get("/runs")["runs"] if not run.get("service")} <= set(RUNS)
    assert api.get("/runs/{run}", run=name)["spans"] > 0
    steps = api.get("/runs/{run}/steps", run=name)["steps"]
    assert steps or name == "sglang"
    metrics = api.get("/runs/{run}/metrics", run=name)["metrics"]
    names = json.dumps([metric["name"] for metric in metrics[:50]] or ["none"])
    for axis in ["step", "time", "tokens"]:
        points = api.get("/runs/{run}/metrics/points", run=name, params={"names": names, "x": axis})
        assert bool(points["series"]) == bool(metrics) or axis == "tokens"


@pytest.mark.parametrize("name", RUNS)
def test_answers(api, name):
    found = api.get("/runs/{run}/findings", run=name)
    assert name != "demo" or found["findings"][0]["evidence"]["spans"]
    steps = [step["step"] for step in api.get("/runs/{run}/steps", run=name)["steps"]]
    for step in steps or ["-"]:
        report = api.get("/runs/{run}/steps/{step}/report", run=name, step=step)
        assert report["critical_path"]["parts"]
    if len(steps) > 1:
        assert api.get("/runs/{run}/diff", run=name, params={"step": steps[-2], "with": steps[-1]})["changes"]
    assert api.get("/runs/{run}/diff", run=name, params={"other": "demo"})["text"]
    said = api.get("/runs/{run}/hang", run=name)
    assert said["text"] and said["state"]
    if name == "demo":
        # In the middle of it, everything was open that was to end later.
        middle = api.server.one("select cast(avg(start_ns) / 1e9 as bigint) from spans where run_id = 'demo'")
        then = api.get("/runs/{run}/hang", run=name, params={"at": middle})
        assert then["state"] in ("moving", "slow") and then["workers"] and then["nodes"]


def test_mismatch(api):
    for body in requests_of(replace(plan(0, "missed sync"), steps=3, first=1, samples=30), "sent"):
        answer = requests.post(api.server.http + "/v1/logs", data=body, headers={"content-type": "application/x-protobuf"}, timeout=60)
        answer.raise_for_status()
    assert api.get("/runs/{run}/mismatch", run="sent")["findings"]
    assert api.get("/runs/{run}/mismatch", run="sent", params={"step": 0})["groups"]
    assert "log_tokens" in api.get("/runs/{run}/mismatch", 404, run="slime")["detail"]


@pytest.mark.parametrize("name", RUNS)
def test_traces_and_spans(api, name):
    found = api.get("/traces", params={"run": name, "limit": 5})
    assert found["traces"] and found["traces"][0]["run_id"] == name
    points = api.get("/traces", params={"run": name, "limit": 5, "points": "true"})
    assert points["total"] == found["total"] and "root" not in points["traces"][0]
    for trace in found["traces"]:
        api.get("/traces/{trace}/path", trace=trace["trace_id"])
        view = api.server.get(f"/api/v1/traces/{trace['trace_id']}/view").content
        length = int.from_bytes(view[:4], "little")
        api.fits_name(json.loads(view[4:4 + length]), "TraceView")
    interesting = "order by cardinality(events) desc, cardinality(links) desc, state, status limit 10"
    for trace, span in api.server.sql(f"select trace_id, span_id from spans where run_id = '{name}' {interesting}"):
        assert api.get("/spans/{trace}/{span}", trace=trace, span=span)["name"]


def test_conversations(api):
    facets = "step,reward,status,tool,source,key,role,run"
    listed = api.get("/conversations", params={"limit": 20, "facets": facets})
    assert listed["conversations"] and all(listed["facets"][name]["values"] for name in ["step", "reward", "role", "run"])
    assert all("messages" not in c for c in api.get("/conversations", params={"messages": "false"})["conversations"])
    snippets = api.get("/conversations", params={"search": "role:assistant the", "snippets": "true"})
    assert snippets["conversations"][0]["snippet"]["pieces"]
    timed = [api.get("/conversations/{id}", id=c["id"], params={"timing": "true"}) for c in listed["conversations"]]
    assert any(strip["parts"] for conversation in timed for strip in conversation["timing"])
    assert "timing" not in api.get("/conversations/{id}", id=listed["conversations"][0]["id"])
    assert api.get("/conversations-stats")["conversations"] == listed["total"]


def test_the_server_itself(api):
    assert api.get("/health")["status"] == "ok"
    assert api.get("/nodes")["nodes"] == []
    assert [table["name"] for table in api.get("/tables")["tables"]]
    api.get("/queries")
    api.get("/sinks")
    api.get("/scrape")
    assert api.get("/alarms")["rules"]
    assert api.ask("post", "/api/v1/alarms/silences", 201, json={"selector": "StepSlow", "duration": "1h"})["id"]
    api.get("/trace-level")
    api.ask("put", "/api/v1/trace-level", json={"level": 2, "engines": True})
    api.ask("put", "/api/v1/trace-level", json={"level": None})
    everything = {"query": "select * from spans limit 3", "format": "json"}
    assert api.ask("post", "/api/v1/sql", json=everything)["rows"]
    api.get("/openapi.json")
    with api.server.get("/api/v1/live", stream=True) as events:
        first = next(line for line in events.iter_lines(decode_unicode=True) if line.startswith("data: "))
    api.fits_name(json.loads(first.removeprefix("data: ")), "LiveEvent")


def test_problems(api):
    for template, status, params, parts in [
        ("/runs/{run}", 404, {}, {"run": "nowhere"}),
        ("/runs/{run}/timeline", 400, {"step": "x"}, {"run": "demo"}),
        ("/runs/{run}/metrics/points", 400, {}, {"run": "demo"}),
        ("/runs/{run}/steps/{step}/report", 404, {}, {"run": "demo", "step": 999}),
        ("/traces", 400, {"stpe": 1}, {}),
        ("/spans/{trace}/{span}", 404, {}, {"trace": "0" * 31 + "1", "span": "0" * 15 + "1"}),
        ("/conversations/{id}", 404, {}, {"id": "nowhere"}),
    ]:
        assert api.get(template, status, params, **parts)["detail"]
    assert api.ask("post", "/api/v1/sql", 400, json={"query": "selec"})["detail"]
    assert api.ask("post", "/api/v1/alarms/silences", 400, json={"selector": "sum(", "duration": "1h"})["detail"]
    assert api.ask("put", "/api/v1/runs/{run}/tags", 400, json={"tags": ["x" * 101]}, run="demo")["detail"]


def test_a_field_that_no_schema_names_is_found(api):
    for template, parts in [("/runs", {}), ("/runs/{run}/steps/{step}/report", {"run": "demo", "step": 23}), ("/health", {})]:
        answer = api.get(template, **parts)
        schema = api.document["paths"]["/api/v1" + template]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        for inside in [answer, next(v[0] for v in answer.values() if isinstance(v, list) and v and isinstance(v[0], dict))
                       if template != "/health" else answer["store"]]:
            inside["new"] = 1
            with pytest.raises(Exception, match="'new' was unexpected"):
                api.fits(answer, schema)
            del inside["new"]


def test_every_documented_answer_was_held_against_its_schema(api):
    """The last of this file. Answers that are not JSON have tests of their own."""
    documented = {
        (method, path, 200)
        for path, operations in api.document["paths"].items()
        for method, operation in operations.items()
        if "application/json" in operation["responses"].get("200", {}).get("content", {})
    }
    assert documented <= api.seen, documented - api.seen
