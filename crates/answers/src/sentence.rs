//! A step in one sentence.

use serde::Serialize;
use utoipa::ToSchema;

use super::findings::{Finding, Judge};
use super::phases::REQUESTS;
use super::words::{self, time};

/// A part of a sentence. `finding` is the index of the finding that it states, if any.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Clause {
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finding: Option<usize>,
}

/// How many findings the sentence mentions. The list has all of them.
const TOLD: usize = 3;

/// Causes that explain less than this share of what a step took beyond the usual are said to leave a rest.
const MOST: f64 = 0.75;

/// The sentence that summarises a step.
pub fn sentence(judge: &Judge, index: usize, findings: &[Finding]) -> Vec<Clause> {
    let (step, usual) = (judge.steps[index], judge.usual_step(index));
    let plain = |text: String| Clause { text, finding: None };
    let took = time(step.wall_s);
    let only_requests = matches!(&step.phases[..], [only] if only.name == REQUESTS);
    let mut first = match (step.step, step.running) {
        (Some(n), _) if step.spans == 0 => format!("Step {n} has no spans: nothing is known about its times"),
        (Some(n), true) => format!("Step {n} has been running for {took}"),
        (Some(n), false) => format!("Step {n} took {took}"),
        (None, _) if step.spans == 0 => "This run has no spans: nothing is known about its times".to_string(),
        (None, _) if only_requests => format!("{} in {took}", words::count(step.samples.len(), "request")),
        (None, true) => format!("This run has been running for {took}"),
        (None, false) => format!("The spans of this run cover {took}"),
    };
    let causes: Vec<usize> = (0..findings.len()).filter(|i| findings[*i].cost_s > 0.0).take(TOLD).collect();
    let mut longer_by = 0.0;
    if let Some(usual) = usual.filter(|_| step.is_timed()) {
        let more = step.wall_s - usual.median_s;
        if more > usual.notable() {
            longer_by = more;
            first.push_str(&format!(", {} longer than usual", time(more)));
        } else if more < -usual.notable() {
            first.push_str(&format!(", {} shorter than usual", time(-more)));
        } else if causes.is_empty() {
            first.push_str(", as usual");
        }
    }
    let mut out = vec![plain(first)];
    for (n, i) in causes.iter().enumerate() {
        let before = if n == 0 { ": " } else { "; " };
        out.push(plain(before.to_string()));
        out.push(Clause { text: findings[*i].text.clone(), finding: Some(*i) });
    }
    let explained: f64 = causes.iter().map(|i| findings[*i].cost_s).sum();
    if let [only] = causes[..]
        && let Some(without) = findings[only].without_s
    {
        out.push(plain("; ".to_string()));
        let text = format!(
            "without {} it would have taken {}",
            if findings[only].evidence.count > 1 { "them" } else { "that" },
            time(without)
        );
        out.push(Clause { text, finding: Some(only) });
    } else if causes.is_empty() && longer_by > 0.0 {
        out.push(plain("; no single cause stands out".to_string()));
        if let Some((what, own, usual)) = judge.part_that_grew(index) {
            let usually =
                if usual > 0.0 { format!("usually {}", time(usual)) } else { "most steps have none".to_string() };
            out.push(plain(format!(", but {what} held it for {} ({usually})", time(own))));
        }
    }
    if !causes.is_empty() && explained < MOST * longer_by {
        out.push(plain(format!("; this explains {} of the {}", time(explained), time(longer_by))));
    }
    out.push(plain(".".to_string()));
    if usual.is_none() && step.is_timed() && step.step.is_some() {
        out.push(plain(" There are too few other steps to compare it with.".to_string()));
    }
    for (i, finding) in findings.iter().enumerate().filter(|(_, f)| f.cost_s == 0.0) {
        let mut text = finding.text.clone();
        if let Some(first) = text.get(..1).map(str::to_uppercase) {
            text.replace_range(..1, &first);
        }
        out.push(plain(" ".to_string()));
        out.push(Clause { text: format!("{text}."), finding: Some(i) });
    }
    out
}

pub fn join(clauses: &[Clause]) -> String {
    clauses.iter().map(|c| c.text.as_str()).collect()
}
