"""Kills the nodes of a lake again and again while everything that it stores is being sent to it, and checks that what was acknowledged is
there, once.

Two nodes that ingest, one that is asked and two workers are processes on one prefix of a SeaweedFS. `SIGKILL` strikes them in turn, also
while they start. A node that was killed comes back under its name, or another one comes with a new name and somebody takes over what the
old one left. Now and then a node is replaced while it is stopped, and then goes on. Senders send everything, often to the other node than
before, and again what was acknowledged already.

Two threads ask all the time. `rollscope sql --data s3://...` must see every acknowledged row at once, the node that is asked a few
seconds later. Each round begins with a new prefix and ends when all rows are there once; then all nodes close, and `deltalake`
must find the same rows.

`python cluster_torture.py 1000` kills a thousand times, and prints what it checked. `--seed N` decides what happens when, `--proxy` puts
faults between rollscope and the store (`s3_proxy.py`), `--keep DIR` leaves logs and the store there."""

import argparse
import hashlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import requests
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue, KeyValueList

from conftest import BINARY, FIXTURES, Server
from lake import Lake, Seaweed, without_ours
from otlp import attribute, records, request, span
from s3_proxy import Proxy
from torture import RUN, START, image, talk, tokens

DUMP = FIXTURES / "slime" / "small.pt"
KILLS_PER_ROUND = 50
# With fewer kills, nobody waits for a minute of silence.
FEW = 15
# Series that are older than a week are thinned.
RECENT = time.time_ns() - 3600 * 10**9
CONFIG = "[store]\nflush_rows = 300\nflush_age_s = 1\n[query]\nspread_bytes = 1\n"
# The node that is asked shows what others have acknowledged after this time: docs/lake.md says about a second.
FOLLOWED_S = 5
# What is late by more than this does not come.
LATE_S = 60
# How long a question is asked again before it counts as one that nobody answers.
PATIENCE_S = 90
SETTLING_S = 300
RATES = {"unavailable": 0.02, "reset_before": 0.01, "reset_after": 0.02, "slow": 0.003}
# The second sender of a kind counts from here.
FAR = 1_000_000


def number(column, prefix):
    return f"cast(substr({column}, {prefix + 1}) as bigint)"


# For each message of each kind: how many of its rows are there, how often, and how many of its spans are closed.
EVERYTHING = f"""
select 'spans' as kind, n / 50 as m, count(distinct n) as d, count(*) as c, count(distinct case when state = 'closed' then n end) as e
from (select attr(end_attrs, 'number')::bigint as n, state from spans where run_id = '{RUN}') group by 1, 2
union all select 'series', value::bigint / 20, count(distinct value), count(*), 0 from series where name = 'queue' group by 1, 2
union all select 'metrics', {number('name', 2)}, 1, count(*), 0 from metrics where run_id = '{RUN}' and source is null and name like 'm/%' group by 1, 2
union all select 'conversations', {number('key', 1)}, 1, count(*), 0 from conversations where run_id = '{RUN}' group by 1, 2
union all select 'tokens', {number('sample_id', 1)}, 1, count(*), 0 from tokens where run_id = '{RUN}' and sample_id like 's%' group by 1, 2
union all select 'runs', 0, 1, count(*), 0 from runs where run_id = '{RUN}' group by 1, 2
union all select 'latest tokens', 0, 1, count(*), 0 from tokens where run_id = '{RUN}' and sample_id = 'latest' group by 1, 2
union all select 'latest metrics', {number('name', 7)}, 1, count(*), max(value)::bigint from metrics where run_id = '{RUN}' and source is null and name like 'latest/%' group by 1, 2
union all select 'samples of ' || run_id, 0, count(distinct sample_id), count(*), 0 from samples group by 1, 2
"""
# The same spans by way of a join, and of groups over texts.
JOINED = f"""
select 'spans', n / 50, count(distinct n), count(*), 50 from
(select attr(a.end_attrs, 'number')::bigint as n from spans a join spans b on a.trace_id = b.trace_id and a.span_id = b.span_id
 where a.run_id = '{RUN}' and b.run_id = '{RUN}') group by 1, 2"""
QUESTIONS = [EVERYTHING, JOINED]


class Life:
    """A process, until it was killed."""

    def __init__(self):
        self.killed = None
        self.is_fenced = False


class Slot:
    """A place for one process: it is started, struck, and started again. Starting happens in a thread, so that it can be struck."""

    def __init__(self, trial, role, name, proxied=True):
        self.trial, self.role, self.name = trial, role, name
        self.env = trial.lake.env if proxied else trial.lake.direct
        self.lock = threading.Lock()
        # What answers, what runs, and since when it is the same.
        self.server = self.process = self.life = None
        self.is_struck, self.starts, self.thread = False, 0, None

    @property
    def log(self):
        return self.trial.place / f"{self.name}.log"

    def start(self, name=None, after=0.0):
        self.name = name or self.name
        self.is_struck = False
        self.thread = threading.Thread(target=self._start, args=[after], daemon=True)
        self.thread.start()

    def _start(self, after):
        time.sleep(after)
        begun = time.monotonic()
        while not self.is_struck and not self.trial.over:
            try:
                server = (Worker if self.role == "worker" else Node)(self)
            except RuntimeError as error:
                if self.is_struck:
                    return
                self.trial.counts["starts that failed"] += 1
                # With faults on the way, a supervisor starts it again.
                if not self.trial.proxy or time.monotonic() - begun > PATIENCE_S:
                    self.trial.problem(f"{self.name} did not start: {error}")
                    return
                time.sleep(1)
                continue
            life = Life()
            self.trial.note(f"{self.name} is there")
            with self.lock:
                if self.is_struck:
                    return
                self.server, self.life = server, life
                self.starts += 1
            self.trial.slowest["start"] = max(self.trial.slowest["start"], time.monotonic() - begun)
            return

    def is_up(self):
        return self.server is not None

    def detach(self):
        """Whoever asks from now on finds nobody."""
        with self.lock:
            self.is_struck = True
            server, self.server = self.server, None
            if self.life and self.life.killed is None:
                self.life.killed = time.monotonic()
            return server

    def strike(self):
        """Kills what is there. `True`: it had not started yet. `None`: nothing was there."""
        server, process = self.detach(), self.process
        runs = process is not None and process.poll() is None
        if runs:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if self.thread:
            self.thread.join(60)
        if server is not None:
            server.close()
        return server is None if runs else None

    def stop(self):
        server = self.detach()
        if self.thread:
            self.thread.join(60)
        return server.stop() if server is not None else 0


class Node(Server):
    """Its process is known to the slot as soon as there is one."""

    def __init__(self, slot):
        self.slot = slot
        lake = slot.trial.lake
        flags = ["--node", slot.name, "--cache", str(lake.folder / slot.name), "--role", slot.role, "--config", str(slot.trial.config)]
        super().__init__(lake.folder / slot.name, *flags, env=slot.env, place=lake.url)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "process" and value is not None:
            self.slot.process = value
            if self.slot.is_struck:
                value.kill()

    def close(self):
        self.process.stdout.close()
        self.log.close()


class Worker:
    def __init__(self, slot):
        self.log = open(slot.log, "ab")
        command = [BINARY, "executor", "--data", slot.trial.lake.url, "--node", slot.name, "--config", str(slot.trial.config)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, env={**without_ours(), **slot.env})
        slot.process = self.process
        if slot.is_struck:
            self.process.kill()
        if not self.process.stdout.readline().startswith("worker "):
            self.process.wait()
            raise RuntimeError(slot.log.read_text()[-2000:])

    def close(self):
        self.process.stdout.close()
        self.log.close()

    def stop(self):
        self.process.terminate()
        code = self.process.wait(60)
        self.close()
        return code


class Sender(threading.Thread):
    """Sends numbered messages. One without an answer is sent again, perhaps to another node, as exporters do behind a load balancer."""

    kind = path = None
    rows = 1
    pause_s = 0.15

    def __init__(self, trial, index, seed):
        super().__init__(daemon=True)
        self.trial, self.first = trial, index * FAR
        self.dice = random.Random(seed)
        self.home = index
        self.is_settling = False
        # When each message was acknowledged, and by whom.
        self.acknowledged = []

    def run(self):
        dice, trial = self.dice, self.trial
        while not trial.stopping:
            if self.is_settling or dice.random() < 0.1:
                self.home = 1 - self.home
            n = self.first + len(self.acknowledged)
            body = self.message(n).SerializeToString()
            node = self.home
            while not trial.stopping:
                life = self.post(node, body)
                if life:
                    self.acknowledged.append((time.monotonic(), life))
                    break
                if dice.random() < 0.3:
                    node = 1 - node
                time.sleep(0.05)
            if not self.is_settling and dice.random() < 0.1 and self.post(1 - node, body):
                trial.counts["messages sent twice"] += 1
            time.sleep(1.2 if self.is_settling else self.pause_s)

    def post(self, node, body):
        """Who acknowledged it."""
        slot = self.trial.ingest[node]
        with slot.lock:
            server, life = slot.server, slot.life
        return self.post_to(server, body, life) and life if server else None

    def post_to(self, server, body, life=None):
        begun = time.monotonic()
        try:
            answer = requests.post(server.http + self.path, data=body, headers={"content-type": "application/x-protobuf"}, timeout=60)
        except requests.RequestException:
            return False
        self.trial.slowest["acknowledgement"] = max(self.trial.slowest["acknowledgement"], time.monotonic() - begun)
        if answer.ok:
            if answer.content:
                self.trial.problem(f"{self.kind}: something was refused: {answer.content[:300]}")
            return True
        self.trial.counts[f"refused with {answer.status_code}"] += 1
        if life and life.killed is None and "taken over" in answer.text:
            # It lives, and acknowledges nothing more.
            life.killed, life.is_fenced = time.monotonic(), True
        if answer.status_code not in (429, 502, 503, 504):
            self.trial.problem(f"{self.kind}: refused for good: {answer.status_code} {answer.text[:300]}")
        return False


class Spans(Sender):
    """Fifty spans per message. Ten of them are open, and the next message ends them."""

    kind, path, rows = "spans", "/v1/traces", 50

    def message(self, n):
        def numbered(number, is_open=False):
            start = START + number * 1_000_000
            return span(number, start_time_unix_nano=start, end_time_unix_nano=0 if is_open else start + 500_000)

        new = [numbered(n * 50 + i, is_open=i < 10) for i in range(50)]
        ended = [numbered((n - 1) * 50 + i) for i in range(10)] if n > self.first else []
        return request(new + ended, rl__run__id=RUN)


class Series(Sender):
    kind, path, rows = "series", "/v1/metrics", 20

    def message(self, n):
        message = ExportMetricsServiceRequest()
        group = message.resource_metrics.add()
        group.resource.attributes.extend([attribute("service.name", "engine"), attribute("rl.run.id", RUN)])
        metric = group.scope_metrics.add().metrics.add(name="queue")
        for i in range(n * 20, n * 20 + 20):
            metric.gauge.data_points.add(time_unix_nano=RECENT + i * 10**6, as_double=i)
        return message


class Records(Sender):
    """A new state of the run, two metrics, one of which replaces the last one, a conversation, and tokens."""

    kind, path = "metrics", "/v1/logs"

    def message(self, n):
        values = {f"m/{n}": n, f"latest/{self.first}": n}
        body = AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key=k, value=AnyValue(double_value=v)) for k, v in values.items()]))
        state = {"rl.run.id": RUN, "rl.run.name": f"{n}", "rollscope.started_ns": START, "rollscope.status": "running"}
        return records(RUN, ("rollscope.metrics", body, {"rl.step": 1}, START), *talk(n), *tokens(n),
                       ("rollscope.run", AnyValue(), state, START + n))


class Trial:
    """One prefix, from its first flush until all of it is in tables, once."""

    def __init__(self, place, weed, number, seed, with_proxy, calm_s, stops):
        self.place, self.weed, self.calm_s, self.stops = place, weed, calm_s, stops
        place.mkdir()
        self.dice = random.Random(seed)
        self.proxy = Proxy(weed.address, seed, RATES) if with_proxy else None
        env = self.proxy.env(weed.env) if self.proxy else weed.env
        self.lake = Lake(f"round-{number}", place, env, direct=weed.env)
        self.config = place / "config.toml"
        self.config.write_text(CONFIG)
        self.counts, self.kills, self.slowest = Counter(), Counter(), Counter()
        self.problems = []
        self.stopping = self.over = False
        self.abandoned, self.renamed = [], 0
        self.imported = []
        self.ingest = [Slot(self, "ingest", "in-0"), Slot(self, "ingest", "in-1")]
        self.asked = Slot(self, "query", "ask")
        self.workers = [Slot(self, "worker", "work-0"), Slot(self, "worker", "work-1")]
        self.slots = [*self.ingest, self.asked, *self.workers]
        # The lake is made by whoever writes first.
        for slot in [*self.ingest, self.asked]:
            slot.start()
        self.wait(lambda: all(slot.is_up() for slot in self.ingest), PATIENCE_S, "the first start")
        for slot in self.workers:
            slot.start()
        kinds = [Spans, Records, Series]
        self.senders = [kind(self, i, seed * 100 + i * 10 + k) for k, kind in enumerate(kinds) for i in (0, 1)]
        self.threads = [*self.senders, threading.Thread(target=self.ask_node, daemon=True), threading.Thread(target=self.ask_lake, daemon=True)]
        for thread in self.threads:
            thread.start()

    def problem(self, text):
        self.problems.append(text)

    def check_problems(self):
        assert not self.problems, "\n".join(self.problems[:5])

    def wait(self, condition, seconds, what):
        deadline = time.monotonic() + seconds
        while not condition():
            self.check_problems()
            assert time.monotonic() < deadline, f"{what}: it did not happen within {seconds} s"
            time.sleep(0.2)

    # What must be there.

    def acknowledged(self):
        """For each sender, its messages so far, each with when and by whom it was acknowledged."""
        return [(sender, list(sender.acknowledged)) for sender in self.senders]

    @staticmethod
    def old_enough(acknowledged):
        """What the node has to show."""
        now = time.monotonic()
        return [(sender, [message if now - message[0] > FOLLOWED_S else None for message in messages]) for sender, messages in acknowledged]

    def missing(self, rows, acknowledged, kinds):
        """What is not in an answer to [`QUESTIONS`]."""
        found = {(kind, m): (distinct, ends) for kind, m, distinct, _, ends in rows}
        missing = []
        for sender, messages in acknowledged:
            for i, message in enumerate(messages):
                if message is None:
                    continue
                n = sender.first + i
                of = ["metrics", "conversations", "tokens"] if isinstance(sender, Records) else [sender.kind]
                for kind in set(of) & kinds:
                    there, closed = found.get((kind, n), (0, 0))
                    # The next message ends ten.
                    closes = 50 if i + 1 < len(messages) and messages[i + 1] is not None else 40
                    if there < sender.rows or kind == "spans" and closed < closes:
                        missing.append(f"{kind} of message {n}: {there} of {sender.rows} rows, {closed} closed, acknowledged "
                                       f"{time.monotonic() - message[0]:.1f} s ago")
        return missing

    @staticmethod
    def doubled(rows):
        """Rows that are there more than once."""
        return Counter({kind: count for kind, count in
                        Counter({(kind, m): times - distinct for kind, m, distinct, times, _ in rows}).items() if count > 0})

    def note_stale(self, rows):
        """Values that an older one has replaced."""
        latest = {m: value for kind, m, _, _, value in rows if kind == "latest metrics"}
        return [f"latest/{sender.first} is {latest.get(sender.first)}, not {sender.first + len(sender.acknowledged) - 1}"
                for sender in self.senders
                if isinstance(sender, Records) and sender.acknowledged
                and (latest.get(sender.first) or 0) < sender.first + len(sender.acknowledged) - 1]

    # Who asks.

    def ask_node(self):
        dice, failed_since, last = random.Random(1), None, None
        asker = late_since = late_for = None
        while not self.over:
            with self.asked.lock:
                server, life = self.asked.server, self.asked.life
            if server is None:
                failed_since = None
                time.sleep(0.1)
                continue
            # One that has failed is asked again.
            question = last if failed_since else dice.choice(QUESTIONS)
            if life is not asker:
                asker, late_since = life, None
            acknowledged = late_for if late_since is not None else self.old_enough(self.acknowledged())
            begun = time.monotonic()
            why = None
            try:
                answer = requests.post(server.url + "/api/v1/sql", json={"query": question, "format": "json"}, timeout=PATIENCE_S)
                if answer.ok:
                    rows = answer.json()["rows"]
                else:
                    why = f"{answer.status_code}: {answer.text[:500]}"
            except (requests.RequestException, ValueError) as error:
                why = str(error)[:500]
            took = time.monotonic() - begun
            if self.over:
                return
            if why is not None:
                if self.asked.life is not life or life.killed is not None:
                    # It was killed.
                    failed_since = None
                    continue
                self.counts["failed queries"] += 1
                print(f"a query failed after {took:.1f} s: {why}", flush=True)
                last, failed_since = question, failed_since or begun
                if time.monotonic() - failed_since > PATIENCE_S:
                    self.problem(f"a node does not answer for {PATIENCE_S} s: {why}")
                    return
                time.sleep(1)
                continue
            failed_since = None
            self.counts["queries"] += 1
            self.slowest["answer"] = max(self.slowest["answer"], took)
            kinds = {"spans"} if question is JOINED else {"spans", "series", "metrics", "conversations", "tokens"}
            self.counts["messages seen by the node"] = max(self.counts["messages seen by the node"], len({(row[0], row[1]) for row in rows}))
            self.counts["messages that the node had to see"] = max(
                self.counts["messages that the node had to see"], sum(m is not None for _, messages in acknowledged for m in messages))
            missing = self.missing(rows, acknowledged, kinds)
            if missing and late_since is None:
                # A machine that has much else to do may be late, but not for long.
                late_since, late_for = begun, acknowledged
                self.counts["rows seen late"] += 1
                self.note(f"the node lacks {len(missing)}: {missing[:2]}")
            elif missing and begun - late_since > LATE_S:
                self.problem(f"the node lacks {len(missing)}: {missing[:3]}; {self.look_closer(server, acknowledged, kinds)}")
                return
            elif not missing and late_since is not None:
                self.slowest["late by"] = max(self.slowest["late by"], begun - late_since)
                late_since = None
            time.sleep(0.3)

    def look_closer(self, server, acknowledged, kinds):
        """Whether it stays so, and who else says so."""
        said = []
        for what, question in (("everything", EVERYTHING), ("joined", JOINED), ("everything", EVERYTHING), ("joined", JOINED)):
            try:
                answer = requests.post(server.url + "/api/v1/sql", json={"query": question, "format": "json"}, timeout=PATIENCE_S)
                rows = answer.json()["rows"]
                said.append(f"{what} asked again: {self.missing(rows, acknowledged, kinds if what == 'everything' else {'spans'})[:3]}")
            except (requests.RequestException, ValueError, KeyError) as error:
                said.append(f"{what} asked again: {error}")
        with suppress(AssertionError):
            said.append(f"the lake: {self.missing(self.read_lake(), acknowledged, kinds)[:3]}")
        # Which files it reads, and what there is.
        with suppress(requests.RequestException, KeyError), open(self.place / "explain.txt", "w") as out:
            question = "explain select count(distinct attr(end_attrs, 'number')), count(*) from spans where run_id = 'load'"
            for path, message in (("sql", {"query": question, "format": "json"}),):
                print(requests.post(f"{server.url}/api/v1/{path}", json=message, timeout=PATIENCE_S).text.replace("\\n", "\n"), file=out)
            print(requests.get(f"{server.url}/api/v1/health", timeout=PATIENCE_S).text, file=out)
            print(self.weed.names(f"{self.lake.prefix}/spans/_delta_log"), file=out)
        return "; ".join(said)

    def note(self, what):
        with open(self.place / "strikes.log", "a") as out:
            print(time.strftime("%H:%M:%S"), what, file=out)

    def ask_lake(self):
        failed = 0
        while not self.over:
            acknowledged = self.acknowledged()
            begun = time.monotonic()
            try:
                rows = self.read_lake()
            except AssertionError as error:
                failed += 1
                self.counts["readers that failed"] += 1
                print(f"a reader of the lake failed: {error}", flush=True)
                if failed > 5:
                    self.problem(f"the lake cannot be read: {error}")
                    return
                continue
            failed = 0
            if self.over:
                return
            self.counts["readers"] += 1
            self.slowest["reader"] = max(self.slowest["reader"], time.monotonic() - begun)
            missing = self.missing(rows, acknowledged, {"spans", "series", "metrics", "conversations", "tokens"})
            if missing:
                self.problem(f"the lake lacks {len(missing)} of what was acknowledged: {missing[:3]}")
                return
            self.counts["most doubled at a time"] = max(self.counts["most doubled at a time"], self.doubled(rows).total())
            time.sleep(1)

    def read_lake(self):
        try:
            return [list(row.values()) for row in self.lake.sql(EVERYTHING)]
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"no answer within {error.timeout} s") from error

    # Who strikes.

    def torment(self, kills):
        turn, was_calm = 0, False
        while self.kills.total() < kills:
            self.check_problems()
            self.restart_fenced()
            # Each role in its turn.
            role = ("ingest", "query", "worker")[turn % 3]
            turn += 1
            slot = self.dice.choice([slot for slot in self.slots if slot.role == role])
            self.strike(slot, kills)
            if self.dice.random() < 0.04:
                self.import_dump()
            if not was_calm and self.kills.total() >= kills // 2:
                # Long enough for the node to have to see something.
                was_calm = True
                time.sleep(self.calm_s)
            time.sleep(self.dice.uniform(0, 0.3) if self.dice.random() < 0.3 else self.dice.uniform(0.3, 2.5))

    def restart_fenced(self):
        """Somebody has taken over for a node that lives. It says that it wants to be restarted."""
        for slot in self.ingest:
            if slot.is_up() and slot.life.is_fenced:
                self.counts["fenced while they lived"] += 1
                self.note(f"{slot.name} is fenced")
                slot.strike()
                slot.start()

    def strike(self, slot, kills):
        dice = self.dice
        if slot.role == "ingest" and slot.is_up() and dice.random() < 0.1:
            self.replace(slot)
            return
        if slot.role == "worker" and slot.is_up() and dice.random() < 0.1:
            self.freeze(slot)
            return
        if slot.role == "ingest" and slot.is_up() and dice.random() < self.stops:
            # In order, as when a version is rolled out. Spans that are open are in the tables then.
            code = slot.stop()
            if code != 0:
                self.problem(f"{slot.name} ended with {code}")
            self.counts["stopped in order"] += 1
            slot.start()
            return
        was_starting = slot.strike()
        if was_starting is None:
            slot.start()
            return
        self.note(f"killed {slot.name}{' while it started' if was_starting else ''}")
        self.kills[slot.role] += 1
        self.counts["killed while starting"] += was_starting
        name = slot.name
        if slot.role == "ingest" and dice.random() < 0.15 and self.renamed < (4 if kills > FEW else 0):
            # Somebody else takes over what this one left.
            self.renamed += 1
            self.abandoned.append(name)
            name = f"in-{self.renamed + 1}"
        elif slot.role == "ingest" and self.abandoned and dice.random() < 0.1:
            # One comes back, perhaps while or after somebody has taken over.
            self.abandoned.append(name)
            name = self.abandoned.pop(0)
        slot.start(name, after=dice.choice([0, 0, 0, 0.5, 3]))

    def replace(self, slot):
        """Stops a node without its knowing, starts another one in its place, and lets it go on: it may acknowledge nothing more."""
        self.note(f"replaces {slot.name}")
        old, process = slot.server, slot.process
        process.send_signal(signal.SIGSTOP)
        try:
            slot.detach()
            if slot.thread:
                slot.thread.join(60)
            slot.start()
            self.wait(lambda: slot.is_up() or not slot.thread.is_alive(), PATIENCE_S, f"{slot.name} takes its own place")
            process.send_signal(signal.SIGCONT)
            sender = self.dice.choice([sender for sender in self.senders if isinstance(sender, Spans)])
            # Rows that nobody else sends.
            lone = request([span(9 * FAR * 50 + self.counts["replaced"])], rl__run__id="lone")
            if sender.post_to(old, lone.SerializeToString()):
                self.problem(f"{slot.name} acknowledged something after it was replaced")
            self.counts["replaced"] += 1
        finally:
            process.kill()
            process.wait()
            old.close()
        self.kills["ingest"] += 1

    def freeze(self, slot):
        """A worker that says nothing for a while. Queries must go on without it."""
        process = slot.process
        process.send_signal(signal.SIGSTOP)
        self.counts["frozen workers"] += 1
        time.sleep(self.dice.uniform(1, 5))
        process.send_signal(signal.SIGCONT)

    def import_dump(self):
        name = f"dump {len(self.imported)}"
        command = ["import", DUMP, "--data", self.lake.url, "--run", name]
        if self.dice.random() < 0.7:
            env = {**without_ours(), "HOME": str(self.place), **self.lake.env}
            process = subprocess.Popen([BINARY, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
            time.sleep(self.dice.uniform(0, 3))
            process.kill()
            process.wait()
            self.kills["import"] += 1
        done = self.lake.run(*command)
        if done.returncode != 0:
            self.problem(f"cannot import: {done.stderr[-1000:]}")
        self.imported.append(name)

    # What is left.

    def settle(self, dumped):
        """Everybody comes back, little is sent, and all becomes right."""
        for slot in self.slots:
            if not slot.is_up() and not (slot.thread and slot.thread.is_alive()):
                slot.start()
        self.wait(lambda: all(slot.is_up() for slot in self.slots), SETTLING_S, "everybody comes back")
        for sender in self.senders:
            sender.is_settling = True
        begun = time.monotonic()
        while True:
            self.check_problems()
            self.restart_fenced()
            rows = self.read_lake()
            doubled = self.doubled(rows)
            left = self.left_logs()
            if not doubled and not left:
                break
            if time.monotonic() - begun > SETTLING_S:
                raise AssertionError(f"not settled within {SETTLING_S} s: doubled {dict(doubled)}, logs of {left}")
            time.sleep(2)
        self.slowest["settling"] = time.monotonic() - begun
        self.stopping = True
        for sender in self.senders:
            sender.join(90)
            assert not sender.is_alive(), f"a sender of {sender.kind} gets no answer"
        # Until the node has seen all.
        self.wait(lambda: self.node_has_all(), 120, "the node sees everything")
        self.over = True
        for thread in self.threads:
            thread.join(PATIENCE_S + 30)
        self.check_problems()
        found = self.check(self.read_lake(), dumped)
        self.check_media()
        codes = {slot.name: slot.stop() for slot in self.slots}
        assert not any(codes.values()), f"not all ended in order: {codes}"
        found = self.check(self.read_lake(), dumped)
        self.check_tables()
        return found

    def node_has_all(self):
        answer = requests.post(self.asked.server.url + "/api/v1/sql", json={"query": EVERYTHING, "format": "json"}, timeout=PATIENCE_S)
        if not answer.ok:
            return False
        rows = answer.json()["rows"]
        kinds = {"spans", "series", "metrics", "conversations", "tokens"}
        return not self.missing(rows, self.acknowledged(), kinds) and not self.doubled(rows)

    def left_logs(self):
        """Nodes that are gone, and whose logs nobody has taken over yet."""
        names = self.weed.names(f"{self.lake.prefix}/nodes")
        present = {slot.name for slot in self.slots}
        gone = [name for name in names if name.startswith("in-") and name.removesuffix(".json") not in present]
        return [name for name in gone if b'"writer"' in (self.weed.get(f"{self.lake.prefix}/nodes/{name}") or b"")]

    def check(self, rows, dumped):
        acknowledged = self.acknowledged()
        missing = self.missing(rows, acknowledged, {"spans", "series", "metrics", "conversations", "tokens"})
        assert not missing, f"{len(missing)} are lost: {missing[:5]}"
        doubled = self.doubled(rows)
        assert not doubled, f"doubled: {doubled}"
        found = Counter()
        samples = {kind.removeprefix("samples of "): distinct for kind, _, distinct, *_ in rows if kind.startswith("samples of ")}
        assert samples == dict.fromkeys(self.imported, dumped), samples
        found["samples"] = sum(samples.values())
        for sender, messages in acknowledged:
            found[sender.kind] += len(messages) * sender.rows
            if isinstance(sender, Records):
                found["conversations"] += len(messages)
                found["tokens"] += len(messages)
        stale = self.note_stale(rows)
        if stale:
            self.counts["values that an older one replaced"] += len(stale)
            print("stale:", stale, flush=True)
        return found

    def check_media(self):
        server = self.asked.server
        for sender in self.senders:
            if not isinstance(sender, Records):
                continue
            numbers = range(sender.first, sender.first + len(sender.acknowledged))
            for n in [n for n in numbers if n % 5 == 0]:
                answer = server.get("/api/v1/media/" + hashlib.sha256(image(n)).hexdigest())
                assert answer.ok and answer.content == image(n), f"image {n} is lost: {answer.status_code}"
                self.counts["images"] += 1
            for n in self.dice.sample(numbers, min(5, len(numbers))):
                def found(n=n):
                    answer = server.get("/api/v1/conversations", params={"limit": 0, "run": RUN, "search": f"wort{n}x"})
                    return answer.ok and answer.json()["total"] == 1

                self.wait(found, 60, f"a search for conversation {n}")
                self.counts["searches"] += 1

    def check_tables(self):
        """Others read the same."""
        names = ["runs", "spans", "samples", "conversations", "metrics", "series", "tokens"]
        ours = self.lake.sql(" union all ".join(f"select '{name}' as t, count(*) as n from {name}" for name in names))
        ours = {row["t"]: row["n"] for row in ours}
        theirs = {name: self.lake.delta(name).to_pyarrow_table(columns=["run_id"]).num_rows for name in names}
        assert ours == theirs, f"{ours} here, {theirs} for deltalake"
        writers = f"{self.lake.prefix}/writers"
        # An import that was killed for good has left what it had flushed, until a node is silent for a minute.
        entries = [self.weed.get(f"{self.lake.prefix}/nodes/{name}") for name in self.weed.names(f"{self.lake.prefix}/nodes")]
        killed = {name for entry in entries if entry for name in [json.loads(entry).get("writer"), *json.loads(entry).get("before", [])]}
        for writer in set(self.weed.names(writers)) - killed:
            # Fences have 40 bytes, and stay. So does the empty part, of 25, of a process that was killed before it took anything.
            logs = {name: size for name, size in self.weed.names(f"{writers}/{writer}/log").items() if size != 40}
            left = {name: size for name, size in logs.items() if size > 25}
            assert not left, f"something is left in the log of {writer}: {left}"

    def close(self):
        self.stopping = self.over = True
        for slot in self.slots:
            with suppress(Exception):
                slot.strike()
        if self.proxy:
            self.proxy.stop()
            self.counts.update({f"S3: {what}": n for what, n in self.proxy.counts.items()})
        for log in self.place.glob("*.log"):
            text = log.read_text(errors="replace")
            self.counts["takeovers"] += text.count("took over the log of a writer that has ended")
            self.counts["queries that ran again"] += text.count("a query on workers failed")
            self.counts["panics"] += text.count("panicked")


def torture(place, weed, kills, seed=5, with_proxy=False, calm_s=45, stops=0.1, kills_per_round=KILLS_PER_ROUND):
    """Kills this many times or a few more. Returns what was killed, what was found again, and what else was counted."""
    config = place / "plain"
    done = Lake("", place, {}).run("import", DUMP, "--data", config, "--run", "dump")
    assert done.returncode == 0, done.stderr
    done = Lake("", place, {}).run("sql", "--data", config, "--format", "csv", "select count(*) from samples")
    dumped = int(done.stdout.split()[-1])
    killed, found, counts, slowest, rounds = Counter(), Counter(), Counter(), Counter(), 0
    while killed.total() < kills:
        trial = Trial(place / f"round {rounds}", weed, rounds, seed + rounds, with_proxy, calm_s, stops)
        try:
            trial.torment(min(kills_per_round, kills - killed.total()))
            found.update(trial.settle(dumped))
        except BaseException:
            print(f"seed {seed + rounds} failed; killed {dict(trial.kills)}, {dict(trial.counts)}; logs in {trial.place}", flush=True)
            raise
        finally:
            trial.close()
        killed.update(trial.kills)
        counts.update(trial.counts)
        slowest |= trial.slowest
        rounds += 1
        assert not counts["panics"], "a panic; see the logs"
        print(f"seed {seed + rounds - 1}: {dict(killed)}, found once: {dict(found)}, {dict(counts)}, slowest: "
              f"{ {what: round(s, 1) for what, s in slowest.items()} }", flush=True)
    return killed, found, counts, slowest


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--proxy", action="store_true")
    parser.add_argument("--calm", type=float, default=45, help="seconds without kills in each round")
    parser.add_argument("--stops", type=float, default=0.1, help="how often a node that ingests is stopped in order instead")
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    # Whoever ends it finds no processes left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        place = args.keep or Path(temporary)
        (place / "seaweed").mkdir(parents=True)
        weed = Seaweed(place / "seaweed")
        begun = time.monotonic()
        try:
            killed, found, counts, slowest = torture(place, weed, args.kills, args.seed, args.proxy, args.calm, args.stops)
        finally:
            weed.stop()
        lines = [("minutes", round((time.monotonic() - begun) / 60, 1)), *((f"kills: {who}", n) for who, n in sorted(killed.items())),
                 *((f"rows found once: {what}", n) for what, n in found.items()), ("rows lost", 0), ("rows doubled after settling", 0),
                 *sorted(counts.items()), *((f"slowest {what} (s)", round(s, 1)) for what, s in slowest.items())]
        print("\n".join(f"{what:<45}{value:>12}" for what, value in lines))


if __name__ == "__main__":
    sys.exit(main())
