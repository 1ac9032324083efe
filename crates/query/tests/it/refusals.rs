//! Only reading, and no text that hurts.

use rollscope_model::Table;
use rollscope_query::ErrorKind;

use crate::fixture::{Stored, lines, spans, try_rows, value};

#[tokio::test]
async fn only_reading_is_possible() {
    let store = Stored::new();
    store.add_tail(Table::Spans, spans("a", 0, 10));
    let engine = store.engine();
    let out = store.path("out.parquet");
    for sql in [
        "insert into metrics values ('a', 1, 1, 'x', 1.0)",
        "create table t as select 1",
        "create view v as select 1",
        "create external table t stored as parquet location '/etc'",
        "create schema s",
        "create function f() returns int return 1",
        "drop table spans",
        "drop view spans",
        "delete from spans",
        "update spans set name = 'x'",
        "truncate table spans",
        &format!("copy spans to '{}'", out.display()),
        &format!("copy (select 1) to '{}' stored as csv", out.display()),
        "set datafusion.execution.batch_size = 1",
        "reset datafusion.execution.batch_size",
        "begin",
        "commit",
        "prepare p as select 1",
        "explain analyze insert into metrics values ('a', 1, 1, 'x', 1.0)",
        "select 1; select 2",
        "select 1; drop table spans",
        "",
        ";",
        "-- nothing",
    ] {
        let error = try_rows(&engine, sql).await.err().unwrap_or_else(|| panic!("allowed: {sql}"));
        assert!(error.is_users(), "{sql}: {error:?}");
    }
    assert!(!out.exists());
    assert_eq!(value(&engine, "select count(*) from spans").await, "10");
    let error = try_rows(&engine, "drop table spans").await.unwrap_err();
    assert!(error.message.starts_with("only read-only SQL is allowed"), "{error}");
    let error = try_rows(&engine, "select 1; select 2").await.unwrap_err();
    assert_eq!(error.message, "expected one statement; send each statement on its own");
}

#[tokio::test]
async fn files_of_the_machine_are_out_of_reach() {
    let store = Stored::new();
    let path = store.add_segment(Table::Spans, &spans("a", 0, 10));
    let engine = store.engine();
    for table in [
        store.path(&path).display().to_string(),
        path,
        "file:///etc/passwd".into(),
        "rollscope://store/spans-0.parquet".into(),
    ] {
        for sql in [format!("select * from '{table}'"), format!("select * from \"{table}\"")] {
            assert!(try_rows(&engine, &sql).await.is_err(), "{sql}");
        }
    }
}

#[tokio::test]
async fn errors_help() {
    let engine = Stored::new().engine();
    let error = try_rows(&engine, "select servce from spans").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Plan);
    assert!(error.message.contains("servce") && error.message.contains("service"), "{error}");
    let error = try_rows(&engine, "selekt 1").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Parse);
    let error = try_rows(&engine, "select * from nowhere").await.unwrap_err();
    assert!(error.message.contains("nowhere") && error.is_users(), "{error}");
    let error = try_rows(&engine, "select 1 / 0").await.unwrap_err();
    assert!(error.is_users(), "{error:?}");
    let error = try_rows(&engine, "select cast('x' as int)").await.unwrap_err();
    assert!(error.is_users(), "{error:?}");
}

#[tokio::test]
async fn hostile_text_gets_an_error_and_the_next_query_an_answer() {
    let store = Stored::new();
    store.add_tail(Table::Spans, spans("a", 0, 10));
    let engine = store.engine();
    let n = 100_000;
    for sql in [
        format!("select {}1{}", "(".repeat(n), ")".repeat(n)),
        format!("select {}1", "-".repeat(n) + " "),
        format!("select {} true", "not ".repeat(n)),
        format!("select 1{}", " + 1".repeat(n)),
        format!("select 1{}", "::bigint".repeat(n)),
        format!("select 1 {}", "union all select 1 ".repeat(n)),
        format!("select {}1{}", "abs(".repeat(n), ")".repeat(n)),
        format!("select {}1{}", "case when true then ".repeat(n), " end".repeat(n)),
        format!("select * from {}spans{}", "(select * from ".repeat(n), ")".repeat(n)),
        format!("select {}", "[".repeat(n)),
        "select 'unterminated".to_string(),
        "select \"unterminated".to_string(),
        "/* open".to_string(),
        "\0\u{1}\u{fffd}".to_string(),
        "select '\0'".to_string() + &"x".repeat(2 << 20),
        "select repeat('a', 2000000000)".to_string(),
        "select array_repeat(1, 2000000000)".to_string(),
        "select range(1, 2000000000)".to_string(),
        "select $1".to_string(),
    ] {
        let error = try_rows(&engine, &sql).await.err();
        let error = error.unwrap_or_else(|| panic!("answered: {}", &sql[..sql.len().min(60)]));
        assert!(error.is_users() || error.kind == ErrorKind::Limit, "{}: {error:?}", &sql[..sql.len().min(60)]);
        assert!(error.message.len() < 2100);
    }
    assert_eq!(value(&engine, "select count(*) from spans").await, "10");
}

/// Each row would have its own, and all of a batch are kept: megabytes each, which no limit counts.
#[tokio::test]
async fn regular_expressions_are_literals_and_small() {
    let store = Stored::new();
    store.add_segment(Table::Spans, &spans("a", 0, 10));
    let engine = store.engine();
    for computed in [
        r"regexp_like(name, concat('\pL{300}', hex(span_id)))",
        "regexp_like(hex(span_id), 'o', hex(trace_id))",
        "regexp_count(hex(span_id), hex(trace_id)) > 0",
        "regexp_instr(hex(span_id), hex(trace_id)) > 0",
        "regexp_match(hex(span_id), hex(trace_id)) is not null",
        "regexp_replace(hex(span_id), hex(trace_id), 'x') = 'x'",
        "regexp_replace(hex(span_id), '0', 'x', hex(trace_id)) = 'x'",
        "hex(span_id) ~ hex(trace_id)",
        "hex(span_id) ~* hex(trace_id)",
        "hex(span_id) !~ hex(trace_id)",
        "hex(span_id) !~* concat(hex(trace_id), 'x')",
        "hex(span_id) similar to hex(trace_id)",
        "trace_id in (select trace_id from spans where hex(span_id) ~ hex(trace_id))",
    ] {
        for sql in
            [format!("select count(*) from spans where {computed}"), format!("select ({computed}) as x from spans")]
        {
            let error = try_rows(&engine, &sql).await.err().unwrap_or_else(|| panic!("answered: {sql}"));
            assert!(error.is_users() && error.message.contains("must be literals"), "{sql}: {error}");
        }
    }
    for large in [
        r"regexp_like(name, '\pL{300}')",
        r"regexp_like(name, 'o', 'i)\pL{300}(?i')",
        r"regexp_replace(name, '\pL{300}', 'x', 'g') = 'x'",
        r"name ~ '\pL{300}'",
        r"name !~* '\pL{300}'::varchar",
    ] {
        let sql = format!("select count(*) from spans where {large}");
        let error = try_rows(&engine, &sql).await.err().unwrap_or_else(|| panic!("answered: {sql}"));
        assert!(error.is_users() && error.message.contains("when it is compiled"), "{sql}: {error}");
    }
    for (filter, rows) in [
        ("name ~ 'oo'", "7"),
        (r"name ~ 'oo|\w{24}'", "7"),
        ("name ~ 'oo'::varchar", "7"),
        ("name !~ 'oo'", "3"),
        ("name ~* 'OO'", "7"),
        ("regexp_like(name, 'OO', 'i')", "7"),
        ("regexp_replace(name, 'o', 'x', 'g') = 'txxl'", "7"),
    ] {
        assert_eq!(value(&engine, &format!("select count(*) from spans where {filter}")).await, rows, "{filter}");
    }
}

/// What stays under the limits on size must be planned and run without running out of stack.
#[tokio::test]
async fn long_queries_within_the_limits_run() {
    let store = Stored::new();
    store.add_tail(Table::Spans, spans("a", 0, 10));
    let engine = store.engine();
    assert_eq!(value(&engine, &format!("select 1{}", " + 1".repeat(300))).await, "301");
    let many = (0..200).map(|i| format!("start_ns <> {i}")).collect::<Vec<_>>().join(" and ");
    assert_eq!(value(&engine, &format!("select count(*) from spans where {many}")).await, "10");
    let list = (0..20_000).map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
    assert_eq!(value(&engine, &format!("select count(*) from spans where step in ({list})")).await, "10");
    let names = lines(&engine, "select 'it''s; -- not a comment', '/* nor */' from spans limit 1").await;
    assert_eq!(names, ["it's; -- not a comment|/* nor */"]);
}
