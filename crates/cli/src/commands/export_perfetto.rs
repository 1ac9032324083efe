//! `rollscope export perfetto`: a run, a step, or files of any known format, for Perfetto or chrome://tracing.

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use rollscope_formats::export::atomically;
use rollscope_formats::export::perfetto::{Exporter, Format, Options, Written};
use rollscope_formats::import::{self, ImportError, ImportOptions, Imported, chrome};
use rollscope_model::Table;
use rollscope_query::{Engine, QueryLimits, sql_text};

use super::files;
use crate::args::{ExportPerfettoArgs, TraceFormat};
use crate::config::Usage;
use crate::output::{count, stdout};
use crate::place;

pub async fn run(args: ExportPerfettoArgs) -> anyhow::Result<()> {
    if !args.files.is_empty() && (args.run.is_some() || args.step.is_some()) {
        return Err(Usage("pass either files, or --run and --step to read a store, not both".into()).into());
    }
    let out = args.out.clone().unwrap_or_else(|| default_name(&args));
    let (format, reserved) = format(&args)?;
    let spill_folder = match out.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let mut exporter = Exporter::new(&Options { format, spill_folder, ..Options::default() });
    exporter.reserve_pids(reserved);
    if args.files.is_empty() {
        from_store(&args, &mut exporter).await?;
    } else {
        from_files(&files::expand(&args.files)?, &mut exporter)?;
    }
    // Perfetto's own format cannot hold the events of another file, so they are written as spans.
    if let (TraceFormat::Proto, Some(profile)) = (args.format, &args.torch_file) {
        from_files(std::slice::from_ref(profile), &mut exporter)?;
    }
    let written = write(&args, exporter, &out)?;
    report(&written, &out);
    Ok(())
}

fn default_name(args: &ExportPerfettoArgs) -> PathBuf {
    let stem = match (args.files.first(), &args.run, args.step) {
        (Some(file), ..) => {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.split('.').next().unwrap_or("trace").replace(['*', '?', '['], "_")
        }
        (None, Some(run), Some(step)) => format!("{run}-step-{step}"),
        (None, Some(run), None) => run.clone(),
        (None, None, _) => "trace".into(),
    };
    let stem = stem.replace(['/', '\\'], "_");
    PathBuf::from(match args.format {
        TraceFormat::Proto => format!("{stem}.pftrace"),
        TraceFormat::Chrome => format!("{stem}.trace.json"),
    })
}

/// The format; with a torch profile, its zero and the process ids it uses.
fn format(args: &ExportPerfettoArgs) -> anyhow::Result<(Format, std::collections::HashSet<i64>)> {
    match (args.format, &args.torch_file) {
        (TraceFormat::Proto, _) => Ok((Format::Proto, Default::default())),
        (TraceFormat::Chrome, None) => Ok((Format::Chrome { zero_ns: 0 }, Default::default())),
        (TraceFormat::Chrome, Some(path)) => {
            let (zero, pids) =
                chrome::profile_facts(&mut open_plain(path)?).with_context(|| path.display().to_string())?;
            Ok((Format::Chrome { zero_ns: zero.unwrap_or(0) }, pids))
        }
    }
}

/// A file, decompressed.
fn open_plain(path: &Path) -> anyhow::Result<Box<dyn Read>> {
    let mut file = BufReader::new(File::open(path).with_context(|| path.display().to_string())?);
    let mut magic = [0; 2];
    let n = file.read(&mut magic)?;
    let whole = Cursor::new(magic[..n].to_vec()).chain(file);
    Ok(if magic == [0x1f, 0x8b] { Box::new(flate2::read::MultiGzDecoder::new(whole)) } else { Box::new(whole) })
}

/// One thread reads, another encodes. Batches are small, and few wait: an export must fit next to a training.
fn from_files(paths: &[PathBuf], exporter: &mut Exporter) -> anyhow::Result<()> {
    let options = &ImportOptions { batch_rows: 4096, tokens: false, ..super::import::options(None) };
    for path in paths {
        let source = import::open(path).with_context(|| path.display().to_string())?;
        let imported = std::thread::scope(|scope| -> anyhow::Result<Imported> {
            let (to, from) = std::sync::mpsc::sync_channel(2);
            let reader = scope.spawn(move || {
                // The receiver stopped because of its own error, and that one is reported.
                let gone = |_| ImportError::Sink("the export stopped".into());
                source.read(options, &mut |table, batch| to.send((table, batch)).map_err(gone))
            });
            for (table, batch) in from {
                match table {
                    Table::Spans => exporter.spans(&batch)?,
                    Table::Metrics => exporter.metrics(&batch),
                    Table::Series => exporter.series(&batch),
                    _ => {}
                }
            }
            let read = reader.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
            read.with_context(|| path.display().to_string())
        })?;
        if imported.rejected > 0 {
            eprintln!("rollscope: {}: {} rejected", path.display(), count(imported.rejected));
        }
        for reason in &imported.reasons {
            eprintln!("rollscope: {}: {reason}", path.display());
        }
    }
    Ok(())
}

async fn from_store(args: &ExportPerfettoArgs, exporter: &mut Exporter) -> anyhow::Result<()> {
    let store = place::open_for_reading(&args.folder.data).await?;
    let limits =
        QueryLimits { max_rows: usize::MAX, timeout: Duration::from_secs(24 * 3600), ..QueryLimits::default() };
    let engine = Engine::new(Arc::new(store), limits)?;
    let columns = |table: Table| -> String {
        let names: Vec<String> = table.schema().fields().iter().map(|f| format!("\"{}\"", f.name())).collect();
        names.join(", ")
    };
    let run = match &args.run {
        Some(run) => Some(engine.find_run(run).await.map_err(super::answers::usage)?),
        None => None,
    };
    let of_run = run.as_deref().map(|run| format!("run_id = {}", sql_text(run)));
    let members = match (&run, args.step) {
        (Some(run), Some(step)) => Some(engine.members_of_step(run, step).await?),
        (Some(run), None) => Some(engine.members_of_run(run).await?),
        (None, _) => None,
    };
    let filter = members.as_ref().map_or("true", |members| members.filter.as_str());
    let sql = format!("select {} from spans where {filter}", columns(Table::Spans));
    let (mut first, mut last, mut rows) = (i64::MAX, i64::MIN, 0);
    let mut running = engine.sql(&sql).await?;
    while let Some(batch) = running.stream.next().await {
        let batch = match &members {
            Some(members) => members.keep(&batch?)?,
            None => batch?,
        };
        rows += batch.num_rows();
        if let Some((low, high)) = range(&batch) {
            first = first.min(low);
            last = last.max(high);
        }
        exporter.spans(&batch)?;
    }
    if rows == 0 {
        match (&args.run, args.step) {
            (Some(run), Some(step)) => anyhow::bail!("run {run:?} has no spans in step {step}"),
            (Some(run), None) => anyhow::bail!("run {run:?} has no spans in {}", args.folder.data.display()),
            _ => anyhow::bail!("{} has no spans", args.folder.data.display()),
        }
    }
    // Counters of the time that the spans cover; serving series may sit in another run.
    let during = format!("time_ns between {first} and {last}");
    let metrics = columns(Table::Metrics);
    let sql = format!("select {metrics} from metrics where {} and {during}", of_run.as_deref().unwrap_or("true"));
    let mut running = engine.sql(&sql).await?;
    while let Some(batch) = running.stream.next().await {
        exporter.metrics(&batch?);
    }
    let series = columns(Table::Series);
    let mut running = engine.sql(&format!("select {series} from series where {during}")).await?;
    while let Some(batch) = running.stream.next().await {
        exporter.series(&batch?);
    }
    Ok(())
}

/// The first start and the last end of a batch.
fn range(batch: &arrow::array::RecordBatch) -> Option<(i64, i64)> {
    use arrow::array::AsArray;
    use arrow::compute::{max, min};
    use arrow::datatypes::Int64Type;
    let column = |name| batch.column_by_name(name).map(|c| c.as_primitive::<Int64Type>());
    let (start, end) = (column("start_ns")?, column("end_ns")?);
    let (first, last) = (min(start)?, max(start)?);
    Some((first, max(end).unwrap_or(last).max(last)))
}

fn write(args: &ExportPerfettoArgs, exporter: Exporter, out: &Path) -> anyhow::Result<Written> {
    let mut profile = match (args.format, &args.torch_file) {
        (TraceFormat::Chrome, Some(path)) => Some(open_plain(path)?),
        _ => None,
    };
    let profile = profile.as_mut().map(|p| &mut **p as &mut dyn Read);
    if out.as_os_str() == "-" {
        return Ok(exporter.finish(&mut stdout(), profile)?);
    }
    atomically(out, |mut file| {
        let written = exporter.finish(&mut file, profile)?;
        file.flush()?;
        Ok::<_, ImportError>(written)
    })
    .with_context(|| out.display().to_string())
}

fn report(written: &Written, out: &Path) {
    let mut parts = vec![format!("{} spans", count(written.slices + written.instants))];
    for (n, what) in [
        (written.events, "events"),
        (written.flows, "arrows"),
        (written.counters, "counter values"),
        (written.merged, "profile events"),
        (written.duplicates, "duplicate spans left out"),
        (written.parents_missing, "spans without their parent"),
        (written.links_elsewhere, "links to missing spans"),
        (written.values_left_out, "values left out that are not numbers"),
    ] {
        if n > 0 {
            parts.push(format!("{} {what}", count(n)));
        }
    }
    eprintln!("{}: {}", out.display(), parts.join(", "));
    if out.as_os_str() != "-" {
        eprintln!("open it at https://ui.perfetto.dev (the file stays on your machine)");
    }
}
