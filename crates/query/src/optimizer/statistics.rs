//! DataFusion 55 takes `count(*)` and the like from statistics, if no filter stands before the rows. It looks for the aggregate that reads
//! the rows, and if that one has a `filter (where ...)`, it goes on below it, and finds another one. `select count(*) filter (where n > 1)
//! from (select count(*) as n from spans)` fails, or answers with the inner count.
//!
//! [`OwnRows`] stands around the rule. It puts a screen before every aggregate with such a filter.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;

use super::screen;

#[derive(Debug)]
pub struct OwnRows {
    pub inner: Arc<dyn PhysicalOptimizerRule + Send + Sync>,
}

impl PhysicalOptimizerRule for OwnRows {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn schema_check(&self) -> bool {
        self.inner.schema_check()
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        screen::around(plan, has_filter, |plan| self.inner.optimize(plan, config))
    }
}

fn has_filter(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<AggregateExec>().is_some_and(|aggregate| aggregate.filter_expr().iter().any(Option::is_some))
}
