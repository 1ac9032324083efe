//! What a query may cost.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Limits on queries. Each has a default. If one is exceeded, the user gets an error (or a flag) that names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueryLimits {
    /// Longest time from the request to the last row, including waiting and a slow reader. Default: 30 s. In the
    /// configuration file it is a number of seconds.
    #[serde(with = "seconds")]
    pub timeout: Duration,
    /// Memory that all running queries together may use for sorts, joins and groups. Default: 1 GiB.
    pub memory_bytes: usize,
    /// Maximum number of rows of a result. The rest is cut off, and the result is marked as truncated. Default: 1,000,000.
    pub max_rows: usize,
    /// Maximum number of concurrent queries. Others wait within their own timeout. Default: 8.
    pub max_concurrent: usize,
    /// Where a lake has workers: a query over fewer bytes than this per thread runs where it is asked. Default: 16 MiB.
    pub spread_bytes: usize,
}

impl Default for QueryLimits {
    fn default() -> Self {
        QueryLimits {
            timeout: Duration::from_secs(30),
            memory_bytes: 1 << 30,
            max_rows: 1_000_000,
            max_concurrent: 8,
            spread_bytes: 16 << 20,
        }
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
