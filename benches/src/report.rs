//! What was measured: the table that is printed, the file that is kept, and what changed since the one that was committed.

use std::fmt;
use std::process::Command;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{ContentArrangement, Table};
use serde_json::{Value, json};

/// The figures that the docs quote, from the root of the repository.
pub const FILE: &str = "docs/bench.json";
/// A ratio that changed by more than this share is worth a look.
const WORTH_A_LOOK: f64 = 0.15;

/// One figure, as often as it was measured.
struct Row {
    topic: &'static str,
    what: String,
    against: String,
    aim: String,
    measured: Vec<Measured>,
}

struct Measured {
    ours: String,
    theirs: String,
    ratio: f64,
}

impl Row {
    /// By ratio, because absolute figures are the machine's as well.
    fn sorted(&self) -> Vec<&Measured> {
        let mut sorted: Vec<&Measured> = self.measured.iter().collect();
        sorted.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
        sorted
    }

    fn median(&self) -> &Measured {
        let sorted = self.sorted();
        sorted[(sorted.len() - 1) / 2]
    }

    fn spread(&self) -> (f64, f64) {
        let sorted = self.sorted();
        (sorted[0].ratio, sorted[sorted.len() - 1].ratio)
    }

    fn json(&self) -> Value {
        let (lowest, highest) = self.spread();
        let Measured { ours, theirs, ratio } = self.median();
        json!({
            "topic": self.topic, "what": self.what, "ours": ours, "reference": self.against, "reference_value": theirs,
            "ratio": rounded(*ratio), "lowest": rounded(lowest), "highest": rounded(highest), "aim": self.aim,
        })
    }
}

fn rounded(ratio: f64) -> f64 {
    format!("{ratio:.4e}").parse().unwrap_or(ratio)
}

#[derive(Default)]
pub struct Report {
    pub topic: &'static str,
    rows: Vec<Row>,
}

impl Report {
    pub fn row(&mut self, what: &str, ours: String, against: &str, theirs: String, ratio: f64, aim: &str) {
        println!("{what} | {ours} | {against} | {theirs} | {ratio:.2} | {aim}");
        let measured = Measured { ours, theirs, ratio };
        let topic = self.topic;
        match self.rows.iter_mut().find(|row| row.topic == topic && row.what == what && row.against == against) {
            Some(row) => row.measured.push(measured),
            None => self.rows.push(Row {
                topic,
                what: what.into(),
                against: against.into(),
                aim: aim.into(),
                measured: vec![measured],
            }),
        }
    }

    /// With what is needed to judge it later: when, of what, and on which machine.
    pub fn json(&self, runs: usize, is_full: bool) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        json!({
            "commit": said_by("git", &["rev-parse", "--short=12", "HEAD"]),
            "changed_since": !said_by("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty(),
            "date": said_by("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
            "machine": machine(),
            "runs": runs,
            "full_size": is_full,
            "rows": rows,
        })
    }

    /// A line per ratio that differs from an earlier report's by more than [`WORTH_A_LOOK`].
    pub fn changes(&self, before: &Value) -> Vec<String> {
        let earlier = before["rows"].as_array().map_or(&[][..], Vec::as_slice);
        let changed = self.rows.iter().filter_map(|row| {
            let same = |e: &&Value| e["topic"] == row.topic && e["what"] == *row.what && e["reference"] == *row.against;
            let was = earlier.iter().find(same)?["ratio"].as_f64()?;
            let now = row.median().ratio;
            let change = now / was - 1.0;
            (change.is_finite() && change.abs() > WORTH_A_LOOK)
                .then(|| format!("{}: {}: ratio {was:.2} -> {now:.2} ({:+.0} %)", row.topic, row.what, 100.0 * change))
        });
        changed.collect()
    }
}

/// The report of the last commit.
pub fn committed() -> Option<Value> {
    serde_json::from_str(&said_by("git", &["show", &format!("HEAD:{FILE}")])).ok()
}

fn said_by(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_string()).unwrap_or_default()
}

fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_string()).unwrap_or_default()
    };
    json!({
        "processor": field(&read("/proc/cpuinfo"), "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_preset(ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(["topic", "what", "ours", "reference", "reference value", "ratio", "aim"]);
        for row in &self.rows {
            let (median, (lowest, highest)) = (row.median(), row.spread());
            let ratio = match row.measured.len() {
                1 => format!("{:.2}", median.ratio),
                _ => format!("{:.2} ({lowest:.2} to {highest:.2})", median.ratio),
            };
            table.add_row([row.topic, &row.what, &median.ours, &row.against, &median.theirs, &ratio, &row.aim]);
        }
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

/// Of figures in order, the one that this share of them does not exceed.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ratios: &[f64]) -> Report {
        let mut report = Report { topic: "disk", ..Report::default() };
        for ratio in ratios {
            report.row("bytes per span", format!("{}", ratio * 10.0), "what must be", "10".into(), *ratio, "<= 2");
        }
        report
    }

    #[test]
    fn the_median_stands_for_several_runs() {
        let kept = report(&[3.0, 1.0, 2.0]).json(3, false);
        let row = &kept["rows"][0];
        assert_eq!(
            (row["ratio"].as_f64(), row["lowest"].as_f64(), row["highest"].as_f64()),
            (Some(2.0), Some(1.0), Some(3.0))
        );
        assert_eq!((row["ours"].as_str(), kept["runs"].as_u64()), (Some("20"), Some(3)));
        assert!(report(&[3.0, 1.0, 2.0]).to_string().contains("2.00 (1.00 to 3.00)"));
    }

    #[test]
    fn a_ratio_that_changed_by_more_than_15_percent_is_shown() {
        let before = report(&[2.0]).json(1, false);
        assert_eq!(report(&[2.2]).changes(&before), [""; 0]);
        assert_eq!(report(&[2.4]).changes(&before), ["disk: bytes per span: ratio 2.00 -> 2.40 (+20 %)"]);
        assert_eq!(report(&[1.0]).changes(&before), ["disk: bytes per span: ratio 2.00 -> 1.00 (-50 %)"]);
        assert_eq!(report(&[1.0]).changes(&Value::Null), [""; 0], "nothing was committed");
    }

    #[test]
    fn quantiles_are_figures_that_were_measured() {
        let figures: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!((quantile(&figures, 0.5), quantile(&figures, 0.99), quantile(&figures, 1.0)), (100.0, 198.0, 200.0));
        assert_eq!((quantile(&[3.0], 0.5), quantile(&[3.0], 0.99)), (3.0, 3.0));
    }
}
