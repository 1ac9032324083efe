//! The rows of one step on their way into pages.

use std::io;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::compute::{cast, concat_batches, take};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use rollscope_model::Table;

use super::super::timeline;
use super::facts::Gather;
use super::pool::Pool;
use super::{CHUNK_ROWS, MAX_CONVERSATION_BYTES, Page, RunFacts, WindowEntry, arrow_block};

/// The columns that a timeline is packed from; all others go into the blocks of attributes.
const TIMELINE: [&str; 15] = timeline::COLUMNS;

/// Conversations are packed as they come, in blocks of about this size.
const CONVERSATIONS_BYTES: usize = 4 << 20;

/// What a packed block is.
#[derive(Clone, Copy)]
enum Part {
    Attrs,
    Timeline,
    Samples,
    Links,
    Conversations,
}

/// Takes the rows of one step of one run, in the order the timeline shall have them.
pub struct Window<'a> {
    pages: Vec<&'a mut Page>,
    run: String,
    step: Option<i64>,
    pool: Pool<Part>,
    gather: Gather,
    timeline: Vec<RecordBatch>,
    samples: Vec<RecordBatch>,
    links: Vec<RecordBatch>,
    conversations: Vec<RecordBatch>,
    conversation_bytes: usize,
    conversations_left_out: u64,
    /// Rest of the spans that wait for a full chunk, and how many they are.
    waiting: Vec<RecordBatch>,
    waiting_rows: usize,
    entries: Vec<WindowEntry>,
}

impl<'a> Window<'a> {
    pub fn begin(mut pages: Vec<&'a mut Page>, run: &str, step: Option<i64>) -> Window<'a> {
        let entries = pages
            .iter_mut()
            .map(|page| {
                let at = page.entry(run);
                let name = format!("{at}-{}", page.order[at].windows.len());
                WindowEntry {
                    step,
                    timeline: format!("timeline-{name}"),
                    samples: format!("samples-{name}"),
                    links: None,
                    conversations: Vec::new(),
                    attrs: Vec::new(),
                    chunk_rows: CHUNK_ROWS,
                }
            })
            .collect();
        Window {
            pages,
            run: run.to_string(),
            step,
            pool: Pool::new(),
            gather: Gather::new(step),
            timeline: Vec::new(),
            samples: Vec::new(),
            links: Vec::new(),
            conversations: Vec::new(),
            conversation_bytes: 0,
            conversations_left_out: 0,
            waiting: Vec::new(),
            waiting_rows: 0,
            entries,
        }
    }

    /// Rows of any table; those that a page does not show are passed over.
    pub fn push(&mut self, table: Table, batch: RecordBatch) -> io::Result<()> {
        self.take(table, batch).map_err(io::Error::other)
    }

    fn take(&mut self, table: Table, batch: RecordBatch) -> Result<(), ArrowError> {
        match table {
            Table::Spans => {
                self.gather.spans(&batch)?;
                self.links.extend(links_of(&batch)?);
                self.timeline.push(timeline_columns(&batch)?);
                self.rest_of(&batch)?;
            }
            Table::Samples => {
                self.gather.samples(&batch)?;
                self.samples.push(batch);
            }
            Table::Conversations => {
                let bytes = batch.get_array_memory_size();
                let full = |p: &&mut Page| p.conversation_bytes + bytes > MAX_CONVERSATION_BYTES;
                if self.pages.iter().any(full) {
                    self.conversations_left_out += batch.num_rows() as u64;
                } else {
                    self.pages.iter_mut().for_each(|p| p.conversation_bytes += bytes);
                    self.conversations.push(batch);
                    self.conversation_bytes += bytes;
                    if self.conversation_bytes >= CONVERSATIONS_BYTES {
                        self.pack_conversations()?;
                    }
                }
            }
            Table::Runs => {
                for page in &mut self.pages {
                    RunFacts::describe(&mut page.runs, &batch)?;
                }
            }
            Table::Metrics | Table::Series => {}
        }
        Ok(())
    }

    /// Cuts what the timeline lacks into chunks of equal length, whatever the length of the batches.
    fn rest_of(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let schema = batch.schema_ref();
        let rest: Vec<usize> = (0..batch.num_columns())
            .filter(|i| {
                let name = schema.field(*i).name();
                name == "span_id" || !TIMELINE.contains(&name.as_str())
            })
            .collect();
        let mut rest = batch.project(&rest)?;
        while rest.num_rows() > 0 {
            let take = (CHUNK_ROWS - self.waiting_rows).min(rest.num_rows());
            self.waiting.push(rest.slice(0, take));
            self.waiting_rows += take;
            rest = rest.slice(take, rest.num_rows() - take);
            if self.waiting_rows == CHUNK_ROWS {
                self.pack_waiting()?;
            }
        }
        Ok(())
    }

    fn pack_waiting(&mut self) -> Result<(), ArrowError> {
        if self.waiting_rows == 0 {
            return Ok(());
        }
        self.waiting_rows = 0;
        let parts = std::mem::take(&mut self.waiting);
        self.pack(Part::Attrs, parts)
    }

    fn pack_conversations(&mut self) -> Result<(), ArrowError> {
        self.conversation_bytes = 0;
        let batches = std::mem::take(&mut self.conversations);
        self.pack(Part::Conversations, batches)
    }

    fn pack(&mut self, part: Part, batches: Vec<RecordBatch>) -> Result<(), ArrowError> {
        if batches.is_empty() {
            return Ok(());
        }
        let job = move || {
            // One batch, so that each dictionary is written once.
            let whole = concat_batches(&batches[0].schema(), &batches).map_err(io::Error::other)?;
            drop(batches);
            arrow_block(&[whole])
        };
        let (pages, entries) = (&mut self.pages, &mut self.entries);
        self.pool.submit(part, job, &mut |part, packed| write(pages, entries, part, &packed))?;
        Ok(())
    }

    pub fn finish(mut self) -> io::Result<()> {
        self.pack_waiting().map_err(io::Error::other)?;
        let timeline = match std::mem::take(&mut self.timeline) {
            empty if empty.is_empty() => {
                vec![timeline_columns(&RecordBatch::new_empty(Table::Spans.schema())).map_err(io::Error::other)?]
            }
            rows => rows,
        };
        let samples = match std::mem::take(&mut self.samples) {
            empty if empty.is_empty() => vec![RecordBatch::new_empty(Table::Samples.schema())],
            rows => rows,
        };
        let job = move || {
            let options = timeline::Options { source: true, ..timeline::Options::default() };
            let packed = timeline::pack(&timeline, options).map_err(io::Error::other)?;
            drop(timeline);
            arrow_block(&[packed])
        };
        // The largest first: the others are packed beside it.
        let (pages, entries) = (&mut self.pages, &mut self.entries);
        self.pool.submit(Part::Timeline, job, &mut |part, packed| write(pages, entries, part, &packed))?;
        self.pack_conversations().map_err(io::Error::other)?;
        for (part, rows) in [(Part::Samples, samples), (Part::Links, std::mem::take(&mut self.links))] {
            self.pack(part, rows).map_err(io::Error::other)?;
        }
        let (pages, entries) = (&mut self.pages, &mut self.entries);
        self.pool.drain(&mut |part, packed| write(pages, entries, part, &packed))?;
        let facts = self.gather.finish();
        for (page, entry) in self.pages.into_iter().zip(self.entries) {
            page.runs.entry(self.run.clone()).or_default().add(&facts);
            let at = page.entry(&self.run);
            page.order[at].windows.push(entry);
            page.order[at].steps.push(facts.clone());
            if self.conversations_left_out > 0 {
                let step = self.step.map_or_else(String::new, |s| format!(" of step {s}"));
                page.note(format!(
                    "{} conversations{step} were left out to keep this file small: open the original with `rollscope view`",
                    self.conversations_left_out
                ));
            }
        }
        Ok(())
    }
}

fn write(pages: &mut [&mut Page], entries: &mut [WindowEntry], part: Part, packed: &[u8]) -> io::Result<()> {
    for (page, entry) in pages.iter_mut().zip(entries) {
        let name = match part {
            Part::Timeline => entry.timeline.clone(),
            Part::Samples => entry.samples.clone(),
            Part::Links => {
                let name = entry.timeline.replacen("timeline", "links", 1);
                entry.links = Some(name.clone());
                name
            }
            Part::Conversations => {
                let name = format!(
                    "{}-{}",
                    entry.timeline.replacen("timeline", "conversations", 1),
                    entry.conversations.len()
                );
                entry.conversations.push(name.clone());
                name
            }
            Part::Attrs => {
                let name = format!("{}-{}", entry.timeline.replacen("timeline", "attrs", 1), entry.attrs.len());
                entry.attrs.push(name.clone());
                name
            }
        };
        page.block(&name, packed)?;
    }
    Ok(())
}

/// One row a link, as `GET /runs/{run}/links` tells it: trace_id, span_id, to_trace_id, to_span_id.
fn links_of(batch: &RecordBatch) -> Result<Option<RecordBatch>, ArrowError> {
    let Some(links) = batch.column_by_name("links").and_then(|c| c.as_list_opt::<i32>()) else { return Ok(None) };
    let owners: UInt32Array =
        (0..links.len()).flat_map(|row| std::iter::repeat_n(row as u32, links.value_length(row) as usize)).collect();
    if owners.is_empty() {
        return Ok(None);
    }
    let of = |name: &str| batch.schema_ref().index_of(name).and_then(|i| take(batch.column(i), &owners, None));
    let first = links.value_offsets()[0] as usize;
    let ends = links.values().slice(first, owners.len());
    let to = |name: &str| {
        let column = ends.as_struct().column_by_name(name).cloned();
        column.ok_or_else(|| ArrowError::SchemaError(format!("links have no {name}")))
    };
    let columns = [
        ("trace_id", of("trace_id")?),
        ("span_id", of("span_id")?),
        ("to_trace_id", to("trace_id")?),
        ("to_span_id", to("span_id")?),
    ];
    Ok(Some(RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)))?))
}

fn timeline_columns(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let dictionary = rollscope_model::tables::dict();
    let columns = TIMELINE.map(|name| -> Result<(&str, ArrayRef), ArrowError> {
        let column = batch.column(batch.schema_ref().index_of(name)?);
        // Ids of samples and groups repeat in every span of theirs.
        let text = matches!(column.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
        Ok((name, if text { cast(column, &dictionary)? } else { column.clone() }))
    });
    let mut columns: Vec<(&str, ArrayRef)> = columns.into_iter().collect::<Result<_, _>>()?;
    // Attributes are many; they are kept only where prefill and decode times are among them.
    if let Some(attrs) = batch.column_by_name("end_attrs").filter(|_| timeline::has_pd(batch)) {
        columns.push(("end_attrs", attrs.clone()));
    }
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
}
