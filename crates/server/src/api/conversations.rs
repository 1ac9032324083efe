//! Conversations and their media. The work is in [`rollscope_app::conversations`].

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use rollscope_app::conversations::ask::Ask;
use rollscope_app::conversations::export::Pages;
use rollscope_app::conversations::{Conversation, ConversationStats, Conversations, ConversationsAnswer, media};
use rollscope_store::Store;
use tokio::sync::Semaphore;

use super::json;
use crate::App;
use crate::params::Params;
use crate::problem::Problem;

/// For files that others sent: whatever a browser makes of one, it runs nothing and loads nothing.
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox; default-src 'none'");

fn conversations(app: &App) -> Result<&Conversations, Problem> {
    app.conversations.as_ref().ok_or_else(|| {
        let detail = "cannot open the search index; see the server's log. SQL over `conversations` still works";
        Problem::unavailable(detail, std::time::Duration::from_secs(10))
    })
}

/// Lists conversations, with search, sorting and paging.
///
/// docs/conversations.md describes the language of `search`: words, "phrases", prefixes*, typos~, `role:tool`, `reward:<0.5`,
/// `step:100..120`, `metadata.NAME:value`, `contains:"text"`, `/regex/`. To get the next page, pass `next` as `cursor`.
#[utoipa::path(get, path = "/api/v1/conversations", tag = "conversations", params(
    ("project" = Option<String>, Query, description = "Only runs of this project"),
    ("run" = Option<String>, Query, description = "Run, by id or name"),
    ("run_id" = Option<String>, Query, description = "Run, by id"),
    ("search" = Option<String>, Query, description = "Search text, as in the search box"),
    ("sort" = Option<String>, Query, description = "Sort key: step, reward, time, turns, messages, length, tokens, duration, tool_calls, \
      media, index, status, source, key, run, sample, group, tool, relevance or metadata.NAME, with a leading - for descending order"),
    ("limit" = Option<usize>, Query, description = "0 to 1000. The default is 50"),
    ("offset" = Option<usize>, Query, description = "0 to 100000"),
    ("cursor" = Option<String>, Query, description = "`next` of the previous response"),
    ("step" = Option<String>, Query, description = "Step, or a range such as 100..120"),
    ("sample" = Option<String>, Query), ("group" = Option<String>, Query), ("status" = Option<String>, Query),
    ("key" = Option<String>, Query), ("source" = Option<String>, Query), ("tool" = Option<String>, Query),
    ("trace" = Option<String>, Query),
    ("facets" = Option<String>, Query, description = "Comma-separated list of fields to count by: step, reward, status, tool, source, key, role, run"),
    ("messages" = Option<bool>, Query, description = "Include the messages. The default is true"),
    ("snippets" = Option<bool>, Query, description = "Include the text around the words that were found"),
), responses(
    (status = 200, description = "A page of conversations", body = ConversationsAnswer),
    (status = 400, description = "Invalid parameter. `detail` states what is expected", body = Problem, content_type = "application/problem+json"),
))]
pub async fn list(State(app): State<App>, params: Params) -> Result<Response, Problem> {
    let listed = conversations(&app)?.list(Ask::from_params(params.0)?).await?;
    Ok(json(listed.to_json()))
}

/// Returns one conversation with its messages.
///
/// You can write slashes in an id as they are or as %2F. `timing=true` adds the spans that produced each message.
#[utoipa::path(get, path = "/api/v1/conversations/{id}", tag = "conversations", params(
    ("id" = String, Path),
    ("timing" = Option<bool>, Query, description = "Include queue, prefill, transfer, decode and tool time per message"),
), responses(
    (status = 200, description = "The conversation", body = Conversation),
    (status = 404, description = "No such conversation", body = Problem, content_type = "application/problem+json"),
))]
pub async fn one(State(app): State<App>, Path(id): Path<String>, mut params: Params) -> Result<Response, Problem> {
    let timing = matches!(params.text("timing"), Some("true" | "1" | ""));
    params.done()?;
    Ok(json(conversations(&app)?.one(&id, timing).await?))
}

/// Returns the number of conversations and their size on disk.
#[utoipa::path(get, path = "/api/v1/conversations-stats", tag = "conversations", responses(
    (status = 200, description = "Counts and bytes", body = ConversationStats),
))]
pub async fn stats(State(app): State<App>, params: Params) -> Result<Response, Problem> {
    params.done()?;
    super::to_json(&conversations(&app)?.stats())
}

/// Exports a selection as a file: JSON lines (OpenAI messages) or Parquet.
///
/// Takes the parameters of the list except those for paging. `limit` applies to the whole file.
#[utoipa::path(get, path = "/api/v1/conversations-export", tag = "conversations", params(
    ("format" = Option<String>, Query, description = "jsonl (default) or parquet"),
    ("limit" = Option<usize>, Query, description = "Maximum number of conversations. All by default"),
), responses(
    (status = 200, description = "The file", body = Vec<u8>),
    (status = 400, description = "Invalid parameter", body = Problem, content_type = "application/problem+json"),
))]
pub async fn export(State(app): State<App>, mut params: Params) -> Result<Response, Problem> {
    let format = params.take("format").unwrap_or_else(|| "jsonl".into());
    let limit = match params.take("limit") {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| Problem::parameter("limit", "a non-negative integer"))?),
    };
    let mut pages = Pages::new(conversations(&app)?.clone(), Ask::from_params(params.0)?, limit);
    let named = |name: &'static str| (header::CONTENT_DISPOSITION, HeaderValue::from_static(name));
    match format.as_str() {
        "jsonl" => {
            // The first page is read before the headers are sent, so that an invalid search gets its status.
            let first = pages.json_lines().await?;
            let rest = futures::stream::unfold((Some(pages), first), |(pages, ready)| async move {
                let mut pages = pages?;
                if let Some(ready) = ready {
                    return Some((Ok::<Bytes, std::io::Error>(ready.into()), (Some(pages), None)));
                }
                match pages.json_lines().await {
                    Ok(Some(lines)) => Some((Ok(lines.into()), (Some(pages), None))),
                    Ok(None) => None,
                    Err(problem) => Some((Err(std::io::Error::other(problem.to_string())), (None, None))),
                }
            });
            let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/jsonl"));
            Ok(([kind, named("attachment; filename=\"conversations.jsonl\"")], Body::from_stream(rest)).into_response())
        }
        "parquet" => {
            let file = pages.parquet().await?;
            let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/vnd.apache.parquet"));
            Ok(([kind, named("attachment; filename=\"conversations.parquet\"")], file).into_response())
        }
        _ => Err(Problem::parameter("format", "jsonl or parquet")),
    }
}

/// Returns a media file of a conversation, by the hash of its content.
///
/// Browsers show PNG, JPEG, GIF and WebP. Everything else is sent as a download. `thumbnail=N` returns a PNG of N pixels.
#[utoipa::path(get, path = "/api/v1/media/{hash}", tag = "conversations", params(
    ("hash" = String, Path, description = "SHA-256, hex"),
    ("thumbnail" = Option<u32>, Query, description = "Longest side in pixels, 16 to 512"),
), responses(
    (status = 200, description = "The file", body = Vec<u8>),
    (status = 404, description = "No such file", body = Problem, content_type = "application/problem+json"),
    (status = 422, description = "The file is not an image, so it has no thumbnail", body = Problem, content_type = "application/problem+json"),
))]
pub async fn media_file(
    State(app): State<App>,
    Path(hash): Path<String>,
    mut params: Params,
) -> Result<Response, Problem> {
    let good = "a number of pixels from 16 to 512";
    let side: Option<u32> = params.number("thumbnail", good)?;
    params.done()?;
    if side.is_some_and(|side| !media::THUMBNAIL.contains(&side)) {
        return Err(Problem::parameter("thumbnail", good));
    }
    let data = find(&app.store, &hash).await?;
    match side {
        None => Ok(respond(&hash, data)),
        Some(side) => {
            // One at a time for each core: pictures take memory.
            let png = in_turn(&app.thumbnails, move || media::thumbnail(&data, side)).await??;
            Ok(respond(&hash, png.into()))
        }
    }
}

/// Works on a thread of its own, when it is its turn. The work goes on when its client is gone, and keeps its turn until it ends.
async fn in_turn<T: Send + 'static>(
    turns: &Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let turn = turns.clone().acquire_owned().await.map_err(|e| Problem::internal(e.to_string()))?;
    let done = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work()
    });
    done.await.map_err(|e| Problem::internal(e.to_string()))
}

async fn find(store: &Store, hash: &str) -> Result<Bytes, Problem> {
    let found = store.media_get(hash).await?;
    found.ok_or_else(|| Problem::not_found(format!("there is no file {hash}; pass the SHA-256 of its content in hex")))
}

/// The file as an answer. It never changes, its name is its hash.
fn respond(hash: &str, data: Bytes) -> Response {
    let mut headers = HeaderMap::new();
    let (kind, disposition) = match media::sniff(&data) {
        Some((kind, _)) => (kind, "inline".to_string()),
        None => ("application/octet-stream", format!("attachment; filename=\"{hash}.bin\"")),
    };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Ok(value) = HeaderValue::from_str(&disposition) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=31536000, immutable"));
    headers.insert(header::CONTENT_SECURITY_POLICY, SANDBOX);
    (headers, data).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_image_is_only_handed_out_for_download() {
        for forged in [&b"<svg onload=alert(1)>"[..], b"<html>", b"GIF89", b"", b"%PDF-1.7"] {
            let answer = respond("ab", Bytes::copy_from_slice(forged));
            assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/octet-stream");
            assert!(answer.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().starts_with("sandbox;"));
            assert!(answer.headers()[header::CONTENT_DISPOSITION].to_str().unwrap().starts_with("attachment"));
        }
    }

    #[tokio::test]
    async fn a_client_that_leaves_does_not_end_its_turn_before_the_work_ends() {
        let turns = Arc::new(Semaphore::new(1));
        let (finish, finished) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = tokio::sync::oneshot::channel::<()>();
        let shared = turns.clone();
        let client = tokio::spawn(async move {
            let work = move || {
                let _ = begin.send(());
                let _ = finished.recv();
            };
            in_turn(&shared, work).await.is_ok()
        });
        begun.await.unwrap();
        client.abort();
        assert!(client.await.unwrap_err().is_cancelled());
        assert_eq!(turns.available_permits(), 0);
        finish.send(()).unwrap();
        assert_eq!(in_turn(&turns, || 5).await.unwrap(), 5);
    }
}
