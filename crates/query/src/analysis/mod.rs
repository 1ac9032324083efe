//! Answers: why was this step slow, and what changed? One file per question, with its mathematics in the opening comment. All of
//! them are pure functions over [`step::StepData`], which is read once from the columns of a step; linear, or n log n where
//! something is sorted.

pub mod ask;
pub mod attributes;
pub mod breakdown;
pub mod clocks;
pub mod critical_path;
pub mod difference;
pub mod findings;
pub mod health;
pub mod history;
pub mod idle;
pub mod perf;
pub mod phases;
pub mod report;
pub mod robust;
pub mod samples;
mod stats;
pub mod step;
pub mod stragglers;
pub mod summary;
pub mod words;

pub use rollscope_model::kinds;
