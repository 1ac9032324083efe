//! Images of conversations. The type of a file follows from its first bytes, never from its name or from a message. Images that
//! browsers draw without running anything are shown; everything else (SVG and HTML above all) can only be downloaded.

use std::io::Cursor;

use image::{ImageFormat, ImageReader, Limits};

use crate::problem::{Problem, ProblemKind};

/// A picture larger than this, in pixels a side, is not made into a thumbnail.
const MAX_SIDE: u32 = 16_384;
/// Memory for decoding one picture.
const MAX_DECODED_BYTES: u64 = 256 << 20;
/// Sides of a thumbnail.
pub const THUMBNAIL: std::ops::RangeInclusive<u32> = 16..=512;

/// The type of an image that is safe to show, by its first bytes.
pub fn sniff(data: &[u8]) -> Option<(&'static str, ImageFormat)> {
    match data {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(("image/png", ImageFormat::Png)),
        [0xff, 0xd8, 0xff, ..] => Some(("image/jpeg", ImageFormat::Jpeg)),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(("image/gif", ImageFormat::Gif)),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(("image/webp", ImageFormat::WebP)),
        _ => None,
    }
}

/// A small PNG of an image. Costs a core for a moment: to be called off the threads that serve sockets.
pub fn thumbnail(data: &[u8], side: u32) -> Result<Vec<u8>, Problem> {
    let refuse = |why: String| Problem::new(ProblemKind::NotAnImage, why);
    let Some((_, format)) = sniff(data) else {
        return Err(refuse("this file is not a PNG, JPEG, GIF or WebP image, so it has no thumbnail".into()));
    };
    let mut reader = ImageReader::with_format(Cursor::new(data), format);
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_DECODED_BYTES);
    reader.limits(limits);
    let image = reader.decode().map_err(|e| refuse(format!("cannot decode this image: {e}")))?;
    let small = if image.width().max(image.height()) > side { image.thumbnail(side, side) } else { image };
    let mut out = Vec::new();
    small.write_to(&mut Cursor::new(&mut out), ImageFormat::Png).map_err(|e| Problem::internal(e.to_string()))?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_images_are_shown() {
        let mut png = Vec::new();
        let picture = image::RgbImage::from_fn(300, 200, |x, y| image::Rgb([x as u8, y as u8, 0]));
        image::DynamicImage::ImageRgb8(picture).write_to(&mut Cursor::new(&mut png), ImageFormat::Png).unwrap();
        assert_eq!(sniff(&png).unwrap().0, "image/png");
        let small = thumbnail(&png, 64).unwrap();
        let read = image::load_from_memory(&small).unwrap();
        assert_eq!((read.width(), read.height()), (64, 43));
        for forged in [&b"<svg onload=alert(1)>"[..], b"<html>", b"GIF89", b"", b"%PDF-1.7"] {
            assert!(sniff(forged).is_none());
            assert!(thumbnail(forged, 64).is_err());
        }
        // The right first bytes and nothing behind them.
        assert!(thumbnail(&png[..60], 64).is_err());
    }
}
