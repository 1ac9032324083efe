//! Reads the parameters of requests as the handlers do, for the fuzz target. Not part of the program.

use rollscope_app::conversations::ask::Ask;
use rollscope_app::duration::parse_duration;
use rollscope_app::listings::traces;

use super::{jaeger, prometheus, timeline};
use crate::params::{Params, pairs, span_id, trace_id};
use crate::scrape::config::ScrapeTarget;

/// A query string that may be hostile, read by everything that reads one. What is understood becomes SQL.
pub fn exercise(query: &str) {
    let params = || rollscope_app::params::Params::from_pairs(pairs(query).collect());
    if let Ok(params) = params() {
        let _ = Ask::from_params(params);
    }
    if let Ok(params) = params() {
        let _ = timeline::window(&mut Params(params));
    }
    if let Ok((search, _)) = traces::parse(pairs(query)) {
        search.sql();
    }
    jaeger::exercise(query);
    prometheus::exercise(query);
    for (name, value) in pairs(query) {
        let _ = (trace_id(&value), span_id(&value), parse_duration(&value), ScrapeTarget::parse(&name));
    }
}
