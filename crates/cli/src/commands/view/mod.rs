//! `rollscope view`: a dump or an OTLP file, opened without Python. Says what is in it, writes the cache of slime's own
//! viewer and a page that opens from disk, and serves the whole of it from a store that lasts as long as the command.

mod dumps;
mod stamp;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use rollscope_formats::import::slime_pt::SlimeDump;
use rollscope_formats::import::{self, ImportError, Importer};
use rollscope_store::Store;

use dumps::{beside, write_dumps};
use stamp::DumpContents;

use super::{export_html, files, import as importing, serve};
use crate::args::{ServeArgs, ViewArgs};
use crate::config::Config;
use crate::output::count;
use crate::source::encode_path_part;

const PAGE: &str = "trace_timeline_viewer.html";

pub async fn run(args: ViewArgs) -> anyhow::Result<()> {
    let files = files::expand(&args.files)?;
    if let Some(out) = &args.out {
        std::fs::create_dir_all(out).with_context(|| format!("--out {}", out.display()))?;
    }
    let (mut dumps, mut others) = (Vec::new(), Vec::new());
    for file in files {
        let format = import::open(&file).map(|s| s.format()).map_err(|e| named(&file, e))?;
        if format == SlimeDump.name() { dumps.push(file) } else { others.push(file) }
    }
    let args = std::sync::Arc::new(args);
    // Reading blocks, so it runs on its own threads.
    let (worker_args, worker_dumps) = (args.clone(), dumps.clone());
    let found = tokio::task::spawn_blocking(move || write_dumps(&worker_args, &worker_dumps))
        .await
        .context("the reader failed")??;
    if others.is_empty() && args.no_serve {
        return Ok(());
    }
    let scratch = tempfile::Builder::new().prefix("rollscope-view-").tempdir()?;
    let mut config = Config::resolve(&ServeArgs { tokenizers: args.tokenizers.clone(), ..ServeArgs::default() })?;
    config.data = scratch.path().to_path_buf();
    config.store.dir = config.data.clone();
    if args.no_serve {
        let store = Store::open(config.store.clone()).await?;
        let done = import_others(&store, &args, &others).await;
        store.close().await?;
        return done;
    }
    // A single dump opens its timeline. With several files, the user chooses first.
    let only = found.first().filter(|_| dumps.len() == 1 && others.is_empty());
    show(&args, config, &dumps, &others, only).await
}

/// Serves dumps and other files from a store that is deleted when the command ends. `only` describes a single dump.
async fn show(
    args: &ViewArgs,
    mut config: Config,
    dumps: &[PathBuf],
    others: &[PathBuf],
    only: Option<&DumpContents>,
) -> anyhow::Result<()> {
    let port = args.port.unwrap_or(7200);
    config.server.listen = format!("127.0.0.1:{port}");
    config.server.otlp_grpc.clear();
    config.server.otlp_http.clear();
    serve::start_quiet_logs();
    let serve::Serving { store, server, worker: _worker } = match serve::start(&config).await {
        // The user did not choose this port, so any other will do.
        Err(e) if args.port.is_none() && e.to_string().contains("in use") => {
            config.server.listen = "127.0.0.1:0".into();
            serve::start(&config).await?
        }
        started => started?,
    };
    import_others(&store, args, others).await?;
    let options = importing::options(args.run.clone());
    let mut runs = importing::Runs::default();
    // The first dump before the address is printed, so that the page has something to show; the others follow live.
    let (first, rest) = dumps.split_at(dumps.len().min(1));
    for dump in first {
        importing::file(&store, dump, &options, &mut runs).await.with_context(|| dump.display().to_string())?;
    }
    runs.write(&store).await?;
    let Some(address) = server.addresses().page else { anyhow::bail!("the page is not served") };
    let url = match runs.first() {
        Some(run) => {
            format!("http://{address}/#/run/{}{}", encode_path_part(run), only.map_or_else(String::new, timeline_of))
        }
        None => format!("http://{address}/"),
    };
    let mut signals = serve::StopSignals::listen()?;
    println!("rollscope is at {url}");
    println!("press Ctrl-C to stop; the files are kept");
    if args.open && webbrowser::open(&url).is_err() {
        eprintln!("rollscope: cannot start a browser; open {url} yourself");
    }
    let import_rest = async {
        for dump in rest {
            if let Err(e) = importing::file(&store, dump, &options, &mut runs).await {
                eprintln!("rollscope: {}: {e:#}", dump.display());
            }
            runs.write(&store).await?;
        }
        std::future::pending::<anyhow::Result<()>>().await
    };
    tokio::select! {
        failed = import_rest => failed?,
        () = serve::until_told_to_stop(&mut signals, store.vitals(), &config.server.limits) => {}
    }
    serve::stop(store, server).await
}

/// The rest of the address of the timeline that shows this.
fn timeline_of(found: &DumpContents) -> String {
    found.step.map_or_else(|| "/timeline".into(), |step| format!("/timeline?step={step}"))
}

/// Files other than dumps have no cache, and their page is written from the store.
async fn import_others(store: &Store, args: &ViewArgs, others: &[PathBuf]) -> anyhow::Result<()> {
    if others.is_empty() {
        return Ok(());
    }
    let options = importing::options(args.run.clone());
    let mut runs = importing::Runs::default();
    let started = Instant::now();
    for file in others {
        let (imported, _, format) =
            importing::file(store, file, &options, &mut runs).await.with_context(|| file.display().to_string())?;
        println!(
            "{}: {format}, {} rows, {:.2} s",
            file.display(),
            count(imported.rows),
            started.elapsed().as_secs_f64()
        );
        for reason in &imported.reasons {
            println!("  left out: {reason}");
        }
    }
    runs.write(store).await?;
    let engine = export_html::engine(store.clone())?;
    let found = export_html::runs_to_show(&engine).await?;
    let found: Vec<(String, Vec<i64>)> = found.into_iter().map(|r| (r, Vec::new())).collect();
    let page = beside(&others[0], args, PAGE);
    let written = export_html::write(&engine, &found, &page).await;
    kept(args, &page, written.map(drop))
}

/// If a page or cache cannot be written, the data is still shown, unless `--no-serve` is set.
fn kept(args: &ViewArgs, file: &Path, written: anyhow::Result<()>) -> anyhow::Result<()> {
    match written {
        Ok(()) => {
            println!("  page   {}", file.display());
            Ok(())
        }
        Err(e) if args.no_serve => Err(e.context("cannot write the files; choose another folder with --out DIR")),
        Err(e) => {
            eprintln!("rollscope: {e:#}; choose another folder with --out DIR to keep the files");
            Ok(())
        }
    }
}

fn named(file: &Path, error: ImportError) -> anyhow::Error {
    let (file, text) = (file.display().to_string(), error.to_string());
    if text.contains(&file) { anyhow::anyhow!("{text}") } else { anyhow::anyhow!("{file}: {text}") }
}
