//! One sample of a dump with its trace rebuilt: what the tables, the cache and the summary are all made from.

use std::borrow::Cow;

use super::rebuild::{Event, Kind, Rebuilt, State, rebuild};
use crate::import::torch::{Number, Tag, Torch, Value};

/// What slime writes into an event, found once per dict shape.
const FIELDS: [&str; 7] = ["type", "ts", "name", "attempt", "span_id", "parent_span_id", "attrs"];
const ABSENT: u8 = u8::MAX;

/// One event of the carrier, as written.
#[derive(Clone, Copy, Debug)]
pub struct RawEvent {
    pub name: Value,
    pub span_id: Value,
    pub parent_id: Value,
    /// `None` if there are none, or if they are empty.
    pub attrs: Value,
    pub attempt: i64,
}

/// Reads samples; remembers the positions of the fields of an event. One per thread.
pub struct Reader<'a> {
    pub torch: &'a Torch,
    positions: Vec<Option<(u32, [u8; FIELDS.len()])>>,
}

/// See the module.
pub struct Row<'a> {
    pub position: usize,
    pub sample: Value,
    pub trace: Value,
    pub raw: Vec<RawEvent>,
    pub events: Vec<Event<'a>>,
    pub rebuilt: Rebuilt,
    /// Events without a usable time.
    pub skipped: u64,
}

impl<'a> Reader<'a> {
    pub fn new(torch: &'a Torch) -> Reader<'a> {
        Reader { torch, positions: vec![None; 64] }
    }

    fn fields(&mut self, event: Value) -> [Option<Value>; FIELDS.len()] {
        let heap = &self.torch.heap;
        let Some(shape) = heap.shape(event) else { return FIELDS.map(|name| heap.get(event, name)) };
        let place = shape as usize % self.positions.len();
        let positions = match self.positions[place] {
            Some((cached, positions)) if cached == shape => positions,
            _ => {
                let keys = heap.shape_keys(shape);
                let found = FIELDS.map(|name| {
                    let key = heap.key(name);
                    keys.iter().rposition(|k| Some(*k) == key).map_or(ABSENT, |at| at as u8)
                });
                self.positions[place] = Some((shape, found));
                found
            }
        };
        let values = heap.shaped_values(event);
        positions.map(|at| values.get(at as usize).copied())
    }

    /// `None` where the sample has no trace, or an empty one.
    pub fn row(&mut self, sample: Value, position: usize) -> Option<Row<'a>> {
        let torch = self.torch;
        let heap = &torch.heap;
        let trace = heap.field(sample, "trace").filter(|t| t.tag() == Tag::Dict)?;
        let list = heap.get(trace, "events").filter(|l| matches!(l.tag(), Tag::List | Tag::Tuple))?;
        let trace_attempt = heap.get(trace, "attempt");
        let mut raw = Vec::with_capacity(heap.len(list));
        let mut events = Vec::with_capacity(heap.len(list));
        let mut skipped = 0;
        for event in heap.items(list) {
            if event.tag() != Tag::Dict {
                skipped += 1;
                continue;
            }
            let [kind, ts, name, attempt, span_id, parent_id, attrs] = self.fields(event);
            let Some(ts) = ts.and_then(|ts| seconds(torch, ts)) else {
                skipped += 1;
                continue;
            };
            let kind = match kind.and_then(|k| heap.str_bytes(k)) {
                Some(b"span_start") => Kind::Start,
                Some(b"span_end") => Kind::End,
                _ => Kind::Other,
            };
            let name = name.unwrap_or(Value::NONE);
            let span_id = span_id.filter(|id| is_true(torch, *id)).unwrap_or(Value::NONE);
            let parent_id = parent_id.filter(|id| is_true(torch, *id)).unwrap_or(Value::NONE);
            events.push(Event {
                kind,
                ts,
                name: name_text(torch, name),
                span_id: id_bytes(torch, span_id),
                parent_id: id_bytes(torch, parent_id),
            });
            raw.push(RawEvent {
                name,
                span_id,
                parent_id,
                attrs: attrs.filter(|a| is_true(torch, *a)).unwrap_or(Value::NONE),
                attempt: attempt.or(trace_attempt).map_or(0, |a| whole(torch, a)),
            });
        }
        if events.is_empty() {
            return None;
        }
        let rebuilt = rebuild(&events);
        Some(Row { position, sample, trace, raw, events, rebuilt, skipped })
    }
}

/// What the summary needs from a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowStats {
    /// Seconds, as written in the events.
    pub start: f64,
    pub end: f64,
    pub closed: u64,
    pub open: u64,
    pub instants: u64,
    pub orphans: u64,
    pub attempts: i64,
    pub skipped: u64,
}

impl Row<'_> {
    pub fn stats(&self) -> RowStats {
        let items = &self.rebuilt.items;
        let count = |state| items.iter().filter(|i| i.state == state).count() as u64;
        RowStats {
            start: items.iter().map(|i| i.start).fold(f64::INFINITY, f64::min),
            end: items.iter().map(|i| i.display_end).fold(f64::NEG_INFINITY, f64::max),
            closed: count(State::Closed),
            open: count(State::Open),
            instants: count(State::Instant),
            orphans: count(State::OrphanEnd),
            attempts: self.raw.iter().map(|e| e.attempt).max().unwrap_or(0).saturating_add(1),
            skipped: self.skipped,
        }
    }
}

/// To microseconds, as Python's `round(x, 6)` does.
pub fn round6(seconds: f64) -> f64 {
    micros(seconds).map_or(seconds, |micros| micros as f64 / 1e6)
}

/// Whole microseconds: the nearest to the exact value of the double, of two equally near ones the even one. `None` where
/// there are too many for a double to tell apart.
pub fn micros(seconds: f64) -> Option<i64> {
    if seconds.is_nan() || seconds.abs() >= 9e9 {
        return None;
    }
    // Whole seconds and the fraction apart: an epoch in microseconds leaves a double two bits of fraction, and what lies
    // near the middle would be rounded twice.
    let (whole, fraction) = (seconds.trunc(), seconds.fract());
    let product = fraction * 1e6;
    let mut nearest = product.round_ties_even();
    if (product - nearest).abs() == 0.5 {
        // In the middle, or taken there by the multiplication: what that lost decides.
        let lost = fraction.mul_add(1e6, -product);
        if lost != 0.0 {
            nearest = product + 0.5f64.copysign(lost);
        }
    }
    Some(whole as i64 * 1_000_000 + nearest as i64)
}

/// What `float()` makes of a time stamp; only finite ones can be placed.
fn seconds(torch: &Torch, value: Value) -> Option<f64> {
    let seconds = match torch.heap.str(value) {
        Some(text) => text.trim().parse().ok(),
        None => torch.number(value),
    };
    seconds.filter(|s| s.is_finite())
}

/// What `int(x or 0)` makes of a value, or 0 if it would fail.
pub fn whole(torch: &Torch, value: Value) -> i64 {
    match value.tag() {
        Tag::Int | Tag::Long => torch.heap.int(value).unwrap_or(0),
        Tag::Str => torch.heap.str(value).and_then(|t| t.trim().parse().ok()).unwrap_or(0),
        _ => torch.number(value).filter(|f| f.is_finite()).map_or(0, |f| f as i64),
    }
}

/// Python's truth of a value.
pub fn is_true(torch: &Torch, value: Value) -> bool {
    match value.tag() {
        Tag::None => false,
        Tag::Bool => value == Value::TRUE,
        Tag::Int => value.as_small() != Some(0),
        Tag::Float => value.as_float() != Some(0.0),
        Tag::Str => torch.heap.str_bytes(value).is_some_and(|b| !b.is_empty()),
        Tag::Bytes => torch.heap.bytes(value).is_some_and(|b| !b.is_empty()),
        Tag::List | Tag::Tuple | Tag::Dict | Tag::Set | Tag::FrozenSet => torch.heap.len(value) > 0,
        Tag::Extra => torch.scalar(value).is_none_or(|n| n != Number::Bool(false) && n.as_f64() != 0.0),
        _ => true,
    }
}

fn name_text(torch: &Torch, value: Value) -> Cow<'_, str> {
    match torch.heap.str(value) {
        Some(text) => text,
        None if value.is_none() => Cow::Borrowed(""),
        None => Cow::Owned(torch.python_str(value)),
    }
}

/// Ids are text; any other kind is distinguished from text by a leading NUL.
fn id_bytes(torch: &Torch, value: Value) -> Cow<'_, [u8]> {
    match torch.heap.str_bytes(value) {
        Some(bytes) => Cow::Borrowed(bytes),
        None if value.is_none() => Cow::Borrowed(&[]),
        None => Cow::Owned(format!("\0{}", torch.python_str(value)).into_bytes()),
    }
}

/// A text or the value of an enum member.
pub fn status(torch: &Torch, sample: Value) -> Option<Value> {
    let status = torch.heap.field(sample, "status")?;
    Some(torch.enum_value(status).unwrap_or(status))
}

/// The most keys of metadata that are read: every sample of a dump may refer to the same dict.
const MAX_METADATA_KEYS: usize = 1000;

/// Where a sample's prompt came from: `source`, else the metadata's `source`, `source_name`, or any key that contains
/// "source".
pub fn source(torch: &Torch, sample: Value) -> Option<Value> {
    let heap = &torch.heap;
    let given = |v: &Value| !v.is_none() && heap.str_bytes(*v) != Some(b"");
    let metadata = heap.field(sample, "metadata").filter(|m| m.tag() == Tag::Dict);
    heap.field(sample, "source")
        .filter(given)
        .or_else(|| heap.get(metadata?, "source").filter(given))
        .or_else(|| heap.get(metadata?, "source_name").filter(given))
        .or_else(|| {
            heap.entries(metadata?)
                .take(MAX_METADATA_KEYS)
                .filter(|(k, v)| given(v) && torch.python_str(*k).to_lowercase().contains("source"))
                .map(|(_, v)| v)
                .next()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_are_those_of_pythons_round() {
        for (seconds, rounded) in [
            // Just below the middle: multiplied as a whole it would be in the middle.
            (1_756_000_000.874_621_4, 1_756_000_000.874_621),
            // Exactly in the middle: the even one.
            (0.007_812_5, 0.007_812),
            (0.023_437_5, 0.023_438),
            (-0.007_812_5, -0.007_812),
            (1_756_000_000.007_812_5, 1_756_000_000.007_812),
            // As doubles these lie beside the middle, too close for the product to show on which side.
            (0.000_000_5, 0.0),
            (0.000_001_5, 0.000_002),
            (2.000_000_5, 2.000_001),
            (-1.5, -1.5),
            (0.999_999_9, 1.0),
            (1e300, 1e300),
        ] {
            assert_eq!(round6(seconds), rounded, "{seconds}");
        }
        assert!(round6(f64::NAN).is_nan());
    }
}
