//! Evaluates without a store, for the tests and the fuzz target. Not part of the program.

use std::collections::HashMap;
use std::sync::Arc;

use promql_parser::parser;

use super::eval::{self, Context, Data, PromAnswer, Room, Steps, WhyStopped, wanted};
use super::source::{Stored, matches};
use super::{ABSENT, Labels, PromQuery};
use crate::error::{ErrorKind, QueryError};

const MAX_STEPS: usize = 11_000;
const MAX_VALUES: usize = 1 << 20;

pub(super) fn ask(text: &str, stored: Vec<Stored>, start: i64, end: i64, step: i64) -> Result<PromAnswer, String> {
    ask_until(text, stored, Steps { start, end, step }, &|| None).map_err(|error| error.message)
}

pub(super) fn ask_until(
    text: &str,
    stored: Vec<Stored>,
    steps: Steps,
    why_stopped: &WhyStopped,
) -> Result<PromAnswer, QueryError> {
    let refused = |text: String| QueryError::new(ErrorKind::Plan, text);
    let expr = parser::parse(text).map_err(refused)?;
    let empty = Data::new();
    let room = Room::new(MAX_VALUES);
    let mut needed = HashMap::new();
    wanted(&expr, &Context::new(steps, 300_000, MAX_STEPS, &empty, &room), &mut needed).map_err(refused)?;
    let stored: Vec<Arc<Stored>> = stored.into_iter().map(Arc::new).collect();
    let data: Data = needed
        .into_iter()
        .map(|(key, w)| {
            let found = stored.iter().filter(|s| matches(&w.matchers, &s.labels)).map(|s| {
                let inside = s.times.iter().zip(&s.values).filter(|(t, _)| **t > w.from && **t <= w.to);
                let (times, values) = inside.map(|(t, v)| (*t, *v)).unzip();
                Arc::new(Stored::new(s.labels.clone(), times, values))
            });
            (key, Arc::new(found.collect()))
        })
        .collect();
    eval::answer(&expr, &Context::new(steps, 300_000, MAX_STEPS, &data, &room).until(why_stopped))
}

pub(super) fn stored(labels: &[(&str, &str)], samples: &[(i64, f64)]) -> Stored {
    let labels = Labels::new(labels.iter().map(|(n, v)| (n.to_string(), v.to_string())));
    Stored::new(labels, samples.iter().map(|s| s.0).collect(), samples.iter().map(|s| s.1).collect())
}

/// Reads a query that may be hostile, as an expression and as a selector, and evaluates it over a few series: at one time and
/// over a range. Returns whether it was answered.
pub fn exercise(text: &str) -> bool {
    let _ = PromQuery::selector(text);
    if PromQuery::parse(text).is_err() {
        return false;
    }
    let series = || {
        let counter: Vec<(i64, f64)> = (0..8).map(|i| (i * 10_000, (i % 5) as f64 * 5.0)).collect();
        let odd = [(1000, f64::NAN), (2000, f64::INFINITY), (3000, ABSENT), (9000, -0.0)];
        vec![
            stored(&[("__name__", "a"), ("job", "x"), ("le", "1")], &counter),
            stored(&[("__name__", "a"), ("job", "y"), ("le", "+Inf")], &counter),
            stored(&[("__name__", "b"), ("job", "x")], &odd),
        ]
    };
    let at_once = ask(text, series(), 50_000, 50_000, 1);
    let over_time = ask(text, series(), 0, 60_000, 10_000);
    at_once.is_ok() || over_time.is_ok()
}
