//! Questions that are not one query. One file each, over Arrow batches, linear in the number of rows.

pub mod perf;
mod stats;
