//! Dumps that slime wrote, against the cache its own viewer makes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int32Type, Int64Type};
use rollscope_formats::export::slime_cache;
use rollscope_formats::import::slime_pt::{Dump, SlimeDump, default_run};
use rollscope_formats::import::{IMPORTERS, ImportOptions, Importer};
use rollscope_formats::testing::torch_writer::{Shape, write_dump};
use rollscope_model::Table;
use rollscope_model::read::Tokens;
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/slime").join(name)
}

fn open(name: &str) -> Dump {
    Dump::open(&fixture(&format!("{name}.pt"))).expect("the fixture opens")
}

fn ours(dump: &Dump) -> Value {
    let bytes = slime_cache::to_vec(dump, "x.pt", 1.5).expect("the cache is written");
    serde_json::from_slice(&bytes).expect("the cache is valid JSON")
}

fn theirs(name: &str) -> Value {
    let path = fixture(&format!("{name}.trace_timeline_cache.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Equal, numbers to a microsecond; keys in the same order.
fn compare(path: &str, ours: &Value, theirs: &Value) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let (x, y): (Vec<_>, Vec<_>) = (a.keys().collect(), b.keys().collect());
            assert_eq!(x, y, "{path}");
            for (key, value) in a {
                if !["pt_path", "generated_at"].contains(&key.as_str()) {
                    compare(&format!("{path}.{key}"), value, &b[key]);
                }
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{path}");
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}[{i}]"), a, b);
            }
        }
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            assert!((a - b).abs() < 1.1e-6, "{path}: {a} {b}");
        }
        _ => assert_eq!(ours, theirs, "{path}"),
    }
}

#[test]
fn caches_are_equal_to_slimes_item_by_item() {
    for name in ["small", "legacy", "sample_objects", "tensors", "bare_list", "odd_traces"] {
        compare(name, &ours(&open(name)), &theirs(name));
    }
}

#[test]
fn where_slimes_viewer_breaks_ours_is_valid() {
    let cache = ours(&open("breaks_nan"));
    assert_eq!(cache["rows"][0]["reward"], Value::Null);
    assert_eq!(cache["rows"][0]["items"][0]["attrs"]["end_attrs"]["v"], Value::Null);
}

#[test]
fn rows_do_not_depend_on_the_container_or_on_the_kind_of_sample() {
    let small = ours(&open("small"))["rows"].clone();
    assert_eq!(ours(&open("legacy"))["rows"], small);
    assert_eq!(ours(&open("sample_objects"))["rows"], small);
    let tables = rows(&open("small"), "run");
    for other in ["legacy", "sample_objects"] {
        let others = rows(&open(other), "run");
        for (table, batch) in &tables {
            // These name the file.
            if matches!(table, Table::Runs | Table::Samples | Table::Tokens) {
                continue;
            }
            assert_eq!(Some(batch), others.iter().find(|(t, _)| t == table).map(|(_, b)| b), "{other}");
        }
    }
}

#[test]
fn the_summary_counts_what_is_there() {
    let summary = open("small").summary();
    assert_eq!((summary.samples, summary.rows, summary.open, summary.orphans), (8, 8, 2, 3));
    assert_eq!(summary.attempts, 2);
    assert_eq!((summary.step, summary.split), (Some(0), "train"));
    assert!((summary.end.unwrap() - summary.start.unwrap() - 7.666583).abs() < 1e-5);
    let bare = open("bare_list").summary();
    assert_eq!((bare.samples, bare.rows, bare.step), (4, 2, None));
}

fn rows(dump: &Dump, run: &str) -> Vec<(Table, RecordBatch)> {
    let mut batches = Vec::new();
    let options = ImportOptions { run: Some(run.into()), ..ImportOptions::default() };
    dump.batches(&options, &mut |table, batch| {
        batches.push((table, batch));
        Ok(())
    })
    .expect("rows are built");
    batches
}

fn text(batch: &RecordBatch, column: &str, row: usize) -> Option<String> {
    let array = arrow::compute::cast(batch.column_by_name(column).unwrap(), &arrow::datatypes::DataType::Utf8).unwrap();
    let array = array.as_string::<i32>();
    array.is_valid(row).then(|| array.value(row).to_string())
}

fn table(batches: &[(Table, RecordBatch)], table: Table) -> RecordBatch {
    let found: Vec<_> = batches.iter().filter(|(t, _)| *t == table).map(|(_, b)| b.clone()).collect();
    arrow::compute::concat_batches(&table.schema(), &found).unwrap()
}

#[test]
fn samples_spans_and_conversations_reach_the_tables() {
    let batches = rows(&open("small"), "r1");
    let samples = table(&batches, Table::Samples);
    assert_eq!(samples.num_rows(), 8);
    let get = |column: &str, row| text(&samples, column, row);
    assert_eq!(get("sample_id", 1).as_deref(), Some("1"));
    assert_eq!(get("group_id", 5).as_deref(), Some("1"));
    assert_eq!(get("status", 3).as_deref(), Some("truncated"));
    assert_eq!(get("source", 6).as_deref(), Some("math"));
    assert_eq!(get("reward", 6).as_deref(), Some("-1.5"));
    assert_eq!(get("reward_json", 1).as_deref(), Some(r#"{"score":0.25,"acc":false,"detail":{"f1":0.5}}"#));
    assert_eq!(get("reward", 1), None);
    assert_eq!(get("turns", 1).as_deref(), Some("3"));
    assert_eq!(get("tool_calls", 1).as_deref(), Some("3"));
    assert_eq!(get("response_length", 1).as_deref(), Some("48"));
    assert_eq!(get("attempt", 4).as_deref(), Some("1"));
    assert_eq!(get("split", 0).as_deref(), Some("train"));

    let spans = table(&batches, Table::Spans);
    let cache = theirs("small");
    // Prefill and decode lanes are how slime draws a span, not spans.
    let items: usize = cache["rows"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|r| r["items"].as_array().unwrap())
        .filter(|i| !i["name"].as_str().unwrap().ends_with(']'))
        .count();
    assert_eq!(spans.num_rows(), items);
    let states: BTreeSet<_> = (0..spans.num_rows()).filter_map(|r| text(&spans, "state", r)).collect();
    assert_eq!(states.into_iter().collect::<Vec<_>>(), ["closed", "instant", "open", "orphan_end"]);
    let mut seen = BTreeSet::new();
    let (traces, ids) = (spans["trace_id"].as_fixed_size_binary(), spans["span_id"].as_fixed_size_binary());
    for row in 0..spans.num_rows() {
        assert!(seen.insert((traces.value(row).to_vec(), ids.value(row).to_vec())), "identities are unique");
        if text(&spans, "original_span_id", row).as_deref() == Some("451b4cf36123fdf77656af7229d4beef") {
            assert_eq!(text(&spans, "name", row).as_deref(), Some("sglang_generate"));
            assert_eq!(spans["start_ns"].as_primitive::<Int64Type>().value(row), 1_756_000_000_865_620_852);
            assert_eq!(text(&spans, "request_id", row).as_deref(), Some("a14e93f5dc33a9860cfcb34759548ad6"));
            let start = spans["start_attrs"].as_map().value(row);
            assert_eq!(start.column(0).as_string::<i32>().value(0), "max_new_tokens");
            assert_eq!(start.column(1).as_string::<i32>().value(0), "4096");
            assert_eq!(spans["end_attrs"].as_map().value(row).len(), 8);
        }
    }
    let errors = (0..spans.num_rows()).filter(|r| text(&spans, "status", *r).as_deref() == Some("error"));
    let errors: Vec<_> = errors.filter_map(|r| text(&spans, "status_message", r)).collect();
    assert_eq!(errors, ["TimeoutError: router timed out"; 2]);

    let talks = table(&batches, Table::Conversations);
    assert_eq!(talks.num_rows(), 8);
    assert_eq!(text(&talks, "id", 2).as_deref(), Some("r1/train/0/2"));
    let messages: Value = serde_json::from_str(&text(&talks, "messages", 0).unwrap()).unwrap();
    assert_eq!(messages[0]["role"], "user");
    assert_eq!(messages[1]["role"], "assistant");
    assert_eq!(talks["message_count"].as_primitive::<Int64Type>().value(0), 2);
    let about: Value = serde_json::from_str(&text(&talks, "metadata", 0).unwrap()).unwrap();
    assert_eq!((&about["reward"], &about["label"], &about["status"]), (&1.0.into(), &"42".into(), &"completed".into()));
    assert_eq!(talks["reward"].as_primitive::<Float64Type>().value(0), 1.0);
    assert_eq!(talks["trace_id"].as_fixed_size_binary().value(0), samples["trace_id"].as_fixed_size_binary().value(0));

    let runs = table(&batches, Table::Runs);
    assert_eq!(runs.num_rows(), 1);
    assert_eq!(text(&runs, "framework", 0).as_deref(), Some("slime"));
    assert_eq!(runs["started_ns"].as_primitive::<Int64Type>().value(0), 1_756_000_000_307_591_438);
    assert_eq!(samples["turns"].as_primitive::<Int32Type>().value(7), 0);
}

#[test]
fn importing_twice_gives_the_same_rows() {
    assert_eq!(rows(&open("tensors"), "r"), rows(&open("tensors"), "r"));
}

#[test]
fn values_keep_their_types_in_the_tables() {
    let spans = table(&rows(&open("tensors"), "r"), Table::Spans);
    let mut seen = BTreeSet::new();
    for row in 0..spans.num_rows() {
        for column in ["start_attrs", "end_attrs"] {
            let entries = spans[column].as_map().value(row);
            for i in 0..entries.len() {
                let (k, v) =
                    (entries.column(0).as_string::<i32>().value(i), entries.column(1).as_string::<i32>().value(i));
                seen.insert(format!("{k}={v}"));
            }
        }
    }
    for wanted in [
        "np_i64=7",
        "np_bool=true",
        "np_f64=0.25",
        "t0d=3",
        "big=1180591620717411303424",
        "bytes={\"$bytes\":\"YWI=\"}",
        "set=[1]",
    ] {
        assert!(seen.contains(wanted), "{wanted} in {seen:?}");
    }
}

#[test]
fn a_dump_is_recognised_and_its_name_tells_step_and_split() {
    let head = std::fs::read(fixture("small.pt")).unwrap();
    let path = Path::new("dumps/rollout_eval_17.pt");
    let found = IMPORTERS.iter().find(|i| i.detects(&head[..64], path)).unwrap();
    assert_eq!(found.name(), SlimeDump.name());
    assert!(SlimeDump.detects(&std::fs::read(fixture("legacy.pt")).unwrap()[..64], path));
    assert!(!SlimeDump.detects(b"{\"resourceSpans\":[]}", path));
    let bare = Dump::from_bytes(std::fs::read(fixture("bare_list.pt")).unwrap(), path).unwrap();
    assert_eq!((bare.step(), bare.split()), (Some(17), "eval"));
    assert_eq!(default_run(bare.path()), "dumps");
    let mut rows = BTreeMap::new();
    let read =
        SlimeDump.import(&fixture("small.pt"), &mut std::io::empty(), &ImportOptions::default(), &mut |t, batch| {
            *rows.entry(t).or_insert(0) += batch.num_rows();
            Ok(())
        });
    let wanted =
        [(Table::Runs, 1), (Table::Spans, 80), (Table::Samples, 8), (Table::Conversations, 8), (Table::Tokens, 8)];
    assert_eq!(rows, BTreeMap::from(wanted));
    assert_eq!(read.unwrap().rows, 105);
}

#[test]
fn tokens_after_the_prompt_reach_their_table() {
    let batch = table(&rows(&open("tensors"), "r"), Table::Tokens);
    let tokens = Tokens::of(&batch).unwrap();
    assert_eq!((tokens.count.at(0), tokens.prompt_tokens.get(0)), (48, Some(48)));
    assert_eq!(tokens.mask.get(0).unwrap().collect::<Vec<_>>(), [true; 48]);
    assert_eq!((tokens.ids.get(0).unwrap().len(), tokens.logprobs.get(0).unwrap().len()), (48, 48));
    let batch = table(&rows(&open("small"), "r"), Table::Tokens);
    let tokens = Tokens::of(&batch).unwrap();
    assert_eq!((tokens.sample_id.at(1), tokens.trainer_logprobs.get(1)), ("1", None));
    assert!((tokens.logprobs.get(1).unwrap()[0] + 0.255_358_4).abs() < 0.255_358_4 / 4096.0);
    let none = ImportOptions { tokens: false, ..ImportOptions::default() };
    let read = open("small").batches(&none, &mut |table, _| {
        assert_ne!(table, Table::Tokens);
        Ok(())
    });
    assert_eq!(read.unwrap().rows, 97);
}

#[test]
fn the_cache_file_appears_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("small.trace_timeline_cache.json");
    slime_cache::write_file(&open("small"), &target, 1.0).unwrap();
    let written: Value = serde_json::from_slice(&std::fs::read(&target).unwrap()).unwrap();
    compare("file", &written, &theirs("small"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    assert!(slime_cache::write_file(&open("small"), &dir.path().join("no/where.json"), 1.0).is_err());
}

#[test]
fn generated_dumps_are_dumps() {
    let shape = Shape { samples: 130, ..Shape::M };
    let bytes = write_dump(Vec::new(), &shape).unwrap();
    let dump = Dump::from_bytes(bytes, Path::new("rollout_0.pt")).unwrap();
    let summary = dump.summary();
    assert_eq!((summary.rows, summary.closed, summary.instants), (130, 130 * 60, 130 * 3));
    assert_eq!((summary.open, summary.orphans), (0, 0));
    let cache = ours(&dump);
    assert_eq!(cache["rows"].as_array().unwrap().len(), 130);
    assert_eq!(cache["rows"][129]["row_id"], 129);
    let batches = rows(&dump, "r");
    assert_eq!(table(&batches, Table::Spans).num_rows(), 130 * 63);
    let tokens = table(&batches, Table::Tokens);
    let tokens = Tokens::of(&tokens).unwrap();
    assert_eq!(i64::from(tokens.count.at(129)) + tokens.prompt_tokens.get(129).unwrap(), 3372);
}
