//! A packed batch with fewer items than it has spans, for a picture: spans too short to be told apart stand for each other.
//!
//! Within a lane, time is cut into equal parts. Short spans that begin in the same part and look alike (name, phase, flags, attempt,
//! worker) become one item: its id, parent and trace are those of the longest of them, and it says how many they are (`weight`), how
//! long together (`total`), and how long that one is (`longest`). So names, states, errors, attempts, workers and lanes that occur
//! still occur, and counts and times can be added up. Items of a part lie one after the other, each as long as its spans are together,
//! so that a lane is covered for as long as it was. In the last lane spans may overlap: there an item is drawn from the first start to
//! the last end of its spans. The parts are as long as it takes to have no more items than wanted, and every row has its own
//! boundaries: spans move a little within a part, and together they would make waves.
//!
//! Where somebody looks more closely, spans stay apart: in some rows, or in a window of time. So does a span that is asked for.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float32Array, Float64Array, Int32Array, RecordBatch, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Float64Type, Int32Type, Schema, UInt8Type, UInt16Type};
use arrow::error::ArrowError;
use rollscope_model::{SpanId, TraceId};

use super::flag;

/// Where somebody looks: up to half of the items are for that.
#[derive(Clone, Debug)]
pub struct Focus {
    /// Milliseconds since `base_ns`.
    pub from: f64,
    pub to: f64,
    /// Samples, beside what belongs to none. `None`: every row.
    pub rows: Option<HashSet<String>>,
}

/// Halvings of the whole time, from the longest part to the shortest. The longest is twice the whole time: all spans of a row and lane that look
/// alike are one item then.
const LONGEST: i32 = -1;
const SHORTEST: i32 = 22;
/// Spans of one part that look different, at most. Others stay apart.
const MAX_KINDS: usize = 64;
const NONE: i32 = -1;
/// Spans of a lane may overlap by as much (milliseconds), because clocks jitter.
const JITTER_MS: f64 = 0.001;
/// Multiples of it are spread evenly, as far as whole numbers do not matter.
const GOLDEN: f64 = 0.618_033_988_749_895;
/// Metadata of a thinned batch, and of one that was thinned before: the length of its parts in milliseconds.
pub const PART_MS: &str = "part_ms";

/// At most about `most` items. A batch that has no more is returned as it is. `apart`: a span that is an item of its own.
pub fn thin(
    packed: RecordBatch,
    most: usize,
    focus: Option<&Focus>,
    apart: Option<(TraceId, SpanId)>,
) -> Result<RecordBatch, ArrowError> {
    if packed.num_rows() <= most {
        return Ok(packed);
    }
    let spans = Spans::read(&packed, focus, apart)?;
    // Outside and inside of where somebody looks.
    let (mut parts, mut left) = ([spans.extent, 0.0], most);
    if focus.is_some() {
        parts[1] = spans.shortest_part(None, |part| spans.count([spans.extent, part])[1] <= most / 2);
        left = left.saturating_sub(spans.count(parts)[1]);
    }
    let before = packed.schema_ref().metadata().get(PART_MS).and_then(|text| text.parse().ok());
    parts[0] = spans.shortest_part(before, |part| spans.count([part, parts[1]])[0] <= left);
    spans.write(&packed, parts, focus)
}

struct Spans<'a> {
    start: &'a [f64],
    end: &'a [f64],
    flags: &'a [u8],
    lane: &'a [u8],
    depth: &'a [u8],
    attempt: &'a [u8],
    parent: &'a [i32],
    name: Vec<i32>,
    phase: Vec<i32>,
    worker: Vec<i32>,
    /// Sample or, with another sign, worker.
    row: Vec<i32>,
    inside: Vec<bool>,
    /// The span that stays apart.
    apart: Option<usize>,
    extent: f64,
}

/// Items that stand for one span or several, in the order of the batch.
#[derive(Default)]
struct Items {
    /// The longest span.
    of: Vec<u32>,
    /// Of all its spans.
    total: Vec<f64>,
    start: Vec<f64>,
    end: Vec<f64>,
    weight: Vec<u32>,
}

/// What looks alike.
type Look = (i32, i32, u8, u8, i32);

impl<'a> Spans<'a> {
    fn read(
        packed: &'a RecordBatch,
        focus: Option<&Focus>,
        apart: Option<(TraceId, SpanId)>,
    ) -> Result<Spans<'a>, ArrowError> {
        let (start, end) = (values::<Float64Type>(packed, "start")?, values::<Float64Type>(packed, "end")?);
        let sample = keys::<Int32Type>(packed, "sample")?;
        let worker = keys::<Int32Type>(packed, "worker")?;
        let row = sample.iter().zip(&worker).map(|(s, w)| if *s == NONE { -2 - w } else { *s }).collect();
        let inside = match focus {
            None => Vec::new(),
            Some(focus) => {
                let wanted: Option<Vec<bool>> = focus.rows.as_ref().map(|rows| {
                    let names = packed["sample"].as_dictionary::<Int32Type>().values();
                    names.as_string::<i32>().iter().map(|name| name.is_some_and(|name| rows.contains(name))).collect()
                });
                let in_row = |i: usize| match (&wanted, usize::try_from(sample[i])) {
                    (Some(rows), Ok(sample)) => rows[sample],
                    _ => true,
                };
                (0..start.len()).map(|i| start[i] <= focus.to && end[i] >= focus.from && in_row(i)).collect()
            }
        };
        Ok(Spans {
            start,
            end,
            flags: values::<UInt8Type>(packed, "flags")?,
            lane: values::<UInt8Type>(packed, "lane")?,
            depth: values::<UInt8Type>(packed, "depth")?,
            attempt: values::<UInt8Type>(packed, "attempt")?,
            parent: values::<Int32Type>(packed, "parent")?,
            name: keys::<Int32Type>(packed, "name")?,
            phase: keys::<UInt16Type>(packed, "phase")?,
            worker,
            row,
            inside,
            apart: apart.and_then(|id| row_of(packed, id)),
            extent: end.iter().copied().fold(0.0, f64::max),
        })
    }

    fn is_inside(&self, i: usize) -> bool {
        self.inside.get(i) == Some(&true)
    }

    /// The shortest part that is long enough, by halving what is left of the choices. 0: every span is an item. One that was found `before`
    /// for the same spans is about right.
    fn shortest_part(&self, before: Option<f64>, is_enough: impl Fn(f64) -> bool) -> f64 {
        if let Some(mut part) = before.filter(|part| *part > 0.0) {
            while part < self.extent && !is_enough(part) {
                part *= 2.0;
            }
            return part;
        }
        if is_enough(0.0) {
            return 0.0;
        }
        let part = |halvings: i32| self.extent / 2f64.powi(halvings);
        let (mut longer, mut shorter) = (LONGEST, SHORTEST + 1);
        while shorter - longer > 1 {
            let middle = (longer + shorter) / 2;
            if is_enough(part(middle)) { longer = middle } else { shorter = middle }
        }
        part(longer)
    }

    /// Calls `each` with every span, the number of its item, whether that is new, and which part it lies in.
    fn divide(&self, parts: [f64; 2], mut each: impl FnMut(usize, usize, bool, usize)) {
        let (mut items, mut number) = (0, 0);
        // The part that is being filled, and what it has.
        let mut at: Option<(i32, u8, bool, i64)> = None;
        let mut looks: Vec<(Look, usize)> = Vec::new();
        for i in 0..self.start.len() {
            let inside = self.is_inside(i);
            let part = parts[usize::from(inside)];
            let is_short = self.end[i] - self.start[i] < part
                && self.flags[i] & flag::STATE != flag::OPEN
                && self.apart != Some(i);
            let shift = (f64::from(self.row[i]) * GOLDEN).fract();
            let here =
                is_short.then(|| (self.row[i], self.lane[i], inside, (self.start[i] / part + shift).floor() as i64));
            if here.is_none() || here != at {
                at = here;
                number += 1;
                looks.clear();
            }
            let look = (self.name[i], self.phase[i], self.flags[i], self.attempt[i], self.worker[i]);
            let found = looks.iter().find(|(other, _)| *other == look).map(|(_, item)| *item);
            let item = found.unwrap_or(items);
            if found.is_none() {
                items += 1;
                if is_short && looks.len() < MAX_KINDS {
                    looks.push((look, item));
                }
            }
            each(i, item, found.is_none(), number);
        }
    }

    /// How many items there would be outside and inside.
    fn count(&self, parts: [f64; 2]) -> [usize; 2] {
        let mut count = [0, 0];
        self.divide(parts, |i, _, is_new, _| count[usize::from(self.is_inside(i))] += usize::from(is_new));
        count
    }

    fn write(&self, packed: &RecordBatch, parts: [f64; 2], focus: Option<&Focus>) -> Result<RecordBatch, ArrowError> {
        let mut items = Items::default();
        let mut item_of = vec![0i32; self.start.len()];
        let mut part_of: Vec<usize> = Vec::new();
        self.divide(parts, |i, item, is_new, part| {
            item_of[i] = item as i32;
            let length = self.end[i] - self.start[i];
            if is_new {
                items.of.push(i as u32);
                items.total.push(length);
                items.start.push(self.start[i]);
                items.end.push(self.end[i]);
                items.weight.push(1);
                part_of.push(part);
                return;
            }
            if length > self.end[items.of[item] as usize] - self.start[items.of[item] as usize] {
                items.of[item] = i as u32;
            }
            items.total[item] += length;
            items.end[item] = items.end[item].max(self.end[i]);
            items.weight[item] += 1;
        });
        let mut first = 0;
        for part in part_of.chunk_by(|one, other| one == other) {
            let range = first..first + part.len();
            first += part.len();
            let last_end = items.end[range.clone()].iter().copied().fold(f64::MIN, f64::max);
            let total: f64 = items.total[range.clone()].iter().sum();
            let spans: u32 = items.weight[range.clone()].iter().sum();
            if total > last_end - items.start[range.start] + JITTER_MS * f64::from(spans) {
                continue;
            }
            let mut free = f64::MIN;
            for item in range {
                let start = items.start[item].max(free);
                free = (start + items.total[item]).min(last_end.max(start));
                (items.start[item], items.end[item]) = (start, free);
            }
        }
        let of = UInt32Array::from(items.of);
        let parent = of.values().iter().map(|i| {
            let item = usize::try_from(self.parent[*i as usize]).ok().map(|parent| item_of[parent]);
            // What stands for the parent may lie elsewhere in the tree. Nobody may become their own ancestor.
            let is_above = |item: &i32| self.depth[of.value(*item as usize) as usize] < self.depth[*i as usize];
            item.filter(is_above).unwrap_or(NONE)
        });
        let mut columns: Vec<(Arc<Field>, ArrayRef)> = Vec::new();
        for (field, column) in packed.schema_ref().fields().iter().zip(packed.columns()) {
            let made: ArrayRef = match field.name().as_str() {
                "start" => Arc::new(Float64Array::from(std::mem::take(&mut items.start))),
                "end" => Arc::new(Float64Array::from(std::mem::take(&mut items.end))),
                "parent" => Arc::new(Int32Array::from_iter_values(parent.clone())),
                _ => take(column, &of, None)?,
            };
            columns.push((field.clone(), made));
        }
        let longest = of.values().iter().map(|i| (self.end[*i as usize] - self.start[*i as usize]) as f32);
        let longest = Arc::new(Float32Array::from_iter_values(longest));
        let total = Arc::new(Float32Array::from_iter_values(items.total.iter().map(|ms| *ms as f32)));
        let weight = Arc::new(UInt32Array::from(items.weight));
        columns.push((Arc::new(Field::new("weight", DataType::UInt32, true)), weight));
        columns.push((Arc::new(Field::new("total", DataType::Float32, true)), total));
        columns.push((Arc::new(Field::new("longest", DataType::Float32, true)), longest));
        let mut metadata = packed.schema_ref().metadata().clone();
        metadata.insert("spans".into(), packed.num_rows().to_string());
        metadata.insert(PART_MS.into(), parts[0].to_string());
        if let Some(focus) = focus {
            metadata.insert("focus_part_ms".into(), parts[1].to_string());
            metadata.insert("focus_from_ms".into(), focus.from.to_string());
            metadata.insert("focus_to_ms".into(), focus.to.to_string());
        }
        let (fields, columns): (Vec<Arc<Field>>, Vec<ArrayRef>) = columns.into_iter().unzip();
        RecordBatch::try_new(Arc::new(Schema::new(fields).with_metadata(metadata)), columns)
    }
}

fn row_of(packed: &RecordBatch, (trace, span): (TraceId, SpanId)) -> Option<usize> {
    let traces = packed.column_by_name("trace")?.as_dictionary_opt::<Int32Type>()?;
    let known = traces.values().as_fixed_size_binary_opt()?;
    let wanted = (0..known.len()).find(|key| known.value(*key) == trace.as_slice())? as i32;
    let spans = packed.column_by_name("span_id")?.as_fixed_size_binary_opt()?;
    let keys = traces.keys().values();
    (0..spans.len()).find(|row| keys[*row] == wanted && spans.value(*row) == span.as_slice())
}

fn named<'a>(packed: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef, ArrowError> {
    packed.column_by_name(name).ok_or_else(|| ArrowError::SchemaError(format!("a packed timeline has a column {name}")))
}

fn values<'a, T: ArrowPrimitiveType>(packed: &'a RecordBatch, name: &str) -> Result<&'a [T::Native], ArrowError> {
    Ok(named(packed, name)?.as_primitive::<T>().values())
}

/// The numbers of a dictionary column, [`NONE`] for null.
fn keys<T>(packed: &RecordBatch, name: &str) -> Result<Vec<i32>, ArrowError>
where
    T: arrow::datatypes::ArrowDictionaryKeyType,
    T::Native: Into<i32>,
{
    let keys = named(packed, name)?.as_dictionary::<T>().keys();
    Ok(keys.iter().map(|key| key.map_or(NONE, Into::into)).collect())
}
