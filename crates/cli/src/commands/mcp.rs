//! `rollscope mcp`: answers assistants, from a folder or through a server.

use std::sync::Arc;
use std::time::Duration;

use rollscope_mcp::{Assistant, Folder, Page, PassOn, Source, serve_stdio};
use rollscope_query::QueryLimits;
use rollscope_store::ReadOnlyStore;
use serde_json::{Value, json};

use crate::args::McpArgs;
use crate::place;
use crate::source::{local_folder, server_url};

const TIMEOUT: Duration = Duration::from_secs(300);
/// Largest answer of a server. Tools cut theirs far below.
const MAX_ANSWER_BYTES: u64 = 8 << 20;
/// The version of the protocol in which a server is asked.
const VERSION: &str = "2025-06-18";

pub async fn run(args: McpArgs) -> anyhow::Result<()> {
    let assistant = match local_folder(&args.source) {
        Some(data) => {
            // A folder that is none is reported now, not to the assistant.
            place::only_folder(&data, "rollscope mcp")?;
            ReadOnlyStore::open(&data).await?;
            let limits = QueryLimits { timeout: TIMEOUT, ..QueryLimits::default() };
            let source = Source::Folder(Arc::new(Folder::new(&data, limits)));
            Assistant::Answer { source, page: Page::new(&args.page), scheme: "http" }
        }
        None => {
            let ask = pass_on(server_url(&args.source), args.source.token);
            ask("ping", json!({})).await.map_err(anyhow::Error::msg)?;
            Assistant::PassOn(ask)
        }
    };
    serve_stdio(assistant).await.map_err(anyhow::Error::msg)
}

fn pass_on(url: String, token: Option<String>) -> PassOn {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT)).build().into();
    Arc::new(move |method, params| {
        let (agent, url, token) = (agent.clone(), url.clone(), token.clone());
        Box::pin(async move {
            let task = tokio::task::spawn_blocking(move || post(&agent, &url, token.as_deref(), method, &params));
            task.await.map_err(|e| e.to_string())?
        })
    })
}

fn post(agent: &ureq::Agent, url: &str, token: Option<&str>, method: &str, params: &Value) -> Result<Value, String> {
    let mut request = agent
        .post(format!("{}/mcp", url.trim_end_matches('/')))
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", VERSION);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let mut response = request.send_json(message).map_err(|e| {
        format!(
            "no rollscope server answers at {url} ({e}); start `rollscope serve`, or pass --data DIR or --server URL"
        )
    })?;
    let status = response.status();
    let text = response.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_string().map_err(|e| e.to_string())?;
    let mut answer: Value = serde_json::from_str(&text).unwrap_or_default();
    match (answer["result"].take(), answer["error"]["message"].as_str(), answer["detail"].as_str()) {
        (Value::Null, Some(message), _) => Err(message.to_string()),
        (Value::Null, None, Some(detail)) => Err(format!("{status}: {detail}")),
        (Value::Null, None, None) => Err(format!("{status}: {url} does not answer as rollscope does; check --server")),
        // Later versions than that of the question want to know that a result is complete.
        (mut result, ..) => {
            if let Value::Object(fields) = &mut result {
                fields.entry("resultType").or_insert_with(|| "complete".into());
            }
            Ok(result)
        }
    }
}
