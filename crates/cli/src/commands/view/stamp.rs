//! What a page was made from, recorded in the page.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::Context;
use rollscope_formats::import::slime_pt::Summary;
use serde::{Deserialize, Serialize};

use crate::commands::export_html::generator;

const STAMP: &str = "<!-- rollscope view ";

/// The last line of a page: what it was made from, and what was found, so that an unchanged dump need not be read again.
#[derive(Serialize, Deserialize, PartialEq, Clone)]
pub(super) struct Stamp {
    pub(super) generator: String,
    /// Length and time of each dump.
    pub(super) dumps: Vec<(u64, u64)>,
    pub(super) run: String,
    #[serde(default)]
    pub(super) found: DumpContents,
}

/// What was found in a dump.
#[derive(Serialize, Deserialize, PartialEq, Clone, Default)]
pub(super) struct DumpContents {
    pub(super) samples: u64,
    pub(super) rows: u64,
    pub(super) closed: u64,
    pub(super) open: u64,
    pub(super) instants: u64,
    pub(super) orphans: u64,
    pub(super) attempts: i64,
    pub(super) skipped: u64,
    pub(super) start: Option<f64>,
    pub(super) end: Option<f64>,
    pub(super) step: Option<i64>,
    pub(super) eval: bool,
}

impl From<Summary> for DumpContents {
    fn from(s: Summary) -> DumpContents {
        DumpContents {
            samples: s.samples,
            rows: s.rows,
            closed: s.closed,
            open: s.open,
            instants: s.instants,
            orphans: s.orphans,
            attempts: s.attempts,
            skipped: s.skipped,
            start: s.start,
            end: s.end,
            step: s.step,
            eval: s.split == "eval",
        }
    }
}

impl Stamp {
    pub(super) fn of(dumps: &[PathBuf], run: &str) -> anyhow::Result<Stamp> {
        let dumps = dumps.iter().map(|d| identity(d)).collect::<anyhow::Result<_>>()?;
        Ok(Stamp { generator: generator(), dumps, run: run.to_string(), found: DumpContents::default() })
    }

    /// What the page was made from, as recorded in the page.
    pub(super) fn read_from(page: &Path) -> Option<Stamp> {
        let mut file = std::fs::File::open(page).ok()?;
        let length = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(64 << 10))).ok()?;
        let mut end = Vec::new();
        file.read_to_end(&mut end).ok()?;
        let end = String::from_utf8_lossy(&end);
        let (_, stamp) = end.rsplit_once(STAMP)?;
        serde_json::from_str(stamp.trim_end().strip_suffix("-->")?).ok()
    }

    /// As a comment: a `-` in text is written as JSON may, so nothing can end it early.
    pub(super) fn line(&self) -> anyhow::Result<String> {
        let json = serde_json::to_value(self)?.to_string();
        let mut safe = String::with_capacity(json.len());
        let mut in_text = false;
        let mut before = ' ';
        for c in json.chars() {
            if c == '"' && before != '\\' {
                in_text = !in_text;
            }
            match c {
                '-' | '<' | '>' if in_text => safe.push_str(&format!("\\u{:04x}", c as u32)),
                c => safe.push(c),
            }
            before = if before == '\\' && c == '\\' { ' ' } else { c };
        }
        Ok(format!("\n{STAMP}{safe} -->\n"))
    }

    pub(super) fn same_input(&self, other: &Stamp) -> bool {
        (&self.generator, &self.dumps, &self.run) == (&other.generator, &other.dumps, &other.run)
    }
}

/// Length, and nanoseconds of the last change.
fn identity(file: &Path) -> anyhow::Result<(u64, u64)> {
    let about = std::fs::metadata(file).with_context(|| file.display().to_string())?;
    let changed = about.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
    Ok((about.len(), changed.map_or(0, |d| d.as_nanos() as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_back_and_cannot_end_its_comment() {
        let stamp = Stamp {
            generator: "x".into(),
            dumps: vec![(1, 2)],
            run: "a --> <script> \\\" - b".into(),
            found: DumpContents { start: Some(-1.5), ..DumpContents::default() },
        };
        let line = stamp.line().unwrap();
        assert_eq!(line.matches("-->").count(), 1);
        assert!(!line.contains("<script"));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("<html>{line}")).unwrap();
        assert!(Stamp::read_from(file.path()).unwrap() == stamp);
    }
}
