//! What is known when a span starts. It never changes after that, so the background thread can read it without Python's lock.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pyo3::prelude::*;
use pyo3::types::PyString;
use smallvec::SmallVec;

use super::identity::Identity;
use crate::open::OpenSpan;
use crate::row::{Row, SpanId, TraceId};
use crate::value;

const MAX_NAME_BYTES: usize = 1024;

pub struct OpenPart {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    pub parent_id: Option<SpanId>,
    pub start_ns: u64,
    pub kind: u8,
    pub name: Name,
    pub identity: Option<Arc<Identity>>,
    pub attrs: SmallVec<[u8; 144]>,
    pub count: u32,
    pub dropped: u32,
    /// Whether it has been sent as open.
    pub reported: AtomicBool,
}

impl OpenPart {
    #[inline]
    pub fn row(&self) -> Row<'_> {
        let (identity, count): (&[u8], u32) = match &self.identity {
            Some(identity) => (&identity.bytes, identity.count),
            None => (&[], 0),
        };
        Row {
            parent_id: self.parent_id.as_ref(),
            kind: self.kind,
            start_attrs: [identity, &self.attrs],
            start_count: self.count + count,
            dropped: self.dropped,
            ..Row::new((&self.trace_id, &self.span_id), self.name.bytes(), self.start_ns)
        }
    }
}

impl OpenSpan for OpenPart {
    fn start_ns(&self) -> u64 {
        self.start_ns
    }

    fn reported(&self) -> &AtomicBool {
        &self.reported
    }

    fn write_open(&self, out: &mut Vec<u8>) {
        self.row().write(out);
    }
}

/// The text of a Python string that is kept alive here.
pub struct Name {
    text: *const u8,
    len: usize,
    _object: Py<PyString>,
}

// SAFETY: the text of a Python string never changes, and the object is kept.
unsafe impl Send for Name {}
// SAFETY: as above.
unsafe impl Sync for Name {}

impl Name {
    pub fn new(name: &Bound<'_, PyAny>) -> Name {
        let py = name.py();
        if let Ok(string) = name.cast::<PyString>()
            && let Ok(text) = string.to_str()
            && text.len() <= MAX_NAME_BYTES
        {
            return Name { text: text.as_ptr(), len: text.len(), _object: string.clone().unbind() };
        }
        let text = value::text_of(name);
        let cut = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= MAX_NAME_BYTES - 4).last();
        let cut = if text.len() <= MAX_NAME_BYTES { text.len() } else { cut.unwrap_or(0) };
        let string = PyString::new(py, &text[..cut]);
        let text = string.to_str().unwrap_or_default();
        Name { text: text.as_ptr(), len: text.len(), _object: string.clone().unbind() }
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: see above.
        unsafe { std::slice::from_raw_parts(self.text, self.len) }
    }
}
