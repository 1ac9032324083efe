//! DataFusion 55 pushes a filter down through a plan by the names of columns. Where an input has two columns of one name, as a join
//! of a table with itself has, it takes the first for both, and rows are compared with the wrong ones: `from samples a right join
//! samples b ... where coalesce(a.reward, 0) + coalesce(b.reward, 0) > 1` reads `a.reward` twice.
//!
//! [`Stopped`] stands around both rules that do so. It puts a screen before every such input, which no filter passes. Filters that can be pushed below a join are there already: DataFusion moves them before it plans the join.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use super::screen;

#[derive(Debug)]
pub struct Stopped {
    pub inner: Arc<dyn PhysicalOptimizerRule + Send + Sync>,
}

impl PhysicalOptimizerRule for Stopped {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn schema_check(&self) -> bool {
        self.inner.schema_check()
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        screen::around(plan, |node| names_repeat(&node.schema()), |plan| self.inner.optimize(plan, config))
    }
}

fn names_repeat(schema: &Schema) -> bool {
    let mut seen = HashSet::with_capacity(schema.fields().len());
    !schema.fields().iter().all(|field| seen.insert(field.name()))
}
