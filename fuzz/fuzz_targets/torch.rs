//! Torch files and slime dumps: `cargo +nightly fuzz run torch`. An input is a whole file, or a pickle that is put into
//! an archive first.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rollscope_formats::import::torch::detects;
use rollscope_formats::testing::{exercise, torch_writer::torch_file};

fuzz_target!(|data: &[u8]| {
    exercise(if detects(data) { data.to_vec() } else { torch_file(data) });
});
