//! How busy a node is, as it says of itself.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How busy a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeLoad {
    /// Cores that its process kept busy since it last said so.
    pub cores: f64,
    /// Memory of its process.
    pub memory_bytes: u64,
    /// Rows that it took in per second, since it last said so.
    pub rows_per_s: f64,
    /// Rows that it has acknowledged and that are not in the tables yet: other nodes read them from its log.
    pub log_rows: u64,
}

/// Measures a node between two beats.
pub(super) struct Meter {
    at: Instant,
    cpu: Duration,
    rows: u64,
}

impl Meter {
    pub fn new() -> Meter {
        Meter { at: Instant::now(), cpu: cpu_time(), rows: 0 }
    }

    /// `rows`: taken in since the start.
    pub fn read(&mut self, rows: u64, log_rows: u64) -> NodeLoad {
        let before = std::mem::replace(self, Meter { at: Instant::now(), cpu: cpu_time(), rows });
        let seconds = (self.at - before.at).as_secs_f64().max(1e-3);
        NodeLoad {
            cores: self.cpu.saturating_sub(before.cpu).as_secs_f64() / seconds,
            memory_bytes: resident_bytes().unwrap_or(0),
            rows_per_s: rows.saturating_sub(before.rows) as f64 / seconds,
            log_rows,
        }
    }
}

/// Processor time of this process, in ticks of 10 ms. Zero where the system does not say.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in brackets, may hold anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// Resident memory of this process, if the system reports it.
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_process_says_so() {
        let mut meter = Meter::new();
        let until = Instant::now() + Duration::from_millis(300);
        let mut n = 0u64;
        while Instant::now() < until {
            n = n.wrapping_mul(31).wrapping_add(7);
        }
        let rows = 1_000 + (n & 1);
        let load = meter.read(rows, 5);
        assert!(load.cores > 0.0 && load.memory_bytes > 1 << 20, "{load:?}");
        assert!(load.rows_per_s > 0.0 && load.log_rows == 5, "{load:?}");
        assert_eq!(meter.read(rows, 0).rows_per_s, 0.0);
    }
}
