//! What DataFusion's own rules get wrong (`crate::optimizer`).

use rollscope_model::Table;
use rollscope_model::build::{NewSample, SamplesBuilder};

use crate::fixture::{Stored, lines, plan, spans, value};

/// DataFusion 55 takes two projections with equal expressions for one (`optimizer/projections.rs`).
#[tokio::test]
async fn what_is_computed_twice_is_computed_twice() {
    let store = Stored::new();
    store.add_segment(Table::Spans, &spans("a", 0, 4));
    store.add_tail(Table::Spans, spans("b", 0, 4));
    let engine = store.engine();
    for (sql, wanted) in [
        ("select x + 1 as x from (select x + 1 as x from (select 1 as x))", "3"),
        (
            "select max(x) from (select x + 1 as x from (select x + 1 as x from (select x + 1 as x from (select 1 as x))))",
            "4",
        ),
        ("select max(step) from (select step + 1 as step from (select step + 1 as step from spans))", "2"),
        // They become neighbours when a filter or a limit is moved, or a column is left out.
        (
            "select max(step) from (select step + 1 as step from (select step + 1 as step from spans) where step < 5)",
            "2",
        ),
        ("select max(step) from (select step + 1 as step, 5 as y from (select step + 1 as step from spans))", "2"),
        ("select max(step) from (select step + 1 as step from (select step + 1 as step from spans limit 3))", "2"),
        ("select max(s.step) from (select s.step + 1 as step from (select s.step + 1 as step from spans s) s) s", "2"),
        (
            "select max(x) from (select x || 'a' as x from (select x || 'a' as x from (select name as x from spans)))",
            "toolaa",
        ),
        ("select max(a) from (select b as a, a as b from (select b as a, a as b from (select 1 as a, 2 as b)))", "1"),
        (
            "with a as (select 1 as x), b as (select x + 1 as x from a), c as (select x + 1 as x from b) select x from c",
            "3",
        ),
        (
            "select (select max(step) from (select step * 2 as step from (select step * 2 as step from (select 3 as step))))",
            "12",
        ),
    ] {
        assert_eq!(value(&engine, sql).await, wanted, "{sql}");
    }
    let plan = plan(&engine, "select x + 1 as x from (select step + 1 as x from spans)").await;
    assert!(!plan.contains("__rollscope"), "{plan}");
}

/// DataFusion 55 pushes filters down by the names of columns, and takes the first of two with the same name (`optimizer/pushdown.rs`).
#[tokio::test]
async fn filters_know_columns_of_one_name_apart() {
    let store = Stored::new();
    let mut b = SamplesBuilder::default();
    for n in 0..32 {
        b.push(&NewSample {
            run_id: "a",
            step: Some(n / 16),
            sample_id: &n.to_string(),
            group_id: Some(&(n / 4).to_string()),
            split: "train",
            reward: Some(f64::from(u8::from(n % 3 == 0))),
            ..NewSample::default()
        });
    }
    let batch = b.finish().unwrap();
    store.add_segment(Table::Samples, &batch.slice(0, 20));
    store.add_tail(Table::Samples, batch.slice(20, 12));
    let engine = store.engine();
    for how in ["join", "left join", "right join", "full join"] {
        for condition in [
            "coalesce(a.reward, 0) + coalesce(b.reward, 0) > 1",
            "a.reward > b.reward",
            "coalesce(b.reward, 0) < coalesce(a.reward, 0)",
            "a.reward is not distinct from b.reward",
        ] {
            let joined = format!(
                "from samples a {how} samples b on a.step = b.step and a.group_id = b.group_id and a.sample_id <> b.sample_id"
            );
            // A condition inside of an aggregate is not pushed anywhere.
            let counted =
                value(&engine, &format!("select sum(case when {condition} then 1 else 0 end) {joined}")).await;
            let filtered = value(&engine, &format!("select count(*) {joined} where {condition}")).await;
            assert_eq!(filtered, counted, "{how}: {condition}");
            let nested = format!(
                "select count(*) from (select a.reward, b.reward as other, a.sample_id, b.sample_id as with_id {joined} where {condition})"
            );
            assert_eq!(value(&engine, &nested).await, counted, "{nested}");
        }
    }
    let top = "select b.reward from samples a join samples b on a.group_id = b.group_id and a.sample_id <> b.sample_id \
               order by b.reward desc, a.reward limit 3";
    assert_eq!(lines(&engine, top).await, ["1.0", "1.0", "1.0"]);
    let plan = plan(&engine, top).await;
    assert!(!plan.contains("Screen"), "{plan}");
}

/// `optimizer/no_rows.rs`
#[tokio::test]
async fn a_filter_that_nothing_passes_stays_above_an_aggregate_that_has_a_row_of_nothing() {
    let store = Stored::new();
    store.add_segment(Table::Spans, &spans("a", 0, 40));
    store.add_tail(Table::Spans, spans("b", 1000, 8));
    let engine = store.engine();
    for (sql, wanted) in [
        ("select n from (select 1 > 2 as no, count(*) as n from (select count(*) from spans) group by 1) where no", 0),
        ("select n from (select count(*) as n from (select count(*) from spans)) where 1 > 2", 0),
        (
            "select * from (select name, count(*) from spans group by rollup (name)) where case when name = '' then false end",
            0,
        ),
        (
            "select * from (select name, step, count(*) from spans group by cube (name, step)) where nullif(true, true)",
            0,
        ),
        ("select * from (select name, count(*) from spans group by rollup (name)) where 1 = 1", 3),
    ] {
        assert_eq!(lines(&engine, sql).await.len(), wanted, "{sql}");
    }
    let plan = plan(&engine, "select * from (select name, count(*) from spans group by 1) where name = 'tool'").await;
    assert!(plan.contains("partial_filters=[spans.name"), "a filter over groups goes down: {plan}");
}

/// `optimizer/statistics.rs`
#[tokio::test]
async fn an_aggregate_with_a_filter_does_not_take_what_another_one_counted() {
    let store = Stored::new();
    store.add_segment(Table::Spans, &spans("a", 0, 40));
    store.add_tail(Table::Spans, spans("b", 1000, 8));
    let engine = store.engine();
    for (sql, wanted) in [
        ("select count(*) filter (where n > 100) from (select count(*) as n from spans)", "0"),
        ("select count(*) filter (where n > 1) as \"count(Int64(1))\" from (select count(*) as n from spans)", "1"),
        ("select count(*) filter (where false) from (select count(*) as n from spans where step >= 0)", "0"),
        (
            "select count(3) filter (where false), sum(n) filter (where not true) from (select count(*) as n from spans) where n > 0",
            "0|",
        ),
    ] {
        assert_eq!(value(&engine, sql).await, wanted, "{sql}");
    }
    let plan = plan(&engine, "select count(*) from spans where run_id = 'a'").await;
    assert!(!plan.contains("Screen"), "{plan}");
}

/// `optimizer/grouping_sets.rs`
#[tokio::test]
async fn totals_are_sorted_by_columns_that_are_constant_below() {
    let store = Stored::new();
    store.add_segment(Table::Spans, &spans("a", 0, 40));
    store.add_segment(Table::Spans, &spans("b", 500, 40));
    store.add_tail(Table::Spans, spans("a", 1000, 8));
    let engine = store.engine();
    for (sql, wanted) in [
        (
            "select run_id, name, count(*) from spans where run_id = 'a' group by rollup (run_id, name) \
             order by 1 nulls first, 2 nulls first",
            vec!["||48", "a||48", "a|generate|12", "a|tool|36"],
        ),
        (
            "select run_id, name, count(*) from spans where run_id = 'a' group by rollup (run_id, name) \
             order by 1 nulls last, 2 nulls last",
            vec!["a|generate|12", "a|tool|36", "a||48", "||48"],
        ),
        (
            "select false and step > 0 as c, name, count(*) from spans group by cube (false and step > 0, name) \
             order by 1 nulls first, 2 nulls last limit 3",
            vec!["|generate|22", "|tool|66", "||88"],
        ),
        // Of sorted and divided rows.
        (
            "select run_id, name, sum(n) from (select run_id, name, count(*) as n from spans group by 1, 2 order by 1, 2) \
             group by grouping sets ((run_id), (name), ()) order by 1 nulls first, 2 nulls first",
            vec!["||88", "|generate|22", "|tool|66", "a||48", "b||40"],
        ),
    ] {
        assert_eq!(lines(&engine, sql).await, wanted, "{sql}");
    }
}

/// The group was not recognised, because the operator gets a function whose memory is counted in its place.
#[tokio::test]
async fn joined_texts_are_groups_of_a_rollup() {
    let store = Stored::new();
    store.add_segment(Table::Spans, &spans("a", 0, 40));
    let engine = store.engine();
    let sql = "select run_id || '/' || name as c, count(*) from spans group by rollup (run_id || '/' || name) order by 1 nulls last";
    assert_eq!(lines(&engine, sql).await, ["a/generate|10", "a/tool|30", "|40"]);
}
