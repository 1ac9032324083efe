//! Tokens: how fast a trainer gets rid of them and how much room they take, beside pyarrow writing the same columns in the same
//! process; how fast one sample is read, and how long it takes to say whether trainer and engine agree.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::report::{Report, thousands};
use crate::server::{Server, size};

const TOKENS: usize = 8000;
const STEPS: usize = 10;
/// For ten million tokens, and for one sample.
const SENT_LIMIT_S: f64 = 5.0;
const SAMPLE_LIMIT_S: f64 = 0.05;

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let samples = if crate::full() { 1250 } else { 250 };
    let tokens = (samples * TOKENS) as f64;
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Server::start(&data)?;
    let python = std::env::var("ROLLSCOPE_PYTHON").unwrap_or_else(|_| ".venv/bin/python".into());
    let output = Command::new(&python)
        .arg("python/bench/tokens.py")
        .args([samples, TOKENS, STEPS].map(|n| n.to_string()))
        .arg(folder.path())
        .env("ROLLSCOPE_ENDPOINT", &server.grpc)
        .output()
        .context(python)?;
    ensure!(output.status.success(), "python/bench/tokens.py: {}", String::from_utf8_lossy(&output.stderr));
    let figures: Value = serde_json::from_slice(&output.stdout)?;
    let figure = |name: &str| figures[name].as_f64().with_context(|| format!("no figure `{name}`"));
    // Stopping flushes what is in memory, and the next start deletes what was replaced.
    server.stop()?;
    let server = Server::start(&data)?;
    let found = server.sql("select sum(count) from tokens")?["rows"][0][0].as_f64().unwrap_or(0.0);
    ensure!(found == tokens, "{found} of {tokens} tokens arrived");

    let of = |ten_million: f64| ten_million * 1e7 / tokens;
    let sent = figure("sent_s")?;
    report.row(
        "tokens, logged until acknowledged, seconds per ten million",
        format!("{:.2}", of(sent)),
        "the limit",
        format!("{SENT_LIMIT_S}"),
        of(sent) / SENT_LIMIT_S,
        "< 1",
    );
    report.row(
        "tokens/s, logged until acknowledged",
        thousands(tokens / sent),
        "pyarrow writing them to Parquet",
        thousands(tokens / figure("written_s")?),
        figure("written_s")? / sent,
        "",
    );
    let (ours, theirs) = (size(&data.join("tokens"))? as f64 / tokens, figure("bytes")? / tokens);
    report.row(
        "bytes per token: id and two log-probs",
        format!("{ours:.2}"),
        "pyarrow, the numbers as they came",
        format!("{theirs:.2}"),
        ours / theirs,
        "<= 6 bytes",
    );
    let mut times = Vec::new();
    for n in (0..samples).step_by(samples / 25) {
        let started = Instant::now();
        let read = server.get(&format!("/api/v1/runs/bench/tokens?sample=s{n}"))?;
        times.push(started.elapsed().as_secs_f64());
        ensure!(read.len() > 3 * 4 * TOKENS, "sample s{n} has {} bytes", read.len());
    }
    times.sort_by(f64::total_cmp);
    let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
    report.row(
        "reading one sample of 8,000 tokens",
        format!("{:.0} ms (longest {:.0})", median * 1e3, longest * 1e3),
        "the limit",
        format!("{:.0} ms", SAMPLE_LIMIT_S * 1e3),
        median / SAMPLE_LIMIT_S,
        "< 1",
    );
    let started = Instant::now();
    server.get("/api/v1/runs/bench/mismatch")?;
    let mismatch = of(started.elapsed().as_secs_f64());
    report.row(
        "do trainer and engine agree, seconds per ten million tokens, first",
        format!("{mismatch:.2}"),
        "pyarrow reading them",
        format!("{:.2}", of(figure("read_s")?)),
        mismatch / of(figure("read_s")?),
        "",
    );
    server.stop()
}
