//! From a request's body to one message in memory, bounded at every step: bytes over the wire, bytes after
//! decompression, bytes held over all requests, and the time a sender may be silent.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

use super::Refusal;

/// Three bytes of snappy copy 64 at most.
const MAX_SNAPPY_RATIO: usize = 32;

/// How a message is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Identity,
    Gzip,
    Zstd,
    /// HTTP's name for the zlib format.
    Deflate,
    /// The block format, which remote write uses. OTLP has no name for it.
    Snappy,
}

impl Encoding {
    /// The value of `accept-encoding`.
    pub const ACCEPTED: &'static str = "gzip, zstd, deflate, identity";

    pub fn from_name(name: &str) -> Option<Encoding> {
        match name.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Some(Encoding::Identity),
            "gzip" | "x-gzip" => Some(Encoding::Gzip),
            "zstd" => Some(Encoding::Zstd),
            "deflate" => Some(Encoding::Deflate),
            _ => None,
        }
    }
}

/// Bytes that all requests together hold.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
}

impl Budget {
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Budget { limit, used: AtomicUsize::new(0) })
    }

    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    pub fn charge(self: &Arc<Self>) -> Charge {
        Charge { budget: self.clone(), bytes: 0 }
    }
}

/// One request's share of the [`Budget`], given back when dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Charge {
    fn add(&mut self, bytes: usize) -> Result<(), Refusal> {
        let before = self.budget.used.fetch_add(bytes, Relaxed);
        self.bytes += bytes;
        if before + bytes > self.budget.limit {
            return Err(Refusal::Overload {
                detail: format!("too many messages in flight (max_inflight_bytes = {}); send again", self.budget.limit),
                after: Duration::from_secs(1),
            });
        }
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Relaxed);
    }
}

fn over(limit: usize) -> Refusal {
    Refusal::TooLarge {
        limit: "max_message_bytes",
        detail: format!(
            "the message is larger than max_message_bytes ({limit}); send smaller batches or raise the limit"
        ),
    }
}

/// Reads what a refused sender is still sending, within bounds. A sender that is cut off sees a broken connection instead of
/// the response with the reason.
pub async fn discard(mut body: Body) {
    const MOST: usize = 256 << 20;
    let all = async {
        let mut total = 0;
        while let Some(Ok(frame)) = body.frame().await {
            total += frame.data_ref().map_or(0, Bytes::len);
            if total > MOST {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(5), all).await;
}

/// The whole body, at most `limit` bytes.
pub async fn read_body(mut body: Body, limit: usize, silence: Duration, charge: &mut Charge) -> Result<Bytes, Refusal> {
    let result = read_within(&mut body, limit, silence, charge).await;
    if matches!(result, Err(Refusal::TooLarge { .. } | Refusal::Overload { .. })) {
        discard(body).await;
    }
    result
}

async fn read_within(body: &mut Body, limit: usize, silence: Duration, charge: &mut Charge) -> Result<Bytes, Refusal> {
    if body.size_hint().lower() > limit as u64 {
        return Err(over(limit));
    }
    let mut first = Bytes::new();
    let mut rest: Option<BytesMut> = None;
    let mut total = 0;
    loop {
        let frame = match tokio::time::timeout(silence, body.frame()).await {
            Err(_) => {
                return Err(Refusal::Timeout(format!("no data received for body_timeout_s ({} s)", silence.as_secs())));
            }
            Ok(None) => break,
            Ok(Some(Err(error))) => return Err(Refusal::Malformed(format!("the body ended early: {error}"))),
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        total += data.len();
        if total > limit {
            return Err(over(limit));
        }
        charge.add(data.len())?;
        match &mut rest {
            // A message in one piece, the usual one, is never copied.
            None if first.is_empty() => first = data,
            None => {
                let mut joined = BytesMut::with_capacity((first.len() + data.len()).next_power_of_two());
                joined.extend_from_slice(&first);
                joined.extend_from_slice(&data);
                rest = Some(joined);
            }
            Some(joined) => joined.extend_from_slice(&data),
        }
    }
    Ok(rest.map_or(first, BytesMut::freeze))
}

/// Undoes the compression, at most `limit` bytes. Runs on the caller's thread.
pub fn decompress(bytes: Bytes, encoding: Encoding, limit: usize, charge: &mut Charge) -> Result<Bytes, Refusal> {
    let bad = |e: std::io::Error, name: &str| Refusal::Malformed(format!("the message is not valid {name}: {e}"));
    match encoding {
        Encoding::Identity => Ok(bytes),
        Encoding::Gzip => drain(flate2::read::MultiGzDecoder::new(&bytes[..]), limit, charge, |e| bad(e, "gzip")),
        Encoding::Deflate => drain(flate2::read::ZlibDecoder::new(&bytes[..]), limit, charge, |e| bad(e, "zlib")),
        Encoding::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(&bytes[..]).map_err(|e| bad(e, "zstd"))?;
            // A frame may request a window of gigabytes; no sender of batches needs more than this.
            decoder.window_log_max(26).map_err(|e| bad(e, "zstd"))?;
            drain(decoder, limit, charge, |e| bad(e, "zstd"))
        }
        Encoding::Snappy => {
            let bad = |e: snap::Error| Refusal::Malformed(format!("the message is not valid snappy: {e}"));
            let len = snap::raw::decompress_len(&bytes).map_err(bad)?;
            if len > limit {
                return Err(over(limit));
            }
            // The length comes first and is not to be believed.
            if len > MAX_SNAPPY_RATIO * bytes.len() {
                let why = "its length does not fit its data";
                return Err(Refusal::Malformed(format!("the message is not valid snappy: {why}")));
            }
            charge.add(len)?;
            Ok(snap::raw::Decoder::new().decompress_vec(&bytes).map_err(bad)?.into())
        }
    }
}

fn drain(
    mut reader: impl Read,
    limit: usize,
    charge: &mut Charge,
    bad: impl Fn(std::io::Error) -> Refusal,
) -> Result<Bytes, Refusal> {
    const STEP: usize = 256 << 10;
    let mut out = Vec::new();
    loop {
        let before = out.len();
        let step = STEP.min(limit + 1 - before);
        let read = (&mut reader).take(step as u64).read_to_end(&mut out).map_err(&bad)?;
        if out.len() > limit {
            return Err(over(limit));
        }
        charge.add(read)?;
        if read < step {
            return Ok(out.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(data: &[u8]) -> Bytes {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap().into()
    }

    #[test]
    fn every_encoding_is_undone_and_bounded() {
        let data = vec![7u8; 1 << 20];
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        zlib.write_all(&data).unwrap();
        let packed = [
            (Encoding::Identity, Bytes::from(data.clone())),
            (Encoding::Gzip, gzip(&data)),
            (Encoding::Zstd, zstd::encode_all(&data[..], 1).unwrap().into()),
            (Encoding::Deflate, zlib.finish().unwrap().into()),
            (Encoding::Snappy, snap::raw::Encoder::new().compress_vec(&data).unwrap().into()),
        ];
        for (encoding, bytes) in packed {
            let budget = Budget::new(8 << 20);
            let mut charge = budget.charge();
            assert_eq!(decompress(bytes.clone(), encoding, 1 << 20, &mut charge).unwrap(), data, "{encoding:?}");
            if encoding != Encoding::Identity {
                let refused = decompress(bytes.clone(), encoding, (1 << 20) - 1, &mut charge);
                assert!(matches!(refused, Err(Refusal::TooLarge { .. })), "{encoding:?}");
                let cut = decompress(bytes.slice(..bytes.len() / 2), encoding, 1 << 20, &mut charge);
                assert!(matches!(cut, Err(Refusal::Malformed(_))), "{encoding:?} {cut:?}");
            }
            drop(charge);
            assert_eq!(budget.used(), 0);
        }
    }

    #[test]
    fn a_length_that_snappy_cannot_have_costs_nothing() {
        // A varint of 512 MiB, and one literal byte.
        let lies = Bytes::from_static(&[0x80, 0x80, 0x80, 0x80, 0x02, 0x00, 0x41]);
        let budget = Budget::new(1 << 30);
        let refused = decompress(lies, Encoding::Snappy, 1 << 30, &mut budget.charge());
        assert!(matches!(refused, Err(Refusal::Malformed(_))), "{refused:?}");
        for bytes in [&b""[..], b"\xff\xff\xff\xff\xff\xff", b"\x05\x10ab"] {
            let refused = decompress(Bytes::from_static(bytes), Encoding::Snappy, 1 << 20, &mut budget.charge());
            assert!(bytes.is_empty() || matches!(refused, Err(Refusal::Malformed(_))), "{bytes:?} {refused:?}");
        }
    }

    #[test]
    fn the_budget_is_shared() {
        let budget = Budget::new(3 << 20);
        let (mut a, mut b) = (budget.charge(), budget.charge());
        let packed = gzip(&vec![0; 2 << 20]);
        decompress(packed.clone(), Encoding::Gzip, 4 << 20, &mut a).unwrap();
        assert!(matches!(decompress(packed.clone(), Encoding::Gzip, 4 << 20, &mut b), Err(Refusal::Overload { .. })));
        drop((a, b));
        decompress(packed, Encoding::Gzip, 4 << 20, &mut budget.charge()).unwrap();
    }

    #[tokio::test]
    async fn a_body_is_joined_and_bounded() {
        let body = || {
            let parts = [&b"ab"[..], b"", b"cd", b"e"].map(|p| Ok::<_, std::io::Error>(Bytes::from_static(p)));
            Body::from_stream(futures::stream::iter(parts))
        };
        let budget = Budget::new(100);
        let wait = Duration::from_secs(5);
        assert_eq!(read_body(body(), 5, wait, &mut budget.charge()).await.unwrap(), "abcde");
        assert!(matches!(read_body(body(), 4, wait, &mut budget.charge()).await, Err(Refusal::TooLarge { .. })));
        let silent = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        let wait = Duration::from_millis(20);
        assert!(matches!(read_body(silent, 4, wait, &mut budget.charge()).await, Err(Refusal::Timeout(_))));
    }
}
