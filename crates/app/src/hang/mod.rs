//! Is a run hanging, and who waits for whom? Reads what the answer needs, as of one moment.

pub mod dumps;
pub mod ray;

use std::time::UNIX_EPOCH;

use arrow::array::RecordBatch;
use futures::future::BoxFuture;
use rollscope_answers::hang::scene::{DETAIL_COLUMNS, SERIES_COLUMNS, SPAN_COLUMNS, sender_of};
use rollscope_answers::hang::signs::{BEATS, series_names};
use rollscope_answers::hang::{Hang, OpenSpan, Rows, State, hang};
use rollscope_model::Table;
use rollscope_model::names::event::STACKS;
use rollscope_model::names::{SCRAPED_RUN, state};
use rollscope_model::read::{Ids, Ints, Text, column};
use rollscope_model::time::{LATEST_NS, NS_PER_S, now_ns};
use rollscope_query::{Engine, sql_text};

use self::dumps::SentStacks;
use crate::problem::Problem;

/// How far back what is usual is looked for.
const HISTORY_NS: i64 = 6 * 3600 * NS_PER_S;
/// The same for open spans of other runs, which may serve this one.
const SERVED_NS: i64 = 24 * 3600 * NS_PER_S;
/// Spans that tell what is usual. Of a busy run, fewer hours are read.
const MAX_HISTORY: u64 = 1_500_000;
/// To find out, spans are counted backwards: the last minutes first, then four times as many, each in so many parts.
const FIRST_COUNTED_NS: i64 = 300 * NS_PER_S;
const COUNTED_PARTS: i64 = 60;
/// Where the last event is looked for first, before the end of what the store has of a run.
const LATELY_NS: i64 = 600 * NS_PER_S;
/// Rows that are read of each table.
const MAX_SPANS: usize = 4_000_000;
const MAX_OPEN: usize = 400_000;
const MAX_POINTS: usize = 2_000_000;
/// Series are read around the last event, and before the moment in question.
const SERIES_BEFORE_NS: i64 = 900 * NS_PER_S;
const SERIES_AFTER_NS: i64 = 300 * NS_PER_S;
/// Stacks of a run that moves are looked for in the last minutes.
const STACKS_NS: i64 = 120 * NS_PER_S;
const MAX_STACKS: usize = 4096;

/// `2026-11-17T14:22:51Z`, `2026-11-17 14:22:51`, or seconds since 1970. UTC.
pub fn parse_moment(text: &str) -> Option<i64> {
    let text = text.trim();
    let ns = match text.parse::<f64>() {
        Ok(seconds) => rollscope_model::time::seconds_to_ns(seconds)?,
        Err(_) => {
            let since = humantime::parse_rfc3339_weak(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
            i64::try_from(since.as_nanos()).ok()?
        }
    };
    (0..=LATEST_NS).contains(&ns).then_some(ns)
}

/// What a moment must look like.
pub const MOMENT: &str = "a time such as 2026-11-17T14:22:51Z, or seconds since 1970";

async fn rows(engine: &Engine, sql: String, most: usize) -> Result<Vec<RecordBatch>, Problem> {
    let (rows, truncated) = engine.sql_rows(&sql, most).await?.collect().await?;
    if truncated {
        return Err(Problem::too_large("rows", format!("the run has more than {most} rows to look at")));
    }
    Ok(rows)
}

fn unreadable(error: arrow::error::ArrowError) -> Problem {
    Problem::internal(format!("cannot read the run's columns: {error}"))
}

fn number(batches: &[RecordBatch], name: &str) -> Result<Option<i64>, Problem> {
    match batches.iter().find(|batch| batch.num_rows() > 0) {
        Some(batch) => Ok(column::<Ints>(batch, name).map_err(unreadable)?.get(0)),
        None => Ok(None),
    }
}

/// Judges a run as it is now, or as it was at a moment.
pub fn ask<'a>(engine: &'a Engine, run: &'a str, at: Option<i64>) -> BoxFuture<'a, Result<Hang, Problem>> {
    Box::pin(async move {
        let run = engine.find_run(run).await?;
        let read = gather(engine, run, at).await?;
        let mut found = engine.compute(move || hang(&read)).await?.map_err(unreadable)?;
        let stacks = stacks(engine, &found).await?;
        dumps::join_stacks(&mut found, &stacks);
        Ok(found)
    })
}

/// Stacks that processes sent since something last happened, the newest of each.
async fn stacks(engine: &Engine, found: &Hang) -> Result<Vec<SentStacks>, Problem> {
    let least = found.at_ns.saturating_sub(STACKS_NS);
    let from = found.last_ns.filter(|_| found.state == State::Hanging).map_or(least, |last| last.min(least));
    let sql = format!(
        "select resource, service, trace_id, span_id, attr_str(attrs, '{STACKS}') as text from spans \
         where run_id = {} and name = '{STACKS}' and start_ns between {from} and {} order by start_ns desc limit {MAX_STACKS}",
        sql_text(&found.run),
        found.at_ns
    );
    let mut out: Vec<SentStacks> = Vec::new();
    for batch in rows(engine, sql, MAX_STACKS).await? {
        let text = |name: &str| column::<Text>(&batch, name).map_err(unreadable);
        let (resources, services, texts) = (text("resource")?, text("service")?, text("text")?);
        let (traces, spans): (Ids<16>, Ids<8>) =
            (column(&batch, "trace_id").map_err(unreadable)?, column(&batch, "span_id").map_err(unreadable)?);
        for row in 0..batch.num_rows() {
            let Some(text) = texts.get(row) else { continue };
            let of = sender_of(resources.get(row).unwrap_or_default(), services.get(row).unwrap_or_default());
            if out.iter().any(|known| known.host == of.host && known.pid == of.pid) {
                continue;
            }
            let span = OpenSpan {
                trace_id: hex::encode(traces.at(row)),
                span_id: hex::encode(spans.at(row)),
                sample_id: None,
            };
            out.push(SentStacks { host: of.host, pid: of.pid, text: text.to_string(), span });
        }
    }
    Ok(out)
}

async fn gather(engine: &Engine, run: String, asked: Option<i64>) -> Result<Rows, Problem> {
    let at = asked.unwrap_or_else(now_ns);
    let of_run = format!("run_id = {}", sql_text(&run));
    // Stacks are sent because somebody asked: they are no progress.
    let own_spans = format!("{of_run} and name <> '{STACKS}'");
    let (stored, newest) = engine.extent(Table::Spans, &run);
    let last = last_event(engine, &of_run, &own_spans, newest.map_or(at, |newest| newest.min(at)), at).await?;
    let over = over(engine, &of_run, asked, last).await?;
    let last = last.unwrap_or(at);
    let from = match stored > MAX_HISTORY {
        true => history(engine, &own_spans, last, at).await?,
        false => last.saturating_sub(HISTORY_NS),
    };
    let open = format!("(end_ns > {at} or end_ns is null and state = '{}')", state::OPEN);
    // Each request has an id of its own. Only what is open is looked up by it.
    let column = |name: &&str| match *name {
        "request_id" => format!("case when {open} then request_id end as request_id"),
        name => name.to_string(),
    };
    let columns = SPAN_COLUMNS.iter().map(column).collect::<Vec<_>>().join(", ");
    let spans = format!(
        "select {columns} from spans where {own_spans} and start_ns <= {at} and (start_ns >= {from} or {open})"
    );
    let served = last.saturating_sub(SERVED_NS);
    let others = format!(
        "select {columns} from spans where run_id <> {} and start_ns >= {served} and start_ns <= {at} and {open} limit {MAX_OPEN}",
        sql_text(&run)
    );
    let details = format!(
        "select {} from spans where {of_run} and start_ns >= {served} and start_ns <= {at} and {open} limit {MAX_OPEN}",
        DETAIL_COLUMNS.join(", ")
    );
    let names: Vec<String> = series_names().into_iter().map(sql_text).collect();
    let within = |from: i64, to: i64| format!("time_ns between {from} and {to}");
    let (around, before) = (
        within(last.saturating_sub(SERIES_BEFORE_NS), last.saturating_add(SERIES_AFTER_NS).min(at)),
        within(at - SERIES_AFTER_NS, at),
    );
    let series = format!(
        "select {} from series where run_id in ({}, {}) and name in ({}) and ({around} or {before})",
        SERIES_COLUMNS.join(", "),
        sql_text(&run),
        sql_text(SCRAPED_RUN),
        names.join(", "),
    );
    let beats = format!(
        "select target, min(time_ns) as first_ns, max(time_ns) as last_ns, count(*) as points from series \
         where {of_run} and name in ({}) and ({around} or {before}) group by target, name, {before}",
        BEATS.map(sql_text).join(", ")
    );
    let metrics =
        format!("select distinct time_ns from metrics where {of_run} and source is null and {}", within(from, at));
    let (mut spans, others, details, series, beats, metrics) = futures::try_join!(
        rows(engine, spans, MAX_SPANS),
        rows(engine, others, MAX_OPEN),
        rows(engine, details, MAX_OPEN),
        rows(engine, series, MAX_POINTS),
        rows(engine, beats, MAX_OPEN),
        rows(engine, metrics, MAX_POINTS),
    )?;
    spans.extend(others);
    Ok(Rows { run, at_ns: at, over, spans, details, series, beats, metrics })
}

/// When something last happened. It is near `newest` as a rule, so the rest is left unread.
async fn last_event(
    engine: &Engine,
    of_run: &str,
    own_spans: &str,
    newest: i64,
    at: i64,
) -> Result<Option<i64>, Problem> {
    let logged =
        format!("select max(time_ns) as last from metrics where {of_run} and source is null and time_ns <= {at}");
    let logged = number(&rows(engine, logged, 1).await?, "last")?;
    for least in [newest.saturating_sub(LATELY_NS), newest.saturating_sub(HISTORY_NS), 0] {
        let sql = format!(
            "select greatest(max(start_ns), max(case when end_ns <= {at} then end_ns end)) as last from spans \
             where {own_spans} and start_ns <= {at} and (start_ns >= {least} or end_ns >= {least})"
        );
        // An open span that began long ago says nothing of what came after it.
        if let Some(last) = number(&rows(engine, sql, 1).await?, "last")?.filter(|last| *last >= least) {
            return Ok(logged.max(Some(last)));
        }
    }
    Ok(logged)
}

/// What the run says of itself, if it is over. A run that was read from files says nothing: it is over unless a moment is asked for.
async fn over(
    engine: &Engine,
    of_run: &str,
    asked: Option<i64>,
    last: Option<i64>,
) -> Result<Option<(String, i64)>, Problem> {
    let found = rows(engine, format!("select status, ended_ns from runs where {of_run}"), 16).await?;
    let Some(batch) = found.iter().find(|batch| batch.num_rows() > 0) else { return Ok(None) };
    let (statuses, ends): (Text, Ints) =
        (column(batch, "status").map_err(unreadable)?, column(batch, "ended_ns").map_err(unreadable)?);
    let status = statuses.get(0);
    let ended = ends.get(0).or_else(|| last.filter(|_| asked.is_none() && status != Some("running")));
    let said = status.filter(|status| *status != "running").unwrap_or("finished").to_string();
    Ok(ended.filter(|ended| asked.is_none_or(|at| *ended <= at)).map(|ended| (said, ended)))
}

/// The beginning of the history that is read of a run with many spans.
async fn history(engine: &Engine, own_spans: &str, last: i64, at: i64) -> Result<i64, Problem> {
    let (mut near, mut far, mut spans) = (0, FIRST_COUNTED_NS, 0);
    while near < HISTORY_NS {
        let part = (far - near) / COUNTED_PARTS;
        let (from, to) = (last.saturating_sub(far), if near == 0 { at } else { last.saturating_sub(near) });
        let sql = format!(
            "select ({last} - start_ns) / {part} as part, count(*) as spans from spans \
             where {own_spans} and start_ns > {from} and start_ns <= {to} group by 1 order by 1"
        );
        for batch in rows(engine, sql, MAX_OPEN).await? {
            let (parts, counts): (Ints, Ints) =
                (column(&batch, "part").map_err(unreadable)?, column(&batch, "spans").map_err(unreadable)?);
            for row in 0..batch.num_rows() {
                spans += counts.at(row) as u64;
                if spans > MAX_HISTORY {
                    return Ok(last - parts.at(row).max(1) * part);
                }
            }
        }
        (near, far) = (far, (far * 4).min(HISTORY_NS));
    }
    Ok(last.saturating_sub(HISTORY_NS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_as_people_write_them() {
        let at = 1_790_000_000 * NS_PER_S;
        for text in ["2026-09-21T14:13:20Z", "2026-09-21 14:13:20", "1790000000", " 1790000000.0 "] {
            assert_eq!(parse_moment(text), Some(at), "{text}");
        }
        for text in ["", "now", "14:13", "-1", "1e30", "NaN"] {
            assert_eq!(parse_moment(text), None, "{text}");
        }
    }
}
