"""Spans, events, attributes and context, in memory."""

import asyncio
import contextvars
import enum
import gc
import threading

import numpy as np
import pytest
import rollscope


def test_a_span_has_what_was_said_of_it(seen):
    with rollscope.span("generate", {"tokens": 12, "model": "q"}, phase="rollout") as span:
        span.set("reward", 0.5).update({"done": True})
        rollscope.event("first token", {"at": 3})
    got = seen.span("generate")
    assert got.start_attributes == {"rl.phase": "rollout", "tokens": 12, "model": "q"}
    assert got.end_attributes == {"reward": 0.5, "done": True}
    assert got.events[0].name == "first token" and got.events[0].attributes == {"at": 3}
    assert got.start_ns < got.events[0].time_ns < got.end_ns
    assert (got.trace_id, got.span_id) == (span.trace_id, span.span_id)
    assert (got.status, got.state, got.parent_span_id) == ("unset", "closed", None)


class Colour(enum.Enum):
    RED = 1


class Loud:
    def __repr__(self):
        return "x" * 100_000


class Broken:
    def __repr__(self):
        raise RuntimeError("no")

    def item(self):
        raise RuntimeError("no")


def test_attributes_of_the_usual_types(seen):
    torch_like = np.array(3.5)
    with rollscope.span("s", {
        "none": None, "true": True, "int": -5, "big": 2**70, "float": 1.5, "nan": float("nan"), "text": "häh 🎲",
        "surrogate": "a\ud800b", "bytes": b"\x00\xff", "list": [1, "a", [2.0]], "tuple": (1, 2), "dict": {"a": {"b": 1}},
        "np32": np.float32(0.5), "np64": np.int64(7), "npbool": np.bool_(True), "zero-d": torch_like,
        "array": np.arange(4), "enum": Colour.RED, "loud": Loud(), "broken": Broken(), 5: "number as key",
    }):
        pass
    a = seen.span("s").attributes
    assert a["none"] is None and a["true"] is True and a["int"] == -5 and a["big"] == str(2**70)
    assert a["float"] == 1.5 and a["nan"] != a["nan"] and a["text"] == "häh 🎲" and a["bytes"] == b"\x00\xff"
    assert "a" in a["surrogate"] and "b" in a["surrogate"]
    assert a["list"] == [1, "a", [2.0]] and a["tuple"] == [1, 2] and a["dict"] == {"a": {"b": 1}}
    assert a["np32"] == 0.5 and a["np64"] == 7 and a["npbool"] is True and a["zero-d"] == 3.5
    assert "array" in a["array"] and a["enum"] == "<Colour.RED: 1>"
    assert len(a["loud"]) < 5000 and "Broken" in a["broken"] and a["5"] == "number as key"


def test_what_is_too_much_is_bounded(seen):
    deep = []
    for _ in range(10_000):
        deep = [deep]
    cycle = {}
    cycle["self"] = cycle
    with rollscope.span("s" * 5000, {f"k{i}": i for i in range(2000)}) as span:
        span.update({"deep": deep, "cycle": cycle})
    with rollscope.span("other", {"long": "y" * (5 << 20), "deep": deep, "cycle": cycle}):
        pass
    first, second = seen.spans
    assert len(first.name) <= 1024 and len(first.attributes) == 512
    assert len(second.attributes["long"]) == 1 << 20


def test_odd_calls_do_not_raise(seen):
    rollscope.span(None).end()
    rollscope.span(5, 7, phase=object(), step="x", sample=object(), group=[1], attempt="y", kind=3.5, parent=8).end()
    with rollscope.span("s", attrs=[("a", 1)], kind="server", links=[None, 5, "nonsense"]) as span:
        span.set(None, None).update(5).update(None)
        span.set_status(None)
        span.add_link(object())
        span.add_event(None, 5)
        span.record_exception(None)
        span.end("when?")
        span.end()
        span.set("late", 1)
    rollscope.event(None, 5)
    assert seen.span("s").attributes["a"] == 1 and seen.span("s").kind == "server"


def test_children_find_their_parents(seen):
    with rollscope.step(12):
        with rollscope.sample("p7", group=3, attempt=1):
            with rollscope.span("turn"):
                pass
        with rollscope.span("train", phase="train"):
            pass
    turn, sample, train, step = seen.spans
    assert turn.parent_span_id == sample.span_id and sample.parent_span_id == step.span_id == train.parent_span_id
    assert {s.trace_id for s in seen.spans} == {step.trace_id}
    assert turn.attributes == {"rl.step": 12, "rl.attempt": 1, "rl.sample.id": "p7", "rl.group.id": 3}
    assert train.attributes == {"rl.step": 12, "rl.phase": "train"}
    assert step.name == "step" and step.attributes["rl.phase"] == "step"


def test_explicit_parents_links_and_times(seen):
    far = rollscope.SpanContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    span = rollscope.start_span("far", parent=far, start_ns=1_800_000_000_000_000_000, links=[far])
    span.add_link(far.traceparent, {"why": "because"})
    assert rollscope.current_span() is None
    span.end(1_800_000_001_000_000_000)
    got = seen.span("far")
    assert (got.trace_id, got.parent_span_id, got.duration_ns) == (far.trace_id, far.span_id, 1_000_000_000)
    assert got.links == [(far.trace_id, far.span_id)] * 2
    rollscope.start_span("backwards", start_ns=2_000_000_000_000_000_000).end(1)
    assert seen.span("backwards").duration_ns == 0


def test_exceptions_are_the_status_and_pass_through(seen):
    with pytest.raises(ValueError, match="bad"):
        with rollscope.span("fails"):
            raise ValueError("bad")
    got = seen.span("fails")
    assert (got.status, got.message) == ("error", "ValueError: bad")
    event = got.events[0]
    assert event.name == "exception" and event.attributes["exception.type"] == "ValueError"
    assert "raise ValueError" in event.attributes["exception.stacktrace"]


def test_cancellation_and_interrupt_close_spans(seen):
    async def work():
        with rollscope.span("cancelled"):
            await asyncio.sleep(60)

    async def main():
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    with pytest.raises(KeyboardInterrupt):
        with rollscope.span("interrupted"):
            raise KeyboardInterrupt
    assert (seen.span("cancelled").status, seen.span("cancelled").message) == ("error", "cancelled")
    assert seen.span("interrupted").message == "KeyboardInterrupt"


def test_tasks_and_threads_have_their_own_current_span(seen):
    async def sample(n):
        with rollscope.span(f"sample {n}"):
            await asyncio.sleep(0)
            with rollscope.span(f"child {n}"):
                await asyncio.sleep(0)

    async def main():
        with rollscope.span("root"):
            await asyncio.gather(*(sample(n) for n in range(20)))

    asyncio.run(main())
    spans = {s.name: s for s in seen.spans}
    for n in range(20):
        assert spans[f"child {n}"].parent_span_id == spans[f"sample {n}"].span_id
        assert spans[f"sample {n}"].parent_span_id == spans["root"].span_id

    with rollscope.span("outer"):
        context = contextvars.copy_context()
        alone = threading.Thread(target=lambda: rollscope.span("alone").end())
        inside = threading.Thread(target=lambda: context.run(lambda: rollscope.span("inside").end()))
        for thread in (alone, inside):
            thread.start()
            thread.join()
    assert seen.span("alone").parent_span_id is None
    assert seen.span("inside").parent_span_id == seen.span("outer").span_id


def test_many_threads_lose_nothing(seen):
    def work():
        for i in range(2000):
            with rollscope.span("s", {"i": i}):
                rollscope.event("e")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen.spans) == 16_000
    assert all(len(s.events) == 1 for s in seen.spans)


def test_decorators(seen):
    @rollscope.traced
    def plain(a):
        return a + 1

    @rollscope.traced("named", phase="tool", attrs=lambda a: {"a": a})
    def named(a):
        return a

    @rollscope.traced(attrs={"k": "v"})
    async def coroutine():
        rollscope.event("inside")
        return 5

    @rollscope.traced("gen")
    def generator():
        rollscope.event("one")
        got = yield 1
        rollscope.event("two", {"got": got})
        try:
            yield 2
        except KeyError:
            yield 3
        return "end"

    @rollscope.traced("agen")
    async def agenerator():
        for i in range(3):
            rollscope.event(f"{i}")
            yield i

    assert plain(1) == 2 and named(4) == 4 and asyncio.run(coroutine()) == 5
    assert asyncio.iscoroutinefunction(coroutine) and plain.__name__ == "plain"
    running = generator()
    assert next(running) == 1 and rollscope.current_span() is None
    assert running.send("x") == 2 and running.throw(KeyError()) == 3
    with pytest.raises(StopIteration) as stop:
        next(running)
    assert stop.value.value == "end"

    async def consume():
        return [i async for i in agenerator()]

    assert asyncio.run(consume()) == [0, 1, 2]
    abandoned = generator()
    next(abandoned)
    abandoned.close()
    assert [s.name.rsplit(".")[-1] for s in seen.spans] == ["plain", "named", "coroutine", "gen", "agen", "gen"]
    assert seen.span("named").attributes == {"rl.phase": "tool", "a": 4}
    first, second = (s for s in seen.spans if s.name == "gen")
    assert [e.name for e in first.events] == ["one", "two"] and first.events[1].attributes == {"got": "x"}
    assert second.status == "unset"
    assert len(seen.span("agen").events) == 3

    @rollscope.traced("breaks", attrs=lambda: 1 / 0)
    def breaks():
        raise LookupError("yes")

    with pytest.raises(LookupError):
        breaks()
    assert seen.span("breaks").message == "LookupError: yes"


def test_levels(seen):
    rollscope.set_level(1)
    with rollscope.span("important"):
        with rollscope.span("detail", level=3) as detail:
            assert not detail.is_recording()
            detail.set("a", 1).update({"b": 2})
            with rollscope.span("inner"):
                rollscope.event("skipped", level=2)
    rollscope.set_level(0)
    with rollscope.span("nothing"):
        rollscope.event("nothing")
    rollscope.set_level(3)
    assert rollscope.get_level() == 3
    assert [s.name for s in seen.spans] == ["inner", "important"]
    assert seen.span("inner").parent_span_id == seen.span("important").span_id
    assert seen.span("inner").events == []


def test_context_travels(seen):
    with rollscope.span("here") as span:
        headers = rollscope.inject()
        assert headers == {"traceparent": f"00-{span.trace_id}-{span.span_id}-01"}
    context = rollscope.extract({"Traceparent": headers["traceparent"], "TraceState": "a=b"})
    assert (context.trace_id, context.span_id, context.trace_state) == (span.trace_id, span.span_id, "a=b")
    with rollscope.attach(headers):
        with rollscope.span("there"):
            assert rollscope.current_span().trace_id == span.trace_id
    assert seen.span("there").parent_span_id == span.span_id
    for bad in (None, {}, {"traceparent": "x"}, {"traceparent": 5}, {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
                {"traceparent": "ff-" + "1" * 32 + "-" + "1" * 16 + "-01"}):
        assert rollscope.extract(bad) is None
    assert rollscope.inject({"a": "b"}) == {"a": "b"}


def test_events_without_a_span_are_instants_and_many_events_are_bounded(seen):
    rollscope.event("alone", {"a": 1})
    alone = seen.span("alone")
    assert alone.state == "instant" and alone.duration_ns == 0 and alone.start_attributes == {"a": 1}
    with rollscope.span("busy"):
        for i in range(5000):
            rollscope.event("e", {"i": i})
    busy = seen.span("busy")
    assert len(busy.events) == 4096
    rest = [s for s in seen.spans if s.state == "instant" and s.name == "e"]
    assert len(rest) == 5000 - 4096 and rest[0].parent_span_id == busy.span_id


def test_spans_that_never_end_are_forgotten_without_harm(seen):
    for _ in range(1000):
        rollscope.start_span("lost")
    gc.collect()
    assert seen.spans == []


def test_a_name_outlives_the_string_it_came_as(seen):
    names = lambda: ("".join(["name ", str(n), "ü" * (n % 3)]) for n in range(2000))
    spans = [rollscope.start_span(name) for name in names()]
    gc.collect()
    # Where the strings were, if nobody has kept them.
    others = ["".join(["other", str(n), "ä" * (n % 3)]) for n in range(4000)]
    for span in spans:
        span.end()
    assert [s.name for s in seen.spans] == list(names()) and len(others) == 4000
    rollscope.start_span("ü" * 1000).end()
    assert seen.spans[-1].name.strip("ü") == "" and 1000 < len(seen.spans[-1].name.encode()) <= 1024


def test_ids_and_clock_repeat_in_tests():
    from rollscope.testing import EPOCH_NS, capture

    def once():
        with capture() as seen:
            with rollscope.span("a"):
                seen.advance(2)
        return seen.spans[0]

    first, second = once(), once()
    assert (first.span_id, first.start_ns) == (second.span_id, second.start_ns)
    assert first.start_ns == EPOCH_NS and first.duration_ns >= 2_000_000_000


def test_opentelemetry_joins():
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from rollscope import _core
    from rollscope.testing import capture

    tracer = TracerProvider().get_tracer("t")
    with capture() as seen:
        assert rollscope.bridge_opentelemetry()
        try:
            with tracer.start_as_current_span("theirs") as theirs:
                with rollscope.span("ours") as ours:
                    assert trace.get_current_span() is ours
                    with tracer.start_as_current_span("inner") as inner:
                        assert inner.parent.span_id == int(ours.span_id, 16)
                        assert inner.get_span_context().trace_id == int(ours.trace_id, 16)
                assert trace.get_current_span() is theirs
            assert seen.span("ours").parent_span_id == f"{theirs.get_span_context().span_id:016x}"
            with rollscope.attach(None):
                with rollscope.span("root"):
                    pass
            assert seen.span("root").parent_span_id is None
        finally:
            _core.drop_bridge()
