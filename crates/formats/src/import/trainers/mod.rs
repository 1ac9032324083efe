//! What trainers and their engines write to disk: rollouts with their rewards, sessions, requests, metrics. One file here for each.
//!
//! All become the same rows ([`rows`]): a sample with its reward, its conversation, and spans and metrics where the file has times.
//! So pages, answers, SQL and search need not know which trainer it was.

pub(super) mod areal;
mod cells;
pub(super) mod lines;
mod miles;
mod nemo;
mod prime;
mod prime_tokens;
mod record;
mod rows;
mod sglang;
mod tokens;
mod trl;
mod verl;

pub use areal::ArealSessions;
pub use miles::Miles;
pub use nemo::NemoRl;
pub use prime::{PrimeRl, PrimeRlMetrics};
pub use prime_tokens::PrimeRlTokens;
pub(super) use rows::home;
pub use sglang::SglangRequests;
pub use trl::Trl;
pub use verl::Verl;
