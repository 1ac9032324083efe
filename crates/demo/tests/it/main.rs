//! The generated run, seen as its users see it: rows of tables.

mod live;
mod plants;
mod rows;
mod tables;
mod traces;
