//! The table that is printed.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{ContentArrangement, Table};

/// Rows of: what, ours, reference, reference value, the ratio, the aim.
#[derive(Default)]
pub struct Report(Vec<[String; 6]>);

impl Report {
    pub fn row(&mut self, what: &str, ours: String, against: &str, theirs: String, ratio: f64, aim: &str) {
        let row = [what.into(), ours, against.into(), theirs, format!("{ratio:.2}"), aim.into()];
        println!("{}", row.join(" | "));
        self.0.push(row);
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut table = Table::new();
        table.load_preset(ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(["what", "ours", "reference", "reference value", "ratio", "aim"]);
        self.0.iter().for_each(|row| {
            table.add_row(row);
        });
        write!(f, "\n{table}")
    }
}

pub fn thousands(n: f64) -> String {
    if n >= 1e6 {
        format!("{:.2}M", n / 1e6)
    } else if n >= 1e3 {
        format!("{:.0}k", n / 1e3)
    } else {
        format!("{n:.1}")
    }
}
