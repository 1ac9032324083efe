//! Rows of `spans`.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Builder, Int64Array, Int64Builder, RecordBatch, StringBuilder, UInt32Array};
use arrow::buffer::ScalarBuffer;
use arrow::error::ArrowError;

use super::columns::{AttrsColumn, DictColumn, EventsColumn, IdColumn, LinksColumn};
use crate::attrs::Value;
use crate::ids::{SpanId, TraceId};
use crate::tables::Table;

/// An event for [`SpansBuilder::push`].
#[derive(Clone, Debug)]
pub struct NewEvent<'a> {
    pub time_ns: i64,
    pub name: &'a str,
    pub attrs: &'a [(&'a str, Value)],
}

/// A link for [`SpansBuilder::push`].
#[derive(Clone, Debug)]
pub struct NewLink<'a> {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    pub attrs: &'a [(&'a str, Value)],
}

/// Named arguments of [`SpansBuilder::push`].
#[derive(Clone, Debug)]
pub struct NewSpan<'a> {
    pub run_id: &'a str,
    pub step: Option<i64>,
    pub trace_id: TraceId,
    pub span_id: SpanId,
    pub parent_span_id: Option<SpanId>,
    pub name: &'a str,
    pub kind: &'a str,
    pub service: &'a str,
    pub phase: Option<&'a str>,
    pub thread: Option<&'a str>,
    pub host: Option<&'a str>,
    pub pid: Option<i64>,
    pub tp_rank: Option<i32>,
    pub dp_rank: Option<i32>,
    pub pp_rank: Option<i32>,
    pub start_ns: i64,
    pub end_ns: Option<i64>,
    pub state: &'a str,
    pub status: &'a str,
    pub status_message: Option<&'a str>,
    pub sample_id: Option<&'a str>,
    pub group_id: Option<&'a str>,
    pub attempt: Option<i32>,
    pub request_id: Option<&'a str>,
    pub bootstrap_room: Option<&'a str>,
    pub start_attrs: &'a [(&'a str, Value)],
    pub end_attrs: &'a [(&'a str, Value)],
    pub events: &'a [NewEvent<'a>],
    pub links: &'a [NewLink<'a>],
    /// JSON object.
    pub resource: &'a str,
    /// JSON object.
    pub scope: &'a str,
    pub original_trace_id: Option<&'a str>,
    pub original_span_id: Option<&'a str>,
    pub original_parent_span_id: Option<&'a str>,
}

impl Default for NewSpan<'_> {
    fn default() -> Self {
        NewSpan {
            run_id: "",
            step: None,
            trace_id: [0; 16],
            span_id: [0; 8],
            parent_span_id: None,
            name: "",
            kind: "internal",
            service: "",
            phase: None,
            thread: None,
            host: None,
            pid: None,
            tp_rank: None,
            dp_rank: None,
            pp_rank: None,
            start_ns: 0,
            end_ns: None,
            state: "closed",
            status: "unset",
            status_message: None,
            sample_id: None,
            group_id: None,
            attempt: None,
            request_id: None,
            bootstrap_room: None,
            start_attrs: &[],
            end_attrs: &[],
            events: &[],
            links: &[],
            resource: "{}",
            scope: "{}",
            original_trace_id: None,
            original_span_id: None,
            original_parent_span_id: None,
        }
    }
}

/// The columns of `spans`, in the order of the schema. Public, so that the OTLP decoder can write them one by one.
#[derive(Default)]
pub struct SpansBuilder {
    pub run_id: DictColumn,
    pub step: Int64Builder,
    pub trace_id: IdColumn<16>,
    pub span_id: IdColumn<8>,
    pub parent_span_id: IdColumn<8>,
    pub name: DictColumn,
    pub kind: DictColumn,
    pub service: DictColumn,
    pub phase: DictColumn,
    pub thread: DictColumn,
    pub host: DictColumn,
    pub pid: Int64Builder,
    pub tp_rank: Int32Builder,
    pub dp_rank: Int32Builder,
    pub pp_rank: Int32Builder,
    pub start_ns: Vec<i64>,
    pub end_ns: Int64Builder,
    pub state: DictColumn,
    pub status: DictColumn,
    pub status_message: DictColumn,
    pub sample_id: DictColumn,
    pub group_id: DictColumn,
    pub attempt: Int32Builder,
    pub request_id: DictColumn,
    pub bootstrap_room: DictColumn,
    pub start_attrs: AttrsColumn,
    pub end_attrs: AttrsColumn,
    pub events: EventsColumn,
    pub links: LinksColumn,
    pub resource: DictColumn,
    pub scope: DictColumn,
    pub trace_state: DictColumn,
    pub flags: Vec<u32>,
    pub dropped_attrs: Vec<u32>,
    pub dropped_events: Vec<u32>,
    pub dropped_links: Vec<u32>,
    pub original_trace_id: StringBuilder,
    pub original_span_id: StringBuilder,
    pub original_parent_span_id: StringBuilder,
}

impl SpansBuilder {
    pub fn len(&self) -> usize {
        self.start_ns.len()
    }

    pub fn is_empty(&self) -> bool {
        self.start_ns.is_empty()
    }

    pub fn push(&mut self, s: &NewSpan) {
        self.run_id.push(s.run_id);
        self.step.append_option(s.step);
        self.trace_id.push(&s.trace_id);
        self.span_id.push(&s.span_id);
        self.parent_span_id.push_opt(s.parent_span_id.as_ref());
        self.name.push(s.name);
        self.kind.push(s.kind);
        self.service.push(s.service);
        self.phase.push_opt(s.phase);
        self.thread.push_opt(s.thread);
        self.host.push_opt(s.host);
        self.pid.append_option(s.pid);
        self.tp_rank.append_option(s.tp_rank);
        self.dp_rank.append_option(s.dp_rank);
        self.pp_rank.append_option(s.pp_rank);
        self.start_ns.push(s.start_ns);
        self.end_ns.append_option(s.end_ns);
        self.state.push(s.state);
        self.status.push(s.status);
        self.status_message.push_opt(s.status_message);
        self.sample_id.push_opt(s.sample_id);
        self.group_id.push_opt(s.group_id);
        self.attempt.append_option(s.attempt);
        self.request_id.push_opt(s.request_id);
        self.bootstrap_room.push_opt(s.bootstrap_room);
        self.start_attrs.push(s.start_attrs);
        self.end_attrs.push(s.end_attrs);
        for e in s.events {
            for (key, value) in e.attrs {
                self.events.attrs.put(key, value);
            }
            self.events.push_event(e.time_ns, e.name, 0);
        }
        self.events.end_row();
        for l in s.links {
            for (key, value) in l.attrs {
                self.links.attrs.put(key, value);
            }
            self.links.push_link(&l.trace_id, &l.span_id, None, 0, 0);
        }
        self.links.end_row();
        self.resource.push(s.resource);
        self.scope.push(s.scope);
        self.trace_state.push_opt(None);
        self.flags.push(0);
        self.dropped_attrs.push(0);
        self.dropped_events.push(0);
        self.dropped_links.push(0);
        self.original_trace_id.append_option(s.original_trace_id);
        self.original_span_id.append_option(s.original_span_id);
        self.original_parent_span_id.append_option(s.original_parent_span_id);
    }

    pub fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let start: ScalarBuffer<i64> = std::mem::take(&mut self.start_ns).into();
        let u32s = |v: &mut Vec<u32>| Arc::new(UInt32Array::from(std::mem::take(v))) as ArrayRef;
        let columns: Vec<ArrayRef> = vec![
            self.run_id.finish(),
            Arc::new(self.step.finish()),
            self.trace_id.finish(),
            self.span_id.finish(),
            self.parent_span_id.finish(),
            self.name.finish(),
            self.kind.finish(),
            self.service.finish(),
            self.phase.finish(),
            self.thread.finish(),
            self.host.finish(),
            Arc::new(self.pid.finish()),
            Arc::new(self.tp_rank.finish()),
            Arc::new(self.dp_rank.finish()),
            Arc::new(self.pp_rank.finish()),
            Arc::new(Int64Array::new(start, None)),
            Arc::new(self.end_ns.finish()),
            self.state.finish(),
            self.status.finish(),
            self.status_message.finish(),
            self.sample_id.finish(),
            self.group_id.finish(),
            Arc::new(self.attempt.finish()),
            self.request_id.finish(),
            self.bootstrap_room.finish(),
            self.start_attrs.finish(),
            self.end_attrs.finish(),
            self.events.finish(),
            self.links.finish(),
            self.resource.finish(),
            self.scope.finish(),
            self.trace_state.finish(),
            u32s(&mut self.flags),
            u32s(&mut self.dropped_attrs),
            u32s(&mut self.dropped_events),
            u32s(&mut self.dropped_links),
            Arc::new(self.original_trace_id.finish()),
            Arc::new(self.original_span_id.finish()),
            Arc::new(self.original_parent_span_id.finish()),
        ];
        RecordBatch::try_new(Table::Spans.schema(), columns)
    }
}
