//! What `span` gives where nothing is recorded: it takes every call and does nothing.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::context::SpanContext;

/// Stands in for a span while nothing is recorded.
#[pyclass(frozen, module = "rollscope")]
pub struct NoSpan;

/// PyO3 wants all methods of a class in one block, so the block is made here.
macro_rules! no_span {
    (chain: $($chain:ident)*; ignore: $($ignore:ident)*; $($rest:tt)*) => {
        #[pymethods]
        impl NoSpan {
            $(
                #[pyo3(signature = (*_args, **_kwargs))]
                fn $chain<'py>(
                    slf: &Bound<'py, Self>,
                    _args: &Bound<'py, PyTuple>,
                    _kwargs: Option<&Bound<'py, PyDict>>,
                ) -> Bound<'py, Self> {
                    slf.clone()
                }
            )*
            $(
                #[pyo3(signature = (*_args, **_kwargs))]
                fn $ignore(&self, _args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) {}
            )*
            $($rest)*
        }
    };
}

no_span! {
    chain: set set_attr update update_attrs;
    ignore: set_attribute set_attributes event add_event add_link set_status record_exception update_name end;

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> Bound<'py, Self> {
        slf.clone()
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, _args: &Bound<'_, PyTuple>) -> bool {
        false
    }

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
