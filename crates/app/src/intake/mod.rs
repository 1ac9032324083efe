//! The way into the store, for what arrives over the network and what is read from files.
//!
//! A message's rows go in together ([`Intake::keep`]): its runs are entered or written ([`runs`]), metrics of delta temporality
//! are added up ([`deltas`]), model calls are joined with what is stored of them ([`calls`]), images leave their messages.
//! Files bring rows only: each batch goes in by [`append`], as those of a message do.

mod calls;
mod deltas;
mod runs;

use arrow::array::RecordBatch;
use rollscope_formats::conversations::events::{Calls, Finished};
use rollscope_formats::import::otlp::{Decoded, DecodedLogs, Delta, RunRecord, RunSeen};
use rollscope_formats::import::remote_write;
use rollscope_formats::{call_tokens, conversations};
use rollscope_model::Table;
use rollscope_query::Engine;
use rollscope_store::{Store, StoreError};

use crate::conversations::lift;
use crate::problem::Problem;
use crate::work::work;
use calls::ModelCalls;
use deltas::Deltas;
use runs::Runs;

/// What became of the rows of a message or a batch. Right even where a message failed half-way.
#[derive(Debug, Default)]
pub struct Receipt {
    pub accepted: u64,
    pub duplicates: u64,
    pub rejected: u64,
    pub reasons: Vec<String>,
}

pub struct Intake {
    store: Store,
    runs: Runs,
    calls: ModelCalls,
    deltas: Deltas,
}

impl Intake {
    pub fn new(store: Store, engine: Engine) -> Self {
        let calls = ModelCalls::new(store.clone(), engine.clone());
        let (runs, deltas) = (Runs::new(store.clone(), engine.clone()), Deltas::new(engine));
        Intake { store, runs, calls, deltas }
    }

    /// The run was deleted. If it sends again, it is entered again.
    pub fn forget_run(&self, run_id: &str) {
        self.runs.forget(run_id);
        self.deltas.forget_run(run_id);
    }

    /// Stores what a message brought. When this returns `Ok`, its rows are on disk.
    pub async fn keep(&self, mut rows: Rows, receipt: &mut Receipt) -> Result<(), Problem> {
        let store = &self.store;
        // Runs, media and rows of one message go in together, or the deletion of a run would come between them.
        let _held = store.hold_runs().await;
        receipt.rejected += rows.rejected;
        receipt.reasons.append(&mut rows.reasons);
        let counted = match rows.deltas.is_empty() {
            true => None,
            false => {
                let totals = self.deltas.add(std::mem::take(&mut rows.deltas)).await?;
                rows.batches.push((Table::Series, totals.batch));
                receipt.rejected += totals.rejected;
                receipt.reasons.extend(totals.reasons);
                Some(totals.counted)
            }
        };
        for file in rows.media {
            store.media_put(file).await?;
            receipt.accepted += 1;
        }
        if !rows.written.is_empty() {
            self.runs.write(&rows.written).await?;
            receipt.accepted += rows.written.len() as u64;
        }
        if !rows.calls.is_empty() || rows.batches.iter().any(|(_, batch)| batch.num_rows() > 0) {
            self.runs.enter(&rows.runs).await?;
        }
        if !rows.calls.is_empty() {
            let kept = self.calls.keep(rows.calls).await?;
            receipt.accepted += kept.accepted;
            receipt.rejected += kept.rejected;
            receipt.reasons.extend(kept.reasons);
        }
        for (table, batch) in rows.batches {
            if batch.num_rows() == 0 {
                continue;
            }
            let appended = append(store, table, batch).await?;
            receipt.accepted += appended.accepted;
            receipt.duplicates += appended.duplicates;
            receipt.rejected += appended.rejected;
            receipt.reasons.extend(appended.reasons);
        }
        if let Some(counted) = counted {
            counted.stored();
        }
        Ok(())
    }
}

/// Appends a batch, with the conversations and tokens that its spans tell of, and lifts the images out of messages. Rejected are
/// conversations that are too large; their spans are stored.
pub async fn append(store: &Store, table: Table, batch: RecordBatch) -> Result<Receipt, StoreError> {
    // Model calls on spans are conversations too.
    let (talks, tokens) = match table {
        Table::Spans => {
            let spans = batch.clone();
            work(move || (conversations::from_spans(&spans), call_tokens::from_spans(&spans))).await?
        }
        _ => (Finished::default(), None),
    };
    let Finished { batch: talks, rejected, reasons } = talks;
    let batch = match table {
        Table::Conversations => lift::media(store, batch).await?,
        _ => batch,
    };
    let talks = match talks {
        Some(talks) => Some(lift::media(store, talks).await?),
        None => None,
    };
    // Together: they share one write to the disk.
    let keep_talks = async {
        match talks {
            Some(talks) => store.append(Table::Conversations, talks).await.map(drop),
            None => Ok(()),
        }
    };
    let keep_tokens = async {
        match tokens {
            Some(tokens) => store.append(Table::Tokens, tokens).await.map(drop),
            None => Ok(()),
        }
    };
    let (appended, (), ()) = tokio::try_join!(store.append(table, batch), keep_talks, keep_tokens)?;
    Ok(Receipt { accepted: appended.accepted, duplicates: appended.duplicates, rejected, reasons })
}

/// What one message brought, of any signal.
pub struct Rows {
    /// In the order in which they are appended.
    pub batches: Vec<(Table, RecordBatch)>,
    /// Metrics that are to be added up first.
    pub deltas: Vec<Delta>,
    /// Rows of `runs` that an SDK sent explicitly.
    pub written: Vec<RunRecord>,
    pub media: Vec<Vec<u8>>,
    /// Model calls in log events.
    pub calls: Calls,
    pub runs: Vec<RunSeen>,
    pub rejected: u64,
    pub reasons: Vec<String>,
}

impl Rows {
    pub fn of(table: Table, decoded: Decoded) -> Rows {
        Rows {
            batches: vec![(table, decoded.batch)],
            deltas: decoded.deltas,
            written: Vec::new(),
            media: Vec::new(),
            calls: Calls::default(),
            runs: decoded.runs,
            rejected: decoded.rejected,
            reasons: decoded.reasons,
        }
    }
}

impl From<DecodedLogs> for Rows {
    fn from(decoded: DecodedLogs) -> Rows {
        Rows {
            batches: decoded.batches,
            deltas: Vec::new(),
            written: decoded.runs,
            media: decoded.media,
            calls: decoded.calls,
            runs: decoded.seen,
            rejected: decoded.rejected,
            reasons: decoded.reasons,
        }
    }
}

/// They belong to the run that the receiver chose, as scraped ones do, and enter none.
impl From<remote_write::Decoded> for Rows {
    fn from(decoded: remote_write::Decoded) -> Rows {
        Rows {
            batches: vec![(Table::Series, decoded.batch)],
            deltas: Vec::new(),
            written: Vec::new(),
            media: Vec::new(),
            calls: Calls::default(),
            runs: Vec::new(),
            rejected: decoded.rejected,
            reasons: decoded.reasons,
        }
    }
}
