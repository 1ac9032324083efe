//! Which sample a span belongs to.
//!
//! A span that names no sample belongs to that of its nearest ancestor that does ([`inherit`]). Where a trace is about one
//! sample alone (slime writes one trace per sample), the sample is that of all its spans ([`of_traces`], [`lend`]). A trace
//! that begins with a step or a phase of the trainer is about the step: what no sample is above belongs to none.

use crate::forest::{Forest, NONE};
use crate::walk::Walk;

pub fn inherit(forest: &Forest, walk: &Walk, sample: &mut [u32]) {
    for row in walk.order.iter().map(|row| *row as usize) {
        if sample[row] == NONE && forest.parent[row] != NONE {
            sample[row] = sample[forest.parent[row] as usize];
        }
    }
}

/// The sample that each trace is about; [`NONE`] where there is none, or several. `is_trainers` is asked for roots.
pub fn of_traces(forest: &Forest, sample: &[u32], is_trainers: impl Fn(usize) -> bool) -> Vec<u32> {
    let mut of_trace = vec![NONE; forest.traces.len()];
    let mut of_several = vec![false; forest.traces.len()];
    for row in 0..sample.len() {
        let trace = forest.trace[row] as usize;
        if !of_several[trace] && forest.parent[row] == NONE && is_trainers(row) {
            of_several[trace] = true;
        }
        match (of_trace[trace], sample[row]) {
            (_, NONE) => {}
            (NONE, sample) => of_trace[trace] = sample,
            (known, sample) => of_several[trace] |= known != sample,
        }
    }
    of_trace.iter_mut().zip(of_several).filter(|(_, several)| *several).for_each(|(sample, _)| *sample = NONE);
    of_trace
}

/// Gives spans that have no sample that of their trace.
pub fn lend(forest: &Forest, of_trace: &[u32], sample: &mut [u32]) {
    for (sample, trace) in sample.iter_mut().zip(&forest.trace) {
        if *sample == NONE {
            *sample = of_trace[*trace as usize];
        }
    }
}
