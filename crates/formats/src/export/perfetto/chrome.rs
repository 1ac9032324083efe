//! Chrome's trace event format: JSON that chrome://tracing, Perfetto and TensorBoard read. Microseconds with three
//! decimals, written as text, so that no nanosecond is lost on our side. A torch profile can be written first, its events
//! passed through; then its zero is ours.

use std::io::{self, Read, Write};

use rollscope_model::attrs;
use rollscope_model::read::Spans;

use super::{Encoder, Item, Tracks, hex};
use crate::import::ImportError;
use crate::import::chrome::events;
use crate::json::Reader;

/// What SGLang's merge leaves out of a torch profile: a copy of the annotations that hides the kernels under it.
const DROPPED_CATEGORY: &str = "gpu_user_annotation";

#[derive(Default)]
pub struct Chrome {
    /// Times are written relative to this.
    zero_ns: i64,
    line: Vec<u8>,
    started: bool,
}

impl Chrome {
    pub fn new(zero_ns: i64) -> Self {
        Chrome { zero_ns, ..Chrome::default() }
    }

    fn open(&mut self, to: &mut dyn Write) -> io::Result<()> {
        if !std::mem::replace(&mut self.started, true) {
            to.write_all(b"{\"displayTimeUnit\":\"ns\",")?;
            if self.zero_ns != 0 {
                write!(to, "\"baseTimeNanoseconds\":{},", self.zero_ns)?;
            }
            to.write_all(b"\"traceEvents\":[\n")?;
            // A list that ends in a comma is not JSON, so an empty event comes first.
            to.write_all(b"{\"ph\":\"M\",\"name\":\"trace_writer\",\"pid\":0,\"args\":{\"name\":\"rollscope\"}}")?;
        }
        Ok(())
    }

    fn event(&mut self, to: &mut dyn Write, write: impl FnOnce(&Self, &mut Vec<u8>)) -> io::Result<()> {
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        line.extend_from_slice(b",\n{");
        write(self, &mut line);
        line.push(b'}');
        let done = to.write_all(&line);
        self.line = line;
        done
    }

    /// What the span or event brought along, where and when.
    fn body(&self, out: &mut Vec<u8>, tracks: &Tracks, item: &Item) {
        out.extend_from_slice(item.payload);
        out.extend_from_slice(item.carried);
        out.push(b'}');
        place(out, tracks, item.place, item.slot);
        self.time(out, ",\"ts\":", item.time);
    }

    fn time(&self, out: &mut Vec<u8>, key: &str, ns: i64) {
        out.extend_from_slice(key.as_bytes());
        microseconds(out, ns.saturating_sub(self.zero_ns));
    }

    fn flows(&mut self, to: &mut dyn Write, tracks: &Tracks, at: &Item) -> io::Result<()> {
        let ends = at.leaves.iter().map(|f| (f.1, "s")).chain(at.arrives.iter().map(|f| (f.1, "f")));
        for (flow, phase) in ends {
            self.event(to, |own, out| {
                let _ = write!(
                    out,
                    "\"ph\":\"{phase}\",\"bp\":\"e\",\"name\":\"link\",\"cat\":\"link\",\"id\":{}",
                    flow + 1
                );
                place(out, tracks, at.place, at.slot);
                own.time(out, ",\"ts\":", at.time);
            })?;
        }
        Ok(())
    }

    /// Events of a torch profile, as they are, before ours. Gives how many were passed on.
    pub fn merge(&mut self, to: &mut dyn Write, profile: &mut dyn Read) -> Result<u64, ImportError> {
        self.open(to)?;
        let mut passed = 0;
        events(profile, &mut |event| {
            if category(event).as_deref() != Some(DROPPED_CATEGORY) {
                to.write_all(b",\n")?;
                to.write_all(event)?;
                passed += 1;
            }
            Ok(())
        })?;
        Ok(passed)
    }
}

fn category(event: &[u8]) -> Option<String> {
    let mut r = Reader::new(event);
    r.begin(b'{').ok()?;
    let mut first = true;
    while let Some(key) = r.key(&mut first).ok()? {
        if key == "cat" {
            return r.string().ok().map(|c| c.into_owned());
        }
        r.skip().ok()?;
    }
    None
}

/// Nanoseconds as microseconds with three decimals.
fn microseconds(out: &mut Vec<u8>, ns: i64) {
    if ns < 0 {
        out.push(b'-');
    }
    let ns = ns.unsigned_abs();
    let _ = write!(out, "{}.{:03}", ns / 1000, ns % 1000);
}

fn place(out: &mut Vec<u8>, tracks: &Tracks, place: u32, slot: u32) {
    let (pid, tid) = tracks.chrome(place, slot);
    let _ = write!(out, ",\"pid\":{pid},\"tid\":{tid}");
}

fn text_member(out: &mut Vec<u8>, first: &mut bool, key: &str, value: &str) {
    member(out, first, key);
    attrs::write_str(out, value);
}

fn member(out: &mut Vec<u8>, first: &mut bool, key: &str) {
    if !std::mem::take(first) {
        out.push(b',');
    }
    attrs::write_str(out, key);
    out.push(b':');
}

/// `"name":..,"cat":..,"args":{..` without the closing bracket, so that more arguments can follow.
fn head(out: &mut Vec<u8>, name: &str, category: &str) {
    out.extend_from_slice(b"\"name\":");
    attrs::write_str(out, name);
    out.extend_from_slice(b",\"cat\":");
    attrs::write_str(out, category);
    out.extend_from_slice(b",\"args\":{");
}

impl Encoder for Chrome {
    fn span(&mut self, out: &mut Vec<u8>, spans: &Spans, row: usize) {
        head(out, spans.name.at(row), spans.service.at(row));
        let mut first = true;
        for (key, json) in spans.attrs(row) {
            member(out, &mut first, key);
            out.extend_from_slice(json.as_bytes());
        }
        member(out, &mut first, "span");
        out.push(b'{');
        let mut first = true;
        text_member(out, &mut first, "trace_id", &hex(&spans.trace_id.at(row)));
        text_member(out, &mut first, "span_id", &hex(&spans.span_id.at(row)));
        if let Some(parent) = spans.parent_span_id.get(row) {
            text_member(out, &mut first, "parent_span_id", &hex(&parent));
        }
        let usual = [
            ("kind", &spans.kind, "internal"),
            ("state", &spans.state, "closed"),
            ("status", &spans.status, "unset"),
            ("status_message", &spans.status_message, ""),
            ("phase", &spans.phase, ""),
            ("sample_id", &spans.sample_id, ""),
            ("group_id", &spans.group_id, ""),
            ("run_id", &spans.run_id, ""),
        ];
        for (key, column, usual) in usual {
            if let Some(value) = column.get(row).filter(|t| *t != usual) {
                text_member(out, &mut first, key, value);
            }
        }
        let attempt = spans.attempt.get(row).map(i64::from);
        for (key, value) in [("step", spans.step.get(row)), ("attempt", attempt), ("pid", spans.pid.get(row))] {
            if let Some(value) = value {
                member(out, &mut first, key);
                attrs::write_int(out, value);
            }
        }
        let links = spans.links.of(row);
        if !links.is_empty() {
            member(out, &mut first, "links");
            for i in links.clone() {
                out.push(if i == links.start { b'[' } else { b',' });
                out.push(b'{');
                let mut first = true;
                text_member(out, &mut first, "trace_id", &hex(&spans.links.trace_id.at(i)));
                text_member(out, &mut first, "span_id", &hex(&spans.links.span_id.at(i)));
                for (key, json) in spans.links.attrs.row(i) {
                    member(out, &mut first, key);
                    out.extend_from_slice(json.as_bytes());
                }
                out.push(b'}');
            }
            out.push(b']');
        }
        if let Some(end) = spans.end_ns.get(row).filter(|end| *end < spans.start_ns.at(row)) {
            member(out, &mut first, "ended_before_start_ns");
            attrs::write_int(out, spans.start_ns.at(row).wrapping_sub(end));
        }
        out.push(b'}');
    }

    fn event(&mut self, out: &mut Vec<u8>, spans: &Spans, i: usize) {
        head(out, spans.events.name.at(i), "event");
        let mut first = true;
        for (key, json) in spans.events.attrs.row(i) {
            member(out, &mut first, key);
            out.extend_from_slice(json.as_bytes());
        }
    }

    fn carried(&mut self, out: &mut Vec<u8>, key: &str, json: &str) {
        out.push(b',');
        member(out, &mut true, key);
        out.extend_from_slice(json.as_bytes());
    }

    fn begin(&mut self, to: &mut dyn Write, tracks: &Tracks, _first_ns: i64) -> io::Result<()> {
        self.open(to)?;
        let name = |own: &mut Self, to: &mut dyn Write, what: &str, pid: i64, tid: Option<i64>, name: &str| {
            own.event(to, |_, out| {
                let _ = write!(out, "\"ph\":\"M\",\"name\":\"{what}\",\"pid\":{pid}");
                if let Some(tid) = tid {
                    let _ = write!(out, ",\"tid\":{tid}");
                }
                out.extend_from_slice(b",\"args\":{\"name\":");
                attrs::write_str(out, name);
                out.push(b'}');
            })
        };
        for process in &tracks.processes {
            name(self, to, "process_name", process.pid, None, &process.name)?;
        }
        for (i, place) in tracks.places.iter().enumerate() {
            for slot in 0..place.slots.len() {
                let (pid, tid) = tracks.chrome(i as u32, slot as u32);
                name(self, to, "thread_name", pid, Some(tid), &place.slot_name(slot))?;
            }
        }
        Ok(())
    }

    fn slice(&mut self, to: &mut dyn Write, tracks: &Tracks, item: &Item, end: Option<i64>) -> io::Result<()> {
        self.event(to, |own, out| {
            out.extend_from_slice(if end.is_some() { b"\"ph\":\"X\"," } else { b"\"ph\":\"B\"," });
            own.body(out, tracks, item);
            if let Some(end) = end {
                out.extend_from_slice(b",\"dur\":");
                microseconds(out, end.saturating_sub(item.time));
            }
        })?;
        self.flows(to, tracks, item)
    }

    fn slice_end(&mut self, _: &mut dyn Write, _: &Tracks, _: u32, _: u32, _: i64) -> io::Result<()> {
        Ok(())
    }

    fn instant(&mut self, to: &mut dyn Write, tracks: &Tracks, item: &Item) -> io::Result<()> {
        self.event(to, |own, out| {
            out.extend_from_slice(b"\"ph\":\"i\",\"s\":\"t\",");
            own.body(out, tracks, item);
        })?;
        self.flows(to, tracks, item)
    }

    fn counter(&mut self, to: &mut dyn Write, tracks: &Tracks, counter: u32, time: i64, value: f64) -> io::Result<()> {
        let track = &tracks.counters[counter as usize];
        let pid = tracks.processes[track.process as usize].pid;
        self.event(to, |own, out| {
            let _ = write!(out, "\"ph\":\"C\",\"pid\":{pid},\"name\":");
            attrs::write_str(out, &track.name);
            own.time(out, ",\"ts\":", time);
            out.extend_from_slice(b",\"args\":{\"value\":");
            attrs::write_double(out, value);
            out.push(b'}');
        })
    }

    fn finish(&mut self, to: &mut dyn Write) -> io::Result<()> {
        self.open(to)?;
        to.write_all(b"\n]}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_are_exact() {
        for (ns, text) in [
            (0, "0.000"),
            (1_756_000_000_001_283_513, "1756000000001283.513"),
            (-5, "-0.005"),
            (i64::MIN, "-9223372036854775.808"),
        ] {
            let mut out = Vec::new();
            microseconds(&mut out, ns);
            assert_eq!(out, text.as_bytes());
        }
    }
}
