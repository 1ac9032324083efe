//! Time, memory, rows, concurrency, cancellation.

use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use futures::StreamExt;
use rollscope_model::Table;
use rollscope_query::promql::{PromLimits, PromQuery};
use rollscope_query::{Engine, ErrorKind, QueryLimits};

use crate::fixture::{Stored, spans, trace, try_rows, value};

/// Runs for minutes if let.
const ENDLESS: &str =
    "select sum(a.value * b.value) from generate_series(1, 10000000) a, generate_series(1, 10000000) b";

fn limits() -> QueryLimits {
    QueryLimits::default()
}

async fn until(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn active(engine: &Engine) -> usize {
    engine.running().len()
}

#[tokio::test]
async fn a_slow_query_is_stopped() {
    let engine = Stored::new().engine_with(QueryLimits { timeout: Duration::from_millis(300), ..limits() });
    let start = Instant::now();
    let error = try_rows(&engine, ENDLESS).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Limit);
    assert!(error.message.contains("timeout = 0.3 s"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10));
    until(|| active(&engine) == 0).await;
}

#[tokio::test]
async fn a_recursive_query_without_end_is_stopped() {
    let engine = Stored::new().engine_with(QueryLimits { timeout: Duration::from_millis(300), ..limits() });
    let sql = "with recursive t(n) as (select 1 union all select n + 1 from t) select count(*) from t";
    assert_eq!(try_rows(&engine, sql).await.unwrap_err().kind, ErrorKind::Limit);
}

#[tokio::test]
async fn too_much_memory_is_refused() {
    let engine = Stored::new().engine_with(QueryLimits { memory_bytes: 4 << 20, ..limits() });
    let sql = "select value % 1000003, count(*) from generate_series(1, 3000000) group by 1 order by 2 desc";
    let error = try_rows(&engine, sql).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Limit);
    assert!(error.message.contains("memory_bytes = 4194304"), "{error}");
    assert_eq!(value(&engine, "select count(*) from spans").await, "0");
}

/// What functions return counts, too: else each of these would take gigabytes.
#[tokio::test]
async fn large_values_are_refused_and_small_ones_are_not() {
    let store = Stored::new();
    store.add_segment(Table::Spans, &spans("a", 0, 20_000));
    let engine = store.engine_with(QueryLimits { memory_bytes: 64 << 20, ..limits() });
    let long = "x".repeat(100_000);
    let mut doubled = "select name as x from spans".to_string();
    for _ in 0..12 {
        doubled = format!("select concat(x, x) as x from ({doubled})");
    }
    let piped = doubled.replace("concat(x, x)", "x || x");
    let listed = doubled.replace("concat(x, x)", "make_array(x, x)");
    let bytes = piped.replace("name as x", "trace_id as x");
    // Values that cannot be computed in little: refused, and the error says by what.
    for sql in [
        format!("select max(replace('{long}', 'x', '{long}'))"),
        format!("select replace(repeated, 'x', '{long}') from (select '{long}' as repeated from spans)"),
    ] {
        let error = try_rows(&engine, &sql).await.unwrap_err();
        let named = error.message.contains("memory_bytes = 67108864") || error.message.contains("made from literals");
        assert!(named, "{}: {error}", &sql[..40]);
    }
    for sql in [
        format!("select sum(length(x)) from (select replace(name, 'o', '{long}') as x from spans) order by 1"),
        format!("select array_to_string(array_agg(name), '{long}') from spans"),
        format!("select sum(length(x)) from ({doubled})"),
        format!("select sum(length(x)) from ({piped})"),
        format!("select count(x) from ({listed}) where x is not null"),
        format!("select sum(length(hex(x))) from ({bytes})"),
    ] {
        // What can be computed batch by batch is: then it needs little at a time.
        let Err(error) = try_rows(&engine, &sql).await else { continue };
        let named = error.message.contains("memory_bytes = 67108864") || error.message.contains("made from literals");
        assert!(named, "{}: {error}", &sql[..80]);
    }
    // All is given back, and what fits is computed, in portions if it is much.
    for (sql, wanted) in [
        ("select sum(length(replace(name, 'o', 'ooo'))) from spans", "160000"),
        ("select sum(length(regexp_replace(name, 'o', '[\\0]', 'g'))) from spans", "160000"),
        ("select sum(length(name || '-' || service)) from spans", "260000"),
        ("select count(name || null) from spans", "0"),
        ("select count(*) from spans where hex(trace_id || span_id) like hex(trace_id) || '%'", "20000"),
        ("select sum(length(concat(name, null, 1))) from spans", "120000"),
        ("select 'a' || 1 || concat_ws('-', 'b', name) from spans where name = 'tool' limit 1", "a1b-tool"),
        ("select sum(length(array_to_string([name, service], ', '))) from spans", "280000"),
        ("select array_length([1, 2] || [3])", "3"),
    ] {
        assert_eq!(value(&engine, sql).await, wanted, "{sql}");
    }
    let much = format!(
        "select sum(length(x)) from (select replace(name, 'generate', '{}') as x from spans)",
        "y".repeat(2000)
    );
    assert_eq!(value(&engine, &much).await, (5_000 * 2_000 + 15_000 * 4).to_string());
}

#[tokio::test]
async fn a_long_literal_makes_short_batches() {
    let store = Stored::new();
    store.add_segment(Table::Spans, &spans("a", 0, 3_000));
    store.add_tail(Table::Spans, spans("b", 0, 3_000));
    let long = "x".repeat(500_000);
    let mut running = store.engine().sql(&format!("select '{long}' as x from spans limit 100")).await.unwrap();
    let mut rows = 0;
    while let Some(batch) = running.stream.next().await {
        let batch = batch.unwrap();
        assert!(batch.num_rows() <= 8, "{}", batch.num_rows());
        rows += batch.num_rows();
    }
    assert_eq!(rows, 100);
}

/// Rows that were read from the log share one buffer, and every piece of them counts as all of it.
#[tokio::test]
async fn a_large_tail_is_summed_up_in_little_memory() {
    let rows = spans("a", 0, 200_000);
    let mut log = arrow::ipc::writer::StreamWriter::try_new(Vec::new(), &rows.schema()).unwrap();
    log.write(&rows).unwrap();
    let log = arrow::buffer::Buffer::from_vec(log.into_inner().unwrap());
    let size = log.len();
    let mut decoder = arrow::ipc::reader::StreamDecoder::new();
    let tail = decoder.decode(&mut log.clone()).unwrap().unwrap();
    let store = Stored::new();
    store.add_tail(Table::Spans, tail);
    let engine = store.engine_with(QueryLimits { memory_bytes: size / 2, ..limits() });
    for sql in [
        "select count(*) from spans where run_id = 'a'",
        "select sum(n) from (select step, count(*) as n from spans group by 1)",
    ] {
        assert_eq!(value(&engine, sql).await, "200000", "{sql}");
    }
}

#[tokio::test]
async fn long_answers_are_cut_and_marked() {
    let store = Stored::new();
    store.add_segment(Table::Spans, &spans("a", 0, 30_000));
    for (max_rows, rows, cut) in
        [(10_000, 10_000, true), (29_999, 29_999, true), (30_000, 30_000, false), (40_000, 30_000, false)]
    {
        let engine = store.engine_with(QueryLimits { max_rows, ..limits() });
        let (batches, truncated) = engine.sql("select name from spans").await.unwrap().collect().await.unwrap();
        assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), rows);
        assert_eq!(truncated, cut, "max_rows = {max_rows}");
        until(|| active(&engine) == 0).await;
    }
}

#[tokio::test]
async fn dropping_the_stream_stops_the_query() {
    let engine = Stored::new().engine_with(QueryLimits { max_concurrent: 1, ..limits() });
    let sql = "select a.value from generate_series(1, 10000000) a, generate_series(1, 10000000) b";
    let mut running = engine.sql(sql).await.unwrap();
    assert!(running.stream.next().await.unwrap().is_ok());
    assert_eq!(engine.running()[0].sql, sql);
    assert!(engine.running()[0].rows_out > 0);
    drop(running);
    until(|| active(&engine) == 0).await;
    // Its place is free again.
    assert_eq!(value(&engine, "select 1").await, "1");
}

#[tokio::test]
async fn a_query_can_be_cancelled_by_id() {
    let engine = Stored::new().engine();
    let other = engine.clone();
    let query = tokio::spawn(async move { try_rows(&other, ENDLESS).await });
    until(|| active(&engine) == 1).await;
    let id = engine.running()[0].id;
    assert!(engine.cancel(id));
    let error = query.await.unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Cancelled);
    until(|| active(&engine) == 0).await;
    assert!(!engine.cancel(id));
}

/// Joins that go through a product of their sides for minutes, and no row comes out.
const STUBBORN: [&str; 4] = [
    ENDLESS,
    "select count(*) from generate_series(1, 1000000) a cross join generate_series(1, 1000000) b where a.value + b.value < 0",
    "select count(*) from generate_series(1, 1000000) a join generate_series(1, 1000000) b
     on a.value % 2 = b.value % 2 and a.value + b.value < 0",
    "select count(*) from generate_series(1, 1000000) a join generate_series(1, 1000000) b on a.value % 2 = b.value % 2",
];

#[tokio::test]
async fn a_query_without_rows_is_cancelled_at_any_moment_and_leaves_its_threads() {
    for sql in STUBBORN {
        for moment in [0, 20, 200, 1500] {
            let engine = Stored::new().engine();
            let other = engine.clone();
            let query = tokio::spawn(async move { try_rows(&other, sql).await });
            until(|| active(&engine) == 1).await;
            tokio::time::sleep(Duration::from_millis(moment)).await;
            assert!(engine.cancel(engine.running()[0].id));
            assert_eq!(query.await.unwrap().unwrap_err().kind, ErrorKind::Cancelled, "after {moment} ms: {sql}");
            // All query threads were at work on it; were they still, this would wait for the time limit.
            assert_eq!(value(&engine, "select 1").await, "1", "after {moment} ms: {sql}");
        }
    }
}

#[tokio::test]
async fn a_query_without_rows_ends_when_nobody_waits_for_it() {
    for sql in STUBBORN {
        let engine = Stored::new().engine();
        assert!(tokio::time::timeout(Duration::from_millis(1500), try_rows(&engine, sql)).await.is_err());
        assert_eq!(active(&engine), 0);
        assert_eq!(value(&engine, "select 1").await, "1", "{sql}");
    }
}

/// Goes through windows for minutes, without a sample in the store.
fn stubborn_promql() -> PromQuery {
    let nested = (0..40).fold("vector(time())".to_string(), |inner, _| format!("max_over_time({inner}[11000s:1s])"));
    PromQuery::parse(&nested).unwrap()
}

#[tokio::test]
async fn a_slow_promql_query_is_stopped() {
    let engine = Stored::new().engine_with(QueryLimits { timeout: Duration::from_millis(300), ..limits() });
    let error = engine.promql(stubborn_promql(), 0, 0, 1, &PromLimits::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Limit);
    assert!(error.message.contains("timeout = 0.3 s"), "{error}");
    assert_eq!(active(&engine), 0);
}

#[tokio::test]
async fn a_promql_query_gives_its_turn_back_when_it_is_cancelled_and_when_nobody_waits_for_it() {
    let engine = Stored::new().engine_with(QueryLimits { max_concurrent: 1, ..limits() });
    for moment in [0, 20, 500] {
        let other = engine.clone();
        let limits = PromLimits::default();
        let query = tokio::spawn(async move { other.promql(stubborn_promql(), 0, 0, 1, &limits).await });
        until(|| active(&engine) == 1).await;
        tokio::time::sleep(Duration::from_millis(moment)).await;
        assert!(engine.cancel(engine.running()[0].id));
        assert_eq!(query.await.unwrap().unwrap_err().kind, ErrorKind::Cancelled, "after {moment} ms");
        // There is one turn. Had the query kept it, this would wait for the time limit.
        assert_eq!(value(&engine, "select 1").await, "1", "after {moment} ms");
    }
    let limits = PromLimits::default();
    let answer = engine.promql(stubborn_promql(), 0, 0, 1, &limits);
    assert!(tokio::time::timeout(Duration::from_millis(500), answer).await.is_err());
    assert_eq!(active(&engine), 0);
    assert_eq!(value(&engine, "select 1").await, "1");
}

#[tokio::test]
async fn a_query_that_waits_its_turn_can_be_cancelled() {
    let engine = Stored::new().engine_with(QueryLimits { max_concurrent: 1, ..limits() });
    let mut first = engine.sql("select value from generate_series(1, 100000000000)").await.unwrap();
    assert!(first.stream.next().await.unwrap().is_ok());
    let other = engine.clone();
    let second = tokio::spawn(async move { try_rows(&other, "select 1").await });
    until(|| active(&engine) == 2).await;
    let id = engine.running().into_iter().find(|q| q.sql == "select 1").unwrap().id;
    assert!(engine.cancel(id));
    assert_eq!(second.await.unwrap().unwrap_err().kind, ErrorKind::Cancelled);
}

#[tokio::test]
async fn now_is_one_moment_per_query() {
    let engine = Stored::new().engine();
    let same = "select now() = current_timestamp and current_date = cast(now() as date) and
                abs(extract(epoch from now() - to_timestamp(0))) > 1.7e9";
    assert_eq!(value(&engine, same).await, "true");
    let hour = "select count(*) from spans where start_ns > cast(now() - interval '1 hour' as bigint)";
    assert_eq!(value(&engine, hour).await, "0");
}

#[tokio::test]
async fn queries_wait_their_turn_and_not_for_ever() {
    let engine =
        Stored::new().engine_with(QueryLimits { max_concurrent: 1, timeout: Duration::from_secs(5), ..limits() });
    let mut first = engine.sql("select value from generate_series(1, 100000000000)").await.unwrap();
    assert!(first.stream.next().await.unwrap().is_ok());
    let error = try_rows(&engine, "select 1").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Limit);
    assert!(error.message.contains("max_concurrent"), "{error}");
    drop(first);
    assert_eq!(value(&engine, "select 1").await, "1");
}

#[tokio::test]
async fn a_look_up_waits_for_nobody_and_counts_as_memory() {
    let store = Stored::new();
    store.add_segment(Table::Spans, &spans("a", 0, 400));
    let engine = store.engine_with(QueryLimits { max_concurrent: 1, timeout: Duration::from_secs(60), ..limits() });
    let mut first = engine.sql("select value from generate_series(1, 100000000000)").await.unwrap();
    assert!(first.stream.next().await.unwrap().is_ok());
    assert!(!engine.trace(trace(3)).await.unwrap().is_empty());
    drop(first);
    let engine = store.engine_with(QueryLimits { memory_bytes: 100, ..limits() });
    let error = engine.trace(trace(3)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Limit);
    assert!(error.message.contains("memory_bytes = 100"), "{error}");
}

#[tokio::test]
async fn limits_are_configuration() {
    let limits: QueryLimits = serde_json::from_str(r#"{"timeout": 1.5, "max_rows": 10}"#).unwrap();
    assert_eq!(limits.timeout, Duration::from_millis(1500));
    assert_eq!((limits.max_rows, limits.max_concurrent, limits.memory_bytes), (10, 8, 1 << 30));
    assert_eq!(
        serde_json::to_string(&limits).unwrap(),
        r#"{"timeout":1.5,"memory_bytes":1073741824,"max_rows":10,"max_concurrent":8,"spread_bytes":16777216}"#
    );
    assert!(serde_json::from_str::<QueryLimits>(r#"{"timeout": -1}"#).is_err());
    assert!(serde_json::from_str::<QueryLimits>(r#"{"time": 1}"#).is_err());
}
