//! Tests of the formats through their public functions.

mod otlp;
