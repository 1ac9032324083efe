//! The rules that make plans better: DataFusion's own, with ours in the place of, around and beside those of version 55 that give wrong
//! answers. `tests/sql_differential.py` looks for more of them.

mod grouping_sets;
mod no_rows;
mod projections;
mod pushdown;
mod screen;
mod statistics;

use std::sync::Arc;

use datafusion::optimizer::{Optimizer, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;

use crate::group_ids::GroupIds;

type Logical = Arc<dyn OptimizerRule + Send + Sync>;
type Physical = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

pub fn logical() -> Vec<Logical> {
    let mended = |rule: Logical| match rule.name() {
        "optimize_projections" => Arc::new(projections::Distinct::default()) as Logical,
        "push_down_filter" => Arc::new(no_rows::Above::default()),
        _ => rule,
    };
    Optimizer::new().rules.into_iter().map(mended).chain([Arc::new(GroupIds) as Logical]).collect()
}

pub fn physical() -> Vec<Physical> {
    let mended = |inner: Physical| match inner.name() {
        "FilterPushdown" | "FilterPushdown(Post)" => Arc::new(pushdown::Stopped { inner }) as Physical,
        "aggregate_statistics" => Arc::new(statistics::OwnRows { inner }),
        _ => inner,
    };
    let rules = PhysicalOptimizer::new().rules.into_iter().map(mended);
    std::iter::once(Arc::new(grouping_sets::Hidden) as Physical).chain(rules).collect()
}
