//! DataFusion 55 drops one of two consecutive projections with equal expressions, in `optimize_projections`. That is right for plain
//! columns and wrong for everything else: `select x + 1 as x from (select x + 1 as x from t)` adds 1 once. DataFusion mended it
//! after 55.2 (apache/datafusion#24686).
//!
//! Until we have that version, [`Distinct`] stands around the rule. It makes sure that no two projections are equal, by an alias inside
//! of the outer alias, which has no meaning, and takes these aliases away again.

use std::collections::HashSet;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::expr::Alias;
use datafusion::logical_expr::logical_plan::Projection;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::optimize_projections::OptimizeProjections;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// Begins the inner alias.
const MARK: &str = "__rollscope_projection_";

#[derive(Debug, Default)]
pub struct Distinct {
    inner: OptimizeProjections,
}

impl OptimizerRule for Distinct {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let mut marked = 0;
        let plan = plan.transform_up_with_subqueries(|plan| mark(plan, &mut marked))?.data;
        let done = self.inner.rewrite(plan, config)?;
        if marked == 0 {
            return Ok(done);
        }
        let transformed = done.transformed;
        let plan = done.data.transform_up_with_subqueries(unmark)?.data;
        Ok(Transformed::new_transformed(plan, transformed))
    }
}

/// A projection that computes a column and reads one of the same name may not be joined with an equal one.
fn mark(plan: LogicalPlan, marked: &mut usize) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Projection(mut projection) = plan else { return Ok(Transformed::no(plan)) };
    let read: HashSet<&str> =
        projection.expr.iter().flat_map(|e| e.column_refs()).map(|column| column.name.as_str()).collect();
    let computed = |expr: &Expr| match expr {
        Expr::Alias(alias) => {
            let same = matches!(&*alias.expr, Expr::Column(column) if column.name == alias.name);
            !same && read.contains(alias.name.as_str())
        }
        _ => false,
    };
    let Some(at) = projection.expr.iter().position(computed) else {
        return Ok(Transformed::no(LogicalPlan::Projection(projection)));
    };
    if let Expr::Alias(alias) = &mut projection.expr[at] {
        let inner = std::mem::take(&mut *alias.expr);
        *alias.expr = inner.alias(format!("{MARK}{marked}"));
        *marked += 1;
    }
    Ok(Transformed::yes(LogicalPlan::Projection(projection)))
}

fn unmark(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Projection(projection) = plan else { return Ok(Transformed::no(plan)) };
    let Projection { expr, input, schema, .. } = projection;
    let plain = |expr: Expr| {
        expr.transform_up(|expr| match expr {
            Expr::Alias(Alias { expr, name, .. }) if name.starts_with(MARK) => Ok(Transformed::yes(*expr)),
            expr => Ok(Transformed::no(expr)),
        })
    };
    let expr = expr.into_iter().map(|e| plain(e).map(|e| e.data)).collect::<Result<Vec<_>>>()?;
    Ok(Transformed::yes(LogicalPlan::Projection(Projection::try_new_with_schema(expr, input, schema)?)))
}
