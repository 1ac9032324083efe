//! `attr` and its family.

use arrow::datatypes::DataType;
use rollscope_model::Table;
use rollscope_model::attrs::Value;
use rollscope_model::build::{NewPoint, NewSpan, SeriesBuilder, SpansBuilder};

use crate::fixture::{Stored, lines, plan, rows, spans, try_rows, value};

async fn type_of(engine: &rollscope_query::Engine, expr: &str) -> DataType {
    let running = engine.sql(&format!("select {expr} from spans")).await.unwrap_or_else(|e| panic!("{expr}: {e}"));
    running.schema.field(0).data_type().clone()
}

fn mixed() -> std::sync::Arc<Stored> {
    let store = Stored::new();
    let mut b = SpansBuilder::default();
    let row = |b: &mut SpansBuilder, n: u8, attrs: &[(&str, Value)]| {
        b.push(&NewSpan {
            run_id: "a",
            span_id: [n; 8],
            name: "x",
            start_ns: i64::from(n),
            end_attrs: attrs,
            ..NewSpan::default()
        });
    };
    row(
        &mut b,
        1,
        &[("int", Value::Int(7)), ("num", Value::Int(1)), ("mixed", Value::Int(1)), ("flag", Value::Bool(true))],
    );
    row(&mut b, 2, &[("num", Value::Double(0.5)), ("mixed", "one".into()), ("text", "a \"b\" c".into())]);
    store.add_segment(Table::Spans, &b.finish().unwrap());
    let mut b = SpansBuilder::default();
    row(
        &mut b,
        3,
        &[("num", Value::Double(f64::NAN)), ("list", Value::List(vec![Value::Int(1)])), ("flag", Value::Bool(false))],
    );
    store.add_tail(Table::Spans, b.finish().unwrap());
    store
}

#[tokio::test]
async fn the_type_of_attr_follows_the_data() {
    let engine = mixed().engine();
    assert_eq!(type_of(&engine, "attr(end_attrs, 'int')").await, DataType::Int64);
    assert_eq!(type_of(&engine, "attr(end_attrs, 'num')").await, DataType::Float64);
    assert_eq!(type_of(&engine, "attr(end_attrs, 'flag')").await, DataType::Boolean);
    assert_eq!(type_of(&engine, "attr(end_attrs, 'mixed')").await, DataType::Utf8);
    assert_eq!(type_of(&engine, "attr(end_attrs, 'nowhere')").await, DataType::Utf8);
    assert_eq!(type_of(&engine, "attr(attrs, 'int')").await, DataType::Int64);
    // The key is known in end_attrs only.
    assert_eq!(type_of(&engine, "attr(start_attrs, 'int')").await, DataType::Utf8);
    let sql = "select attr(end_attrs, 'int') i, attr(end_attrs, 'num') n, attr(end_attrs, 'mixed') m, \
               attr(end_attrs, 'flag') f, attr(end_attrs, 'text') t, attr_json(end_attrs, 'text') j, \
               attr(attrs, 'list') l, attr_keys(end_attrs) k from spans order by start_ns";
    assert_eq!(
        lines(&engine, sql).await,
        [
            "7|1.0|1|true||||[int, num, mixed, flag]",
            r#"|0.5|one||a "b" c|"a \"b\" c"||[num, mixed, text]"#,
            "|NaN||false|||[1]|[num, list, flag]",
        ]
    );
}

#[tokio::test]
async fn attr_works_through_aliases_and_subqueries() {
    let engine = mixed().engine();
    let sql = "with t as (select s.end_attrs as e, s.attrs as all_attrs from spans s) \
               select sum(attr(u.e, 'int') + attr(all_attrs, 'int')) from (select * from t) u";
    assert_eq!(value(&engine, sql).await, "14");
    assert_eq!(value(&engine, "select count(*) from spans where attr(attrs, 'flag')").await, "1");
    assert_eq!(value(&engine, "select count(*) from spans where attr(end_attrs, 'num') < 1").await, "1");
    assert_eq!(
        value(
            &engine,
            "select max(attr(e, 'int')) from (select end_attrs e from spans union all select end_attrs from spans)"
        )
        .await,
        "7"
    );
}

#[tokio::test]
async fn a_plan_names_the_typed_function() {
    let engine = mixed().engine();
    let text = plan(&engine, "select attr(end_attrs, 'int') from spans").await;
    assert!(text.contains("attr_int("), "{text}");
    // Merged attributes are read from their parts; nothing is merged.
    for sql in [
        "select attr(attrs, 'int') from spans",
        "select attr(attrs, 'int'), attr(attrs, 'num') from spans",
        "select name, sum(attr(attrs, 'int')), avg(attr(attrs, 'num')) from spans group by name",
        "select count(*) from spans where attr(attrs, 'int') > 1 and attr(attrs, 'num') > 1",
    ] {
        let text = plan(&engine, sql).await;
        let physical = &text[text.find("physical_plan").unwrap()..];
        assert!(!physical.contains("merge_attrs"), "{sql}\n{text}");
    }
    let unused = plan(&engine, "select name from spans").await;
    assert!(!unused.contains("end_attrs"), "{unused}");
}

#[tokio::test]
async fn the_end_wins_in_merged_attributes() {
    let store = Stored::new();
    let mut b = SpansBuilder::default();
    b.push(&NewSpan {
        run_id: "a",
        name: "x",
        start_attrs: &[("k", Value::Int(1)), ("s", Value::Int(2))],
        end_attrs: &[("k", Value::Int(9))],
        ..NewSpan::default()
    });
    store.add_tail(Table::Spans, b.finish().unwrap());
    let engine = store.engine();
    assert_eq!(
        lines(&engine, "select attr(attrs, 'k'), attr(attrs, 's'), attrs from spans").await,
        ["9|2|{s: 2, k: 9}"]
    );
}

#[tokio::test]
async fn the_end_wins_where_both_have_many_attributes() {
    let store = Stored::new();
    let names: Vec<String> = (0..60).map(|n| format!("k{n}")).collect();
    let list = |numbers: std::ops::Range<usize>, value: i64| {
        names[numbers].iter().map(|name| (name.as_str(), Value::Int(value))).collect::<Vec<_>>()
    };
    let mut b = SpansBuilder::default();
    let (at_start, at_end) = (list(0..40, 1), list(20..60, 2));
    b.push(&NewSpan { run_id: "a", name: "x", start_attrs: &at_start, end_attrs: &at_end, ..NewSpan::default() });
    store.add_tail(Table::Spans, b.finish().unwrap());
    let wanted: Vec<String> = (0..60).map(|n| format!("k{n}: {}", if n < 20 { 1 } else { 2 })).collect();
    assert_eq!(lines(&store.engine(), "select attrs from spans").await, [format!("{{{}}}", wanted.join(", "))]);
}

#[tokio::test]
async fn json_text_is_read_like_attributes() {
    let store = Stored::new();
    store.add_segment(Table::Spans, &spans("a", 0, 100));
    store.add_tail(Table::Spans, spans("a", 25, 20));
    let mut b = SeriesBuilder::default();
    for (target, labels) in [("x", r#"{"le":"0.5","dp":1}"#), ("y", "not json"), ("z", "{}")] {
        b.push(&NewPoint { run_id: "a", target, name: "m", labels, kind: "gauge", time_ns: 1, value: 1.0 });
    }
    store.add_tail(Table::Series, b.finish().unwrap());
    let engine = store.engine();
    let sql =
        "select attr(resource, 'service.name') s, attr_int(resource, 'replicas') r, count(*) from spans group by 1, 2";
    assert_eq!(lines(&engine, sql).await, ["trainer|3|120"]);
    assert_eq!(
        lines(
            &engine,
            "select target, attr(labels, 'le'), attr_int(labels, 'dp'), attr_keys(labels) from series order by 1"
        )
        .await,
        ["x|0.5|1|[le, dp]", "y|||[]", "z|||[]"]
    );
    assert_eq!(value(&engine, r#"select attr_num('{"a": 1.5}', 'a')"#).await, "1.5");
}

#[tokio::test]
async fn misuse_is_explained() {
    let engine = mixed().engine();
    for (sql, word) in [
        ("select attr(name) from spans", "expects an attribute column and a key"),
        ("select attr(start_ns, 'k') from spans", "expects an attribute column"),
        ("select attr(end_attrs, name) from spans", "must be a text literal"),
        ("select hex(name) from spans", "hex expects an id"),
    ] {
        let error = try_rows(&engine, sql).await.unwrap_err();
        assert!(error.is_users() && error.message.contains(word), "{sql}: {error}");
    }
    assert_eq!(rows(&engine, "select attr_int(null, 'k')").await[0].column(0).null_count(), 1);
}
