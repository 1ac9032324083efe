//! Protobuf, by hand: what OTLP needs and no more. Messages are written once, in order, without intermediate structs.
//! `rollscope_names::protobuf` appends to a vector, with a check per byte. This is the hot path: it reserves room once per
//! attribute or span and writes through a pointer.

pub use rollscope_names::protobuf::varint_len;
use smallvec::SmallVec;

/// Something that bytes are appended to.
pub trait Out {
    /// Room for `len` more bytes, to be written before [`Out::advance`].
    fn room(&mut self, len: usize) -> *mut u8;

    /// # Safety
    /// `len` bytes have been written into the room.
    unsafe fn advance(&mut self, len: usize);

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        // SAFETY: the room is as large as what is copied into it.
        unsafe {
            raw::copy(self.room(bytes.len()), bytes);
            self.advance(bytes.len());
        }
    }

    #[inline]
    fn byte(&mut self, byte: u8) {
        self.put(&[byte]);
    }

    #[inline]
    fn varint(&mut self, value: u64) {
        // SAFETY: no varint is longer than ten bytes.
        unsafe {
            let start = self.room(10);
            let end = raw::varint(start, value);
            self.advance(end.offset_from(start) as usize);
        }
    }

    /// A length-delimited field.
    #[inline]
    fn field(&mut self, tag: u8, bytes: &[u8]) {
        let len = field_len(bytes.len());
        // SAFETY: the length is that of the field.
        unsafe {
            raw::field(self.room(len), tag, bytes);
            self.advance(len);
        }
    }

    #[inline]
    fn fixed64(&mut self, tag: u8, value: u64) {
        // SAFETY: nine bytes.
        unsafe {
            raw::fixed64(self.room(9), tag, value);
            self.advance(9);
        }
    }
}

impl Out for Vec<u8> {
    #[inline]
    fn room(&mut self, len: usize) -> *mut u8 {
        self.reserve(len);
        // SAFETY: the end of what is written is within the allocation.
        unsafe { self.as_mut_ptr().add(self.len()) }
    }

    #[inline]
    unsafe fn advance(&mut self, len: usize) {
        // SAFETY: the caller has written them, into room that was reserved.
        unsafe { self.set_len(self.len() + len) }
    }
}

impl<const N: usize> Out for SmallVec<[u8; N]> {
    #[inline]
    fn room(&mut self, len: usize) -> *mut u8 {
        self.reserve(len);
        // SAFETY: the end of what is written is within the allocation.
        unsafe { self.as_mut_ptr().add(self.len()) }
    }

    #[inline]
    unsafe fn advance(&mut self, len: usize) {
        // SAFETY: the caller has written them, into room that was reserved.
        unsafe { self.set_len(self.len() + len) }
    }
}

/// Writing through a pointer into room that was reserved. All return where the next byte goes.
pub mod raw {
    #[inline(always)]
    pub unsafe fn byte(at: *mut u8, byte: u8) -> *mut u8 {
        // SAFETY: the caller has reserved the room; so below.
        unsafe {
            at.write(byte);
            at.add(1)
        }
    }

    #[inline(always)]
    pub unsafe fn varint(mut at: *mut u8, mut value: u64) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            while value >= 0x80 {
                at = byte(at, value as u8 | 0x80);
                value >>= 7;
            }
            byte(at, value as u8)
        }
    }

    /// Most of what is copied is short: no call for that.
    #[inline(always)]
    pub unsafe fn copy(at: *mut u8, bytes: &[u8]) -> *mut u8 {
        let (from, len) = (bytes.as_ptr(), bytes.len());
        // SAFETY: as above; the two halves of a short text overlap within it.
        unsafe {
            if len > 16 {
                from.copy_to_nonoverlapping(at, len);
            } else if len >= 8 {
                let (first, last) =
                    (from.cast::<u64>().read_unaligned(), from.add(len - 8).cast::<u64>().read_unaligned());
                at.cast::<u64>().write_unaligned(first);
                at.add(len - 8).cast::<u64>().write_unaligned(last);
            } else if len >= 4 {
                let (first, last) =
                    (from.cast::<u32>().read_unaligned(), from.add(len - 4).cast::<u32>().read_unaligned());
                at.cast::<u32>().write_unaligned(first);
                at.add(len - 4).cast::<u32>().write_unaligned(last);
            } else if len > 0 {
                at.write(*from);
                at.add(len / 2).write(*from.add(len / 2));
                at.add(len - 1).write(*from.add(len - 1));
            }
            at.add(len)
        }
    }

    #[inline(always)]
    pub unsafe fn field(at: *mut u8, tag: u8, bytes: &[u8]) -> *mut u8 {
        // SAFETY: as above.
        unsafe { copy(varint(byte(at, tag), bytes.len() as u64), bytes) }
    }

    #[inline(always)]
    pub unsafe fn fixed64(at: *mut u8, tag: u8, value: u64) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            byte(at, tag).cast::<[u8; 8]>().write(value.to_le_bytes());
            at.add(9)
        }
    }
}

/// Bytes of a length-delimited field with a tag of one byte.
#[inline]
pub fn field_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

/// Tags of `KeyValue` lists where they occur.
pub mod attrs_of {
    pub const SPAN: u8 = 0x4a;
    pub const EVENT: u8 = 0x1a;
    pub const LINK: u8 = 0x22;
    pub const LOG: u8 = 0x32;
    pub const MAP: u8 = 0x0a;
    pub const RESOURCE: u8 = 0x0a;
}

#[inline]
pub fn text_attr(out: &mut impl Out, tag: u8, key: &[u8], text: &[u8]) {
    let value = field_len(text.len());
    let body = field_len(key.len()) + field_len(value);
    let len = field_len(body);
    // SAFETY: exactly `len` bytes are written.
    unsafe {
        let at = raw::varint(raw::byte(out.room(len), tag), body as u64);
        let at = raw::field(at, 0x0a, key);
        let at = raw::varint(raw::byte(at, 0x12), value as u64);
        raw::field(at, 0x0a, text);
        out.advance(len);
    }
}

#[inline]
pub fn int_attr(out: &mut impl Out, tag: u8, key: &[u8], value: i64) {
    let number = 1 + varint_len(value as u64);
    let body = field_len(key.len()) + 2 + number;
    let len = field_len(body);
    // SAFETY: exactly `len` bytes are written.
    unsafe {
        let at = raw::varint(raw::byte(out.room(len), tag), body as u64);
        let at = raw::field(at, 0x0a, key);
        let at = raw::byte(raw::byte(raw::byte(at, 0x12), number as u8), 0x18);
        raw::varint(at, value as u64);
        out.advance(len);
    }
}

#[inline]
pub fn double_attr(out: &mut impl Out, tag: u8, key: &[u8], value: f64) {
    let body = field_len(key.len()) + 11;
    let len = field_len(body);
    // SAFETY: exactly `len` bytes are written.
    unsafe {
        let at = raw::varint(raw::byte(out.room(len), tag), body as u64);
        let at = raw::field(at, 0x0a, key);
        raw::fixed64(raw::byte(raw::byte(at, 0x12), 9), 0x21, value.to_bits());
        out.advance(len);
    }
}

#[inline]
pub fn bool_attr(out: &mut impl Out, tag: u8, key: &[u8], value: bool) {
    let body = field_len(key.len()) + 4;
    let len = field_len(body);
    // SAFETY: exactly `len` bytes are written.
    unsafe {
        let at = raw::varint(raw::byte(out.room(len), tag), body as u64);
        let at = raw::field(at, 0x0a, key);
        at.cast::<[u8; 4]>().write([0x12, 2, 0x10, u8::from(value)]);
        out.advance(len);
    }
}

/// An attribute whose `AnyValue` is written already.
pub fn raw_attr(out: &mut impl Out, tag: u8, key: &[u8], any_value: &[u8]) {
    out.byte(tag);
    out.varint((field_len(key.len()) + field_len(any_value.len())) as u64);
    out.field(0x0a, key);
    out.field(0x12, any_value);
}

// Both without tables and branches: the compiler makes vector instructions of that.

pub fn hex<const N: usize, const M: usize>(bytes: &[u8; N]) -> [u8; M] {
    let digit = |worth: u8| worth + if worth < 10 { b'0' } else { b'a' - 10 };
    let mut text = [b'0'; M];
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
    text
}

/// Whether the text is hex of as many bytes as `out` has; then they are in it.
#[inline]
pub fn unhex<const N: usize>(text: &[u8], out: &mut [u8; N]) -> bool {
    if text.len() != N * 2 {
        return false;
    }
    let worth = |digit: u8| (digit & 15) + 9 * (digit >> 6);
    for (pair, byte) in text.chunks_exact(2).zip(out) {
        *byte = worth(pair[0]) << 4 | (worth(pair[1]) & 15);
    }
    text.iter().fold(true, |good, digit| good & digit.is_ascii_hexdigit())
}
