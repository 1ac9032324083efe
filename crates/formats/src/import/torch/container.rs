//! The two containers of torch: a zip archive that stores its entries uncompressed (since 1.6), and the stream before it.

use std::collections::HashMap;
use std::ops::Range;

use super::limits;
use super::pickle::Machine;
use super::source::Source;
use super::tensor::Extra;
use super::value::{Tag, Value};
use super::{ImportError, Torch};

const ZIP: &[u8] = b"PK\x03\x04";
/// 0x1950a86a20f9469cfc6c as a pickled integer.
const LEGACY: &[u8] = &[0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, b'.'];

/// Told from the first bytes. Any zip archive looks like a torch file until its directory is read.
pub fn detects(head: &[u8]) -> bool {
    head.starts_with(ZIP) || is_legacy(head)
}

fn is_legacy(head: &[u8]) -> bool {
    head.first() == Some(&0x80) && memchr::memmem::find(&head[..head.len().min(64)], LEGACY).is_some()
}

pub(super) fn read_container(source: Source) -> Result<Torch, ImportError> {
    if source.starts_with(ZIP) {
        read_zip(source)
    } else if is_legacy(&source) {
        read_legacy(source)
    } else {
        Err(ImportError::Malformed(
            "this is not a torch file; it is neither a zip archive nor in torch's older format".into(),
        ))
    }
}

fn zip_error(e: rawzip::Error) -> ImportError {
    ImportError::Malformed(format!("the zip archive of the torch file is damaged or truncated: {e}"))
}

fn malformed<T>(what: impl Into<String>) -> Result<T, ImportError> {
    Err(ImportError::Malformed(what.into()))
}

pub(super) fn read_pickle(source: Source) -> Result<Torch, ImportError> {
    let end = source.len();
    let mut machine = Machine::new(source)?;
    let (root, _) = machine.load(0, end)?;
    let mut heap = machine.heap;
    heap.finish();
    Ok(Torch { heap, root, storages: HashMap::new(), big_endian: false })
}

fn read_zip(source: Source) -> Result<Torch, ImportError> {
    let archive = rawzip::ZipArchive::from_slice(&source[..]).map_err(zip_error)?;
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut named: Vec<(Box<str>, Range<usize>)> = Vec::new();
    let mut pickles = 0;
    let mut entries = archive.entries();
    while let Some(entry) = entries.next_entry().map_err(zip_error)? {
        limits::check("entries of the archive", "MAX_ENTRIES", ranges.len() as u64, limits::MAX_ENTRIES)?;
        if entry.is_dir() {
            continue;
        }
        let Ok(name) = std::str::from_utf8(entry.file_path().as_bytes()).map(str::to_string) else {
            return malformed("an entry of the archive has a name that is not text");
        };
        if entry.compression_method() != rawzip::CompressionMethod::STORE {
            return malformed(format!("the archive's entry {name:?} is compressed; torch does not write such files"));
        }
        let found = archive.get_entry(entry.wayfinder()).map_err(zip_error)?;
        let (start, end) = found.compressed_data_range();
        if entry.uncompressed_size_hint() != end - start {
            return malformed(format!("the archive's entry {name:?} has a wrong size"));
        }
        ranges.push((start, end));
        pickles += usize::from(name.ends_with("/data.pkl"));
        named.push((name.into(), start as usize..end as usize));
    }
    ranges.sort_unstable();
    if ranges.windows(2).any(|w| w[0].1 > w[1].0) {
        return malformed("entries of the archive overlap; torch does not write such files");
    }
    let pickle = named.iter().find(|(name, _)| name.ends_with("/data.pkl"));
    let (prefix, range) = match (pickles, pickle) {
        (1, Some((name, range))) => (name.strip_suffix("data.pkl").unwrap_or_default().to_string(), range.clone()),
        (0, _) => return malformed("this zip archive is not a torch file; it has no data.pkl"),
        _ => return malformed("the archive has more than one data.pkl"),
    };
    let mut big_endian = false;
    let mut storages = HashMap::new();
    for (name, range) in named {
        let Some(name) = name.strip_prefix(&*prefix) else { continue };
        if name == "byteorder" {
            big_endian = source.get(range) == Some(b"big");
        } else if let Some(key) = name.strip_prefix("data/") {
            storages.insert(key.into(), range);
        }
    }
    let mut machine = Machine::new(source)?;
    let (root, _) = machine.load(range.start, range.end)?;
    let mut heap = machine.heap;
    heap.finish();
    Ok(Torch { heap, root, storages, big_endian })
}

fn read_legacy(source: Source) -> Result<Torch, ImportError> {
    let end = source.len();
    let mut machine = Machine::new(source.clone())?;
    let (_magic, at) = machine.load(0, end)?;
    let (_protocol, at) = machine.load(at, end)?;
    let (system, at) = machine.load(at, end)?;
    let big_endian = machine.heap.get(system, "little_endian") == Some(Value::FALSE);
    let (root, at) = machine.load(at, end)?;
    let (keys, mut at) = machine.load(at, end)?;
    let mut heap = machine.heap;
    heap.finish();

    let mut sizes: HashMap<Box<str>, usize> = HashMap::new();
    for extra in &heap.extras {
        if let Extra::Storage(storage) = extra
            && let Some(key) = heap.str(storage.key)
        {
            sizes.insert(key.into(), storage.dtype.size());
        }
    }
    let mut storages = HashMap::new();
    if keys.tag() != Tag::List {
        return malformed("the list of storages at the end of the torch file is damaged");
    }
    for key in heap.items(keys) {
        let Some(key) = heap.str(key) else {
            return malformed("the list of storages at the end of the torch file is damaged");
        };
        let numel = source.get(at..at.saturating_add(8)).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        let range = numel
            .and_then(|n| usize::try_from(n).ok()?.checked_mul(sizes.get(&*key).copied().unwrap_or(1)))
            .and_then(|n| Some(at + 8..(at + 8).checked_add(n)?))
            .filter(|r| r.end <= source.len());
        let Some(range) = range else {
            return malformed("the torch file is truncated; the data of its tensors is missing");
        };
        at = range.end;
        storages.insert(key.into(), range);
    }
    Ok(Torch { heap, root, storages, big_endian })
}
