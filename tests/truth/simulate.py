"""A discrete-event simulation of reinforcement learning of a language model.

Serving engines decode in continuous batches, agents take turns with tools, a judge rewards, a trainer trains, and a driver
holds it together. Times are seconds from the start of the run.

The world says how things usually are. A `Change` says what is different in one step. The neutral change changes nothing.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field

from .dice import Dice

MAX_ATTEMPTS = 4
# A cache keeps whole pages only.
PAGE = 64


# --- The world ---------------------------------------------------------------------------------------------------------------


@dataclass
class Source:
    """Where prompts come from."""

    name: str
    weight: float
    prompt: float
    output: float
    turns: tuple
    tools: list


@dataclass
class Tool:
    name: str
    median: float
    sigma: float
    timeout: float
    fails: float


@dataclass
class World:
    seed: int
    steps: int
    samples: int
    group: int
    staleness: int
    inflight: int
    # Engines. With disaggregation, the first `prefill_engines` only prefill.
    engines: int
    prefill_engines: int
    token_s: float
    half: float
    # Engines are never quite alike, and never quite the same from step to step.
    engine_sigma: float
    prefill_rate: float
    max_running: int
    transfer_rate: float
    router: str
    fails: float
    sources: list
    tools: list
    drift: float
    output_sigma: float
    # Rewards.
    judge_median: float
    judge_places: int
    judge_timeout: float
    # The trainer.
    ranks: int
    train_rate: float
    logprob_rate: float
    reference: bool
    data_s: float
    sync_s: float
    save_every: int
    save_s: float
    eval_every: int
    eval_s: float
    gap_s: float
    noise: float


@dataclass
class Change:
    """What is different in one step. The defaults change nothing."""

    engine: int | None = None
    engine_pace: float = 1.0
    stall_s: float = 0.0
    stall_after: float = 0.0
    restart: bool = False
    pull: float = 0.0
    pace: float = 1.0
    capacity: float = 1.0
    prompt: float = 1.0
    miss: float = 0.0
    transfer: float = 1.0
    fails: float = 0.0
    output: float = 1.0
    straggler: int | None = None
    straggler_output: float = 1.0
    source: int | None = None
    source_weight: float = 1.0
    tool: str | None = None
    tool_pace: float = 1.0
    tool_share: float = 1.0
    tool_timeouts: float = 0.0
    tool_fails: float = 0.0
    judge_pace: float = 1.0
    judge_timeouts: float = 0.0
    rank: int | None = None
    rank_pace: float = 1.0
    phase: str | None = None
    phase_pace: float = 1.0
    phase_extra_s: float = 0.0
    gap_before: str | None = None
    gap_extra_s: float = 0.0


USUAL = Change()


def world(seed, **fixed):
    """The world of a seed. `fixed` replaces what was drawn."""
    dice = Dice(seed)
    one = lambda low, high, *key: dice.uniform(low, high, "world", *key)
    many = dice.choice([64, 64, 96, 128, 128, 192, 256, 384, 512], "world", "samples")
    many = fixed.get("samples", many)
    agents = fixed.get("agents", many <= 256 and dice.chance(0.65, "world", "agents"))
    disaggregated = fixed.get("disaggregated", dice.chance(0.15, "world", "disaggregated"))
    engines = dice.integer(4, 12, "world", "engines")
    prefill = max(1, round(engines * 0.35)) if disaggregated else 0
    names = dice.shuffled(["search", "python", "browser", "sql", "shell", "calculator", "retriever"], "world", "tool names")
    tools = [
        Tool(
            name,
            median=dice.log_uniform(0.3, 4, "world", "tool", name),
            sigma=one(0.3, 0.7, "tool sigma", name),
            timeout=dice.choice([20.0, 30.0, 60.0], "world", "tool timeout", name),
            fails=dice.choice([0.0, 0.0, 0.02], "world", "tool fails", name),
        )
        for name in names[: dice.integer(2, 4, "world", "tools")]
    ]
    most = 2 if many >= 256 else 3 if many >= 128 else 4
    sources = [
        Source(
            name,
            weight=one(0.5, 1.5, "weight", name),
            prompt=dice.log_uniform(300, 2500, "world", "prompt", name) * fixed.get("prompt_scale", 1),
            output=dice.log_uniform(250, 900, "world", "output", name),
            turns=(1, 1) if not agents else (1 if dice.chance(0.5, "world", "turns", name) else 2, dice.integer(2, most, "world", "most", name)),
            tools=[tool.name for tool in tools if dice.chance(0.7, "world", "uses", name, tool.name)] or [tools[0].name],
        )
        for name in dice.shuffled(["math", "code", "web", "science", "chat"], "world", "sources")[: dice.integer(2, 3, "world", "sources")]
    ]
    decoders = engines - prefill
    staleness = fixed.get("staleness", dice.choice([0, 0, 0, 0, 0, 0, 1, 1, 2], "world", "staleness"))
    token_s = one(0.012, 0.03, "token")
    half = one(24, 64, "half")
    mean_output = sum(s.weight * s.output * sum(s.turns) / 2 for s in sources) / sum(s.weight for s in sources)
    mean_prompt = sum(s.weight * s.prompt for s in sources) / sum(s.weight for s in sources)
    tokens = many * (mean_output + mean_prompt)
    # A guess at the length of the rollout, so that the trainer's phases are of a size with it.
    about = 2.2 * mean_output * token_s * (1 + many / decoders / half)
    made = World(
        seed=seed,
        steps=dice.integer(10, 14, "world", "steps"),
        samples=many,
        group=dice.choice([4, 8, 8, 16], "world", "group"),
        staleness=staleness,
        inflight=max(32, int(many * one(0.8, 1.3, "inflight"))) if staleness == 2 else 0,
        engines=engines,
        prefill_engines=prefill,
        token_s=token_s,
        half=half,
        engine_sigma=one(0.01, 0.04, "engine sigma"),
        prefill_rate=dice.log_uniform(5000, 20000, "world", "prefill"),
        max_running=max(4, int(many / decoders * one(0.9, 2.5, "running"))),
        transfer_rate=dice.log_uniform(15000, 60000, "world", "transfer"),
        router=dice.choice(["round robin", "least loaded", "sticky"], "world", "router"),
        fails=dice.choice([0.0, 0.0, 0.003], "world", "fails"),
        sources=sources,
        tools=tools,
        drift=dice.choice([0.0, 0.0, 0.0, 0.01, 0.025, -0.015], "world", "drift"),
        output_sigma=one(0.25, 0.6, "output sigma"),
        judge_median=dice.log_uniform(0.2, 3, "world", "judge"),
        judge_places=max(4, int(many * one(0.15, 0.6, "judge places"))),
        judge_timeout=dice.choice([30.0, 60.0], "world", "judge timeout"),
        ranks=dice.choice([2, 4, 8], "world", "ranks"),
        train_rate=tokens / (about * (one(0.35, 0.8, "train") if staleness else one(0.25, 0.6, "train"))),
        logprob_rate=tokens / (about * one(0.06, 0.15, "log probs")),
        reference=dice.chance(0.5, "world", "reference"),
        data_s=dice.log_uniform(0.3, 2, "world", "data"),
        sync_s=about * one(0.03, 0.1, "sync"),
        save_every=dice.choice([0, 0, 3, 4, 5], "world", "save"),
        save_s=about * one(0.05, 0.2, "save s"),
        eval_every=dice.choice([0, 0, 4, 5], "world", "eval"),
        eval_s=about * one(0.2, 0.5, "eval s"),
        gap_s=one(0.03, 0.3, "gap"),
        noise=one(0.02, 0.06, "noise"),
    )
    for name, value in fixed.items():
        if hasattr(made, name):
            setattr(made, name, value)
    return made


# --- What happened -----------------------------------------------------------------------------------------------------------


@dataclass
class Request:
    """One request to the engines, as it went."""

    turn: "Turn"
    attempt: int
    prompt: int
    output: int
    ok: bool = True
    sent: float = 0.0
    engine: int = 0
    cached: int = 0
    prefill_start: float | None = None
    prefill_end: float | None = None
    decoder: int = 0
    transfer_end: float | None = None
    decode_start: float | None = None
    end: float = 0.0
    done: "Signal" = None
    killed: bool = False


@dataclass
class Call:
    """One call of a tool."""

    tool: str
    start: float
    end: float
    outcome: str


@dataclass
class Turn:
    sample: "Sample"
    number: int
    missed: bool = False
    requests: list = field(default_factory=list)
    calls: list = field(default_factory=list)


@dataclass
class Sample:
    step: int
    index: int
    group: int
    source: int
    start: float = 0.0
    end: float = 0.0
    turns: list = field(default_factory=list)
    reward_asked: float = 0.0
    reward_start: float = 0.0
    reward_end: float = 0.0
    reward_outcome: str = "ok"
    tokens: int = 0
    context: int = 0


@dataclass
class Phase:
    key: str
    start: float
    end: float


@dataclass
class Step:
    number: int
    start: float = 0.0
    end: float = 0.0
    phases: list = field(default_factory=list)
    samples: list = field(default_factory=list)
    # Per rank: start, end of its own work, end of the phase.
    ranks: list = field(default_factory=list)
    rollout_start: float = 0.0
    rollout_end: float = 0.0
    rolled: "Signal" = None

    @property
    def wall(self):
        return self.end - self.start


# --- The kernel: time, and processes that wait ---------------------------------------------------------------------------------


class Signal:
    """Something to wait for. It happens once."""

    def __init__(self):
        self.waiting = []
        self.happened = False

    def fire(self, kernel):
        self.happened = True
        waiting, self.waiting = self.waiting, []
        for process in waiting:
            kernel.at(kernel.now, kernel.resume, process)


class Kernel:
    """Processes are generators. They yield seconds to sleep, or a signal to wait for."""

    def __init__(self):
        self.now = 0.0
        self.events = []
        self.count = 0

    def at(self, when, what, *args):
        self.count += 1
        heapq.heappush(self.events, (when, self.count, what, args))

    def resume(self, process):
        for wanted in process:
            if isinstance(wanted, Signal):
                if wanted.happened:
                    continue
                wanted.waiting.append(process)
            else:
                self.at(self.now + wanted, self.resume, process)
            return

    def run(self):
        while self.events:
            self.now, _, what, args = heapq.heappop(self.events)
            what(*args)


class Places:
    """A service with so many places, and a queue."""

    def __init__(self, kernel, places):
        self.kernel = kernel
        self.free = places
        self.queue = deque()

    def enter(self):
        signal = Signal()
        if self.free:
            self.free -= 1
            signal.happened = True
        else:
            self.queue.append(signal)
        return signal

    def leave(self):
        if self.queue:
            self.queue.popleft().fire(self.kernel)
        else:
            self.free += 1


class Engine:
    """Continuous batching. One prefill at a time. All running requests decode at one pace, which falls with their number."""

    def __init__(self, kernel, world, index):
        self.kernel = kernel
        self.world = world
        self.index = index
        self.prefills = not world.prefill_engines or index < world.prefill_engines
        self.decodes = not world.prefill_engines or index >= world.prefill_engines
        self.waiting = deque()
        self.prefilling = None
        self.prefill_ends = 0.0
        self.running = []
        # Tokens that each request that runs all the time would have decoded by `last`.
        self.tokens = 0.0
        self.last = 0.0
        self.version = 0
        self.noise = 1.0
        self.pace = 1.0
        self.capacity = 1.0
        self.stopped = False
        self.down = False
        self.cache = {}
        self.after_prefill = None

    @property
    def load(self):
        return len(self.waiting) + len(self.running) + (self.prefilling is not None)

    def seconds_per_token(self):
        slow = 1.5 if self.prefilling is not None else 1.0
        return self.world.token_s * (1 + len(self.running) / self.world.half) * slow * self.noise * self.pace

    def advance(self):
        """Decodes up to now. Call it before anything that changes the pace."""
        now = self.kernel.now
        if self.running and not self.stopped:
            self.tokens += (now - self.last) / self.seconds_per_token()
        self.last = now

    def plan(self):
        """Finds what happens next. Call it after anything that changes the pace."""
        self.version += 1
        if self.stopped:
            return
        if self.prefilling is not None:
            self.kernel.at(self.prefill_ends, self.end_prefill, self.version)
        if self.running:
            left = max(0.0, self.running[0][0] - self.tokens) * self.seconds_per_token()
            self.kernel.at(self.kernel.now + left, self.end_decode, self.version)

    def submit(self, request):
        self.advance()
        self.waiting.append(request)
        self.admit()
        self.plan()

    def admit(self):
        while self.waiting and not self.stopped and self.prefilling is None:
            limit = max(1, int(self.world.max_running * self.capacity))
            if self.decodes and len(self.running) >= limit:
                return
            request = self.waiting.popleft()
            if self.prefills:
                self.start_prefill(request)
            else:
                self.start_decode(request)

    def start_prefill(self, request):
        request.prefill_start = self.kernel.now
        sample = request.turn.sample
        known = max(self.cache.get((sample.step, sample.index), 0), self.cache.get((sample.step, "group", sample.group), 0))
        request.cached = 0 if request.turn.missed else min(known, request.prompt - 1) // PAGE * PAGE
        self.prefilling = request
        self.prefill_ends = self.kernel.now + (0.02 + (request.prompt - request.cached) / self.world.prefill_rate) * self.noise * self.pace

    def end_prefill(self, version):
        if version != self.version:
            return
        self.advance()
        request, self.prefilling = self.prefilling, None
        request.prefill_end = self.kernel.now
        sample = request.turn.sample
        self.cache[(sample.step, sample.index)] = request.prompt
        self.cache.setdefault((sample.step, "group", sample.group), sample.turns[0].requests[0].prompt)
        if self.decodes:
            self.start_decode(request)
        else:
            self.after_prefill(request)
        self.admit()
        self.plan()

    def start_decode(self, request):
        request.decode_start = self.kernel.now
        self.advance()
        self.kernel.count += 1
        heapq.heappush(self.running, (self.tokens + request.output, self.kernel.count, request))

    def end_decode(self, version):
        if version != self.version:
            return
        self.advance()
        while self.running and self.running[0][0] <= self.tokens + 1e-6:
            request = heapq.heappop(self.running)[-1]
            sample = request.turn.sample
            if request.ok and self.prefills:
                self.cache[(sample.step, sample.index)] = request.prompt + request.output
            self.finish(request)
        self.admit()
        self.plan()

    def finish(self, request):
        request.end = self.kernel.now
        request.done.fire(self.kernel)

    def set(self, noise, pace, capacity):
        self.advance()
        self.noise, self.pace, self.capacity = noise, pace, capacity
        self.admit()
        self.plan()

    def stop(self, seconds):
        self.advance()
        self.stopped = True
        self.prefill_ends += seconds
        self.plan()

    def go_on(self):
        self.advance()
        self.stopped = self.down = False
        self.admit()
        self.plan()

    def crash(self):
        """Loses its requests and its cache."""
        self.advance()
        self.stopped = self.down = True
        lost = [entry[-1] for entry in self.running] + list(self.waiting) + ([self.prefilling] if self.prefilling else [])
        self.running, self.prefilling = [], None
        self.waiting.clear()
        self.cache.clear()
        self.plan()
        for request in sorted(lost, key=lambda r: (r.turn.sample.step, r.turn.sample.index)):
            request.ok, request.killed = False, True
            self.finish(request)


# --- The run -----------------------------------------------------------------------------------------------------------------


class Simulation:
    def __init__(self, world, changes):
        self.world = world
        self.changes = changes
        self.dice = Dice(world.seed)
        self.kernel = Kernel()
        self.engines = [Engine(self.kernel, world, index) for index in range(world.engines)]
        for engine in self.engines[: world.prefill_engines]:
            engine.after_prefill = lambda request: self.kernel.resume(self.transfer(request))
        self.judge = Places(self.kernel, world.judge_places)
        self.inflight = Places(self.kernel, world.inflight or 10**9)
        self.turn_of = {}
        self.homes = {}
        self.tools = {tool.name: tool for tool in world.tools}
        self.steps = {}
        self.version = 0
        self.new_version = Signal()

    def change(self, step):
        return self.changes.get(step, USUAL)

    # Routing.

    def route(self, request, role):
        """Which engine a request goes to."""
        world, sample = self.world, request.turn.sample
        pool = self.engines
        if world.prefill_engines:
            pool = pool[: world.prefill_engines] if role == "prefill" else pool[world.prefill_engines :]
        pool = [engine for engine in pool if not engine.down] or pool
        change = self.change(sample.step)
        drawn = ("pull", sample.step, sample.index, request.turn.number, request.attempt)
        pulled = self.engines[change.engine] if change.engine is not None else None
        if pulled in pool and self.dice.chance(change.pull, *drawn):
            return pulled
        if world.router == "round robin":
            self.turn_of[role] = self.turn_of.get(role, 0) + 1
            return pool[self.turn_of[role] % len(pool)]
        if world.router == "least loaded":
            return min(pool, key=lambda engine: (engine.load, engine.index))
        # Sticky: a group stays together, so that its prompt is prefilled once.
        home = self.homes.get((sample.step, sample.group, role))
        if home is None:
            groups = world.samples // world.group
            home = pool[(sample.group + sample.step) % len(pool)] if groups >= len(pool) else pool[sample.index % len(pool)]
            if groups >= len(pool):
                self.homes[(sample.step, sample.group, role)] = home
        return home if not home.down else min(pool, key=lambda engine: (engine.load, engine.index))

    def transfer(self, request):
        """The KV cache goes from prefill to decode."""
        sample = request.turn.sample
        noise = self.dice.log_normal(1.0, 0.3, "transfer", sample.step, sample.index, request.turn.number, request.attempt)
        yield (0.01 + request.prompt / self.world.transfer_rate) * noise * self.change(sample.step).transfer
        request.transfer_end = self.kernel.now
        engine = self.route(request, "decode")
        request.decoder = engine.index
        engine.submit(request)

    # One sample.

    def ask(self, turn, attempt, prompt, output):
        sample, change = turn.sample, self.change(turn.sample.step)
        key = ("request", sample.step, sample.index, turn.number, attempt)
        fails = attempt < MAX_ATTEMPTS - 1 and self.dice.chance(max(self.world.fails, change.fails), "fails", *key)
        if fails:
            output = max(1, int(output * self.dice.uniform(0.1, 0.9, "fails after", *key)))
        request = Request(turn, attempt, prompt, output, ok=not fails, sent=self.kernel.now, done=Signal())
        turn.requests.append(request)
        engine = self.route(request, "prefill")
        request.engine = request.decoder = engine.index
        engine.submit(request)
        return request

    def life(self, sample, finished):
        """One sample, from its prompt to its reward."""
        world, dice, kernel = self.world, self.dice, self.kernel
        change = self.change(sample.step)
        entered = self.inflight.enter()
        yield entered
        sample.start = kernel.now
        source = world.sources[sample.source]
        drift = (1 + world.drift) ** sample.step
        prompt = int(max(32, dice.log_normal(source.prompt, 0.35, "prompt", sample.step, sample.group)) * change.prompt)
        context = prompt
        turns = dice.integer(*source.turns, "turns", sample.step, sample.index)
        for number in range(turns):
            key = (sample.step, sample.index, number)
            turn = Turn(sample, number, dice.chance(change.miss, "miss", *key))
            sample.turns.append(turn)
            last = number == turns - 1
            output = dice.log_normal(source.output * drift * change.output, world.output_sigma, "output", *key)
            if last and change.straggler == sample.index:
                output *= change.straggler_output
            output = int(min(max(8, output), 16384))
            yield dice.uniform(0.005, 0.03, "prepare", *key)
            for attempt in range(MAX_ATTEMPTS + 4):
                request = self.ask(turn, attempt, context, output)
                yield request.done
                if request.ok:
                    break
                yield dice.uniform(0.5, 2.0, "back off", *key, attempt)
            context += output
            sample.tokens += output
            if last:
                break
            yield dice.uniform(0.002, 0.02, "parse", *key)
            name = dice.choice(source.tools, "tool", *key)
            tool, hit = self.tools[name], change.tool == name
            for attempt in range(3):
                start = kernel.now
                drawn = ("call", *key, attempt)
                outcome, seconds = "ok", min(dice.log_normal(tool.median, tool.sigma, *drawn), tool.timeout * 0.9)
                if hit and dice.chance(change.tool_share, "hit", *drawn):
                    seconds *= change.tool_pace
                if hit and dice.chance(change.tool_timeouts, "times out", *drawn):
                    outcome, seconds = "timeout", tool.timeout
                elif dice.chance(max(tool.fails, change.tool_fails if hit else 0.0), "tool fails", *drawn):
                    outcome = "error"
                yield seconds
                turn.calls.append(Call(name, start, kernel.now, outcome))
                if outcome != "error":
                    break
            context += int(dice.log_normal(150, 0.6, "observation", *key))
        yield dice.uniform(0.002, 0.02, "finish", sample.step, sample.index)
        sample.reward_asked = kernel.now
        yield self.judge.enter()
        sample.reward_start = kernel.now
        drawn = ("judge", sample.step, sample.index)
        seconds = min(dice.log_normal(world.judge_median, 0.4, *drawn), world.judge_timeout * 0.9) * change.judge_pace
        if dice.chance(change.judge_timeouts, "judge times out", *drawn):
            sample.reward_outcome, seconds = "timeout", world.judge_timeout
        yield seconds
        sample.reward_end = sample.end = kernel.now
        sample.context = context
        self.judge.leave()
        self.inflight.leave()
        finished.append(sample)
        if len(finished) == world.samples:
            self.end_rollout(sample.step)

    # One rollout.

    def start_rollout(self, number):
        world, step, change = self.world, self.steps[number], self.change(number)
        step.rollout_start = self.kernel.now
        if not world.staleness:
            # A synchronous step is the same whether the steps before it were simulated or not.
            self.turn_of.clear()
        for engine in self.engines:
            noise = self.dice.log_normal(1.0, world.engine_sigma, "engine", engine.index)
            noise *= self.dice.log_normal(1.0, world.engine_sigma / 2, "engine", engine.index, number)
            if change is USUAL:
                # Ahead of training, the rollout before may still be under way, and its cause with it.
                engine.set(noise, engine.pace, engine.capacity)
            else:
                hit = change.engine_pace if change.engine == engine.index else 1.0
                engine.set(noise, change.pace * hit, change.capacity)
        if change.engine is not None and change.stall_s > 0:
            self.kernel.at(self.kernel.now + change.stall_after, self.stall, self.engines[change.engine], change)
        finished = []
        weights = [s.weight for s in world.sources]
        if change.source is not None:
            weights[change.source] *= change.source_weight
        for index in range(world.samples):
            group = index // world.group
            source = self.dice.weighted(weights, "source", number, group)
            sample = Sample(number, index, group, source)
            step.samples.append(sample)
            self.kernel.resume(self.life(sample, finished))

    def stall(self, engine, change):
        if change.restart:
            engine.crash()
        else:
            engine.stop(change.stall_s)
        self.kernel.at(self.kernel.now + change.stall_s, engine.go_on)

    def end_rollout(self, number):
        step, change = self.steps[number], self.change(number)
        step.rollout_end = self.kernel.now
        if change is not USUAL:
            for engine in self.engines:
                engine.set(engine.noise, 1.0, 1.0)
        step.rolled.fire(self.kernel)

    def launcher(self, last):
        """Starts rollouts ahead of training, as far as the staleness allows."""
        for number in range(last + 1):
            while self.version < number - self.world.staleness:
                yield self.new_version
            self.steps.setdefault(number, Step(number, rolled=Signal()))
            self.start_rollout(number)
            if self.world.staleness == 1:
                yield self.steps[number].rolled
            else:
                yield 0.01

    # The trainer.

    def lasts(self, step, key):
        """How long a phase of the trainer lasts, and what its ranks do."""
        world, change = self.world, self.change(step.number)
        tokens = sum(sample.context for sample in step.samples)
        usual = {
            "data": world.data_s,
            "old": tokens / world.logprob_rate,
            "reference": tokens / world.logprob_rate,
            "advantages": 0.05 + tokens * 1e-7,
            "train": tokens / world.train_rate,
            "sync": world.sync_s,
            "save": world.save_s,
            "evaluate": world.eval_s,
        }[key]
        seconds = usual * self.dice.log_normal(1.0, world.noise, "phase", key, step.number)
        if change.phase == key:
            seconds = seconds * change.phase_pace + change.phase_extra_s
        if key != "train":
            return seconds
        alone = [
            seconds
            * self.dice.uniform(0.95, 1.0, "rank", rank, step.number)
            * (change.rank_pace if change.rank == rank else 1.0)
            for rank in range(world.ranks)
        ]
        step.ranks = [(self.kernel.now, self.kernel.now + own, self.kernel.now + max(alone)) for own in alone]
        return max(alone)

    def wanted(self, number):
        """The phases of a step, in order."""
        world, change = self.world, self.change(number)
        keys = ["data", "rollout", "old", *(["reference"] if world.reference else []), "advantages", "train", "sync"]
        due = lambda every, key: (every and (number + 1) % every == 0) or (change.phase == key and change.phase_extra_s > 0)
        return keys + [key for key, every in (("save", world.save_every), ("evaluate", world.eval_every)) if due(every, key)]

    def train(self, first, last):
        kernel, world = self.kernel, self.world
        for number in range(first, last + 1):
            step = self.steps.setdefault(number, Step(number, rolled=Signal()))
            step.start = kernel.now
            change = self.change(number)
            for key in self.wanted(number):
                gap = world.gap_s * self.dice.log_normal(1.0, 0.3, "gap", key, number)
                yield gap + (change.gap_extra_s if change.gap_before == key else 0.0)
                start = kernel.now
                if key == "rollout":
                    if not world.staleness:
                        self.start_rollout(number)
                    yield step.rolled
                else:
                    yield self.lasts(step, key)
                step.phases.append(Phase(key, start, kernel.now))
                if key == "sync":
                    self.version = number + 1
                    signal, self.new_version = self.new_version, Signal()
                    signal.fire(kernel)
            yield 0.5 * world.gap_s
            step.end = kernel.now
            yield 0.01

    def run(self, first=0, last=None):
        last = self.world.steps - 1 if last is None else last
        if self.world.staleness:
            self.kernel.resume(self.launcher(last))
        self.kernel.resume(self.train(first, last))
        self.kernel.run()
        return [self.steps[number] for number in sorted(self.steps)]


def simulate(world, changes=None):
    """All steps of a run."""
    return Simulation(world, changes or {}).run()


def walls(world, changes, step):
    """The wall times of the steps up to a few after `step`. Synchronous steps do not depend on each other: only `step` is run."""
    if world.staleness:
        last = min(world.steps - 1, step + 2)
        return {done.number: done.wall for done in Simulation(world, changes).run(last=last)}
    return {done.number: done.wall for done in Simulation(world, changes).run(first=step, last=step)}
