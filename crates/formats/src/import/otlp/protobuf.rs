//! Protobuf `ExportTraceServiceRequest` straight into columns. A hand-written walker over the wire format: generated
//! structs would allocate every key and value only to throw them away. Unknown fields are passed over.

use rollscope_model::attrs;

use super::span::{Attrs, Entity, Event, Fault, Link, Reason, Resource, Scope, Span, Val, push_entity};
use super::write::Writer;
use super::{DecodeOptions, Limits};
use crate::import::wire::Wire;

type Result<T> = std::result::Result<T, Fault>;

pub(super) fn request(bytes: &[u8], writer: &mut Writer) -> Result<()> {
    let mut span = Span::default();
    let mut w = Wire::new(bytes);
    while let Some((field, wire)) = w.tag()? {
        match field {
            1 => resource_spans(w.message(wire)?, &mut span, writer)?,
            _ => w.skip(wire)?,
        }
    }
    Ok(())
}

/// Fields may come in any order and the resource is needed first, so this walks its (few) fields twice.
fn resource_spans<'a>(message: Wire<'a>, span: &mut Span<&'a str>, writer: &mut Writer) -> Result<()> {
    let mut resource = Ok(Resource::default());
    let mut schema_url = Ok("");
    let mut w = message;
    while let Some((field, wire)) = w.tag()? {
        match field {
            1 => resource = only_bad(read_resource(w.message(wire)?, &writer.options.limits))?,
            3 => schema_url = only_bad(w.text_field(wire))?,
            _ => w.skip(wire)?,
        }
    }
    let reason = resource.as_ref().err().or(schema_url.as_ref().err()).copied();
    writer.begin_resource(reason.map_or(resource.as_ref().map_err(|r| *r), Err));
    let mut w = message;
    while let Some((field, wire)) = w.tag()? {
        match field {
            2 => scope_spans(w.message(wire)?, span, writer)?,
            _ => w.skip(wire)?,
        }
    }
    writer.end_resource(schema_url.unwrap_or_default())
}

fn scope_spans<'a>(message: Wire<'a>, span: &mut Span<&'a str>, writer: &mut Writer) -> Result<()> {
    let mut scope = Ok(Scope::default());
    let mut schema_url = Ok("");
    let mut w = message;
    while let Some((field, wire)) = w.tag()? {
        match field {
            1 => scope = only_bad(read_scope(w.message(wire)?, &writer.options.limits))?,
            3 => schema_url = only_bad(w.text_field(wire))?,
            _ => w.skip(wire)?,
        }
    }
    let reason = scope.as_ref().err().or(schema_url.as_ref().err()).copied();
    writer.begin_scope(reason.map_or(scope.as_ref().map_err(|r| *r), Err));
    let mut w = message;
    while let Some((field, wire)) = w.tag()? {
        match field {
            2 => {
                let message = w.message(wire)?;
                let done = match writer.refused() {
                    Some(reason) => Err(reason),
                    None => match only_bad(read_span(message, span, writer.options))? {
                        Ok(()) => writer.span(span),
                        Err(reason) => Err(reason),
                    },
                };
                if let Err(reason) = done {
                    writer.rejects.add(reason, 1);
                }
            }
            _ => w.skip(wire)?,
        }
    }
    writer.end_scope(schema_url.unwrap_or_default());
    Ok(())
}

/// Tells what spoils one span from what spoils the request.
fn only_bad<T>(result: std::result::Result<T, impl Into<Fault>>) -> Result<std::result::Result<T, Reason>> {
    match result.map_err(Into::into) {
        Ok(value) => Ok(Ok(value)),
        Err(Fault::Bad(reason)) => Ok(Err(reason)),
        Err(malformed) => Err(malformed),
    }
}

fn read_resource<'a>(mut w: Wire<'a>, limits: &Limits) -> Result<Resource<&'a str>> {
    let mut resource = Resource::default();
    while let Some((field, wire)) = w.tag()? {
        match field {
            1 => key_value(w.message(wire)?, &mut resource.attrs, 0, limits)?,
            2 => resource.dropped = w.uint(wire)? as u32,
            3 => push_entity(&mut resource.entities, read_entity(w.message(wire)?)?)?,
            _ => w.skip(wire)?,
        }
    }
    Ok(resource)
}

fn read_entity(mut w: Wire<'_>) -> Result<Entity<&str>> {
    let mut entity = Entity::default();
    while let Some((field, wire)) = w.tag()? {
        match field {
            1 => entity.schema_url = w.text_field(wire)?,
            2 => entity.kind = w.text_field(wire)?,
            3 => push_entity(&mut entity.id_keys, w.text_field(wire)?)?,
            4 => push_entity(&mut entity.description_keys, w.text_field(wire)?)?,
            _ => w.skip(wire)?,
        }
    }
    Ok(entity)
}

fn read_scope<'a>(mut w: Wire<'a>, limits: &Limits) -> Result<Scope<&'a str>> {
    let mut scope = Scope::default();
    while let Some((field, wire)) = w.tag()? {
        match field {
            1 => scope.name = w.text_field(wire)?,
            2 => scope.version = w.text_field(wire)?,
            3 => key_value(w.message(wire)?, &mut scope.attrs, 0, limits)?,
            4 => scope.dropped = w.uint(wire)? as u32,
            _ => w.skip(wire)?,
        }
    }
    Ok(scope)
}

fn read_span<'a>(mut w: Wire<'a>, span: &mut Span<&'a str>, options: &DecodeOptions) -> Result<()> {
    let limits = &options.limits;
    span.clear();
    while let Some((field, wire)) = w.tag()? {
        match field {
            1 => span.trace_id = id(w.message(wire)?, Reason::TraceId)?,
            2 => span.span_id = id(w.message(wire)?, Reason::SpanId)?,
            3 => span.trace_state = w.text_field(wire)?,
            4 => span.parent_id = id(w.message(wire)?, Reason::ParentId)?,
            5 => span.name = w.text_field(wire)?,
            6 => span.kind = w.uint(wire)? as i32,
            7 => span.start = w.fixed64(wire)?,
            8 => span.end = w.fixed64(wire)?,
            9 => key_value(w.message(wire)?, &mut span.attrs, 0, limits)?,
            10 => span.dropped_attrs = w.uint(wire)? as u32,
            11 => {
                if span.events.len() >= limits.events_per_span {
                    return Err(Reason::Events(limits.events_per_span).into());
                }
                read_event(w.message(wire)?, span, limits)?;
            }
            12 => span.dropped_events = w.uint(wire)? as u32,
            13 => {
                if span.links.len() >= limits.links_per_span {
                    return Err(Reason::Links(limits.links_per_span).into());
                }
                read_link(w.message(wire)?, span, limits)?;
            }
            14 => span.dropped_links = w.uint(wire)? as u32,
            15 => {
                let mut status = w.message(wire)?;
                while let Some((field, wire)) = status.tag()? {
                    match field {
                        2 => span.status_message = status.text_field(wire)?,
                        3 => span.status = status.uint(wire)? as i32,
                        _ => status.skip(wire)?,
                    }
                }
            }
            16 => span.flags = w.fixed32(wire)?,
            _ => w.skip(wire)?,
        }
    }
    Ok(())
}

/// An id of N bytes; none at all is zero.
#[inline]
fn id<const N: usize>(w: Wire, reason: Reason) -> Result<[u8; N]> {
    if w.bytes.is_empty() {
        return Ok([0; N]);
    }
    w.bytes.try_into().map_err(|_| reason.into())
}

fn read_event<'a>(mut w: Wire<'a>, span: &mut Span<&'a str>, limits: &Limits) -> Result<()> {
    let from = span.event_attrs.list.len();
    let mut event = Event { time: 0, name: "", dropped: 0, attrs_end: 0 };
    while let Some((field, wire)) = w.tag()? {
        match field {
            1 => event.time = w.fixed64(wire)?,
            2 => event.name = w.text_field(wire)?,
            3 => key_value(w.message(wire)?, &mut span.event_attrs, from, limits)?,
            4 => event.dropped = w.uint(wire)? as u32,
            _ => w.skip(wire)?,
        }
    }
    event.attrs_end = span.event_attrs.list.len();
    span.events.push(event);
    Ok(())
}

fn read_link<'a>(mut w: Wire<'a>, span: &mut Span<&'a str>, limits: &Limits) -> Result<()> {
    let from = span.link_attrs.list.len();
    let mut link = Link { trace_id: [0; 16], span_id: [0; 8], trace_state: "", flags: 0, dropped: 0, attrs_end: 0 };
    while let Some((field, wire)) = w.tag()? {
        match field {
            1 => link.trace_id = id(w.message(wire)?, Reason::LinkId)?,
            2 => link.span_id = id(w.message(wire)?, Reason::LinkId)?,
            3 => link.trace_state = w.text_field(wire)?,
            4 => key_value(w.message(wire)?, &mut span.link_attrs, from, limits)?,
            5 => link.dropped = w.uint(wire)? as u32,
            6 => link.flags = w.fixed32(wire)?,
            _ => w.skip(wire)?,
        }
    }
    link.attrs_end = span.link_attrs.list.len();
    span.links.push(link);
    Ok(())
}

#[inline]
fn key_value<'a>(mut w: Wire<'a>, attrs: &mut Attrs<&'a str>, from: usize, limits: &Limits) -> Result<()> {
    let mut key = "";
    let mut value = Val::Null;
    while let Some((field, wire)) = w.tag()? {
        match field {
            1 => key = w.text_field(wire)?,
            2 => value = any_value(w.message(wire)?, &mut attrs.json, limits)?,
            _ => w.skip(wire)?,
        }
    }
    attrs.push(key, value, from, limits)
}

/// A value at the top: scalars as they are, the rest as JSON text at the end of `json`.
#[inline]
fn any_value<'a>(message: Wire<'a>, json: &mut Vec<u8>, limits: &Limits) -> Result<Val<&'a str>> {
    let mut value = Val::Null;
    let mut w = message;
    while let Some((field, wire)) = w.tag()? {
        value = match field {
            1 => Val::Str(w.text_field(wire)?),
            2 => Val::Bool(w.uint(wire)? != 0),
            3 => Val::Int(w.uint(wire)? as i64),
            4 => Val::Double(f64::from_bits(w.fixed64(wire)?)),
            5..=7 => {
                let from = json.len();
                nested(message, json, 0, limits)?;
                return Ok(Val::Json { from, to: json.len() });
            }
            _ => {
                w.skip(wire)?;
                value
            }
        };
    }
    Ok(value)
}

/// A value inside a value, or one that holds others, as JSON text. The last of several wins, as protobuf has it.
fn nested(mut w: Wire, out: &mut Vec<u8>, depth: usize, limits: &Limits) -> Result<()> {
    let limit = limits.nesting.min(attrs::MAX_DEPTH);
    let from = out.len();
    while let Some((field, wire)) = w.tag()? {
        if matches!(field, 1..=7) {
            out.truncate(from);
        }
        if matches!(field, 5 | 6) && depth >= limit {
            return Err(Reason::Nesting(limit).into());
        }
        match field {
            1 => attrs::write_str(out, w.text_field(wire)?),
            2 => attrs::write_bool(out, w.uint(wire)? != 0),
            3 => attrs::write_int(out, w.uint(wire)? as i64),
            4 => attrs::write_double(out, f64::from_bits(w.fixed64(wire)?)),
            5 => list(w.message(wire)?, out, depth + 1, limits)?,
            6 => map(w.message(wire)?, out, depth + 1, limits)?,
            7 => attrs::write_bytes(out, w.message(wire)?.bytes),
            _ => w.skip(wire)?,
        }
    }
    if out.len() == from {
        out.extend_from_slice(b"null");
    }
    Ok(())
}

fn list(mut w: Wire, out: &mut Vec<u8>, depth: usize, limits: &Limits) -> Result<()> {
    out.push(b'[');
    let mut first = true;
    while let Some((field, wire)) = w.tag()? {
        match field {
            1 => {
                separate(out, &mut first);
                nested(w.message(wire)?, out, depth, limits)?;
            }
            _ => w.skip(wire)?,
        }
    }
    out.push(b']');
    Ok(())
}

fn map(mut w: Wire, out: &mut Vec<u8>, depth: usize, limits: &Limits) -> Result<()> {
    out.push(b'{');
    let mut first = true;
    while let Some((field, wire)) = w.tag()? {
        match field {
            1 => {
                let (mut key, mut value) = ("", None);
                let mut entry = w.message(wire)?;
                while let Some((field, wire)) = entry.tag()? {
                    match field {
                        1 => key = entry.text_field(wire)?,
                        2 => value = Some(entry.message(wire)?),
                        _ => entry.skip(wire)?,
                    }
                }
                separate(out, &mut first);
                attrs::write_key(out, key);
                match value {
                    Some(value) => nested(value, out, depth, limits)?,
                    None => out.extend_from_slice(b"null"),
                }
            }
            _ => w.skip(wire)?,
        }
    }
    out.push(b'}');
    Ok(())
}

pub(super) fn separate(out: &mut Vec<u8>, first: &mut bool) {
    if !std::mem::take(first) {
        out.push(b',');
    }
}
