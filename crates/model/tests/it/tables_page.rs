//! `docs/tables.md` is generated from the schemas.

use std::fmt::Write;

use arrow::datatypes::DataType;
use rollscope_model::Table;
use rollscope_model::tables::{Keep, doc};

fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Dictionary(_, _) | DataType::Utf8 => "text".into(),
        DataType::Int64 | DataType::Int32 | DataType::UInt32 => "integer".into(),
        DataType::Float64 => "double".into(),
        DataType::Boolean => "boolean".into(),
        DataType::FixedSizeBinary(n) => format!("{n} bytes"),
        DataType::Map(_, _) => "attributes".into(),
        DataType::List(_) => "list".into(),
        other => panic!("name {other} for people"),
    }
}

#[test]
fn the_page_of_tables_is_up_to_date() {
    let mut page = String::from(
        "# Tables\n\nThis page is generated from `crates/model/src/tables.rs`, and a test fails if it is stale. Times are nanoseconds since the epoch.\n",
    );
    for table in Table::ALL {
        let identity: Vec<String> = table.identity().iter().map(|column| format!("`{column}`")).collect();
        let stays = match table.keep() {
            Keep::First => "The first row is kept",
            Keep::FirstClosed => "The first row is kept, except that a closed span replaces an open one",
            Keep::Last => "The newest row replaces the others",
        };
        let once = format!("One row per {}. {stays}.", identity.join(", "));
        let head = "| column | type | null | meaning |\n|---|---|---|---|";
        write!(page, "\n## {}\n\n{once}\n\n{head}\n", table.name()).unwrap();
        for field in table.schema().fields() {
            let null = if field.is_nullable() { "yes" } else { "" };
            let kind = type_name(field.data_type());
            writeln!(page, "| `{}` | {kind} | {null} | {} |", field.name(), doc(field)).unwrap();
        }
    }
    super::up_to_date("docs/tables.md", &page);
}
