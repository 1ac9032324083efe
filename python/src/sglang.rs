//! SGLang's request tracing on our core: one span a request, one a thread it passes, slices on each, every first-level slice
//! linked to the one before it, also in another thread or process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use smallvec::SmallVec;

use crate::clock;
use crate::context;
use crate::core::{self, Core, NO_SLOT, OpenSpan, Signal, lock};
use crate::row::{KIND_INTERNAL, Row, STATUS_ERROR, STATUS_UNSET};
use crate::span::{put_event, put_link};
use crate::value;
use crate::wire::{self, attrs_of};

/// Slices inside each other.
const MAX_DEPTH: usize = 64;
const MAX_EVENTS: usize = 4096;

static INITIALIZED: AtomicBool = AtomicBool::new(false);
/// Below zero: what the environment says.
static LEVEL: AtomicI64 = AtomicI64::new(-1);
static MODULES: Mutex<Option<Vec<String>>> = Mutex::new(None);
static THREADS: LazyLock<Mutex<HashMap<i64, Thread>>> = LazyLock::new(Mutex::default);

#[derive(Clone)]
struct Thread {
    label: String,
    tp: Option<i64>,
    dp: Option<i64>,
    pp: Option<i64>,
}

fn thread_number() -> i64 {
    // SAFETY: no arguments, always succeeds.
    i64::from(unsafe { libc::gettid() })
}

fn host_id() -> &'static str {
    static HOST: LazyLock<String> = LazyLock::new(|| {
        let read =
            |path: &str| std::fs::read_to_string(path).ok().map(|t| t.trim().to_string()).filter(|t| !t.is_empty());
        read("/etc/machine-id").or_else(|| read("/proc/sys/kernel/hostname")).unwrap_or_else(|| "unknown".into())
    });
    &HOST
}

type Ids = ([u8; 16], [u8; 8]);

/// A span between its start and its end. Boxed and never changed while the background thread may look at it.
struct Piece {
    ids: Ids,
    parent: Option<[u8; 8]>,
    name: SmallVec<[u8; 48]>,
    start_ns: u64,
    attrs: SmallVec<[u8; 128]>,
    count: u32,
    link: Option<Ids>,
    reported: AtomicBool,
}

impl Piece {
    fn row(&self) -> Row<'_> {
        Row {
            trace_id: &self.ids.0,
            span_id: &self.ids.1,
            parent_id: self.parent.as_ref(),
            trace_state: "",
            name: &self.name,
            kind: KIND_INTERNAL,
            start_ns: self.start_ns,
            end_ns: None,
            start_attrs: [&self.attrs, &[]],
            start_count: self.count,
            end_attrs: [&[], &[]],
            dropped: 0,
            events: &[],
            links: &[],
            status: STATUS_UNSET,
            message: "",
        }
    }
}

impl OpenSpan for Piece {
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

/// A piece that is known to the background thread.
struct Running {
    piece: Box<Piece>,
    slot: u32,
    core: &'static Core,
    level: i64,
    late: Vec<u8>,
}

impl Running {
    fn start(core: &'static Core, piece: Piece, level: i64) -> Running {
        let piece = Box::new(piece);
        let slot = core.queue().open.insert(&*piece);
        Running { piece, slot, core, level, late: Vec::new() }
    }

    fn end(mut self, end_ns: u64, attrs: &[u8], events: &[u8], failed: bool) -> Ids {
        if self.core.generation == core::generation() {
            let mut links = Vec::new();
            if let Some((trace, span)) = &self.piece.link {
                put_link(&mut links, trace, span, &[]);
            }
            let mut row = self.piece.row();
            row.end_ns = Some(end_ns);
            row.end_attrs = [&self.late, attrs];
            row.events = events;
            row.links = &links;
            if failed {
                row.status = STATUS_ERROR;
            }
            let len = row.len();
            let mut queue = self.core.queue();
            queue.open.remove(std::mem::replace(&mut self.slot, NO_SLOT));
            self.core.record_locked(&mut queue, Signal::Spans, len, |out| row.write(out));
        }
        self.slot = NO_SLOT;
        self.piece.ids
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.slot != NO_SLOT && self.core.generation == core::generation() {
            self.core.queue().open.remove(self.slot);
        }
    }
}

struct CachedEvent {
    name: Vec<u8>,
    time_ns: u64,
    attrs: Vec<u8>,
}

struct State {
    rid: String,
    enabled: bool,
    level: i64,
    start_ns: u64,
    bootstrap_room: Option<u64>,
    role: String,
    module: String,
    is_copy: bool,
    external: Option<Ids>,
    root: Option<Running>,
    /// The request's span, here or in the process where the request began.
    root_ids: Option<Ids>,
    /// The last first-level slice: the next one is linked to it.
    last: Option<Ids>,
    thread: Option<Running>,
    slices: Vec<Running>,
    events: Vec<CachedEvent>,
    pid: i64,
}

impl State {
    fn off() -> State {
        State {
            rid: String::new(),
            enabled: false,
            level: 0,
            start_ns: 0,
            bootstrap_room: None,
            role: String::new(),
            module: String::new(),
            is_copy: false,
            external: None,
            root: None,
            root_ids: None,
            last: None,
            thread: None,
            slices: Vec::new(),
            events: Vec::new(),
            pid: 0,
        }
    }

    fn skips(&self, level: i64) -> bool {
        !self.enabled || self.thread.is_none() || level > self.level
    }

    fn begin_thread(&mut self, ts: u64) {
        let (Some(core), Some((trace, root))) = (core::core(), self.root_ids) else { return };
        let number = self.pid;
        let info = lock(&THREADS).get(&number).cloned();
        let info = info.unwrap_or_else(|| Thread { label: "unknown".into(), tp: None, dp: None, pp: None });
        let mut name = info.label.clone();
        let mut attrs = SmallVec::new();
        let mut count = 3;
        for (mark, key, rank) in [("TP", "tp_rank", info.tp), ("PP", "pp_rank", info.pp), ("DP", "dp_rank", info.dp)] {
            if let Some(rank) = rank {
                name.push_str(&format!(" [{mark} {rank}] "));
                wire::int_attr(&mut attrs, attrs_of::SPAN, key.as_bytes(), rank);
                count += 1;
            }
        }
        let host = host_id();
        name.push_str(&format!("(host:{} | pid:{number})", &host[..host.len().min(8)]));
        wire::text_attr(&mut attrs, attrs_of::SPAN, b"host_id", host.as_bytes());
        wire::int_attr(&mut attrs, attrs_of::SPAN, b"pid", number);
        wire::text_attr(&mut attrs, attrs_of::SPAN, b"thread_label", info.label.as_bytes());
        let piece = Piece {
            ids: (trace, clock::new_id()),
            parent: Some(root),
            name: name.into_bytes().into(),
            start_ns: ts,
            attrs,
            count,
            link: None,
            reported: AtomicBool::new(false),
        };
        self.thread = Some(Running::start(core, piece, 0));
    }

    /// Parent and link of a slice that starts now.
    fn place(&self) -> Option<([u8; 16], [u8; 8], Option<Ids>)> {
        match self.slices.last() {
            Some(outer) => Some((outer.piece.ids.0, outer.piece.ids.1, None)),
            None => {
                let thread = self.thread.as_ref()?;
                Some((thread.piece.ids.0, thread.piece.ids.1, self.last))
            }
        }
    }

    /// Takes the cached events of a stretch of time, encoded.
    fn take_events(&mut self, from: u64, to: u64, out: &mut Vec<u8>) {
        if self.events.is_empty() {
            return;
        }
        self.events.retain(|event| {
            let inside = event.time_ns >= from && event.time_ns < to;
            if inside {
                put_event(out, &event.name, event.time_ns, &event.attrs, 0);
            }
            !inside
        });
    }

    fn abort(&mut self, ts: u64, info: Option<&[u8]>) {
        if !self.enabled {
            return;
        }
        let Some(thread) = self.thread.take() else { return };
        while let Some(slice) = self.slices.pop() {
            slice.end(ts, &[], &[], false);
        }
        let mut events = Vec::new();
        for event in self.events.drain(..) {
            put_event(&mut events, &event.name, event.time_ns, &event.attrs, 0);
        }
        thread.end(ts, info.unwrap_or_default(), &events, info.is_some());
    }

    /// Where a copy continues: the slice that runs, or the last one that ran.
    fn previous(&self) -> Option<Ids> {
        self.slices.first().map(|slice| slice.piece.ids).or(self.last)
    }
}

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

fn time(ts: Option<u64>) -> u64 {
    ts.filter(|ts| *ts > 0).unwrap_or_else(clock::now_ns)
}

fn encode(attrs: Option<&Bound<'_, PyAny>>, tag: u8) -> SmallVec<[u8; 192]> {
    let mut out = SmallVec::new();
    if let Some(attrs) = attrs {
        value::put_dict(&mut out, tag, attrs, 0);
    }
    out
}

fn name_bytes(name: &Bound<'_, PyAny>) -> SmallVec<[u8; 48]> {
    match name.cast::<PyString>().ok().and_then(|n| n.to_str().ok()) {
        Some(text) => SmallVec::from_slice(value::bounded(text)),
        None => SmallVec::from_vec(value::text_of(name).into_bytes()),
    }
}

fn warn(py: Python<'_>, text: String) {
    let _ = py.import("rollscope._errors").and_then(|m| m.getattr("warn")).and_then(|f| f.call1((text,)));
}

fn global_level() -> i64 {
    match LEVEL.load(Relaxed) {
        level if level >= 0 => level,
        _ => {
            let level = std::env::var("SGLANG_TRACE_LEVEL").ok().and_then(|t| t.trim().parse().ok()).unwrap_or(3);
            LEVEL.store(level, Relaxed);
            level
        }
    }
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
        let mut state = State { rid: value::text_of(rid), level, ..State::off() };
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
            state.pid = thread_number();
        }
        TraceReqContext { state: Mutex::new(state) }
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
        let trace_id = state.external.map_or_else(clock::new_id, |(trace, _)| trace);
        let piece = Piece {
            ids: (trace_id, clock::new_id()),
            parent: state.external.map(|(_, span)| span),
            name: format!("{role} Req {short}").into_bytes().into(),
            start_ns: ts,
            attrs,
            count,
            link: None,
            reported: AtomicBool::new(false),
        };
        state.root_ids = Some(piece.ids);
        state.root = Some(Running::start(core, piece, 0));
        state.begin_thread(ts);
    }

    /// The request is done.
    #[pyo3(signature = (ts = None, attrs = None))]
    fn trace_req_finish(&self, ts: Option<u64>, attrs: Option<&Bound<'_, PyAny>>) {
        let encoded = encode(attrs, attrs_of::SPAN);
        let mut state = lock(&self.state);
        if !state.enabled {
            return;
        }
        let Some(root) = state.root.take() else { return };
        let ts = time(ts);
        state.abort(ts, None);
        root.end(ts, &encoded, &[], false);
    }

    #[pyo3(signature = (name, level, ts = None))]
    fn trace_slice_start(&self, name: &Bound<'_, PyAny>, level: i64, ts: Option<u64>) {
        let name = name_bytes(name);
        let mut state = lock(&self.state);
        if state.skips(level) || state.slices.len() >= MAX_DEPTH {
            return;
        }
        let (Some(core), Some((trace, parent, link))) = (core::core(), state.place()) else { return };
        let piece = Piece {
            ids: (trace, clock::new_id()),
            parent: Some(parent),
            name,
            start_ns: time(ts),
            attrs: SmallVec::new(),
            count: 0,
            link,
            reported: AtomicBool::new(false),
        };
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
        let encoded = encode(attrs, attrs_of::SPAN);
        let name = name_bytes(name);
        let mut state = lock(&self.state);
        if state.skips(level) {
            return;
        }
        let Some(slice) = state.slices.pop() else {
            drop(state);
            let text = String::from_utf8_lossy(&name).into_owned();
            return Python::attach(|py| warn(py, format!("no slice has started that {text} could end")));
        };
        if slice.piece.name != name || slice.level != level {
            drop(state);
            let (asked, open) = (String::from_utf8_lossy(&name), String::from_utf8_lossy(&slice.piece.name));
            let text = format!("slice {asked} (level {level}) ends, but {open} (level {}) is open", slice.level);
            return Python::attach(|py| warn(py, text));
        }
        let ts = time(ts);
        let mut events = Vec::new();
        state.take_events(slice.piece.start_ns, ts, &mut events);
        let ids = slice.end(ts, &encoded, &events, false);
        if state.slices.is_empty() {
            state.last = Some(ids);
        }
        if thread_finish_flag {
            state.abort(ts, None);
        }
    }

    /// A slice that is over already.
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
        let encoded = encode(attrs.as_ref(), attrs_of::SPAN);
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
                let encoded = encode(attrs.as_ref(), attrs_of::EVENT);
                put_event(&mut events, &name_bytes(&name), at, &encoded, 0);
            }
        }
        let name = name_bytes(&name);
        let mut state = lock(&self.state);
        let (Some(core), Some((trace, parent, link))) = (core::core(), state.place()) else { return Ok(()) };
        state.take_events(start, end, &mut events);
        let mut links = SmallVec::<[u8; 32]>::new();
        if let Some((trace, span)) = &link {
            let mut one = Vec::with_capacity(32);
            put_link(&mut one, trace, span, &[]);
            links.extend_from_slice(&one);
        }
        let ids = (trace, clock::new_id());
        let row = Row {
            trace_id: &ids.0,
            span_id: &ids.1,
            parent_id: Some(&parent),
            trace_state: "",
            name: &name,
            kind: KIND_INTERNAL,
            start_ns: start,
            end_ns: Some(end),
            start_attrs: [&[], &[]],
            start_count: 0,
            end_attrs: [&encoded, &[]],
            dropped: 0,
            events: &events,
            links: &links,
            status: STATUS_UNSET,
            message: "",
        };
        let len = row.len();
        core.record(Signal::Spans, len, |out| row.write(out));
        if state.slices.is_empty() {
            state.last = Some(ids);
        }
        if thread_finish_flag {
            state.abort(end, None);
        }
        Ok(())
    }

    /// Something happened in the slice that runs.
    #[pyo3(signature = (name, level, ts = None, attrs = None))]
    fn trace_event(&self, name: &Bound<'_, PyAny>, level: i64, ts: Option<u64>, attrs: Option<&Bound<'_, PyAny>>) {
        let encoded = encode(attrs, attrs_of::EVENT);
        let name = name_bytes(name);
        let mut state = lock(&self.state);
        if state.skips(level) || state.events.len() >= MAX_EVENTS {
            return;
        }
        state.events.push(CachedEvent { name: name.to_vec(), time_ns: time(ts), attrs: encoded.to_vec() });
    }

    fn trace_set_root_attrs(&self, attrs: &Bound<'_, PyAny>) {
        let encoded = encode(Some(attrs), attrs_of::SPAN);
        if let Some(root) = &mut lock(&self.state).root {
            root.late.extend_from_slice(&encoded);
        }
    }

    fn trace_set_thread_attrs(&self, attrs: &Bound<'_, PyAny>) {
        let encoded = encode(Some(attrs), attrs_of::SPAN);
        if let Some(thread) = &mut lock(&self.state).thread {
            thread.late.extend_from_slice(&encoded);
        }
    }

    /// A copy has arrived in the thread that works on it.
    #[pyo3(signature = (ts = None, pid = None))]
    fn rebuild_thread_context(&self, ts: Option<u64>, pid: Option<i64>) {
        let mut state = lock(&self.state);
        if state.enabled {
            state.pid = pid.unwrap_or_else(thread_number);
            state.begin_thread(time(ts));
        }
    }

    /// A copy for another thread; it continues with `rebuild_thread_context()`.
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
                ..State::off()
            }
        };
        Ok(Bound::new(py, TraceReqContext { state: Mutex::new(copy) })?.into_any())
    }

    /// Ends whatever runs in this thread; `abort_info` marks it as failed.
    #[pyo3(signature = (ts = None, abort_info = None))]
    fn abort(&self, ts: Option<u64>, abort_info: Option<&Bound<'_, PyAny>>) {
        let info = abort_info.filter(|i| i.is_truthy().unwrap_or(false)).map(|info| {
            let json = info.call_method0("to_json").ok();
            encode(Some(json.as_ref().unwrap_or(info)), attrs_of::SPAN)
        });
        lock(&self.state).abort(time(ts), info.as_deref());
    }

    fn flush(&self) {}

    /// The trace as it travels: the same shape as SGLang's.
    fn __getstate__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let out = PyDict::new(py);
        // Copied first: making objects may run code, and that must not find the lock held.
        let copy = {
            let s = lock(&self.state);
            let root = s.root_ids.filter(|_| s.enabled);
            root.map(|root| {
                let texts = (s.rid.clone(), s.role.clone(), s.module.clone());
                (root, texts, s.bootstrap_room, s.start_ns, s.level, s.is_copy, s.pid, s.previous())
            })
        };
        let Some(((trace, root), (rid, role, module), room, start_ns, level, is_copy, pid, previous)) = copy else {
            out.set_item("tracing_enable", false)?;
            return Ok(out);
        };
        out.set_item("tracing_enable", true)?;
        out.set_item("rid", rid)?;
        out.set_item("bootstrap_room", room)?;
        out.set_item("start_time_ns", start_ns)?;
        out.set_item("role", role)?;
        out.set_item("trace_level", level)?;
        out.set_item("module_name", module)?;
        out.set_item("is_copy", is_copy)?;
        out.set_item("pid", pid)?;
        out.set_item("thread_context", py.None())?;
        out.set_item("root_span", py.None())?;
        let carrier = PyDict::new(py);
        carrier.set_item("traceparent", context::traceparent(&trace, &root))?;
        out.set_item("root_span_context", carrier)?;
        match previous {
            Some((trace, span)) => {
                let last = PyDict::new(py);
                last.set_item("span_id", u64::from_be_bytes(span))?;
                last.set_item("trace_id", u128::from_be_bytes(trace))?;
                out.set_item("last_span_context", last)?;
            }
            None => out.set_item("last_span_context", py.None())?,
        }
        Ok(out)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyDict>,))> {
        let rebuild = py.import("rollscope.sglang")?.getattr("_rebuild")?;
        Ok((rebuild, (self.__getstate__(py)?,)))
    }
}

/// A context from what travelled: a copy that continues the same request.
#[pyfunction]
fn rebuild(travelled: &Bound<'_, PyDict>) -> PyResult<TraceReqContext> {
    let get = |key: &str| travelled.get_item(key).ok().flatten().filter(|v| !v.is_none());
    let enabled: bool = get("tracing_enable").and_then(|v| v.extract().ok()).unwrap_or(false);
    let mut state = State::off();
    let root = get("root_span_context").and_then(|carrier| {
        let header = carrier.get_item("traceparent").ok()?;
        context::ids_of(&header)
    });
    let text = |key: &str| get(key).map(|v| value::text_of(&v)).unwrap_or_default();
    state.rid = text("rid");
    if enabled && root.is_some() && INITIALIZED.load(Relaxed) && core::core().is_some() {
        state.enabled = true;
        state.bootstrap_room = get("bootstrap_room").and_then(|v| v.extract().ok());
        state.start_ns = get("start_time_ns").and_then(|v| v.extract().ok()).unwrap_or(0);
        state.role = text("role");
        state.module = text("module_name");
        state.level = get("trace_level").and_then(|v| v.extract().ok()).unwrap_or(3);
        state.is_copy = true;
        state.pid = thread_number();
        state.root_ids = root;
        state.last = get("last_span_context").and_then(|last| {
            let trace: u128 = last.get_item("trace_id").ok()?.extract().ok()?;
            let span: u64 = last.get_item("span_id").ok()?.extract().ok()?;
            Some((trace.to_be_bytes(), span.to_be_bytes()))
        });
    }
    Ok(TraceReqContext { state: Mutex::new(state) })
}

#[pyfunction]
#[pyo3(signature = (on, modules = None))]
fn initialize(on: bool, modules: Option<Vec<String>>) {
    if modules.is_some() {
        *lock(&MODULES) = modules;
    }
    INITIALIZED.store(on, Relaxed);
}

#[pyfunction]
fn initialized() -> bool {
    INITIALIZED.load(Relaxed)
}

/// Names the thread that calls, the first time it does.
#[pyfunction]
#[pyo3(signature = (thread_label, tp_rank = None, dp_rank = None, pp_rank = None))]
fn trace_set_thread_info(
    thread_label: &Bound<'_, PyAny>,
    tp_rank: Option<i64>,
    dp_rank: Option<i64>,
    pp_rank: Option<i64>,
) {
    if INITIALIZED.load(Relaxed) {
        let label = value::text_of(thread_label);
        let info = Thread { label, tp: tp_rank, dp: dp_rank, pp: pp_rank };
        lock(&THREADS).entry(thread_number()).or_insert(info);
    }
}

#[pyfunction]
fn set_global_trace_level(level: i64) {
    LEVEL.store(level.max(0), Relaxed);
}

#[pyfunction]
fn get_global_trace_level() -> i64 {
    global_level()
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let sglang = crate::submodule(module, "sglang")?;
    sglang.add_class::<TraceReqContext>()?;
    sglang.add_function(wrap_pyfunction!(rebuild, &sglang)?)?;
    sglang.add_function(wrap_pyfunction!(initialize, &sglang)?)?;
    sglang.add_function(wrap_pyfunction!(initialized, &sglang)?)?;
    sglang.add_function(wrap_pyfunction!(trace_set_thread_info, &sglang)?)?;
    sglang.add_function(wrap_pyfunction!(set_global_trace_level, &sglang)?)?;
    sglang.add_function(wrap_pyfunction!(get_global_trace_level, &sglang)?)
}
