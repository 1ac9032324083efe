//! The page in headless Chromium: a step of 8,192 samples and a million items, against what slime's page took on the same
//! kind of step; with `FULL=1` one of ten million, which slime's page was not tried with.

use std::io::{BufWriter, Write};
use std::process::Command;

use anyhow::Context;
use rollscope_formats::testing::torch_writer::{Shape, write_dump};

use crate::report::Report;
use crate::server::{Server, binary, node};

/// Ten million items: spans of many turns with little text, in a dump of three gigabytes.
const HUGE: Shape =
    Shape { rollout_id: 0, samples: 16_384, spans: 620, prompt_tokens: 16, response_tokens: 32, response_bytes: 64 };

/// What is measured, where it stands in the figures, what slime's page took, and what is aimed at.
type Row = (&'static str, &'static str, Option<f64>, f64);

const MILLION: [Row; 6] = [
    ("click to first full picture, ms", "/opened_ms/0", Some(7000.0), 800.0),
    ("the same again, ms", "/opened_ms/2", Some(7000.0), 800.0),
    ("frame while moving, median ms", "/frames/p50", Some(41.0), 8.0),
    ("frame while moving, p95 ms", "/frames/p95", Some(60.0), 16.0),
    ("keystroke in the filter, median ms", "/keystroke_ms/p50", Some(500.0), 50.0),
    ("heap, MB", "/heap_mb", Some(816.0), 150.0),
];
const TEN_MILLION: [Row; 5] = [
    ("click to first full picture, ms", "/opened_ms/0", None, 2000.0),
    ("the same again, ms", "/opened_ms/2", None, 2000.0),
    ("frame while moving, p95 ms", "/frames/p95", None, 16.0),
    ("keystroke in the filter, median ms", "/keystroke_ms/p50", None, 50.0),
    ("heap, MB", "/heap_mb", None, 300.0),
];

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let small = std::env::var_os("SMALL").is_some();
    measure(report, if small { (&Shape::M, "130k items") } else { (&Shape::L, "1.0M items") }, &MILLION)?;
    if crate::full() {
        measure(report, (&HUGE, "10M items"), &TEN_MILLION)?;
    }
    Ok(())
}

fn measure(report: &mut Report, (shape, size): (&Shape, &str), rows: &[Row]) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (dump, data) = (dir.path().join("rollout_0.pt"), dir.path().join("data"));
    write_dump(BufWriter::new(std::fs::File::create(&dump)?), shape)?.flush()?;
    let status = Command::new(binary()).arg("import").arg(&dump).arg("--data").arg(&data).status()?;
    anyhow::ensure!(status.success(), "rollscope import failed");
    std::fs::remove_file(&dump)?;
    let server = Server::start(&data)?;
    let figures = node(&["scripts/bench.mjs", &server.page])?;
    println!("page: {figures}");
    let number = |path: &str| {
        let found = figures.pointer(path).and_then(serde_json::Value::as_f64);
        found.with_context(|| format!("the page's figures have no {path}"))
    };
    for (what, path, peer, aim) in rows {
        let ours = number(path)?;
        let (against, reference) = peer.map_or((*aim, "aim"), |peer| (peer, "slime's page"));
        let unit = if path.contains("heap") { "MB" } else { "ms" };
        report.row(
            &format!("page, {size}: {what}"),
            format!("{ours:.1}"),
            reference,
            format!("{against:.0}"),
            ours / against,
            &format!("<= {aim} {unit}"),
        );
    }
    let paint = number("/first_paint_ms")?;
    report.row(
        &format!("page, {size}: first paint, ms"),
        format!("{paint:.0}"),
        "aim",
        "500".into(),
        paint / 500.0,
        "<= 1",
    );
    let (_, peak) = server.memory()?;
    report.row(
        &format!("page, {size}: peak memory of the server, MB"),
        format!("{:.0}", peak as f64 / 1e6),
        "stated bound without queries",
        "2147".into(),
        peak as f64 / 2.147e9,
        "",
    );
    server.stop()
}
