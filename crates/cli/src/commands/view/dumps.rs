//! The files about dumps: a page for each, one for all of them, and the cache of slime's viewer.

use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::Context;
use rollscope_formats::export::html::{Page, Window};
use rollscope_formats::export::{PendingFile, atomically, slime_cache};
use rollscope_formats::import::ImportOptions;
use rollscope_formats::import::slime_pt::{self, Dump};
use rollscope_model::time::now_ns;

use super::stamp::{DumpContents, Stamp};
use super::{PAGE, kept, named};
use crate::args::{CacheFormat, ViewArgs};
use crate::commands::export_html::{MAX_SPANS, generator, template};
use crate::output::{count, size};
use crate::progress::{Bar, Spinner};

const CACHE: &str = "trace_timeline_cache.json";

/// Where a file about this dump goes.
pub(super) fn beside(dump: &Path, args: &ViewArgs, ending: &str) -> PathBuf {
    let name = dump.file_stem().map_or_else(|| "rollout".into(), |s| s.to_string_lossy().into_owned());
    let folder = args.out.clone().or_else(|| dump.parent().map(Path::to_path_buf)).unwrap_or_default();
    folder.join(format!("{name}.{ending}"))
}

/// The name of the run: the folder the dumps lie in.
fn run_of(dump: &Path, args: &ViewArgs) -> String {
    args.run.clone().unwrap_or_else(|| slime_pt::default_run(dump))
}

/// Returns what is in each.
pub(super) fn write_dumps(args: &ViewArgs, dumps: &[PathBuf]) -> anyhow::Result<Vec<DumpContents>> {
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
    let fresh =
        |page: &Path, stamp: &Stamp| !args.rebuild && Stamp::read_from(page).is_some_and(|s| s.same_input(stamp));
    // The joint page is made of all dumps: if it must be made, all are read.
    let joint_fresh = joint.as_ref().is_none_or(|page| fresh(page, &joint_stamp));
    let mut together = match &joint {
        Some(path) if !joint_fresh => Some(JointPage::begin(path)?),
        _ => None,
    };
    for dump in dumps {
        let page = beside(dump, args, PAGE);
        let cache = (args.cache_format == CacheFormat::Slime).then(|| beside(dump, args, CACHE));
        let stamp = Stamp::of(std::slice::from_ref(dump), &run_of(dump, args))?;
        let cached = cache.as_ref().is_none_or(|c| newer(c, dump));
        if joint_fresh && cached && fresh(&page, &stamp) {
            let found = Stamp::read_from(&page).map(|s| s.found).unwrap_or_default();
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
            let found = DumpContents::from(read.summary());
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

/// A page of many dumps.
struct JointPage {
    page: Page,
    file: PendingFile,
    target: PathBuf,
    left_out: u64,
}

impl JointPage {
    fn begin(target: &Path) -> anyhow::Result<JointPage> {
        let file = PendingFile::create(target).with_context(|| {
            format!("{}: cannot write this file; choose another folder with --out DIR", target.display())
        })?;
        let out = Box::new(BufWriter::with_capacity(1 << 20, file.writer()?));
        Ok(JointPage {
            page: Page::begin(out, &template()?, &generator())?,
            file,
            target: target.to_path_buf(),
            left_out: 0,
        })
    }

    fn finish(mut self, stamp: &Stamp) -> anyhow::Result<()> {
        if self.left_out > 0 {
            self.page
                .note(format!("{} dumps were left out to keep this file small; each has its own page", self.left_out));
        }
        self.page.finish(&stamp.line()?)?;
        self.file.finish().with_context(|| self.target.display().to_string())
    }
}

fn write_one(
    dump: &Dump,
    args: &ViewArgs,
    cache: Option<&Path>,
    page: &Path,
    stamp: Stamp,
    together: Option<&mut JointPage>,
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
    mut together: Option<&mut JointPage>,
) -> anyhow::Result<()> {
    let run = run_of(dump.path(), args);
    let options = ImportOptions { run: Some(run.clone()), tokens: false, ..ImportOptions::default() };
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
fn describe(dump: &Path, found: &DumpContents, bytes: u64, started: Option<Instant>) {
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
    match chrono::DateTime::from_timestamp(seconds.floor() as i64, 0) {
        Some(date) if seconds.is_finite() => date.format("%Y-%m-%d %H:%M:%S UTC").to_string(),
        _ => format!("{seconds} s since 1970"),
    }
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
        assert_eq!(date(-0.5), "1969-12-31 23:59:59 UTC");
        assert_eq!(date(1e300), format!("{} s since 1970", 1e300));
        assert_eq!(date(f64::NAN), "NaN s since 1970");
    }
}
