//! Durable ingest over gRPC.

use std::sync::Arc;

use crate::load::{SPANS, Template, send};
use crate::peer;
use crate::report::{Report, thousands};
use crate::server::Server;

const CLIENTS: usize = 8;

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    let template = Arc::new(Template::new()?);
    let bytes = template.len() as f64 / SPANS as f64;
    println!("request: {SPANS} spans of 8 attributes, {bytes:.0} bytes per span on the wire");
    let requests = if crate::full() { 20_000 } else { 6_000 };
    let spans = (requests * SPANS as u64) as f64;

    let prost = peer::prost_decode_s(&template)?;
    let ours = peer::our_decode_s(&template)?;
    report.row(
        "decode only, ns per span",
        format!("{:.0}", ours * 1e9),
        "prost",
        format!("{:.0}", prost * 1e9),
        ours / prost,
        "",
    );

    let nothing = peer::start_do_nothing()?;
    send(&nothing.grpc, &template, 0, requests / 10, CLIENTS)?;
    let before = nothing.cpu_s()?;
    let nothing_s = send(&nothing.grpc, &template, 0, requests, CLIENTS)?;
    let nothing_cpu = (nothing.cpu_s()? - before) / spans;
    drop(nothing);

    let dir = tempfile::tempdir()?;
    let server = Server::start(dir.path())?;
    send(&server.grpc, &template, 1 << 40, requests / 10, CLIENTS)?;
    let before = server.cpu_s()?;
    let ours_s = send(&server.grpc, &template, 0, requests, CLIENTS)?;
    // Until everything is in segments: what ingest costs includes writing it for good.
    server.get("/api/v1/health")?;
    let cpu = (server.cpu_s()? - before) / spans;
    let found = server.sql("select count(*) from spans")?["rows"][0][0].as_u64().unwrap_or(0);
    anyhow::ensure!(found == (requests + requests / 10) * SPANS as u64, "{found} spans arrived");
    let (_, peak) = server.memory()?;
    report.row(
        "durable ingest, spans/s",
        thousands(spans / ours_s),
        "do-nothing gRPC server",
        thousands(spans / nothing_s),
        nothing_s / ours_s,
        ">= 300k spans/s",
    );
    report.row(
        "ingest CPU per span, us (including flushes)",
        format!("{:.2}", cpu * 1e6),
        "prost decode only",
        format!("{:.2}", prost * 1e6),
        cpu / prost,
        "<= 3",
    );
    report.row(
        "ingest CPU per span, us (including flushes)",
        format!("{:.2}", cpu * 1e6),
        "do-nothing gRPC server",
        format!("{:.2}", nothing_cpu * 1e6),
        cpu / nothing_cpu,
        "",
    );
    let limit = 2.0 * (1u64 << 30) as f64;
    report.row(
        "peak memory while ingesting, MB",
        format!("{:.0}", peak as f64 / 1e6),
        "stated bound",
        "2147".into(),
        peak as f64 / limit,
        "<= 1",
    );
    server.stop()
}
