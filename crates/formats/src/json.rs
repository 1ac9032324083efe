//! A pull reader for JSON. It borrows what it can, allocates only for text with escapes, reports the byte of an
//! error, keeps repeated keys, and skips what is not needed without recursion, so that depth is the caller's to bound.
//!
//! Why not serde: the shapes we read (keys in two spellings and any order, numbers as text, a bad element that must not
//! take its neighbours with it) need look-ahead and stepping back, which a visitor cannot do.

use std::borrow::Cow;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No JSON: nothing after this can be trusted.
    #[error("{what} at byte {at}")]
    Syntax { what: &'static str, at: usize },
    /// JSON, but of another type than expected. The reader may be inside the value.
    #[error("unexpected type at byte {at}")]
    Type { at: usize },
    /// Text that is not Unicode: bytes that are not UTF-8, or half a surrogate pair.
    #[error("text is not valid Unicode at byte {at}")]
    Text { at: usize },
}

type Result<T> = std::result::Result<T, Error>;

/// How many values a text has at most, itself included: before each of the others is a comma or the bracket that it is the first in.
pub fn count_values(json: &[u8]) -> usize {
    let (mut r, mut count) = (Reader::new(json), 1);
    while let Some(byte) = json.get(r.pos) {
        if *byte == b'"' {
            if r.skip_string().is_err() {
                break;
            }
        } else {
            count += usize::from(matches!(byte, b',' | b'[' | b'{'));
            r.pos += 1;
        }
    }
    count
}

#[derive(Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    pos: usize,
    /// Takes what Python's `json` writes beyond JSON.
    python: bool,
}

/// UTF-8's byte-order mark, which some tools put in front of JSON.
pub const BOM: &[u8] = b"\xef\xbb\xbf";

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, pos: if bytes.starts_with(BOM) { BOM.len() } else { 0 }, python: false }
    }

    /// Reads what Python's `json` writes: `NaN`, `Infinity` and `-Infinity` are numbers, and half a surrogate pair becomes
    /// U+FFFD.
    pub fn python(bytes: &'a [u8]) -> Self {
        Reader { python: true, ..Reader::new(bytes) }
    }

    pub fn pos(&self) -> usize {
        self.pos
    }

    /// Steps back (or forth) to where a value began.
    pub fn seek(&mut self, pos: usize) {
        self.pos = pos;
    }

    fn syntax<T>(&self, what: &'static str) -> Result<T> {
        Err(Error::Syntax { what, at: self.pos })
    }

    /// The first byte of the next token, not consumed.
    #[inline]
    pub fn peek(&mut self) -> Result<u8> {
        while let Some(&b) = self.bytes.get(self.pos) {
            if !matches!(b, b' ' | b'\n' | b'\r' | b'\t') {
                return Ok(b);
            }
            self.pos += 1;
        }
        self.syntax("the text ends early")
    }

    /// Nothing but white space may follow.
    pub fn end(&mut self) -> Result<()> {
        match self.peek() {
            Err(_) => Ok(()),
            Ok(_) => self.syntax("unexpected text after the value"),
        }
    }

    /// Consumes `null` if that is what comes.
    #[inline]
    pub fn null(&mut self) -> Result<bool> {
        if self.peek()? != b'n' {
            return Ok(false);
        }
        self.word(b"null")?;
        Ok(true)
    }

    fn word(&mut self, word: &'static [u8]) -> Result<()> {
        if self.bytes[self.pos..].starts_with(word) {
            self.pos += word.len();
            Ok(())
        } else {
            self.syntax("unknown word")
        }
    }

    /// Enters an object (`{`) or a list (`[`).
    #[inline]
    pub fn begin(&mut self, bracket: u8) -> Result<()> {
        if self.peek()? != bracket {
            return self.wrong_type();
        }
        self.pos += 1;
        Ok(())
    }

    fn wrong_type<T>(&self) -> Result<T> {
        match self.bytes.get(self.pos) {
            Some(b'{' | b'[' | b'"' | b't' | b'f' | b'n' | b'-' | b'0'..=b'9') => Err(Error::Type { at: self.pos }),
            _ => self.syntax("expected a value"),
        }
    }

    /// Inside a list: is there another element? `first` starts as true.
    #[inline]
    pub fn element(&mut self, first: &mut bool) -> Result<bool> {
        self.more(first, b']')
    }

    fn more(&mut self, first: &mut bool, close: u8) -> Result<bool> {
        let b = self.peek()?;
        if b == close {
            self.pos += 1;
            return Ok(false);
        }
        if std::mem::take(first) {
            return Ok(true);
        }
        if b != b',' {
            return self.syntax("expected a comma or a closing bracket");
        }
        self.pos += 1;
        Ok(true)
    }

    /// Inside an object: the next key. `first` starts as true.
    #[inline]
    pub fn key(&mut self, first: &mut bool) -> Result<Option<Cow<'a, str>>> {
        if !self.more(first, b'}')? {
            return Ok(None);
        }
        if self.peek()? != b'"' {
            return self.syntax("expected a key");
        }
        let key = self.string()?;
        if self.peek()? != b':' {
            return self.syntax("expected a colon");
        }
        self.pos += 1;
        Ok(Some(key))
    }

    #[inline]
    pub fn string(&mut self) -> Result<Cow<'a, str>> {
        if self.peek()? != b'"' {
            return self.wrong_type();
        }
        let start = self.pos + 1;
        match memchr::memchr2(b'"', b'\\', &self.bytes[start..]) {
            Some(n) if self.bytes[start + n] == b'"' => {
                self.pos = start + n + 1;
                match std::str::from_utf8(&self.bytes[start..start + n]) {
                    Ok(text) => Ok(Cow::Borrowed(text)),
                    Err(e) => Err(Error::Text { at: start + e.valid_up_to() }),
                }
            }
            Some(_) => self.escaped(start),
            None => self.syntax("unterminated string"),
        }
    }

    fn escaped(&mut self, start: usize) -> Result<Cow<'a, str>> {
        let mut out = Vec::new();
        let mut at = start;
        loop {
            let Some(n) = memchr::memchr2(b'"', b'\\', &self.bytes[at..]) else {
                return self.syntax("unterminated string");
            };
            out.extend_from_slice(&self.bytes[at..at + n]);
            at += n + 1;
            if self.bytes[at - 1] == b'"' {
                break;
            }
            self.pos = at;
            let Some(&escape) = self.bytes.get(at) else { return self.syntax("unterminated string") };
            at += 1;
            out.push(match escape {
                b'"' | b'\\' | b'/' => escape,
                b'n' => b'\n',
                b't' => b'\t',
                b'r' => b'\r',
                b'b' => 8,
                b'f' => 12,
                b'u' => {
                    let first = self.hex4(at)?;
                    at += 4;
                    let mut code = first;
                    if (0xd800..0xdc00).contains(&first) && self.bytes[at..].starts_with(b"\\u") {
                        let second = self.hex4(at + 2)?;
                        if (0xdc00..0xe000).contains(&second) {
                            code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                            at += 6;
                        }
                    }
                    // A surrogate on its own is not a character.
                    let c = match char::from_u32(code) {
                        Some(c) => c,
                        None if self.python => char::REPLACEMENT_CHARACTER,
                        None => return Err(Error::Text { at: self.pos }),
                    };
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    continue;
                }
                _ => return self.syntax("unknown escape"),
            });
        }
        self.pos = at;
        String::from_utf8(out).map(Cow::Owned).map_err(|_| Error::Text { at: start })
    }

    fn hex4(&self, at: usize) -> Result<u32> {
        let mut code = 0;
        for i in at..at + 4 {
            match self.bytes.get(i).and_then(|b| (*b as char).to_digit(16)) {
                Some(digit) => code = code << 4 | digit,
                None => return self.syntax("expected four hex digits in an escape"),
            }
        }
        Ok(code)
    }

    /// The text of a number.
    #[inline]
    pub fn number(&mut self) -> Result<&'a str> {
        let first = self.peek()?;
        let rest = &self.bytes[self.pos..];
        if self.python
            && matches!(first, b'N' | b'I' | b'-')
            && let Some(word) = ["NaN", "Infinity", "-Infinity"].into_iter().find(|w| rest.starts_with(w.as_bytes()))
        {
            self.pos += word.len();
            return Ok(word);
        }
        if !matches!(first, b'-' | b'0'..=b'9') {
            return self.wrong_type();
        }
        let len = rest
            .iter()
            .position(|b| !matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
            .unwrap_or(rest.len());
        self.pos += len;
        // Only ASCII was let through.
        std::str::from_utf8(&rest[..len]).map_err(|_| Error::Text { at: self.pos })
    }

    pub fn bool(&mut self) -> Result<bool> {
        match self.peek()? {
            b't' => self.word(b"true").map(|()| true),
            b'f' => self.word(b"false").map(|()| false),
            _ => self.wrong_type(),
        }
    }

    /// Passes over one value, however deep, without recursion. Brackets are counted, not matched.
    pub fn skip(&mut self) -> Result<()> {
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' => self.skip_string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.pos += 1;
                }
                b'}' | b']' => {
                    if depth == 0 {
                        return self.syntax("expected a value");
                    }
                    depth -= 1;
                    self.pos += 1;
                }
                b',' | b':' if depth > 0 => self.pos += 1,
                b't' => self.word(b"true")?,
                b'f' => self.word(b"false")?,
                b'n' => self.word(b"null")?,
                b'-' | b'0'..=b'9' => {
                    self.number()?;
                }
                b'N' | b'I' if self.python => {
                    self.number()?;
                }
                _ => return self.syntax("expected a value"),
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn skip_string(&mut self) -> Result<()> {
        let mut at = self.pos + 1;
        loop {
            match memchr::memchr2(b'"', b'\\', self.bytes.get(at..).unwrap_or_default()) {
                Some(n) if self.bytes[at + n] == b'"' => {
                    self.pos = at + n + 1;
                    return Ok(());
                }
                Some(n) => at += n + 2,
                None => return self.syntax("unterminated string"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> Result<Cow<'_, str>> {
        Reader::new(text.as_bytes()).string()
    }

    #[test]
    fn text_is_unescaped_as_serde_does() {
        for text in [r#""plain""#, r#""a\"b\\c\/\n\r\t\b\f""#, r#""h\u00e9llo \u4f60\ud83d\ude00 x""#, r#""é""#, "\"\""]
        {
            assert_eq!(string(text).unwrap(), serde_json::from_str::<String>(text).unwrap(), "{text}");
        }
        assert!(matches!(string("\"abc\""), Ok(Cow::Borrowed("abc"))));
    }

    #[test]
    fn half_a_surrogate_pair_is_not_text() {
        for text in [r#""\ud83d""#, r#""\ud83dx""#, r#""\ude00""#, r#""\ud83d\u0041""#] {
            assert!(matches!(string(text), Err(Error::Text { .. })), "{text}");
        }
        assert!(matches!(Reader::new(b"\"\xff\"").string(), Err(Error::Text { at: 1 })));
    }

    #[test]
    fn values_are_counted_outside_of_texts() {
        for (text, count) in
            [("", 1), ("5", 1), ("[0,0,[1]]", 5), (r#"{"a,[":"b\",{","c":{"d":null}}"#, 4), ("[\"a,b", 2)]
        {
            assert_eq!(count_values(text.as_bytes()), count, "{text}");
        }
    }

    #[test]
    fn skipping_needs_no_stack() {
        let deep = "[".repeat(1_000_000) + &"]".repeat(1_000_000);
        let mut r = Reader::new(deep.as_bytes());
        r.skip().unwrap();
        r.end().unwrap();
        for bad in ["", "[", "{\"a", "\"\\", "]", "[nul]", ",", "[\"\\"] {
            assert!(Reader::new(bad.as_bytes()).skip().is_err(), "{bad}");
        }
    }

    #[test]
    fn objects_and_lists_are_walked() {
        let mut r = Reader::new(br#" {"a": [1, -2.5e3 ], "a": null, "b":{}} "#);
        r.begin(b'{').unwrap();
        let mut first = true;
        assert_eq!(r.key(&mut first).unwrap().unwrap(), "a");
        r.begin(b'[').unwrap();
        let mut start = true;
        assert!(r.element(&mut start).unwrap());
        assert_eq!(r.number().unwrap(), "1");
        assert!(r.element(&mut start).unwrap());
        assert_eq!(r.number().unwrap(), "-2.5e3");
        assert!(!r.element(&mut start).unwrap());
        assert_eq!(r.key(&mut first).unwrap().unwrap(), "a");
        assert!(r.null().unwrap());
        assert_eq!(r.key(&mut first).unwrap().unwrap(), "b");
        assert_eq!(r.string(), Err(Error::Type { at: 36 }));
        r.skip().unwrap();
        assert_eq!(r.key(&mut first).unwrap(), None);
        r.end().unwrap();
    }
}
