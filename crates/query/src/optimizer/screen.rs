//! Hides parts of a plan from a rule of DataFusion while it runs.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

type Plan = Arc<dyn ExecutionPlan>;

/// Runs a rule over a plan in which some nodes stand behind screens.
pub fn around(plan: Plan, is_hidden: impl Fn(&Plan) -> bool, rule: impl FnOnce(Plan) -> Result<Plan>) -> Result<Plan> {
    let hidden = plan.transform_up(|node| match is_hidden(&node) {
        true => Ok(Transformed::yes(Arc::new(Screen::before(node)) as Plan)),
        false => Ok(Transformed::no(node)),
    })?;
    let plan = rule(hidden.data)?;
    if !hidden.transformed {
        return Ok(plan);
    }
    let shown = plan.transform_up(|node| match node.downcast_ref::<Screen>() {
        Some(screen) => Ok(Transformed::yes(screen.input.clone())),
        None => Ok(Transformed::no(node)),
    })?;
    Ok(shown.data)
}

/// No filter passes it, and rules that look for a node below others do not look through it, because it has two inputs. Its properties are
/// those of the first, the same object: nodes above it need not compute theirs again, and keep the filters that they gave to others.
#[derive(Debug)]
struct Screen {
    input: Plan,
    nothing: Plan,
}

impl Screen {
    fn before(input: Plan) -> Screen {
        let nothing = Arc::new(EmptyExec::new(input.schema()));
        Screen { input, nothing }
    }
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

    fn children(&self) -> Vec<&Plan> {
        vec![&self.input, &self.nothing]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Plan>) -> Result<Plan> {
        Ok(Arc::new(Screen::before(children.swap_remove(0))))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}
