//! SGLang's `crash_dump_*.pkl`: the requests that were under way when the server crashed, and how many had finished before.

use std::path::Path;

use crate::import::ImportError;
use crate::import::trainers::sglang_dump::RequestDump;

/// What one server was asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests {
    /// `HOST:PORT`.
    pub engine: String,
    /// When it was written.
    pub at_ns: i64,
    pub finished: usize,
    /// The longest first.
    pub under_way: Vec<UnderWay>,
    /// Those that cannot be read.
    pub unreadable: usize,
}

/// A request that had no answer yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnderWay {
    pub rid: String,
    pub since_ns: i64,
    /// Tokens that were produced.
    pub produced: i64,
}

pub fn read(path: &Path, bytes: &[u8]) -> Result<Requests, ImportError> {
    let dump = RequestDump::open(path, bytes.to_vec())?;
    let mut out = Requests { engine: super::cut(&dump.engine), ..Requests::default() };
    for request in dump.requests() {
        let Ok(request) = dump.read(request) else {
            out.unreadable += 1;
            continue;
        };
        out.at_ns = out.at_ns.max(request.end_ns.unwrap_or(request.start_ns));
        if request.finish.is_some() {
            out.finished += 1;
            continue;
        }
        let produced = request.produced().unwrap_or(0);
        out.under_way.push(UnderWay { rid: super::cut(&request.rid), since_ns: request.start_ns, produced });
    }
    out.under_way.sort_by(|a, b| (a.since_ns, &a.rid).cmp(&(b.since_ns, &b.rid)));
    Ok(out)
}
