//! SGLang's dumps of requests: `crash_dump_*.pkl` (`--crash-dump-folder`: the requests of the last five minutes, and those under way when
//! the server crashed) and `YYYY-MM-DD_HH-MM-SS.pkl` (`--dump-requests-folder`, finished ones only). Both are pickles of a dict with
//! `server_args` and `requests`, a tuple per request: what was asked, what was answered, and two times. Nothing in them is executed.

use std::io::Read;
use std::path::Path;

use rollscope_model::build::{NewSample, NewSpan};
use rollscope_model::names::state;
use rollscope_model::time::seconds_to_ns;
use rollscope_model::{attrs, ids};
use xxhash_rust::xxh3::xxh3_128;

use super::record::Json;
use super::rows::{self, Fault, Rows, message};
use super::sglang::{LEFT_OUT, tokens_of};
use crate::import::torch::render::Style;
use crate::import::torch::{Tag, Torch, Value};
use crate::import::{ImportError, ImportOptions, Imported, Importer, Sink};

/// Largest dump.
pub const MAX_DUMP_BYTES: u64 = 1 << 30;
/// Requests in a dump.
const MAX_REQUESTS: usize = 1_000_000;
/// Most that is read of one request, as JSON.
const MAX_REQUEST_BYTES: usize = 64 << 20;
/// Where the first key of the dict is.
const FIRST_KEY_WITHIN: usize = 64;
/// Addresses that say nothing about which machine it was.
const ANY_HOST: &[&str] = &["", "0.0.0.0", "::", "127.0.0.1", "localhost"];

pub struct SglangDump;

impl Importer for SglangDump {
    fn name(&self) -> &'static str {
        "SGLang dump of requests"
    }

    fn belongs(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_time = |stem: &str| stem.len() == 19 && stem.bytes().all(|b| b.is_ascii_digit() || b"-_".contains(&b));
        name.strip_suffix(".pkl").is_some_and(|stem| stem.starts_with("crash_dump_") || is_time(stem))
    }

    fn detects(&self, head: &[u8], _path: &Path) -> bool {
        detects(head)
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let mut bytes = Vec::new();
        input.take(MAX_DUMP_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_DUMP_BYTES {
            let what = "the size of the dump".to_string();
            return Err(ImportError::Limit { what, name: "MAX_DUMP_BYTES", limit: MAX_DUMP_BYTES });
        }
        let size = bytes.len();
        let dump = RequestDump::open(path, bytes)?;
        let mut rows = Rows::new(path, &rows::home(path, |_| false), "sglang", options, sink);
        let count = dump.requests().count().max(1);
        for (request, line) in dump.requests().zip(1..) {
            match dump.read(request).map_err(Fault::Line).and_then(|read| read.rows(&mut rows, line, &dump.engine)) {
                Ok(()) => {}
                Err(Fault::Line(why)) => rows.reject_what(&format!("request {line}"), &why),
                Err(Fault::Stop(error)) => return Err(error),
            }
            rows.read(size / count)?;
        }
        rows.finish()
    }
}

/// A pickle of a dict that begins with `server_args`.
pub fn detects(head: &[u8]) -> bool {
    head.first() == Some(&0x80)
        && memchr::memmem::find(&head[..head.len().min(FIRST_KEY_WITHIN)], b"server_args").is_some()
}

/// A dump, read.
pub struct RequestDump {
    torch: Torch,
    requests: Value,
    /// `HOST:PORT` of the server.
    pub engine: String,
}

impl RequestDump {
    pub fn open(path: &Path, bytes: Vec<u8>) -> Result<RequestDump, ImportError> {
        let torch = Torch::from_pickle(bytes)?;
        let heap = &torch.heap;
        let requests = heap.field(torch.root, "requests").filter(|list| matches!(list.tag(), Tag::List | Tag::Tuple));
        let Some(requests) = requests else {
            return Err(ImportError::Malformed(
                "this is no dump of SGLang's requests: it has no list `requests`".into(),
            ));
        };
        if heap.len(requests) > MAX_REQUESTS {
            let (what, limit) = ("requests".to_string(), MAX_REQUESTS as u64);
            return Err(ImportError::Limit { what, name: "MAX_REQUESTS", limit });
        }
        let server = heap.field(torch.root, "server_args");
        let field = |name: &str| server.and_then(|server| heap.field(server, name));
        let host = field("host").and_then(|host| heap.str(host)).unwrap_or_default().into_owned();
        // SGLang writes crash dumps into a folder that has the name of the machine.
        let folder = path.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let host = if ANY_HOST.contains(&host.as_str()) { folder.unwrap_or(host) } else { host };
        let engine = match field("port").and_then(|port| heap.int(port)) {
            Some(port) => format!("{host}:{port}"),
            None => host,
        };
        Ok(RequestDump { requests, engine, torch })
    }

    pub fn requests(&self) -> impl Iterator<Item = Value> {
        self.torch.heap.items(self.requests)
    }

    /// One of [`RequestDump::requests`], or why it cannot be read.
    pub fn read(&self, request: Value) -> Result<Request, String> {
        let heap = &self.torch.heap;
        let parts: Vec<Value> = heap.items(request).take(4).collect();
        let [asked, answered, created, finished] = parts[..] else {
            return Err("it is no tuple of a request, its answer and two times".into());
        };
        let json = |value: Value| {
            Json::parse(self.torch.json(value, Style::Typed, MAX_REQUEST_BYTES).as_bytes()).map_err(|e| e.to_string())
        };
        let time = |value: Value| {
            let seconds = value.as_float().or_else(|| heap.int(value).map(|s| s as f64));
            seconds.filter(|s| *s > 0.0).and_then(seconds_to_ns)
        };
        let (asked, answered) = (json(asked)?, json(answered)?);
        let Some(rid) = asked.get("rid").and_then(Json::as_id) else { return Err("the request has no \"rid\"".into()) };
        let Some(start_ns) = time(created) else { return Err("it has no time of creation".into()) };
        let finish = answered.get("meta_info").and_then(|meta| meta.get("finish_reason"));
        let finish = finish.and_then(|f| f.str_of("type").or(f.as_str())).map(str::to_string);
        Ok(Request { rid, asked, answered, start_ns, end_ns: time(finished).map(|end| end.max(start_ns)), finish })
    }
}

/// What was asked of the server.
pub struct Request {
    pub rid: String,
    asked: Json,
    answered: Json,
    pub start_ns: i64,
    /// When it finished, or when the server crashed.
    pub end_ns: Option<i64>,
    /// Why it finished. None: it was under way.
    pub finish: Option<String>,
}

impl Request {
    /// Tokens that were produced.
    pub fn produced(&self) -> Option<i64> {
        let meta = self.answered.get("meta_info");
        let ids = || self.answered.get("output_ids").and_then(Json::count).and_then(|n| i64::try_from(n).ok());
        meta.and_then(|meta| meta.i64_of("completion_tokens")).or_else(ids)
    }

    fn rows(mut self, rows: &mut Rows, line: u64, engine: &str) -> Result<(), Fault> {
        let status = match self.finish.as_deref() {
            None => "pending",
            Some("length") => "truncated",
            Some("abort") => "aborted",
            Some(_) => "completed",
        };
        let produced = self.produced();
        let meta = self.answered.get("meta_info").cloned().unwrap_or_default();
        let name = rows.unique(None, "train", &self.rid, line);
        let trace_id = xxh3_128(format!("{}\0{}", self.rid, self.start_ns).as_bytes()).to_be_bytes();
        let prompt = match self.asked.take("text") {
            Some(text) => text,
            None => Json::text(match self.asked.get("input_ids").and_then(Json::count) {
                Some(count) => format!("({count} tokens, sent as ids)"),
                None => "(no text)".to_string(),
            }),
        };
        let mut messages = vec![message("user", prompt)];
        if let Some(text) = self.answered.str_of("text").filter(|text| !text.is_empty()) {
            messages.push(message("assistant", Json::text(text)));
        }
        let is_default = |value: &Json| matches!(value, Json::Null | Json::Bool(false)) || value.count() == Some(0);
        let of_request: Vec<&(String, Json)> = (self.asked.entries().iter())
            .filter(|(key, value)| {
                !LEFT_OUT.contains(&key.as_str()) && key != "rid" && !key.starts_with('$') && !is_default(value)
            })
            .collect();
        // Lists are values per token.
        let of_answer: Vec<&(String, Json)> =
            meta.entries().iter().filter(|(_, value)| value.count().is_none()).collect();
        let (start_attrs, end_attrs) = (attributes(&of_request), attributes(&of_answer));
        let ended = self.finish.is_some();
        let end_ns = self.end_ns.filter(|_| ended);
        let reason = meta.get("finish_reason").and_then(|f| f.str_of("message"));
        let tokens = tokens_of(&meta, self.answered.get("output_ids"), engine);
        let version = meta
            .get("weight_version")
            .and_then(Json::as_id)
            .map(|version| Json::List(vec![Json::Str(version)]).to_text());
        let sample = NewSample {
            sample_id: &name,
            split: "train",
            trace_id: Some(trace_id),
            status: Some(status),
            start_ns: Some(self.start_ns),
            end_ns,
            prompt_tokens: meta.i64_of("prompt_tokens"),
            response_tokens: produced,
            cached_tokens: meta.i64_of("cached_tokens"),
            turns: Some(1),
            weight_versions: version.as_deref(),
            ..NewSample::default()
        };
        let mut others = vec![("engine".to_string(), Json::text(engine))];
        others.extend(self.asked.get("sampling_params").map(|params| ("sampling_params".to_string(), params.clone())));
        if let Some(tokens) = &tokens {
            rows.token_row(&sample, tokens)?;
        }
        rows.sample(sample, &others, &messages, line);
        rows.span(NewSpan {
            trace_id,
            span_id: ids::span_id_from_place(&trace_id, 0),
            request_id: Some(&self.rid),
            sample_id: Some(&name),
            name: "request",
            kind: "server",
            phase: Some("generate"),
            thread: Some(engine),
            start_ns: self.start_ns,
            end_ns,
            state: if ended { state::CLOSED } else { state::OPEN },
            status: if status == "aborted" { "error" } else { "unset" },
            status_message: reason.filter(|_| status == "aborted"),
            start_attrs: &start_attrs,
            end_attrs: &end_attrs,
            ..NewSpan::default()
        });
        Ok(())
    }
}

fn attributes<'a>(entries: &[&'a (String, Json)]) -> Vec<(&'a str, attrs::Value)> {
    entries.iter().filter_map(|(key, value)| Some((key.as_str(), attrs::parse(&value.to_text())?))).collect()
}
