//! The file in pieces: its events and the values beside them, as text.

use std::io::Read;

use super::ImportError;
use crate::json::{BOM, Reader};

/// One event, or one value beside the events. More is an error that names this limit.
pub const MAX_EVENT_BYTES: usize = 64 << 20;
const CHUNK: usize = 256 << 10;

pub(super) enum Part<'a> {
    /// A value beside the events.
    Header(&'a str, &'a [u8]),
    Event(&'a [u8]),
}

pub(super) type Each<'a> = dyn FnMut(Part) -> Result<(), ImportError> + 'a;

/// The file from its beginning to its end. A list of events that was cut off (Chrome allows that) ends there.
pub(super) fn walk(stream: &mut Stream, each: &mut Each) -> Result<(), ImportError> {
    match stream.peek()? {
        Some(b'[') => {
            stream.skip(1);
            list(stream, each)
        }
        Some(b'{') => {
            stream.skip(1);
            loop {
                match stream.peek()? {
                    Some(b',') => stream.skip(1),
                    Some(b'"') => {
                        let key = stream.value()?;
                        let key = Reader::new(key).string().map(|key| key.into_owned());
                        let key = key.map_err(|e| stream.damaged(&e.to_string()))?;
                        if stream.peek()? != Some(b':') {
                            return Err(stream.damaged("expected a colon"));
                        }
                        stream.skip(1);
                        if key == "traceEvents" && stream.peek()? == Some(b'[') {
                            stream.skip(1);
                            list(stream, each)?;
                        } else {
                            stream.peek()?;
                            let value = stream.value()?;
                            each(Part::Header(&key, value))?;
                        }
                    }
                    Some(b'}') | None => return Ok(()),
                    Some(_) => return Err(stream.damaged("expected a key")),
                }
            }
        }
        _ => Err(stream.damaged("expected an object or a list of events")),
    }
}

fn list(stream: &mut Stream, each: &mut Each) -> Result<(), ImportError> {
    loop {
        match stream.peek()? {
            Some(b',') => stream.skip(1),
            Some(b']') => {
                stream.skip(1);
                return Ok(());
            }
            None => return Ok(()),
            Some(b'{') => {
                let Some(event) = stream.whole_value()? else { return Ok(()) };
                each(Part::Event(event))?;
            }
            Some(_) => return Err(stream.damaged("expected an event as an object")),
        }
    }
}

/// Text in pieces.
pub(super) struct Stream<'a> {
    input: &'a mut dyn Read,
    buffer: Vec<u8>,
    at: usize,
    /// Bytes that came before the buffer.
    before: u64,
    ended: bool,
}

impl<'a> Stream<'a> {
    pub(super) fn new(input: &'a mut dyn Read) -> Self {
        Stream { input, buffer: Vec::new(), at: 0, before: 0, ended: false }
    }

    fn damaged(&self, what: &str) -> ImportError {
        ImportError::Malformed(format!("{what} at byte {}", self.before + self.at as u64))
    }

    fn skip(&mut self, n: usize) {
        self.at += n;
    }

    /// More text behind what is there. Texts before `at` go away.
    fn fill(&mut self) -> Result<bool, ImportError> {
        if self.ended {
            return Ok(false);
        }
        self.buffer.drain(..self.at);
        self.before += self.at as u64;
        self.at = 0;
        // Twice as much each time, however little a decompressor gives at once: a large value is not looked through again and
        // again for nothing.
        let wanted = CHUNK.max(self.buffer.len()) as u64;
        let n = (&mut self.input).take(wanted).read_to_end(&mut self.buffer)?;
        self.ended = n == 0;
        if self.before == 0 && self.buffer.starts_with(BOM) {
            self.at = BOM.len();
        }
        Ok(n > 0)
    }

    /// The first byte that is not white space.
    fn peek(&mut self) -> Result<Option<u8>, ImportError> {
        loop {
            let rest = &self.buffer[self.at..];
            match rest.iter().position(|b| !matches!(b, b' ' | b'\n' | b'\r' | b'\t')) {
                Some(n) => {
                    self.at += n;
                    return Ok(Some(self.buffer[self.at]));
                }
                None => {
                    self.at = self.buffer.len();
                    if !self.fill()? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// The value that begins here; an error if the file ends in it.
    fn value(&mut self) -> Result<&[u8], ImportError> {
        let cut = self.damaged("the file ends inside a value");
        self.whole_value()?.ok_or(cut)
    }

    /// The value that begins here, `None` if the file ends in it.
    fn whole_value(&mut self) -> Result<Option<&[u8]>, ImportError> {
        loop {
            if let Some(len) = value_length(&self.buffer[self.at..], self.ended) {
                let from = self.at;
                self.at += len;
                return Ok(Some(&self.buffer[from..from + len]));
            }
            if self.buffer.len() - self.at > MAX_EVENT_BYTES {
                let what = format!("the value at byte {}", self.before + self.at as u64);
                return Err(ImportError::Limit { what, name: "MAX_EVENT_BYTES", limit: MAX_EVENT_BYTES as u64 });
            }
            if !self.fill()? {
                return Ok(value_length(&self.buffer[self.at..], true).map(|len| {
                    let from = self.at;
                    self.at += len;
                    &self.buffer[from..from + len]
                }));
            }
        }
    }
}

/// How long the JSON value is that the text begins with, if all of it is there.
fn value_length(text: &[u8], ended: bool) -> Option<usize> {
    let string = |from: usize| -> Option<usize> {
        let mut at = from + 1;
        loop {
            let n = memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
            if text[at + n] == b'"' {
                return Some(at + n + 1);
            }
            at += n + 2;
        }
    };
    match text.first()? {
        b'"' => string(0),
        b'{' | b'[' => {
            let (mut at, mut depth) = (0, 0usize);
            loop {
                match text.get(at)? {
                    b'"' => {
                        at = string(at)?;
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => {
                        depth -= 1;
                        if depth == 0 {
                            return Some(at + 1);
                        }
                    }
                    _ => {}
                }
                at += 1;
            }
        }
        _ => {
            let end = text.iter().position(|b| matches!(b, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t'));
            end.or_else(|| ended.then_some(text.len()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_is_read_at_once_also_from_what_gives_little() {
        let mut text = vec![b' '; 3 * CHUNK];
        text.push(b'x');
        let mut input: Box<dyn Read> =
            text.chunks(1000).fold(Box::new(&b""[..]), |all, next| Box::new(all.chain(next)));
        let mut stream = Stream::new(&mut input);
        assert!(stream.fill().unwrap());
        assert_eq!(stream.buffer.len(), CHUNK);
        stream.fill().unwrap();
        assert_eq!(stream.buffer.len(), 2 * CHUNK);
    }

    #[test]
    fn values_are_measured_in_any_pieces() {
        let text = br#"{"a":"}\"","b":[1,{"c":"]"}]},"#;
        assert_eq!(value_length(text, false), Some(text.len() - 1));
        for cut in 1..text.len() - 1 {
            assert_eq!(value_length(&text[..cut], true), None, "{cut}");
        }
        assert_eq!(value_length(b"12", false), None);
        assert_eq!(value_length(b"12", true), Some(2));
        assert_eq!(value_length(b"12,", false), Some(2));
    }
}
