"""Who belongs to a step: engines, gateways, tools and judges as they really send, without run, step or sample."""

import json

import pytest

from conftest import FIXTURES, run, sql
from test_timeline import timeline

SECOND = 10**9
START = 1_760_000_000 * SECOND


def attributes(values):
    kind = {str: "stringValue", int: "intValue", float: "doubleValue"}
    return [{"key": k, "value": {kind[type(v)]: str(v) if isinstance(v, int) else v}} for k, v in values.items()]


def message(service, spans, **resource):
    values = {"service.name": service, **{k.replace("__", "."): v for k, v in resource.items()}}
    return {"resourceSpans": [{"resource": {"attributes": attributes(values)},
                               "scopeSpans": [{"scope": {"name": service}, "spans": spans}]}]}


def span(trace, local, name, start, end, parent=None, link=None, **named):
    """Seconds since `START`. A link is a trace and a span."""
    out = {"traceId": f"{trace:032x}", "spanId": f"{local:016x}", "name": name, "kind": 1,
           "parentSpanId": f"{parent:016x}" if parent else "",
           "startTimeUnixNano": str(START + int(start * SECOND)), "endTimeUnixNano": str(START + int(end * SECOND)),
           "attributes": attributes({k.replace("__", "."): v for k, v in named.items()})}
    if link:
        out["links"] = [{"traceId": f"{link[0]:032x}", "spanId": f"{link[1]:016x}"}]
    return out


def trainer(step, at, rids=("a", "b")):
    """One step: the trainer's own trace, and one trace per sample. Only these know the run, the step and the sample."""
    base = 1000 * step
    spans = [span(base + 1, 1, "step", at, at + 100, rl__step=step), span(base + 1, 2, "rollout", at, at + 60, 1),
             span(base + 1, 3, "train", at + 60, at + 100, 1)]
    for n, rid in enumerate(rids):
        trace = base + 10 + n
        named = {"rl__step": step, "rl__sample__id": f"s{n}"}
        spans += [span(trace, 1, "sample", at, at + 50 + n, **named),
                  span(trace, 2, "sglang_generate", at + 1, at + 40 + n, 1, sglang_request_id=rid, **named)]
    return message("trainer", spans, rl__run__id="mine")


def engine(trace, rid, at, end, clock=0.0, **more):
    """SGLang's request: a root with the request id, a thread, and slices."""
    at, end = at + clock, end + clock
    return message("sglang", [
        span(trace, 1, f"Req {rid}", at, end, rid=rid, **more),
        span(trace, 2, "Scheduler (host:h | pid:7)", at, end, 1, thread_label="Scheduler", host_id="h", pid=7),
        span(trace, 3, "prefill_waiting", at, at + 5, 2), span(trace, 4, "prefill_forward", at + 5, at + 6, 2),
        span(trace, 5, "decode_loop", at + 6, end, 2)], service__instance__id="engine-0")


def send(server, *messages):
    for sent in messages:
        answer = server.otlp_json(sent)
        assert answer.status_code == 200, answer.text


def told(rows):
    return {(r["trace"], r["span_id"]): (r["name"], r["depth"], r["sample"], r["parent_id"]) for r in rows}


def names(report):
    return {n["name"]: n["spans"] for n in report["breakdown"]["by_name"]}


def report(server, step, name="mine"):
    answer = server.get(f"/api/v1/runs/{name}/steps/{step}/report")
    assert answer.ok, answer.text
    return answer.json()


def test_an_engine_that_knows_nothing_belongs_to_the_step_it_served(server):
    send(server, trainer(1, 0))
    assert "decode_loop" not in names(report(server, 1))
    # Rows that come late, and of another sender, are noticed.
    send(server, engine(90, "a", 2, 39), engine(91, "b", 2, 40), engine(92, "stranger", 2, 40))
    found = report(server, 1)
    assert names(found)["decode_loop"] == 2 and names(found)["sglang_generate"] == 2
    assert found["wall_s"] == 100
    # As with a context: it hangs under the span that sent the request, and belongs to its sample.
    rows = timeline(server, "mine", step=1)[2]
    roots = {row["name"].strip(): row for row in rows if row["name"].startswith("Req ")}
    assert {name: row["sample"] for name, row in roots.items()} == {"Req a": "s0", "Req b": "s1"}
    assert all(row["depth"] == 2 and row["parent_id"] is not None for row in roots.values())
    assert {row["sample"] for row in rows if row["name"] == "decode_loop"} == {"s0", "s1"}
    # All who ask are told the same.
    window = timeline(server, "mine", from_ns=START, to_ns=START + 100 * SECOND)[2]
    assert told(window) == told(rows)
    held = {part["name"] for part in server.get("/api/v1/runs/mine/steps/1/report").json()["critical_path"]["parts"]}
    assert "decode_loop" in held, held
    assert server.one("select spans from breakdown('mine', 1) where name = 'decode_loop'") == 2


def test_exports_have_what_the_report_has(server, tmp_path):
    send(server, trainer(1, 0), trainer(2, 100, ("c", "d")), engine(90, "a", 2, 39), engine(91, "c", 102, 139))
    server.stop()
    for step, rid in ((1, "a"), (2, "c")):
        out = tmp_path / f"{step}.json"
        run("export", "perfetto", "--data", server.data, "--run", "mine", "--step", step, "--format", "chrome", "-o", out)
        events = {e.get("name") for e in json.loads(out.read_text())["traceEvents"]}
        assert f"Req {rid}" in events and "decode_loop" in events and f"Req {'ac'.replace(rid, '')}" not in events
        told = json.loads(run("report", "mine", "--step", step, "--data", server.data, "--json").stdout)
        assert names(told)["decode_loop"] == 1


def test_a_gateway_in_between(server):
    """Three traces: the sample's span and the gateway share one id, the gateway's call and the engine another."""
    sample = message("trainer", [span(10, 1, "step", 0, 100, rl__step=1), span(11, 1, "sample", 0, 50, rl__step=1, rl__sample__id="s"),
                                 span(11, 2, "generate", 1, 40, 1, **{"x-request-id": "call-7"})], rl__run__id="mine")
    gateway = message("gateway", [span(20, 1, "POST /v1/chat/completions", 2, 39, **{"x-request-id": "call-7"}),
                                  span(20, 2, "forward", 3, 38, 1, rid="r-9")])
    send(server, sample, gateway, engine(30, "r-9", 4, 37))
    rows = {row["name"]: row for row in timeline(server, "mine", step=1)[2]}
    assert [rows[name]["depth"] for name in ("sample", "generate", "POST /v1/chat/completions", "forward", "Req r-9")] == [0, 1, 2, 3, 4]
    assert rows["decode_loop"]["sample"] == "s"
    assert names(report(server, 1))["decode_loop"] == 1
    # The waterfall of the sample shows all three, too.
    body = server.get(f"/api/v1/traces/{11:032x}/view").content
    size = int.from_bytes(body[:4], "little")
    assert json.loads(body[4:4 + size])["spans"] == 2 + 2 + 5


def test_of_ids_that_occur_again_time_decides(server):
    """An engine that counts its requests starts anew: the same id in every step."""
    steps = range(3)
    send(server, *(trainer(step, 200 * step, ("0", "1")) for step in steps))
    send(server, *(engine(9000 + 10 * step + n, str(n), 200 * step + 2, 200 * step + 39) for step in steps for n in range(2)))
    for step in steps:
        rows = timeline(server, "mine", step=step)[2]
        assert sum(row["name"].startswith("Req ") for row in rows) == 2
        assert {int.from_bytes(row["trace"], "big") for row in rows if row["name"] == "decode_loop"} == {9000 + 10 * step, 9001 + 10 * step}
        assert names(report(server, step))["decode_loop"] == 2


def test_what_an_engine_did_for_a_batch_belongs_to_the_steps_of_its_requests(server):
    """One trace of the scheduler for requests of two steps that overlap, linked to both. What is connected with nothing stays with the engine."""
    batch = span(21, 1, "run_batch", 10, 12, link=(90, 3), thread_label="Scheduler")
    batch["links"] += span(21, 1, "", 0, 0, link=(91, 3))["links"]
    send(server, trainer(1, 0, ("a",)), trainer(2, 5, ("b",)), engine(90, "a", 2, 39), engine(91, "b", 7, 44),
         message("sglang", [batch, span(21, 2, "forward", 10, 11, 1)]), message("sglang", [span(22, 1, "housekeeping", 10, 12)]))
    for step, sample in ((1, "a"), (2, "b")):
        found = names(report(server, step))
        assert {name: found.get(name) for name in ("run_batch", "forward", "decode_loop", "housekeeping")} == {
            "run_batch": 1, "forward": 1, "decode_loop": 1, "housekeeping": None}
        rows = timeline(server, "mine", step=step)[2]
        assert [row["name"].strip() for row in rows if "Req " in row["name"]] == [f"Req {sample}"]
        assert {row["sample"] for row in rows if row["name"] in ("run_batch", "forward")} == {None}, "it is of no single sample"


def side(trace, role, rid, room, slices, at, end):
    """One side of a disaggregated request, as SGLang writes it. A slice is a name and when it ends; each begins where the last ended."""
    spans = [span(trace, 1, f"{role} Req {rid[:8]}", at, end, rid=rid, bootstrap_room=room),
             span(trace, 2, f"{role} Scheduler (host:{role} | pid:7)", at, end, 1, thread_label=f"{role} Scheduler", host_id=role, pid=7)]
    for local, (name, until) in enumerate(slices, 3):
        spans.append(span(trace, local, name, at, until, 2, link=(trace, local - 1) if local > 3 else None))
        at = until
    return message("sglang", spans)


def disaggregated(trace, rid, room, at):
    """What serves one request in 38 s: a prefill side, the sender of the cache with the room for a request id, and a decode side."""
    prefill = [("prefill_bootstrap", at + 1), ("prefill_waiting", at + 6), ("prefill_forward", at + 16), ("prefill_transfer_kv_cache", at + 18)]
    decode = [("decode_bootstrap", at + 2), ("decode_transferred", at + 18), ("decode_forward", at + 38)]
    return (side(trace, "prefill", f"{rid}-of-the-prefill-side", room, prefill, at, at + 18.5),
            side(trace + 1, "Sender", room, room, [("mooncake_send", at + 17)], at + 16, at + 17.5),
            side(trace + 2, "decode", rid, room, decode, at, at + 38))


def test_a_room_joins_the_sides_of_a_request(server, tmp_path):
    """The caller knows the request id of the decode side alone. Everything that asks joins the rest by the room."""
    send(server, trainer(1, 0), *disaggregated(90, "a", "0x5eed01", 2), *disaggregated(93, "b", "0x5eed02", 2))
    # No room at all, and the same room much later: neither is of the step.
    send(server, side(96, "prefill", "c", "0x0", [("prefill_forward", 30)], 2, 31), side(97, "prefill", "d", "0x0", [("prefill_forward", 30)], 2, 31),
         side(98, "prefill", "e", "0x5eed01", [("prefill_forward", 330)], 302, 331))
    found = report(server, 1)
    served = {"prefill_forward": 2, "decode_forward": 2, "mooncake_send": 2, "sglang_generate": 2}
    assert {name: names(found)[name] for name in served} == served
    rows = timeline(server, "mine", step=1)[2]
    roots = sorted((row["name"].split()[0], row["sample"], row["depth"]) for row in rows if " Req " in row["name"])
    assert roots == [(role, sample, 2) for role in ("Sender", "decode", "prefill") for sample in ("s0", "s1")]
    window = timeline(server, "mine", from_ns=START, to_ns=START + 100 * SECOND)[2]
    assert told(window) == told(rows)
    assert server.one("select spans from breakdown('mine', 1) where name = 'prefill_forward'") == 2
    assert server.one("select bootstrap_room from spans where name = 'decode Req a'") == "0x5eed01"
    # While the decode side waits, the path is on the prefill side. It adds up.
    path = {}
    for part in found["critical_path"]["totals"]:
        path[part["kind"]] = path.get(part["kind"], 0) + part["seconds"]
    assert sum(path.values()) == pytest.approx(100)
    assert (path["queue"], path["prefill"], path["transfer"], path["decode"]) == pytest.approx((6, 10, 2, 20))
    # The waterfall of the sample has them, and so has that of either side; exports have what the report has.
    for trace, spans in ((1010, 2 + 6 + 3 + 5), (90, 6 + 3 + 5), (92, 6 + 3 + 5)):
        body = server.get(f"/api/v1/traces/{trace:032x}/view").content
        assert json.loads(body[4:4 + int.from_bytes(body[:4], "little")])["spans"] == spans, trace
    server.stop()
    out = tmp_path / "step.json"
    run("export", "perfetto", "--data", server.data, "--run", "mine", "--step", 1, "--format", "chrome", "-o", out)
    events = [e.get("name") for e in json.loads(out.read_text())["traceEvents"] if e.get("ph") == "X"]
    assert events.count("prefill_forward") == 2 and events.count("mooncake_send") == 2


def test_an_engine_whose_clock_is_off(server):
    send(server, trainer(1, 0), engine(90, "a", 2, 39, clock=-7.0), engine(91, "b", 2, 40, clock=-7.0))
    found = report(server, 1)
    assert names(found)["decode_loop"] == 2
    assert {row["sample"] for row in timeline(server, "mine", step=1)[2] if row["name"] == "decode_loop"} == {"s0", "s1"}


def test_links_join_in_both_directions(server):
    """A judge that links to the sample it scored, and a tool server to which the sample's span links."""
    sample = message("trainer", [span(10, 1, "step", 0, 100, rl__step=1),
                                 span(11, 1, "sample", 0, 50, rl__step=1, rl__sample__id="s"),
                                 span(11, 2, "tool_call", 1, 20, 1, link=(20, 1)), span(11, 3, "reward", 30, 50, 1)], rl__run__id="mine")
    tool = message("sandbox", [span(20, 1, "execute", 2, 19), span(20, 2, "container", 3, 18, 1)])
    judge = message("judge", [span(30, 1, "score", 31, 49, link=(11, 3)), span(30, 2, "llm", 32, 48, 1)])
    other = message("judge", [span(40, 1, "score", 31, 49, link=(999, 3))])
    send(server, tool, judge, other, sample)
    rows = timeline(server, "mine", step=1)[2]
    assert {row["name"]: row["sample"] for row in rows} == {
        "step": None, "sample": "s", "tool_call": "s", "reward": "s", "execute": "s", "container": "s", "score": "s", "llm": "s"}
    assert names(report(server, 1))["score"] == 1


def test_what_is_around_a_step_or_of_another_does_not_belong(server):
    around = message("launcher", [span(20, 1, "job", -50, 500)])
    first = message("trainer", [span(10, 1, "step", 0, 100, link=(20, 1), rl__step=1)], rl__run__id="mine")
    second = message("trainer", [span(11, 1, "step", 100, 200, link=(10, 1), rl__step=2), span(11, 2, "train", 150, 200, 1)], rl__run__id="mine")
    send(server, around, first, second)
    assert names(report(server, 1)) == {"step": 1}
    assert names(report(server, 2)) == {"step": 1, "train": 1}


def test_a_live_timeline_brings_what_hangs_together(server):
    """Whatever comes first, old rows and changed traces make the whole."""
    base = [engine(91, "b", 2, 40), trainer(1, 0), engine(90, "a", 2, 39)]
    parts = [message(m["resourceSpans"][0]["scopeSpans"][0]["scope"]["name"], [s],
                     **({"rl__run__id": "mine"} if m is base[1] else {}))
             for m in base for s in m["resourceSpans"][0]["scopeSpans"][0]["spans"]]
    # The step must be there to be asked for.
    send(server, message("trainer", [span(1001, 9, "begin", 0, 1, rl__step=1)], rl__run__id="mine"))
    version, _, rows = timeline(server, "mine", step=1, live=1)
    known = {(row["trace"], row["span_id"]): row for row in rows}
    for part in parts:
        send(server, part)
        version, delta, changed = timeline(server, "mine", step=1, live=1, since=version)
        assert delta
        replaced = {row["trace"] for row in changed}
        known = {id: row for id, row in known.items() if row["trace"] not in replaced} | {
            (row["trace"], row["span_id"]): row for row in changed}
        whole = timeline(server, "mine", step=1, live=1)[2]
        assert told(known.values()) == told(whole)
    assert sum(row["name"] == "decode_loop" for row in known.values()) == 2


@pytest.mark.parametrize("named", ["rl.step", "step", "global_step", "train_step", "rollout_id", "iteration", "rl.loop.iteration"])
@pytest.mark.parametrize("value", [7, "7", 7.0])
def test_a_step_is_recognised_as_people_write_it(tmp_path, named, value):
    """On the root alone, as a number or as text."""
    file = tmp_path / "traces.jsonl"
    spans = [span(5, 1, "loop", 0, 10, **{named: value}), span(5, 2, "rollout", 0, 6, 1), span(5, 3, "train", 6, 10, 1)]
    file.write_text(json.dumps(message("mine", spans)) + "\n")
    run("import", file, "--data", tmp_path / "data")
    told = json.loads(run("report", "mine", "--step", 7, "--data", tmp_path / "data", "--json").stdout)
    assert told["wall_s"] == 10 and names(told) == {"loop": 1, "rollout": 1, "train": 1}


def test_what_else_is_called_a_step_is_none(tmp_path):
    """An agent counts its turns as `step`, inside a sample of training step 3."""
    file = tmp_path / "traces.jsonl"
    spans = [span(5, 1, "sample", 0, 10, rl__step=3, rl__sample__id="s"), span(5, 2, "turn", 0, 6, 1, step=0), span(5, 3, "turn", 6, 9, 1, step=1)]
    file.write_text(json.dumps(message("mine", spans)) + "\n")
    run("import", file, "--data", tmp_path / "data")
    assert sql(tmp_path / "data", "select distinct step from spans order by 1") == [{"step": 3}, {"step": None}]
    told = json.loads(run("report", "mine", "--step", 3, "--data", tmp_path / "data", "--json").stdout)
    assert names(told)["turn"] == 2


def test_a_root_per_step_names_it(tmp_path):
    file = tmp_path / "traces.jsonl"
    lines = [message("mine", [span(step, 1, f"step {step}", step * 10, step * 10 + 9), span(step, 2, "train", step * 10, step * 10 + 5, 1)])
             for step in (1, 2, 3)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run("import", file, "--data", tmp_path / "data")
    told = json.loads(run("report", "mine", "--step", 2, "--data", tmp_path / "data", "--json").stdout)
    assert told["wall_s"] == 9 and sum(names(told).values()) == 2


def test_a_run_without_steps_says_what_to_set(tmp_path):
    data = tmp_path / "data"
    run("import", FIXTURES / "sglang" / "sglang_otel.jsonl", "--data", data, "--run", "alone")
    for text in (run("report", "alone", "--data", data).stdout, json.loads(run("report", "alone", "--data", data, "--json").stdout)["text"]):
        assert "names a training step" in text and "`rl.step`" in text
    run("import", FIXTURES / "roll" / "roll_traces.jsonl", "--data", data)
    steps = sql(data, "select distinct step from spans where run_id = 'roll' and step is not null")
    text = run("report", "roll", "--step", steps[0]["step"], "--data", data).stdout
    assert text.startswith(f"Step {steps[0]['step']} took"), text


def test_who_names_no_run_is_listed_as_a_service(server):
    """A server of an engine is no run. It stays open by its name, and is found if it is all there is."""
    send(server, engine(90, "a", 2, 39))
    listed = lambda: {r["run_id"]: r.get("service", False) for r in server.get("/api/v1/runs").json()["runs"]}
    assert listed() == {"sglang": True}
    gateway = message("gateway", [span(20, 1, "POST /v1/chat/completions", 2, 39, rid="a")])
    bare = message("my-loop", [span(21, 1, "step 1", 0, 39)])
    send(server, trainer(1, 0), gateway, bare, message("other", [span(22, 1, "work", 0, 1)], rl__run__id="said"))
    assert listed() == {"sglang": True, "gateway": True, "mine": False, "my-loop": False, "said": False}
    assert server.get("/api/v1/runs/sglang").json()["spans"] == 5
    assert report(server, "-", "sglang")["wall_s"] == 37


def test_what_served_a_deleted_run_stays_with_its_service(server):
    """An engine may serve several runs. What it sent is deleted by its own name."""
    send(server, trainer(1, 0), engine(90, "a", 2, 39))
    assert server.delete("/api/v1/runs/mine").ok
    assert [(r["run_id"], r.get("service")) for r in server.get("/api/v1/runs").json()["runs"]] == [("sglang", True)]
    assert server.one("select count(*) from spans") == 5
    assert server.delete("/api/v1/runs/sglang").ok
    assert server.one("select count(*) from spans") == 0


@pytest.mark.parametrize("shape", ["per-sample", "per-step", "async"])
def test_bare_engines_of_the_demo_tell_what_stamped_ones_tell(tmp_path, shape):
    """The same dice: what the engines did in a step is the same, whether they know of it or not."""
    steps, reports = 3, {}
    for layout in ("stamped", shape):
        data = tmp_path / layout
        run("demo", "--shape", layout, "--steps", steps, "--samples", 16, "--data", data, "--no-serve")
        reports[layout] = [json.loads(run("report", "demo", "--step", step, "--data", data, "--json").stdout) for step in range(steps)]
    bare = sql(tmp_path / shape, "select count(*) as n from spans where service in ('sglang', 'smg') and (step is not null or sample_id is not null)")
    assert bare == [{"n": 0}]
    for stamped, found in zip(reports["stamped"], reports[shape], strict=True):
        assert names(found) == names(stamped)
        assert found["wall_s"] == pytest.approx(stamped["wall_s"])
        phases = [{p["name"]: p["seconds"] for p in told["phases"]} for told in (stamped, found)]
        if shape != "async":
            assert phases[1] == pytest.approx(phases[0])
        assert sum(p["seconds"] for p in found["critical_path"]["totals"]) == pytest.approx(found["wall_s"])
