//! Answers: why was this step slow, and what changed? One file per question, with its mathematics in the opening comment. All of
//! them are pure functions over [`step::StepData`], which is read once from the columns of a step; linear, or n log n where
//! something is sorted.
//!
//! [`Answers`] reads the steps through the engine of `crates/query` and keeps what was worked out; [`functions`] lets SQL ask
//! the same questions. [`perf`] has the figures of a step that become metrics, [`traces`] looks at traces as wholes.

pub mod ask;
mod ask_tokens;
pub mod attributes;
pub mod breakdown;
mod causes;
pub mod critical_path;
pub mod difference;
mod effects;
mod engines;
mod extent;
mod factors;
pub mod findings;
mod functions;
pub mod hang;
pub mod health;
pub mod history;
pub mod idle;
mod kept;
pub mod mismatch;
mod parallel;
pub mod perf;
pub mod phase_time;
pub mod phases;
pub mod report;
pub mod robust;
pub mod samples;
pub mod sentence;
mod stats;
pub mod step;
pub mod stragglers;
pub mod summary;
pub mod traces;
pub mod words;

pub use ask::{Answers, Which};
pub use kept::{Line, Lines, OnDisk};
pub use rollscope_model::kinds;
