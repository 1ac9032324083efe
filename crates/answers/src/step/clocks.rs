//! Clocks that disagree. A server's span lies inside its caller's: the caller sent before the server started, and got the
//! answer after the server was done. If the server's clock is ahead by `d`, every one of its times is `d` too late:
//!
//! ```text
//! caller.start <= server.start - d   and   server.end - d <= caller.end
//! so   server.end - caller.end <= d <= server.start - caller.start
//! ```
//!
//! Every pair of spans gives such a bracket, and one `d` must fit (nearly) all of them: nine tenths, for odd pairs. Where none
//! does, the spans are not inside for another reason, such as a child that outlives the span that started it, and nothing is
//! moved. If 0 does not fit, the clock is off, and its times are moved by the least that fits: no more than the spans force. Only
//! pairs count whose inner span is the shorter one (a child that is not waited for says nothing about clocks). Estimates follow
//! calls outward from the sender that most callers belong to. n log n.

use bitcode::{Decode, Encode};
use hashbrown::HashMap;
use serde::Serialize;

use super::{NONE, StepData, flag};
use crate::robust::{quantile, sorted};

/// Pairs needed for an estimate.
const MIN_PAIRS: usize = 5;
/// Brackets of less than this are within what clocks and queues do anyway.
const TOLERANCE_NS: f64 = 2e6;
/// Of the pairs.
const NEARLY_ALL: f64 = 0.9;
/// Calls from caller to caller to be followed.
const HOPS: usize = 4;

/// A sender whose clock is off.
#[derive(Clone, Debug, PartialEq, Serialize, Encode, Decode)]
pub struct Clock {
    pub sender: String,
    /// Ahead of the others, in milliseconds; negative: behind.
    pub ahead_ms: f64,
    /// The width of the bracket: how much further off it may be.
    pub uncertain_ms: f64,
    pub pairs: usize,
}

/// Finds clocks that are off and moves the times of their spans.
pub fn correct(data: &mut StepData) -> Vec<Clock> {
    domains(data);
    let mut callers: HashMap<u32, usize> = HashMap::new();
    let mut pairs: HashMap<(u32, u32), Vec<(f64, f64)>> = HashMap::new();
    for row in 0..data.len() {
        let up = data.parent[row];
        if up == NONE || data.is(row, flag::MISSING_PARENT | flag::OPEN | flag::POINT) {
            continue;
        }
        let up = up as usize;
        let (from, to) = (data.sender[up], data.sender[row]);
        if from == to || data.is(up, flag::OPEN) || data.length(row) > data.length(up) {
            continue;
        }
        *callers.entry(from).or_default() += 1;
        let bracket = ((data.end[row] - data.end[up]) as f64, (data.start[row] - data.start[up]) as f64);
        pairs.entry((from, to)).or_default().push(bracket);
    }
    // Ties are broken by name, so that nothing depends on the order of arrival.
    let first = callers.iter().max_by_key(|(s, n)| (**n, std::cmp::Reverse(data.texts.get(**s)))).map(|(s, _)| *s);
    let Some(first) = first else { return Vec::new() };
    let mut offsets: HashMap<u32, f64> = HashMap::from([(first, 0.0)]);
    let mut found = Vec::new();
    for _ in 0..HOPS {
        let mut reached: HashMap<u32, Vec<(f64, f64)>> = HashMap::new();
        for ((from, to), brackets) in &pairs {
            if let (Some(offset), None) = (offsets.get(from), offsets.get(to)) {
                reached.entry(*to).or_default().extend(brackets.iter().map(|(l, h)| (l + offset, h + offset)));
            }
        }
        if reached.is_empty() {
            break;
        }
        for (sender, brackets) in reached {
            let low = quantile(&sorted(brackets.iter().map(|b| b.0)), NEARLY_ALL);
            let high = quantile(&sorted(brackets.iter().map(|b| b.1)), 1.0 - NEARLY_ALL);
            let (Some(low), Some(high)) = (low, high) else { continue };
            let off = brackets.len() >= MIN_PAIRS && low <= high && (low > TOLERANCE_NS || high < -TOLERANCE_NS);
            let ahead = match off {
                true if low > 0.0 => low,
                true => high,
                false => 0.0,
            };
            offsets.insert(sender, ahead);
            if off {
                let (ahead_ms, uncertain_ms) = (ahead / 1e6, (high - low) / 1e6);
                found.push(Clock { sender: data.sender_name(sender), ahead_ms, uncertain_ms, pairs: brackets.len() });
            }
        }
    }
    if !found.is_empty() {
        for row in 0..data.len() {
            let by = offsets.get(&data.sender[row]).copied().unwrap_or(0.0) as i64;
            data.start[row] -= by;
            data.end[row] -= by;
        }
    }
    found.sort_by(|a, b| b.ahead_ms.abs().total_cmp(&a.ahead_ms.abs()).then_with(|| a.sender.cmp(&b.sender)));
    found
}

/// A sender is a resource and a host: processes of one resource may run on several hosts. A span that names no host (a
/// request) is where its threads are.
fn domains(data: &mut StepData) {
    let mut host: Vec<u32> =
        data.worker.iter().map(|w| data.workers.get(*w as usize).map_or(NONE, |w| w.host)).collect();
    for row in 0..data.len() {
        let up = data.parent[row];
        let inside = up != NONE && !data.is(row, flag::MISSING_PARENT) && data.sender[up as usize] == data.sender[row];
        // Rows come by start: the first child decides.
        if inside && host[up as usize] == NONE {
            host[up as usize] = host[row];
        }
    }
    let mut hosts_of: HashMap<u32, Vec<u32>> = HashMap::new();
    for (sender, host) in data.sender.iter().zip(&host) {
        let hosts = hosts_of.entry(*sender).or_default();
        if *host != NONE && !hosts.contains(host) && hosts.len() < 64 {
            hosts.push(*host);
        }
    }
    let mut names: HashMap<(u32, u32), u32> = HashMap::new();
    for (row, host) in host.into_iter().enumerate() {
        let sender = data.sender[row];
        if sender == NONE || hosts_of[&sender].len() < 2 || host == NONE {
            continue;
        }
        let name = *names.entry((sender, host)).or_insert_with(|| {
            let text = format!("{}\u{1}{}", data.texts.get(sender), data.texts.get(host));
            data.texts.number(&text)
        });
        data.sender[row] = name;
        if let Some(worker) = data.workers.get_mut(data.worker[row] as usize) {
            worker.sender = name;
        }
    }
}
