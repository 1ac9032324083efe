//! Where things are drawn: processes hold places, a place has as many slots as slices overlap in it. A place is a thread of
//! a host, a sample of a group, or, for what is neither, a service.

use std::collections::{HashMap, HashSet};

use rollscope_model::read::Spans;

use super::slots::Slots;

/// What distinguishes one place from another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Thread { service: String, host: String, pid: Option<i64>, label: String, ranks: [Option<i32>; 3] },
    Sample { run: String, step: Option<i64>, group: Option<String>, sample: String },
    Service { service: String, host: String, pid: Option<i64> },
}

impl Key {
    /// The place that a span names by itself: its thread, or its sample.
    pub fn own(spans: &Spans, row: usize) -> Option<Key> {
        let text = |t: Option<&str>| t.unwrap_or_default().to_string();
        if let Some(label) = spans.thread.get(row) {
            return Some(Key::Thread {
                service: text(spans.service.get(row)),
                host: text(spans.host.get(row)),
                pid: spans.pid.get(row),
                label: label.to_string(),
                ranks: [spans.pp_rank.get(row), spans.dp_rank.get(row), spans.tp_rank.get(row)],
            });
        }
        spans.sample_id.get(row).map(|sample| Key::Sample {
            run: text(spans.run_id.get(row)),
            step: spans.step.get(row),
            group: spans.group_id.get(row).map(str::to_string),
            sample: sample.to_string(),
        })
    }

    pub fn service(spans: &Spans, row: usize) -> Key {
        let text = |t: Option<&str>| t.unwrap_or_default().to_string();
        Key::Service { service: text(spans.service.get(row)), host: text(spans.host.get(row)), pid: spans.pid.get(row) }
    }

    pub fn is_service_of(&self, spans: &Spans, row: usize) -> bool {
        matches!(self, Key::Service { service, host, pid }
            if service == spans.service.at(row)
                && host == spans.host.get(row).unwrap_or_default()
                && *pid == spans.pid.get(row))
    }

    /// The name of the process, and of the place in it.
    fn names(&self) -> (String, String) {
        match self {
            Key::Thread { host, label, ranks, .. } => {
                let mut name = on_host(host, label);
                for (rank, which) in ranks.iter().zip(["PP", "DP", "TP"]) {
                    if let Some(rank) = rank {
                        name.push_str(&format!("-{which}{rank}"));
                    }
                }
                (name, "slot".into())
            }
            Key::Sample { step, group, sample, .. } => {
                let of = match (step, group) {
                    (Some(step), Some(group)) => format!("step {step}, group {group}"),
                    (Some(step), None) => format!("step {step}"),
                    (None, Some(group)) => format!("group {group}"),
                    (None, None) => "samples".into(),
                };
                (of, format!("sample {sample}"))
            }
            Key::Service { service, host, .. } => (on_host(host, service), "slot".into()),
        }
    }

    /// What is drawn first.
    fn rank(&self) -> u8 {
        match self {
            Key::Sample { .. } => 0,
            Key::Service { .. } => 1,
            Key::Thread { .. } => 2,
        }
    }

    /// Places with the same of this share a process.
    fn process(&self) -> Key {
        match self {
            Key::Sample { run, step, group, .. } => {
                Key::Sample { run: run.clone(), step: *step, group: group.clone(), sample: String::new() }
            }
            other => other.clone(),
        }
    }

    fn pid(&self) -> Option<i64> {
        match self {
            Key::Thread { pid, .. } | Key::Service { pid, .. } => *pid,
            Key::Sample { .. } => None,
        }
    }
}

/// As SGLang writes it: eight characters of the host, a colon, the label.
fn on_host(host: &str, name: &str) -> String {
    let short: String = host.chars().take(8).collect();
    if short.is_empty() { name.to_string() } else { format!("{short}:{name}") }
}

pub struct Process {
    pub name: String,
    pub pid: i64,
}

pub struct Place {
    pub process: u32,
    pub name: String,
    pub slots: Slots,
    /// The first of its track numbers within the file.
    first: u64,
    /// The first of its numbers within its process.
    first_tid: i64,
    rank: u8,
}

impl Place {
    pub fn slot_name(&self, slot: usize) -> String {
        if self.slots.len() == 1 && self.name != "slot" {
            self.name.clone()
        } else {
            format!("{} {}", self.name, slot + 1)
        }
    }
}

pub struct Counter {
    pub process: u32,
    pub name: String,
}

/// Everything that is drawn on.
#[derive(Default)]
pub struct Tracks {
    pub processes: Vec<Process>,
    pub places: Vec<Place>,
    pub counters: Vec<Counter>,
    by_key: HashMap<Key, u32>,
    by_process: HashMap<Key, u32>,
    by_counter: HashMap<(String, String), u32>,
    pids: HashSet<i64>,
    next_pid: i64,
}

/// Made-up process ids start here, so that they are not mistaken for real ones.
const FIRST_PID: i64 = 1_000_000_000;

impl Tracks {
    /// Processes have the ids that they had, as long as no two hosts claim the same.
    fn process(&mut self, name: String, wanted: Option<i64>) -> u32 {
        let fits = |pid: &i64| (1..FIRST_PID).contains(pid);
        let pid = match wanted.filter(fits) {
            Some(pid) if self.pids.insert(pid) => pid,
            _ => {
                self.next_pid += 1;
                FIRST_PID + self.next_pid
            }
        };
        self.processes.push(Process { name, pid });
        self.processes.len() as u32 - 1
    }

    /// These ids are already in use.
    pub fn reserve(&mut self, pids: impl IntoIterator<Item = i64>) {
        self.pids.extend(pids);
    }

    pub fn place(&mut self, key: Key) -> u32 {
        if let Some(place) = self.by_key.get(&key) {
            return *place;
        }
        let (of, name) = key.names();
        let process_key = key.process();
        let process = match self.by_process.get(&process_key) {
            Some(process) => *process,
            None => {
                let process = self.process(of, key.pid());
                self.by_process.insert(process_key, process);
                process
            }
        };
        let rank = key.rank();
        self.places.push(Place { process, name, slots: Slots::default(), first: 0, first_tid: 0, rank });
        let place = self.places.len() as u32 - 1;
        self.by_key.insert(key, place);
        place
    }

    pub fn is_thread(&self, place: u32) -> bool {
        self.places[place as usize].rank == 2
    }

    pub fn counter(&mut self, of: &str, name: &str) -> u32 {
        if let Some(counter) = self.by_counter.get(&(of.to_string(), name.to_string())) {
            return *counter;
        }
        let key = Key::Service { service: format!("\0counters {of}"), host: String::new(), pid: None };
        let process = match self.by_process.get(&key) {
            Some(process) => *process,
            None => {
                let process = self.process(of.to_string(), None);
                self.by_process.insert(key, process);
                process
            }
        };
        self.counters.push(Counter { process, name: name.to_string() });
        let counter = self.counters.len() as u32 - 1;
        self.by_counter.insert((of.to_string(), name.to_string()), counter);
        counter
    }

    /// Gives every slot its number, now that it is known how many there are.
    pub fn settle(&mut self) {
        let mut order: Vec<usize> = (0..self.places.len()).collect();
        order.sort_by_key(|i| self.places[*i].rank);
        let mut next = 1 + self.processes.len() as u64 + self.counters.len() as u64;
        let mut tids = vec![1i64; self.processes.len()];
        for i in order {
            let place = &mut self.places[i];
            place.first = next;
            next += place.slots.len() as u64;
            place.first_tid = tids[place.process as usize];
            tids[place.process as usize] += place.slots.len() as i64;
        }
    }

    pub fn process_uuid(&self, process: usize) -> u64 {
        1 + process as u64
    }

    pub fn counter_uuid(&self, counter: u32) -> u64 {
        1 + self.processes.len() as u64 + u64::from(counter)
    }

    pub fn slot_uuid(&self, place: u32, slot: u32) -> u64 {
        self.places[place as usize].first + u64::from(slot)
    }

    /// Process and thread id in Chrome's format.
    pub fn chrome(&self, place: u32, slot: u32) -> (i64, i64) {
        let place = &self.places[place as usize];
        (self.processes[place.process as usize].pid, place.first_tid + i64::from(slot))
    }
}
