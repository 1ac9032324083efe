"""SGLang's and ROLL's shapes."""

import pickle
import threading

import pytest
import rollscope
from rollscope import _core, roll, sglang
from rollscope.sglang import TraceEvent, TraceNullContext, TraceReqContext, TraceSliceContext

T0 = 1_800_000_000_000_000_000


@pytest.fixture
def serving(seen):
    _core.sglang.initialize(True, None)
    sglang.set_global_trace_level(3)
    yield seen
    _core.sglang.initialize(False, None)


def test_a_request(serving):
    _core.sglang.trace_set_thread_info("scheduler", tp_rank=0, pp_rank=1)
    r = TraceReqContext("7_abcdef0123", bootstrap_room=255, role="prefill", module_name="request",
                        external_trace_header={"traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"})
    r.trace_req_start(T0)
    r.trace_slice_start("prefill_waiting", 1, T0 + 1)
    r.trace_slice_start("inner", 3, T0 + 2)
    r.trace_event("e", 1, T0 + 3, {"a": 1})
    r.trace_slice_end("inner", 3, T0 + 4)
    r.trace_slice_end("prefill_waiting", 1, T0 + 5, attrs={"n": 2})
    r.trace_slice(TraceSliceContext("prefill_forward", T0 + 5, T0 + 9, level=1, attrs={"k": "v"}, events=[TraceEvent("x", T0 + 6, {})]))
    r.trace_set_root_attrs({"late": 1})
    r.trace_set_thread_attrs({"t": 1})
    r.trace_req_finish(T0 + 10, {"done": True})
    s = {x.name: x for x in serving.spans}
    root, thread = s["prefill Req abcdef01"], next(x for n, x in s.items() if n.startswith("scheduler"))
    assert (root.trace_id, root.parent_span_id) == ("ab" * 16, "cd" * 8)
    assert root.attributes == {"rid": "abcdef0123", "module": "sglang::request", "bootstrap_room": "0xff", "late": 1, "done": True}
    assert thread.name.startswith("scheduler [TP 0]  [PP 1] (host:") and thread.parent_span_id == root.span_id
    assert thread.attributes["tp_rank"] == 0 and thread.attributes["thread_label"] == "scheduler" and thread.attributes["t"] == 1
    waiting, forward, inner = s["prefill_waiting"], s["prefill_forward"], s["inner"]
    assert waiting.parent_span_id == forward.parent_span_id == thread.span_id and inner.parent_span_id == waiting.span_id
    assert waiting.links == [] and forward.links == [(waiting.trace_id, waiting.span_id)] and inner.links == []
    assert [e.name for e in inner.events] == ["e"] and [e.name for e in forward.events] == ["x"]
    assert (waiting.start_ns, waiting.end_ns, waiting.attributes) == (T0 + 1, T0 + 5, {"n": 2})
    assert (thread.start_ns, thread.end_ns, root.end_ns) == (T0, T0 + 10, T0 + 10)


def test_levels_modules_and_misuse(serving, caplog):
    # A thread keeps its first name: the one that the test above gives it, where that has run.
    _core.sglang.trace_set_thread_info("scheduler", tp_rank=0, pp_rank=1)
    low = TraceReqContext("a", trace_level=1)
    low.trace_req_start()
    low.trace_slice_start("detail", 2)
    low.trace_slice_end("detail", 2)
    low.trace_slice_end("never started", 1)
    low.trace_slice_start("a", 1)
    low.trace_slice_end("b", 1)
    low.abort(abort_info={"reason": "gone"})
    low.trace_req_finish()
    thread, root = serving.spans
    assert root.name == " Req a" and root.status == "unset"
    assert thread.attributes["thread_label"] == "scheduler" and thread.parent_span_id == root.span_id
    assert thread.status == "error" and thread.attributes["reason"] == "gone"
    assert sum("slice" in r.message for r in caplog.records) == 2
    _core.sglang.initialize(True, ["request"])
    assert not TraceReqContext("b", module_name="mooncake").is_tracing_enabled()
    assert TraceReqContext("b", module_name="request").tracing_enable and TraceReqContext("b").tracing_enable
    _core.sglang.initialize(True, [])
    sglang.set_global_trace_level(0)
    off = TraceReqContext("c")
    off.trace_req_start()
    off.trace_slice_start("x", 1)
    assert not off.is_tracing_enabled() and pickle.loads(pickle.dumps(off)).tracing_enable is False
    assert isinstance(off.copy_for_thread(), TraceNullContext)
    assert isinstance(off.copy_for_thread().anything().at.all(1), TraceNullContext)


def test_copies_continue_and_link(serving):
    first = TraceReqContext("rid")
    first.trace_req_start()
    first.trace_slice_start("tokenize", 1)
    data = pickle.dumps(first)
    first.trace_slice_end("tokenize", 1)
    copy = pickle.loads(data)
    assert copy.is_copy and copy.rid == "rid" and not first.is_copy
    assert set(copy.__getstate__()) >= {"tracing_enable", "rid", "root_span_context", "last_span_context"}
    copy.rebuild_thread_context()
    copy.trace_slice_start("process", 1)
    copy.trace_slice_end("process", 1, thread_finish_flag=True)

    def work(context):
        context.rebuild_thread_context()
        context.trace_slice_start("thread", 1)
        context.trace_slice_end("thread", 1, thread_finish_flag=True)

    thread = threading.Thread(target=work, args=(first.copy_for_thread(),))
    thread.start()
    thread.join()
    first.trace_req_finish()
    tokenize = serving.span("tokenize")
    assert serving.span("process").links == serving.span("thread").links == [(tokenize.trace_id, tokenize.span_id)]
    assert {s.trace_id for s in serving.spans} == {tokenize.trace_id}
    roots = [s for s in serving.spans if s.parent_span_id is None]
    assert len(roots) == 1 and len(serving.spans) == 3 + 1 + 3


def test_a_forgotten_request_closes_itself(serving):
    context = TraceReqContext("x")
    context.trace_req_start()
    context.trace_slice_start("open", 1)
    del context
    thread = [s for s in serving.spans if "reason" in s.attributes]
    assert len(thread) == 1 and thread[0].status == "error"


def test_a_bad_address_is_said():
    with pytest.raises(RuntimeError, match="otlp endpoint"):
        sglang.process_tracing_init("ftp://x", "sglang")
    assert not sglang.get_global_tracing_enabled()


@pytest.fixture
def telemetry(seen, monkeypatch):
    monkeypatch.setattr(roll, "_initialized", True)
    return seen


def test_roll_context(telemetry):
    meta = {"a": 1}
    with roll.get_tracer("driver").start_as_current_span("pipeline_step", attributes={"step": 1}) as span:
        assert roll.inject_trace_context(meta) is meta
        assert meta["_otel_ctx"] == {"traceparent": span.traceparent}
    with roll.attach_trace_context(pickle.loads(pickle.dumps(meta))) as context:
        assert context.span_id == span.span_id
        with roll.get_tracer("worker").start_as_current_span("execute"):
            pass
    assert telemetry.span("execute").parent_span_id == span.span_id
    for nothing in (None, {}, {"a": 1}):
        with roll.attach_trace_context(nothing) as context:
            assert context is None
            with roll.get_tracer("worker").start_as_current_span("suppressed") as none:
                assert not none.is_recording()
    with roll.get_tracer().start_as_current_span("kept", end_on_exit=False) as kept:
        pass
    assert kept.is_recording()
    kept.end()
    assert [s.name for s in telemetry.spans] == ["pipeline_step", "execute", "kept"]
    assert roll.extract_trace_context(None) is None
    with pytest.raises(ValueError):
        with roll.get_tracer().start_as_current_span("fails"):
            raise ValueError
    assert telemetry.span("fails").status == "error"


def test_roll_is_off_without_an_address(seen, monkeypatch):
    roll.init_telemetry("service")
    with roll.get_tracer("x").start_as_current_span("nothing"):
        pass
    assert seen.spans == [] and not roll.is_enabled()
    monkeypatch.setenv("ROLL_OTEL_ENABLED", "1")
    assert roll.is_enabled()
    assert roll.resolve_otel_endpoint().startswith("http://")
    roll.shutdown_telemetry()


def child(data, endpoint, results):
    sglang.process_tracing_init(endpoint, "sglang-scheduler")
    context = pickle.loads(data)
    context.rebuild_thread_context()
    context.trace_slice_start("in the child", 1)
    context.trace_slice_end("in the child", 1, thread_finish_flag=True)
    results.put(rollscope.flush(10))


def test_a_request_over_two_processes(server, program):
    got = program.run(
        """
        import json, multiprocessing, pickle, sys
        sys.path.insert(0, %r)
        from test_sglang_roll import child
        from rollscope import sglang
        import rollscope, os
        endpoint = os.environ["ROLLSCOPE_ENDPOINT"]
        sglang.process_tracing_init(endpoint, "sglang")
        sglang.trace_set_thread_info("tokenizer")
        r = sglang.TraceReqContext("rid-1")
        r.trace_req_start()
        r.trace_slice_start("tokenize", 1); r.trace_slice_end("tokenize", 1)
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        p = context.Process(target=child, args=(pickle.dumps(r), endpoint, results)); p.start()
        ok = results.get(timeout=60); p.join()
        r.trace_req_finish()
        print(json.dumps([ok, rollscope.flush(10), rollscope.stats()["dropped"]]))
        """ % str(__import__("pathlib").Path(__file__).parent), server.grpc)
    assert got == [True, True, 0]
    rows = server.sql("select name, service, array_length(links) from spans order by start_ns")
    assert ["in the child", "sglang-scheduler", 1] in rows
    assert server.one("select count(distinct trace_id) from spans") == 1
