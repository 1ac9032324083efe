"""Where trainer and engine disagree, token by token: figures, groups and findings, against numpy and the generator of truth."""

import json
import time

import numpy
import pytest
import requests

import otlp
from conftest import run
from truth.mismatch import CAUSES, judge, plan, record

NOW = time.time_ns()
ENGINES = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


def send(server, name, *records):
    body = otlp.records(name, *records).SerializeToString()
    requests.post(server.http + "/v1/logs", data=body, headers={"content-type": "application/x-protobuf"}, timeout=60).raise_for_status()


def samples(step, off, count=40, seed=1):
    """Samples of three turns, each by another engine; the second engine is off."""
    dice = numpy.random.default_rng([seed, step])
    for number in range(count):
        e = -dice.exponential(0.5, 90).astype("<f4")
        d = dice.normal(0, 0.01, 90)
        d[30:60] *= off
        t = (e + d).astype("<f4")
        mask = (numpy.arange(90) % 10 != 9).astype("u1")
        parts = [{"start": 30 * n, "turn": n, "engine": engine, "weight_version": f"v{200 + step}"} for n, engine in enumerate(ENGINES)]
        yield {"sample": str(number), "group": str(number // 4), "source": "math"}, e, t, mask, parts


def records(step, off, **how):
    for about, e, t, mask, parts in samples(step, off, **how):
        yield record(about, step, {"logprobs": e.tobytes(), "parts": json.dumps(parts)}, NOW)
        yield record(about, step, {"trainer_logprobs": t.tobytes(), "mask": mask.tobytes()}, NOW)


def ask(server, **params):
    answer = server.get("/api/v1/runs/grpo/mismatch", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def server(serve):
    server = serve()
    for step in range(6):
        send(server, "grpo", *records(step, 30 if step >= 4 else 1))
    # Steps are those of the report, too.
    spans = [otlp.span(step, name="step", attributes=[otlp.attribute("rl.step", step)]) for step in range(6)]
    body = otlp.request(spans, rl__run__id="grpo").SerializeToString()
    requests.post(server.http + "/v1/traces", data=body, headers={"content-type": "application/x-protobuf"}, timeout=60).raise_for_status()
    return server


def test_figures_are_those_of_numpy(server):
    answer = ask(server, step=4)
    rows = list(samples(4, 30))
    d = numpy.concatenate([(t - e)[mask == 1] for _, e, t, mask, _ in rows]).astype(float)
    assert (answer["tokens"], answer["samples"]) == (len(d), 40)
    assert answer["off"] == pytest.approx(abs(d).mean(), rel=5e-3)
    assert answer["k1"] == pytest.approx(-d.mean(), abs=5e-4)
    assert answer["k3"] == pytest.approx((numpy.exp(d) - 1 - d).mean(), rel=1e-2)
    assert answer["p99"] == pytest.approx(numpy.quantile(abs(d), 0.99), rel=0.3)
    assert sum(bucket["tokens"] for bucket in answer["distribution"]) == len(d)
    far = sum(bucket["tokens"] for bucket in answer["distribution"] if bucket["from"] >= 0.1 or bucket["to"] <= -0.1)
    assert far == pytest.approx((abs(d) > 0.1).sum(), rel=0.25)
    groups = {(group["by"], group["name"]): group for group in answer["groups"]}
    second = numpy.concatenate([abs(t - e)[30:60][mask[30:60] == 1] for _, e, t, mask, _ in rows])
    assert groups["engine", "10.0.0.2"]["tokens"] == groups["turn", "1"]["tokens"] == len(second)
    assert groups["engine", "10.0.0.2"]["off"] == pytest.approx(second.mean(), rel=5e-3)
    assert groups["engine", "10.0.0.2"]["rest_off"] == pytest.approx(0.008, rel=0.2)
    worst = answer["worst"][0]
    sample = next(row for row in rows if row[0]["sample"] == worst["sample_id"])
    assert worst["d"] == pytest.approx((sample[2] - sample[1])[worst["position"]], rel=5e-3)
    assert abs(worst["d"]) == pytest.approx(abs(d).max(), rel=5e-3)


def test_one_engine_off_is_named_wherever_one_asks(server):
    answer = ask(server)
    [finding] = answer["findings"]
    assert finding["kind"] == "engine_out_of_sync" and finding["evidence"]["engine"] == "10.0.0.2"
    assert "engine 10.0.0.2 is 0.2" in answer["text"] and "it missed a weight sync" in answer["text"]
    assert [step["findings"] for step in answer["steps"]] == [[]] * 4 + [["engine_out_of_sync"]] * 2
    assert "since version v204 (step 4)" in ask(server, step=5)["text"]
    assert ask(server, step=2)["findings"] == [] and "nothing stands out" in ask(server, step=2)["text"]
    # In what is asked first.
    report = server.get("/api/v1/runs/grpo/steps/5/report").json()
    assert "engine_out_of_sync" in [found["kind"] for found in report["findings"]] and "10.0.0.2" in report["text"]
    assert report["findings"][report["sentence"][-1]["finding"]]["kind"] == "engine_out_of_sync"
    findings = server.get("/api/v1/runs/grpo/findings").json()
    assert "engine_out_of_sync" in [found["kind"] for found in findings["findings"]]
    # In the terminal and in SQL.
    printed = run("mismatch", "grpo", "--server", server.url).stdout
    assert "engine 10.0.0.2" in printed and "[engine_out_of_sync]" in printed
    assert json.loads(run("mismatch", "grpo", "--server", server.url, "--step", 5, "--json").stdout)["step"] == 5
    rows = server.sql("select \"by\", name from mismatch('grpo', 5) where sigmas > 5 order by weight desc limit 2")
    assert sorted(rows) == [["engine", "10.0.0.2"], ["turn", "1"]]
    assert server.one("select count(*) from findings('grpo', 5) where kind = 'engine_out_of_sync'") == 1


def test_new_tokens_change_the_answer(server):
    assert ask(server, step=5)["findings"]
    # The same samples again, and nothing is off.
    send(server, "grpo", *records(5, 1))
    answer = ask(server, step=5)
    assert answer["findings"] == [] and answer["off"] < 0.02
    server.stop()


def test_lengths_that_differ_are_said(serve):
    server = serve()
    send(server, "grpo", *records(0, 1))
    about = {"sample": "odd", "group": "0", "source": "math"}
    numbers = numpy.full(5, -1, "<f4").tobytes()
    send(server, "grpo", record(about, 0, {"logprobs": numbers}, NOW), record(about, 0, {"trainer_logprobs": numbers[:-4]}, NOW))
    answer = ask(server)
    assert answer["lengths_differ"] == 1 and "different numbers of tokens for 1 sample" in answer["text"]


def test_what_cannot_be_compared_is_refused(server):
    send(server, "engines only", record({"sample": "1", "group": "0", "source": "math"}, 0, {"logprobs": numpy.full(5, -1, "<f4").tobytes()}, NOW))
    for name, params, status, why in (
        ("engines only", {}, 404, "log_tokens"),
        ("grpo", {"step": 77}, 404, "steps from 0 to 5"),
        ("grpo", {"step": "x"}, 400, "`step`"),
        ("grpo", {"stpe": 1}, 400, "`stpe`"),
        ("nobody", {}, 404, "nobody"),
    ):
        answer = server.get(f"/api/v1/runs/{name}/mismatch", params=params)
        assert (answer.status_code, why in answer.json()["detail"]) == (status, True), answer.text
    done = run("mismatch", "grpo", "--server", server.url, "--step", 77, check=False)
    assert done.returncode == 2 and "steps from 0 to 5" in done.stderr


@pytest.mark.parametrize("cause", CAUSES)
def test_a_planted_cause_is_named_first(serve, cause):
    """`python -m truth.mismatch` judges many runs. These few must always hold."""
    server = serve()
    for seed in (0, 1):
        answer, is_right = judge(server, plan(10 * seed + CAUSES.index(cause), cause))
        assert is_right, answer["text"]
