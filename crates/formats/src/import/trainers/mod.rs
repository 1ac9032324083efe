//! What trainers and their engines write to disk: rollouts with their rewards, sessions, requests, metrics. One file here for each.
//!
//! All become the same rows ([`rows`]): a sample with its reward, its conversation, and spans and metrics where the file has times.
//! So pages, answers, SQL and search need not know which trainer it was.

pub(super) mod areal;
mod atif;
mod cells;
mod csv;
mod langfuse;
pub(super) mod lines;
mod miles;
mod nemo;
mod prime;
mod prime_tokens;
mod record;
mod rllm;
mod rows;
mod sglang;
pub(crate) mod sglang_dump;
mod times;
mod tinker;
mod tokens;
mod trl;
mod verl;

pub use areal::ArealSessions;
pub use atif::Atif;
pub use langfuse::Langfuse;
pub use miles::Miles;
pub use nemo::NemoRl;
pub use prime::{PrimeRl, PrimeRlMetrics};
pub use prime_tokens::PrimeRlTokens;
pub use rllm::Rllm;
pub(super) use rows::home;
pub use sglang::SglangRequests;
pub use sglang_dump::SglangDump;
pub use tinker::{Tinker, TinkerMetrics};
pub use trl::Trl;
pub use verl::Verl;
