//! `rollscope.span`, `rollscope.event` and `rollscope.current_span`.

use pyo3::prelude::*;

use super::{MAX_LINKS, Span, Start};
use crate::args::{self, Attrs};
use crate::clock;
use crate::context;
use crate::core;
use crate::no_span::no_span;
use crate::row::Row;
use crate::wire::attrs_of;

/// Starts a span. In a `with` block, it is the current span and ends with the block. Otherwise, call `end()`.
#[pyfunction]
#[pyo3(signature = (name, attrs = None, *, phase = None, level = 1, step = None, sample = None, group = None,
                    attempt = None, kind = None, links = None, parent = None, start_ns = None, root = false))]
#[allow(clippy::too_many_arguments)]
pub fn span<'py>(
    name: &Bound<'py, PyAny>,
    attrs: Option<&Bound<'py, PyAny>>,
    phase: Option<&Bound<'py, PyAny>>,
    level: u8,
    step: Option<&Bound<'py, PyAny>>,
    sample: Option<&Bound<'py, PyAny>>,
    group: Option<&Bound<'py, PyAny>>,
    attempt: Option<&Bound<'py, PyAny>>,
    kind: Option<&Bound<'py, PyAny>>,
    links: Option<&Bound<'py, PyAny>>,
    parent: Option<&Bound<'py, PyAny>>,
    start_ns: Option<u64>,
    root: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = name.py();
    if core::level() < level.max(1) {
        return no_span(py);
    }
    let Some(core) = core::core() else { return no_span(py) };
    let start = Start { attrs, phase, step, sample, group, attempt, parent, kind: args::kind(kind), start_ns, root };
    let span = Span::start(core, name, &start)?;
    if let Some(links) = links
        && let Ok(list) = links.try_iter()
    {
        for link in list.flatten().take(MAX_LINKS as usize) {
            span.get().add_link(&link, None);
        }
    }
    Ok(span.into_any())
}

/// Records that something happened: as an event of the current span, or as an instant if there is no current span.
#[pyfunction]
#[pyo3(signature = (name, attrs = None, *, level = 1, time_ns = None))]
pub fn event(
    name: &Bound<'_, PyAny>,
    attrs: Option<&Bound<'_, PyAny>>,
    level: u8,
    time_ns: Option<u64>,
) -> PyResult<()> {
    let py = name.py();
    if core::level() < level.max(1) {
        return Ok(());
    }
    let time = args::time(time_ns);
    let current = context::current(py);
    if let Some(span) = current.as_ref().and_then(|c| c.cast::<Span>().ok())
        && span.get().push_event(name, time, attrs)
    {
        return Ok(());
    }
    let Some(core) = core::core() else { return Ok(()) };
    let parent = current.as_ref().and_then(context::ids_of);
    let identity = current.as_ref().and_then(|c| c.cast::<Span>().ok()).and_then(|s| s.get().open.identity.clone());
    let (identity, identity_count) = identity.as_ref().map_or((&[][..], 0), |i| (&i.bytes[..], i.count));
    let attrs = Attrs::read(attrs, attrs_of::SPAN);
    let trace_id = parent.map_or_else(clock::new_id, |(trace, _)| trace);
    core.record_row(&Row {
        parent_id: parent.as_ref().map(|(_, span)| span),
        start_attrs: [identity, &attrs.bytes],
        start_count: identity_count + attrs.count,
        ..Row::instant((&trace_id, &clock::new_id()), &args::name(name), time)
    });
    Ok(())
}

/// The current span as our own variable has it, whatever OpenTelemetry's says.
#[pyfunction]
pub fn own_current(py: Python<'_>) -> Option<Bound<'_, PyAny>> {
    context::CURRENT.get(py)
}

/// The current span, or `None`.
#[pyfunction]
pub fn current_span(py: Python<'_>) -> Option<Bound<'_, PyAny>> {
    context::current(py)
}
