"""What recording costs the caller, in one process and one run, beside OpenTelemetry's SDK and an empty context manager.

    python python/bench/hot_path.py [--json]

Five attributes a span everywhere. OpenTelemetry has its `BatchSpanProcessor` and an exporter that throws everything away; we send
to the address in ROLLSCOPE_ENDPOINT if there is one, else to nowhere through the same code. A figure is the median of many
rounds; the rounds of all candidates take turns, so that a busy machine is busy for all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time

import rollscope
from rollscope import _core, _run, _settings, sglang, slime

ROUNDS, CALLS = 41, 1000


class Empty:
    __slots__ = ()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


class Sample:
    def __init__(self, index, group):
        self.index, self.group_index, self.trace = index, group, None


def start() -> None:
    if os.environ.get("ROLLSCOPE_ENDPOINT"):
        return
    settings = _settings.settings(None, "drop")
    settings["resource"] = list(_settings.resource("bench").items())
    _core.configure(settings)
    _run._configured_for = "drop"


def candidates():
    span, event = rollscope.span, rollscope.event
    empty = Empty()
    sample, group = Sample(1, 0), [Sample(i, 1) for i in range(64)]
    context = sglang.TraceReqContext("request")
    context.trace_req_start()

    def floor():
        for _ in range(CALLS):
            with empty:
                _ = {"tokens": 12, "loss": 2.5, "model": "q", "done": True, "text": "some text"}

    def ours():
        for _ in range(CALLS):
            with span("generate", {"tokens": 12, "loss": 2.5, "model": "q", "done": True, "text": "some text"}):
                pass

    def ours_updated():
        for _ in range(CALLS):
            with span("generate", {"tokens": 12, "loss": 2.5}) as s:
                s.update({"model": "q", "done": True, "text": "some text"})

    def our_event():
        with span("parent"):
            for _ in range(CALLS):
                event("mark", {"tokens": 12, "loss": 2.5, "model": "q", "done": True, "text": "some text"})

    def slime_shape():
        for _ in range(CALLS):
            with slime.trace_span(
                sample, "generate", attrs={"tokens": 12, "loss": 2.5, "model": "q", "done": True, "text": "some text"}
            ):
                pass
        sample.trace["events"].clear()

    def slime_group():
        for _ in range(CALLS // 50):
            with slime.trace_span(
                group, "group", attrs={"tokens": 12, "loss": 2.5, "model": "q", "done": True, "text": "some text"}
            ):
                pass
        for member in group:
            member.trace["events"].clear()

    def group_floor():
        # The dicts that a dump holds of such a span, and nothing else: no ids, no times, nothing sent.
        attrs = {"tokens": 12, "loss": 2.5, "model": "q", "done": True, "text": "some text"}
        event = dict.fromkeys(("type", "name", "ts", "trace_id", "sample_id", "group_id", "attempt", "span_id"))
        for _ in range(CALLS // 50):
            for member in group:
                events = member.trace["events"]
                started = event.copy()
                started["attrs"] = attrs.copy()
                events.append(started)
                events.append(event.copy())
        for member in group:
            member.trace["events"].clear()

    def sglang_slice():
        for _ in range(CALLS):
            context.trace_slice_start("decode_forward", 1)
            context.trace_slice_end(
                "decode_forward", 1, attrs={"tokens": 12, "loss": 2.5, "model": "q", "done": True, "text": "some text"}
            )

    async def bare():
        return None

    decorated = rollscope.traced("call", attrs={"tokens": 12, "loss": 2.5, "model": "q", "done": True, "text": "some text"})(bare)

    async def call_bare():
        for _ in range(CALLS):
            await bare()

    async def call_decorated():
        for _ in range(CALLS):
            await decorated()

    def level_off():
        rollscope.set_level(0)
        ours()
        rollscope.set_level(3)

    found = {
        "empty context manager": (floor, CALLS),
        "our span": (ours, CALLS),
        "our span, three by update": (ours_updated, CALLS),
        "our event": (our_event, CALLS),
        "our span, level 0": (level_off, CALLS),
        "slime-shaped span": (slime_shape, CALLS),
        "slime-shaped span, group of 64": (slime_group, CALLS // 50),
        "the same, only its dicts": (group_floor, CALLS // 50),
        "SGLang-shaped slice": (sglang_slice, CALLS),
        "async call, bare": (lambda: asyncio.run(call_bare()), CALLS),
        "async call, decorated": (lambda: asyncio.run(call_decorated()), CALLS),
    }
    try:
        found["OpenTelemetry span"], found["OpenTelemetry span, three by set_attributes"] = opentelemetry()
    except ImportError:
        print("OpenTelemetry is not installed: no comparison", file=sys.stderr)
    return found


def opentelemetry():
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Drop(SpanExporter):
        def export(self, spans):
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Drop()))
    tracer = provider.get_tracer("bench")

    def run():
        for _ in range(CALLS // 10):
            with tracer.start_as_current_span(
                "generate", attributes={"tokens": 12, "loss": 2.5, "model": "q", "done": True, "text": "some text"}
            ):
                pass

    def updated():
        for _ in range(CALLS // 10):
            with tracer.start_as_current_span("generate", attributes={"tokens": 12, "loss": 2.5}) as s:
                s.set_attributes({"model": "q", "done": True, "text": "some text"})

    return (run, CALLS // 10), (updated, CALLS // 10)


def import_seconds() -> float:
    code = "import time; t = time.perf_counter(); import rollscope; print(time.perf_counter() - t)"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ROLLSCOPE_", "OTEL_"))}
    return min(float(subprocess.check_output([sys.executable, "-c", code], env=environment)) for _ in range(5))


def measure() -> dict[str, float]:
    start()
    runs = {name: [] for name in candidates()}
    work = candidates()
    for _ in range(ROUNDS):
        for name, (function, calls) in work.items():
            begin = time.perf_counter_ns()
            function()
            runs[name].append((time.perf_counter_ns() - begin) / calls)
    figures = {name: statistics.median(times) for name, times in runs.items()}
    best = {f"{name} (best)": min(times) for name, times in runs.items()}
    before = rollscope.stats()
    for _ in range(200):
        work["our span"][0]()
    rollscope.flush(60)
    after = rollscope.stats()
    recorded = after["recorded"] - before["recorded"]
    figures["background thread, CPU a span"] = (after["thread_cpu_ns"] - before["thread_cpu_ns"]) / max(recorded, 1)
    figures["import"] = import_seconds() * 1e9
    return {**figures, **best}


LIMITS = {
    "our span": 1200,
    "our span, three by update": 1200,
    "our event": 500,
    "slime-shaped span, group of 64": 30_000,
    "background thread, CPU a span": 1000,
    "import": 50e6,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measure()
    if options.json:
        print(json.dumps({name: round(ns, 1) for name, ns in figures.items()}))
        return
    over = figures["async call, decorated"] - figures["async call, bare"]
    theirs = figures.get("OpenTelemetry span")
    print(f"{'':46}{'median':>12}{'best':>12}   beside")
    for name, ns in figures.items():
        if name.endswith("(best)"):
            continue
        beside = []
        if name in LIMITS:
            beside.append(f"{ns / LIMITS[name]:.2f} of the limit ({LIMITS[name] / 1000:g} us)")
        peer = figures.get("OpenTelemetry span, three by set_attributes") if name == "our span, three by update" else theirs
        if name in ("our span", "our span, three by update", "slime-shaped span", "SGLang-shaped slice") and peer:
            beside.append(f"OpenTelemetry takes {peer / ns:.0f} times as long")
        best = figures.get(f"{name} (best)")
        print(f"{name:46}{ns / 1000:>9.3f} us{(f'{best / 1000:.3f} us' if best else ''):>12}   {'; '.join(beside)}")
    print(f"{'async call, what decorating adds':46}{over / 1000:>9.3f} us{'':>12}   {over / 1500:.2f} of the limit (1.5 us)")


if __name__ == "__main__":
    main()
