//! `rollscope trace-level`: how much SGLang traces, on many servers at once; and, through a rollscope server, our own SDKs.

use std::time::Duration;

use crate::args::TraceLevelArgs;
use crate::config::Usage;

/// Servers asked at one time.
const AT_ONCE: usize = 32;

pub async fn run(args: TraceLevelArgs) -> anyhow::Result<()> {
    let level = match args.level.to_ascii_lowercase().as_str() {
        "0" | "off" => 0,
        "1" | "important" => 1,
        "2" | "normal" => 2,
        "3" | "all" => 3,
        other => {
            return Err(Usage(format!(
                "{other:?} is no level: write 0 (off), 1 (important slices), 2 (all but nested) or 3 (all)"
            ))
            .into());
        }
    };
    let timeout = Duration::from_secs(args.timeout);
    let mut failed = 0;
    for urls in args.urls.chunks(AT_ONCE) {
        let asked: Vec<_> = urls
            .iter()
            .map(|url| {
                let (url, token) = (url.clone(), args.api_key.clone());
                tokio::task::spawn_blocking(move || {
                    let answer = set(&url, level, token.as_deref(), timeout);
                    (url, answer)
                })
            })
            .collect();
        for task in asked {
            let (url, answer) = task.await?;
            match answer {
                Ok(text) => println!(
                    "{url}: level {level}{}",
                    if text.is_empty() { String::new() } else { format!(" ({text})") }
                ),
                Err(error) => {
                    failed += 1;
                    println!("{url}: failed: {error}");
                }
            }
        }
    }
    if failed > 0 {
        anyhow::bail!("{failed} of {} servers did not set the level", args.urls.len());
    }
    Ok(())
}

/// Asks one server. Versions of SGLang differ in the method they take; a rollscope server tells the level to every SDK
/// that sends to it. (Its page answers any GET, so it is tried before that.)
fn set(url: &str, level: u8, api_key: Option<&str>, timeout: Duration) -> Result<String, String> {
    let base = url.trim_end_matches('/');
    let base = if base.contains("://") { base.to_string() } else { format!("http://{base}") };
    let (sglang, ours) = (format!("{base}/set_trace_level?level={level}"), format!("{base}/api/v1/trace-level"));
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(timeout)).build().into();
    let bearer = api_key.map(|key| format!("Bearer {key}")).unwrap_or_default();
    let mut first = None;
    for method in ["POST", "PUT", "GET"] {
        let answer = match method {
            "POST" => agent.post(&sglang).header("authorization", &bearer).send_empty(),
            "PUT" => agent.put(&ours).header("authorization", &bearer).send_json(serde_json::json!({ "level": level })),
            _ => agent.get(&sglang).header("authorization", &bearer).call(),
        };
        let mut answer = answer.map_err(|e| e.to_string())?;
        let status = answer.status();
        let text = answer.body_mut().with_config().limit(64 << 10).read_to_string().unwrap_or_default();
        let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect();
        match status.as_u16() {
            200..300 if method == "PUT" => return Ok("rollscope: for the SDKs that send to it".into()),
            200..300 => return Ok(text),
            404 | 405 | 501 => first = first.or(Some(format!("{status}: {text}"))),
            _ => return Err(format!("{status}: {text}")),
        }
    }
    Err(format!("{}; is it SGLang with --enable-trace, or a rollscope server?", first.unwrap_or_default()))
}
