//! What a query may cost.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Limits on queries. Every one has a default; over a limit the user gets an error (or a flag) that names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueryLimits {
    /// Longest time from the request to the last row, waiting and a slow reader included. Default: 30 s. In
    /// configuration: seconds, as a number.
    #[serde(with = "seconds")]
    pub timeout: Duration,
    /// Memory that all running queries may hold together in sorts, joins and groups. Default: 1 GiB.
    pub memory_bytes: usize,
    /// Rows one answer may have; the rest is cut off and the answer is marked as truncated. Default: 1,000,000.
    pub max_rows: usize,
    /// Queries that run at the same time; others wait their turn within their own timeout. Default: 8.
    pub max_concurrent: usize,
}

impl Default for QueryLimits {
    fn default() -> Self {
        QueryLimits { timeout: Duration::from_secs(30), memory_bytes: 1 << 30, max_rows: 1_000_000, max_concurrent: 8 }
    }
}

mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(value.as_secs_f64())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(seconds).map_err(|e| D::Error::custom(format!("timeout in seconds: {e}")))
    }
}
