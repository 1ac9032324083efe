//! The same SQL on the node that is asked, and on one and two workers: what it costs all of them together, and who did how much.

use std::time::{Duration, Instant};

use anyhow::Context;

use super::Places;
use crate::report::Report;
use crate::server::{Server, binary};

const QUERIES: [(&str, &str); 2] = [
    ("group by name", "select name, count(*), sum(end_ns - start_ns) from spans group by name order by name"),
    (
        "longest traces",
        "select trace_id, count(*), max(end_ns) - min(start_ns) as ns from spans group by trace_id order by ns desc, trace_id limit 10",
    ),
];
/// Of each query, after one that warms up. The kernel counts CPU time in ticks of 10 ms.
const ROUNDS: u32 = 10;
/// `spread_bytes` decides how many parts a query has. With fewer spans than 20 million it is smaller in proportion, so that there are
/// as many parts.
const USUAL_SPREAD_BYTES: u64 = 16 << 20;
const USUAL_SPANS: u64 = 20_000_000;
/// A node looks every ten seconds who is there.
const SEEN_AFTER: Duration = Duration::from_secs(12);
const SEEN_WITHIN: Duration = Duration::from_secs(60);
/// After its start, a server looks at what it has. It rests when it uses less than a twentieth of a core for this long.
const RESTS: Duration = Duration::from_secs(5);
const RESTS_WITHIN: Duration = Duration::from_secs(120);

/// One query, `ROUNDS` times.
struct Measured {
    /// Of the node that was asked, and of each worker.
    asked_s: f64,
    workers_s: Vec<f64>,
    /// Of the busiest worker of each query: over many queries, chance evens out who gets which part.
    busiest_s: f64,
    wall_s: f64,
    /// How many ran on workers.
    spread: u64,
    answer: serde_json::Value,
}

impl Measured {
    fn cpu_s(&self) -> f64 {
        self.asked_s + self.workers_s.iter().sum::<f64>()
    }
}

pub fn run(report: &mut Report, places: &Places, spans: u64) -> anyhow::Result<()> {
    let spread_bytes = (USUAL_SPREAD_BYTES * spans / USUAL_SPANS).clamp(1, USUAL_SPREAD_BYTES);
    let config = format!("[server.alarms]\nenabled = false\n[query]\ntimeout = 300.0\nspread_bytes = {spread_bytes}\n");
    let asked = places.serve(&places.lake, &config, &["--role", "query"])?;
    wait_until_rests(&asked)?;
    let alone = QUERIES.iter().map(|(_, sql)| measure(&asked, &[], sql)).collect::<anyhow::Result<Vec<Measured>>>()?;
    let mut workers = Vec::new();
    for n in 1..=2 {
        let mut command = places.weed.client(binary());
        command.args(["executor", "--data", &places.lake, "--node", &format!("worker-{n}"), "--cache"]);
        command.arg(places.new_folder()?).arg("--config").arg(places.config(&config)?);
        workers.push(Server::spawn(command)?);
        wait_until_seen(&asked, n)?;
        for ((name, sql), alone) in QUERIES.iter().zip(&alone) {
            let measured = measure(&asked, &workers, sql)?;
            let workers = if n == 1 { "1 worker".into() } else { format!("{n} workers") };
            let name = format!("{name} on {workers}");
            compare(report, &name, &measured, alone, n)?;
            if n > 1 && measured.spread > 0 {
                let rows = rows_by_task(&asked, sql)?;
                let (largest, all) = (rows.iter().copied().fold(0.0, f64::max), rows.iter().sum::<f64>());
                share(report, &format!("{name}, largest share of the rows that are read"), largest / all, n);
            }
        }
    }
    for worker in workers {
        worker.stop()?;
    }
    asked.stop()
}

fn measure(asked: &Server, workers: &[Server], sql: &str) -> anyhow::Result<Measured> {
    asked.sql(sql)?;
    let cpu_s = || workers.iter().map(Server::cpu_s).collect::<anyhow::Result<Vec<f64>>>();
    let (spread, own) = (spread_queries(asked)?, asked.cpu_s()?);
    let (started, mut answer) = (Instant::now(), serde_json::Value::Null);
    let (mut workers_s, mut busiest_s) = (vec![0.0; workers.len()], 0.0);
    for _ in 0..ROUNDS {
        let before = cpu_s()?;
        answer = asked.sql(sql)?["rows"].take();
        let used: Vec<f64> = cpu_s()?.iter().zip(&before).map(|(now, before)| now - before).collect();
        busiest_s += used.iter().copied().fold(0.0, f64::max);
        workers_s.iter_mut().zip(&used).for_each(|(sum, used)| *sum += used);
    }
    let wall_s = started.elapsed().as_secs_f64() / f64::from(ROUNDS);
    let (asked_s, spread) = (asked.cpu_s()? - own, spread_queries(asked)? - spread);
    Ok(Measured { asked_s, workers_s, busiest_s, wall_s, spread, answer })
}

/// How many queries of this node have run on workers.
fn spread_queries(asked: &Server) -> anyhow::Result<u64> {
    let nodes: serde_json::Value = serde_json::from_slice(&asked.get("/api/v1/nodes")?)?;
    Ok(nodes["queries_on_workers"].as_u64().unwrap_or(0))
}

fn wait_until_seen(asked: &Server, expected: usize) -> anyhow::Result<()> {
    let since = Instant::now();
    loop {
        let nodes: serde_json::Value = serde_json::from_slice(&asked.get("/api/v1/nodes")?)?;
        let there = nodes["nodes"].as_array().into_iter().flatten();
        if there.filter(|node| node["is_there"] == true && node["worker"].is_string()).count() == expected {
            break;
        }
        anyhow::ensure!(since.elapsed() < SEEN_WITHIN, "the node does not see {expected} workers: {nodes}");
        std::thread::sleep(Duration::from_millis(200));
    }
    std::thread::sleep(SEEN_AFTER);
    Ok(())
}

fn wait_until_rests(asked: &Server) -> anyhow::Result<()> {
    let since = Instant::now();
    while since.elapsed() < RESTS_WITHIN {
        let before = asked.cpu_s()?;
        std::thread::sleep(RESTS);
        if asked.cpu_s()? - before < RESTS.as_secs_f64() / 20.0 {
            break;
        }
    }
    Ok(())
}

fn compare(report: &mut Report, name: &str, spread: &Measured, alone: &Measured, n: usize) -> anyhow::Result<()> {
    anyhow::ensure!(spread.answer == alone.answer, "{name}: {} on workers, {} without", spread.answer, alone.answer);
    let (there, asked) = (spread.spread, u64::from(ROUNDS));
    let what = format!("{name}, queries that run there");
    report.row(&what, there.to_string(), "asked", asked.to_string(), there as f64 / asked as f64, "1");
    if there == 0 {
        return Ok(());
    }
    let each = |s: f64| format!("{:.0}", s * 1e3 / f64::from(ROUNDS));
    let parts: Vec<String> = spread.workers_s.iter().map(|s| each(*s)).collect();
    println!(
        "{name}, CPU ms per query: {} where it is asked, {} on workers",
        each(spread.asked_s),
        parts.join(" and ")
    );
    let (ours, theirs) = (spread.cpu_s(), alone.cpu_s());
    let what = format!("{name}, CPU of all nodes, ms");
    report.row(&what, each(ours), "on the node that is asked", each(theirs), ours / theirs, "<= 1.3");
    // One worker has all of it.
    if n > 1 {
        let largest = spread.busiest_s / spread.workers_s.iter().sum::<f64>();
        share(report, &format!("{name}, largest share of the workers' CPU, per query"), largest, n);
    }
    let (what, ms) = (format!("{name}, ms"), |s: f64| format!("{:.0}", s * 1e3));
    let ratio = spread.wall_s / alone.wall_s;
    report.row(&what, ms(spread.wall_s), "on the node that is asked", ms(alone.wall_s), ratio, "");
    Ok(())
}

fn share(report: &mut Report, what: &str, largest: f64, n: usize) {
    let equal = 1.0 / n as f64;
    report.row(what, format!("{largest:.2}"), "an equal share", format!("{equal:.2}"), largest / equal, "<= 1.2");
}

/// The rows that each task reads from files: one task per worker. `EXPLAIN ANALYZE VERBOSE` has them, rounded (`1.25 M`).
fn rows_by_task(asked: &Server, sql: &str) -> anyhow::Result<Vec<f64>> {
    let answer = asked.sql(&format!("explain analyze verbose {sql}"))?;
    let plans = answer["rows"].as_array().into_iter().flatten();
    let full = plans.filter(|row| row[0] == "Plan with Full Metrics").find_map(|row| row[1].as_str());
    let full = full.with_context(|| format!("no plan with metrics: {answer}"))?;
    let mut rows = Vec::new();
    for task in full.lines().filter(|line| line.contains(": DataSourceExec: ")) {
        let (_, rest) = task.split_once("output_rows={").with_context(|| format!("no rows: {task}"))?;
        let text = rest.split_once('}').and_then(|(number, _)| number.split_once(':')).context("a number of rows")?.1;
        let (number, scale) = match text.split_once(' ') {
            Some((number, "K")) => (number, 1e3),
            Some((number, "M")) => (number, 1e6),
            Some((number, "B")) => (number, 1e9),
            _ => (text, 1.0),
        };
        rows.push(number.parse::<f64>().with_context(|| text.to_string())? * scale);
    }
    println!("rows by task: {rows:?}");
    Ok(rows)
}
