//! `rollscope conversations` and `rollscope reindex`: the same questions as the API's, to a folder or to a server.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};
use rollscope_app::conversations::Conversations;
use rollscope_app::conversations::ask::Ask;
use rollscope_app::conversations::export::Pages;
use rollscope_app::problem::Problem;
use rollscope_query::{Engine, QueryLimits};
use rollscope_store::{ReadOnlyStore, SnapshotSource};
use serde_json::Value;

use crate::args::{ConversationsArgs, ConversationsFormat, FolderArgs};
use crate::config::Usage;
use crate::output::{count, printable, stdout};
use crate::place;
use crate::source::{encode_path_part, local_folder, server_url};

/// How many conversations a table shows.
const SHOWN: usize = 20;

pub async fn reindex(args: FolderArgs) -> anyhow::Result<()> {
    let started = Instant::now();
    place::only_folder(&args.data, "rollscope reindex")?;
    let indexed = Conversations::reindex(&args.data).await?;
    println!("indexed {} conversations in {:.1} s", count(indexed), started.elapsed().as_secs_f64());
    Ok(())
}

pub async fn run(args: ConversationsArgs) -> anyhow::Result<()> {
    if args.format == ConversationsFormat::Parquet && args.out.is_none() {
        return Err(Usage("--format parquet requires --out FILE".into()).into());
    }
    let bytes = match local_folder(&args.source) {
        Some(data) => ask_folder(&args, data).await?,
        None => {
            let url = server_url(&args.source);
            let pairs = pairs(&args);
            let (id, format, token) = (args.id.clone(), args.format, args.source.token.clone());
            tokio::task::spawn_blocking(move || ask_server(&url, token.as_deref(), id.as_deref(), format, &pairs))
                .await??
        }
    };
    let shown = match args.format {
        ConversationsFormat::Table if args.id.is_some() => read_aloud(&serde_json::from_slice(&bytes)?).into_bytes(),
        ConversationsFormat::Table => list(&serde_json::from_slice(&bytes)?).into_bytes(),
        _ => bytes,
    };
    match &args.out {
        Some(path) => std::fs::write(path, &shown).with_context(|| path.display().to_string()),
        None => Ok(stdout().write_all(&shown)?),
    }
}

fn is_file(format: ConversationsFormat) -> bool {
    matches!(format, ConversationsFormat::Jsonl | ConversationsFormat::Parquet)
}

/// The API parameters for these arguments.
fn pairs(args: &ConversationsArgs) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut put = |name: &str, value: Option<String>| pairs.extend(value.map(|v| (name.to_string(), v)));
    put("search", (!args.search.is_empty()).then(|| args.search.join(" ")));
    put("run", args.run.clone());
    put("project", args.project.clone());
    put("step", args.step.clone());
    put("sort", args.sort.clone());
    put("offset", args.offset.map(|n| n.to_string()));
    let limit = match args.format {
        ConversationsFormat::Table => Some(args.limit.unwrap_or(SHOWN)),
        _ => args.limit,
    };
    put("limit", limit.map(|n| n.to_string()));
    if args.format == ConversationsFormat::Table {
        put("messages", Some("false".into()));
        put("snippets", Some("true".into()));
    }
    pairs
}

/// A mistake of the user is a usage error.
fn told(problem: Problem) -> anyhow::Error {
    if problem.is_users() { Usage(problem.to_string()).into() } else { problem.into() }
}

async fn ask_folder(args: &ConversationsArgs, data: PathBuf) -> anyhow::Result<Vec<u8>> {
    let mut pairs = pairs(args);
    let limit = match is_file(args.format) {
        true => pairs.iter().position(|(k, _)| k == "limit").map(|at| pairs.remove(at).1.parse()).transpose()?,
        false => None,
    };
    let ask = Ask::from_pairs(pairs).map_err(told)?;
    // The index first: it may write to the folder; then what it refers to.
    let limits = QueryLimits { timeout: Duration::from_secs(300), ..QueryLimits::default() };
    let engine = |store: ReadOnlyStore| Engine::new(Arc::new(store), limits.clone());
    let conversations = match place::lake_url(&data) {
        None => {
            let index = Conversations::open(&data, engine(ReadOnlyStore::open(&data).await?)?).await?;
            index.with_engine(engine(ReadOnlyStore::open(&data).await?)?)
        }
        Some(url) => {
            let store = place::open_for_reading(&data).await?;
            let snapshot = store.snapshot();
            Conversations::of_snapshot(&place::cache_of(url).join("reader"), snapshot, engine(store)?).await?
        }
    };
    if let Some(id) = &args.id {
        return conversations.one(id, true).await.map_err(told);
    }
    match args.format {
        ConversationsFormat::Parquet => Pages::new(conversations, ask, limit).parquet().await.map_err(told),
        ConversationsFormat::Jsonl => {
            let mut pages = Pages::new(conversations, ask, limit);
            let mut all = Vec::new();
            while let Some(lines) = pages.json_lines().await.map_err(told)? {
                all.extend(lines);
            }
            Ok(all)
        }
        _ => Ok(conversations.list(ask).await.map_err(told)?.to_json()),
    }
}

fn ask_server(
    url: &str,
    token: Option<&str>,
    id: Option<&str>,
    format: ConversationsFormat,
    pairs: &[(String, String)],
) -> anyhow::Result<Vec<u8>> {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let base = format!("{}/api/v1/conversations", url.trim_end_matches('/'));
    let mut request = match id {
        Some(id) => agent
            .get(format!("{base}/{}", id.split('/').map(encode_path_part).collect::<Vec<_>>().join("/")))
            .query("timing", "true"),
        None => {
            let request = agent.get(if is_file(format) { format!("{base}-export") } else { base });
            pairs.iter().fold(request, |request, (k, v)| request.query(k, v))
        }
    };
    if is_file(format) && id.is_none() {
        request = request.query("format", if format == ConversationsFormat::Parquet { "parquet" } else { "jsonl" });
    }
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let mut response = request.call().with_context(|| {
        format!("no rollscope server answers at {url}; start `rollscope serve`, or pass --data DIR or --server URL")
    })?;
    let status = response.status();
    let mut bytes = Vec::new();
    response.body_mut().as_reader().read_to_end(&mut bytes)?;
    if status.is_success() {
        return Ok(bytes);
    }
    let problem: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let detail = problem["detail"].as_str().map(str::to_string).unwrap_or_else(|| status.to_string());
    match status.as_u16() {
        400 | 404 => Err(Usage(detail).into()),
        _ => anyhow::bail!("{detail}"),
    }
}

/// A list for people.
fn list(answer: &Value) -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["id", "step", "reward", "status", "turns", "chars", "what"]);
    let rows = answer["conversations"].as_array().map_or(&[][..], Vec::as_slice);
    let cell = |v: &Value| match v {
        Value::Null => String::new(),
        Value::String(text) => printable(text),
        other => other.to_string(),
    };
    for row in rows {
        let what = match row["snippet"]["pieces"].as_array() {
            Some(pieces) => pieces.iter().filter_map(Value::as_str).collect::<String>(),
            None => row["preview"].as_str().unwrap_or_default().to_string(),
        };
        table.add_row([
            cell(&row["id"]),
            cell(&row["step"]),
            cell(&row["reward"]),
            cell(&row["status"]),
            cell(&row["turn_count"]),
            cell(&row["char_count"]),
            printable(&what),
        ]);
    }
    format!("{table}\n{} of {}\n", count(rows.len() as u64), count(answer["total"].as_u64().unwrap_or(0)))
}

/// A conversation as text. Control characters are shown, not obeyed.
fn read_aloud(conversation: &Value) -> String {
    let safe = |text: &str| {
        text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect::<String>()
    };
    let mut out = String::new();
    for name in ["id", "run_id", "step", "sample_id", "group_id", "reward", "status"] {
        if !conversation[name].is_null() {
            out.push_str(&format!("{name}: {}\n", safe(&conversation[name].to_string())));
        }
    }
    for message in conversation["messages"].as_array().into_iter().flatten() {
        out.push_str(&format!("\n── {} ──\n", safe(message["role"].as_str().unwrap_or("?"))));
        for (key, value) in message.as_object().into_iter().flatten() {
            match (key.as_str(), value) {
                ("role", _) | (_, Value::Null) => {}
                ("content", Value::String(text)) => out.push_str(&format!("{}\n", safe(text))),
                (_, Value::String(text)) if !text.is_empty() => out.push_str(&format!("[{key}] {}\n", safe(text))),
                (_, Value::String(_)) => {}
                (key, other) => out.push_str(&format!("[{key}] {}\n", safe(&other.to_string()))),
            }
        }
    }
    out
}
