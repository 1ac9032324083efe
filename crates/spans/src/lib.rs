//! Who belongs to whom among spans, found once: answers, waterfall, timeline, conversations and exports all ask here.
//!
//! - [`Forest`] reads spans and finds their parents. Rows stand in one order that does not depend on how they arrived.
//! - [`Walk`] goes through it from the roots down: parents before children, with depths.
//! - [`joins`] finds what belongs together although no context was sent, by request ids and links.
//! - [`samples`] gives spans the sample that they belong to, [`open`] ends spans that have no end yet, [`lanes`] places spans
//!   beside each other, [`intervals`] adds up times that overlap.

mod forest;
pub mod intervals;
pub mod joins;
pub mod lanes;
pub mod open;
pub mod samples;
mod texts;
mod walk;

pub use forest::{Forest, NONE, State, fault};
pub use texts::Texts;
pub use walk::{Children, Walk};
