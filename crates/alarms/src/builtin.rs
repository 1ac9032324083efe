//! The built-in alarms that look at runs, at what was dropped and at the disk. What the run waits for and why a step was slow are
//! questions that have answers already: their sentences are taken.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use rollscope_answers::Answers;
use rollscope_answers::hang::State as Movement;
use rollscope_answers::perf::PerfRules;
use rollscope_app::hang;
use rollscope_app::problem::Problem;
use rollscope_app::query::{collect, float_column, int_column, sql_text, text_column};
use rollscope_app::steps::StepCounters;
use rollscope_model::Table;
use rollscope_query::promql::Labels;
use rollscope_store::Store;

use crate::alarm::Seen;
use crate::config::{AlarmsConfig, Chosen};
use crate::judge;
use crate::specs::{self, SPECS, Spec};
use crate::text::{address_part, duration, humanize_1024, significant};

/// A run that sent nothing for so long is abandoned, also if it never said that it ended.
const ABANDONED_NS: i64 = 24 * 3600 * 1_000_000_000;
/// A run that does not say that it runs is looked at for so long after its last row.
const UNSAID_NS: i64 = 3600 * 1_000_000_000;
/// Runs that are looked at, the newest.
const MAX_RUNS: usize = 50;
/// Steps of each.
const MAX_STEPS: i64 = 200;
/// A run that sends is asked only so often whether it hangs.
const ASK_EVERY_MS: i64 = 60_000;
/// One that has sent nothing new for a while is asked in every round at first, and then when it has sent nothing for a tenth
/// longer, but every five minutes. One that hangs is asked every minute.
const QUIET_MS: i64 = 30_000;
const ASK_LATER: i64 = 10;
const ASK_RARELY_MS: i64 = 300_000;
/// One that was just found to hang is asked in every round, until it is certain and its processes have said where they stand.
const JUST_FOUND_MS: i64 = 120_000;
/// Of a run that sends very much, to look at it must not take a core: an answer that took longer than this is asked for again after
/// so many times what it took longer, or after ten minutes.
const TAKES_LONG_MS: i64 = 2_000;
const REST: i64 = 20;
const LONGEST_REST_MS: i64 = 600_000;
/// What processes say of themselves, in the sentence about a hang.
const MAX_PLACES: usize = 3;
/// Steps are looked at when one was computed, else so often, and only those of runs that sent something.
const STEPS_EVERY_MS: i64 = 60_000;
/// Samples and groups that make a share.
const LEAST_SAMPLES: i64 = 8;
const LEAST_GROUPS: i64 = 4;
/// What was dropped within this time counts.
const DROPPED_WITHIN_MS: i64 = 300_000;

/// What was rejected or dropped since the start, by what it was.
pub type Dropped = Arc<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync>;

/// Asks the processes of a run for their stacks.
pub type AskStacks = Arc<dyn Fn(&str) + Send + Sync>;

/// What the alarms look at.
#[derive(Clone)]
pub struct Sources {
    pub answers: Answers,
    pub store: Store,
    pub dropped: Dropped,
    pub ask_stacks: AskStacks,
    pub steps: Arc<StepCounters>,
    pub perf: PerfRules,
}

struct LiveRun {
    id: String,
    name: String,
    last_ns: i64,
    says_running: bool,
    sent: Sent,
}

/// Rows of a run and the newest time in them, without series: processes send signs of life also if nothing moves.
type Sent = (u64, i64);

/// When a run was asked whether it hangs and how long that took, what it had sent, and since when it has sent no more.
struct Asked {
    at_ms: i64,
    took_ms: i64,
    sent: Sent,
    since_ms: i64,
    /// When it was found to hang.
    hangs_ms: Option<i64>,
}

/// How long something rests that took this long.
fn rest_ms(took_ms: i64) -> i64 {
    ((took_ms - TAKES_LONG_MS).max(0) * REST).min(LONGEST_REST_MS)
}

/// The figures of one step.
#[derive(Clone, Debug, Default)]
struct Step {
    seconds: Option<f64>,
    complete: bool,
    reward: Option<f64>,
    samples: i64,
    truncated: i64,
    aborted: i64,
    groups: i64,
    flat_groups: i64,
    entropy: Option<f64>,
}

type Steps = BTreeMap<i64, Step>;

/// What each built-in alarm found, by the key of its spec.
pub type Found = Vec<(&'static Spec, Chosen, Result<Vec<Seen>, String>)>;

pub struct Builtin {
    sources: Sources,
    config: AlarmsConfig,
    steps: HashMap<String, Steps>,
    /// When steps were read, how long that took, and how many had been computed.
    steps_read: Option<(i64, i64, u64)>,
    /// What each run had sent then.
    read: HashMap<String, Sent>,
    asked: HashMap<String, Asked>,
    hangs: HashMap<String, Seen>,
    /// Sentences about slow steps.
    sentences: HashMap<(String, i64), String>,
    dropped: VecDeque<(i64, Vec<(&'static str, u64)>)>,
}

fn seen(spec: &Spec, labels: &[(&str, &str)], value: f64, sentence: String, place: String) -> Seen {
    let labels = labels.iter().copied().chain([("alertname", spec.name)]);
    Seen {
        labels: Labels::new(labels.map(|(n, v)| (n.to_string(), v.to_string()))),
        annotations: BTreeMap::from([("summary".to_string(), sentence)]),
        value,
        place,
    }
}

impl Builtin {
    pub fn new(sources: Sources, config: &AlarmsConfig) -> Builtin {
        Builtin {
            sources,
            config: config.clone(),
            steps: HashMap::new(),
            steps_read: None,
            read: HashMap::new(),
            asked: HashMap::new(),
            hangs: HashMap::new(),
            sentences: HashMap::new(),
            dropped: VecDeque::new(),
        }
    }

    /// Looks at everything. What is switched off finds nothing.
    pub async fn look(&mut self, at_ms: i64) -> Found {
        let live = self.live(at_ms * 1_000_000).await;
        let read = match &live {
            Ok(live) => self.read_steps(live, at_ms).await.map_err(|e| e.to_string()),
            Err(why) => Err(why.to_string()),
        };
        let nobody = Vec::new();
        let runs = live.as_ref().unwrap_or(&nobody);
        let mut found = Vec::new();
        for spec in &SPECS {
            let Ok(chosen) = self.config.builtin.chosen(spec) else { continue };
            if !chosen.enabled || spec.key == specs::ENGINE_GONE {
                continue;
            }
            let seen = match spec.key {
                specs::NO_PROGRESS => match &live {
                    Ok(live) => self.no_progress(spec, chosen, live, at_ms).await,
                    Err(why) => Err(why.to_string()),
                },
                specs::DATA_DROPPED => Ok(self.data_dropped(spec, chosen, at_ms)),
                specs::DISK_NEARLY_FULL => self.disk(spec, chosen),
                specs::STEP_SLOW => match &read {
                    Ok(()) => Ok(self.step_slow(spec, chosen, runs).await),
                    Err(why) => Err(why.clone()),
                },
                _ => read.clone().map(|()| runs.iter().filter_map(|run| self.of_steps(spec, chosen, run)).collect()),
            };
            found.push((spec, chosen, seen));
        }
        found
    }

    /// The runs that go on.
    async fn live(&self, now: i64) -> Result<Vec<LiveRun>, Problem> {
        let rows = self.sources.answers.engine().runs().await?;
        let (ids, names) = (text_column(&rows, "run_id")?, text_column(&rows, "name")?);
        let (statuses, ends) = (text_column(&rows, "status")?, int_column(&rows, "ended_ns")?);
        let lasts = int_column(&rows, "last_ns")?;
        let mut live = Vec::new();
        for row in 0..rows.num_rows() {
            let (Some(id), Some(last_ns)) = (ids[row].clone(), lasts[row]) else { continue };
            let says_running = statuses[row].as_deref() == Some("running");
            let ended = ends[row].is_some() || statuses[row].as_deref().is_some_and(|s| s != "running");
            let patience = if says_running { ABANDONED_NS } else { UNSAID_NS };
            if !ended && now - last_ns < patience {
                live.push(LiveRun {
                    name: names[row].clone().unwrap_or_else(|| id.clone()),
                    id,
                    last_ns,
                    says_running,
                    sent: Sent::default(),
                });
            }
        }
        live.sort_by_key(|run| std::cmp::Reverse(run.last_ns));
        live.truncate(MAX_RUNS);
        let engine = self.sources.answers.engine();
        for run in &mut live {
            for table in [Table::Spans, Table::Samples, Table::Conversations, Table::Metrics, Table::Tokens] {
                let (rows, newest) = engine.extent(table, &run.id);
                run.sent = (run.sent.0 + rows, run.sent.1.max(newest.unwrap_or(0)));
            }
        }
        Ok(live)
    }

    /// Reads the figures of steps, of runs that may have new ones.
    async fn read_steps(&mut self, live: &[LiveRun], at_ms: i64) -> Result<(), Problem> {
        self.steps.retain(|run, _| live.iter().any(|l| l.id == *run));
        self.read.retain(|run, _| live.iter().any(|l| l.id == *run));
        let computed = self.sources.steps.computed.load(Relaxed);
        let all_known = live.iter().all(|run| self.read.contains_key(&run.id));
        if let Some((read_ms, took_ms, before)) = self.steps_read {
            let wait_ms = if before == computed { STEPS_EVERY_MS } else { 0 };
            if all_known && at_ms - read_ms < wait_ms.max(rest_ms(took_ms)) {
                return Ok(());
            }
        }
        let begun = Instant::now();
        let changed = live.iter().filter(|run| self.read.get(&run.id) != Some(&run.sent));
        let ids: Vec<String> = changed.clone().map(|run| run.id.clone()).collect();
        for id in &ids {
            self.steps.remove(id);
            // If this fails, it is read again.
            self.read.remove(id);
        }
        if !ids.is_empty() {
            self.read_spans(&ids).await?;
            self.read_samples(&ids, "samples", "split = 'train'").await?;
            // A run that sends no samples may send what its model said, with rewards.
            let without =
                |run: &&String| self.steps.get(*run).is_none_or(|steps| steps.values().all(|step| step.samples == 0));
            let others: Vec<String> = ids.iter().filter(without).cloned().collect();
            if !others.is_empty() {
                self.read_samples(&others, "conversations", "true").await?;
            }
            self.read_metrics(&ids).await?;
        }
        // What comes before the newest step is complete.
        for steps in self.steps.values_mut() {
            let newest = steps.keys().next_back().copied();
            for (number, step) in steps.iter_mut() {
                step.complete |= Some(*number) != newest;
            }
        }
        for run in live {
            self.read.insert(run.id.clone(), run.sent);
        }
        self.steps_read = Some((at_ms, begun.elapsed().as_millis() as i64, computed));
        Ok(())
    }

    fn step(&mut self, run: Option<String>, step: Option<i64>) -> Option<&mut Step> {
        Some(self.steps.entry(run?).or_default().entry(step?).or_default())
    }

    async fn read_spans(&mut self, ids: &[String]) -> Result<(), Problem> {
        let list: Vec<String> = ids.iter().map(|id| sql_text(id)).collect();
        let names: Vec<String> = self.sources.perf.step_spans.iter().map(|n| sql_text(n)).collect();
        let is_step = if names.is_empty() { "false".into() } else { format!("name in ({})", names.join(", ")) };
        let sql = format!(
            "with newest as (select run_id, max(step) - {MAX_STEPS} as least from spans where run_id in ({runs}) group by run_id) \
             select s.run_id, s.step, min(s.start_ns) as start_ns, max(s.end_ns) as end_ns, \
             max(case when {is_step} and state = 'closed' then s.end_ns - s.start_ns end) as own_ns \
             from spans s join newest n on s.run_id = n.run_id where s.run_id in ({runs}) and s.step > n.least \
             group by s.run_id, s.step",
            runs = list.join(", ")
        );
        for batch in collect(self.sources.answers.engine(), &sql).await? {
            let (runs, steps) = (text_column(&batch, "run_id")?, int_column(&batch, "step")?);
            let (starts, ends) = (int_column(&batch, "start_ns")?, int_column(&batch, "end_ns")?);
            let own = int_column(&batch, "own_ns")?;
            for row in 0..batch.num_rows() {
                let whole = starts[row].zip(ends[row]).map(|(start, end)| end - start);
                let Some(step) = self.step(runs[row].clone(), steps[row]) else { continue };
                step.seconds = own[row].or(whole).map(|ns| ns as f64 / 1e9);
                step.complete = own[row].is_some();
            }
        }
        Ok(())
    }

    async fn read_samples(&mut self, ids: &[String], table: &str, which: &str) -> Result<(), Problem> {
        let list: Vec<String> = ids.iter().map(|id| sql_text(id)).collect();
        let sql = format!(
            "with newest as (select run_id, max(step) - {MAX_STEPS} as least from {table} where run_id in ({runs}) group by run_id), \
             grouped as (select s.run_id, s.step, s.group_id, count(*) as n, count(reward) as rewards, sum(reward) as total, \
             min(reward) as low, max(reward) as high, sum(case when status = 'truncated' then 1 else 0 end) as truncated, \
             sum(case when status in ('aborted', 'failed') then 1 else 0 end) as aborted \
             from {table} s join newest on s.run_id = newest.run_id \
             where s.run_id in ({runs}) and s.step > least and {which} group by s.run_id, s.step, s.group_id) \
             select run_id, step, sum(n) as samples, sum(total) / sum(rewards) as reward, sum(truncated) as truncated, \
             sum(aborted) as aborted, sum(case when group_id is not null and rewards > 1 then 1 else 0 end) as groups, \
             sum(case when group_id is not null and rewards > 1 and low = high then 1 else 0 end) as flat \
             from grouped group by run_id, step",
            runs = list.join(", ")
        );
        for batch in collect(self.sources.answers.engine(), &sql).await? {
            let (runs, steps) = (text_column(&batch, "run_id")?, int_column(&batch, "step")?);
            let rewards = float_column(&batch, "reward")?;
            let counts = ["samples", "truncated", "aborted", "groups", "flat"].map(|name| int_column(&batch, name));
            let [samples, truncated, aborted, groups, flat] = counts;
            let (samples, truncated, aborted, groups, flat) = (samples?, truncated?, aborted?, groups?, flat?);
            for row in 0..batch.num_rows() {
                let Some(step) = self.step(runs[row].clone(), steps[row]) else { continue };
                step.reward = rewards[row].filter(|r| r.is_finite());
                step.samples = samples[row].unwrap_or(0);
                step.truncated = truncated[row].unwrap_or(0);
                step.aborted = aborted[row].unwrap_or(0);
                step.groups = groups[row].unwrap_or(0);
                step.flat_groups = flat[row].unwrap_or(0);
            }
        }
        Ok(())
    }

    /// Trainers log entropy under many names; those with the word at their end count. The same goes for the mean reward, where
    /// nothing else tells it.
    async fn read_metrics(&mut self, ids: &[String]) -> Result<(), Problem> {
        let list: Vec<String> = ids.iter().map(|id| sql_text(id)).collect();
        let ends = |word: &str| {
            let fits = ["", "/mean", "_mean"].map(|end| format!("lower(name) like '%{word}{end}'"));
            fits.join(" or ")
        };
        let sql = format!(
            "select run_id, step, name, lower(name) like '%entropy%' as entropy, avg(value) as value from metrics \
             where run_id in ({}) and step is not null and lower(name) not like '%coef%' and lower(name) not like '%loss%' \
             and ({} or {} or {}) group by run_id, step, name order by name",
            list.join(", "),
            ends("entropy"),
            ends("reward"),
            ends("rewards"),
        );
        for batch in collect(self.sources.answers.engine(), &sql).await? {
            let (runs, steps) = (text_column(&batch, "run_id")?, int_column(&batch, "step")?);
            let (values, entropies) = (float_column(&batch, "value")?, int_column(&batch, "entropy")?);
            for row in 0..batch.num_rows() {
                let Some(step) = self.step(runs[row].clone(), steps[row]) else { continue };
                let value = values[row].filter(|v| v.is_finite());
                // Of several names the first counts, for every step the same.
                match entropies[row] == Some(1) {
                    true => step.entropy = step.entropy.or(value),
                    false => step.reward = step.reward.or(value),
                }
            }
        }
        Ok(())
    }

    /// The complete steps of a run, in order.
    fn complete(&self, run: &LiveRun) -> Vec<(i64, &Step)> {
        let steps = self.steps.get(&run.id).into_iter().flatten();
        steps.filter(|(_, step)| step.complete).map(|(number, step)| (*number, step)).collect()
    }

    async fn no_progress(
        &mut self,
        spec: &Spec,
        chosen: Chosen,
        live: &[LiveRun],
        at_ms: i64,
    ) -> Result<Vec<Seen>, String> {
        self.hangs.retain(|run, _| live.iter().any(|l| l.id == *run));
        self.asked.retain(|run, _| live.iter().any(|l| l.id == *run));
        let mut failed = None;
        for run in live {
            // Engines and gateways have no steps, and rest while nobody asks them.
            if !run.says_running && self.steps.get(&run.id).is_none_or(BTreeMap::is_empty) {
                continue;
            }
            let asked = self.asked.entry(run.id.clone()).or_insert(Asked {
                at_ms: i64::MIN,
                took_ms: 0,
                sent: run.sent,
                since_ms: at_ms,
                hangs_ms: None,
            });
            let moved = asked.sent != run.sent;
            if moved {
                (asked.sent, asked.since_ms) = (run.sent, at_ms);
            }
            let still_ms = at_ms - asked.since_ms;
            let wait_ms = match asked.hangs_ms {
                Some(found_ms) if at_ms - found_ms < JUST_FOUND_MS => 0,
                Some(_) if moved => rest_ms(asked.took_ms),
                Some(_) => (still_ms / ASK_LATER).min(ASK_EVERY_MS).max(rest_ms(asked.took_ms)),
                None if still_ms >= QUIET_MS => (still_ms / ASK_LATER).min(ASK_RARELY_MS).max(rest_ms(asked.took_ms)),
                None => ASK_EVERY_MS.max(rest_ms(asked.took_ms)),
            };
            if at_ms.saturating_sub(asked.at_ms) < wait_ms {
                continue;
            }
            let begun = Instant::now();
            let answer = hang::ask(self.sources.answers.engine(), &run.id, None).await;
            (asked.at_ms, asked.took_ms) = (at_ms, begun.elapsed().as_millis() as i64);
            let hang = match answer {
                Ok(hang) => hang,
                Err(why) => {
                    failed = Some(format!("run {}: {why}", run.name));
                    continue;
                }
            };
            let pauses = hang.pause_s.filter(|p| *p > 0.0).map(|p| hang.quiet_s / p);
            // Where nothing moves at all, it must be for long enough. Where something is far overdue, it is known already.
            let still = pauses.is_none_or(|pauses| pauses < spec.threshold || pauses >= chosen.threshold);
            match hang.state == Movement::Hanging && still {
                true => {
                    // Nobody may be there to ask. What they answer is in the sentence of the next round, before the first message.
                    if hang.workers.iter().all(|worker| worker.place.is_none()) {
                        (self.sources.ask_stacks)(&run.id);
                    }
                    let place = format!("/run/{}/now", address_part(&run.id));
                    // Where the processes stand belongs to it.
                    let sentence = [hang.text].into_iter().chain(hang.dumps.into_iter().take(MAX_PLACES));
                    let sentence = sentence.collect::<Vec<_>>().join(" ");
                    let found = seen(spec, &[("run", &run.id)], hang.quiet_s, sentence, place);
                    asked.hangs_ms.get_or_insert(at_ms);
                    self.hangs.insert(run.id.clone(), found);
                }
                false => {
                    asked.hangs_ms = None;
                    self.hangs.remove(&run.id);
                }
            }
        }
        match failed {
            Some(why) if self.hangs.is_empty() => Err(why),
            _ => Ok(self.hangs.values().cloned().collect()),
        }
    }

    async fn step_slow(&mut self, spec: &Spec, chosen: Chosen, live: &[LiveRun]) -> Vec<Seen> {
        let mut found = Vec::new();
        let mut wanted = HashMap::new();
        for run in live {
            let steps: Vec<(i64, f64)> =
                self.complete(run).into_iter().filter_map(|(n, s)| Some((n, s.seconds?))).collect();
            let seconds: Vec<f64> = steps.iter().map(|(_, s)| *s).collect();
            let Some((times, usual)) = judge::slow_step(&seconds, chosen.threshold) else { continue };
            let (number, took) = steps[steps.len() - 1];
            let key = (run.id.clone(), number);
            let sentence = match self.sentences.remove(&key) {
                Some(sentence) => sentence,
                None => {
                    let took = format!(
                        "Step {number} of {} took {}, {} times the usual {}.",
                        run.name,
                        duration((took * 1000.0) as i64),
                        significant(times, 2),
                        duration((usual * 1000.0) as i64)
                    );
                    match self.sources.answers.step_report(&run.id, Some(number)).await {
                        Ok(report) => format!("{took} {}", report.text),
                        Err(_) => took,
                    }
                }
            };
            let place = format!("/run/{}/step/{number}", address_part(&run.id));
            let labels = [("run", run.id.as_str()), ("step", &number.to_string())];
            found.push(seen(spec, &labels, times, sentence.clone(), place));
            wanted.insert(key, sentence);
        }
        self.sentences = wanted;
        found
    }

    /// Alarms about the figures of steps.
    fn of_steps(&self, spec: &Spec, chosen: Chosen, run: &LiveRun) -> Option<Seen> {
        let steps = self.complete(run);
        let number = steps.last()?.0;
        let (id, name) = (address_part(&run.id), &run.name);
        let labels = [("run", run.id.as_str())];
        let in_step = || format!("/run/{id}/step/{number}");
        let values =
            |pick: fn(&Step) -> Option<f64>| -> Vec<f64> { steps.iter().filter_map(|(_, s)| pick(s)).collect() };
        let of_samples = |part: fn(&Step) -> i64| -> Vec<f64> {
            let enough = steps.iter().filter(|(_, s)| s.samples >= LEAST_SAMPLES);
            enough.map(|(_, s)| part(s) as f64 / s.samples as f64).collect()
        };
        let percent = |share: f64| significant(share * 100.0, 2);
        match spec.key {
            specs::REWARD_COLLAPSE => {
                let (now, usual) = judge::reward_collapse(&values(|s| s.reward), chosen.threshold)?;
                let text = format!(
                    "The reward of {name} has collapsed: {} over its last 3 steps, after {}.",
                    significant(now, 3),
                    significant(usual, 3)
                );
                Some(seen(spec, &labels, now, text, in_step()))
            }
            specs::ENTROPY_COLLAPSE => {
                let (now, had) = judge::entropy_collapse(&values(|s| s.entropy), chosen.threshold)?;
                let text = format!(
                    "The entropy of {name} has collapsed: {} in step {number}, after {}.",
                    significant(now, 3),
                    significant(had, 3)
                );
                Some(seen(spec, &labels, now, text, format!("/run/{id}/metrics")))
            }
            specs::SAMPLES_TRUNCATED => {
                let share = judge::share(&of_samples(|s| s.truncated), chosen.threshold, 2)?;
                let text = format!("{} % of the samples of step {number} of {name} were truncated.", percent(share));
                Some(seen(spec, &labels, share, text, in_step()))
            }
            specs::SAMPLES_ABORTED => {
                let share = judge::share(&of_samples(|s| s.aborted), chosen.threshold, 2)?;
                let text =
                    format!("{} % of the samples of step {number} of {name} were aborted or failed.", percent(share));
                Some(seen(spec, &labels, share, text, in_step()))
            }
            specs::GROUPS_WITHOUT_VARIANCE => {
                let flat = |s: &Step| (s.groups >= LEAST_GROUPS).then(|| s.flat_groups as f64 / s.groups as f64);
                let share = judge::share(&values(flat), chosen.threshold, 3)?;
                let text = format!(
                    "In {} % of the groups of step {number} of {name}, all rewards are the same, so that they teach nothing.",
                    percent(share)
                );
                Some(seen(spec, &labels, share, text, in_step()))
            }
            _ => None,
        }
    }

    fn data_dropped(&mut self, spec: &Spec, chosen: Chosen, at_ms: i64) -> Vec<Seen> {
        let now = (self.sources.dropped)();
        while self.dropped.front().is_some_and(|(at, _)| at_ms - at > DROPPED_WITHIN_MS) && self.dropped.len() > 1 {
            self.dropped.pop_front();
        }
        let before: HashMap<&str, u64> =
            self.dropped.front().map(|(_, all)| all.iter().copied().collect()).unwrap_or_default();
        let first = self.dropped.is_empty();
        let found = now.iter().filter_map(|(what, total)| {
            let more = total.saturating_sub(if first { 0 } else { before.get(what).copied().unwrap_or(0) }) as f64;
            let text = format!("{more} {what} in the last 5 minutes. The log and GET /api/v1/health say why.");
            let labels: Vec<_> = [("what", *what)].into_iter().chain(self.node()).collect();
            (more > chosen.threshold).then(|| seen(spec, &labels, more, text, "/alarms".into()))
        });
        let found = found.collect();
        self.dropped.push_back((at_ms, now));
        found
    }

    fn disk(&self, spec: &Spec, chosen: Chosen) -> Result<Vec<Seen>, String> {
        let folder = &self.sources.store.options().dir;
        let disk = rustix::fs::statvfs(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        // As `df` has it: what is kept for root is neither free nor used.
        let all = disk.f_blocks.saturating_sub(disk.f_bfree) + disk.f_bavail;
        let free = disk.f_bavail as f64 / (all as f64).max(1.0);
        let bytes = disk.f_bavail as f64 * disk.f_frsize as f64;
        let text = match self.sources.store.health().writable {
            false => "The store cannot write, so that no data is accepted. GET /api/v1/health says why.".to_string(),
            true if free < chosen.threshold => format!(
                "{} % ({}B) of the disk with the data is free. Free some space, or set a retention.",
                significant(free * 100.0, 2),
                humanize_1024(bytes)
            ),
            true => return Ok(Vec::new()),
        };
        let labels: Vec<_> = self.node().into_iter().collect();
        Ok(vec![seen(spec, &labels, free, text, "/alarms".into())])
    }

    /// In a lake, several nodes may say this, each of itself.
    fn node(&self) -> Option<(&'static str, &str)> {
        self.sources.store.node_name().map(|name| ("node", name))
    }
}
