//! Files that people have at hand when a run hangs: dumps of PyTorch's Flight Recorder, stacks by py-spy, the table of `nvidia-smi`,
//! SGLang's dumps of requests. They are about one moment, so they become no rows: [`read`] tells which they are and what they say.
//! [`ray`] reads what Ray's dashboard answers.

mod flight;
mod gpus;
pub mod ray;
mod requests;
mod stacks;

pub use flight::{Entry, Flight, Group};
pub use gpus::Gpu;
pub use requests::{Requests, UnderWay};
pub use stacks::{Frame, Process, Thread};

use std::path::Path;

use crate::import::ImportError;
use crate::import::trainers::sglang_dump;

/// Largest file.
pub const MAX_FILE_BYTES: u64 = 256 << 20;
/// Longest text that is kept of a name, a path or a command.
const MAX_TEXT: usize = 500;

/// What a file turned out to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Dump {
    Flight(Flight),
    Stacks(Vec<Process>),
    Gpus(Vec<Gpu>),
    Requests(Requests),
}

/// Reads a file. Its name may tell the rank, and its folder the machine.
pub fn read(path: &Path, bytes: &[u8]) -> Result<Dump, ImportError> {
    let name = &*path.file_name().unwrap_or_default().to_string_lossy();
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(ImportError::Limit {
            what: format!("the size of {name}"),
            name: "MAX_FILE_BYTES",
            limit: MAX_FILE_BYTES,
        });
    }
    if sglang_dump::detects(bytes) {
        return requests::read(path, bytes).map(Dump::Requests);
    }
    if bytes.first() == Some(&0x80) {
        return flight::read_pickle(name, bytes).map(Dump::Flight);
    }
    let unknown = || {
        ImportError::Malformed(
            "expected a dump of PyTorch's Flight Recorder (pickle or JSON), of py-spy (text or --json), of faulthandler, of nvidia-smi, or of SGLang (crash_dump_*.pkl)".into(),
        )
    };
    let text = std::str::from_utf8(bytes).map_err(|_| unknown())?;
    match text.trim_start().as_bytes().first() {
        Some(b'{') => flight::read_json(name, text).map(Dump::Flight),
        Some(b'[') => stacks::read_json(name, text).map(Dump::Stacks),
        _ => stacks::read_text(name, text)
            .map(Dump::Stacks)
            .or_else(|| gpus::read_text(text).map(Dump::Gpus))
            .ok_or_else(unknown),
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

/// The number after the word `rank` in a name, or the digits at its end: `nccl_trace_rank_13`, `py-spy.rank13.txt`.
fn rank_in(name: &str) -> Option<i64> {
    let lower = name.to_ascii_lowercase();
    let after = |at: usize| {
        let rest = lower[at..].trim_start_matches(['_', '-', '.', '=', ' ']);
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse().ok()
    };
    lower.rmatch_indices("rank").find_map(|(at, word)| after(at + word.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_in_names() {
        for (name, rank) in [
            ("nccl_trace_rank_13", Some(13)),
            ("py-spy.rank7.txt", Some(7)),
            ("RANK=2.json", Some(2)),
            ("stack.txt", None),
            ("ranks", None),
        ] {
            assert_eq!(rank_in(name), rank, "{name}");
        }
    }

    #[test]
    fn what_is_nothing_of_this_is_refused() {
        for bytes in [&b""[..], b"hello", b"\xff\xfe", b"{", b"[", b"{}", b"[1]", b"\x80\x02}."] {
            assert!(read(Path::new("x"), bytes).is_err(), "{bytes:?}");
        }
    }
}
