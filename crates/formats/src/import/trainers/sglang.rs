//! SGLang's `sglang-request-metrics-YYYYMMDD_HH.log` (`--export-metrics-to-file --enable-metrics`): a line per finished request, with its
//! parameters, its `meta_info`, and times.

use std::io::Read;
use std::path::Path;

use rollscope_model::build::{NewSample, NewSpan};
use rollscope_model::names::state;
use rollscope_model::time::seconds_to_ns;
use rollscope_model::{attrs, ids};
use xxhash_rust::xxh3::xxh3_128;

use super::lines;
use super::record::Json;
use super::rows::{self, Fault, Rows};
use crate::import::{ImportError, ImportOptions, Imported, Importer, Sink};
use crate::tokens::{Part, Tokens};

/// Parameters with a value per token, and the prompt: they are no attributes of a request.
pub(super) const LEFT_OUT: &[&str] = &["text", "input_ids", "input_embeds"];

pub struct SglangRequests;

impl Importer for SglangRequests {
    fn name(&self) -> &'static str {
        "SGLang request metrics"
    }

    fn belongs(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("sglang-request-metrics-") && name.contains(".log")
    }

    fn detects(&self, head: &[u8], path: &Path) -> bool {
        let (keys, all) = lines::first_keys(head);
        let has = |name: &str| keys.iter().any(|key| key == name);
        has("request_parameters") && (has("id") || (!all && self.belongs(path)))
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let mut rows = Rows::new(path, &rows::home(path, |_| false), "sglang", options, sink);
        lines::each(input, &mut rows, request)?;
        rows.finish()
    }
}

/// The tokens that were produced, from `meta_info`: `output_token_logprobs` has a triple per token (log-probability, id, text), if the
/// client asked for them.
pub(super) fn tokens_of(meta: &Json, output_ids: Option<&Json>, engine: &str) -> Option<Tokens> {
    let id = |id: f64| (id >= 0.0 && id <= f64::from(i32::MAX)).then_some(id as i32);
    let mut tokens = Tokens { prompt_tokens: meta.i64_of("prompt_tokens"), ..Tokens::default() };
    let triples = meta.get("output_token_logprobs").map_or(&[][..], Json::items);
    if triples.is_empty() {
        let ids: Option<Vec<i32>> = output_ids?.numbers()?.into_iter().map(id).collect();
        tokens.ids = Some(ids?);
    } else {
        let (mut ids, mut logprobs, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        for triple in triples {
            // A triple without a text is a list of two or three, of which the last is null.
            let numbers = triple.numbers();
            let at = |at: usize| {
                triple.items().get(at).and_then(Json::as_f64).or_else(|| numbers.as_ref()?.get(at).copied())
            };
            logprobs.push(at(0).unwrap_or(f64::NAN) as f32);
            ids.push(id(at(1)?)?);
            texts.extend(triple.items().get(2).and_then(Json::as_str).map(str::to_string));
        }
        tokens.texts = (texts.len() == ids.len()).then_some(texts);
        (tokens.ids, tokens.logprobs) = (Some(ids), Some(logprobs));
    }
    let weight_version = meta.get("weight_version").and_then(Json::as_id);
    let engine = Some(engine.to_string()).filter(|engine| !engine.is_empty());
    tokens.parts = vec![Part { engine, weight_version, ..Part::default() }];
    tokens.ids.as_ref().is_some_and(|ids| !ids.is_empty()).then_some(tokens)
}

fn request(rows: &mut Rows, _line: u64, mut record: Json) -> Result<(), Fault> {
    let Some(rid) = record.get("id").and_then(Json::as_id) else {
        return Err(Fault::Line("it has no \"id\"".into()));
    };
    let time = |name: &str| record.f64_of(name).filter(|s| *s > 0.0).and_then(seconds_to_ns);
    let (Some(start_ns), Some(end_ns)) = (time("request_received_ts"), time("request_finished_ts")) else {
        return Err(Fault::Line("it has no times; SGLang writes them with --enable-metrics".into()));
    };
    let (forward, prefilled) = (time("forward_entry_time"), time("prefill_finished_time"));
    let waited = record.f64_of("queue_time").filter(|s| *s > 0.0).and_then(seconds_to_ns);
    let finish = record.get("finish_reason");
    let reason = finish.and_then(|f| f.str_of("type").or(f.as_str())).map(str::to_string);
    let message = finish.and_then(|f| f.str_of("message")).map(str::to_string);
    let aborted = reason.as_deref() == Some("abort");

    if let Some(tokens) = tokens_of(&record, record.get("output_ids"), "") {
        let sample = NewSample { sample_id: &rid, split: "train", end_ns: Some(end_ns), ..NewSample::default() };
        rows.token_row(&sample, &tokens)?;
    }
    let parameters = record.take("request_parameters").unwrap_or_default();
    let parameters = parameters.as_str().and_then(|text| Json::parse(text.as_bytes()).ok()).unwrap_or_default();
    let value = |json: &Json| attrs::parse(&json.to_text());
    let of_request = parameters.entries().iter().filter(|(name, _)| !LEFT_OUT.contains(&name.as_str()));
    let start_attrs: Vec<(&str, attrs::Value)> =
        of_request.filter_map(|(name, json)| Some((name.as_str(), value(json)?))).collect();
    // Lists are values per token: log probabilities.
    let of_answer = record.entries().iter().filter(|(_, json)| json.count().is_none());
    let end_attrs: Vec<(&str, attrs::Value)> =
        of_answer.filter_map(|(name, json)| Some((name.as_str(), value(json)?))).collect();

    let trace_id = xxh3_128(format!("{rid}\0{start_ns}").as_bytes()).to_be_bytes();
    let root = ids::span_id_from_place(&trace_id, 0);
    let span = NewSpan { trace_id, request_id: Some(&rid), state: state::CLOSED, ..NewSpan::default() };
    rows.span(NewSpan {
        span_id: root,
        name: "request",
        kind: "server",
        phase: Some("generate"),
        start_ns,
        end_ns: Some(end_ns.max(start_ns)),
        status: if aborted { "error" } else { "unset" },
        status_message: message.as_deref().filter(|_| aborted),
        start_attrs: &start_attrs,
        end_attrs: &end_attrs,
        ..span.clone()
    });
    let queued = forward.zip(waited).map(|(forward, waited)| (forward.saturating_sub(waited), forward));
    let prefill = forward.zip(prefilled);
    let decode = prefilled.map(|prefilled| (prefilled, end_ns));
    for (place, (name, times)) in [("queue", queued), ("prefill", prefill), ("decode", decode)].into_iter().enumerate()
    {
        let Some((start_ns, end_ns)) = times.filter(|(start, end)| start <= end) else { continue };
        rows.span(NewSpan {
            span_id: ids::span_id_from_place(&trace_id, place as u32 + 1),
            parent_span_id: Some(root),
            name,
            phase: Some(name),
            start_ns,
            end_ns: Some(end_ns),
            ..span.clone()
        });
    }
    Ok(())
}
