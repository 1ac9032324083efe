"""What others see of a carrier: the same as of slime's own, to the byte, whoever looks and whenever.

Readers written in C look straight into dicts and lists (pickle, json, orjson, msgpack), so the carriers are compared with plain ones,
made here as slime makes them, by what these readers make of both."""

import asyncio
import copy
import dataclasses
import gc
import io
import itertools
import json
import marshal
import pickle
import random
import subprocess
import sys
import threading
import tracemalloc
import weakref
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context

import pytest
from rollscope.slime import TraceHandle, bind_trace, trace_event, trace_next_attempt, trace_span
from rollscope.testing import EPOCH_NS


@dataclass
class Sample:
    index: int | str | None = 0
    group_index: int | None = 0
    trace: dict | None = field(default=None)
    metadata: dict = field(default_factory=dict)

    def to_dict(self):
        """As slime's: past every attribute of the class."""
        return self.__dict__.copy()


class Slime:
    """slime's recording in plain Python, with the ids and times that `rollscope.testing.capture` gives."""

    def __init__(self):
        self.ids, self.clock, self.open = itertools.count(1), itertools.count(), [{}]

    def new_id(self):
        return f"{next(self.ids):032x}"

    def now(self):
        return (EPOCH_NS + 1000 * next(self.clock)) / 1e9

    def bind(self, sample):
        carrier = sample.trace if sample.trace is not None else {}
        carrier.setdefault("version", 1)
        if "trace_id" not in carrier:
            carrier["trace_id"] = self.new_id()
        carrier.setdefault("events", [])
        for key, value in (("sample_id", sample.index), ("group_id", sample.group_index)):
            if value is not None or key not in carrier:
                carrier[key] = value
        carrier.setdefault("attempt", 0)
        sample.trace = carrier
        return carrier

    def put(self, carrier, kind, name, now, span_id, parent, attrs):
        entry = {"type": kind, "name": name, "ts": now, **{k: carrier[k] for k in ("trace_id", "sample_id", "group_id", "attempt")}}
        if span_id is not None:
            entry["span_id"] = span_id
        if parent is not None:
            entry["parent_span_id"] = parent
        if attrs:
            entry["attrs"] = dict(attrs)
        carrier["events"].append(entry)

    @contextmanager
    def span(self, samples, name, attrs, late):
        carriers, now, inside = [self.bind(sample) for sample in samples], self.now(), dict(self.open[-1])
        for carrier in carriers:
            span_id, parent = self.new_id(), self.open[-1].get(carrier["trace_id"])
            inside[carrier["trace_id"]] = span_id
            self.put(carrier, "span_start", name, now, span_id, parent, attrs)
        self.open.append(inside)
        end = dict(late)
        try:
            yield
        except Exception as error:
            end |= {"error_type": type(error).__name__, "error_message": str(error)}
            raise
        finally:
            self.open.pop()
            now = self.now()
            for carrier in carriers:
                self.put(carrier, "span_end", name, now, inside[carrier["trace_id"]], None, end)

    def event(self, samples, name, attrs):
        carriers, now = [self.bind(sample) for sample in samples], self.now()
        for carrier in carriers:
            self.put(carrier, "event", name, now, None, self.open[-1].get(carrier["trace_id"]), attrs)

    def next_attempt(self, samples):
        for carrier in [self.bind(sample) for sample in samples]:
            carrier["attempt"] += 1
            now, parent = self.now(), self.open[-1].get(carrier["trace_id"])
            self.put(carrier, "event", "attempt_start", now, None, parent, {"attempt": carrier["attempt"]})


class Ours:
    @contextmanager
    def span(self, samples, name, attrs, late):
        with trace_span(samples, name, attrs=attrs) as span:
            span.update(late)
            yield

    def event(self, samples, name, attrs):
        trace_event(samples, name, attrs=attrs)

    def next_attempt(self, samples):
        for sample in samples:
            trace_next_attempt(sample)


ATTRS = [None, {}, {"a": 1}, {"tokens": 12, "loss": 2.5, "model": "q", "done": True, "text": "some text"}, {"deep": {"list": [1, 2]}}]


def samples_of(seed):
    """Of every kind that a dump has: without a trace, with one of an earlier process, with keys of others."""
    draw = random.Random(seed)
    made = [Sample(i, 3) for i in range(draw.randrange(1, 9))]
    made[0].index = draw.choice([0, "text", None, 1 << 70])
    made[-1].group_index = draw.choice([3, None, "g"])
    if draw.random() < 0.5:
        made[-1].trace = {"attempt": 2, "mine": [1], "events": [{"type": "event", "name": "earlier", "ts": 1.0}], "trace_id": "ab" * 16}
    return made


def play(seed, tracer, samples):
    """Runs a random program: nested spans over groups, parts of them and single samples, events, attempts, errors."""
    draw = random.Random(seed)

    def some():
        return draw.sample(samples, draw.choice([1, len(samples), draw.randrange(1, len(samples) + 1)]))

    def block(depth):
        for _ in range(draw.randrange(1, 4)):
            what = draw.random()
            if what < 0.2:
                tracer.event(some(), f"event {depth}", draw.choice(ATTRS))
            elif what < 0.3:
                tracer.next_attempt(some()[:2])
            elif what < 0.4 and depth:
                raise ValueError("planned")
            elif depth < 4:
                try:
                    with tracer.span(some(), f"span {depth}", draw.choice(ATTRS), draw.choice(ATTRS[1:])):
                        block(depth + 1)
                except ValueError:
                    pass

    block(0)


def python_pickle(value):
    out = io.BytesIO()
    pickle._Pickler(out, 4).dump(value)
    return out.getvalue()


def with_module(name, dump):
    def read(value):
        return dump(pytest.importorskip(name), value)

    return read


def by_torch(torch, value):
    out = io.BytesIO()
    torch.save(value, out)
    return torch.load(io.BytesIO(out.getvalue()), weights_only=True)


READERS = {
    **{f"pickle {protocol}": lambda value, protocol=protocol: pickle.dumps(value, protocol) for protocol in range(6)},
    "pickle in Python": python_pickle,
    "json": json.dumps,
    "json, sorted": lambda value: json.dumps(value, sort_keys=True),
    "json in Python": lambda value: "".join(json.encoder._make_iterencode(
        {}, None, json.encoder.py_encode_basestring, None, repr, ":", ",", False, False, False)(value, 0)),
    "marshal": lambda value: marshal.dumps(value, 0),
    "repr": repr,
    "copy": lambda value: pickle.dumps(copy.copy(value)),
    "deepcopy": lambda value: pickle.dumps(copy.deepcopy(value)),
    "orjson": with_module("orjson", lambda orjson, value: orjson.dumps(value)),
    "msgpack": with_module("msgpack", lambda msgpack, value: msgpack.packb(value)),
    "cloudpickle, Ray's": with_module("ray.cloudpickle", lambda cloudpickle, value: cloudpickle.dumps(value)),
    "torch, without code": with_module("torch", by_torch),
    "dict": lambda value: [dict(one) for one in value],
    "two stars": lambda value: [{**one} for one in value],
    "union": lambda value: [one | {"more": 1} for one in value],
    "items": lambda value: [list(one.items()) for one in value],
    "keys and values": lambda value: [(list(one), list(one.values()), len(one), "events" in one) for one in value],
    "get": lambda value: [(one.get("events"), one.get("missing", 5), dict.__getitem__(one, "events")) for one in value],
    "lists": lambda value: [
        (len(e), list(e), [*e], e[:], e[1:3], e[::-1], e[-1], e + [1], [1] + e, e * 2, list(reversed(e)), e.copy(), e.index(e[-1]))
        for e in (one["events"] for one in value)
    ],
    "sorted": lambda value: [sorted(one["events"], key=lambda entry: (entry["ts"], repr(entry))) for one in value],
    "types": lambda value: [
        (type(one), type(one["events"]), *((type(entry), *(type(part) for part in entry.values())) for entry in one["events"]))
        for one in value
    ],
}
#: How a reader gets at the carriers of samples.
WAYS = {
    "attribute": lambda samples: [sample.trace for sample in samples],
    "vars": lambda samples: [vars(sample)["trace"] for sample in samples],
    "to_dict": lambda samples: [sample.to_dict()["trace"] for sample in samples],
    "asdict": lambda samples: [dataclasses.asdict(sample)["trace"] for sample in samples],
    "replace": lambda samples: [dataclasses.replace(sample).trace for sample in samples],
    "handle": lambda samples: [bind_trace(sample).carrier for sample in samples],
    "pickled sample": lambda samples: [sample.trace for sample in pickle.loads(pickle.dumps(samples))],
    "copied sample": lambda samples: [copy.copy(sample).trace for sample in samples],
    "deeply copied sample": lambda samples: [sample.trace for sample in copy.deepcopy(samples)],
    "state of a sample": lambda samples: [sample.__reduce_ex__(4)[2]["trace"] for sample in samples],
}


def both(seed, seen):
    ours, slimes = samples_of(seed), samples_of(seed)
    play(seed, Ours(), ours)
    play(seed, Slime(), slimes)
    return ours, slimes


@pytest.mark.parametrize("seed", range(60))
def test_a_carrier_is_what_slime_writes(seed, seen):
    ours, slimes = both(seed, seen)
    for mine, theirs in zip(ours, slimes, strict=True):
        assert mine.trace == theirs.trace
    # Equal bytes: also the same objects in the same places, and no dict that two samples share.
    for protocol in range(6):
        assert pickle.dumps(ours, protocol) == pickle.dumps(slimes, protocol)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("way", WAYS)
def test_every_reader_sees_the_same_by_every_way(reader, way, seen):
    # A seed with samples of all kinds, and entries of all kinds.
    ours, slimes = both(17, seen)
    expected = READERS[reader](WAYS[way](slimes))
    assert READERS[reader](WAYS[way](ours)) == expected
    # Nothing depends on who has looked before.
    assert READERS[reader](WAYS["attribute"](ours)) == READERS[reader](WAYS["attribute"](slimes))


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_inside_a_group_span_sees_its_start(reader, seen):
    ours, slimes = [Sample(i, 1) for i in range(4)], [Sample(i, 1) for i in range(4)]
    tracer, model = Ours(), Slime()
    held = None
    for name in ("first", "second"):
        attrs = {"a": 1, "deep": {"list": [1, 2]}}
        with tracer.span(ours, name, attrs, {"b": 2}), model.span(slimes, name, attrs, {"b": 2}):
            assert READERS[reader](WAYS["to_dict"](ours)) == READERS[reader](WAYS["to_dict"](slimes))
            if held is None:
                held = [sample.trace for sample in ours], [sample.trace["events"] for sample in ours]
            tracer.event(ours[2:], "inside", {"c": 3})
            model.event(slimes[2:], "inside", {"c": 3})
        # Who has held on to a carrier, or to its list, sees what came later.
        assert READERS[reader](held[0]) == READERS[reader]([sample.trace for sample in slimes])
        assert [sample.trace["events"] for sample in slimes] == held[1] == [carrier["events"] for carrier in held[0]]


def test_what_others_change_in_a_carrier_stays(seen):
    group = [Sample(i, 1) for i in range(3)]
    with trace_span(group, "group", attrs={"a": 1}) as span:
        group[0].trace["events"][0]["mine"] = True
        group[0].trace["events"][0]["attrs"]["a"] = 2
        group[1].trace["events"].clear()
        group[2].trace["events"].insert(0, {"type": "event", "name": "put in front"})
    span.end_events[0]["attrs"] = {"changed": 1}
    span.set("late", 5)
    first, second, third = (sample.trace["events"] for sample in group)
    assert first[0]["mine"] and first[0]["attrs"] == {"a": 2} and third[1]["attrs"] == {"a": 1} and "mine" not in third[1]
    assert list(first[0])[-1] == "mine"
    assert [entry["type"] for entry in second] == ["span_end"]
    assert [entry["name"] for entry in third] == ["put in front", "group", "group"]
    assert [events[-1]["attrs"] for events in (first, second, third)] == [{"changed": 1, "late": 5}, {"late": 5}, {"late": 5}]


def test_errors_and_cancellation_inside_group_spans(seen):
    group = [Sample(i, 1) for i in range(3)]

    async def member(sample):
        with trace_span(sample, "member"):
            await asyncio.sleep(60)

    async def generate():
        with trace_span(group, "group", attrs={"a": 1}):
            await asyncio.gather(*(member(sample) for sample in group))

    async def main():
        task = asyncio.create_task(generate())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    with pytest.raises(KeyboardInterrupt):
        with trace_span(group, "interrupted"):
            raise KeyboardInterrupt
    for sample in group:
        entries = sample.trace["events"]
        assert [(entry["type"], entry["name"]) for entry in entries] == [
            ("span_start", "group"), ("span_start", "member"), ("span_end", "member"), ("span_end", "group"),
            ("span_start", "interrupted"), ("span_end", "interrupted")]
        assert [entry["attrs"]["error_type"] for entry in entries if entry["type"] == "span_end"] == [
            "CancelledError", "CancelledError", "KeyboardInterrupt"]
        assert entries[1]["parent_span_id"] == entries[0]["span_id"]
    assert [span.status for span in seen.spans] == ["error"] * 9


def test_threads_record_and_read_the_same_samples(seen):
    group, rounds, workers = [Sample(i, 1) for i in range(16)], 200, 4
    for sample in group:
        bind_trace(sample)
    failures = []

    def record(worker):
        for number in range(rounds):
            with trace_span(group, f"{worker}/{number}", attrs={"n": number}):
                trace_event(group[number % 16], f"{worker}/{number}/event")

    def read():
        while not done.is_set():
            for sample in pickle.loads(pickle.dumps(group)):
                entries = sample.trace["events"]
                opened = {entry["span_id"] for entry in entries if entry["type"] == "span_start"}
                if any(entry["span_id"] not in opened for entry in entries if entry["type"] == "span_end"):
                    failures.append(entries)
                if list(entries) != json.loads(json.dumps(entries)):
                    failures.append(entries)

    done = threading.Event()
    readers = [threading.Thread(target=read) for _ in range(2)]
    threads = [threading.Thread(target=record, args=(worker,)) for worker in range(workers)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in readers + threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        done.set()
        sys.setswitchinterval(interval)
    for thread in readers:
        thread.join()
    assert not failures
    expected = {f"{worker}/{number}" for worker in range(workers) for number in range(rounds)}
    for sample in group:
        spans = [entry for entry in sample.trace["events"] if entry["type"] != "event"]
        for kind in ("span_start", "span_end"):
            names = [entry["name"] for entry in spans if entry["type"] == kind]
            assert len(names) == len(expected) and set(names) == expected
        for worker in range(workers):
            mine = [entry["name"] for entry in spans if entry["name"].startswith(f"{worker}/")]
            assert mine == [f"{worker}/{number}" for number in range(rounds) for _ in range(2)]


def test_a_fork_inside_a_group_span_has_its_own_carriers(program):
    got = program.run("""
        import json, os
        import rollscope
        from rollscope.slime import trace_event, trace_span
        class Sample:
            def __init__(self, index):
                self.index, self.group_index, self.trace = index, 1, None
        group = [Sample(i) for i in range(3)]
        def types():
            return [[(e["type"], e["name"]) for e in s.trace["events"]] for s in group]
        read, write = os.pipe()
        with trace_span(group, "group", attrs={"a": 1}):
            child = os.fork()
            trace_event(group, "child" if child == 0 else "parent")
        if child == 0:
            os.write(write, json.dumps(types()).encode())
            os._exit(0)
        os.close(write)
        theirs = json.loads(os.read(read, 1 << 16))
        os.waitpid(child, 0)
        print(json.dumps([types(), theirs]))
    """)
    for who, carriers in zip(("parent", "child"), got, strict=True):
        assert carriers == [[["span_start", "group"], ["event", who], ["span_end", "group"]]] * 3


def in_a_worker(samples):
    with trace_span(samples, "worker", attrs={"there": 1}):
        pass
    return samples, [sample.to_dict() for sample in samples]


def test_samples_of_a_group_span_travel_to_a_worker_and_back():
    group = [Sample(i, 1) for i in range(4)]
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        with trace_span(group, "group") as span:
            back, dicts = pool.submit(in_a_worker, group).result()
        for mine, theirs, plain in zip(group, back, dicts, strict=True):
            assert plain == vars(theirs)
            assert theirs.trace["events"][0] == mine.trace["events"][0]
            assert [entry["name"] for entry in mine.trace["events"]] == ["group", "group"]
            assert [entry["name"] for entry in theirs.trace["events"]] == ["group", "worker", "worker"]
            assert theirs.trace["trace_id"] == mine.trace["trace_id"]
    handles = pickle.loads(pickle.dumps(span.handles))
    assert handles == span.handles and all(type(handle) is TraceHandle for handle in handles)


def test_a_dump_is_read_where_rollscope_is_not(tmp_path):
    group = [Sample(i, 1) for i in range(4)]
    with trace_span(group, "group", attrs={"a": 1}):
        inside = [sample.to_dict() for sample in group]
        pickle_of_inside = pickle.dumps(inside)
    after = pickle.dumps([sample.to_dict() for sample in group])
    for number, content in enumerate((pickle_of_inside, after)):
        assert b"rollscope" not in content
        (tmp_path / f"{number}.pickle").write_bytes(content)
    # -I -S: nothing that is installed can be imported.
    code = """
import builtins, json, pickle, sys
class Strict(pickle.Unpickler):
    def find_class(self, module, name):
        raise AssertionError(f"{module}.{name} is not plain data")
print(json.dumps([[s["trace"] for s in Strict(open(name, "rb")).load()] for name in sys.argv[1:]]))
"""
    out = subprocess.run([sys.executable, "-I", "-S", "-c", code, tmp_path / "0.pickle", tmp_path / "1.pickle"],
                         capture_output=True, text=True, check=True).stdout
    opened, closed = json.loads(out)
    assert closed == [sample.trace for sample in group]
    assert [[entry["type"] for entry in trace["events"]] for trace in closed] == [["span_start", "span_end"]] * 4
    assert [trace["events"] for trace in opened] == [trace["events"][:1] for trace in closed]
    assert [entry["trace"] for entry in inside] == closed, "`to_dict` hands out the carrier itself, as with slime"


def test_a_span_keeps_no_sample_alive(seen):
    class Held(Sample):
        pass

    group = [Held(i, 1) for i in range(4)]
    gone = [weakref.ref(sample) for sample in group]
    with trace_span(group, "group", attrs={"a": 1}) as span:
        span.set("b", 2)
    kept = [sample.trace for sample in group]
    del group, span
    gc.collect()
    assert all(sample() is None for sample in gone)
    assert [[entry["type"] for entry in carrier["events"]] for carrier in kept] == [["span_start", "span_end"]] * 4
    # Nor does one carrier keep another.
    others = {id(carrier) for carrier in kept[1:]}
    reached, todo = set(), [kept[0]]
    while todo:
        for found in gc.get_referents(todo.pop()):
            if id(found) not in reached and isinstance(found, (dict, list)):
                reached.add(id(found))
                todo.append(found)
    assert not others & reached


def test_memory_of_a_sample_is_what_its_entries_take():
    def take(tracer):
        group = [Sample(i, 1) for i in range(64)]
        tracer.event(group, "made", None)
        gc.collect()
        tracemalloc.start()
        for _ in range(20):
            with tracer.span(group, "group", ATTRS[3], {}):
                pass
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return used

    take(Ours())
    # Less than a byte more per sample and span: the interpreter's own.
    assert take(Ours()) < take(Slime()) + 64 * 20
