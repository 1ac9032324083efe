//! `rollscope export`: out of a store, for other tools.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use rollscope_model::Table;
use rollscope_query::{Engine, QueryLimits, sql_text};
use rollscope_store::ReadOnlyStore;

use crate::args::ExportOtlpArgs;
use crate::output;

pub async fn otlp(args: ExportOtlpArgs) -> anyhow::Result<()> {
    let store = ReadOnlyStore::open(&args.folder.data).await?;
    let limits =
        QueryLimits { max_rows: usize::MAX, timeout: Duration::from_secs(24 * 3600), ..QueryLimits::default() };
    let engine = Engine::new(Arc::new(store), limits)?;
    let schema = Table::Spans.schema();
    let columns: Vec<String> = schema.fields().iter().map(|f| format!("\"{}\"", f.name())).collect();
    let mut filters = Vec::new();
    if let Some(run) = &args.run {
        let run = engine.find_run(run).await.map_err(super::answers::usage)?;
        filters.push(format!("run_id = {}", sql_text(&run)));
    }
    if let Some(step) = args.step {
        filters.push(format!("step = {step}"));
    }
    let filter = if filters.is_empty() { String::new() } else { format!(" where {}", filters.join(" and ")) };
    let mut running = engine.sql(&format!("select {} from spans{filter}", columns.join(", "))).await?;
    let mut out: Box<dyn Write> = match &args.out {
        Some(path) => Box::new(BufWriter::new(File::create(path).with_context(|| path.display().to_string())?)),
        None => Box::new(BufWriter::new(output::stdout())),
    };
    let mut rows = 0;
    while let Some(batch) = running.stream.next().await {
        let batch = batch?;
        rows += batch.num_rows();
        rollscope_formats::export::otlp::write_json_line(&batch, &mut out)?;
    }
    out.flush()?;
    if rows == 0
        && let Some(run) = &args.run
    {
        anyhow::bail!("run {run:?} has no spans in {}", args.folder.data.display());
    }
    Ok(())
}
