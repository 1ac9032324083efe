//! SQL.

use futures::StreamExt;
use rollscope_app::encode;
use serde_json::Value;

use super::{Answer, Call, LIMIT, Problem, Tool, text};
use crate::text::{number, table};

pub const SQL: Tool = Tool {
    name: "sql",
    title: "SQL",
    about: "Runs one read-only SQL query (DataFusion's dialect) over runs, spans, samples, conversations, metrics and series. The resource rollscope://schema \
            has their columns. Times are nanoseconds since the epoch; attributes are read with attr(start_attrs, 'key'). \
            Aggregate, and select few columns: at most 200 rows come back.",
    arguments: &[text("query", "The query").required(), LIMIT],
    run: |call| Box::pin(sql(call)),
};

const USUAL_ROWS: usize = 50;
const MAX_ROWS: usize = 200;
const MAX_QUERY_BYTES: usize = 100_000;

async fn sql(call: Call) -> Result<Answer, Problem> {
    // Longer than a parameter may be.
    let query = match call.arguments.get("query") {
        Some(Value::String(query)) if query.len() <= MAX_QUERY_BYTES => query,
        Some(_) => return Err(Problem::parameter("query", format!("text of at most {MAX_QUERY_BYTES} bytes"))),
        None => return Err(Problem::missing_parameter("query", "an SQL query")),
    };
    let good = format!("an integer from 1 to {MAX_ROWS}");
    let limit = match call.arguments.get("limit") {
        None | Some(Value::Null) => USUAL_ROWS,
        Some(n) => n.as_u64().map_or(0, |n| n as usize),
    };
    if !(1..=MAX_ROWS).contains(&limit) {
        return Err(Problem::parameter("limit", good));
    }
    let desk = call.source.desk().await?;
    let mut running = desk.engine().sql_rows(query, limit).await?;
    let names: Vec<String> = running.schema.fields().iter().map(|field| field.name().clone()).collect();
    let mut rows = Vec::new();
    while let Some(batch) = running.stream.next().await {
        let texts = encode::texts(&batch?).map_err(|e| Problem::internal(e.to_string()))?;
        rows.extend(texts.into_iter().map(|row| row.into_iter().map(rounded).collect::<Vec<_>>()));
    }
    let more = running.truncated.load(std::sync::atomic::Ordering::Relaxed);
    let header: Vec<&str> = names.iter().map(String::as_str).collect();
    let note = match more {
        true => format!(
            "Only the first {limit} rows are shown: pass limit (at most {MAX_ROWS}), aggregate, or use offset in the query."
        ),
        false => format!("{} rows.", rows.len()),
    };
    let text = if rows.is_empty() {
        format!("No rows. Columns: {}.", header.join(", "))
    } else {
        format!("{}\n{note}", table(&header, &rows))
    };
    Ok(Answer { text, link: call.page.to(&["sql"]) })
}

/// Doubles have more digits than anybody reads. Integers stay as they are.
fn rounded(text: String) -> String {
    match text.parse::<f64>() {
        Ok(value) if text.contains(['.', 'e']) && value.is_finite() => number(value),
        _ => text,
    }
}
