//! TensorBoard event files: a TFRecord a value, each record an `Event` with a scalar summary. Written by hand, because the
//! few fields we need are older than most programs that read them.

use std::io::{self, Write};

use rollscope_model::protobuf::{bytes, double, float, number};

/// CRC-32C (Castagnoli), as TFRecord wants it.
fn crc32c(bytes: &[u8]) -> u32 {
    static TABLE: [u32; 256] = table();
    let mut crc = !0u32;
    for b in bytes {
        crc = TABLE[((crc ^ u32::from(*b)) & 0xff) as usize] ^ (crc >> 8);
    }
    !crc
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

/// Rotated and shifted, so that a checksum inside checked data does no harm.
fn masked(bytes: &[u8]) -> [u8; 4] {
    (crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)).to_le_bytes()
}

fn record(out: &mut impl Write, data: &[u8]) -> io::Result<()> {
    let length = (data.len() as u64).to_le_bytes();
    out.write_all(&length)?;
    out.write_all(&masked(&length))?;
    out.write_all(data)?;
    out.write_all(&masked(data))
}

/// An event file being written. The first record names the version, as readers expect.
pub struct EventWriter<W: Write> {
    out: W,
}

impl<W: Write> EventWriter<W> {
    pub fn new(mut out: W, time_s: f64) -> io::Result<Self> {
        let mut event = Vec::new();
        double(&mut event, 1, time_s);
        bytes(&mut event, 3, b"brain.Event:2");
        record(&mut out, &event)?;
        Ok(EventWriter { out })
    }

    /// Goes on with a file that has its first record already.
    pub fn resume(out: W) -> Self {
        EventWriter { out }
    }

    /// One value, as `torch.utils.tensorboard` writes it: a `simple_value`, which every reader shows as a scalar. It has 32
    /// bits. (A tensor could keep all 64, but TensorBoard drops tensors of doubles.)
    pub fn scalar(&mut self, time_s: f64, step: i64, tag: &str, value: f64) -> io::Result<()> {
        let mut item = Vec::new();
        bytes(&mut item, 1, tag.as_bytes());
        float(&mut item, 2, value as f32);
        let mut summary = Vec::new();
        bytes(&mut summary, 1, &item);
        let mut event = Vec::new();
        double(&mut event, 1, time_s);
        number(&mut event, 2, step as u64);
        bytes(&mut event, 5, &summary);
        record(&mut self.out, &event)
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_castagnolis() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn records_are_framed() {
        let mut out = Vec::new();
        let mut writer = EventWriter::new(&mut out, 1.5).unwrap();
        writer.scalar(2.0, 7, "a/b", 0.25).unwrap();
        let length = u64::from_le_bytes(out[..8].try_into().unwrap()) as usize;
        assert_eq!(&out[12 + 11..12 + length], b"brain.Event:2");
        let second = &out[12 + length + 4..];
        let next = u64::from_le_bytes(second[..8].try_into().unwrap()) as usize;
        assert_eq!(second.len(), 8 + 4 + next + 4);
        assert_eq!(masked(&second[..8]), second[8..12]);
        assert_eq!(masked(&second[12..12 + next]), second[12 + next..]);
    }
}
