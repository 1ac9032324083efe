//! The store as it grows, and queries on the full store.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::load::{SPANS, Template, send};
use crate::report::{Report, thousands};
use crate::server::Server;

const CLIENTS: usize = 8;
/// After its start, a server looks at what it has. Then it rests.
const SETTLES: Duration = Duration::from_secs(120);
const RESTS: Duration = Duration::from_secs(120);

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let template = Arc::new(Template::new()?);
    let dir = tempfile::tempdir()?;
    let server = Server::start(dir.path())?;
    let million = 1_000_000 / SPANS as u64;
    let millions: u64 = 20;
    let mut rates = Vec::new();
    let mut sent = 0;
    for _ in 0..millions {
        let seconds = send(&server.grpc, &template, sent, million, CLIENTS)?;
        sent += million;
        rates.push((million * SPANS as u64) as f64 / seconds);
        println!("{} million: {} spans/s", rates.len(), thousands(rates[rates.len() - 1]));
        if rates.len() == 10 {
            let (now, _) = server.memory()?;
            println!("memory at 10 million: {:.0} MB", now as f64 / 1e6);
        }
    }
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let (early, late) = (mean(&rates[1..6]), mean(&rates[15..]));
    report.row(
        "ingest at 16-20 million spans, spans/s",
        thousands(late),
        "at 2-6 million",
        thousands(early),
        late / early,
        "flat: about 1",
    );
    let (_, peak) = server.memory()?;
    let limit = 2.0 * (1u64 << 30) as f64;
    report.row(
        "peak memory at 20 million, MB",
        format!("{:.0}", peak as f64 / 1e6),
        "stated bound",
        "2147".into(),
        peak as f64 / limit,
        "<= 1",
    );

    let traces = (0..20).map(|i| template.trace(i * sent / 20)).collect::<anyhow::Result<Vec<String>>>()?;
    server.stop()?;
    // A process that has read nothing yet.
    let server = Server::start(dir.path())?;
    let fetch = |trace: &str| -> anyhow::Result<f64> {
        let started = Instant::now();
        let answer = server.get(&format!("/api/v1/traces/{trace}"))?;
        anyhow::ensure!(answer.len() > 1000, "trace {trace} was not found");
        Ok(started.elapsed().as_secs_f64() * 1e3)
    };
    let cold = fetch(&traces[0])?;
    report.row(
        "one trace of 20 million spans, first in a process, ms",
        format!("{cold:.1}"),
        "limit",
        "50".into(),
        cold / 50.0,
        "<= 1",
    );
    let mut warm = traces.iter().map(|t| fetch(t)).collect::<Result<Vec<_>, _>>()?;
    warm.sort_by(f64::total_cmp);
    let median = warm[warm.len() / 2];
    report.row(
        "one trace of 20 million spans, later, median ms",
        format!("{median:.1}"),
        "limit",
        "10".into(),
        median / 10.0,
        "<= 1",
    );
    let spans_sent = (sent * SPANS as u64) as f64;
    for (what, query) in [
        ("find traces by name, newest first", "name=decode*&limit=50"),
        ("find traces by duration, longest first", "min_duration=1ms&sort=-duration&limit=50"),
        ("find traces with errors", "status=error&limit=50"),
    ] {
        let started = Instant::now();
        server.get(&format!("/api/v1/traces?{query}"))?;
        let seconds = started.elapsed().as_secs_f64() * 10e6 / spans_sent;
        report.row(
            &format!("{what}, seconds per 10 million spans"),
            format!("{seconds:.2}"),
            "limit",
            "0.3".into(),
            seconds / 0.3,
            "<= 1",
        );
    }
    let group = "select name, count(*), avg(end_ns - start_ns) from spans group by name";
    let started = Instant::now();
    server.sql(group)?;
    let first = started.elapsed().as_secs_f64();
    let started = Instant::now();
    server.sql(group)?;
    let again = started.elapsed().as_secs_f64();
    let per_10m = |s: f64| s * 10e6 / spans_sent;
    report.row(
        "group by name, seconds per 10 million spans, first",
        format!("{:.2}", per_10m(first)),
        "limit",
        "1".into(),
        per_10m(first),
        "<= 1",
    );
    report.row(
        "group by name, seconds per 10 million spans, again",
        format!("{:.2}", per_10m(again)),
        "limit",
        "1".into(),
        per_10m(again),
        "<= 1",
    );
    server.stop()?;
    at_rest(report, dir.path())
}

/// What a server takes that nobody asks anything. The run was never ended, so the alarms look at it.
fn at_rest(report: &mut Report, data: &Path) -> anyhow::Result<()> {
    let server = Server::start(data)?;
    std::thread::sleep(SETTLES);
    let (before, started) = (server.cpu_s()?, Instant::now());
    std::thread::sleep(RESTS);
    let share = (server.cpu_s()? - before) / started.elapsed().as_secs_f64() * 100.0;
    let (now, _) = server.memory()?;
    report.row(
        "at rest with 20 million spans of an unfinished run, % of a core",
        format!("{share:.2}"),
        "limit",
        "0.5".into(),
        share / 0.5,
        "<= 1",
    );
    let limit = 150e6;
    report.row(
        "at rest, memory, MB",
        format!("{:.0}", now as f64 / 1e6),
        "limit",
        "150".into(),
        now as f64 / limit,
        "<= 1",
    );
    server.stop()
}
