"""Programs written for Trackio, with `import rollscope as trackio`."""

import inspect
import json
import logging

import numpy as np
import pandas
import pytest
import rollscope
import rollscope as ours
import trackio
from conftest import records, wait_until
from rollscope import _trackio

SAME_ORDER = ["Trace", "Table", "Histogram", "Image", "alert", "log", "finish"]


def parameters(function):
    return [p for p in inspect.signature(function).parameters.values() if p.name != "self"]


@pytest.mark.parametrize("name", [*SAME_ORDER, "init", "Run.log", "Run.alert", "Run.finish"])
def test_signatures_take_what_trackios_take(name):
    theirs, here = trackio, ours
    for part in name.split("."):
        theirs, here = getattr(theirs, part), getattr(here, part)
    accepted = {p.name: p for p in parameters(here)}
    rest = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    for at, wanted in enumerate(parameters(theirs)):
        assert wanted.name in accepted or rest, f"{name} takes {wanted.name}"
        if name in SAME_ORDER:
            assert list(accepted)[at] == wanted.name, f"{name}: parameter {at}"
        if name != "init" and wanted.name in accepted and wanted.default is not inspect.Parameter.empty:
            assert accepted[wanted.name].default == wanted.default
    assert {level.name: level.value for level in ours.AlertLevel} == {level.name: level.value for level in trackio.AlertLevel}


def test_every_name_of_trackios_is_there_or_says_what_to_do():
    placeholders = {"ArtifactTTL", "Classes", "Config", "EvalTable", "Graph", "JoinedTable", "Molecule", "Plotly", "Settings"}
    beyond = {"ReferenceHandler", "ResolvedReference", "register_reference_handler", "TRACKIO_LOGO_DIR"}
    for name in set(trackio.__all__) - placeholders - beyond:
        if not hasattr(ours, name):
            assert name in _trackio.ABSENT, f"{name} is neither there nor in the list of what is not"
            with pytest.raises(AttributeError, match=f"{name}'.*: ."):
                getattr(ours, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'$"):
        getattr(ours, "nonsense")


def test_tables_have_the_rows_that_trackios_have():
    for given in [{"columns": ["a", "b"], "data": [[1, "x"], [2]]}, {"data": [{"a": 1}, {"b": 2}]}, {"data": [[1, 2]]}, {},
                  {"dataframe": pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})}]:
        theirs = [{str(k): v for k, v in row.items()} for row in trackio.Table(**given).data]
        assert ours.Table(**given).data == theirs
    for bad in [{"dataframe": 5}]:
        for module in (ours, trackio):
            with pytest.raises(TypeError):
                module.Table(**bad)


def test_a_table_is_a_conversation_that_shows_it(run, seen):
    picture = rollscope.Image(np.zeros((2, 2), dtype="uint8"))
    table = rollscope.Table(columns=["prompt", "reward", "plot"], data=[["a|b\nc", 0.5, picture]] + [["x", n, None] for n in range(150)])
    rollscope.log({"eval/table": table}, step=3)
    (record,) = records(seen, "conversation")
    (message,) = json.loads(record.body)
    text, shown = message["content"]
    assert text["text"].splitlines()[:3] == ["| prompt | reward | plot |", "| --- | --- | --- |", "| a\\|b c | 0.5 | image 1 |"]
    assert "100 of 151 rows" in text["text"] and shown["media"] == picture.sha256
    metadata = json.loads(record.attributes["rollscope.metadata"])
    assert (metadata["type"], metadata["columns"], len(metadata["rows"])) == ("table", ["prompt", "reward", "plot"], 151)
    assert metadata["rows"][0] == {"prompt": "a|b\nc", "reward": 0.5, "plot": picture.reference()}
    assert (record.attributes["rollscope.key"], record.attributes["rl.step"]) == ("eval/table", 3) and len(records(seen, "media")) == 1


def test_a_histogram_is_its_statistics(run, seen, caplog):
    values = np.random.default_rng(5).normal(3, 2, 10_000)
    with caplog.at_level(logging.WARNING, "rollscope"):
        rollscope.log({"kl": rollscope.Histogram(values), "binned": rollscope.Histogram(np_histogram=np.histogram(values, bins=200)),
                       "none": rollscope.Histogram([float("nan")]), "plain": rollscope.Histogram([[1, 2], [3, float("inf")]])}, step=2)
    assert "not the bins" in caplog.text
    got = {name: value for name, [(step, value)] in seen.metrics().items()}
    wanted = {"count": 10_000, "mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max(),
              **{f"p{q:02}": np.percentile(values, q) for q in (5, 25, 50, 75, 95)}}
    for key, value in wanted.items():
        assert got[f"kl/{key}"] == pytest.approx(value), key
        assert got[f"binned/{key}"] == pytest.approx(value, abs=0.1), key
    assert got["none/count"] == 0 and got["plain/mean"] == 2 and got["plain/count"] == 3
    for bad in [{}, {"sequence": [1], "np_histogram": ([1], [0, 1])}]:
        for module in (ours, trackio):
            with pytest.raises(ValueError):
                module.Histogram(**bad)


def test_an_alert_is_a_span_and_a_line_of_the_log(run, seen, caplog):
    rollscope.log({"loss": 1.0}, step=7)
    with caplog.at_level(logging.INFO, "rollscope"):
        rollscope.alert("loss is NaN", "since step 6", level=rollscope.AlertLevel.ERROR, webhook_url="http://nowhere.invalid")
        with rollscope.step(9):
            run.alert("slow", level="info")
    first, second = [s for s in seen.spans if s.name == "alert"]
    assert first.attributes["alert.title"] == "loss is NaN" and first.attributes["alert.text"] == "since step 6"
    assert (first.attributes["alert.level"], first.attributes["rl.step"], first.status) == ("error", 7, "error")
    assert (second.attributes["alert.level"], second.status) == ("info", "unset")
    assert second.parent_span_id == seen.span("step").span_id
    assert "alert: loss is NaN: since step 6" in caplog.text and "webhooks are not called" in caplog.text


@pytest.mark.parametrize("value, ns", [
    ("2026-11-15T13:00:00Z", 1_794_747_600_000_000_000), ("2026-11-15T15:00:00.5+02:00", 1_794_747_600_500_000_000),
    ("2026-11-15T13:00:00.123456789", 1_794_747_600_123_456_789), (1_794_747_600, 1_794_747_600_000_000_000),
    (1_794_747_600.5, 1_794_747_600_500_000_000), (1_794_747_600_500, 1_794_747_600_500_000_000),
    (1_794_747_600_500_000, 1_794_747_600_500_000_000), (1_794_747_600_500_000_001, 1_794_747_600_500_000_001),
    (None, None), ("", None), ("yesterday", None), (float("nan"), None), (-5, None)])
def test_times_of_spans(value, ns):
    assert _trackio.time_ns(value) == ns


def test_what_is_no_list_of_spans_is_said_as_trackio_says_it():
    for bad in [{"id": 1}, ["x"], "x"]:
        for module in (ours, trackio):
            with pytest.raises(TypeError, match="`spans` must be a list of dictionaries."):
                module.Trace([], spans=bad)


def test_spans_that_name_each_other_as_parents_are_all_recorded(run, seen):
    spans = [{"id": "a", "parent_id": "b", "name": "one"}, {"id": "b", "parent_id": "a", "name": "two"}, {"id": "c", "parent_id": "c", "name": "three"},
             {"name": "four", "parent_id": "missing", "duration_ms": "bad", "start_time": object()}, {}]
    rollscope.log({"agent": rollscope.Trace([{"role": "user", "content": "x"}], spans=spans)})
    assert sorted(s.name for s in seen.spans) == ["agent", "four", "one", "span", "three", "two"]
    assert len(records(seen, "conversation")) == 1


def test_a_program_written_for_trackio_reaches_the_server(program, server):
    program.run("""
        import rollscope as trackio

        trackio.init(project="agents", name="r1", config={"lr": 1e-4}, space_id="me/space")
        trackio.log(metrics={
            "agent": trackio.Trace(
                messages=[{"role": "user", "content": "weather?"}, {"role": "assistant", "content": "rain"}],
                metadata={"reward": 1.0, "sample_id": "s1"},
                spans=[
                    {"id": "2", "parent_id": "1", "name": "get_weather", "kind": "tool", "input": {"city": "Basel"}, "output": "rain",
                     "start_time": "2026-11-15T13:00:01Z", "end_time": "2026-11-15T13:00:02Z", "status": "error", "error": "timeout"},
                    {"id": "1", "name": "plan", "kind": "generation", "model": "m", "usage": {"input_tokens": 5, "output_tokens": 7},
                     "start_time": "2026-11-15T13:00:00Z", "duration_ms": 3000, "cost_usd": 0.5},
                ]),
            "table": trackio.Table(columns=["a"], data=[[1]]),
            "hist": trackio.Histogram([1, 2, 3]),
        }, step=4)
        trackio.alert("look", level=trackio.AlertLevel.WARN)
        trackio.finish()
    """, endpoint=server.grpc)
    assert "space_id" in program.stderr and "alert: look" in program.stderr
    wait_until(lambda: server.one("select count(*) from spans") == 4)
    wait_until(lambda: server.one("select count(*) from conversations") == 2)
    spans = {row[0]: row[1:] for row in server.sql(
        "select s.name, p.name, s.start_ns, s.end_ns - s.start_ns, s.status, s.step, s.sample_id from spans s left join spans p on s.trace_id = p.trace_id and s.parent_span_id = p.span_id")}
    start = 1_794_747_600_000_000_000
    assert spans["agent"] == [None, start, 3 * 10**9, "unset", 4, "s1"]
    assert spans["plan"] == ["agent", start, 3 * 10**9, "unset", 4, "s1"]
    assert spans["get_weather"] == ["plan", start + 10**9, 10**9, "error", 4, "s1"]
    assert server.sql("select s.name, c.step, c.reward, c.sample_id from conversations c join spans s on c.trace_id = s.trace_id and c.span_id = s.span_id") == [["agent", 4, 1.0, "s1"]]
    assert server.one("select attr_int(start_attrs, 'gen_ai.usage.output_tokens') from spans where name = 'plan'") == 7
    assert server.sql("select name, value from metrics where name like 'hist/%' and step = 4 and name in ('hist/mean', 'hist/p50', 'hist/count') order by name") == [["hist/count", 3], ["hist/mean", 2], ["hist/p50", 2]]
    assert server.sql("select step, status from spans where name = 'alert'") == [[4, "unset"]]
