//! A span over one sample or a group.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use rollscope_names::ids::span_id_from_bytes;
use smallvec::SmallVec;

use super::carrier::{Entries, as_int, bind_carrier, collect, copy, new_hex, seconds, setdefault};
use super::frame::{Frame, current_frame, parent_of};
use super::ids::{Ids, current_step, identity, put_originals, span_id_of, trace_id_of};
use crate::args::{self, Attrs};
use crate::clock;
use crate::context::{self, SLIME};
use crate::core;
use crate::errors::swallow;
use crate::held::Held;
use crate::open::{OpenSpan, Opened};
use crate::row::{Row, STATUS_ERROR, STATUS_UNSET};
use crate::value;
use crate::wire::attrs_of;

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

struct Open {
    records: Vec<Record>,
    name: SmallVec<[u8; 48]>,
    start_ns: u64,
    attrs: SmallVec<[u8; 256]>,
    count: u32,
    dropped: u32,
    reported: AtomicBool,
}

impl Open {
    /// One sample's row, given to `record`. `end` is what its end brings; none while it is open.
    fn row(&self, record: &Record, end: Option<&End<'_>>, write: impl FnOnce(&Row<'_>)) {
        let mut originals = SmallVec::<[u8; 160]>::new();
        put_originals(&mut originals, &record.original, &record.parent_text);
        let open = Row {
            parent_id: record.parent.as_ref(),
            start_attrs: [&record.identity, &self.attrs],
            start_count: self.count + record.identity_count,
            end_attrs: [&[], &originals],
            dropped: self.dropped,
            ..Row::new((&record.trace_id, &record.span_id), &self.name, self.start_ns)
        };
        match end {
            None => write(&open),
            Some(end) => write(&Row {
                end_ns: Some(end.ns),
                end_attrs: [&end.attrs.bytes, &originals],
                dropped: self.dropped + end.attrs.dropped,
                status: if end.failure.is_some() { STATUS_ERROR } else { STATUS_UNSET },
                message: end.failure.unwrap_or_default(),
                ..open
            }),
        }
    }
}

/// What the end of a span brings to each of its samples.
struct End<'a> {
    ns: u64,
    attrs: &'a Attrs,
    failure: Option<&'a str>,
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
            self.row(record, None, |row| row.write(out));
        }
    }
}

/// A span over one sample or a group, as returned by `trace_span`.
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
    /// Shared with the frame.
    sides: Arc<Vec<Side>>,
    end_attrs: Option<Py<PyDict>>,
    start_ns: u64,
    closed: bool,
    token: Option<Py<PyAny>>,
    current: Option<Py<PyAny>>,
    live: Option<Opened<Open>>,
    /// Ids of the only record, for children in the same trace.
    alone: Option<Alone>,
    step: Option<i64>,
}

/// Trace id, span id, encoded identity and how many attributes that is.
type Alone = ([u8; 16], [u8; 8], Vec<u8>, u32);

/// One target of a span.
pub(super) struct Side {
    pub(super) trace_id: [u8; 16],
    pub(super) span_text: Py<PyString>,
    carrier: Py<PyDict>,
    events: Py<PyList>,
    /// The entry of its end, which comes into `events` when the span ends.
    end: Py<PyDict>,
    attempt: Py<PyAny>,
    /// What the caller handed in, where it was a handle.
    given: Option<Py<PyAny>>,
}

impl Side {
    pub(super) fn handle<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.given {
            Some(handle) => Ok(handle.bind(py).clone()),
            None => bind_carrier(self.carrier.bind(py)),
        }
    }
}

impl SlimeSpan {
    pub(super) fn new(target: Py<PyAny>, name: Py<PyAny>, attrs: Option<Py<PyAny>>, record_error: bool) -> SlimeSpan {
        let inner = Inner { target: Some(target), name: Some(name), attrs, record_error, ..Inner::default() };
        SlimeSpan { inner: Held::new(inner) }
    }

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
        let mut entries = Entries::new(py, "span_start", &name, &seconds(py, now))?;
        let live = core::core().filter(|_| core::level() > 0);
        let step = current_step(py);
        let mut sides = Vec::with_capacity(targets.len());
        let mut records = Vec::with_capacity(if live.is_some() { targets.len() } else { 0 });
        for (index, target) in targets.into_iter().enumerate() {
            let trace_id = trace_id_of(&target.trace);
            let parent = target.parent.clone().or_else(|| parent_of(frame.as_ref(), &trace_id, index));
            let (span_text, original, raw) = new_hex(py);
            let start = entries.of(&target, Some(&span_text))?;
            // What the end will look like, but for its type and time.
            let end = start.copy()?;
            if let Some(parent) = &parent {
                start.set_item(intern!(py, "parent_span_id"), parent)?;
            }
            if let Some(attrs) = &attrs {
                start.set_item(intern!(py, "attrs"), copy(attrs)?)?;
            }
            target.events.append(start)?;
            if live.is_some() {
                let parent_text = parent.as_ref().and_then(|p| p.to_str().ok()).unwrap_or_default();
                let mut ids = Ids::new();
                let identity_count = identity(&target, step, &mut ids);
                records.push(Record {
                    trace_id,
                    span_id: span_id_from_bytes(&raw),
                    original,
                    parent: (!parent_text.is_empty()).then(|| span_id_of(parent_text)),
                    parent_text: SmallVec::from_slice(&parent_text.as_bytes()[..parent_text.len().min(256)]),
                    identity: ids,
                    identity_count,
                });
            }
            sides.push(Side {
                trace_id,
                span_text: span_text.unbind(),
                carrier: target.carrier.unbind(),
                events: target.events.unbind(),
                end: end.unbind(),
                attempt: target.attempt.unbind(),
                given: target.handle.map(Bound::unbind),
            });
        }
        let sides = Arc::new(sides);
        let frame = Frame { outer: frame.map(Bound::unbind), sides: sides.clone() };
        let token = SLIME.set(Bound::new(py, frame)?.as_any()).map(Bound::unbind);
        let alone = (records.len() == 1).then(|| {
            let r: &Record = &records[0];
            (r.trace_id, r.span_id, r.identity.to_vec(), r.identity_count)
        });
        let live = live.map(|core| {
            let attrs = Attrs::read(attrs.as_ref(), attrs_of::SPAN);
            let open = Open {
                records,
                name: args::name(&name),
                start_ns: now,
                attrs: attrs.bytes,
                count: attrs.count,
                dropped: attrs.dropped,
                reported: AtomicBool::new(false),
            };
            Opened::start(core, open)
        });
        let single = alone.is_some();
        // What was there before is dropped afterwards: dropping Python objects may run code.
        let before = slf.get().inner.with(|inner| {
            inner.start_ns = now;
            inner.closed = false;
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
            (inner.sides.clone(), attrs, inner.record_error, inner.live.take())
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
        for side in sides.iter() {
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
        }
        slf.get().inner.with(|inner| inner.closed = true);
        if let Some(mut live) = live {
            let attrs = Attrs::read_more(Some(attrs.as_any()), attrs_of::SPAN, live.count);
            let end = End { ns: now, attrs: &attrs, failure: failure.as_deref() };
            live.end(|open, core, queue| {
                for record in &open.records {
                    open.row(record, Some(&end), |row| core.record_row_locked(queue, row));
                }
            });
        }
        Ok(())
    }

    /// The sides whose ends are in their carriers: all, once it has ended.
    fn ended(&self) -> Option<Arc<Vec<Side>>> {
        self.inner.with(|inner| inner.closed.then(|| inner.sides.clone()))
    }

    fn sync(&self, py: Python<'_>, attrs: &Bound<'_, PyDict>) -> PyResult<()> {
        for side in self.ended().iter().flat_map(|sides| sides.iter()) {
            let key = intern!(py, "attrs");
            let into = setdefault(side.end.bind(py), key, || Ok(PyDict::new(py).into_any()))?;
            into.cast::<PyDict>()
                .map_err(|_| PyTypeError::new_err("attrs must be a dict"))?
                .update(attrs.as_mapping())?;
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

    /// Sets one attribute of the end. Also works after the block.
    fn set<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        let py = slf.py();
        let one = PyDict::new(py);
        let _ = swallow(py, one.set_item(key, value).and_then(|()| Self::put(slf, &one)));
        slf.clone()
    }

    fn set_attr<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        Self::set(slf, key, value)
    }

    /// Sets several attributes of the end. `_trace_children`, made by `build_sglang_meta_trace_attrs`, become spans inside.
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
        let sides = self.ended().unwrap_or_default();
        PyList::new(py, sides.iter().map(|side| side.end.bind(py)))
    }

    #[getter]
    fn handles<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let sides = self.inner.with(|inner| inner.sides.clone());
        let handles = PyList::empty(py);
        for side in sides.iter() {
            handles.append(side.handle(py)?)?;
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
        let sides = self.inner.with(|inner| inner.sides.clone());
        let pairs = PyList::empty(py);
        for side in sides.iter() {
            pairs.append((side.handle(py)?, &side.span_text))?;
        }
        Ok(pairs)
    }
}
