//! slime's traces on our core: the carrier on the sample is kept exactly as slime keeps it, and the same spans go out live.
//!
//! A span over a group of samples is one span on each; they are recorded together. The nesting of each trace is a stack in
//! a context variable, so inside a group span the parent of a sample's own span is that sample's group span.

use std::sync::atomic::AtomicBool;

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use smallvec::SmallVec;

use crate::clock;
use crate::context::{self, SLIME};
use crate::core::{self, Core, NO_SLOT, OpenSpan, Signal};
use crate::held::Held;
use crate::row::{KIND_INTERNAL, Row, STATUS_ERROR, STATUS_UNSET};
use crate::span::{self, Span};
use crate::value;
use crate::wire::{self, Out, attrs_of};

const MAX_TARGETS: usize = 1 << 16;
const MAX_NESTING: usize = 32;

/// A trace that can be recorded on: what slime's own class of this name holds.
#[pyclass(module = "rollscope.slime")]
pub struct TraceHandle {
    #[pyo3(get, set)]
    trace_id: Py<PyAny>,
    #[pyo3(get, set)]
    carrier: Py<PyAny>,
    #[pyo3(get, set)]
    sample_id: Py<PyAny>,
    #[pyo3(get, set)]
    group_id: Py<PyAny>,
    #[pyo3(get, set)]
    attempt: Py<PyAny>,
    #[pyo3(get, set)]
    parent_span_id: Py<PyAny>,
}

#[pymethods]
impl TraceHandle {
    #[new]
    #[pyo3(signature = (trace_id, carrier, sample_id = None, group_id = None, attempt = None, parent_span_id = None))]
    fn new(
        py: Python<'_>,
        trace_id: Py<PyAny>,
        carrier: Py<PyAny>,
        sample_id: Option<Py<PyAny>>,
        group_id: Option<Py<PyAny>>,
        attempt: Option<Py<PyAny>>,
        parent_span_id: Option<Py<PyAny>>,
    ) -> PyResult<TraceHandle> {
        let or_none = |value: Option<Py<PyAny>>| value.unwrap_or_else(|| py.None());
        let attempt = match attempt {
            Some(attempt) => attempt,
            None => 0i64.into_pyobject(py)?.into_any().unbind(),
        };
        let (sample_id, group_id, parent_span_id) = (or_none(sample_id), or_none(group_id), or_none(parent_span_id));
        Ok(TraceHandle { trace_id, carrier, sample_id, group_id, attempt, parent_span_id })
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let show = |value: &Py<PyAny>| value.bind(py).repr().map(|r| r.to_string()).unwrap_or_default();
        format!(
            "TraceHandle(trace_id={}, sample_id={}, group_id={}, attempt={}, parent_span_id={})",
            show(&self.trace_id),
            show(&self.sample_id),
            show(&self.group_id),
            show(&self.attempt),
            show(&self.parent_span_id)
        )
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(other) = other.cast::<TraceHandle>() else { return Ok(false) };
        let other = other.borrow();
        for (mine, theirs) in [
            (&self.trace_id, &other.trace_id),
            (&self.carrier, &other.carrier),
            (&self.sample_id, &other.sample_id),
            (&self.group_id, &other.group_id),
            (&self.attempt, &other.attempt),
            (&self.parent_span_id, &other.parent_span_id),
        ] {
            if !mine.bind(py).eq(theirs.bind(py))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    #[allow(clippy::type_complexity)]
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let (py, this) = (slf.py(), slf.borrow());
        let parts =
            [&this.trace_id, &this.carrier, &this.sample_id, &this.group_id, &this.attempt, &this.parent_span_id]
                .map(|p| p.clone_ref(py));
        Ok((slf.get_type().into_any(), PyTuple::new(py, parts)?))
    }
}

/// One sample's side of a span or an event.
struct Target<'py> {
    carrier: Bound<'py, PyDict>,
    events: Bound<'py, PyList>,
    trace: Bound<'py, PyAny>,
    sample_id: Bound<'py, PyAny>,
    group_id: Bound<'py, PyAny>,
    attempt: Bound<'py, PyAny>,
    parent: Option<Bound<'py, PyString>>,
    /// What the caller handed in, where it was a handle.
    handle: Option<Bound<'py, PyAny>>,
}

fn new_hex<'py>(py: Python<'py>) -> (Bound<'py, PyString>, [u8; 16]) {
    let raw: [u8; 16] = clock::new_id();
    let text = wire::hex::<16, 32>(&raw);
    // SAFETY: hex digits are ASCII.
    (PyString::new(py, unsafe { std::str::from_utf8_unchecked(&text) }), raw)
}

/// The same as `model::ids` does with what it finds in a dump, so that a dump and the live spans meet.
fn span_id_of(text: &[u8]) -> [u8; 8] {
    let (mut long, mut short) = ([0u8; 16], [0u8; 8]);
    if wire::unhex(text, &mut long) {
        fold(&long)
    } else if wire::unhex(text, &mut short) {
        short
    } else {
        xxhash_rust::xxh3::xxh3_64(text).to_be_bytes()
    }
}

fn fold(raw: &[u8; 16]) -> [u8; 8] {
    std::array::from_fn(|i| raw[i] ^ raw[i + 8])
}

fn trace_id_of(trace: &Bound<'_, PyAny>) -> [u8; 16] {
    let Some(text) = trace.cast::<PyString>().ok().and_then(|t| t.to_str().ok()) else { return [0; 16] };
    let mut id = [0; 16];
    if !wire::unhex(text.as_bytes(), &mut id) {
        id = xxhash_rust::xxh3::xxh3_128(text.as_bytes()).to_be_bytes();
    }
    id
}

/// The id of an event in a dump: by its place in the list.
fn event_id(trace_id: &[u8; 16], index: u32) -> [u8; 8] {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(trace_id);
    bytes[16..20].copy_from_slice(&index.to_be_bytes());
    bytes[20..].copy_from_slice(b"evnt");
    xxhash_rust::xxh3::xxh3_64(&bytes).to_be_bytes()
}

fn setdefault<'py>(
    carrier: &Bound<'py, PyDict>,
    key: &Bound<'py, PyString>,
    value: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(there) = carrier.get_item(key)? {
        return Ok(there);
    }
    let value = value()?;
    carrier.set_item(key, &value)?;
    Ok(value)
}

fn as_int<'py>(value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if value.is_exact_instance_of::<PyInt>() {
        return Ok(value);
    }
    value.py().get_type::<PyInt>().call1((value,))
}

/// Makes sure that a carrier is whole, in the order in which slime writes its keys.
fn ensure<'py>(
    py: Python<'py>,
    carrier: Option<Bound<'py, PyDict>>,
    trace_id: Option<Bound<'py, PyAny>>,
    sample_id: Bound<'py, PyAny>,
    group_id: Bound<'py, PyAny>,
    attempt: Option<Bound<'py, PyAny>>,
) -> PyResult<Target<'py>> {
    let carrier = carrier.unwrap_or_else(|| PyDict::new(py));
    setdefault(&carrier, intern!(py, "version"), || Ok(1i64.into_pyobject(py)?.into_any()))?;
    let trace = setdefault(&carrier, intern!(py, "trace_id"), || match trace_id {
        Some(id) if id.is_truthy()? => Ok(id),
        _ => Ok(new_hex(py).0.into_any()),
    })?;
    let events =
        setdefault(&carrier, intern!(py, "events"), || Ok(PyList::empty(py).into_any()))?.cast_into::<PyList>();
    let events = events.map_err(|_| PyTypeError::new_err("carrier['events'] is no list"))?;
    let keep = |key: &Bound<'py, PyString>, value: Bound<'py, PyAny>| -> PyResult<Bound<'py, PyAny>> {
        let there = carrier.get_item(key)?;
        match there {
            Some(there) if value.is_none() || there.is(&value) => Ok(there),
            _ => {
                carrier.set_item(key, &value)?;
                Ok(value)
            }
        }
    };
    let sample_id = keep(intern!(py, "sample_id"), sample_id)?;
    let group_id = keep(intern!(py, "group_id"), group_id)?;
    let key = intern!(py, "attempt");
    let there = carrier.get_item(key)?;
    let attempt = match (there.clone(), attempt) {
        (Some(there), _) | (None, Some(there)) => as_int(there)?,
        (None, None) => 0i64.into_pyobject(py)?.into_any(),
    };
    if there.is_none_or(|there| !there.is(&attempt)) {
        carrier.set_item(key, &attempt)?;
    }
    Ok(Target { carrier, events, trace, sample_id, group_id, attempt, parent: None, handle: None })
}

/// A sample has `index` and `group_index`; anything else gives `None`.
fn bind_sample<'py>(sample: &Bound<'py, PyAny>) -> PyResult<Option<Target<'py>>> {
    let py = sample.py();
    // This one first: texts and lists have an `index` too.
    let Some(group) = sample.getattr_opt(intern!(py, "group_index"))? else { return Ok(None) };
    let Some(index) = sample.getattr_opt(intern!(py, "index"))? else { return Ok(None) };
    let trace = sample.getattr_opt(intern!(py, "trace"))?.filter(|t| !t.is_none());
    let carrier = match trace {
        Some(trace) => Some(trace.cast_into::<PyDict>().map_err(|_| PyTypeError::new_err("sample.trace is no dict"))?),
        None => None,
    };
    let given = carrier.clone();
    let target = ensure(py, carrier, None, index, group, None)?;
    if given.is_none_or(|given| !given.is(&target.carrier)) {
        sample.setattr(intern!(py, "trace"), &target.carrier)?;
    }
    Ok(Some(target))
}

fn from_handle<'py>(handle: &Bound<'py, PyAny>) -> PyResult<Target<'py>> {
    let py = handle.py();
    let text = |parent: Bound<'py, PyAny>| -> Option<Bound<'py, PyString>> {
        parent.cast_into::<PyString>().ok().filter(|p| p.len().is_ok_and(|n| n > 0))
    };
    let (trace, carrier, sample_id, group_id, attempt, parent) = if let Ok(ours) = handle.cast::<TraceHandle>() {
        let h = ours.borrow();
        let bound = |value: &Py<PyAny>| value.bind(py).clone();
        let parent = bound(&h.parent_span_id);
        (bound(&h.trace_id), bound(&h.carrier), bound(&h.sample_id), bound(&h.group_id), bound(&h.attempt), parent)
    } else {
        let get = |name: &str| handle.getattr(name);
        (
            get("trace_id")?,
            get("carrier")?,
            get("sample_id")?,
            get("group_id")?,
            get("attempt")?,
            get("parent_span_id")?,
        )
    };
    let carrier = carrier.cast_into::<PyDict>().map_err(|_| PyTypeError::new_err("handle.carrier is no dict"))?;
    let events = carrier.get_item(intern!(py, "events"))?.and_then(|e| e.cast_into::<PyList>().ok());
    let events = events.ok_or_else(|| PyTypeError::new_err("handle.carrier has no events"))?;
    let attempt = as_int(carrier.get_item(intern!(py, "attempt"))?.unwrap_or(attempt))?;
    let handle = Some(handle.clone());
    Ok(Target { carrier, events, trace, sample_id, group_id, attempt, parent: text(parent), handle })
}

fn is_handle(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<TraceHandle>()
        || (value.hasattr("carrier").unwrap_or(false) && value.hasattr("parent_span_id").unwrap_or(false))
}

/// slime's box around a prompt and what was generated from it.
fn unbox<'py>(value: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    if value.get_type().name().ok()?.to_str().ok()? != "SampleBox" {
        return None;
    }
    let (prompt, generation) = (value.getattr("prompt_sample").ok()?, value.getattr("generation").ok()?);
    Some(if generation.is_truthy().unwrap_or(false) { generation } else { prompt })
}

fn collect<'py>(target: &Bound<'py, PyAny>, out: &mut Vec<Target<'py>>, depth: usize) -> PyResult<()> {
    if depth > MAX_NESTING || out.len() > MAX_TARGETS {
        return Err(PyTypeError::new_err("too many targets, or nested too deeply"));
    }
    if let Ok(list) = target.cast::<PyList>() {
        out.reserve(list.len());
        for item in list.iter() {
            collect(&item, out, depth + 1)?;
        }
    } else if target.is_none() {
    } else if let Some(bound) = bind_sample(target)? {
        out.push(bound);
    } else if is_handle(target) {
        out.push(from_handle(target)?);
    } else if let Some(inside) = unbox(target) {
        collect(&inside, out, depth + 1)?;
    }
    Ok(())
}

/// The open spans of a context, innermost first.
#[pyclass(frozen, module = "rollscope.slime")]
pub struct Frame {
    outer: Option<Py<Frame>>,
    /// Trace id and span id, in the order of the targets.
    entries: Vec<([u8; 16], Py<PyString>)>,
    /// The targets, for functions without one of their own: carrier, and the handle where it was one.
    targets: Vec<(Py<PyDict>, Option<Py<PyAny>>)>,
}

/// The innermost open span of a trace. `hint`: where a span over the same group would have it.
fn parent_of<'py>(frame: Option<&Bound<'py, Frame>>, trace: &[u8; 16], hint: usize) -> Option<Bound<'py, PyString>> {
    let mut frame = frame.cloned();
    while let Some(at) = frame {
        let (py, this) = (at.py(), at.get());
        let likely = this.entries.get(hint).filter(|(id, _)| id == trace);
        if let Some((_, span)) = likely.or_else(|| this.entries.iter().rev().find(|(id, _)| id == trace)) {
            return Some(span.bind(py).clone());
        }
        frame = this.outer.as_ref().map(|outer| outer.bind(py).clone());
    }
    None
}

fn current_frame(py: Python<'_>) -> Option<Bound<'_, Frame>> {
    SLIME.get(py)?.cast_into::<Frame>().ok()
}

/// What is common to all events of a call.
struct Common<'py> {
    kind: &'static str,
    name: Bound<'py, PyAny>,
    time: Bound<'py, PyAny>,
}

fn template<'py>(py: Python<'py>, common: &Common<'py>) -> PyResult<Bound<'py, PyDict>> {
    let none = py.None().into_bound(py);
    let event = PyDict::new(py);
    event.set_item(intern!(py, "type"), PyString::intern(py, common.kind))?;
    event.set_item(intern!(py, "name"), &common.name)?;
    event.set_item(intern!(py, "ts"), &common.time)?;
    for key in [intern!(py, "trace_id"), intern!(py, "sample_id"), intern!(py, "group_id"), intern!(py, "attempt")] {
        event.set_item(key, &none)?;
    }
    Ok(event)
}

fn fill<'py>(template: &Bound<'py, PyDict>, target: &Target<'py>) -> PyResult<Bound<'py, PyDict>> {
    let py = template.py();
    let event = template.copy()?;
    event.set_item(intern!(py, "trace_id"), &target.trace)?;
    event.set_item(intern!(py, "sample_id"), &target.sample_id)?;
    event.set_item(intern!(py, "group_id"), &target.group_id)?;
    event.set_item(intern!(py, "attempt"), &target.attempt)?;
    Ok(event)
}

fn seconds(py: Python<'_>, ns: u64) -> Bound<'_, PyAny> {
    // As Python's time.time() makes it.
    PyFloat::new(py, ns as f64 / 1e9).into_any()
}

/// Encoded attributes of an identity.
type Ids = SmallVec<[u8; 80]>;

/// What the attributes of the targets' identity look like on the wire, and the step of the current context.
fn identity(target: &Target<'_>, step: Option<i64>, out: &mut Ids) -> u32 {
    let mut count = 0;
    if let Some(step) = step {
        wire::int_attr(out, attrs_of::SPAN, b"rl.step", step);
        count += 1;
    }
    for (key, id) in [(&b"rl.sample.id"[..], &target.sample_id), (b"rl.group.id", &target.group_id)] {
        if !id.is_none() {
            value::put_id(out, attrs_of::SPAN, key, id);
            count += 1;
        }
    }
    if let Ok(attempt) = target.attempt.extract::<i64>() {
        wire::int_attr(out, attrs_of::SPAN, b"rl.attempt", attempt);
        count += 1;
    }
    count
}

fn current_step(py: Python<'_>) -> Option<i64> {
    let current = context::current(py)?;
    if let Ok(span) = current.cast::<Span>() {
        return span.get().step();
    }
    current.cast::<SlimeSpan>().ok()?.get().step()
}

/// One sample's open span, as the background thread sees it.
struct Record {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    original: [u8; 32],
    parent: Option<[u8; 8]>,
    /// The parent's id as text, where the wire has another.
    parent_text: SmallVec<[u8; 32]>,
    identity: Ids,
    identity_count: u32,
}

impl Record {
    /// The ids as slime writes them, as reserved attributes.
    fn originals(&self, out: &mut impl Out) {
        wire::text_attr(out, attrs_of::SPAN, b"rollscope.original_span_id", &self.original);
        if self.parent_text.len() != 16 && !self.parent_text.is_empty() {
            wire::text_attr(out, attrs_of::SPAN, b"rollscope.original_parent_span_id", &self.parent_text);
        }
    }
}

struct Open {
    records: Vec<Record>,
    name: Vec<u8>,
    start_ns: u64,
    attrs: Vec<u8>,
    count: u32,
    dropped: u32,
    reported: AtomicBool,
}

impl Open {
    fn row<'a>(&'a self, record: &'a Record) -> Row<'a> {
        Row {
            trace_id: &record.trace_id,
            span_id: &record.span_id,
            parent_id: record.parent.as_ref(),
            trace_state: "",
            name: &self.name,
            kind: KIND_INTERNAL,
            start_ns: self.start_ns,
            end_ns: None,
            start_attrs: [&record.identity, &self.attrs],
            start_count: self.count + record.identity_count,
            end_attrs: [&[], &[]],
            dropped: self.dropped,
            events: &[],
            links: &[],
            status: STATUS_UNSET,
            message: "",
        }
    }
}

impl OpenSpan for Open {
    fn start_ns(&self) -> u64 {
        self.start_ns
    }

    fn reported(&self) -> &AtomicBool {
        &self.reported
    }

    fn write_open(&self, out: &mut Vec<u8>) {
        for record in &self.records {
            let mut row = self.row(record);
            let mut originals = SmallVec::<[u8; 160]>::new();
            record.originals(&mut originals);
            row.end_attrs[0] = &originals;
            row.write(out);
        }
    }
}

/// A span over one sample or a group: what `trace_span` gives to its block.
#[pyclass(frozen, module = "rollscope.slime")]
pub struct SlimeSpan {
    inner: Held<Inner>,
}

#[derive(Default)]
struct Inner {
    target: Option<Py<PyAny>>,
    name: Option<Py<PyAny>>,
    attrs: Option<Py<PyAny>>,
    record_error: bool,
    /// Whether the block runs untraced.
    through: bool,
    sides: Vec<Side>,
    end_attrs: Option<Py<PyDict>>,
    end_events: Vec<Py<PyDict>>,
    start_ns: u64,
    closed: bool,
    token: Option<Py<PyAny>>,
    current: Option<Py<PyAny>>,
    live: Option<Live>,
    /// Ids of the only record, for children in the same trace.
    alone: Option<Alone>,
    step: Option<i64>,
}

/// Trace id, span id, encoded identity and how many attributes that is.
type Alone = ([u8; 16], [u8; 8], Vec<u8>, u32);

struct Side {
    carrier: Py<PyDict>,
    events: Py<PyList>,
    span_text: Py<PyString>,
    end: Py<PyDict>,
    attempt: Py<PyAny>,
    handle: Option<Py<PyAny>>,
}

struct Live {
    open: Box<Open>,
    core: &'static Core,
    slot: u32,
}

impl Drop for Live {
    fn drop(&mut self) {
        if self.slot != NO_SLOT && self.core.generation == core::generation() {
            self.core.queue().open.remove(self.slot);
        }
    }
}

impl SlimeSpan {
    pub fn ids(&self) -> Option<([u8; 16], [u8; 8])> {
        self.inner.with(|i| i.alone.as_ref().map(|(trace, span, ..)| (*trace, *span)))
    }

    pub fn step(&self) -> Option<i64> {
        self.inner.with(|i| i.step)
    }

    /// What a span of ours inside this one takes over: ids, encoded identity, its count, the step.
    #[allow(clippy::type_complexity)]
    pub fn inheritance(&self) -> Option<([u8; 16], [u8; 8], Vec<u8>, u32, Option<i64>)> {
        self.inner.with(|inner| {
            let (trace, span, bytes, count) = inner.alone.as_ref()?;
            Some((*trace, *span, bytes.clone(), *count, inner.step))
        })
    }

    fn begin<'py>(slf: &Bound<'py, Self>) -> PyResult<bool> {
        let py = slf.py();
        let (target, name, attrs) = slf.get().inner.with(|inner| {
            let bound = |value: &Option<Py<PyAny>>| value.as_ref().map(|v| v.bind(py).clone());
            (bound(&inner.target), bound(&inner.name), bound(&inner.attrs))
        });
        let (Some(target), Some(name)) = (target, name) else { return Ok(false) };
        let mut targets = Vec::new();
        collect(&target, &mut targets, 0)?;
        if targets.is_empty() {
            return Ok(false);
        }
        let attrs = attrs.filter(|a| a.is_truthy().unwrap_or(false));
        let frame = current_frame(py);
        let now = clock::now_ns();
        let common = Common { kind: "span_start", name: name.clone(), time: seconds(py, now) };
        let start = template(py, &common)?;
        start.set_item(intern!(py, "span_id"), py.None())?;
        let live = core::core().filter(|_| core::level() > 0);
        let step = current_step(py);
        let count = targets.len();
        let mut sides = Vec::with_capacity(count);
        let mut entries = Vec::with_capacity(count);
        let mut records = Vec::with_capacity(if live.is_some() { count } else { 0 });
        let mut kept = Vec::with_capacity(count);
        for (index, target) in targets.into_iter().enumerate() {
            let trace_id = trace_id_of(&target.trace);
            let parent = target.parent.clone().or_else(|| parent_of(frame.as_ref(), &trace_id, index));
            let (span_text, raw) = new_hex(py);
            let event = fill(&start, &target)?;
            event.set_item(intern!(py, "span_id"), &span_text)?;
            // What the end will look like, but for its type and time.
            let end = event.copy()?;
            if let Some(parent) = &parent {
                event.set_item(intern!(py, "parent_span_id"), parent)?;
            }
            if let Some(attrs) = &attrs {
                event.set_item(intern!(py, "attrs"), copy(attrs)?)?;
            }
            target.events.append(&event)?;
            if live.is_some() {
                let parent_text = parent.as_ref().and_then(|p| p.to_str().ok()).unwrap_or_default().as_bytes();
                let mut ids = Ids::new();
                let identity_count = identity(&target, step, &mut ids);
                records.push(Record {
                    trace_id,
                    span_id: fold(&raw),
                    original: wire::hex::<16, 32>(&raw),
                    parent: (!parent_text.is_empty()).then(|| span_id_of(parent_text)),
                    parent_text: SmallVec::from_slice(&parent_text[..parent_text.len().min(256)]),
                    identity: ids,
                    identity_count,
                });
            }
            let entries_text = span_text.clone().unbind();
            entries.push((trace_id, span_text.unbind()));
            kept.push((target.carrier.clone().unbind(), target.handle.clone().map(Bound::unbind)));
            sides.push(Side {
                carrier: target.carrier.unbind(),
                events: target.events.unbind(),
                span_text: entries_text,
                end: end.unbind(),
                attempt: target.attempt.unbind(),
                handle: target.handle.map(Bound::unbind),
            });
        }
        let frame = Frame { outer: frame.map(Bound::unbind), entries, targets: kept };
        let token = SLIME.set(Bound::new(py, frame)?.as_any()).map(Bound::unbind);
        let alone = (records.len() == 1).then(|| {
            let r: &Record = &records[0];
            (r.trace_id, r.span_id, r.identity.to_vec(), r.identity_count)
        });
        let live = match live {
            Some(core) => {
                let mut encoded = Vec::new();
                let (count, dropped) =
                    attrs.as_ref().map_or((0, 0), |a| value::put_dict(&mut encoded, attrs_of::SPAN, a, 0));
                let open = Box::new(Open {
                    records,
                    name: value::text_of(&name).into_bytes(),
                    start_ns: now,
                    attrs: encoded,
                    count: count as u32,
                    dropped: dropped as u32,
                    reported: AtomicBool::new(false),
                });
                let slot = core.queue().open.insert(&*open);
                Some(Live { open, core, slot })
            }
            None => None,
        };
        let single = alone.is_some();
        // What was there before is dropped afterwards: dropping Python objects may run code.
        let before = slf.get().inner.with(|inner| {
            inner.start_ns = now;
            inner.alone = alone;
            inner.step = step;
            let token = std::mem::replace(&mut inner.token, token);
            (std::mem::replace(&mut inner.sides, sides), token, std::mem::replace(&mut inner.live, live))
        });
        drop(before);
        if single {
            let current = context::enter(slf.as_any()).map(Bound::unbind);
            let before = slf.get().inner.with(|inner| std::mem::replace(&mut inner.current, current));
            drop(before);
        }
        Ok(true)
    }

    fn finish(slf: &Bound<'_, Self>, error: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let (sides, end_attrs, record_error, live) = slf.get().inner.with(|inner| {
            let attrs = inner.end_attrs.as_ref().map(|a| a.bind(py).clone());
            (std::mem::take(&mut inner.sides), attrs, inner.record_error, inner.live.take())
        });
        let now = clock::now_ns();
        let attrs = match end_attrs {
            Some(set) => set.copy()?,
            None => PyDict::new(py),
        };
        let mut failure = None;
        if !error.is_none() {
            let kind = error.get_type().name()?;
            let text = value::text_of(error);
            failure = Some(if text.is_empty() { kind.to_string() } else { format!("{kind}: {text}") });
            if record_error {
                attrs.set_item(intern!(py, "error_type"), kind)?;
                attrs.set_item(intern!(py, "error_message"), error.str()?)?;
            }
        }
        let (end_kind, end_time) = (intern!(py, "span_end"), seconds(py, now));
        let mut ends = Vec::with_capacity(sides.len());
        for side in &sides {
            let event = side.end.bind(py);
            event.set_item(intern!(py, "type"), end_kind)?;
            event.set_item(intern!(py, "ts"), &end_time)?;
            // A retry inside the span may have begun another attempt.
            if let Some(attempt) = side.carrier.bind(py).get_item(intern!(py, "attempt"))?
                && !attempt.is(&side.attempt)
            {
                event.set_item(intern!(py, "attempt"), as_int(attempt)?)?;
            }
            if !attrs.is_empty() {
                event.set_item(intern!(py, "attrs"), attrs.copy()?)?;
            }
            side.events.bind(py).append(event)?;
            ends.push(event.clone().unbind());
        }
        let before = slf.get().inner.with(|inner| {
            inner.closed = true;
            (std::mem::replace(&mut inner.sides, sides), std::mem::replace(&mut inner.end_events, ends))
        });
        drop(before);
        if let Some(mut live) = live {
            let mut encoded = SmallVec::<[u8; 256]>::new();
            let (_, dropped) = value::put_dict(&mut encoded, attrs_of::SPAN, attrs.as_any(), live.open.count as usize);
            close(&mut live, &encoded, dropped as u32, now, failure.as_deref());
        }
        Ok(())
    }

    fn sync(&self, py: Python<'_>, attrs: &Bound<'_, PyDict>) -> PyResult<()> {
        let ends: Vec<Py<PyDict>> = self.inner.with(|i| i.end_events.iter().map(|e| e.clone_ref(py)).collect());
        for event in ends {
            let event = event.bind(py);
            let key = intern!(py, "attrs");
            let into = setdefault(event, key, || Ok(PyDict::new(py).into_any()))?;
            into.cast::<PyDict>().map_err(|_| PyTypeError::new_err("attrs is no dict"))?.update(attrs.as_mapping())?;
        }
        Ok(())
    }

    fn put(slf: &Bound<'_, Self>, attrs: &Bound<'_, PyDict>) -> PyResult<()> {
        let py = slf.py();
        let end = slf.get().end_attrs(py);
        end.update(attrs.as_mapping())?;
        slf.get().sync(py, attrs)
    }
}

/// Sends the closed spans.
fn close(live: &mut Live, attrs: &[u8], dropped: u32, end_ns: u64, failure: Option<&str>) {
    let core = live.core;
    if core.generation != core::generation() {
        return;
    }
    let mut queue = core.queue();
    queue.open.remove(std::mem::replace(&mut live.slot, NO_SLOT));
    for record in &live.open.records {
        let mut originals = SmallVec::<[u8; 160]>::new();
        record.originals(&mut originals);
        let mut row = live.open.row(record);
        row.end_ns = Some(end_ns);
        row.end_attrs = [attrs, &originals];
        row.dropped += dropped;
        if let Some(failure) = failure {
            row.status = STATUS_ERROR;
            row.message = failure;
        }
        let len = row.len();
        core.record_locked(&mut queue, Signal::Spans, len, |out| row.write(out));
    }
}

fn copy<'py>(attrs: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    match attrs.cast_exact::<PyDict>() {
        Ok(dict) => dict.copy(),
        Err(_) => Ok(attrs.py().get_type::<PyDict>().call1((attrs,))?.cast_into::<PyDict>()?),
    }
}

fn handle_of(py: Python<'_>, target: &Target<'_>) -> PyResult<Py<PyAny>> {
    let handle = TraceHandle {
        trace_id: target.trace.clone().unbind(),
        carrier: target.carrier.clone().into_any().unbind(),
        sample_id: target.sample_id.clone().unbind(),
        group_id: target.group_id.clone().unbind(),
        attempt: target.attempt.clone().unbind(),
        parent_span_id: target.parent.clone().map_or_else(|| py.None(), |p| p.into_any().unbind()),
    };
    Ok(Py::new(py, handle)?.into_any())
}

fn swallow<T>(py: Python<'_>, result: PyResult<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            if let Some(core) = core::core() {
                core.counters.errors.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            let _ = py
                .import("rollscope._errors")
                .and_then(|m| m.getattr("swallowed"))
                .and_then(|f| f.call1((error.into_value(py),)));
            None
        }
    }
}

#[pymethods]
impl SlimeSpan {
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> Bound<'py, PyAny> {
        let py = slf.py();
        if swallow(py, Self::begin(slf)) == Some(true) {
            return slf.clone().into_any();
        }
        // As slime does: the block runs, with the target in its hand.
        slf.get().inner.with(|inner| {
            inner.through = true;
            inner.target.as_ref().map_or_else(|| py.None().into_bound(py), |t| t.bind(py).clone())
        })
    }

    fn __exit__(
        slf: &Bound<'_, Self>,
        _kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> bool {
        let py = slf.py();
        let (through, token, current) =
            slf.get().inner.with(|inner| (inner.through, inner.token.take(), inner.current.take()));
        if through {
            return false;
        }
        let _ = swallow(py, Self::finish(slf, error));
        if let Some(current) = current {
            context::exit(current.bind(py));
        }
        if let Some(token) = token {
            SLIME.reset(token.bind(py));
        }
        false
    }

    /// Sets one attribute of the end, also after the block has closed.
    fn set<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        let py = slf.py();
        let one = PyDict::new(py);
        let _ = swallow(py, one.set_item(key, value).and_then(|()| Self::put(slf, &one)));
        slf.clone()
    }

    fn set_attr<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        Self::set(slf, key, value)
    }

    /// Sets several. `_trace_children`, which `build_sglang_meta_trace_attrs` makes, become spans inside this one.
    #[pyo3(signature = (attrs = None))]
    fn update<'py>(slf: &Bound<'py, Self>, attrs: Option<&Bound<'py, PyAny>>) -> Bound<'py, Self> {
        let py = slf.py();
        let Some(attrs) = attrs.filter(|a| a.is_truthy().unwrap_or(false)) else { return slf.clone() };
        let work = || -> PyResult<()> {
            let plain = copy(attrs)?;
            let key = intern!(py, "_trace_children");
            let children = plain.get_item(key)?;
            if children.is_some() {
                plain.del_item(key)?;
            }
            if !plain.is_empty() {
                Self::put(slf, &plain)?;
            }
            if let Some(children) = children.filter(|c| c.is_truthy().unwrap_or(false)) {
                py.import("rollscope.slime")?.getattr("_append_trace_children")?.call1((
                    slf.get().span_records(py)?,
                    children,
                    slf.get().start_ts(),
                ))?;
            }
            Ok(())
        };
        let _ = swallow(py, work());
        slf.clone()
    }

    #[pyo3(signature = (attrs = None))]
    fn update_attrs<'py>(slf: &Bound<'py, Self>, attrs: Option<&Bound<'py, PyAny>>) -> Bound<'py, Self> {
        Self::update(slf, attrs)
    }

    /// The training step it belongs to, if any.
    #[getter(step)]
    fn step_number(&self) -> Option<i64> {
        self.step()
    }

    #[getter]
    fn start_ts(&self) -> f64 {
        self.inner.with(|i| i.start_ns) as f64 / 1e9
    }

    #[getter]
    fn closed(&self) -> bool {
        self.inner.with(|i| i.closed)
    }

    #[getter]
    fn end_attrs<'py>(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        // Made first: making an object may run code.
        let fresh = PyDict::new(py);
        self.inner.with(|i| i.end_attrs.get_or_insert_with(|| fresh.clone().unbind()).bind(py).clone())
    }

    #[getter]
    fn end_events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let events: Vec<_> = self.inner.with(|i| i.end_events.iter().map(|e| e.clone_ref(py)).collect());
        PyList::new(py, events)
    }

    #[getter]
    fn handles<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let copy = |s: &Side| (s.carrier.clone_ref(py), s.handle.as_ref().map(|h| h.clone_ref(py)));
        let sides: Vec<_> = self.inner.with(|i| i.sides.iter().map(copy).collect());
        let handles = PyList::empty(py);
        for (carrier, handle) in sides {
            match handle {
                Some(handle) => handles.append(handle)?,
                None => handles.append(bind_carrier(carrier.bind(py))?)?,
            }
        }
        Ok(handles)
    }

    #[getter]
    fn target<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let handles = self.handles(py)?;
        if handles.len() == 1 { handles.get_item(0) } else { Ok(handles.into_any()) }
    }

    /// Pairs of handle and span id.
    #[getter]
    fn span_records<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let ids: Vec<Py<PyString>> = self.inner.with(|i| i.sides.iter().map(|s| s.span_text.clone_ref(py)).collect());
        let pairs = PyList::empty(py);
        for (handle, id) in self.handles(py)?.iter().zip(ids) {
            pairs.append((handle, id))?;
        }
        Ok(pairs)
    }
}

/// A handle on a carrier that is whole.
fn bind_carrier<'py>(carrier: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    let py = carrier.py();
    let none = || py.None().into_bound(py);
    let target = ensure(py, Some(carrier.clone()), None, none(), none(), None)?;
    Ok(handle_of(py, &target)?.into_bound(py))
}

/// A span on every target; see slime's function of this name.
#[pyfunction]
#[pyo3(signature = (target, name, *, attrs = None, record_error = true))]
fn trace_span(target: Py<PyAny>, name: Py<PyAny>, attrs: Option<Py<PyAny>>, record_error: bool) -> SlimeSpan {
    let inner = Inner { target: Some(target), name: Some(name), attrs, record_error, ..Inner::default() };
    SlimeSpan { inner: Held::new(inner) }
}

/// An instant on every target; see slime's function of this name.
#[pyfunction]
#[pyo3(signature = (target, name, *, attrs = None))]
fn trace_event(py: Python<'_>, target: &Bound<'_, PyAny>, name: &Bound<'_, PyAny>, attrs: Option<&Bound<'_, PyAny>>) {
    let now = clock::now_ns();
    let _ = swallow(py, put_instants(py, target, name, attrs, now, None));
}

fn put_instants<'py>(
    py: Python<'py>,
    target: &Bound<'py, PyAny>,
    name: &Bound<'py, PyAny>,
    attrs: Option<&Bound<'py, PyAny>>,
    time_ns: u64,
    time: Option<Bound<'py, PyAny>>,
) -> PyResult<()> {
    let mut targets = Vec::new();
    collect(target, &mut targets, 0)?;
    if targets.is_empty() {
        return Ok(());
    }
    let attrs = attrs.filter(|a| a.is_truthy().unwrap_or(false));
    let frame = current_frame(py);
    let time = time.unwrap_or_else(|| seconds(py, time_ns));
    let blank = template(py, &Common { kind: "event", name: name.clone(), time })?;
    let live = core::core().filter(|_| core::level() > 0);
    let step = current_step(py);
    let mut encoded = SmallVec::<[u8; 256]>::new();
    let mut count = 0;
    if let (Some(_), Some(attrs)) = (live, attrs) {
        count = value::put_dict(&mut encoded, attrs_of::SPAN, attrs, 0).0;
    }
    let text = live.map(|_| value::text_of(name)).unwrap_or_default();
    for (index, target) in targets.iter().enumerate() {
        let trace_id = trace_id_of(&target.trace);
        let parent = target.parent.clone().or_else(|| parent_of(frame.as_ref(), &trace_id, index));
        let event = fill(&blank, target)?;
        if let Some(parent) = &parent {
            event.set_item(intern!(py, "parent_span_id"), parent)?;
        }
        if let Some(attrs) = attrs {
            event.set_item(intern!(py, "attrs"), copy(attrs)?)?;
        }
        let place = target.events.len() as u32;
        target.events.append(&event)?;
        if let Some(core) = live {
            let mut ids = Ids::new();
            let ids_count = identity(target, step, &mut ids);
            let parent = parent.as_ref().and_then(|p| p.to_str().ok()).map(|p| span_id_of(p.as_bytes()));
            span::instant(
                core,
                &span::Instant {
                    name: text.as_bytes(),
                    time_ns,
                    trace_id,
                    span_id: event_id(&trace_id, place),
                    parent_id: parent,
                    identity: (&ids, ids_count),
                    attrs: &encoded,
                    count: count as u32,
                },
            );
        }
    }
    Ok(())
}

/// Makes sure that a sample has a carrier; raises what is wrong with it.
#[pyfunction]
fn bind<'py>(sample: &Bound<'py, PyAny>) -> PyResult<Py<PyAny>> {
    match bind_sample(sample)? {
        Some(target) => handle_of(sample.py(), &target),
        None => Err(PyTypeError::new_err("a sample has index and group_index")),
    }
}

/// The same for a carrier without a sample.
#[pyfunction]
#[pyo3(signature = (carrier, trace_id = None, sample_id = None, group_id = None, attempt = None, parent_span_id = None))]
fn bind_parts<'py>(
    py: Python<'py>,
    carrier: Option<Bound<'py, PyDict>>,
    trace_id: Option<Bound<'py, PyAny>>,
    sample_id: Option<Bound<'py, PyAny>>,
    group_id: Option<Bound<'py, PyAny>>,
    attempt: Option<Bound<'py, PyAny>>,
    parent_span_id: Option<Bound<'py, PyAny>>,
) -> PyResult<Py<PyAny>> {
    let or_none = |value: Option<Bound<'py, PyAny>>| value.unwrap_or_else(|| py.None().into_bound(py));
    let mut target = ensure(py, carrier, trace_id, or_none(sample_id), or_none(group_id), attempt)?;
    target.parent = parent_span_id.and_then(|p| p.cast_into::<PyString>().ok());
    handle_of(py, &target)
}

/// The handles of a target, flat; empty for what is no target.
#[pyfunction]
fn coerce_handles<'py>(target: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let py = target.py();
    let mut targets = Vec::new();
    collect(target, &mut targets, 0)?;
    let handles = PyList::empty(py);
    for target in &targets {
        match &target.handle {
            Some(handle) => handles.append(handle)?,
            None => handles.append(handle_of(py, target)?)?,
        }
    }
    Ok(handles)
}

/// The innermost open span of a trace, or `None`.
#[pyfunction]
fn current_parent<'py>(py: Python<'py>, trace_id: &Bound<'py, PyAny>) -> Option<Bound<'py, PyString>> {
    parent_of(current_frame(py).as_ref(), &trace_id_of(trace_id), 0)
}

/// Handles of the innermost span, whatever its traces; empty without one.
#[pyfunction]
fn current_handles(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let handles = PyList::empty(py);
    if let Some(frame) = current_frame(py) {
        for (carrier, handle) in &frame.get().targets {
            match handle {
                Some(handle) => handles.append(handle)?,
                None => handles.append(bind_carrier(carrier.bind(py))?)?,
            }
        }
    }
    Ok(handles)
}

/// A finished span of the past on the wire: a segment that the engine reported afterwards.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn emit_child<'py>(
    py: Python<'py>,
    handle: &Bound<'py, PyAny>,
    name: &str,
    span_id: &str,
    parent: &str,
    start_s: f64,
    end_s: f64,
    attrs: Option<&Bound<'py, PyAny>>,
    index: i64,
) -> PyResult<()> {
    let Some(core) = core::core().filter(|_| core::level() > 0) else { return Ok(()) };
    let target = from_handle(handle)?;
    let trace_id = trace_id_of(&target.trace);
    let mut ids = Ids::new();
    let ids_count = identity(&target, current_step(py), &mut ids);
    let mut encoded = SmallVec::<[u8; 256]>::new();
    let count = attrs.map_or(0, |a| value::put_dict(&mut encoded, attrs_of::SPAN, a, 0).0);
    let ns = |s: f64| (s * 1e9).round().clamp(0.0, 7e18) as u64;
    let parent_id = (!parent.is_empty()).then(|| span_id_of(parent.as_bytes()));
    if index >= 0 {
        span::instant(
            core,
            &span::Instant {
                name: name.as_bytes(),
                time_ns: ns(start_s),
                trace_id,
                span_id: event_id(&trace_id, index as u32),
                parent_id,
                identity: (&ids, ids_count),
                attrs: &encoded,
                count: count as u32,
            },
        );
        return Ok(());
    }
    let mut originals = SmallVec::<[u8; 160]>::new();
    wire::text_attr(&mut originals, attrs_of::SPAN, b"rollscope.original_span_id", span_id.as_bytes());
    if !parent.is_empty() {
        wire::text_attr(&mut originals, attrs_of::SPAN, b"rollscope.original_parent_span_id", parent.as_bytes());
    }
    let id = span_id_of(span_id.as_bytes());
    let row = Row {
        trace_id: &trace_id,
        span_id: &id,
        parent_id: parent_id.as_ref(),
        trace_state: "",
        name: name.as_bytes(),
        kind: KIND_INTERNAL,
        start_ns: ns(start_s),
        end_ns: Some(ns(end_s)),
        start_attrs: [&ids, &[]],
        start_count: ids_count,
        end_attrs: [&encoded, &originals],
        dropped: 0,
        events: &[],
        links: &[],
        status: STATUS_UNSET,
        message: "",
    };
    let len = row.len();
    core.record(Signal::Spans, len, |out| row.write(out));
    Ok(())
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let slime = PyModule::new(module.py(), "slime")?;
    slime.add_class::<TraceHandle>()?;
    slime.add_class::<SlimeSpan>()?;
    slime.add_class::<Frame>()?;
    slime.add_function(wrap_pyfunction!(trace_span, &slime)?)?;
    slime.add_function(wrap_pyfunction!(trace_event, &slime)?)?;
    slime.add_function(wrap_pyfunction!(bind, &slime)?)?;
    slime.add_function(wrap_pyfunction!(bind_parts, &slime)?)?;
    slime.add_function(wrap_pyfunction!(coerce_handles, &slime)?)?;
    slime.add_function(wrap_pyfunction!(current_parent, &slime)?)?;
    slime.add_function(wrap_pyfunction!(current_handles, &slime)?)?;
    slime.add_function(wrap_pyfunction!(emit_child, &slime)?)?;
    module.add("slime", slime)
}
