//! A step in one sentence.

use serde::Serialize;
use utoipa::ToSchema;

use super::findings::{Finding, UsualStep};
use super::summary::StepSummary;
use super::words::time;

/// A part of a sentence. `finding` is the index of the finding that it states, if any.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Clause {
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finding: Option<usize>,
}

/// How many findings the sentence mentions. The list has all of them.
const TOLD: usize = 3;

/// The sentence that summarises a step.
pub fn sentence(step: &StepSummary, usual: Option<UsualStep>, findings: &[Finding]) -> Vec<Clause> {
    let plain = |text: String| Clause { text, finding: None };
    let name = step.step.map_or("This run".to_string(), |n| format!("Step {n}"));
    let mut first = match step.running {
        true => format!("{name} has been running for {}", time(step.wall_s)),
        false => format!("{name} took {}", time(step.wall_s)),
    };
    let mut slower = false;
    if let Some(usual) = usual.filter(|_| !step.running) {
        let more = step.wall_s - usual.median_s;
        let notable = more.abs() > (2.0 * usual.spread_s).max(0.05 * usual.median_s);
        slower = notable && more > 0.0;
        first.push_str(&match (notable, more > 0.0) {
            (false, _) => ", as usual".to_string(),
            (true, true) => format!(", {} longer than usual", time(more)),
            (true, false) => format!(", {} shorter than usual", time(-more)),
        });
    }
    let mut out = vec![plain(first)];
    let causes: Vec<usize> = (0..findings.len()).filter(|i| findings[*i].cost_s > 0.0).take(TOLD).collect();
    for (n, i) in causes.iter().enumerate() {
        let before = if n == 0 { ": " } else { "; " };
        out.push(plain(before.to_string()));
        out.push(Clause { text: findings[*i].text.clone(), finding: Some(*i) });
    }
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
    } else if causes.is_empty() && slower {
        out.push(plain("; no single cause stands out".to_string()));
    }
    out.push(plain(".".to_string()));
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
