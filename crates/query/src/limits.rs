//! What a query may cost.

use std::time::Duration;

use rollscope_model::TraceId;
use serde::{Deserialize, Serialize};

/// Most spans in an answer about one trace, with those of other traces that are shown with it.
pub const MAX_TRACE_SPANS: usize = 2_000_000;

/// What to say of a trace that has more.
pub fn too_many_spans(trace: &TraceId) -> String {
    let trace = hex::encode(trace);
    format!(
        "trace {trace} has more than {MAX_TRACE_SPANS} spans; read a part of it with SQL, such as select * from spans \
         where trace_id = '{trace}' and start_ns between FROM and TO"
    )
}

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
