//! `rollscope sql`: the same question to a folder or to a server, the same answer.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use futures::StreamExt;
use rollscope_answers::Answers;
use rollscope_app::encode;
use rollscope_query::QueryLimits;
use rollscope_tokenizer::Tokenizers;

use crate::args::{Format, SqlArgs};
use crate::config::Usage;
use crate::progress::Bar;
use crate::source::{local_folder, server_url};
use crate::{output, place};

pub async fn run(mut args: SqlArgs) -> anyhow::Result<()> {
    if args.query == "-" {
        args.query.clear();
        std::io::stdin().read_to_string(&mut args.query)?;
    }
    let folder = local_folder(&args.source);
    let tokenizers = args.tokenizers.open(folder.is_some())?;
    match folder {
        Some(data) => ask_folder(&args, data, tokenizers).await,
        None => {
            let url = server_url(&args.source);
            tokio::task::spawn_blocking(move || ask_server(&args, &url)).await?
        }
    }
}

async fn ask_folder(args: &SqlArgs, data: PathBuf, tokenizers: Tokenizers) -> anyhow::Result<()> {
    let store = place::open_for_reading(&data).await?;
    let limits =
        QueryLimits { timeout: Duration::from_secs(args.timeout), max_rows: args.max_rows, ..QueryLimits::default() };
    let answers = Answers::with_tokenizers(Arc::new(store), limits, tokenizers)?;
    let mut running = answers.engine().sql(&args.query).await.map_err(usage)?;
    let progress = running.progress.clone();
    let bar = Bar::over("scanning", progress.snapshot().rows_total, move || progress.snapshot().rows_scanned);
    let mut out = Printer::new(args.format, running.schema.clone());
    while let Some(batch) = running.stream.next().await {
        out.write(&batch.map_err(usage)?)?;
    }
    drop(bar);
    out.finish(running.truncated.load(Ordering::Relaxed), args.max_rows)
}

/// A mistake of the user is a usage error.
fn usage(error: rollscope_query::QueryError) -> anyhow::Error {
    if error.is_users() { Usage(error.to_string()).into() } else { error.into() }
}

fn ask_server(args: &SqlArgs, url: &str) -> anyhow::Result<()> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(args.timeout)))
        .build()
        .into();
    let mut request = agent.post(format!("{}/api/v1/sql", url.trim_end_matches('/')));
    if let Some(token) = &args.source.token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let body = serde_json::json!({ "query": args.query, "format": "arrow", "max_rows": args.max_rows });
    let mut response = request.send_json(body).with_context(|| {
        format!("no rollscope server answers at {url}; start `rollscope serve`, or pass --data DIR or --server URL")
    })?;
    let status = response.status();
    if !status.is_success() {
        let text = response.body_mut().read_to_string().unwrap_or_default();
        let problem: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let detail = problem["detail"].as_str().unwrap_or(&text).to_string();
        if status.as_u16() == 400 {
            return Err(Usage(detail).into());
        }
        anyhow::bail!("{status}: {detail}");
    }
    let reader = arrow::ipc::reader::StreamReader::try_new(response.body_mut().as_reader(), None)?;
    let mut out = Printer::new(args.format, reader.schema());
    let mut rows = 0;
    for batch in reader {
        let batch = batch?;
        rows += batch.num_rows();
        out.write(&batch)?;
    }
    out.finish(rows >= args.max_rows, args.max_rows)
}

/// Writes batches in the wanted format as they come; a table has to wait for the last.
struct Printer {
    format: Format,
    schema: SchemaRef,
    rows: Vec<RecordBatch>,
    arrow: Option<encode::ArrowStream>,
    started: bool,
}

impl Printer {
    fn new(format: Format, schema: SchemaRef) -> Printer {
        Printer { format, schema, rows: Vec::new(), arrow: None, started: false }
    }

    fn write(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        match self.format {
            Format::Table => self.rows.push(batch.clone()),
            Format::Csv => {
                if !std::mem::replace(&mut self.started, true) {
                    encode::csv_header(&mut bytes, &self.schema);
                }
                encode::csv_rows(&mut bytes, batch)?;
            }
            Format::Json => {
                for row in encode::json_objects(batch)? {
                    bytes.extend_from_slice(if std::mem::replace(&mut self.started, true) { b",\n" } else { b"[\n" });
                    bytes.extend(row);
                }
            }
            Format::Arrow => {
                let stream = match &mut self.arrow {
                    Some(stream) => stream,
                    none => none.insert(encode::ArrowStream::new(&self.schema)?),
                };
                stream.write(batch)?;
                bytes = stream.drain();
            }
        }
        output::stdout().write_all(&bytes)?;
        Ok(())
    }

    fn finish(mut self, truncated: bool, max_rows: usize) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        match self.format {
            Format::Table => bytes = format!("{}\n", output::table(&self.schema, &self.rows)?).into_bytes(),
            Format::Json => bytes.extend_from_slice(if self.started { b"\n]\n" } else { b"[]\n" }),
            Format::Csv if !self.started => encode::csv_header(&mut bytes, &self.schema),
            Format::Arrow => {
                let mut stream = match self.arrow.take() {
                    Some(stream) => stream,
                    None => encode::ArrowStream::new(&self.schema)?,
                };
                stream.finish()?;
                bytes = stream.drain();
            }
            _ => {}
        }
        let mut out = output::stdout();
        out.write_all(&bytes)?;
        out.flush()?;
        if truncated {
            eprintln!(
                "rollscope: only the first {} rows are shown; raise --max-rows to see more",
                output::count(max_rows as u64)
            );
        }
        Ok(())
    }
}
