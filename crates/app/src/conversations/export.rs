//! A selection of conversations as a file: JSON lines, one conversation per line with its `messages` in OpenAI's format,
//! or Parquet with the columns of the table.

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;

use super::Conversations;
use super::ask::Ask;
use crate::problem::Problem;

/// How many conversations are read at a time.
const PAGE: usize = 200;
/// Most bytes of text in one Parquet file: it is made in memory.
const MAX_PARQUET_BYTES: usize = 1 << 30;

/// Goes through a selection, page by page.
pub struct Pages {
    conversations: Conversations,
    ask: Option<Ask>,
    left: usize,
}

impl Pages {
    /// `limit` bounds the whole selection.
    pub fn new(conversations: Conversations, mut ask: Ask, limit: Option<usize>) -> Pages {
        ask.messages = true;
        ask.snippets = false;
        ask.request.facets = Vec::new();
        Pages { conversations, ask: Some(ask), left: limit.unwrap_or(usize::MAX) }
    }

    /// The next page as JSON lines. `None` at the end.
    pub async fn json_lines(&mut self) -> Result<Option<Vec<u8>>, Problem> {
        let Some(found) = self.next().await? else { return Ok(None) };
        let mut out = Vec::new();
        for one in &found {
            out.extend(one.to_json());
            out.push(b'\n');
        }
        Ok(Some(out))
    }

    async fn next(&mut self) -> Result<Option<Vec<super::FoundConversation>>, Problem> {
        let Some(ask) = self.ask.take() else { return Ok(None) };
        if self.left == 0 {
            return Ok(None);
        }
        let page = Ask {
            project: ask.project.clone(),
            run: ask.run.clone(),
            request: rollscope_search::Request { limit: PAGE.min(self.left), ..ask.request.clone() },
            sort: ask.sort.clone(),
            messages: true,
            snippets: false,
        };
        let listed = self.conversations.list(page).await?;
        self.left -= listed.rows.len().min(self.left);
        if let Some(next) = &listed.next {
            let mut request = ask.request.clone();
            request.after = next.rsplit_once('~').and_then(|(_, place)| rollscope_search::Place::from_text(place));
            request.offset = 0;
            self.ask = Some(Ask { request, ..ask });
        }
        Ok(Some(listed.rows))
    }

    /// The whole selection as one Parquet file.
    pub async fn parquet(mut self) -> Result<Vec<u8>, Problem> {
        let mut all: Vec<RecordBatch> = Vec::new();
        let mut bytes = 0;
        while let Some(found) = self.next().await? {
            let ids: Vec<String> = found.into_iter().map(|f| f.id).collect();
            for batch in self.conversations.engine.conversations(ids).await? {
                bytes += batch.get_array_memory_size();
                all.push(batch);
            }
            if bytes > MAX_PARQUET_BYTES {
                return Err(Problem::too_large(
                    "MAX_PARQUET_BYTES",
                    format!("the selection is larger than {MAX_PARQUET_BYTES} bytes; narrow it, or export JSON lines"),
                ));
            }
        }
        let schema = rollscope_model::Table::Conversations.schema();
        // The engine marks columns for its own use; a file has them as they are declared.
        let declared = |b: &RecordBatch| RecordBatch::try_new(schema.clone(), b.columns().to_vec());
        let plain = all.iter().map(declared).collect::<Result<Vec<_>, _>>();
        let internal = |e: arrow::error::ArrowError| Problem::internal(e.to_string());
        let batch = concat_batches(&schema, &plain.map_err(internal)?).map_err(internal)?;
        Ok(rollscope_store::parquet_file(&batch)?)
    }
}
