//! The vocabulary: what every name means, stated once. No Arrow, no IO, hardly a dependency, so that anything may use it.
//!
//! - [`attributes`]: attribute names that carry meaning (`rl.*`, slime's, SGLang's, ROLL's, our reserved `rollscope.*`).
//! - [`kinds`]: what kind of work a span is, and how each kind is written and drawn.
//! - [`pd`]: the `pd_*` fields of a disaggregated request, and which lies inside which.
//! - [`figures`]: definitions of figures that several sides compute.
//! - [`ids`], [`time`]: trace and span ids of any length, nanoseconds since the epoch.
//! - [`limits`]: sizes that several sides must agree on.
//! - [`protobuf`]: writing protobuf by hand.
//!
//! The page and the Python package get what they need generated: `ui/src/generated/`, `python/rollscope/_names.py`.
//! A test in `crates/model/tests` fails when those are stale.

pub mod attributes;
pub mod figures;
pub mod ids;
pub mod kinds;
pub mod limits;
pub mod pd;
mod percent;
pub mod protobuf;
pub mod time;

pub use percent::percent;
