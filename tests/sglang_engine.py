"""An SGLang server without a model: SGLang's own tracing, driven as its tokenizer manager and its schedulers drive it.

`sglang/srt/observability/trace.py` and `req_time_stats.py` are SGLang's, from its wheel. What they import and what needs a GPU
is faked here (`stub`), and so is the clock: the engine lives in the time that its trainer gives it, so that a step of a minute takes
milliseconds. The main process is the HTTP server with the tokenizer manager. Each rank of the scheduler is a process of its own and
gets the request's `time_stats` pickled, as SGLang sends them.

    python sglang_engine.py FOLDER_OF_THE_WHEEL ENDPOINT RANKS [prefill|decode]

Every line on standard input is a JSON list of requests: `rid`, `at` (seconds since 1970), `prompt`, `output` and `cached` tokens,
`pace` (seconds per decode step), and perhaps `headers`, `abort`, `room` (of a disaggregated request) and `ready` (when its KV cache
has come from the prefill side). The answer is one line: for every `rid`, its `meta_info`.
"""

import enum
import json
import multiprocessing
import pickle
import sys
import time
import types

PREFILL_S_PER_TOKEN = 0.001
TRANSFER_S = 0.08
AT_ONCE = 4


class Clock:
    """What the two modules know as `time`."""

    # `perf_counter` starts somewhere else on every machine.
    BOOT = 1_789_000_000.0

    def __init__(self):
        # SGLang seeds its ids with it.
        self.now = time.time()

    def time(self):
        return self.now

    def time_ns(self):
        return int(self.now * 1e9)

    def perf_counter(self):
        return self.now - self.BOOT


class ForwardMode(enum.Enum):
    """As `sglang.srt.model_executor.forward_batch_info` has it, as far as tracing asks."""

    EXTEND, DECODE, PREBUILT = "extend", "decode", "prebuilt"

    def is_decode(self):
        return self is ForwardMode.DECODE

    def is_prefill(self):
        return self is ForwardMode.EXTEND

    def is_prebuilt(self):
        return self is ForwardMode.PREBUILT


class DisaggregationMode(enum.Enum):
    NULL, PREFILL, DECODE = "null", "prefill", "decode"


def stub(folder):
    """Makes the two modules importable without torch and the rest of SGLang; returns them and the clock they go by."""
    def module(name, path=None, **names):
        made = types.ModuleType(name)
        made.__dict__.update(names)
        if path:
            made.__path__ = [f"{folder}/{path}"]
        sys.modules[name] = made

    # Packages whose own `__init__` would import torch.
    for name in ("sglang", "sglang.srt", "sglang.srt.observability"):
        module(name, name.replace(".", "/"))
    resources = types.SimpleNamespace(trace_level=None)
    module("sglang.srt.runtime_context", get_resources=lambda: resources)
    module("sglang.srt.utils", "none", get_int_env_var=lambda name, default: default, get_bool_env_var=lambda name: False)
    module("sglang.srt.utils.poll_timer", PollTimer=object)
    module("sglang.srt.disaggregation", "none")
    module("sglang.srt.disaggregation.utils", DisaggregationMode=DisaggregationMode)
    module("sglang.srt.model_executor", "none")
    module("sglang.srt.model_executor.forward_batch_info", ForwardMode=ForwardMode)
    module("sglang.srt.observability.metrics_collector", EncoderMetricsCollector=object, SchedulerMetricsCollector=object,
           TokenizerMetricsCollector=object)
    module("sglang.srt.managers", "none")
    module("sglang.srt.managers.schedule_batch", BaseFinishReason=type("BaseFinishReason", (), {}))
    from sglang.srt.observability import req_time_stats, trace

    clock = Clock()
    trace.time = req_time_stats.time = clock
    return trace, req_time_stats, clock


def flush():
    from opentelemetry import trace

    assert trace.get_tracer_provider().force_flush()


class Request:
    """What a scheduler keeps of a request (`Req`)."""

    def __init__(self, asked, time_stats):
        self.__dict__.update(asked)
        self.time_stats = time_stats
        self.left = self.output


def arrive(work, stats, clock, role):
    """The requests of a wave, and when each is in the queue for its first forward."""
    arrivals = []
    for asked, state in sorted(work, key=lambda pair: pair[0]["at"]):
        clock.now = asked["at"] + 0.003
        request = Request(asked, stats.SchedulerReqTimeStats.new_from_obj(pickle.loads(state)))
        request.time_stats.set_scheduler_recv_time()
        clock.now += 0.001
        if role is DisaggregationMode.PREFILL:
            request.time_stats.set_prefill_bootstrap_queue_entry_time()
            clock.now += 0.004
            request.time_stats.set_bootstrap_done_time()
        elif role is DisaggregationMode.DECODE:
            request.time_stats.set_decode_prealloc_queue_entry_time()
            clock.now += 0.004
            request.time_stats.set_bootstrap_done_time()
            request.time_stats.set_decode_transfer_queue_entry_time()
            clock.now = max(clock.now, asked["ready"])
        request.time_stats.set_wait_queue_entry_time()
        arrivals.append((clock.now, request))
    return sorted(arrivals, key=lambda pair: pair[0])


def serve(work, stats, clock, role):
    """One wave of requests through a scheduler with continuous batching; returns what became of each."""
    done, running, pace = {}, [], work[0][0]["pace"]
    arrivals = arrive(work, stats, clock, role)
    now = arrivals[0][0]

    def schedule(batch, mode):
        stats.set_schedule_time_batch(types.SimpleNamespace(reqs=batch, forward_mode=mode))

    def finish(request):
        request.time_stats.set_completion_time()
        done[request.rid] = {"end": clock.now, "first": request.first, "queue_time": request.time_stats.get_queueing_time()}

    while arrivals or running:
        if not running:
            now = max(now, arrivals[0][0])
        new = []
        while arrivals and arrivals[0][0] <= now and len(running) + len(new) < AT_ONCE:
            request = arrivals.pop(0)[1]
            if request.__dict__.get("abort"):
                clock.now = now
                request.time_stats.trace_ctx.abort(abort_info={"reason": "The request is aborted by a client"})
                done[request.rid] = {"aborted": True, "end": now}
                continue
            new.append(request)
        clock.now = now
        if new:
            stats.set_time_batch(new, "set_forward_entry_time")
            schedule(new, ForwardMode.PREBUILT if role is DisaggregationMode.DECODE else ForwardMode.EXTEND)
            now += 0.001 if role is DisaggregationMode.DECODE else PREFILL_S_PER_TOKEN * sum(r.prompt - r.cached for r in new)
            clock.now = now
            for request in new:
                request.first = now
                if role is DisaggregationMode.DECODE:
                    request.time_stats.set_decode_prebuilt_finish_time()
                else:
                    request.time_stats.set_prefill_finished_time()
                if role is DisaggregationMode.PREFILL:
                    # The cache travels while the next batch is computed.
                    request.time_stats.set_prefill_transfer_queue_entry_time()
                    clock.now = now + TRANSFER_S
                    request.time_stats.set_prefill_kv_transfer_finish_time()
                    finish(request)
                    clock.now = now
            if role is not DisaggregationMode.PREFILL:
                running += new
        elif running:
            schedule(running, ForwardMode.DECODE)
            now += pace
            clock.now = now
            for request in running:
                request.time_stats.set_last_decode_finish_time()
                request.left -= 1
                if request.left == 0:
                    finish(request)
            running = [r for r in running if r.left]
    return done


def scheduler(folder, endpoint, tp_rank, role, pipe):
    trace, stats, clock = stub(folder)
    trace.process_tracing_init(endpoint, None)
    label = {"prefill": "Prefill Scheduler", "decode": "Decode Scheduler"}.get(role.value, "Scheduler")
    trace.trace_set_thread_info(label, tp_rank, None, None)
    while (work := pipe.recv()) is not None:
        done = serve(work, stats, clock, role)
        flush()
        pipe.send(done)


def main(folder, endpoint, ranks, role="null"):
    trace, stats, clock = stub(folder)
    role = DisaggregationMode(role)
    context = multiprocessing.get_context("spawn")
    schedulers = []
    for rank in range(int(ranks)):
        pipe, theirs = context.Pipe()
        process = context.Process(target=scheduler, args=(folder, endpoint, rank, role, theirs))
        process.start()
        schedulers.append((process, pipe))
    trace.process_tracing_init(endpoint, None)
    trace.trace_set_thread_info({"prefill": "PrefillTokenizer", "decode": "DecodeTokenizer"}.get(role.value, "Tokenizer"))
    attrs = trace.SpanAttributes
    for line in sys.stdin:
        asked = sorted(json.loads(line), key=lambda request: request["at"])
        states, work = {}, []
        for request in asked:
            clock.now = request["at"]
            stats.calibrate_time_diff()
            state = states[request["rid"]] = stats.APIServerReqTimeStats(disagg_mode=role)
            state.init_trace_ctx(request["rid"], request.get("room"), trace.extract_trace_headers(request.get("headers", {})))
            state.set_created_time()
            clock.now += 0.001
            state.set_tokenize_finish_time()
            state.set_api_server_dispatch_time()
            sent = pickle.dumps(state)
            clock.now += 0.001
            state.set_api_server_dispatch_finish_time()
            work.append((request, sent))
        for _, pipe in schedulers:
            pipe.send(work)
        [done, *_] = [pipe.recv() for _, pipe in schedulers]
        answers = {}
        for request in asked:
            rid, state, result = request["rid"], states[request["rid"]], done[request["rid"]]
            clock.now = result["end"] + 0.002
            if result.get("aborted"):
                state.set_finished_time()
                answers[rid] = {"id": rid, "finish_reason": {"type": "abort"}, "end": clock.now}
                continue
            state.set_first_token_time(result["first"] - clock.BOOT)
            # As `TokenizerManager.convert_to_span_attrs`.
            state.set_finished_time(span_attrs={
                attrs.GEN_AI_USAGE_COMPLETION_TOKENS: request["output"], attrs.GEN_AI_USAGE_PROMPT_TOKENS: request["prompt"],
                attrs.GEN_AI_USAGE_CACHED_TOKENS: request["cached"], attrs.GEN_AI_REQUEST_ID: rid,
                attrs.GEN_AI_REQUEST_MAX_TOKENS: 4096, attrs.GEN_AI_REQUEST_TEMPERATURE: 1.0,
                attrs.GEN_AI_RESPONSE_MODEL: "Qwen/Qwen3-8B", attrs.GEN_AI_RESPONSE_FINISH_REASONS: ["stop"]})
            answers[rid] = {"id": rid, "finish_reason": {"type": "stop"}, "prompt_tokens": request["prompt"],
                            "completion_tokens": request["output"], "cached_tokens": request["cached"],
                            "queue_time": result["queue_time"], "e2e_latency": state.get_e2e_latency(), "end": clock.now,
                            **state.convert_to_output_meta_info(completion_tokens=request["output"])}
        flush()
        print(json.dumps(answers), flush=True)
    for process, pipe in schedulers:
        pipe.send(None)
        process.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
