//! Bytes that are written once in the order they come and read once in another: in memory while they are few, in a
//! temporary file (gone when it is closed) once they are many.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Reads go through blocks of this size, and this many blocks are kept. Many samples go on at the same time, each of them in
/// order: everyone's next record is in the block of the one before.
const BLOCK: usize = 16 << 10;
const BLOCKS: usize = 512;

pub struct Spill {
    memory: Vec<u8>,
    /// More than this goes to the file.
    limit: usize,
    file: Option<File>,
    in_file: u64,
    folder: std::path::PathBuf,
    /// Block `b` of the file is kept, if at all, at place `b % BLOCKS`.
    blocks: Vec<u8>,
    kept: Vec<Option<u64>>,
    /// A record that lies in several blocks.
    joined: Vec<u8>,
}

impl Spill {
    pub fn new(folder: &Path, limit: usize) -> Self {
        Spill {
            memory: Vec::new(),
            limit,
            file: None,
            in_file: 0,
            folder: folder.to_path_buf(),
            blocks: Vec::new(),
            kept: vec![None; BLOCKS],
            joined: Vec::new(),
        }
    }

    /// Where the next bytes will be.
    pub fn at(&self) -> u64 {
        self.in_file + self.memory.len() as u64
    }

    /// Appends what `write` adds to the buffer; gives its length.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<u32> {
        let before = self.memory.len();
        write(&mut self.memory);
        let written = self.memory.len() - before;
        if self.memory.len() >= self.limit {
            self.flush()?;
        }
        Ok(written as u32)
    }

    fn flush(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(unnamed(&self.folder)?),
        };
        file.write_all(&self.memory)?;
        self.in_file += self.memory.len() as u64;
        self.memory.clear();
        // The last block of the file has grown.
        self.kept.fill(None);
        Ok(())
    }

    pub fn get(&mut self, at: u64, len: u32) -> io::Result<&[u8]> {
        let len = len as usize;
        if at >= self.in_file {
            let from = (at - self.in_file) as usize;
            return Ok(&self.memory[from..from + len]);
        }
        let (first, from) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
        if from + len <= BLOCK {
            let place = self.block(first)?;
            return Ok(&self.blocks[place + from..place + from + len]);
        }
        self.joined.clear();
        let (mut block, mut from, mut left) = (first, from, len);
        while left > 0 {
            let take = left.min(BLOCK - from);
            let place = self.block(block)? + from;
            self.joined.extend_from_slice(&self.blocks[place..place + take]);
            (block, from, left) = (block + 1, 0, left - take);
        }
        Ok(&self.joined)
    }

    /// Where a block of the file is in memory.
    fn block(&mut self, block: u64) -> io::Result<usize> {
        let slot = (block % BLOCKS as u64) as usize;
        let place = slot * BLOCK;
        if self.kept[slot] != Some(block) {
            self.blocks.resize(BLOCKS * BLOCK, 0);
            let at = block * BLOCK as u64;
            let len = BLOCK.min((self.in_file - at) as usize);
            if let Some(file) = &self.file {
                file.read_exact_at(&mut self.blocks[place..place + len], at)?;
            }
            self.kept[slot] = Some(block);
        }
        Ok(place)
    }
}

/// A file without a name: no other process sees it, and it disappears with this process.
fn unnamed(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!(".rollscope-{}-{:x}.spill", std::process::id(), rollscope_model::time::now_ns()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_from_memory_and_file() {
        // Records within a block, over its edge, and larger than blocks; a file of more blocks than are kept.
        for (limit, size, count) in [(10, 37, 1000), (1 << 20, 37, 1000), (4096, 40_000, 700)] {
            let mut spill = Spill::new(&std::env::temp_dir(), limit);
            let mut places = Vec::new();
            for i in 0..count as u32 {
                let at = spill.at();
                let bytes = vec![i as u8; (i as usize * 7919) % size];
                places.push((at, spill.push(|out| out.extend_from_slice(&bytes)).unwrap()));
            }
            for (i, (at, len)) in places.into_iter().enumerate().rev() {
                assert!(spill.get(at, len).unwrap() == vec![i as u8; (i * 7919) % size], "record {i}");
            }
        }
    }
}
