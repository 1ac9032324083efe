//! Writes the rows of one step into pages.

use std::io;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::compute::{cast, concat_batches, take};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use rollscope_model::Table;

use super::super::timeline;
use super::facts::Gather;
use super::pool::Pool;
use super::thin::thin;
use super::{CHUNK_ROWS, MAX_PAGE_CONVERSATION_BYTES, Page, RunFacts, WindowEntry, arrow_block, attrs, words, zipped};

/// The columns that a timeline is packed from.
const TIMELINE: [&str; 22] = timeline::COLUMNS;

/// Ids as sent, if they were not W3C ids: they would take half of a page, and nothing is found by them. They are in the
/// dump, and where it is served.
const LEFT_OUT: [&str; 3] = ["original_trace_id", "original_span_id", "original_parent_span_id"];

/// Conversations are packed as they come, in blocks of about this size.
const CONVERSATIONS_BYTES: usize = 4 << 20;

/// What a packed block is.
#[derive(Clone, Copy)]
enum Part {
    Attrs,
    Rest,
    Timeline,
    Samples,
    Links,
    Conversations,
    Words,
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
                    words: Vec::new(),
                    attrs: Vec::new(),
                    rest: Vec::new(),
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
                let full = |p: &&mut Page| p.conversation_bytes + bytes > MAX_PAGE_CONVERSATION_BYTES;
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
            Table::Metrics | Table::Series | Table::Tokens => {}
        }
        Ok(())
    }

    /// Cuts what the timeline lacks into chunks of equal length, independent of the length of the batches.
    fn rest_of(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let schema = batch.schema_ref();
        let rest: Vec<usize> = (0..batch.num_columns())
            .filter(|i| {
                let name = schema.field(*i).name().as_str();
                !TIMELINE.contains(&name) && !LEFT_OUT.contains(&name)
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
        let batches = std::mem::take(&mut self.waiting);
        let is_attrs = |i: &usize| attrs::COLUMNS.contains(&batches[0].schema_ref().field(*i).name().as_str());
        let others: Vec<usize> = (0..batches[0].num_columns()).filter(|i| !is_attrs(i)).collect();
        let rest = batches.iter().map(|b| b.project(&others)).collect::<Result<Vec<_>, _>>()?;
        self.submit(Part::Attrs, move || attrs::block(&batches))?;
        self.submit(Part::Rest, move || {
            let whole = concat_batches(&rest[0].schema(), &rest).map_err(io::Error::other)?;
            let told: Vec<usize> =
                (0..whole.num_columns()).filter(|i| whole.column(*i).null_count() < whole.num_rows()).collect();
            arrow_block(&[whole.project(&told).map_err(io::Error::other)?])
        })
    }

    fn pack_conversations(&mut self) -> Result<(), ArrowError> {
        self.conversation_bytes = 0;
        let batches = std::mem::take(&mut self.conversations);
        let Some(first) = batches.first() else { return Ok(()) };
        let at = first.schema_ref().index_of("messages")?;
        let others: Vec<usize> = (0..first.num_columns()).filter(|i| *i != at).collect();
        let told = batches.iter().map(|b| b.project(&others)).collect::<Result<Vec<_>, _>>()?;
        self.pack(Part::Conversations, told)?;
        self.submit(Part::Words, move || {
            let texts = batches.iter().map(|b| cast(b.column(at), &DataType::Utf8)).collect::<Result<Vec<_>, _>>();
            let texts = texts.map_err(io::Error::other)?;
            drop(batches);
            zipped(&words::encode(
                texts.iter().flat_map(|t| t.as_string::<i32>().iter().map(Option::unwrap_or_default)),
            ))
        })
    }

    fn pack(&mut self, part: Part, batches: Vec<RecordBatch>) -> Result<(), ArrowError> {
        if batches.is_empty() {
            return Ok(());
        }
        self.submit(part, move || {
            // One batch, so that each dictionary is written once.
            let whole = concat_batches(&batches[0].schema(), &batches).map_err(io::Error::other)?;
            drop(batches);
            arrow_block(&[whole])
        })
    }

    fn submit(
        &mut self,
        part: Part,
        job: impl FnOnce() -> io::Result<Vec<u8>> + Send + 'static,
    ) -> Result<(), ArrowError> {
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
            arrow_block(&[thin(&packed).map_err(io::Error::other)?])
        };
        // The largest first: the others are packed beside it.
        self.submit(Part::Timeline, job).map_err(io::Error::other)?;
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
                    "{} conversations{step} were left out to keep this file small; open the original with `rollscope view`",
                    self.conversations_left_out
                ));
            }
        }
        Ok(())
    }
}

fn write(pages: &mut [&mut Page], entries: &mut [WindowEntry], part: Part, packed: &[u8]) -> io::Result<()> {
    for (page, entry) in pages.iter_mut().zip(entries) {
        let name = |what: &str| entry.timeline.replacen("timeline", what, 1);
        let name = match part {
            Part::Timeline => entry.timeline.clone(),
            Part::Samples => entry.samples.clone(),
            Part::Links => entry.links.insert(name("links")).clone(),
            Part::Conversations => added(&mut entry.conversations, name("conversations")),
            Part::Words => added(&mut entry.words, name("words")),
            Part::Attrs => added(&mut entry.attrs, name("attrs")),
            Part::Rest => added(&mut entry.rest, name("rest")),
        };
        page.block(&name, packed)?;
    }
    Ok(())
}

/// Another block of this kind.
fn added(list: &mut Vec<String>, kind: String) -> String {
    let name = format!("{kind}-{}", list.len());
    list.push(name.clone());
    name
}

/// One row per link, as `GET /runs/{run}/links` returns it: trace_id, span_id, to_trace_id, to_span_id.
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
