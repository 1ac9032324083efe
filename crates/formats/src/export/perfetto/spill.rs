//! Bytes that are written once in the order they come and read once in another: in memory while they are few, in a
//! temporary file (gone when it is closed) once they are many.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Reads go through a window of this size: neighbours in time are mostly neighbours in the file.
const WINDOW: usize = 256 << 10;

pub struct Spill {
    memory: Vec<u8>,
    /// More than this goes to the file.
    limit: usize,
    file: Option<File>,
    in_file: u64,
    folder: std::path::PathBuf,
    window: Vec<u8>,
    window_at: u64,
}

impl Spill {
    pub fn new(folder: &Path, limit: usize) -> Self {
        Spill {
            memory: Vec::new(),
            limit,
            file: None,
            in_file: 0,
            folder: folder.to_path_buf(),
            window: Vec::new(),
            window_at: 0,
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
        Ok(())
    }

    pub fn get(&mut self, at: u64, len: u32) -> io::Result<&[u8]> {
        let len = len as usize;
        if at >= self.in_file {
            let from = (at - self.in_file) as usize;
            return Ok(&self.memory[from..from + len]);
        }
        let Some(file) = &self.file else { return Ok(&[]) };
        let inside = at >= self.window_at && at + len as u64 <= self.window_at + self.window.len() as u64;
        if !inside {
            let wanted = WINDOW.max(len).min((self.in_file - at) as usize);
            self.window.resize(wanted, 0);
            file.read_exact_at(&mut self.window, at)?;
            self.window_at = at;
        }
        let from = (at - self.window_at) as usize;
        Ok(&self.window[from..from + len])
    }
}

/// A file without a name: nobody else sees it, and it goes away with the process.
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
        for limit in [10, 1 << 20] {
            let mut spill = Spill::new(&std::env::temp_dir(), limit);
            let mut places = Vec::new();
            for i in 0..1000u32 {
                let at = spill.at();
                let len = spill.push(|out| out.extend_from_slice(&vec![i as u8; (i % 37) as usize])).unwrap();
                places.push((at, len));
            }
            for (i, (at, len)) in places.into_iter().enumerate().rev() {
                assert_eq!(spill.get(at, len).unwrap(), vec![i as u8; i % 37]);
            }
        }
    }
}
