//! Bytes as text inside an HTML element: seven bits a character, where base64 has six. Characters that HTML would change,
//! end the element with, or that a conversion of line ends would touch, are two: [`ESCAPE`] and the character 64 further.
//! All of it is ASCII, so it is the same in every encoding a browser may take the file for.

use std::io::{self, Write};

const ESCAPE: u8 = 0x1b;
const BUFFER: usize = 64 << 10;

fn must_escape(c: u8) -> bool {
    matches!(c, 0 | b'\n' | b'\r' | b'<' | ESCAPE)
}

pub fn write(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    let mut text = Vec::with_capacity(BUFFER + 16);
    let (mut pending, mut bits) = (0u32, 0u32);
    let push = |text: &mut Vec<u8>, c: u8| match must_escape(c) {
        true => text.extend_from_slice(&[ESCAPE, c + 64]),
        false => text.push(c),
    };
    for byte in bytes {
        // The first bits come first.
        pending = pending << 8 | u32::from(*byte);
        bits += 8;
        while bits >= 7 {
            bits -= 7;
            push(&mut text, (pending >> bits & 0x7f) as u8);
        }
        if text.len() >= BUFFER {
            out.write_all(&text)?;
            text.clear();
        }
    }
    if bits > 0 {
        push(&mut text, (pending << (7 - bits) & 0x7f) as u8);
    }
    out.write_all(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &[u8]) -> Vec<u8> {
        let (mut out, mut pending, mut bits) = (Vec::new(), 0u32, 0);
        let mut chars = text.iter();
        while let Some(c) = chars.next() {
            let c = if *c == ESCAPE { chars.next().unwrap() - 64 } else { *c };
            pending = pending << 7 | u32::from(c);
            bits += 7;
            if bits >= 8 {
                bits -= 8;
                out.push((pending >> bits) as u8);
            }
        }
        out
    }

    #[test]
    fn every_byte_comes_back_and_nothing_can_end_the_element() {
        let all: Vec<u8> = (0..=255).collect();
        for length in 0..=256 {
            for bytes in [all[..length].to_vec(), vec![0; length], vec![255; length], b"<\r\n\x1b".repeat(length)] {
                let mut text = Vec::new();
                write(&mut text, &bytes).unwrap();
                assert_eq!(decoded(&text), bytes);
                assert!(text.iter().all(|c| c.is_ascii() && (*c == ESCAPE || !must_escape(*c))));
            }
        }
    }
}
