//! Files that ROLL and SGLang wrote, against an independent reading of the same JSON.

use std::collections::HashMap;

use rollscope_formats::import::{ImportOptions, open};
use rollscope_model::Table;
use serde_json::{Value as Json, json};

use super::support::{fixture, rows};

/// Imports a file: rows by table, in order.
fn import(path: &str) -> HashMap<&'static str, Vec<Json>> {
    let mut tables: HashMap<&str, Vec<Json>> = HashMap::new();
    let source = open(&fixture(path)).unwrap();
    assert_eq!(source.format(), "OTLP JSON");
    let (size, progress) = (source.size(), source.progress());
    let imported = source
        .read(&ImportOptions::default(), &mut |table: Table, batch| {
            tables.entry(table.name()).or_default().extend(rows(&batch));
            Ok(())
        })
        .unwrap();
    assert_eq!((imported.rejected, &imported.reasons[..]), (0, &[][..]));
    assert_eq!(imported.rows, tables["spans"].len() as u64);
    assert_eq!(progress.load(std::sync::atomic::Ordering::Relaxed), size);
    tables
}

/// The value of one OTLP attribute as our text, done by hand.
fn value_text(value: &Json) -> String {
    let (kind, inner) = value.as_object().unwrap().iter().next().unwrap();
    match kind.as_str() {
        "stringValue" | "boolValue" => inner.to_string(),
        "intValue" => inner.as_str().unwrap().to_string(),
        "doubleValue" => format!("{:?}", inner.as_f64().unwrap()),
        "arrayValue" => {
            let items: Vec<_> = inner["values"].as_array().unwrap().iter().map(value_text).collect();
            format!("[{}]", items.join(","))
        }
        other => panic!("{other} does not occur in the fixtures"),
    }
}

fn pairs(list: &Json) -> Json {
    let empty = Vec::new();
    let list = list.as_array().unwrap_or(&empty);
    list.iter().map(|kv| json!([kv["key"], value_text(&kv["value"])])).collect()
}

fn attribute<'a>(span: &'a Json, key: &str) -> Option<&'a Json> {
    span["attributes"].as_array()?.iter().find(|kv| kv["key"] == key).map(|kv| &kv["value"])
}

fn compare(path: &str) -> Vec<Json> {
    let rows = import(path).remove("spans").unwrap();
    let text = std::fs::read_to_string(fixture(path)).unwrap();
    let mut spans = Vec::new();
    for line in text.lines() {
        let request: Json = serde_json::from_str(line).unwrap();
        for resource in request["resourceSpans"].as_array().unwrap() {
            for scope in resource["scopeSpans"].as_array().unwrap() {
                for span in scope["spans"].as_array().unwrap() {
                    spans.push((resource["resource"].clone(), scope["scope"]["name"].clone(), span.clone()));
                }
            }
        }
    }
    assert_eq!(rows.len(), spans.len());
    for (row, (resource, scope, span)) in rows.iter().zip(&spans) {
        let time = |t: &Json| json!(t.as_str().unwrap().parse::<i64>().unwrap());
        let kinds = ["unspecified", "internal", "server", "client", "producer", "consumer"];
        // ROLL's own receiver writes the name of the code.
        let status = match &span["status"]["code"] {
            Json::String(name) => name.strip_prefix("STATUS_CODE_").unwrap().to_lowercase(),
            code => ["unset", "ok", "error"][code.as_u64().unwrap_or(0) as usize].to_string(),
        };
        let parent = span.get("parentSpanId").filter(|id| *id != "").cloned().unwrap_or(Json::Null);
        assert_eq!(row["trace_id"], span["traceId"]);
        assert_eq!(row["span_id"], span["spanId"]);
        assert_eq!(row["parent_span_id"], parent);
        assert_eq!(row["name"], span["name"]);
        assert_eq!(row["kind"], kinds[span["kind"].as_u64().unwrap() as usize]);
        assert_eq!(row["start_ns"], time(&span["startTimeUnixNano"]));
        assert_eq!(row["end_ns"], time(&span["endTimeUnixNano"]));
        assert_eq!(row["state"], "closed");
        assert_eq!(row["status"], *status);
        assert_eq!(row["status_message"], span["status"]["message"]);
        assert_eq!(row["flags"], span["flags"]);
        assert_eq!(row["start_attrs"], json!([]));
        assert_eq!(row["end_attrs"], pairs(&span["attributes"]));
        let events = row["events"].as_array().unwrap();
        assert_eq!(events.len(), span["events"].as_array().map_or(0, Vec::len));
        for (event, came) in events.iter().zip(span["events"].as_array().unwrap_or(&Vec::new())) {
            assert_eq!(event["time_ns"], time(&came["timeUnixNano"]));
            assert_eq!(event["name"], came["name"]);
            assert_eq!(event["attrs"], pairs(&came["attributes"]));
        }
        let links = row["links"].as_array().unwrap();
        assert_eq!(links.len(), span["links"].as_array().map_or(0, Vec::len));
        for (link, came) in links.iter().zip(span["links"].as_array().unwrap_or(&Vec::new())) {
            assert_eq!((&link["trace_id"], &link["span_id"]), (&came["traceId"], &came["spanId"]));
            assert_eq!(link["attrs"], pairs(&came["attributes"]));
            assert_eq!(link["flags"], came["flags"]);
        }
        let service = attribute(resource, "service.name").unwrap()["stringValue"].clone();
        assert_eq!(row["service"], service);
        // All roles of one of ROLL's jobs are one run.
        assert_eq!(row["run_id"], if scope == "roll" { json!("roll") } else { service });
        let said: Json = serde_json::from_str(row["scope"].as_str().unwrap()).unwrap();
        assert_eq!(&said["name"], scope);
        let resource_row: Json = serde_json::from_str(row["resource"].as_str().unwrap()).unwrap();
        let attributes = resource["attributes"].as_array().unwrap();
        assert_eq!(resource_row.as_object().unwrap().len(), attributes.len());
        for kv in attributes {
            assert_eq!(resource_row[kv["key"].as_str().unwrap()].to_string(), value_text(&kv["value"]));
        }
        // SGLang's own names fill the columns that they mean.
        let said = |key| attribute(span, key).map_or(Json::Null, |v| v["stringValue"].clone());
        assert_eq!(row["request_id"], said("rid"));
        assert_eq!(row["thread"], said("thread_label"));
        assert_eq!(row["host"], said("host_id"));
        let pid = attribute(span, "pid").map_or(Json::Null, |v| time(&v["intValue"]));
        assert_eq!(row["pid"], pid);
    }
    rows
}

#[test]
fn roll() {
    assert_eq!(compare("roll/roll_traces.jsonl").len(), 36);
    let runs = import("roll/roll_traces.jsonl").remove("runs").unwrap();
    let runs: Vec<_> = runs.iter().map(|r| (&r["run_id"], &r["framework"])).collect();
    assert_eq!(runs, [(&"roll".into(), &"roll".into())]);
}

#[test]
fn sglang() {
    let rows = compare("sglang/sglang_otel.jsonl");
    assert_eq!(rows.len(), 192);
    assert!(rows.iter().any(|r| !r["tp_rank"].is_null()));
    compare("sglang/crash_root_without_slices.jsonl");
    let tables = import("sglang/sglang_otel.jsonl");
    let first = rows.iter().map(|r| r["start_ns"].as_i64().unwrap()).min().unwrap();
    let sglang = tables["runs"].iter().find(|r| r["run_id"] == "sglang").unwrap();
    assert_eq!(sglang["framework"], "sglang");
    assert!(sglang["started_ns"].as_i64().unwrap() >= first);
}
