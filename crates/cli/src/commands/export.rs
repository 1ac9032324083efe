//! `rollscope export`: out of a store, for other tools.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use rollscope_model::Table;
use rollscope_query::{Engine, QueryLimits};

use crate::args::ExportOtlpArgs;
use crate::{output, place};

pub async fn otlp(args: ExportOtlpArgs) -> anyhow::Result<()> {
    let store = place::open_for_reading(&args.folder.data).await?;
    let limits =
        QueryLimits { max_rows: usize::MAX, timeout: Duration::from_secs(24 * 3600), ..QueryLimits::default() };
    let engine = Engine::new(Arc::new(store), limits)?;
    let schema = Table::Spans.schema();
    let columns: Vec<String> = schema.fields().iter().map(|f| format!("\"{}\"", f.name())).collect();
    let run = match &args.run {
        Some(run) => Some(engine.find_run(run).await.map_err(super::answers::usage)?),
        None => None,
    };
    let members = match (&run, args.step) {
        (Some(run), Some(step)) => Some(engine.members_of_step(run, step).await?),
        (Some(run), None) => Some(engine.members_of_run(run).await?),
        (None, _) => None,
    };
    let filter = members.as_ref().map_or("true", |members| members.filter.as_str());
    let mut running = engine.sql(&format!("select {} from spans where {filter}", columns.join(", "))).await?;
    let mut out: Box<dyn Write> = match &args.out {
        Some(path) => Box::new(BufWriter::new(File::create(path).with_context(|| path.display().to_string())?)),
        None => Box::new(BufWriter::new(output::stdout())),
    };
    let mut rows = 0;
    while let Some(batch) = running.stream.next().await {
        let batch = match &members {
            Some(members) => members.keep(&batch?)?,
            None => batch?,
        };
        if batch.num_rows() == 0 {
            continue;
        }
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
