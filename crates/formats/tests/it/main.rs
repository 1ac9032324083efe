//! Tests of the formats from outside, one binary.

mod otlp;
mod slime;
mod timeline;
mod torch_hostile;
mod torch_values;
