//! The tables of one snapshot as DataFusion sees them. A table is the union of its segments ([`prune`] leaves out what
//! the manifest and bloom filters rule out, Parquet's own footers and pages the rest) and its live tail, from plain
//! operators. Filters are left to DataFusion, which pushes them into the Parquet scan.

mod ids;
mod prune;
mod reader;
mod spans;
mod tokens;

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::cast::as_boolean_array;
use datafusion::common::config::TableParquetOptions;
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Result, ScalarValue, Statistics};
use datafusion::datasource::TableType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfigBuilder, ParquetFileReaderFactory, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_expr::expressions::{Column, Literal, NotExpr};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::UnionExec;
use rollscope_model::Table;
use rollscope_store::{Segment, TableSnapshot};
use rollscope_tokenizer::Tokenizers;

pub(crate) use ids::IdFilters;
pub(crate) use reader::CountingReaderFactory;

use spans::spans_view;
use tokens::tokens_view;

use crate::functions::{ATTRS_OF, hashes_literal, is_replaced};
use crate::progress::Progress;

/// The scheme under which a query finds its snapshot's object store.
pub const STORE_URL: &str = "rollscope://store";

/// A tail smaller than this is read by one thread.
const ROWS_PER_TAIL_PARTITION: usize = 64 * 1024;

/// A stored table as users see it.
pub fn visible(
    table: Table,
    stored: Arc<dyn TableProvider>,
    tokenizers: &Tokenizers,
) -> Result<Arc<dyn TableProvider>> {
    Ok(match table {
        Table::Spans => Arc::new(spans_view(stored)?),
        Table::Tokens => Arc::new(tokens_view(stored, tokenizers)?),
        _ => stored,
    })
}

/// One table of one snapshot, for one query.
pub struct SnapshotTable {
    table: Table,
    schema: SchemaRef,
    snapshot: TableSnapshot,
    reader: Arc<dyn ParquetFileReaderFactory>,
    ids: Arc<IdFilters>,
    progress: Arc<Progress>,
}

impl std::fmt::Debug for SnapshotTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotTable").field("table", &self.table).finish_non_exhaustive()
    }
}

/// A table's schema with, on columns of attributes, where they come from.
pub fn schema(table: Table) -> SchemaRef {
    let fields: Vec<Field> = table.schema().fields().iter().map(|field| with_origin(table, field)).collect();
    Arc::new(Schema::new(fields))
}

fn with_origin(table: Table, field: &Field) -> Field {
    let is_map = matches!(field.data_type(), DataType::Map(_, _));
    if !is_map && !JSON_OBJECTS.contains(&field.name().as_str()) {
        return field.clone();
    }
    let mut metadata = field.metadata().clone();
    metadata.insert(ATTRS_OF.to_string(), format!("{}.{}", table.name(), field.name()));
    field.clone().with_metadata(metadata)
}

/// Text columns that hold a JSON object, of any table.
const JSON_OBJECTS: &[&str] = &["resource", "scope", "metadata", "labels", "config"];

impl SnapshotTable {
    pub(crate) fn new(
        table: Table,
        snapshot: TableSnapshot,
        reader: Arc<dyn ParquetFileReaderFactory>,
        ids: Arc<IdFilters>,
        progress: Arc<Progress>,
    ) -> Self {
        SnapshotTable { table, schema: schema(table), snapshot, reader, ids, progress }
    }

    /// How far the query is that the table is for, and whether it is still wanted.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Leaves only the rows of the tail for which `predicate` is true. For predicates that few batches have rows for: an
    /// operator would make an empty batch of every column for each of the others.
    pub(crate) fn narrow_tail(&mut self, predicate: &dyn PhysicalExpr) -> Result<()> {
        let mut narrowed = Vec::new();
        for batch in &self.snapshot.tail {
            let found = predicate.evaluate(batch)?.into_array(batch.num_rows())?;
            let found = as_boolean_array(&found)?;
            if found.has_true() {
                narrowed.push(filter_record_batch(batch, found)?);
            }
        }
        self.snapshot.tail = narrowed;
        Ok(())
    }

    /// Plans the scan. With a `predicate` the Parquet side applies it while it reads; the caller still has to apply it to
    /// the tail's rows (DataFusion's optimiser does both by itself for queries in SQL).
    pub(crate) async fn plan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        predicate: Option<Arc<dyn PhysicalExpr>>,
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let known = &self.snapshot.segments;
        let segments = prune::prune(state, self.table, &self.schema, known, filters, &self.ids, &self.reader).await;
        let tail: Vec<RecordBatch> = self.snapshot.tail.iter().filter(|b| b.num_rows() > 0).cloned().collect();
        self.progress.add_total(
            segments.iter().map(|s| s.rows).sum::<u64>() + tail.iter().map(|b| b.num_rows() as u64).sum::<u64>(),
            segments.iter().map(|s| s.bytes).sum(),
        );
        let mut inputs: Vec<Arc<dyn ExecutionPlan>> = Vec::with_capacity(2);
        if !segments.is_empty() {
            inputs.push(self.plan_segments(state, &segments, projection, predicate, limit)?);
        }
        if !tail.is_empty() {
            inputs.push(self.plan_tail(state, tail, projection, limit)?);
        }
        Ok(match inputs.len() {
            0 => Arc::new(EmptyExec::new(project(&self.schema, projection)?)),
            1 => inputs.swap_remove(0),
            _ => UnionExec::try_new(inputs)?,
        })
    }

    fn plan_segments(
        &self,
        state: &dyn Session,
        segments: &[Arc<Segment>],
        projection: Option<&Vec<usize>>,
        predicate: Option<Arc<dyn PhysicalExpr>>,
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let replaced = &self.snapshot.replaced;
        if replaced.is_empty() || self.table.identity().is_empty() {
            return self.plan_files(state, segments, projection.cloned(), predicate, limit);
        }
        // Rows that the tail replaces are left out right above the files. That takes the identity columns, which are
        // dropped again if they were not requested.
        let asked: Vec<usize> = match projection {
            Some(projection) => projection.clone(),
            None => (0..self.schema.fields().len()).collect(),
        };
        let mut read = asked.clone();
        for name in self.table.identity() {
            let index = self.schema.index_of(name)?;
            if !read.contains(&index) {
                read.push(index);
            }
        }
        let files = self.plan_files(state, segments, Some(read.clone()), predicate, None)?;
        let schema = files.schema();
        let mut args: Vec<Arc<dyn PhysicalExpr>> = vec![
            Arc::new(Literal::new(ScalarValue::from(self.table.name()))),
            Arc::new(Literal::new(hashes_literal(replaced))),
        ];
        for name in self.table.identity() {
            args.push(Arc::new(Column::new_with_schema(name, &schema)?));
        }
        let config = Arc::new(state.config_options().clone());
        let call = ScalarFunctionExpr::try_new(is_replaced(), args, &schema, config)?;
        let filter = FilterExec::try_new(Arc::new(NotExpr::new(Arc::new(call))), files)?;
        if read.len() == asked.len() {
            return Ok(Arc::new(filter));
        }
        let columns = (0..asked.len())
            .map(|i| {
                let name = schema.field(i).name();
                (Arc::new(Column::new(name, i)) as Arc<dyn PhysicalExpr>, name.clone())
            })
            .collect::<Vec<_>>();
        Ok(Arc::new(ProjectionExec::try_new(columns, Arc::new(filter))?))
    }

    fn plan_files(
        &self,
        state: &dyn Session,
        segments: &[Arc<Segment>],
        projection: Option<Vec<usize>>,
        predicate: Option<Arc<dyn PhysicalExpr>>,
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = TableParquetOptions {
            global: state.config_options().execution.parquet.clone(),
            ..TableParquetOptions::default()
        };
        let mut source = ParquetSource::new(self.schema.clone())
            .with_table_parquet_options(options)
            .with_parquet_file_reader_factory(self.reader.clone());
        if let Some(predicate) = predicate {
            source = source.with_predicate(predicate);
        }
        // Neighbours in time go to different groups, so that work on a narrow range is shared out.
        let groups = state.config().target_partitions().min(segments.len()).max(1);
        let mut files: Vec<Vec<PartitionedFile>> = vec![Vec::new(); groups];
        for (i, segment) in segments.iter().enumerate() {
            files[i % groups].push(self.file(segment));
        }
        let config = FileScanConfigBuilder::new(ObjectStoreUrl::parse(STORE_URL)?, Arc::new(source))
            .with_file_groups(files.into_iter().map(FileGroup::new).collect())
            .with_statistics(self.statistics(segments))
            .with_projection_indices(projection)?
            .with_limit(limit)
            .build();
        Ok(DataSourceExec::from_data_source(config))
    }

    fn file(&self, segment: &Arc<Segment>) -> PartitionedFile {
        PartitionedFile::new(segment.path.clone(), segment.bytes)
            .with_extension(segment.clone())
            .with_statistics(Arc::new(self.statistics(std::slice::from_ref(segment))))
    }

    /// What the manifest knows for certain: rows, and the run if there is only one.
    fn statistics(&self, segments: &[Arc<Segment>]) -> Statistics {
        let rows: u64 = segments.iter().map(|s| s.rows).sum();
        let bytes: u64 = segments.iter().map(|s| s.bytes).sum();
        let mut columns = vec![ColumnStatistics::new_unknown(); self.schema.fields().len()];
        let runs = || segments.iter().flat_map(|s| s.runs());
        if let (Ok(index), Some(min), Some(max)) = (self.schema.index_of("run_id"), runs().min(), runs().max()) {
            let value = |run: &str| {
                let text = Box::new(ScalarValue::from(run));
                Precision::Exact(ScalarValue::Dictionary(Box::new(DataType::Int32), text))
            };
            columns[index].min_value = value(min);
            columns[index].max_value = value(max);
            columns[index].null_count = Precision::Exact(0);
        }
        Statistics {
            num_rows: Precision::Exact(rows as usize),
            total_byte_size: Precision::Inexact(bytes as usize),
            column_statistics: columns,
        }
    }

    fn plan_tail(
        &self,
        state: &dyn Session,
        tail: Vec<RecordBatch>,
        projection: Option<&Vec<usize>>,
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let rows: usize = tail.iter().map(RecordBatch::num_rows).sum();
        let mut pieces = Vec::new();
        for batch in tail {
            let mut batch = batch.with_schema(self.schema.clone())?;
            // A plan that goes to workers takes the rows along.
            if let Some(projection) = projection {
                batch = batch.project(projection)?;
            }
            let starts = (0..batch.num_rows()).step_by(ROWS_PER_TAIL_PARTITION);
            pieces.extend(starts.map(|at| batch.slice(at, ROWS_PER_TAIL_PARTITION.min(batch.num_rows() - at))));
        }
        let threads = state.config().target_partitions().min(rows / ROWS_PER_TAIL_PARTITION + 1).min(pieces.len());
        let mut partitions: Vec<Vec<RecordBatch>> = vec![Vec::new(); threads];
        for (i, piece) in pieces.into_iter().enumerate() {
            partitions[i % threads].push(piece);
        }
        self.progress.add_scanned(rows as u64, 0);
        let source =
            MemorySourceConfig::try_new(&partitions, project(&self.schema, projection)?, None)?.with_limit(limit);
        Ok(DataSourceExec::from_data_source(source))
    }
}

fn project(schema: &SchemaRef, projection: Option<&Vec<usize>>) -> Result<SchemaRef> {
    Ok(match projection {
        Some(projection) => Arc::new(schema.project(projection)?),
        None => schema.clone(),
    })
}

#[async_trait]
impl TableProvider for SnapshotTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.plan(state, projection, filters, None, limit).await
    }

    /// Filters are wanted for pruning; DataFusion keeps applying them.
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }
}
