use serde_json::json;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, StringViewArray, TimestampNanosecondArray, UInt64Array};
use rollscope_model::attrs::Value;
use rollscope_model::build::{NewEvent, NewLink, NewSpan, SpansBuilder};

use super::*;

fn spans() -> RecordBatch {
    let mut spans = SpansBuilder::default();
    spans.push(&NewSpan {
        run_id: "r",
        trace_id: [0xab; 16],
        span_id: [1; 8],
        name: "generate, \"quoted\"",
        start_ns: 1_700_000_000_123_456_789,
        start_attrs: &[("tokens", Value::Int(5)), ("stop \"x\"", "end".into()), ("nan", Value::Double(f64::NAN))],
        events: &[NewEvent { time_ns: 5, name: "retry", attrs: &[("n", Value::Int(1))] }],
        links: &[NewLink { trace_id: [2; 16], span_id: [3; 8], attrs: &[] }],
        ..NewSpan::default()
    });
    spans.push(&NewSpan { run_id: "r", name: "", phase: Some("train"), ..NewSpan::default() });
    spans.finish().unwrap()
}

#[test]
fn a_span_becomes_an_object_with_everything() {
    let json: serde_json::Value = serde_json::from_slice(&json_object(&spans(), 0).unwrap()).unwrap();
    assert_eq!(json["trace_id"], "abababababababababababababababab");
    assert_eq!(json["start_ns"], 1_700_000_000_123_456_789_i64);
    assert_eq!(json["end_ns"], serde_json::Value::Null);
    assert_eq!(json["start_attrs"]["tokens"], 5);
    assert_eq!(json["start_attrs"]["stop \"x\""], "end");
    assert_eq!(json["start_attrs"]["nan"]["$double"], "NaN");
    assert_eq!(json["events"][0]["attrs"]["n"], 1);
    assert_eq!(json["links"][0]["span_id"], "0303030303030303");
    assert_eq!(json.as_object().unwrap().len(), rollscope_model::Table::Spans.schema().fields().len());
}

#[test]
fn a_slice_of_a_batch_writes_its_own_rows() {
    let sliced = spans().slice(1, 1);
    let (mut out, mut first) = (Vec::new(), true);
    json_rows(&mut out, &sliced, &mut first).unwrap();
    let row: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(row.as_array().unwrap().len(), sliced.num_columns());
    assert!(row.as_array().unwrap().contains(&"train".into()));
    assert!(!first);
}

fn odd() -> RecordBatch {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("v", Arc::new(StringViewArray::from(vec![Some("a,b"), None, Some("")]))),
        ("f", Arc::new(Float64Array::from(vec![f64::NAN, 0.5, f64::INFINITY]))),
        ("i", Arc::new(Int64Array::from(vec![Some(i64::MIN), None, Some(0)]))),
        ("u", Arc::new(UInt64Array::from(vec![u64::MAX, 0, 1]))),
        ("t", Arc::new(TimestampNanosecondArray::from(vec![0, 1, 2]))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap()
}

#[test]
fn odd_values_stay_valid_json() {
    let (mut out, mut first) = (b"[".to_vec(), true);
    json_rows(&mut out, &odd(), &mut first).unwrap();
    out.push(b']');
    let rows: Vec<Vec<serde_json::Value>> = serde_json::from_slice(&out).unwrap();
    assert_eq!(rows[0][..4], [json!("a,b"), json!("NaN"), json!(i64::MIN), json!(u64::MAX)]);
    assert_eq!(rows[2][1], "Infinity");
    assert_eq!(rows[1][..4], [serde_json::Value::Null, 0.5.into(), serde_json::Value::Null, 0.into()]);
    assert!(rows[0][4].as_str().unwrap().starts_with("1970-01-01"));
}

#[test]
fn csv_tells_null_from_empty() {
    let mut out = Vec::new();
    csv_header(&mut out, &odd().schema());
    csv_rows(&mut out, &odd()).unwrap();
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<_> = text.split('\n').collect();
    assert_eq!(lines[0], "v,f,i,u,t");
    assert!(lines[1].starts_with("\"a,b\",NaN,-9223372036854775808,18446744073709551615,1970"), "{}", lines[1]);
    assert!(lines[2].starts_with(",0.5,,0,"), "{}", lines[2]);
    assert!(lines[3].starts_with("\"\",Infinity,0,1,"), "{}", lines[3]);
}

#[test]
fn arrow_comes_out_in_pieces_and_reads_back() {
    let batch = odd();
    let mut stream = ArrowStream::new(&batch.schema()).unwrap();
    let mut bytes = stream.drain();
    for _ in 0..2 {
        stream.write(&batch).unwrap();
        bytes.extend(stream.drain());
    }
    stream.finish().unwrap();
    bytes.extend(stream.drain());
    let read: Vec<_> =
        arrow::ipc::reader::StreamReader::try_new(&bytes[..], None).unwrap().map(Result::unwrap).collect();
    assert_eq!(read.len(), 2);
    assert_eq!(read[0].schema().field(0).data_type(), &DataType::Utf8);
    assert_eq!(read[0].column(2), batch.column(2));
}

#[test]
fn types_have_short_names() {
    let schema = rollscope_model::Table::Spans.schema();
    let name = |column: &str| type_name(schema.field_with_name(column).unwrap().data_type());
    assert_eq!(name("service"), "Utf8");
    assert_eq!(name("start_attrs"), "Map<Utf8, Utf8>");
    assert!(name("events").starts_with("List<Struct<time_ns: Int64, "), "{}", name("events"));
}

#[test]
fn a_dictionary_of_nothing_but_nulls_is_null() {
    let keys = arrow::array::Int32Array::from(vec![None, None]);
    let values = std::sync::Arc::new(arrow::array::StringArray::from(Vec::<&str>::new()));
    let column: ArrayRef = std::sync::Arc::new(arrow::array::DictionaryArray::<Int32Type>::new(keys, values));
    let batch = RecordBatch::try_from_iter_with_nullable([("thread", column, true)]).unwrap();
    assert_eq!(json_object(&batch, 1).unwrap(), br#"{"thread":null}"#);
}
