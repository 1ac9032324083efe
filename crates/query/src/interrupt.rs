//! Makes a plan that can be stopped. A query ends when its task is dropped, and a task is dropped only between two polls. Most of
//! DataFusion's operators come back often enough; joins do not: they go through the product of their sides within one
//! poll, minutes long, as long as no row comes out. Two such queries would hold all query threads, and they could not be
//! cancelled, because that takes a thread too. So the filter of a join checks whether its query is still wanted, and operators
//! that multiply rows yield to others as sources do.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::coop::{CooperativeExec, make_cooperative};
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder, SortMergeJoinExec,
};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions,
    replace_children_if_necessary,
};
use datafusion_distributed::{BroadcastExec, NetworkBoundaryExt};
use futures::StreamExt;

use crate::progress::Progress;

/// The same plan, which ends soon after `progress` is stopped. What runs elsewhere is looked after there: see [`interruptible_part`].
pub fn interruptible(plan: Arc<dyn ExecutionPlan>, progress: &Arc<Progress>) -> Result<Arc<dyn ExecutionPlan>> {
    if plan.is_network_boundary() {
        return Ok(plan);
    }
    let children = plan.children().into_iter().cloned().map(|child| interruptible(child, progress));
    let children = children.collect::<Result<Vec<_>>>()?;
    let plan = replace_children_if_necessary(plan, children)?;
    let watched = match with_watch(&plan, progress)? {
        Some(watched) => watched,
        None if multiplies(&plan) => plan,
        None => return Ok(plan),
    };
    Ok(Arc::new(CooperativeExec::new(watched)))
}

/// The same for a part of a plan whose other parts run elsewhere: others count its operators, so it has the same.
pub fn interruptible_part(plan: Arc<dyn ExecutionPlan>, progress: &Arc<Progress>) -> Result<Arc<dyn ExecutionPlan>> {
    let made = plan.transform_up(|plan| {
        let watched = match with_watch(&plan, progress)? {
            Some(watched) => watched,
            None if multiplies(&plan) => plan,
            None => return Ok(Transformed::no(plan)),
        };
        Ok(Transformed::yes(Arc::new(Guarded { inner: watched, yields: true }) as Arc<dyn ExecutionPlan>))
    })?;
    guarded(made.data)
}

/// Who sends the rows of a part ends as if all were sent when the part panics. So it must not. Operators that divide the rows among
/// others are recognised by their type, and stay on top.
fn guarded(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if plan.is_network_boundary() {
        return Ok(plan);
    }
    if plan.is::<RepartitionExec>() || plan.is::<BroadcastExec>() {
        let children = plan.children().into_iter().cloned().map(guarded).collect::<Result<Vec<_>>>()?;
        return replace_children_if_necessary(plan, children);
    }
    Ok(Arc::new(Guarded { inner: plan, yields: false }))
}

/// An operator whose panics are errors. Everything else is as if it were not there.
#[derive(Debug)]
struct Guarded {
    inner: Arc<dyn ExecutionPlan>,
    /// It lets others run from time to time.
    yields: bool,
}

impl DisplayAs for Guarded {
    fn fmt_as(&self, form: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        self.inner.fmt_as(form, f)
    }
}

impl ExecutionPlan for Guarded {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.inner.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inner.children()
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.inner.apply_expressions(visit)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let inner = self
            .inner
            .clone()
            .replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))?;
        Ok(Arc::new(Guarded { inner, yields: self.yields }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let stream = self.inner.execute(partition, context)?;
        let schema = stream.schema();
        let stream = if self.yields { make_cooperative(stream) } else { stream };
        let failed = || exec_datafusion_err!("the worker failed unexpectedly; its log says more");
        let caught = AssertUnwindSafe(stream).catch_unwind().map(move |item| item.unwrap_or_else(|_| Err(failed())));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, caught)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.inner.metrics()
    }
}

/// A join with a filter that looks whether the query is still wanted.
fn with_watch(plan: &Arc<dyn ExecutionPlan>, progress: &Arc<Progress>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    Ok(if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        match join.filter() {
            Some(filter) => Some(Arc::new(join.builder().with_filter(Some(watch(filter, progress))).build()?)),
            None => None,
        }
    } else if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
        match join.filter() {
            Some(filter) => {
                let filter = Some(watch(filter, progress));
                Some(Arc::new(NestedLoopJoinExecBuilder::from(join).with_filter(filter).build()?))
            }
            None => None,
        }
    } else {
        None
    })
}

/// Gives more rows than it takes, perhaps many.
fn multiplies(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<HashJoinExec>()
        || plan.is::<NestedLoopJoinExec>()
        || plan.is::<CrossJoinExec>()
        || plan.is::<SortMergeJoinExec>()
        || plan.is::<UnnestExec>()
}

fn watch(filter: &JoinFilter, progress: &Arc<Progress>) -> JoinFilter {
    let inner = filter.expression().clone();
    let watched = Arc::new(WhileWanted { inner, progress: progress.clone() });
    JoinFilter::new(watched, filter.column_indices().to_vec(), filter.schema().clone())
}

/// An expression that fails once its query is stopped.
#[derive(Debug)]
struct WhileWanted {
    inner: Arc<dyn PhysicalExpr>,
    progress: Arc<Progress>,
}

impl PartialEq for WhileWanted {
    fn eq(&self, other: &Self) -> bool {
        self.inner.eq(&other.inner) && Arc::ptr_eq(&self.progress, &other.progress)
    }
}

impl Eq for WhileWanted {}

impl Hash for WhileWanted {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl fmt::Display for WhileWanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl PhysicalExpr for WhileWanted {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.inner.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.inner.nullable(schema)
    }

    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.inner.return_field(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        match self.progress.why_stopped() {
            Some(error) => Err(DataFusionError::External(Box::new(error))),
            None => self.inner.evaluate(batch),
        }
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.inner]
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        let inner = children.pop().unwrap_or_else(|| self.inner.clone());
        Ok(Arc::new(WhileWanted { inner, progress: self.progress.clone() }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_sql(f)
    }
}
