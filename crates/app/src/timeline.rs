//! Spans of a step or a window as the page draws them: read, packed, and written as Arrow IPC. Where there are very many, items
//! stand for several short ones ([`thin`]), but for where somebody looks. A large step that is over is packed once, when it
//! completes or when somebody asks first, and kept beside its rows ([`Answers::on_disk`]).

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use bytes::Bytes;
use rollscope_answers::{Answers, OnDisk};
use rollscope_formats::export::timeline::{self, Focus, Options, PART_MS, thin};
use rollscope_model::Table;
use rollscope_model::pd::KEY_PREFIX;
use rollscope_query::Engine;
use rollscope_query::scope::{Scope, ScopeRead, Traces};
use rollscope_store::Snapshot;
use tokio::sync::Semaphore;

use crate::problem::Problem;

/// The most spans in one timeline, as in the answers about a step. A window can always be narrower.
const MAX_SPANS: usize = 16_000_000;
/// Items that a page gets, unless it wants fewer or more.
pub const MOST: usize = 1_500_000;
/// A step with fewer spans is packed about as fast as it is read from where it was kept.
const KEEP_FROM: usize = 100_000;
/// What is kept: the timeline as pages get it and, where that is thinned, all of it.
const SHOWN: &str = "timeline";
const WHOLE: &str = "timeline-whole";
const ZSTD_LEVEL: i32 = 1;
/// While a timeline is made, it takes some 600 bytes per span: few are made at the same time, whoever asks.
static TURNS: Semaphore = Semaphore::const_new(2);

/// A step, or a window of time in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    Step(i64),
    Time { from: i64, to: i64 },
}

/// How much is wanted.
#[derive(Clone, Debug)]
pub struct Detail {
    /// Items, about.
    pub most: usize,
    /// Times in nanoseconds since the epoch, and samples (`None`: every row) where spans should stay apart.
    pub focus: Option<(i64, i64, Option<HashSet<String>>)>,
}

impl Default for Detail {
    fn default() -> Self {
        Detail { most: MOST, focus: None }
    }
}

impl Detail {
    fn is_usual(&self) -> bool {
        self.most == MOST && self.focus.is_none()
    }

    fn thin(&self, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
        let base = timeline::extent(&batch).0;
        let ms = |ns: i64| ns.saturating_sub(base) as f64 / 1e6;
        let focus = self.focus.clone().map(|(from, to, rows)| Focus { from: ms(from), to: ms(to), rows });
        thin(batch, self.most, focus.as_ref())
    }
}

/// An Arrow IPC stream of one packed batch, perhaps compressed, as it is kept.
pub struct Packed {
    pub bytes: Bytes,
    pub is_zstd: bool,
}

impl Packed {
    fn plain(bytes: Bytes) -> Packed {
        Packed { bytes, is_zstd: false }
    }

    pub async fn uncompressed(self, engine: &Engine) -> Result<Bytes, Problem> {
        if !self.is_zstd {
            return Ok(self.bytes);
        }
        let bytes = engine.compute(move || zstd::decode_all(&self.bytes[..])).await?;
        bytes.map(Bytes::from).map_err(|e| Problem::internal(format!("cannot read what is kept of a timeline: {e}")))
    }
}

/// The spans of a window; `traces`: only these of a step. `live`: open spans reach to the newest time.
pub async fn read(
    engine: &Engine,
    snapshot: &Snapshot,
    run: &str,
    window: Window,
    traces: Option<Traces>,
    live: bool,
    detail: Detail,
) -> Result<Packed, Problem> {
    let _turn = TURNS.acquire().await;
    let spans = spans_of(engine, snapshot, run, window, traces).await?;
    let options = Options { live, ..Options::default() };
    let bytes = engine.compute(move || stream(&detail.thin(timeline::pack(&spans, options)?)?)).await?;
    Ok(Packed::plain(bytes.map_err(internal)?))
}

/// The timeline of a step that is not followed while it runs: from where it is kept, else from its spans.
pub async fn of_step(
    answers: &Answers,
    snapshot: &Snapshot,
    run: &str,
    step: i64,
    detail: Detail,
) -> Result<Packed, Problem> {
    let engine = answers.engine();
    let name = if detail.is_usual() { SHOWN } else { WHOLE };
    if let Some(bytes) = answers.on_disk(run, step, name).await?.data {
        if name == SHOWN {
            return Ok(Packed { bytes, is_zstd: true });
        }
        let _turn = TURNS.acquire().await;
        let thinned = engine.compute(move || stream(&detail.thin(uncompress(&bytes)?)?)).await?;
        return Ok(Packed::plain(thinned.map_err(internal)?));
    }
    let _turn = TURNS.acquire().await;
    let is_usual = detail.is_usual();
    let mut kept = answers.on_disk(run, step, SHOWN).await?;
    // Somebody else may have asked meanwhile.
    if let Some(bytes) = kept.data.take().filter(|_| is_usual) {
        return Ok(Packed { bytes, is_zstd: true });
    }
    let whole = pack(engine, snapshot, run, step).await?;
    let batch = whole.clone();
    let bytes = engine.compute(move || stream(&detail.thin(batch)?)).await?.map_err(internal)?;
    if is_usual && whole.num_rows() >= KEEP_FROM && !kept.may_change(timeline::extent(&whole).1) {
        // Nobody waits for this.
        let answers = answers.clone();
        tokio::spawn(async move { keep(&answers, kept, whole).await });
    }
    Ok(Packed::plain(bytes))
}

/// Packs a large step that has completed, so that it is there for whoever looks at it; `most` rows, because nobody has asked for it yet.
pub async fn prepare(answers: &Answers, run: &str, step: i64, most: i64) -> Result<(), Problem> {
    let kept = answers.on_disk(run, step, SHOWN).await?;
    // Steps are not of one size: those that are larger than others are kept, too.
    if kept.data.is_some() || !(KEEP_FROM as i64 / 4..=most).contains(&kept.rows()) {
        return Ok(());
    }
    let _turn = TURNS.acquire().await;
    let whole = pack(answers.engine(), &answers.engine().snapshot(), run, step).await?;
    if whole.num_rows() >= KEEP_FROM {
        keep(answers, kept, whole).await;
    }
    Ok(())
}

async fn pack(engine: &Engine, snapshot: &Snapshot, run: &str, step: i64) -> Result<RecordBatch, Problem> {
    let spans = spans_of(engine, snapshot, run, Window::Step(step), None).await?;
    engine.compute(move || timeline::pack(&spans, Options::default())).await?.map_err(internal)
}

async fn keep(answers: &Answers, kept: OnDisk, whole: RecordBatch) {
    let window = timeline::extent(&whole);
    let made = answers.engine().compute(move || {
        let shown = Detail::default().thin(whole.clone())?;
        let Some(part) = shown.schema_ref().metadata().get(PART_MS) else { return Ok((None, compress(&shown)?)) };
        // It need not be looked for again.
        let mut metadata = whole.schema_ref().metadata().clone();
        metadata.insert(PART_MS.into(), part.clone());
        let schema = whole.schema_ref().as_ref().clone().with_metadata(metadata);
        let whole = whole.with_schema(Arc::new(schema))?;
        Ok::<_, ArrowError>((Some(compress(&whole)?), compress(&shown)?))
    });
    let Ok(Ok((whole, shown))) = made.await else { return };
    if let Some(data) = whole {
        answers.keep_on_disk(&kept, WHOLE, window, data).await;
    }
    answers.keep_on_disk(&kept, SHOWN, window, shown).await;
}

fn stream(batch: &RecordBatch) -> Result<Bytes, ArrowError> {
    let room = batch.get_array_memory_size() + 4096;
    let mut writer = StreamWriter::try_new(Vec::with_capacity(room), batch.schema_ref())?;
    writer.write(batch)?;
    Ok(writer.into_inner()?.into())
}

fn compress(batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
    let mut writer = StreamWriter::try_new(zstd::Encoder::new(Vec::new(), ZSTD_LEVEL)?, batch.schema_ref())?;
    writer.write(batch)?;
    Ok(writer.into_inner()?.finish()?)
}

fn uncompress(bytes: &[u8]) -> Result<RecordBatch, ArrowError> {
    let mut batches = StreamReader::try_new(zstd::Decoder::new(bytes)?, None)?;
    batches.next().unwrap_or_else(|| Err(ArrowError::IpcError("a packed timeline is one batch".into())))
}

fn internal(error: ArrowError) -> Problem {
    Problem::internal(error.to_string())
}

fn too_many_spans() -> String {
    format!("more than {MAX_SPANS} spans; request a time window with `from_ns` and `to_ns`")
}

/// The spans of the window, and those of the same traces that belong to it only by their trace.
async fn spans_of(
    engine: &Engine,
    snapshot: &Snapshot,
    run: &str,
    window: Window,
    traces: Option<Traces>,
) -> Result<Vec<RecordBatch>, Problem> {
    let attrs = snapshot.attr_types.get(&Table::Spans).and_then(|t| t.get("end_attrs"));
    // Attributes are read only if some span has prefill and decode times in them.
    let pd = attrs.is_some_and(|keys| keys.keys().any(|k| k.starts_with(KEY_PREFIX)));
    let columns = timeline::COLUMNS.join(", ") + if pd { ", end_attrs" } else { "" };
    let scope = match window {
        Window::Time { from, to } => Scope::Window { run, from, to },
        Window::Step(step) => Scope::Step { run, step },
    };
    let read =
        ScopeRead { columns, max_rows: MAX_SPANS, too_many: too_many_spans(), traces, at_once: false, details: None };
    Ok(engine.spans_of(scope, read).await?.batches)
}
