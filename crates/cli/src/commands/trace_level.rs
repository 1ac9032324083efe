//! `rollscope trace-level`: how much SGLang traces, on many servers at once; and, through a rollscope server, our own SDKs.

use std::time::Duration;

use rollscope_server::trace_level;

use super::serve::{start_quiet_logs, warn_of_flag};
use crate::args::TraceLevelArgs;
use crate::config::Usage;

/// How many servers are called at the same time.
const AT_ONCE: usize = 32;

pub async fn run(args: TraceLevelArgs) -> anyhow::Result<()> {
    let level = match args.level.to_ascii_lowercase().as_str() {
        "0" | "off" => 0,
        "1" | "important" => 1,
        "2" | "normal" => 2,
        "3" | "all" => 3,
        other => {
            return Err(Usage(format!(
                "unknown level {other:?}; expected 0 (off), 1 (important slices), 2 (all but nested) or 3 (all)"
            ))
            .into());
        }
    };
    start_quiet_logs();
    warn_of_flag("--api-key", args.api_key.as_deref(), "SGLANG_API_KEY");
    let timeout = Duration::from_secs(args.timeout);
    let mut failed = 0;
    for urls in args.urls.chunks(AT_ONCE) {
        let asked: Vec<_> = urls
            .iter()
            .map(|url| {
                let (url, token) = (url.clone(), args.api_key.clone());
                tokio::task::spawn_blocking(move || {
                    let answer = trace_level::set(&url, level, token.as_deref(), timeout);
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
