//! Files with one JSON object per line, read line by line in bounded memory. A line that cannot be read does not take the
//! others with it.

use std::io::{BufRead, BufReader, Read};

use super::record::Json;
use super::rows::{Fault, Rows};
use crate::import::{ImportError, ImportOptions};
use crate::json::{BOM, Reader};

/// One line. A longer one is left out.
pub const MAX_LINE_BYTES: usize = 256 << 20;

/// A file that is one JSON value.
pub const MAX_DOCUMENT_BYTES: u64 = 256 << 20;

/// Calls `each` with the number of every line, from 1, and its record. Lines that are refused are counted.
pub fn each(
    input: &mut dyn Read,
    rows: &mut Rows,
    mut each: impl FnMut(&mut Rows, u64, Json) -> Result<(), Fault>,
) -> Result<(), ImportError> {
    let range = rows.range;
    let lines = each_text(input, range, |number, text| {
        let done = match text.map(Json::parse) {
            Ok(Ok(record @ Json::Map(_))) => each(rows, number, record),
            Ok(Ok(_)) => Err(Fault::Line("it is not a JSON object".into())),
            Ok(Err(why)) => Err(Fault::Line(why.to_string())),
            Err(why) => Err(Fault::Line(why.into())),
        };
        match done {
            Ok(()) => {}
            Err(Fault::Line(why)) => rows.reject(number, &why),
            Err(Fault::Stop(error)) => return Err(error),
        }
        rows.read(text.map_or(0, <[u8]>::len))
    })?;
    rows.lines(lines);
    Ok(())
}

/// Which lines of a file are read.
#[derive(Clone, Copy, Default)]
pub struct Range {
    lines_before: u64,
    growing: bool,
}

impl Range {
    pub fn of(options: &ImportOptions) -> Range {
        Range { lines_before: options.lines_before, growing: options.growing }
    }

    /// The beginning was read before.
    pub fn continues(self) -> bool {
        self.lines_before > 0
    }
}

/// Calls `each` with the number of every line, from 1, and its text, or why it cannot be read. Blank lines are passed over.
/// Returns how many whole lines there are.
pub fn each_text(
    input: &mut dyn Read,
    range: Range,
    mut each: impl FnMut(u64, Result<&[u8], &str>) -> Result<(), ImportError>,
) -> Result<u64, ImportError> {
    let mut input = BufReader::with_capacity(1 << 20, input);
    for before in 0..range.lines_before {
        if input.skip_until(b'\n')? == 0 {
            return Ok(before);
        }
    }
    let mut line = Vec::new();
    let mut number = range.lines_before;
    loop {
        line.clear();
        let read = (&mut input).take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut line)?;
        let ended = line.last() == Some(&b'\n');
        if read == 0 || (range.growing && !ended && read <= MAX_LINE_BYTES) {
            return Ok(number);
        }
        number += 1;
        if read > MAX_LINE_BYTES && !ended {
            each(number, Err(&format!("it is longer than {MAX_LINE_BYTES} bytes (MAX_LINE_BYTES)")))?;
            input.skip_until(b'\n')?;
            continue;
        }
        let text = line.strip_prefix(BOM).unwrap_or(&line).trim_ascii();
        if text.is_empty() {
            continue;
        }
        // A writer that was stopped leaves half a line.
        if !ended && text.last() != Some(&b'}') {
            each(number, Err("the file ends inside it"))?;
        } else {
            each(number, Ok(text))?;
        }
    }
}

/// A file that is one JSON value.
pub fn document(input: &mut dyn Read) -> Result<Json, ImportError> {
    let mut text = Vec::new();
    input.take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_DOCUMENT_BYTES {
        let (what, limit) = ("the size of the document".to_string(), MAX_DOCUMENT_BYTES);
        return Err(ImportError::Limit { what, name: "MAX_DOCUMENT_BYTES", limit });
    }
    let text = text.strip_prefix(BOM).unwrap_or(&text).trim_ascii();
    Json::parse(text).map_err(|why| ImportError::Malformed(format!("{why}; was the file cut off?")))
}

/// The names of the first object's fields, as far as the head of the file shows them, and whether that is all of them.
pub fn first_keys(head: &[u8]) -> (Vec<String>, bool) {
    let mut r = Reader::python(head);
    let (mut keys, mut first) = (Vec::new(), true);
    if r.begin(b'{').is_err() {
        return (keys, false);
    }
    loop {
        match r.key(&mut first) {
            Ok(Some(key)) => keys.push(key.into_owned()),
            Ok(None) => return (keys, true),
            Err(_) => return (keys, false),
        }
        if keys.len() > 1000 || r.skip().is_err() {
            return (keys, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_seen_as_far_as_the_head_goes() {
        let head = br#"{"input": "a \"b\"", "score": NaN, "x": [1, {"y": 2}], "output": "cut"#;
        assert_eq!(first_keys(head), (["input", "score", "x", "output"].map(String::from).to_vec(), false));
        assert_eq!(first_keys(b"{\"a\": 1}\n{\"b\": 2}"), (vec!["a".to_string()], true));
        assert_eq!(first_keys(b"[1]"), (vec![], false));
    }
}
