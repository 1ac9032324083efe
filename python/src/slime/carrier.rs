//! slime's carriers: the dict on a sample that holds its events, kept exactly as slime keeps it, and the handles on it.

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::clock;
use crate::wire;

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
pub(super) struct Target<'py> {
    pub(super) carrier: Bound<'py, PyDict>,
    pub(super) events: Bound<'py, PyList>,
    pub(super) trace: Bound<'py, PyAny>,
    pub(super) sample_id: Bound<'py, PyAny>,
    pub(super) group_id: Bound<'py, PyAny>,
    pub(super) attempt: Bound<'py, PyAny>,
    pub(super) parent: Option<Bound<'py, PyString>>,
    /// What the caller handed in, where it was a handle.
    pub(super) handle: Option<Bound<'py, PyAny>>,
}

/// A new id as slime has it: as text, and its digits and bytes.
pub(super) fn new_hex<'py>(py: Python<'py>) -> (Bound<'py, PyString>, [u8; 32], [u8; 16]) {
    let raw: [u8; 16] = clock::new_id();
    let text = wire::hex::<16, 32>(&raw);
    // SAFETY: hex digits are ASCII.
    (PyString::new(py, unsafe { std::str::from_utf8_unchecked(&text) }), text, raw)
}

pub(super) fn setdefault<'py>(
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

pub(super) fn as_int<'py>(value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if value.is_exact_instance_of::<PyInt>() {
        return Ok(value);
    }
    value.py().get_type::<PyInt>().call1((value,))
}

/// What a carrier holds if there is nothing to add to it and nothing to change, as it is from the second span on: its keys are
/// read in one pass, in the order in which they were written. Looking up each takes three times as long.
fn whole<'py>(
    carrier: &Bound<'py, PyDict>,
    sample_id: &Bound<'py, PyAny>,
    group_id: &Bound<'py, PyAny>,
) -> Option<Target<'py>> {
    let py = carrier.py();
    let keys = [
        intern!(py, "version"),
        intern!(py, "trace_id"),
        intern!(py, "events"),
        intern!(py, "sample_id"),
        intern!(py, "group_id"),
        intern!(py, "attempt"),
    ];
    let values = with_critical_section(carrier.as_any(), || {
        let (mut place, mut key, mut value) = (0, std::ptr::null_mut(), std::ptr::null_mut());
        let mut values = [const { None }; 6];
        for (expected, found) in keys.iter().zip(&mut values) {
            // SAFETY: nothing in the loop runs Python code, so the dict does not change, and what it lends is an object.
            unsafe {
                if ffi::PyDict_Next(carrier.as_ptr(), &mut place, &mut key, &mut value) == 0 || key != expected.as_ptr()
                {
                    return None;
                }
                *found = Some(Bound::from_borrowed_ptr(py, value));
            }
        }
        Some(values)
    })?;
    let [_, Some(trace), Some(events), Some(sample), Some(group), Some(attempt)] = values else { return None };
    let stays = |there: &Bound<'py, PyAny>, given: &Bound<'py, PyAny>| given.is_none() || there.is(given);
    if !stays(&sample, sample_id) || !stays(&group, group_id) || !attempt.is_exact_instance_of::<PyInt>() {
        return None;
    }
    Some(Target {
        carrier: carrier.clone(),
        events: events.cast_into().ok()?,
        trace,
        sample_id: sample,
        group_id: group,
        attempt,
        parent: None,
        handle: None,
    })
}

/// Makes sure that a carrier is whole, in the order in which slime writes its keys.
pub(super) fn ensure<'py>(
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
    let events = events.map_err(|_| PyTypeError::new_err("carrier['events'] must be a list"))?;
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
pub(super) fn bind_sample<'py>(sample: &Bound<'py, PyAny>) -> PyResult<Option<Target<'py>>> {
    let py = sample.py();
    // This one first: texts and lists have an `index` too.
    let Some(group) = sample.getattr_opt(intern!(py, "group_index"))? else { return Ok(None) };
    let Some(index) = sample.getattr_opt(intern!(py, "index"))? else { return Ok(None) };
    let trace = sample.getattr_opt(intern!(py, "trace"))?.filter(|t| !t.is_none());
    let carrier = match trace {
        Some(trace) => {
            Some(trace.cast_into::<PyDict>().map_err(|_| PyTypeError::new_err("sample.trace must be a dict"))?)
        }
        None => None,
    };
    if let Some(target) = carrier.as_ref().and_then(|carrier| whole(carrier, &index, &group)) {
        return Ok(Some(target));
    }
    let is_new = carrier.is_none();
    let target = ensure(py, carrier, None, index, group, None)?;
    if is_new {
        sample.setattr(intern!(py, "trace"), &target.carrier)?;
    }
    Ok(Some(target))
}

pub(super) fn from_handle<'py>(handle: &Bound<'py, PyAny>) -> PyResult<Target<'py>> {
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
    let carrier = carrier.cast_into::<PyDict>().map_err(|_| PyTypeError::new_err("handle.carrier must be a dict"))?;
    let events = carrier.get_item(intern!(py, "events"))?.and_then(|e| e.cast_into::<PyList>().ok());
    let events = events.ok_or_else(|| PyTypeError::new_err("handle.carrier['events'] must be a list"))?;
    let attempt = as_int(carrier.get_item(intern!(py, "attempt"))?.unwrap_or(attempt))?;
    let handle = Some(handle.clone());
    Ok(Target { carrier, events, trace, sample_id, group_id, attempt, parent: text(parent), handle })
}

pub(super) fn is_handle(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<TraceHandle>()
        || (value.hasattr("carrier").unwrap_or(false) && value.hasattr("parent_span_id").unwrap_or(false))
}

/// slime's box around a prompt and what was generated from it.
pub(super) fn unbox<'py>(value: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    if value.get_type().name().ok()?.to_str().ok()? != "SampleBox" {
        return None;
    }
    let (prompt, generation) = (value.getattr("prompt_sample").ok()?, value.getattr("generation").ok()?);
    Some(if generation.is_truthy().unwrap_or(false) { generation } else { prompt })
}

pub(super) fn collect<'py>(target: &Bound<'py, PyAny>, out: &mut Vec<Target<'py>>, depth: usize) -> PyResult<()> {
    if depth > MAX_NESTING || out.len() > MAX_TARGETS {
        return Err(PyTypeError::new_err(format!(
            "more than {MAX_TARGETS} targets, or nested more than {MAX_NESTING} levels deep"
        )));
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

/// The entries of one call: copies of one dict, in which only what differs from the sample before is set.
pub(super) struct Entries<'py> {
    entry: Bound<'py, PyDict>,
    /// What `entry` holds, and so keeps alive, in the order of [`Entries::of`]. Only compared.
    held: [*mut ffi::PyObject; 5],
}

impl<'py> Entries<'py> {
    pub(super) fn new(
        py: Python<'py>,
        kind: &'static str,
        name: &Bound<'py, PyAny>,
        time: &Bound<'py, PyAny>,
    ) -> PyResult<Entries<'py>> {
        let entry = PyDict::new(py);
        entry.set_item(intern!(py, "type"), PyString::intern(py, kind))?;
        entry.set_item(intern!(py, "name"), name)?;
        entry.set_item(intern!(py, "ts"), time)?;
        Ok(Entries { entry, held: [std::ptr::null_mut(); 5] })
    }

    /// One sample's entry, with the id of its span if it is of one.
    pub(super) fn of(
        &mut self,
        target: &Target<'py>,
        span_id: Option<&Bound<'py, PyString>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let py = self.entry.py();
        let parts = [
            (intern!(py, "trace_id"), Some(&target.trace)),
            (intern!(py, "sample_id"), Some(&target.sample_id)),
            (intern!(py, "group_id"), Some(&target.group_id)),
            (intern!(py, "attempt"), Some(&target.attempt)),
            (intern!(py, "span_id"), span_id.map(|id| id.as_any())),
        ];
        for ((key, value), held) in parts.into_iter().zip(&mut self.held) {
            if let Some(value) = value
                && value.as_ptr() != *held
            {
                self.entry.set_item(key, value)?;
                *held = value.as_ptr();
            }
        }
        self.entry.copy()
    }
}

pub(super) fn seconds(py: Python<'_>, ns: u64) -> Bound<'_, PyAny> {
    // As Python's time.time() makes it.
    PyFloat::new(py, ns as f64 / 1e9).into_any()
}

pub(super) fn copy<'py>(attrs: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    match attrs.cast_exact::<PyDict>() {
        Ok(dict) => dict.copy(),
        Err(_) => Ok(attrs.py().get_type::<PyDict>().call1((attrs,))?.cast_into::<PyDict>()?),
    }
}

pub(super) fn handle_of(py: Python<'_>, target: &Target<'_>) -> PyResult<Py<PyAny>> {
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

/// A handle on a carrier that is whole.
pub(super) fn bind_carrier<'py>(carrier: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    let py = carrier.py();
    let none = || py.None().into_bound(py);
    let target = ensure(py, Some(carrier.clone()), None, none(), none(), None)?;
    Ok(handle_of(py, &target)?.into_bound(py))
}
