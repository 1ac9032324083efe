//! Writers of test data and what the tests and the fuzz target do with a file. Not part of the program.

use std::path::Path;

use crate::export::slime_cache;
use crate::import::ImportOptions;
use crate::import::slime_pt::Dump;

pub mod torch_writer;

/// Reads everything in a file that may be hostile, and returns whether it was a dump. Panics if what we
/// write is not valid JSON.
pub fn exercise(bytes: Vec<u8>) -> bool {
    let Ok(dump) = Dump::from_bytes(bytes, Path::new("rollout_1.pt")) else { return false };
    dump.summary();
    let _ = dump.batches(&ImportOptions { run: Some("r".into()), ..ImportOptions::default() }, &mut |_, _| Ok(()));
    if let Ok(cache) = slime_cache::to_vec(&dump, "x", 0.0) {
        // Python's integers have any number of digits, which is valid, too.
        serde_json::from_slice::<serde::de::IgnoredAny>(&cache).expect("what is written is valid JSON");
    }
    true
}
