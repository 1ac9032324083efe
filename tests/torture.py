"""Kills a server again and again while everything that it stores is being sent to it, and checks that what was acknowledged
is there, once.

Each round begins with a new folder, so that kills also hit the first flush. Thresholds are small, so that they hit later
flushes and merges. Some kills come while the server starts, and some hit `rollscope import`.
`python torture.py 1000` kills a thousand times, and prints what it checked. A second number is the seed."""

import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import conftest
import requests
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue, KeyValueList

from conftest import BINARY, FIXTURES, Server, run, sql, wait_until
from otlp import attribute, records, request, span

RUN = "load"
DUMP = FIXTURES / "slime" / "small.pt"
KILLS_PER_ROUND = 20
START = 1_790_000_000_000_000_000


def image(n):
    return b"\x89PNG\r\n\x1a\n" + n.to_bytes(8, "big")


def talk(n):
    """A conversation with a word of its own and, now and then, an image."""
    said = [{"role": "user", "content": f"say wort{n}x"}]
    media = []
    if n % 5 == 0:
        said.append({"role": "assistant", "content": [{"type": "image", "media": hashlib.sha256(image(n)).hexdigest()}]})
        media.append(("rollscope.media", AnyValue(bytes_value=image(n)), {}, START + n))
    body = AnyValue(string_value=json.dumps(said))
    return *media, ("rollscope.conversation", body, {"rollscope.id": f"talk{n}", "rollscope.key": f"k{n}", "rl.step": n % 7}, START + n)


def tokens(n):
    """Tokens of a sample of its own, and of one whose tokens are replaced each time."""
    for sample in (f"s{n}", "latest"):
        columns = {"ids": struct.pack("<2i", n, n + 1), "logprobs": struct.pack("<2f", -0.5, -1.5)}
        body = AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key=k, value=AnyValue(bytes_value=v)) for k, v in columns.items()]))
        yield "rollscope.tokens", body, {"rl.sample.id": sample, "rl.step": 1}, START + n


class Sender(threading.Thread):
    """Sends numbered messages until told to stop. One without an answer is sent again, as exporters do."""

    path = None

    def __init__(self, round):
        super().__init__(daemon=True)
        self.round = round
        # How many messages were acknowledged: all up to this one.
        self.acknowledged = 0

    def run(self):
        while not self.round.stopping:
            body = self.message(self.acknowledged).SerializeToString()
            while not self.round.stopping:
                try:
                    url = self.round.server.http + self.path
                    answer = requests.post(url, data=body, headers={"content-type": "application/x-protobuf"}, timeout=5)
                    if answer.ok:
                        assert not answer.content, "something was refused"
                        self.acknowledged += 1
                        break
                except requests.RequestException:
                    pass
                time.sleep(0.02)


class Spans(Sender):
    """Fifty spans per message. Ten of them are open, and the next message ends them."""

    path = "/v1/traces"

    def message(self, n):
        def numbered(number, is_open=False):
            start = START + number * 1_000_000
            return span(number, start_time_unix_nano=start, end_time_unix_nano=0 if is_open else start + 500_000)

        new = [numbered(n * 50 + i, is_open=i < 10) for i in range(50)]
        ended = [numbered((n - 1) * 50 + i) for i in range(10)] if n else []
        return request(new + ended, rl__run__id=RUN)

    def check(self, server):
        rows = server.sql("select attr(end_attrs, 'number'), count(*), max(state) from spans where run_id = 'load' group by 1")
        assert all(times == 1 for _, times, _ in rows), "spans are there more than once"
        states = {number: state for number, _, state in rows}
        sent = set(range(self.acknowledged * 50))
        assert sent <= set(states), f"{len(sent - set(states))} acknowledged spans are lost"
        ended = [n for n in sent if n < (self.acknowledged - 1) * 50 or n % 50 >= 10]
        assert all(states[n] == "closed" for n in ended), "an end is lost"
        return {"spans": len(sent)}


class Records(Sender):
    """A new state of the run, two metrics, one of which replaces the last one, a conversation, and tokens."""

    path = "/v1/logs"

    def message(self, n):
        values = {f"m/{n}": n, "latest": n}
        body = AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key=k, value=AnyValue(double_value=v)) for k, v in values.items()]))
        state = {"rl.run.id": RUN, "rl.run.name": f"{n}", "rollscope.started_ns": START, "rollscope.status": "running"}
        return records(RUN, ("rollscope.metrics", body, {"rl.step": 1}, START), *talk(n), *tokens(n),
                       ("rollscope.run", AnyValue(), state, START + n))

    def check(self, server):
        done = self.acknowledged
        rows = server.sql("select name, count(*), max(value) from metrics where run_id = 'load' and source is null group by 1")
        found = {name: (times, value) for name, times, value in rows}
        assert all(times == 1 for times, _ in found.values()), "metrics are there more than once"
        assert {f"m/{n}" for n in range(done)} <= set(found), "acknowledged metrics are lost"
        assert not done or found["latest"][1] >= done - 1, "the latest value of a metric is lost"
        rows = server.sql("select key, count(*) from conversations where run_id = 'load' group by 1")
        assert all(times == 1 for _, times in rows), "conversations are there more than once"
        assert {f"k{n}" for n in range(done)} <= {key for key, _ in rows}, "acknowledged conversations are lost"
        samples = server.sql("select sample_id, count(*), max(ids[1]) from tokens where run_id = 'load' group by 1")
        found = {sample: (times, first) for sample, times, first in samples}
        assert all(times == 1 for times, _ in found.values()), "tokens are there more than once"
        assert all(found.get(f"s{n}") == (1, n) for n in range(done)), "acknowledged tokens are lost"
        assert not done or found["latest"][1] >= done - 1, "the latest tokens of a sample are lost"
        images = range(0, done, 5)
        for n in images:
            answer = server.get("/api/v1/media/" + hashlib.sha256(image(n)).hexdigest())
            assert answer.ok and answer.content == image(n), f"image {n} is lost"
        states = server.sql("select name from runs where run_id = 'load'")
        assert not done or len(states) == 1 and int(states[0][0]) >= done - 1, f"the state of the run is lost: {states}"
        # The search index follows.
        total = lambda **params: server.get("/api/v1/conversations", params={"limit": 0, "run": RUN, **params}).json()["total"]
        wait_until(lambda: total() == len(rows))
        searched = self.round.dice.sample(range(done), min(done, 10))
        for n in searched:
            assert total(search=f"wort{n}x") == 1, f"conversation {n} is not found"
        return {"metrics": done, "conversations": done, "tokens": done, "images": len(images), "searches": len(searched), "run rows": min(done, 1)}


class Series(Sender):
    path = "/v1/metrics"

    def message(self, n):
        message = ExportMetricsServiceRequest()
        group = message.resource_metrics.add()
        group.resource.attributes.extend([attribute("service.name", "engine"), attribute("rl.run.id", RUN)])
        metric = group.scope_metrics.add().metrics.add(name="queue")
        for i in range(20):
            metric.gauge.data_points.add(time_unix_nano=START + (n * 20 + i) * 10**9, as_double=n * 20 + i)
        return message

    def check(self, server):
        rows = server.sql("select value, count(*) from series where name = 'queue' group by 1")
        assert all(times == 1 for _, times in rows), "samples of series are there more than once"
        sent = set(range(self.acknowledged * 20))
        assert sent <= {value for value, _ in rows}, "acknowledged samples of series are lost"
        return {"series": len(sent)}


class Round:
    """One folder, from its first flush on."""

    def __init__(self, place, config, dice):
        self.data = place / "data"
        place.mkdir()
        self.flags = ["--config", str(config)]
        self.dice = dice
        self.kills = Counter()
        self.imported = []
        self.stopping = False
        self.server = Server(self.data, *self.flags)
        self.senders = [kind(self) for kind in (Spans, Records, Series)]
        for sender in self.senders:
            sender.start()

    def kill(self):
        dice = self.dice
        time.sleep(dice.uniform(0, 2) if dice.random() < 0.3 else dice.uniform(0, 0.5))
        self.server.kill()
        self.kills["servers"] += 1
        if dice.random() < 0.2:
            self.start_and_kill("serve", "--data", self.data, "--listen", "127.0.0.1:0", "--otlp-grpc", "", "--otlp-http", "", *self.flags)
            self.kills["starts"] += 1
        if dice.random() < 0.2:
            name = f"dump {len(self.imported)}"
            command = ["import", DUMP, "--data", self.data, "--run", name]
            if dice.random() < 0.5:
                self.start_and_kill(*command)
                self.kills["imports"] += 1
            run(*command)
            self.imported.append(name)
        self.server.start()

    def start_and_kill(self, *command):
        env = {k: v for k, v in os.environ.items() if not k.startswith("ROLLSCOPE_")}
        process = subprocess.Popen([BINARY, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
        time.sleep(self.dice.uniform(0, 0.2))
        process.kill()
        process.wait()

    def check(self, dumped):
        """What was acknowledged is there, in the server and, after a last kill, in the folder."""
        self.stopping = True
        for sender in self.senders:
            sender.join(timeout=20)
            assert not sender.is_alive()
        checked = Counter()
        for _ in range(2):
            for sender in self.senders:
                checked.update(sender.check(self.server))
            rows = self.server.sql("select run_id, count(*) from samples group by 1")
            assert dict(rows) == {name: dumped for name in self.imported}, rows
            checked["samples"] += dumped * len(self.imported)
            problems = self.server.get("/healthz").text
            assert "damaged" not in problems, problems
            self.server.kill()
            self.kills["servers"] += 1
            self.server.start()
        self.server.stop()
        return Counter({name: count // 2 for name, count in checked.items()})


def torture(place, kills, seed=5):
    """Kills this many times or a few more. Returns what was killed, and what was found again."""
    dice = random.Random(seed)
    config = place / "config.toml"
    config.write_text("[store]\nflush_rows = 300\nflush_age_s = 1\n")
    run("import", DUMP, "--data", place / "dumped", "--run", "dump")
    dumped = sql(place / "dumped", "select count(*) as n from samples")[0]["n"]
    assert dumped > 0
    killed, found, rounds = Counter(), Counter(), 0
    while killed.total() < kills:
        round = Round(place / f"round {rounds}", config, dice)
        try:
            # The two kills of the check are among them.
            while round.kills.total() < min(KILLS_PER_ROUND, kills - killed.total()) - 2:
                round.kill()
            found.update(round.check(dumped))
        finally:
            round.stopping = True
            round.server.stop()
        killed.update(round.kills)
        rounds += 1
        print(f"{killed.total()} kills: {dict(killed)}, {rounds} folders, acknowledged and found once: {dict(found)}", flush=True)
    return killed, found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        torture(Path(place), int(sys.argv[1]), *(int(seed) for seed in sys.argv[2:]))
    print(f"the most memory that a server took: {conftest.peak[0]:.0f} MiB")
