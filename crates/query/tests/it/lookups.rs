//! Ids as text, and reads of one trace.

use arrow::array::RecordBatch;
use rollscope_model::Table;
use rollscope_model::read::{Ids, column};

use crate::fixture::{Stored, lines, plan, rows, spans, trace, value};

#[tokio::test]
async fn ids_are_compared_with_hex_text() {
    let store = Stored::new();
    store.add_segment(Table::Spans, &spans("a", 0, 400));
    store.add_tail(Table::Spans, spans("a", 100, 4));
    let engine = store.engine();
    let id = "0707070707070707000000000000001d";
    for filter in [
        format!("trace_id = '{id}'"),
        format!("'{id}' = trace_id"),
        format!("trace_id = '{}'", id.to_uppercase()),
        format!("trace_id = trace_id('{id}')"),
        format!("trace_id in ('{id}')"),
        format!("trace_id in ('{id}', '00000000000000000000000000000000')"),
        format!("trace_id in (trace_id('{id}'), '0707070707070707000000000000ffff')"),
        format!("hex(trace_id) = '{id}'"),
        format!("not trace_id <> '{id}'"),
    ] {
        assert_eq!(value(&engine, &format!("select count(*) from spans where {filter}")).await, "4", "{filter}");
    }
    assert_eq!(
        value(&engine, "select count(*) from spans where trace_id not in ('0707070707070707000000000000001d')").await,
        "400"
    );
    assert_eq!(value(&engine, "select hex(trace_id) from spans where span_id = '0000000000000074'").await, id);
    assert_eq!(value(&engine, "select count(*) from spans where parent_span_id = '000000000000001d'").await, "0");
    assert_eq!(
        value(&engine, &format!("select sum(case when trace_id = '{id}' then 1 else 0 end) from spans")).await,
        "4"
    );
    assert_eq!(
        value(&engine, &format!("select count(*) from (select trace_id = '{id}' as hit from spans) where hit")).await,
        "4"
    );
    // Ids that are not W3C's are mapped as on import: shorter ones are numbers with leading zeros.
    assert_eq!(value(&engine, "select hex(trace_id('91543acd788654df'))").await, "000000000000000091543acd788654df");
    assert_eq!(value(&engine, "select hex(span_id('00112233445566778899aabbccddeeff'))").await, "8888888888888888");
}

#[tokio::test]
async fn an_id_is_looked_for_where_bloom_filters_have_it() {
    let store = Stored::new();
    for n in 0..4 {
        store.add_segment(Table::Spans, &spans("a", n * 1000, 400));
    }
    let engine = store.engine();
    for filter in
        ["trace_id = '07070707070707070000000000000007'", "trace_id = trace_id('07070707070707070000000000000007')"]
    {
        let sql = format!("select name, end_attrs from spans where {filter}");
        let text = plan(&engine, &sql).await;
        assert!(text.contains("required_guarantees=[trace_id in"), "{text}");
        assert_eq!(text.matches(".parquet").count(), 1, "files that cannot have it are not opened: {text}");
        let analysed = lines(&engine, &format!("explain analyze {sql}")).await.join("\n");
        assert!(analysed.contains("row_groups_pruned_bloom_filter=1 total → 1 matched"), "{analysed}");
    }
}

#[tokio::test]
async fn a_trace_is_fetched_whole() {
    let store = Stored::new();
    for n in 0..5 {
        store.add_segment(Table::Spans, &spans("a", n * 1000, 400));
    }
    let whole = spans("a", 9000, 4);
    store.add_segment(Table::Spans, &whole.slice(0, 2));
    store.add_tail(Table::Spans, whole.slice(2, 2));
    store.add_segment(Table::Spans, &spans("b", 9000, 4));
    let engine = store.engine();
    let batches = engine.trace(trace(2001)).await.unwrap();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 4);
    assert_eq!(batches[0].schema().fields().len(), Table::Spans.schema().fields().len());
    // In a segment and in the tail, and once more under another run.
    let batches = engine.trace(trace(9000)).await.unwrap();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 4);
    assert!(engine.trace(trace(999_999)).await.unwrap().is_empty());
}

/// A click on a span reads that span, and a trace of any size is read to a limit.
#[tokio::test]
async fn a_span_is_found_alone_and_a_long_trace_is_not_read_to_its_end() {
    let store = Stored::new();
    store.add_segment(Table::Spans, &spans("a", 9000, 4));
    store.add_segment(Table::Spans, &spans("a", 0, 400));
    store.add_tail(Table::Spans, spans("a", 9001, 4));
    let engine = store.engine();
    let (stored, recent) = ((9000u64 * 4 + 1).to_be_bytes(), (9001u64 * 4).to_be_bytes());
    for (trace_id, span_id) in [(trace(9000), stored), (trace(9001), recent)] {
        let batch = engine.span(trace_id, span_id).await.unwrap().unwrap();
        assert_eq!((batch.num_rows(), batch.num_columns()), (1, Table::Spans.schema().fields().len()));
        let (traces, ids): (Ids<16>, Ids<8>) =
            (column(&batch, "trace_id").unwrap(), column(&batch, "span_id").unwrap());
        assert_eq!((traces.get(0), ids.get(0)), (Some(trace_id), Some(span_id)));
    }
    assert!(engine.span(trace(9001), stored).await.unwrap().is_none(), "a span of another trace");
    for (id, max_spans, rows) in [(9000, 3, None), (9000, 4, Some(4)), (9001, 3, None), (77_777, 0, Some(0))] {
        let found = engine.trace_up_to(trace(id), max_spans).await.unwrap();
        let count = |batches: Vec<RecordBatch>| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
        assert_eq!(found.map(count), rows, "{id}, {max_spans}");
        let found = engine.trace_columns(trace(id), &["trace_id", "span_id"], max_spans).await.unwrap();
        assert_eq!(found.map(count), rows, "{id}, {max_spans}");
    }
}

/// Once a footer has been read, it is not read again.
#[tokio::test]
async fn footers_are_read_once() {
    let store = Stored::new();
    store.add_segment(Table::Spans, &spans("a", 0, 400));
    let engine = store.engine();
    let mut read = Vec::new();
    for _ in 0..2 {
        let running = engine.sql("select count(name) from spans where step = 1").await.unwrap();
        let progress = running.progress.clone();
        running.collect().await.unwrap();
        read.push(progress.snapshot());
    }
    assert_eq!((read[0].rows_total, read[0].rows_scanned), (400, 400));
    assert!(read[0].bytes_scanned > 0 && read[0].bytes_total > 0);
    let metrics = lines(&engine, "explain analyze select count(name) from spans where step = 1").await.join("\n");
    assert!(metrics.contains("output_rows=100"), "{metrics}");
    // The footer's end is gone, the data is there: a second reader of the footer would notice.
    let path = store.path("spans-0.parquet");
    let bytes = std::fs::read(&path).unwrap();
    let mut damaged = bytes.clone();
    let end = damaged.len();
    damaged[end - 8..].fill(0);
    std::fs::write(&path, damaged).unwrap();
    assert_eq!(rows(&engine, "select count(name) from spans where step = 2").await.len(), 1);
    let fresh = store.engine();
    assert!(crate::fixture::try_rows(&fresh, "select count(name) from spans where step = 2").await.is_err());
}

/// Ids are grouped as numbers, which nobody may notice.
#[tokio::test]
async fn groups_of_ids_are_ids() {
    let store = Stored::new();
    store.add_segment(Table::Spans, &spans("a", 0, 400));
    store.add_tail(Table::Spans, spans("a", 1000, 400));
    let engine = store.engine();
    for sql in
        ["select trace_id, count(*) as n from spans group by trace_id", "select count(distinct trace_id) from spans"]
    {
        let text = plan(&engine, sql).await;
        assert!(text.contains("rollscope_id_number"), "{text}");
    }
    for (sql, expected) in [
        ("select count(*) from (select trace_id from spans group by trace_id)", "200"),
        ("select count(distinct trace_id) from spans", "200"),
        ("select count(distinct span_id) from spans", "800"),
        ("select count(*) from (select distinct trace_id, name from spans)", "400"),
        (
            "select count(*) from (select s.trace_id, count(*) as n from spans s group by s.trace_id having count(*) = 4) g \
             join (select trace_id, min(start_ns) as first from spans group by 1) f on g.trace_id = f.trace_id",
            "200",
        ),
        (
            "select hex(trace_id) from (select trace_id, max(start_ns) as last from spans group by trace_id) \
             order by last limit 1",
            "07070707070707070000000000000000",
        ),
        ("select count(*) from (select parent_span_id, count(*) from spans group by parent_span_id)", "1"),
        (
            "select count(*) from (select trace_id, span_id, sum(step) from spans group by rollup(trace_id, span_id))",
            "1001",
        ),
    ] {
        assert_eq!(value(&engine, sql).await, expected, "{sql}");
    }
}
