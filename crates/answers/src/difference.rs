//! What changed between two steps, or two runs.
//!
//! A step's wall time is divided into the parts that held it: its critical path by name ([`super::critical_path`]), which
//! adds up to the wall time exactly. Two steps are aligned by these names; the differences add up to the difference in wall
//! time exactly. Of a run, each part is its mean over the steps: means add up too.
//!
//! Why a part changed follows from all spans of that name, on the path or not: how many there are and how long one takes. A
//! name can be new, gone, more or less often, slower or faster.
//!
//! **Significance**: a step's part is compared with the same part in the other steps of its run: the distance from their median
//! in spreads (median distance). For runs: the difference of means over its standard error. Beyond [`CLEAR`] it is called
//! clear; with fewer than three steps to compare it is unknown.

use bitcode::{Decode, Encode};
use hashbrown::HashMap;
use serde::Serialize;
use utoipa::ToSchema;

use super::breakdown::Share;
use super::critical_path::PathTotal;
use super::kinds::Kind;
use super::robust::middle;
use super::words;

pub const CLEAR: f64 = 3.0;
const FEW: usize = 3;

/// What is kept of a step for being compared.
#[derive(Clone, Debug, Default, Encode, Decode)]
pub struct Shape {
    pub step: Option<i64>,
    pub wall_s: f64,
    pub path: Vec<PathTotal>,
    /// By name, and calls of tools also by tool.
    pub names: Vec<Share>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Change {
    pub name: String,
    pub kind: Kind,
    /// Seconds that it held the step: before, after, and the difference.
    pub before_s: f64,
    pub after_s: f64,
    pub change_s: f64,
    /// `new`, `gone`, `more often`, `less often`, `slower`, `faster`, `other samples`; empty if the reason is unknown.
    pub why: &'static str,
    pub count_before: f64,
    pub count_after: f64,
    /// Seconds of one such span, on average.
    pub each_before_s: f64,
    pub each_after_s: f64,
    /// Distance in spreads or standard errors; `None` with too few steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub significance: Option<f64>,
}

#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Difference {
    pub before: String,
    pub after: String,
    pub before_s: f64,
    pub after_s: f64,
    pub change_s: f64,
    pub text: String,
    /// The largest change first; adds up to `change_s`.
    pub changes: Vec<Change>,
    /// What the two spend by phase of the trainer, aligned.
    pub phases: Vec<PhaseChange>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PhaseChange {
    pub name: String,
    pub before_s: f64,
    pub after_s: f64,
}

/// One side: one step, or all steps of a run.
pub struct Side<'a> {
    pub name: String,
    pub steps: Vec<&'a Shape>,
    /// The other steps of its run, for telling what is usual.
    pub others: Vec<&'a Shape>,
}

type Key<'a> = (&'a str, Kind);

fn mean(values: impl Iterator<Item = f64>, of: usize) -> f64 {
    if of == 0 { 0.0 } else { values.sum::<f64>() / of as f64 }
}

impl<'a> Side<'a> {
    fn wall(&self) -> f64 {
        mean(self.steps.iter().map(|s| s.wall_s), self.steps.len())
    }

    fn on_path(shape: &Shape, key: Key) -> f64 {
        shape.path.iter().filter(|p| (p.name.as_str(), p.kind) == key).map(|p| p.seconds).sum()
    }

    fn spans(&self, key: Key) -> (f64, f64) {
        let of = |s: &&Shape| {
            let found = s.names.iter().filter(|n| n.name == key.0 && n.kind == Some(key.1));
            found.fold((0.0, 0.0), |sum, n| (sum.0 + n.spans as f64, sum.1 + n.inclusive_s))
        };
        let sums: Vec<(f64, f64)> = self.steps.iter().map(of).collect();
        (mean(sums.iter().map(|s| s.0), sums.len()), mean(sums.iter().map(|s| s.1), sums.len()))
    }
}

pub fn difference(before: &Side, after: &Side) -> Difference {
    let mut keys: Vec<Key> = Vec::new();
    let mut seen: HashMap<Key, ()> = HashMap::new();
    for shape in before.steps.iter().chain(&after.steps) {
        for part in &shape.path {
            let key = (part.name.as_str(), part.kind);
            if seen.insert(key, ()).is_none() {
                keys.push(key);
            }
        }
    }
    let held = |side: &Side, key: Key| mean(side.steps.iter().map(|s| Side::on_path(s, key)), side.steps.len());
    let mut changes: Vec<Change> = keys
        .into_iter()
        .map(|key| {
            let (before_s, after_s) = (held(before, key), held(after, key));
            let ((n0, t0), (n1, t1)) = (before.spans(key), after.spans(key));
            let each = |t: f64, n: f64| if n > 0.0 { t / n } else { 0.0 };
            Change {
                name: key.0.to_string(),
                kind: key.1,
                before_s,
                after_s,
                change_s: after_s - before_s,
                why: why(key.1, (n0, each(t0, n0)), (n1, each(t1, n1)), after_s - before_s),
                count_before: n0,
                count_after: n1,
                each_before_s: each(t0, n0),
                each_after_s: each(t1, n1),
                significance: significance(before, after, key),
            }
        })
        .filter(|c| c.before_s != 0.0 || c.after_s != 0.0)
        .collect();
    changes.sort_by(|a, b| b.change_s.abs().total_cmp(&a.change_s.abs()).then_with(|| a.name.cmp(&b.name)));
    let (before_s, after_s) = (before.wall(), after.wall());
    let mut out = Difference {
        before: before.name.clone(),
        after: after.name.clone(),
        before_s,
        after_s,
        change_s: after_s - before_s,
        changes,
        ..Difference::default()
    };
    out.text = describe(&out);
    out
}

/// What of a name changed most: how often, or how long. A quarter more or less is not called a change.
fn why(kind: Kind, (n0, each0): (f64, f64), (n1, each1): (f64, f64), change: f64) -> &'static str {
    const NOTABLE: f64 = 1.25;
    if n0 == 0.0 && n1 > 0.0 {
        return "new";
    }
    if n1 == 0.0 && n0 > 0.0 {
        return "gone";
    }
    if n0 == 0.0 || each0 <= 0.0 || each1 <= 0.0 {
        return "";
    }
    let (often, slow) = (n1 / n0, each1 / each0);
    let size = |r: f64| if r > 1.0 { r } else { 1.0 / r };
    match change > 0.0 {
        true if slow >= NOTABLE && slow >= often => "slower",
        true if often >= NOTABLE => "more often",
        false if slow <= 1.0 / NOTABLE && size(slow) >= size(often) => "faster",
        false if often <= 1.0 / NOTABLE => "less often",
        // What the trainer does is about no sample in particular.
        _ if kind.is_trainers() => "",
        _ => "other samples",
    }
}

fn significance(before: &Side, after: &Side, key: Key) -> Option<f64> {
    let of = |shapes: &[&Shape]| shapes.iter().map(|s| Side::on_path(s, key)).collect::<Vec<f64>>();
    if before.steps.len() >= FEW && after.steps.len() >= FEW {
        let (a, b) = (of(&before.steps), of(&after.steps));
        let moments = |v: &[f64]| {
            let m = mean(v.iter().copied(), v.len());
            (m, v.iter().map(|x| (x - m).powi(2)).sum::<f64>() / (v.len() - 1) as f64 / v.len() as f64)
        };
        let ((m0, e0), (m1, e1)) = (moments(&a), moments(&b));
        return Some((m1 - m0).abs() / (e0 + e1).sqrt().max(1e-9)).filter(|s| s.is_finite());
    }
    let [step] = after.steps[..] else { return None };
    let others = of(&after.others);
    let (centre, spread) = middle(&others).filter(|_| others.len() >= FEW)?;
    // A part that is always the same is judged against a hundredth of the step.
    let spread = spread.max(0.01 * step.wall_s);
    Some((Side::on_path(step, key) - centre).abs() / spread)
}

fn describe(d: &Difference) -> String {
    let time = words::time;
    let way = if d.change_s >= 0.0 { "longer" } else { "shorter" };
    let mut out = format!(
        "{} took {}, {} {way} than {} ({})",
        d.after,
        time(d.after_s),
        time(d.change_s.abs()),
        d.before,
        time(d.before_s)
    );
    let least = (0.1 * d.change_s.abs()).max(0.01 * d.before_s);
    let told: Vec<String> = d
        .changes
        .iter()
        .filter(|c| c.change_s.abs() >= least && (c.change_s > 0.0) == (d.change_s > 0.0))
        .take(3)
        .map(|c| {
            let why = if c.why.is_empty() { String::new() } else { format!(", {}", c.why) };
            let sign = if c.change_s > 0.0 { "+" } else { "-" };
            format!("`{}` {sign}{} ({} to {}{why})", c.name, time(c.change_s.abs()), time(c.before_s), time(c.after_s))
        })
        .collect();
    if !told.is_empty() {
        out.push_str(": ");
        out.push_str(&told.join("; "));
    }
    out.push('.');
    out
}
