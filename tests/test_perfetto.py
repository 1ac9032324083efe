"""`rollscope export perfetto`, read back with Perfetto's own definitions; and Chrome's format, in and out."""

import gzip
import json
from collections import Counter, defaultdict

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pf

from conftest import FIXTURES, run, sql

SGLANG = FIXTURES / "sglang" / "sglang_otel.jsonl"
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


def otlp_spans(*paths):
    """An independent reading of the input: (trace, span) to the span."""
    found = {}
    for path in paths:
        for line in path.read_text().splitlines():
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    for span in scope["spans"]:
                        found[(span["traceId"].rjust(32, "0"), span["spanId"])] = span
    return found


class Trace:
    """What Perfetto would show: slices by nesting, checked as its importer would."""

    def __init__(self, data: bytes):
        trace = pf.Trace.FromString(data)
        self.tracks, self.slices, self.instants, self.counters = {}, [], [], []
        names, keys, strings, categories = {}, {}, {}, {}
        self.flows = defaultdict(list)
        open_slices = defaultdict(list)
        last = 0
        for packet in trace.packet:
            if packet.HasField("track_descriptor"):
                assert packet.track_descriptor.uuid not in self.tracks
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            for table, of in [(names, packet.interned_data.event_names), (keys, packet.interned_data.debug_annotation_names),
                              (categories, packet.interned_data.event_categories)]:
                table.update({e.iid: e.name for e in of})
            strings.update({e.iid: e.str.decode() for e in packet.interned_data.debug_annotation_string_values})
            if not packet.HasField("track_event"):
                continue
            event = packet.track_event
            assert packet.timestamp >= last, "written in the order of time"
            last = packet.timestamp
            assert event.track_uuid in self.tracks

            def value(a):
                kind = a.WhichOneof("value")
                if a.dict_entries:
                    # Links are several entries of one name.
                    out = {}
                    for e in a.dict_entries:
                        out.setdefault(key(e), []).append(value(e))
                    return {k: v if k == "link" else v[0] for k, v in out.items()}
                if a.array_values:
                    return [value(e) for e in a.array_values]
                return strings[a.string_value_iid] if kind == "string_value_iid" else getattr(a, kind) if kind else []

            def key(a):
                return a.name or keys[a.name_iid]

            args = {key(a): value(a) for a in event.debug_annotations}
            item = {"name": event.name or names.get(event.name_iid, ""), "track": event.track_uuid, "start": packet.timestamp,
                    "args": args, "end": None, "parent": None, "cat": [categories[c] for c in event.category_iids]}
            for flow in [*event.flow_ids, *event.terminating_flow_ids]:
                self.flows[flow].append(item)
            stack = open_slices[event.track_uuid]
            if event.type == BEGIN:
                item["parent"] = stack[-1] if stack else None
                stack.append(item)
                self.slices.append(item)
            elif event.type == END:
                stack.pop()["end"] = packet.timestamp
            elif event.type == INSTANT:
                self.instants.append(item)
            elif event.type == COUNTER:
                self.counters.append((event.track_uuid, packet.timestamp, event.double_counter_value))

    def process(self, item):
        track = self.tracks[item["track"]]
        while not track.HasField("process"):
            track = self.tracks[track.parent_uuid]
        return track.process

    def by_id(self):
        return {(i["args"]["span"]["trace_id"], i["args"]["span"]["span_id"]): i
                for i in [*self.slices, *self.instants] if "span" in i["args"]}


def export(tmp_path, *args, name="out.pftrace"):
    out = tmp_path / name
    done = run("export", "perfetto", *args, "-o", out)
    return out, done.stderr


def plain(value):
    kind, inner = next(iter(value.items()))
    return {"intValue": lambda: int(inner), "arrayValue": lambda: [plain(v) for v in inner["values"]]}.get(kind, lambda: inner)()


@pytest.mark.parametrize("path", [SGLANG, FIXTURES / "sglang" / "crash_root_without_slices.jsonl", FIXTURES / "roll" / "roll_traces.jsonl"])
def test_every_span_is_there_once_with_all_it_says(tmp_path, path):
    out, _ = export(tmp_path, path)
    trace, spans = Trace(out.read_bytes()), otlp_spans(path)
    found = trace.by_id()
    assert found.keys() == spans.keys()
    for id, span in spans.items():
        item = found[id]
        assert item["name"] == span["name"]
        assert item["start"] == int(span["startTimeUnixNano"])
        assert item["end"] == int(span["endTimeUnixNano"])
        for attribute in span.get("attributes", []):
            assert item["args"][attribute["key"]] == plain(attribute["value"])
        assert item["args"]["span"].get("parent_span_id", "") == span.get("parentSpanId", "")
        links = [(l["trace_id"], l["span_id"]) for l in item["args"]["span"].get("link", [])]
        assert links == [(l["traceId"].rjust(32, "0"), l["spanId"]) for l in span.get("links", [])]
    events = Counter(i["name"] for i in trace.instants)
    assert events == Counter(e["name"] for s in spans.values() for e in s.get("events", []))


def test_sglang_threads_are_tracks_and_hosts_never_collide(tmp_path):
    other = tmp_path / "other_host.jsonl"
    # The same process ids on another host.
    text = SGLANG.read_text().replace("9f1c2e7ab0344c1d8e6f5a4b3c2d1e0f", "0a0a0a0ab0344c1d8e6f5a4b3c2d1e0f")
    for span in otlp_spans(SGLANG).values():
        text = text.replace(span["spanId"], f"{15 - int(span['spanId'][0], 16):x}" + span["spanId"][1:])
    other.write_text(text)
    out, _ = export(tmp_path, SGLANG, other)
    trace = Trace(out.read_bytes())
    names = {t.process.process_name for t in trace.tracks.values() if t.HasField("process")}
    assert {"9f1c2e7a:Tokenizer", "9f1c2e7a:Scheduler-DP0-TP0", "9f1c2e7a:Scheduler-DP0-TP1", "0a0a0a0a:Tokenizer"} <= names
    pids = [t.process.pid for t in trace.tracks.values() if t.HasField("process")]
    assert len(pids) == len(set(pids))
    loops = [item for item in trace.slices if item["name"] == "decode_loop"]
    assert loops
    for item in loops:
        assert "Scheduler" in trace.process(item).process_name
        assert len(item["args"]["rid"]) == 32, "a slice says which request it is for"
    # Slices of a track nest only in their own ancestors.
    for item in trace.slices:
        if item["parent"] is not None:
            assert item["parent"]["args"]["span"]["span_id"] == item["args"]["span"]["parent_span_id"]
    # One arrow for each link, from what was before to what follows it.
    spans = otlp_spans(SGLANG, other)
    ends = [tuple(sorted(i["args"]["span"]["span_id"] for i in items)) for items in trace.flows.values()]
    for (_, span_id), span in spans.items():
        for link in span.get("links", []):
            assert tuple(sorted((span_id, link["spanId"]))) in ends


def test_a_store_with_steps_samples_and_counters(tmp_path):
    data = tmp_path / "data"
    run("demo", "--data", data, "--steps", "3", "--samples", "8", "--no-serve")
    # With what its engines and its gateway did.
    spans = sql(data, "select count(*) as n from spans")[0]["n"]
    out, said = export(tmp_path, "--data", data, "--run", "demo")
    trace = Trace(out.read_bytes())
    assert len(trace.slices) + sum(1 for i in trace.instants if "span" in i["args"]) == spans
    assert trace.counters, said
    tracks = {t.name for t in trace.tracks.values()}
    assert any(t.startswith("sample ") for t in tracks)
    steps, _ = export(tmp_path, "--data", data, "--run", "demo", "--step", "1", name="step.pftrace")
    wanted = sql(data, "select count(*) as n from spans where run_id = 'demo' and step = 1")[0]["n"]
    of_step = [i for i in [*Trace(steps.read_bytes()).slices] if i["args"]["span"].get("step") == 1]
    assert 0 < len(of_step) <= wanted
    bad = run("export", "perfetto", "--data", data, "--run", "nobody", "-o", tmp_path / "x", check=False)
    assert bad.returncode == 2 and "nobody" in bad.stderr


def test_a_step_has_the_same_spans_in_every_export(tmp_path):
    """One trace around the whole training, in which only the root of each step names it."""
    def one(number, parent, name, start, end, step=None):
        attributes = [] if step is None else [{"key": "rl.step", "value": {"intValue": str(step)}}]
        span = {"traceId": "a" * 32, "spanId": f"{number:016x}", "name": name, "attributes": attributes,
                "startTimeUnixNano": str(10**18 + start), "endTimeUnixNano": str(10**18 + end)}
        return span if parent is None else {**span, "parentSpanId": f"{parent:016x}"}
    spans = [one(1, None, "training", 0, 100), one(2, 1, "first", 0, 40, 0), one(3, 2, "work of the first", 5, 30),
             one(4, 1, "second", 35, 90, 1), one(5, 4, "work of the second", 36, 80), one(6, 1, "beside", 10, 20)]
    file, data = tmp_path / "training.jsonl", tmp_path / "data"
    file.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}) + "\n")
    run("import", file, "--data", data, "--run", "long")
    out, _ = export(tmp_path, "--data", data, "--run", "long", "--step", "0")
    assert sorted(i["name"] for i in Trace(out.read_bytes()).slices) == ["first", "work of the first"]
    said = run("export", "html", "--data", data, "--run", "long", "--step", "0", "-o", tmp_path / "step.html").stdout
    assert ": 2 spans" in said
    report = json.loads(run("report", "long", "--step", "0", "--data", data, "--json").stdout)
    assert sorted(n["name"] for n in report["breakdown"]["by_name"]) == ["first", "work of the first"]


def test_open_spans_instants_and_bad_times(tmp_path):
    base = 1_756_000_000_000_000_000
    spans = [
        {"name": "open", "start": base, "end": 0},
        {"name": "backwards", "start": base + 100, "end": base + 50},
        {"name": "nothing", "start": base + 10, "end": base + 10},
        {"name": "twice", "start": base + 20, "end": base + 30},
        {"name": "twice", "start": base + 20, "end": base + 30, "id": 4},
    ]
    line = {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": {}, "spans": [
        {"traceId": "1" * 32, "spanId": f"{s.get('id', n + 1):016x}", "name": s["name"], "startTimeUnixNano": str(s["start"]),
         "endTimeUnixNano": str(s["end"]), "kind": 1} for n, s in enumerate(spans)]}]}]}
    path = tmp_path / "odd.jsonl"
    path.write_text(json.dumps(line) + "\n")
    out, said = export(tmp_path, path)
    trace = Trace(out.read_bytes())
    found = {i["name"]: i for i in trace.slices}
    assert len(found) == 3 and "1 duplicate spans left out" in said
    # Refused as everywhere, and said.
    assert "the end is before the start (1)" in said
    assert found["open"]["end"] is None
    assert found["nothing"]["end"] == base + 10


def chrome_events(path):
    return json.loads(path.read_text())["traceEvents"]


def test_chrome_format_and_back(tmp_path):
    out, _ = export(tmp_path, SGLANG, "--format", "chrome", name="out.json")
    spans = otlp_spans(SGLANG)
    # Times are decimals; a float would lose the last digits.
    events = json.loads(out.read_text(), parse_float=str)["traceEvents"]
    slices = {e["args"]["span"]["span_id"]: e for e in events if e["ph"] == "X"}
    assert len(slices) == len(spans)
    for (_, id), span in spans.items():
        assert slices[id]["ts"].replace(".", "") == span["startTimeUnixNano"]
        assert int(slices[id]["dur"].replace(".", "")) == int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])
    assert sum(e["ph"] == "s" for e in events) == sum(e["ph"] == "f" for e in events) > 0
    # Read again, everything is there, to the nanosecond.
    data = tmp_path / "data"
    said = run("import", "--data", data, "--run", "again", out).stdout
    assert "Chrome trace JSON" in said
    rows = sql(data, "select name, start_ns, end_ns from spans where state = 'closed' order by start_ns, end_ns, name")
    want = sorted((int(s["startTimeUnixNano"]), int(s["endTimeUnixNano"]), s["name"]) for s in spans.values())
    assert [(r["start_ns"], r["end_ns"], r["name"]) for r in rows] == want
    again, _ = export(tmp_path, "--data", data, "--run", "again", name="again.pftrace")
    assert sorted((i["start"], i["end"], i["name"]) for i in Trace(again.read_bytes()).slices) == want


def torch_profile():
    """The shape that torch.profiler writes."""
    base = 1_756_000_000_000_000_000
    events = [
        {"ph": "M", "name": "process_name", "pid": 2000, "tid": 0, "ts": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 2000, "tid": 2000, "ts": 0, "args": {"name": "thread 2000 (python)"}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 2000, "tid": 2000, "ts": 10.5, "dur": 20.25, "args": {"External id": 3, "Input Dims": [[2, 3], [3, 4]]}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 2000, "tid": 2000, "ts": 12.0, "dur": 3.125, "args": {"correlation": 77, "cbid": 211}},
        {"ph": "s", "id": 77, "pid": 2000, "tid": 2000, "ts": 12.0, "cat": "ac2g", "name": "ac2g"},
        {"ph": "X", "cat": "kernel", "name": "sgemm_128x64", "pid": 0, "tid": 7, "ts": 40.001, "dur": 5.0, "args": {"correlation": 77, "stream": 7}},
        {"ph": "f", "id": 77, "pid": 0, "tid": 7, "ts": 40.001, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        {"ph": "X", "cat": "gpu_user_annotation", "name": "forward", "pid": 0, "tid": 7, "ts": 39.0, "dur": 9.0, "args": {}},
        {"ph": "i", "s": "g", "name": "Iteration Start", "pid": "Traces", "tid": "Trace", "ts": 1.0},
        {"ph": "B", "name": "outer", "pid": 2000, "tid": 5, "ts": 1, "args": {"a": 1}},
        {"ph": "B", "name": "inner", "pid": 2000, "tid": 5, "ts": 2},
        {"ph": "E", "pid": 2000, "tid": 5, "ts": 3},
        {"ph": "E", "pid": 2000, "tid": 5, "ts": 4, "args": {"b": 2}},
        {"ph": "B", "name": "never ends", "pid": 2000, "tid": 6, "ts": 1},
        {"ph": "C", "name": "memory", "pid": 2000, "ts": 5, "args": {"allocated": 128, "reserved": 256.5}},
    ]
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "H100"}], "distributedInfo": {"rank": 3, "world_size": 8},
            "displayTimeUnit": "ms", "baseTimeNanoseconds": base, "traceEvents": events, "traceName": "x.json"}


def test_a_torch_profile_is_imported(tmp_path):
    path = tmp_path / "profile.json.gz"
    path.write_bytes(gzip.compress(json.dumps(torch_profile()).encode()))
    data = tmp_path / "data"
    said = run("import", "--data", data, path).stdout
    base = torch_profile()["baseTimeNanoseconds"]
    rows = {r["name"]: r for r in sql(data, "select name, service, thread, pid, state, hex(span_id) as span_id, hex(parent_span_id) as parent, "
                                            "start_ns, end_ns, start_attrs, end_attrs, links, resource from spans")}
    assert rows.keys() == {"aten::mm", "cudaLaunchKernel", "sgemm_128x64", "forward", "Iteration Start", "outer", "inner", "never ends"}, said
    op, launch, kernel = rows["aten::mm"], rows["cudaLaunchKernel"], rows["sgemm_128x64"]
    assert (op["start_ns"], op["end_ns"]) == (base + 10_500, base + 30_750)
    assert (op["service"], op["thread"], op["pid"]) == ("python", "thread 2000 (python)", 2000)
    assert op["start_attrs"]["Input Dims"] == [[2, 3], [3, 4]]
    assert launch["parent"] == op["span_id"], "a call hangs under the operator that makes it"
    assert kernel["start_ns"] == base + 40_001
    assert [l["span_id"] for l in kernel["links"]] == [launch["span_id"]], "a kernel is linked to its launch"
    assert rows["inner"]["parent"] == rows["outer"]["span_id"]
    assert rows["outer"]["end_attrs"] == {"b": 2} and rows["never ends"]["state"] == "open"
    assert rows["Iteration Start"]["state"] == "instant"
    assert json.loads(op["resource"])["distributedInfo"] == {"rank": 3, "world_size": 8}
    assert {(r["name"], r["value"]) for r in sql(data, "select name, value from series")} == {("memory", 128.0), ("memory", 256.5)}
    before = sql(data, "select count(*) as n from spans")
    run("import", "--data", data, path)
    assert sql(data, "select count(*) as n from spans") == before, "the same file again changes nothing"


@pytest.mark.parametrize("compress", [False, True])
def test_the_merge_with_a_torch_profile(tmp_path, compress):
    profile = torch_profile()
    path = tmp_path / ("profile.json.gz" if compress else "profile.json")
    text = json.dumps(profile).encode()
    path.write_bytes(gzip.compress(text) if compress else text)
    out, _ = export(tmp_path, SGLANG, "--format", "chrome", "--torch-file", path, name="merged.json")
    merged = json.loads(out.read_text(), parse_float=str)
    assert merged["baseTimeNanoseconds"] == profile["baseTimeNanoseconds"]
    theirs = [e for e in merged["traceEvents"] if e.get("cat") in ("cpu_op", "cuda_runtime", "kernel", "ac2g", "gpu_user_annotation")]
    assert [e["name"] for e in theirs] == ["aten::mm", "cudaLaunchKernel", "ac2g", "sgemm_128x64", "ac2g"], "all but gpu_user_annotation"
    ours = [e for e in merged["traceEvents"] if e["ph"] == "X" and "span" in e.get("args", {})]
    spans = otlp_spans(SGLANG)
    assert len(ours) == len(spans)
    zero = profile["baseTimeNanoseconds"]
    starts = {e["args"]["span"]["span_id"]: int(e["ts"].replace(".", "")) for e in ours}
    assert all(starts[id] == int(s["startTimeUnixNano"]) - zero for (_, id), s in spans.items())
    assert not {e["pid"] for e in ours} & {2000, 0}, "process 2000 of the engine is not process 2000 of the profile"
    # In Perfetto's own format the profile's events are slices beside the spans.
    both, _ = export(tmp_path, SGLANG, "--torch-file", path, name="both.pftrace")
    names = Counter(i["name"] for i in Trace(both.read_bytes()).slices)
    assert names["sgemm_128x64"] == 1 and names["decode_loop"] == 72


@pytest.mark.parametrize("text, code", [
    ("", 1), ("{", 1), ('{"traceEvents": 5}', 0), ('{"traceEvents": [5]}', 1), ('{"traceEvents": [{"ph": "X", "ts": "x"}', 1),
    # The bracket at the end may be missing: a program that was killed did not write it.
    ('[{"ph":"X","name":"a","ts":1', 0)])
def test_damaged_profiles_are_told(tmp_path, text, code):
    path = tmp_path / "bad.json"
    path.write_text(text)
    done = run("import", "--data", tmp_path / "data", path, check=False)
    assert done.returncode == code and "panicked" not in done.stderr
    assert "bad.json" in (done.stderr if code else done.stdout)
    assert code or " 0 rows" in done.stdout
