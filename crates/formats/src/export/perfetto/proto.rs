//! Perfetto's native format: protobuf written by hand, one packet an event. Field numbers are those of
//! `perfetto/protos/perfetto/trace/perfetto_trace.proto`; the tests read the result back with Perfetto's own definitions.

use hashbrown::HashMap;
use std::io::{self, Write};

use rollscope_model::protobuf::{bytes, fixed64, message, number};
use rollscope_model::read::Spans;

use super::{Encoder, Item, Tracks, hex};
use crate::json::{Error, Reader};

/// Distinct texts that are kept once and referred to by number; more are written in place.
const MAX_INTERNED: usize = 100_000;
/// Longer texts are written in place.
const MAX_INTERNED_BYTES: usize = 4096;
/// Deeper values are written as text.
const MAX_DEPTH: usize = 32;

const SEQUENCE: u64 = 1;
const STATE_CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;

mod packet {
    pub const CLOCK_SNAPSHOT: u32 = 6;
    pub const TIMESTAMP: u32 = 8;
    pub const SEQUENCE_ID: u32 = 10;
    pub const TRACK_EVENT: u32 = 11;
    pub const INTERNED_DATA: u32 = 12;
    pub const SEQUENCE_FLAGS: u32 = 13;
    pub const TRACK_DESCRIPTOR: u32 = 60;
}

mod event {
    pub const CATEGORY_IIDS: u32 = 3;
    pub const DEBUG_ANNOTATIONS: u32 = 4;
    pub const TYPE: u32 = 9;
    pub const NAME_IID: u32 = 10;
    pub const TRACK_UUID: u32 = 11;
    pub const CATEGORIES: u32 = 22;
    pub const NAME: u32 = 23;
    pub const DOUBLE_COUNTER_VALUE: u32 = 44;
    pub const FLOW_IDS: u32 = 47;
    pub const TERMINATING_FLOW_IDS: u32 = 48;
}

mod annotation {
    pub const NAME_IID: u32 = 1;
    pub const BOOL: u32 = 2;
    pub const INT: u32 = 4;
    pub const DOUBLE: u32 = 5;
    pub const STRING: u32 = 6;
    pub const NAME: u32 = 10;
    pub const DICT_ENTRIES: u32 = 11;
    pub const ARRAY_VALUES: u32 = 12;
    pub const STRING_IID: u32 = 17;
}

mod interned {
    pub const CATEGORIES: u32 = 1;
    pub const NAMES: u32 = 2;
    pub const ANNOTATION_NAMES: u32 = 3;
    pub const ANNOTATION_STRINGS: u32 = 29;
}

const BEGIN: u64 = 1;
const END: u64 = 2;
const INSTANT: u64 = 3;
const COUNTER: u64 = 4;

/// Texts by number. Numbers start at 1.
#[derive(Default)]
struct Interned {
    numbers: HashMap<String, u64>,
    texts: Vec<String>,
}

impl Interned {
    fn get(&mut self, text: &str) -> Option<u64> {
        if let Some(n) = self.numbers.get(text) {
            return Some(*n);
        }
        if self.texts.len() >= MAX_INTERNED || text.len() > MAX_INTERNED_BYTES {
            return None;
        }
        self.texts.push(text.to_string());
        let n = self.texts.len() as u64;
        self.numbers.insert(text.to_string(), n);
        Some(n)
    }
}

#[derive(Default)]
pub struct Proto {
    names: Interned,
    categories: Interned,
    keys: Interned,
    strings: Interned,
    packet: Vec<u8>,
}

impl Proto {
    fn name(&mut self, out: &mut Vec<u8>, name: &str, category: &str) {
        match self.names.get(name) {
            Some(iid) => number(out, event::NAME_IID, iid),
            None => bytes(out, event::NAME, name.as_bytes()),
        }
        match self.categories.get(category) {
            Some(iid) => number(out, event::CATEGORY_IIDS, iid),
            None => bytes(out, event::CATEGORIES, category.as_bytes()),
        }
    }

    fn key(&mut self, out: &mut Vec<u8>, key: &str) {
        match self.keys.get(key) {
            Some(iid) => number(out, annotation::NAME_IID, iid),
            None => bytes(out, annotation::NAME, key.as_bytes()),
        }
    }

    fn text_annotation(&mut self, out: &mut Vec<u8>, field: u32, key: &str, text: &str) {
        message(out, field, |out| {
            self.key(out, key);
            bytes(out, annotation::STRING, text.as_bytes());
        });
    }

    /// A text that many spans share.
    fn shared(&mut self, out: &mut Vec<u8>, field: u32, key: &str, text: &str) {
        message(out, field, |out| {
            self.key(out, key);
            match self.strings.get(text) {
                Some(iid) => number(out, annotation::STRING_IID, iid),
                None => bytes(out, annotation::STRING, text.as_bytes()),
            }
        });
    }

    fn int(&mut self, out: &mut Vec<u8>, field: u32, key: &str, value: i64) {
        message(out, field, |out| {
            self.key(out, key);
            number(out, annotation::INT, value as u64);
        });
    }

    /// One attribute: its value is JSON text of ours.
    fn attribute(&mut self, out: &mut Vec<u8>, field: u32, key: &str, json: &str) {
        message(out, field, |out| {
            self.key(out, key);
            let at = out.len();
            let mut reader = Reader::new(json.as_bytes());
            if self.value(out, &mut reader, 0).is_err() {
                // Deeper than can be shown, or no JSON: nothing is lost as text.
                out.truncate(at);
                bytes(out, annotation::STRING, json.as_bytes());
            }
        });
    }

    fn value(&mut self, out: &mut Vec<u8>, r: &mut Reader, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::Type { at: r.pos() });
        }
        match r.peek()? {
            b'"' => bytes(out, annotation::STRING, r.string()?.as_bytes()),
            b't' | b'f' => number(out, annotation::BOOL, u64::from(r.bool()?)),
            b'n' => {
                r.null()?;
                bytes(out, annotation::STRING, b"null");
            }
            b'[' => {
                r.begin(b'[')?;
                let mut first = true;
                while r.element(&mut first)? {
                    message(out, annotation::ARRAY_VALUES, |out| self.value(out, r, depth + 1))?;
                }
            }
            b'{' => {
                r.begin(b'{')?;
                let (mut first, mut members) = (true, 0);
                let at = out.len();
                let mut marked = None;
                while let Some(key) = r.key(&mut first)? {
                    members += 1;
                    if key == "$double" && r.peek()? == b'"' {
                        marked = r.string()?.parse::<f64>().ok();
                        continue;
                    }
                    let key = if key.starts_with("$$") { &key[1..] } else { &key };
                    message(out, annotation::DICT_ENTRIES, |out| {
                        self.key(out, key);
                        self.value(out, r, depth + 1)
                    })?;
                }
                if let (Some(double), 1) = (marked, members) {
                    out.truncate(at);
                    fixed64(out, annotation::DOUBLE, double.to_bits());
                }
            }
            _ => {
                let text = r.number()?;
                match (text.parse::<i64>(), text.parse::<f64>()) {
                    (Ok(int), _) => number(out, annotation::INT, int as u64),
                    (_, Ok(double)) => fixed64(out, annotation::DOUBLE, double.to_bits()),
                    _ => bytes(out, annotation::STRING, text.as_bytes()),
                }
            }
        }
        Ok(())
    }

    fn packet(&mut self, to: &mut dyn Write, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut packet = std::mem::take(&mut self.packet);
        packet.clear();
        message(&mut packet, 1, write);
        let done = to.write_all(&packet);
        self.packet = packet;
        done
    }

    fn event(
        &mut self,
        to: &mut dyn Write,
        time: i64,
        kind: u64,
        track: u64,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> io::Result<()> {
        self.packet(to, |out| {
            number(out, packet::TIMESTAMP, time.max(0) as u64);
            number(out, packet::SEQUENCE_ID, SEQUENCE);
            number(out, packet::SEQUENCE_FLAGS, NEEDS_STATE);
            message(out, packet::TRACK_EVENT, |out| {
                number(out, event::TYPE, kind);
                number(out, event::TRACK_UUID, track);
                write(out);
            });
        })
    }

    fn descriptor(&mut self, to: &mut dyn Write, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.packet(to, |out| {
            number(out, packet::SEQUENCE_ID, SEQUENCE);
            message(out, packet::TRACK_DESCRIPTOR, write);
        })
    }

    fn table(&self, out: &mut Vec<u8>, field: u32, table: &Interned) {
        for (i, text) in table.texts.iter().enumerate() {
            message(out, field, |out| {
                number(out, 1, i as u64 + 1);
                bytes(out, 2, text.as_bytes());
            });
        }
    }
}

impl Encoder for Proto {
    fn span(&mut self, out: &mut Vec<u8>, spans: &Spans, row: usize) {
        self.name(out, spans.name.at(row), spans.service.at(row));
        for (key, json) in spans.attrs(row) {
            self.attribute(out, event::DEBUG_ANNOTATIONS, key, json);
        }
        message(out, event::DEBUG_ANNOTATIONS, |out| {
            self.key(out, "span");
            let field = annotation::DICT_ENTRIES;
            self.text_annotation(out, field, "trace_id", &hex(&spans.trace_id.at(row)));
            self.text_annotation(out, field, "span_id", &hex(&spans.span_id.at(row)));
            if let Some(parent) = spans.parent_span_id.get(row) {
                self.text_annotation(out, field, "parent_span_id", &hex(&parent));
            }
            let shared = [
                ("kind", &spans.kind, "internal"),
                ("state", &spans.state, "closed"),
                ("status", &spans.status, "unset"),
                ("status_message", &spans.status_message, ""),
                ("phase", &spans.phase, ""),
                ("sample_id", &spans.sample_id, ""),
                ("group_id", &spans.group_id, ""),
                ("run_id", &spans.run_id, ""),
                ("resource", &spans.resource, "{}"),
            ];
            for (key, column, usual) in shared {
                if let Some(text) = column.get(row).filter(|t| *t != usual) {
                    self.shared(out, field, key, text);
                }
            }
            let step = spans.step.get(row);
            let attempt = spans.attempt.get(row).map(i64::from);
            for (key, value) in [("step", step), ("attempt", attempt), ("pid", spans.pid.get(row))] {
                if let Some(value) = value {
                    self.int(out, field, key, value);
                }
            }
            for i in spans.links.of(row) {
                message(out, field, |out| {
                    self.key(out, "link");
                    self.text_annotation(out, field, "trace_id", &hex(&spans.links.trace_id.at(i)));
                    self.text_annotation(out, field, "span_id", &hex(&spans.links.span_id.at(i)));
                    for (key, json) in spans.links.attrs.row(i) {
                        self.attribute(out, field, key, json);
                    }
                });
            }
            if let Some(end) = spans.end_ns.get(row).filter(|end| *end < spans.start_ns.at(row)) {
                self.int(out, field, "ended_before_start_ns", spans.start_ns.at(row).wrapping_sub(end));
            }
        });
    }

    fn event(&mut self, out: &mut Vec<u8>, spans: &Spans, i: usize) {
        self.name(out, spans.events.name.at(i), "event");
        for (key, json) in spans.events.attrs.row(i) {
            self.attribute(out, event::DEBUG_ANNOTATIONS, key, json);
        }
    }

    fn carried(&mut self, out: &mut Vec<u8>, key: &str, json: &str) {
        self.attribute(out, event::DEBUG_ANNOTATIONS, key, json);
    }

    fn begin(&mut self, to: &mut dyn Write, tracks: &Tracks, first_ns: i64) -> io::Result<()> {
        // Time is the wall clock's: a snapshot in which both clocks agree lets Perfetto show dates.
        self.packet(to, |out| {
            number(out, packet::SEQUENCE_ID, SEQUENCE);
            message(out, packet::CLOCK_SNAPSHOT, |out| {
                for clock in [6, 1] {
                    message(out, 1, |out| {
                        number(out, 1, clock);
                        number(out, 2, first_ns.max(0) as u64);
                    });
                }
            });
        })?;
        for (i, process) in tracks.processes.iter().enumerate() {
            self.descriptor(to, |out| {
                number(out, 1, tracks.process_uuid(i));
                message(out, 3, |out| {
                    number(out, 1, process.pid as u64);
                    bytes(out, 6, process.name.as_bytes());
                });
                number(out, 11, 3);
            })?;
        }
        let mut rank = 0u64;
        for (i, place) in tracks.places.iter().enumerate() {
            for slot in 0..place.slots.len() {
                rank += 1;
                self.descriptor(to, |out| {
                    number(out, 1, tracks.slot_uuid(i as u32, slot as u32));
                    bytes(out, 2, place.slot_name(slot).as_bytes());
                    number(out, 5, tracks.process_uuid(place.process as usize));
                    number(out, 12, rank);
                })?;
            }
        }
        for (i, counter) in tracks.counters.iter().enumerate() {
            self.descriptor(to, |out| {
                number(out, 1, tracks.counter_uuid(i as u32));
                bytes(out, 2, counter.name.as_bytes());
                number(out, 5, tracks.process_uuid(counter.process as usize));
                message(out, 8, |_| {});
            })?;
        }
        let mut data = Vec::new();
        self.table(&mut data, interned::CATEGORIES, &self.categories);
        self.table(&mut data, interned::NAMES, &self.names);
        self.table(&mut data, interned::ANNOTATION_NAMES, &self.keys);
        self.table(&mut data, interned::ANNOTATION_STRINGS, &self.strings);
        self.packet(to, |out| {
            number(out, packet::SEQUENCE_ID, SEQUENCE);
            number(out, packet::SEQUENCE_FLAGS, STATE_CLEARED);
            bytes(out, packet::INTERNED_DATA, &data);
        })
    }

    fn slice(&mut self, to: &mut dyn Write, tracks: &Tracks, item: &Item, _: Option<i64>) -> io::Result<()> {
        Proto::event(self, to, item.time, BEGIN, tracks.slot_uuid(item.place, item.slot), |out| body(out, item))
    }

    fn slice_end(&mut self, to: &mut dyn Write, tracks: &Tracks, place: u32, slot: u32, end: i64) -> io::Result<()> {
        Proto::event(self, to, end, END, tracks.slot_uuid(place, slot), |_| {})
    }

    fn instant(&mut self, to: &mut dyn Write, tracks: &Tracks, item: &Item) -> io::Result<()> {
        Proto::event(self, to, item.time, INSTANT, tracks.slot_uuid(item.place, item.slot), |out| body(out, item))
    }

    fn counter(&mut self, to: &mut dyn Write, tracks: &Tracks, counter: u32, time: i64, value: f64) -> io::Result<()> {
        Proto::event(self, to, time, COUNTER, tracks.counter_uuid(counter), |out| {
            fixed64(out, event::DOUBLE_COUNTER_VALUE, value.to_bits());
        })
    }

    fn finish(&mut self, _to: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}

fn body(out: &mut Vec<u8>, item: &Item) {
    out.extend_from_slice(item.payload);
    out.extend_from_slice(item.carried);
    for (_, flow) in item.leaves {
        fixed64(out, event::FLOW_IDS, u64::from(*flow) + 1);
    }
    for (_, flow) in item.arrives {
        fixed64(out, event::TERMINATING_FLOW_IDS, u64::from(*flow) + 1);
    }
}
