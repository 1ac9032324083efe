//! `rollscope import`: files into a store.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use arrow::array::RecordBatch;
use futures::StreamExt;
use rollscope_app::intake;
use rollscope_formats::import::{self, ForeignBatches, ImportError, ImportOptions, Imported};
use rollscope_model::Table;
use rollscope_model::build::{NewRun, RunsBuilder};
use rollscope_model::read;
use rollscope_query::sql_text;
use rollscope_store::{Store, StoreError, StoreOptions};

use super::export_html::engine;
use super::files;
use crate::args::ImportArgs;
use crate::output::count;
use crate::{place, progress};

pub async fn run(args: ImportArgs) -> anyhow::Result<()> {
    if args.watch {
        return super::watch::run(args).await;
    }
    let files = files::expand(&args.files)?;
    let store = open(&args.folder.data).await?;
    let mut runs = Runs::default();
    let result = import_all(&store, &files, &options(args.run.clone()), &mut runs).await;
    // What was imported beside a failure is in the store: its runs should be, too, and its metrics.
    let mut written = runs.write(&store).await;
    if written.is_ok() {
        // A dump that was read to its end is a step that is complete.
        written = super::metrics::work_out(&store, true).await;
    }
    store.close().await?;
    result.and(written)
}

/// The store, which a server may be using.
pub async fn open(data: &Path) -> anyhow::Result<Store> {
    let options = StoreOptions::at(
        place::lake_url(data).map_or_else(|| data.to_path_buf(), |url| place::cache_of(url).join("import")),
    );
    // Beside servers of the same machine, which have its name.
    let node = format!("import-{}-{}", place::host_name(), std::process::id());
    place::open(data, options, Some(&node)).await.map_err(|e| match e.downcast_ref() {
        Some(StoreError::Locked { .. }) => {
            anyhow::anyhow!("{e}. A server imports by itself what it is started with: rollscope serve --watch PATH")
        }
        _ => e,
    })
}

/// How files are read, all of them into `run` if one is named.
pub fn options(run: Option<String>) -> ImportOptions {
    ImportOptions { run, parquet, ..ImportOptions::default() }
}

fn parquet(file: std::fs::File) -> Result<ForeignBatches, ImportError> {
    let unreadable = |e: StoreError| ImportError::Malformed(e.to_string());
    let batches = rollscope_store::read_parquet(file).map_err(unreadable)?;
    Ok(Box::new(batches.map(move |batch| batch.map_err(unreadable))))
}

/// A file that cannot be read does not keep the others from being imported.
async fn import_all(
    store: &Store,
    files: &[std::path::PathBuf],
    options: &ImportOptions,
    runs: &mut Runs,
) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for path in files {
        let started = Instant::now();
        let (imported, new, format) = match file(store, path, options, runs).await {
            Ok(done) => done,
            Err(e) => {
                failed.push(e.context(path.display().to_string()));
                continue;
            }
        };
        report(path, format, &imported, new, started);
    }
    let Some(last) = failed.pop() else { return Ok(()) };
    for error in &failed {
        eprintln!("rollscope: {error:#}");
    }
    Err(last)
}

pub fn report(path: &Path, format: &str, imported: &Imported, new: u64, started: Instant) {
    println!(
        "{}: {format}, {} rows, {} new spans, {} rejected, {:.2} s",
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

/// Imports one file. A thread reads and decodes, and this task appends. A few batches may wait between them. Rows of
/// `runs` are gathered, not written: one run may come in many files.
pub async fn file(
    store: &Store,
    path: &Path,
    options: &ImportOptions,
    runs: &mut Runs,
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
    let (mut left_out, mut why) = (0, Vec::new());
    while let Some((table, batch)) = batches.recv().await {
        if table == Table::Runs {
            runs.widen(&batch)?;
        } else {
            // The deletion of a run must not come between an image and the conversation that has it.
            let _held = store.hold_runs().await;
            let appended = intake::append(store, table, batch).await?;
            left_out += appended.rejected;
            if why.is_empty() {
                why = appended.reasons;
            }
            // Rows of other tables replace what was there, so whether they are new is not known here.
            new += if table == Table::Spans { appended.accepted } else { 0 };
        }
    }
    let mut imported = reader.await.context("the reader failed")??;
    imported.rejected += left_out;
    imported.reasons.extend(why);
    drop(bar);
    Ok((imported, new, format))
}

/// The runs that the files name, each from its first time in any file to its last.
#[derive(Default)]
pub struct Runs {
    found: BTreeMap<String, KnownRun>,
}

const NO_TAGS: &str = "[]";

#[derive(Clone, Default, PartialEq)]
struct KnownRun {
    project: Option<String>,
    name: Option<String>,
    framework: Option<String>,
    config: Option<String>,
    tags: Option<String>,
    status: Option<String>,
    started_ns: i64,
    ended_ns: Option<i64>,
    updated_ns: i64,
}

impl KnownRun {
    /// `other` knows better what it knows at all; the times are those of both.
    fn join(&mut self, other: KnownRun) {
        let newer = |old: &mut Option<String>, new: Option<String>| {
            if new.is_some() {
                *old = new;
            }
        };
        newer(&mut self.project, other.project);
        newer(&mut self.name, other.name);
        newer(&mut self.framework, other.framework);
        newer(&mut self.config, other.config);
        // An import that says nothing of tags keeps those that somebody gave the run.
        let has_tags = self.tags.is_some();
        newer(&mut self.tags, other.tags.filter(|tags| !has_tags || tags != NO_TAGS));
        newer(&mut self.status, other.status);
        self.started_ns = self.started_ns.min(other.started_ns);
        self.ended_ns = self.ended_ns.into_iter().chain(other.ended_ns).max();
        self.updated_ns = self.updated_ns.max(other.updated_ns);
    }
}

fn read_runs(batch: &RecordBatch) -> anyhow::Result<Vec<(String, KnownRun)>> {
    let rows = read::Runs::of(batch)?;
    let known = |row: usize| {
        let text = |column: &read::Text| column.get(row).map(str::to_string);
        KnownRun {
            project: text(&rows.project),
            name: text(&rows.name),
            framework: text(&rows.framework),
            config: text(&rows.config),
            tags: text(&rows.tags),
            status: text(&rows.status),
            started_ns: rows.started_ns.get(row).unwrap_or_default(),
            ended_ns: rows.ended_ns.get(row),
            updated_ns: rows.updated_ns.get(row).unwrap_or_default(),
        }
    };
    Ok((0..rows.len()).map(|row| (rows.run_id.at(row).to_string(), known(row))).collect())
}

impl Runs {
    fn widen(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        for (run, known) in read_runs(batch)? {
            match self.found.get_mut(&run) {
                Some(before) => before.join(known),
                None => {
                    self.found.insert(run, known);
                }
            }
        }
        Ok(())
    }

    /// Any of the runs.
    pub fn first(&self) -> Option<&str> {
        self.found.keys().next().map(String::as_str)
    }

    /// Writes what the store does not know yet.
    pub async fn write(&self, store: &Store) -> anyhow::Result<()> {
        if self.found.is_empty() {
            return Ok(());
        }
        let _held = store.hold_runs().await;
        let names: Vec<String> = self.found.keys().map(|r| sql_text(r)).collect();
        let mut before: BTreeMap<String, KnownRun> = BTreeMap::new();
        let engine = engine(store.clone())?;
        let mut running = engine.sql(&format!("select * from runs where run_id in ({})", names.join(", "))).await?;
        while let Some(batch) = running.stream.next().await {
            before.extend(read_runs(&batch?)?);
        }
        let mut rows = RunsBuilder::default();
        let mut changed = 0;
        for (run, found) in &self.found {
            let mut whole = found.clone();
            if let Some(before) = before.get(run) {
                whole = before.clone();
                whole.join(found.clone());
                if whole == *before {
                    continue;
                }
                // The newest row counts.
                whole.updated_ns = whole.updated_ns.max(before.updated_ns.saturating_add(1));
            }
            rows.push(&NewRun {
                run_id: run,
                project: whole.project.as_deref(),
                name: whole.name.as_deref(),
                framework: whole.framework.as_deref(),
                config: whole.config.as_deref(),
                // Whoever imports a run says something of it: this is no guess of a server.
                tags: whole.tags.as_deref().or(Some(NO_TAGS)),
                started_ns: whole.started_ns,
                ended_ns: whole.ended_ns,
                status: whole.status.as_deref(),
                updated_ns: whole.updated_ns,
            });
            changed += 1;
        }
        if changed > 0 {
            store.append(Table::Runs, rows.finish()?).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_nothing_of_tags_keeps_them() {
        let run = |tags: Option<&str>| KnownRun { tags: tags.map(str::to_string), ..KnownRun::default() };
        for (before, imported, after) in [
            (Some(r#"["good"]"#), Some(NO_TAGS), Some(r#"["good"]"#)),
            (Some(r#"["good"]"#), None, Some(r#"["good"]"#)),
            (Some(r#"["good"]"#), Some(r#"["bad"]"#), Some(r#"["bad"]"#)),
            (None, Some(NO_TAGS), Some(NO_TAGS)),
        ] {
            let mut joined = run(before);
            joined.join(run(imported));
            assert_eq!(joined.tags.as_deref(), after, "{before:?} and {imported:?}");
        }
    }
}
