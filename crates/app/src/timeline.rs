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
use rollscope_answers::ask::MAX_PREPARED_SPANS;
use rollscope_answers::{Answers, OnDisk};
use rollscope_formats::export::timeline::{self, Focus, Options, PART_MS, thin};
use rollscope_model::pd::KEY_PREFIX;
use rollscope_model::{SpanId, Table, TraceId};
use rollscope_query::Engine;
use rollscope_query::scope::{Scope, ScopeRead, ScopeSpans, Traces};
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

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
/// A page of more items would take gigabytes.
pub const MAX_ITEMS: usize = 4_000_000;
/// While a timeline is made, it takes some 600 bytes per span. So many spans are in those that are made at the same time, whoever asks: in small
/// ones, which wait for no larger one, in usual ones, and in very large ones.
static SMALL: Room = Room::of(400_000);
static USUAL: Room = Room::of(MAX_PREPARED_SPANS as usize);
static LARGE: Room = Room::of(MAX_SPANS);

struct Room {
    spans: usize,
    units: Semaphore,
}

impl Room {
    const UNIT: usize = 10_000;

    const fn of(spans: usize) -> Room {
        Room { spans, units: Semaphore::const_new(spans / Room::UNIT) }
    }

    async fn take(&'static self, spans: usize) -> SemaphorePermit<'static> {
        let units = spans.min(self.spans).div_ceil(Room::UNIT).max(1);
        self.units.acquire_many(units as u32).await.expect("it is never closed")
    }
}

/// Waits until so many spans can be packed beside others.
async fn room_for(spans: i64) -> SemaphorePermit<'static> {
    let spans = spans.max(0) as usize;
    let room = match spans {
        0..KEEP_FROM => &SMALL,
        _ if spans <= USUAL.spans => &USUAL,
        _ => &LARGE,
    };
    room.take(spans).await
}

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
    /// A span that is wanted for itself.
    pub apart: Option<(TraceId, SpanId)>,
}

impl Default for Detail {
    fn default() -> Self {
        Detail { most: MOST, focus: None, apart: None }
    }
}

impl Detail {
    fn is_usual(&self) -> bool {
        self.most == MOST && self.focus.is_none() && self.apart.is_none()
    }

    fn thin(&self, batch: RecordBatch) -> Result<RecordBatch, Problem> {
        let base = timeline::extent(&batch).0;
        let ms = |ns: i64| ns.saturating_sub(base) as f64 / 1e6;
        let focus = self.focus.clone().map(|(from, to, rows)| Focus { from: ms(from), to: ms(to), rows });
        let thinned = thin(batch, self.most, focus.as_ref(), self.apart).map_err(internal)?;
        // Open spans, and those with names of their own, stand for nothing else.
        match thinned.num_rows() {
            items if items > MAX_ITEMS => Err(Problem::too_large("timeline_items", too_many_items(items))),
            _ => Ok(thinned),
        }
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
    answers: &Answers,
    run: &str,
    window: Window,
    traces: Option<Traces>,
    live: bool,
    detail: Detail,
) -> Result<Packed, Problem> {
    let room = match window {
        Window::Step(step) => room_for(answers.spans_of_step(run, step).await?).await,
        Window::Time { from, to } => room_for(answers.spans_during(from, to).await?).await,
    };
    let (engine, run) = (answers.engine().clone(), run.to_string());
    let packed = async move {
        let _room = room;
        let spans = spans_of(&engine, &run, window, traces).await?;
        let options = Options { live, ..Options::default() };
        let work = move || {
            let whole = timeline::pack(&spans.batches, options).map_err(internal)?;
            stream(&detail.thin(whole)?).map_err(internal)
        };
        Ok(Packed::plain(engine.compute(work).await??))
    };
    to_its_end(packed).await
}

/// The timeline of a step that is not followed while it runs: from where it is kept, else from its spans.
pub async fn of_step(answers: &Answers, run: &str, step: i64, detail: Detail) -> Result<Packed, Problem> {
    if let Some(packed) = shown(answers, run, step, &detail).await? {
        return Ok(packed);
    }
    let room = room_for(answers.spans_of_step(run, step).await?).await;
    // Somebody else may have asked meanwhile.
    if let Some(packed) = shown(answers, run, step, &detail).await? {
        return Ok(packed);
    }
    let (send, made) = oneshot::channel();
    let (answers, run) = (answers.clone(), run.to_string());
    tokio::spawn(async move {
        let _room = room;
        match make(&answers, &run, step, detail).await {
            Ok((packed, worth_keeping)) => {
                let _ = send.send(Ok(packed));
                // Nobody waits for this.
                if let Some((kept, whole)) = worth_keeping {
                    keep(&answers, kept, whole).await;
                }
            }
            Err(problem) => drop(send.send(Err(problem))),
        }
    });
    made.await.unwrap_or_else(|_| Err(Problem::internal("packing the timeline failed")))
}

/// What is kept for pages that want nothing special.
async fn shown(answers: &Answers, run: &str, step: i64, detail: &Detail) -> Result<Option<Packed>, Problem> {
    if !detail.is_usual() {
        return Ok(None);
    }
    let kept = answers.on_disk(run, step, SHOWN).await?;
    Ok(kept.data.map(|bytes| Packed { bytes, is_zstd: true }))
}

/// And all of its spans, if they are worth keeping.
async fn make(
    answers: &Answers,
    run: &str,
    step: i64,
    detail: Detail,
) -> Result<(Packed, Option<(OnDisk, RecordBatch)>), Problem> {
    let engine = answers.engine();
    let kept_whole = match detail.is_usual() {
        true => None,
        false => whole_of(answers, run, step).await?,
    };
    let (whole, worth_keeping) = match kept_whole {
        Some(whole) => (whole, None),
        None => {
            let kept = answers.on_disk(run, step, SHOWN).await?;
            let (whole, may_leave) = pack(engine, run, step).await?;
            let changes = kept.may_change(timeline::extent(&whole).1, may_leave);
            let worth_keeping = whole.num_rows() >= KEEP_FROM && !changes;
            (whole.clone(), worth_keeping.then_some((kept, whole)))
        }
    };
    let bytes = engine.compute(move || stream(&detail.thin(whole)?).map_err(internal)).await??;
    Ok((Packed::plain(bytes), worth_keeping))
}

/// All spans of a step, if they are kept: on their own or, if there are not very many, as pages get them.
async fn whole_of(answers: &Answers, run: &str, step: i64) -> Result<Option<RecordBatch>, Problem> {
    for name in [WHOLE, SHOWN] {
        let Some(bytes) = answers.on_disk(run, step, name).await?.data else { continue };
        let read = answers.engine().compute(move || uncompress(&bytes)).await?.map_err(internal)?;
        if name == WHOLE || !read.schema_ref().metadata().contains_key(PART_MS) {
            return Ok(Some(read));
        }
    }
    Ok(None)
}

/// Packs a large step that has completed, so that it is there for whoever looks at it. Not if it has more than `most` spans: nobody has
/// asked for it yet. Returns the spans that were packed.
pub async fn prepare(answers: &Answers, run: &str, step: i64, most: i64) -> Result<i64, Problem> {
    let kept = answers.on_disk(run, step, SHOWN).await?;
    if kept.data.is_some() {
        return Ok(0);
    }
    let spans = answers.spans_of_step(run, step).await?;
    if !(KEEP_FROM as i64..=most).contains(&spans) {
        return Ok(0);
    }
    let _room = room_for(spans).await;
    let (whole, may_leave) = pack(answers.engine(), run, step).await?;
    // The step is complete: only what may yet turn out to be another one's would change it.
    if whole.num_rows() >= KEEP_FROM && !(may_leave && kept.may_change(timeline::extent(&whole).1, true)) {
        keep(answers, kept, whole).await;
    }
    Ok(spans)
}

/// Also if nobody waits for it any more: what works on other threads cannot be stopped, and takes its room until it is done.
async fn to_its_end<T: Send + 'static>(
    task: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    tokio::spawn(task).await.unwrap_or_else(|e| Err(Problem::internal(e.to_string())))
}

/// All spans of a step, and whether some of them may yet turn out to belong to another one.
async fn pack(engine: &Engine, run: &str, step: i64) -> Result<(RecordBatch, bool), Problem> {
    let spans = spans_of(engine, run, Window::Step(step), None).await?;
    let may_leave = spans.may_leave;
    let packed = engine.compute(move || timeline::pack(&spans.batches, Options::default())).await?;
    Ok((packed.map_err(internal)?, may_leave))
}

async fn keep(answers: &Answers, kept: OnDisk, whole: RecordBatch) {
    let window = timeline::extent(&whole);
    let made = answers.engine().compute(move || {
        let shown = Detail::default().thin(whole.clone())?;
        let Some(part) = shown.schema_ref().metadata().get(PART_MS) else {
            return Ok((None, compress(&shown).map_err(internal)?));
        };
        // It need not be looked for again.
        let mut metadata = whole.schema_ref().metadata().clone();
        metadata.insert(PART_MS.into(), part.clone());
        let schema = whole.schema_ref().as_ref().clone().with_metadata(metadata);
        let whole = whole.with_schema(Arc::new(schema)).map_err(internal)?;
        let both = compress(&whole).and_then(|whole| Ok((Some(whole), compress(&shown)?)));
        both.map_err(internal)
    });
    let Ok(Ok((whole, shown))) = made.await else { return };
    // Who finds what is shown expects the rest.
    if let Some(data) = whole
        && !answers.keep_on_disk(&kept, WHOLE, window, data).await
    {
        return;
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

fn too_many_items(items: usize) -> String {
    format!("{items} items to draw, more than {MAX_ITEMS}; request a time window with `from_ns` and `to_ns`")
}

fn too_many_spans() -> String {
    format!("more than {MAX_SPANS} spans; request a time window with `from_ns` and `to_ns`")
}

/// The spans of the window, and those of the same traces that belong to it only by their trace.
async fn spans_of(engine: &Engine, run: &str, window: Window, traces: Option<Traces>) -> Result<ScopeSpans, Problem> {
    let snapshot = engine.snapshot();
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
    Ok(engine.spans_of(scope, read).await?)
}
