//! The recorder behind `rollscope` for Python: clock, ids, attributes, spans, the queue and the thread that sends.
//!
//! The path of a span: [`span`] writes its attributes as protobuf as soon as they are given ([`args`], [`value`], [`wire`]).
//! While it runs, [`open`] knows where it is. At its end, [`row`] puts the span's bytes into the shared buffer of the [`core`].
//! The [`sender`] wraps full buffers and sends them ([`transport`]) or keeps them on disk ([`spill`]). [`context`] knows the
//! current span. [`slime`] and [`sglang`] are the same core under those systems' names. Everything that need not be fast is
//! Python, in `rollscope/`.

mod args;
mod clock;
mod config;
mod context;
mod core;
mod errors;
mod held;
mod no_span;
mod open;
mod row;
mod sender;
mod sglang;
mod slime;
mod span;
mod spill;
mod split;
mod stacks;
mod transport;
mod value;
mod wire;

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::config::{Config, Endpoint, Exporter, Protocol, Resource};
use crate::core::{Signal, lock};

/// Takes settings and starts recording. Python has read the environment and resolved every default.
#[pyfunction]
fn configure(settings: &Bound<'_, PyDict>) -> PyResult<()> {
    fn need<'py, T: for<'a> FromPyObject<'a, 'py>>(settings: &Bound<'py, PyDict>, key: &str) -> PyResult<T> {
        let value = settings.get_item(key)?.ok_or_else(|| pyo3::exceptions::PyKeyError::new_err(key.to_string()))?;
        value.extract::<T>().map_err(Into::into)
    }
    let seconds = |key: &str| need::<f64>(settings, key).map(|s| Duration::from_secs_f64(s.clamp(0.0, 1e9)));
    let exporter = match need::<String>(settings, "exporter")?.as_str() {
        "memory" => Exporter::Memory,
        "drop" => Exporter::Drop,
        _ => Exporter::Network(Endpoint {
            host: need(settings, "host")?,
            port: need(settings, "port")?,
            tls: need(settings, "tls")?,
            prefix: need(settings, "prefix")?,
            protocol: match need::<String>(settings, "protocol")?.as_str() {
                "http" => Protocol::Http,
                _ => Protocol::Grpc,
            },
            headers: need(settings, "headers")?,
            ca_file: need(settings, "ca_file")?,
        }),
    };
    core::configure(Config {
        exporter,
        resource: Resource(Mutex::new(need(settings, "resource")?)),
        queue_bytes: need(settings, "queue_bytes")?,
        spill_dir: need(settings, "spill_dir")?,
        spill_bytes: need(settings, "spill_bytes")?,
        flush_interval: seconds("flush_interval")?.max(Duration::from_millis(1)),
        timeout: seconds("timeout")?.max(Duration::from_millis(1)),
        pending_after: seconds("pending_after")?,
        stats_interval: seconds("stats_interval")?,
    });
    Ok(())
}

/// Replaces the attributes that everything is sent with.
#[pyfunction]
fn set_resource(attributes: Vec<(String, String)>) {
    if let Some(core) = core::core() {
        *lock(&core.config.resource.0) = attributes;
        core.set_resource(core.config.resource.encode());
    }
}

#[pyfunction]
fn get_resource() -> Vec<(String, String)> {
    core::core().map(|core| lock(&core.config.resource.0).clone()).unwrap_or_default()
}

#[pyfunction]
fn set_level(level: u8) {
    core::set_level(level);
}

#[pyfunction]
fn get_level() -> u8 {
    core::own_level()
}

#[pyfunction]
fn enabled() -> bool {
    core::level() > 0
}

#[pyfunction]
fn switch(on: bool) {
    if on {
        core::switch_on();
    } else {
        core::switch_off();
    }
}

/// A record that is no span: run, metrics, conversation, media. Returns whether there was room for it.
#[pyfunction]
#[pyo3(signature = (name, attrs, body = None, time_ns = None, with_context = false))]
fn record(
    py: Python<'_>,
    name: &str,
    attrs: &Bound<'_, PyDict>,
    body: Option<&Bound<'_, PyAny>>,
    time_ns: Option<u64>,
    with_context: bool,
) -> bool {
    let Some(core) = core::core() else { return false };
    let mut encoded = Vec::new();
    for (key, item) in attrs.iter() {
        let key = value::text_of(&key);
        // JSON texts have their own bound, set where they are made.
        match item.cast::<pyo3::types::PyString>().ok().and_then(|t| t.to_str().ok()) {
            Some(text) => wire::text_attr(&mut encoded, wire::attrs_of::LOG, key.as_bytes(), text.as_bytes()),
            None => value::put_named(&mut encoded, wire::attrs_of::LOG, key.as_bytes(), &item),
        }
    }
    let body = body.map(|body| {
        use wire::Out;
        let mut any = Vec::new();
        if let Ok(bytes) = body.cast::<PyBytes>() {
            any.field(0x3a, bytes.as_bytes());
        } else if let Ok(text) = body.cast::<pyo3::types::PyString>().map(|t| t.to_str().unwrap_or_default()) {
            any.field(0x0a, text.as_bytes());
        } else if let Ok(columns) = body.cast::<PyDict>() {
            value::put_columns(&mut any, columns);
        } else {
            value::any_value(&mut any, body, 0);
        }
        any
    });
    let ids = with_context.then(|| context::current(py).as_ref().and_then(context::ids_of)).flatten();
    let time = time_ns.unwrap_or_else(clock::now_ns);
    core::record_event(core, name, time, &encoded, body.as_deref(), ids.as_ref().map(|(t, s)| (t, s)))
}

/// The number in a scalar of numpy or torch, or a plain number. `None` for anything else.
#[pyfunction]
fn as_number(value: &Bound<'_, PyAny>) -> Option<f64> {
    value.extract::<f64>().ok().or_else(|| value::scalar(value)?.extract().ok())
}

#[pyfunction]
fn now_ns() -> u64 {
    clock::now_ns()
}

#[pyfunction]
fn random_bytes(py: Python<'_>, count: usize) -> PyResult<Bound<'_, PyBytes>> {
    PyBytes::new_with(py, count.min(1 << 16), |out| {
        clock::system_random(out);
        Ok(())
    })
}

/// Reads a `traceparent`; `None` if it is none.
#[pyfunction]
#[pyo3(signature = (traceparent, trace_state = ""))]
fn parse_context(traceparent: &str, trace_state: &str) -> Option<context::SpanContext> {
    let (trace_id, span_id) = context::parse_traceparent(traceparent)?;
    Some(context::SpanContext { trace_id, span_id, trace_state: trace_state.into() })
}

/// The context of a span, a context or OpenTelemetry's span; of the current span without an argument.
#[pyfunction]
#[pyo3(signature = (of = None))]
fn context_of<'py>(py: Python<'py>, of: Option<Bound<'py, PyAny>>) -> Option<context::SpanContext> {
    let found = of.or_else(|| context::current(py))?;
    if let Ok(context) = found.cast::<context::SpanContext>() {
        return Some(context.get().clone());
    }
    let (trace_id, span_id) = context::ids_of(&found)?;
    Some(context::SpanContext { trace_id, span_id, trace_state: String::new() })
}

#[pyfunction]
fn stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let out = PyDict::new(py);
    let Some(core) = core::core() else { return Ok(out) };
    let c = &core.counters;
    for (name, counter) in [
        ("sent", &c.sent),
        ("spilled", &c.spilled),
        ("recovered", &c.recovered),
        ("rejected", &c.rejected),
        ("errors", &c.errors),
        ("requests", &c.requests),
        ("thread_cpu_ns", &c.thread_cpu_ns),
    ] {
        out.set_item(name, counter.load(Relaxed))?;
    }
    let (recorded, dropped) = core.totals();
    out.set_item("recorded", recorded)?;
    out.set_item("dropped", dropped)?;
    out.set_item("queued_bytes", core.queue().bytes)?;
    out.set_item("last_error", lock(&core.last_error).clone())?;
    Ok(out)
}

/// What was lost so far, and how much of it after it had found room: records that are no spans.
#[pyfunction]
fn losses() -> (u64, u64) {
    let Some(core) = core::core() else { return (0, 0) };
    let rejected = core.counters.rejected.load(Relaxed);
    (core.totals().1 + rejected, core.counters.records_lost.load(Relaxed))
}

#[pyfunction]
fn count_error() {
    if let Some(core) = core::core() {
        core.counters.errors.fetch_add(1, Relaxed);
    }
}

/// A signal that nobody uses.
#[pyfunction]
fn free_signal() -> Option<i32> {
    stacks::free_signal()
}

/// This process can report its stacks: the end of a pipe that wakes whoever does, and without that, the file that `faulthandler`
/// writes to on a signal.
#[pyfunction]
fn stacks_ready(wake: i32, dump: i32, signal: i32) {
    stacks::ready(wake, dump, signal);
}

#[pyfunction]
fn report_stacks(text: String) {
    stacks::report(text);
}

/// Waits until everything recorded so far has reached the server. Returns whether it has.
#[pyfunction]
fn flush(py: Python<'_>, timeout: f64) -> bool {
    let Some(core) = core::core() else { return true };
    if matches!(core.config.exporter, Exporter::Memory) || !core.started() {
        return true;
    }
    let deadline = Instant::now() + Duration::from_secs_f64(timeout.clamp(0.0, 1e6));
    py.detach(|| {
        let mut orders = lock(&core.orders);
        if orders.closed {
            return false;
        }
        orders.flush_asked += 1;
        let asked = orders.flush_asked;
        core.nudge();
        while orders.flush_done < asked && !orders.closed {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            orders = core.done.wait_timeout(orders, left).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        orders.flush_sent
    })
}

/// The end of the process: sends what there is time for, keeps the rest on disk. Nothing is recorded after it.
#[pyfunction]
fn shutdown(py: Python<'_>, timeout: f64) {
    let Some(core) = core::core() else { return };
    core::switch_off();
    if !core.started() || matches!(core.config.exporter, Exporter::Memory) {
        return;
    }
    let patience = Duration::from_secs_f64(timeout.clamp(0.0, 1e6));
    let deadline = Instant::now() + patience;
    py.detach(|| {
        let mut orders = lock(&core.orders);
        if orders.closed {
            return;
        }
        orders.close = Some(deadline);
        core.nudge();
        core.wake.notify_one();
        while !orders.closed {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            orders = core.done.wait_timeout(orders, left).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        let answered = orders.closed;
        orders.closed = true;
        drop(orders);
        core.close_for_good();
        if !answered {
            core.note_error("the server did not answer before the process ended".into());
            sender::rescue(core);
        }
    });
}

/// What the in-memory exporter holds: (is it spans, resource, bytes) each. Taken out.
#[pyfunction]
#[allow(clippy::type_complexity)]
fn take_memory(py: Python<'_>) -> Vec<(bool, Bound<'_, PyBytes>, Bound<'_, PyBytes>)> {
    let Some(core) = core::core() else { return Vec::new() };
    let chunks: Vec<core::Chunk> = {
        let mut queue = core.queue();
        queue.seal(Signal::Spans);
        queue.seal(Signal::Records);
        queue.bytes = 0;
        queue.full.drain(..).collect()
    };
    chunks
        .iter()
        .map(|c| (c.signal == Signal::Spans, PyBytes::new(py, &c.resource), PyBytes::new(py, &c.bytes)))
        .collect()
}

/// For tests: a clock that starts at `now_ns` and moves `tick_ns` with every look, and ids that count.
#[pyfunction]
#[pyo3(signature = (now_ns = None, tick_ns = 1000))]
fn fake_clock(now_ns: Option<u64>, tick_ns: u64) {
    clock::fake(now_ns, tick_ns);
}

#[pyfunction]
fn advance_clock(ns: u64) {
    clock::advance(ns);
}

/// A module inside this one, where `import rollscope._core.NAME` finds it too.
fn submodule<'py>(module: &Bound<'py, PyModule>, name: &str) -> PyResult<Bound<'py, PyModule>> {
    let path = format!("rollscope._core.{name}");
    let inner = PyModule::new(module.py(), &path)?;
    module.add(name, &inner)?;
    module.py().import("sys")?.getattr("modules")?.set_item(path, &inner)?;
    Ok(inner)
}

#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<no_span::NoSpan>()?;
    module.add_class::<context::SpanContext>()?;
    module.add_class::<context::Attached>()?;
    module.add_function(wrap_pyfunction!(configure, module)?)?;
    module.add_function(wrap_pyfunction!(set_resource, module)?)?;
    module.add_function(wrap_pyfunction!(get_resource, module)?)?;
    module.add_function(wrap_pyfunction!(set_level, module)?)?;
    module.add_function(wrap_pyfunction!(get_level, module)?)?;
    module.add_function(wrap_pyfunction!(enabled, module)?)?;
    module.add_function(wrap_pyfunction!(switch, module)?)?;
    module.add_function(wrap_pyfunction!(record, module)?)?;
    module.add_function(wrap_pyfunction!(as_number, module)?)?;
    module.add_function(wrap_pyfunction!(now_ns, module)?)?;
    module.add_function(wrap_pyfunction!(random_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(parse_context, module)?)?;
    module.add_function(wrap_pyfunction!(context_of, module)?)?;
    module.add_function(wrap_pyfunction!(stats, module)?)?;
    module.add_function(wrap_pyfunction!(losses, module)?)?;
    module.add_function(wrap_pyfunction!(count_error, module)?)?;
    module.add_function(wrap_pyfunction!(free_signal, module)?)?;
    module.add_function(wrap_pyfunction!(stacks_ready, module)?)?;
    module.add_function(wrap_pyfunction!(report_stacks, module)?)?;
    module.add_function(wrap_pyfunction!(flush, module)?)?;
    module.add_function(wrap_pyfunction!(shutdown, module)?)?;
    module.add_function(wrap_pyfunction!(take_memory, module)?)?;
    module.add_function(wrap_pyfunction!(fake_clock, module)?)?;
    module.add_function(wrap_pyfunction!(advance_clock, module)?)?;
    module.add_function(wrap_pyfunction!(context::set_bridge, module)?)?;
    module.add_function(wrap_pyfunction!(context::drop_bridge, module)?)?;
    span::register(module)?;
    slime::register(module)?;
    sglang::register(module)
}
