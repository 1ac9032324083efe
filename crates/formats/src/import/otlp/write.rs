//! The one place where an OTLP span becomes a row of `spans`: checks it, finds its identity among its attributes and
//! those of its resource, and writes the columns. A row is written whole or not at all.

use std::collections::HashMap;

use arrow::array::RecordBatch;
use rollscope_model::attrs;
use rollscope_model::build::{AttrsColumn, DictColumn, NULL_KEY, SpansBuilder};
use rollscope_model::ids::is_zero;
use rollscope_model::kinds::{Kind, classify};
use rollscope_model::limits::RUN_ID_BYTES;
use rollscope_model::names::{KINDS, SERVICE_INSTANCE_ID, STATUSES, STEP, STEP_OR_OTHER, state, step_in_name};
use rollscope_model::time::{EARLIEST_LIVE_NS, LATEST_NS};

use super::known::{KnownAttributes, Meaning};
use super::span::{Attrs, Entity, Fault, Reason, Rejects, Resource, Scope, Span, Val};
use super::{DecodeOptions, MAX_RUNS, RunSeen};

/// All descriptions of scopes in one batch. A schema address of the resource is repeated in each, so this must not be
/// left to the sender.
const MAX_SCOPE_BYTES: usize = 256 << 20;
/// Longer names of projects and runs are not written to `runs`; they stay in the resource.
const MAX_LABEL_BYTES: usize = 1024;
const SDK_NAME: &str = "telemetry.sdk.name";
/// Its spans name a run on the roots of traces only, so what is below them is listed as a service.
const MLFLOW: &str = "mlflow";
const UNKNOWN_SERVICE: &str = "unknown_service";
const DEFAULT_RUN: &str = "default";
const DEFAULT_FRAMEWORK: &str = "opentelemetry";
/// The framework, and the run of all its roles if no run is named.
const ROLL: &str = "roll";

pub(super) struct Writer<'o> {
    pub options: &'o DecodeOptions,
    pub rejects: Rejects,
    known: &'static KnownAttributes,
    columns: SpansBuilder,
    runs: Vec<RunSeen>,
    run_index: HashMap<String, usize>,
    /// By key of the run column: index into `runs`, and the scope that was last entered there.
    run_of_key: Vec<Option<(usize, u32)>>,
    resource: Inherited,
    scope: Vec<u8>,
    scope_framework: Option<&'static str>,
    /// The run of the current scope, if it is not the resource's.
    scope_run: Option<&'static str>,
    scope_number: u32,
    /// Scopes of the resource in hand: the row each ends before, and its description, not yet closed.
    scopes: Vec<(usize, Vec<u8>)>,
    scope_bytes: usize,
    refuse_resource: Option<Reason>,
    refuse_scope: Option<Reason>,
}

/// What the spans of a resource take from it.
#[derive(Default)]
struct Inherited {
    json: i32,
    service: i32,
    run: String,
    run_key: i32,
    /// True if the sender named the run, false if it is guessed.
    run_is_named: bool,
    service_name: String,
    instance: String,
    step: Option<i64>,
    sample: i32,
    group: i32,
    attempt: Option<i32>,
    phase: i32,
    request: i32,
    thread: i32,
    host: i32,
    pid: Option<i64>,
    tp: Option<i32>,
    dp: Option<i32>,
    pp: Option<i32>,
    project: Option<String>,
    name: Option<String>,
    framework: Option<String>,
    dropped: u32,
    /// JSON array of its entities, or empty if it has none.
    entities: Vec<u8>,
}

impl Inherited {
    /// Does ROLL write through this tracer? There a service is a role: the driver, a scheduler, a cluster of workers whose
    /// instances are numbered.
    fn is_rolls(&self, tracer: &str) -> bool {
        let worker = || {
            let rank = self.instance.strip_prefix(&self.service_name).and_then(|rest| rest.strip_prefix('-'));
            rank.is_some_and(|rank| rank.starts_with(|c: char| c.is_ascii_digit()))
        };
        match tracer {
            "roll" => true,
            "driver" | "scheduler" => self.service_name == tracer,
            "worker" | "env_manager" => worker(),
            _ => self.framework.as_deref() == Some(ROLL),
        }
    }
}

impl<'o> Writer<'o> {
    pub fn new(options: &'o DecodeOptions) -> Self {
        Writer {
            options,
            rejects: Rejects::default(),
            known: KnownAttributes::get(),
            columns: SpansBuilder::default(),
            runs: Vec::new(),
            run_index: HashMap::new(),
            run_of_key: Vec::new(),
            resource: Inherited::default(),
            scope: Vec::new(),
            scope_framework: None,
            scope_run: None,
            scope_number: 0,
            scopes: Vec::new(),
            scope_bytes: 0,
            refuse_resource: None,
            refuse_scope: None,
        }
    }

    pub fn rows(&self) -> usize {
        self.columns.len()
    }

    /// The rows so far, between two requests.
    pub fn take(&mut self) -> RecordBatch {
        self.recover();
        self.run_of_key.clear();
        self.scope_bytes = 0;
        self.columns.finish().expect("columns are written row by row")
    }

    pub fn runs(&mut self) -> Vec<RunSeen> {
        std::mem::take(&mut self.runs)
    }

    /// The reason for which every span here is refused, if there is one.
    pub fn refused(&self) -> Option<Reason> {
        self.refuse_resource.or(self.refuse_scope)
    }

    pub fn begin_resource<S: AsRef<str>>(&mut self, resource: Result<&Resource<S>, Reason>) {
        self.refuse_resource = resource.and_then(|r| self.inherit(r)).err();
    }

    fn inherit<S: AsRef<str>>(&mut self, resource: &Resource<S>) -> Result<(), Reason> {
        let list = &resource.attrs;
        let mut json = Vec::with_capacity(256);
        write_object(&mut json, list);
        let found = KnownPositions::new(self.known, list);
        let text = |meaning| found.text_for(list, meaning);
        let c = &mut self.columns;
        let library = list.list.iter().find(|(key, _)| key.as_ref() == SDK_NAME).and_then(|(_, value)| str_of(value));
        // MLflow names no service.
        let service = text(Meaning::Service).or_else(|| library.filter(|l| *l == MLFLOW).map(str::to_string));
        let named = self.options.run.clone().or_else(|| text(Meaning::Run));
        let run_is_named = named.is_some();
        let run = named.or_else(|| service.clone()).unwrap_or_else(|| DEFAULT_RUN.into());
        let service = service.unwrap_or_else(|| UNKNOWN_SERVICE.into());
        let instance = list.list.iter().find(|(key, _)| key.as_ref() == SERVICE_INSTANCE_ID);
        let instance = instance.and_then(|(_, value)| str_of(value)).unwrap_or("").to_string();
        if run.len() > RUN_ID_BYTES {
            return Err(Reason::RunTooLong);
        }
        let label = |meaning| text(meaning).filter(|t| t.len() <= MAX_LABEL_BYTES);
        let framework = label(Meaning::System)
            .or_else(|| matches!(service.as_str(), "sglang" | "smg").then(|| "sglang".to_string()));
        let key = |column: &mut DictColumn, meaning| text(meaning).map_or(NULL_KEY, |t| column.intern(&t));
        self.resource = Inherited {
            json: c.resource.intern(std::str::from_utf8(&json).expect("only UTF-8 is written")),
            service: c.service.intern(&service),
            run_key: c.run_id.intern(&run),
            run,
            run_is_named,
            instance,
            service_name: service,
            step: found.int(list, Meaning::Step),
            sample: key(&mut c.sample_id, Meaning::Sample),
            group: key(&mut c.group_id, Meaning::Group),
            attempt: found.int32(list, Meaning::Attempt),
            phase: key(&mut c.phase, Meaning::Phase),
            request: key(&mut c.request_id, Meaning::Request),
            thread: key(&mut c.thread, Meaning::Thread),
            host: key(&mut c.host, Meaning::Host),
            pid: found.int(list, Meaning::Pid),
            tp: found.int32(list, Meaning::TpRank),
            dp: found.int32(list, Meaning::DpRank),
            pp: found.int32(list, Meaning::PpRank),
            project: label(Meaning::Project),
            name: label(Meaning::RunName),
            framework,
            dropped: resource.dropped,
            entities: write_entities(&resource.entities),
        };
        Ok(())
    }

    pub fn begin_scope<S: AsRef<str>>(&mut self, scope: Result<&Scope<S>, Reason>) {
        self.scope.clear();
        self.scope_framework = None;
        self.scope_run = None;
        self.scope_number += 1;
        self.refuse_scope = scope.as_ref().err().copied();
        let Ok(scope) = scope else { return };
        if self.resource.is_rolls(scope.name.as_ref()) {
            self.scope_framework = Some(ROLL);
            self.scope_run = (!self.resource.run_is_named).then_some(ROLL);
        }
        write_text_member(&mut self.scope, "name", scope.name.as_ref());
        write_text_member(&mut self.scope, "version", scope.version.as_ref());
        if !scope.attrs.list.is_empty() {
            member(&mut self.scope, "attributes");
            write_object(&mut self.scope, &scope.attrs);
        }
        write_count_member(&mut self.scope, "dropped_attributes_count", scope.dropped);
    }

    pub fn end_scope(&mut self, schema_url: &str) {
        write_text_member(&mut self.scope, "schema_url", schema_url);
        let rows = self.columns.len();
        if rows > self.scopes.last().map_or(self.columns.scope.len(), |(end, _)| *end) {
            self.scopes.push((rows, std::mem::take(&mut self.scope)));
        }
        self.scope.clear();
        self.refuse_scope = None;
    }

    /// The schema address of a resource often comes after its spans, so it is written only here.
    pub fn end_resource(&mut self, schema_url: &str) -> Result<(), Fault> {
        let done = self.close_scopes(schema_url);
        self.refuse_resource = None;
        done
    }

    fn close_scopes(&mut self, resource_schema_url: &str) -> Result<(), Fault> {
        if self.columns.len() > self.scopes.last().map_or(self.columns.scope.len(), |(end, _)| *end) {
            self.end_scope("");
        }
        for (end, mut text) in std::mem::take(&mut self.scopes) {
            write_text_member(&mut text, "resource_schema_url", resource_schema_url);
            write_count_member(&mut text, "resource_dropped_attributes_count", self.resource.dropped);
            if !self.resource.entities.is_empty() {
                member(&mut text, "resource_entity_refs");
                text.extend_from_slice(&self.resource.entities);
            }
            if text.is_empty() {
                text.push(b'{');
            }
            text.push(b'}');
            self.scope_bytes += text.len();
            if self.scope_bytes > MAX_SCOPE_BYTES {
                return Err(Fault::Malformed { what: "the descriptions of scopes exceed 256 MiB", at: 0 });
            }
            let text = std::str::from_utf8(&text).expect("only UTF-8 is written");
            let key = self.columns.scope.intern(text);
            while self.columns.scope.len() < end {
                self.columns.scope.push_key(key);
            }
        }
        Ok(())
    }

    /// After a request that broke off: the rows that were written stay, whole.
    pub fn recover(&mut self) {
        if self.end_resource("").is_err() {
            while self.columns.scope.len() < self.columns.len() {
                self.columns.scope.push("{}");
            }
        }
    }

    /// Checks a span and writes its row.
    pub fn span<S: AsRef<str>>(&mut self, span: &Span<S>) -> Result<(), Reason> {
        let (start, end) = check(span, self.options)?;
        let list = &span.attrs;
        let found = KnownPositions::new(self.known, list);

        let mut buffer = itoa::Buffer::new();
        let own_run = match &self.options.run {
            Some(_) => None,
            None => found.get(list, Meaning::Run).and_then(|value| text_of(value, &mut buffer)).or(self.scope_run),
        };
        if own_run.is_some_and(|run| run.len() > RUN_ID_BYTES) {
            return Err(Reason::RunTooLong);
        }
        let run_key = own_run.map_or(self.resource.run_key, |run| self.columns.run_id.intern(run));
        self.see_run(run_key, own_run, start)?;

        let c = &mut self.columns;
        let r = &self.resource;
        c.run_id.push_key(run_key);
        c.step.append_option(found.step(list, span).or(r.step));
        c.trace_id.push(&span.trace_id);
        c.span_id.push(&span.span_id);
        c.parent_span_id.push_opt((!is_zero(&span.parent_id)).then_some(&span.parent_id));
        c.name.push(span.name.as_ref());
        push_number(&mut c.kind, &KINDS, span.kind);
        c.service.push_key(r.service);
        found.push_text(&mut c.phase, list, Meaning::Phase, r.phase);
        found.push_text(&mut c.thread, list, Meaning::Thread, r.thread);
        found.push_text(&mut c.host, list, Meaning::Host, r.host);
        c.pid.append_option(found.int(list, Meaning::Pid).or(r.pid));
        c.tp_rank.append_option(found.int32(list, Meaning::TpRank).or(r.tp));
        c.dp_rank.append_option(found.int32(list, Meaning::DpRank).or(r.dp));
        c.pp_rank.append_option(found.int32(list, Meaning::PpRank).or(r.pp));
        c.start_ns.push(start);
        c.end_ns.append_option(end);
        let default_state = if end.is_some() { state::CLOSED } else { state::OPEN };
        c.state.push(found.get(list, Meaning::State).and_then(str_of).unwrap_or(default_state));
        push_number(&mut c.status, &STATUSES, span.status);
        c.status_message.push_opt(not_empty(&span.status_message));
        match found.sample_of_group(list) {
            Some(sample) => c.sample_id.push(&sample),
            None => found.push_text(&mut c.sample_id, list, Meaning::Sample, r.sample),
        }
        found.push_text(&mut c.group_id, list, Meaning::Group, r.group);
        c.attempt.append_option(found.int32(list, Meaning::Attempt).or(r.attempt));
        found.push_text(&mut c.request_id, list, Meaning::Request, r.request);
        c.bootstrap_room.push_opt(found.get(list, Meaning::BootstrapRoom).and_then(room_of).as_deref());

        let mut at_start = found.int(list, Meaning::StartAttrs).unwrap_or(0);
        for (i, (key, value)) in list.list.iter().enumerate() {
            if found.taken(i) {
                continue;
            }
            if at_start > 0 {
                at_start -= 1;
                put(&mut c.start_attrs, key.as_ref(), value, &list.json);
            } else {
                put(&mut c.end_attrs, key.as_ref(), value, &list.json);
            }
        }
        c.start_attrs.end_row();
        c.end_attrs.end_row();

        let mut at = 0;
        for event in &span.events {
            for (key, value) in &span.event_attrs.list[at..event.attrs_end] {
                put(&mut c.events.attrs, key.as_ref(), value, &span.event_attrs.json);
            }
            at = event.attrs_end;
            c.events.push_event(event.time as i64, event.name.as_ref(), event.dropped);
        }
        c.events.end_row();
        at = 0;
        for link in &span.links {
            for (key, value) in &span.link_attrs.list[at..link.attrs_end] {
                put(&mut c.links.attrs, key.as_ref(), value, &span.link_attrs.json);
            }
            at = link.attrs_end;
            let trace_state = not_empty(&link.trace_state);
            c.links.push_link(&link.trace_id, &link.span_id, trace_state, link.flags, link.dropped);
        }
        c.links.end_row();

        c.resource.push_key(r.json);
        c.trace_state.push_opt(not_empty(&span.trace_state));
        c.flags.push(span.flags);
        c.dropped_attrs.push(span.dropped_attrs);
        c.dropped_events.push(span.dropped_events);
        c.dropped_links.push(span.dropped_links);
        c.original_trace_id.append_option(found.get(list, Meaning::OriginalTraceId).and_then(str_of));
        c.original_span_id.append_option(found.get(list, Meaning::OriginalSpanId).and_then(str_of));
        c.original_parent_span_id.append_option(found.get(list, Meaning::OriginalParentSpanId).and_then(str_of));
        Ok(())
    }

    /// Enters a row into the runs seen. `run` is its name if it is not the resource's.
    fn see_run(&mut self, key: i32, run: Option<&str>, start: i64) -> Result<(), Reason> {
        let slot = key as usize;
        if self.run_of_key.len() <= slot {
            self.run_of_key.resize(slot + 1, None);
        }
        let index = match self.run_of_key[slot] {
            Some((index, scope)) if scope == self.scope_number => index,
            _ => {
                let index = self.describe_run(run)?;
                self.run_of_key[slot] = Some((index, self.scope_number));
                index
            }
        };
        let seen = &mut self.runs[index];
        seen.first_ns = seen.first_ns.min(start);
        Ok(())
    }

    fn describe_run(&mut self, run: Option<&str>) -> Result<usize, Reason> {
        let r = &self.resource;
        let run = run.unwrap_or(&r.run);
        let index = match self.run_index.get(run) {
            Some(index) => *index,
            None if self.runs.len() >= MAX_RUNS => return Err(Reason::TooManyRuns(MAX_RUNS)),
            None => {
                self.run_index.insert(run.to_string(), self.runs.len());
                self.runs.push(RunSeen { run_id: run.to_string(), first_ns: i64::MAX, ..RunSeen::default() });
                self.runs.len() - 1
            }
        };
        let seen = &mut self.runs[index];
        if seen.project.is_none() {
            seen.project.clone_from(&r.project);
        }
        if seen.name.is_none() {
            seen.name.clone_from(&r.name);
        }
        if seen.framework.as_deref().is_none_or(|f| f == DEFAULT_FRAMEWORK) {
            let guess = r.framework.as_deref().or(self.scope_framework).unwrap_or(DEFAULT_FRAMEWORK);
            seen.framework = Some(guess.to_string());
        }
        Ok(index)
    }
}

/// What a row needs to be true. Gives its start and end.
fn check<S: AsRef<str>>(span: &Span<S>, options: &DecodeOptions) -> Result<(i64, Option<i64>), Reason> {
    if is_zero(&span.trace_id) {
        return Err(Reason::TraceId);
    }
    if is_zero(&span.span_id) {
        return Err(Reason::SpanId);
    }
    let latest = LATEST_NS as u64;
    if span.start > latest || span.end > latest || span.events.iter().any(|e| e.time > latest) {
        return Err(Reason::TimeTooLate);
    }
    if options.live && span.start < EARLIEST_LIVE_NS as u64 {
        return Err(Reason::TimeTooEarly);
    }
    if span.end != 0 && span.end < span.start {
        return Err(Reason::EndBeforeStart);
    }
    let limits = &options.limits;
    if span.events.len() > limits.events_per_span {
        return Err(Reason::Events(limits.events_per_span));
    }
    if span.links.len() > limits.links_per_span {
        return Err(Reason::Links(limits.links_per_span));
    }
    let texts = [&span.name, &span.status_message, &span.trace_state];
    if texts.iter().any(|t| t.as_ref().len() > limits.attribute_bytes)
        || span.events.iter().any(|e| e.name.as_ref().len() > limits.attribute_bytes)
    {
        return Err(Reason::AttributeBytes(limits.attribute_bytes));
    }
    Ok((span.start as i64, (span.end != 0).then_some(span.end as i64)))
}

/// The positions of the known attributes in a list.
struct KnownPositions {
    /// By meaning: rank of the name (`NONE`: not found) and index of the attribute.
    at: [(u8, u32); Meaning::COUNT],
    any_reserved: bool,
}

const NONE: u8 = u8::MAX;

impl KnownPositions {
    #[inline]
    fn new<S: AsRef<str>>(known: &KnownAttributes, list: &Attrs<S>) -> Self {
        let mut found = KnownPositions { at: [(NONE, 0); Meaning::COUNT], any_reserved: false };
        for (i, (key, value)) in list.list.iter().enumerate() {
            if let Some((meaning, rank)) = known.find(key.as_ref()) {
                let best = &mut found.at[meaning as usize];
                if rank < best.0 && usable(meaning, value) {
                    *best = (rank, i as u32);
                    found.any_reserved |= meaning.is_reserved();
                }
            }
        }
        found
    }

    #[inline]
    fn get<'v, S>(&self, list: &'v Attrs<S>, meaning: Meaning) -> Option<&'v Val<S>> {
        let (rank, i) = self.at[meaning as usize];
        (rank != NONE).then(|| &list.list[i as usize].1)
    }

    /// Is this a reserved attribute that was understood? It becomes a column and is no longer an attribute.
    #[inline]
    fn taken(&self, i: usize) -> bool {
        self.any_reserved
            && self.at[Meaning::State as usize..].iter().any(|(rank, at)| *rank != NONE && *at as usize == i)
    }

    #[inline]
    fn int<S: AsRef<str>>(&self, list: &Attrs<S>, meaning: Meaning) -> Option<i64> {
        self.get(list, meaning).and_then(int_of)
    }

    /// The step that a span names itself.
    #[inline]
    fn step<S: AsRef<str>>(&self, list: &Attrs<S>, span: &Span<S>) -> Option<i64> {
        let is_root = is_zero(&span.parent_id);
        let (rank, _) = self.at[Meaning::Step as usize];
        if rank == NONE {
            // A root that is about a sample or a request counts something else.
            let about_a_step = || [Meaning::Sample, Meaning::Request].iter().all(|m| self.get(list, *m).is_none());
            return is_root.then(|| step_in_name(span.name.as_ref()))?.filter(|_| about_a_step());
        }
        let is_trainers = || {
            let said = self.get(list, Meaning::Phase).and_then(str_of);
            let kind = classify(span.name.as_ref(), said);
            kind.is_trainers() || kind == Kind::Rollout
        };
        let believed = !STEP_OR_OTHER.contains(&STEP[rank as usize]) || is_root || is_trainers();
        believed.then(|| self.int(list, Meaning::Step))?
    }

    #[inline]
    fn int32<S: AsRef<str>>(&self, list: &Attrs<S>, meaning: Meaning) -> Option<i32> {
        self.int(list, meaning).and_then(|i| i.try_into().ok())
    }

    fn text_for<S: AsRef<str>>(&self, list: &Attrs<S>, meaning: Meaning) -> Option<String> {
        text_of(self.get(list, meaning)?, &mut itoa::Buffer::new()).map(str::to_string)
    }

    /// The sample that a group and a number within it name together, where nothing else names it.
    #[inline]
    fn sample_of_group<S: AsRef<str>>(&self, list: &Attrs<S>) -> Option<String> {
        let number = self.get(list, Meaning::SampleOfGroup).filter(|_| self.get(list, Meaning::Sample).is_none())?;
        let group = self.text_for(list, Meaning::Group)?;
        text_of(number, &mut itoa::Buffer::new()).map(|number| format!("{group}-{number}"))
    }

    #[inline]
    fn push_text<S: AsRef<str>>(&self, column: &mut DictColumn, list: &Attrs<S>, meaning: Meaning, default: i32) {
        match self.get(list, meaning) {
            Some(value) => column.push_opt(text_of(value, &mut itoa::Buffer::new())),
            None => column.push_key(default),
        }
    }
}

/// Can the value mean this at all? If not, it stays an attribute and is ignored here.
fn usable<S: AsRef<str>>(meaning: Meaning, value: &Val<S>) -> bool {
    use Meaning as M;
    match meaning {
        M::Step | M::Pid => int_of(value).is_some(),
        M::BootstrapRoom => room_of(value).is_some(),
        M::Attempt | M::TpRank | M::DpRank | M::PpRank => int_of(value).is_some_and(|i| i32::try_from(i).is_ok()),
        M::StartAttrs => matches!(value, Val::Int(n) if *n >= 0),
        M::State => {
            let known = [state::CLOSED, state::OPEN, state::INSTANT, state::ORPHAN_END];
            str_of(value).is_some_and(|s| known.contains(&s))
        }
        M::OriginalTraceId | M::OriginalSpanId | M::OriginalParentSpanId => str_of(value).is_some(),
        _ => match value {
            Val::Str(s) => !s.as_ref().is_empty(),
            Val::Int(_) => true,
            _ => false,
        },
    }
}

fn str_of<S: AsRef<str>>(value: &Val<S>) -> Option<&str> {
    match value {
        Val::Str(s) => Some(s.as_ref()),
        _ => None,
    }
}

fn int_of<S: AsRef<str>>(value: &Val<S>) -> Option<i64> {
    match value {
        Val::Int(i) => Some(*i),
        Val::Str(s) => s.as_ref().trim().parse().ok(),
        // A loop that counts in floats.
        Val::Double(d) if d.fract() == 0.0 && d.abs() < 9e15 => Some(*d as i64),
        _ => None,
    }
}

/// A room as SGLang writes it, also where it came as a number. Zero stands for none.
fn room_of<S: AsRef<str>>(value: &Val<S>) -> Option<String> {
    let number = match value {
        Val::Int(i) => u64::try_from(*i).ok(),
        Val::Str(s) => {
            let text = s.as_ref().trim();
            match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => text.parse().ok(),
            }
        }
        _ => None,
    };
    number.filter(|number| *number != 0).map(|number| format!("{number:#x}"))
}

fn text_of<'v, S: AsRef<str>>(value: &'v Val<S>, buffer: &'v mut itoa::Buffer) -> Option<&'v str> {
    match value {
        Val::Str(s) => Some(s.as_ref()),
        Val::Int(i) => Some(buffer.format(*i)),
        _ => None,
    }
}

fn not_empty<S: AsRef<str>>(text: &S) -> Option<&str> {
    Some(text.as_ref()).filter(|t| !t.is_empty())
}

/// The name of a number, or, where OTLP has grown a new one, the number itself, so that it can be sent on.
#[inline]
fn push_number(column: &mut DictColumn, names: &[&str], number: i32) {
    match names.get(number as usize) {
        Some(name) => column.push(name),
        None => column.push(itoa::Buffer::new().format(number)),
    }
}

#[inline]
fn put<S: AsRef<str>>(column: &mut AttrsColumn, key: &str, value: &Val<S>, json: &[u8]) {
    column.put_with(key, |out| write_val(out, value, json));
}

#[inline]
pub(super) fn write_val<S: AsRef<str>>(out: &mut Vec<u8>, value: &Val<S>, json: &[u8]) {
    match value {
        Val::Null => out.extend_from_slice(b"null"),
        Val::Bool(b) => attrs::write_bool(out, *b),
        Val::Int(i) => attrs::write_int(out, *i),
        Val::Double(d) => attrs::write_double(out, *d),
        Val::Str(s) => attrs::write_str(out, s.as_ref()),
        Val::Json { from, to } => out.extend_from_slice(&json[*from..*to]),
    }
}

/// Attributes as one JSON object: repeated keys stay, in order.
fn write_object<S: AsRef<str>>(out: &mut Vec<u8>, list: &Attrs<S>) {
    out.push(b'{');
    for (i, (key, value)) in list.list.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        attrs::write_key(out, key.as_ref());
        write_val(out, value, &list.json);
    }
    out.push(b'}');
}

/// Begins the next member of an object that is written piece by piece and closed by the code that adds the last one.
fn member(out: &mut Vec<u8>, key: &str) {
    out.push(if out.is_empty() { b'{' } else { b',' });
    attrs::write_key(out, key);
}

fn write_text_member(out: &mut Vec<u8>, key: &str, text: &str) {
    if !text.is_empty() {
        member(out, key);
        attrs::write_str(out, text);
    }
}

fn write_entities<S: AsRef<str>>(entities: &[Entity<S>]) -> Vec<u8> {
    let mut out = Vec::new();
    for entity in entities {
        out.push(if out.is_empty() { b'[' } else { b',' });
        let mut one = Vec::new();
        write_text_member(&mut one, "schema_url", entity.schema_url.as_ref());
        write_text_member(&mut one, "type", entity.kind.as_ref());
        for (key, list) in [("id_keys", &entity.id_keys), ("description_keys", &entity.description_keys)] {
            for (i, text) in list.iter().enumerate() {
                if i == 0 {
                    member(&mut one, key);
                }
                one.push(if i == 0 { b'[' } else { b',' });
                attrs::write_str(&mut one, text.as_ref());
            }
            if !list.is_empty() {
                one.push(b']');
            }
        }
        if one.is_empty() {
            one.push(b'{');
        }
        out.append(&mut one);
        out.push(b'}');
    }
    if !out.is_empty() {
        out.push(b']');
    }
    out
}

fn write_count_member(out: &mut Vec<u8>, key: &str, count: u32) {
    if count > 0 {
        member(out, key);
        attrs::write_int(out, count.into());
    }
}
