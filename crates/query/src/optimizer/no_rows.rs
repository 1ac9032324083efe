//! DataFusion 55 pushes a filter that reads no column, such as `false`, below an aggregate. But an aggregate without groups, and the total of
//! a `rollup` or a `cube`, have a row even if there is nothing below: `select * from (select 1 > 2 as no, count(*) from (select count(*)
//! from spans) group by 1) where no` would have one.
//!
//! [`Above`] stands around the rule and leaves filters above such aggregates. None of them can use columns that go below.

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

#[derive(Debug, Default)]
pub struct Above {
    inner: PushDownFilter,
}

impl OptimizerRule for Above {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.inner.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let mut below = &plan;
        while let LogicalPlan::Filter(filter) = below {
            below = &filter.input;
        }
        match has_a_row_of_nothing(below) {
            true => Ok(Transformed::no(plan)),
            false => self.inner.rewrite(plan, config),
        }
    }
}

fn has_a_row_of_nothing(plan: &LogicalPlan) -> bool {
    let LogicalPlan::Aggregate(aggregate) = plan else { return false };
    aggregate.group_expr.is_empty() || aggregate.group_expr.iter().any(|expr| matches!(expr, Expr::GroupingSet(_)))
}
