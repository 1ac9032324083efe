//! The page in headless Chromium: a step of 8,192 samples and a million items, against what slime's page took on the same
//! kind of step.

use std::io::{BufWriter, Write};
use std::process::Command;

use anyhow::Context;
use rollscope_formats::testing::torch_writer::{Shape, write_dump};

use crate::report::Report;
use crate::server::{Server, binary, node};

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let (shape, size) =
        if std::env::var_os("SMALL").is_some() { (Shape::M, "130k items") } else { (Shape::L, "1.0M items") };
    let dir = tempfile::tempdir()?;
    let (dump, data) = (dir.path().join("rollout_0.pt"), dir.path().join("data"));
    write_dump(BufWriter::new(std::fs::File::create(&dump)?), &shape)?.flush()?;
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
    let mut row = |what: &str, ours: f64, against: f64, aim: &str| {
        report.row(
            &format!("page, {size}: {what}"),
            format!("{ours:.1}"),
            "slime's page",
            format!("{against:.0}"),
            ours / against,
            aim,
        );
    };
    row("click to first full picture, ms", number("/opened_ms/0")?, 7000.0, "<= 1000 ms");
    row("the same again, ms", number("/opened_ms/2")?, 7000.0, "<= 1000 ms");
    row("frame while moving, median ms", number("/frames/p50")?, 41.0, "<= 8 ms");
    row("frame while moving, p95 ms", number("/frames/p95")?, 60.0, "<= 16 ms");
    row("keystroke in the filter, median ms", number("/keystroke_ms/p50")?, 500.0, "<= 50 ms");
    row("heap, MB", number("/heap_mb")?, 816.0, "<= 150 MB");
    report.row(
        "page: first paint, ms",
        format!("{:.0}", number("/first_paint_ms")?),
        "aim",
        "500".into(),
        number("/first_paint_ms")? / 500.0,
        "<= 1",
    );
    server.stop()
}
