//! What a torch file may cost. A dump of a gigabyte stays far below; a hostile file of a kilobyte too, because
//! nothing is allocated before its bytes were seen.

use crate::import::ImportError;

/// Containers, objects and tensors.
pub const MAX_OBJECTS: u64 = 100_000_000;
/// Values inside containers.
pub const MAX_SLOTS: u64 = 500_000_000;
/// Values on the machine's stack, marks included.
pub const MAX_STACK: u64 = 100_000_000;
/// Values remembered for later reference.
pub const MAX_MEMO: u64 = 200_000_000;
/// A dict with more keys is kept as pairs.
pub const MAX_SHAPE_KEYS: usize = 96;
/// Longer integers are shown by their size. Python itself prints no longer ones (4300 digits).
pub const MAX_LONG_BYTES: usize = 1785;
/// Bytes of a class or function name.
pub const MAX_NAME_BYTES: usize = 4096;
/// Classes and functions named.
pub const MAX_GLOBALS: u64 = 1_000_000;
/// Entries of a zip archive.
pub const MAX_ENTRIES: u64 = 10_000_000;
/// Dimensions of a tensor or an array.
pub const MAX_DIMENSIONS: usize = 64;
/// Parts of a path; anything with more is not a path.
pub const MAX_PATH_PARTS: usize = 256;
/// Levels of lists and dicts that are shown.
pub const MAX_DEPTH: usize = 64;
/// What is made of a file in memory, and what is written of it, may each be this many times as large as the file, and a
/// little more for small ones: values may be shared, and are copied or written wherever they occur. Without that a file of a
/// kilobyte could use any amount.
pub const MAX_GROWTH: u64 = 32;
/// The little more of one value.
pub const VALUE_BASE: u64 = 64 << 10;
/// The little more of all together.
pub const OUTPUT_BASE: u64 = 32 << 20;

pub(super) fn check(what: &str, name: &'static str, value: u64, limit: u64) -> Result<(), ImportError> {
    if value <= limit {
        return Ok(());
    }
    Err(ImportError::Limit { what: format!("the number of {what}"), name, limit })
}
