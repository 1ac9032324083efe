//! `rollscope view`: a dump or an OTLP file, opened without Python. Says what is in it, writes the cache of slime's own
//! viewer and a page that opens from disk, and serves the whole of it from a store that lasts as long as the command.

use std::io::{BufWriter, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Instant, UNIX_EPOCH};

use anyhow::Context;
use rollscope_formats::export::html::{Page, Window};
use rollscope_formats::export::{atomically, slime_cache};
use rollscope_formats::import::slime_pt::{Dump, SlimeDump, Summary};
use rollscope_formats::import::{self, ImportError, ImportOptions, Importer};
use rollscope_model::time::now_ns;
use rollscope_store::Store;
use serde::{Deserialize, Serialize};

use super::export_html::{self, MAX_SPANS, generator, template};
use super::{files, import as importing, serve};
use crate::args::{CacheFormat, ServeArgs, ViewArgs};
use crate::config::Config;
use crate::output::{count, size};
use crate::progress::{Bar, Spinner};

const CACHE: &str = "trace_timeline_cache.json";
const PAGE: &str = "trace_timeline_viewer.html";
const STAMP: &str = "<!-- rollscope view ";

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
    let mut config = Config::resolve(&ServeArgs::default())?;
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
    only: Option<&Found>,
) -> anyhow::Result<()> {
    let port = args.port.unwrap_or(7200);
    config.server.listen = format!("127.0.0.1:{port}");
    config.server.otlp_grpc.clear();
    config.server.otlp_http.clear();
    serve::start_quiet_logs();
    let (store, server) = match serve::start(&config).await {
        // The user did not choose this port, so any other will do.
        Err(e) if args.port.is_none() && e.to_string().contains("in use") => {
            config.server.listen = "127.0.0.1:0".into();
            serve::start(&config).await?
        }
        started => started?,
    };
    import_others(&store, args, others).await?;
    let options = ImportOptions { run: args.run.clone(), ..ImportOptions::default() };
    let mut runs = importing::Runs::default();
    // The first dump before the address is printed, so that the page has something to show; the others follow live.
    let (first, rest) = dumps.split_at(dumps.len().min(1));
    for dump in first {
        importing::file(&store, dump, &options, &mut runs).await.with_context(|| dump.display().to_string())?;
    }
    runs.write(&store).await?;
    let Some(address) = server.addresses().page else { anyhow::bail!("the page is not served") };
    let url = match runs.first() {
        Some(run) => format!("http://{address}/#/run/{}{}", encoded(run), only.map_or_else(String::new, timeline_of)),
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
fn timeline_of(found: &Found) -> String {
    found.step.map_or_else(|| "/timeline".into(), |step| format!("/timeline?step={step}"))
}

/// As `encodeURIComponent` does it.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Files other than dumps have no cache, and their page is written from the store.
async fn import_others(store: &Store, args: &ViewArgs, others: &[PathBuf]) -> anyhow::Result<()> {
    if others.is_empty() {
        return Ok(());
    }
    let options = ImportOptions { run: args.run.clone(), ..ImportOptions::default() };
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

/// Where a file about this dump goes.
fn beside(dump: &Path, args: &ViewArgs, ending: &str) -> PathBuf {
    let name = dump.file_stem().map_or_else(|| "rollout".into(), |s| s.to_string_lossy().into_owned());
    let folder = args.out.clone().or_else(|| dump.parent().map(Path::to_path_buf)).unwrap_or_default();
    folder.join(format!("{name}.{ending}"))
}

/// The last line of a page: what it was made from, and what was found, so that an unchanged dump need not be read again.
#[derive(Serialize, Deserialize, PartialEq, Clone)]
struct Stamp {
    generator: String,
    /// Length and time of each dump.
    dumps: Vec<(u64, u64)>,
    run: String,
    #[serde(default)]
    found: Found,
}

#[derive(Serialize, Deserialize, PartialEq, Clone, Default)]
struct Found {
    samples: u64,
    rows: u64,
    closed: u64,
    open: u64,
    instants: u64,
    orphans: u64,
    attempts: i64,
    skipped: u64,
    start: Option<f64>,
    end: Option<f64>,
    step: Option<i64>,
    eval: bool,
}

impl From<Summary> for Found {
    fn from(s: Summary) -> Found {
        Found {
            samples: s.samples,
            rows: s.rows,
            closed: s.closed,
            open: s.open,
            instants: s.instants,
            orphans: s.orphans,
            attempts: s.attempts,
            skipped: s.skipped,
            start: s.start,
            end: s.end,
            step: s.step,
            eval: s.split == "eval",
        }
    }
}

impl Stamp {
    fn of(dumps: &[PathBuf], run: &str) -> anyhow::Result<Stamp> {
        let dumps = dumps.iter().map(|d| identity(d)).collect::<anyhow::Result<_>>()?;
        Ok(Stamp { generator: generator(), dumps, run: run.to_string(), found: Found::default() })
    }

    /// What the page was made from, as recorded in the page.
    fn read(page: &Path) -> Option<Stamp> {
        let mut file = std::fs::File::open(page).ok()?;
        let length = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(64 << 10))).ok()?;
        let mut end = Vec::new();
        file.read_to_end(&mut end).ok()?;
        let end = String::from_utf8_lossy(&end);
        let (_, stamp) = end.rsplit_once(STAMP)?;
        serde_json::from_str(stamp.trim_end().strip_suffix("-->")?).ok()
    }

    /// As a comment: a `-` in text is written as JSON may, so nothing can end it early.
    fn line(&self) -> anyhow::Result<String> {
        let json = serde_json::to_value(self)?.to_string();
        let mut safe = String::with_capacity(json.len());
        let mut in_text = false;
        let mut before = ' ';
        for c in json.chars() {
            if c == '"' && before != '\\' {
                in_text = !in_text;
            }
            match c {
                '-' | '<' | '>' if in_text => safe.push_str(&format!("\\u{:04x}", c as u32)),
                c => safe.push(c),
            }
            before = if before == '\\' && c == '\\' { ' ' } else { c };
        }
        Ok(format!("\n{STAMP}{safe} -->\n"))
    }

    fn same_input(&self, other: &Stamp) -> bool {
        (&self.generator, &self.dumps, &self.run) == (&other.generator, &other.dumps, &other.run)
    }
}

/// Length, and nanoseconds of the last change.
fn identity(file: &Path) -> anyhow::Result<(u64, u64)> {
    let about = std::fs::metadata(file).with_context(|| file.display().to_string())?;
    let changed = about.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
    Ok((about.len(), changed.map_or(0, |d| d.as_nanos() as u64)))
}

/// The name of the run: the folder the dumps lie in.
fn run_of(dump: &Path, args: &ViewArgs) -> String {
    args.run.clone().unwrap_or_else(|| import::slime_pt::default_run(dump))
}

/// Returns what is in each.
fn write_dumps(args: &ViewArgs, dumps: &[PathBuf]) -> anyhow::Result<Vec<Found>> {
    let mut all = Vec::with_capacity(dumps.len());
    if dumps.is_empty() {
        return Ok(all);
    }
    let many = dumps.len() > 1;
    let joint = many.then(|| {
        let folder = args.out.clone().or_else(|| dumps[0].parent().map(Path::to_path_buf)).unwrap_or_default();
        folder.join(format!("{}.{PAGE}", run_of(&dumps[0], args).replace(['/', '\\'], "_")))
    });
    let joint_stamp = Stamp::of(dumps, &run_of(&dumps[0], args))?;
    let fresh = |page: &Path, stamp: &Stamp| !args.rebuild && Stamp::read(page).is_some_and(|s| s.same_input(stamp));
    // The joint page is made of all dumps: if it must be made, all are read.
    let joint_fresh = joint.as_ref().is_none_or(|page| fresh(page, &joint_stamp));
    let mut together = match &joint {
        Some(path) if !joint_fresh => Some(Pending::begin(path)?),
        _ => None,
    };
    for dump in dumps {
        let page = beside(dump, args, PAGE);
        let cache = (args.cache_format == CacheFormat::Slime).then(|| beside(dump, args, CACHE));
        let stamp = Stamp::of(std::slice::from_ref(dump), &run_of(dump, args))?;
        let cached = cache.as_ref().is_none_or(|c| newer(c, dump));
        if joint_fresh && cached && fresh(&page, &stamp) {
            let found = Stamp::read(&page).map(|s| s.found).unwrap_or_default();
            describe(dump, &found, stamp.dumps[0].0, None);
            all.push(found);
        } else {
            let started = Instant::now();
            let spinner = Spinner::start(&format!("reading {}", dump.display()));
            let read = Dump::open(dump).map_err(|e| named(dump, e))?;
            drop(spinner);
            let passes = 2 + u64::from(cache.is_some());
            let done = read.progress();
            let bar =
                Bar::over(&format!("writing {}", page.display()), read.samples().len() as u64 * passes, move || {
                    done.load(Ordering::Relaxed)
                });
            let found = Found::from(read.summary());
            let written = write_one(
                &read,
                args,
                cache.as_deref(),
                &page,
                Stamp { found: found.clone(), ..stamp.clone() },
                together.as_mut(),
            );
            drop(bar);
            describe(dump, &found, stamp.dumps[0].0, Some(started));
            all.push(found);
            if let Err(e) = written {
                kept(args, &page, Err(e))?;
                continue;
            }
        }
        if let Some(cache) = &cache {
            println!("  cache  {}", cache.display());
        }
        println!("  page   {}", page.display());
    }
    if let (Some(path), Some(together)) = (&joint, together) {
        together.finish(&joint_stamp)?;
        println!("{} dumps as one run\n  page   {}", dumps.len(), path.display());
    } else if let Some(path) = &joint {
        println!("{} dumps as one run (up to date)\n  page   {}", dumps.len(), path.display());
    }
    Ok(all)
}

/// Whether a cache was written after its dump.
fn newer(cache: &Path, dump: &Path) -> bool {
    let time = |p: &Path| std::fs::metadata(p).and_then(|m| m.modified()).ok();
    time(cache).zip(time(dump)).is_some_and(|(c, d)| c >= d)
}

/// A page of many dumps. It is written to a temporary file and moved into place when it is complete.
struct Pending {
    page: Page,
    partial: tempfile::TempPath,
    target: PathBuf,
    left_out: u64,
}

impl Pending {
    fn begin(target: &Path) -> anyhow::Result<Pending> {
        let folder = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::Builder::new().prefix(".rollscope-").suffix(".partial").tempfile_in(folder);
        let (file, partial) = file
            .with_context(|| {
                format!("{}: cannot write this file; choose another folder with --out DIR", target.display())
            })?
            .into_parts();
        let page = Page::begin(Box::new(BufWriter::with_capacity(1 << 20, file)), &template()?, &generator())?;
        Ok(Pending { page, partial, target: target.to_path_buf(), left_out: 0 })
    }

    fn finish(mut self, stamp: &Stamp) -> anyhow::Result<()> {
        if self.left_out > 0 {
            self.page
                .note(format!("{} dumps were left out to keep this file small; each has its own page", self.left_out));
        }
        self.page.finish(&stamp.line()?)?;
        // Only the owner can read a temporary file, but this one is a document.
        set_readable(&self.partial);
        self.partial.persist(&self.target).with_context(|| self.target.display().to_string())?;
        Ok(())
    }
}

#[cfg(unix)]
fn set_readable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644));
}

#[cfg(not(unix))]
fn set_readable(_path: &Path) {}

fn write_one(
    dump: &Dump,
    args: &ViewArgs,
    cache: Option<&Path>,
    page: &Path,
    stamp: Stamp,
    together: Option<&mut Pending>,
) -> anyhow::Result<()> {
    // In parallel: while one waits for the disk, the other works.
    std::thread::scope(|scope| {
        let cache = cache.map(|file| {
            scope.spawn(move || {
                let now = now_ns() as f64 / 1e9;
                slime_cache::write_file(dump, file, now).with_context(|| file.display().to_string())
            })
        });
        let page = write_page(dump, args, page, stamp, together);
        let cache = cache.map_or(Ok(()), |c| c.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        cache.and(page)
    })
}

fn write_page(
    dump: &Dump,
    args: &ViewArgs,
    page: &Path,
    stamp: Stamp,
    mut together: Option<&mut Pending>,
) -> anyhow::Result<()> {
    let run = run_of(dump.path(), args);
    let options = ImportOptions { run: Some(run.clone()), ..ImportOptions::default() };
    atomically(page, |file| -> anyhow::Result<()> {
        let out = Box::new(BufWriter::with_capacity(1 << 20, file));
        let mut own = Page::begin(out, &template()?, &generator())?;
        let mut pages = vec![&mut own];
        if let Some(joint) = together.as_mut() {
            if joint.page.spans() <= MAX_SPANS { pages.push(&mut joint.page) } else { joint.left_out += 1 }
        }
        let mut window = Window::begin(pages, &run, dump.step());
        dump.batches(&options, &mut |table, batch| Ok(window.push(table, batch)?))?;
        window.finish()?;
        Ok(own.finish(&stamp.line()?)?)
    })
    .with_context(|| page.display().to_string())
}

/// Prints what was found on one line.
fn describe(dump: &Path, found: &Found, bytes: u64, started: Option<Instant>) {
    let mut parts = Vec::new();
    if let Some(step) = found.step {
        parts.push(format!("{} {step}", if found.eval { "evaluation at step" } else { "step" }));
    }
    parts.push(format!("{} samples", count(found.samples)));
    if found.rows < found.samples {
        parts.push(format!("{} without a trace", count(found.samples - found.rows)));
    }
    parts.push(format!("{} spans ({} open)", count(found.closed + found.open), count(found.open)));
    parts.push(format!("{} instants", count(found.instants)));
    if found.orphans > 0 {
        parts.push(format!("{} orphan ends", count(found.orphans)));
    }
    if found.skipped > 0 {
        parts.push(format!("{} events without a time (left out)", count(found.skipped)));
    }
    parts.push(format!("{} attempt{}", found.attempts, if found.attempts == 1 { "" } else { "s" }));
    if let (Some(start), Some(end)) = (found.start, found.end) {
        parts.push(format!("{} for {:.1} s", date(start), end - start));
    }
    parts.push(size(bytes));
    parts.push(match started {
        Some(started) => format!("{:.2} s", started.elapsed().as_secs_f64()),
        None => "up to date".into(),
    });
    println!("{}: {}", dump.display(), parts.join(", "));
}

/// Seconds since the epoch as a readable date in UTC.
fn date(seconds: f64) -> String {
    let days = (seconds / 86_400.0).floor();
    if !days.is_finite() || days.abs() > 1e7 {
        return format!("{seconds} s since 1970");
    }
    let left = (seconds - days * 86_400.0) as u64;
    // Civil date from days, after Howard Hinnant.
    let z = days as i64 + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let part = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * part + 2) / 5 + 1, if part < 10 { part + 3 } else { part - 9 });
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", left / 3600, left / 60 % 60, left % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0.0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(1_788_185_045.5), "2026-08-31 14:04:05 UTC");
        assert_eq!(date(951_782_400.0), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(-1.0), "1969-12-31 23:59:59 UTC");
    }

    #[test]
    fn a_stamp_is_read_back_and_cannot_end_its_comment() {
        let stamp = Stamp {
            generator: "x".into(),
            dumps: vec![(1, 2)],
            run: "a --> <script> \\\" - b".into(),
            found: Found { start: Some(-1.5), ..Found::default() },
        };
        let line = stamp.line().unwrap();
        assert_eq!(line.matches("-->").count(), 1);
        assert!(!line.contains("<script"));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("<html>{line}")).unwrap();
        assert!(Stamp::read(file.path()).unwrap() == stamp);
    }
}
