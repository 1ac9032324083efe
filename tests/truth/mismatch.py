"""Runs of which each token is known, in which trainer and engine disagree for one known reason, and a judge of what rollscope says of them.

    cd tests && python -m truth.mismatch --seeds 0:200

A token is drawn from the distribution of the engine that produced it. Each position has its own logits over a few candidates, most of
them peaked. Weights drift from version to version: logits change a little, at random. Engine and trainer round differently.
Seeds 0 to 199 are for setting thresholds, seeds from 1000 for judging.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import requests
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValueList

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import otlp
from conftest import Server, run

CAUSES = ("missed sync", "retokenised turns", "wrong temperature", "stale tokens", "noise alone")
KINDS = dict(zip(CAUSES, ("engine_out_of_sync", "retokenized_turns", "wrong_temperature", "stale_tokens", None), strict=True))
# Candidates that a token is drawn from. The rest of the vocabulary has no weight worth mentioning.
CANDIDATES = 24
WORDS = ["the", " of", " answer", "12", "7", "\n", "\n\n", " ", ",", ".", "(", "x", "Let", " therefore", "3.5", "é", "{", "}", "<|im_end|>", "def"]


@dataclass
class Case:
    seed: int
    cause: str
    steps: int
    samples: int
    engines: list
    first: int
    """The first step with the cause."""
    first_version: int
    lag: int
    """How many versions behind a sample may begin, as a rule."""
    drift: float
    """Of a logit, from one version to the next."""
    rounding: float
    turns: int
    apart: bool
    """Whether engine and trainer send on their own."""
    texts: bool
    engine: str | None = None
    behind: int = 0
    reports_old: bool = False
    share: float = 0.0
    temperature: float = 1.0
    marked: bool = True
    sources: list = field(default_factory=list)


def plan(seed, cause=None):
    dice = numpy.random.default_rng([7, seed])
    cause = cause or CAUSES[seed % len(CAUSES)]
    steps = int(dice.integers(3, 21))
    engines = [f"engine-{n}" for n in range(int(dice.integers(2, 9)))]
    case = Case(
        seed=seed,
        cause=cause,
        steps=steps,
        samples=int(dice.integers(30, 201)),
        engines=engines,
        first=int(dice.integers(0, steps)),
        first_version=int(dice.choice([0, 40, 200])),
        lag=int(dice.choice([0, 0, 1, 2])),
        drift=float(dice.uniform(0.02, 0.06)),
        rounding=float(dice.uniform(0.004, 0.03)),
        turns=int(dice.choice([1, 3, 5])),
        apart=bool(dice.random() < 0.4),
        texts=bool(dice.random() < 0.3),
        sources=["math", "code", "agent"][: int(dice.integers(1, 4))],
    )
    if cause == "missed sync":
        case.engine = str(dice.choice(engines))
        case.behind = int(dice.integers(3, 12))
        case.reports_old = bool(dice.random() < 0.3)
    elif cause == "retokenised turns":
        case.turns = max(case.turns, 3)
        case.share = float(dice.uniform(0.15, 0.6))
        case.marked = bool(dice.random() < 0.75)
        case.apart |= not case.marked
    elif cause == "wrong temperature":
        case.temperature = float(dice.choice([0.6, 0.7, 0.8, 1.2, 1.4]))
        case.engine = str(dice.choice(engines)) if dice.random() < 0.5 else None
    elif cause == "stale tokens":
        case.share = float(dice.uniform(0.1, 0.4))
        case.behind = case.lag + int(dice.integers(4, 12))
    return case


def log_softmax(logits):
    logits = logits - logits.max(axis=1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))


def draw(dice, probabilities):
    chosen = (probabilities.cumsum(axis=1) < dice.random((len(probabilities), 1))).sum(axis=1)
    return numpy.minimum(chosen, probabilities.shape[1] - 1)


def samples(case, step):
    """The samples of a step: what is known of each, as numpy arrays, and its parts."""
    dice = numpy.random.default_rng([11, case.seed, step])
    version = case.first_version + step + 20
    planted = step >= case.first and case.cause != "noise alone"
    for number in range(case.samples):
        turns = int(dice.integers(1, case.turns + 1))
        lengths = numpy.clip(dice.lognormal(4.3, 0.9, turns), 4, 1500).astype(int).tolist()
        source = str(dice.choice(case.sources))
        # Longer answers are less certain in some sources than in others.
        certain = {"math": 0.65, "code": 0.8, "agent": 0.5}[source]
        begun = version - int(dice.integers(0, case.lag + 1))
        stale = planted and case.cause == "stale tokens" and dice.random() < case.share
        if stale:
            begun = version - case.behind
        ids, engines_say, trainer_says, mask, parts, pieces = [], [], [], [], [], []
        for turn, length in enumerate(lengths):
            engine = str(dice.choice(case.engines))
            # A sync may come in the middle of a turn.
            switch = int(dice.integers(1, length)) if begun < version and not stale and dice.random() < 0.3 else length
            for size, at in ((switch, begun), (length - switch, begun + 1)):
                if size:
                    pieces.append((turn, int(size), engine, min(at, version)))
            if switch < length:
                begun += 1
        count = 0
        for turn, size, engine, at in pieces:
            guilty = planted and case.engine in (None, engine)
            true = version - case.behind if planted and case.cause == "missed sync" and guilty else at
            said = true if case.reports_old else at
            logits = dice.gumbel(0, 1.0, (size, CANDIDATES)) * 1.6
            peaked = dice.random(size) < certain
            logits[:, 0] += numpy.where(peaked, dice.uniform(6, 14, size), dice.uniform(0, 4, size))
            of_engine = logits + dice.normal(0, case.drift * max(version - true, 0) ** 0.5 + 1e-9, logits.shape)
            of_engine += dice.normal(0, case.rounding, logits.shape)
            of_trainer = logits + dice.normal(0, case.rounding, logits.shape)
            if guilty and case.cause == "wrong temperature":
                of_engine = of_engine / case.temperature
            e, t = log_softmax(of_engine), log_softmax(of_trainer)
            chosen = draw(dice, numpy.exp(e))
            row = numpy.arange(size)
            same = parts and (parts[-1]["turn"], parts[-1]["engine"], parts[-1]["weight_version"]) == (turn, engine, str(said))
            if not same:
                parts.append({"start": count, "turn": turn, "engine": engine, "weight_version": str(said)})
            ids.append(dice.integers(0, 150_000, size))
            engines_say.append(e[row, chosen])
            trainer_says.append(t[row, chosen])
            # Between turns there is what a tool answered, which is not trained on, and of which no engine has a log-probability.
            mask.append(numpy.ones(size, bool))
            count += size
        ids, e, t, mask = (numpy.concatenate(list_) for list_ in (ids, engines_say, trainer_says, mask))
        engine_ids = ids.copy()
        if planted and case.cause == "retokenised turns":
            for part in [p for p in parts if p["turn"] > 0 and p["start"] > 8]:
                before = [p for p in parts if p["start"] < part["start"]][-1]
                if before["turn"] == part["turn"] or dice.random() > case.share:
                    continue
                at = max(before["start"], part["start"] - int(dice.integers(1, 25)))
                width = part["start"] - at
                # The text is the same, the tokens are others: the trainer sees tokens that no model would choose there.
                t[at : part["start"]] = -dice.gamma(2.0, 2.0, width)
                ids[at : part["start"]] += 1
                if case.marked:
                    part["differs_at"] = int(at)
                    engine_ids[at : part["start"]] += 1
        yield {
            "sample": f"{number}",
            "group": f"{number // 8}",
            "source": source,
            "ids": engine_ids,
            "trainer_ids": ids,
            "logprobs": e,
            "trainer_logprobs": t,
            "mask": mask,
            "parts": parts,
            "texts": [WORDS[i % len(WORDS)] for i in ids] if case.texts else None,
        }


# --- Sending and asking ------------------------------------------------------------------------------------------------------


def record(sample, step, columns, at):
    body = AnyValue(kvlist_value=KeyValueList())
    for key, column in columns.items():
        kind = "bytes_value" if isinstance(column, bytes) else "string_value"
        body.kvlist_value.values.add(key=key, value=AnyValue(**{kind: column}))
    about = {"rl.sample.id": sample["sample"], "rl.step": step, "rl.group.id": sample["group"], "rollscope.source": sample["source"]}
    return ("rollscope.tokens", body, about, at)


def requests_of(case, name):
    """Messages of OTLP: one per step and sender."""
    now = time.time_ns()
    for step in range(case.steps):
        of_engines, of_trainer = [], []
        for sample in samples(case, step):
            engine = {
                "ids": sample["ids"].astype("<i4").tobytes(),
                "logprobs": sample["logprobs"].astype("<f4").tobytes(),
                "parts": json.dumps(sample["parts"]),
            }
            if sample["texts"]:
                engine["texts"] = json.dumps(sample["texts"])
            trainer = {
                "trainer_logprobs": sample["trainer_logprobs"].astype("<f4").tobytes(),
                "mask": sample["mask"].astype("u1").tobytes(),
            }
            if case.apart:
                trainer["ids"] = sample["trainer_ids"].astype("<i4").tobytes()
                of_engines.append(record(sample, step, engine, now))
                of_trainer.append(record(sample, step, trainer, now + 1))
            else:
                of_engines.append(record(sample, step, {**engine, **trainer}, now))
        for of in (of_trainer, of_engines) if case.seed % 2 else (of_engines, of_trainer):
            if of:
                yield otlp.records(name, *of).SerializeToString()


def judge(server, case):
    """What rollscope finds in a run, and whether it is right."""
    name = f"case-{case.seed}"
    for body in requests_of(case, name):
        answer = requests.post(server.http + "/v1/logs", data=body, headers={"content-type": "application/x-protobuf"}, timeout=120)
        answer.raise_for_status()
    answer = json.loads(run("mismatch", name, "--server", server.url, "--json").stdout)
    found = answer["findings"]
    if case.cause == "noise alone":
        return answer, not found
    first = found[0] if found else {"kind": None, "evidence": {}}
    right = first["kind"] == KINDS[case.cause]
    if case.cause == "missed sync":
        right &= first["evidence"].get("engine") == case.engine
    return answer, right


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", default="0:50", help="FROM:TO")
    arguments.add_argument("--only", choices=CAUSES)
    arguments.add_argument("--json", type=Path, help="keeps what was reported about each run")
    wanted = arguments.parse_args()
    seeds = range(*map(int, wanted.seeds.split(":")))
    right, all_of, kept = Counter(), Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "data")
        try:
            for seed in seeds:
                case = plan(seed, wanted.only)
                answer, is_right = judge(server, case)
                right[case.cause] += is_right
                all_of[case.cause] += 1
                kept.append({"case": vars(case), "right": is_right, "findings": answer["findings"], "text": answer["text"]})
                if not is_right:
                    print(seed, {k: v for k, v in vars(case).items() if k not in ("engines", "sources")})
                    print("   ", answer["text"], flush=True)
        finally:
            server.stop()
    for cause in CAUSES:
        print(f"{cause:20} {right[cause]} of {all_of[cause]}")
    print(f"{'all':20} {right.total()} of {all_of.total()}")
    if wanted.json:
        wanted.json.write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
