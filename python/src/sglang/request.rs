//! SGLang's `TraceReqContext`.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use smallvec::SmallVec;

use super::piece::{End, Piece, Running};
use super::state::{CachedEvent, State};
use super::{INITIALIZED, MODULES, global_level, thread, travel};
use crate::args::{self, Attrs};
use crate::clock;
use crate::context;
use crate::core::{self, lock};
use crate::errors;
use crate::row::put_event;
use crate::value;
use crate::wire::{self, attrs_of};

/// Slices inside each other.
const MAX_DEPTH: usize = 64;
const MAX_EVENTS: usize = 4096;

/// The trace of one request. See SGLang's class of this name.
#[pyclass(frozen, weakref, module = "rollscope.sglang")]
pub struct TraceReqContext {
    state: Mutex<State>,
}

impl Drop for TraceReqContext {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        if state.enabled && state.thread.is_some() {
            let mut info = Vec::new();
            wire::text_attr(&mut info, attrs_of::SPAN, b"reason", b"have unclosed span, auto closed");
            state.abort(clock::now_ns(), Some(&info));
        }
    }
}

impl From<State> for TraceReqContext {
    fn from(state: State) -> TraceReqContext {
        TraceReqContext { state: Mutex::new(state) }
    }
}

/// SGLang's times: zero is none.
fn time(ts: Option<u64>) -> u64 {
    args::time(ts.filter(|ts| *ts > 0))
}

#[pymethods]
impl TraceReqContext {
    #[new]
    #[pyo3(signature = (rid, bootstrap_room = None, role = "unified", module_name = "", external_trace_header = None,
                        trace_level = None))]
    fn new(
        rid: &Bound<'_, PyAny>,
        bootstrap_room: Option<&Bound<'_, PyAny>>,
        role: &str,
        module_name: &str,
        external_trace_header: Option<&Bound<'_, PyAny>>,
        trace_level: Option<i64>,
    ) -> TraceReqContext {
        let level = trace_level.unwrap_or_else(global_level).min(i64::from(core::own_level()));
        let mut state = State { rid: value::text_of(rid), level, ..State::default() };
        state.enabled = INITIALIZED.load(Relaxed) && core::core().is_some() && level > 0;
        if !module_name.is_empty()
            && let Some(modules) = lock(&MODULES).as_ref()
            && !modules.iter().any(|m| m == module_name)
        {
            state.enabled = false;
        }
        if state.enabled {
            state.bootstrap_room = bootstrap_room.and_then(|room| room.extract().ok()).filter(|room| *room != 0);
            state.role = role.into();
            state.module = module_name.into();
            state.external = external_trace_header.and_then(|headers| {
                let header = headers.call_method1("get", ("traceparent",)).ok()?;
                context::ids_of(&header)
            });
            state.pid = thread::number();
        }
        TraceReqContext::from(state)
    }

    fn is_tracing_enabled(&self) -> bool {
        lock(&self.state).enabled
    }

    #[getter]
    fn tracing_enable(&self) -> bool {
        lock(&self.state).enabled
    }

    #[getter]
    fn rid(&self) -> String {
        lock(&self.state).rid.clone()
    }

    #[getter]
    fn trace_level(&self) -> i64 {
        lock(&self.state).level
    }

    #[getter]
    fn bootstrap_room(&self) -> Option<u64> {
        lock(&self.state).bootstrap_room
    }

    #[getter]
    fn role(&self) -> String {
        lock(&self.state).role.clone()
    }

    #[getter]
    fn module_name(&self) -> String {
        lock(&self.state).module.clone()
    }

    #[getter]
    fn start_time_ns(&self) -> Option<u64> {
        Some(lock(&self.state).start_ns).filter(|ns| *ns > 0)
    }

    #[getter]
    fn is_copy(&self) -> bool {
        lock(&self.state).is_copy
    }

    /// `traceparent` of the request's span.
    #[getter]
    fn traceparent(&self) -> Option<String> {
        lock(&self.state).root_ids.map(|(trace, span)| context::traceparent(&trace, &span))
    }

    /// The request begins.
    #[pyo3(signature = (ts = None))]
    fn trace_req_start(&self, ts: Option<u64>) {
        let mut state = lock(&self.state);
        let Some(core) = core::core().filter(|_| state.enabled) else { return };
        let ts = time(ts);
        state.start_ns = ts;
        // Drop the worker id that SGLang's several tokenizers put before it.
        let rid = state.rid.rsplit('_').next().unwrap_or_default().to_string();
        let role = if state.role == "unified" { "" } else { &state.role };
        let short: String = rid.chars().take(8).collect();
        let mut attrs = SmallVec::new();
        wire::text_attr(&mut attrs, attrs_of::SPAN, b"rid", rid.as_bytes());
        wire::text_attr(&mut attrs, attrs_of::SPAN, b"module", format!("sglang::{}", state.module).as_bytes());
        let mut count = 2;
        if let Some(room) = state.bootstrap_room {
            wire::text_attr(&mut attrs, attrs_of::SPAN, b"bootstrap_room", format!("{room:#x}").as_bytes());
            count += 1;
        }
        let trace = state.external.map_or_else(clock::new_id, |(trace, _)| trace);
        let name = format!("{role} Req {short}").into_bytes().into();
        let piece = Piece { attrs, count, ..Piece::new(trace, state.external.map(|(_, span)| span), name, ts) };
        state.root_ids = Some(piece.ids);
        state.root = Some(Running::start(core, piece, 0));
        state.begin_thread(ts);
    }

    /// The request ends.
    #[pyo3(signature = (ts = None, attrs = None))]
    fn trace_req_finish(&self, ts: Option<u64>, attrs: Option<&Bound<'_, PyAny>>) {
        let attrs = Attrs::read(attrs, attrs_of::SPAN);
        let mut state = lock(&self.state);
        if !state.enabled {
            return;
        }
        let Some(root) = state.root.take() else { return };
        let ts = time(ts);
        state.abort(ts, None);
        root.end(&End { ns: ts, attrs: &attrs.bytes, ..End::default() });
    }

    #[pyo3(signature = (name, level, ts = None))]
    fn trace_slice_start(&self, name: &Bound<'_, PyAny>, level: i64, ts: Option<u64>) {
        let name = args::name(name);
        let mut state = lock(&self.state);
        if state.skips(level) || state.slices.len() >= MAX_DEPTH {
            return;
        }
        let (Some(core), Some(piece)) = (core::core(), state.slice(name, time(ts))) else { return };
        state.slices.push(Running::start(core, piece, level));
    }

    #[pyo3(signature = (name, level, ts = None, attrs = None, thread_finish_flag = false))]
    fn trace_slice_end(
        &self,
        name: &Bound<'_, PyAny>,
        level: i64,
        ts: Option<u64>,
        attrs: Option<&Bound<'_, PyAny>>,
        thread_finish_flag: bool,
    ) {
        let attrs = Attrs::read(attrs, attrs_of::SPAN);
        let name = args::name(name);
        let mut state = lock(&self.state);
        if state.skips(level) {
            return;
        }
        let Some(slice) = state.slices.pop() else {
            drop(state);
            let text = String::from_utf8_lossy(&name).into_owned();
            return Python::attach(|py| errors::warn(py, format!("slice {text} ends, but no slice is open")));
        };
        if slice.piece.name != name || slice.level != level {
            drop(state);
            let (asked, open) = (String::from_utf8_lossy(&name), String::from_utf8_lossy(&slice.piece.name));
            let text = format!("slice {asked} (level {level}) ends, but {open} (level {}) is open", slice.level);
            return Python::attach(|py| errors::warn(py, text));
        }
        let ts = time(ts);
        let mut events = Vec::new();
        state.take_events(slice.piece.start_ns, ts, &mut events);
        let ids = slice.end(&End { ns: ts, attrs: &attrs.bytes, events: &events, ..End::default() });
        state.slice_ended(ids, ts, thread_finish_flag);
    }

    /// Records a slice that has already ended.
    #[pyo3(signature = (slice, thread_finish_flag = false))]
    fn trace_slice(&self, py: Python<'_>, slice: &Bound<'_, PyAny>, thread_finish_flag: bool) -> PyResult<()> {
        let level = slice.getattr(intern!(py, "level")).and_then(|l| l.extract()).unwrap_or(1);
        if lock(&self.state).skips(level) {
            return Ok(());
        }
        let (Ok(name), Ok(start)) = (
            slice.getattr(intern!(py, "slice_name")),
            slice.getattr(intern!(py, "start_time_ns")).and_then(|t| t.extract::<u64>()),
        ) else {
            return Ok(());
        };
        let end = slice.getattr(intern!(py, "end_time_ns")).and_then(|t| t.extract::<u64>());
        let end = end.unwrap_or_else(|_| clock::now_ns());
        let attrs = slice.getattr(intern!(py, "attrs")).ok().filter(|a| !a.is_none());
        let attrs = Attrs::read(attrs.as_ref(), attrs_of::SPAN);
        let mut events = Vec::new();
        if let Some(given) = slice.getattr(intern!(py, "events")).ok().filter(|e| !e.is_none())
            && let Ok(given) = given.try_iter()
        {
            for event in given.flatten().take(MAX_EVENTS) {
                let (Ok(name), Ok(at)) =
                    (event.getattr("event_name"), event.getattr("ts").and_then(|t| t.extract::<u64>()))
                else {
                    continue;
                };
                let attrs = event.getattr("attrs").ok().filter(|a| !a.is_none());
                let attrs = Attrs::read(attrs.as_ref(), attrs_of::EVENT);
                put_event(&mut events, &args::name(&name), at, &attrs.bytes, 0);
            }
        }
        let name = args::name(&name);
        let mut state = lock(&self.state);
        let (Some(core), Some(piece)) = (core::core(), state.slice(name, start)) else { return Ok(()) };
        state.take_events(start, end, &mut events);
        piece.record(core, &End { ns: end, attrs: &attrs.bytes, events: &events, ..End::default() });
        state.slice_ended(piece.ids, end, thread_finish_flag);
        Ok(())
    }

    /// Records that something happened in the current slice.
    #[pyo3(signature = (name, level, ts = None, attrs = None))]
    fn trace_event(&self, name: &Bound<'_, PyAny>, level: i64, ts: Option<u64>, attrs: Option<&Bound<'_, PyAny>>) {
        let attrs = Attrs::read(attrs, attrs_of::EVENT);
        let name = args::name(name);
        let mut state = lock(&self.state);
        if state.skips(level) || state.events.len() >= MAX_EVENTS {
            return;
        }
        state.events.push(CachedEvent { name: name.to_vec(), time_ns: time(ts), attrs: attrs.bytes.to_vec() });
    }

    fn trace_set_root_attrs(&self, attrs: &Bound<'_, PyAny>) {
        let attrs = Attrs::read(Some(attrs), attrs_of::SPAN);
        if let Some(root) = &mut lock(&self.state).root {
            root.late.extend_from_slice(&attrs.bytes);
        }
    }

    fn trace_set_thread_attrs(&self, attrs: &Bound<'_, PyAny>) {
        let attrs = Attrs::read(Some(attrs), attrs_of::SPAN);
        if let Some(thread) = &mut lock(&self.state).thread {
            thread.late.extend_from_slice(&attrs.bytes);
        }
    }

    /// Starts a copy in the thread that works on it.
    #[pyo3(signature = (ts = None, pid = None))]
    fn rebuild_thread_context(&self, ts: Option<u64>, pid: Option<i64>) {
        let mut state = lock(&self.state);
        if state.enabled {
            state.pid = pid.unwrap_or_else(thread::number);
            state.begin_thread(time(ts));
        }
    }

    /// Returns a copy for another thread, where `rebuild_thread_context()` starts it.
    fn copy_for_thread<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let copy = {
            let state = lock(&self.state);
            if !state.enabled || state.root_ids.is_none() {
                drop(state);
                return py.import("rollscope.sglang")?.getattr("TraceNullContext")?.call0();
            }
            State {
                rid: state.rid.clone(),
                enabled: true,
                level: state.level,
                start_ns: state.start_ns,
                bootstrap_room: state.bootstrap_room,
                role: state.role.clone(),
                module: state.module.clone(),
                is_copy: true,
                root_ids: state.root_ids,
                last: state.previous(),
                ..State::default()
            }
        };
        Ok(Bound::new(py, TraceReqContext::from(copy))?.into_any())
    }

    /// Ends all spans of this thread. `abort_info` marks them as failed.
    #[pyo3(signature = (ts = None, abort_info = None))]
    fn abort(&self, ts: Option<u64>, abort_info: Option<&Bound<'_, PyAny>>) {
        let info = abort_info.filter(|i| i.is_truthy().unwrap_or(false)).map(|info| {
            let json = info.call_method0("to_json").ok();
            Attrs::read(Some(json.as_ref().unwrap_or(info)), attrs_of::SPAN).bytes
        });
        lock(&self.state).abort(time(ts), info.as_deref());
    }

    fn flush(&self) {}

    /// The trace as it travels: the same shape as SGLang's.
    fn __getstate__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        travel::pack(py, &self.state)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyDict>,))> {
        let rebuild = py.import("rollscope.sglang")?.getattr("_rebuild")?;
        Ok((rebuild, (self.__getstate__(py)?,)))
    }
}
