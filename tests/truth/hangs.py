"""Runs that stop moving, and a judge of what `hang` says about them.

A run is simulated (`simulate`), then cut: one thing never answers again, and whatever needs it never ends. What others do not need it
for goes on. The run is sent as a live one would have been: spans that have started without an end, scrapes of the engines, signs of
life of each process. Then the server is asked about many moments: while all was well nothing may hang, and afterwards the
culprit must be named first.

    python -m truth.hangs --seeds 0:20
"""

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from struct import pack

import requests

from . import otlp
from .dice import Dice
from .emit import NAMES, RL_PHASE, START_NS
from .simulate import Change, simulate, world

HANGS = ("engine dead", "engine still", "queue not served", "tool", "judge", "rank killed", "rank stuck", "trainer exited", "deadlock")
SLOW = ("slow engine", "slow tool", "slow judge", "longer outputs", "slow trainer", "none")
IN_ROLLOUT = HANGS[:5]
DIALECTS = ("slime", "verl", "own", "plain")


# --- What was sent -----------------------------------------------------------------------------------------------------------


class Live:
    """A run up to a moment, as spans that ended or did not, scrapes, and signs of life."""

    def __init__(self, seed, cause):
        self.dice = dice = Dice(("hang", seed))
        self.cause = cause
        self.dialect = dice.choice(DIALECTS, "dialect")
        self.names = NAMES[self.dialect]
        self.own_traces = dice.chance(0.5, "own traces")
        # Past, and apart from the others: scraped series belong to no run in particular.
        self.zero = START_NS - 200 * 86_400_000_000_000 + seed % 1000 * 14_400_000_000_000
        self.run = f"hang-{seed}"
        self.spans = defaultdict(list)
        self.ids = 0
        self.scrape_every = dice.choice([5, 10, 15], "scrape every")
        self.scraped = dice.chance(0.85, "scraped") or cause == "queue not served"
        self.addressed = dice.chance(0.7, "addressed") or not self.scraped
        # Without signs of life, nobody can tell that a process is gone.
        self.beats = dice.chance(0.8, "beats") or cause == "trainer exited"
        self.gone = {}
        self.events = []

    def ns(self, seconds):
        return self.zero + round(seconds * 1e9)

    def id(self, size=8):
        self.ids += 1
        return self.dice.bits(size, "id", self.ids)

    def add(self, process, trace, parent, name, start, end, attrs=None, span_id=None):
        """`end` is None for what never ends."""
        span_id = span_id or self.id()
        done = 0 if end is None else self.ns(end)
        self.spans[process].append(otlp.span(trace, span_id, parent, name, self.ns(start), done, attrs or {}, otlp.INTERNAL, (), None))
        self.events += [start] if end is None else [start, end]
        return span_id

    def phase(self, key):
        return {"rl.phase": key} if self.names.phases else {}


def tool_span(live, tool):
    name = live.names.tool.replace("{Tool}", tool.capitalize())
    return name, ({live.names.tool_key: tool} if live.names.tool_key else {})


def send_sample(live, sample, trace, parent, worker, blocked):
    """Sends the spans of a sample up to what never ends. False if the whole sample ended."""
    names, group = live.names, sample.group
    attrs = {names.sample_key: f"{sample.step}-{sample.index}", names.group_key: f"{sample.step}-{group}", "rl.step": sample.step}
    root = live.id()
    if trace is None:
        trace = live.id(16)
        parent = None
    hung = False
    for turn in sample.turns:
        for request in turn.requests:
            never = blocked("request", request)
            where = {"server.address": f"10.0.{request.engine}.7", "server.port": 30000} if live.addressed else {}
            live.add(worker, trace, root, names.generate, request.sent, None if never else request.end, where)
            if never:
                hung = True
                break
        for call in turn.calls:
            if hung:
                break
            never = blocked("call", call)
            name, named = tool_span(live, call.tool)
            live.add(worker, trace, root, name, call.start, None if never else call.end, named)
            hung = hung or never
        if hung:
            break
    if not hung and sample.reward_end > sample.reward_asked:
        hung = blocked("reward", sample)
        live.add(worker, trace, root, names.reward, sample.reward_asked, None if hung else sample.reward_end)
    live.add(worker, trace, parent, names.sample, sample.start, None if hung else sample.end, attrs, span_id=root)
    return hung


def never(_kind, _what):
    return False


def send_step(live, step, ranks, cut=None, blocked=never):
    """Sends a step; `cut` is a function of phase and trace that sends what is left of the phase in which it stops, or None."""
    names = live.names
    trace, root = live.id(16), live.id()
    stopped = False
    for phase in step.phases:
        if stopped:
            break
        span = live.id()
        end = phase.end
        if phase.key == "rollout":
            for sample in step.samples:
                worker = f"rollout-{sample.index % live.workers}"
                if send_sample(live, sample, None if live.own_traces else trace, span, worker, blocked):
                    end = None
        if cut and cut(phase, trace, span):
            end = None
        elif phase.key == "train":
            for rank, (start, own, stop) in enumerate(step.ranks[:ranks]):
                of = live.add(f"actor-{rank}", trace, span, names.rank, start, stop, {"rank": rank, **live.phase("train")})
                live.add(f"actor-{rank}", trace, of, "forward_backward", start, own)
                live.add(f"actor-{rank}", trace, of, "all_reduce", own, stop)
        attrs = {"rl.step": step.number, **live.phase(RL_PHASE[phase.key])}
        live.add("driver", trace, root, getattr(names, phase.key), phase.start, end, attrs, span_id=span)
        stopped = end is None
    attrs = {"rl.step": step.number, **live.phase("step")}
    live.add("driver", trace, None, names.step, step.start, None if stopped else step.end, attrs, span_id=root)
    return stopped


# --- The hang ----------------------------------------------------------------------------------------------------------------


class Planned:
    """A run with its hang: who is to blame, when it began, and when the last thing moved."""

    def __init__(self, seed, cause=None):
        self.seed = seed
        dice = Dice(("hang plan", seed))
        self.cause = cause or (dice.choice(HANGS, "cause") if dice.chance(0.7, "hangs") else dice.choice(SLOW, "slow"))
        self.world = world(seed, samples=dice.choice([32, 48, 64, 96], "samples"), staleness=0, disaggregated=False,
                           steps=dice.integer(5, 9, "steps"))
        self.at_step = self.world.steps - 1
        self.live = Live(seed, self.cause)
        self.live.workers = dice.integer(1, 3, "workers")
        self.dice = dice
        self.blame = None
        self.stuck = {}
        self.steps = simulate(self.world, self.changes())
        self.plant()

    def changes(self):
        dice, slow = self.dice, self.dice.uniform(1.5, 4, "slow")
        change = {
            "slow engine": Change(engine=0, engine_pace=slow),
            "slow tool": Change(tool=self.world.tools[0].name, tool_pace=slow),
            "slow judge": Change(judge_pace=slow),
            "longer outputs": Change(output=slow),
            "slow trainer": Change(phase="train", phase_pace=slow),
        }.get(self.cause)
        # After the first steps: before them, nothing says what is usual.
        return {at: change for at in range(2, self.world.steps) if dice.chance(0.5, "slow step", at)} if change else {}

    def plant(self):
        live, world = self.live, self.world
        hung_at = self.at_step if self.cause in HANGS else None
        for step in self.steps:
            if step.number != hung_at:
                send_step(live, step, world.ranks)
        if hung_at is None:
            self.from_s = self.until_s = self.steps[-1].end
            return
        step = self.steps[hung_at]
        self.from_s = step.start
        getattr(self, "in_rollout" if self.cause in IN_ROLLOUT else self.cause.replace(" ", "_"))(step)
        self.until_s = max(live.events)

    def in_rollout(self, step):
        live, dice = self.live, self.dice
        for attempt in range(50):
            when = step.rollout_start + dice.uniform(0.05, 0.7, "when", attempt) * (step.rollout_end - step.rollout_start)
            engine = dice.integer(0, self.world.engines - 1, "which engine", attempt)
            tool = dice.choice([tool.name for tool in self.world.tools], "which tool", attempt)
            share = dice.choice([1.0, 1.0, 0.3], "share", attempt)

            def blocked(kind, what, when=when, engine=engine, tool=tool, share=share):
                if kind == "request" and self.cause in ("engine dead", "engine still"):
                    return what.engine == engine and what.end > when
                if kind == "request" and self.cause == "queue not served":
                    return what.engine == engine and (what.prefill_start or what.end) > when
                if kind == "call" and self.cause == "tool":
                    return what.tool == tool and what.end > when and dice.chance(share, "call", what.start, what.end)
                return kind == "reward" and self.cause == "judge" and what.reward_end > when

            hits = sum(self.first_block(sample, blocked) for sample in step.samples)
            if hits:
                break
        else:
            # No sample calls a tool in this world.
            self.cause = "judge"
            return self.in_rollout(step)
        self.stuck = {engine: when} if self.cause in ("engine dead", "engine still", "queue not served") else {}
        self.from_s = when
        self.blame = {"tool": ("tool", tool), "judge": ("judge", live.names.reward)}.get(self.cause, ("engine", f"10.0.{engine}.7:30000"))
        send_step(live, step, self.world.ranks, blocked=blocked)
        self.blocked = blocked

    @staticmethod
    def first_block(sample, blocked):
        for turn in sample.turns:
            if any(blocked("request", r) for r in turn.requests) or any(blocked("call", c) for c in turn.calls):
                return True
        return blocked("reward", sample)

    def in_train(self, step, send):
        train = next(phase for phase in step.phases if phase.key == "train")
        self.from_s = train.start
        stopped = send_step(self.live, step, self.world.ranks, cut=lambda phase, trace, span: phase.key == "train" and send(trace, span))
        assert stopped

    def rank_killed(self, step):
        self.rank(step, killed=True)

    def rank_stuck(self, step):
        self.rank(step, killed=False)

    def rank(self, step, killed):
        live, lost = self.live, self.dice.integer(0, self.world.ranks - 1, "rank")
        # What a process that is killed did in its last second, it may not have sent.
        silent = killed and self.dice.chance(0.5, "not sent")
        def send(trace, span):
            for rank, (start, own, _) in enumerate(step.ranks):
                attrs = {"rank": rank, **live.phase("train")}
                if rank == lost and silent:
                    continue
                of = live.add(f"actor-{rank}", trace, span, live.names.rank, start, None, attrs)
                live.add(f"actor-{rank}", trace, of, "forward_backward", start, None if rank == lost else own)
                if rank != lost:
                    live.add(f"actor-{rank}", trace, of, "all_reduce", own, None)
            return True

        self.in_train(step, send)
        if killed:
            live.gone[f"actor-{lost}"] = step.ranks[lost][0] + 0.5
        self.blame = ("process", f"actor-{lost}")

    def deadlock(self, step):
        live, ranks = self.live, self.world.ranks
        def send(trace, span):
            for rank, (start, own, _) in enumerate(step.ranks):
                of = live.add(f"actor-{rank}", trace, span, live.names.rank, start, None, {"rank": rank, **live.phase("train")})
                live.add(f"actor-{rank}", trace, of, "forward_backward", start, own)
                live.add(f"actor-{rank}", trace, of, "all_reduce" if rank < ranks // 2 else "broadcast", own, None)
            return True

        self.in_train(step, send)
        self.blame = ("deadlock", "")

    def trainer_exited(self, step):
        live, dice = self.live, self.dice
        at = dice.choice([phase.key for phase in step.phases], "phase")
        phase = next(phase for phase in step.phases if phase.key == at)
        when = dice.uniform(phase.start, phase.end, "exit")

        def cut(current, trace, span):
            if current.key != at:
                return False
            if at == "train":
                for rank, (start, own, stop) in enumerate(step.ranks):
                    of = live.add(f"actor-{rank}", trace, span, live.names.rank, start, stop, {"rank": rank, **live.phase("train")})
                    live.add(f"actor-{rank}", trace, of, "forward_backward", start, own)
                    live.add(f"actor-{rank}", trace, of, "all_reduce", own, stop)
            return True

        send_step(live, step, self.world.ranks, cut=cut)
        self.from_s = when
        live.gone["driver"] = when
        self.blame = ("process", "driver")


# --- On the wire -------------------------------------------------------------------------------------------------------------


def resource(live, process):
    service = {"driver": live.names.service, "rollout": "rollout", "actor": "actor_train"}[process.split("-")[0]]
    return {"service.name": service, "service.instance.id": process, "host.name": "node-0", "rl.run.id": live.run}


def beat_records(live, process, times):
    """Log records as the package sends them: `rollscope.stats`."""
    record = lambda time: (
        b"\x09" + pack("<Q", time) + otlp.attributes(6, {"rollscope.stat.recorded": 1}) + otlp.part(12, b"rollscope.stats")
    )
    scope = otlp.part(2, b"".join(otlp.part(2, record(time)) for time in times))
    return otlp.part(1, otlp.part(1, otlp.attributes(1, resource(live, process))) + scope)


def snappy(data):
    """Literals only."""
    out = [otlp.varint(len(data))]
    for at in range(0, len(data), 60_000):
        chunk = data[at : at + 60_000]
        out += [b"\xf4", pack("<H", len(chunk) - 1), chunk]
    return b"".join(out)


def time_series(name, instance, points, **labels):
    labels = sorted({"__name__": name, "instance": instance, "job": "engines", **labels}.items())
    label = lambda pair: otlp.part(1, otlp.part(1, pair[0].encode()) + otlp.part(2, pair[1].encode()))
    sample = lambda point: otlp.part(2, b"\x09" + pack("<d", point[1]) + b"\x10" + otlp.varint(point[0] // 1_000_000))
    return otlp.part(1, b"".join(map(label, labels)) + b"".join(map(sample, points)))


def engine_series(planned, until):
    """What a Prometheus that scrapes the engines would have written."""
    live, out = planned.live, []
    served = defaultdict(list)
    for step in planned.steps:
        for sample in step.samples:
            for turn in sample.turns:
                for request in turn.requests:
                    served[request.engine].append((step.number, request))
    vllm = live.names.engine == "vllm"
    for engine in range(planned.world.engines):
        instance = f"10.0.{engine}.7:30000"
        dead = planned.stuck.get(engine)
        phase = live.dice.uniform(0, live.scrape_every, "scrape phase", engine)
        series = defaultdict(list)
        # What is sent of a step that hangs depends on what was still sent.
        sent = [(n, r) for n, r in served[engine] if n < planned.at_step or planned.was_sent(r)]
        times = [phase + live.scrape_every * n for n in range(int((until - phase) / live.scrape_every) + 1)]
        for at in times:
            up = not (dead is not None and planned.cause == "engine dead" and at > dead)
            series["up"].append((live.ns(at), float(up)))
            if not up:
                continue
            stopped = dead if dead is not None and at > dead else None
            running = queued = tokens = used = 0
            for _, r in sent:
                if r.sent > at:
                    continue
                starts = r.prefill_start if r.prefill_start is not None else r.end
                blocked = stopped is not None and planned.blocked("request", r)
                clock = stopped if blocked else at
                if starts > clock:
                    queued += 1
                    continue
                if r.end <= clock and not blocked:
                    tokens += r.output
                    continue
                running += 1
                done = r.output * min(1.0, max(0.0, (clock - starts) / max(r.end - starts, 1e-6)))
                used += r.prompt + done
                tokens += int(done) if vllm else 0
            if vllm:
                values = {"vllm:num_requests_running": running, "vllm:num_requests_waiting": queued, "vllm:generation_tokens_total": tokens,
                          "vllm:kv_cache_usage_perc": used / 1e6}
            else:
                values = {"sglang:num_running_reqs": running, "sglang:num_queue_reqs": queued, "sglang:generation_tokens_total": tokens,
                          "sglang:num_used_tokens": float(int(used))}
            for name, value in values.items():
                series[name].append((live.ns(at), float(value)))
        out += [time_series(name, instance, points, model_name="m") for name, points in series.items() if name != "up"]
        out.append(time_series("up", instance, series["up"]))
    return b"".join(out)


def was_sent(planned):
    """Which requests of the last step were sent before their sample stopped."""
    if planned.blame is None or planned.cause not in IN_ROLLOUT:
        return lambda request: planned.blame is None or request.sent < planned.from_s + 1e9
    seen = set()
    for sample in planned.steps[planned.at_step].samples:
        hung = False
        for turn in sample.turns:
            for request in turn.requests:
                if not hung:
                    seen.add(id(request))
                    hung = planned.blocked("request", request)
            hung = hung or any(planned.blocked("call", call) for call in turn.calls)
    return lambda request: id(request) in seen


def send(server, planned, until):
    live = planned.live
    planned.was_sent = was_sent(planned)
    post = lambda path, data, **headers: requests.post(path, data=data, headers={"content-type": "application/x-protobuf", **headers}, timeout=60)
    for process, spans in live.spans.items():
        for at in range(0, len(spans), 2000):
            answer = post(server.http + "/v1/traces", otlp.request([(resource(live, process), spans[at : at + 2000])]))
            assert answer.ok, answer.text
    if live.beats:
        for process in live.spans:
            phase = live.dice.uniform(0, 10, "beat phase", process)
            last = min(live.gone.get(process, until), until)
            times = [live.ns(phase + 10 * n) for n in range(int(max(0, last - phase) / 10) + 1)]
            answer = post(server.http + "/v1/logs", beat_records(live, process, times))
            assert answer.ok, answer.text
    if live.scraped:
        body = snappy(engine_series(planned, until))
        answer = post(server.url + "/prometheus/api/v1/write", body, **{"content-encoding": "snappy", "x-prometheus-remote-write-version": "0.1.0"})
        assert answer.ok, answer.text


# --- The judge ---------------------------------------------------------------------------------------------------------------


def ask(server, live, seconds):
    answer = server.get(f"/api/v1/runs/{live.run}/hang", params={"at": f"{live.ns(seconds) / 1e9:.6f}"})
    assert answer.ok, answer.text
    return answer.json()


def is_named(planned, suspect):
    kind, name = planned.blame
    if suspect["kind"] != kind:
        return False
    if kind == "tool":
        return name in suspect["name"].lower()
    return name in suspect["name"]


def judge(server, seed, cause=None, minutes=None):
    """What is said about one run: `named`, `hanging`, and how many of its healthy minutes were called hanging."""
    planned = Planned(seed, cause)
    live = planned.live
    delay = planned.dice.choice([240, 600, 1800], "delay") if planned.blame else 0
    until = planned.until_s + delay
    send(server, planned, until)
    record = {"seed": seed, "cause": planned.cause, "dialect": live.dialect, "scraped": live.scraped, "addressed": live.addressed, "beats": live.beats,
              "hung": planned.blame is not None}
    healthy = []
    step = 60.0
    whole = int(planned.from_s / step)
    asked = planned.dice.shuffled(range(whole), "minutes")[:minutes]
    for minute in sorted(asked):
        at = (minute + planned.dice.uniform(0, 1, "minute", minute)) * step
        if at < planned.from_s:
            said = ask(server, live, at)
            healthy.append((round(at, 1), said["state"], said["text"] if said["state"] == "hanging" else ""))
    record["healthy"] = len(healthy)
    record["false"] = [h for h in healthy if h[1] == "hanging"]
    if planned.blame:
        said = ask(server, live, until)
        record["blame"], record["text"] = planned.blame, said["text"]
        record["state"] = said["state"]
        first = said["suspects"][0] if said["suspects"] else None
        record["named"] = bool(said["state"] == "hanging" and first and is_named(planned, first))
        record["suspects"] = [(s["kind"], s["name"]) for s in said["suspects"][:3]]
    return record


def told(record):
    """What went wrong with a run, in lines."""
    if record["hung"] and not record["named"]:
        yield f"seed {record['seed']}: {record['cause']}, {record['blame']}: {record['state']}: {record['suspects']}\n   {record['text']}"
    for false in record["false"]:
        yield f"seed {record['seed']}: {record['cause']}: false at {false}"


def judge_all(seeds, cause, minutes, kept=None):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from conftest import Server

    out = []
    with tempfile.TemporaryDirectory() as folder:
        # The runs lie in the past: their series must not be thinned meanwhile.
        server = Server(Path(folder) / "data", "--series-full-age", "3650d")
        try:
            for seed in seeds:
                out.append(judge(server, seed, cause, minutes))
                for line in told(out[-1]):
                    print(line, flush=True)
                if kept:
                    with kept.open("a") as file:
                        file.write(json.dumps(out[-1]) + "\n")
        finally:
            server.stop()
    return out


def table(records):
    lines = [f"{'cause':18} runs  named first  called hanging"]
    hung = [r for r in records if r["hung"]]
    for cause in [*HANGS, "all"]:
        of = [r for r in hung if cause in ("all", r["cause"])]
        if of:
            lines.append(f"{cause:18} {len(of):4}  {sum(r['named'] for r in of):4} ({sum(r['named'] for r in of) / len(of):6.1%})  "
                         f"{sum(r['state'] == 'hanging' for r in of):4}")
    minutes, false = sum(r["healthy"] for r in records), sum(len(r["false"]) for r in records)
    lines.append(f"healthy minutes: {minutes}, called hanging: {false} ({false / max(1, minutes):.2%})")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0:20", help="first:last, or a list with commas")
    parser.add_argument("--only", choices=[*HANGS, *SLOW])
    parser.add_argument("--minutes", type=int, help="ask about so many healthy minutes of each run [default: all]")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="keep what was said about each run, one line each")
    options = parser.parse_args()
    if ":" in options.seeds:
        first, last = map(int, options.seeds.split(":"))
        seeds = list(range(first, last))
    else:
        seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.json:
        options.json.unlink(missing_ok=True)
    parts = [seeds[job :: options.jobs] for job in range(options.jobs)]
    settings = (options.only, options.minutes, options.json)
    if options.jobs == 1:
        records = judge_all(seeds, *settings)
    else:
        with ProcessPoolExecutor(options.jobs) as pool:
            records = [r for some in pool.map(judge_all, parts, *([s] * options.jobs for s in settings)) for r in some]
    print(table(records))


if __name__ == "__main__":
    main()
