//! Which segments may hold an id, by the bloom filters in their files. The filters are kept over all queries: otherwise each
//! query for an id opens every file to ask for them, which takes half a millisecond per file.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::{Result, ScalarValue};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::ParquetFileReaderFactory;
use datafusion::parquet::bloom_filter::Sbbf;
use datafusion::parquet::errors::ParquetError;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::{StreamExt, stream};
use lru::LruCache;
use rollscope_store::Segment;

/// Memory that the filters may take: enough for fifty million traces.
const MOST_BYTES: usize = 64 << 20;
/// Files that are read at the same time: reading waits for the disk, not for a core.
const FILES_AT_ONCE: usize = 8;

/// The filters of one column in one file, one per row group.
#[derive(Clone)]
pub struct MayHold(Arc<Vec<Sbbf>>);

impl MayHold {
    /// True also if that is not known.
    pub fn any(&self, ids: &HashSet<ScalarValue>) -> bool {
        ids.iter().any(|id| match id {
            ScalarValue::FixedSizeBinary(_, Some(bytes)) | ScalarValue::Binary(Some(bytes)) => {
                self.0.iter().any(|filter| filter.check(bytes.as_slice()))
            }
            id => match id.try_as_str() {
                Some(Some(text)) => self.0.iter().any(|filter| filter.check(text)),
                _ => true,
            },
        })
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|filter| filter.num_blocks() * 32).sum()
    }
}

/// A segment's file, which never changes, and a column.
type Key = (String, &'static str);

/// The filters that were read. A file without them has an entry, too.
pub struct IdFilters(Mutex<Kept>);

struct Kept {
    files: LruCache<Key, Option<MayHold>>,
    bytes: usize,
}

impl Default for IdFilters {
    fn default() -> Self {
        IdFilters(Mutex::new(Kept { files: LruCache::unbounded(), bytes: 0 }))
    }
}

impl IdFilters {
    /// The segments whose filter of a column fits, in their order. One without a filter, or that cannot be read, stays: whoever reads
    /// its rows then finds out why.
    pub async fn fitting(
        &self,
        segments: Vec<Arc<Segment>>,
        column: &'static str,
        reader: &Arc<dyn ParquetFileReaderFactory>,
        fits: impl Fn(&MayHold) -> bool,
    ) -> Vec<Arc<Segment>> {
        let fits = &fits;
        let one = |segment: Arc<Segment>| async move {
            let filter = self.of(&segment, column, reader).await;
            filter.is_none_or(|filter| fits(&filter)).then_some(segment)
        };
        let kept = stream::iter(segments).map(one).buffered(FILES_AT_ONCE);
        kept.filter_map(std::future::ready).collect().await
    }

    async fn of(
        &self,
        segment: &Segment,
        column: &'static str,
        reader: &Arc<dyn ParquetFileReaderFactory>,
    ) -> Option<MayHold> {
        let key = (segment.path.clone(), column);
        if let Some(known) = self.0.lock().unwrap_or_else(PoisonError::into_inner).files.get(&key) {
            return known.clone();
        }
        let filter = read(segment, column, reader).await.ok()?;
        self.keep(key, filter.clone());
        filter
    }

    fn keep(&self, key: Key, filter: Option<MayHold>) {
        let size = |key: &Key, filter: &Option<MayHold>| key.0.len() + filter.as_ref().map_or(0, MayHold::bytes);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += size(&key, &filter);
        if let Some((key, filter)) = kept.files.push(key, filter) {
            kept.bytes -= size(&key, &filter);
        }
        while kept.bytes > MOST_BYTES
            && let Some((key, filter)) = kept.files.pop_lru()
        {
            kept.bytes -= size(&key, &filter);
        }
    }
}

async fn read(segment: &Segment, column: &str, reader: &Arc<dyn ParquetFileReaderFactory>) -> Result<Option<MayHold>> {
    let file = PartitionedFile::new(segment.path.clone(), segment.bytes);
    let mut reader = reader.create_reader(0, file, None, &ExecutionPlanMetricsSet::new())?;
    let footer = reader.get_metadata(None).await?;
    let columns = footer.file_metadata().schema_descr().columns();
    let Some(index) = columns.iter().position(|c| c.path().string() == column) else { return Ok(None) };
    let mut ranges = Vec::new();
    for group in footer.row_groups() {
        let column = group.column(index);
        // Numbers of a damaged footer may be anything.
        let at = column.bloom_filter_offset().and_then(|at| u64::try_from(at).ok());
        let length = column.bloom_filter_length().and_then(|length| u64::try_from(length).ok());
        let (Some(at), Some(length)) = (at, length) else { return Ok(None) };
        ranges.push(at..at.saturating_add(length));
    }
    let filters = reader.get_byte_ranges(ranges).await?;
    let filters = filters.iter().map(|bytes| Sbbf::from_bytes(bytes)).collect::<Result<Vec<_>, ParquetError>>()?;
    Ok(Some(MayHold(Arc::new(filters))))
}
