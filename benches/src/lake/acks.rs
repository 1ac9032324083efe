//! What an acknowledgement takes, and what the store is asked for, while senders send all the time, now and then, and not at all.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{Places, SENDERS, rates};
use crate::load::{SPANS, Sent, Template, send_messages};
use crate::report::{Report, quantile};
use crate::server::{Server, size};

/// A node puts an object of its log at most every 200 ms (docs/lake.md).
const LOG_EVERY_MS: f64 = 200.0;
const PUTS_AT_REST_PER_MINUTE: f64 = 6.0;
/// All rows stay in the log.
const HOLD: &str = "[store]\nflush_age_s = 3600\n";
/// Requests of who sends now and then. Only the lake gets them.
pub const CALM: u64 = 20;

/// What was seen while four senders sent one request each, over and over.
struct Acknowledged {
    sent: Sent,
    log_bytes: f64,
    puts: f64,
    asked: BTreeMap<String, f64>,
    server: Server,
}

fn acknowledge(places: &Places, data: &str, template: &Arc<Template>, requests: u64) -> anyhow::Result<Acknowledged> {
    let server = places.serve(data, HOLD, &[])?;
    let (puts, asked) = (server.figure("rollscope_store_log_syncs_total")?, places.weed.requests()?);
    let sent = send_messages(&server.grpc, template, 1 << 40, requests, 1, SENDERS)?;
    let puts = server.figure("rollscope_store_log_syncs_total")? - puts;
    let asked = places.weed.requests_since(&asked)?;
    anyhow::ensure!(server.figure("rollscope_store_flushes_total")? == 0.0, "the log was emptied meanwhile");
    let log_bytes = match data == places.lake {
        false => size(&Path::new(data).join("wal"))?,
        true => {
            let found = places.weed.list(&format!("{}/writers/", places.prefix()))?;
            found.iter().filter(|(key, _)| key.contains("/log/")).map(|(_, bytes)| bytes).sum()
        }
    };
    Ok(Acknowledged { sent, log_bytes: log_bytes as f64, puts, asked, server })
}

pub fn run(
    report: &mut Report,
    places: &Places,
    template: &Arc<Template>,
    requests: u64,
    rests: Duration,
) -> anyhow::Result<()> {
    let spans = (requests * SPANS as u64) as f64;
    let folder = acknowledge(places, &places.folder, template, requests)?;
    folder.server.stop()?;
    let lake = acknowledge(places, &places.lake, template, requests)?;
    let put_bytes = lake.log_bytes / lake.puts;
    let put_ms = places.weed.put_ms(put_bytes as usize, 100)?;
    println!("an object of the log has {:.0} kB; puts of that size alone take {:.1} ms", put_bytes / 1e3, put_ms[50]);
    for (what, share) in [("median", 0.5), ("p99", 0.99)] {
        let (ours, folder) = (quantile(&lake.sent.acks_ms, share), quantile(&folder.sent.acks_ms, share));
        let bound = quantile(&put_ms, share) + LOG_EVERY_MS;
        let name = format!("acknowledgement, {SENDERS} senders of {SPANS} spans, {what} ms");
        let show = |ms: f64| format!("{ms:.1}");
        report.row(&name, show(ours), "a put alone, and 200 ms", show(bound), ours / bound, "<= 1");
        report.row(&name, show(ours), "folder", show(folder), ours / folder, "");
    }
    let calm = calm_ack_ms(&lake.server, template)?;
    let (alone, name) = (quantile(&put_ms, 0.5), "acknowledgement, one sender twice per second, median ms");
    report.row(name, format!("{calm:.1}"), "a put alone", format!("{alone:.1}"), calm / alone, "");

    let (seconds, asked) = (lake.sent.seconds, lake.asked.values().sum::<f64>());
    let (per_s, most) = (lake.puts / seconds, 1e3 / LOG_EVERY_MS);
    let name = "puts of the log per second and node";
    report.row(name, format!("{per_s:.2}"), "one every 200 ms", format!("{most:.0}"), per_s / most, "<= 1");
    println!("requests to the store meanwhile, in {seconds:.0} s: {:?}", lake.asked);
    report.row(
        "all requests to the store per second and node, while data arrives",
        format!("{:.2}", asked / seconds),
        "puts of the log",
        format!("{per_s:.2}"),
        asked / seconds / per_s,
        "",
    );
    at_rest(report, places, rests)?;

    let (ours, theirs, wire) = (lake.log_bytes / spans, folder.log_bytes / spans, template.len() as f64 / SPANS as f64);
    let name = "bytes per span in the log";
    report.row(name, format!("{ours:.1}"), "the log of a folder", format!("{theirs:.1}"), ours / theirs, "");
    report.row(name, format!("{ours:.1}"), "on the wire", format!("{wire:.1}"), ours / wire, "");
    rates(report, SPANS as u64, spans, lake.sent.seconds, folder.sent.seconds);
    lake.server.stop()
}

/// Who sends now and then waits for a put, not for the 200 ms.
fn calm_ack_ms(server: &Server, template: &Arc<Template>) -> anyhow::Result<f64> {
    let mut acks = Vec::new();
    for n in 0..CALM {
        std::thread::sleep(Duration::from_millis(500));
        acks.extend(send_messages(&server.grpc, template, (1 << 41) + n, 1, 1, 1)?.acks_ms);
    }
    acks.sort_by(f64::total_cmp);
    Ok(quantile(&acks, 0.5))
}

fn at_rest(report: &mut Report, places: &Places, rests: Duration) -> anyhow::Result<()> {
    let before = places.weed.requests()?;
    std::thread::sleep(rests);
    let mut asked = places.weed.requests_since(&before)?;
    asked.values_mut().for_each(|n| *n *= 60.0 / rests.as_secs_f64());
    println!("requests to the store of a node at rest, per minute: {asked:.0?}");
    let (puts, stated) = (asked.get("PUT").copied().unwrap_or(0.0), PUTS_AT_REST_PER_MINUTE);
    let name = "puts per minute of a node at rest";
    report.row(name, format!("{puts:.0}"), "stated", format!("{stated:.0}"), puts / stated, "about 1");
    Ok(())
}
