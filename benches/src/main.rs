//! `make bench`: every figure next to its reference, measured in the same run, and their ratio.
//!
//! Drives the release binary over its ports, as a user does; only the references run in this process. One file per topic;
//! names given on the command line choose topics. `FULL=1` for the long ones at full size.

mod answers;
mod conversations;
mod disk;
mod dumps;
mod ingest;
mod load;
mod metrics;
mod page;
mod peer;
mod queries;
mod report;
mod server;
mod traces;

use report::Report;

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
    let chosen = |topic: &str| args.is_empty() || args.iter().any(|a| a == topic);
    let mut report = Report::default();
    if chosen("ingest") {
        ingest::run(&mut report)?;
    }
    if chosen("disk") {
        disk::run(&mut report)?;
    }
    if chosen("dumps") {
        dumps::run(&mut report)?;
    }
    if chosen("answers") {
        answers::run(&mut report)?;
    }
    if chosen("page") {
        page::run(&mut report)?;
    }
    if chosen("conversations") {
        conversations::run(&mut report)?;
    }
    if chosen("growth") || chosen("queries") {
        queries::run(&mut report)?;
    }
    if chosen("traces") {
        traces::run(&mut report)?;
    }
    if chosen("metrics") {
        metrics::run(&mut report)?;
    }
    println!("{report}");
    Ok(())
}

pub fn full() -> bool {
    std::env::var_os("FULL").is_some_and(|v| v != "0")
}
