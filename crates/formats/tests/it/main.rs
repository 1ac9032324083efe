//! Tests of the formats from outside, one binary.

mod otlp;
mod remote_write;
mod slime;
mod timeline;
mod torch_hostile;
mod torch_values;
