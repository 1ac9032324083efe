//! OTLP JSON as the wild writes it, straight into columns: ids in hex or base64, enums as numbers or names, 64-bit
//! integers as text or numbers, keys in camelCase or snake_case and in any order, nulls, unknown keys. Same checks and
//! same rows as protobuf: both fill a [`Span`] and hand it to the [`Writer`].

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use rollscope_model::attrs;
use rollscope_model::names::{KINDS, STATUSES};

use super::protobuf::separate;
use super::room::Room;
use super::span::{Attrs, Entity, Event, Fault, Link, Reason, Resource, Scope, Span, Val, push_entity};
use super::write::{Writer, write_val};
use super::{DecodeOptions, Limits};
use crate::any_value as generated;
use crate::json::{self, Reader};

type Result<T> = std::result::Result<T, Fault>;
type Text<'a> = Cow<'a, str>;

/// A whole `ExportTraceServiceRequest`.
pub(super) fn request(bytes: &[u8], writer: &mut Writer) -> Result<()> {
    let mut r = Reader::new(bytes);
    members(&mut r, |r, key| match key {
        "resourceSpans" | "resource_spans" => resource_spans_list(r, writer),
        _ => Ok(r.skip()?),
    })?;
    Ok(r.end()?)
}

/// Walks the members of an object, nulls left out. `each` must consume the value.
pub(super) fn members<'a>(r: &mut Reader<'a>, mut each: impl FnMut(&mut Reader<'a>, &str) -> Result<()>) -> Result<()> {
    r.begin(b'{')?;
    let mut first = true;
    while let Some(key) = r.key(&mut first)? {
        if !r.null()? {
            each(r, &key)?;
        }
    }
    Ok(())
}

/// Walks the elements of a list.
pub(super) fn elements<'a>(r: &mut Reader<'a>, mut each: impl FnMut(&mut Reader<'a>) -> Result<()>) -> Result<()> {
    r.begin(b'[')?;
    let mut first = true;
    while r.element(&mut first)? {
        each(r)?;
    }
    Ok(())
}

pub(super) fn resource_spans_list<'a>(r: &mut Reader<'a>, writer: &mut Writer) -> Result<()> {
    let mut span = Span::default();
    elements(r, |r| resource_spans(r, &mut span, writer))
}

/// The resource is needed before its spans. If it comes after them, they are skipped and visited again.
fn resource_spans<'a>(r: &mut Reader<'a>, span: &mut Span<Text<'a>>, writer: &mut Writer) -> Result<()> {
    let mut begun = false;
    let mut later = Vec::new();
    let mut schema_url = Text::default();
    members(r, |r, key| {
        match key {
            "resource" if !begun => {
                let resource = tolerate(r, |r| read_resource(r, &writer.options.limits))?;
                writer.begin_resource(resource.as_ref().map_err(|e| *e));
                begun = true;
            }
            "scopeSpans" | "scope_spans" | "instrumentationLibrarySpans" if begun => {
                elements(r, |r| scope_spans(r, span, writer))?;
            }
            "scopeSpans" | "scope_spans" | "instrumentationLibrarySpans" => {
                later.push(r.pos());
                r.skip()?;
            }
            "schemaUrl" | "schema_url" => schema_url = r.string()?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    if !begun {
        writer.begin_resource(Ok(&Resource::<Text>::default()));
    }
    let end = r.pos();
    for pos in later {
        r.seek(pos);
        elements(r, |r| scope_spans(r, span, writer))?;
    }
    r.seek(end);
    writer.end_resource(&schema_url)
}

fn scope_spans<'a>(r: &mut Reader<'a>, span: &mut Span<Text<'a>>, writer: &mut Writer) -> Result<()> {
    let mut begun = false;
    let mut later = Vec::new();
    let mut schema_url = Text::default();
    members(r, |r, key| {
        match key {
            "scope" | "instrumentationLibrary" if !begun => {
                let scope = tolerate(r, |r| read_scope(r, &writer.options.limits))?;
                writer.begin_scope(scope.as_ref().map_err(|e| *e));
                begun = true;
            }
            "spans" if begun => spans(r, span, writer)?,
            "spans" => {
                later.push(r.pos());
                r.skip()?;
            }
            "schemaUrl" | "schema_url" => schema_url = r.string()?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    if !begun {
        writer.begin_scope(Ok(&Scope::<Text>::default()));
    }
    let end = r.pos();
    for pos in later {
        r.seek(pos);
        spans(r, span, writer)?;
    }
    r.seek(end);
    writer.end_scope(&schema_url);
    Ok(())
}

fn spans<'a>(r: &mut Reader<'a>, span: &mut Span<Text<'a>>, writer: &mut Writer) -> Result<()> {
    elements(r, |r| {
        let done = match writer.refused() {
            Some(reason) => {
                r.skip()?;
                Err(reason)
            }
            None => tolerate(r, |r| read_span(r, span, writer.options))?.and_then(|()| writer.span(span)),
        };
        if let Err(reason) = done {
            writer.rejects.add(reason, 1);
        }
        Ok(())
    })
}

/// Reads a value of which only it may be bad: then it is passed over and the reason given.
pub(super) fn tolerate<'a, T>(
    r: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T>,
) -> Result<std::result::Result<T, Reason>> {
    r.peek()?;
    let start = r.pos();
    match read(r) {
        Ok(value) => Ok(Ok(value)),
        Err(Fault::Bad(reason)) => {
            r.seek(start);
            r.skip()?;
            Ok(Err(reason))
        }
        Err(malformed) => Err(malformed),
    }
}

fn read_resource<'a>(r: &mut Reader<'a>, limits: &Limits) -> Result<Resource<Text<'a>>> {
    let mut resource = Resource::default();
    members(r, |r, key| {
        match key {
            "attributes" => attributes(r, &mut resource.attrs, 0, limits)?,
            "droppedAttributesCount" | "dropped_attributes_count" => resource.dropped = uint32(r)?,
            "entityRefs" | "entity_refs" => elements(r, |r| {
                push_entity(&mut resource.entities, read_entity(r)?)?;
                Ok(())
            })?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(resource)
}

fn read_entity<'a>(r: &mut Reader<'a>) -> Result<Entity<Text<'a>>> {
    let mut entity = Entity::default();
    let texts = |r: &mut Reader<'a>, list: &mut Vec<Text<'a>>| {
        elements(r, |r| {
            push_entity(list, r.string()?)?;
            Ok(())
        })
    };
    members(r, |r, key| {
        match key {
            "schemaUrl" | "schema_url" => entity.schema_url = r.string()?,
            "type" => entity.kind = r.string()?,
            "idKeys" | "id_keys" => texts(r, &mut entity.id_keys)?,
            "descriptionKeys" | "description_keys" => texts(r, &mut entity.description_keys)?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(entity)
}

fn read_scope<'a>(r: &mut Reader<'a>, limits: &Limits) -> Result<Scope<Text<'a>>> {
    let mut scope = Scope::default();
    members(r, |r, key| {
        match key {
            "name" => scope.name = r.string()?,
            "version" => scope.version = r.string()?,
            "attributes" => attributes(r, &mut scope.attrs, 0, limits)?,
            "droppedAttributesCount" | "dropped_attributes_count" => scope.dropped = uint32(r)?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok(scope)
}

fn read_span<'a>(r: &mut Reader<'a>, span: &mut Span<Text<'a>>, options: &DecodeOptions) -> Result<()> {
    let limits = &options.limits;
    span.clear();
    members(r, |r, key| {
        match key {
            "traceId" | "trace_id" => span.trace_id = id(r, Reason::TraceId)?,
            "spanId" | "span_id" => span.span_id = id(r, Reason::SpanId)?,
            "parentSpanId" | "parent_span_id" => span.parent_id = id(r, Reason::ParentId)?,
            "traceState" | "trace_state" => span.trace_state = r.string()?,
            "name" => span.name = r.string()?,
            "kind" => span.kind = enumeration(r, "SPAN_KIND_", &KINDS)?,
            "startTimeUnixNano" | "start_time_unix_nano" => span.start = uint(r)?,
            "endTimeUnixNano" | "end_time_unix_nano" => span.end = uint(r)?,
            "attributes" => attributes(r, &mut span.attrs, 0, limits)?,
            "events" => elements(r, |r| {
                if span.events.len() >= limits.events_per_span {
                    return Err(Reason::Events(limits.events_per_span).into());
                }
                read_event(r, span, limits)
            })?,
            "links" => elements(r, |r| {
                if span.links.len() >= limits.links_per_span {
                    return Err(Reason::Links(limits.links_per_span).into());
                }
                read_link(r, span, limits)
            })?,
            "status" => members(r, |r, key| {
                match key {
                    "message" => span.status_message = r.string()?,
                    "code" => span.status = enumeration(r, "STATUS_CODE_", &STATUSES)?,
                    _ => r.skip()?,
                }
                Ok(())
            })?,
            "flags" => span.flags = uint32(r)?,
            "droppedAttributesCount" | "dropped_attributes_count" => span.dropped_attrs = uint32(r)?,
            "droppedEventsCount" | "dropped_events_count" => span.dropped_events = uint32(r)?,
            "droppedLinksCount" | "dropped_links_count" => span.dropped_links = uint32(r)?,
            _ => r.skip()?,
        }
        Ok(())
    })
}

fn read_event<'a>(r: &mut Reader<'a>, span: &mut Span<Text<'a>>, limits: &Limits) -> Result<()> {
    let from = span.event_attrs.list.len();
    let mut event = Event { time: 0, name: Text::default(), dropped: 0, attrs_end: 0 };
    members(r, |r, key| {
        match key {
            "timeUnixNano" | "time_unix_nano" => event.time = uint(r)?,
            "name" => event.name = r.string()?,
            "attributes" => attributes(r, &mut span.event_attrs, from, limits)?,
            "droppedAttributesCount" | "dropped_attributes_count" => event.dropped = uint32(r)?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    event.attrs_end = span.event_attrs.list.len();
    span.events.push(event);
    Ok(())
}

fn read_link<'a>(r: &mut Reader<'a>, span: &mut Span<Text<'a>>, limits: &Limits) -> Result<()> {
    let from = span.link_attrs.list.len();
    let mut link =
        Link { trace_id: [0; 16], span_id: [0; 8], trace_state: Text::default(), flags: 0, dropped: 0, attrs_end: 0 };
    members(r, |r, key| {
        match key {
            "traceId" | "trace_id" => link.trace_id = id(r, Reason::LinkId)?,
            "spanId" | "span_id" => link.span_id = id(r, Reason::LinkId)?,
            "traceState" | "trace_state" => link.trace_state = r.string()?,
            "attributes" => attributes(r, &mut span.link_attrs, from, limits)?,
            "droppedAttributesCount" | "dropped_attributes_count" => link.dropped = uint32(r)?,
            "flags" => link.flags = uint32(r)?,
            _ => r.skip()?,
        }
        Ok(())
    })?;
    link.attrs_end = span.link_attrs.list.len();
    span.links.push(link);
    Ok(())
}

/// A list of key and value pairs. `from`: where those of its owner begin, which may have several such lists.
fn attributes<'a>(r: &mut Reader<'a>, attrs: &mut Attrs<Text<'a>>, from: usize, limits: &Limits) -> Result<()> {
    elements(r, |r| {
        let mut key = Text::default();
        let mut value = Val::Null;
        members(r, |r, name| {
            match name {
                "key" => key = r.string()?,
                "value" => value = any_value(r, &mut attrs.json, limits)?,
                _ => r.skip()?,
            }
            Ok(())
        })?;
        attrs.push(key, value, from, limits)
    })
}

/// The same for what goes through the generated structs.
pub(super) fn pairs(r: &mut Reader, limits: &Limits, room: &mut Room) -> Result<Vec<KeyValue>> {
    let mut list = Attrs::default();
    attributes(r, &mut list, 0, limits)?;
    room.take::<KeyValue>(list.list.len())?;
    let mut out = Vec::with_capacity(list.list.len());
    for (key, value) in &list.list {
        out.push(generated::pair(&**key, to_generated(value, &list.json, room)?));
    }
    Ok(out)
}

/// One value for the same.
pub(super) fn value(r: &mut Reader, limits: &Limits, room: &mut Room) -> Result<AnyValue> {
    let mut json = Vec::new();
    let value = any_value(r, &mut json, limits)?;
    to_generated(&value, &json, room)
}

fn to_generated(value: &Val<Text>, json: &[u8], room: &mut Room) -> Result<AnyValue> {
    let mut text = Vec::new();
    write_val(&mut text, value, json);
    // Those of a map have keys beside them, and are larger than those of a list.
    room.take::<KeyValue>(json::count_values(&text))?;
    Ok(generated::from_text(std::str::from_utf8(&text).map_err(|_| Reason::Utf8)?))
}

fn any_value<'a>(r: &mut Reader<'a>, json: &mut Vec<u8>, limits: &Limits) -> Result<Val<Text<'a>>> {
    let mut value = Val::Null;
    members(r, |r, key| {
        value = match key {
            "stringValue" | "string_value" => Val::Str(r.string()?),
            "boolValue" | "bool_value" => Val::Bool(boolean(r)?),
            "intValue" | "int_value" => Val::Int(int(r)?),
            "doubleValue" | "double_value" => Val::Double(double(r)?),
            _ => {
                let from = json.len();
                if nested_member(r, key, json, 0, limits)? {
                    Val::Json { from, to: json.len() }
                } else {
                    return Ok(());
                }
            }
        };
        Ok(())
    })?;
    Ok(value)
}

/// A value inside a value, as JSON text. The last of several wins.
fn nested(r: &mut Reader, out: &mut Vec<u8>, depth: usize, limits: &Limits) -> Result<()> {
    let from = out.len();
    if !r.null()? {
        members(r, |r, key| {
            let was = out.len();
            if nested_member(r, key, out, depth, limits)? && was > from {
                out.drain(from..was);
            }
            Ok(())
        })?;
    }
    if out.len() == from {
        out.extend_from_slice(b"null");
    }
    Ok(())
}

/// One member of a value; false if it is none we know.
fn nested_member(r: &mut Reader, key: &str, out: &mut Vec<u8>, depth: usize, limits: &Limits) -> Result<bool> {
    let limit = limits.nesting.min(attrs::MAX_DEPTH);
    match key {
        "stringValue" | "string_value" => attrs::write_str(out, &r.string()?),
        "boolValue" | "bool_value" => attrs::write_bool(out, boolean(r)?),
        "intValue" | "int_value" => attrs::write_int(out, int(r)?),
        "doubleValue" | "double_value" => attrs::write_double(out, double(r)?),
        "bytesValue" | "bytes_value" => attrs::write_bytes(out, &bytes(&r.string()?)?),
        "arrayValue" | "array_value" | "kvlistValue" | "kvlist_value" if depth >= limit => {
            return Err(Reason::Nesting(limit).into());
        }
        "arrayValue" | "array_value" => {
            out.push(b'[');
            let mut first = true;
            values(r, |r| {
                separate(out, &mut first);
                nested(r, out, depth + 1, limits)
            })?;
            out.push(b']');
        }
        "kvlistValue" | "kvlist_value" => {
            out.push(b'{');
            let mut first = true;
            values(r, |r| {
                separate(out, &mut first);
                entry(r, out, depth + 1, limits)
            })?;
            out.push(b'}');
        }
        _ => {
            r.skip()?;
            return Ok(false);
        }
    }
    Ok(true)
}

/// `{"values": [...]}`
fn values<'a>(r: &mut Reader<'a>, mut each: impl FnMut(&mut Reader<'a>) -> Result<()>) -> Result<()> {
    members(r, |r, key| match key {
        "values" => elements(r, &mut each),
        _ => Ok(r.skip()?),
    })
}

/// `{"key": ..., "value": ...}` inside a map; the two may come in any order.
fn entry(r: &mut Reader, out: &mut Vec<u8>, depth: usize, limits: &Limits) -> Result<()> {
    let mut key = Text::default();
    let mut value = None;
    members(r, |r, name| {
        match name {
            "key" => key = r.string()?,
            "value" => {
                value = Some(r.pos());
                r.skip()?;
            }
            _ => r.skip()?,
        }
        Ok(())
    })?;
    attrs::write_key(out, &key);
    match value {
        Some(pos) => {
            let end = r.pos();
            r.seek(pos);
            nested(r, out, depth, limits)?;
            r.seek(end);
        }
        None => out.extend_from_slice(b"null"),
    }
    Ok(())
}

/// Hex by length, else base64. Nothing at all is zero.
pub(super) fn id<const N: usize>(r: &mut Reader, reason: Reason) -> Result<[u8; N]> {
    let text = r.string()?;
    let mut id = [0; N];
    if text.len() == 2 * N {
        hex::decode_to_slice(text.as_bytes(), &mut id).map_err(|_| reason)?;
    } else if !text.is_empty() {
        id = bytes(&text).ok().and_then(|raw| raw.try_into().ok()).ok_or(reason)?;
    }
    Ok(id)
}

/// Base64 in either alphabet, padded or not.
pub(super) fn bytes(text: &str) -> std::result::Result<Vec<u8>, Reason> {
    const LENIENT: GeneralPurposeConfig =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
    const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);
    STANDARD.decode(text).or_else(|_| URL_SAFE.decode(text)).map_err(|_| Reason::Base64)
}

/// A number as JSON number or as text.
fn number_text<'a>(r: &mut Reader<'a>) -> std::result::Result<Text<'a>, json::Error> {
    if r.peek()? == b'"' { r.string() } else { r.number().map(Text::Borrowed) }
}

pub(super) fn uint(r: &mut Reader) -> Result<u64> {
    let text = number_text(r)?;
    text.parse().or_else(|_| whole(&text, 0.0, u64::MAX as f64).map(|d| d as u64)).map_err(Fault::Bad)
}

pub(super) fn uint32(r: &mut Reader) -> Result<u32> {
    uint(r)?.try_into().map_err(|_| Reason::Number.into())
}

pub(super) fn int(r: &mut Reader) -> Result<i64> {
    let text = number_text(r)?;
    text.parse().or_else(|_| whole(&text, i64::MIN as f64, i64::MAX as f64).map(|d| d as i64)).map_err(Fault::Bad)
}

/// A whole number written with a point or an exponent. `max` itself is one too many.
fn whole(text: &str, min: f64, max: f64) -> std::result::Result<f64, Reason> {
    match text.parse::<f64>() {
        Ok(d) if d.fract() == 0.0 && d >= min && d < max && text.contains(['.', 'e', 'E']) => Ok(d),
        _ => Err(Reason::Number),
    }
}

pub(super) fn double(r: &mut Reader) -> Result<f64> {
    let text = number_text(r)?;
    match &*text {
        "NaN" => Ok(f64::NAN),
        "Infinity" | "+Infinity" => Ok(f64::INFINITY),
        "-Infinity" => Ok(f64::NEG_INFINITY),
        _ => text.parse().map_err(|_| Reason::Number.into()),
    }
}

pub(super) fn boolean(r: &mut Reader) -> Result<bool> {
    if r.peek()? == b'"' {
        return match &*r.string()? {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(Reason::Type.into()),
        };
    }
    Ok(r.bool()?)
}

/// A number, a number as text, or a name with or without its prefix.
pub(super) fn enumeration(r: &mut Reader, prefix: &str, names: &[&str]) -> Result<i32> {
    let text = number_text(r)?;
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let name = text.strip_prefix(prefix).unwrap_or(&text);
    let place = names.iter().position(|n| n.eq_ignore_ascii_case(name));
    place.map(|n| n as i32).ok_or(Reason::Type.into())
}
