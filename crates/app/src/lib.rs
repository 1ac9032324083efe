//! What the product does, apart from HTTP: the server and the command line ask the same functions.
//!
//! [`intake`] stores what arrives, from a socket or from a file. [`conversations`] searches and exports what was said.
//! [`steps`] computes the metrics of every step, [`sinks`] hands them on. [`timeline`] has the spans of a step as the page draws them. [`listings`] has what lists show. [`encode`] writes
//! rows as Arrow, JSON or CSV, [`printed`] answers as text for people and assistants. [`hang`] asks what a run waits for. [`duration`] reads durations as people write them. Whatever goes wrong is a [`problem::Problem`], in the product's own terms: the server gives it
//! an HTTP status, the command line an exit code.

pub mod conversations;
pub mod duration;
pub mod encode;
pub mod hang;
pub mod intake;
pub mod listings;
pub mod params;
pub mod printed;
pub mod problem;
pub mod query;
pub mod secret;
pub mod sinks;
pub mod steps;
pub mod timeline;
mod work;
