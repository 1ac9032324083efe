"""Finding traces, one trace laid out, and Jaeger's API: against independent evaluations of the same spans."""

import base64
import json
import random
import re
import struct
import time
from urllib.parse import quote

import pyarrow as pa
import pytest
import requests

from conftest import FIXTURES, run
from otlp import attribute, request, span

SGLANG = FIXTURES / "sglang" / "sglang_otel.jsonl"
OPEN, INSTANT, ERROR, MISSING, OUTSIDE, JOINED, REPEATED = 1, 2, 8, 16, 32, 64, 128


def send(server, message):
    answer = requests.post(server.http + "/v1/traces", data=message.SerializeToString(),
                           headers={"content-type": "application/x-protobuf"}, timeout=30)
    assert answer.ok, answer.text


def view(server, trace, **params):
    answer = server.get(f"/api/v1/traces/{trace}/view", params=params)
    assert answer.ok, answer.text
    (length,) = struct.unpack("<I", answer.content[:4])
    summary = json.loads(answer.content[4:4 + length])
    table = pa.ipc.open_stream(answer.content[4 + length:]).read_all()
    return summary, table.to_pylist()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Random traces, known span by span."""
    from conftest import Server
    server = Server(tmp_path_factory.mktemp("world") / "data")
    dice = random.Random(8)
    base = time.time_ns() - 3_600_000_000_000
    spans = []
    for number in range(1, 121):
        service = dice.choice(["trainer", "sglang", "tools"])
        start = base + dice.randrange(0, 3_000_000_000_000)
        for index in range(dice.randrange(1, 12)):
            one = {
                "trace": number, "span": number * 100 + index, "parent": None if index == 0 else number * 100 + dice.randrange(0, index),
                "service": dice.choice([service, service, "tools"]), "name": dice.choice(["step", "generate", "tool call", "50%_x"]),
                "start": start + dice.randrange(0, 10**9), "status": dice.choice([0, 0, 0, 1, 2]),
                "attrs": {"n": dice.randrange(3), "who": dice.choice(["a", "b'c", 'q"'])}, "rl.step": dice.randrange(3), "rl.sample.id": f"s{number % 7}",
            }
            one["end"] = one["start"] + dice.choice([0, 10**3, 10**6, 10**8, 10**9, 5 * 10**9])
            spans.append(one)
    # Some traces have lost their root.
    spans = [s for s in spans if not (s["parent"] is None and s["trace"] % 10 == 0 and any(o["trace"] == s["trace"] and o is not s for o in spans))]
    for service in ["trainer", "sglang", "tools"]:
        batch = []
        for s in spans:
            if s["service"] != service:
                continue
            fields = {"trace_id": s["trace"].to_bytes(16, "big"), "span_id": s["span"].to_bytes(8, "big"), "name": s["name"],
                      "start_time_unix_nano": s["start"], "end_time_unix_nano": s["end"],
                      "attributes": [attribute(k, v) for k, v in s["attrs"].items()] + [attribute("rl.step", s["rl.step"]), attribute("rl.sample.id", s["rl.sample.id"])]}
            if s["parent"] is not None:
                fields["parent_span_id"] = s["parent"].to_bytes(8, "big")
            made = span(0, **fields)
            made.status.code = s["status"]
            batch.append(made)
        send(server, request(batch, service=service, rl__run__id="world"))
    yield server, spans
    server.stop()


def brute_force(spans, where=lambda s: True, duration=lambda d: True):
    traces = {}
    for s in spans:
        traces.setdefault(s["trace"], []).append(s)
    found = {}
    for trace, members in traces.items():
        length = max(s["end"] for s in members) - min(s["start"] for s in members)
        if any(where(s) for s in members) and duration(length):
            found[f"{trace:032x}"] = {"start": min(s["start"] for s in members), "duration": length, "spans": len(members),
                                      "errors": sum(s["status"] == 2 for s in members)}
    return found


QUESTIONS = [
    ({}, lambda s: True, lambda d: True),
    ({"service": "tools"}, lambda s: s["service"] == "tools", lambda d: True),
    ({"service": "sglang", "name": "generate"}, lambda s: s["service"] == "sglang" and s["name"] == "generate", lambda d: True),
    ({"name": "*e*"}, lambda s: "e" in s["name"], lambda d: True),
    ({"name": "50%_x"}, lambda s: s["name"] == "50%_x", lambda d: True),
    ({"name": "50%_*"}, lambda s: s["name"].startswith("50%_"), lambda d: True),
    ({"status": "error", "service": "trainer"}, lambda s: s["status"] == 2 and s["service"] == "trainer", lambda d: True),
    ({"attr": "n=2"}, lambda s: s["attrs"]["n"] == 2, lambda d: True),
    ({"attr": ["n=1", "who=b'c"]}, lambda s: s["attrs"]["n"] == 1 and s["attrs"]["who"] == "b'c", lambda d: True),
    ({"attr": 'who=q"', "step": 2}, lambda s: s["attrs"]["who"] == 'q"' and s["rl.step"] == 2, lambda d: True),
    ({"sample": "s3"}, lambda s: s["rl.sample.id"] == "s3", lambda d: True),
    ({"run": "world", "min_duration": "1s"}, lambda s: True, lambda d: d >= 10**9),
    ({"max_duration": "1.5s", "status": "ok"}, lambda s: s["status"] == 1, lambda d: d <= 1_500_000_000),
    ({"attr": "service.name=tools"}, lambda s: s["service"] == "tools", lambda d: True),
]


@pytest.mark.parametrize("params,where,duration", QUESTIONS)
def test_search_equals_brute_force(world, params, where, duration):
    server, spans = world
    want = brute_force(spans, where, duration)
    got = server.get("/api/v1/traces", params={**params, "limit": 1000}).json()
    assert got["total"] == (len(want) if want else got["total"])
    assert {t["trace_id"]: {"start": int(t["start_ns"]), "duration": t["duration_ns"], "spans": t["spans"], "errors": t["errors"]} for t in got["traces"]} == want


@pytest.mark.parametrize("sort", ["start", "-start", "duration", "-duration", "spans", "-spans", "-errors"])
def test_pages_are_sorted_and_complete(world, sort):
    server, spans = world
    want = brute_force(spans)
    key = sort.lstrip("-")
    order = sorted(want, key=lambda t: t)
    order.sort(key=lambda t: want[t][key], reverse=sort.startswith("-"))
    got = []
    for offset in range(0, len(want) + 13, 13):
        got += [t["trace_id"] for t in server.get("/api/v1/traces", params={"sort": sort, "limit": 13, "offset": offset}).json()["traces"]]
    assert got == order


def test_time_windows(world):
    server, spans = world
    starts = sorted(s["start"] for s in spans)
    low, high = starts[len(starts) // 4], starts[len(starts) // 2]
    got = server.get("/api/v1/traces", params={"from_ns": low, "to_ns": high, "limit": 1000}).json()["traces"]
    assert {t["trace_id"] for t in got} == set(brute_force(spans, lambda s: low <= s["start"] <= high))


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "sort=size", "status=bad", "attr=x", "min_duration=5", "stpe=1", "step=1&step=2", "offset=-1"])
def test_bad_questions_are_told(world, query):
    answer = world[0].get("/api/v1/traces?" + query)
    assert answer.status_code == 400 and query.split("=")[0] in answer.json()["detail"]


def test_every_trace_is_laid_out_completely(world):
    server, spans = world
    traces = {}
    for s in spans:
        traces.setdefault(s["trace"], {})[s["span"]] = s
    for trace, members in list(traces.items())[:40]:
        summary, rows = view(server, f"{trace:032x}", joined="false")
        ids = [int.from_bytes(r["span_id"], "big") for r in rows]
        assert sorted(ids) == sorted(members) and summary["spans"] == len(members)
        base = int(summary["base_ns"])
        for at, (id, row) in enumerate(zip(ids, rows, strict=True)):
            s = members[id]
            assert base + int(row["start"]) == s["start"] and base + int(row["end"]) == s["end"]
            lost = s["parent"] is not None and s["parent"] not in members
            assert bool(row["flags"] & MISSING) == lost
            if s["parent"] is None or lost:
                assert row["parent"] == -1 and row["depth"] == 0
            else:
                assert ids[row["parent"]] == s["parent"] and row["parent"] < at, "parents come first"
                assert row["depth"] == rows[row["parent"]]["depth"] + 1
                p = members[s["parent"]]
                assert bool(row["flags"] & OUTSIDE) == (s["start"] < p["start"] or s["end"] > p["end"])
            children = [c for c in members.values() if c["parent"] == id]
            covered, until = 0, s["start"]
            for c in sorted(children, key=lambda c: (c["start"], -c["end"])):
                a, b = max(c["start"], until), min(c["end"], s["end"])
                if b > a:
                    covered, until = covered + b - a, b
            assert row["own"] == s["end"] - s["start"] - covered
            size, end = row["subtree"], at + row["subtree"]
            assert all(r["depth"] > row["depth"] for r in rows[at + 1:end]) and (end == len(rows) or rows[end]["depth"] <= row["depth"]), size


def test_clocks_that_differ_are_measured(server):
    base = time.time_ns() - 10**10
    make = lambda id, parent, start, end, host: span(0, trace_id=(7).to_bytes(16, "big"), span_id=id.to_bytes(8, "big"),
        parent_span_id=parent.to_bytes(8, "big") if parent else b"", start_time_unix_nano=base + start, end_time_unix_nano=base + end,
        attributes=[attribute("host_id", host), attribute("thread_label", "main")])
    ms = 10**6
    send(server, request([make(1, 0, 0, 100 * ms, "one"), make(2, 1, -40 * ms, -20 * ms, "two"), make(3, 1, -35 * ms, 10 * ms, "two"), make(4, 1, 10 * ms, 20 * ms, "three")]))
    summary, _ = view(server, f"{7:032x}")
    hosts = {h["host"]: h for h in summary["hosts"]}
    assert hosts["one"]["shift_ns"] == 0 and hosts["three"]["shift_ns"] == 0
    assert hosts["two"] == {"host": "two", "shift_ns": 40 * ms, "pairs": 2, "consistent": True}
    assert summary["outside_parents"] == 2


def test_requests_without_context_are_joined_by_their_id(server):
    """The sample's span knows sglang_request_id; the engine's own trace knows rid."""
    rid = json.loads(SGLANG.read_text().splitlines()[0])
    engine = [json.loads(line) for line in SGLANG.read_text().splitlines()]
    roots = [s for line in engine for r in line["resourceSpans"] for sc in r["scopeSpans"] for s in sc["spans"]
             if any(a["key"] == "rid" for a in s.get("attributes", []))]
    assert rid and len(roots) == 6
    rids = [next(a["value"]["stringValue"] for a in s["attributes"] if a["key"] == "rid") for s in roots[:2]]
    # Both requests were prefilled in one batch: each tells the same slice.
    spans = {s["spanId"]: s for line in engine for r in line["resourceSpans"] for sc in r["scopeSpans"] for s in sc["spans"]}
    batches = {}
    for s in spans.values():
        if s["name"] == "prefill_forward" and s["traceId"] in (roots[0]["traceId"], roots[1]["traceId"]):
            first = batches.setdefault(spans[s["parentSpanId"]]["name"], s)
            s.update(startTimeUnixNano=first["startTimeUnixNano"], endTimeUnixNano=first["endTimeUnixNano"])
    assert len(batches) == 2, "two ranks"
    start = int(roots[0]["startTimeUnixNano"])
    turns = [span(0, trace_id=(99).to_bytes(16, "big"), span_id=(n + 2).to_bytes(8, "big"), parent_span_id=(1).to_bytes(8, "big"), name=f"turn {n}",
                  start_time_unix_nano=start - 1000, end_time_unix_nano=start + 10**9, attributes=[attribute("sglang_request_id", r)]) for n, r in enumerate(rids)]
    root = span(0, trace_id=(99).to_bytes(16, "big"), span_id=(1).to_bytes(8, "big"), name="sample", start_time_unix_nano=start - 2000, end_time_unix_nano=start + 2 * 10**9)
    send(server, request([root, *turns], service="trainer"))
    for line in engine:
        assert requests.post(server.http + "/v1/traces", json=line, timeout=30).ok
    summary, rows = view(server, f"{99:032x}")
    assert summary["joined"] == 2 and len(summary["traces"]) == 3
    names = [r["name"] for r in rows]
    joined = [row for row in rows if row["flags"] & JOINED]
    assert len(joined) == 2 and all(names[row["parent"]].startswith("turn") for row in joined), "the request hangs under the turn that asked"
    own, _ = view(server, f"{99:032x}", joined="false")
    assert own["spans"] == 3 and own["joined"] == 0
    # A batch that both requests tell is recognised: engine time counts once.
    seen, repeated = set(), 0
    for row in rows:
        if row["parent"] >= 0 and "Scheduler" in rows[row["parent"]]["name"] or row["parent"] >= 0 and "Tokenizer" in rows[row["parent"]]["name"]:
            key = (row["lane"], row["name"], row["start"], row["end"])
            repeated += key in seen
            seen.add(key)
    assert summary["repeated"] == repeated > 0
    # From the engine's trace the way back to who asked.
    back, _ = view(server, roots[0]["traceId"])
    assert [c["trace_id"] for c in back["callers"]] == [f"{99:032x}"] and back["callers"][0]["name"] == "turn 0"


def test_an_unknown_trace(server):
    assert server.get(f"/api/v1/traces/{5:032x}/view").status_code == 404
    assert server.get("/api/v1/traces/xyz/view").status_code == 400


# Jaeger


def envelope(answer, status=200):
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body.keys() == {"data", "total", "limit", "offset", "errors"}
    return body


def test_jaeger_services_and_operations(world):
    server, spans = world
    body = envelope(server.get("/jaeger/api/services"))
    assert body == {"data": ["sglang", "tools", "trainer"], "total": 3, "limit": 0, "offset": 0, "errors": None}
    names = sorted({s["name"] for s in spans if s["service"] == "sglang"})
    assert envelope(server.get("/jaeger/api/services/sglang/operations"))["data"] == names
    assert envelope(server.get("/jaeger/api/operations", params={"service": "sglang"}))["data"] == [{"name": n, "spanKind": "internal"} for n in names]
    assert envelope(server.get("/jaeger/api/operations"), 400)["errors"][0]["code"] == 400
    assert server.get("/jaeger/api/v3/services").json() == {"services": ["sglang", "tools", "trainer"]}
    assert server.get("/jaeger/api/v3/operations", params={"service": "sglang"}).json()["operations"][0].keys() == {"name", "spanKind"}


def test_jaeger_search_holds_for_one_span(world):
    server, spans = world
    now = time.time_ns() // 1000
    ask = lambda **params: {t["traceID"].rjust(32, "0") for t in envelope(server.get("/jaeger/api/traces", params={"limit": 1000, "start": 0, "end": now, **params}))["data"]}
    assert ask(service="tools") == set(brute_force(spans, lambda s: s["service"] == "tools"))
    assert ask(service="tools", operation="generate", lookback="1h") == set(brute_force(spans, lambda s: s["service"] == "tools" and s["name"] == "generate"))
    assert ask(service="trainer", tags='{"error":"true"}') == set(brute_force(spans, lambda s: s["service"] == "trainer" and s["status"] == 2))
    assert ask(service="trainer", tags='{"n":"2","who":"a"}') == set(brute_force(spans, lambda s: s["service"] == "trainer" and s["attrs"] == {"n": 2, "who": "a"}))
    assert ask(service="trainer", tag="n:1") == set(brute_force(spans, lambda s: s["service"] == "trainer" and s["attrs"]["n"] == 1))
    assert ask(service="sglang", minDuration="100ms", maxDuration="1s") == set(brute_force(spans, lambda s: s["service"] == "sglang" and 10**8 <= s["end"] - s["start"] <= 10**9))
    newest = [t["traceID"] for t in server.get("/jaeger/api/traces", params={"service": "tools", "start": 0, "end": now, "limit": 3}).json()["data"]]
    assert len(newest) == 3
    for bad in [{}, {"service": "x", "minDuration": "5"}, {"service": "x", "tags": "nope"}, {"service": "x", "start": "x"}, {"service": "x", "minDuration": "2s", "maxDuration": "1s"}]:
        assert envelope(server.get("/jaeger/api/traces", params=bad), 400)["errors"]


def test_jaeger_dependencies(world):
    server, spans = world
    by_id = {(s["trace"], s["span"]): s for s in spans}
    want = {}
    for s in spans:
        parent = by_id.get((s["trace"], s["parent"]))
        if parent and parent["service"] != s["service"]:
            key = (parent["service"], s["service"])
            want[key] = want.get(key, 0) + 1
    body = envelope(server.get("/jaeger/api/dependencies", params={"endTs": int(time.time() * 1000), "lookback": 86_400_000}))
    assert {(d["parent"], d["child"]): d["callCount"] for d in body["data"]} == want


def rfc3339(ns):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ns // 10**9)) + f".{ns % 10**9:09}Z"


def check_summary(summary):
    """jaeger-ui's packages/jaeger-ui/src/api/v3/schemas.ts, field by field: what its page refuses, it shows nothing of."""
    assert re.fullmatch("[0-9a-f]{32}", summary["traceId"])
    for key in ("minStartTimeUnixNano", "maxEndTimeUnixNano"):
        assert isinstance(summary[key], str) and summary[key].isdecimal()
    for key in ("spanCount", "errorSpanCount", "orphanSpanCount"):
        assert isinstance(summary[key], int) and summary[key] >= 0
    assert isinstance(summary["rootServiceName"], str) and isinstance(summary["rootOperationName"], str)
    for service in summary["services"]:
        assert service.keys() == {"name", "spanCount", "errorSpanCount"} and isinstance(service["name"], str)


def test_jaeger_lists_what_traces_are(world):
    """What Jaeger's page asks since 2.19, for all traces, against a look at every span."""
    server, spans = world
    times = {"query.startTimeMin": rfc3339(time.time_ns() - 2 * 3600 * 10**9), "query.startTimeMax": rfc3339(time.time_ns())}
    ask = lambda **params: server.get("/jaeger/api/v3/trace-summaries", params={**times, **{f"query.{k}": v for k, v in params.items()}})
    answer = ask(searchDepth=1000)
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    found = answer.json()["summaries"]
    assert len(found) == len({s["trace"] for s in spans})
    for summary in found:
        check_summary(summary)
        members = [s for s in spans if s["trace"] == int(summary["traceId"], 16)]
        assert summary["spanCount"] == len(members) and summary["errorSpanCount"] == sum(s["status"] == 2 for s in members)
        assert summary["minStartTimeUnixNano"] == str(min(s["start"] for s in members)) and summary["maxEndTimeUnixNano"] == str(max(s["end"] for s in members))
        assert summary["orphanSpanCount"] == sum(s["parent"] is not None and s["parent"] not in {o["span"] for o in members} for s in members)
        roots = [s for s in members if s["parent"] is None]
        assert (summary["rootServiceName"], summary["rootOperationName"]) == ((roots[0]["service"], roots[0]["name"]) if roots else ("", ""))
        assert summary["services"] == [
            {"name": service, "spanCount": sum(s["service"] == service for s in members), "errorSpanCount": sum(s["service"] == service and s["status"] == 2 for s in members)}
            for service in sorted({s["service"] for s in members})]
    ids = lambda answer: [int(s["traceId"], 16) for s in answer.json()["summaries"]]
    # The same that the traces themselves are found by, newest first.
    for params in [{"serviceName": "tools", "searchDepth": 5}, {"serviceName": "trainer", "operationName": "generate"}, {"durationMin": "1s", "attributes": '{"error":"true"}'}]:
        whole = server.get("/jaeger/api/v3/traces", params={**times, **{f"query.{k}": v for k, v in params.items()}}).json()["result"]["resourceSpans"]
        assert set(ids(ask(**params))) == {int(s["traceId"], 16) for r in whole for sc in r["scopeSpans"] for s in sc["spans"]}
    assert len(ids(ask(serviceName="tools", searchDepth=5))) == 5
    assert ask(serviceName="nobody").json() == {"summaries": []}
    for bad in [ask(durationMin="soon"), ask(filter="{}"), ask(searchDepth="many"), server.get("/jaeger/api/v3/trace-summaries")]:
        assert bad.status_code == 400 and bad.json()["error"]["httpCode"] == 400 and bad.json()["error"]["message"]
    raw = base64.b64encode(bytes.fromhex(found[0]["traceId"])).decode()
    assert server.get(f"/jaeger/api/v3/traces/{quote(raw, safe='')}").ok


@pytest.mark.parametrize("path, error", [
    ("/jaeger/api/nonsense", lambda body: body["errors"][0]["code"] == 404 and "/jaeger/api/nonsense" in body["errors"][0]["msg"]),
    ("/jaeger/api/metrics/latencies", lambda body: body["errors"]),
    ("/jaeger/api", lambda body: body["errors"]),
    ("/jaeger/", lambda body: body["errors"]),
    ("/jaeger/api/v3/nonsense", lambda body: body["error"]["httpCode"] == 404),
    ("/prometheus/api/v1/nonsense", lambda body: (body["status"], body["errorType"]) == ("error", "not_found")),
    ("/prometheus/api/v2/query", lambda body: (body["status"], body["errorType"]) == ("error", "not_found")),
    ("/prometheus", lambda body: (body["status"], body["errorType"]) == ("error", "not_found")),
    ("/api/v1/nonsense", lambda body: body["status"] == 404 and body["detail"]),
    ("/api/v2/runs", lambda body: body["status"] == 404 and body["detail"]),
    ("/api", lambda body: body["status"] == 404),
    ("/v1/nonsense", lambda body: body["status"] == 404),
    ("/metrics/run", lambda body: body["status"] == 404),
])
def test_unknown_paths_of_apis_are_errors_of_that_api_and_not_the_page(server, path, error):
    for method in ("GET", "POST"):
        answer = requests.request(method, server.url + path, timeout=30)
        assert answer.status_code == 404, (method, path, answer.text[:200])
        assert answer.headers["content-type"] in ("application/json", "application/problem+json")
        assert error(answer.json()), answer.text
    assert server.get("/somewhere/in/the/page").headers["content-type"].startswith("text/html")


def check_schema(trace):
    """Jaeger's internal/uimodel/model.go, field by field."""
    assert trace.keys() == {"traceID", "spans", "processes", "warnings"}
    for s in trace["spans"]:
        assert s.keys() == {"traceID", "spanID", "operationName", "references", "startTime", "duration", "tags", "logs", "processID", "warnings"}
        assert s["traceID"] == trace["traceID"] and len(s["spanID"]) == 16 and s["processID"] in trace["processes"]
        assert isinstance(s["startTime"], int) and isinstance(s["duration"], int) and s["duration"] >= 0
        for reference in s["references"]:
            assert reference.keys() == {"refType", "traceID", "spanID"} and reference["refType"] in ("CHILD_OF", "FOLLOWS_FROM")
        for tag in [*s["tags"], *(f for log in s["logs"] for f in log["fields"])]:
            assert tag.keys() == {"key", "type", "value"}
            assert {"string": str, "bool": bool, "int64": (int, str), "float64": (float, int, str), "binary": str}[tag["type"]]
            assert isinstance(tag["value"], {"string": str, "bool": bool, "int64": (int, str), "float64": (float, int, str), "binary": str}[tag["type"]])
    for process in trace["processes"].values():
        assert process.keys() == {"serviceName", "tags"}


@pytest.mark.parametrize("path", ["sglang/sglang_otel.jsonl", "roll/roll_traces.jsonl"])
def test_jaeger_gives_fixtures_whole(server, path):
    spans = {}
    for line in (FIXTURES / path).read_text().splitlines():
        assert requests.post(server.http + "/v1/traces", data=line, headers={"content-type": "application/json"}, timeout=30).ok
        for resource in json.loads(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for s in scope["spans"]:
                    spans[(s["traceId"], s["spanId"])] = s
    for trace_id in {t for t, _ in spans}:
        body = envelope(server.get(f"/jaeger/api/traces/{trace_id}"))
        (trace,) = body["data"]
        check_schema(trace)
        # Jaeger writes a 64-bit id with 16 digits.
        assert trace["traceID"] == (trace_id[16:] if trace_id.startswith("0" * 16) else trace_id)
        members = {s["spanID"]: s for s in trace["spans"]}
        assert members.keys() == {s for t, s in spans if t == trace_id}
        for id, got in members.items():
            s = spans[(trace_id, id)]
            assert got["startTime"] == int(s["startTimeUnixNano"]) // 1000 and got["operationName"] == s["name"]
            assert got["duration"] == (int(s["endTimeUnixNano"]) - int(s["startTimeUnixNano"])) // 1000
            refs = [(r["refType"], r["spanID"]) for r in got["references"]]
            assert refs == [("CHILD_OF", s.get("parentSpanId"))] * bool(s.get("parentSpanId")) + [("FOLLOWS_FROM", l["spanId"]) for l in s.get("links", [])]
            tags = {t["key"]: t for t in got["tags"]}
            for a in s.get("attributes", []):
                kind, value = next(iter(a["value"].items()))
                want = {"stringValue": ("string", value), "intValue": ("int64", int(value) if kind == "intValue" else 0), "doubleValue": ("float64", value), "boolValue": ("bool", value)}
                if kind in want:
                    assert (tags[a["key"]]["type"], tags[a["key"]]["value"]) == want[kind]
            assert [log["fields"][0]["value"] for log in got["logs"]] == [e["name"] for e in s.get("events", [])]
        v3 = server.get(f"/jaeger/api/v3/traces/{trace_id}").json()["result"]["resourceSpans"]
        assert {s["spanId"] for r in v3 for sc in r["scopeSpans"] for s in sc["spans"]} == members.keys()
    missing = envelope(server.get(f"/jaeger/api/traces/{5:032x}"), 404)
    assert missing["data"] is None and missing["errors"] == [{"code": 404, "msg": "trace not found"}]
    assert server.get(f"/jaeger/api/v3/traces/{5:032x}").json() == {"error": {"httpCode": 404, "message": "No traces found"}}
    assert envelope(server.get("/jaeger/api/traces/nothex"), 400)["errors"]


def test_trace_level(server):
    import http.server
    import threading

    asked = []

    class Sglang(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_):
            pass

    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sglang) for _ in range(2)]
    for s in servers:
        threading.Thread(target=s.serve_forever, daemon=True).start()
    urls = [f"http://127.0.0.1:{s.server_port}" for s in servers]
    done = run("trace-level", "2", *urls)
    assert done.stdout.count("level 2") == 2 and asked == ["/set_trace_level?level=2"] * 2 and not done.stderr
    done = run("trace-level", "2", urls[0], "--api-key", "s3cret")
    assert "the value of --api-key" in done.stderr and "SGLANG_API_KEY" in done.stderr and "s3cret" not in done.stderr
    # One that is away does not keep the others from being asked.
    bad = run("trace-level", "off", "http://127.0.0.1:1", urls[0], check=False)
    assert bad.returncode == 1 and "failed" in bad.stdout and "level 0" in bad.stdout
    assert run("trace-level", "7", urls[0], check=False).returncode == 2
    # Our own SDKs hear it from the server they send to.
    assert "level 1" in run("trace-level", "1", server.url).stdout
    assert server.get("/api/v1/trace-level").json() == {"level": 1}
    for s in servers:
        s.shutdown()
