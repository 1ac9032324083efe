//! `make bench`: every figure next to its reference, measured in the same run, and their ratio.
//!
//! Drives the release binary over its ports, as a user does; only the references run in this process. One file per topic;
//! names given on the command line choose topics. `FULL=1` for the long ones at full size, `RUNS=5` for medians of five.

mod answers;
mod conversations;
mod disk;
mod dumps;
mod ingest;
mod lake;
mod load;
mod metrics;
mod page;
mod peer;
mod queries;
mod report;
mod sdk;
mod server;
mod tokens;
mod traces;

use report::Report;

type Topic = fn(&mut Report) -> anyhow::Result<()>;

const TOPICS: &[(&str, Topic)] = &[
    ("sdk", sdk::run),
    ("ingest", ingest::run),
    ("disk", disk::run),
    ("dumps", dumps::run),
    ("answers", answers::run),
    ("page", page::run),
    ("conversations", conversations::run),
    ("queries", queries::run),
    ("traces", traces::run),
    ("metrics", metrics::run),
    ("tokens", tokens::run),
    ("lake", lake::run),
];

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().map(String::as_str) == Some("--do-nothing-server") {
        return peer::do_nothing_server();
    }
    // For tests of the page, which need dumps that are larger than a fixture may be.
    if let [flag, shape, out] = args.as_slice()
        && flag == "--write-dump"
    {
        return dumps::write(shape, out.as_ref());
    }
    if let Some(unknown) = args.iter().find(|arg| TOPICS.iter().all(|(topic, _)| topic != arg)) {
        let topics: Vec<&str> = TOPICS.iter().map(|(topic, _)| *topic).collect();
        eprintln!("rollscope-bench: unknown topic `{unknown}`; expected some of: {}", topics.join(", "));
        std::process::exit(2);
    }
    let runs = std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(1).max(1);
    let mut report = Report::default();
    let mut failed = Vec::new();
    for _ in 0..runs {
        for (topic, run) in TOPICS {
            if args.is_empty() || args.iter().any(|arg| arg == topic) {
                report.topic = topic;
                let started = std::time::Instant::now();
                // The others took long, or will: they are not lost with it.
                if let Err(error) = run(&mut report) {
                    eprintln!("rollscope-bench: {topic}: {error:#}");
                    failed.push(*topic);
                }
                println!("{topic} took {} s\n", started.elapsed().as_secs());
            }
        }
    }
    println!("{report}");
    if let Some(before) = report::committed() {
        let changes = report.changes(&before);
        println!(
            "\nBeside {} ({}), {} ratios changed by more than 15 %.",
            before["commit"],
            before["date"],
            changes.len()
        );
        changes.iter().for_each(|change| println!("  {change}"));
    }
    if !failed.is_empty() {
        anyhow::bail!("{} failed", failed.join(", "));
    }
    // The file is one run of one commit: all topics or none.
    if args.is_empty() {
        let text = serde_json::to_string_pretty(&report.json(runs, full()))?;
        std::fs::write(report::FILE, text + "\n")?;
        println!("\nwritten to {}", report::FILE);
    }
    Ok(())
}

pub fn full() -> bool {
    std::env::var_os("FULL").is_some_and(|v| v != "0")
}
