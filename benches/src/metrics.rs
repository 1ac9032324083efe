//! Series and metrics: how fast a page is scraped, how much room a sample takes, how fast PromQL is answered (beside
//! Prometheus over the same samples), and the figures of a step with a million spans.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use rollscope_formats::import::prometheus;

use crate::report::{Report, thousands};
use crate::server::{Server, binary, size};

const INTERVAL_S: i64 = 10;

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    scrape(report)?;
    series(report)?;
    step(report)
}

/// Engines, and names on each.
fn sizes() -> (usize, usize, i64) {
    // 1,000 series over seven days, or a fifth over a day.
    if crate::full() { (50, 20, 7 * 86_400) } else { (10, 20, 86_400) }
}

fn page(series: usize, tick: usize) -> String {
    let mut out = String::from("# TYPE sglang:num_queue_reqs gauge\n");
    for i in 0..series {
        out.push_str(&format!(
            "sglang:num_queue_reqs{{model_name=\"qwen\",engine_type=\"decode\",tp_rank=\"{}\",slot=\"{i}\"}} {}\n",
            i % 8,
            (i * 31 + tick * 7) % 500
        ));
    }
    out
}

/// Scrapes a page as large as a big cluster's as often as possible, compared with only parsing the same page.
fn scrape(report: &mut Report) -> anyhow::Result<()> {
    const SAMPLES: usize = 100_000;
    let pages: Vec<String> = (0..4).map(|tick| page(SAMPLES, tick)).collect();
    let limits = prometheus::Limits::default();
    let started = Instant::now();
    let mut parsed = 0;
    for text in pages.iter().cycle().take(8) {
        prometheus::lines(
            text,
            false,
            &limits,
            |line, _| parsed += usize::from(prometheus::parse_series(line.series, &limits).is_ok()),
            |_| {},
        );
    }
    let alone = parsed as f64 / started.elapsed().as_secs_f64();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for (n, stream) in listener.incoming().enumerate() {
            let Ok(mut stream) = stream else { continue };
            let body = &pages[n % pages.len()];
            let mut head = [0; 4096];
            let _ = std::io::Read::read(&mut stream, &mut head);
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
        }
    });
    let folder = tempfile::tempdir()?;
    let mut command = Command::new(binary());
    command.arg("serve").arg("--data").arg(folder.path());
    command.args(["--listen", "127.0.0.1:0", "--otlp-grpc", "127.0.0.1:0", "--otlp-http", ""]);
    command.arg("--scrape").arg(format!("http://{address}/metrics@100ms"));
    let server = Server::spawn(command)?;
    let count = || -> anyhow::Result<f64> { server.figure("rollscope_scrape_samples_total") };
    // The first page teaches it the series.
    while count()? < SAMPLES as f64 {
        std::thread::sleep(Duration::from_millis(50));
    }
    let (started, before, cpu) = (Instant::now(), count()?, server.cpu_s()?);
    std::thread::sleep(Duration::from_secs(if crate::full() { 20 } else { 6 }));
    let (samples, took, cpu) = (count()? - before, started.elapsed().as_secs_f64(), server.cpu_s()? - cpu);
    report.row(
        "scraped, stored samples/s",
        format!("{} ({:.1} cores)", thousands(samples / took), cpu / took),
        "parsing pages alone, one core",
        thousands(alone),
        samples / took / alone,
        "> 0.2",
    );
    server.stop()
}

/// What a series measures at a time: counters that rise unevenly, gauges of small numbers, shares.
fn value(engine: usize, name: usize, tick: i64) -> f64 {
    let noise = |n: i64| ((n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(engine as i64 * 977)) >> 33) & 0xff;
    match name % 5 {
        0 | 1 => (tick * 50 + (noise(tick) * 3)) as f64,
        2 => (noise(tick / 6) % 40) as f64,
        3 => (noise(tick / 360) % 9) as f64,
        _ => (noise(tick) as f64 / 255.0 * 1000.0).round() / 1000.0,
    }
}

fn name_of(name: usize) -> String {
    format!("sglang:metric_{name}{}", if name % 5 < 2 { "_total" } else { "" })
}

fn series(report: &mut Report) -> anyhow::Result<()> {
    let (engines, names, seconds) = sizes();
    let ticks = seconds / INTERVAL_S;
    let samples = (engines * names) as f64 * ticks as f64;
    let end = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs() as i64 / 7200 * 7200;
    let start = end - seconds;
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("ours");
    let server = Server::start(&data)?;
    // A quarter of an hour of every engine a message.
    for from in (0..ticks).step_by(90) {
        for engine in 0..engines {
            send(&server, engine, names, start, from..(from + 90).min(ticks))?;
        }
    }
    server.stop()?;
    let compacted = Command::new(binary()).arg("compact").arg("--data").arg(&data).output()?;
    anyhow::ensure!(compacted.status.success(), "compact: {}", String::from_utf8_lossy(&compacted.stderr));
    let ours = size(&data.join("series"))? as f64;

    let Some(blocks) = prometheus_blocks(folder.path(), engines, names, start, ticks)? else {
        println!(
            "metrics: promtool or prometheus is not installed, so there is no comparison (apt-get install prometheus)"
        );
        return Ok(());
    };
    let theirs = size(&blocks)? as f64;
    let bytes = |n: f64| format!("{:.2}", n / samples);
    report.row(
        "bytes per sample on disk",
        bytes(ours),
        "Prometheus's blocks, including the index",
        bytes(theirs),
        ours / theirs,
        "< 1.5",
    );

    let server = Server::start(&data)?;
    let prometheus = Prometheus::start(&blocks)?;
    let week = if seconds > 86_400 { "7 days, 1,000 series" } else { "1 day, 200 series" };
    for (what, query, step) in [
        ("sum by (instance) (rate())", "sum by (instance) (rate(sglang:metric_0_total[5m]))", seconds / 300),
        ("max_over_time, one name", "max_over_time(sglang:metric_2[10m])", seconds / 300),
        ("every name", "sum by (__name__) ({__name__=~\"sglang:metric_.*\"})", seconds / 200),
        ("quantile over engines", "quantile by (job) (0.9, sglang:metric_4)", seconds / 1000),
    ] {
        let path = format!("query_range?query={}&start={start}&end={end}&step={step}", encode(query));
        let ours = best(|| ask(&format!("{}/prometheus/api/v1/{path}", server.page)))?;
        let theirs = best(|| ask(&format!("{}/api/v1/{path}", prometheus.url)))?;
        report.row(
            &format!("query_range over {week}: {what}"),
            format!("{:.0} ms", ours * 1e3),
            "Prometheus",
            format!("{:.0} ms", theirs * 1e3),
            ours / theirs,
            "< 1",
        );
    }
    server.stop()
}

fn encode(query: &str) -> String {
    query
        .bytes()
        .map(|b| if b.is_ascii_alphanumeric() { (b as char).to_string() } else { format!("%{b:02X}") })
        .collect()
}

fn ask(url: &str) -> anyhow::Result<()> {
    let answer = ureq::get(url).call()?.body_mut().with_config().limit(1 << 30).read_to_vec()?;
    anyhow::ensure!(answer.windows(9).any(|w| w == b"\"values\":"), "no answer from {url}");
    Ok(())
}

/// The best of five, in seconds.
fn best(mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..5 {
        let started = Instant::now();
        work()?;
        least = least.min(started.elapsed().as_secs_f64());
    }
    Ok(least)
}

fn text(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(any_value::Value::StringValue(value.into())) });
    KeyValue { key: key.into(), value, ..KeyValue::default() }
}

fn send(server: &Server, engine: usize, names: usize, start: i64, ticks: std::ops::Range<i64>) -> anyhow::Result<()> {
    let metrics = (0..names)
        .map(|name| {
            let point = |tick: i64| NumberDataPoint {
                attributes: vec![text("job", "sglang"), text("model_name", "qwen")],
                time_unix_nano: ((start + tick * INTERVAL_S) * 1_000_000_000) as u64,
                value: Some(Value::AsDouble(value(engine, name, tick))),
                ..NumberDataPoint::default()
            };
            let data = Data::Gauge(Gauge { data_points: ticks.clone().map(point).collect() });
            Metric { name: name_of(name), data: Some(data), ..Metric::default() }
        })
        .collect();
    let attributes = vec![text("service.name", &format!("10.0.0.{engine}:30000")), text("rl.run.id", "bench")];
    let request = ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(InstrumentationScope::default()),
                metrics,
                ..ScopeMetrics::default()
            }],
            ..ResourceMetrics::default()
        }],
    };
    let url = format!("{}/v1/metrics", server.page);
    ureq::post(url).header("content-type", "application/x-protobuf").send(&request.encode_to_vec()[..])?;
    Ok(())
}

/// The same samples as Prometheus's blocks, by its own tool. None if it is not installed.
fn prometheus_blocks(
    folder: &Path,
    engines: usize,
    names: usize,
    start: i64,
    ticks: i64,
) -> anyhow::Result<Option<std::path::PathBuf>> {
    if Command::new("promtool").arg("--version").output().is_err() {
        return Ok(None);
    }
    let (file, blocks) = (folder.join("series.om"), folder.join("blocks"));
    let mut out = std::io::BufWriter::new(std::fs::File::create(&file)?);
    for name in 0..names {
        let family = name_of(name);
        writeln!(
            out,
            "# TYPE {} {}",
            family.trim_end_matches("_total"),
            if name % 5 < 2 { "counter" } else { "gauge" }
        )?;
        for engine in 0..engines {
            for tick in 0..ticks {
                let at = start + tick * INTERVAL_S;
                let v = value(engine, name, tick);
                writeln!(
                    out,
                    "{family}{{instance=\"10.0.0.{engine}:30000\",job=\"sglang\",model_name=\"qwen\",run=\"bench\"}} {v} {at}"
                )?;
            }
        }
    }
    writeln!(out, "# EOF")?;
    out.flush()?;
    let made = Command::new("promtool")
        .args(["tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=162h"])
        .args([&file, &blocks])
        .output()?;
    anyhow::ensure!(made.status.success(), "promtool: {}", String::from_utf8_lossy(&made.stderr));
    std::fs::remove_file(file)?;
    Ok(Some(blocks))
}

struct Prometheus {
    child: Child,
    url: String,
}

impl Prometheus {
    fn start(blocks: &Path) -> anyhow::Result<Prometheus> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = blocks.with_extension("yml");
        std::fs::write(&config, "{}\n")?;
        let url = format!("http://127.0.0.1:{port}");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", blocks.display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .args(["--storage.tsdb.retention.time=100y", "--query.max-samples=200000000"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("prometheus")?;
        let prometheus = Prometheus { child, url };
        for _ in 0..600 {
            if ureq::get(format!("{}/-/ready", prometheus.url)).call().is_ok() {
                return Ok(prometheus);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        anyhow::bail!("prometheus did not become ready")
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The figures of a step with a million spans, as the server computes them.
fn step(report: &mut Report) -> anyhow::Result<()> {
    let spans: usize = if crate::full() { 1_000_000 } else { 200_000 };
    let folder = tempfile::tempdir()?;
    let samples = spans / 60;
    let made = Command::new(binary())
        .args(["demo", "--no-serve", "--steps", "1", "--samples", &samples.to_string(), "--data"])
        .arg(folder.path())
        .output()?;
    anyhow::ensure!(made.status.success(), "demo: {}", String::from_utf8_lossy(&made.stderr));
    let server = Server::start(folder.path())?;
    let found = server.sql("select count(*) from spans where step = 0")?["rows"][0][0].as_u64().unwrap_or(0);
    // A late span makes the server compute the step again, and a later step marks it as complete.
    let late = |step: i64, n: u64| -> anyhow::Result<()> {
        let body = serde_json::json!({"resourceSpans": [{"resource": {"attributes": [
            {"key": "rl.run.id", "value": {"stringValue": "demo"}}]}, "scopeSpans": [{"spans": [{
            "traceId": format!("{n:032x}"), "spanId": format!("{n:016x}"), "name": "sglang_generate",
            "startTimeUnixNano": "1750000000000000000", "endTimeUnixNano": "1750000001000000000",
            "attributes": [{"key": "rl.step", "value": {"intValue": step.to_string()}}]}]}]}]});
        ureq::post(format!("{}/v1/traces", server.page)).send_json(body)?;
        Ok(())
    };
    late(1, 1)?;
    let mut least = f64::INFINITY;
    for n in 0..3 {
        let (steps, seconds) =
            (server.figure("rollscope_steps_computed_total")?, server.figure("rollscope_steps_seconds_total")?);
        late(0, 100 + n)?;
        while server.figure("rollscope_steps_computed_total")? <= steps {
            std::thread::sleep(Duration::from_millis(100));
        }
        least = least.min(server.figure("rollscope_steps_seconds_total")? - seconds);
    }
    report.row(
        &format!("figures of a step with {} spans", thousands(found as f64)),
        format!("{least:.2} s"),
        "the limit, for a million",
        "0.5 s".into(),
        least / (0.5 * found as f64 / 1e6),
        "< 1",
    );
    server.stop()
}
