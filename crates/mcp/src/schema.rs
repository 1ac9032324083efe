//! The tables, for whoever writes SQL.

use rollscope_query::Engine;

pub const URI: &str = "rollscope://schema";

pub fn text(engine: &Engine) -> String {
    let mut out = String::from(
        "Tables of rollscope, for the tool `sql`. Times are nanoseconds since the epoch. Attributes are read with attr(column, 'key').\n\
         Select `run_id` and `step` in `where` to keep a query fast.\n",
    );
    let columns = engine.columns();
    for table in engine.table_stats() {
        out.push_str(&format!("\n## {} ({} rows)\n", table.table, table.rows));
        for column in columns.iter().filter(|column| column.table == table.table) {
            let null = if column.nullable { ", may be null" } else { "" };
            out.push_str(&format!("- {} ({}{null}): {}\n", column.name, column.data_type, column.doc));
        }
    }
    out
}
