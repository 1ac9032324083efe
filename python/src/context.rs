//! Which span is the current one: a `contextvars.ContextVar`, so it follows threads, tasks and callbacks as Python's own
//! context does. The C functions behind it are not in the stable interface, so they are looked up, with the methods as
//! the way that always works.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString};

use crate::slime::SlimeSpan;
use crate::span::Span;
use crate::wire;

type Get = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject, *mut *mut ffi::PyObject) -> c_int;
type Set = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> *mut ffi::PyObject;
type Reset = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> c_int;

struct Functions {
    get: Get,
    set: Set,
    reset: Reset,
}

fn functions() -> Option<&'static Functions> {
    static FOUND: OnceLock<Option<Functions>> = OnceLock::new();
    fn find(name: &CStr) -> Option<*mut c_void> {
        // SAFETY: a lookup by name in what is loaded.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
    FOUND
        .get_or_init(|| {
            let (get, set, reset) =
                (find(c"PyContextVar_Get")?, find(c"PyContextVar_Set")?, find(c"PyContextVar_Reset")?);
            // SAFETY: CPython has had these signatures since 3.7.
            unsafe {
                Some(Functions {
                    get: std::mem::transmute::<*mut c_void, Get>(get),
                    set: std::mem::transmute::<*mut c_void, Set>(set),
                    reset: std::mem::transmute::<*mut c_void, Reset>(reset),
                })
            }
        })
        .as_ref()
}

/// A context variable whose default is `None`.
pub struct Var(PyOnceLock<Py<PyAny>>, &'static str);

pub static CURRENT: Var = Var(PyOnceLock::new(), "rollscope_span");
/// slime's nesting, by trace: see [`crate::slime`].
pub static SLIME: Var = Var(PyOnceLock::new(), "rollscope_slime");

impl Var {
    fn var<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyAny>> {
        let var = self.0.get_or_try_init(py, || {
            let options = PyDict::new(py);
            options.set_item("default", py.None())?;
            Ok::<_, PyErr>(py.import("contextvars")?.getattr("ContextVar")?.call((self.1,), Some(&options))?.unbind())
        })?;
        Ok(var.bind(py))
    }

    #[inline]
    pub fn get<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let var = self.var(py).ok()?;
        let value = match functions() {
            Some(f) => {
                let mut value = std::ptr::null_mut();
                // SAFETY: `var` is a ContextVar; the value comes as a new reference, or null with an error or without.
                let value = unsafe {
                    if (f.get)(var.as_ptr(), std::ptr::null_mut(), &mut value) < 0 {
                        ffi::PyErr_Clear();
                    }
                    Bound::from_owned_ptr_or_opt(py, value)
                };
                value?
            }
            None => var.call_method0("get").ok()?,
        };
        (!value.is_none()).then_some(value)
    }

    /// Sets, and returns what takes it back.
    #[inline]
    pub fn set<'py>(&self, value: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
        let py = value.py();
        let var = self.var(py).ok()?;
        match functions() {
            Some(f) => {
                // SAFETY: `var` is a ContextVar; the token comes as a new reference, or null with an error.
                let token = unsafe { Bound::from_owned_ptr_or_opt(py, (f.set)(var.as_ptr(), value.as_ptr())) };
                if token.is_none() {
                    drop(PyErr::take(py));
                }
                token
            }
            None => var.call_method1("set", (value,)).ok(),
        }
    }

    /// A token of another context (a generator that is closed elsewhere) is let go: that context is not the current one.
    #[inline]
    pub fn reset(&self, token: &Bound<'_, PyAny>) {
        let py = token.py();
        let Ok(var) = self.var(py) else { return };
        match functions() {
            // SAFETY: both are what they say; an error is cleared.
            Some(f) => unsafe {
                if (f.reset)(var.as_ptr(), token.as_ptr()) < 0 {
                    ffi::PyErr_Clear();
                }
            },
            None => drop(var.call_method1("reset", (token,))),
        }
    }
}

/// A span of another process or another library.
#[pyclass(frozen, module = "rollscope")]
#[derive(Clone)]
pub struct SpanContext {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    pub trace_state: String,
}

#[pymethods]
impl SpanContext {
    #[new]
    #[pyo3(signature = (trace_id, span_id, trace_state = ""))]
    fn new(trace_id: &str, span_id: &str, trace_state: &str) -> PyResult<SpanContext> {
        let mut context = SpanContext { trace_id: [0; 16], span_id: [0; 8], trace_state: trace_state.into() };
        let valid = wire::unhex(trace_id.as_bytes(), &mut context.trace_id)
            && wire::unhex(span_id.as_bytes(), &mut context.span_id);
        match valid {
            true => Ok(context),
            false => {
                Err(pyo3::exceptions::PyValueError::new_err("expected 32 hex digits for trace_id and 16 for span_id"))
            }
        }
    }

    /// 32 hex digits.
    #[getter(trace_id)]
    fn trace_id_text(&self) -> String {
        String::from_utf8_lossy(&wire::hex::<16, 32>(&self.trace_id)).into_owned()
    }

    /// 16 hex digits.
    #[getter(span_id)]
    fn span_id_text(&self) -> String {
        String::from_utf8_lossy(&wire::hex::<8, 16>(&self.span_id)).into_owned()
    }

    #[getter(trace_state)]
    fn trace_state_text(&self) -> &str {
        &self.trace_state
    }

    /// The W3C header.
    #[getter]
    pub fn traceparent(&self) -> String {
        traceparent(&self.trace_id, &self.span_id)
    }

    fn __repr__(&self) -> String {
        format!("SpanContext({})", self.traceparent())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<SpanContext>().is_ok_and(|o| o.get().trace_id == self.trace_id && o.get().span_id == self.span_id)
    }

    fn __hash__(&self) -> u64 {
        u64::from_be_bytes(self.span_id)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String, String, String))> {
        let this = slf.get();
        let parts = (this.trace_id_text(), this.span_id_text(), this.trace_state.clone());
        Ok((slf.get_type().into_any(), parts))
    }
}

pub fn traceparent(trace_id: &[u8; 16], span_id: &[u8; 8]) -> String {
    let (trace, span) = (wire::hex::<16, 32>(trace_id), wire::hex::<8, 16>(span_id));
    format!("00-{}-{}-01", String::from_utf8_lossy(&trace), String::from_utf8_lossy(&span))
}

/// Reads a W3C `traceparent`. Future versions may have more fields.
pub fn parse_traceparent(text: &str) -> Option<([u8; 16], [u8; 8])> {
    let mut parts = text.trim().split('-');
    let (version, trace, span) = (parts.next()?, parts.next()?, parts.next()?);
    parts.next()?;
    let (mut trace_id, mut span_id, mut v) = ([0; 16], [0; 8], [0; 1]);
    let valid = wire::unhex(version.as_bytes(), &mut v)
        && v[0] != 0xff
        && wire::unhex(trace.as_bytes(), &mut trace_id)
        && wire::unhex(span.as_bytes(), &mut span_id)
        && trace_id != [0; 16]
        && span_id != [0; 8];
    valid.then_some((trace_id, span_id))
}

/// OpenTelemetry's context, while the bridge is up: three functions written in Python.
pub struct Bridge {
    /// Their current span: ours, or a pair of ids, or `None`.
    current: Py<PyAny>,
    enter: Py<PyAny>,
    exit: Py<PyAny>,
}

static BRIDGE: PyOnceLock<Bridge> = PyOnceLock::new();
static BRIDGED: AtomicBool = AtomicBool::new(false);

#[pyfunction]
pub fn set_bridge(py: Python<'_>, current: Py<PyAny>, enter: Py<PyAny>, exit: Py<PyAny>) {
    let _ = BRIDGE.set(py, Bridge { current, enter, exit });
    BRIDGED.store(true, Ordering::Release);
}

#[pyfunction]
pub fn drop_bridge() {
    BRIDGED.store(false, Ordering::Release);
}

#[inline]
fn bridge(py: Python<'_>) -> Option<&Bridge> {
    if BRIDGED.load(Ordering::Relaxed) { BRIDGE.get(py) } else { None }
}

/// The current span: ours, or a foreign one as a [`SpanContext`].
#[inline]
pub fn current(py: Python<'_>) -> Option<Bound<'_, PyAny>> {
    if let Some(bridge) = bridge(py) {
        return match bridge.current.bind(py).call0() {
            Ok(found) => (!found.is_none()).then_some(found),
            Err(_) => CURRENT.get(py),
        };
    }
    CURRENT.get(py)
}

/// Makes a span the current one; the token undoes it.
#[inline]
pub fn enter<'py>(span: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    let py = span.py();
    let token = CURRENT.set(span);
    if let Some(bridge) = bridge(py) {
        let theirs = bridge.enter.bind(py).call1((span,)).ok();
        return pyo3::types::PyTuple::new(py, [token, theirs]).ok().map(Bound::into_any);
    }
    token
}

#[inline]
pub fn exit(token: &Bound<'_, PyAny>) {
    let py = token.py();
    if let Ok(pair) = token.cast_exact::<pyo3::types::PyTuple>() {
        if let (Some(bridge), Ok(theirs)) = (bridge(py), pair.get_item(1)) {
            let _ = bridge.exit.bind(py).call1((theirs,));
        }
        if let Ok(ours) = pair.get_item(0)
            && !ours.is_none()
        {
            CURRENT.reset(&ours);
        }
        return;
    }
    CURRENT.reset(token);
}

/// Ids of a span, a context, or any object of OpenTelemetry's that has them.
pub fn ids_of(value: &Bound<'_, PyAny>) -> Option<([u8; 16], [u8; 8])> {
    if let Ok(span) = value.cast::<Span>() {
        let open = &span.get().open;
        return Some((open.trace_id, open.span_id));
    }
    if let Ok(context) = value.cast::<SpanContext>() {
        return Some((context.get().trace_id, context.get().span_id));
    }
    if let Ok(span) = value.cast::<SlimeSpan>() {
        return span.get().ids();
    }
    if let Ok(text) = value.cast::<PyString>() {
        return parse_traceparent(text.to_str().ok()?);
    }
    // OpenTelemetry's: a span, or a span context.
    let context = match value.call_method0("get_span_context") {
        Ok(context) => context,
        Err(_) => value.clone(),
    };
    let trace: u128 = context.getattr("trace_id").ok()?.extract().ok()?;
    let span: u64 = context.getattr("span_id").ok()?.extract().ok()?;
    (trace != 0 && span != 0).then(|| (trace.to_be_bytes(), span.to_be_bytes()))
}

/// Makes another context the current one inside a `with` block. With `None`, there is no current span inside.
#[pyclass(module = "rollscope")]
pub struct Attached {
    context: Option<Py<PyAny>>,
    token: Option<Py<PyAny>>,
}

#[pymethods]
impl Attached {
    #[new]
    fn new(context: Option<Py<PyAny>>) -> Attached {
        Attached { context, token: None }
    }

    fn __enter__(&mut self, py: Python<'_>) -> Option<Py<PyAny>> {
        let context = self.context.as_ref().map_or_else(|| py.None(), |c| c.clone_ref(py));
        self.token = enter(context.bind(py)).map(Bound::unbind);
        self.context.as_ref().map(|c| c.clone_ref(py))
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&mut self, py: Python<'_>, _args: &Bound<'_, pyo3::types::PyTuple>) -> bool {
        if let Some(token) = self.token.take() {
            exit(token.bind(py));
        }
        false
    }
}
