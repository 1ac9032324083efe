//! `rollscope import`: files into a store.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use rollscope_formats::import::{self, ImportError, ImportOptions, Imported};
use rollscope_model::Table;
use rollscope_store::{Store, StoreOptions};

use crate::args::ImportArgs;
use crate::output::count;
use crate::progress;

pub async fn run(args: ImportArgs) -> anyhow::Result<()> {
    let store = Store::open(StoreOptions::at(&args.folder.data)).await?;
    let mut result = import_all(&store, &args).await;
    if result.is_ok() {
        // A dump that was read to its end is a step that is complete.
        result = super::metrics::work_out(&store).await;
    }
    store.close().await?;
    result
}

async fn import_all(store: &Store, args: &ImportArgs) -> anyhow::Result<()> {
    let options = ImportOptions { run: args.run.clone() };
    for path in &args.files {
        let started = Instant::now();
        let (imported, new, format) =
            import_file(store, path, &options).await.with_context(|| path.display().to_string())?;
        println!(
            "{}: {format}, {} rows, {} new, {} rejected, {:.2} s",
            path.display(),
            count(imported.rows),
            count(new),
            count(imported.rejected),
            started.elapsed().as_secs_f64()
        );
        for reason in &imported.reasons {
            println!("  rejected: {reason}");
        }
    }
    Ok(())
}

/// Reading and decoding on a thread of its own, appending here; a few batches may wait between them.
async fn import_file(
    store: &Store,
    path: &Path,
    options: &ImportOptions,
) -> anyhow::Result<(Imported, u64, &'static str)> {
    let source = import::open(path)?;
    let format = source.format();
    let bar = progress::bytes(&format!("reading {}", path.display()), source.size(), source.progress());
    let (send, mut batches) = tokio::sync::mpsc::channel(4);
    let options = options.clone();
    let reader = tokio::task::spawn_blocking(move || {
        source.read(&options, &mut |table, batch| {
            send.blocking_send((table, batch)).map_err(|_| ImportError::Sink("the store stopped".into()))
        })
    });
    let mut new = 0;
    while let Some((table, batch)) = batches.recv().await {
        let appended = store.append(table, batch).await?;
        // That the run is known is not news for the person who imports.
        new += if table == Table::Runs { 0 } else { appended.accepted };
    }
    let imported = reader.await.context("the reader")??;
    drop(bar);
    Ok((imported, new, format))
}
