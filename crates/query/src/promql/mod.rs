//! Prometheus's query language over the table `series`, with Prometheus's meaning.
//!
//! [`PromQuery::parse`] reads the text (with the `promql-parser` crate) and refuses by name what is not supported.
//! [`source`] reads every selector's samples, one pass over the store a selector; [`eval`] works the expression out for
//! all steps at once: a series is a vector with one value per step, where an absent value is Prometheus's own stale marker
//! ([`ABSENT`]). [`round`] reads once for many queries. Selector windows are open on the left, as in Prometheus 3: a sample at `t - range` is outside.
//!
//! Labels: `__name__`, the stored labels, `instance` (the target, unless the labels have one) and `run` (the run, unless
//! the series was scraped for no run in particular).

mod aggregate;
mod api;
mod binary;
mod eval;
mod functions;
mod labels;
mod patterns;
mod round;
mod source;
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod window;

pub use api::{PromLimits, PromQuery, SeriesInfo, kinds, label_names, label_values};
pub use eval::{Points, PromAnswer};
pub use labels::Labels;
pub use promql_parser::label::Matcher;
pub use round::PromRound;
pub use source::matches;

/// A value that is not there. Prometheus's stale marker, which is never the result of a calculation.
pub const ABSENT: f64 = f64::from_bits(0x7ff0_0000_0000_0002);

pub(crate) fn is_absent(value: f64) -> bool {
    value.to_bits() == ABSENT.to_bits()
}

/// A series over the steps of a query: one value per step, [`ABSENT`] if there is none.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub labels: Labels,
    pub values: Vec<f64>,
}
