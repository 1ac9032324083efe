//! What is kept of a step for comparing it with the other steps of its run: small beside its spans, so that a run's history
//! stays in memory and a new step costs only itself.

use super::kinds::Kind;
use super::phases::{Phase, phases};
use super::robust::seconds;
use super::samples::{Part, SampleTimes, sample_times};
use super::step::clocks::Clock;
use super::step::{NONE, StepData, Texts, flag};

/// One sample, times in seconds from the start of the step.
#[derive(Clone, Debug)]
pub struct SampleSummary {
    pub id: String,
    pub group: String,
    pub source: String,
    pub start: f64,
    pub end: f64,
    pub group_end: f64,
    pub parts: [f64; Part::COUNT],
}

/// See [`super::samples::Unit`]; `sample` is the place in [`StepSummary::samples`].
#[derive(Clone, Debug)]
pub struct UnitSummary {
    pub sample: u32,
    pub what: Part,
    /// In [`StepSummary::keys`].
    pub key: u32,
    pub seconds: f64,
    pub tokens: f64,
    pub failed: bool,
    /// The span, as evidence.
    pub span: ([u8; 16], [u8; 8]),
}

#[derive(Default)]
pub struct StepSummary {
    pub step: Option<i64>,
    pub start_ns: i64,
    pub end_ns: i64,
    pub wall_s: f64,
    pub running: bool,
    pub spans: usize,
    pub phases: Vec<Phase>,
    /// By id, so that nothing depends on the order of arrival.
    pub samples: Vec<SampleSummary>,
    pub units: Vec<UnitSummary>,
    /// Tools and engines.
    pub keys: Texts,
    pub clocks: Vec<Clock>,
    pub missing_parents: usize,
    /// Generations, and those of them under which an engine reported anything.
    pub generations: usize,
    pub reported: usize,
    pub open: usize,
    pub orphan_ends: usize,
    pub dropped: u64,
}

impl StepSummary {
    pub fn new(step: Option<i64>, data: &mut StepData) -> (StepSummary, SampleTimes) {
        let times = sample_times(data);
        let mut out = StepSummary {
            step,
            start_ns: data.step_start,
            end_ns: data.step_end,
            wall_s: seconds(data.step_end - data.step_start),
            running: data.running,
            spans: data.len(),
            phases: phases(data),
            clocks: data.clocks.clone(),
            missing_parents: data.missing_parents,
            open: data.open,
            orphan_ends: data.orphan_ends,
            dropped: data.dropped,
            ..StepSummary::default()
        };
        let mut order: Vec<u32> =
            (0..data.samples.len() as u32).filter(|s| times.times[*s as usize].is_some()).collect();
        order.sort_by(|a, b| natural(data.sample_name(*a)).cmp(&natural(data.sample_name(*b))));
        let mut place = vec![NONE; data.samples.len()];
        for sample in order {
            let Some(time) = &times.times[sample as usize] else { continue };
            place[sample as usize] = out.samples.len() as u32;
            let row = &data.samples[sample as usize];
            let at = |ns: i64| seconds(ns - data.step_start);
            out.samples.push(SampleSummary {
                id: data.sample_name(sample).to_string(),
                group: data.texts.get(row.group).to_string(),
                source: data.texts.get(row.source).to_string(),
                start: at(time.start),
                end: at(time.end),
                group_end: at(time.group_end),
                parts: time.parts.map(seconds),
            });
        }
        for unit in &times.units {
            let key = match (unit.key, unit.what) {
                (NONE, _) => NONE,
                (key, Part::Tool) => out.keys.number(data.texts.get(key)),
                (key, _) => out.keys.number(&data.sender_name(key)),
            };
            out.units.push(UnitSummary {
                sample: place[unit.sample as usize],
                what: unit.what,
                key,
                seconds: unit.seconds,
                tokens: unit.tokens,
                failed: unit.failed,
                span: data.ids[unit.row as usize],
            });
        }
        out.units.sort_by(|a, b| {
            (a.sample, a.what).cmp(&(b.sample, b.what)).then(b.seconds.total_cmp(&a.seconds)).then(a.span.cmp(&b.span))
        });
        let mut reported = vec![false; data.len()];
        for row in 0..data.len() {
            let up = data.parent[row];
            if up != NONE && !data.is(row, flag::MISSING_PARENT) && data.sender[up as usize] != data.sender[row] {
                reported[up as usize] = true;
            }
        }
        for row in (0..data.len()).filter(|r| data.is(*r, flag::GENERATION) && data.kind[*r] == Kind::Generate) {
            out.generations += 1;
            out.reported += usize::from(reported[row]);
        }
        (out, times)
    }

    /// From its first moment to its last, in nanoseconds.
    pub fn window(&self) -> (i64, i64) {
        (self.start_ns, self.end_ns)
    }

    pub fn key(&self, key: u32) -> &str {
        self.keys.get(key)
    }
}

/// Ids that are numbers are ordered as such.
pub fn natural(id: &str) -> (bool, u64, &str) {
    match id.parse::<u64>() {
        Ok(n) => (false, n, id),
        Err(_) => (true, 0, id),
    }
}
