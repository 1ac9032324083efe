"""What recording costs a real training loop, with and without it in turns.

    python python/bench/training.py [--spans 100 10000] [--seconds 120] [--step-seconds 2] [--json]

The loop is GRPO in torch: a small transformer samples answers to sums, token by token, is rewarded, and learns by gradient
descent, on the GPU if there is one. Steps with and without recording follow each other in pairs, in random order, with the same
work; the number of passes over the samples is chosen so that a step takes about as long as was asked for. Each pair gives a
difference, and the figure is their median with its 95 % interval (bootstrap). What is recorded goes to the server at
ROLLSCOPE_ENDPOINT, which should run.

`rollscope.span` is replaced by an empty context manager where nothing is recorded: its 0.1 us per span are not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import time

import rollscope
import torch
from torch import nn

PROMPTS, GROUP, ANSWER = 16, 8, 24
VOCABULARY, LAYERS, LENGTH = 16, 8, 40
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: On a GPU so wide that the GPU is what takes time, and not Python.
WIDTH, HEADS = (2048, 16) if DEVICE == "cuda" else (256, 4)
#: Aims of the issue, in percent of a step.
AIMS = {100: 0.1, 10_000: 1.0}
NOTHING = contextlib.nullcontext()


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        size = tokens.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(size, device=tokens.device)
        places = self.places(torch.arange(size, device=tokens.device))
        return self.head(self.body(self.tokens(tokens) + places, mask=causal, is_causal=True))


class Loop:
    def __init__(self, spans: int) -> None:
        torch.manual_seed(0)
        self.policy = Policy().to(DEVICE)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-4)
        # A step, a rollout and a training span, and for each sample as many as are left.
        self.per_sample = max(0, spans - 3) // (PROMPTS * GROUP)
        self.extra = spans - 3 - self.per_sample * PROMPTS * GROUP
        self.passes = 1

    def precision(self) -> torch.autocast:
        return torch.autocast(DEVICE, torch.bfloat16)

    def wait(self) -> None:
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    def step(self, n: int, on: bool) -> None:
        span = rollscope.span if on else lambda *a, **k: NOTHING
        with rollscope.step(n) if on else NOTHING:
            sums = torch.randint(0, 10, (PROMPTS, 2), device=DEVICE).repeat_interleave(GROUP, 0)
            tokens = torch.cat([sums, torch.full((len(sums), 1), 10, device=DEVICE)], 1)
            with span("rollout", {"prompts": PROMPTS, "group": GROUP}, phase="rollout"), torch.no_grad(), self.precision():
                for _ in range(ANSWER):
                    logits = self.policy(tokens)[:, -1]
                    tokens = torch.cat([tokens, torch.multinomial(logits.float().softmax(-1), 1)], 1)
                digit = tokens[:, 3:]
                right = (digit == (sums.sum(1) % 10)[:, None]).float().mean(1)
                rewards = right.tolist()
                for i, reward in enumerate(rewards):
                    for turn in range(self.per_sample + (i < self.extra)):
                        with span("turn", {"turn": turn, "tokens": ANSWER, "finish_reason": "stop"}, sample=i) as it:
                            if on:
                                it.set("reward", reward)
            with span("train", {"passes": self.passes}, phase="train"):
                groups = right.view(PROMPTS, GROUP)
                advantage = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1, 1)
                for _ in range(self.passes):
                    with self.precision():
                        chances = self.policy(tokens[:, :-1])[:, 2:].float().log_softmax(-1)
                    loss = -(advantage * chances.gather(2, digit[..., None])[..., 0]).mean()
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()
            if on:
                rollscope.log({"reward/mean": sum(rewards) / len(rewards), "loss": loss.item()}, step=n)
            else:
                loss.item()
        self.wait()

    def timed(self, n: int, on: bool) -> float:
        begin = time.perf_counter()
        self.step(n, on)
        return time.perf_counter() - begin


def measure(spans: int, seconds: float, step_seconds: float) -> dict[str, object]:
    loop = Loop(spans)
    for n in range(3):
        loop.step(n, on=bool(n % 2))
    one = statistics.median(loop.timed(n, False) for n in range(5))
    loop.passes = 11
    eleven = statistics.median(loop.timed(n, False) for n in range(5))
    loop.passes = max(1, round((step_seconds - one) / ((eleven - one) / 10)) + 1)
    chance = random.Random(spans)
    before = rollscope.stats()["recorded"]
    pairs, until = [], time.monotonic() + seconds
    while time.monotonic() < until or len(pairs) < 5:
        first = chance.random() < 0.5
        took = {on: loop.timed(len(pairs), on) for on in (first, not first)}
        pairs.append((took[True], took[False]))
    off = statistics.median(without for _, without in pairs)
    slower = sorted(100 * (recorded - without) / off for recorded, without in pairs)
    medians = sorted(statistics.median(chance.choices(slower, k=len(slower))) for _ in range(2000))
    rollscope.flush(30)
    counts = rollscope.stats()
    return {
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else f"cpu, {torch.get_num_threads()} threads",
        "spans": (counts["recorded"] - before) / len(pairs),
        "step_seconds": off,
        "pairs": len(pairs),
        "slower_percent": statistics.median(slower),
        "interval": (medians[49], medians[1949]),
        "aim_percent": AIMS.get(spans),
        "sent": counts["sent"],
        "dropped": counts["dropped"],
    }


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--spans", type=int, nargs="+", default=list(AIMS))
    arguments.add_argument("--seconds", type=float, default=120)
    arguments.add_argument("--step-seconds", type=float, default=2)
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    rollscope.init(project="bench", name="training")
    for spans in chosen.spans:
        got = measure(spans, chosen.seconds, chosen.step_seconds)
        if chosen.json:
            print(json.dumps(got), flush=True)
            continue
        (low, high), aim = got["interval"], got["aim_percent"]
        print(f"{got['spans']:,.0f} records per step of {got['step_seconds']:.3f} s on {got['device']}, {got['pairs']} pairs:")
        print(f"  {got['slower_percent']:+.3f} % ({low:+.3f} to {high:+.3f}){f', aim < {aim} %' if aim else ''}")
        print(f"  {got['sent']} sent, {got['dropped']} dropped", flush=True)
    rollscope.finish()


if __name__ == "__main__":
    main()
