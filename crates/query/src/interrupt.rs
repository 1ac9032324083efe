//! Makes a plan that can be stopped. A query ends when its task is dropped, and a task is dropped only between two polls. Most of
//! DataFusion's operators come back often enough; joins do not: they go through the product of their sides within one
//! poll, minutes long, as long as no row comes out. Two such queries would hold all query threads, and they could not be
//! cancelled, because that takes a thread too. So the filter of a join checks whether its query is still wanted, and operators
//! that multiply rows yield to others as sources do.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DataFusionError, Result};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder, SortMergeJoinExec,
};
use datafusion::physical_plan::unnest::UnnestExec;

use crate::progress::Progress;

/// The same plan, which ends soon after `progress` is stopped.
pub fn interruptible(plan: Arc<dyn ExecutionPlan>, progress: &Arc<Progress>) -> Result<Arc<dyn ExecutionPlan>> {
    let made = plan.transform_up(|plan| {
        let watched = match with_watch(&plan, progress)? {
            Some(watched) => watched,
            None if multiplies(&plan) => plan,
            None => return Ok(Transformed::no(plan)),
        };
        Ok(Transformed::yes(Arc::new(CooperativeExec::new(watched)) as Arc<dyn ExecutionPlan>))
    });
    Ok(made?.data)
}

/// The same with the same operators, for a part of a plan whose other parts run elsewhere.
pub fn interruptible_part(plan: Arc<dyn ExecutionPlan>, progress: &Arc<Progress>) -> Result<Arc<dyn ExecutionPlan>> {
    let made = plan.transform_up(|plan| {
        Ok(match with_watch(&plan, progress)? {
            Some(watched) => Transformed::yes(watched),
            None => Transformed::no(plan),
        })
    });
    Ok(made?.data)
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
