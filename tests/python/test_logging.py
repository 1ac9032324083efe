"""`init`, `log`, `finish`, `Trace`, `Image`, in memory."""

import io
import json
import math
import os
import sys

import numpy as np
import pytest
import rollscope
from conftest import records
from rollscope import _run


def test_a_run_begins_and_ends(run, seen):
    assert run.id.startswith("math-grpo-7b-") and os.environ["ROLLSCOPE_RUN_ID"] == run.id
    run.finish()
    run.finish("failed")
    first, last = records(seen, "run")
    assert first.attributes["rollscope.status"] == "running" and last.attributes["rollscope.status"] == "finished"
    assert last.attributes["rl.project"] == "math" and last.attributes["rl.run.name"] == "grpo 7b"
    assert json.loads(last.attributes["rollscope.config"]) == {"lr": 1e-6, "bad": {"$double": "NaN"}}
    assert json.loads(last.attributes["rollscope.tags"]) == ["a"]
    assert last.attributes["rollscope.ended_ns"] > last.attributes["rollscope.started_ns"]
    assert "ROLLSCOPE_RUN_ID" not in os.environ


def test_a_process_joins_its_parents_run(seen, monkeypatch):
    monkeypatch.setattr(_run, "_start", lambda *a, **k: None)
    monkeypatch.setenv("ROLLSCOPE_RUN_ID", "the-parents")
    run = rollscope.init(project="other", config={"a": 1})
    run.finish()
    assert run.id == "the-parents" and records(seen, "run") == []
    assert os.environ["ROLLSCOPE_RUN_ID"] == "the-parents"


def test_numbers_of_every_kind(run, seen):
    rollscope.log({
        "loss": 1.5, "tokens": 7, "flag": True, "nan": math.nan, "inf": math.inf, "np": np.float32(0.5), "zero-d": np.array(2),
        "nested": {"a": {"b": 3}}, "text": "no", "none": None, "array": np.arange(3), "object": object(),
    }, step=12)
    got = {name: values[0] for name, values in seen.metrics().items()}
    assert got["loss"] == (12, 1.5) and got["tokens"] == (12, 7.0) and got["flag"] == (12, 1.0)
    assert math.isnan(got["nan"][1]) and got["inf"][1] == math.inf and got["np"][1] == 0.5 and got["zero-d"][1] == 2
    assert got["nested/a/b"] == (12, 3.0)
    assert not {"text", "none", "array", "object"} & set(got)


def test_steps_come_from_where_they_are_known(run, seen):
    rollscope.log({"a": 1})
    rollscope.log({"a": 2}, step=10)
    rollscope.log({"a": 3})
    with rollscope.step(50):
        rollscope.log({"a": 4})
    rollscope.log({"a": 5}, step=np.int64(3))
    assert seen.metrics()["a"] == [(0, 1.0), (10, 2.0), (11, 3.0), (50, 4.0), (3, 5.0)]


def test_conversations(run, seen):
    picture = rollscope.Image(np.zeros((2, 3, 3), dtype="uint8"), caption="black")
    trace = rollscope.Trace(
        [{"role": "user", "content": [{"type": "text", "text": "hä?"}, picture]},
         {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}],
        metadata={"reward": 1.0, "nan": math.nan, "np": np.float64(2), "again": {"deep": [picture]}, "set": {1}})
    with rollscope.span("turn") as span:
        rollscope.log({"agent": trace, "more": [trace, trace], "only": picture}, step=3)
    conversations, media = records(seen, "conversation"), records(seen, "media")
    assert [(c.attributes["rollscope.key"], c.attributes["rollscope.index"]) for c in conversations] == [
        ("agent", 0), ("more", 0), ("more", 1), ("only", 0)]
    assert len({c.attributes["rollscope.id"] for c in conversations}) == 4
    first = conversations[0]
    assert (first.trace_id, first.span_id, first.attributes["rl.step"]) == (span.trace_id, span.span_id, 3)
    messages = json.loads(first.body)
    assert messages[0]["content"][1] == {"type": "image", "media": picture.sha256, "mime": "image/png", "caption": "black"}
    metadata = json.loads(first.attributes["rollscope.metadata"])
    assert metadata["reward"] == 1.0 and metadata["nan"] == {"$double": "NaN"} and metadata["np"] == 2.0
    assert metadata["again"]["deep"][0]["media"] == picture.sha256
    assert len(media) == 1 and media[0].body == picture.data


def test_what_is_no_trace_is_said():
    for bad in ("x", {"role": "user"}, [1], ({"role": "user"},), None):
        with pytest.raises(TypeError, match="list of dictionaries"):
            rollscope.Trace(bad)
    with pytest.raises(TypeError):
        rollscope.Trace([], metadata=[1])
    cycle = {"role": "user"}
    cycle["content"] = [{"again": cycle}]
    with pytest.raises(ValueError, match=r"messages\[0\]\.content\[0\]\.again contains itself"):
        rollscope.Trace([cycle])
    deep = "x"
    for _ in range(100):
        deep = [deep]
    with pytest.raises(ValueError, match="metadata.deep.* nested more than"):
        rollscope.Trace([], metadata={"deep": deep})


def test_changed_afterwards_is_left_out_not_raised(run, seen, caplog):
    trace = rollscope.Trace([{"role": "user"}])
    trace.metadata["self"] = trace.metadata
    rollscope.log({"bad": trace, "good": 1.0}, step=1)
    rollscope.log(5)
    rollscope.log({"x": 1}, step=object())
    assert seen.metrics()["good"] == [(1, 1.0)] and records(seen, "conversation") == []
    assert "bad.metadata.self contains itself" in caplog.text


def test_surrogates_and_bytes(run, seen):
    rollscope.log({"a": rollscope.Trace([{"role": "user", "content": "a\ud800b", "raw": b"123", "what": object()}])})
    message = json.loads(records(seen, "conversation")[0].body)[0]
    assert message["content"].startswith("a") and message["raw"] == "<3 bytes>"


def test_images(tmp_path):
    from PIL import Image as pil

    def pixels(image):
        return np.asarray(pil.open(io.BytesIO(image.data)))

    grey = np.arange(12, dtype="uint8").reshape(3, 4)
    assert (pixels(rollscope.Image(grey)) == grey).all()
    assert (pixels(rollscope.Image(grey[:, :, None])) == grey).all()
    colour = np.random.default_rng(0).integers(0, 255, (5, 7, 3)).astype("uint8")
    assert (pixels(rollscope.Image(colour)) == colour).all()
    alpha = np.random.default_rng(0).random((4, 4, 4))
    assert np.abs(pixels(rollscope.Image(alpha)) / 255 - alpha).max() < 0.003
    assert pixels(rollscope.Image(np.array([[True, False]]))).tolist() == [[255, 0]]
    file = tmp_path / "a.jpg"
    pil.fromarray(colour).save(file)
    from_file, from_bytes = rollscope.Image(file), rollscope.Image(file.read_bytes())
    assert from_file.mime == from_bytes.mime == "image/jpeg" and from_file.sha256 == from_bytes.sha256
    assert (pixels(rollscope.Image(pil.fromarray(colour))) == colour).all()
    for bad in (np.zeros(3), np.zeros((2, 2, 5)), b"no image", 5, np.zeros((0, 2))):
        with pytest.raises((TypeError, ValueError)):
            rollscope.Image(bad)


def test_without_init_logging_only_warns(caplog, monkeypatch):
    monkeypatch.setattr(_run, "_warned", set())
    before = rollscope.stats()
    rollscope.log({"a": 1})
    rollscope.log({"a": 2})
    rollscope.finish()
    (said,) = [r for r in caplog.records if r.name == "rollscope"]
    assert said.levelname == "WARNING" and "rollscope.init" in said.message
    assert rollscope.stats() == before


# --- Tokens ------------------------------------------------------------------------------------------------------------------


def test_tokens_are_sent_as_arrays(run, seen):
    with rollscope.step(5):
        rollscope.log_tokens(
            7,
            ids=np.array([1, 2, 151_643], dtype="int64"),
            logprobs=[-0.5, None, -2],
            mask=(1, 0, True),
            advantages=np.full((1, 3), 0.25, dtype="float16"),
            texts=["a", "b", "é"],
            prompt_tokens=12,
            group="g",
            engine="e1",
            weight_version=212,
        )
    (record,) = records(seen, "tokens")
    body = record.body
    assert record.attributes["rl.sample.id"] == "7" and record.attributes["rl.step"] == 5
    assert record.attributes["rl.group.id"] == "g" and record.attributes["rollscope.split"] == "train"
    assert np.frombuffer(body["ids"], "<i4").tolist() == [1, 2, 151_643]
    logprobs = np.frombuffer(body["logprobs"], "<f4")
    assert logprobs[[0, 2]].tolist() == [-0.5, -2.0] and np.isnan(logprobs[1])
    assert body["mask"] == b"\1\0\1" and np.frombuffer(body["advantages"], "<f4").tolist() == [0.25] * 3
    assert json.loads(body["texts"]) == ["a", "b", "é"] and body["prompt_tokens"] == 12
    assert json.loads(body["parts"]) == [{"start": 0, "engine": "e1", "weight_version": "212"}]
    assert "entropy" not in body


def test_tokens_of_any_length_are_sent_whole(run, seen):
    sent = np.arange(1_000_000, dtype="<i4")
    rollscope.log_tokens("long", ids=sent, step=1)
    (record,) = records(seen, "tokens")
    assert np.array_equal(np.frombuffer(record.body["ids"], "<i4"), sent)


def test_tokens_that_do_not_fit_are_skipped_and_counted(run, seen, caplog):
    errors = rollscope.stats()["errors"]
    rollscope.log_tokens("a", ids=[1, 2], logprobs=[-1.0], step=1)
    rollscope.log_tokens("b", ids=["x"], step=1)
    rollscope.log_tokens("c", ids=[1], parts=[{"start": "?"}], step=1)
    rollscope.log_tokens("d", step=1)
    rollscope.log_tokens("e", ids=[2**40], step=1)
    assert records(seen, "tokens") == []
    assert "differ in length: ids 2, logprobs 1" in caplog.text
    assert rollscope.stats()["errors"] > errors


def test_tokens_without_numpy(run, seen, monkeypatch):
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    rollscope.log_tokens("a", ids=[1, 2], logprobs=[-1.0, None], mask=[True, 0], step=1)
    body = records(seen, "tokens")[0].body
    assert body["ids"] == b"\1\0\0\0\2\0\0\0" and body["mask"] == b"\1\0" and body["logprobs"][:4] == b"\0\0\x80\xbf"
