//! Spans as Python sees them. The parts that are known at the start never change after it, so that the background thread can
//! report an open span without Python's lock; what comes later is behind the span's own lock.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyInt, PyString, PyTuple};
use smallvec::SmallVec;

use crate::clock;
use crate::context::{self, SpanContext};
use crate::core::{self, Core, NO_SLOT, OpenSpan, Signal};
use crate::held::Held;
use crate::no_span::no_span;
use crate::row::{KIND_INTERNAL, Row, STATUS_ERROR, STATUS_OK, STATUS_UNSET};
use crate::slime::SlimeSpan;
use crate::value;
use crate::wire::{self, Out, attrs_of};

/// Events kept on one span; more become instants of their own.
const MAX_EVENTS: u32 = 4096;
const MAX_EVENT_BYTES: usize = 1 << 20;
const MAX_LINKS: u32 = 1024;
const MAX_NAME_BYTES: usize = 1024;

/// Who a span belongs to: written into every span below it.
#[derive(Clone, Default)]
pub struct Identity {
    pub step: Option<i64>,
    sample: Option<Arc<[u8]>>,
    group: Option<Arc<[u8]>>,
    attempt: Option<i64>,
    /// All of it as attributes.
    pub bytes: Vec<u8>,
    pub count: u32,
}

impl Identity {
    fn write(&mut self) {
        self.bytes.clear();
        self.count = 0;
        for (key, number) in [(&b"rl.step"[..], self.step), (b"rl.attempt", self.attempt)] {
            if let Some(number) = number {
                wire::int_attr(&mut self.bytes, attrs_of::SPAN, key, number);
                self.count += 1;
            }
        }
        for attribute in [&self.sample, &self.group].into_iter().flatten() {
            self.bytes.put(attribute);
            self.count += 1;
        }
    }
}

/// What is known when a span starts.
pub struct OpenPart {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    pub parent_id: Option<[u8; 8]>,
    pub start_ns: u64,
    pub kind: u8,
    name: Name,
    identity: Option<Arc<Identity>>,
    pub attrs: SmallVec<[u8; 144]>,
    pub count: u32,
    dropped: u32,
    /// Whether it has been sent as open.
    pub reported: AtomicBool,
}

/// The text of a Python string that is kept alive here.
struct Name {
    text: *const u8,
    len: usize,
    _object: Py<PyString>,
}

// SAFETY: the text of a Python string never changes, and the object is kept.
unsafe impl Send for Name {}
// SAFETY: as above.
unsafe impl Sync for Name {}

impl Name {
    fn new(name: &Bound<'_, PyAny>) -> Name {
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
    fn bytes(&self) -> &[u8] {
        // SAFETY: see above.
        unsafe { std::slice::from_raw_parts(self.text, self.len) }
    }
}

impl OpenPart {
    fn row(&self) -> Row<'_> {
        let (identity, count): (&[u8], u32) = match &self.identity {
            Some(identity) => (&identity.bytes, identity.count),
            None => (&[], 0),
        };
        Row {
            trace_id: &self.trace_id,
            span_id: &self.span_id,
            parent_id: self.parent_id.as_ref(),
            trace_state: "",
            name: self.name.bytes(),
            kind: self.kind,
            start_ns: self.start_ns,
            end_ns: None,
            start_attrs: [identity, &self.attrs],
            start_count: self.count + count,
            end_attrs: [&[], &[]],
            dropped: self.dropped,
            events: &[],
            links: &[],
            status: STATUS_UNSET,
            message: "",
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

/// What may come after the start.
struct Late {
    slot: u32,
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
    core: &'static Core,
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
                inherited = Some(Arc::new(Identity { step, bytes, count, ..Identity::default() }));
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
            value::put_named(&mut attrs, attrs_of::SPAN, b"rl.phase", phase);
            count += 1;
        }
        if let Some(given) = start.attrs {
            let (kept, left) = value::put_dict(&mut attrs, attrs_of::SPAN, given, count);
            count += kept;
            dropped = left;
        }
        let named = start.step.or(start.sample).or(start.group).or(start.attempt);
        let identity = if named.is_some() { Some(identity(inherited.as_deref(), start)) } else { inherited };
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
                start_ns: start.start_ns.unwrap_or_else(clock::now_ns),
            },
            late: Held::new(Late {
                slot: NO_SLOT,
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
            core,
        };
        let span = Bound::new(py, span)?;
        let this = span.get();
        // Now it stays where it is.
        let slot = core.queue().open.insert(&this.open);
        this.late.with(|late| late.slot = slot);
        Ok(span)
    }

    /// Whether it was started in this process: a span that crossed a fork is its parent's to end.
    fn is_ours(&self) -> bool {
        self.core.generation == core::generation()
    }

    pub fn finish(&self, end_ns: Option<u64>) {
        self.late.with(|late| {
            if late.ended || !self.is_ours() {
                late.ended = true;
                return;
            }
            late.ended = true;
            let end = end_ns.unwrap_or_else(clock::now_ns);
            let mut row = self.open.row();
            row.end_ns = Some(end);
            row.end_attrs[0] = &late.attrs;
            row.dropped += late.dropped;
            row.events = &late.events;
            row.links = &late.links;
            row.status = late.status;
            row.message = &late.message;
            let len = row.len();
            let mut queue = self.core.queue();
            queue.open.remove(late.slot);
            self.core.record_locked(&mut queue, Signal::Spans, len, |out| row.write(out));
            drop(queue);
            late.slot = NO_SLOT;
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
        let mut several = SmallVec::<[u8; 256]>::new();
        let written = (self.open.count + self.late.with(|late| late.count)) as usize;
        let (kept, dropped) = value::put_dict(&mut several, attrs_of::SPAN, attrs, written);
        self.late.with(|late| {
            if !late.ended {
                late.attrs.put(&several);
                late.count += kept as u32;
                late.dropped += dropped as u32;
            }
        });
    }

    /// Adds an event; false if the span is full of them or has ended.
    #[inline]
    pub fn push_event(&self, name: &Bound<'_, PyAny>, time_ns: u64, attrs: Option<&Bound<'_, PyAny>>) -> bool {
        let mut encoded = SmallVec::<[u8; 256]>::new();
        let dropped = attrs.map_or(0, |attrs| value::put_dict(&mut encoded, attrs_of::EVENT, attrs, 0).1);
        let long;
        let name = match name.cast::<PyString>().ok().and_then(|n| n.to_str().ok()) {
            Some(text) => value::bounded(text),
            None => {
                long = value::text_of(name);
                long.as_bytes()
            }
        };
        self.late.with(|late| {
            if late.ended || late.event_count >= MAX_EVENTS || late.events.len() > MAX_EVENT_BYTES {
                return false;
            }
            late.event_count += 1;
            put_event(&mut late.events, name, time_ns, &encoded, dropped);
            true
        })
    }

    pub fn push_link(&self, trace_id: &[u8; 16], span_id: &[u8; 8], attrs: &[u8]) {
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

pub fn put_event(out: &mut Vec<u8>, name: &[u8], time_ns: u64, attrs: &[u8], dropped: usize) {
    let count = if dropped > 0 { 1 + wire::varint_len(dropped as u64) } else { 0 };
    out.byte(0x5a);
    out.varint((9 + wire::field_len(name.len()) + attrs.len() + count) as u64);
    out.fixed64(0x09, time_ns);
    out.field(0x12, name);
    out.put(attrs);
    if dropped > 0 {
        out.byte(0x20);
        out.varint(dropped as u64);
    }
}

pub fn put_link(out: &mut Vec<u8>, trace_id: &[u8; 16], span_id: &[u8; 8], attrs: &[u8]) {
    out.byte(0x6a);
    out.varint((18 + 10 + attrs.len()) as u64);
    out.field(0x0a, trace_id);
    out.field(0x12, span_id);
    out.put(attrs);
}

#[cold]
fn identity(inherited: Option<&Identity>, start: &Start<'_, '_>) -> Arc<Identity> {
    let mut identity = inherited.cloned().unwrap_or_default();
    let whole = |value: &Bound<'_, PyAny>| -> Option<i64> {
        value.extract().ok().or_else(|| value::scalar(value)?.extract().ok())
    };
    if let Some(step) = start.step {
        identity.step = whole(step);
    }
    if let Some(attempt) = start.attempt {
        identity.attempt = whole(attempt);
    }
    let encoded = |key: &[u8], value: &Bound<'_, PyAny>| -> Arc<[u8]> {
        let mut out = Vec::new();
        value::put_id(&mut out, attrs_of::SPAN, key, value);
        out.into()
    };
    if let Some(sample) = start.sample {
        identity.sample = Some(encoded(b"rl.sample.id", sample));
    }
    if let Some(group) = start.group {
        identity.group = Some(encoded(b"rl.group.id", group));
    }
    identity.write();
    Arc::new(identity)
}

impl Drop for Span {
    fn drop(&mut self) {
        let late = self.late.get_mut();
        if late.slot != NO_SLOT && self.core.generation == core::generation() {
            self.core.queue().open.remove(late.slot);
        }
    }
}

/// What every kind of span can do; the no-op too.
#[pymethods]
impl Span {
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> Bound<'py, Self> {
        let token = context::enter(slf.as_any()).map(Bound::unbind);
        let before = slf.get().late.with(|late| std::mem::replace(&mut late.token, token));
        drop(before);
        slf.clone()
    }

    fn __exit__(
        slf: &Bound<'_, Self>,
        _kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> bool {
        let this = slf.get();
        if !error.is_none() {
            this.fail(error);
        }
        let token = this.late.with(|late| late.token.take());
        this.finish(None);
        if let Some(token) = token {
            context::exit(token.bind(slf.py()));
        }
        false
    }

    /// Sets one attribute.
    fn set<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        slf.get().set_value(key, value);
        slf.clone()
    }

    fn set_attr<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        Self::set(slf, key, value)
    }

    fn set_attribute(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) {
        self.set_value(key, value);
    }

    /// Sets several attributes.
    #[pyo3(signature = (attrs = None))]
    fn update<'py>(slf: &Bound<'py, Self>, attrs: Option<&Bound<'py, PyAny>>) -> Bound<'py, Self> {
        if let Some(attrs) = attrs {
            slf.get().set_values(attrs);
        }
        slf.clone()
    }

    #[pyo3(signature = (attrs = None))]
    fn update_attrs<'py>(slf: &Bound<'py, Self>, attrs: Option<&Bound<'py, PyAny>>) -> Bound<'py, Self> {
        Self::update(slf, attrs)
    }

    fn set_attributes(&self, attributes: &Bound<'_, PyAny>) {
        self.set_values(attributes);
    }

    /// Notes that something happened.
    #[pyo3(signature = (name, attrs = None, *, time_ns = None))]
    fn event(&self, name: &Bound<'_, PyAny>, attrs: Option<&Bound<'_, PyAny>>, time_ns: Option<u64>) {
        self.push_event(name, time_ns.unwrap_or_else(clock::now_ns), attrs);
    }

    /// The same under OpenTelemetry's name.
    #[pyo3(signature = (name, attributes = None, timestamp = None))]
    fn add_event(&self, name: &Bound<'_, PyAny>, attributes: Option<&Bound<'_, PyAny>>, timestamp: Option<u64>) {
        self.push_event(name, timestamp.unwrap_or_else(clock::now_ns), attributes);
    }

    /// Links to another span: a span, a context, or a `traceparent`.
    #[pyo3(signature = (context, attributes = None))]
    fn add_link(&self, context: &Bound<'_, PyAny>, attributes: Option<&Bound<'_, PyAny>>) {
        let Some((trace_id, span_id)) = context::ids_of(context) else { return };
        let mut attrs = SmallVec::<[u8; 128]>::new();
        if let Some(given) = attributes {
            value::put_dict(&mut attrs, attrs_of::LINK, given, 0);
        }
        self.push_link(&trace_id, &span_id, &attrs);
    }

    /// `"ok"`, `"error"` or `"unset"`, and why. OpenTelemetry's `Status` and `StatusCode` are understood.
    #[pyo3(signature = (status, description = None))]
    fn set_status(&self, status: &Bound<'_, PyAny>, description: Option<&Bound<'_, PyAny>>) {
        let inner = status.getattr("status_code").ok();
        let mut text = description.map(value::text_of);
        if text.is_none() && inner.is_some() {
            text = status.getattr("description").ok().filter(|d| !d.is_none()).map(|d| value::text_of(&d));
        }
        let code = inner.as_ref().unwrap_or(status);
        let code = match code.getattr("name") {
            Ok(name) => value::text_of(&name),
            Err(_) => value::text_of(code),
        };
        let code = match code.to_ascii_lowercase().as_str() {
            "ok" | "1" => STATUS_OK,
            "error" | "2" => STATUS_ERROR,
            _ => STATUS_UNSET,
        };
        self.set_state(code, text.as_deref().unwrap_or(""));
    }

    /// Notes an exception without ending the span.
    #[pyo3(signature = (exception, *_args, **_kwargs))]
    fn record_exception(
        &self,
        exception: &Bound<'_, PyAny>,
        _args: &Bound<'_, PyTuple>,
        _kwargs: Option<&Bound<'_, PyDict>>,
    ) {
        self.fail(exception);
    }

    /// Ends the span. A second time does nothing.
    #[pyo3(signature = (end_ns = None, *, end_time = None))]
    fn end(&self, end_ns: Option<&Bound<'_, PyAny>>, end_time: Option<&Bound<'_, PyAny>>) {
        self.finish(end_ns.or(end_time).and_then(|t| t.extract().ok()));
    }

    fn is_recording(&self) -> bool {
        !self.late.with(|late| late.ended)
    }

    /// 32 hex digits.
    #[getter]
    pub fn trace_id(&self) -> String {
        String::from_utf8_lossy(&wire::hex::<16, 32>(&self.open.trace_id)).into_owned()
    }

    /// 16 hex digits.
    #[getter]
    pub fn span_id(&self) -> String {
        String::from_utf8_lossy(&wire::hex::<8, 16>(&self.open.span_id)).into_owned()
    }

    #[getter]
    fn name(&self) -> String {
        String::from_utf8_lossy(self.open.name.bytes()).into_owned()
    }

    #[getter]
    fn start_ns(&self) -> u64 {
        self.open.start_ns
    }

    /// The training step it belongs to, if any.
    #[getter]
    pub fn step(&self) -> Option<i64> {
        self.open.identity.as_ref()?.step
    }

    /// What another process needs to continue here.
    #[getter]
    fn context(&self) -> SpanContext {
        SpanContext { trace_id: self.open.trace_id, span_id: self.open.span_id, trace_state: String::new() }
    }

    #[getter]
    fn traceparent(&self) -> String {
        context::traceparent(&self.open.trace_id, &self.open.span_id)
    }

    /// OpenTelemetry's view of it.
    fn get_span_context<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (trace, span) = (u128::from_be_bytes(self.open.trace_id), u64::from_be_bytes(self.open.span_id));
        py.import("rollscope._otel")?.getattr("span_context")?.call1((trace, span))
    }

    /// A span's name is known at its start and stays.
    fn update_name(&self, name: &Bound<'_, PyAny>) {
        let _ = name;
    }

    fn __repr__(&self) -> String {
        format!("<Span {:?} {}>", self.name(), self.traceparent())
    }
}

pub fn kind_of(kind: Option<&Bound<'_, PyAny>>) -> u8 {
    let Some(kind) = kind else { return KIND_INTERNAL };
    if kind.is_instance_of::<PyInt>() {
        return kind.extract::<u8>().ok().filter(|k| *k <= 5).unwrap_or(KIND_INTERNAL);
    }
    let name = match kind.getattr("name") {
        Ok(name) => value::text_of(&name),
        Err(_) => value::text_of(kind),
    };
    match name.to_ascii_lowercase().as_str() {
        "server" => 2,
        "client" => 3,
        "producer" => 4,
        "consumer" => 5,
        _ => KIND_INTERNAL,
    }
}

/// Starts a span. In a `with` block it is the current one and ends with the block; otherwise `end()` ends it.
#[pyfunction]
#[pyo3(signature = (name, attrs = None, *, phase = None, level = 1, step = None, sample = None, group = None,
                    attempt = None, kind = None, links = None, parent = None, start_ns = None, root = false))]
#[allow(clippy::too_many_arguments)]
pub fn span<'py>(
    name: &Bound<'py, PyAny>,
    attrs: Option<&Bound<'py, PyAny>>,
    phase: Option<&Bound<'py, PyAny>>,
    level: u8,
    step: Option<&Bound<'py, PyAny>>,
    sample: Option<&Bound<'py, PyAny>>,
    group: Option<&Bound<'py, PyAny>>,
    attempt: Option<&Bound<'py, PyAny>>,
    kind: Option<&Bound<'py, PyAny>>,
    links: Option<&Bound<'py, PyAny>>,
    parent: Option<&Bound<'py, PyAny>>,
    start_ns: Option<u64>,
    root: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = name.py();
    if core::level() < level.max(1) {
        return no_span(py);
    }
    let Some(core) = core::core() else { return no_span(py) };
    let start = Start { attrs, phase, step, sample, group, attempt, parent, kind: kind_of(kind), start_ns, root };
    let span = Span::start(core, name, &start)?;
    if let Some(links) = links
        && let Ok(list) = links.try_iter()
    {
        for link in list.flatten() {
            span.get().add_link(&link, None);
        }
    }
    Ok(span.into_any())
}

/// Notes that something happened: an event of the current span, or an instant of its own where there is none.
#[pyfunction]
#[pyo3(signature = (name, attrs = None, *, level = 1, time_ns = None))]
pub fn event(
    name: &Bound<'_, PyAny>,
    attrs: Option<&Bound<'_, PyAny>>,
    level: u8,
    time_ns: Option<u64>,
) -> PyResult<()> {
    let py = name.py();
    if core::level() < level.max(1) {
        return Ok(());
    }
    let time = time_ns.unwrap_or_else(clock::now_ns);
    let current = context::current(py);
    if let Some(span) = current.as_ref().and_then(|c| c.cast::<Span>().ok())
        && span.get().push_event(name, time, attrs)
    {
        return Ok(());
    }
    let Some(core) = core::core() else { return Ok(()) };
    let parent = current.as_ref().and_then(context::ids_of);
    let identity = current.as_ref().and_then(|c| c.cast::<Span>().ok()).and_then(|s| s.get().open.identity.clone());
    let mut encoded = SmallVec::<[u8; 256]>::new();
    let count = attrs.map_or(0, |attrs| value::put_dict(&mut encoded, attrs_of::SPAN, attrs, 0).0);
    instant(
        core,
        &Instant {
            name: value::text_of(name).as_bytes(),
            time_ns: time,
            trace_id: parent.map_or_else(clock::new_id, |(trace, _)| trace),
            span_id: clock::new_id(),
            parent_id: parent.map(|(_, span)| span),
            identity: identity.as_ref().map_or((&[][..], 0), |i| (&i.bytes[..], i.count)),
            attrs: &encoded,
            count: count as u32,
        },
    );
    Ok(())
}

/// A moment without length.
pub struct Instant<'a> {
    pub name: &'a [u8],
    pub time_ns: u64,
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    pub parent_id: Option<[u8; 8]>,
    pub identity: (&'a [u8], u32),
    pub attrs: &'a [u8],
    pub count: u32,
}

/// The reserved attribute `rollscope.state` = `instant`, encoded.
pub fn instant_mark() -> &'static [u8] {
    static MARK: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    MARK.get_or_init(|| {
        let mut mark = Vec::new();
        wire::text_attr(&mut mark, attrs_of::SPAN, b"rollscope.state", b"instant");
        mark
    })
}

pub fn instant(core: &Core, instant: &Instant) {
    let row = Row {
        trace_id: &instant.trace_id,
        span_id: &instant.span_id,
        parent_id: instant.parent_id.as_ref(),
        trace_state: "",
        name: instant.name,
        kind: KIND_INTERNAL,
        start_ns: instant.time_ns,
        end_ns: Some(instant.time_ns),
        start_attrs: [instant.identity.0, instant.attrs],
        start_count: instant.identity.1 + instant.count,
        end_attrs: [instant_mark(), &[]],
        dropped: 0,
        events: &[],
        links: &[],
        status: STATUS_UNSET,
        message: "",
    };
    let len = row.len();
    core.record(Signal::Spans, len, |out| row.write(out));
}

/// The current span as our own variable has it, whatever OpenTelemetry's says.
#[pyfunction]
pub fn own_current(py: Python<'_>) -> Option<Bound<'_, PyAny>> {
    context::CURRENT.get(py)
}

/// The current span, or `None`.
#[pyfunction]
pub fn current_span(py: Python<'_>) -> Option<Bound<'_, PyAny>> {
    context::current(py)
}
