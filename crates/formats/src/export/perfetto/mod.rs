//! Spans, metrics and series for Perfetto: its native protobuf, or Chrome's JSON.
//!
//! Batches come in any order. The content of a span is written at once, in the wanted format, into a [`spill::Spill`] (in
//! memory while it is small, else a file); of the span itself, a [`Record`] of about fifty bytes is kept. When all are read, parents and
//! links are resolved, every span gets its place ([`tracks`]) and slot ([`slots`]), and all is written in the order of time.
//! One span of the input is one slice (or one instant, if it has no duration by nature) of the output.

mod chrome;
mod proto;
mod slots;
mod spill;
mod tracks;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, BufWriter, Read, Write};
use std::path::PathBuf;

use arrow::array::RecordBatch;
use hashbrown::HashMap;
use rollscope_model::names::state;
use rollscope_model::read::{Floats, Ints, Spans, Text};
use xxhash_rust::xxh3::xxh3_64;

use super::rows;
use crate::import::ImportError;
use spill::Spill;
use tracks::{Key, Tracks};

/// Records and the numbers of the arrows that leave or reach them.
type Arrows = Vec<(u32, u32)>;

/// What is carried from a request to all that is done for it.
const CARRIED: [&str; 2] = ["rid", "bootstrap_room"];
/// Spans nested deeper than this are in a circle.
const MAX_NESTING: u32 = 10_000;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Perfetto's native protobuf.
    Proto,
    /// Chrome's JSON. Times are relative to `zero_ns`.
    Chrome { zero_ns: i64 },
}

pub struct Options {
    pub format: Format,
    /// Folder for the content of spans beyond `memory_bytes`.
    pub spill_folder: PathBuf,
    pub memory_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { format: Format::Proto, spill_folder: std::env::temp_dir(), memory_bytes: 4 << 20 }
    }
}

/// What became of the input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// One for each span.
    pub slices: u64,
    pub instants: u64,
    /// Events of spans.
    pub events: u64,
    pub flows: u64,
    pub counters: u64,
    /// Spans that came again and are there once.
    pub duplicates: u64,
    /// Links and parents that are not in the input.
    pub links_elsewhere: u64,
    pub parents_missing: u64,
    /// Values that are not numbers, which neither format can draw.
    pub values_left_out: u64,
    /// Events of a merged profile.
    pub merged: u64,
}

/// One thing to draw.
struct Item<'a> {
    time: i64,
    place: u32,
    slot: u32,
    payload: &'a [u8],
    carried: &'a [u8],
    /// Arrows that begin here, and that end here: (record, arrow).
    leaves: &'a [(u32, u32)],
    arrives: &'a [(u32, u32)],
}

/// A format.
trait Encoder {
    /// The content of a span, apart from its time and place.
    fn span(&mut self, out: &mut Vec<u8>, spans: &Spans, row: usize);
    fn event(&mut self, out: &mut Vec<u8>, spans: &Spans, i: usize);
    fn carried(&mut self, out: &mut Vec<u8>, key: &str, json: &str);
    fn begin(&mut self, to: &mut dyn Write, tracks: &Tracks, first_ns: i64) -> io::Result<()>;
    fn slice(&mut self, to: &mut dyn Write, tracks: &Tracks, item: &Item, end: Option<i64>) -> io::Result<()>;
    fn slice_end(&mut self, to: &mut dyn Write, tracks: &Tracks, place: u32, slot: u32, end: i64) -> io::Result<()>;
    fn instant(&mut self, to: &mut dyn Write, tracks: &Tracks, item: &Item) -> io::Result<()>;
    fn counter(&mut self, to: &mut dyn Write, tracks: &Tracks, counter: u32, time: i64, value: f64) -> io::Result<()>;
    fn finish(&mut self, to: &mut dyn Write) -> io::Result<()>;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Slice,
    /// A slice without an end.
    Open,
    Instant,
    /// An event of the span in `parent`.
    Event,
    /// A value; `place` is the counter.
    Counter,
}

struct Record {
    start: i64,
    /// Of a counter: the bits of its value.
    end: i64,
    at: u64,
    len: u32,
    parent: u32,
    place: u32,
    slot: u32,
    carried: u32,
    service: u32,
    kind: Kind,
}

pub struct Exporter {
    encoder: Box<dyn Encoder>,
    chrome: Option<chrome::Chrome>,
    tracks: Tracks,
    spill: Spill,
    records: Vec<Record>,
    /// Key of the parent, until all are known.
    parents: Vec<u64>,
    ids: HashMap<u64, u32>,
    /// (record that links, key of what it links to)
    links: Vec<(u32, u64)>,
    carried: Vec<Vec<u8>>,
    /// The place of a span that names none and has no ancestor that does.
    services: std::collections::HashMap<Key, u32>,
    /// Neighbours are mostly of the same service.
    last_service: Option<(Key, u32)>,
    written: Written,
}

fn key(trace: &[u8], span: &[u8]) -> u64 {
    let mut both = [0; 24];
    both[..16].copy_from_slice(trace);
    both[16..].copy_from_slice(span);
    // Zero means "none".
    xxh3_64(&both).max(1)
}

fn hex(id: &[u8]) -> String {
    // Four ids a span: `hex::encode`, which goes by characters, was a thirtieth of an export.
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    id.iter().flat_map(|b| [b >> 4, b & 15]).fold(String::with_capacity(id.len() * 2), |mut text, half| {
        text.push(DIGITS[half as usize] as char);
        text
    })
}

impl Exporter {
    pub fn new(options: &Options) -> Self {
        let encoder: Box<dyn Encoder> = match options.format {
            Format::Proto => Box::new(proto::Proto::default()),
            Format::Chrome { zero_ns } => Box::new(chrome::Chrome::new(zero_ns)),
        };
        let chrome = match options.format {
            Format::Proto => None,
            Format::Chrome { zero_ns } => Some(chrome::Chrome::new(zero_ns)),
        };
        Exporter {
            encoder,
            chrome,
            tracks: Tracks::default(),
            spill: Spill::new(&options.spill_folder, options.memory_bytes),
            records: Vec::new(),
            parents: Vec::new(),
            ids: HashMap::default(),
            links: Vec::new(),
            carried: Vec::new(),
            services: std::collections::HashMap::new(),
            last_service: None,
            written: Written::default(),
        }
    }

    /// Process ids that a merged profile uses.
    pub fn reserve_pids(&mut self, pids: impl IntoIterator<Item = i64>) {
        self.tracks.reserve(pids);
    }

    /// Rows of `spans`.
    pub fn spans(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let spans = rows::spans(batch);
        for row in 0..spans.len() {
            self.span(&spans, row)?;
        }
        Ok(())
    }

    fn span(&mut self, spans: &Spans, row: usize) -> io::Result<()> {
        let id = key(&spans.trace_id.at(row), &spans.span_id.at(row));
        let (start, end) = (spans.start_ns.at(row), spans.end_ns.get(row));
        let kind = match spans.state.get(row) {
            Some(state::INSTANT | state::ORPHAN_END) => Kind::Instant,
            _ if end.is_none() => Kind::Open,
            _ => Kind::Slice,
        };
        let index = self.records.len() as u32;
        let index = match self.ids.get(&id) {
            None => {
                self.ids.insert(id, index);
                index
            }
            // The end of a span replaces what was known while it was open; anything else that comes again is the same.
            Some(known) if kind == Kind::Slice && self.records[*known as usize].kind == Kind::Open => {
                self.written.duplicates += 1;
                *known
            }
            Some(_) => {
                self.written.duplicates += 1;
                return Ok(());
            }
        };
        let (at, encoder) = (self.spill.at(), &mut self.encoder);
        let len = self.spill.push(|out| encoder.span(out, spans, row))?;
        let mut carried = Vec::new();
        for (name, json) in spans.attrs(row).filter(|(name, _)| CARRIED.contains(name)) {
            self.encoder.carried(&mut carried, name, json);
        }
        let carried = if carried.is_empty() {
            NONE
        } else {
            self.carried.push(carried);
            self.carried.len() as u32 - 1
        };
        let service = match &self.last_service {
            Some((last, number)) if last.is_service_of(spans, row) => *number,
            _ => {
                let key = Key::service(spans, row);
                let services = self.services.len() as u32;
                let number = *self.services.entry(key.clone()).or_insert(services);
                self.last_service = Some((key, number));
                number
            }
        };
        let place = match Key::own(spans, row) {
            Some(key) => self.tracks.place(key),
            None => NONE,
        };
        let record = Record {
            start,
            end: end.map_or(i64::MAX, |end| end.max(start)),
            at,
            len,
            parent: NONE,
            place,
            slot: 0,
            carried,
            service,
            kind,
        };
        let parent = spans.parent_span_id.get(row).map_or(0, |parent| key(&spans.trace_id.at(row), &parent));
        if (index as usize) < self.records.len() {
            self.records[index as usize] = record;
            self.parents[index as usize] = parent;
            self.links.retain(|(from, _)| *from != index);
        } else {
            self.records.push(record);
            self.parents.push(parent);
        }
        for i in spans.links.of(row) {
            self.links.push((index, key(&spans.links.trace_id.at(i), &spans.links.span_id.at(i))));
        }
        for i in spans.events.of(row) {
            let (at, encoder) = (self.spill.at(), &mut self.encoder);
            let len = self.spill.push(|out| encoder.event(out, spans, i))?;
            let time = spans.events.time_ns.at(i);
            self.push(Record { start: time, end: time, at, len, parent: index, kind: Kind::Event, ..EMPTY });
        }
        Ok(())
    }

    fn push(&mut self, record: Record) {
        self.records.push(record);
        self.parents.push(0);
    }

    /// Rows of `metrics`.
    pub fn metrics(&mut self, batch: &RecordBatch) {
        let (names, runs): (Text, Text) = (rows::column(batch, "name"), rows::column(batch, "run_id"));
        let (times, values): (Ints, Floats) = (rows::column(batch, "time_ns"), rows::column(batch, "value"));
        for row in 0..batch.num_rows() {
            let of = format!("metrics of {}", runs.at(row));
            self.value(&of, names.at(row), times.at(row), values.at(row));
        }
    }

    /// Rows of `series`.
    pub fn series(&mut self, batch: &RecordBatch) {
        let [targets, names, labels]: [Text; 3] = ["target", "name", "labels"].map(|name| rows::column(batch, name));
        let (times, values): (Ints, Floats) = (rows::column(batch, "time_ns"), rows::column(batch, "value"));
        for row in 0..batch.num_rows() {
            let name = names.at(row);
            let name = match labels.get(row) {
                None | Some("{}" | "") => name.to_string(),
                Some(labels) => format!("{name}{labels}"),
            };
            self.value(targets.at(row), &name, times.at(row), values.at(row));
        }
    }

    fn value(&mut self, of: &str, name: &str, time: i64, value: f64) {
        if !value.is_finite() {
            self.written.values_left_out += 1;
            return;
        }
        let place = self.tracks.counter(of, name);
        self.push(Record { start: time, end: value.to_bits() as i64, place, kind: Kind::Counter, ..EMPTY });
    }

    /// Writes everything. `profile` is a torch profile to pass through, where the format is Chrome's.
    pub fn finish(mut self, to: &mut dyn Write, profile: Option<&mut dyn Read>) -> Result<Written, ImportError> {
        let mut to = BufWriter::with_capacity(1 << 20, to);
        let (leaves, arrives) = self.resolve();
        let order = self.order();
        self.place_all(&order);
        self.tracks.settle();
        if let (Some(mut chrome), Some(profile)) = (self.chrome.take(), profile) {
            self.written.merged = chrome.merge(&mut to, profile)?;
            self.encoder = Box::new(chrome);
        }
        let first = order.first().map_or(0, |i| self.records[*i as usize].start);
        self.encoder.begin(&mut to, &self.tracks, first)?;
        self.write(&mut to, &order, &leaves, &arrives)?;
        self.encoder.finish(&mut to)?;
        to.flush()?;
        Ok(self.written)
    }

    /// Parents, places and links, now that all spans are known. Gives the arrows by the record they leave and reach.
    fn resolve(&mut self) -> (Arrows, Arrows) {
        for (i, parent) in std::mem::take(&mut self.parents).into_iter().enumerate() {
            if parent == 0 {
                continue;
            }
            match self.ids.get(&parent) {
                Some(found) if *found != i as u32 => self.records[i].parent = *found,
                Some(_) => {}
                None => self.written.parents_missing += 1,
            }
        }
        let mut arrows: Vec<(u32, u32)> = Vec::new();
        for (from, target) in std::mem::take(&mut self.links) {
            match self.ids.get(&target) {
                Some(target) if *target != from => arrows.push((*target, from)),
                Some(_) => {}
                None => self.written.links_elsewhere += 1,
            }
        }
        self.ids = HashMap::default();
        self.inherit();
        // A parent elsewhere is shown by an arrow too: on the same track it is shown by nesting.
        for i in 0..self.records.len() {
            let Record { parent, place, kind, .. } = self.records[i];
            if parent != NONE && kind != Kind::Event && kind != Kind::Counter {
                let process = |place: u32| self.tracks.places[place as usize].process;
                if process(self.records[parent as usize].place) != process(place) {
                    arrows.push((parent, i as u32));
                }
            }
        }
        self.written.flows = arrows.len() as u64;
        let (mut leaves, mut arrives) = (Vec::with_capacity(arrows.len()), Vec::with_capacity(arrows.len()));
        for (n, (a, b)) in arrows.into_iter().enumerate() {
            // Arrows go forward in time.
            let swap = self.records[a as usize].start > self.records[b as usize].start;
            let (a, b) = if swap { (b, a) } else { (a, b) };
            leaves.push((a, n as u32));
            arrives.push((b, n as u32));
        }
        leaves.sort_unstable();
        arrives.sort_unstable();
        (leaves, arrives)
    }

    /// What a span does not state itself comes from the nearest ancestor that does: its thread, the sample if it is of
    /// the same service, and the request.
    fn inherit(&mut self) {
        let mut keys: Vec<Option<Key>> = vec![None; self.services.len()];
        for (key, n) in std::mem::take(&mut self.services) {
            keys[n as usize] = Some(key);
        }
        let mut service_places = vec![NONE; keys.len()];
        let mut path = Vec::new();
        for i in 0..self.records.len() as u32 {
            let kind = self.records[i as usize].kind;
            if kind == Kind::Counter || kind == Kind::Event {
                continue;
            }
            // Up to the first that is settled; then down again.
            path.clear();
            let mut at = i;
            while at != NONE && self.records[at as usize].slot == 0 && path.len() < MAX_NESTING as usize {
                path.push(at);
                at = self.records[at as usize].parent;
            }
            while let Some(at) = path.pop() {
                let record = &self.records[at as usize];
                let parent = (record.parent != NONE).then(|| &self.records[record.parent as usize]);
                let mut place = record.place;
                let mut carried = record.carried;
                if let Some(parent) = parent.filter(|p| p.place != NONE) {
                    if place == NONE && (self.tracks.is_thread(parent.place) || parent.service == record.service) {
                        place = parent.place;
                    }
                    if carried == NONE {
                        carried = parent.carried;
                    }
                }
                if place == NONE {
                    let service = record.service as usize;
                    if service_places[service] == NONE
                        && let Some(key) = keys[service].take()
                    {
                        service_places[service] = self.tracks.place(key);
                    }
                    place = service_places[service];
                }
                let record = &mut self.records[at as usize];
                record.place = place;
                record.carried = carried;
                // The slot is not in use yet: it marks what is settled.
                record.slot = 1;
            }
        }
    }

    /// Records in the order they are written: by time, the longer first, parents before children.
    fn order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.records.len() as u32).collect();
        let depth = |mut i: u32| {
            let mut depth = 0;
            while self.records[i as usize].parent != NONE && depth < MAX_NESTING {
                i = self.records[i as usize].parent;
                depth += 1;
            }
            depth
        };
        let is_slice = |r: &Record| matches!(r.kind, Kind::Slice | Kind::Open);
        order.sort_unstable_by(|a, b| {
            let (x, y) = (&self.records[*a as usize], &self.records[*b as usize]);
            x.start
                .cmp(&y.start)
                .then_with(|| is_slice(y).cmp(&is_slice(x)))
                .then_with(|| y.end.cmp(&x.end))
                .then_with(|| if is_slice(x) { depth(*a).cmp(&depth(*b)) } else { std::cmp::Ordering::Equal })
                .then_with(|| a.cmp(b))
        });
        order
    }

    fn place_all(&mut self, order: &[u32]) {
        for record in &mut self.records {
            record.slot = NONE;
        }
        for i in order {
            let record = &self.records[*i as usize];
            if !matches!(record.kind, Kind::Slice | Kind::Open) {
                continue;
            }
            let parent = (record.parent != NONE).then(|| (record.parent, &self.records[record.parent as usize]));
            let parent = parent.filter(|(_, p)| p.place == record.place && p.slot != NONE).map(|(i, p)| (i, p.slot));
            let slots = &mut self.tracks.places[record.place as usize].slots;
            let slot = slots.place(*i, record.start, record.end, parent);
            self.records[*i as usize].slot = slot;
        }
        // Instants go where their parent is, or on the first line of their place.
        for i in 0..self.records.len() {
            let Record { kind, parent, place, .. } = self.records[i];
            if !matches!(kind, Kind::Instant | Kind::Event) {
                continue;
            }
            let above = (parent != NONE).then(|| &self.records[parent as usize]);
            let (place, slot) = match (above, kind) {
                (Some(above), Kind::Event) => (above.place, above.slot),
                (Some(above), _) if above.place == place => (place, above.slot),
                _ => (place, 0),
            };
            self.records[i].place = place;
            self.records[i].slot = if slot == NONE { 0 } else { slot };
            self.tracks.places[place as usize].slots.at_least_one();
        }
    }

    fn write(
        &mut self,
        to: &mut dyn Write,
        order: &[u32],
        leaves: &[(u32, u32)],
        arrives: &[(u32, u32)],
    ) -> io::Result<()> {
        let of = |list: &'_ [(u32, u32)], record: u32| {
            let from = list.partition_point(|(r, _)| *r < record);
            from..from + list[from..].iter().take_while(|(r, _)| *r == record).count()
        };
        // Ends that are due: at the same time the one that began last goes first.
        let mut ends: BinaryHeap<Reverse<(i64, Reverse<u32>, u32)>> = BinaryHeap::new();
        let written = &mut self.written;
        for (n, i) in order.iter().enumerate() {
            let record = &self.records[*i as usize];
            while let Some(Reverse((end, _, ended))) = ends.peek().copied() {
                if end > record.start {
                    break;
                }
                ends.pop();
                let ended = &self.records[ended as usize];
                self.encoder.slice_end(to, &self.tracks, ended.place, ended.slot, end)?;
            }
            if record.kind == Kind::Counter {
                let value = f64::from_bits(record.end as u64);
                self.encoder.counter(to, &self.tracks, record.place, record.start, value)?;
                written.counters += 1;
                continue;
            }
            let carries_itself = record.kind == Kind::Event || record.carried == NONE || owns(&self.records, *i);
            let item = Item {
                time: record.start,
                place: record.place,
                slot: record.slot,
                payload: self.spill.get(record.at, record.len)?,
                carried: if carries_itself { &[] } else { &self.carried[record.carried as usize] },
                leaves: &leaves[of(leaves, *i)],
                arrives: &arrives[of(arrives, *i)],
            };
            match record.kind {
                Kind::Slice => {
                    self.encoder.slice(to, &self.tracks, &item, Some(record.end))?;
                    written.slices += 1;
                    if record.end == record.start {
                        self.encoder.slice_end(to, &self.tracks, record.place, record.slot, record.end)?;
                    } else {
                        ends.push(Reverse((record.end, Reverse(n as u32), *i)));
                    }
                }
                Kind::Open => {
                    self.encoder.slice(to, &self.tracks, &item, None)?;
                    written.slices += 1;
                }
                Kind::Event => {
                    self.encoder.instant(to, &self.tracks, &item)?;
                    written.events += 1;
                }
                Kind::Instant | Kind::Counter => {
                    self.encoder.instant(to, &self.tracks, &item)?;
                    written.instants += 1;
                }
            }
        }
        while let Some(Reverse((end, _, ended))) = ends.pop() {
            let ended = &self.records[ended as usize];
            self.encoder.slice_end(to, &self.tracks, ended.place, ended.slot, end)?;
        }
        Ok(())
    }
}

/// Whether what a span carries is its own, and so among its attributes already.
fn owns(records: &[Record], i: u32) -> bool {
    let record = &records[i as usize];
    record.parent == NONE || records[record.parent as usize].carried != record.carried
}

const EMPTY: Record = Record {
    start: 0,
    end: 0,
    at: 0,
    len: 0,
    parent: NONE,
    place: NONE,
    slot: 0,
    carried: NONE,
    service: 0,
    kind: Kind::Event,
};
