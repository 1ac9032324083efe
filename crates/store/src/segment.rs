//! Segments: Parquet files of one table, immutable once written. A run has its own, except where many small ones come
//! together: these share one, in which the rows of each run lie together.
//!
//! Rows are ordered so that what is read together lies together and compresses well: rows that share the table's
//! cluster column (the spans of a trace) are next to each other, ordered by time; clusters are ordered by their first
//! time. Encodings follow what the columns hold: random ids are stored plain and uncompressed (nothing helps), times as
//! deltas, everything repeated as dictionaries, all under zstd.

use std::collections::HashMap;

use arrow::array::cast::AsArray;
use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{DataType, Int32Type, Int64Type};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::FOOTER_SIZE;
use parquet::file::metadata::{FooterTail, KeyValue, ParquetMetaDataReader};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::schema::types::ColumnPath;
use rollscope_model::Table;
use rollscope_model::read::{Text, column};
use rollscope_model::tables::FORMAT_VERSION;
use xxhash_rust::xxh3::xxh3_64;

use crate::attr_types;
use crate::census::Census;
use crate::error::StoreError;
use crate::identity::{IdentitySet, identity_hashes, open_rows};
use crate::manifest::{AttrTypes, Part, Segment};

/// A trace is looked up by reading one row group: small enough to be quick, large enough to compress.
const ROW_GROUP_ROWS: usize = 128 << 10;

/// A conversation is looked up by reading one page of its text, and its text is thousands of times larger than a span.
/// Pages must hold several neighbours all the same: neighbours begin alike, and what repeats inside a page is stored once.
const TEXT_ROW_GROUP_ROWS: usize = 8 << 10;
const TEXT_PAGE_BYTES: usize = 512 << 10;
const TEXT_BATCH_ROWS: usize = 16;

/// The tokens of a sample are looked up by reading one row group. A sample may have ten tokens, or a hundred thousand: the writer looks
/// at the bytes after so many.
const TOKENS_ROW_GROUP_ROWS: usize = 2 << 10;
const TOKENS_ROW_GROUP_BYTES: usize = 4 << 20;
const TOKENS_WRITTEN_ROWS: usize = 32;

/// Ids that no dictionary holds. The default of this writer version, DELTA_BYTE_ARRAY, is not read by polars for values of
/// a fixed length.
const ID_ENCODING: Encoding = Encoding::PLAIN;

/// The description of a segment in the file's own metadata: enough to rebuild a lost manifest.
const SELF_KEY: &str = "rollscope.segment";
/// What it holds of each step, as JSON ([`Census`]).
const CENSUS_KEY: &str = "rollscope.census";
/// The types of its attributes, as JSON ([`AttrTypes`]).
const TYPES_KEY: &str = "rollscope.attr_types";

pub(crate) struct NewSegment {
    pub segment: Segment,
    pub data: Vec<u8>,
    pub identities: IdentitySet,
}

/// How hard to compress: a flush must keep up with the traffic, a compaction has time.
#[derive(Clone, Copy)]
pub(crate) enum Effort {
    Flush,
    Compact,
    /// Like a compaction, of rows that were thinned.
    Thin,
}

/// A run below both of these is small: it is not worth a file.
pub(crate) const SMALL_RUN_ROWS: u64 = 4096;
pub(crate) const SMALL_RUN_BYTES: u64 = 1 << 20;
/// So many small runs share a file. Fewer have one each: it is read faster, and goes as a whole when its run is deleted.
pub(crate) const SHARED_AT: usize = 8;
/// What shares a file at most: a run that is deleted, or a row that is replaced, makes it necessary to write it again.
pub(crate) const SHARED_RUNS: usize = 1024;
pub(crate) const SHARED_ROWS: u64 = 64 << 10;
pub(crate) const SHARED_BYTES: u64 = 64 << 20;

/// `Segment::level` of rows that were thinned.
pub(crate) const THINNED: u8 = 2;

/// Writes batches of one table as segments. `name` gives each file its unique stem.
pub(crate) fn build(
    table: Table,
    batches: &[RecordBatch],
    writer: &str,
    effort: Effort,
    replaces: &[String],
    mut name: impl FnMut() -> String,
) -> Result<Vec<NewSegment>, StoreError> {
    let all = concat_batches(&table.schema(), batches)?;
    let mut segments = Vec::new();
    for group in by_file(rows_by_run(&all), all.get_array_memory_size() as u64) {
        let batch = take_record_batch(&all, &order_of_group(table, &all, &group))?;
        let (min_time, max_time) = time_range(table, &batch);
        let (folder, run_id, shared_by) = match <[(String, Vec<u32>); 1]>::try_from(group) {
            Ok([(run_id, _)]) => (path_safe(&run_id), run_id, Vec::new()),
            Err(several) => (SHARED_FOLDER.into(), String::new(), parts(table, &batch, several)),
        };
        let path = format!("{}/run={folder}/{}-{writer}.parquet", table.name(), name());
        let mut segment = Segment {
            table: table.name().into(),
            run_id,
            shared_by,
            path,
            rows: batch.num_rows() as u64,
            memory_bytes: batch.get_array_memory_size() as u64,
            min_time,
            max_time,
            steps: step_range(&batch),
            has_open: !open_rows(table, &batch).is_empty(),
            format_version: FORMAT_VERSION,
            writer: writer.into(),
            level: match effort {
                Effort::Flush => 0,
                Effort::Compact => 1,
                Effort::Thin => THINNED,
            },
            replaces: replaces.to_vec(),
            ..Segment::default()
        };
        let mut data = encode(table, &batch, effort, &segment, Values::Split)?;
        // Which encoding is smallest depends on what is measured: counters split well, rounded shares repeat themselves. A
        // merge has the time to try.
        if table == Table::Series && !matches!(effort, Effort::Flush) {
            for values in [Values::Plain, Values::Dictionary] {
                let other = encode(table, &batch, effort, &segment, values)?;
                if other.len() < data.len() {
                    data = other;
                }
            }
        }
        segment.bytes = data.len() as u64;
        segment.checksum = xxh3_64(&data);
        let identities = IdentitySet::new(identity_hashes(table, &batch));
        segments.push(NewSegment { segment, data, identities });
    }
    Ok(segments)
}

/// Runs with their rows, in the order of their names: one, or those that share a file.
type Group = Vec<(String, Vec<u32>)>;

fn by_file(runs: Group, bytes: u64) -> Vec<Group> {
    let all: u64 = runs.iter().map(|(_, rows)| rows.len() as u64).sum();
    let bytes_of = |rows: u64| bytes / all.max(1) * rows;
    let is_small = |(_, rows): &(String, Vec<u32>)| {
        let rows = rows.len() as u64;
        rows < SMALL_RUN_ROWS && bytes_of(rows) < SMALL_RUN_BYTES
    };
    let (mut small, large): (Group, Group) = runs.into_iter().partition(is_small);
    let mut groups: Vec<Group> = large.into_iter().map(|run| vec![run]).collect();
    if small.len() < SHARED_AT {
        groups.extend(small.into_iter().map(|run| vec![run]));
        return groups;
    }
    small.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let mut shared: Vec<Group> = Vec::new();
    let mut rows = 0;
    for run in small {
        let more = run.1.len() as u64;
        match shared.last_mut() {
            Some(last)
                if last.len() < SHARED_RUNS && rows + more <= SHARED_ROWS && bytes_of(rows + more) <= SHARED_BYTES =>
            {
                rows += more;
                last.push(run);
            }
            _ => {
                rows = more;
                shared.push(vec![run]);
            }
        }
    }
    groups.extend(shared);
    groups
}

/// Rows of a run lie together.
fn order_of_group(table: Table, batch: &RecordBatch, group: &Group) -> UInt32Array {
    let rows = order(table, batch, group.iter().flat_map(|(_, rows)| rows).copied().collect());
    if group.len() == 1 {
        return rows;
    }
    let run_of = ranks(runs(batch));
    let mut rows: Vec<u32> = rows.values().to_vec();
    rows.sort_by_key(|row| run_of[*row as usize]);
    rows.into()
}

/// What a batch in the order of a segment holds of each run.
fn parts(table: Table, batch: &RecordBatch, group: Group) -> Vec<Part> {
    let mut at = 0;
    let part = |(run_id, rows): (String, Vec<u32>)| {
        let own = batch.slice(at, rows.len());
        at += rows.len();
        let (min_time, max_time) = time_range(table, &own);
        Part { run_id, rows: rows.len() as u64, min_time, max_time, steps: step_range(&own) }
    };
    group.into_iter().map(part).collect()
}

/// All rows as one batch, in the order of a segment.
pub(crate) fn in_order(table: Table, batches: &[RecordBatch]) -> Result<Vec<RecordBatch>, StoreError> {
    let all = concat_batches(&table.schema(), batches)?;
    let rows = (0..all.num_rows() as u32).collect();
    Ok(vec![take_record_batch(&all, &order(table, &all, rows))?])
}

/// How measured values are written, before they are compressed.
#[derive(Clone, Copy)]
enum Values {
    /// Bytes of the same significance together.
    Split,
    Plain,
    Dictionary,
}

fn encode(
    table: Table,
    batch: &RecordBatch,
    effort: Effort,
    segment: &Segment,
    values: Values,
) -> Result<Vec<u8>, StoreError> {
    let level = match effort {
        Effort::Flush => 1,
        Effort::Compact | Effort::Thin => 6,
    };
    let about = serde_json::to_string(segment).expect("a segment is plain data");
    let mut notes = vec![KeyValue::new(SELF_KEY.to_string(), about)];
    if let Some(census) = Census::of(table, batch) {
        let census = serde_json::to_string(&census).expect("a census is plain data");
        notes.push(KeyValue::new(CENSUS_KEY.to_string(), census));
    }
    let types = attr_types::of(batch);
    if !types.is_empty() {
        let types = serde_json::to_string(&types).expect("types are plain data");
        notes.push(KeyValue::new(TYPES_KEY.to_string(), types));
    }
    let mut props = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(level)?))
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_key_value_metadata(Some(notes))
        .set_created_by(format!("rollscope {}", env!("CARGO_PKG_VERSION")));
    let mut group_rows = ROW_GROUP_ROWS;
    if table == Table::Conversations {
        group_rows = TEXT_ROW_GROUP_ROWS;
        props = props
            .set_max_row_group_row_count(Some(TEXT_ROW_GROUP_ROWS))
            .set_data_page_size_limit(TEXT_PAGE_BYTES)
            .set_write_batch_size(TEXT_BATCH_ROWS)
            .set_column_dictionary_enabled(ColumnPath::from("messages"), false)
            .set_column_statistics_enabled(ColumnPath::from("messages"), EnabledStatistics::None);
    }
    if table == Table::Tokens {
        group_rows = TOKENS_ROW_GROUP_ROWS;
        props = props
            .set_max_row_group_row_count(Some(TOKENS_ROW_GROUP_ROWS))
            .set_max_row_group_bytes(Some(TOKENS_ROW_GROUP_BYTES));
    }
    for column in table.bloom_columns() {
        let path = ColumnPath::from(*column);
        let distinct = distinct(batch.column_by_name(column).expect("declared"), group_rows);
        props = props
            .set_column_bloom_filter_enabled(path.clone(), true)
            .set_column_bloom_filter_fpp(path.clone(), 0.01)
            .set_column_bloom_filter_max_ndv(path, distinct as u64);
    }
    for field in batch.schema().fields() {
        let path = ColumnPath::from(field.name().as_str());
        match (field.name().as_str(), field.data_type()) {
            // Unique and random: a dictionary and a compressor would only cost time.
            ("span_id", _) if table == Table::Spans => {
                props = props
                    .set_column_dictionary_enabled(path.clone(), false)
                    .set_column_encoding(path.clone(), ID_ENCODING)
                    .set_column_compression(path, Compression::UNCOMPRESSED);
            }
            (_, DataType::FixedSizeBinary(_)) => props = props.set_column_encoding(path, ID_ENCODING),
            (name, DataType::Int64) if name.ends_with("_ns") => {
                props = props
                    .set_column_dictionary_enabled(path.clone(), false)
                    .set_column_encoding(path.clone(), Encoding::DELTA_BINARY_PACKED)
                    .set_column_statistics_enabled(path, EnabledStatistics::Page);
            }
            // Sorted by name: pages of other names are skipped.
            ("name", _) if table == Table::Series => {
                props = props.set_column_statistics_enabled(path, EnabledStatistics::Page);
            }
            ("value", DataType::Float64) => {
                props = match values {
                    Values::Split => props
                        .set_column_dictionary_enabled(path.clone(), false)
                        .set_column_encoding(path, Encoding::BYTE_STREAM_SPLIT),
                    Values::Plain => props
                        .set_column_dictionary_enabled(path.clone(), false)
                        .set_column_encoding(path, Encoding::PLAIN),
                    Values::Dictionary => props.set_column_dictionary_enabled(path, true),
                };
            }
            (name, DataType::List(item)) if table == Table::Tokens => {
                let leaf = ColumnPath::from([name, "list", "item"].map(String::from).to_vec());
                props = props.set_column_statistics_enabled(leaf.clone(), EnabledStatistics::None);
                // Advantages repeat themselves: all tokens of a sample have the same as a rule.
                if *item.data_type() == DataType::Float32 && name != "advantages" {
                    props = props
                        .set_column_dictionary_enabled(leaf.clone(), false)
                        .set_column_encoding(leaf, Encoding::BYTE_STREAM_SPLIT);
                }
            }
            (_, DataType::Map(_, _)) => {
                props = props
                    .set_column_statistics_enabled(map_leaf(field.name(), "key"), EnabledStatistics::None)
                    .set_column_statistics_enabled(map_leaf(field.name(), "value"), EnabledStatistics::None);
            }
            ("links", _) => {
                let leaf = |id: &str| ColumnPath::from(["links", "list", "item", id].map(String::from).to_vec());
                props = props
                    .set_column_encoding(leaf("trace_id"), ID_ENCODING)
                    .set_column_dictionary_enabled(leaf("span_id"), false)
                    .set_column_encoding(leaf("span_id"), ID_ENCODING)
                    .set_column_compression(leaf("span_id"), Compression::UNCOMPRESSED);
            }
            _ => {}
        }
    }
    let mut writer =
        ArrowWriter::try_new(Vec::with_capacity(batch.num_rows() * 48), batch.schema(), Some(props.build()))?;
    let at_once = if table == Table::Tokens { TOKENS_WRITTEN_ROWS } else { batch.num_rows() };
    for first in (0..batch.num_rows()).step_by(at_once.max(1)) {
        writer.write(&batch.slice(first, at_once.min(batch.num_rows() - first)))?;
    }
    Ok(writer.into_inner()?)
}

fn map_leaf(column: &str, leaf: &str) -> ColumnPath {
    ColumnPath::from(vec![column.to_string(), "entries".to_string(), leaf.to_string()])
}

/// Distinct values among the rows of a row group, about: what a bloom filter is sized by.
fn distinct(column: &ArrayRef, rows: usize) -> usize {
    let n = column.len().min(rows);
    match column.data_type() {
        DataType::FixedSizeBinary(_) => {
            let ids = column.as_fixed_size_binary();
            1 + (1..n).filter(|i| ids.value(*i) != ids.value(*i - 1)).count()
        }
        DataType::Dictionary(_, _) => column.as_dictionary::<Int32Type>().values().len().min(n).max(1),
        _ => n.max(1),
    }
}

pub(crate) fn runs(batch: &RecordBatch) -> Text<'_> {
    column(batch, "run_id").expect("every table has a run")
}

pub(crate) fn rows_by_run(batch: &RecordBatch) -> Vec<(String, Vec<u32>)> {
    let (keys, values) = runs(batch).dictionary().expect("runs are declared as a dictionary");
    // Dictionaries of many batches laid end to end name the same run more than once.
    let mut slots: HashMap<&str, usize> = HashMap::new();
    let slot_of: Vec<usize> = values
        .iter()
        .map(|v| {
            let n = slots.len();
            *slots.entry(v.unwrap_or_default()).or_insert(n)
        })
        .collect();
    let mut groups: Vec<(String, Vec<u32>)> = vec![Default::default(); slots.len()];
    for (name, slot) in &slots {
        groups[*slot].0 = (*name).to_string();
    }
    for (row, key) in keys.values().iter().enumerate() {
        groups[slot_of[*key as usize]].1.push(row as u32);
    }
    groups.retain(|(_, rows)| !rows.is_empty());
    groups
}

fn times(table: Table, batch: &RecordBatch) -> &arrow::array::Int64Array {
    batch.column_by_name(table.time_column()).expect("declared").as_primitive::<Int64Type>()
}

fn order(table: Table, batch: &RecordBatch, rows: Vec<u32>) -> UInt32Array {
    let times = times(table, batch).values();
    let time = |row: u32| times[row as usize];
    if table == Table::Conversations {
        return order_of_texts(batch, rows, times);
    }
    if !table.sort_columns().is_empty() {
        let ranks: Vec<Vec<u32>> =
            table.sort_columns().iter().map(|c| ranks(column(batch, c).expect("declared"))).collect();
        let mut rows = rows;
        // Stable: of samples with one time the later arrival stays the later.
        rows.sort_by(|a, b| {
            let differ = ranks.iter().map(|r| r[*a as usize].cmp(&r[*b as usize])).find(|o| o.is_ne());
            differ.unwrap_or_else(|| time(*a).cmp(&time(*b)))
        });
        return rows.into();
    }
    let Some(cluster) = table.cluster_column() else {
        let mut rows = rows;
        rows.sort_by_key(|r| time(*r));
        return rows.into();
    };
    let column = batch.column_by_name(cluster).expect("declared");
    let cluster_of: Box<dyn Fn(u32) -> u128> = match column.data_type() {
        DataType::FixedSizeBinary(16) => {
            let ids = column.as_fixed_size_binary();
            Box::new(move |r| u128::from_be_bytes(ids.value(r as usize).try_into().expect("sixteen bytes")))
        }
        _ => {
            let dict = column.as_dictionary::<Int32Type>();
            let values = dict.values().as_string::<i32>();
            let mut names: Vec<&str> = values.iter().map(Option::unwrap_or_default).collect();
            names.sort_unstable();
            names.dedup();
            let rank: Vec<u128> =
                values.iter().map(|v| names.binary_search(&v.unwrap_or_default()).unwrap_or(0) as u128).collect();
            Box::new(move |r| rank[dict.keys().value(r as usize) as usize])
        }
    };
    let mut first: HashMap<u128, i64, xxhash_rust::xxh3::Xxh3Builder> = HashMap::default();
    for row in &rows {
        let t = time(*row);
        first.entry(cluster_of(*row)).and_modify(|f| *f = (*f).min(t)).or_insert(t);
    }
    let mut keyed: Vec<(i64, u128, i64, u32)> = rows
        .into_iter()
        .map(|r| {
            let cluster = cluster_of(r);
            (first[&cluster], cluster, time(r), r)
        })
        .collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, _, _, r)| r).collect::<Vec<u32>>().into()
}

/// The place of every row's text in the order of texts.
pub(crate) fn ranks(column: Text) -> Vec<u32> {
    let (keys, values) = column.dictionary().expect("declared as a dictionary");
    let mut texts: Vec<&str> = values.iter().map(Option::unwrap_or_default).collect();
    texts.sort_unstable();
    texts.dedup();
    let rank: Vec<u32> =
        values.iter().map(|v| texts.binary_search(&v.unwrap_or_default()).unwrap_or(0) as u32).collect();
    keys.iter().map(|k| k.map_or(0, |k| rank[k as usize])).collect()
}

/// Conversations are in the order of their text: siblings of a prompt and successive turns of one conversation begin
/// alike, so they become neighbours, and the compressor stores their common beginning once (docs/adr/0010).
fn order_of_texts(batch: &RecordBatch, mut rows: Vec<u32>, times: &[i64]) -> UInt32Array {
    let texts = batch.column_by_name("messages").expect("declared").as_string::<i32>();
    rows.sort_by(|a, b| {
        let (a, b) = (*a as usize, *b as usize);
        texts.value(a).cmp(texts.value(b)).then(times[a].cmp(&times[b]))
    });
    rows.into()
}

pub(crate) fn time_range(table: Table, batch: &RecordBatch) -> (i64, i64) {
    let times = times(table, batch);
    let min = arrow::compute::min(times).unwrap_or(0);
    let mut max = arrow::compute::max(times).unwrap_or(0);
    if let Some(ends) = batch.column_by_name("end_ns") {
        max = max.max(arrow::compute::max(ends.as_primitive::<Int64Type>()).unwrap_or(i64::MIN));
    }
    (min, max)
}

pub(crate) fn step_range(batch: &RecordBatch) -> Option<(i64, i64)> {
    let steps = batch.column_by_name("step")?.as_primitive::<Int64Type>();
    Some((arrow::compute::min(steps)?, arrow::compute::max(steps)?))
}

/// Of segments that runs share. No run is called that: see below.
const SHARED_FOLDER: &str = "_";

/// A name that is safe in any file system and object store: letters, digits, `.` and `-` stay, the rest is `_hh`.
pub(crate) fn path_safe(run_id: &str) -> String {
    let mut out = String::new();
    for b in run_id.bytes() {
        if b.is_ascii_alphanumeric() || b == b'.' || b == b'-' {
            out.push(b as char);
        } else {
            out.push_str(&format!("_{b:02x}"));
        }
    }
    if out.len() > 120 {
        out = format!("{}_{:016x}", &out[..96], xxh3_64(run_id.as_bytes()));
    }
    out
}

/// Checks that a file matches the manifest: size, checksum, and a footer that can be read.
pub(crate) fn verify(segment: &Segment, data: &Bytes) -> Result<(), String> {
    if data.len() as u64 != segment.bytes {
        return Err(format!("it has {} bytes instead of {}", data.len(), segment.bytes));
    }
    if xxh3_64(data) != segment.checksum {
        return Err("its checksum is wrong".into());
    }
    ParquetRecordBatchReaderBuilder::try_new(data.clone()).map_err(|e| e.to_string())?;
    Ok(())
}

/// What a file says of itself in its metadata, for rebuilding a manifest.
pub(crate) fn describe_self(data: &Bytes) -> Option<(Segment, AttrTypes)> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(data.clone()).ok()?;
    let notes = reader.metadata().file_metadata().key_value_metadata()?;
    let note = |key: &str| notes.iter().find(|note| note.key == key)?.value.as_deref();
    let mut segment: Segment = serde_json::from_str(note(SELF_KEY)?).ok()?;
    segment.bytes = data.len() as u64;
    segment.checksum = xxh3_64(data);
    let types = note(TYPES_KEY).and_then(|types| serde_json::from_str(types).ok()).unwrap_or_default();
    Some((segment, types))
}

/// Bytes of the footer, by the last eight bytes of a file.
pub(crate) fn footer_length(end: &[u8]) -> Option<usize> {
    let tail = FooterTail::try_new(end.last_chunk()?).ok()?;
    Some(tail.metadata_length() + FOOTER_SIZE)
}

/// What a segment says of its steps, in a footer of this length at the end of these bytes.
pub(crate) fn census(end: &[u8], footer_length: usize) -> Option<Census> {
    let footer = end.get(end.len().checked_sub(footer_length)?..end.len() - FOOTER_SIZE)?;
    let metadata = ParquetMetaDataReader::decode_metadata(footer).ok()?;
    let notes = metadata.file_metadata().key_value_metadata()?;
    let census = notes.iter().find(|note| note.key == CENSUS_KEY)?;
    serde_json::from_str(census.value.as_deref()?).ok()
}

/// All rows of a segment, in the table's present schema.
pub(crate) fn read_batches(table: Table, data: Bytes) -> Result<Vec<RecordBatch>, StoreError> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(data)?.with_batch_size(64 << 10).build()?;
    reader.map(|batch| upgrade(table, &batch?)).collect()
}

/// Batches of a segment, decoded on demand.
pub type SegmentBatches = Box<dyn Iterator<Item = Result<RecordBatch, StoreError>> + Send>;

/// Some columns of a segment, in small batches.
pub(crate) fn read_columns(table: Table, data: Bytes, columns: &[&str]) -> Result<SegmentBatches, StoreError> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(data)?.with_batch_size(1024);
    let mask = ProjectionMask::columns(builder.parquet_schema(), columns.iter().copied());
    let reader = builder.with_projection(mask).build()?;
    let schema = table.schema();
    Ok(Box::new(reader.map(move |batch| {
        let batch = batch?;
        // Text that is a dictionary by declaration may come back plain, and vice versa.
        let columns = batch
            .schema()
            .fields()
            .iter()
            .zip(batch.columns())
            .map(|(field, column)| match schema.field_with_name(field.name()) {
                Ok(declared) if declared.data_type() != column.data_type() => {
                    Ok((field.name().clone(), arrow::compute::cast(column, declared.data_type())?))
                }
                _ => Ok((field.name().clone(), column.clone())),
            })
            .collect::<Result<Vec<_>, StoreError>>()?;
        Ok(RecordBatch::try_from_iter(columns)?)
    })))
}

/// Gives a batch of any earlier version the present columns: those it lacks are null, or zero where null is not allowed.
pub(crate) fn upgrade(table: Table, batch: &RecordBatch) -> Result<RecordBatch, StoreError> {
    let schema = table.schema();
    let columns = schema
        .fields()
        .iter()
        .map(|field| match batch.column_by_name(field.name()) {
            Some(column) if column.data_type() == field.data_type() => Ok(column.clone()),
            Some(column) => Ok(arrow::compute::cast(column, field.data_type())?),
            None if field.is_nullable() => Ok(arrow::array::new_null_array(field.data_type(), batch.num_rows())),
            None => Err(StoreError::WrongSchema(table.name())),
        })
        .collect::<Result<Vec<_>, StoreError>>()?;
    Ok(RecordBatch::try_new(schema, columns)?)
}

/// The identities in a segment, and those of rows that are open.
pub(crate) fn read_identities(table: Table, data: Bytes) -> Result<(IdentitySet, Vec<u128>), StoreError> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(data)?.with_batch_size(64 << 10);
    let mut names = table.identity().to_vec();
    if table == Table::Spans {
        names.push("state");
    }
    let mask = ProjectionMask::columns(builder.parquet_schema(), names.iter().copied());
    let (mut all, mut open) = (Vec::new(), Vec::new());
    for batch in builder.with_projection(mask).build()? {
        let batch = batch?;
        let hashes = identity_hashes(table, &batch);
        for (row, is_open) in open_rows(table, &batch).iter().enumerate() {
            if *is_open {
                open.push(hashes[row]);
            }
        }
        all.extend(hashes);
    }
    Ok((IdentitySet::new(all), open))
}

/// For sorting out what a flush holds: batches of a table without the rows whose identity is in `gone`.
pub(crate) fn without(
    table: Table,
    batch: RecordBatch,
    gone: &std::collections::HashSet<u128>,
) -> Result<RecordBatch, StoreError> {
    let hashes = identity_hashes(table, &batch);
    let keep: arrow::array::BooleanArray = hashes.iter().map(|h| Some(!gone.contains(h))).collect();
    Ok(arrow::compute::filter_record_batch(&batch, &keep)?)
}

/// A batch without the rows of a run.
pub(crate) fn without_run(batch: &RecordBatch, run_id: &str) -> Result<RecordBatch, StoreError> {
    let runs = runs(batch);
    let keep: arrow::array::BooleanArray =
        (0..batch.num_rows()).map(|row| Some(runs.get(row) != Some(run_id))).collect();
    Ok(arrow::compute::filter_record_batch(batch, &keep)?)
}

/// Any batch as a Parquet file, for people to take along.
pub fn parquet_file(batch: &RecordBatch) -> Result<Vec<u8>, StoreError> {
    let props = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(props))?;
    writer.write(batch)?;
    Ok(writer.into_inner()?)
}
