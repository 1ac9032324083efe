//! A run, step by step. A step is planned (tasks, plants, simulation, phases), then written as batches. Plans are cheap;
//! start times and counters of later steps follow from those of the earlier ones, and are kept.

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use rollscope_model::Table;
use rollscope_model::build::{
    ConversationsBuilder, MetricsBuilder, NewConversation, NewRun, NewSample, RunsBuilder, SamplesBuilder,
    SeriesBuilder,
};
use serde_json::json;

use crate::dice::{Dice, Ids, scatter};
use crate::emit::{Lane, Sender, Sink, seconds};
use crate::engine::{Engine, EngineWriter, Windows, engines};
use crate::live::Live;
use crate::media::{Media, default_hash, pictures};
use crate::plant::Plant;
use crate::sample::{SampleWriter, Written};
use crate::series::{Scrape, Totals, after};
use crate::sim::{Fleet, MS, Outcome, SECOND, ns, simulate};
use crate::step::{Plan, StepData};
use crate::task::{DRAFT, Domain, Shape, Status, Task, draw, give_tool, known_tool};
use crate::trainer::{self, Root, StepFigures};
use crate::{metrics, text};

/// 2026-01-01T00:00:00Z, the default start of a run.
pub const DEFAULT_START_NS: i64 = 1_767_225_600 * SECOND;
/// Between the end of a step and the start of the next.
const GAP: i64 = 30 * MS;

/// What to generate. The same options give the same bytes.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    pub seed: u64,
    /// Finished steps; the step after them is the one in progress.
    pub steps: u64,
    /// Samples per step.
    pub samples: usize,
    pub group_size: usize,
    /// Most turns of an agentic sample. 1: no agents.
    pub max_turns: usize,
    /// Start of the run, nanoseconds since the epoch.
    pub start_ns: i64,
    pub run_id: String,
    pub project: String,
    pub name: String,
    pub planted: Vec<Plant>,
    pub layout: Layout,
    /// Texts cost more than all the rest; loads for benchmarks of spans leave them out.
    pub conversations: bool,
    /// Names media by their content.
    pub media_hash: fn(&[u8]) -> String,
}

/// Who knows what, and what is a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// A sample is a trace. Engines and the gateway know no run, step or sample; half of the engines get no context either.
    #[default]
    PerSample,
    /// A step is a trace. Engines and the gateway as before.
    PerStep,
    /// As per sample, and the rollout of a step begins while the step before is trained on.
    Async,
    /// A sample is a trace, and every span names run, step and sample.
    Stamped,
}

impl Default for DemoOptions {
    fn default() -> Self {
        DemoOptions {
            seed: 7,
            steps: 40,
            samples: 64,
            group_size: 8,
            max_turns: 8,
            start_ns: DEFAULT_START_NS,
            run_id: "demo".to_string(),
            project: "demo".to_string(),
            name: "qwen2.5-7b-grpo".to_string(),
            planted: vec![Plant::SlowTool { step: 23, tool: "browser".to_string(), seconds: 60.0, samples: 4 }],
            layout: Layout::default(),
            conversations: true,
            media_hash: default_hash,
        }
    }
}

impl DemoOptions {
    /// A load for benchmarks: no texts, nothing planted.
    pub fn load(seed: u64, steps: u64, samples: usize, max_turns: usize) -> Self {
        DemoOptions { seed, steps, samples, max_turns, planted: Vec::new(), conversations: false, ..Self::default() }
    }
}

/// Where a step starts: time since the start of the run, and the engines' counters.
#[derive(Clone)]
struct Start {
    offset: i64,
    totals: Vec<Totals>,
}

pub struct Generator {
    options: DemoOptions,
    engines: Vec<Engine>,
    rollout: Sender,
    trainer: Sender,
    gateway: Sender,
    gateway_lane: Lane,
    ranks: Vec<Lane>,
    media: Vec<Media>,
    /// By step. It grows as steps are requested.
    starts: Vec<Start>,
}

impl Generator {
    pub fn new(mut options: DemoOptions) -> Self {
        options.samples = options.samples.max(1);
        options.group_size = options.group_size.clamp(1, options.samples);
        options.max_turns = options.max_turns.max(1);
        let count = Fleet::new(options.samples).engines();
        let run = &options.run_id;
        let bare = options.layout != Layout::Stamped;
        let gateway = Sender::new(2, "smg", "{\"name\":\"smg\"}", run, "gateway-0");
        Generator {
            engines: engines(count, run, options.seed, bare),
            rollout: Sender::new(1, "rollout", "{\"name\":\"rollscope.slime\"}", run, "rollout-0"),
            trainer: Sender::new(0, "trainer", "{\"name\":\"rollscope\"}", run, "trainer-0"),
            gateway: if bare { gateway.bare() } else { gateway },
            gateway_lane: Lane {
                thread: "gateway".to_string(),
                host: "gateway-0".to_string(),
                pid: 900,
                ..Lane::default()
            },
            ranks: trainer::lanes(),
            media: pictures(options.media_hash),
            starts: vec![Start { offset: 0, totals: vec![Totals::default(); count] }],
            options,
        }
    }

    /// A run whose finished steps end at `end_ns`, for example now.
    pub fn ending_at(options: DemoOptions, end_ns: i64) -> Self {
        let mut generator = Self::new(options);
        let length = generator.start(generator.options.steps).offset;
        generator.options.start_ns = end_ns - length;
        generator
    }

    pub fn options(&self) -> &DemoOptions {
        &self.options
    }

    /// Every picture that conversations refer to.
    pub fn media(&self) -> &[Media] {
        &self.media
    }

    /// When a step starts. Earlier steps are planned if they were not yet.
    pub fn start_ns(&mut self, step: u64) -> i64 {
        self.options.start_ns + self.start(step).offset
    }

    /// The row of `runs`. The run keeps running: steps after the finished ones are generated live.
    pub fn header(&self, updated_ns: i64) -> Result<RecordBatch, ArrowError> {
        let o = &self.options;
        let gpus: u32 = (0..self.engines.len()).map(|e| crate::sim::tensor_parallel(e) as u32).sum();
        let config = json!({
            "model": "Qwen2.5-7B", "algorithm": "grpo", "seed": o.seed, "rollout_batch_size": o.samples,
            "n_samples_per_prompt": o.group_size, "max_turns": o.max_turns, "lr": 1e-6, "kl_coef": 0.001,
            "max_new_tokens": crate::task::MAX_NEW_TOKENS, "tensor_parallel": 2, "train_ranks": trainer::RANKS,
            "rollout_engines": self.engines.len(), "rollout_num_gpus": gpus, "prefill_decode_disaggregation": true,
        });
        let mut runs = RunsBuilder::default();
        runs.push(&NewRun {
            run_id: &o.run_id,
            project: Some(&o.project),
            name: Some(&o.name),
            framework: Some("slime"),
            config: Some(&config.to_string()),
            tags: Some("[\"demo\",\"grpo\",\"7b\"]"),
            started_ns: o.start_ns,
            ended_ns: None,
            status: Some("running"),
            updated_ns,
        });
        runs.finish()
    }

    /// The finished steps, one after the other.
    pub fn steps(&mut self) -> impl Iterator<Item = Result<StepData, ArrowError>> + '_ {
        (0..self.options.steps).map(|step| self.step(step))
    }

    /// All rows of a step as they are when it is over.
    pub fn step(&mut self, step: u64) -> Result<StepData, ArrowError> {
        let start = self.start(step).clone();
        let plan = self.plan(step);
        self.remember(&plan, &start);
        self.write(&plan, &start)
    }

    /// The same rows in the order in which they would have arrived, open spans first as such.
    pub fn live(&mut self, step: u64) -> Result<Live, ArrowError> {
        Live::new(self.step(step)?)
    }

    fn start(&mut self, step: u64) -> &Start {
        while self.starts.len() as u64 <= step {
            let next = self.starts.len() as u64 - 1;
            let start = self.starts[next as usize].clone();
            let plan = self.plan(next);
            self.remember(&plan, &start);
        }
        &self.starts[step as usize]
    }

    fn remember(&mut self, plan: &Plan, start: &Start) {
        if self.starts.len() as u64 == plan.step + 1 {
            let totals = after(&start.totals, &plan.outcome, &plan.tasks);
            // The trainer must be done with one step when the samples of the next are there.
            let rollout = plan.phases.first().map_or(0, |rollout| rollout.end);
            let next = match self.options.layout {
                Layout::Async => rollout.max(plan.end - rollout / 2),
                _ => plan.end,
            };
            self.starts.push(Start { offset: start.offset + next + GAP, totals });
        }
    }

    fn dice(&self, step: u64, purpose: u64) -> Dice {
        Dice::new(self.options.seed, step << 3 | purpose)
    }

    fn plan(&self, step: u64) -> Plan {
        let o = &self.options;
        let shape = Shape { samples: o.samples, group_size: o.group_size, max_turns: o.max_turns };
        let mut tasks = draw(&mut self.dice(step, 0), step, &shape);
        let mut fleet = Fleet::new(o.samples);
        let run = |tasks: &[Task], fleet: &Fleet| simulate(tasks, fleet, o.group_size, 5 * MS, &mut self.dice(step, 1));
        let mut outcome = run(&tasks, &fleet);
        let mut skew = vec![0; fleet.engines()];
        let (mut slow_sync_s, mut lost) = (0.0, 0.0);
        let plants: Vec<&Plant> = o.planted.iter().filter(|p| p.step() == step).collect();
        if !plants.is_empty() {
            for plant in plants {
                apply(plant, &outcome, &mut tasks, &mut fleet, &mut slow_sync_s, &mut skew, &mut lost);
            }
            outcome = run(&tasks, &fleet);
        }
        let mut plan = Plan { step, tasks, fleet, outcome, phases: Vec::new(), end: 0, skew, lost };
        let rollout_end = plan.outcome.end() + 20 * MS;
        let mean = plan.tokens() as f64 / plan.tasks.len() as f64;
        plan.phases = trainer::phases(&mut self.dice(step, 2), step, rollout_end, mean, slow_sync_s);
        plan.end = plan.phases.last().map_or(rollout_end, |p| p.end) + 2 * MS;
        plan
    }

    fn write(&self, plan: &Plan, start: &Start) -> Result<StepData, ArrowError> {
        let o = &self.options;
        let base = o.start_ns + start.offset;
        let mut sink = Sink::new(&o.run_id, plan.step, base, Ids::new(o.seed, plan.step), self.dice(plan.step, 3));
        let root = Root::new(&mut sink);
        let figures = StepFigures { step: plan.step, end: plan.end, samples: plan.tasks.len(), tokens: plan.tokens() };
        let mut dice = self.dice(plan.step, 4);
        trainer::write(&mut sink, &self.trainer, &self.ranks, &root, &plan.phases, &figures, &mut dice);

        let salt = scatter(o.seed ^ scatter(plan.step + 1));
        let mut engine = EngineWriter {
            engines: &self.engines,
            gateway: &self.gateway,
            gateway_lane: &self.gateway_lane,
            windows: Windows::new(self.engines.len(), &plan.outcome),
            step_salt: salt,
            skew: &plan.skew,
            lost: plan.lost,
            name: String::new(),
            room: String::new(),
        };
        let mut writer = SampleWriter {
            sender: &self.rollout,
            caused_by: (root.trace, root.rollout),
            one_trace: o.layout == Layout::PerStep,
            group: None,
            group_size: o.group_size,
            first_sample: plan.step * o.samples as u64,
            first_group: plan.step * o.samples.div_ceil(o.group_size) as u64,
            version: plan.step,
            rid_salt: scatter(salt),
            rid: String::new(),
        };
        let mut samples = SamplesBuilder::default();
        let mut conversations = ConversationsBuilder::default();
        for (index, task) in plan.tasks.iter().enumerate() {
            let written = writer.write(&mut sink, &mut engine, &plan.outcome, index, task);
            self.sample_row(&mut samples, plan, base, index, task, &written);
            if o.conversations {
                self.conversation_row(&mut conversations, plan, base, index, task, &written);
            }
        }
        let mut series = SeriesBuilder::default();
        Scrape {
            run_id: &o.run_id,
            engines: &self.engines,
            slots: &plan.fleet.slots,
            outcome: &plan.outcome,
            tasks: &plan.tasks,
            before: &start.totals,
            base,
            offset: start.offset,
            end: plan.end + GAP,
        }
        .write(&mut series);
        let mut measured = MetricsBuilder::default();
        let expected = metrics::write(&mut measured, &o.run_id, plan, base, &mut self.dice(plan.step, 5));

        let mut batches = vec![(Table::Spans, sink.spans.finish()?), (Table::Samples, samples.finish()?)];
        if o.conversations {
            batches.push((Table::Conversations, conversations.finish()?));
        }
        batches.push((Table::Metrics, measured.finish()?));
        batches.push((Table::Series, series.finish()?));
        Ok(StepData { step: plan.step, start_ns: base, end_ns: base + plan.end, batches, expected })
    }

    fn sample_row(&self, out: &mut SamplesBuilder, plan: &Plan, base: i64, index: usize, task: &Task, w: &Written) {
        let times = &plan.outcome.samples[index];
        let last = task.attempts() - 1;
        let kept = || task.turns.iter().filter(|t| t.attempt == last);
        let response: i64 = kept().map(|t| t.completion_tokens).sum();
        let prompt = kept().next().map_or(0, |t| t.prompt_tokens);
        let verifies: i64 = kept().map(|t| t.verifies).sum();
        let versions: Vec<u64> = (plan.step - task.staleness..=plan.step).collect();
        let reward_json = match (task.domain, task.reward) {
            (Domain::Code, Some(score)) => Some(json!({"score": score, "format": 1.0}).to_string()),
            _ => None,
        };
        let metadata = json!({
            "source": task.domain.source(), "prompt_id": task.problem, "disaggregated": task.disaggregated,
            "language": if task.domain == Domain::Code { "python" } else { "" },
        });
        out.push(&NewSample {
            run_id: &self.options.run_id,
            step: Some(plan.step as i64),
            sample_id: &w.sample_id,
            split: "train",
            group_id: Some(&w.group_id),
            trace_id: Some(w.trace),
            attempt: Some(last),
            status: Some(task.status.name()),
            reward: task.reward,
            reward_json: reward_json.as_deref(),
            label: Some(&text::label(task)),
            source: Some(task.domain.source()),
            start_ns: Some(base + times.start - MS / 10),
            end_ns: Some(base + times.end),
            prompt_tokens: Some(prompt),
            response_tokens: Some(response),
            total_tokens: Some(kept().next_back().map_or(0, |t| t.prompt_tokens + t.completion_tokens)),
            response_length: Some(response),
            turns: Some(kept().count() as i32),
            tool_calls: Some(kept().filter(|t| t.tool.is_some()).count() as i32),
            weight_versions: Some(&json!(versions).to_string()),
            cached_tokens: Some(kept().map(|t| t.cached_tokens).sum()),
            cache_total_tokens: Some(kept().map(|t| t.prompt_tokens).sum()),
            spec_accepted: Some(kept().map(|t| t.accepted()).sum()),
            spec_drafted: Some(verifies * DRAFT),
            spec_verifies: Some(verifies),
            non_generation_s: Some(plan.non_generation_s(index)),
            removed: Some(task.status == Status::Aborted),
            metadata: Some(&metadata.to_string()),
            file: None,
        });
    }

    fn conversation_row(
        &self,
        out: &mut ConversationsBuilder,
        plan: &Plan,
        base: i64,
        index: usize,
        task: &Task,
        w: &Written,
    ) {
        let said = text::conversation(task, &w.sample_id, &self.media);
        let times = &plan.outcome.samples[index];
        let last = task.attempts() - 1;
        let response_tokens: i64 = task.turns.iter().filter(|t| t.attempt == last).map(|t| t.completion_tokens).sum();
        let metadata = json!({
            "reward": task.reward, "source": task.domain.source(), "status": task.status.name(),
            "prompt_id": task.problem, "response_tokens": response_tokens, "duration_s": seconds(times.end - times.start), "attempt": task.attempts() - 1,
        });
        out.push(&NewConversation {
            id: &format!("{}/{}/rollout/{index}", self.options.run_id, plan.step),
            run_id: &self.options.run_id,
            step: Some(plan.step as i64),
            key: Some("rollout"),
            index: Some(index as i64),
            sample_id: Some(&w.sample_id),
            group_id: Some(&w.group_id),
            trace_id: Some(w.trace),
            span_id: Some(w.span),
            messages: &said.messages,
            metadata: Some(&metadata.to_string()),
            reward: task.reward,
            status: Some(task.status.name()),
            message_count: said.message_count,
            turn_count: said.turn_count,
            tool_call_count: said.tool_call_count,
            media_count: said.media_count,
            char_count: said.char_count,
            logged_ns: base + times.end,
        });
    }
}

/// Puts a cause in place. `before` is the step as it would have been: the samples that end last are the ones to slow
/// down if the step is to feel it.
fn apply(
    plant: &Plant,
    before: &Outcome,
    tasks: &mut [Task],
    fleet: &mut Fleet,
    slow_sync_s: &mut f64,
    skew: &mut [i64],
    lost: &mut f64,
) {
    let mut latest: Vec<usize> = (0..tasks.len()).collect();
    latest.sort_by_key(|i| std::cmp::Reverse((before.samples[*i].end, *i)));
    match plant {
        Plant::SlowTool { tool, seconds, samples, .. } => {
            let tool = known_tool(tool);
            let calls = |t: &Task| t.turns.iter().any(|u| u.tool.as_ref().is_some_and(|c| c.tool == tool));
            // Those that call the tool anyway come first, then those that call any.
            latest.sort_by_key(|i| (!calls(&tasks[*i]), tasks[*i].tool_calls() == 0));
            for i in latest.into_iter().take(*samples) {
                if !calls(&tasks[i]) {
                    give_tool(&mut tasks[i], tool);
                }
                let of_tool = |c: &&mut crate::task::ToolCall| c.tool == tool;
                if let Some(call) = tasks[i].turns.iter_mut().rev().find_map(|t| t.tool.as_mut().filter(of_tool)) {
                    call.seconds += seconds.max(0.0);
                }
            }
        }
        Plant::LongOutputs { tokens, samples, .. } => {
            for i in latest.into_iter().take(*samples) {
                if let Some(turn) = tasks[i].turns.last_mut() {
                    turn.completion_tokens += i64::from(*tokens);
                    turn.max_new_tokens = turn.max_new_tokens.max(turn.completion_tokens);
                    turn.verifies += i64::from(*tokens) / 3;
                }
            }
        }
        Plant::StarvedEngine { engine, slots, .. } => {
            let engines = fleet.slots.len();
            fleet.slots[engine % engines] = (*slots).max(1);
        }
        Plant::SlowWeightSync { seconds, .. } => *slow_sync_s += seconds.max(0.0),
        Plant::KvTransferStall { seconds, .. } => fleet.transfer_stall_s += seconds.max(0.0),
        Plant::RewardTimeout { seconds, samples, .. } => {
            for i in latest.into_iter().filter(|i| before_reward(&tasks[*i])).take(*samples).collect::<Vec<_>>() {
                tasks[i].reward_s = seconds.max(0.0);
                tasks[i].reward_timeout = true;
                tasks[i].reward = Some(0.0);
            }
        }
        Plant::StragglingGroup { group, factor, .. } => {
            let groups = tasks.last().map_or(1, |t| t.group + 1);
            for task in tasks.iter_mut().filter(|t| t.group == group % groups) {
                task.turns.iter_mut().for_each(|t| t.speed /= factor.max(1.0));
            }
        }
        Plant::ClockSkew { engine, ms, .. } => {
            let engines = skew.len();
            skew[engine % engines] = ns(ms / 1e3);
        }
        Plant::DroppedData { share, .. } => *lost = share.clamp(0.0, 1.0),
    }
}

fn before_reward(task: &Task) -> bool {
    task.status != Status::Aborted
}
