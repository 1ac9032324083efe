//! What Python sees of a span.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::Span;
use crate::args::{self, Attrs};
use crate::context::{self, SpanContext};
use crate::value;
use crate::wire::{self, attrs_of};

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

    /// Records that something happened.
    #[pyo3(signature = (name, attrs = None, *, time_ns = None))]
    fn event(&self, name: &Bound<'_, PyAny>, attrs: Option<&Bound<'_, PyAny>>, time_ns: Option<u64>) {
        self.push_event(name, args::time(time_ns), attrs);
    }

    /// The same under OpenTelemetry's name.
    #[pyo3(signature = (name, attributes = None, timestamp = None))]
    fn add_event(&self, name: &Bound<'_, PyAny>, attributes: Option<&Bound<'_, PyAny>>, timestamp: Option<u64>) {
        self.push_event(name, args::time(timestamp), attributes);
    }

    /// Adds a link to another span: a span, a context or a `traceparent`.
    #[pyo3(signature = (context, attributes = None))]
    pub(super) fn add_link(&self, context: &Bound<'_, PyAny>, attributes: Option<&Bound<'_, PyAny>>) {
        let Some((trace_id, span_id)) = context::ids_of(context) else { return };
        self.push_link(&trace_id, &span_id, &Attrs::read(attributes, attrs_of::LINK).bytes);
    }

    /// `"ok"`, `"error"` or `"unset"`, and why. OpenTelemetry's `Status` and `StatusCode` are understood.
    #[pyo3(signature = (status, description = None))]
    fn set_status(&self, status: &Bound<'_, PyAny>, description: Option<&Bound<'_, PyAny>>) {
        let inner = status.getattr("status_code").ok();
        let mut text = description.map(value::text_of);
        if text.is_none() && inner.is_some() {
            text = status.getattr("description").ok().filter(|d| !d.is_none()).map(|d| value::text_of(&d));
        }
        let code = args::status(inner.as_ref().unwrap_or(status));
        self.set_state(code, text.as_deref().unwrap_or(""));
    }

    /// Records an exception without ending the span.
    #[pyo3(signature = (exception, *_args, **_kwargs))]
    fn record_exception(
        &self,
        exception: &Bound<'_, PyAny>,
        _args: &Bound<'_, PyTuple>,
        _kwargs: Option<&Bound<'_, PyDict>>,
    ) {
        self.fail(exception);
    }

    /// Ends the span. A second call does nothing.
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
