//! Numbers in words, the same everywhere.

use serde::Serialize;
use utoipa::ToSchema;

use super::findings::{Finding, UsualStep};
use super::summary::StepSummary;

/// `96 s`, `2.4 s`, `350 ms`, `3 min 20 s`, `2 h 5 min`.
pub fn time(seconds: f64) -> String {
    let s = seconds.abs();
    let sign = if seconds < 0.0 { "-" } else { "" };
    if s >= 3600.0 {
        return format!("{sign}{} h {} min", (s / 3600.0) as u64, (s % 3600.0 / 60.0) as u64);
    }
    let whole = s.round() as u64;
    if whole >= 180 {
        return match whole % 60 {
            0 => format!("{sign}{} min", whole / 60),
            rest => format!("{sign}{} min {rest} s", whole / 60),
        };
    }
    match s {
        s if s >= 9.95 => format!("{sign}{whole} s"),
        s if s >= 0.9995 => format!("{sign}{s:.1} s"),
        s if s >= 0.000_999_5 => format!("{sign}{:.0} ms", s * 1e3),
        0.0 => "0 s".to_string(),
        s => format!("{sign}{:.0} µs", s * 1e6),
    }
}

/// `4 of 512 samples`, `all 8 samples`, `1 of 64 samples`.
pub fn some_of(count: usize, of: usize, what: &str) -> String {
    match (count, of) {
        (1, 1) => format!("the only {what}"),
        (n, of) if n == of => format!("all {of} {what}s"),
        (n, of) => format!("{n} of {of} {what}s"),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_for_people() {
        for (seconds, text) in [
            (96.4, "96 s"),
            (2.44, "2.4 s"),
            (0.35, "350 ms"),
            (200.0, "3 min 20 s"),
            (240.0, "4 min"),
            (7500.0, "2 h 5 min"),
            (0.0, "0 s"),
            (0.0000123, "12 µs"),
            (-1.5, "-1.5 s"),
        ] {
            assert_eq!(time(seconds), text);
        }
        assert_eq!(some_of(4, 512, "sample"), "4 of 512 samples");
        assert_eq!(some_of(8, 8, "sample"), "all 8 samples");
    }
}
