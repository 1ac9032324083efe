//! Tables of text with commas (RFC 4180), whose first line names the columns.

use std::io::Read;

use super::lines::MAX_DOCUMENT_BYTES;
use super::record::Json;
use crate::import::ImportError;
use crate::json::BOM;

/// Columns of a table.
const MAX_COLUMNS: usize = 4096;

/// The names of the columns. None if the line does not look like names.
pub fn header(line: &[u8]) -> Option<Vec<String>> {
    let mut rest = line.trim_ascii();
    let (names, _) = fields(&mut rest)?;
    let is_name = |name: &String| !name.is_empty() && !name.contains(['{', '\n']);
    (names.len() > 1 && names.iter().all(is_name)).then_some(names)
}

/// The records, each with the line that it begins in. Cells that hold JSON are read as such, empty ones are null.
pub fn records(input: &mut dyn Read) -> Result<Vec<(u64, Json)>, ImportError> {
    let mut bytes = Vec::new();
    input.take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_DOCUMENT_BYTES {
        let (what, limit) = ("the size of the table".to_string(), MAX_DOCUMENT_BYTES);
        return Err(ImportError::Limit { what, name: "MAX_DOCUMENT_BYTES", limit });
    }
    let mut rest = bytes.strip_prefix(BOM).unwrap_or(&bytes);
    let bad = |line: u64, what: &str| ImportError::Malformed(format!("line {line}: {what}"));
    let (names, lines) = fields(&mut rest).ok_or_else(|| bad(1, "a quoted field does not end, or it is not UTF-8"))?;
    if names.len() > MAX_COLUMNS {
        let (what, limit) = ("columns".to_string(), MAX_COLUMNS as u64);
        return Err(ImportError::Limit { what, name: "MAX_COLUMNS", limit });
    }
    let (mut line, mut out) = (1 + lines, Vec::new());
    while !rest.is_empty() {
        let (values, lines) =
            fields(&mut rest).ok_or_else(|| bad(line, "a quoted field does not end, or it is not UTF-8"))?;
        let is_blank = values.len() == 1 && values[0].is_empty();
        if !is_blank {
            out.push((line, Json::Map(names.iter().cloned().zip(values.into_iter().map(cell)).collect())));
        }
        line += lines;
    }
    Ok(out)
}

fn cell(text: String) -> Json {
    match text.as_bytes().first() {
        None => Json::Null,
        Some(b'{' | b'[' | b'"') => Json::parse(text.as_bytes()).unwrap_or(Json::Str(text)),
        // An answer of a model that looks like a number is a text.
        _ => Json::Str(text),
    }
}

/// The fields up to the end of the record, and how many lines they take.
fn fields(rest: &mut &[u8]) -> Option<(Vec<String>, u64)> {
    let (mut out, mut field, mut lines) = (Vec::new(), Vec::new(), 1);
    let (mut quoted, mut at) = (false, 0);
    let bytes = *rest;
    loop {
        let byte = bytes.get(at).copied();
        at += 1;
        match byte {
            None if quoted => return None,
            None => break,
            Some(b'"') if quoted && bytes.get(at) == Some(&b'"') => {
                field.push(b'"');
                at += 1;
            }
            Some(b'"') if quoted || field.is_empty() => quoted = !quoted,
            Some(b',') if !quoted => out.push(String::from_utf8(std::mem::take(&mut field)).ok()?),
            Some(b'\n') if !quoted => break,
            Some(b'\r') if !quoted && bytes.get(at).is_none_or(|next| *next == b'\n') => {}
            Some(byte) => {
                lines += u64::from(byte == b'\n');
                field.push(byte);
            }
        }
    }
    *rest = &bytes[at.min(bytes.len())..];
    out.push(String::from_utf8(field).ok()?);
    Some((out, lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_line_ends_and_json() {
        let text = b"id,\"na\"\"me\",x\r\na,\"1\n2, 3\",\"{\"\"k\"\": [1]}\"\n\nb,,7.5\n";
        let read = records(&mut &text[..]).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(read[0].0, 2);
        assert_eq!(read[0].1.str_of("na\"me"), Some("1\n2, 3"));
        assert_eq!(read[0].1.get("x").and_then(|x| x.get("k")), Some(&Json::Ints(vec![1])));
        assert_eq!((read[1].0, read[1].1.str_of("x"), read[1].1.get("na\"me")), (5, Some("7.5"), None));
        assert!(records(&mut &b"a,b\n\"cut"[..]).is_err());
        assert!(records(&mut &b"a,b\n\xff,1"[..]).is_err());
        assert_eq!(header(b"id,traceId,x\n").unwrap(), ["id", "traceId", "x"]);
        assert!(header(b"{\"a\": 1, \"b\": 2}").is_none());
    }
}
