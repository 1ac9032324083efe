//! Writing protobuf by hand, for formats of which we need a few fields.

pub fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes that [`varint`] writes.
#[inline]
pub fn varint_len(value: u64) -> usize {
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// An integer, boolean or enumeration. A negative one is given as two's complement.
pub fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    varint(out, u64::from(field) << 3);
    varint(out, value);
}

pub fn fixed64(out: &mut Vec<u8>, field: u32, value: u64) {
    varint(out, u64::from(field) << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

pub fn double(out: &mut Vec<u8>, field: u32, value: f64) {
    fixed64(out, field, value.to_bits());
}

pub fn float(out: &mut Vec<u8>, field: u32, value: f32) {
    varint(out, u64::from(field) << 3 | 5);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Text, bytes, or a message that is written already.
pub fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    varint(out, u64::from(field) << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// A message inside a message. Its length is not known before: one byte is kept for it, and room is made if that is
/// not enough.
pub fn message<T>(out: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    varint(out, u64::from(field) << 3 | 2);
    let at = out.len();
    out.push(0);
    let result = write(out);
    let len = out.len() - at - 1;
    if len < 0x80 {
        out[at] = len as u8;
    } else {
        let mut prefix = Vec::with_capacity(5);
        varint(&mut prefix, len as u64);
        out.splice(at..at + 1, prefix);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_that_are_written() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            varint(&mut out, value);
            assert_eq!(out.len(), varint_len(value), "{value}");
        }
    }

    #[test]
    fn a_message_is_the_same_as_its_bytes() {
        for size in [0, 1, 127, 128, 300, 20_000] {
            let body = vec![7; size];
            let (mut whole, mut pieces) = (Vec::new(), Vec::new());
            bytes(&mut whole, 40, &body);
            message(&mut pieces, 40, |out| out.extend_from_slice(&body));
            assert_eq!(whole, pieces, "{size}");
        }
    }
}
