"""What happened to each token: as it is sent, read from dumps, and read back."""

import json
import struct
import time

import numpy
import pyarrow
import pytest
import requests
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValueList

import otlp
from conftest import FIXTURES, run

START = time.time_ns()


def value(column):
    kind = {str: "string_value", bytes: "bytes_value", int: "int_value"}[type(column)]
    return AnyValue(**{kind: column})


def tokens(columns, **attributes):
    body = AnyValue(kvlist_value=KeyValueList())
    for key, column in columns.items():
        body.kvlist_value.values.add(key=key, value=value(column))
    about = {"rl.sample.id": "7", "rl.step": 3, **{key.replace("__", "."): value for key, value in attributes.items()}}
    return ("rollscope.tokens", body, {key: value for key, value in about.items() if value is not None}, START)


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


def ints(*values):
    return struct.pack(f"<{len(values)}i", *values)


def send(server, *records):
    body = otlp.records("grpo", *records).SerializeToString()
    answer = requests.post(server.http + "/v1/logs", data=body, headers={"content-type": "application/x-protobuf"}, timeout=30)
    answer.raise_for_status()
    return answer.content


def read(server, **params):
    answer = server.get("/api/v1/runs/grpo/tokens", params=params)
    assert answer.status_code == 200, answer.text
    return pyarrow.ipc.open_stream(answer.content).read_all().to_pylist()


WHOLE = {
    "ids": ints(5, 6, 151_643),
    "mask": bytes([1, 1, 0]),
    "logprobs": floats(-0.25, -1.5, float("nan")),
    "trainer_logprobs": floats(-0.5, -1.5, -7.0),
    "advantages": floats(0.5, 0.5, 0.5),
    "texts": json.dumps(["a", "\n", "é"]),
    "parts": json.dumps([{"start": 0, "turn": 0, "engine": "e1"}, {"start": 2, "turn": 1, "engine": "e2", "weight_version": "8", "differs_at": 1}]),
    "prompt_tokens": 12,
}


def test_tokens_come_back_as_they_were_sent(serve, tmp_path):
    data = tmp_path / "data"
    server = serve(data)
    send(server, tokens(WHOLE, rl__group__id="g", rollscope__source="math"))
    # The same again is the same row, and another sample is another one.
    send(server, tokens(WHOLE), tokens({"ids": ints(1)}, rl__sample__id="8"))
    for _ in range(2):
        (row,) = read(server, sample="7")
        assert (row["step"], row["split"], row["count"], row["prompt_tokens"]) == (3, "train", 3, 12)
        assert (row["ids"], row["mask"], row["texts"]) == ([5, 6, 151_643], [True, True, False], ["a", "\n", "é"])
        assert row["logprobs"][:2] == [-0.25, -1.5] and numpy.isnan(row["logprobs"][2])
        assert row["trainer_logprobs"] == [-0.5, -1.5, -7.0] and row["entropy"] is None
        assert row["parts"][1] == {"start": 2, "turn": 1, "engine": "e2", "weight_version": "8", "differs_at": 1}
        assert [row["count"] for row in read(server, sample="8", step=3)] == [1]
        assert read(server, sample="7", step=4) == [] == read(server, sample="7", split="eval")
        assert read(server, sample="7", columns="count") == [{"count": 3}]
        # Token by token, in SQL.
        rows = server.sql(
            "select id, round(t - e, 6) as d from (select unnest(ids) as id, unnest(logprobs) as e, unnest(trainer_logprobs) as t "
            "from tokens where run_id = 'grpo' and step = 3 and sample_id = '7') where not isnan(e) order by id"
        )
        assert rows == [[5, -0.25], [6, 0.0]]
        server.stop()
        server = serve(data)


@pytest.mark.parametrize(
    ("columns", "attributes", "why"),
    [
        ({"ids": ints(1, 2), "logprobs": floats(-1)}, {}, "differ in length (`logprobs`)"),
        ({"ids": b"abc"}, {}, "body"),
        ({"idz": ints(1)}, {}, "body"),
        ({"ids": ints(1), "parts": '[{"start": 5}]'}, {}, "not in order"),
        ({"ids": ints(1), "parts": '[{"begin": 0}]'}, {}, "JSON"),
        ({"ids": ints(1)}, {"rl__sample__id": None}, "rl.sample.id"),
    ],
)
def test_what_is_wrong_is_refused_with_a_reason(serve, columns, attributes, why):
    server = serve()
    answer = send(server, tokens(columns, **attributes), tokens({"ids": ints(1)}, rl__sample__id="good"))
    assert why in answer.decode(errors="replace")
    assert [row["count"] for row in read(server, sample="good")] == [1]
    assert server.one("select count(*) from tokens") == 1


ENGINE = {
    "ids": ints(5, 6, 7),
    "logprobs": floats(-0.25, -1.5, -2.0),
    "parts": json.dumps([{"start": 0, "turn": 0, "engine": "e1", "weight_version": "8"}]),
}
TRAINER = {"ids": ints(5, 6, 9), "trainer_logprobs": floats(-0.5, -1.5, -7.0), "mask": bytes([1, 1, 0])}


@pytest.mark.parametrize("order", [(ENGINE, TRAINER), (TRAINER, ENGINE)])
@pytest.mark.parametrize("between", ["nothing", "flush", "kill"])
def test_what_engine_and_trainer_send_apart_is_joined(serve, tmp_path, order, between):
    data = tmp_path / "data"
    server = serve(data)
    # A sample without a step is one sample, too.
    for step in (3, None):
        send(server, tokens(order[0], rl__step=step))
    if between == "flush":
        server.stop()
        server = serve(data)
        assert list(data.glob("tokens/*/*.parquet"))
    elif between == "kill":
        server.kill()
        server = serve(data)
    for step in (3, None):
        send(server, tokens(order[1], rl__step=step))
    # Each half again replaces itself.
    later = {**TRAINER, "trainer_logprobs": floats(-0.75, -1.5, -7.0)}
    for _ in range(2):
        for step in (3, None):
            send(server, tokens(later, rl__step=step, rl__group__id="g"))
        rows = read(server, sample="7")
        assert [row["step"] for row in rows] == [3, None]
        for row in rows:
            assert (row["count"], row["trainer_count"], row["group_id"]) == (3, 3, "g")
            assert (row["ids"], row["trainer_ids"], row["mask"]) == ([5, 6, 7], [5, 6, 9], [True, True, False])
            assert (row["logprobs"], row["trainer_logprobs"]) == ([-0.25, -1.5, -2.0], [-0.75, -1.5, -7.0])
            assert row["parts"][0]["engine"] == "e1" and "half" not in row
        assert server.sql("select count(*), sum(count) from tokens") == [[2, 6]]
        assert server.sql("select sample_id from tokens where step = 3 and run_id = 'grpo' and trainer_logprobs[1] < -0.7") == [["7"]]
        server.stop()
        server = serve(data)


def test_a_whole_record_replaces_both_halves(serve):
    server = serve()
    send(server, tokens(ENGINE), tokens(TRAINER))
    whole = ("rollscope.tokens", *tokens(WHOLE)[1:3], START + 1)
    send(server, whole)
    (row,) = read(server, sample="7")
    assert (row["trainer_logprobs"], row["logprobs"][:2], row["texts"]) == ([-0.5, -1.5, -7.0], [-0.25, -1.5], ["a", "\n", "é"])
    assert row["advantages"] == [0.5, 0.5, 0.5]


def test_halves_of_different_lengths_are_not_joined(serve):
    server = serve()
    send(server, tokens(ENGINE), tokens({"trainer_logprobs": floats(-1, -1), "mask": bytes([1, 1])}))
    # What only a trainer sent is there on its own.
    send(server, tokens({"trainer_logprobs": floats(-1, -1)}, rl__sample__id="8"))
    (row,) = read(server, sample="7")
    assert (row["count"], row["trainer_count"]) == (3, 2)
    assert (row["trainer_logprobs"], row["mask"], row["ids"]) == (None, None, [5, 6, 7])
    (row,) = read(server, sample="8")
    assert (row["count"], row["trainer_count"], row["trainer_logprobs"], row["logprobs"], row["parts"]) == (2, 2, [-1, -1], None, [])


def test_bad_parameters_are_named(serve):
    server = serve()
    send(server, tokens({"ids": ints(1)}))
    for params, named in (({}, "sample"), ({"sample": "1", "columns": "ids,nothing"}, "columns"), ({"sample": "1", "stpe": 2}, "stpe")):
        answer = server.get("/api/v1/runs/grpo/tokens", params=params)
        assert answer.status_code == 400 and f"`{named}`" in answer.json()["detail"]


def test_a_dump_of_slime_brings_its_tokens(serve, tmp_path):
    data = tmp_path / "data"
    run("import", "--data", str(data), "--run", "grpo", str(FIXTURES / "slime" / "small.pt"))
    server = serve(data)
    samples = server.sql("select sample_id, response_length, prompt_tokens from samples where response_length > 0 order by sample_id")
    for sample, length, prompt in samples:
        (row,) = read(server, sample=sample)
        assert (row["count"], row["prompt_tokens"]) == (length, prompt)
        assert len(row["ids"]) == len(row["mask"]) == len(row["logprobs"]) == row["count"]
    assert samples


def test_measured_values_are_kept_to_one_part_in_four_thousand(serve):
    server = serve()
    dice = numpy.random.default_rng(5)
    sent = -numpy.exp(dice.normal(-4, 3, 20_000)).astype("<f4")
    send(server, tokens({"logprobs": sent.tobytes()}))
    (row,) = read(server, sample="7")
    kept = numpy.array(row["logprobs"], dtype="f4")
    assert numpy.all(numpy.abs(kept - sent) <= numpy.maximum(numpy.abs(sent) / 4096, 4e-6))
