//! The wire format of protobuf, for those who walk over a message instead of building its structs.

use std::str;

/// Why a message cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The bytes cannot be followed any further.
    Malformed { what: &'static str, at: usize },
    /// One text is not UTF-8. What follows can be read.
    Utf8,
}

type Result<T> = std::result::Result<T, Fault>;

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const BYTES: u8 = 2;
const FIXED32: u8 = 5;

/// A message being read. `base` is where it starts in the request, so that errors can give the byte.
#[derive(Clone, Copy)]
pub(super) struct Wire<'a> {
    pub bytes: &'a [u8],
    pos: usize,
    base: usize,
}

impl<'a> Wire<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Wire { bytes, pos: 0, base: 0 }
    }

    #[cold]
    fn malformed<T>(&self, what: &'static str) -> Result<T> {
        Err(Fault::Malformed { what, at: self.base + self.pos })
    }

    #[inline]
    fn varint(&mut self) -> Result<u64> {
        match self.bytes.get(self.pos) {
            Some(&b) if b < 0x80 => {
                self.pos += 1;
                Ok(b.into())
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for i in 0..10 {
            let Some(&b) = self.bytes.get(self.pos + i) else {
                return self.malformed("the message ends inside a varint");
            };
            if i == 9 && b > 1 {
                break;
            }
            value |= u64::from(b & 0x7f) << (7 * i);
            if b < 0x80 {
                self.pos += i + 1;
                return Ok(value);
            }
        }
        self.malformed("a varint is longer than 64 bits")
    }

    /// The next field's number and wire type; `None` at the end of the message.
    #[inline]
    pub fn tag(&mut self) -> Result<Option<(u32, u8)>> {
        if self.pos == self.bytes.len() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let Ok(tag) = u32::try_from(tag) else { return self.malformed("a field number is out of range") };
        if tag < 8 {
            return self.malformed("a field has the number 0");
        }
        Ok(Some((tag >> 3, (tag & 7) as u8)))
    }

    #[inline]
    fn expect(&self, wire: u8, wanted: u8) -> Result<()> {
        if wire == wanted { Ok(()) } else { self.malformed("a field has the wrong wire type") }
    }

    #[inline]
    pub fn uint(&mut self, wire: u8) -> Result<u64> {
        self.expect(wire, VARINT)?;
        self.varint()
    }

    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.bytes[self.pos..].first_chunk() {
            Some(chunk) => {
                self.pos += N;
                Ok(*chunk)
            }
            None => self.malformed("the message ends inside a number"),
        }
    }

    #[inline]
    pub fn fixed64(&mut self, wire: u8) -> Result<u64> {
        self.expect(wire, FIXED64)?;
        self.take().map(u64::from_le_bytes)
    }

    #[inline]
    pub fn fixed32(&mut self, wire: u8) -> Result<u32> {
        self.expect(wire, FIXED32)?;
        self.take().map(u32::from_le_bytes)
    }

    /// A length-delimited field, as a message.
    #[inline]
    pub fn message(&mut self, wire: u8) -> Result<Wire<'a>> {
        self.expect(wire, BYTES)?;
        let len = self.varint()?;
        let rest = &self.bytes[self.pos..];
        if len > rest.len() as u64 {
            return self.malformed("the message ends inside a field");
        }
        let inner = Wire { bytes: &rest[..len as usize], pos: 0, base: self.base + self.pos };
        self.pos += len as usize;
        Ok(inner)
    }

    /// The numbers of a repeated field: packed, or one of them.
    pub fn uints(&mut self, wire: u8, mut each: impl FnMut(u64)) -> Result<()> {
        if wire == VARINT {
            each(self.varint()?);
            return Ok(());
        }
        let mut packed = self.message(wire)?;
        while packed.pos < packed.bytes.len() {
            each(packed.varint()?);
        }
        Ok(())
    }

    #[inline]
    pub fn text_field(&mut self, wire: u8) -> Result<&'a str> {
        str::from_utf8(self.message(wire)?.bytes).map_err(|_| Fault::Utf8)
    }

    #[inline]
    pub fn skip(&mut self, wire: u8) -> Result<()> {
        match wire {
            VARINT => self.varint().map(drop),
            FIXED64 => self.take::<8>().map(drop),
            BYTES => self.message(wire).map(drop),
            FIXED32 => self.take::<4>().map(drop),
            _ => self.malformed("a field has an unknown wire type"),
        }
    }
}
