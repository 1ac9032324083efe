//! DataFusion 55 takes what holds of the rows below a `rollup`, `cube` or `grouping sets` to hold of its groups: what is constant, how rows are
//! sorted and divided. But a group column is null in the sets that are without it. With `where step = 3 group by rollup (step, name) order by
//! step nulls first`, it does not sort by `step`.
//!
//! [`Hidden`] computes these columns again above the first aggregate, in a way that it cannot see through.

use std::sync::Arc;

use arrow::datatypes::FieldRef;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::Aggregate;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{CaseExpr, Column, IsNotNullExpr};
use datafusion::physical_expr::projection::ProjectionExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode};
use datafusion::physical_plan::projection::ProjectionExec;

#[derive(Debug)]
pub struct Hidden;

impl PhysicalOptimizerRule for Hidden {
    fn name(&self) -> &str {
        "grouping_sets"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(plan.transform_up(hide)?.data)
    }
}

fn hide(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let is_first = |aggregate: &&AggregateExec| aggregate.mode().input_mode() == AggregateInputMode::Raw;
    let Some(aggregate) = plan.downcast_ref::<AggregateExec>().filter(is_first) else {
        return Ok(Transformed::no(plan));
    };
    let by = aggregate.group_expr();
    if !by.has_grouping_set() {
        return Ok(Transformed::no(plan));
    }
    let schema = aggregate.schema();
    let set = Arc::new(Column::new_with_schema(Aggregate::INTERNAL_GROUPING_ID, &schema)?);
    let is_there: Arc<dyn PhysicalExpr> = Arc::new(IsNotNullExpr::new(set));
    let same = |(at, field): (usize, &FieldRef)| -> Result<ProjectionExpr> {
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(field.name(), at));
        let is_null_in_some = by.groups().iter().any(|set| set.get(at) == Some(&true));
        // The set is never null.
        let expr: Arc<dyn PhysicalExpr> = match is_null_in_some {
            true => Arc::new(CaseExpr::try_new(None, vec![(is_there.clone(), column)], None)?),
            false => column,
        };
        Ok(ProjectionExpr { expr, alias: field.name().clone() })
    };
    let columns = schema.fields().iter().enumerate().map(same).collect::<Result<Vec<_>>>()?;
    Ok(Transformed::yes(Arc::new(ProjectionExec::try_new(columns, plan)?)))
}
