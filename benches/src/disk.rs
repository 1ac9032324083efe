//! Bytes on disk a span, after compaction.

use std::collections::HashSet;
use std::process::Command;

use arrow::array::cast::AsArray;
use arrow::array::{Array, RecordBatch};
use arrow::datatypes::Int64Type;
use rollscope_demo::{DemoOptions, Generator};
use rollscope_formats::export::otlp;
use rollscope_model::Table;
use rollscope_model::attrs;

use crate::report::Report;
use crate::server::binary;

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let (steps, samples) = (40u64, if crate::full() { 256 } else { 64 });
    let dir = tempfile::tempdir()?;
    let generate = Command::new(binary())
        .args(["demo", "--no-serve", "--steps", &steps.to_string(), "--samples", &samples.to_string(), "--data"])
        .arg(dir.path())
        .output()?;
    anyhow::ensure!(generate.status.success(), "{}", String::from_utf8_lossy(&generate.stderr));
    let compact = Command::new(binary()).arg("compact").arg("--data").arg(dir.path()).output()?;
    anyhow::ensure!(compact.status.success(), "{}", String::from_utf8_lossy(&compact.stderr));

    let mut generator = Generator::new(DemoOptions { steps, samples, conversations: false, ..DemoOptions::default() });
    let mut floor = Floor::default();
    let (mut spans, mut wire, mut json) = (0usize, 0usize, 0usize);
    for data in generator.steps() {
        let data = data?;
        let Some(batch) = data.batch(Table::Spans) else { continue };
        spans += batch.num_rows();
        wire += otlp::to_protobuf(batch).len();
        let mut line = Vec::new();
        otlp::write_json_line(batch, &mut line)?;
        json += line.len();
        floor.add(batch);
    }
    let ours = live_bytes(dir.path())? as f64 / spans as f64;
    let each = |bytes: usize| bytes as f64 / spans as f64;
    let floor = floor.bytes() / spans as f64;
    let say = |n: f64| format!("{n:.1}");
    report.row(
        "disk, bytes per span (demo)",
        say(ours),
        "OTLP JSON lines",
        say(each(json)),
        each(json) / ours,
        ">= 15 smaller",
    );
    report.row("disk, bytes per span (demo)", say(ours), "OTLP protobuf", say(each(wire)), each(wire) / ours, "");
    report.row(
        "disk, bytes per span (demo)",
        say(ours),
        "what cannot be compressed",
        say(floor),
        ours / floor,
        "<= 1.5",
    );
    Ok(())
}

/// Bytes of the segments of `spans` that the manifest lists.
fn live_bytes(dir: &std::path::Path) -> anyhow::Result<u64> {
    let manifest: serde_json::Value = serde_json::from_slice(&std::fs::read(dir.join("manifest.json"))?)?;
    let segments = manifest["segments"].as_array().cloned().unwrap_or_default();
    Ok(segments.iter().filter(|s| s["table"] == "spans").filter_map(|s| s["bytes"].as_u64()).sum())
}

/// What no compressor can take away: random ids once each (a parent or a link names an id that is there already), the
/// bits of the clock that are noise (the magnitude of each duration and of each step to the next start in a trace), and
/// the digits of measured numbers and random ids in attributes.
#[derive(Default)]
struct Floor {
    bits: f64,
    texts: HashSet<String>,
    traces: HashSet<Vec<u8>>,
}

impl Floor {
    fn add(&mut self, batch: &RecordBatch) {
        let traces = batch.column_by_name("trace_id").expect("a span column").as_fixed_size_binary();
        let time = |name: &str| batch.column_by_name(name).expect("a span column").as_primitive::<Int64Type>();
        let (starts, ends) = (time("start_ns"), time("end_ns"));
        let mut order: Vec<usize> = (0..batch.num_rows()).collect();
        order.sort_by_key(|i| (traces.value(*i), starts.value(*i)));
        let mut last = 0;
        let mut trace: &[u8] = &[];
        for i in order {
            self.bits += 64.0;
            if traces.value(i) != trace {
                trace = traces.value(i);
                if self.traces.insert(trace.to_vec()) {
                    self.bits += 128.0;
                }
                last = starts.value(i);
            }
            self.bits += noise((starts.value(i) - last) as f64);
            last = starts.value(i);
            if ends.is_valid(i) {
                self.bits += noise((ends.value(i) - starts.value(i)) as f64);
            }
        }
        for column in ["start_attrs", "end_attrs"] {
            let map = batch.column_by_name(column).expect("a span column").as_map();
            for text in map.values().as_string::<i32>().iter().flatten() {
                match attrs::type_of(text) {
                    attrs::Type::Double => {
                        let digits = text.bytes().filter(u8::is_ascii_digit).count();
                        self.bits += digits as f64 * 10f64.log2();
                    }
                    attrs::Type::Int => self.bits += noise(text.parse::<f64>().unwrap_or(0.0)),
                    // A random id in hex, once.
                    attrs::Type::Str if is_id(text) && self.texts.insert(text.to_string()) => {
                        self.bits += (text.len() - 2) as f64 * 4.0;
                    }
                    _ => {}
                }
            }
        }
    }

    fn bytes(&self) -> f64 {
        self.bits / 8.0
    }
}

fn noise(value: f64) -> f64 {
    (1.0 + value.abs()).log2()
}

fn is_id(text: &str) -> bool {
    let inner = text.trim_matches('"');
    inner.len() >= 8
        && inner.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
        && inner.bytes().any(|b| b.is_ascii_digit())
}
