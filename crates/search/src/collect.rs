//! One walk over what matches: how many, the wanted page of them in the wanted order, and the facets. The order is total
//! (value, time, id), so a page is found by where the last one ended: page ten thousand costs what page one costs.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use tantivy::collector::{Collector, SegmentCollector};
use tantivy::columnar::{Column, DynamicColumn, NumericalType, StrColumn, TermOrdHit};
use tantivy::{DocAddress, DocId, Score, SegmentReader};

use crate::schema::is_float;

/// Most values of a facet in an answer; the rest is counted together.
pub const MAX_FACET_VALUES: usize = 200;

/// What to sort by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    Relevance,
    /// A column of numbers of the index.
    Number(&'static str),
    /// A column of texts of the index.
    Text(&'static str),
    /// `metadata.NAME`, numbers or texts or both: numbers first.
    Metadata(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sort {
    pub by: By,
    pub descending: bool,
}

/// The value by which a conversation is sorted. Without one it comes last in either direction.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Int(i64),
    Number(f64),
    Text(String),
    None,
}

/// The place of a conversation in the order: its value, then its time, then its id. What a cursor holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Place<V = Value> {
    pub value: V,
    pub time: i64,
    pub id: u64,
}

/// Values that can be put in order. Ascending; `None` is last and handled by [`Place::cmp`].
pub trait Ranked {
    fn is_none(&self) -> bool;
    fn rank(&self, other: &Self) -> Ordering;
}

impl Ranked for Value {
    fn is_none(&self) -> bool {
        matches!(self, Value::None)
    }

    fn rank(&self, other: &Value) -> Ordering {
        match (self, other) {
            (Value::Int(a), Value::Int(b)) => a.cmp(b),
            (Value::Number(a), Value::Number(b)) => a.total_cmp(b),
            (Value::Text(a), Value::Text(b)) => a.cmp(b),
            // Numbers before texts.
            (Value::Text(_), _) => Ordering::Greater,
            (_, Value::Text(_)) => Ordering::Less,
            _ => Ordering::Equal,
        }
    }
}

impl<V: Ranked> Place<V> {
    pub fn cmp(&self, other: &Place<V>, descending: bool) -> Ordering {
        let none = self.value.is_none().cmp(&other.value.is_none());
        let rest = self.value.rank(&other.value).then(self.time.cmp(&other.time)).then(self.id.cmp(&other.id));
        none.then(if descending { rest.reverse() } else { rest })
    }
}

impl Place {
    /// As text for a cursor. Numbers are written by their bits, so that they come back as they were.
    pub fn to_text(&self) -> String {
        let value = match &self.value {
            Value::Int(n) => format!("i{n}"),
            Value::Number(n) => format!("n{:x}", n.to_bits()),
            Value::Text(text) => format!("t{}", hex::encode(text)),
            Value::None => "x".to_string(),
        };
        format!("{value}.{}.{:x}", self.time, self.id)
    }

    pub fn from_text(text: &str) -> Option<Place> {
        let mut parts = text.split('.');
        let (value, time, id) = (parts.next()?, parts.next()?, parts.next()?);
        let rest = value.get(1..)?;
        let value = match value.as_bytes().first()? {
            b'i' => Value::Int(rest.parse().ok()?),
            b'n' => Value::Number(f64::from_bits(u64::from_str_radix(rest, 16).ok()?)),
            b't' => Value::Text(String::from_utf8(hex::decode(rest).ok()?).ok()?),
            b'x' if rest.is_empty() => Value::None,
            _ => return None,
        };
        let place = Place { value, time: time.parse().ok()?, id: u64::from_str_radix(id, 16).ok()? };
        parts.next().is_none().then_some(place)
    }
}

/// How a facet is counted.
#[derive(Clone, Debug, PartialEq)]
pub enum FacetKind {
    Texts,
    Integers,
    /// Buckets of this width.
    Buckets(f64),
}

#[derive(Clone, Debug)]
pub struct FacetWanted {
    pub name: &'static str,
    pub kind: FacetKind,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct FacetCounts {
    pub texts: BTreeMap<String, u64>,
    pub integers: BTreeMap<i64, u64>,
    /// By number of the bucket.
    pub buckets: BTreeMap<i64, u64>,
}

pub struct Hit {
    pub place: Place,
    pub address: DocAddress,
}

#[derive(Default)]
pub struct Collected {
    pub total: u64,
    pub hits: Vec<Hit>,
    pub facets: Vec<FacetCounts>,
}

pub struct Page {
    pub sort: Sort,
    /// Only what comes after this.
    pub after: Option<Place>,
    pub limit: usize,
    pub facets: Vec<FacetWanted>,
    /// Only these, by [`crate::schema::id_hash`].
    pub allowed: Option<Arc<HashSet<u64>>>,
}

/// A value inside one segment: a text is its place in the segment's dictionary, which sorts alike and costs nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Raw {
    Int(i64),
    Number(f64),
    /// Twice the ordinal and one; even numbers are between two texts of the dictionary.
    Text(u64),
    None,
}

impl Ranked for Raw {
    fn is_none(&self) -> bool {
        matches!(self, Raw::None)
    }

    fn rank(&self, other: &Raw) -> Ordering {
        match (self, other) {
            (Raw::Int(a), Raw::Int(b)) => a.cmp(b),
            (Raw::Number(a), Raw::Number(b)) => a.total_cmp(b),
            (Raw::Text(a), Raw::Text(b)) => a.cmp(b),
            (Raw::Text(_), _) => Ordering::Greater,
            (_, Raw::Text(_)) => Ordering::Less,
            _ => Ordering::Equal,
        }
    }
}

/// The column by which is sorted. Metadata may hold numbers here and texts there.
#[derive(Default)]
struct SortColumn {
    relevance: bool,
    int: Option<Column<i64>>,
    number: Option<Column<f64>>,
    flag: Option<Column<bool>>,
    text: Option<StrColumn>,
}

impl SortColumn {
    fn open(by: &By, segment: &SegmentReader) -> tantivy::Result<SortColumn> {
        let fast = segment.fast_fields();
        let mut column = SortColumn::default();
        match by {
            By::Relevance => column.relevance = true,
            By::Number(name) if is_float(name) => column.number = Some(fast.f64(name)?),
            By::Number(name) => column.int = Some(fast.i64(name)?),
            By::Text(name) => column.text = fast.str(name)?,
            By::Metadata(path) => {
                for handle in fast.dynamic_column_handles(&format!("metadata.{path}"))? {
                    match handle.open()? {
                        DynamicColumn::Str(texts) => column.text = Some(texts),
                        DynamicColumn::Bool(flags) => column.flag = Some(flags),
                        other => {
                            if let Some(DynamicColumn::F64(numbers)) = other.coerce_numerical(NumericalType::F64) {
                                column.number = Some(numbers);
                            }
                        }
                    }
                }
            }
        }
        Ok(column)
    }

    fn raw(&self, doc: DocId, score: Score) -> Raw {
        if self.relevance {
            return Raw::Number(f64::from(score));
        }
        if let Some(n) = self.int.as_ref().and_then(|c| c.first(doc)) {
            return Raw::Int(n);
        }
        if let Some(n) = self.number.as_ref().and_then(|c| c.first(doc)) {
            return Raw::Number(n);
        }
        if let Some(flag) = self.flag.as_ref().and_then(|c| c.first(doc)) {
            return Raw::Number(f64::from(u8::from(flag)));
        }
        let ord = self.text.as_ref().and_then(|c| c.term_ords(doc).next());
        ord.map_or(Raw::None, |ord| Raw::Text(ord * 2 + 1))
    }

    fn value(&self, raw: Raw) -> Value {
        match (raw, &self.text) {
            (Raw::Int(n), _) => Value::Int(n),
            (Raw::Number(n), _) => Value::Number(n),
            (Raw::Text(at), Some(column)) => {
                let mut text = String::new();
                let _ = column.ord_to_str(at / 2, &mut text);
                Value::Text(text)
            }
            _ => Value::None,
        }
    }

    /// A place of the whole order as one of this segment.
    fn inside(&self, place: &Place) -> tantivy::Result<Place<Raw>> {
        let value = match (&place.value, &self.text) {
            (Value::Int(n), _) => Raw::Int(*n),
            (Value::Number(n), _) => Raw::Number(*n),
            (Value::Text(text), Some(column)) => match column.dictionary().term_ord_or_next(text.as_bytes())? {
                TermOrdHit::Exact(ord) => Raw::Text(ord * 2 + 1),
                TermOrdHit::Next(ord) => Raw::Text(ord.saturating_mul(2)),
            },
            (Value::Text(_), None) => Raw::Text(0),
            (Value::None, _) => Raw::None,
        };
        Ok(Place { value, time: place.time, id: place.id })
    }
}

enum FacetColumn {
    Texts { column: Option<StrColumn>, counts: Vec<u64> },
    Integers { column: Column<i64>, counts: HashMap<i64, u64>, last: (i64, u64) },
    Buckets { column: Column<f64>, width: f64, counts: BTreeMap<i64, u64> },
}

pub struct Walk {
    segment: u32,
    sort: SortColumn,
    descending: bool,
    times: Column<i64>,
    ids: Column<u64>,
    after: Option<Place<Raw>>,
    limit: usize,
    allowed: Option<Arc<HashSet<u64>>>,
    total: u64,
    /// The best so far, up to about twice the limit before it is cut.
    best: Vec<(Place<Raw>, DocId)>,
    /// Nothing behind this place is wanted any more.
    worst: Option<Place<Raw>>,
    facets: Vec<FacetColumn>,
}

impl Collector for Page {
    type Fruit = Collected;
    type Child = Walk;

    fn for_segment(&self, segment_id: u32, segment: &SegmentReader) -> tantivy::Result<Walk> {
        let fast = segment.fast_fields();
        let facets = self
            .facets
            .iter()
            .map(|f| {
                Ok(match f.kind {
                    FacetKind::Texts => {
                        let column = fast.str(f.name)?;
                        let terms = column.as_ref().map_or(0, |c| c.num_terms());
                        FacetColumn::Texts { column, counts: vec![0; terms] }
                    }
                    FacetKind::Integers => {
                        FacetColumn::Integers { column: fast.i64(f.name)?, counts: HashMap::new(), last: (0, 0) }
                    }
                    FacetKind::Buckets(width) => {
                        FacetColumn::Buckets { column: fast.f64(f.name)?, width, counts: BTreeMap::new() }
                    }
                })
            })
            .collect::<tantivy::Result<Vec<_>>>()?;
        let sort = SortColumn::open(&self.sort.by, segment)?;
        Ok(Walk {
            segment: segment_id,
            after: self.after.as_ref().map(|after| sort.inside(after)).transpose()?,
            sort,
            descending: self.sort.descending,
            times: fast.i64("time")?,
            ids: fast.u64("id_hash")?,
            limit: self.limit,
            allowed: self.allowed.clone(),
            total: 0,
            best: Vec::new(),
            worst: None,
            facets,
        })
    }

    fn requires_scoring(&self) -> bool {
        self.sort.by == By::Relevance
    }

    fn merge_fruits(&self, fruits: Vec<Collected>) -> tantivy::Result<Collected> {
        let mut all = Collected { facets: vec![FacetCounts::default(); self.facets.len()], ..Collected::default() };
        for found in fruits {
            all.total += found.total;
            all.hits.extend(found.hits);
            for (sum, counts) in all.facets.iter_mut().zip(found.facets) {
                counts.texts.into_iter().for_each(|(k, n)| *sum.texts.entry(k).or_default() += n);
                counts.integers.into_iter().for_each(|(k, n)| *sum.integers.entry(k).or_default() += n);
                counts.buckets.into_iter().for_each(|(k, n)| *sum.buckets.entry(k).or_default() += n);
            }
        }
        all.hits.sort_by(|a, b| a.place.cmp(&b.place, self.sort.descending));
        all.hits.truncate(self.limit);
        Ok(all)
    }
}

impl Walk {
    fn keep_best(&mut self) {
        let descending = self.descending;
        self.best.sort_by(|a, b| a.0.cmp(&b.0, descending));
        self.best.truncate(self.limit);
        if self.best.len() == self.limit {
            self.worst = self.best.last().map(|(place, _)| place.clone());
        }
    }
}

impl SegmentCollector for Walk {
    type Fruit = Collected;

    fn collect(&mut self, doc: DocId, score: Score) {
        let id = self.ids.first(doc).unwrap_or(0);
        if self.allowed.as_ref().is_some_and(|allowed| !allowed.contains(&id)) {
            return;
        }
        self.total += 1;
        for facet in &mut self.facets {
            match facet {
                FacetColumn::Texts { column: Some(column), counts } => {
                    for ord in column.term_ords(doc) {
                        counts[ord as usize] += 1;
                    }
                }
                FacetColumn::Texts { .. } => {}
                FacetColumn::Integers { column, counts, last } => {
                    for n in column.values_for_doc(doc) {
                        // Neighbours tend to be of the same step.
                        if last.0 == n {
                            last.1 += 1;
                        } else {
                            *counts.entry(last.0).or_default() += last.1;
                            *last = (n, 1);
                        }
                    }
                }
                FacetColumn::Buckets { column, width, counts } => {
                    for n in column.values_for_doc(doc).filter(|n| n.is_finite()) {
                        *counts.entry(bucket(n, *width)).or_default() += 1;
                    }
                }
            }
        }
        if self.limit == 0 {
            return;
        }
        let place = Place { value: self.sort.raw(doc, score), time: self.times.first(doc).unwrap_or(0), id };
        let behind = |edge: &Place<Raw>| place.cmp(edge, self.descending) == Ordering::Greater;
        if self.after.as_ref().is_some_and(|after| !behind(after)) || self.worst.as_ref().is_some_and(behind) {
            return;
        }
        self.best.push((place, doc));
        if self.best.len() >= self.limit * 2 + 64 {
            self.keep_best();
        }
    }

    fn harvest(mut self) -> Collected {
        self.keep_best();
        let hit = |(place, doc): (Place<Raw>, DocId)| Hit {
            place: Place { value: self.sort.value(place.value), time: place.time, id: place.id },
            address: DocAddress::new(self.segment, doc),
        };
        let hits = std::mem::take(&mut self.best).into_iter().map(hit).collect();
        let facets = self.facets.into_iter().map(FacetColumn::finish).collect();
        Collected { total: self.total, hits, facets }
    }
}

impl FacetColumn {
    fn finish(self) -> FacetCounts {
        let mut out = FacetCounts::default();
        match self {
            FacetColumn::Texts { column: Some(column), counts } => {
                let mut text = String::new();
                for (ord, count) in counts.into_iter().enumerate().filter(|(_, n)| *n > 0) {
                    if column.ord_to_str(ord as u64, &mut text).unwrap_or(false) {
                        out.texts.insert(text.clone(), count);
                    }
                }
            }
            FacetColumn::Texts { .. } => {}
            FacetColumn::Integers { mut counts, last, .. } => {
                *counts.entry(last.0).or_default() += last.1;
                out.integers = counts.into_iter().filter(|(_, n)| *n > 0).collect();
            }
            FacetColumn::Buckets { counts, .. } => out.buckets = counts,
        }
        out
    }
}

/// The bucket of a number; its lower end is the bucket's number times the width.
pub fn bucket(n: f64, width: f64) -> i64 {
    // A value on an edge, within rounding, belongs above it.
    let at = n / width;
    let near = at.round();
    if (at - near).abs() < 1e-9 { near as i64 } else { at.floor() as i64 }
}

/// A width of 1, 2 or 5 times a power of ten that makes about ten buckets.
pub fn bucket_width(min: f64, max: f64) -> f64 {
    let wanted = (max - min) / 10.0;
    if !wanted.is_finite() || wanted <= 0.0 {
        return 0.1;
    }
    let power = 10f64.powf(wanted.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|w| *w >= wanted * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_round_edges() {
        assert_eq!(bucket_width(0.0, 1.0), 0.1);
        assert_eq!(bucket_width(-3.0, 17.0), 2.0);
        assert_eq!(bucket_width(1.0, 1.0), 0.1);
        assert_eq!(bucket(0.3, 0.1), 3);
        assert_eq!(bucket(1.0, 0.1), 10);
        assert_eq!(bucket(-0.05, 0.1), -1);
    }

    #[test]
    fn nothing_comes_last_in_both_directions() {
        let place = |value| Place { value, time: 0, id: 0 };
        for descending in [false, true] {
            let order = place(Value::None).cmp(&place(Value::Number(1.0)), descending);
            assert_eq!(order, Ordering::Greater);
        }
        assert_eq!(place(Value::Number(2.0)).cmp(&place(Value::Number(1.5)), true), Ordering::Less);
        assert_eq!(place(Value::Text("a".into())).cmp(&place(Value::Number(9.0)), false), Ordering::Greater);
    }

    #[test]
    fn a_cursor_comes_back_as_it_was() {
        for value in [
            Value::Int(-3),
            Value::Number(0.1 + 0.2),
            Value::Number(f64::INFINITY),
            Value::Text("é.x".into()),
            Value::None,
        ] {
            let place = Place { value, time: -7, id: u64::MAX };
            assert_eq!(Place::from_text(&place.to_text()), Some(place));
        }
        for bad in ["", "i", "i1", "i1.2", "i1.2.3.4", "q1.2.3", "tzz.1.2", "n.1.2", "x1.2.3", "é.1.2"] {
            assert_eq!(Place::from_text(bad), None, "{bad}");
        }
    }
}
