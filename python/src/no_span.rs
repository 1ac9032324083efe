//! What `span` gives where nothing is recorded: it takes every call and does nothing.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::context::SpanContext;

/// Stands in for a span while nothing is recorded.
#[pyclass(frozen, module = "rollscope")]
pub struct NoSpan;

#[pymethods]
impl NoSpan {
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> Bound<'py, Self> {
        slf.clone()
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, _args: &Bound<'_, PyTuple>) -> bool {
        false
    }

    #[pyo3(signature = (*_args, **_kwargs))]
    fn set<'py>(
        slf: &Bound<'py, Self>,
        _args: &Bound<'py, PyTuple>,
        _kwargs: Option<&Bound<'py, PyDict>>,
    ) -> Bound<'py, Self> {
        slf.clone()
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn set_attr<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> Bound<'py, Self> {
        Self::set(slf, args, kwargs)
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn update<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> Bound<'py, Self> {
        Self::set(slf, args, kwargs)
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn update_attrs<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> Bound<'py, Self> {
        Self::set(slf, args, kwargs)
    }

    #[pyo3(signature = (*_args, **_kwargs))]
    fn set_attribute(&self, _args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) {}

    #[pyo3(signature = (*_args, **_kwargs))]
    fn set_attributes(&self, _args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) {}

    #[pyo3(signature = (*_args, **_kwargs))]
    fn event(&self, _args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) {}

    #[pyo3(signature = (*_args, **_kwargs))]
    fn add_event(&self, _args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) {}

    #[pyo3(signature = (*_args, **_kwargs))]
    fn add_link(&self, _args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) {}

    #[pyo3(signature = (*_args, **_kwargs))]
    fn set_status(&self, _args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) {}

    #[pyo3(signature = (*_args, **_kwargs))]
    fn record_exception(&self, _args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) {}

    #[pyo3(signature = (*_args, **_kwargs))]
    fn update_name(&self, _args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) {}

    #[pyo3(signature = (*_args, **_kwargs))]
    fn end(&self, _args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) {}

    fn is_recording(&self) -> bool {
        false
    }

    #[getter]
    fn trace_id(&self) -> &'static str {
        ""
    }

    #[getter]
    fn span_id(&self) -> &'static str {
        ""
    }

    #[getter]
    fn name(&self) -> &'static str {
        ""
    }

    #[getter]
    fn start_ns(&self) -> u64 {
        0
    }

    #[getter]
    fn step(&self) -> Option<i64> {
        None
    }

    #[getter]
    fn context(&self) -> Option<SpanContext> {
        None
    }

    #[getter]
    fn traceparent(&self) -> &'static str {
        ""
    }

    fn get_span_context<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("rollscope._otel")?.getattr("span_context")?.call1((0, 0))
    }

    fn __repr__(&self) -> &'static str {
        "<Span: not recording>"
    }
}

pub fn no_span(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static ONE: PyOnceLock<Py<NoSpan>> = PyOnceLock::new();
    Ok(ONE.get_or_try_init(py, || Py::new(py, NoSpan))?.bind(py).clone().into_any())
}
