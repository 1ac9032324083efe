"""The timeline as the page gets it: whole, and what changed of it."""

import json
import random
import time

import pyarrow as pa
import requests

from conftest import run, wait_until
from otlp import attribute, request, span

OPEN = 1


def send(server, spans, **resource):
    answer = requests.post(server.http + "/v1/traces", data=request(spans, **resource).SerializeToString(),
                           headers={"content-type": "application/x-protobuf"}, timeout=30)
    assert answer.ok, answer.text


def packed(server, run, **params):
    answer = server.get(f"/api/v1/runs/{run}/timeline", params=params)
    assert answer.ok, answer.text
    return answer, pa.ipc.open_stream(answer.content).read_all()


def timeline(server, run, **params):
    answer, table = packed(server, run, **params)
    base = int(table.schema.metadata[b"base_ns"])
    rows = table.to_pylist()
    for row in rows:
        row["parent_id"] = rows[row["parent"]]["span_id"] if row["parent"] >= 0 else None
        row["start"], row["end"] = base + round(row["start"] * 1e6), base + round(row["end"] * 1e6)
    return answer.headers["rollscope-version"], answer.headers["rollscope-delta"] == "true", rows


def picture(rows):
    """What a row shows, apart from its place among the others. Where an open span ends depends on when it was asked for."""
    told = ("start", "parent_id", "flags", "depth", "attempt", "name", "phase", "sample", "group", "worker", "trace")
    return {row["span_id"]: ([row[key] for key in told], None if row["flags"] & 3 == OPEN else row["end"]) for row in rows}


def test_what_changed_takes_the_place_of_what_was_there(server):
    """Spans of many traces in any order, children before parents; after each part, old rows and changed traces make the whole."""
    dice, base = random.Random(3), time.time_ns() - 100_000_000_000
    spans = []
    for trace in range(1, 9):
        for number in range(6):
            start = base + trace * 1_000_000_000 + number * 10_000_000
            named = [attribute("rl.step", 4), attribute("rl.sample.id", f"s{trace % 5}")] if number < 2 or trace == 8 else []
            spans.append(span(0, trace_id=trace.to_bytes(16, "big"), span_id=(trace * 10 + number + 1).to_bytes(8, "big"),
                              parent_span_id=b"" if number == 0 else (trace * 10 + dice.randrange(number) + 1).to_bytes(8, "big"),
                              name=dice.choice(["turn", "sglang_generate", "tool"]), start_time_unix_nano=start,
                              end_time_unix_nano=start + dice.randrange(1, 900) * 1_000_000, attributes=named))
    dice.shuffle(spans)
    where = {"rl__run__id": "r", "host__name": "0123456789abcdef"}
    send(server, spans[:12], **where)
    version, delta, rows = timeline(server, "r", step=4, live=1)
    assert not delta
    known = {row["span_id"]: row for row in rows}
    sizes = []
    for at in range(12, len(spans), 4):
        send(server, spans[at:at + 4], **where)
        version, delta, changed = timeline(server, "r", step=4, live=1, since=version)
        assert delta
        sizes.append(len(changed))
        replaced = {row["trace"] for row in changed}
        known = {id: row for id, row in known.items() if row["trace"] not in replaced} | {row["span_id"]: row for row in changed}
        whole = timeline(server, "r", step=4, live=1)[2]
        assert picture(known.values()) == picture(whole)
        assert len({row["worker"] for row in known.values()}) == 1, "a worker is called the same in both"
    assert len(known) == len(spans) and max(sizes) < len(spans), "traces that did not change are not sent again"
    # Nothing new: nothing is sent.
    assert timeline(server, "r", step=4, live=1, since=version)[1:] == (True, [])


def test_one_trace_that_is_about_the_step_has_no_sample_to_lend(server):
    """The report and the timeline agree: training is not part of the only sample in its trace."""
    base = time.time_ns() - 10_000_000_000
    at = lambda number, parent, name, start, end, **attrs: span(
        0, trace_id=b"\7" * 16, span_id=number.to_bytes(8, "big"), parent_span_id=parent and parent.to_bytes(8, "big") or b"", name=name,
        start_time_unix_nano=base + start * 10**9, end_time_unix_nano=base + end * 10**9,
        attributes=[attribute("rl.step", 1), *(attribute(key, value) for key, value in attrs.items())])
    send(server, [at(1, 0, "train_step", 0, 9), at(2, 1, "rollout", 0, 4), at(3, 2, "sglang_generate", 0, 4, **{"rl.sample.id": "a"}),
                  at(4, 1, "update_actor", 4, 9)], rl__run__id="one")
    samples = {row["name"]: row["sample"] for row in timeline(server, "one", step=1)[2]}
    assert samples == {"train_step": None, "rollout": None, "sglang_generate": "a", "update_actor": None}


def large_step(path, samples, each):
    """A step as a file of another program: samples of short spans one after the other."""
    value = lambda key, text: {"key": key, "value": {"stringValue": text}}
    with open(path, "w") as out:
        for sample in range(samples):
            trace, spans = f"{sample + 1:032x}", []
            for number in range(each):
                start = 1_700_000_000_000_000_000 + number * 10_000_000
                spans.append({"traceId": trace, "spanId": f"{sample * each + number + 1:016x}", "name": ["decode", "tool"][number % 2],
                              "startTimeUnixNano": str(start), "endTimeUnixNano": str(start + 4_000_000 + number % 3),
                              "attributes": [value("rl.sample.id", f"s{sample}"), {"key": "rl.step", "value": {"intValue": "1"}}]})
            resource = {"attributes": [value("service.name", "trainer"), value("rl.run.id", "large")]}
            out.write(json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}) + "\n")


def by_span(table):
    """What a timeline says of each span. Rows stand in the order in which samples were read."""
    columns = {name: table[name].cast(pa.string() if name in ("name", "sample") else pa.binary() if name == "span_id" else table[name].type)
               for name in ("span_id", "start", "end", "flags", "depth", "lane", "name", "sample")}
    return pa.table(columns).combine_chunks().sort_by("span_id")


def test_the_timeline_of_a_large_step_is_kept_until_its_rows_change(serve, tmp_path):
    large_step(tmp_path / "large.jsonl", 110, 1000)
    data = tmp_path / "data"
    run("import", tmp_path / "large.jsonl", "--data", data, "--run", "large")
    server = serve(data)
    # Another number of items than pages want: this is packed each time.
    fresh = by_span(packed(server, "large", step=1, most=1_499_999)[1])
    kept = data / "derived" / "run=large" / "timeline=1"
    answers = data / "derived" / "run=large" / "step=1"
    assert kept.exists() and answers.exists(), "the import has kept both"
    written = answers.stat().st_mtime_ns
    assert server.get("/api/v1/runs/large/steps/1/report").json()["spans"] == 110_000
    assert answers.stat().st_mtime_ns == written, "nothing is worked out twice"
    plain = {"accept-encoding": "identity"}
    address = f"{server.url}/api/v1/runs/large/timeline?step=1"
    whole = requests.get(address, headers=plain, timeout=60)
    assert "content-encoding" not in whole.headers and by_span(pa.ipc.open_stream(whole.content).read_all()).equals(fresh)
    with requests.get(address, headers={"accept-encoding": "gzip, zstd"}, timeout=60, stream=True) as short:
        assert short.headers["content-encoding"] == "zstd"
        bytes_of = short.raw.read(decode_content=False)
    assert len(bytes_of) < len(whole.content) / 2
    assert pa.input_stream(pa.BufferReader(bytes_of), compression="zstd").read() == whole.content
    # What is damaged is packed again.
    server.stop()
    damaged = bytearray(kept.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    kept.write_bytes(damaged)
    server = serve(data)
    assert by_span(packed(server, "large", step=1)[1]).equals(fresh)
    wait_until(lambda: kept.read_bytes() != damaged)
    # A span that comes later is there at once.
    late = span(0, trace_id=b"\7" * 16, span_id=b"\7" * 8, name="late", start_time_unix_nano=1_700_000_001_000_000_000,
                end_time_unix_nano=1_700_000_001_500_000_000, attributes=[attribute("rl.step", 1)])
    send(server, [late], rl__run__id="large")
    names = packed(server, "large", step=1)[1]["name"].to_pylist()
    assert len(names) == 110_001 and "late" in names


def test_of_many_spans_short_ones_stand_for_each_other_but_for_where_somebody_looks(serve, tmp_path):
    large_step(tmp_path / "large.jsonl", 40, 100)
    data = tmp_path / "data"
    run("import", tmp_path / "large.jsonl", "--data", data, "--run", "large")
    server = serve(data)
    assert "weight" not in packed(server, "large", step=1)[1].column_names
    table = packed(server, "large", step=1, most=1000)[1]
    assert table.num_rows <= 1000 and sum(table["weight"].to_pylist()) == 4000 == int(table.schema.metadata[b"spans"])
    base = int(table.schema.metadata[b"base_ns"])
    where = {"focus_from_ns": base + 200_000_000, "focus_to_ns": base + 300_000_000, "focus_samples": json.dumps(["s3", "s7"])}
    rows = packed(server, "large", step=1, most=1000, **where)[1].to_pylist()
    assert len(rows) <= 1000 and sum(row["weight"] for row in rows) == 4000
    seen = [row for row in rows if row["sample"] in ("s3", "s7") and 200 <= row["start"] <= 300]
    assert len(seen) == 22 and {row["weight"] for row in seen} == {1}
    for wrong, named in [({"most": 999}, "most"), ({"most": "x"}, "most"), ({"focus_samples": "s3"}, "focus_samples"), ({"focus_to_ns": "1s"}, "focus_to_ns")]:
        answer = server.get("/api/v1/runs/large/timeline", params={"step": 1, **wrong})
        assert answer.status_code == 400 and answer.json()["parameter"] == named, answer.text
