//! Files written by `torch.save`, read without Python and without running anything.
//!
//! [`Torch::open`] maps the file, finds the pickle in its container ([`container`]: a zip archive, or the stream of torch
//! before 1.6), and reads it with a machine that knows every opcode ([`pickle`]) and a short list of names ([`reduce`]).
//! Values are eight bytes each ([`value`]) and live in a [`Heap`]; text, lists of numbers and tensors stay in the file
//! until they are used ([`tensor`]). [`render`] turns values into JSON. Limits have names in [`limits`].
//! Why not one of the pickle crates: `docs/adr/0003-torch-reader.md`.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use super::ImportError;

mod container;
mod heap;
pub mod limits;
mod pickle;
mod reduce;
pub mod render;
mod source;
mod tensor;
mod value;

pub use container::detects;
pub use heap::{Entries, Heap, Items, Key, Object};
pub use source::Source;
pub use tensor::{Array, Dtype, Extra, Number, Storage, Tensor, View};
pub use value::{Tag, Value};

/// A torch file, read.
pub struct Torch {
    pub heap: Heap,
    /// What was saved.
    pub root: Value,
    /// Where the bytes of each storage lie in the file.
    storages: HashMap<Box<str>, Range<usize>>,
    big_endian: bool,
}

impl Torch {
    pub fn open(path: &Path) -> Result<Torch, ImportError> {
        Torch::from_source(Source::open(path)?)
    }

    pub fn from_bytes(bytes: Vec<u8>) -> Result<Torch, ImportError> {
        Torch::from_source(bytes.into())
    }

    /// A pickle without a container, such as PyTorch's Flight Recorder writes.
    pub fn from_pickle(bytes: Vec<u8>) -> Result<Torch, ImportError> {
        container::read_pickle(bytes.into())
    }

    fn from_source(source: Source) -> Result<Torch, ImportError> {
        container::read_container(source)
    }

    /// Length of the file.
    pub fn file_len(&self) -> u64 {
        self.heap.source().len() as u64
    }

    /// Most bytes that may be written of this file, in one form; see [`limits::MAX_GROWTH`].
    pub fn output_limit(&self) -> u64 {
        limits::OUTPUT_BASE.saturating_add(self.file_len().saturating_mul(limits::MAX_GROWTH))
    }

    fn storage_bytes(&self, storage: Value) -> Option<&[u8]> {
        let Extra::Storage(storage) = self.heap.extra_of(storage)? else { return None };
        let key = self.heap.str(storage.key)?;
        let bytes = self.heap.source().get(self.storages.get(&*key)?.clone())?;
        let wanted = usize::try_from(storage.numel).ok()?.checked_mul(storage.dtype.size())?;
        bytes.get(..wanted)
    }
}
