//! Output in the terminal: numbers with separators, tables that fit, and the only writers to standard output and error.
//!
//! A pipe that its reader closed (`| head -1`) is not a failure. What a command reports goes through `println!`: the
//! rest of the work is done all the same, and a server keeps running. What a command is for (rows, a report, a file) goes
//! through [`stdout`], which ends the command if its reader is gone.

use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The user's mistake, found after parsing: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// In place of the standard library's, which panics when the pipe is closed.
macro_rules! println {
    ($($arg:tt)*) => { $crate::output::say(format_args!("{}\n", format_args!($($arg)*))) };
}

macro_rules! print {
    ($($arg:tt)*) => { $crate::output::say(format_args!($($arg)*)) };
}

macro_rules! eprintln {
    ($($arg:tt)*) => { $crate::output::complain(format_args!($($arg)*)) };
}

/// The first error of writing, other than a closed pipe.
static UNSAID: OnceLock<std::io::Error> = OnceLock::new();
static READER_LEFT: AtomicBool = AtomicBool::new(false);

pub fn say(text: std::fmt::Arguments) {
    match std::io::stdout().lock().write_fmt(text) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => drop(UNSAID.set(e)),
        _ => {}
    }
}

/// Whether all output was written. A full disk is a failure.
pub fn said() -> anyhow::Result<()> {
    let unsaid = |e: &std::io::Error| anyhow::anyhow!("cannot write to standard output: {e}");
    match std::io::stdout().flush() {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(unsaid(&e)),
        _ => UNSAID.get().map_or(Ok(()), |e| Err(unsaid(e))),
    }
}

/// If standard error is closed, there is no place to report that.
pub fn complain(text: std::fmt::Arguments) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Starts the log on standard error. `ROLLSCOPE_LOG` sets its level.
pub fn start_logs(level: &str, json: bool) {
    // Delta Lake reports every step of reading a table, and a table that is not there yet as an error. Errors come back anyway. What is asked
    // for comes later, and counts.
    let quiet = |wanted: &str| format!("buoyant_kernel=off,buoyant_kernel_engine=off,deltalake_core=warn,{wanted}");
    let wanted = std::env::var("ROLLSCOPE_LOG").ok();
    let filter = wanted.and_then(|wanted| tracing_subscriber::EnvFilter::try_new(quiet(&wanted)).ok());
    let filter = filter.unwrap_or_else(|| tracing_subscriber::EnvFilter::new(quiet(level)));
    // Otherwise it reports a standard error that cannot be written to on standard error, and panics.
    let logs =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    if json {
        logs.json().init();
    } else {
        logs.with_ansi(std::io::stderr().is_terminal()).init();
    }
}

/// Standard output for what a command is for. An error ends the command.
pub fn stdout() -> impl Write {
    Out(std::io::stdout())
}

/// Whether a command ended because its reader is gone.
pub fn reader_left() -> bool {
    READER_LEFT.load(Ordering::Relaxed)
}

struct Out(std::io::Stdout);

impl Out {
    fn note<T>(result: std::io::Result<T>) -> std::io::Result<T> {
        if result.as_ref().is_err_and(|e| e.kind() == ErrorKind::BrokenPipe) {
            READER_LEFT.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Self::note(self.0.write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Self::note(self.0.flush())
    }
}

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
        for row in rollscope_app::encode::texts(batch)? {
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
