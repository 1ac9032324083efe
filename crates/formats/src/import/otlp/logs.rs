//! What our SDK sends that OTLP's spans cannot carry: runs, metrics, conversations, media and its own counters, as log
//! records distinguished by their event name (`docs/wire.md`); and the events in which instrumentations of model clients tell
//! messages ([`crate::conversations::events`]). Any other log record is refused: logs are not kept.
//!
//! These are few beside spans, so this goes through the generated structs.

use std::borrow::Cow;
use std::collections::HashMap;

use arrow::array::RecordBatch;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use prost::Message as _;
use rollscope_model::Table;
use rollscope_model::build::{
    ConversationsBuilder, MetricsBuilder, NewConversation, NewMetric, NewPoint, NewRun, RunsBuilder, SeriesBuilder,
    TokensBuilder,
};
use rollscope_model::limits::{CONVERSATION_BYTES, MEDIA_BYTES, RUN_ID_BYTES};
use rollscope_model::names;
use rollscope_model::names::event;
use rollscope_model::time::{EARLIEST_LIVE_NS, LATEST_NS};

use super::room::{self, Shape};
use super::span::{Reason, Rejects};
use super::{DecodeError, DecodeOptions, MAX_RUNS, RunSeen, logs_json, tokens};
use crate::conversations::events::{self, Calls, Event};
use crate::conversations::{MAX_VALUES, most_values};
use crate::json::count_values;
use crate::tokens::About;
use crate::{any_value, conversation};

/// Names of metrics, runs, projects, keys.
const MAX_NAME_BYTES: usize = 4096;

/// One decoded request of log records.
#[derive(Debug, Default)]
pub struct DecodedLogs {
    /// Rows of `runs` that an SDK sent explicitly, in order.
    pub runs: Vec<RunRecord>,
    /// Metrics, conversations, series and tokens, if there are any.
    pub batches: Vec<(Table, RecordBatch)>,
    /// Files to keep, before the rows that name them.
    pub media: Vec<Vec<u8>>,
    /// Model calls, whole or in part: their messages may come in several requests.
    pub calls: Calls,
    pub rejected: u64,
    pub reasons: Vec<String>,
    /// Every run that is named.
    pub seen: Vec<RunSeen>,
}

/// A row of `runs` as its sender wrote it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunRecord {
    pub run_id: String,
    pub project: Option<String>,
    pub name: Option<String>,
    pub framework: Option<String>,
    pub config: Option<String>,
    pub tags: Option<String>,
    pub started_ns: i64,
    pub ended_ns: Option<i64>,
    pub status: Option<String>,
    pub updated_ns: i64,
}

impl RunRecord {
    pub fn row(&self) -> NewRun<'_> {
        NewRun {
            run_id: &self.run_id,
            project: self.project.as_deref(),
            name: self.name.as_deref(),
            framework: self.framework.as_deref(),
            config: self.config.as_deref(),
            tags: self.tags.as_deref(),
            started_ns: self.started_ns,
            ended_ns: self.ended_ns,
            status: self.status.as_deref(),
            updated_ns: self.updated_ns,
        }
    }
}

/// Rows of `runs` as a batch.
pub fn runs_batch<'a>(records: impl IntoIterator<Item = &'a RunRecord>) -> RecordBatch {
    let mut rows = RunsBuilder::default();
    records.into_iter().for_each(|record| rows.push(&record.row()));
    rows.finish().expect("columns are written row by row")
}

pub(super) fn decode(bytes: &[u8], options: &DecodeOptions) -> Result<DecodedLogs, DecodeError> {
    room::check(bytes, Shape::Logs)?;
    let request =
        ExportLogsServiceRequest::decode(bytes).map_err(|e| DecodeError(format!("malformed request: {e}")))?;
    Ok(write(request, Rejects::default(), options))
}

pub(super) fn decode_json(bytes: &[u8], options: &DecodeOptions) -> Result<DecodedLogs, DecodeError> {
    let mut rejects = Rejects::default();
    let request = logs_json::request(bytes, &options.limits, &mut rejects)?;
    Ok(write(request, rejects, options))
}

fn write(request: ExportLogsServiceRequest, rejects: Rejects, options: &DecodeOptions) -> DecodedLogs {
    let mut writer = Writer {
        options,
        out: DecodedLogs::default(),
        rejects,
        metrics: MetricsBuilder::default(),
        conversations: ConversationsBuilder::default(),
        series: SeriesBuilder::default(),
        tokens: TokensBuilder::default(),
        rows: [0; 4],
        run_index: HashMap::new(),
    };
    for resource in request.resource_logs {
        let inherited = Attributes::new(resource.resource.map_or_else(Vec::new, |r| r.attributes));
        for record in resource.scope_logs.into_iter().flat_map(|s| s.log_records) {
            if let Err(reason) = writer.record(&inherited, record) {
                writer.rejects.add(reason, 1);
            }
        }
    }
    writer.finish()
}

struct Writer<'o> {
    options: &'o DecodeOptions,
    out: DecodedLogs,
    rejects: Rejects,
    metrics: MetricsBuilder,
    conversations: ConversationsBuilder,
    series: SeriesBuilder,
    tokens: TokensBuilder,
    /// Rows in the four builders above.
    rows: [usize; 4],
    /// Where each run is among those seen.
    run_index: HashMap<String, usize>,
}

impl Writer<'_> {
    fn finish(mut self) -> DecodedLogs {
        let tables = [Table::Metrics, Table::Conversations, Table::Series, Table::Tokens];
        let batches = [self.metrics.finish(), self.conversations.finish(), self.series.finish(), self.tokens.finish()];
        for ((table, rows), batch) in tables.into_iter().zip(self.rows).zip(batches) {
            if rows > 0 {
                self.out.batches.push((table, batch.expect("columns are written row by row")));
            }
        }
        self.out.rejected = self.rejects.total;
        self.out.reasons = self.rejects.reasons();
        self.out
    }

    fn record(&mut self, resource: &Attributes, record: LogRecord) -> Result<(), Reason> {
        let attributes = Attributes::new(record.attributes);
        // Senders of before the field put the name among the attributes.
        let name = match record.event_name.as_str() {
            "" => attributes.name(&["event.name"])?.unwrap_or_default(),
            name => name.into(),
        };
        let tells = events::is_one(&name);
        if !tells && !name.starts_with(names::reserved::PREFIX) {
            return Err(Reason::Logs);
        }
        let run = (self.options.run.as_deref().map(Cow::Borrowed))
            .or_else(|| attributes.first_text(names::RUN_ID))
            .or_else(|| resource.first_text(names::RUN_ID))
            .or_else(|| resource.first_text(&[names::SERVICE_NAME]))
            .unwrap_or("default".into());
        if run.len() > RUN_ID_BYTES {
            return Err(Reason::RunTooLong);
        }
        let seen = self.run_index.get(&*run).copied();
        if seen.is_none() && self.out.seen.len() >= MAX_RUNS {
            return Err(Reason::TooManyRuns(MAX_RUNS));
        }
        let time = if record.time_unix_nano > 0 { record.time_unix_nano } else { record.observed_time_unix_nano };
        let time = self.time(time)?;
        let scene = Scene { run: &run, resource, attributes: &attributes, time };
        match &*name {
            name if tells => self.call(&scene, name, record.body, &record.trace_id, &record.span_id)?,
            event::RUN => self.run(&scene)?,
            event::METRICS => self.metrics(&scene, record.body)?,
            event::CONVERSATION => self.conversation(&scene, record.body, &record.trace_id, &record.span_id)?,
            event::TOKENS => self.tokens(&scene, record.body)?,
            event::MEDIA => return self.media(record.body),
            event::STATS => self.stats(&scene)?,
            _ => return Err(Reason::Event),
        }
        match seen {
            Some(at) => {
                let seen = &mut self.out.seen[at];
                seen.first_ns = seen.first_ns.min(time);
            }
            None => {
                let owned = |name: Option<Cow<str>>| name.map(Cow::into_owned);
                let new = RunSeen {
                    project: owned(resource.name(&[names::PROJECT])?),
                    name: owned(resource.name(&[names::RUN_NAME])?),
                    framework: owned(resource.name(&[names::SYSTEM])?),
                    run_id: run.into_owned(),
                    first_ns: time,
                };
                self.run_index.insert(new.run_id.clone(), self.out.seen.len());
                self.out.seen.push(new);
            }
        }
        Ok(())
    }

    fn time(&self, time: u64) -> Result<i64, Reason> {
        if time > LATEST_NS as u64 {
            return Err(Reason::TimeTooLate);
        }
        if self.options.live && time < EARLIEST_LIVE_NS as u64 {
            return Err(Reason::TimeTooEarly);
        }
        Ok(time as i64)
    }

    fn run(&mut self, scene: &Scene) -> Result<(), Reason> {
        let Scene { run, resource, attributes, time } = *scene;
        // What a row takes from the resource would otherwise grow without end: a record may be a few bytes.
        if self.out.runs.len() >= MAX_RUNS {
            return Err(Reason::TooManyRuns(MAX_RUNS));
        }
        let either = |key: &[&str]| Ok(attributes.name(key)?.or(resource.name(key)?).map(Cow::into_owned));
        let json = |key| {
            let text = attributes.first_text(&[key]).map(Cow::into_owned);
            match text {
                Some(text) if text.len() > self.options.limits.attribute_bytes => {
                    Err(Reason::AttributeBytes(self.options.limits.attribute_bytes))
                }
                Some(text) if serde_json::from_str::<serde::de::IgnoredAny>(&text).is_err() => Err(Reason::NotJson),
                text => Ok(text),
            }
        };
        let ended_ns = attributes.int(event::ENDED_NS).map(|t| self.time(t.max(0) as u64)).transpose()?;
        let started_ns = attributes.int(event::STARTED_NS).map_or(Ok(time), |t| self.time(t.max(0) as u64))?;
        let record = RunRecord {
            run_id: run.to_string(),
            project: either(&[names::PROJECT])?,
            name: either(&[names::RUN_NAME])?,
            framework: either(&[names::SYSTEM])?,
            config: json(event::CONFIG)?,
            // Whoever says something of a run is known by it: a run of which nobody has said anything has no tags, not even none.
            tags: Some(json(event::TAGS)?.unwrap_or_else(|| "[]".into())),
            started_ns,
            ended_ns,
            status: attributes.name(&[event::STATUS])?.map(Cow::into_owned),
            updated_ns: time,
        };
        self.out.runs.push(record);
        Ok(())
    }

    fn metrics(&mut self, scene: &Scene, body: Option<AnyValue>) -> Result<(), Reason> {
        let Some(Value::KvlistValue(values)) = body.and_then(|b| b.value) else { return Err(Reason::Body) };
        let mut numbers = Vec::with_capacity(values.values.len());
        for pair in &values.values {
            if pair.key.is_empty() || pair.key.len() > MAX_NAME_BYTES {
                return Err(Reason::AttributeBytes(MAX_NAME_BYTES));
            }
            numbers.push(match pair.value.as_ref().and_then(|v| v.value.as_ref()) {
                Some(Value::DoubleValue(d)) => *d,
                Some(Value::IntValue(i)) => *i as f64,
                Some(Value::BoolValue(b)) => f64::from(u8::from(*b)),
                _ => return Err(Reason::Body),
            });
        }
        let step = scene.step();
        for (pair, value) in values.values.iter().zip(numbers) {
            let row = NewMetric { run_id: scene.run, step, time_ns: scene.time, name: &pair.key, value, source: None };
            self.metrics.push(&row);
        }
        self.rows[0] += values.values.len();
        Ok(())
    }

    fn conversation(&mut self, scene: &Scene, body: Option<AnyValue>, trace: &[u8], span: &[u8]) -> Result<(), Reason> {
        let Some(Value::StringValue(messages)) = body.and_then(|b| b.value) else { return Err(Reason::Body) };
        let attributes = scene.attributes;
        let metadata = attributes.first_text(&[event::METADATA]);
        if messages.len() + metadata.as_ref().map_or(0, |text| text.len()) > CONVERSATION_BYTES {
            return Err(Reason::TooLarge("conversation", CONVERSATION_BYTES));
        }
        // Two bytes of text may become seventy of memory.
        let values =
            [Some(&*messages), metadata.as_deref()].into_iter().flatten().map(|text| count_values(text.as_bytes()));
        if values.sum::<usize>() > MAX_VALUES {
            return Err(Reason::TooManyValues(MAX_VALUES));
        }
        let parsed: Vec<serde_json::Value> = serde_json::from_str(&messages).map_err(|_| Reason::NotJson)?;
        let extra: serde_json::Value = match &metadata {
            Some(text) => serde_json::from_str(text).map_err(|_| Reason::NotJson)?,
            None => serde_json::Value::Null,
        };
        let said = |keys: &[&str]| {
            keys.iter().find_map(|key| match &extra[*key] {
                serde_json::Value::String(s) if s.len() <= MAX_NAME_BYTES => Some(Cow::Borrowed(s.as_str())),
                serde_json::Value::Number(n) => Some(n.to_string().into()),
                _ => None,
            })
        };
        let sample = attributes.name(names::SAMPLE_ID)?.or_else(|| said(names::SAMPLE_ID));
        let group = attributes.name(names::GROUP_ID)?.or_else(|| said(names::GROUP_ID));
        let status = extra["status"].as_str().filter(|s| s.len() <= MAX_NAME_BYTES);
        let key = attributes.name(&[event::KEY])?;
        let (step, index) = (scene.step(), attributes.int(event::INDEX));
        let id = match attributes.name(&[event::ID])? {
            Some(id) => id.into_owned(),
            None => format!(
                "{}/{}/{}/{}/{}",
                scene.run,
                step.map_or("-".into(), |s| s.to_string()),
                key.as_deref().unwrap_or("-"),
                index.unwrap_or(0),
                scene.time
            ),
        };
        let counts = conversation::count(&parsed);
        self.conversations.push(&NewConversation {
            id: &id,
            run_id: scene.run,
            step,
            key: key.as_deref(),
            index,
            sample_id: sample.as_deref(),
            group_id: group.as_deref(),
            trace_id: trace.try_into().ok().filter(|id: &[u8; 16]| !rollscope_model::ids::is_zero(id)),
            span_id: span.try_into().ok().filter(|id: &[u8; 8]| !rollscope_model::ids::is_zero(id)),
            messages: &messages,
            metadata: metadata.as_deref(),
            reward: extra["reward"].as_f64(),
            status,
            message_count: counts.messages,
            turn_count: counts.turns,
            tool_call_count: counts.tool_calls,
            media_count: counts.media,
            char_count: counts.chars,
            logged_ns: scene.time,
        });
        self.rows[1] += 1;
        Ok(())
    }

    /// A message of a model call, or all of them.
    fn call(
        &mut self,
        scene: &Scene,
        name: &str,
        body: Option<AnyValue>,
        trace: &[u8],
        span: &[u8],
    ) -> Result<(), Reason> {
        let fields = match body.and_then(|b| b.value) {
            Some(Value::KvlistValue(fields)) => fields.values,
            _ => Vec::new(),
        };
        let most = self.options.limits.attributes_per_span;
        if scene.attributes.list.len() + fields.len() > most {
            return Err(Reason::Attributes(most));
        }
        let mut attributes = events::Attrs::new();
        let (mut bytes, mut values) = (0, 0);
        for pair in scene.attributes.list.iter().chain(&fields) {
            let mut text = Vec::new();
            if !any_value::write_text(&mut text, pair.value.as_ref(), self.options.limits.nesting) {
                return Err(Reason::Nesting(self.options.limits.nesting));
            }
            bytes += pair.key.len() + text.len();
            values += most_values(&text);
            if bytes > CONVERSATION_BYTES {
                return Err(Reason::TooLarge("conversation", CONVERSATION_BYTES));
            }
            if values > MAX_VALUES {
                return Err(Reason::TooManyValues(MAX_VALUES));
            }
            attributes.insert(pair.key.clone(), serde_json::from_slice(&text).map_err(|_| Reason::NotJson)?);
        }
        let event = Event {
            name,
            run_id: scene.run,
            trace_id: trace.try_into().ok().filter(|id: &[u8; 16]| !rollscope_model::ids::is_zero(id)),
            span_id: span.try_into().ok().filter(|id: &[u8; 8]| !rollscope_model::ids::is_zero(id)),
            step: scene.step(),
            sample_id: scene.attributes.name(names::SAMPLE_ID)?.map(Cow::into_owned),
            group_id: scene.attributes.name(names::GROUP_ID)?.map(Cow::into_owned),
            time_ns: scene.time,
            attributes,
        };
        if self.out.calls.add(event) { Ok(()) } else { Err(Reason::NoSpan) }
    }

    fn media(&mut self, body: Option<AnyValue>) -> Result<(), Reason> {
        let Some(Value::BytesValue(bytes)) = body.and_then(|b| b.value) else { return Err(Reason::Body) };
        if bytes.len() > MEDIA_BYTES {
            return Err(Reason::TooLarge("media", MEDIA_BYTES));
        }
        self.out.media.push(bytes);
        Ok(())
    }

    fn tokens(&mut self, scene: &Scene, body: Option<AnyValue>) -> Result<(), Reason> {
        let attributes = scene.attributes;
        let sample = attributes.name(names::SAMPLE_ID)?.ok_or(Reason::NoSample)?;
        let (group, source) = (attributes.name(names::GROUP_ID)?, attributes.name(&[event::SOURCE])?);
        let split = attributes.name(&[event::SPLIT])?;
        let about = About {
            run_id: scene.run,
            step: scene.step(),
            sample_id: &sample,
            split: split.as_deref().unwrap_or("train"),
            group_id: group.as_deref(),
            source: source.as_deref(),
            logged_ns: Some(scene.time),
            file: None,
        };
        let count = tokens::read(body)?.push(about, &mut self.tokens).map_err(Reason::Tokens)?;
        self.rows[3] += usize::from(count > 0);
        Ok(())
    }

    /// Counters of the sender, as series: what it recorded, sent, spilled and dropped.
    fn stats(&mut self, scene: &Scene) -> Result<(), Reason> {
        let service = scene.resource.name(&[names::SERVICE_NAME])?.unwrap_or("unknown_service".into());
        let target = match scene.resource.name(&["service.instance.id"])? {
            Some(instance) => format!("{service}/{instance}").into(),
            None => service,
        };
        for pair in &scene.attributes.list {
            let Some(name) = pair.key.strip_prefix(event::STAT_PREFIX) else { continue };
            let Some(Value::IntValue(value)) = pair.value.as_ref().and_then(|v| v.value.as_ref()) else { continue };
            if name.len() > MAX_NAME_BYTES {
                return Err(Reason::AttributeBytes(MAX_NAME_BYTES));
            }
            self.series.push(&NewPoint {
                run_id: scene.run,
                target: &target,
                name: &format!("rollscope_sdk_{name}_total"),
                labels: "{}",
                kind: "counter",
                time_ns: scene.time,
                value: *value as f64,
            });
            self.rows[2] += 1;
        }
        Ok(())
    }
}

/// What the parts of a record have in common.
struct Scene<'a> {
    run: &'a str,
    resource: &'a Attributes,
    attributes: &'a Attributes,
    time: i64,
}

impl Scene<'_> {
    fn step(&self) -> Option<i64> {
        names::STEP.iter().find_map(|name| self.attributes.int(name))
    }
}

/// Attributes that are found by name. Every record asks its resource, which may have as many attributes as a request has room for.
struct Attributes {
    list: Vec<KeyValue>,
    /// Places in `list` in the order of the keys. Of equal keys the first comes first.
    by_key: Vec<u32>,
}

impl Attributes {
    fn new(list: Vec<KeyValue>) -> Self {
        let mut by_key: Vec<u32> = (0..list.len() as u32).collect();
        by_key.sort_by(|a, b| list[*a as usize].key.cmp(&list[*b as usize].key));
        Attributes { list, by_key }
    }

    fn value(&self, key: &str) -> Option<&Value> {
        let at = self.by_key.partition_point(|i| self.list[*i as usize].key.as_str() < key);
        let found = &self.list[*self.by_key.get(at)? as usize];
        if found.key == key { found.value.as_ref()?.value.as_ref() } else { None }
    }

    /// The first of the names that is there, as text.
    fn first_text(&self, keys: &[&str]) -> Option<Cow<'_, str>> {
        keys.iter().find_map(|key| match self.value(key)? {
            Value::StringValue(s) if !s.is_empty() => Some(s.as_str().into()),
            Value::IntValue(i) => Some(i.to_string().into()),
            _ => None,
        })
    }

    /// The same for what must be short.
    fn name(&self, keys: &[&str]) -> Result<Option<Cow<'_, str>>, Reason> {
        match self.first_text(keys) {
            Some(text) if text.len() > MAX_NAME_BYTES => Err(Reason::AttributeBytes(MAX_NAME_BYTES)),
            text => Ok(text),
        }
    }

    fn int(&self, key: &str) -> Option<i64> {
        match self.value(key)? {
            Value::IntValue(i) => Some(*i),
            Value::StringValue(s) => s.parse().ok(),
            _ => None,
        }
    }
}
