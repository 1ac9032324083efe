//! Prefill and decode of a disaggregated request (SPEC 1.4): the durations that SGLang reports as `pd_*` attributes, and
//! the spans that slime makes of them (`sglang_pd_*`).

/// How one duration is named, in the order of the specification: the first five are prefill's.
pub struct Segment {
    /// Attribute with the duration in seconds.
    pub key: &'static str,
    /// The span that stands for it.
    pub span: &'static str,
    /// The metric of a step, after the prefix.
    pub metric: &'static str,
    /// The segment that it lies inside of, by its place in [`SEGMENTS`].
    pub inside: Option<usize>,
}

macro_rules! segment {
    ($side:literal, $name:literal, $inside:expr) => {
        Segment {
            key: concat!("pd_", $side, "_", $name, "_duration"),
            span: concat!("sglang_pd_", $side, "_", $name),
            metric: concat!($side, "/", $name, "_duration"),
            inside: $inside,
        }
    };
}

pub const SEGMENTS: [Segment; 10] = [
    segment!("prefill", "bootstrap_queue", None),
    segment!("prefill", "bootstrap", Some(BOOTSTRAP_QUEUE)),
    segment!("prefill", "alloc_wait", Some(BOOTSTRAP_QUEUE)),
    segment!("prefill", "forward", None),
    // The tail of prefill's forward: KV cache on its way.
    segment!("prefill", "transfer_queue", Some(PREFILL_FORWARD)),
    segment!("decode", "prealloc", None),
    segment!("decode", "bootstrap", Some(PREALLOC)),
    segment!("decode", "alloc_wait", Some(PREALLOC)),
    segment!("decode", "transfer", None),
    segment!("decode", "forward", None),
];

// Places in [`SEGMENTS`].
pub const BOOTSTRAP_QUEUE: usize = 0;
pub const PREFILL_FORWARD: usize = 3;
pub const TRANSFER_QUEUE: usize = 4;
pub const PREALLOC: usize = 5;
pub const DECODE_TRANSFER: usize = 8;
pub const DECODE_FORWARD: usize = 9;

/// A side: its name, slime's letter for it, and the span that contains its segments.
pub struct Side {
    pub name: &'static str,
    pub letter: &'static str,
    pub span: &'static str,
}

pub const SIDES: [Side; 2] = [
    Side { name: "prefill", letter: "P", span: "sglang_pd_prefill" },
    Side { name: "decode", letter: "D", span: "sglang_pd_decode" },
];

/// Segments per side.
pub const PER_SIDE: usize = SEGMENTS.len() / SIDES.len();

/// Every attribute starts with this, and every span with [`SPAN_PREFIX`].
pub const KEY_PREFIX: &str = "pd_";
pub const SPAN_PREFIX: &str = "sglang_pd_";

/// Figures that are no durations: attribute, and metric after the prefix.
pub const SUMMARY: [(&str, &str); 3] = [
    ("pd_transfer_speed_gb_s", "prefill/transfer_speed_gb_s"),
    ("pd_transfer_total_mb", "prefill/transfer_total_mb"),
    ("pd_prefill_retry_count", "prefill/retry_count"),
];

/// The segment with this attribute, by its place.
pub fn segment_of(key: &str) -> Option<usize> {
    SEGMENTS.iter().position(|segment| segment.key == key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{Kind, classify};

    #[test]
    fn segments_lie_inside_one_of_their_own_side_and_never_deeper() {
        for (at, segment) in SEGMENTS.iter().enumerate() {
            let side = &SIDES[at / PER_SIDE];
            assert!(segment.span.starts_with(side.span) && segment.key.starts_with(KEY_PREFIX));
            assert!(segment.span.starts_with(SPAN_PREFIX));
            if let Some(outer) = segment.inside {
                assert_eq!(outer / PER_SIDE, at / PER_SIDE);
                assert!(outer < at && SEGMENTS[outer].inside.is_none(), "{}", segment.key);
            }
            assert_eq!(segment_of(segment.key), Some(at));
        }
        for (at, key) in [
            (BOOTSTRAP_QUEUE, "pd_prefill_bootstrap_queue_duration"),
            (PREFILL_FORWARD, "pd_prefill_forward_duration"),
            (TRANSFER_QUEUE, "pd_prefill_transfer_queue_duration"),
            (PREALLOC, "pd_decode_prealloc_duration"),
            (DECODE_TRANSFER, "pd_decode_transfer_duration"),
            (DECODE_FORWARD, "pd_decode_forward_duration"),
        ] {
            assert_eq!(SEGMENTS[at].key, key);
        }
    }

    #[test]
    fn segments_are_waiting_computing_or_moving() {
        let kinds = SEGMENTS.each_ref().map(|segment| classify(segment.span, None));
        let [q, t] = [Kind::Queue, Kind::Transfer];
        assert_eq!(kinds, [q, q, q, Kind::Prefill, t, q, q, q, t, Kind::Decode]);
    }
}
