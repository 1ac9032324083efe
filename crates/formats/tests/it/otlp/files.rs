//! Files: the shapes they come in, compression, damage, and what is handed to the sink.

use std::io::Write as _;
use std::path::PathBuf;

use arrow::array::{AsArray, RecordBatch};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use prost::Message as _;
use rollscope_formats::export::otlp::{to_protobuf, write_json_line};
use rollscope_formats::import::{ImportError, ImportOptions, Imported, open};
use rollscope_model::Table;

use super::support::{Style, fixture, kv, request_of, rows, span};

struct Read {
    imported: Imported,
    batches: Vec<(Table, RecordBatch)>,
    format: &'static str,
}

impl Read {
    fn names(&self) -> Vec<String> {
        let spans = self.batches.iter().filter(|(t, _)| *t == Table::Spans);
        spans.flat_map(|(_, b)| rows(b)).map(|r| r["name"].as_str().unwrap().to_string()).collect()
    }

    fn reasons(&self) -> String {
        self.imported.reasons.join("; ")
    }
}

fn read(bytes: &[u8]) -> Result<Read, ImportError> {
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("file");
    std::fs::write(&path, bytes).unwrap();
    let source = open(&path)?;
    let format = source.format();
    let mut batches = Vec::new();
    let imported = source.read(&ImportOptions::default(), &mut |table, batch| {
        batches.push((table, batch));
        Ok(())
    })?;
    Ok(Read { imported, batches, format })
}

/// A request with one span, on one line.
fn line(n: u8) -> String {
    Style(0).request(&request_of(vec![kv("service.name", "s")], vec![span(n)])).to_string()
}

fn pretty(n: u8) -> String {
    serde_json::to_string_pretty(&serde_json::from_str::<serde_json::Value>(&line(n)).unwrap()).unwrap()
}

const THREE: [&str; 3] = ["span 1", "span 2", "span 3"];

#[test]
fn every_shape_of_json_file() {
    let [a, b, c] = [line(1), line(2), line(3)];
    let shapes = [
        format!("{a}\n{b}\n{c}\n"),
        format!("{a}\n{b}\n{c}"),
        format!("\u{feff}{a}\r\n\r\n  \n{b}\r\n{c}\r\n\n"),
        format!("\n\n{a}\n{b}\n{c}"),
        format!("[{a},{b},{c}]"),
        format!("\u{feff} [\n{a} ,\n{b},\n{c}\n]\n"),
        format!("[\n{},\n{},\n{}]", pretty(1), pretty(2), pretty(3)),
        format!("{}\n{}\n{}", pretty(1), pretty(2), pretty(3)),
        format!("{a}{b}{c}"),
    ];
    for shape in shapes {
        let read = read(shape.as_bytes()).unwrap();
        assert_eq!(read.names(), THREE, "{shape}");
        assert_eq!((read.imported.rows, read.imported.rejected, read.format), (3, 0, "OTLP JSON"));
        // One batch of spans, then the run.
        let tables: Vec<_> = read.batches.iter().map(|(t, _)| *t).collect();
        assert_eq!(tables, [Table::Spans, Table::Runs]);
        assert_eq!(rows(&read.batches[1].1)[0]["run_id"], "s");
    }
    assert_eq!(read(pretty(1).as_bytes()).unwrap().names(), ["span 1"]);
}

#[test]
fn compressed_files_are_told_by_their_bytes() {
    let text = [line(1), line(2), line(3)].join("\n");
    let gzip = |text: &str| {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        out.write_all(text.as_bytes()).unwrap();
        out.finish().unwrap()
    };
    assert_eq!(read(&gzip(&text)).unwrap().names(), THREE);
    let members = [gzip(&format!("{}\n", line(1))), gzip(&format!("{}\n{}", line(2), line(3)))].concat();
    assert_eq!(read(&members).unwrap().names(), THREE);
    let zstd = zstd::encode_all(text.as_bytes(), 3).unwrap();
    assert_eq!(read(&zstd).unwrap().names(), THREE);
    let cut = &gzip(&text)[..60];
    assert!(read(cut).is_err(), "a gzip file that ends early");
}

#[test]
fn a_bomb_is_stopped() {
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    encoder.write_all(format!("{}\n", line(1)).as_bytes()).unwrap();
    let blank = vec![b'\n'; 1 << 20];
    for _ in 0..192 {
        encoder.write_all(&blank).unwrap();
    }
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < 100_000);
    let error = read(&bomb).err().unwrap().to_string();
    assert!(error.contains("MAX_COMPRESSION_RATIO"), "{error}");
}

#[test]
fn a_damaged_line_is_named_and_the_others_are_read() {
    let [a, b, c] = [line(1), line(2), line(3)];
    let cut = &b[..b.len() / 2];
    let damaged = read(format!("{a}\n\n{cut}\n{c}\nnonsense\n").as_bytes()).unwrap();
    assert_eq!(damaged.names(), ["span 1", "span 3"]);
    assert_eq!(damaged.imported.rejected, 2);
    assert!(damaged.reasons().contains("line 3: malformed request"), "{}", damaged.reasons());
    assert!(damaged.reasons().contains("line 5: "), "{}", damaged.reasons());

    let cut_off = read(format!("[{a},{cut}").as_bytes()).unwrap();
    assert_eq!(cut_off.names(), ["span 1"]);
    assert!(cut_off.reasons().contains("value 2: the file ends inside it"), "{}", cut_off.reasons());

    let nothing = read(cut.as_bytes()).err().unwrap().to_string();
    assert!(nothing.contains("value 1"), "{nothing}");
}

#[test]
fn spans_before_the_damage_in_a_line_are_kept_whole() {
    let mut request = request_of(vec![kv("service.name", "s")], vec![span(1), span(2)]);
    request.resource_spans[0].scope_spans[0].scope = Some(InstrumentationScope::default());
    let text = Style(0).request(&request).to_string();
    let at = text.find("span 2").unwrap();
    let read = read(format!("{}\n{}\n{}\n", line(3), &text[..at], line(4)).as_bytes()).unwrap();
    assert_eq!(read.names(), ["span 3", "span 1", "span 4"]);
    assert!(read.reasons().contains("line 2"));
}

#[test]
fn metrics_go_to_series_and_other_things_are_counted() {
    let metrics = r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"g","gauge":{"dataPoints":[
        {"timeUnixNano":"1700000000000000000","asInt":"7"}]}}]}]}]}"#
        .replace('\n', "");
    let logs = r#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"timeUnixNano":"1700000000000000000","body":{"stringValue":"hello"}}]}]}]}"#;
    let read = read(format!("{}\n{metrics}\n{logs}\n{{\"other\":1}}\n", line(1)).as_bytes()).unwrap();
    let tables: Vec<_> = read.batches.iter().map(|(t, b)| (t.name(), b.num_rows())).collect();
    assert_eq!(tables, [("spans", 1), ("series", 1), ("runs", 2)]);
    assert_eq!((read.imported.rows, read.imported.rejected), (2, 2));
    assert!(read.reasons().contains("log records are not stored, except"), "{}", read.reasons());
    assert!(read.reasons().contains("neither spans nor metrics (1)"), "{}", read.reasons());
}

#[test]
fn logs_tell_of_conversations_and_metrics() {
    let record = |n: u64, name: &str, body: &str| {
        format!(
            r#"{{"resourceLogs":[{{"resource":{{"attributes":[{{"key":"rl.run.id","value":{{"stringValue":"r"}}}}]}},"scopeLogs":[{{"logRecords":[
            {{"timeUnixNano":"17000000000000000{n:02}","eventName":"{name}","traceId":"{:032x}","spanId":"{:016x}","body":{body}}}]}}]}}]}}"#,
            7, 8
        )
        .replace('\n', "")
    };
    let says = |key: &str, text: &str| {
        format!(r#"{{"kvlistValue":{{"values":[{{"key":"{key}","value":{{"stringValue":"{text}"}}}}]}}}}"#)
    };
    // The messages of one call in two lines, with a span between them.
    let file = [
        record(1, "gen_ai.user.message", &says("content", "What is 6 x 7?")),
        line(1),
        record(2, "gen_ai.assistant.message", &says("content", "42")),
        record(3, "rollscope.metrics", r#"{"kvlistValue":{"values":[{"key":"loss","value":{"doubleValue":0.5}}]}}"#),
    ];
    let read = read(file.join("\n").as_bytes()).unwrap();
    let tables: Vec<_> = read.batches.iter().map(|(t, b)| (t.name(), b.num_rows())).collect();
    assert_eq!(tables, [("metrics", 1), ("spans", 1), ("conversations", 1), ("runs", 2)], "{}", read.reasons());
    let (_, talk) = &read.batches[2];
    let messages = talk.column_by_name("messages").unwrap().as_string::<i32>().value(0);
    assert!(messages.contains("6 x 7") && messages.contains("42"), "{messages}");
    assert_eq!(read.imported.rejected, 0, "{}", read.reasons());
}

#[test]
fn protobuf_files_bare_and_with_lengths() {
    let messages = [1, 2, 3].map(|n| request_of(vec![kv("service.name", "s")], vec![span(n)]).encode_to_vec());
    let bare = read(&messages.concat()).unwrap();
    assert_eq!((bare.names(), bare.format), (THREE.map(String::from).to_vec(), "OTLP protobuf"));
    let framed: Vec<u8> = messages.iter().flat_map(|m| [&(m.len() as u32).to_be_bytes()[..], m].concat()).collect();
    let whole = read(&framed).unwrap();
    assert_eq!((whole.names(), whole.format), (THREE.map(String::from).to_vec(), "OTLP protobuf"));
    let cut = read(&framed[..framed.len() - 3]).unwrap();
    assert_eq!(cut.names(), ["span 1", "span 2"]);
    assert!(cut.reasons().contains("message 3: the file ends inside it"), "{}", cut.reasons());
}

#[test]
fn an_unknown_format_lists_the_known_ones() {
    for bytes in [&b"hello"[..], b"", b"{\"hello\":[]}", b"\x00\x00\x00\x00"] {
        let error = read(bytes).err().unwrap().to_string();
        assert!(error.contains("OTLP JSON") && error.contains("OTLP protobuf"), "{error}");
    }
    let missing = open(&fixture("no/such/file")).err().unwrap().to_string();
    assert!(missing.contains("no/such/file"), "{missing}");
}

#[test]
fn big_files_come_in_batches_that_suit_the_store() {
    let spans = |from: u32| {
        let list = (from..from + 500).map(|n| {
            let mut s = span(1);
            s.span_id = u64::from(n + 1).to_be_bytes().to_vec();
            s
        });
        Style(0).request(&request_of(vec![], list.collect())).to_string()
    };
    let text: Vec<String> = (0..140).map(|i| spans(i * 500)).collect();
    let read = read(text.join("\n").as_bytes()).unwrap();
    assert_eq!(read.imported.rows, 70_000);
    let sizes: Vec<_> = read.batches.iter().filter(|b| b.0 == Table::Spans).map(|b| b.1.num_rows()).collect();
    assert_eq!(sizes, [33_000, 33_000, 4_000]);
}

#[test]
fn the_run_can_be_given() {
    let source = open(&fixture("roll/roll_traces.jsonl")).unwrap();
    let options = ImportOptions { run: Some("mine".into()), ..ImportOptions::default() };
    let mut runs = Vec::new();
    source
        .read(&options, &mut |_, batch| {
            runs.extend(rows(&batch).into_iter().map(|r| r["run_id"].clone()));
            Ok(())
        })
        .unwrap();
    assert!(!runs.is_empty() && runs.iter().all(|r| r == "mine"));
}

#[test]
fn a_failing_sink_stops_the_import() {
    let source = open(&fixture("roll/roll_traces.jsonl")).unwrap();
    let error = source
        .read(&ImportOptions::default(), &mut |_, _| Err(ImportError::Sink("the disk is full".into())))
        .unwrap_err();
    assert_eq!(error.to_string(), "the disk is full");
}

#[test]
fn fixtures_survive_export_and_import() {
    for path in ["roll/roll_traces.jsonl", "sglang/sglang_otel.jsonl"] {
        let first = read(&std::fs::read(fixture(path)).unwrap()).unwrap();
        let before = super::support::sorted_rows(&first.batches[0].1);
        let mut text = Vec::new();
        write_json_line(&first.batches[0].1, &mut text).unwrap();
        assert_eq!(text.iter().filter(|b| **b == b'\n').count(), 1);
        let again = read(&text).unwrap();
        assert_eq!(super::support::sorted_rows(&again.batches[0].1), before);
        let again = read(&to_protobuf(&first.batches[0].1)).unwrap();
        assert_eq!(super::support::sorted_rows(&again.batches[0].1), before);
    }
}
