//! The answers put together: a step's report, a run's findings. What is sent and printed.

use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::breakdown::{Breakdown, breakdown, by_tool};
use super::critical_path::{CriticalPath, Divided, critical_path};
use super::difference::Shape;
use super::findings::{Considered, Finding, Judge, UsualStep};
use super::health::{Health, health};
use super::idle::{Idle, idle};
use super::kept::AnswersJson;
use super::parallel;
use super::phases::Phase;
use super::robust::median;
use super::samples::sample_times;
use super::sentence::{self, Clause};
use super::step::StepData;
use super::stragglers::{Stragglers, stragglers};
use super::summary::StepSummary;
use super::words;

/// Everything about a step that needs no other steps.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct StepAnswers {
    pub phases: Vec<Phase>,
    pub breakdown: Breakdown,
    pub critical_path: CriticalPath,
    pub stragglers: Stragglers,
    pub idle: Idle,
    pub health: Health,
}

/// Nanoseconds are text: they do not fit the numbers of JavaScript.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct StepReport {
    pub run: String,
    #[schema(required)]
    pub step: Option<i64>,
    /// The sentence.
    pub text: String,
    /// The sentence in parts, each with the finding it rests on.
    pub sentence: Vec<Clause>,
    pub wall_s: f64,
    /// Without any, nothing is known about times.
    pub spans: usize,
    pub running: bool,
    pub start_ns: String,
    pub end_ns: String,
    /// What the run's other steps take.
    #[schema(required)]
    pub usual: Option<UsualStep>,
    pub findings: Vec<Finding>,
    /// What else was weighed, for those who doubt.
    pub considered: Vec<Considered>,
    #[serde(flatten)]
    #[schema(value_type = StepAnswers)]
    pub answers: Arc<AnswersJson>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct StepLine {
    #[schema(required)]
    pub step: Option<i64>,
    pub wall_s: f64,
    /// Without any, nothing is known about times.
    pub spans: usize,
    pub samples: usize,
    #[schema(required)]
    pub reward_mean: Option<f64>,
    pub running: bool,
    /// Seconds of its findings together.
    pub cost_s: f64,
    pub findings: usize,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RunFindings {
    pub run: String,
    pub text: String,
    /// The steps that were analysed. A long run is judged by its newest steps.
    pub steps: Vec<StepLine>,
    pub steps_left_out: usize,
    #[schema(required)]
    pub median_s: Option<f64>,
    /// By cost.
    pub findings: Vec<Finding>,
}

/// Answers every question about one step.
pub fn answer(step: Option<i64>, data: &mut StepData) -> (StepSummary, StepAnswers, Shape) {
    let times = sample_times(data);
    let data = &*data;
    let others = || {
        let (mut summary, path) = StepSummary::new(step, data, &times);
        let mut stragglers = stragglers(data, &times);
        let idle = idle(data, &summary.phases, stragglers.window);
        stragglers.idle_worker_s = super::robust::seconds(idle.in_tail.0);
        stragglers.gpu_hours = (idle.in_tail.1 > 0).then(|| super::robust::seconds(idle.in_tail.1) / 3600.0);
        let path = critical_path(data, &path, &Divided::of(&times.requests));
        let health = health(data, &times);
        summary.reward_mean = health.reward_mean;
        (summary, stragglers, idle, path, health)
    };
    let ((summary, stragglers, idle, critical_path, health), (breakdown, tools)) =
        parallel::both(others, || (breakdown(data), by_tool(data)));
    let phases = summary.phases.clone();
    let answers = StepAnswers { phases, breakdown, critical_path, stragglers, idle, health };
    let shape = Shape {
        step,
        wall_s: summary.wall_s,
        path: answers.critical_path.totals.clone(),
        names: answers.breakdown.by_name.iter().cloned().chain(tools).collect(),
    };
    (summary, answers, shape)
}

/// A step among the others of its run. `index` is its place in `judge.steps`.
pub fn step_report(run: &str, judge: &Judge, index: usize, answers: Arc<AnswersJson>) -> StepReport {
    let step = judge.steps[index];
    let usual = judge.usual_step(index);
    judge.weigh_others(index);
    let findings = judge.findings(index);
    let sentence = sentence::sentence(judge, index, &findings);
    StepReport {
        run: run.to_string(),
        step: step.step,
        text: sentence::join(&sentence),
        sentence,
        wall_s: step.wall_s,
        spans: step.spans,
        running: step.running,
        start_ns: step.start_ns.to_string(),
        end_ns: step.end_ns.to_string(),
        usual,
        findings,
        considered: judge.considered(index),
        answers,
    }
}

/// A step that takes this many times the median is worth a word, whether its cause is known or not.
const SLOW: f64 = 1.5;

/// What to say of several steps in which no cause stands out.
fn without_findings(judge: &Judge, median_s: Option<f64>) -> String {
    let over = judge.steps.iter().enumerate().filter(|(_, step)| step.is_timed());
    let slowest = over.max_by(|a, b| a.1.wall_s.total_cmp(&b.1.wall_s));
    let median = median_s.unwrap_or(0.0);
    let few = (0..judge.steps.len()).all(|index| judge.usual_step(index).is_none());
    match slowest.filter(|(_, step)| median > 0.0 && step.wall_s >= SLOW * median) {
        None if few => " There are too few steps to tell what is unusual.".to_string(),
        None => " Nothing stands out.".to_string(),
        Some((_, step)) if few => {
            let name = step.step.map_or("One".to_string(), |step| format!("Step {step}"));
            format!(" {name} took {}; there are too few other steps to compare it with.", words::time(step.wall_s))
        }
        Some((index, _)) => format!(" {}", sentence::join(&sentence::sentence(judge, index, &[]))),
    }
}

/// The most findings that are reported for a run.
const MAX_FINDINGS: usize = 200;

pub fn run_findings(run: &str, judge: &Judge, steps_left_out: usize) -> RunFindings {
    let mut findings = Vec::new();
    let mut steps = Vec::new();
    let all = parallel::each(judge.steps.len(), |index| judge.findings(index));
    for (step, found) in judge.steps.iter().zip(all) {
        steps.push(StepLine {
            step: step.step,
            wall_s: step.wall_s,
            spans: step.spans,
            samples: step.known_samples,
            reward_mean: step.reward_mean,
            running: step.running,
            cost_s: found.iter().map(|f| f.cost_s).fold(0.0, |sum, cost| sum + cost),
            findings: found.len(),
        });
        findings.extend(found);
    }
    findings.sort_by(|a, b| {
        b.cost_s.total_cmp(&a.cost_s).then_with(|| a.step.cmp(&b.step)).then_with(|| a.kind.cmp(b.kind))
    });
    findings.truncate(MAX_FINDINGS);
    let median_s = median(judge.steps.iter().filter(|s| s.is_timed()).map(|s| s.wall_s));
    let untimed = judge.steps.iter().filter(|s| s.spans == 0).count();
    let lost: f64 = steps.iter().map(|s| s.cost_s).sum();
    let with = steps.iter().filter(|s| s.findings > 0).count();
    let mut text = match (steps.len(), median_s) {
        (0, _) => format!("Run {run} has no steps yet."),
        (1, _) if untimed == 1 => "One step without spans: nothing is known about its times.".to_string(),
        (n, _) if untimed == n => format!("{n} steps without spans: nothing is known about their times."),
        (1, _) => format!("Run {run} has one step."),
        (n, Some(median)) => format!("{n} steps, usually {} each.", words::time(median)),
        (n, None) => format!("{n} steps."),
    };
    if let Some(first) = findings.first() {
        let what = words::some_of(with, steps.len(), "step");
        let verb = if with == 1 { "stands" } else { "stand" };
        text.push_str(&format!(" {what} {verb} out"));
        if lost > 0.0 {
            text.push_str(&format!(" ({} lost in total)", words::time(lost)));
        }
        let at = first.step.map_or(String::new(), |s| format!("step {s}, "));
        text.push_str(&format!(". The costliest: {at}{}.", first.text));
    } else if steps.len() - untimed > 1 {
        text.push_str(&without_findings(judge, median_s));
    }
    RunFindings { run: run.to_string(), text, steps, steps_left_out, median_s, findings }
}
