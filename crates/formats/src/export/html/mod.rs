//! One HTML file with the data inside: it opens from disk, without a server.
//!
//! A [`Page`] is the page's template, cut at its marker, with blocks in between: `<script id="rs-NAME">TEXT</script>`,
//! the text being gzip of Arrow IPC, JSON or [`words`], in seven bits per character ([`ascii`]). `ui/src/data/static.ts` reads the blocks and describes them. A
//! [`Window`] takes the rows of one step, packs them on every core ([`pool`]) and writes them into one page or several
//! (a dump's own and that of the whole folder) without holding more than the columns of the timeline in memory.

mod ascii;
mod attrs;
mod facts;
mod pool;
mod thin;
mod window;
mod words;

use std::collections::BTreeMap;
use std::io::{self, Write};

use arrow::array::RecordBatch;
use arrow::ipc::writer::StreamWriter;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

pub use facts::{RunFacts, StepFacts};
pub use window::Window;

/// Where the blocks go.
pub const MARKER: &str = "<!--ROLLSCOPE_DATA-->";
/// Rows of the spans whose attributes share a block: small, so that a click unpacks little.
pub const CHUNK_ROWS: usize = 4096;
/// Time spent on packing is spent once; the file is kept, mailed and opened. The levels above take longer for a hundredth.
const PACKING: Compression = Compression::new(6);
/// Text of conversations in one page, before compression. The rest is left out, and a note says so.
pub const MAX_PAGE_CONVERSATION_BYTES: usize = 256 << 20;

/// A page that is being written to a file.
pub struct Page {
    out: Box<dyn Write + Send>,
    /// The template after the marker.
    rest: String,
    generator: String,
    runs: BTreeMap<String, RunFacts>,
    order: Vec<RunEntry>,
    notes: Vec<String>,
    conversation_bytes: usize,
}

#[derive(Serialize)]
struct Manifest<'a> {
    version: u32,
    generator: &'a str,
    runs: &'a str,
    per_run: Vec<RunManifest<'a>>,
    notes: &'a [String],
}

#[derive(Serialize)]
struct RunManifest<'a> {
    run_id: &'a str,
    steps: String,
    windows: &'a [WindowEntry],
}

struct RunEntry {
    run_id: String,
    windows: Vec<WindowEntry>,
    steps: Vec<StepFacts>,
}

#[derive(Clone, Serialize)]
struct WindowEntry {
    step: Option<i64>,
    timeline: String,
    samples: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    conversations: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    words: Vec<String>,
    attrs: Vec<String>,
    rest: Vec<String>,
    chunk_rows: usize,
}

impl Page {
    /// Writes the template up to its marker. `generator` is the program and its version, for people.
    pub fn begin(mut out: Box<dyn Write + Send>, template: &str, generator: &str) -> io::Result<Page> {
        let Some((head, rest)) = template.split_once(MARKER) else {
            return Err(io::Error::other("the page has no place for data; build it with `make ui`"));
        };
        out.write_all(head.as_bytes())?;
        Ok(Page {
            out,
            rest: rest.to_string(),
            generator: generator.to_string(),
            runs: BTreeMap::new(),
            order: Vec::new(),
            notes: Vec::new(),
            conversation_bytes: 0,
        })
    }

    /// Something the reader should know: what was left out.
    pub fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Spans and instants so far.
    pub fn spans(&self) -> u64 {
        self.runs.values().map(|r| r.spans).sum()
    }

    fn entry(&mut self, run: &str) -> usize {
        if let Some(at) = self.order.iter().position(|r| r.run_id == run) {
            return at;
        }
        self.order.push(RunEntry { run_id: run.to_string(), windows: Vec::new(), steps: Vec::new() });
        self.order.len() - 1
    }

    /// Neither the text nor our names can end the element.
    fn block(&mut self, name: &str, gzip: &[u8]) -> io::Result<()> {
        write!(self.out, "<script type=\"application/octet-stream\" id=\"rs-{name}\">")?;
        ascii::write(&mut self.out, gzip)?;
        self.out.write_all(b"</script>\n")
    }

    fn json_block<T: Serialize>(&mut self, name: &str, value: &T) -> io::Result<()> {
        self.block(name, &zipped_json(value)?)
    }

    /// Writes what is known only now, and the rest of the template. `stamp` is a last line of the file, for programs.
    pub fn finish(mut self, stamp: &str) -> io::Result<()> {
        let order = std::mem::take(&mut self.order);
        let mut per_run = Vec::new();
        for (at, run) in order.iter().enumerate() {
            let steps = format!("steps-{at}");
            let mut list: Vec<&StepFacts> = run.steps.iter().filter(|s| s.step.is_some()).collect();
            list.sort_by_key(|s| s.step);
            self.json_block(&steps, &serde_json::json!({ "steps": list }))?;
            per_run.push(RunManifest { run_id: &run.run_id, steps, windows: &run.windows });
        }
        let runs = facts::runs_batch(&self.runs).map_err(io::Error::other)?;
        self.block("runs", &arrow_block(&[runs])?)?;
        let (generator, notes) = (std::mem::take(&mut self.generator), std::mem::take(&mut self.notes));
        let manifest = Manifest { version: 2, generator: &generator, runs: "runs", per_run, notes: &notes };
        self.json_block("manifest", &manifest)?;
        self.out.write_all(self.rest.as_bytes())?;
        self.out.write_all(stamp.as_bytes())?;
        self.out.flush()
    }
}

fn zipped_json<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let mut zip = GzEncoder::new(Vec::new(), PACKING);
    serde_json::to_writer(io::BufWriter::new(&mut zip), value)?;
    zip.finish()
}

fn zipped(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut zip = GzEncoder::new(Vec::new(), PACKING);
    zip.write_all(bytes)?;
    zip.finish()
}

/// gzip of an Arrow IPC stream.
fn arrow_block(batches: &[RecordBatch]) -> io::Result<Vec<u8>> {
    let Some(first) = batches.first() else { return Ok(Vec::new()) };
    let zip = GzEncoder::new(Vec::new(), PACKING);
    let mut writer = StreamWriter::try_new(zip, &first.schema()).map_err(io::Error::other)?;
    for batch in batches {
        writer.write(batch).map_err(io::Error::other)?;
    }
    let zip = writer.into_inner().map_err(io::Error::other)?;
    zip.finish()
}
