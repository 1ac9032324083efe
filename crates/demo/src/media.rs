//! Pictures for the conversations: small PNGs drawn and encoded here, a fixed set, so that siblings and steps share them
//! by content.

use std::sync::Arc;

/// One content-addressed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Media {
    /// Hex; what messages refer to.
    pub hash: String,
    pub mime: &'static str,
    pub bytes: Arc<[u8]>,
    pub caption: &'static str,
}

const WIDTH: usize = 96;
const HEIGHT: usize = 64;

const CAPTIONS: [&str; 6] = [
    "screenshot of the search results",
    "plot of the function over [0, 2π]",
    "heat map of the correlation matrix",
    "bar chart of the monthly totals",
    "figure 1 of the problem",
    "scatter plot with the fitted line",
];

/// Every picture the conversations use. `hash` names the content.
pub fn pictures(hash: fn(&[u8]) -> String) -> Vec<Media> {
    (0..CAPTIONS.len())
        .map(|kind| {
            let bytes = png(|x, y| pixel(kind, x as f64 / WIDTH as f64, y as f64 / HEIGHT as f64));
            Media { hash: hash(&bytes), mime: "image/png", bytes: bytes.into(), caption: CAPTIONS[kind] }
        })
        .collect()
}

/// Hash of a file's content when the caller has no preference.
pub fn default_hash(bytes: &[u8]) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes))
}

fn pixel(kind: usize, x: f64, y: f64) -> [u8; 3] {
    const PAPER: [u8; 3] = [250, 250, 247];
    const INK: [u8; 3] = [46, 91, 170];
    let on = match kind {
        0 => (y * 8.0).fract() < 0.45 && x > 0.08 && x < 0.55 + 0.4 * ((y * 8.0).floor() * 1.7).sin().abs(),
        1 => (y - 0.5 - 0.35 * (x * std::f64::consts::TAU).sin()).abs() < 0.03,
        2 => {
            let heat = ((x * 6.0).floor() * 0.9 + (y * 6.0).floor() * 1.3).sin() * 0.5 + 0.5;
            return [(255.0 * heat) as u8, (180.0 * (1.0 - heat)) as u8, 110];
        }
        3 => (x * 12.0).fract() < 0.7 && 1.0 - y < 0.2 + 0.6 * ((x * 12.0).floor() * 0.8).sin().abs(),
        4 => ((x - 0.5).hypot((y - 0.5) * 0.7) - 0.28).abs() < 0.015 || (x - y).abs() < 0.012,
        _ => {
            (y - 0.8 + 0.6 * x).abs() < 0.012
                || (((x * 24.0).floor() * 37.0 + (y * 16.0).floor() * 91.0).sin() > 0.93
                    && (y - 0.8 + 0.6 * x).abs() < 0.2)
        }
    };
    if on { INK } else { PAPER }
}

/// An RGB image without compression (stored deflate blocks): a few lines, and every decoder reads it.
fn png(pixel: impl Fn(usize, usize) -> [u8; 3]) -> Vec<u8> {
    let mut raw = Vec::with_capacity(HEIGHT * (1 + WIDTH * 3));
    for y in 0..HEIGHT {
        raw.push(0);
        for x in 0..WIDTH {
            raw.extend_from_slice(&pixel(x, y));
        }
    }
    let mut zlib = vec![0x78, 0x01];
    let blocks = raw.chunks(0xffff).count();
    for (i, block) in raw.chunks(0xffff).enumerate() {
        let len = block.len() as u16;
        zlib.push(u8::from(i + 1 == blocks));
        zlib.extend_from_slice(&len.to_le_bytes());
        zlib.extend_from_slice(&(!len).to_le_bytes());
        zlib.extend_from_slice(block);
    }
    zlib.extend_from_slice(&adler32(&raw).to_be_bytes());

    let mut out = vec![0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'];
    let mut header = Vec::new();
    header.extend_from_slice(&(WIDTH as u32).to_be_bytes());
    header.extend_from_slice(&(HEIGHT as u32).to_be_bytes());
    header.extend_from_slice(&[8, 2, 0, 0, 0]);
    chunk(&mut out, b"IHDR", &header);
    chunk(&mut out, b"IDAT", &zlib);
    chunk(&mut out, b"IEND", &[]);
    out
}

fn chunk(out: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    let from = out.len();
    out.extend_from_slice(kind);
    out.extend_from_slice(data);
    let crc = crc32(&out[from..]);
    out.extend_from_slice(&crc.to_be_bytes());
}

pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { (c >> 1) ^ 0xedb8_8320 } else { c >> 1 })
    })
}

pub(crate) fn adler32(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1u32, 0u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65_521;
        (a, (b + a) % 65_521)
    });
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_match_their_known_values() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
    }

    #[test]
    fn pictures_are_different_pngs_of_the_declared_size() {
        let pictures = pictures(default_hash);
        for p in &pictures {
            assert_eq!(&p.bytes[..8], b"\x89PNG\r\n\x1a\n");
            assert_eq!(p.bytes[16..24], [0, 0, 0, 96, 0, 0, 0, 64]);
            // The picture as stored: a filter byte and three bytes per pixel, in one block or several.
            assert!(p.bytes.len() > HEIGHT * (1 + WIDTH * 3));
        }
        let mut hashes: Vec<_> = pictures.iter().map(|p| &p.hash).collect();
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), CAPTIONS.len());
    }
}
