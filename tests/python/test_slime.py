"""slime's shape: the carrier exactly, the wire beside it."""

import asyncio
import copy
import json
import pickle
import sys
import types
from dataclasses import dataclass, field

import pytest
import rollscope
from rollscope import slime
from rollscope.slime import (
    bind_trace,
    bind_trace_carrier,
    build_sglang_meta_trace_attrs,
    export_trace,
    import_trace,
    trace_event,
    trace_function,
    trace_next_attempt,
    trace_span,
)

START = ["type", "name", "ts", "trace_id", "sample_id", "group_id", "attempt", "span_id"]
CARRIER = ["version", "trace_id", "events", "sample_id", "group_id", "attempt"]


@dataclass
class Sample:
    index: int | None = 0
    group_index: int | None = 0
    trace: dict | None = field(default=None)


def test_the_carrier_is_slimes(seen):
    sample = Sample(5, 2)
    with trace_span(sample, "generate", attrs={"a": 1}) as span:
        with trace_span(sample, "inner"):
            trace_event(sample, "mark", attrs={"m": [1, 2]})
        span.set("b", 2)
    span.set("late", 3)
    carrier = sample.trace
    assert list(carrier) == CARRIER
    assert (carrier["version"], carrier["sample_id"], carrier["group_id"], carrier["attempt"]) == (1, 5, 2, 0)
    assert len(carrier["trace_id"]) == 32 and int(carrier["trace_id"], 16)
    outer, inner, mark, inner_end, outer_end = carrier["events"]
    assert list(outer) == [*START, "attrs"] and outer["type"] == "span_start" and outer["attrs"] == {"a": 1}
    assert list(inner) == [*START, "parent_span_id"] and inner["parent_span_id"] == outer["span_id"]
    assert list(mark) == [*START[:7], "parent_span_id", "attrs"] and mark["parent_span_id"] == inner["span_id"]
    assert mark["type"] == "event" and mark["attrs"] == {"m": [1, 2]}
    assert list(inner_end) == START and inner_end["type"] == "span_end" and inner_end["span_id"] == inner["span_id"]
    assert list(outer_end) == [*START, "attrs"] and outer_end["attrs"] == {"b": 2, "late": 3}
    assert len(outer["span_id"]) == 32 and isinstance(outer["ts"], float) and outer["ts"] < outer_end["ts"]
    assert all(e["trace_id"] == carrier["trace_id"] and e["sample_id"] == 5 and e["group_id"] == 2 for e in carrier["events"])
    assert type(carrier["events"]) is list and all(type(e) is dict for e in carrier["events"])
    assert json.loads(json.dumps(carrier)) == carrier == pickle.loads(pickle.dumps(carrier))


def fold(text):
    raw = bytes.fromhex(text)
    return bytes(a ^ b for a, b in zip(raw[:8], raw[8:], strict=True)).hex()


def test_the_same_spans_go_out(seen):
    sample = Sample(5, 2)
    with rollscope.step(7):
        with trace_span(sample, "generate", attrs={"a": 1}) as span:
            trace_event(sample, "mark")
            with rollscope.span("ours"):
                pass
            span.update({"b": 2})
    start, *_, end = sample.trace["events"]
    got = seen.span("generate")
    assert got.trace_id == sample.trace["trace_id"] and got.span_id == fold(start["span_id"])
    assert got.start_attributes == {"rl.step": 7, "rl.sample.id": 5, "rl.group.id": 2, "rl.attempt": 0, "a": 1}
    assert got.end_attributes == {"b": 2}
    assert abs(got.start_ns - start["ts"] * 1e9) < 1000 and abs(got.end_ns - end["ts"] * 1e9) < 1000
    mark = seen.span("mark")
    assert mark.state == "instant" and mark.parent_span_id == got.span_id
    ours = seen.span("ours")
    assert (ours.trace_id, ours.parent_span_id) == (got.trace_id, got.span_id)
    assert ours.attributes == {"rl.step": 7, "rl.sample.id": 5, "rl.group.id": 2, "rl.attempt": 0}


def test_a_group_is_one_span_on_each(seen):
    group = [Sample(i, 9) for i in range(8)]
    with trace_span(group, "group") as span:
        with trace_span(group[3], "own"):
            pass
        with trace_span([group, [group[0]]], "again"):
            pass
    assert len(span.handles) == 8 and [h.sample_id for h in span.handles] == list(range(8))
    starts = [s.trace["events"][0] for s in group]
    assert len({e["span_id"] for e in starts}) == 8 and len({s.trace["trace_id"] for s in group}) == 8
    assert group[3].trace["events"][1]["parent_span_id"] == starts[3]["span_id"]
    assert [e["name"] for e in group[0].trace["events"]] == ["group", "again", "again", "again", "again", "group"]
    assert all(e["parent_span_id"] == starts[0]["span_id"] for e in group[0].trace["events"][1:3])
    assert len(seen.spans) == 8 + 1 + 9


def test_errors_are_recorded_and_raised(seen):
    sample = Sample()
    with pytest.raises(ValueError):
        with trace_span(sample, "fails") as span:
            span.set("a", 1)
            raise ValueError("bad")
    with pytest.raises(ValueError):
        with trace_span(sample, "quiet", record_error=False):
            raise ValueError("bad")
    end, quiet = sample.trace["events"][1], sample.trace["events"][3]
    assert end["attrs"] == {"a": 1, "error_type": "ValueError", "error_message": "bad"} and "attrs" not in quiet
    assert seen.span("fails").status == "error" and seen.span("fails").message == "ValueError: bad"

    async def cancelled():
        with trace_span(sample, "cancelled"):
            await asyncio.sleep(60)

    async def main():
        task = asyncio.create_task(cancelled())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    # slime leaves this one open.
    assert sample.trace["events"][-1]["type"] == "span_end"
    assert sample.trace["events"][-1]["attrs"]["error_type"] == "CancelledError"


def test_attempts(seen):
    sample = Sample(1, 1)
    with trace_span(sample, "try"):
        handle = trace_next_attempt(sample, attrs={"why": "timeout"})
    assert handle.attempt == 1 and sample.trace["attempt"] == 1
    assert [e["attempt"] for e in sample.trace["events"]] == [0, 1, 1]
    assert sample.trace["events"][1]["attrs"] == {"attempt": 1, "why": "timeout"}
    assert trace_next_attempt([Sample(), Sample()])[1].attempt == 1
    assert trace_next_attempt("nothing") == "nothing"


def test_hand_over_to_another_process(seen):
    sample = Sample(1, 2)
    handle = bind_trace(sample)
    with trace_span(sample, "here"):
        payload = json.loads(json.dumps(export_trace(handle)))
    assert list(payload) == ["version", "trace_id", "sample_id", "group_id", "attempt", "parent_span_id"]
    assert payload["parent_span_id"] == sample.trace["events"][0]["span_id"]
    there = import_trace(payload)
    with trace_span(there, "there"):
        with trace_span(there, "deeper"):
            pass
    assert there.carrier["trace_id"] == handle.trace_id and there.sample_id == 1
    assert [e.get("parent_span_id") for e in there.carrier["events"][:2]] == [payload["parent_span_id"]] * 2
    mine = bind_trace_carrier({"attempt": 3}, trace_id="ab" * 16, sample_id="x", parent_span_id="cd" * 16)
    assert (mine.trace_id, mine.attempt, mine.parent_span_id) == ("ab" * 16, 3, "cd" * 16)
    assert pickle.loads(pickle.dumps(mine)) == mine


def test_functions(seen, caplog):
    sample = Sample(4, 4)

    @trace_function("named", target="sample", attrs_getter=lambda args, sample: {"n": args})
    async def named(args, sample):
        return trace_event(sample, "in")

    @trace_function("got", target_getter=lambda x: x["s"])
    def got(x):
        return 5

    @trace_function("inferred")
    def inferred(a, b):
        return nested()

    @trace_function("nested")
    def nested():
        return 7

    asyncio.run(named(1, sample))
    asyncio.run(named(args=2, sample=sample))
    assert got({"s": sample}) == 5
    assert inferred(1, sample) == inferred("x", sample) == 7
    assert sum("auto-inferred" in r.message for r in caplog.records) == 1
    names = [e["name"] for e in sample.trace["events"] if e["type"] == "span_start"]
    assert names == ["named", "named", "got", "inferred", "nested", "inferred", "nested"]
    starts = [e for e in sample.trace["events"] if e["type"] == "span_start"]
    assert starts[0]["attrs"] == {"n": 1} and starts[4]["parent_span_id"] == starts[3]["span_id"]
    before = len(sample.trace["events"])

    @trace_function("broken", target="missing", attrs_getter=lambda: 1 / 0)
    def broken():
        return 8

    assert broken() == 8 and nested() == 7 and got({"s": 5}) == 5
    assert got({}) == 5
    assert len(sample.trace["events"]) == before


META = {
    "id": "r1", "prompt_tokens": 10, "completion_tokens": 20, "cached_tokens": None, "e2e_latency": 1.5, "other": 1,
    "finish_reason": {"type": "stop", "matched": 2}, "pd_prefill_bootstrap_queue_duration": 0.2,
    "pd_prefill_forward_duration": 0.3, "pd_prefill_alloc_wait_duration": 0, "pd_decode_forward_duration": 0.5,
    "pd_transfer_total_mb": 12.5,
}


def test_meta_of_sglang(seen):
    sample = Sample(1, 1)
    attrs = build_sglang_meta_trace_attrs(META)
    children = attrs["_trace_children"]
    assert {k: v for k, v in attrs.items() if k != "_trace_children"} == {
        "prompt_tokens": 10, "completion_tokens": 20, "e2e_latency": 1.5, "finish_reason": "stop", "sglang_request_id": "r1"}
    assert [c["name"] for c in children] == ["sglang_pd_prefill", "sglang_pd_decode", "sglang_pd_summary"]
    with trace_span(sample, "sglang_generate") as span:
        span.update(attrs)
    events = sample.trace["events"]
    assert [(e["type"], e["name"]) for e in events] == [
        ("span_start", "sglang_generate"), ("span_start", "sglang_pd_prefill"),
        ("span_start", "sglang_pd_prefill_bootstrap_queue"), ("span_end", "sglang_pd_prefill_bootstrap_queue"),
        ("span_start", "sglang_pd_prefill_forward"), ("span_end", "sglang_pd_prefill_forward"),
        ("span_end", "sglang_pd_prefill"), ("span_start", "sglang_pd_decode"),
        ("span_start", "sglang_pd_decode_forward"), ("span_end", "sglang_pd_decode_forward"),
        ("span_end", "sglang_pd_decode"), ("event", "sglang_pd_summary"), ("span_end", "sglang_generate")]
    assert events[6]["attrs"] == {"phase": "prefill", "duration_s": 0.5} and "_trace_children" not in events[-1]["attrs"]
    assert events[1]["parent_span_id"] == events[0]["span_id"] and events[2]["parent_span_id"] == events[1]["span_id"]
    assert round(events[5]["ts"] - events[0]["ts"], 6) == 0.5
    wire = {s.name: s for s in seen.spans}
    assert wire["sglang_pd_prefill_forward"].span_id == fold(events[4]["span_id"])
    assert wire["sglang_pd_prefill_forward"].parent_span_id == wire["sglang_pd_prefill"].span_id
    assert wire["sglang_pd_summary"].state == "instant"
    assert build_sglang_meta_trace_attrs(None) == {} and build_sglang_meta_trace_attrs({"finish_reason": "x"}) == {"finish_reason": "x"}


class Hostile:
    index = group_index = 0

    @property
    def trace(self):
        raise RuntimeError("no trace for you")


def test_nothing_raises(seen):
    frozen = types.SimpleNamespace(index=1, group_index=1, trace={"events": "no list"})
    for target in (None, 5, "x", [], [None], object(), Hostile(), frozen, [[[]]], {"index": 1}):
        with trace_span(target, "s") as got:
            assert got is target
        trace_event(target, "e")
        bind_trace(target)
    bind_trace_carrier(5)
    import_trace(None)
    export_trace(None)
    with trace_span(Sample(), None, attrs={"a": object()}) as span:
        span.update(5).set([], {}).update({"_trace_children": [5, {}, {"type": "span", "name": "x"}]})
    assert rollscope.stats()["errors"] > 0


def test_the_carrier_is_kept_without_a_recorder():
    sample = Sample(3, 3)
    with trace_span(sample, "offline"):
        trace_event(sample, "e")
    assert [e["type"] for e in sample.trace["events"]] == ["span_start", "event", "span_end"]


def fake_slime(monkeypatch):
    """A module where slime's would be, and a user of it."""
    utils = types.ModuleType("slime.utils.trace_utils")
    exec("def trace_span(*a, **k): raise AssertionError\ndef bind_trace(s): raise AssertionError\nclass TraceHandle: pass", vars(utils))
    user = types.ModuleType("slime.rollout.user")
    user.span, user.bind_trace = utils.trace_span, utils.bind_trace
    package, inner = types.ModuleType("slime"), types.ModuleType("slime.utils")
    package.utils, inner.trace_utils = inner, utils
    package.__path__ = inner.__path__ = []
    for name, module in (("slime", package), ("slime.utils", inner), ("slime.utils.trace_utils", utils), ("slime.rollout.user", user)):
        monkeypatch.setitem(sys.modules, name, module)
    return utils, user


def test_install_and_uninstall(monkeypatch, seen):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "slime", None)
        assert slime.install() == []
    utils, user = fake_slime(monkeypatch)
    before = copy.copy(vars(utils)), copy.copy(vars(user))
    assert slime.install() == ["slime.utils.trace_utils"] == slime.install()
    try:
        sample = Sample()
        with user.span(sample, "x"):
            user.bind_trace(sample)
        assert utils.trace_span is trace_span and len(sample.trace["events"]) == 2
    finally:
        slime.uninstall()
    assert (vars(utils), vars(user)) == before
