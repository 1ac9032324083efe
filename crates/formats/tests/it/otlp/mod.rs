//! OTLP in and out.

mod bad_input;
mod files;
mod fixtures;
mod identity;
mod metrics;
mod parity;
mod support;
