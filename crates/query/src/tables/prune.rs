//! Leaves out segments that cannot hold a row of the result according to the manifest (another run, other steps, another time)
//! and to the filters of their ids. Conservative: what is not known for certain is read.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, StringArray, UInt64Array};
use arrow::datatypes::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::datasource::physical_plan::ParquetFileReaderFactory;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::utils::conjunction;
use datafusion::physical_expr::utils::{Guarantee, LiteralGuarantee};
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;
use rollscope_model::Table;
use rollscope_store::Segment;

use super::ids::{IdFilters, MayHold};

/// The segments that may hold rows for which all `filters` are true, in their order.
pub async fn prune(
    state: &dyn Session,
    table: Table,
    schema: &SchemaRef,
    segments: &[Arc<Segment>],
    filters: &[Expr],
    ids: &IdFilters,
    reader: &Arc<dyn ParquetFileReaderFactory>,
) -> Vec<Arc<Segment>> {
    let predicate = (|| {
        let filter = conjunction(filters.iter().cloned())?;
        let expr = state.create_physical_expr(filter, &DFSchema::try_from(schema.clone()).ok()?).ok()?;
        PruningPredicateBuilder::new().with_file_schema(schema.clone()).try_build(expr).ok()
    })();
    let Some(predicate) = predicate else { return segments.to_vec() };
    let left = match predicate.prune(&Manifest { table, segments }) {
        Ok(keep) => segments.iter().zip(keep).filter(|(_, keep)| *keep).map(|(s, _)| s.clone()).collect(),
        Err(_) => segments.to_vec(),
    };
    let of = |column: &str| -> Vec<&LiteralGuarantee> {
        let all = predicate.literal_guarantees().iter();
        all.filter(|g| g.guarantee == Guarantee::In && g.column.name() == column).collect()
    };
    match table.bloom_columns().iter().map(|column| (*column, of(column))).find(|(_, wanted)| !wanted.is_empty()) {
        Some((column, wanted)) => {
            let fits = |filter: &MayHold| wanted.iter().all(|guarantee| filter.any(&guarantee.literals));
            ids.fitting(left, column, reader, fits).await
        }
        None => left,
    }
}

/// The manifest's ranges, one container per segment.
struct Manifest<'a> {
    table: Table,
    segments: &'a [Arc<Segment>],
}

impl Manifest<'_> {
    fn int(&self, value: impl Fn(&Segment) -> Option<i64>) -> Option<ArrayRef> {
        Some(Arc::new(self.segments.iter().map(|s| value(s)).collect::<Int64Array>()))
    }

    /// A run of each segment.
    fn runs(&self, of: impl Fn(&Segment) -> Option<&str>) -> Option<ArrayRef> {
        Some(Arc::new(self.segments.iter().map(|s| of(s)).collect::<StringArray>()))
    }
}

impl PruningStatistics for Manifest<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        match column.name() {
            "run_id" => self.runs(|s| s.runs().min()),
            "step" => self.int(|s| Some(s.steps?.0)),
            name if name == self.table.time_column() => self.int(|s| Some(s.min_time)),
            _ => None,
        }
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        match column.name() {
            "run_id" => self.runs(|s| s.runs().max()),
            "step" => self.int(|s| Some(s.steps?.1)),
            name if name == self.table.time_column() => self.int(|s| Some(s.max_time)),
            // The latest end bounds every end. Ends have no lower bound: a span may claim to end before it starts.
            "end_ns" if self.table == Table::Spans => self.int(|s| Some(s.max_time)),
            _ => None,
        }
    }

    fn num_containers(&self) -> usize {
        self.segments.len()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        (column.name() == "run_id").then(|| Arc::new(UInt64Array::from(vec![0; self.segments.len()])) as ArrayRef)
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        Some(Arc::new(self.segments.iter().map(|s| Some(s.rows)).collect::<UInt64Array>()))
    }

    /// The manifest names the runs of each segment: also long lists of runs prune.
    fn contained(&self, column: &Column, values: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        if column.name() != "run_id" {
            return None;
        }
        let runs: HashSet<&str> = values.iter().filter_map(|v| v.try_as_str().flatten()).collect();
        let contained =
            |s: &Arc<Segment>| match (s.runs().any(|r| runs.contains(r)), s.runs().all(|r| runs.contains(r))) {
                (false, _) => Some(false),
                (true, true) => Some(true),
                (true, false) => None,
            };
        Some(self.segments.iter().map(contained).collect())
    }
}
