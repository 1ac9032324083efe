//! Conversations: how fast they come in and are indexed, what they take on disk, how long a question takes. Held against
//! what Trackio was measured at on this kind of machine (SPEC section 5: 20,000 traces, 180 MB of text).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use rand::prelude::*;
use serde_json::json;

use crate::report::{Report, thousands};
use crate::server::Server;

const BATCH: usize = 100;
const SIBLINGS: usize = 8;
const SENDERS: usize = 4;
const WORDS: usize = 20_000;
/// Trackio: traces a second, bytes on disk a byte of text, seconds for a search and for the top by reward at 20,000.
const TRACKIO: (f64, f64, f64, f64) = (1_300.0, 603.0 / 180.0, 0.240, 1.0);

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let mut sizes = vec![20_000, 200_000];
    if crate::full() {
        sizes.push(1_000_000);
    }
    if let Some(only) = std::env::var("CONVERSATIONS").ok().and_then(|n| n.parse().ok()) {
        sizes = vec![only];
    }
    for size in sizes {
        one_size(report, size)?;
    }
    Ok(())
}

/// Words as often as words are: the n-th is n times rarer than the first.
struct Text {
    words: Vec<String>,
    sums: Vec<f64>,
    dice: StdRng,
}

impl Text {
    fn new() -> Text {
        let mut dice = StdRng::seed_from_u64(6);
        let words = (0..WORDS)
            .map(|_| (0..dice.random_range(2..11)).map(|_| dice.random_range(b'a'..=b'z') as char).collect())
            .collect();
        let mut sum = 0.0;
        let sums = (1..=WORDS)
            .map(|n| {
                sum += 1.0 / n as f64;
                sum
            })
            .collect();
        Text { words, sums, dice }
    }

    fn take(&mut self, count: usize) -> String {
        let top = self.sums[WORDS - 1];
        let mut out = String::new();
        for _ in 0..count {
            let at = self.dice.random_range(0.0..top);
            let n = self.sums.partition_point(|s| *s < at).min(WORDS - 1);
            out.push_str(&self.words[n]);
            out.push(' ');
        }
        out
    }
}

/// Requests of conversations: 6 messages, about 9 kB of text, siblings of a prompt mixed with others as they end.
struct Load {
    text: Text,
    prompts: Vec<(String, String)>,
    sent: usize,
    chars: usize,
}

impl Load {
    /// As `rollscope.log({"rollout": Trace(...)}, step=)` sends them.
    fn next(&mut self) -> Vec<u8> {
        let records = (0..BATCH).map(|_| self.one()).collect();
        let scope_logs = vec![ScopeLogs { log_records: records, ..ScopeLogs::default() }];
        let resource = Some(Resource { attributes: vec![text("rl.run.id", "bench".into())], ..Resource::default() });
        let logs = ResourceLogs { resource, scope_logs, ..ResourceLogs::default() };
        ExportLogsServiceRequest { resource_logs: vec![logs] }.encode_to_vec()
    }

    fn one(&mut self) -> LogRecord {
        let n = self.sent;
        self.sent += 1;
        if n.is_multiple_of(SIBLINGS * 16) {
            self.prompts = (0..16).map(|_| (self.text.take(150), self.text.take(450))).collect();
        }
        let (system, user) = self.prompts[n % 16].clone();
        let rare = if n.is_multiple_of(5_000) { " zyzzyva quixotic" } else { "" };
        let messages = json!([
            {"role": "system", "content": system},
            {"role": "user", "content": user},
            {"role": "assistant", "content": self.text.take(300)},
            {"role": "tool", "tool_call_id": "c", "content": format!("{}{rare}", self.text.take(200))},
            {"role": "assistant", "content": self.text.take(250)},
            {"role": "assistant", "content": self.text.take(150)},
        ]);
        let messages = messages.to_string();
        self.chars += messages.len();
        let metadata = json!({"reward": self.text.dice.random_range(0.0..1.0)});
        LogRecord {
            time_unix_nano: 1_790_000_000_000_000_000 + n as u64 * 1_000_000,
            event_name: "rollscope.conversation".into(),
            attributes: vec![
                text("rollscope.id", format!("{n:032x}")),
                text("rollscope.key", "rollout".into()),
                attribute("rl.step", Value::IntValue(n as i64 / 1024)),
                text("rollscope.metadata", metadata.to_string()),
            ],
            body: Some(AnyValue { value: Some(Value::StringValue(messages)) }),
            ..LogRecord::default()
        }
    }
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn text(key: &str, value: String) -> KeyValue {
    attribute(key, Value::StringValue(value))
}

fn one_size(report: &mut Report, size: usize) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let server = Server::start(dir.path())?;
    let mut load = Load { text: Text::new(), prompts: Vec::new(), sent: 0, chars: 0 };
    let total = |server: &Server| -> anyhow::Result<u64> {
        let answer: serde_json::Value = serde_json::from_slice(&server.get("/api/v1/conversations?limit=0")?)?;
        Ok(answer["total"].as_u64().unwrap_or(0))
    };
    // Prepared in advance, so that only the senders share the machine with what is measured.
    let bodies: Vec<Vec<u8>> = (0..size.div_ceil(BATCH)).map(|_| load.next()).collect();
    let size = bodies.len() * BATCH;
    let started = Instant::now();
    let next = AtomicUsize::new(0);
    let send = || -> anyhow::Result<()> {
        let agent = ureq::Agent::new_with_defaults();
        while let Some(body) = bodies.get(next.fetch_add(1, Relaxed)) {
            let request = agent.post(format!("{}/v1/logs", server.page));
            request.header("content-type", "application/x-protobuf").send(&body[..])?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..SENDERS).map(|_| scope.spawn(send)).collect();
        senders.into_iter().try_for_each(|s| s.join().expect("a sender does not panic"))
    })?;
    let sending = started.elapsed();
    drop(bodies);
    while total(&server)? < size as u64 {
        std::thread::sleep(Duration::from_millis(20));
    }
    let indexed = started.elapsed();
    let label = thousands(size as f64);
    let rate = size as f64 / sending.as_secs_f64();
    report.row(
        &format!("conversations, {label}: durable, /s ({SENDERS} senders)"),
        thousands(rate),
        "Trackio",
        thousands(TRACKIO.0),
        rate / TRACKIO.0,
        ">= 20k/s",
    );
    let rate = size as f64 / indexed.as_secs_f64();
    report.row(
        &format!("conversations, {label}: found in the index, /s"),
        thousands(rate),
        "Trackio",
        thousands(TRACKIO.0),
        rate / TRACKIO.0,
        ">= 5k/s",
    );
    server.stop()?;
    let compact =
        std::process::Command::new(crate::server::binary()).arg("compact").arg("--data").arg(dir.path()).output()?;
    anyhow::ensure!(compact.status.success(), "{}", String::from_utf8_lossy(&compact.stderr));
    let server = Server::start(dir.path())?;
    while total(&server)? < size as u64 {
        std::thread::sleep(Duration::from_millis(50));
    }
    let stats: serde_json::Value = serde_json::from_slice(&server.get("/api/v1/conversations-stats")?)?;
    let disk = stats["stored_bytes"].as_f64().unwrap_or(0.0) + stats["index_bytes"].as_f64().unwrap_or(0.0);
    println!("{label}: stored {}, index {}, text {}", stats["stored_bytes"], stats["index_bytes"], load.chars);
    let share = disk / load.chars as f64;
    report.row(
        &format!("conversations, {label}: disk with index, of the text"),
        format!("{share:.2}"),
        "Trackio",
        format!("{:.2}", TRACKIO.1),
        TRACKIO.1 / share,
        "<= 0.6",
    );
    let aim = if size <= 20_000 { "< 20 ms" } else { "< 100 ms" };
    let mut asked = |what: &str, query: &str, theirs: f64| -> anyhow::Result<()> {
        let path = format!("/api/v1/conversations?messages=false&{query}");
        server.get(&path)?;
        let mut times: Vec<f64> = (0..9)
            .map(|_| {
                let started = Instant::now();
                server.get(&path).map(|_| started.elapsed().as_secs_f64() * 1e3)
            })
            .collect::<anyhow::Result<_>>()?;
        times.sort_by(f64::total_cmp);
        let ours = times[times.len() / 2];
        let name = format!("conversations, {label}: {what}, ms");
        report.row(
            &name,
            format!("{ours:.1}"),
            "Trackio at 20k",
            format!("{:.0}", theirs * 1e3),
            theirs * 1e3 / ours,
            aim,
        );
        Ok(())
    };
    let offset = size.min(100_000).saturating_sub(50);
    asked("page one", "limit=50", TRACKIO.3)?;
    asked("far page", &format!("limit=50&offset={offset}"), TRACKIO.3)?;
    asked("rare word", "limit=50&search=zyzzyva", TRACKIO.2)?;
    asked("phrase", "limit=50&search=%22zyzzyva+quixotic%22", TRACKIO.2)?;
    asked("absent word", "limit=50&search=nowhereatall", TRACKIO.2)?;
    let common = load.text.words[0].clone();
    asked("commonest word", &format!("limit=50&search={common}"), TRACKIO.2)?;
    asked("top 50 by reward", "limit=50&sort=-reward", TRACKIO.3)?;
    asked("facets", "limit=0&facets=step,reward,status,tool,source", TRACKIO.3)?;
    let first: serde_json::Value =
        serde_json::from_slice(&server.get("/api/v1/conversations?messages=false&limit=50")?)?;
    let cursor = first["next"].as_str().unwrap_or_default().replace('~', "%7E");
    asked("next page by cursor", &format!("limit=50&sort=-time&cursor={cursor}"), TRACKIO.3)?;
    asked("page one with snippets", &format!("limit=50&snippets=true&search={common}"), TRACKIO.2)?;
    server.stop()
}
