//! What lists show.

pub mod steps;
