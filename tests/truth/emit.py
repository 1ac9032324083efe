"""How real systems report a run: layouts, dialects, and what goes wrong on the way.

A layout says which spans share a trace. A dialect says how a system names its spans and attributes. Trainers name run, step and
sample. Engines, gateways, tools and judges are other processes. They name none of these: only a trace, a parent or a request id
connects them.
"""

from dataclasses import dataclass, field

from . import otlp
from .dice import Dice

LAYOUTS = ("sample", "sample-linked", "step", "request")
DIALECTS = ("slime", "roll", "verl", "trl", "own", "plain")
# Some causes cannot be seen in some dialects: TRL has neither turns nor tools.
TRL_HIDES = ("tool", "turn", "reward", "straggler", "retries", "mix", "cache")
START_NS = 1_790_000_000_000_000_000
PHASES = ("data", "rollout", "old", "reference", "advantages", "train", "sync", "save", "evaluate")


@dataclass
class Dialect:
    """The names of a system."""

    step: str
    data: str
    rollout: str
    old: str
    reference: str
    advantages: str
    train: str
    sync: str
    save: str
    evaluate: str
    sample: str
    generate: str
    tool: str
    reward: str
    rank: str
    service: str
    sample_key: str = "rl.sample.id"
    group_key: str = "rl.group.id"
    source_key: str = "source"
    tool_key: str | None = "tool"
    # Sets `rl.phase`, as our package does.
    phases: bool = False
    engine: str = "sglang"


NAMES = {
    "slime": Dialect(
        "step", "get_samples", "rollout", "log_probs", "ref_log_probs", "compute_advantages_and_returns", "actor_train", "update_weights",
        "save_model", "eval", "generate_and_rm", "sglang_generate", "tool_call", "reward_model", "train_rank", "train.py",
    ),
    "roll": Dialect(
        "pipeline_step", "get_data", "rollout", "cal_old_log_probs_values", "cal_ref_log_probs", "compute_advantage", "train", "model_update",
        "do_checkpoint", "val", "trajectory", "generate", "step", "compute_rewards", "worker.train_step", "agentic_pipeline",
        sample_key="traj_id", group_key="traj_group_id", source_key="domain", tool_key=None,
    ),
    "verl": Dialect(
        "step", "get_batch", "gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights", "save_checkpoint", "testing",
        "rollout_trace", "AsyncLLMServerManager.generate", "{Tool}.execute", "RewardLoopWorker.compute_score", "ActorRolloutRefWorker.update_actor",
        "verl", source_key="data_source", tool_key=None, engine="vllm",
    ),
    "trl": Dialect(
        "train_step", "GRPOTrainer.get_batch_samples", "GRPOTrainer.vLLM.generate", "GRPOTrainer._get_per_token_logps_and_entropies",
        "GRPOTrainer.ref_per_token_logps", "GRPOTrainer.advantages", "GRPOTrainer.compute_loss", "GRPOTrainer.sync_weights",
        "GRPOTrainer._save_checkpoint", "GRPOTrainer.evaluate", "sample", "vLLM.request", "tool", "GRPOTrainer._calculate_rewards",
        "rank.compute_loss", "trl", source_key="dataset", engine="vllm",
    ),
    "own": Dialect(
        "epoch_tick", "fetch", "collect", "logps", "logps_ref", "gae", "learn", "push", "snapshot", "benchmark", "episode", "llm", "act",
        "grade", "learn_shard", "loop", source_key="dataset", phases=True,
    ),
    "plain": Dialect(
        "training_step", "load_batch", "rollout", "compute_logprobs", "compute_ref_logprobs", "compute_advantages", "train", "sync_weights",
        "save_checkpoint", "evaluate", "sample", "llm_call", "tool_call", "reward", "train_rank", "my-trainer", tool_key="tool_name",
    ),
}
# What `rl.phase` is called for the phases of a trainer that sets it.
RL_PHASE = {
    "data": "data", "rollout": "rollout", "old": "log_probs", "reference": "log_probs", "advantages": "advantage", "train": "train",
    "sync": "weight_sync", "save": "checkpoint", "evaluate": "eval",
}
STEP_KEYS = ("rl.step", "step", "global_step", "train_step", "rollout_id", "iteration")
USUAL_STEP_KEY = {"slime": "rollout_id", "roll": "global_step", "verl": "step", "trl": "global_step", "own": "rl.step", "plain": "step"}


@dataclass
class Emission:
    """A run as OTLP requests, and under which names its parts appear."""

    run: str
    layout: str
    dialect: str
    requests: list = field(default_factory=list)
    spans: int = 0
    engine_names: list = field(default_factory=list)
    phase_names: dict = field(default_factory=dict)
    rank_names: list = field(default_factory=list)
    tools_named: bool = True
    samples_named: bool = True
    ranks_seen: bool = True
    notes: dict = field(default_factory=dict)
    # From a step and an index to the id that was sent.
    sample_id: object = None


class DoesNotFit(ValueError):
    pass


def fitting(dialect, plan):
    """Whether a system could have had this run."""
    if NAMES[dialect].engine == "vllm" and plan.world.prefill_engines:
        return False
    if dialect == "trl":
        turns = max(max(source.turns) for source in plan.world.sources)
        return turns == 1 and not plan.world.staleness and not any(word in plan.cause for word in TRL_HIDES)
    return True


class Emitter:
    def __init__(self, plan, steps, layout=None, dialect=None, **fixed):
        """`fixed` replaces what was drawn, to find out what an answer depends on."""
        self.plan, self.world, self.steps = plan, plan.world, steps
        self.dice = dice = Dice(("emit", plan.seed))
        self.layout = layout or dice.choice(LAYOUTS, "layout")
        fits = [name for name in DIALECTS if fitting(name, plan)]
        if dialect and dialect not in fits:
            raise DoesNotFit(f"`{dialect}` cannot report the run of seed {plan.seed}: {plan.cause}")
        # It seldom fits, so it is taken more often where it does.
        fits += ["trl"] * 3 if "trl" in fits else []
        self.dialect = dialect or dice.choice(fits, "dialect")
        self.names = names = NAMES[self.dialect]
        self.pd = bool(self.world.prefill_engines)
        self.engine_kind = names.engine if self.dialect != "own" or self.pd else dice.choice(["sglang", "vllm"], "engine kind")
        self.step_key = USUAL_STEP_KEY[self.dialect] if dice.chance(0.5, "usual key") else dice.choice(STEP_KEYS, "step key")
        self.step_text = dice.chance(0.25, "step text")
        self.step_everywhere = dice.chance(0.4, "step everywhere")
        # In the linked layout, a sample can leave it to its link to say which step it is of.
        self.sample_step = not (self.layout == "sample-linked" and dice.chance(0.2, "only linked"))
        self.usage = dice.chance(0.7, "usage")
        self.gateway = dice.chance(0.25, "gateway")
        self.tool_server = dice.chance(0.3, "tool server")
        self.judge_server = dice.chance(0.3, "judge server")
        self.barrier = dice.chance(0.5, "barrier")
        self.ranks_seen = plan.cause == "slow rank" or dice.chance(0.6, "ranks")
        self.group_spans = self.dialect == "slime" and dice.chance(0.4, "group spans")
        self.in_step_trace = self.layout == "step" or (self.layout == "request" and dice.chance(0.5, "samples in the step's trace"))
        self.tensor_parallel = 2 if self.world.samples <= 96 and dice.chance(0.3, "tensor parallel") else 1
        # slime reports what the engine told it. Some run it with engines that send nothing.
        self.silent = self.dialect == "slime" and "engine" not in plan.cause and "imbalance" not in plan.cause and dice.chance(0.15, "silent")
        self.lost = dice.choice([0.0, 0.0, 0.0, 0.01, 0.05], "lost")
        self.skewed = dice.chance(0.2, "skewed")
        self.zero = START_NS + plan.seed % 10_000 * 86_400_000_000_000
        self.run = f"{self.dialect}-{plan.seed}"
        self.buffers = {}
        self.resources = {}
        self.skews = {}
        self.ids = 0
        self.named_by_host = dice.chance(0.3, "by host")
        for name, value in fixed.items():
            if not hasattr(self, name):
                raise ValueError(f"unknown setting `{name}`; see `Emitter.__init__`")
            setattr(self, name, value)
        self.engine_names = [self.engine_name(index) for index in range(self.world.engines)]

    # Processes.

    def engine_name(self, index):
        host = f"node{self.plan.seed % 997}-{index // 2}" if not self.named_by_host else f"gpu{self.plan.seed % 997}-{index}"
        name = host if self.named_by_host else f"{host}:{30000 + index}"
        resource = {"service.name": self.engine_kind, "host.name": host}
        if not self.named_by_host:
            resource["service.instance.id"] = name
        self.process(("engine", index), resource, skews=host)
        return name

    def process(self, key, resource, skews=None):
        self.resources[key] = resource
        self.buffers[key] = []
        skew = 0
        if self.skewed and skews and self.dice.chance(0.5, "is skewed", skews):
            skew = int(self.dice.uniform(-4e9, 4e9, "skew", skews))
        self.skews[key] = skew

    def trainer(self, service, instance):
        """A process that knows the run."""
        key = (service, instance)
        if key not in self.resources:
            resource = {"service.name": service, "service.instance.id": instance, "host.name": "head", "rl.run.id": self.run}
            if self.dialect == "roll":
                resource["rl.system"] = "roll"
            self.process(key, resource)
        return key

    # Spans.

    def id(self, size=8):
        self.ids += 1
        return self.dice.bits(size, "id", self.ids)

    def add(self, process, trace, parent, name, start, end, attrs=None, kind=otlp.INTERNAL, links=(), error=None, span_id=None):
        span_id = span_id or self.id()
        if process[0] == "engine" and self.dice.chance(self.lost, "is lost", self.ids):
            return span_id
        at = self.zero + self.skews[process]
        self.buffers[process].append(
            otlp.span(trace, span_id, parent, name, at + round(start * 1e9), at + round(end * 1e9), attrs or {}, kind, links, error)
        )
        return span_id

    def step_attrs(self, number, root=False):
        if not (root or self.step_everywhere):
            return {}
        return {self.step_key: str(number) if self.step_text else number}

    def phase_attr(self, phase):
        return {"rl.phase": phase} if self.names.phases or (phase == "step" and self.dialect == "slime") else {}

    # The trainer.

    def emit(self):
        for step in self.steps:
            self.step(step)
        out = Emission(self.run, self.layout, self.dialect)
        out.engine_names = self.engine_names
        out.phase_names = {key: getattr(self.names, key) for key in PHASES}
        out.rank_names = [self.rank_name(rank) for rank in range(self.world.ranks)]
        out.tools_named = self.names.tool_key is not None or "{Tool}" in self.names.tool
        out.samples_named = self.dialect != "trl"
        out.ranks_seen = self.ranks_seen
        out.sample_id = self.sample_id
        out.spans = sum(map(len, self.buffers.values()))
        out.notes = {
            "step_key": self.step_key, "step_text": self.step_text, "step_everywhere": self.step_everywhere, "sample_step": self.sample_step,
            "engine": self.engine_kind, "usage": self.usage, "gateway": self.gateway, "silent": self.silent, "lost": self.lost, "skewed": self.skewed,
            "in_step_trace": self.in_step_trace, "staleness": self.world.staleness, "disaggregated": self.pd, "router": self.world.router,
            "drift": self.world.drift, "samples": self.world.samples, "engines": self.world.engines,
        }
        out.requests = self.batches()
        return out

    def batches(self):
        """Each process sends in batches. They arrive in no order."""
        made = []
        for key, spans in self.buffers.items():
            spans = self.dice.shuffled(spans, "order", str(key))
            size = self.dice.integer(300, 1200, "batch", str(key))
            made += [(self.resources[key], spans[at : at + size]) for at in range(0, len(spans), size)]
        made = [batch for _, batch in sorted(((self.dice.bits(8, "batches", i), batch) for i, batch in enumerate(made)), key=lambda p: p[0])]
        # A collector in between puts batches of several processes into one request.
        together = self.dice.choice([1, 1, 3], "collector")
        return [otlp.request(made[at : at + together]) for at in range(0, len(made), together)]

    def step(self, step):
        names = self.names
        driver = self.trainer(names.service, "driver")
        trace, root = self.id(16), self.id()
        rollout = self.id()
        for phase in step.phases:
            attrs = {**self.step_attrs(step.number), **self.phase_attr(RL_PHASE[phase.key])}
            span = rollout if phase.key == "rollout" else None
            span = self.add(driver, trace, root, getattr(names, phase.key), phase.start, phase.end, attrs, span_id=span)
            if phase.key == "train" and self.ranks_seen:
                self.ranks(step, trace, span)
        # Ahead of training, a rollout has a trace of its own.
        rollout_trace, rollout_parent = trace, rollout
        worker = self.trainer("rollout" if self.dialect != "roll" else "env_manager", "rollout-0")
        if self.world.staleness and self.in_step_trace:
            attrs = {**self.step_attrs(step.number, root=True), **self.phase_attr("rollout")}
            rollout_trace = self.id(16)
            rollout_parent = self.add(worker, rollout_trace, None, "rollout_worker", step.rollout_start, step.rollout_end, attrs)
        if self.dialect == "roll" and self.in_step_trace:
            scheduler = self.trainer("scheduler", "scheduler-0")
            attrs = {**self.step_attrs(step.number), "batch_size": len(step.samples)}
            rollout_parent = self.add(scheduler, rollout_trace, rollout_parent, "get_batch", step.rollout_start, step.rollout_end, attrs)
        for sample in step.samples:
            self.sample(sample, worker, rollout_trace, rollout_parent, (trace, rollout))
        self.add(driver, trace, None, names.step, step.start, step.end, {**self.step_attrs(step.number, root=True), **self.phase_attr("step")}, span_id=root)

    def rank_name(self, rank):
        return f"actor_train-{rank}"

    def ranks(self, step, trace, parent):
        for rank, (start, own, end) in enumerate(step.ranks):
            process = self.trainer("actor_train", self.rank_name(rank))
            attrs = {**self.step_attrs(step.number), **self.phase_attr("train"), "rank": rank}
            span = self.add(process, trace, parent, self.names.rank, start, end if self.barrier else own, attrs)
            if self.barrier:
                self.add(process, trace, span, "forward_backward" if self.dialect != "roll" else "exec", start, own)
                self.add(process, trace, span, "all_reduce", own, end)

    # Samples.

    def sample_id(self, step, index):
        group, member = divmod(index, self.world.group)
        if self.dialect == "verl":
            return f"{step * self.world.samples // self.world.group + group}/{member}"
        if self.dialect == "roll":
            return f"{step}_{group}_{member}"
        return str(step * self.world.samples + index)

    def sample(self, sample, worker, trace, parent, rollout):
        names, world = self.names, self.world
        number = sample.step * world.samples + sample.index
        source = world.sources[sample.source].name
        links = ()
        if not self.in_step_trace:
            trace, parent = self.id(16), None
            if self.layout == "sample-linked":
                links = (rollout,)
        if self.dialect == "trl":
            # One call for the whole batch: the requests hang under it.
            self.request(sample.turns[0].requests[-1], *rollout)
            return
        attrs = {**self.step_attrs(sample.step, root=self.sample_step and not self.in_step_trace), **self.phase_attr("rollout")}
        attrs[names.source_key] = source
        group = f"{sample.step}_{sample.group}" if self.dialect == "roll" else sample.step * (world.samples // world.group) + sample.group
        identity = {names.sample_key: self.sample_id(sample.step, sample.index) if not self.dialect == "slime" else number, names.group_key: group}
        attrs.update(identity)
        if self.dialect == "roll":
            attrs.update(env_id=sample.index % world.group, group_id=sample.group, episode_id=sample.step)
        if self.group_spans and parent is None:
            parent = self.add(worker, trace, None, "generate_and_rm_group", sample.start, sample.end, {**attrs, "group_size": world.group}, links=links)
            links = ()
        root = self.add(worker, trace, parent, names.sample, sample.start, sample.end, {**attrs, "response_length": sample.tokens}, links=links)
        inside = dict(identity) if self.step_everywhere and self.dialect in ("slime", "own", "verl") else {}
        if self.step_everywhere:
            inside.update(self.step_attrs(sample.step))
        for turn in sample.turns:
            for request in turn.requests:
                self.generation(request, worker, trace, root, inside)
            for call in turn.calls:
                name = names.tool.replace("{Tool}", call.tool.capitalize() + "Tool")
                attrs = {**inside, **self.phase_attr("tool")}
                if names.tool_key:
                    attrs[names.tool_key] = call.tool
                error = {"ok": None, "timeout": f"TimeoutError: {call.tool} did not answer", "error": f"RuntimeError: {call.tool} failed"}[call.outcome]
                if error:
                    attrs["error.type"] = error.split(":")[0]
                span = self.add(worker, trace, root, name, call.start, call.end, attrs, otlp.CLIENT, error=error)
                if self.tool_server and call.outcome == "ok":
                    server = self.server("sandbox", "tools-0")
                    self.add(server, trace, span, f"POST /{call.tool}", call.start + 0.001, call.end - 0.001, {"http.request.method": "POST"}, otlp.SERVER)
        error = None if sample.reward_outcome == "ok" else "TimeoutError: the judge did not answer"
        span = self.add(worker, trace, root, names.reward, sample.reward_asked, sample.reward_end, {**inside, **self.phase_attr("reward")}, error=error)
        if self.judge_server and not error:
            self.add(self.server("judge", "judge-0"), trace, span, "POST /score", sample.reward_start, sample.reward_end, {"http.request.method": "POST"}, otlp.SERVER)

    def server(self, service, instance):
        key = (service, instance)
        if key not in self.resources:
            self.process(key, {"service.name": service, "service.instance.id": f"{instance}-{self.plan.seed}", "host.name": instance}, skews=service)
        return key

    # Requests.

    def generation(self, request, worker, trace, root, inside):
        """What the caller records around a request."""
        span = self.id()
        rid = self.rid(request)
        attrs = {**inside, **self.phase_attr("generate")}
        if request.attempt:
            attrs["attempt"] = request.attempt
        if self.dialect == "slime":
            attrs["max_new_tokens"] = 16384
        by_id = self.layout == "request"
        if by_id or self.dialect == "slime":
            attrs[{"slime": "sglang_request_id", "roll": "request_id", "verl": "gen_ai.request.id", "own": "x-request-id", "plain": "gen_ai.response.id"}.get(self.dialect, "gen_ai.response.id")] = rid
        error = None
        if request.ok:
            if self.dialect == "slime":
                seconds = request.end - request.decode_start
                attrs.update(
                    prompt_tokens=request.prompt, completion_tokens=request.output, cached_tokens=request.cached, e2e_latency=request.end - request.sent,
                    finish_reason="stop", queue_time=request.prefill_start - request.sent, decode_throughput=request.output / max(seconds, 1e-6),
                )
                if self.pd:
                    attrs.update(
                        pd_prefill_bootstrap_queue_duration=0.001, pd_prefill_forward_duration=request.prefill_end - request.prefill_start,
                        pd_decode_transfer_duration=request.transfer_end - request.prefill_end, pd_decode_forward_duration=seconds,
                    )
            elif self.usage:
                attrs.update({"gen_ai.usage.input_tokens": request.prompt, "gen_ai.usage.output_tokens": request.output})
        else:
            error = "ConnectionError: the engine closed the connection" if request.killed else "HTTPError: 500"
            attrs["error.type"] = error.split(":")[0]
        self.add(worker, trace, root, self.names.generate, request.sent - 0.002, request.end + 0.001, attrs, otlp.CLIENT, error=error, span_id=span)
        self.request(request, trace, span)

    def rid(self, request):
        sample = request.turn.sample
        return self.dice.bits(16, "rid", sample.step, sample.index, request.turn.number, request.attempt).hex()

    def request(self, request, trace, parent):
        """What gateway and engines record."""
        rid = self.rid(request)
        if self.silent or request.prefill_start is None or (self.engine_kind == "vllm" and not request.ok):
            # It was lost before it got anywhere. vLLM reports only what finished.
            return
        if self.layout == "request":
            # No context came with it.
            trace, parent = self.id(16), None
        if self.gateway:
            gateway = self.server("smg", "gateway-0")
            attrs = {"http.request.method": "POST", "http.route": "/generate", "x-request-id": rid}
            parent = self.add(gateway, trace, parent, "POST /generate", request.sent - 0.001, request.end, attrs, otlp.SERVER)
        if self.engine_kind == "vllm":
            self.vllm(request, trace, parent, rid)
        else:
            self.sglang(request, trace, parent, rid)

    def vllm(self, request, trace, parent, rid):
        attrs = {
            "gen_ai.request.id": rid,
            "gen_ai.response.model": "policy",
            "gen_ai.usage.prompt_tokens": request.prompt,
            "gen_ai.usage.completion_tokens": request.output,
            "gen_ai.latency.time_in_queue": request.prefill_start - request.sent,
            "gen_ai.latency.time_to_first_token": request.prefill_end - request.sent,
            "gen_ai.latency.e2e": request.end - request.sent,
            "gen_ai.latency.time_in_model_prefill": request.prefill_end - request.prefill_start,
            "gen_ai.latency.time_in_model_decode": request.end - request.decode_start,
            "gen_ai.latency.time_in_model_inference": request.end - request.prefill_start,
        }
        if self.usage:
            attrs["gen_ai.usage.cached_tokens"] = request.cached
        self.add(("engine", request.engine), trace, parent, "llm_request", request.sent, request.end, attrs, otlp.SERVER)

    def sglang(self, request, trace, parent, rid):
        usage = {}
        if request.ok:
            usage = {
                "gen_ai.usage.prompt_tokens": request.prompt, "gen_ai.usage.completion_tokens": request.output,
                "gen_ai.usage.cached_tokens": request.cached, "gen_ai.latency.e2e": request.end - request.sent,
            }
        common = {"rid": rid, "module": "sglang::request"}
        if self.pd:
            common["bootstrap_room"] = rid[:12]
            first = [("prefill_bootstrap", request.sent, request.sent + 0.001), ("prefill_waiting", request.sent + 0.001, request.prefill_start)]
            if request.prefill_end is not None:
                first.append(("prefill_forward", request.prefill_start, request.prefill_end))
                if request.transfer_end is not None:
                    first.append(("prefill_transfer_kv_cache", request.prefill_end, request.transfer_end))
            self.engine_spans(request.engine, trace, parent, f"prefill Req {rid[:8]}", {**common}, first)
            if request.transfer_end is None:
                return
            second = [("decode_bootstrap", request.sent, request.sent + 0.001), ("decode_transferred", request.prefill_end, request.transfer_end)]
            starts = request.decode_start if request.decode_start is not None else request.end
            second.append(("decode_waiting", request.transfer_end, starts))
            if request.decode_start is not None:
                second.append(("decode_forward", starts, request.end))
            self.engine_spans(request.decoder, trace, parent, f"decode Req {rid[:8]}", {**common, **usage}, second)
            return
        slices = [("request_process", request.sent, request.sent + 0.0005), ("prefill_waiting", request.sent + 0.0005, request.prefill_start)]
        if request.prefill_end is not None:
            slices.append(("prefill_forward", request.prefill_start, request.prefill_end))
            slices.append(("decode_forward", request.decode_start, request.end))
        self.engine_spans(request.engine, trace, parent, f" Req {rid[:8]}", {**common, **usage}, slices)

    def engine_spans(self, engine, trace, parent, name, attrs, slices):
        process = ("engine", engine)
        start, end = min(s[1] for s in slices), max(s[2] for s in slices)
        root = self.add(process, trace, parent, name, start, end, attrs)
        host = self.resources[process]["host.name"]
        for rank in range(self.tensor_parallel):
            # Every rank reports the same work.
            label = {"host_id": host, "pid": 2000 + 8 * engine + rank, "thread_label": "Scheduler", "tp_rank": rank}
            thread = self.add(process, trace, root, f"Scheduler [TP {rank}] (host:{host[:8]} | pid:{label['pid']})", start, end, label)
            before = ()
            for slice_name, begin, finish in slices:
                span = self.add(process, trace, thread, slice_name, begin, max(begin, finish), links=before)
                before = ((trace, span),)


def emit(plan, steps, layout=None, dialect=None, **fixed):
    return Emitter(plan, steps, layout, dialect, **fixed).emit()
