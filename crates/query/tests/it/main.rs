//! Queries over real Parquet files and a tail, through the engine.

mod attributes;
mod fixture;
mod limits;
mod lookups;
mod optimizer;
mod refusals;
mod rounds;
mod tables;
mod workers;
