//! `rollscope trace-level`: how much SGLang traces, on many servers at once.

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
            return Err(Usage(format!("{other:?} is no level: write 0 (off), 1 (important slices), 2 (all but nested) or 3 (all)")).into());
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
                Ok(text) => println!("{url}: level {level}{}", if text.is_empty() { String::new() } else { format!(" ({text})") }),
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

/// Asks one server. Versions of SGLang differ in the method they take.
fn set(url: &str, level: u8, api_key: Option<&str>, timeout: Duration) -> Result<String, String> {
    let base = url.trim_end_matches('/');
    let base = if base.contains("://") { base.to_string() } else { format!("http://{base}") };
    let address = format!("{base}/set_trace_level?level={level}");
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(timeout)).build().into();
    let bearer = api_key.map(|key| format!("Bearer {key}"));
    let mut last = String::new();
    for post in [true, false] {
        let answer = if post {
            let mut request = agent.post(&address);
            if let Some(bearer) = &bearer {
                request = request.header("authorization", bearer);
            }
            request.send_empty()
        } else {
            let mut request = agent.get(&address);
            if let Some(bearer) = &bearer {
                request = request.header("authorization", bearer);
            }
            request.call()
        };
        let mut answer = answer.map_err(|e| e.to_string())?;
        let status = answer.status();
        let text = answer.body_mut().with_config().limit(64 << 10).read_to_string().unwrap_or_default();
        let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect();
        if status.is_success() {
            return Ok(text);
        }
        last = format!("{status}: {text}");
        if !matches!(status.as_u16(), 404 | 405 | 501) {
            break;
        }
    }
    Err(if last.starts_with("404") {
        format!("{last}; is it SGLang with --enable-trace?")
    } else {
        last
    })
}
