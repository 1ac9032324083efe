//! What dumps say about a run that hangs: which rank is missing from a collective, where its Python code is, what the GPUs do.
//!
//! The collectives of a process group are counted, the same on all ranks. The first that has not completed everywhere is the one
//! that holds the others. A rank that has recorded fewer never entered it. If ranks recorded different operations or
//! sizes under one number, they do not agree on what comes next.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rollscope_answers::hang::{Hang, Node, OpenSpan, Suspect, Wait, WorkerNow, capital};
use rollscope_formats::dumps::{Dump, Entry, Flight, MAX_FILE_BYTES, Process, Requests, read};

use crate::problem::Problem;

/// Files that are read, and how deep folders are.
const MAX_FILES: usize = 10_000;
const MAX_DEPTH: usize = 4;
/// Ranks and stacks that are listed by name.
pub(super) const SHOWN: usize = 8;
/// Operations whose inputs must have the same size on all ranks.
const SAME_SIZES: &[&str] = &["all_reduce", "allreduce", "broadcast", "reduce", "barrier"];

/// Dumps, each with the file that it was read from.
#[derive(Default)]
pub struct Dumps {
    pub flights: Vec<Flight>,
    pub stacks: Vec<Process>,
    pub gpus: Vec<(String, rollscope_formats::dumps::Gpu)>,
    pub requests: Vec<Requests>,
    /// Files that are nothing of this.
    pub passed_over: Vec<String>,
}

/// Reads files, and folders of them. A file that is named must be a dump. In a folder, others are passed over.
pub fn read_files(paths: &[PathBuf]) -> Result<Dumps, Problem> {
    let mut dumps = Dumps::default();
    for path in paths {
        let mut files = Vec::new();
        if path.is_dir() {
            list(path, 0, &mut files)?;
            files.sort();
        }
        match files.is_empty() {
            true => dumps.add(path).map_err(Problem::bad_request)?,
            false => files.iter().for_each(|file| {
                if let Err(reason) = dumps.add(file) {
                    dumps.passed_over.push(reason);
                }
            }),
        }
    }
    let is_empty = dumps.flights.is_empty() && dumps.stacks.is_empty() && dumps.gpus.is_empty();
    if is_empty && dumps.requests.is_empty() {
        let first = dumps.passed_over.first().map_or(String::new(), |reason| format!(": {reason}"));
        return Err(Problem::bad_request(format!("none of the files is a dump that rollscope reads{first}")));
    }
    Ok(dumps)
}

fn list(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Problem> {
    let entries = std::fs::read_dir(folder)
        .map_err(|e| Problem::bad_request(format!("cannot read the folder {}: {e}", folder.display())))?;
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() && depth < MAX_DEPTH {
            list(&path, depth + 1, files)?;
        } else if path.is_file() {
            files.push(path);
        }
        if files.len() > MAX_FILES {
            return Err(Problem::bad_request(format!("{} has more than {MAX_FILES} files", folder.display())));
        }
    }
    Ok(())
}

impl Dumps {
    fn add(&mut self, path: &Path) -> Result<(), String> {
        let shown = path.display();
        let size = path.metadata().map_err(|e| format!("cannot read {shown}: {e}"))?.len();
        if size > MAX_FILE_BYTES {
            return Err(format!("{shown} is larger than {MAX_FILE_BYTES} bytes"));
        }
        let bytes = std::fs::read(path).map_err(|e| format!("cannot read {shown}: {e}"))?;
        let name = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        match read(path, &bytes).map_err(|e| format!("{shown}: {e}"))? {
            // The same rank may be dumped as a pickle and as JSON.
            Dump::Flight(flight) if self.flights.iter().any(|known| known.rank == flight.rank) => {}
            Dump::Flight(flight) => self.flights.push(flight),
            Dump::Stacks(stacks) => self.stacks.extend(stacks),
            Dump::Requests(requests) => self.requests.push(requests),
            Dump::Gpus(gpus) => self.gpus.extend(gpus.into_iter().map(|gpu| (name.clone(), gpu))),
        }
        Ok(())
    }
}

/// A collective that has not completed on all ranks.
#[derive(Debug, PartialEq)]
pub struct Pending {
    pub group: String,
    pub seq: i64,
    pub name: String,
    /// Since when the first rank has been in it.
    pub since_ns: i64,
    pub inside: Vec<i64>,
    /// Ranks of the group that recorded earlier ones, and not this.
    pub missing: Vec<i64>,
    /// Ranks of the group without a dump.
    pub unknown: Vec<i64>,
    /// What ranks recorded under this number where they do not agree: operation and sizes, and the ranks.
    pub mismatch: Vec<(String, Vec<i64>)>,
}

/// The first collective that did not complete, of each group that has one; the oldest first.
pub fn pending(flights: &[Flight]) -> Vec<Pending> {
    let mut groups: BTreeMap<&str, BTreeSet<i64>> = BTreeMap::new();
    for flight in flights {
        for group in &flight.groups {
            let ranks = groups.entry(&group.name).or_default();
            ranks.extend(&group.ranks);
            // An empty list stands for all ranks.
            ranks.extend(group.ranks.is_empty().then_some(flight.rank));
        }
        for entry in &flight.entries {
            groups.entry(&entry.group).or_default();
        }
    }
    let dumped: BTreeSet<i64> = flights.iter().map(|flight| flight.rank).collect();
    let mut out: Vec<Pending> = Vec::new();
    for (group, ranks) in groups {
        let of_group = |flight: &Flight| -> Vec<Entry> {
            flight.entries.iter().filter(|entry| entry.group == group && !entry.p2p).cloned().collect()
        };
        let recorded: BTreeMap<i64, Vec<Entry>> = flights
            .iter()
            .map(|flight| (flight.rank, of_group(flight)))
            .filter(|(rank, entries)| !entries.is_empty() || ranks.contains(rank))
            .collect();
        let open = recorded.values().flatten().filter(|entry| entry.state != "completed").map(|entry| entry.seq).min();
        let behind =
            |seq: i64| move |entries: &Vec<Entry>| entries.iter().map(|entry| entry.seq).max().unwrap_or(-1) < seq;
        // A rank that is behind holds what the others have completed only on their side, too.
        let Some(seq) = open else { continue };
        let at: BTreeMap<i64, &Entry> = recorded
            .iter()
            .filter_map(|(rank, entries)| Some((*rank, entries.iter().find(|entry| entry.seq == seq)?)))
            .collect();
        let Some(first) = at.values().min_by_key(|entry| entry.created_ns) else { continue };
        let missing: Vec<i64> =
            recorded.iter().filter(|(_, entries)| behind(seq)(entries)).map(|(rank, _)| *rank).collect();
        let mut agreed: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for (rank, entry) in &at {
            let sizes = if SAME_SIZES.iter().any(|name| entry.name.contains(name)) { entry.sizes.as_str() } else { "" };
            agreed.entry(format!("{} {sizes}", entry.name).trim_end().to_string()).or_default().push(*rank);
        }
        let mismatch = if agreed.len() > 1 { agreed.into_iter().collect() } else { Vec::new() };
        out.push(Pending {
            group: group.to_string(),
            seq,
            name: first.name.clone(),
            since_ns: first.created_ns,
            inside: at.iter().filter(|(_, entry)| entry.state != "completed").map(|(rank, _)| *rank).collect(),
            missing,
            unknown: ranks.iter().copied().filter(|rank| !dumped.contains(rank)).collect(),
            mismatch,
        });
    }
    out.sort_by_key(|pending| pending.since_ns);
    out
}

fn ranks(ranks: &[i64]) -> String {
    let shown: Vec<String> = ranks.iter().take(SHOWN).map(i64::to_string).collect();
    let more = if ranks.len() > SHOWN { format!(" and {} more", ranks.len() - SHOWN) } else { String::new() };
    format!("rank{} {}{more}", if ranks.len() == 1 { "" } else { "s" }, shown.join(", "))
}

/// The process of a rank: by its rank, or by a name that ends with it, such as `actor_train-3`.
fn worker_of(hang: &Hang, rank: i64) -> Option<&WorkerNow> {
    let said = format!("rank {rank} (");
    let ends = [format!("-{rank}"), format!("_{rank}"), format!(":{rank}")];
    let by_rank = hang.workers.iter().find(|worker| worker.name.starts_with(&said));
    let mut by_name = hang.workers.iter().filter(|worker| ends.iter().any(|end| worker.name.ends_with(end)));
    by_rank.or_else(|| by_name.next().filter(|_| by_name.next().is_none()))
}

/// Where the Python code of a rank is.
fn place(dumps: &Dumps, rank: i64, worker: Option<&WorkerNow>) -> Option<String> {
    let by_rank = dumps.stacks.iter().find(|process| process.rank == Some(rank));
    let pid = worker.and_then(|worker| worker.pid);
    let by_pid = || dumps.stacks.iter().find(|process| process.pid.is_some() && process.pid == pid);
    by_rank.or_else(by_pid)?.place()
}

/// Stacks that a process sent when the server asked for them.
pub struct SentStacks {
    pub host: String,
    pub pid: Option<i64>,
    pub text: String,
    pub span: OpenSpan,
}

/// Adds what processes sent to an answer: where each is, and how many are in the same place.
pub fn join_stacks(hang: &mut Hang, sent: &[SentStacks]) {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for sent in sent {
        let Ok(Dump::Stacks(processes)) = read(Path::new("stacks"), sent.text.as_bytes()) else { continue };
        let Some(place) = processes.first().and_then(Process::place) else { continue };
        let worker = hang.workers.iter_mut().find(|worker| worker.pid == sent.pid && worker.host == sent.host);
        let name = match worker {
            Some(worker) => {
                worker.place = Some(place.clone());
                worker.stacks = Some(sent.span.clone());
                worker.name.clone()
            }
            None => sent.pid.map_or("a process".to_string(), |pid| format!("process {pid}")),
        };
        note_place(hang, &name, &place);
        places.entry(place).or_default().push(name);
    }
    let mut places: Vec<(String, Vec<String>)> = places.into_iter().collect();
    places.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    for (place, names) in places.iter().take(SHOWN) {
        hang.dumps.push(match names.as_slice() {
            [one] => format!("The main thread of {one} is in {place}."),
            many => format!("The main threads of {} processes are in {place}: {}.", many.len(), some(many)),
        });
    }
    if places.len() > SHOWN {
        hang.dumps.push(format!("The main threads of others are in {} more places.", places.len() - SHOWN));
    }
}

fn some(names: &[String]) -> String {
    let more = if names.len() > SHOWN { format!(" and {} more", names.len() - SHOWN) } else { String::new() };
    format!("{}{more}", names[..names.len().min(SHOWN)].join(", "))
}

/// What is behind a suspect that is known by its process.
fn note_place(hang: &mut Hang, name: &str, place: &str) {
    for suspect in hang.suspects.iter_mut().filter(|suspect| suspect.name == name) {
        let text = format!("; its stack is in {place}");
        // Also in the sentence, which ends with what is said of the first suspect.
        if let Some(at) = hang.text.find(&suspect.text) {
            hang.text.insert_str(at + suspect.text.len(), &text);
        }
        suspect.text.push_str(&text);
    }
}

/// Adds what dumps say to an answer.
pub fn join(hang: &mut Hang, dumps: &Dumps) {
    let pending = pending(&dumps.flights);
    let mut suspects: Vec<Suspect> = Vec::new();
    for held in &pending {
        let what = format!("{} #{} of group {}", held.name, held.seq, held.group);
        let wait = format!("{} {} in it", ranks(&held.inside), if held.inside.len() == 1 { "waits" } else { "wait" });
        if !held.mismatch.is_empty() {
            let sides: Vec<String> =
                held.mismatch.iter().map(|(what, of)| format!("{} recorded {what}", ranks(of))).collect();
            let text = format!(
                "the ranks do not agree on collective #{} of group {}: {}",
                held.seq,
                held.group,
                sides.join("; ")
            );
            suspects.push(suspect(hang, "collective", &what, text.clone(), held.inside.len()));
            hang.dumps.push(format!("{}.", capital(&text)));
        }
        for rank in held.missing.iter().take(SHOWN) {
            let worker = worker_of(hang, *rank);
            let name = worker.map_or(format!("rank {rank}"), |worker| worker.name.clone());
            let place = place(dumps, *rank, worker).map_or(String::new(), |place| format!("; its stack is in {place}"));
            let named =
                if name.contains(&format!("rank {rank}")) { name.clone() } else { format!("rank {rank} ({name})") };
            let text = format!("{named} never entered {what}; {wait}{place}");
            suspects.push(suspect(hang, "process", &name, text.clone(), held.inside.len()));
            hang.dumps.push(format!("{}.", capital(&text)));
        }
        if held.missing.is_empty() && held.mismatch.is_empty() {
            let unknown = match held.unknown.len() {
                0 => "all ranks have entered it, so look at the network and the GPUs".to_string(),
                _ => format!("there is no dump of {}", ranks(&held.unknown)),
            };
            hang.dumps.push(format!("{what} has not completed: {wait}; {unknown}."));
        }
    }
    if pending.is_empty() && !dumps.flights.is_empty() {
        let of = dumps.flights.len();
        hang.dumps.push(format!(
            "The Flight Recorder of {of} rank{} shows no collective that has not completed.",
            if of == 1 { "" } else { "s" }
        ));
    }
    for process in &dumps.stacks {
        let who = match (process.rank, process.pid) {
            (Some(rank), _) => format!("rank {rank}"),
            (None, Some(pid)) => {
                let worker = hang.workers.iter().find(|worker| worker.pid == Some(pid));
                worker.map_or(format!("process {pid}"), |worker| format!("{} (pid {pid})", worker.name))
            }
            (None, None) => "a process".to_string(),
        };
        if let Some(place) = process.place() {
            hang.dumps.push(format!("The main thread of {who} is in {place}."));
        }
        let found = process.pid.and_then(|pid| hang.workers.iter().find(|worker| worker.pid == Some(pid)));
        if let (Some(name), Some(place)) = (found.map(|worker| worker.name.clone()), process.place()) {
            note_place(hang, &name, &place);
        }
    }
    for requests in &dumps.requests {
        add_requests(hang, requests);
    }
    for (file, gpu) in &dumps.gpus {
        let watts = gpu.watts.map_or(String::new(), |watts| format!(", {watts:.0} W"));
        hang.dumps.push(format!(
            "GPU {} ({}, {file}) is busy for {} % of the time{watts}, with {} of {} MiB in use.",
            gpu.index, gpu.name, gpu.busy, gpu.memory_mib, gpu.of_mib
        ));
    }
    if let Some(first) = suspects.first() {
        hang.text.push_str(&format!(" By the dumps: {}.", first.text));
        let named: Vec<String> = suspects.iter().map(|suspect| suspect.name.clone()).collect();
        hang.suspects.retain(|suspect| !named.contains(&suspect.name));
        suspects.append(&mut hang.suspects);
        hang.suspects = suspects;
        hang.chain = vec![0, hang.suspects[0].node];
    }
}

/// What a server was asked when it crashed. It is no suspect by itself: a server also dumps when it is told to stop.
fn add_requests(hang: &mut Hang, requests: &Requests) {
    let engine = &requests.engine;
    let seconds = |since: i64| (requests.at_ns - since).max(0) as f64 / 1e9;
    let shown: Vec<String> = requests
        .under_way
        .iter()
        .take(SHOWN)
        .map(|r| format!("{} for {:.0} s ({} tokens so far)", r.rid, seconds(r.since_ns), r.produced))
        .collect();
    let more = match requests.under_way.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let at = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(requests.at_ns.max(0) as u64));
    let count = requests.under_way.len();
    let under_way = match count {
        0 => "no request was under way".to_string(),
        1 => format!("1 request was under way: {}", shown[0]),
        _ => format!("{count} requests were under way, the oldest first: {}{more}", shown.join(", ")),
    };
    hang.dumps.push(format!(
        "Engine {engine} dumped its requests at {at}, as SGLang does when it crashes: {under_way}. {} had finished in the five minutes before.",
        requests.finished
    ));
    if requests.unreadable > 0 {
        hang.dumps.push(format!("{} requests of engine {engine} cannot be read.", requests.unreadable));
    }
    for suspect in hang.suspects.iter_mut().filter(|suspect| suspect.name.contains(engine.as_str()) && count > 0) {
        suspect.text.push_str(&format!("; it dumped {count} requests that were under way when it crashed, at {at}"));
    }
}

pub(super) fn suspect(hang: &mut Hang, kind: &str, name: &str, text: String, waiting: usize) -> Suspect {
    let node = hang.nodes.iter().position(|node| node.kind == kind && node.label == name).unwrap_or_else(|| {
        hang.nodes.push(Node {
            kind: kind.to_string(),
            label: name.to_string(),
            count: 1,
            since_ns: None,
            usual_s: None,
            longest_s: None,
            about: text.clone(),
            spans: Vec::new(),
        });
        let node = hang.nodes.len() - 1;
        hang.waits.push(Wait { from: 0, to: node, count: waiting, known: true });
        node
    });
    Suspect { node, kind: kind.to_string(), name: name.to_string(), text, known: true, waiting }
}

#[cfg(test)]
mod tests {
    use rollscope_formats::dumps::Group;

    use super::*;

    fn flight(rank: i64, seqs: &[(i64, &str, &str, &str)]) -> Flight {
        let entry = |(seq, name, state, sizes): &(i64, &str, &str, &str)| Entry {
            group: "0".into(),
            seq: *seq,
            name: name.to_string(),
            state: state.to_string(),
            sizes: sizes.to_string(),
            created_ns: seq * 1000 + rank,
            ..Entry::default()
        };
        let group = Group { name: "0".into(), about: "default_pg".into(), ranks: vec![0, 1, 2, 3] };
        Flight { rank, groups: vec![group], entries: seqs.iter().map(entry).collect() }
    }

    #[test]
    fn a_rank_that_never_entered_is_missing() {
        let inside = [(1, "all_reduce", "completed", "[[8]]"), (2, "all_reduce", "started", "[[8]]")];
        let found = pending(&[flight(0, &inside), flight(1, &inside), flight(2, &inside[..1])]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].seq, &found[0].inside[..], &found[0].missing[..]), (2, &[0, 1][..], &[2][..]));
        assert_eq!(found[0].unknown, [3]);
        assert!(found[0].mismatch.is_empty());
    }

    #[test]
    fn ranks_that_do_not_agree_are_told_apart() {
        let of = |name, sizes| [(1, name, "scheduled", sizes)];
        let (a, b, c) = (of("all_reduce", "[[8]]"), of("all_reduce", "[[9]]"), of("all_gather", "[[8]]"));
        let sizes = pending(&[flight(0, &a), flight(1, &b)]);
        assert_eq!(sizes[0].mismatch.len(), 2);
        let order = pending(&[flight(0, &a), flight(1, &c), flight(2, &a), flight(3, &a)]);
        assert_eq!(order[0].mismatch[0], ("all_gather".to_string(), vec![1]));
        // Inputs of different sizes are gathered.
        let uneven = [(1, "all_gather", "scheduled", "[[1]]")];
        assert!(pending(&[flight(0, &c), flight(1, &uneven)])[0].mismatch.is_empty());
    }

    #[test]
    fn what_completed_holds_nobody() {
        assert_eq!(pending(&[flight(0, &[(1, "all_reduce", "completed", "[]")])]), []);
        assert_eq!(pending(&[]), []);
    }
}
