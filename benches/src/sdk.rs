//! What the Python package costs the program that carries it. It measures itself, beside OpenTelemetry in the same process.

use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::report::Report;

/// Ours, theirs, and the aim: theirs takes so many times as long.
const BESIDE_OTEL: [(&str, &str, f64); 3] = [
    ("our span", "OpenTelemetry span", 35.0),
    ("our span, three by update", "OpenTelemetry span, three by set_attributes", 35.0),
    ("SGLang-shaped slice", "OpenTelemetry span", 35.0),
];
/// Of these, the plain Python that they cannot go below is the reference.
const BESIDE_PYTHON: [(&str, &str); 3] = [
    ("our event", "empty context manager"),
    ("slime-shaped span, group of 64", "the same, only its dicts"),
    ("async call, decorated", "async call, bare"),
];

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let python = std::env::var("ROLLSCOPE_PYTHON").unwrap_or_else(|_| ".venv/bin/python".into());
    let output = Command::new(&python).args(["python/bench/hot_path.py", "--json"]).output().with_context(|| python)?;
    ensure!(output.status.success(), "python/bench/hot_path.py: {}", String::from_utf8_lossy(&output.stderr));
    let figures: Value = serde_json::from_slice(&output.stdout)?;
    let us = |name: &str| figures[name].as_f64().map(|ns| ns / 1000.0).with_context(|| format!("no figure `{name}`"));
    let shown = |us: f64| format!("{us:.2} us");
    for (ours, theirs, times) in BESIDE_OTEL {
        let (ours_us, theirs_us) = (us(ours)?, us(theirs)?);
        report.row(ours, shown(ours_us), theirs, shown(theirs_us), theirs_us / ours_us, &format!(">= {times}"));
    }
    for (ours, theirs) in BESIDE_PYTHON {
        let (ours_us, theirs_us) = (us(ours)?, us(theirs)?);
        report.row(ours, shown(ours_us), theirs, shown(theirs_us), ours_us / theirs_us, "");
    }
    Ok(())
}
