//! Many PromQL queries about one moment, read in one pass.

use std::time::Duration;

use rollscope_model::Table;
use rollscope_model::build::{NewPoint, SeriesBuilder};
use rollscope_query::promql::{Labels, PromAnswer, PromLimits, PromQuery};
use rollscope_query::{Engine, ErrorKind, QueryLimits};

use crate::fixture::Stored;

const AT: i64 = 1_700_000_000_000;

/// 120 samples of each series: the newer half is in the tail, the older in segments, one per run.
fn engine() -> Engine {
    let stored = Stored::new();
    for part in 0..2 {
        for (run, engines) in [("_scraped", &["a", "b"][..]), ("mine", &["c"])] {
            let mut rows = SeriesBuilder::default();
            for name in ["queue", "tokens_total", "other"] {
                for engine in engines {
                    // Of no run in particular, but with a label of that name.
                    let labels = match *engine {
                        "b" => r#"{"engine":"b","run":"labelled"}"#.to_string(),
                        _ => format!(r#"{{"engine":"{engine}"}}"#),
                    };
                    for i in 0..60 {
                        let time_ns = (AT - (part * 60 + i) * 10_000) * 1_000_000;
                        let (run_id, target, kind) = (run, "host:1", "gauge");
                        let value = 1000.0 - (part * 60 + i) as f64 * if *engine == "a" { 1.0 } else { 2.0 };
                        rows.push(&NewPoint { run_id, target, name, labels: &labels, kind, time_ns, value });
                    }
                }
            }
            let batch = rows.finish().unwrap();
            match part {
                0 => stored.add_tail(Table::Series, batch),
                _ => drop(stored.add_segment(Table::Series, &batch)),
            }
        }
    }
    stored.engine()
}

fn shown(answer: PromAnswer) -> Vec<String> {
    match answer {
        PromAnswer::Vector(rows) => rows.into_iter().map(|(labels, points)| format!("{labels} {points:?}")).collect(),
        PromAnswer::Scalar(points) => vec![format!("{points:?}")],
        other => panic!("{other:?}"),
    }
}

const QUERIES: [&str; 10] = [
    "queue",
    "queue{engine=\"a\"} > 10",
    "sum by (engine) (rate(tokens_total[5m]))",
    "max_over_time(queue[18m]) - queue",
    "{__name__=~\"queue|other\",engine!=\"c\"}",
    "queue{run=\"mine\"}",
    "queue{run=\"labelled\"}",
    "absent(nothing)",
    "avg_over_time(rate(tokens_total[1m])[5m:1m])",
    "vector(1) + 2",
];

#[tokio::test]
async fn a_round_answers_as_each_query_alone() {
    let (engine, limits) = (engine(), PromLimits::default());
    let queries: Vec<PromQuery> = QUERIES.iter().map(|text| PromQuery::parse(text).unwrap()).collect();
    let round = engine.promql_round(queries.iter(), AT, &limits).await;
    for query in queries {
        let together = shown(round.answer(&query).unwrap());
        let alone = shown(engine.promql(query.clone(), AT, AT, 1, &limits).await.unwrap());
        assert_eq!(together, alone, "{query}");
        assert!(!alone.is_empty(), "{query}");
    }
}

#[tokio::test]
async fn what_is_recorded_counts_for_those_after_it() {
    let (engine, limits) = (engine(), PromLimits::default());
    let queries =
        ["job:queue > 5", "count(job:queue)", "queue{engine=\"a\"}"].map(|text| PromQuery::parse(text).unwrap());
    let mut round = engine.promql_round(queries.iter(), AT, &limits).await;
    assert!(shown(round.answer(&queries[0]).unwrap()).is_empty());
    let labels = |name: &str| Labels::new([("__name__".into(), name.into()), ("engine".into(), "a".into())]);
    round.add(&labels("job:queue"), 7.0);
    assert_eq!(shown(round.answer(&queries[0]).unwrap()).len(), 1);
    assert_eq!(shown(round.answer(&queries[1]).unwrap()), [format!("{{}} [({AT}, 1.0)]")]);
    // A series that is stored gets one more sample, or another one at this time.
    round.add(&labels("queue").with("instance", "host:1"), -1.0);
    assert_eq!(
        shown(round.answer(&queries[2]).unwrap()),
        [format!("queue{{engine=\"a\", instance=\"host:1\"}} [({AT}, -1.0)]")]
    );
}

#[tokio::test]
async fn one_query_that_is_too_large_fails_alone() {
    let engine = engine();
    let limits = PromLimits { promql_max_samples: 250, ..PromLimits::default() };
    let queries = ["sum_over_time(queue[20m])", "other{engine=\"a\"}"].map(|text| PromQuery::parse(text).unwrap());
    let round = engine.promql_round(queries.iter(), AT, &limits).await;
    assert!(round.answer(&queries[0]).unwrap_err().message.contains("promql_max_samples"));
    assert_eq!(shown(round.answer(&queries[1]).unwrap()).len(), 1);
}

#[tokio::test]
async fn an_answer_of_a_round_has_the_timeout_of_a_query() {
    let engine = Stored::new().engine_with(QueryLimits { timeout: Duration::ZERO, ..QueryLimits::default() });
    let (limits, query) = (PromLimits::default(), PromQuery::parse("vector(1) + 2").unwrap());
    // There is nothing to read for it.
    let round = engine.promql_round(std::iter::once(&query), AT, &limits).await;
    let error = round.answer(&query).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Limit);
    assert!(error.message.contains("timeout"), "{error}");
}
