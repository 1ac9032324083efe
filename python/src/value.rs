//! Python values into OTLP's `AnyValue`. Nothing here raises: what cannot be written becomes its bounded `repr`.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet, PyString, PyTuple,
};

use crate::wire::{self, Out};

/// Longer texts are cut.
pub const MAX_TEXT_BYTES: usize = 1 << 20;
/// What `repr` may bring.
const MAX_REPR_BYTES: usize = 4096;
/// Deeper values become their `repr`.
const MAX_DEPTH: usize = 8;
/// Members of a list or a dict that are kept.
const MAX_MEMBERS: usize = 4096;
/// Attributes of one span, event or record.
pub const MAX_ATTRIBUTES: usize = 512;
/// All attributes of one span.
const MAX_ATTRIBUTE_BYTES: usize = 8 << 20;

/// Appends the attributes of a dict (or mapping); returns how many were written and how many were left out.
#[inline]
pub fn put_dict(out: &mut impl Out, tag: u8, attrs: &Bound<'_, PyAny>, written: usize) -> (usize, usize) {
    let Ok(dict) = attrs.cast::<PyDict>() else { return put_other(out, tag, attrs, written) };
    let mut kept = 0;
    let simple = with_critical_section(dict.as_any(), || {
        let mut place = 0;
        let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: nothing in the loop runs Python code, so the dict does not change, and what it lends stays.
        unsafe {
            while ffi::PyDict_Next(dict.as_ptr(), &mut place, &mut key, &mut value) != 0 {
                if written + kept >= MAX_ATTRIBUTES || !put_simple(out, tag, key, value) {
                    return false;
                }
                kept += 1;
            }
        }
        true
    });
    if simple { (kept, 0) } else { put_rest(out, tag, dict, written, kept) }
}

/// Goes on where a value was met whose writing may run Python code: over a copy, which that code cannot change.
#[cold]
fn put_rest(out: &mut impl Out, tag: u8, dict: &Bound<'_, PyDict>, written: usize, mut kept: usize) -> (usize, usize) {
    let mut dropped = 0;
    if let Ok(copy) = dict.copy() {
        for (key, value) in copy.iter().skip(kept) {
            if written + kept >= MAX_ATTRIBUTES {
                dropped += 1;
            } else {
                put(out, tag, &key, &value);
                kept += 1;
            }
        }
    }
    (kept, dropped)
}

#[cold]
fn put_other(out: &mut impl Out, tag: u8, attrs: &Bound<'_, PyAny>, written: usize) -> (usize, usize) {
    if attrs.is_none() {
        return (0, 0);
    }
    let py = attrs.py();
    let copied = PyDict::new(py);
    match copied.call_method1("update", (attrs,)) {
        Ok(_) => put_rest(out, tag, &copied, written, 0),
        Err(_) => {
            put(out, tag, PyString::intern(py, "attrs").as_any(), attrs);
            (1, 0)
        }
    }
}

/// The text of a `str`, as long as it lives.
///
/// # Safety
/// `object` is a `str`.
#[inline(always)]
unsafe fn utf8<'a>(object: *mut ffi::PyObject) -> Option<&'a str> {
    let mut len = 0;
    // SAFETY: it is a `str`; its UTF-8 is kept with it.
    unsafe {
        let text = ffi::PyUnicode_AsUTF8AndSize(object, &mut len);
        if text.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        Some(std::str::from_utf8_unchecked(std::slice::from_raw_parts(text.cast(), len as usize)))
    }
}

/// Appends an attribute if that runs no Python code; false if it would.
///
/// # Safety
/// Both are objects, and the caller holds Python's lock.
#[inline(always)]
unsafe fn put_simple(out: &mut impl Out, tag: u8, key: *mut ffi::PyObject, value: *mut ffi::PyObject) -> bool {
    // SAFETY: the type is looked at before the value is read as one.
    unsafe {
        if ffi::Py_TYPE(key) != &raw mut ffi::PyUnicode_Type {
            return false;
        }
        let Some(key) = utf8(key) else { return false };
        let key = bounded(key);
        let kind = ffi::Py_TYPE(value);
        if kind == &raw mut ffi::PyUnicode_Type {
            let Some(text) = utf8(value) else { return false };
            wire::text_attr(out, tag, key, bounded(text));
        } else if kind == &raw mut ffi::PyLong_Type {
            let mut overflow = 0;
            let number = ffi::PyLong_AsLongLongAndOverflow(value, &mut overflow);
            if overflow != 0 {
                return false;
            }
            wire::int_attr(out, tag, key, number);
        } else if kind == &raw mut ffi::PyFloat_Type {
            wire::double_attr(out, tag, key, ffi::PyFloat_AsDouble(value));
        } else if kind == &raw mut ffi::PyBool_Type {
            wire::bool_attr(out, tag, key, value == ffi::Py_True());
        } else {
            return false;
        }
        true
    }
}

/// Appends one attribute.
#[inline]
pub fn put(out: &mut impl Out, tag: u8, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) {
    // SAFETY: both are objects, and we hold Python's lock.
    if unsafe { put_simple(out, tag, key.as_ptr(), value.as_ptr()) } {
        return;
    }
    match key.cast::<PyString>().ok().and_then(|k| k.to_str().ok()) {
        Some(text) => put_named(out, tag, bounded(text), value),
        None => put_named(out, tag, repr(key).as_bytes(), value),
    }
}

#[inline]
pub fn put_named(out: &mut impl Out, tag: u8, key: &[u8], value: &Bound<'_, PyAny>) {
    if let Ok(text) = value.cast_exact::<PyString>()
        && let Ok(text) = text.to_str()
    {
        return wire::text_attr(out, tag, key, bounded(text));
    }
    if value.is_exact_instance_of::<PyFloat>()
        && let Ok(number) = value.extract::<f64>()
    {
        return wire::double_attr(out, tag, key, number);
    }
    if value.is_exact_instance_of::<PyInt>()
        && let Ok(number) = value.extract::<i64>()
    {
        return wire::int_attr(out, tag, key, number);
    }
    if let Ok(flag) = value.cast_exact::<PyBool>() {
        return wire::bool_attr(out, tag, key, flag.is_true());
    }
    let mut any = Vec::new();
    any_value(&mut any, value, 0);
    wire::raw_attr(out, tag, key, &any);
}

/// Appends the fields of an `AnyValue`.
pub fn any_value(out: &mut Vec<u8>, value: &Bound<'_, PyAny>, depth: usize) {
    clear_error(value.py(), || write_any(out, value, depth));
}

fn write_any(out: &mut Vec<u8>, value: &Bound<'_, PyAny>, depth: usize) {
    if out.len() > MAX_ATTRIBUTE_BYTES {
        return;
    }
    if value.is_none() {
    } else if let Ok(flag) = value.cast::<PyBool>() {
        out.put(&[0x10, u8::from(flag.is_true())]);
    } else if let Ok(text) = value.cast::<PyString>() {
        match text.to_str() {
            Ok(text) => out.field(0x0a, bounded(text)),
            // Lone surrogates.
            Err(_) => out.field(0x0a, bounded(&text.to_string_lossy())),
        }
    } else if value.is_instance_of::<PyFloat>() {
        number(out, value);
    } else if value.is_instance_of::<PyInt>() {
        match value.extract::<i64>() {
            Ok(n) => {
                out.byte(0x18);
                out.varint(n as u64);
            }
            Err(_) => out.field(0x0a, repr(value).as_bytes()),
        }
    } else if let Ok(bytes) = value.cast::<PyBytes>() {
        let bytes = bytes.as_bytes();
        out.field(0x3a, &bytes[..bytes.len().min(MAX_TEXT_BYTES)]);
    } else if let Ok(bytes) = value.cast::<PyByteArray>() {
        let bytes = bytes.to_vec();
        out.field(0x3a, &bytes[..bytes.len().min(MAX_TEXT_BYTES)]);
    } else if depth < MAX_DEPTH && is_sequence(value) {
        let mut list = Vec::new();
        if let Ok(items) = value.try_iter() {
            for item in items.take(MAX_MEMBERS).map_while(Result::ok) {
                let mut one = Vec::new();
                write_any(&mut one, &item, depth + 1);
                list.field(0x0a, &one);
            }
        }
        out.field(0x2a, &list);
    } else if depth < MAX_DEPTH
        && let Ok(dict) = value.cast::<PyDict>()
    {
        let mut map = Vec::new();
        if let Ok(copy) = dict.copy() {
            for (key, item) in copy.iter().take(MAX_MEMBERS) {
                let mut one = Vec::new();
                write_any(&mut one, &item, depth + 1);
                let name = match key.cast::<PyString>().ok().and_then(|k| k.to_str().ok()) {
                    Some(text) => text.to_string(),
                    None => repr(&key),
                };
                wire::raw_attr(&mut map, wire::attrs_of::MAP, bounded(&name), &one);
            }
        }
        out.field(0x32, &map);
    } else if let Some(item) = scalar(value) {
        // What a scalar of numpy or torch holds is a plain value; anything else would not come to an end.
        write_any(out, &item, MAX_DEPTH);
    } else {
        out.field(0x0a, repr(value).as_bytes());
    }
}

/// Appends a map in which bytes and texts are written whole: they have their own bound, set where they are made.
pub fn put_columns(out: &mut Vec<u8>, columns: &Bound<'_, PyDict>) {
    let mut map = Vec::new();
    for (name, column) in columns.iter() {
        let mut one = Vec::new();
        if let Ok(bytes) = column.cast::<PyBytes>() {
            one.field(0x3a, bytes.as_bytes());
        } else if let Some(text) = column.cast::<PyString>().ok().and_then(|text| text.to_str().ok()) {
            one.field(0x0a, text.as_bytes());
        } else {
            any_value(&mut one, &column, 1);
        }
        wire::raw_attr(&mut map, wire::attrs_of::MAP, text_of(&name).as_bytes(), &one);
    }
    out.field(0x32, &map);
}

fn is_sequence(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyList>()
        || value.is_instance_of::<PyTuple>()
        || value.is_instance_of::<PySet>()
        || value.is_instance_of::<PyFrozenSet>()
}

fn number(out: &mut Vec<u8>, value: &Bound<'_, PyAny>) {
    match value.extract::<f64>() {
        Ok(n) => out.fixed64(0x21, n.to_bits()),
        Err(_) => out.field(0x0a, repr(value).as_bytes()),
    }
}

/// The plain value inside a scalar of numpy, or a torch tensor of one element.
pub fn scalar<'py>(value: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    let item = value.call_method0("item").ok()?;
    let plain = item.is_instance_of::<PyBool>()
        || item.is_instance_of::<PyInt>()
        || item.is_instance_of::<PyFloat>()
        || item.is_instance_of::<PyString>();
    plain.then_some(item)
}

fn repr(value: &Bound<'_, PyAny>) -> String {
    let text = value.repr().map(|text| text.to_string_lossy().into_owned());
    match text {
        Ok(mut text) => {
            let end = floor(&text, MAX_REPR_BYTES);
            if end < text.len() {
                text.truncate(end);
                text.push('…');
            }
            text
        }
        Err(_) => {
            let name = value.get_type().name().map(|n| n.to_string()).unwrap_or_default();
            format!("<{name} without a repr>")
        }
    }
}

fn floor(text: &str, mut at: usize) -> usize {
    if at >= text.len() {
        return text.len();
    }
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[inline]
pub fn bounded(text: &str) -> &[u8] {
    if text.len() <= MAX_TEXT_BYTES { text.as_bytes() } else { &text.as_bytes()[..floor(text, MAX_TEXT_BYTES)] }
}

/// A text of any object, bounded: itself if it is a text.
pub fn text_of(value: &Bound<'_, PyAny>) -> String {
    match value.cast::<PyString>() {
        Ok(text) => String::from_utf8_lossy(bounded(&text.to_string_lossy())).into_owned(),
        Err(_) => match value.str() {
            Ok(text) => String::from_utf8_lossy(bounded(&text.to_string_lossy())).into_owned(),
            Err(_) => repr(value),
        },
    }
}

/// The attribute of an identity: text as it is, a whole number as a number.
pub fn put_id(out: &mut impl Out, tag: u8, key: &[u8], value: &Bound<'_, PyAny>) {
    if value.is_exact_instance_of::<PyInt>() || value.is_exact_instance_of::<PyString>() {
        put_named(out, tag, key, value);
    } else {
        wire::text_attr(out, tag, key, text_of(value).as_bytes());
    }
}

/// Errors of Python that came up in between are ours, not the caller's.
fn clear_error<R>(py: Python<'_>, work: impl FnOnce() -> R) -> R {
    let result = work();
    drop(PyErr::take(py));
    result
}
