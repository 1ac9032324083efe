//! Which samples are the tail of a step, what the tail cost, and why each is in it.
//!
//! The tail begins when nine of ten samples have ended (their own end, before they wait for their group). Its **cost** in
//! seconds is the time from there to the last end; in worker-seconds, the time that workers were idle meanwhile
//! ([`super::idle`] measures what is idle); in GPU-hours, the idle time of workers that have ranks, one GPU each.
//!
//! **Why**: a sample's parts ([`super::samples`]) minus those of the median sample, the one whose length is in the middle.
//! Parts add up to lengths, so differences add up to the difference in length exactly. Decoding is divided once more: at
//! the median sample's pace the tokens beyond its own explain the first part (long output), the rest is pace (slow). n log n.

use rollscope_model::figures::TAIL_BEGINS;
use serde::Serialize;
use utoipa::ToSchema;

use super::robust::seconds;
use super::samples::{Part, SampleTime, SampleTimes};
use super::step::StepData;
use super::summary::natural;

/// Samples of the tail that are listed.
const MAX_LISTED: usize = 100;

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = StragglerWhy)]
pub struct Why {
    pub part: &'static str,
    /// Seconds more than in the median sample.
    pub more_s: f64,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Straggler {
    pub sample_id: String,
    pub group_id: String,
    pub seconds: f64,
    pub end_s: f64,
    /// Seconds from the end of the other nine tenths to its end.
    pub behind_s: f64,
    /// The largest first; adds up to the difference to the median sample.
    pub why: Vec<Why>,
    /// Others of its group waited for it: sample-seconds.
    pub group_waited_s: f64,
}

#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Stragglers {
    pub samples: usize,
    pub tail: Vec<Straggler>,
    pub tail_count: usize,
    pub tail_start_s: f64,
    pub cost_s: f64,
    pub idle_worker_s: f64,
    #[schema(required)]
    pub gpu_hours: Option<f64>,
    pub median_sample_id: String,
    pub median_s: f64,
    /// The median sample's parts, seconds.
    pub median_parts: Vec<Why>,
    /// Where the samples' time went, all of them together; sample-seconds.
    pub parts: Vec<Why>,
    #[serde(skip)]
    pub window: (i64, i64),
}

pub fn stragglers(data: &StepData, times: &SampleTimes) -> Stragglers {
    let mut all: Vec<(u32, &SampleTime)> =
        times.times.iter().enumerate().filter_map(|(s, t)| Some((s as u32, t.as_ref()?))).collect();
    if all.is_empty() {
        return Stragglers::default();
    }
    let name = |s: u32| natural(data.sample_name(s));
    all.sort_by(|a, b| a.1.length().cmp(&b.1.length()).then_with(|| name(a.0).cmp(&name(b.0))));
    let (median_id, median) = all[(all.len() - 1) / 2];
    let mut sums = [0i64; Part::COUNT];
    all.iter().for_each(|(_, t)| sums.iter_mut().zip(t.parts).for_each(|(s, p)| *s += p));
    all.sort_by(|a, b| a.1.end.cmp(&b.1.end).then_with(|| name(a.0).cmp(&name(b.0))));
    let body = ((all.len() as f64 * TAIL_BEGINS).ceil() as usize).clamp(1, all.len());
    let tail_start = all[body - 1].1.end;
    let last = all[all.len() - 1].1.end;
    let from = |ns: i64| seconds(ns - data.step_start);
    let mut tail = Vec::new();
    for (sample, time) in all[body..].iter().rev().take(MAX_LISTED) {
        let group = data.samples[*sample as usize].group;
        let waited = all.iter().filter(|(s, _)| *s != *sample && data.samples[*s as usize].group == group);
        let later = waited.clone().all(|(_, t)| t.end <= time.end);
        let next = waited.clone().map(|(_, t)| t.end).max().unwrap_or(time.end);
        let kept = if later && group != super::step::NONE { (time.end - next) * waited.count() as i64 } else { 0 };
        tail.push(Straggler {
            sample_id: data.sample_name(*sample).to_string(),
            group_id: data.texts.get(group).to_string(),
            seconds: seconds(time.length()),
            end_s: from(time.end),
            behind_s: seconds(time.end - tail_start),
            why: why(time, median),
            group_waited_s: seconds(kept),
        });
    }
    let list = |parts: &[i64; Part::COUNT]| {
        Part::ALL
            .iter()
            .zip(parts)
            .filter(|(_, ns)| **ns > 0)
            .map(|(p, ns)| Why { part: p.name(), more_s: seconds(*ns) })
            .collect()
    };
    Stragglers {
        samples: all.len(),
        tail_count: all.len() - body,
        tail,
        tail_start_s: from(tail_start),
        cost_s: seconds(last - tail_start),
        median_sample_id: data.sample_name(median_id).to_string(),
        median_s: seconds(median.length()),
        median_parts: list(&median.parts),
        parts: list(&sums),
        window: (tail_start, last),
        ..Stragglers::default()
    }
}

fn why(time: &SampleTime, median: &SampleTime) -> Vec<Why> {
    let mut out = Vec::new();
    for part in Part::ALL {
        let more = time.parts[part as usize] - median.parts[part as usize];
        let pace = |t: &SampleTime| t.parts[Part::Decode as usize] as f64 / t.tokens;
        if part == Part::Decode && time.tokens > 0.0 && median.tokens > 0.0 && median.parts[part as usize] > 0 {
            let long = ((time.tokens - median.tokens) * pace(median)) as i64;
            out.push(("long output", long));
            out.push(("slow decode", more - long));
        } else {
            out.push((part.name(), more));
        }
    }
    let mut out: Vec<Why> =
        out.into_iter().filter(|(_, ns)| *ns != 0).map(|(part, ns)| Why { part, more_s: seconds(ns) }).collect();
    out.sort_by(|a, b| b.more_s.total_cmp(&a.more_s).then_with(|| a.part.cmp(b.part)));
    out
}
