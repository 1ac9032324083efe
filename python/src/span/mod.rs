//! Spans as Python sees them. What is known at the start is in [`open`] and never changes; what comes later is behind the span's
//! own lock.

mod functions;
mod identity;
mod methods;
mod open;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;
use rollscope_names::attributes::PHASE;
use smallvec::SmallVec;

use crate::args::{self, Attrs};
use crate::clock;
use crate::context;
use crate::core::Core;
use crate::held::Held;
use crate::open::Place;
use crate::row::{Row, STATUS_ERROR, STATUS_UNSET, SpanId, TraceId, put_event, put_link};
use crate::slime::SlimeSpan;
use crate::value;
use crate::wire::{Out, attrs_of};
use identity::Identity;
use open::{Name, OpenPart};

/// Events kept on one span; more become instants of their own.
const MAX_EVENTS: u32 = 4096;
const MAX_EVENT_BYTES: usize = 1 << 20;
const MAX_LINKS: u32 = 1024;

/// What may come after the start.
struct Late {
    place: Place,
    ended: bool,
    status: u8,
    count: u32,
    dropped: u32,
    event_count: u32,
    link_count: u32,
    attrs: Vec<u8>,
    events: Vec<u8>,
    links: Vec<u8>,
    message: String,
    token: Option<Py<PyAny>>,
}

/// A piece of work with a beginning and an end. Made by `rollscope.span(...)`.
#[pyclass(frozen, module = "rollscope")]
pub struct Span {
    pub open: OpenPart,
    late: Held<Late>,
}

/// What a span starts from.
#[derive(Default)]
pub struct Start<'a, 'py> {
    pub attrs: Option<&'a Bound<'py, PyAny>>,
    pub phase: Option<&'a Bound<'py, PyAny>>,
    pub step: Option<&'a Bound<'py, PyAny>>,
    pub sample: Option<&'a Bound<'py, PyAny>>,
    pub group: Option<&'a Bound<'py, PyAny>>,
    pub attempt: Option<&'a Bound<'py, PyAny>>,
    pub parent: Option<&'a Bound<'py, PyAny>>,
    pub kind: u8,
    pub start_ns: Option<u64>,
    /// Not a child of the current span.
    pub root: bool,
}

impl Span {
    #[inline]
    pub fn start<'py>(
        core: &'static Core,
        name: &Bound<'py, PyAny>,
        start: &Start<'_, 'py>,
    ) -> PyResult<Bound<'py, Span>> {
        let py = name.py();
        let mut trace_id = [0; 16];
        let mut parent_id = None;
        let mut inherited: Option<Arc<Identity>> = None;
        let current = match start.parent {
            Some(parent) => Some(parent.clone()),
            None if start.root => None,
            None => context::current(py),
        };
        if let Some(parent) = &current {
            if let Ok(parent) = parent.cast::<Span>() {
                let open = &parent.get().open;
                (trace_id, parent_id) = (open.trace_id, Some(open.span_id));
                inherited.clone_from(&open.identity);
            } else if let Some((trace, span, bytes, count, step)) =
                parent.cast::<SlimeSpan>().ok().and_then(|s| s.get().inheritance())
            {
                (trace_id, parent_id) = (trace, Some(span));
                inherited = Some(Arc::new(Identity::encoded(step, bytes, count)));
            } else if let Some((trace, span)) = context::ids_of(parent) {
                (trace_id, parent_id) = (trace, Some(span));
            }
        }
        if parent_id.is_none() {
            trace_id = clock::new_id();
        }
        let mut attrs = SmallVec::new();
        let mut count = 0;
        let mut dropped = 0;
        if let Some(phase) = start.phase {
            value::put_named(&mut attrs, attrs_of::SPAN, PHASE.as_bytes(), phase);
            count += 1;
        }
        if let Some(given) = start.attrs {
            let (kept, left) = value::put_dict(&mut attrs, attrs_of::SPAN, given, count);
            count += kept;
            dropped = left;
        }
        let named = start.step.or(start.sample).or(start.group).or(start.attempt);
        let identity = if named.is_some() { Some(Identity::of(inherited.as_deref(), start)) } else { inherited };
        let span = Span {
            open: OpenPart {
                trace_id,
                span_id: clock::new_id(),
                parent_id,
                kind: start.kind,
                name: Name::new(name),
                identity,
                attrs,
                count: count as u32,
                dropped: dropped as u32,
                reported: AtomicBool::new(false),
                start_ns: args::time(start.start_ns),
            },
            late: Held::new(Late {
                place: Place::none(core),
                ended: false,
                status: STATUS_UNSET,
                count: 0,
                dropped: 0,
                event_count: 0,
                link_count: 0,
                attrs: Vec::new(),
                events: Vec::new(),
                links: Vec::new(),
                message: String::new(),
                token: None,
            }),
        };
        let span = Bound::new(py, span)?;
        let this = span.get();
        // SAFETY: the object stays where Python has put it, and `drop` leaves the place before its memory goes.
        let place = unsafe { Place::take(core, NonNull::from(&this.open)) };
        this.late.with(|late| late.place = place);
        Ok(span)
    }

    pub fn finish(&self, end_ns: Option<u64>) {
        self.late.with(|late| {
            if std::mem::replace(&mut late.ended, true) {
                return;
            }
            let row = Row {
                end_ns: Some(args::time(end_ns)),
                end_attrs: [&late.attrs, &[]],
                dropped: self.open.dropped + late.dropped,
                events: &late.events,
                links: &late.links,
                status: late.status,
                message: &late.message,
                ..self.open.row()
            };
            late.place.end(|core, queue| core.record_row_locked(queue, &row));
            // Spans that Python keeps around must not keep this.
            late.events = Vec::new();
            late.links = Vec::new();
        });
    }

    pub fn set_value(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) {
        // Written aside first: converting a value may run Python code, which may use this span.
        let mut one = SmallVec::<[u8; 64]>::new();
        value::put(&mut one, attrs_of::SPAN, key, value);
        self.late.with(|late| {
            if late.ended {
            } else if (self.open.count + late.count) as usize >= value::MAX_ATTRIBUTES {
                late.dropped += 1;
            } else {
                late.attrs.put(&one);
                late.count += 1;
            }
        });
    }

    pub fn set_values(&self, attrs: &Bound<'_, PyAny>) {
        let written = self.open.count + self.late.with(|late| late.count);
        let several = Attrs::read_more(Some(attrs), attrs_of::SPAN, written);
        self.late.with(|late| {
            if !late.ended {
                late.attrs.put(&several.bytes);
                late.count += several.count;
                late.dropped += several.dropped;
            }
        });
    }

    /// Adds an event; false if the span is full of them or has ended.
    #[inline]
    pub fn push_event(&self, name: &Bound<'_, PyAny>, time_ns: u64, attrs: Option<&Bound<'_, PyAny>>) -> bool {
        let attrs = Attrs::read(attrs, attrs_of::EVENT);
        let name = args::name(name);
        self.late.with(|late| {
            if late.ended || late.event_count >= MAX_EVENTS || late.events.len() > MAX_EVENT_BYTES {
                return false;
            }
            late.event_count += 1;
            put_event(&mut late.events, &name, time_ns, &attrs.bytes, attrs.dropped);
            true
        })
    }

    pub fn push_link(&self, trace_id: &TraceId, span_id: &SpanId, attrs: &[u8]) {
        self.late.with(|late| {
            if !late.ended && late.link_count < MAX_LINKS {
                late.link_count += 1;
                put_link(&mut late.links, trace_id, span_id, attrs);
            }
        });
    }

    pub fn set_state(&self, status: u8, message: &str) {
        self.late.with(|late| {
            if !late.ended {
                late.status = status;
                late.message.clear();
                late.message.push_str(&String::from_utf8_lossy(value::bounded(message)));
            }
        });
    }

    fn fail(&self, error: &Bound<'_, PyAny>) {
        let py = error.py();
        let kind = error.get_type().name().map(|n| n.to_string()).unwrap_or_default();
        let message = value::text_of(error);
        let text = match (kind.as_str(), message.is_empty()) {
            ("CancelledError", true) => "cancelled".to_string(),
            ("CancelledError", false) => format!("cancelled: {message}"),
            (kind, true) => kind.to_string(),
            (kind, false) => format!("{kind}: {message}"),
        };
        // A generator that is closed early is no failure.
        if kind == "GeneratorExit" {
            return;
        }
        self.set_state(STATUS_ERROR, &text);
        static FORMAT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let describe = FORMAT
            .get_or_try_init(py, || Ok::<_, PyErr>(py.import("rollscope._errors")?.getattr("describe")?.unbind()));
        if let Ok(described) = describe.and_then(|describe| describe.bind(py).call1((error,))) {
            self.push_event(PyString::intern(py, "exception").as_any(), clock::now_ns(), Some(&described));
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.late.get_mut().place.leave();
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Span>()?;
    module.add_function(wrap_pyfunction!(functions::span, module)?)?;
    module.add_function(wrap_pyfunction!(functions::event, module)?)?;
    module.add_function(wrap_pyfunction!(functions::current_span, module)?)?;
    module.add_function(wrap_pyfunction!(functions::own_current, module)?)
}
