//! Asks Ray's dashboard for its state.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollscope_formats::dumps::ray::{MAX_ROWS, Ray, rows};
use tokio::sync::Mutex;

/// Largest answer that is read.
const MAX_BYTES: u64 = 64 << 20;

/// How long what it said is good for, and how long an answer may take: the page asks every three seconds.
const FRESH: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(3);

/// The dashboard that the server was told of.
pub struct RaySource {
    url: String,
    last: Mutex<Option<(Instant, Said)>>,
}

type Said = Arc<Result<Ray, String>>;

impl RaySource {
    pub fn new(url: String) -> RaySource {
        RaySource { url, last: Mutex::default() }
    }

    /// What it said in the last seconds, or says now. Whoever asks meanwhile waits for the same answer.
    pub async fn state(&self) -> Said {
        let mut last = self.last.lock().await;
        if let Some((at, said)) = &*last
            && at.elapsed() < FRESH
        {
            return said.clone();
        }
        let url = self.url.clone();
        let asked = tokio::task::spawn_blocking(move || fetch(&url, TIMEOUT)).await;
        let said = Arc::new(asked.map_err(|e| e.to_string()).and_then(|said| said));
        *last = Some((Instant::now(), said.clone()));
        said
    }
}

/// Actors, nodes, and tasks that are not over. `url`: of the dashboard, such as `http://HEAD:8265`.
pub fn fetch(url: &str, timeout: Duration) -> Result<Ray, String> {
    let base = url.trim_end_matches('/');
    let base = if base.contains("://") { base.to_string() } else { format!("http://{base}") };
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(timeout)).build().into();
    let token = token();
    let get = |what: &str, filter: &str| -> Result<Vec<u8>, String> {
        let address = format!("{base}/api/v0/{what}?detail=true&limit={MAX_ROWS}{filter}");
        let request = agent.get(&address);
        let request = match &token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        };
        let mut answer = request.call().map_err(|e| format!("no answer from Ray's dashboard at {base}: {e}"))?;
        let body = answer.body_mut().with_config().limit(MAX_BYTES).read_to_vec();
        let body = body.map_err(|e| format!("the answer of Ray's dashboard at {base}: {e}"))?;
        match answer.status().as_u16() {
            200 => Ok(body),
            401 | 403 => Err(format!(
                "Ray's dashboard at {base} wants a token: set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to the file that has it"
            )),
            status => Err(format!("Ray's dashboard at {base} answered {status}: {}", shown(&body))),
        }
    };
    let bad = |e| format!("{base}: {e}");
    Ok(Ray {
        actors: rows(&get("actors", "")?).map_err(bad)?,
        tasks: rows(&get("tasks", "&filter_keys=state&filter_predicates=!%3D&filter_values=FINISHED")?).map_err(bad)?,
        nodes: rows(&get("nodes", "")?).map_err(bad)?,
    })
}

fn shown(body: &[u8]) -> String {
    String::from_utf8_lossy(body).split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

/// The token, from where Ray's own tools take it.
fn token() -> Option<String> {
    let read = |path: PathBuf| std::fs::read_to_string(path).ok();
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let text = set("RAY_AUTH_TOKEN")
        .or_else(|| read(set("RAY_AUTH_TOKEN_PATH")?.into()))
        .or_else(|| read(std::env::home_dir()?.join(".ray/auth_token")));
    text.map(|text| text.trim().to_string()).filter(|text| !text.is_empty())
}
