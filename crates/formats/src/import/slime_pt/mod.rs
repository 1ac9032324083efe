//! slime's rollout dumps: `torch.save({"rollout_id": n, "samples": [...]}, path)`, and what it and miles dump of training ([`train`]).
//!
//! [`Dump::open`] reads the file ([`super::torch`]: nothing is executed, tensors stay in the file). From there:
//! [`Dump::summary`] counts, [`Dump::batches`] makes rows of our tables ([`tables`]), and
//! [`export::slime_cache`](crate::export::slime_cache) writes the cache of slime's own viewer. All three rebuild spans with
//! [`rebuild`], sample by sample, on every core.

use std::collections::HashSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use rollscope_model::Table;

use super::torch::{self, Tag, Torch, Value};
use super::trainers::home;
use super::{ImportError, ImportOptions, Imported, Importer, Sink, written_ns};

pub mod parallel;
pub mod rebuild;
pub mod row;
mod tables;
mod train;

use row::{Reader, RowStats};

/// Events in all samples together. A million samples may refer to one trace; each would be drawn.
pub const MAX_EVENTS: u64 = 200_000_000;
/// Samples of one dump.
pub const MAX_SAMPLES: u64 = 50_000_000;
/// A dump that was compressed as a whole is unpacked into memory, up to this size.
pub const MAX_UNPACKED_BYTES: u64 = 4 << 30;
/// Samples a worker counts at a time.
const CHUNK: usize = 64;
/// How often in a pass the file's pages are given back.
const FORGET_TIMES: u64 = 16;

const SERVICE: &str = "slime";

/// A rollout dump, read.
pub struct Dump {
    torch: Torch,
    path: PathBuf,
    samples: Vec<Value>,
    /// Names of the samples, unique within the dump.
    sample_ids: Vec<String>,
    step: Option<i64>,
    split: &'static str,
    /// When the file was written.
    written_ns: i64,
    stats: OnceLock<Vec<Option<RowStats>>>,
    /// Samples gone through, in all passes together.
    done: Arc<AtomicU64>,
}

/// What a person wants to know first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    pub samples: u64,
    /// Samples with a trace.
    pub rows: u64,
    pub closed: u64,
    pub open: u64,
    pub instants: u64,
    pub orphans: u64,
    /// Most attempts of any sample.
    pub attempts: i64,
    /// Events that have no time and cannot be shown.
    pub skipped: u64,
    /// Seconds since the epoch.
    pub start: Option<f64>,
    pub end: Option<f64>,
    pub file_bytes: u64,
    pub step: Option<i64>,
    pub split: &'static str,
}

impl Dump {
    pub fn open(path: &Path) -> Result<Dump, ImportError> {
        Dump::new(Torch::open(path)?, path, written_ns(path))
    }

    /// A dump in memory; the path is where its step and split are read from, nothing is opened.
    pub fn from_bytes(bytes: Vec<u8>, path: &Path) -> Result<Dump, ImportError> {
        Dump::new(Torch::from_bytes(bytes)?, path, 0)
    }

    fn new(torch: Torch, path: &Path, written_ns: i64) -> Result<Dump, ImportError> {
        let heap = &torch.heap;
        let root = torch.root;
        if train::is_train_data(&torch) {
            return Err(ImportError::Malformed(
                "these are the samples as they were trained on (--save-debug-train-data), not a rollout dump".into(),
            ));
        }
        let list = heap.field(root, "samples").unwrap_or(root);
        if !matches!(list.tag(), Tag::List | Tag::Tuple) {
            return Err(ImportError::Malformed(no_dump(&torch)));
        }
        limit("samples", "MAX_SAMPLES", heap.len(list) as u64, MAX_SAMPLES)?;
        let samples: Vec<Value> = heap.items(list).collect();
        if !samples.is_empty() && !samples.iter().any(|s| matches!(s.tag(), Tag::Dict | Tag::Object)) {
            return Err(ImportError::Malformed(no_dump(&torch)));
        }
        let (mut events, mut names, mut sample_ids) = (0u64, Names::default(), Vec::with_capacity(samples.len()));
        for (at, sample) in samples.iter().enumerate() {
            let trace = heap.field(*sample, "trace").and_then(|t| heap.get(t, "events"));
            events += trace.map_or(0, |e| heap.len(e) as u64);
            let index = heap.field(*sample, "index").filter(|i| !i.is_none());
            sample_ids.push(names.of(&torch, index, at));
        }
        limit("events", "MAX_EVENTS", events, MAX_EVENTS)?;
        let (step, split) = step_and_split(&torch, path);
        let (stats, done) = (OnceLock::new(), Arc::default());
        Ok(Dump { path: path.to_path_buf(), samples, sample_ids, step, split, written_ns, stats, done, torch })
    }

    pub fn torch(&self) -> &Torch {
        &self.torch
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Counts samples as passes go through them: one for the summary, one for the cache, one for the rows.
    pub fn progress(&self) -> Arc<AtomicU64> {
        self.done.clone()
    }

    /// From time to time, the parts of the file that were read are released, so that they do not count as our memory.
    pub(crate) fn went_through(&self, samples: usize) {
        let before = self.done.fetch_add(samples as u64, Ordering::Relaxed);
        let stretch = (self.samples.len() as u64 / FORGET_TIMES).max(1);
        if before / stretch != (before + samples as u64) / stretch {
            let source = self.torch.heap.source();
            source.forget(0, source.len());
        }
    }

    /// The samples as written in the file.
    pub fn samples(&self) -> &[Value] {
        &self.samples
    }

    pub fn step(&self) -> Option<i64> {
        self.step
    }

    /// `train`, or `eval` for dumps named so.
    pub fn split(&self) -> &'static str {
        self.split
    }

    fn stats(&self) -> &[Option<RowStats>] {
        self.stats.get_or_init(|| {
            let mut all = Vec::with_capacity(self.samples.len());
            let done: Result<(), std::convert::Infallible> = parallel::ordered(
                self.samples.len().div_ceil(CHUNK),
                || Reader::new(&self.torch),
                |reader, chunk| {
                    let samples = self.samples.iter().enumerate().skip(chunk * CHUNK).take(CHUNK);
                    samples.map(|(at, s)| reader.row(*s, at).map(|r| r.stats())).collect::<Vec<_>>()
                },
                |part| {
                    self.went_through(part.len());
                    all.extend(part);
                    Ok(())
                },
            );
            let Ok(()) = done;
            all
        })
    }

    pub fn summary(&self) -> Summary {
        let mut summary = Summary {
            samples: self.samples.len() as u64,
            file_bytes: self.torch.file_len(),
            step: self.step,
            split: self.split,
            ..Summary::default()
        };
        for row in self.stats().iter().flatten() {
            summary.rows += 1;
            summary.closed += row.closed;
            summary.open += row.open;
            summary.instants += row.instants;
            summary.orphans += row.orphans;
            summary.skipped += row.skipped;
            summary.attempts = summary.attempts.max(row.attempts);
            summary.start = Some(summary.start.map_or(row.start, |s| s.min(row.start)));
            summary.end = Some(summary.end.map_or(row.end, |e| e.max(row.end)));
        }
        summary
    }

    /// Rows of our tables, batch by batch. Equal dumps give rows of equal identity.
    pub fn batches(
        &self,
        options: &ImportOptions,
        sink: &mut dyn FnMut(Table, RecordBatch) -> Result<(), ImportError>,
    ) -> Result<Imported, ImportError> {
        tables::write(self, options, sink)
    }
}

/// Names of samples, unique within a dump: their index, or their position.
#[derive(Default)]
struct Names(HashSet<String>);

impl Names {
    fn of(&mut self, torch: &Torch, index: Option<Value>, at: usize) -> String {
        let mut id = index.map_or_else(|| at.to_string(), |i| short(torch.python_str(i)));
        if !self.0.insert(id.clone()) {
            id = format!("{id}#{at}");
            self.0.insert(id.clone());
        }
        id
    }
}

fn step_and_split(torch: &Torch, path: &Path) -> (Option<i64>, &'static str) {
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let heap = &torch.heap;
    let step = heap.field(torch.root, "rollout_id").and_then(|id| heap.int(id)).or_else(|| digits(&stem));
    (step, if stem.contains("eval_") { "eval" } else { "train" })
}

/// The default run of a dump: the name of the folder that it is in, or of the one above where that only says what is in it.
pub fn default_run(path: &Path) -> String {
    let folder = home(path, |name| FOLDERS.contains(&name));
    let name = folder.file_name().or(path.file_stem());
    name.map_or_else(|| SERVICE.into(), |name| name.to_string_lossy().into_owned())
}

fn limit(what: &str, name: &'static str, value: u64, limit: u64) -> Result<(), ImportError> {
    if value <= limit { Ok(()) } else { Err(ImportError::Limit { what: format!("the number of {what}"), name, limit }) }
}

/// One sentence about a torch file that is something else.
fn no_dump(torch: &Torch) -> String {
    let root = torch.root;
    let what = match root.tag() {
        Tag::Dict => {
            let keys: Vec<String> = torch.heap.entries(root).take(5).map(|(k, _)| short(torch.python_str(k))).collect();
            format!(
                "a dict with {} entries ({}{})",
                torch.heap.len(root),
                keys.join(", "),
                if torch.heap.len(root) > 5 { ", ..." } else { "" }
            )
        }
        Tag::List | Tag::Tuple => "a list of something else".into(),
        Tag::Object => match torch.class_name(root) {
            Some((module, name)) => short(format!("an object of {module}.{name}")),
            None => "an object".into(),
        },
        _ => short(torch.python_str(root)),
    };
    format!(
        "this torch file is not a rollout dump; it contains {what} instead of {{\"samples\": [...]}} or a list of samples"
    )
}

fn short(text: String) -> String {
    match text.char_indices().nth(120) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

/// The last number in a file's name: `rollout_eval_12` is step 12.
fn digits(stem: &str) -> Option<i64> {
    let end = stem.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = stem[..end].trim_end_matches(|c: char| c.is_ascii_digit()).len();
    stem[start..end].parse().ok()
}

/// Where `--dump-details` puts dumps.
const FOLDERS: [&str; 2] = ["rollout_data", "train_data"];

/// The [`Importer`]. It maps the file itself: a dump is not read from front to back.
pub struct SlimeDump;

impl Importer for SlimeDump {
    fn name(&self) -> &'static str {
        "slime dump"
    }

    /// Deeper in a folder, other `.pt` files are checkpoints.
    fn belongs(&self, path: &Path) -> bool {
        let mut folders = path.parent().into_iter().flat_map(Path::iter);
        let is_known = |folder: &std::ffi::OsStr| folder.to_str().is_some_and(|name| FOLDERS.contains(&name));
        path.extension().is_some_and(|e| e == "pt") && folders.next_back().is_none_or(is_known)
    }

    fn detects(&self, head: &[u8], _path: &Path) -> bool {
        torch::detects(head)
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn std::io::Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        read_all(path, input, options, sink)
    }
}

/// The [`Importer`] of what is dumped of training.
pub struct SlimeTrainData;

impl Importer for SlimeTrainData {
    fn name(&self) -> &'static str {
        "slime train data"
    }

    /// The names of its fields are at the front. A rollout dump that has this one somewhere is read as what it is, all the same.
    fn detects(&self, head: &[u8], _path: &Path) -> bool {
        torch::detects(head) && memchr::memmem::find(head, b"response_lengths").is_some()
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn std::io::Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        read_all(path, input, options, sink)
    }
}

fn read_all(
    path: &Path,
    input: &mut dyn std::io::Read,
    options: &ImportOptions,
    sink: &mut Sink,
) -> Result<Imported, ImportError> {
    let mut head = [0; 64];
    let read = std::fs::File::open(path).and_then(|mut f| std::io::Read::read(&mut f, &mut head))?;
    let torch = if torch::detects(&head[..read]) {
        Torch::open(path)?
    } else {
        // Compressed as a whole: unpacked into memory.
        let mut bytes = Vec::new();
        std::io::Read::take(input, MAX_UNPACKED_BYTES + 1).read_to_end(&mut bytes)?;
        limit("bytes of the unpacked dump", "MAX_UNPACKED_BYTES", bytes.len() as u64, MAX_UNPACKED_BYTES)?;
        Torch::from_bytes(bytes)?
    };
    if train::is_train_data(&torch) {
        return train::write(&torch, path, options, sink);
    }
    Dump::new(torch, path, written_ns(path))?.batches(options, sink)
}
