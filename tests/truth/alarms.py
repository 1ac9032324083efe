"""How often the built-in alarms about steps fire on healthy runs.

Runs are made up step by step: how long a step takes (with chance and a slow drift), rewards of groups of samples while the model learns,
entropy that falls as it does, a few truncated and aborted samples. All are sent to the real binary as a live run would be, and after each step
the alarms are read. Every minute of a step during which an alarm of the run fired counts against us. Then something breaks in each
run, and the alarm for it must fire. This shares no code with the alarms. `hangs` judges NoProgress.

    python -m truth.alarms --seeds 0:40 --steps 60
"""

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import requests

CONFIG = """
[server.alarms]
interval_s = 0.2
[server.alarms.builtin]
no_progress = { enabled = false }
disk_nearly_full = { enabled = false }
[server.perf]
settle_s = 0.0
"""
BROKEN = ("StepSlow", "RewardCollapse", "EntropyCollapse", "SamplesTruncated", "SamplesAborted", "GroupsWithoutVariance")
DAY = 86_400


class Run:
    def __init__(self, seed):
        self.chance = chance = random.Random(f"alarms {seed}")
        self.name = f"healthy-{seed}"
        self.seed = seed
        self.seconds = math.exp(chance.uniform(math.log(20), math.log(600)))
        self.spread = chance.uniform(0.02, 0.3)
        self.drift = chance.uniform(-0.003, 0.006)
        self.groups, self.size = chance.choice([(8, 4), (16, 8), (32, 4)])
        self.begin, self.end = sorted((chance.uniform(0.05, 0.5), chance.uniform(0.3, 0.95)))
        self.learned = chance.uniform(20, 80)
        self.binary = chance.random() < 0.7
        self.entropy, self.entropy_left = chance.uniform(0.2, 1.5), chance.uniform(0.35, 0.9)
        self.truncated, self.aborted = chance.choice([0, 0.02, 0.1, 0.25]), chance.choice([0, 0, 0.01, 0.04])
        self.clock = time.time() - DAY / 2
        self.step = 0

    def took(self):
        return self.seconds * math.exp(self.chance.gauss(0, self.spread) + self.drift * self.step)

    def next(self, broken=None):
        """One step: its length in seconds, and what is sent of it."""
        chance, n = self.chance, self.step
        seconds = self.took() * (6 + 3 * self.spread * 10 if broken == "StepSlow" else 1)
        skill = self.begin + (self.end - self.begin) / (1 + math.exp(-(n - self.learned) / 8))
        if broken == "RewardCollapse":
            skill = 0.0
        samples = []
        for group in range(self.groups):
            level = min(0.98, max(0.02, chance.gauss(skill, 0.25))) if skill else 0.0
            same = float(chance.random() < skill)
            for member in range(self.size):
                reward = float(chance.random() < level) if self.binary else max(-1.0, level + chance.gauss(0, 0.1) - (0.9 if not skill else 0))
                reward = same if broken == "GroupsWithoutVariance" else reward
                status = "completed"
                if chance.random() < (0.9 if broken == "SamplesTruncated" else self.truncated):
                    status = "truncated"
                elif chance.random() < (0.6 if broken == "SamplesAborted" else self.aborted):
                    status = "aborted"
                samples.append((f"{n}-{group}-{member}", f"{n}-{group}", reward, status))
        entropy = self.entropy * (self.entropy_left + (1 - self.entropy_left) * math.exp(-n / 40)) * math.exp(chance.gauss(0, 0.05))
        entropy *= 0.02 if broken == "EntropyCollapse" else 1
        start, self.clock, self.step = self.clock, self.clock + seconds, n + 1
        return seconds, self.spans(n, start, seconds), self.records(n, start + seconds, samples, entropy)

    def resource(self):
        return {"attributes": [text("rl.run.id", self.name), text("service.name", "trainer")]}

    def spans(self, n, start, seconds):
        parts = [("step", "step", 0, 1), ("rollout", "rollout", 0, 0.7), ("train", "train", 0.7, 0.95)]
        spans = [{"traceId": f"{self.seed + 1:016x}{n + 1:016x}", "spanId": f"{n * 4 + i + 1:016x}", "name": name, "kind": 1,
                  **({"parentSpanId": f"{n * 4 + 1:016x}"} if i else {}),
                  "startTimeUnixNano": ns(start + begin * seconds), "endTimeUnixNano": ns(start + end * seconds),
                  "attributes": [number("rl.step", n), text("rl.phase", phase)]} for i, (name, phase, begin, end) in enumerate(parts)]
        return {"resource": self.resource(), "scopeSpans": [{"scope": {"name": "t"}, "spans": spans}]}

    def records(self, n, at, samples, entropy):
        records = [{"timeUnixNano": ns(at), "eventName": "rollscope.metrics", "attributes": [number("rl.step", n)],
                    "body": {"kvlistValue": {"values": [{"key": "actor/entropy", "value": {"doubleValue": entropy}}]}}}]
        if n == 0:
            records.append({"timeUnixNano": ns(at), "eventName": "rollscope.run", "attributes": [
                text("rl.run.id", self.name), text("rl.run.name", self.name), text("rollscope.status", "running"),
                number("rollscope.started_ns", int(at * 1e9))]})
        for sample, group, reward, status in samples:
            records.append({"timeUnixNano": ns(at), "eventName": "rollscope.conversation", "body": {"stringValue": json.dumps(
                [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}])}, "attributes": [
                text("rollscope.id", f"{self.name}/{sample}"), number("rl.step", n), text("rl.sample.id", sample), text("rl.group.id", group),
                text("rollscope.metadata", json.dumps({"reward": reward, "status": status}))]})
        return {"resource": self.resource(), "scopeLogs": [{"scope": {"name": "t"}, "logRecords": records}]}


def ns(seconds):
    return str(int(seconds * 1e9))


def text(key, value):
    return {"key": key, "value": {"stringValue": value}}


def number(key, value):
    return {"key": key, "value": {"intValue": str(value)}}


def send(server, sent):
    for path, key, parts in [("/v1/traces", "resourceSpans", [s for _, s, _ in sent]), ("/v1/logs", "resourceLogs", [r for _, _, r in sent])]:
        answer = requests.post(server.http + path, json={key: parts}, timeout=60)
        assert answer.ok and not answer.json().get("partialSuccess"), answer.text


def firing(server):
    """What fires by run, as of a look that began after now and saw every step."""
    asked = time.time()
    seen = 0
    while True:
        answer = server.get("/api/v1/alarms", params={"history": "false"}).json()
        failed = [r["error"] for r in answer["rules"] if r["error"]]
        assert not failed, failed
        last = min((int(r["last_ns"] or 0) for r in answer["rules"] if r["name"] in BROKEN), default=0)
        if last > (asked + 1.0) * 1e9 and last != seen:
            return [(a["labels"].get("run"), a["alarm"]) for a in answer["alarms"] if a["state"] == "firing"]
        time.sleep(0.1)


def judge(seeds, steps, verbose=False):
    from conftest import Server

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rollscope.toml").write_text(CONFIG)
        server = Server(Path(folder) / "data", "--config", f"{folder}/rollscope.toml")
        try:
            runs = {run.name: run for run in map(Run, seeds)}
            minutes, false, which = 0.0, 0.0, Counter()
            for n in range(steps):
                sent = {name: run.next() for name, run in runs.items()}
                send(server, list(sent.values()))
                on = firing(server)
                minutes += sum(seconds for seconds, _, _ in sent.values()) / 60
                false += sum(sent[run][0] for run in {run for run, _ in on}) / 60
                for run, alarm in on:
                    which[alarm] += 1
                    if verbose:
                        print(f"step {n} of {run}: {alarm}", file=sys.stderr)
            # Each run breaks in one way.
            found, planted = Counter(), Counter()
            broken = {name: BROKEN[i % len(BROKEN)] for i, name in enumerate(runs)}
            caught = set()
            for n in range(5):
                send(server, [run.next(broken[name] if not (broken[name] == "StepSlow" and n) else None) for name, run in runs.items()])
                caught |= set(firing(server))
            for name, alarm in broken.items():
                planted[alarm] += 1
                found[alarm] += (name, alarm) in caught
            return {"runs": len(runs), "steps": steps, "healthy_minutes": round(minutes), "false_minutes": round(false, 1), "false_alarms": dict(which),
                    "found": {alarm: [found[alarm], planted[alarm]] for alarm in BROKEN}}
        finally:
            server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:40")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    print(json.dumps(judge(range(first, last), options.steps, options.verbose)))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
