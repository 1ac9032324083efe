//! Reads segments with footers cached across queries (segments never change, so a path is enough of a key), and counts
//! what was read for [`Progress`].

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use datafusion::common::Result;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::ParquetFileReaderFactory;
use datafusion::datasource::physical_plan::parquet::CachedParquetFileReaderFactory;
use datafusion::execution::cache::cache_manager::FileMetadataCache;
use datafusion::object_store::ObjectStore;
use datafusion::parquet::arrow::arrow_reader::ArrowReaderOptions;
use datafusion::parquet::arrow::async_reader::AsyncFileReader;
use datafusion::parquet::errors::Result as ParquetResult;
use datafusion::parquet::file::metadata::ParquetMetaData;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::FutureExt;
use futures::future::BoxFuture;
use rollscope_store::Segment;

use crate::progress::Progress;

/// A part of a file: its path and first byte.
type Part = (String, u64);

#[derive(Debug)]
pub struct CountingReaderFactory {
    inner: CachedParquetFileReaderFactory,
    progress: Arc<Progress>,
    /// Readers alive by part. A part may have two for a moment; it is done when the last goes.
    open: Arc<Mutex<HashMap<Part, usize>>>,
}

impl CountingReaderFactory {
    pub fn new(store: Arc<dyn ObjectStore>, footers: Arc<FileMetadataCache>, progress: Arc<Progress>) -> Self {
        let inner = CachedParquetFileReaderFactory::new(store, footers);
        CountingReaderFactory { inner, progress, open: Arc::default() }
    }
}

impl ParquetFileReaderFactory for CountingReaderFactory {
    fn create_reader(
        &self,
        partition: usize,
        file: PartitionedFile,
        metadata_size_hint: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        let (start, end) = file.range();
        let part: Part = (file.path().to_string(), start);
        let rows = file.extension::<Arc<Segment>>().map_or(0, |s| s.rows);
        let size = file.object_meta.size.max(1);
        let share = (u128::from(rows) * u128::from(end.saturating_sub(start)) / u128::from(size)) as u64;
        let inner = self.inner.create_reader(partition, file, metadata_size_hint, metrics)?;
        *self.open.lock().unwrap_or_else(PoisonError::into_inner).entry(part.clone()).or_default() += 1;
        Ok(Box::new(CountingReader { inner, progress: self.progress.clone(), open: self.open.clone(), part, share }))
    }
}

struct CountingReader {
    inner: Box<dyn AsyncFileReader + Send>,
    progress: Arc<Progress>,
    open: Arc<Mutex<HashMap<Part, usize>>>,
    part: Part,
    /// Rows of this part, by its share of the file's bytes.
    share: u64,
}

impl AsyncFileReader for CountingReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        self.progress.add_scanned(0, range.end - range.start);
        self.inner.get_bytes(range)
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, ParquetResult<Vec<Bytes>>> {
        self.progress.add_scanned(0, ranges.iter().map(|r| r.end - r.start).sum());
        self.inner.get_byte_ranges(ranges)
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, ParquetResult<Arc<ParquetMetaData>>> {
        self.inner.get_metadata(options).boxed()
    }
}

impl Drop for CountingReader {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(readers) = open.get_mut(&self.part) {
            *readers -= 1;
            if *readers == 0 {
                open.remove(&self.part);
                self.progress.add_scanned(self.share, 0);
            }
        }
    }
}
