//! Traces: Perfetto export and the collector, against parsing the same JSON and against a receiver that does nothing.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::report::{Report, thousands};
use crate::server::{Server, binary, node, timed};

/// Requests of this shape make 216k spans of about 500 bytes of JSON: what SGLang's own converter was measured on.
const REQUESTS: u64 = 6_000;
const SPANS_PER_REQUEST: u64 = 36;

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    // Up to ten million spans, 4 GB of JSON.
    for times in if crate::full() { &[1, 10, 46][..] } else { &[1] } {
        export(report, *times)?;
    }
    page(report, 100_000, 500.0)?;
    page(report, 1_000_000, 2000.0)?;
    collect(report)
}

fn export(report: &mut Report, times: u64) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let input = dir.path().join("sglang.jsonl");
    let spans = write_sglang(&input, REQUESTS * times)?;
    let bytes = std::fs::metadata(&input)?.len();
    let parse = (0..3).map(|_| parse(&input)).collect::<anyhow::Result<Vec<_>>>()?;
    let parse = parse.into_iter().fold(f64::INFINITY, f64::min);
    let (mut seconds, mut peak) = (f64::INFINITY, 0);
    for _ in 0..3 {
        let out = dir.path().join("out.pftrace");
        let (s, bytes) = timed(Command::new(binary()).args(["export", "perfetto"]).arg(&input).arg("-o").arg(&out))?;
        seconds = seconds.min(s);
        peak = peak.max(bytes);
    }
    let what = format!("Perfetto export of {} spans ({:.0} MB of JSON)", thousands(spans as f64), bytes as f64 / 1e6);
    report.row(
        &format!("{what}, s"),
        format!("{seconds:.2}"),
        "reading and parsing the JSON alone (serde_json, building nothing)",
        format!("{parse:.2}"),
        seconds / parse,
        if times == 1 { "<= 0.6 s" } else { "linear" },
    );
    report.row(
        &format!("{what}, peak memory, MB"),
        format!("{:.0}", peak as f64 / 1e6),
        "SGLang's script",
        format!("{}", 832 * times),
        peak as f64 / 1e6 / (832 * times) as f64,
        if times == 1 { "<= 100 MB" } else { "" },
    );
    Ok(())
}

/// Lines as the collector writes them: a request span, three threads, slices that link to the one before.
fn write_sglang(path: &Path, requests: u64) -> anyhow::Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    let resource = r#"{"attributes":[{"key":"telemetry.sdk.language","value":{"stringValue":"python"}},{"key":"service.instance.id","value":{"stringValue":"6ba2895c-b06a-4695-8399-20fdf56f872b"}},{"key":"service.name","value":{"stringValue":"sglang"}}]}"#;
    let mut line = String::new();
    for request in 0..requests {
        if request % 14 == 0 {
            line.push_str(&format!("{{\"resourceSpans\":[{{\"resource\":{resource},\"scopeSpans\":[{{\"scope\":{{\"name\":\"sglang server\"}},\"spans\":["));
        } else {
            line.push(',');
        }
        one_request(&mut line, request);
        if request % 14 == 13 || request + 1 == requests {
            line.push_str("]}]}]}\n");
            out.write_all(line.as_bytes())?;
            line.clear();
        }
    }
    out.flush()?;
    Ok(requests * SPANS_PER_REQUEST)
}

fn one_request(line: &mut String, request: u64) {
    let base = 1_756_000_000_000_000_000 + request * 2_000_000;
    let trace = format!("0000000000000000{:016x}", request.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let id = |n: u64| format!("{:016x}", (request * 64 + n + 1).wrapping_mul(0xd6e8_feb8_6659_fd93) | 1);
    let mut first = true;
    let mut span = |line: &mut String, n: u64, parent: Option<u64>, name: &str, start: u64, end: u64, rest: &str| {
        if !std::mem::take(&mut first) {
            line.push(',');
        }
        let parent = parent.map_or(String::new(), |p| format!("\"parentSpanId\":\"{}\",", id(p)));
        line.push_str(&format!(
            "{{\"traceId\":\"{trace}\",\"spanId\":\"{}\",{parent}\"name\":\"{name}\",\"kind\":1,\"startTimeUnixNano\":\"{}\",\
             \"endTimeUnixNano\":\"{}\",{rest}\"status\":{{}},\"flags\":256}}",
            id(n),
            base + start,
            base + end
        ));
    };
    let names =
        ["request_process", "prefill_waiting", "prefill_forward", "decode_waiting", "decode_forward", "decode_loop"];
    for thread in 0..3u64 {
        for slice in 0..10u64 {
            let n = 4 + thread * 10 + slice;
            let link = if slice == 0 {
                String::new()
            } else {
                format!("\"links\":[{{\"traceId\":\"{trace}\",\"spanId\":\"{}\",\"flags\":256}}],", id(n - 1))
            };
            let event = if slice % 3 == 0 {
                "\"events\":[{\"timeUnixNano\":\"1756000000041519044\",\"name\":\"schedule\",\"attributes\":[{\"key\":\"bid\",\"value\":{\"stringValue\":\"3f1f65a8\"}},{\"key\":\"batch_size\",\"value\":{\"intValue\":\"4\"}}]}],"
            } else {
                ""
            };
            let start = 1_000_000 + slice * 10_000_000;
            let name = names[(slice as usize).min(5)];
            span(line, n, Some(1 + thread), name, start, start + 10_000_000, &format!("{event}{link}"));
        }
        let label = if thread == 0 { "Tokenizer" } else { "Scheduler" };
        let attributes = format!(
            "\"attributes\":[{{\"key\":\"host_id\",\"value\":{{\"stringValue\":\"9f1c2e7ab0344c1d8e6f5a4b3c2d1e0f\"}}}},\
             {{\"key\":\"pid\",\"value\":{{\"intValue\":\"{}\"}}}},{{\"key\":\"thread_label\",\"value\":{{\"stringValue\":\"{label}\"}}}},\
             {{\"key\":\"tp_rank\",\"value\":{{\"intValue\":\"{thread}\"}}}}],",
            2000 + thread
        );
        span(
            line,
            1 + thread,
            Some(0),
            &format!("{label} [TP {thread}] (host:9f1c2e7a | pid:{})", 2000 + thread),
            1_000_000,
            101_000_000,
            &attributes,
        );
    }
    let rid = format!("{:032x}", u128::from(request) * 7_777_777_777);
    let attributes = format!(
        "\"attributes\":[{{\"key\":\"rid\",\"value\":{{\"stringValue\":\"{rid}\"}}}},{{\"key\":\"module\",\"value\":{{\"stringValue\":\"sglang::request\"}}}},\
         {{\"key\":\"gen_ai.usage.prompt_tokens\",\"value\":{{\"intValue\":\"7606\"}}}}],"
    );
    span(line, 0, None, &format!(" Req {}", &rid[24..]), 0, 102_000_000, &attributes);
    // Two gateway spans.
    for n in [34, 35] {
        span(line, n, Some(0), "gateway", 500_000, 600_000, "");
    }
}

fn parse(path: &Path) -> anyhow::Result<f64> {
    let started = Instant::now();
    let text = std::fs::read(path)?;
    let mut total = 0;
    for line in text.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
        let value: &serde_json::value::RawValue = serde_json::from_slice(line)?;
        total += value.get().len();
    }
    std::hint::black_box(total);
    Ok(started.elapsed().as_secs_f64())
}

/// The trace page: one trace with this many spans, as a browser opens and scrolls it.
fn page(report: &mut Report, spans: u64, aim_ms: f64) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (input, data) = (dir.path().join("trace.jsonl"), dir.path().join("data"));
    let trace = write_one_trace(&input, spans)?;
    let status =
        Command::new(binary()).arg("import").arg(&input).arg("--data").arg(&data).stdout(Stdio::null()).status()?;
    anyhow::ensure!(status.success(), "rollscope import failed");
    let server = Server::start(&data)?;
    let figures = node(&["scripts/bench-trace.mjs", &server.page, &trace])?;
    println!("trace page, {spans} spans: {figures}");
    let mut row = |what: &str, path: &str, aim: f64, unit: &str| -> anyhow::Result<()> {
        let found = figures.pointer(path).and_then(serde_json::Value::as_f64);
        let ours = found.with_context(|| format!("the page's figures have no {path}"))?;
        let what = format!("trace page, {} spans: {what}, {unit}", thousands(spans as f64));
        report.row(&what, format!("{ours:.1}"), "aim", format!("{aim:.0}"), ours / aim, "<= 1");
        Ok(())
    };
    row("click to first picture", "/opened_ms/0", aim_ms, "ms")?;
    row("the same again", "/opened_ms/1", aim_ms, "ms")?;
    row("frame while scrolling, median", "/frame_p50", 16.0, "ms")?;
    row("frame while scrolling, p95", "/frame_p95", 16.0, "ms")?;
    server.stop()
}

/// A trace of one root, two hundred spans below it, and all others somewhere below these. Returns its id.
fn write_one_trace(path: &Path, spans: u64) -> anyhow::Result<String> {
    let mut out = BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    let trace = format!("{:032x}", spans * 7919 + 5);
    let names = ["request", "prefill", "decode", "tool", "turn", "reward", "kv_transfer"];
    let mut dice = 0x9e37_79b9_7f4a_7c15u64;
    let mut roll = |below: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % below
    };
    let base = 1_756_000_000_000_000_000u64;
    for n in 0..spans {
        let first_of_line = n % 2000 == 0;
        if first_of_line {
            write!(
                out,
                "{{\"resourceSpans\":[{{\"resource\":{{\"attributes\":[{{\"key\":\"service.name\",\"value\":{{\"stringValue\":\"svc{}\"}}}}]}},\"scopeSpans\":[{{\"spans\":[",
                n / 2000 % 3
            )?;
        }
        let parent = match n {
            0 => 0,
            1..200 => 1,
            _ => 1 + roll(n / 8),
        };
        let start = base + n * 50_000;
        let end = if n == 0 { base + spans * 60_000 } else { start + 10_000 + roll(40_000_000) };
        let parent = if n == 0 { String::new() } else { format!("\"parentSpanId\":\"{parent:016x}\",") };
        write!(
            out,
            "{}{{\"traceId\":\"{trace}\",\"spanId\":\"{:016x}\",{parent}\"name\":\"{}\",\"kind\":1,\"startTimeUnixNano\":\"{start}\",\"endTimeUnixNano\":\"{end}\",\"attributes\":[{{\"key\":\"i\",\"value\":{{\"intValue\":\"{n}\"}}}}]}}",
            if first_of_line { "" } else { "," },
            n + 1,
            names[(n % 7) as usize],
        )?;
        if n % 2000 == 1999 || n + 1 == spans {
            out.write_all(b"]}]}]}\n")?;
        }
    }
    out.flush()?;
    Ok(trace)
}

/// Spans a second that `collect` has on disk and acknowledged, four senders with batches of 512.
fn collect(report: &mut Report) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let mut child = Command::new(binary())
        .args(["collect", "--otlp-grpc", "", "--otlp-http", "127.0.0.1:0", "--out"])
        .arg(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let url = {
        use std::io::BufRead as _;
        let lines = std::io::BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut found = None;
        for line in lines {
            let line = line?;
            if line.starts_with("OTLP HTTP") {
                found = line.split_whitespace().last().map(str::to_string);
            }
            if line.starts_with("writing") {
                break;
            }
        }
        found.ok_or_else(|| anyhow::anyhow!("collect did not start"))?
    };
    let mut json = String::from("{\"resourceSpans\":[{\"resource\":{},\"scopeSpans\":[{\"scope\":{},\"spans\":[");
    for request in 0..14 {
        if request > 0 {
            json.push(',');
        }
        one_request(&mut json, request);
    }
    json.push_str("]}]}]}");
    let batch = rollscope_formats::import::otlp::decode_traces_json(json.as_bytes(), &Default::default())
        .map_err(|e| anyhow::anyhow!(e.0))?;
    let spans = batch.batch.num_rows() as u64;
    let body = rollscope_formats::export::otlp::to_protobuf(&batch.batch);
    let seconds = Duration::from_secs(if crate::full() { 20 } else { 5 });
    let started = Instant::now();
    let sent: u64 = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..4)
            .map(|_| {
                let (url, body) = (format!("{url}/v1/traces"), &body);
                scope.spawn(move || {
                    let agent: ureq::Agent = ureq::Agent::config_builder().build().into();
                    let mut sent = 0;
                    while started.elapsed() < seconds {
                        if agent.post(&url).header("content-type", "application/x-protobuf").send(&body[..]).is_ok() {
                            sent += spans;
                        }
                    }
                    sent
                })
            })
            .collect();
        senders.into_iter().map(|s| s.join().unwrap_or(0)).sum()
    });
    let rate = sent as f64 / started.elapsed().as_secs_f64();
    child.kill()?;
    child.wait()?;
    report.row("collect, spans/s on disk", thousands(rate), "aim", "200k".into(), rate / 200_000.0, ">= 1");
    Ok(())
}
