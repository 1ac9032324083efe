//! Settings of the recorder, and the resource that everything is sent with. Python reads the environment; this only keeps.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use rollscope_names::attributes::{PROCESS_PID, SERVICE_INSTANCE_ID};

use crate::core::lock;
use crate::wire::{self, attrs_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Grpc,
    Http,
}

/// Where things go.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
    pub tls: bool,
    /// A path before `/v1/traces`.
    pub prefix: String,
    pub protocol: Protocol,
    /// Sent with every request: the token, for one.
    pub headers: Vec<(String, String)>,
    /// PEM file of the certificates to trust; none: the system's.
    pub ca_file: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub enum Exporter {
    Network(Endpoint),
    /// Kept in memory: for users' tests.
    Memory,
    /// Counted and thrown away: for measuring.
    Drop,
}

pub struct Config {
    pub exporter: Exporter,
    pub resource: Resource,
    /// Bytes that may wait in memory. Over it: dropped and counted.
    pub queue_bytes: usize,
    pub spill_dir: Option<PathBuf>,
    pub spill_bytes: u64,
    pub flush_interval: Duration,
    /// How long one request may take.
    pub timeout: Duration,
    /// Open spans are reported after this time.
    pub pending_after: Duration,
    pub stats_interval: Duration,
}

/// Attributes of the resource, as text. Behind a lock because a run can begin later; held for copies only.
#[derive(Default)]
pub struct Resource(pub Mutex<Vec<(String, String)>>);

impl Resource {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (key, value) in lock(&self.0).iter() {
            match (key.as_str(), value.parse::<i64>()) {
                (PROCESS_PID, Ok(pid)) => wire::int_attr(&mut out, attrs_of::RESOURCE, key.as_bytes(), pid),
                _ => wire::text_attr(&mut out, attrs_of::RESOURCE, key.as_bytes(), value.as_bytes()),
            }
        }
        out
    }
}

impl Config {
    /// The same for a forked child: other process id, other instance.
    pub fn clone_for_child(&self) -> Config {
        // The parent may have been forked while another thread held this lock for an instant.
        let mut attributes = match self.resource.0.try_lock() {
            Ok(list) => list.clone(),
            Err(std::sync::TryLockError::Poisoned(list)) => list.into_inner().clone(),
            Err(std::sync::TryLockError::WouldBlock) => Vec::new(),
        };
        let pid = std::process::id().to_string();
        let before = attributes.iter().find(|(key, _)| key == PROCESS_PID).map(|(_, pid)| format!(":{pid}"));
        for (key, value) in &mut attributes {
            match key.as_str() {
                PROCESS_PID => value.clone_from(&pid),
                SERVICE_INSTANCE_ID => {
                    if let Some(host) = before.as_ref().and_then(|b| value.strip_suffix(b.as_str())) {
                        *value = format!("{host}:{pid}");
                    } else {
                        *value = format!("{value}/{pid}");
                    }
                }
                _ => {}
            }
        }
        Config {
            exporter: self.exporter.clone(),
            resource: Resource(Mutex::new(attributes)),
            queue_bytes: self.queue_bytes,
            spill_dir: self.spill_dir.clone(),
            spill_bytes: self.spill_bytes,
            flush_interval: self.flush_interval,
            timeout: self.timeout,
            pending_after: self.pending_after,
            stats_interval: self.stats_interval,
        }
    }
}
