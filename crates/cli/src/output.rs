//! Answers for people: numbers with separators, tables that fit the terminal.

pub mod answers;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};

/// 1234567 as `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// 1536 as `1.5 KiB`.
pub fn size(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

/// Longest text of a cell; the whole is in CSV and JSON.
const CELL: usize = 120;

/// Batches as a table. Control characters are shown, not obeyed: model output must not drive the terminal.
pub fn table(schema: &Schema, batches: &[RecordBatch]) -> anyhow::Result<Table> {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(schema.fields().iter().map(|f| f.name().clone()));
    for batch in batches {
        for row in rollscope_server::encode::texts(batch)? {
            table.add_row(row.iter().map(|text| printable(text)));
        }
    }
    for (i, field) in schema.fields().iter().enumerate() {
        if field.data_type().is_numeric()
            && let Some(column) = table.column_mut(i)
        {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    Ok(table)
}

pub fn printable(text: &str) -> String {
    let mut out = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == CELL {
            out.push('…');
            break;
        }
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_for_people() {
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(12), "12");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(printable("a\x1b[31mb"), "a\\u{1b}[31mb");
        assert_eq!(printable(&"x".repeat(500)).chars().count(), CELL + 1);
    }
}
