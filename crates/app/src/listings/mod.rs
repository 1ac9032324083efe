//! What lists show.

pub mod metrics;
pub mod runs;
pub mod steps;
pub mod traces;

/// Nanoseconds as text: JSON's readers lose the last digits of such numbers.
fn ns(value: Option<i64>) -> Option<String> {
    value.map(|v| v.to_string())
}
