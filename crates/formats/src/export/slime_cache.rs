//! The cache JSON of slime's own viewer (`cache_version` 1), field for field and in its order, so that slime's page reads
//! ours. Where that viewer writes invalid JSON or fails (NaN, infinities, numpy scalars), ours is valid.

use std::io::{self, Write};

use rollscope_model::attrs;
use rollscope_model::pd::{PER_SIDE, SEGMENTS, SIDES, SPAN_PREFIX};

use crate::import::ImportError;
use crate::import::slime_pt::rebuild::{Item, Parent, State};
use crate::import::slime_pt::row::{self, Reader, Row, round6, whole};
use crate::import::slime_pt::{Dump, parallel};
use crate::import::torch::render::Style;
use crate::import::torch::{Key, Tag, Torch, Value};

/// Attributes of one event; larger ones are cut.
const MAX_ATTRS_BYTES: usize = 16 << 20;
/// Samples a worker writes at a time.
const CHUNK: usize = 32;

/// Streams the cache of a dump. `generated_at` is in seconds since the epoch.
pub fn write(dump: &Dump, pt_path: &str, generated_at: f64, out: &mut dyn Write) -> Result<(), ImportError> {
    let summary = dump.summary();
    let mut head = Vec::new();
    head.extend_from_slice(b"{\"cache_version\":1,\"pt_path\":");
    attrs::write_str(&mut head, pt_path);
    head.extend_from_slice(b",\"generated_at\":");
    head.extend_from_slice(if generated_at.is_finite() { generated_at.to_string() } else { "0".into() }.as_bytes());
    head.extend_from_slice(format!(",\"sample_count\":{},\"global_start\":", summary.rows).as_bytes());
    time_or_null(&mut head, summary.start);
    head.extend_from_slice(b",\"global_end\":");
    time_or_null(&mut head, summary.end);
    head.extend_from_slice(b",\"rows\":[");
    out.write_all(&head)?;

    let torch = dump.torch();
    let limit = torch.output_limit();
    let (mut written, mut first) = (0u64, true);
    let samples = dump.samples();
    let keys = Keys::new(torch);
    parallel::ordered(
        samples.len().div_ceil(CHUNK),
        || Reader::new(torch),
        |reader, chunk| {
            let mut buffer = Vec::new();
            for (at, sample) in samples.iter().enumerate().skip(chunk * CHUNK).take(CHUNK) {
                if let Some(row) = reader.row(*sample, at) {
                    write_row(&mut buffer, torch, &keys, &row, limit);
                    buffer.push(b',');
                }
                if buffer.len() as u64 > limit {
                    break;
                }
            }
            buffer.pop();
            buffer
        },
        |buffer: Vec<u8>| {
            dump.went_through(CHUNK);
            written += buffer.len() as u64;
            if written > limit {
                return Err(ImportError::Limit { what: "the cache".into(), name: "MAX_GROWTH", limit });
            }
            if !buffer.is_empty() {
                if !std::mem::take(&mut first) {
                    out.write_all(b",")?;
                }
                out.write_all(&buffer)?;
            }
            Ok(())
        },
    )?;
    out.write_all(b"]}")?;
    Ok(())
}

/// The same as one text, for tests and small dumps.
pub fn to_vec(dump: &Dump, pt_path: &str, generated_at: f64) -> Result<Vec<u8>, ImportError> {
    let mut out = Vec::new();
    write(dump, pt_path, generated_at, &mut out)?;
    Ok(out)
}

struct Keys {
    response_length: Option<Key>,
    pd: [[Option<Key>; PER_SIDE]; SIDES.len()],
    any_pd: bool,
}

impl Keys {
    fn new(torch: &Torch) -> Keys {
        let pd = [0, 1].map(|side| std::array::from_fn(|n| torch.heap.key(SEGMENTS[side * PER_SIDE + n].key)));
        Keys {
            response_length: torch.heap.key("response_length"),
            any_pd: pd.as_flattened().iter().any(Option::is_some),
            pd,
        }
    }
}

/// One bar or mark of a row.
struct Shown<'a> {
    item: &'a Item,
    /// Prefill or decode lane of that item, with its values.
    lane_of: Option<usize>,
    lane: u32,
}

/// A number in Python's eyes, after slime has made its values safe for JSON: also a boolean and `numpy.float64`.
fn number(torch: &Torch, value: Value) -> Option<f64> {
    use crate::import::torch::{Dtype, Extra};
    match value.tag() {
        Tag::Int | Tag::Long | Tag::Float | Tag::Bool => torch.number(value),
        Tag::Extra if matches!(torch.heap.extra_of(value), Some(Extra::NumpyScalar { .. })) => {
            torch.number(value).filter(|_| torch.dtype(value) == Some(Dtype::F64))
        }
        _ => None,
    }
}

fn get(torch: &Torch, attrs: Value, key: Option<Key>) -> Option<Value> {
    torch.heap.get_key(attrs, key?)
}

fn pd_values<'a>(
    torch: &'a Torch,
    keys: &'a Keys,
    lane: usize,
    attrs: Value,
) -> impl Iterator<Item = (usize, Value)> + 'a {
    keys.pd[lane]
        .iter()
        .enumerate()
        .filter_map(move |(n, key)| Some((n, get(torch, attrs, *key)?)))
        .filter(|(_, v)| number(torch, *v).is_some_and(|f| f > 0.0))
}

/// Stops within the row where `out` exceeds the limit: the caller refuses it then.
fn write_row(out: &mut Vec<u8>, torch: &Torch, keys: &Keys, row: &Row, limit: u64) {
    let items = &row.rebuilt.items;
    let mut shown: Vec<Shown> = items.iter().map(|item| Shown { item, lane_of: None, lane: item.depth }).collect();
    let mut last_lane = shown.iter().map(|s| s.lane).max().unwrap_or(0);
    if keys.any_pd {
        for item in &items[..row.rebuilt.spans] {
            let Some(end) = item.end_event else { continue };
            let end_attrs = row.raw[end as usize].attrs;
            if end_attrs.is_none() || row.events[item.event as usize].name.starts_with(SPAN_PREFIX) {
                continue;
            }
            for lane in 0..SIDES.len() {
                if pd_values(torch, keys, lane, end_attrs).next().is_some() {
                    last_lane += 1;
                    shown.push(Shown { item, lane_of: Some(lane), lane: last_lane });
                }
            }
        }
    }
    let name = |s: &Shown| (&*row.events[s.item.event as usize].name, s.lane_of);
    shown.sort_by(|a, b| {
        (a.lane.cmp(&b.lane))
            .then_with(|| round6(a.item.start).total_cmp(&round6(b.item.start)))
            .then_with(|| round6(a.item.display_end).total_cmp(&round6(b.item.display_end)))
            .then_with(|| name(a).cmp(&name(b)))
    });

    let stats = row.stats();
    let heap = &torch.heap;
    let virtual_lanes = (shown.len() - items.len()) as u64;
    out.extend_from_slice(b"{\"row_id\":");
    attrs::write_int(out, row.position as i64);
    out.extend_from_slice(b",\"sample_index\":");
    match heap.field(row.sample, "index") {
        Some(index) => plain(out, torch, index),
        None => attrs::write_int(out, row.position as i64),
    }
    out.extend_from_slice(b",\"group_index\":");
    plain(out, torch, heap.field(row.sample, "group_index").unwrap_or(Value::NONE));
    for (field, value, longest) in [
        ("source", row::source(torch, row.sample), 64),
        ("status", row::status(torch, row.sample), 64),
        ("label", heap.field(row.sample, "label"), 256),
    ] {
        key(out, field);
        compact(out, torch, value.unwrap_or(Value::NONE), longest);
    }
    key(out, "reward");
    plain(out, torch, heap.field(row.sample, "reward").unwrap_or(Value::NONE));
    key(out, "trace_id");
    json(out, torch, heap.get(row.trace, "trace_id").unwrap_or(Value::NONE));
    let (total, longest) = response_lengths(torch, keys, row);
    let numbers = [
        ("attempt", heap.get(row.trace, "attempt").map_or(0, |a| whole(torch, a))),
        ("lane_count", i64::from(last_lane) + 1),
        ("item_count", shown.len() as i64),
        ("closed_span_count", (stats.closed + virtual_lanes) as i64),
        ("open_span_count", stats.open as i64),
        ("point_event_count", stats.instants as i64),
        ("orphan_count", stats.orphans as i64),
        ("total_response_length", total),
        ("max_response_length", longest),
    ];
    for (n, (field, value)) in numbers.into_iter().enumerate() {
        key(out, field);
        attrs::write_int(out, value);
        if n == 0 {
            let (start, end) = (round6(stats.start), round6(stats.end));
            for (field, seconds) in [("start", start), ("end", end), ("duration", (end - start).max(0.0))] {
                key(out, field);
                time(out, seconds);
            }
        }
    }
    key(out, "items");
    out.push(b'[');
    for (n, shown) in shown.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        write_item(out, torch, keys, row, shown);
        if out.len() as u64 > limit {
            break;
        }
    }
    out.extend_from_slice(b"]}");
}

fn write_item(out: &mut Vec<u8>, torch: &Torch, keys: &Keys, row: &Row, shown: &Shown) {
    let item = shown.item;
    let raw = &row.raw[item.event as usize];
    let (kind, state) = match item.state {
        State::Closed => ("span", "closed_span"),
        State::Open => ("span", "open_span"),
        State::Instant => ("event", "point_event"),
        State::OrphanEnd => ("orphan_end", "orphan_end"),
    };
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"state\":\"");
    out.extend_from_slice(state.as_bytes());
    out.extend_from_slice(b"\",\"name\":");
    match shown.lane_of {
        Some(lane) => attrs::write_str(out, &format!("{} [{}]", torch.python_str(raw.name), SIDES[lane].letter)),
        None => json(out, torch, raw.name),
    }
    if matches!(item.state, State::Closed | State::Open) {
        key(out, "start_ts");
        time(out, item.start);
        key(out, "end_ts");
        time_or_null(out, item.end);
        key(out, "display_end_ts");
        time(out, item.display_end);
    } else {
        key(out, "ts");
        time(out, item.start);
    }
    key(out, "attempt");
    attrs::write_int(out, raw.attempt);
    key(out, "span_id");
    match (shown.lane_of, item.state) {
        (Some(lane), _) => attrs::write_str(out, &format!("{}:pd:{}", torch.python_str(raw.span_id), SIDES[lane].name)),
        (None, State::Instant) => out.extend_from_slice(b"null"),
        _ => json(out, torch, raw.span_id),
    }
    let (parent_id, parent_name) = if shown.lane_of.is_some() {
        (raw.span_id, raw.name)
    } else {
        let id = match item.parent {
            Parent::None => Value::NONE,
            Parent::Named => raw.parent_id,
            Parent::Inferred(start) => row.raw[start as usize].span_id,
        };
        let parent = item.parent_item.map(|at| row.rebuilt.items[at as usize].event);
        (id, parent.map_or(Value::NONE, |event| row.raw[event as usize].name))
    };
    key(out, "parent_span_id");
    json(out, torch, parent_id);
    key(out, "parent_span_name");
    json(out, torch, parent_name);
    key(out, "lane");
    attrs::write_int(out, shown.lane.into());
    key(out, "depth");
    attrs::write_int(out, shown.lane.into());
    key(out, "attrs");
    let end_attrs = item.end_event.map_or(Value::NONE, |end| row.raw[end as usize].attrs);
    match (item.state, shown.lane_of) {
        (_, Some(lane)) => {
            out.extend_from_slice(b"{\"start_attrs\":{},\"end_attrs\":{");
            for (n, value) in pd_values(torch, keys, lane, end_attrs) {
                attrs::write_str(out, SEGMENTS[lane * PER_SIDE + n].key);
                out.push(b':');
                json(out, torch, value);
                out.push(b',');
            }
            out.extend_from_slice(b"\"timeline_pd_virtual_role\":\"");
            out.extend_from_slice(SIDES[lane].name.as_bytes());
            out.extend_from_slice(b"\",\"timeline_pd_parent_name\":");
            json(out, torch, raw.name);
            out.extend_from_slice(b",\"timeline_pd_parent_duration\":");
            time(out, (item.end.unwrap_or(item.start) - item.start).max(0.0));
            out.extend_from_slice(b"}}");
        }
        (State::Instant | State::OrphanEnd, None) => attributes(out, torch, raw.attrs),
        (State::Closed | State::Open, None) => {
            out.extend_from_slice(b"{\"start_attrs\":");
            attributes(out, torch, raw.attrs);
            out.extend_from_slice(b",\"end_attrs\":");
            match item.clipped_by {
                Some(why) => out.extend_from_slice(format!("{{\"clipped_by\":\"{}\"}}", why.name()).as_bytes()),
                None => attributes(out, torch, end_attrs),
            }
            out.push(b'}');
        }
    }
    out.push(b'}');
}

/// Sum and maximum of every `response_length` in attributes.
fn response_lengths(torch: &Torch, keys: &Keys, row: &Row) -> (i64, i64) {
    let (mut total, mut longest) = (0i64, None::<i64>);
    let mut look = |attrs: Value| {
        let found = get(torch, attrs, keys.response_length).and_then(|v| number(torch, v));
        if let Some(length) = found.filter(|f| f.is_finite()).map(|f| f as i64) {
            total = total.saturating_add(length);
            longest = Some(longest.map_or(length, |l| l.max(length)));
        }
    };
    for item in &row.rebuilt.items {
        let attrs = row.raw[item.event as usize].attrs;
        look(attrs);
        match item.end_event {
            Some(end) => look(row.raw[end as usize].attrs),
            None if matches!(item.state, State::Instant | State::OrphanEnd) => {
                for inner in ["start_attrs", "end_attrs"] {
                    torch.heap.get(attrs, inner).into_iter().for_each(&mut look);
                }
            }
            None => {}
        }
    }
    (total, longest.unwrap_or(0))
}

fn key(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

fn json(out: &mut Vec<u8>, torch: &Torch, value: Value) {
    torch.write_json(out, value, Style::Slime, MAX_ATTRS_BYTES);
}

/// A value that slime hands to JSON as it is, or a number or a text if that would fail.
fn plain(out: &mut Vec<u8>, torch: &Torch, value: Value) {
    match torch.scalar(value) {
        Some(number) if number.as_f64().is_finite() => match number.as_i64() {
            Some(i) => attrs::write_int(out, i),
            None => attrs::write_double(out, number.as_f64()),
        },
        Some(_) => out.extend_from_slice(b"null"),
        None => json(out, torch, value),
    }
}

fn attributes(out: &mut Vec<u8>, torch: &Torch, value: Value) {
    if value.is_none() { out.extend_from_slice(b"{}") } else { json(out, torch, value) }
}

/// Text is cut after this many characters, with a note on how many there were.
fn compact(out: &mut Vec<u8>, torch: &Torch, value: Value, longest: usize) {
    if matches!(
        value.tag(),
        Tag::None | Tag::Bool | Tag::Int | Tag::Long | Tag::Float | Tag::Dict | Tag::List | Tag::Tuple
    ) {
        return json(out, torch, value);
    }
    let text = torch.python_str(value);
    match text.char_indices().nth(longest) {
        None if value.tag() == Tag::Extra => json(out, torch, value),
        None => attrs::write_str(out, &text),
        Some((cut, _)) => {
            attrs::write_str(out, &format!("{}...<truncated:{}>", &text[..cut], text.chars().count()));
        }
    }
}

fn time_or_null(out: &mut Vec<u8>, seconds: Option<f64>) {
    match seconds {
        Some(seconds) => time(out, seconds),
        None => out.extend_from_slice(b"null"),
    }
}

/// Seconds with up to six decimals.
fn time(out: &mut Vec<u8>, seconds: f64) {
    let Some(micros) = row::micros(seconds) else { return attrs::write_double(out, seconds) };
    if micros < 0 {
        out.push(b'-');
    }
    let (whole, mut fraction) = (micros.unsigned_abs() / 1_000_000, micros.unsigned_abs() % 1_000_000);
    attrs::write_int(out, whole as i64);
    out.push(b'.');
    let mut digits = [b'0'; 6];
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (fraction % 10) as u8;
        fraction /= 10;
    }
    let last = digits.iter().rposition(|d| *d != b'0').unwrap_or(0);
    out.extend_from_slice(&digits[..=last]);
}

/// The cache as a file; a reader never sees half of it.
pub fn write_file(dump: &Dump, target: &std::path::Path, generated_at: f64) -> Result<(), ImportError> {
    super::atomically(target, |file| {
        let mut file = io::BufWriter::with_capacity(1 << 20, file);
        write(dump, &dump.path().to_string_lossy(), generated_at, &mut file)?;
        Ok(file.flush()?)
    })
}
