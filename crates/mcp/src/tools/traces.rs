//! Finding traces.

use rollscope_app::listings::traces;
use rollscope_app::params;
use rollscope_model::TraceId;
use serde_json::{Value, json};

use super::{Answer, Call, LIMIT, OFFSET, Problem, Tool, integer, text};
use crate::text::{cell, seconds, shown, table, when};

pub fn trace_id(text: &str) -> Result<TraceId, Problem> {
    params::trace_id(text)
}

pub const TRACES: Tool = Tool {
    name: "traces",
    title: "Find traces",
    about: "Finds traces: of a run, a step or a sample, by service, by the name or status of a span, or by duration. \
            Use critical_path with a trace's id to see what held it.",
    arguments: &[
        text("run", "Only of this run"),
        integer("step", "Only of this step"),
        text("sample", "Only of this sample"),
        text("rid", "Request id of the serving engine"),
        text("service", "Name of a service that has a span in the trace"),
        text("name", "Name of a span. * matches anything"),
        text("status", "Status of a span: unset, ok or error"),
        text("attr", "KEY=VALUE: an attribute of a span or of its resource"),
        text("min_duration", "Only traces at least this long, such as 250ms or 1.5s"),
        text("max_duration", "Only traces at most this long"),
        text("sort", "start, duration, spans or errors, with a leading - for descending order. The default is -start"),
        LIMIT,
        OFFSET,
    ],
    run: |call| Box::pin(find(call)),
};

async fn find(call: Call) -> Result<Answer, Problem> {
    let mut pairs = call.pairs()?;
    if !pairs.iter().any(|(name, _)| name == "limit") {
        pairs.push(("limit".into(), "10".into()));
    }
    let (mut search, _) = traces::parse(pairs)?;
    search.limit = search.limit.min(100);
    let desk = call.source.desk().await?;
    let found = json!(traces::find(desk.engine(), &search).await?);
    let row = |trace: &Value| {
        vec![
            cell(&trace["trace_id"]),
            when(&trace["start_ns"]),
            seconds(trace["duration_ns"].as_f64().unwrap_or(0.0) / 1e9),
            cell(&trace["root"]),
            cell(&trace["service"]),
            cell(&trace["spans"]),
            cell(&trace["errors"]),
            cell(&trace["run_id"]),
            cell(&trace["step"]),
            cell(&trace["sample_id"]),
        ]
    };
    let rows: Vec<_> = found["traces"].as_array().into_iter().flatten().map(row).collect();
    let total = found["total"].as_u64().unwrap_or(0) as usize;
    let note = shown(rows.len(), search.offset, total.max(rows.len()), "traces");
    let header = ["trace", "start", "took", "root", "service", "spans", "errors", "run", "step", "sample"];
    let text =
        if rows.is_empty() { format!("{note} Remove a filter.") } else { format!("{}\n{note}", table(&header, &rows)) };
    Ok(Answer { text, link: call.page.to(&["traces"]) })
}
