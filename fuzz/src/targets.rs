//! The parsers.

use std::path::Path;
use std::sync::LazyLock;

use rollscope_formats::call_tokens;
use rollscope_formats::conversations::from_spans;
use rollscope_formats::dumps;
use rollscope_formats::export::otlp::write_json_line;
use rollscope_formats::import::chrome::{Chrome, profile_facts};
use rollscope_formats::import::otlp::{
    DecodeError, DecodeOptions, Decoded, Delta, OtlpJson, OtlpProtobuf, Source, Summed, decode_logs, decode_logs_json,
    decode_metrics, decode_metrics_json, decode_traces, decode_traces_json,
};
use rollscope_formats::import::prometheus::{self, Limits, parse_series};
use rollscope_formats::import::remote_write::{self, Options, Version};
use rollscope_formats::import::trainers::{
    ArealSessions, Atif, Langfuse, Miles, NemoRl, PrimeRl, PrimeRlMetrics, PrimeRlTokens, Rllm, SglangDump,
    SglangRequests, Tinker, TinkerMetrics, Verl,
};
use rollscope_formats::import::{ImportOptions, Importer, torch};
use rollscope_formats::testing::exercise;
use rollscope_formats::testing::torch_writer::torch_file;
use rollscope_model::attrs;
use rollscope_query::promql;
use rollscope_search::snippet::Needles;
use rollscope_search::text::Said;
use rollscope_search::{Request, Search, parse_search, parse_sort};
use rollscope_server::testing as parameters;
use rollscope_store::testing as store;
use rollscope_tokenizer::Tokenizer;

use crate::{Shape, Target};

/// All of them.
pub const TARGETS: &[Target] = &[
    target("otlp_traces", 2048, Shape::Protobuf, |data| traces(decode_traces(data, &live()))),
    target("otlp_traces_json", 2048, Shape::Text, |data| traces(decode_traces_json(data, &live()))),
    target("otlp_metrics", 2048, Shape::Protobuf, |data| metrics(decode_metrics(data, &live()))),
    target("otlp_metrics_json", 2048, Shape::Text, |data| metrics(decode_metrics_json(data, &live()))),
    target("otlp_logs", 2048, Shape::Protobuf, |data| drop(decode_logs(data, &live()))),
    target("otlp_logs_json", 2048, Shape::Text, |data| drop(decode_logs_json(data, &live()))),
    target("otlp_file", 2048, Shape::Text, otlp_file),
    target("chrome", 2048, Shape::Text, chrome),
    target("trainers", 4096, Shape::Text, trainer_lines),
    target("tokenizer", 4096, Shape::Text, tokenizer),
    target("dumps", 4096, Shape::Text, |data| drop(dumps::read(Path::new("nccl_trace_rank_3"), data))),
    target("prometheus", 1024, Shape::Text, prometheus_page),
    target("remote_write", 1024, Shape::Protobuf, |data| remote_write_request(data, Version::One)),
    target("remote_write_2", 1024, Shape::Protobuf, |data| remote_write_request(data, Version::Two)),
    target("torch", 2048, Shape::Bytes, torch_archive),
    target("messages", 1024, Shape::Text, messages),
    target("attributes", 512, Shape::Text, attributes),
    target("promql", 256, Shape::Text, |data| text(data, |text| _ = promql::testing::exercise(text))),
    target("rules", 1024, Shape::Text, |data| text(data, |text| _ = rollscope_alarms::rules::parse("x.yml", text))),
    target("search", 256, Shape::Text, search),
    target("parameters", 512, Shape::Text, |data| text(data, parameters::exercise)),
    target("log", 9000, Shape::Bytes, log),
    target("manifest", 2048, Shape::Text, manifest),
];

const fn target(name: &'static str, max_len: usize, shape: Shape, run: fn(&[u8])) -> Target {
    Target { name, max_len, shape, run }
}

fn live() -> DecodeOptions {
    DecodeOptions { live: true, ..DecodeOptions::default() }
}

/// Parsers of text get what is text.
fn text(data: &[u8], run: impl FnOnce(&str)) {
    if let Ok(text) = std::str::from_utf8(data) {
        run(text);
    }
}

/// Rows that were accepted can be written as JSON and are accepted again. Conversations are made of them.
fn traces(decoded: Result<Decoded, DecodeError>) {
    let Ok(decoded) = decoded else { return };
    from_spans(&decoded.batch);
    call_tokens::from_spans(&decoded.batch);
    let rows = decoded.batch.num_rows();
    if rows == 0 {
        return;
    }
    let mut json = Vec::new();
    write_json_line(&decoded.batch, &mut json).expect("rows can be written");
    let again = decode_traces_json(&json, &live()).expect("what is written can be read");
    assert_eq!(again.batch.num_rows(), rows, "{:?}", again.reasons);
}

fn metrics(decoded: Result<Decoded, DecodeError>) {
    let Ok(decoded) = decoded else { return };
    for (_, deltas) in Delta::by_source(decoded.deltas) {
        let mut summed = Summed::default();
        Source::default().add(deltas, &mut summed);
        summed.finish();
    }
}

fn otlp_file(data: &[u8]) {
    let importer: &dyn Importer = if data.first() == Some(&b'{') { &OtlpJson } else { &OtlpProtobuf };
    let _ = importer.import(Path::new("x.jsonl"), &mut &data[..], &ImportOptions::default(), &mut |_, _| Ok(()));
}

fn chrome(data: &[u8]) {
    let _ = Chrome.import(Path::new("x.json"), &mut &data[..], &ImportOptions::default(), &mut |_, _| Ok(()));
    let _ = profile_facts(&mut &data[..]);
}

/// Files of trainers. The first byte says whose: all eighteen would take their time to look at each.
fn trainer_lines(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    let importers: [(&str, &dyn Importer); 18] = [
        ("run/rollout/3.jsonl", &Verl),
        ("run/train_data_step3.jsonl", &NemoRl),
        ("run/rollouts/step_3/train/effective/traces.jsonl", &PrimeRl),
        ("run/metrics.jsonl", &PrimeRlMetrics),
        ("run/token_exports/step_3/rank_0.jsonl", &PrimeRlTokens),
        ("run/session_tracer/sessions-r0.jsonl", &ArealSessions),
        ("run/sglang-request-metrics-20260101_00.log", &SglangRequests),
        ("run/dashboard/metrics.jsonl", &Miles),
        ("run/dashboard/phases/20260101_00.jsonl", &Miles),
        ("run/dashboard/trajectories/20260101_00.jsonl", &Miles),
        ("run/dashboard/gpu_util/20260101_00.jsonl", &Miles),
        ("run/dashboard/engine_series/20260101_00.jsonl", &Miles),
        ("run/trial__a/agent/trajectory.json", &Atif),
        ("run/episodes/train_step_3_epoch_0/episode_hash0_id0.json", &Rllm),
        ("run/iteration_000003/train_rollout_summaries.jsonl", &Tinker),
        ("run/metrics.jsonl", &TinkerMetrics),
        ("run/export.json", &Langfuse),
        ("run/crash_dump_2026-01-01_00-00-00.pkl", &SglangDump),
    ];
    let (path, importer) = importers[usize::from(first.wrapping_sub(b'a')) % importers.len()];
    let _ = importer.detects(data, Path::new(path));
    let _ = importer.import(Path::new(path), &mut &data[..], &ImportOptions::default(), &mut |_, _| Ok(()));
}

/// A tokenizer that was accepted gives each token a text.
fn tokenizer(data: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::parse(data) {
        let ids: Vec<i32> = data.iter().map(|byte| i32::from(*byte)).collect();
        assert_eq!(tokenizer.texts(&ids).len(), ids.len());
    }
}

fn prometheus_page(data: &[u8]) {
    let limits = Limits::default();
    text(data, |page| {
        for open_metrics in [false, true] {
            let sample = |line: prometheus::Line, kinds: &prometheus::Kinds| {
                if let Ok(series) = parse_series(line.series, &limits) {
                    kinds.of(&series.name);
                    series.labels_json();
                }
            };
            prometheus::lines(page, open_metrics, &limits, sample, |_| {});
        }
    });
}

fn remote_write_request(data: &[u8], version: Version) {
    let limits = Limits::default();
    let read = |kinds: &prometheus::Kinds| {
        let options =
            Options { limits: &limits, max_samples: 1 << 20, run_id: "run", kinds, now_ms: 1_800_000_000_000 };
        remote_write::decode(data, version, &options)
    };
    let mut kinds = prometheus::Kinds::default();
    let Ok(decoded) = read(&kinds) else { return };
    for (family, kind) in decoded.declared {
        kinds.declare(family, kind, &limits);
    }
    let again = read(&kinds).expect("it was read before");
    assert_eq!((again.batch.num_rows(), again.rejected), (decoded.batch.num_rows(), decoded.rejected));
}

/// An input is a whole file, or a pickle that is put into an archive first.
fn torch_archive(data: &[u8]) {
    exercise(if torch::detects(data) { data.to_vec() } else { torch_file(data) });
}

/// Messages of a conversation, as the search index reads them.
fn messages(data: &[u8]) {
    text(data, |messages| {
        let said = Said::from_messages(messages);
        let (opening, closing) = (said.opening(), said.closing());
        let wanted = parse_search("the quick* fox~").expect("it is a search");
        Needles::new(&wanted).and_then(|needles| needles.find(&said));
        assert!(opening.len() + closing.len() <= 2 * messages.len() + 64);
    });
}

fn attributes(data: &[u8]) {
    text(data, |text| {
        let (_, _, _) = (attrs::display(text), attrs::number(text), attrs::type_of(text));
        if let Some(value) = attrs::parse(text) {
            let written = attrs::to_text(&value);
            let again = attrs::parse(&written).expect("what is written can be read");
            assert_eq!(attrs::to_text(&again), written);
        }
    });
}

fn search(data: &[u8]) {
    static EMPTY: LazyLock<(tempfile::TempDir, Search)> = LazyLock::new(|| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let search = Search::create(dir.path()).expect("an empty index");
        (dir, search)
    });
    text(data, |text| {
        let sort = parse_sort(text);
        let Ok(node) = parse_search(text) else { return };
        let said = Said::from_messages(r#"[{"role":"user","content":"the quick brown fox"}]"#);
        Needles::new(&node).and_then(|needles| needles.find(&said));
        let request = Request { search: node, ..Request::default() };
        let request = match sort {
            Ok(sort) => Request { sort, ..request },
            Err(_) => request,
        };
        let _ = EMPTY.1.ask(&request);
    });
}

/// Records with right checksums reach what is behind them. An input that ends in an odd byte keeps the wrong ones.
fn log(data: &[u8]) {
    let mut bytes = data.to_vec();
    if data.last().is_some_and(|last| last % 2 == 0) {
        store::mend_log(&mut bytes);
    }
    let _ = store::read_log(&bytes);
}

/// Lines of `commits.log`, of which the first is also taken as `manifest.json`. Checksums are put in front.
fn manifest(data: &[u8]) {
    let commits: Vec<u8> = data.split_inclusive(|b| *b == b'\n').flat_map(store::mend_line).collect();
    let copy = data.split(|b| *b == b'\n').next();
    for (manifest, commits) in [(copy, Some(&commits[..])), (copy, None), (None, Some(&commits)), (None, Some(data))] {
        let _ = store::read_manifest(manifest, commits);
    }
}
