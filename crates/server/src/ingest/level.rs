//! The trace level that the operator set for every SDK that sends here. It is sent in a header of each response.

use std::sync::atomic::{AtomicI8, Ordering};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use rollscope_model::names::event::LEVEL_HEADER;

/// 0 (off), 1 (important), 2 (all but nested) or 3 (all). If it is not set, each SDK keeps its own.
#[derive(Debug)]
pub struct TraceLevel(AtomicI8);

const NOT_SET: i8 = -1;
pub use rollscope_model::limits::TRACE_LEVEL as HIGHEST;

impl Default for TraceLevel {
    fn default() -> Self {
        TraceLevel(AtomicI8::new(NOT_SET))
    }
}

impl TraceLevel {
    pub fn get(&self) -> Option<u8> {
        u8::try_from(self.0.load(Ordering::Relaxed)).ok()
    }

    /// The caller has checked the range.
    pub fn set(&self, level: Option<u8>) {
        self.0.store(level.map_or(NOT_SET, |l| l.min(HIGHEST) as i8), Ordering::Relaxed);
    }

    pub fn tell(&self, headers: &mut HeaderMap) {
        if let Some(level) = self.get() {
            headers.insert(HeaderName::from_static(LEVEL_HEADER), HeaderValue::from(u16::from(level)));
        }
    }
}
