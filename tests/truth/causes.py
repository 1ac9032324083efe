"""What can make one step slow, how large it is, and what a right answer names.

A cause is planted in one late step of a run. Its true cost is the wall time of that step minus the wall time of the same step
with the same dice and without the cause.
"""

from dataclasses import dataclass, field

from .dice import Dice
from .simulate import USUAL, Change, walls, world

# They cost no time and are no cause: they say how far to trust the rest.
NOT_CAUSES = ("clock_skew", "dropped_data")
# A clean run must not be told that one of these is to blame.
ACCUSING = (
    "slow_engine", "engine_stall", "load_imbalance", "starved_engine", "slow_prefill", "slow_decode", "kv_transfer_stall",
    "slow_rank", "slow_tool", "tool_timeout", "slow_reward", "reward_timeout",
)


@dataclass
class Right:
    """A right answer: a kind, and what its evidence must name (`engine`, `phase`, `tool`, `rank`, `sample` or `source`)."""

    kind: str
    names: str | None = None


@dataclass
class Plan:
    """One run: its world, what was planted where, and what is right."""

    seed: int
    cause: str
    world: object
    # Where it was planted, and the step that it made longer most.
    planted: int | None = None
    step: int | None = None
    change: Change | None = None
    right: list = field(default_factory=list)
    # Kinds that describe a true symptom of the cause. They count neither as right nor as wrong.
    near: tuple = ()
    true_cost: float = 0.0
    usual_wall: float = 0.0

    @property
    def share(self):
        return self.true_cost / self.usual_wall if self.usual_wall else 0.0

    @property
    def asked(self):
        """The step to ask about. In a clean run, any."""
        return self.step if self.step is not None else self.world.steps // 2 + 1

    @property
    def different(self):
        """What the change changes, by name."""
        return {name: value for name, value in vars(self.change or USUAL).items() if value != getattr(USUAL, name)}

    @property
    def changes(self):
        return {self.planted: self.change} if self.change else {}


CAUSES = {}


def cause(name, right, near=(), **needs):
    """Registers a cause. The function draws its size: `draw(dice, world, step)` returns a `Change`.

    `needs` fixes parts of the world, so that the cause can happen there.
    """

    def register(draw):
        CAUSES[name] = (draw, [Right(*entry) for entry in right], near, needs)
        return draw

    return register


def decoder(dice, world):
    return dice.integer(world.prefill_engines, world.engines - 1, "engine")


def busiest(world):
    """The tool that most samples use, so that a slow one is felt."""

    def uses(tool):
        return sum(s.weight * max(0, sum(s.turns) / 2 - 1) / len(s.tools) for s in world.sources if tool.name in s.tools)

    return max(world.tools, key=uses).name


ENGINE = [("slow_engine", "engine"), ("slow_decode", "engine")]


@cause("slow engine", ENGINE, near=("straggling_group", "slow_decode", "load_imbalance", "starved_engine", "slow_prefill"))
def slow_engine(dice, world, step):
    return Change(engine=decoder(dice, world), engine_pace=dice.log_uniform(1.3, 4, "size"))


@cause("engine stall", [("engine_stall", "engine"), ("slow_engine", "engine")], near=("slow_decode", "straggling_group", "starved_engine"))
def engine_stall(dice, world, step):
    usual = walls(world, {}, step)[step]
    return Change(engine=decoder(dice, world), stall_s=usual * dice.log_uniform(0.15, 1.2, "size"), stall_after=usual * dice.uniform(0.03, 0.2, "when"))


@cause("engine restart", [("engine_stall", "engine"), ("retries", None), ("slow_engine", "engine")], near=("load_imbalance", "starved_engine", "straggling_group"))
def engine_restart(dice, world, step):
    usual = walls(world, {}, step)[step]
    return Change(engine=decoder(dice, world), restart=True, stall_s=usual * dice.uniform(0.3, 0.8, "size"), stall_after=usual * dice.uniform(0.1, 0.35, "when"))


@cause("load imbalance", [("load_imbalance", "engine"), ("starved_engine", "engine")], near=("slow_engine", "starved_engine", "slow_decode", "slow_prefill"))
def load_imbalance(dice, world, step):
    return Change(engine=decoder(dice, world), pull=dice.uniform(0.15, 0.7, "size"))


@cause("too much concurrency", [("starved_engine", None)], near=("load_imbalance",))
def too_much_concurrency(dice, world, step):
    load = world.samples / (world.engines - world.prefill_engines)
    return Change(capacity=min(0.9, load / world.max_running / dice.log_uniform(2, 10, "size")))


@cause("slow decoding everywhere", [("slow_decode", None)], near=("slow_prefill",))
def slow_decoding(dice, world, step):
    return Change(pace=dice.log_uniform(1.25, 3, "size"))


# More tokens take longer to train on, too. So a slow trainer is a symptom of these.
@cause("longer prompts", [("long_prompts", None)], near=("slow_prefill", "starved_engine", "slow_phase"), prefill_rate=4000, prompt_scale=2)
def longer_prompts(dice, world, step):
    return Change(prompt=dice.log_uniform(2, 10, "size"))


@cause("cache misses", [("cache_misses", None)], near=("slow_prefill", "starved_engine", "long_prompts"), agents=True, samples=128, disaggregated=False, router="sticky", prefill_rate=6000, prompt_scale=5)
def cache_misses(dice, world, step):
    return Change(miss=dice.uniform(0.4, 1.0, "size"))


@cause("slow KV transfer", [("kv_transfer_stall", None)], disaggregated=True)
def slow_transfer(dice, world, step):
    return Change(transfer=dice.log_uniform(20, 600, "size"))


@cause("retries", [("retries", None)], near=("long_outputs", "straggler"))
def retries(dice, world, step):
    return Change(fails=dice.uniform(0.15, 0.6, "size"))


def stalled(dice, world, step, key, low, high):
    """A phase that takes longer, by a share of a usual step."""
    return Change(phase=key, phase_extra_s=walls(world, {}, step)[step] * dice.log_uniform(low, high, "size"))


@cause("checkpoint stall", [("slow_phase", "phase")])
def checkpoint_stall(dice, world, step):
    return stalled(dice, world, step, "save", 0.1, 1.0)


@cause("evaluation stall", [("slow_phase", "phase")])
def evaluation_stall(dice, world, step):
    return stalled(dice, world, step, "evaluate", 0.1, 1.0)


@cause("slow data loader", [("slow_phase", "phase")])
def slow_data(dice, world, step):
    return stalled(dice, world, step, "data", 0.08, 0.8)


@cause("slow weight sync", [("slow_weight_sync", None), ("slow_phase", "phase")])
def slow_sync(dice, world, step):
    return stalled(dice, world, step, "sync", 0.08, 0.8)


@cause("slow log probs", [("slow_phase", "phase")])
def slow_log_probs(dice, world, step):
    return Change(phase="old", phase_pace=dice.log_uniform(2, 10, "size"))


@cause("slow trainer", [("slow_phase", "phase")])
def slow_trainer(dice, world, step):
    return Change(phase="train", phase_pace=dice.log_uniform(1.4, 3.5, "size"))


@cause("slow rank", [("slow_rank", "rank")], near=("slow_phase",))
def slow_rank(dice, world, step):
    return Change(rank=dice.integer(0, world.ranks - 1, "rank"), rank_pace=dice.log_uniform(1.4, 3.5, "size"))


@cause("driver gap", [("driver_gap", None)])
def driver_gap(dice, world, step):
    before = dice.choice(["rollout", "old", "train", "sync"], "where")
    return Change(gap_before=before, gap_extra_s=walls(world, {}, step)[step] * dice.log_uniform(0.1, 0.8, "size"))


TOOLS = {"agents": True, "samples": 128}


@cause("slow tool", [("slow_tool", "tool")], near=("straggler",), **TOOLS)
def slow_tool(dice, world, step):
    return Change(tool=busiest(world), tool_pace=dice.log_uniform(8, 80, "size"), tool_share=dice.choice([0.1, 0.4, 1.0], "share"))


@cause("tool time-outs", [("tool_timeout", "tool"), ("slow_tool", "tool")], near=("straggler",), **TOOLS)
def tool_timeouts(dice, world, step):
    return Change(tool=busiest(world), tool_timeouts=dice.log_uniform(0.05, 0.8, "size"))


@cause("failing tool", [("slow_tool", "tool"), ("tool_timeout", "tool"), ("retries", None)], near=("straggler",), **TOOLS)
def failing_tool(dice, world, step):
    return Change(tool=busiest(world), tool_fails=dice.uniform(0.5, 0.95, "size"), tool_pace=dice.log_uniform(2, 15, "pace"))


@cause("slow reward", [("slow_reward", None)], near=("slow_tool",))
def slow_reward(dice, world, step):
    return Change(judge_pace=dice.log_uniform(8, 60, "size"))


@cause("reward time-outs", [("reward_timeout", None), ("slow_reward", None)], near=("slow_tool",))
def reward_timeouts(dice, world, step):
    return Change(judge_timeouts=dice.log_uniform(0.05, 0.8, "size"))


@cause("one straggler", [("straggler", "sample"), ("long_outputs", "sample")])
def one_straggler(dice, world, step):
    return Change(straggler=dice.integer(0, world.samples - 1, "sample"), straggler_output=dice.log_uniform(4, 20, "size"))


@cause("longer outputs", [("long_outputs", None)], near=("straggler", "slow_phase"))
def longer_outputs(dice, world, step):
    return Change(output=dice.log_uniform(1.25, 3, "size"))


@cause("other mix of sources", [("source_mix", "source")], near=("long_outputs", "long_prompts", "straggler", "slow_tool", "slow_phase"))
def other_mix(dice, world, step):
    heaviest = max(range(len(world.sources)), key=lambda i: world.sources[i].output * sum(world.sources[i].turns))
    # Rare until now, and long.
    world.sources[heaviest].weight *= 0.25
    world.sources[heaviest].output *= 2
    return Change(source=heaviest, source_weight=dice.log_uniform(6, 60, "size"))


CLEAN = "none"
# One run in so many is clean.
CLEAN_EVERY = 5


def plan(seed, only=None, **fixed):
    """What happens in the run of a seed. `only` names a cause. `fixed` replaces parts of the world."""
    dice = Dice(("cause", seed))
    name = only or (CLEAN if seed % CLEAN_EVERY == 0 else dice.choice(sorted(CAUSES), "which"))
    if name == CLEAN:
        return Plan(seed, CLEAN, world(seed, **fixed))
    draw, right, near, needs = CAUSES[name]
    made = None
    for attempt in range(4):
        # A cause that nobody felt says nothing about answers, so the dice are thrown again.
        dice = Dice(("cause", seed, attempt))
        made = Plan(seed, name, world(seed, **{**needs, **fixed}), right=right, near=near)
        made.planted = dice.integer(max(5, made.world.steps // 2), made.world.steps - 1, "step")
        made.change = draw(dice, made.world, made.planted)
        without = walls(made.world, {}, made.planted)
        slowed = walls(made.world, made.changes, made.planted)
        # What is planted in a rollout that runs ahead can show later.
        made.step = max((n for n in without if n >= made.planted - 1), key=lambda n: slowed[n] - without[n])
        made.usual_wall = without[made.step]
        made.true_cost = slowed[made.step] - without[made.step]
        if made.share >= 0.05 and made.true_cost >= 2:
            break
    return made
