//! Writers of test data, shared by the tests, the benches and the fuzz targets. Not part of the program.

pub mod torch_writer;
