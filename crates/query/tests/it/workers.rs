//! Queries that are cut into parts for workers: the same rows as without them.

use std::sync::Arc;

use arrow::datatypes::DataType;
use rollscope_model::Table;
use rollscope_model::build::{NewSpan, SpansBuilder};
use rollscope_query::{Engine, QueryLimits, Workers};
use rollscope_store::identity_hashes;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use url::Url;

use crate::fixture::{Crew, KEY, Stored, lines, plan, spans, value};

/// Each with an order, or with one row.
const QUERIES: &[&str] = &[
    "select count(*), min(start_ns), max(end_ns), avg(duration_ns), sum(step) from spans",
    "select name, count(*), count(distinct trace_id), sum(duration_ns) from spans group by name order by name",
    "select step, name, count(*) from spans group by 1, 2 having count(*) > 20 order by 1, 2",
    "select run_id, approx_percentile_cont(duration_ns, 0.5), stddev(duration_ns) from spans group by 1 order by 1",
    "select attr(attrs, 'tokens') as t, attr(attrs, 'model') as m, count(*) from spans group by 1, 2 order by 1, 2",
    "select hex(trace_id), hex(span_id), name, state from spans order by trace_id, span_id limit 20",
    "select * from spans order by run_id, start_ns, span_id limit 7",
    "select hex(a.span_id), b.n from spans a join (select trace_id, count(*) as n from spans group by 1) b \
     on a.trace_id = b.trace_id where a.name = 'generate' order by a.span_id limit 50",
    "select count(*) from spans a join spans b on a.trace_id = b.trace_id and a.start_ns < b.start_ns",
    "select count(*) from spans a left join spans b on a.span_id = b.span_id and b.step > 3 where b.span_id is null",
    "select count(*) from spans where trace_id in (select trace_id from spans where step = 2)",
    "select count(*) from spans where trace_id not in (select trace_id from spans where step = 2)",
    "select name, step, rank() over (partition by name order by step) as r from spans order by 1, 2, 3 limit 30",
    "select replace(name, 'o', 'oooo') || '-' || run_id as n, concat(name, service), count(*) from spans group by 1, 2 order by 1, 2",
    "select upper(name), regexp_replace(name, 'o+', 'x'), to_timestamp_nanos(min(start_ns)) from spans group by name order by name",
    "select distinct run_id, name from spans order by 1, 2",
    "select name from spans where step = 1 union all select run_id from spans where step = 2 order by 1",
    "select name from spans union select run_id from spans order by 1",
    "select k, count(*) from (select unnest(attr_keys(attrs)) as k from spans) group by 1 order by 1",
    "select count(*) from spans where attr_int(attrs, 'n') % 3 = 0 and name like '%oo%'",
    "select case when step < 3 then 'early' else 'late' end as half, count(*) from spans group by 1 order by 1",
    "select (select max(step) from spans), (select count(*) from spans where name = 'tool')",
    "with busy as (select step, sum(duration_ns) as ns from spans group by 1) select count(*), max(ns) from busy",
    "select count(*) from spans where end_ns is null or state = 'closed'",
    "select sum(value) from metrics",
    "select run_id, texts from tokens order by run_id",
    "select count(*) from (select * from spans limit 4294967296)",
    "select count(*) from (select a.step as s, b.step as t from spans a cross join spans b where a.step < b.step)",
    "select count(*) from (select step from spans order by step limit 500) a join (select step from spans order by step desc limit 500) b on a.step < b.step",
];

fn stored() -> Arc<Stored> {
    let stored = Stored::new();
    for (run, first) in [("a", 0), ("a", 500), ("a", 1000), ("b", 2000), ("b", 3000)] {
        stored.add_segment(Table::Spans, &spans(run, first, 400));
    }
    stored.add_tail(Table::Spans, spans("a", 5000, 100));
    stored
}

fn engines(stored: &Arc<Stored>, crew: Arc<dyn Workers>) -> (Engine, Engine) {
    let limits = QueryLimits { spread_bytes: 1, ..QueryLimits::default() };
    let (alone, spread) =
        (Engine::new(stored.clone(), limits.clone()).unwrap(), Engine::new(stored.clone(), limits).unwrap());
    spread.use_workers(crew);
    (alone, spread)
}

async fn columns(engine: &Engine, sql: &str) -> Vec<(String, DataType)> {
    let schema = engine.sql(sql).await.unwrap().schema;
    schema.fields().iter().map(|field| (field.name().clone(), field.data_type().clone())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_the_same_on_workers() {
    let stored = stored();
    let (alone, spread) = engines(&stored, Crew::start(&stored, 2, &QueryLimits::default()));
    let (mut on_workers, mut again) = (0, Vec::new());
    for sql in QUERIES {
        let (before, failed) = spread.spread();
        assert_eq!(lines(&spread, sql).await, lines(&alone, sql).await, "{sql}");
        assert_eq!(columns(&spread, sql).await, columns(&alone, sql).await, "{sql}");
        if spread.spread().1 != failed {
            again.push(*sql);
        }
        on_workers += usize::from(spread.spread().0 > before);
    }
    assert!(again.is_empty(), "these ran again without workers: {again:#?}");
    assert!(on_workers >= 20, "{on_workers} queries ran on workers");
}

/// The secret of hashes is another one in each process; here both are one process, so the literal is what is tested.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_the_tail_replaces_are_left_out_on_workers() {
    let stored = Stored::new();
    let span = |n: u64, closed: bool| {
        let mut b = SpansBuilder::default();
        b.push(&NewSpan {
            run_id: "a",
            trace_id: [1; 16],
            span_id: n.to_be_bytes(),
            name: "work",
            start_ns: 5,
            end_ns: closed.then_some(9),
            ..NewSpan::default()
        });
        b.finish().unwrap()
    };
    for n in 1..6 {
        stored.add_segment(Table::Spans, &span(n, n > 2));
    }
    for n in 1..3 {
        stored.add_tail(Table::Spans, span(n, true));
    }
    let replaced = (1..3).flat_map(|n| identity_hashes(Table::Spans, &span(n, true))).collect();
    stored.set_replaced(Table::Spans, "a", replaced);
    let (alone, spread) = engines(&stored, Crew::start(&stored, 2, &QueryLimits::default()));
    for engine in [&alone, &spread] {
        assert_eq!(value(engine, "select count(*) || ' ' || count(end_ns) from spans").await, "5 5");
    }
    assert_eq!(spread.spread(), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_what_goes_where() {
    let stored = stored();
    let (alone, spread) = engines(&stored, Crew::start(&stored, 2, &QueryLimits::default()));
    let sql = "select name, count(*) from spans group by name";
    let (here, there) = (plan(&alone, sql).await, plan(&spread, sql).await);
    assert!(there.contains("DistributedExec") && there.contains("Stage 1"), "{there}");
    assert!(!here.contains("DistributedExec"), "{here}");
    // What reads no files stays.
    assert!(!plan(&spread, "select 1").await.contains("DistributedExec"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_gone_costs_a_second_attempt() {
    let stored = stored();
    let crew = Crew::start(&stored, 2, &QueryLimits::default());
    let gone = crew.0.lock().unwrap().pop().unwrap();
    let url: Url = format!("http://{}", gone.address()).parse().unwrap();
    struct WithOneMore(Arc<Crew>, Url);
    impl Workers for WithOneMore {
        fn urls(&self) -> Vec<Url> {
            self.0.urls().into_iter().chain([self.1.clone()]).collect()
        }

        fn key(&self) -> String {
            KEY.into()
        }
    }
    let (_, spread) = engines(&stored, Arc::new(WithOneMore(crew, url)));
    let sql = "select count(name) from spans";
    assert_eq!(value(&spread, sql).await, "2100");
    assert_eq!(spread.spread(), (1, 0));
    gone.stop().await;
    assert_eq!(value(&spread, sql).await, "2100");
    assert_eq!(spread.spread().1, 1, "it was tried again");
    assert_eq!(value(&spread, sql).await, "2100");
    assert_eq!(spread.spread().1, 1, "the worker is avoided");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_not_the_key_is_not_served() {
    let stored = stored();
    struct Stranger(Arc<Crew>);
    impl Workers for Stranger {
        fn urls(&self) -> Vec<Url> {
            self.0.urls()
        }

        fn key(&self) -> String {
            "another key".into()
        }
    }
    let (_, spread) = engines(&stored, Arc::new(Stranger(Crew::start(&stored, 2, &QueryLimits::default()))));
    assert_eq!(value(&spread, "select count(name) from spans").await, "2100");
    assert_eq!(spread.spread(), (0, 1), "it was refused once, and ran here");
}

/// Connections on which nobody showed the key.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_keep_nobody_from_a_worker() {
    let stored = stored();
    let crew = Crew::start(&stored, 2, &QueryLimits::default());
    let mut strangers = Vec::new();
    for url in crew.urls().into_iter().cycle().take(400) {
        strangers.push(TcpStream::connect(url.socket_addrs(|| None).unwrap()[0]).await.unwrap());
    }
    // The oldest went first, long before its time was over.
    let mut greeting = Vec::new();
    let _ = strangers[0].read_to_end(&mut greeting).await;
    let (_, spread) = engines(&stored, crew);
    assert_eq!(value(&spread, "select count(name) from spans").await, "2100");
    assert_eq!(spread.spread(), (1, 0), "it ran on the workers");
}
