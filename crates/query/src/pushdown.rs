//! DataFusion 55 pushes a filter down through a plan by the names of columns. Where an input has two columns of one name, as a join
//! of a table with itself has, it takes the first for both, and rows are compared with the wrong ones: `from samples a right join
//! samples b ... where coalesce(a.reward, 0) + coalesce(b.reward, 0) > 1` reads `a.reward` twice.
//!
//! [`Stopped`] stands around both rules that do so. It hides every such input behind a node that no filter passes, and takes these
//! nodes away again. Filters that can be pushed below a join are there already: DataFusion moves them before it plans the join.

use std::collections::HashSet;
use std::fmt::{self, Formatter};
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// DataFusion's own rules, those that push filters down with this one around them.
pub fn rules() -> Vec<Rule> {
    let mended = |rule: Rule| match rule.name() {
        "FilterPushdown" | "FilterPushdown(Post)" => Arc::new(Stopped { inner: rule }) as Rule,
        _ => rule,
    };
    PhysicalOptimizer::new().rules.into_iter().map(mended).collect()
}

#[derive(Debug)]
struct Stopped {
    inner: Rule,
}

impl PhysicalOptimizerRule for Stopped {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn schema_check(&self) -> bool {
        self.inner.schema_check()
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let hidden = plan.transform_up(|node| {
            let repeated = names_repeat(&node.schema());
            Ok(if repeated { Transformed::yes(Arc::new(Screen { input: node }) as _) } else { Transformed::no(node) })
        })?;
        let plan = self.inner.optimize(hidden.data, config)?;
        if !hidden.transformed {
            return Ok(plan);
        }
        let shown = plan.transform_up(|node| match node.downcast_ref::<Screen>() {
            Some(screen) => Ok(Transformed::yes(screen.input.clone())),
            None => Ok(Transformed::no(node)),
        })?;
        Ok(shown.data)
    }
}

fn names_repeat(schema: &Schema) -> bool {
    let mut seen = HashSet::with_capacity(schema.fields().len());
    !schema.fields().iter().all(|field| seen.insert(field.name()))
}

/// Hides its input from filters, while a rule runs. Its properties are those of the input, the same object: nodes above it
/// need not compute theirs again, and keep the filters that they gave to others.
#[derive(Debug)]
struct Screen {
    input: Arc<dyn ExecutionPlan>,
}

impl DisplayAs for Screen {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExecutionPlan for Screen {
    fn name(&self) -> &str {
        "Screen"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Screen { input: children.swap_remove(0) }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}
