//! `rollscope report`, `rollscope mismatch`, `rollscope diff` and `rollscope hang`: the answers, in the terminal, from a folder or a server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use rollscope_answers::hang::Hang;
use rollscope_answers::{Answers, Which};
use rollscope_app::hang::dumps::{join, read_files};
use rollscope_app::hang::ray::join_ray;
use rollscope_app::hang::{self, MOMENT, parse_moment};
use rollscope_app::printed::{
    Style, diff as print_diff, hang as print_hang, mismatch as print_mismatch, run as print_run, step as print_step,
};
use rollscope_app::problem::Problem;
use rollscope_model::time::NS_PER_S;
use rollscope_query::columns::{int_column, text_column};
use rollscope_query::{QueryError, QueryLimits};
use rollscope_tokenizer::Tokenizers;
use serde_json::Value;

use crate::args::{AnswerArgs, DiffArgs, HangArgs, MismatchArgs, ReportArgs, SourceArgs};
use crate::config::Usage;
use crate::source::{encode_path_part, local_folder, server_url};
use crate::{output, place};

const TIMEOUT: Duration = Duration::from_secs(600);
/// How long `--stacks` waits for the processes, and how often it looks. They send something every five seconds.
const STACKS_WAIT: Duration = Duration::from_secs(20);
const STACKS_LOOK: Duration = Duration::from_secs(1);
/// How long each answer of Ray's dashboard may take.
const RAY_TIMEOUT: Duration = Duration::from_secs(20);

pub async fn report(args: ReportArgs) -> anyhow::Result<()> {
    let run = args.run.clone();
    let mut answer = match (local_folder(&args.answer.source), args.step) {
        (Some(data), step) => {
            let answers = open(data).await?;
            match step {
                Some(step) => {
                    serde_json::from_slice(&answers.step_report_json(&run, Some(step)).await.map_err(usage)?)?
                }
                None => serde_json::from_slice(&answers.run_findings_json(&run).await.map_err(usage)?)?,
            }
        }
        (None, Some(step)) => {
            ask(&args.answer.source, format!("/runs/{}/steps/{step}/report", encode_path_part(&run))).await?
        }
        (None, None) => ask(&args.answer.source, format!("/runs/{}/findings", encode_path_part(&run))).await?,
    };
    // A run without steps is reported like one step.
    let whole =
        args.step.is_none() && answer["steps"].as_array().is_some_and(|s| s.len() == 1 && s[0]["step"].is_null());
    if whole {
        answer = match local_folder(&args.answer.source) {
            Some(data) => {
                serde_json::from_slice(&open(data).await?.step_report_json(&run, None).await.map_err(usage)?)?
            }
            None => ask(&args.answer.source, format!("/runs/{}/steps/-/report", encode_path_part(&run))).await?,
        };
    }
    print(&args.answer, &answer, if args.step.is_some() || whole { print_step } else { print_run })
}

pub async fn mismatch(MismatchArgs { report: args, tokenizers }: MismatchArgs) -> anyhow::Result<()> {
    let folder = local_folder(&args.answer.source);
    let tokenizers = tokenizers.open(folder.is_some())?;
    let answer = match folder {
        Some(data) => {
            let answers = open_with(data, tokenizers).await?;
            serde_json::to_value(answers.mismatch(&args.run, args.step).await.map_err(usage)?)?
        }
        None => {
            let step = args.step.map_or(String::new(), |step| format!("?step={step}"));
            ask(&args.answer.source, format!("/runs/{}/mismatch{step}", encode_path_part(&args.run))).await?
        }
    };
    print(&args.answer, &answer, print_mismatch)
}

pub async fn diff(args: DiffArgs) -> anyhow::Result<()> {
    let before = which(&args.before, args.run.as_deref())?;
    let after = which(&args.after, args.run.as_deref())?;
    let answer = match local_folder(&args.answer.source) {
        Some(data) => serde_json::to_value(open(data).await?.difference(&before, &after).await.map_err(usage)?)?,
        None => {
            let mut query =
                format!("/runs/{}/diff?other={}", encode_path_part(&before.run), encode_path_part(&after.run));
            for (key, step) in [("step", before.step), ("with", after.step)] {
                if let Some(step) = step {
                    query.push_str(&format!("&{key}={step}"));
                }
            }
            ask(&args.answer.source, query).await?
        }
    };
    print(&args.answer, &answer, print_diff)
}

pub async fn hang(args: HangArgs) -> anyhow::Result<()> {
    let at = match &args.at {
        Some(text) => Some(parse_moment(text).ok_or_else(|| Usage(format!("--at must be {MOMENT}, not `{text}`")))?),
        None => None,
    };
    let source = &args.answer.source;
    let run = match args.run {
        Some(run) => run,
        None => newest_run(source).await?,
    };
    let dumps = match args.add.is_empty() {
        true => None,
        false => Some(read_files(&args.add).map_err(problem)?),
    };
    let mut answer: Hang = match local_folder(source) {
        Some(_) if args.stacks => return Err(Usage("--stacks needs a server: the processes send to it".into()).into()),
        Some(data) => hang::ask(open(data).await?.engine(), &run, at).await.map_err(problem)?,
        None => {
            let at = at.map_or(String::new(), |at| format!("?at={}.{:09}", at / NS_PER_S, at % NS_PER_S));
            let path = format!("/runs/{}", encode_path_part(&run));
            if args.stacks {
                send(source, format!("{path}/stacks")).await?;
            }
            let mut answer: Hang = serde_json::from_value(ask(source, format!("{path}/hang{at}")).await?)?;
            let until = Instant::now() + STACKS_WAIT;
            while args.stacks && !answered(&answer) && Instant::now() < until {
                tokio::time::sleep(STACKS_LOOK).await;
                answer = serde_json::from_value(ask(source, format!("{path}/hang")).await?)?;
            }
            if args.stacks && answer.workers.iter().all(|worker| worker.place.is_none()) {
                eprintln!(
                    "no process sent its stacks within {} s; only those that use the rollscope package can",
                    STACKS_WAIT.as_secs()
                );
            }
            answer
        }
    };
    if let Some(dumps) = dumps {
        dumps.passed_over.iter().take(5).for_each(|reason| eprintln!("passed over: {reason}"));
        join(&mut answer, &dumps);
    }
    if let Some(url) = args.ray {
        let ray = tokio::task::spawn_blocking(move || rollscope_server::ray::fetch(&url, RAY_TIMEOUT)).await?;
        join_ray(&mut answer, &ray.map_err(|e| anyhow::anyhow!("--ray: {e}"))?);
    }
    print(&args.answer, &serde_json::to_value(answer)?, print_hang)
}

/// Whether all processes that live have sent their stacks.
fn answered(answer: &Hang) -> bool {
    let mut living = answer.workers.iter().filter(|worker| worker.beat_ns.is_some() && !worker.silent).peekable();
    living.peek().is_some() && living.all(|worker| worker.place.is_some())
}

/// The run that started last.
async fn newest_run(source: &SourceArgs) -> anyhow::Result<String> {
    let newest = match local_folder(source) {
        Some(data) => {
            let answers = open(data).await?;
            let runs = answers.engine().runs().await.map_err(usage)?;
            let starts = int_column(&runs, "started_ns")?;
            let mut runs: Vec<_> =
                starts.into_iter().zip(text_column(&runs, "run_id")?.into_iter().flatten()).collect();
            runs.sort_unstable();
            let mut newest = None;
            while let Some((_, run)) = runs.pop().filter(|_| newest.is_none()) {
                newest = (!answers.engine().is_service(&run).await.map_err(usage)?).then_some(run);
            }
            newest
        }
        None => {
            let found = ask(source, "/runs".to_string()).await?;
            let runs = found["runs"].as_array().map_or(&[][..], Vec::as_slice);
            let newest = runs.iter().filter(|run| run["service"] != true).max_by_key(|run| run["started_ns"].as_i64());
            newest.and_then(|run| run["run_id"].as_str()).map(str::to_string)
        }
    };
    newest.ok_or_else(|| Usage("there is no run yet".to_string()).into())
}

fn problem(problem: Problem) -> anyhow::Error {
    if problem.is_users() {
        Usage(problem.detail().to_string()).into()
    } else {
        anyhow::anyhow!("{}", problem.detail())
    }
}

/// `RUN:STEP`, `RUN`, or `STEP` if a run is given.
fn which(text: &str, run: Option<&str>) -> anyhow::Result<Which> {
    let number = |text: &str| text.parse::<i64>().ok();
    if let Some(run) = run {
        let step = number(text).ok_or_else(|| {
            Usage(format!("`{text}` is not a step number; with --run, both arguments must be step numbers"))
        })?;
        return Ok(Which { run: run.to_string(), step: Some(step) });
    }
    Ok(match text.rsplit_once(':') {
        Some((run, step)) if number(step).is_some() && !run.is_empty() => {
            Which { run: run.to_string(), step: number(step) }
        }
        _ => Which { run: text.to_string(), step: None },
    })
}

fn print(args: &AnswerArgs, answer: &Value, show: fn(&Value, Style) -> String) -> anyhow::Result<()> {
    let text = match (args.json, args.markdown) {
        (true, _) => format!("{}\n", serde_json::to_string_pretty(answer)?),
        (_, true) => show(answer, Style::Markdown),
        _ => show(answer, Style::Terminal),
    };
    std::io::Write::write_all(&mut output::stdout(), text.as_bytes())?;
    Ok(())
}

async fn open(data: PathBuf) -> anyhow::Result<Answers> {
    open_with(data, Tokenizers::default()).await
}

async fn open_with(data: PathBuf, tokenizers: Tokenizers) -> anyhow::Result<Answers> {
    let store = place::open_for_reading(&data).await?;
    let limits = QueryLimits { timeout: TIMEOUT, ..QueryLimits::default() };
    Ok(Answers::with_tokenizers(Arc::new(store), limits, tokenizers)?)
}

/// A mistake of the user is a usage error.
pub fn usage(error: QueryError) -> anyhow::Error {
    if error.is_users() { Usage(error.to_string()).into() } else { error.into() }
}

/// The id of a run that is named by its id, its name, `project/name`, or a beginning that fits only one run.
pub async fn find_run(source: &SourceArgs, run: &str) -> anyhow::Result<String> {
    match local_folder(source) {
        Some(data) => open(data).await?.engine().find_run(run).await.map_err(usage),
        None => {
            let found = ask(source, format!("/runs/{}", encode_path_part(run))).await?;
            Ok(found["run_id"].as_str().unwrap_or(run).to_string())
        }
    }
}

async fn ask(source: &SourceArgs, path: String) -> anyhow::Result<Value> {
    call(source, path, false).await
}

async fn send(source: &SourceArgs, path: String) -> anyhow::Result<Value> {
    call(source, path, true).await
}

async fn call(source: &SourceArgs, path: String, post: bool) -> anyhow::Result<Value> {
    let url = server_url(source);
    let token = source.token.clone();
    tokio::task::spawn_blocking(move || -> anyhow::Result<Value> {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT)).build().into();
        let address = format!("{}/api/v1{path}", url.trim_end_matches('/'));
        let bearer = token.map(|token| ("authorization", format!("Bearer {token}")));
        let response = match (post, bearer) {
            (true, Some((name, value))) => agent.post(address).header(name, value).send_empty(),
            (true, None) => agent.post(address).send_empty(),
            (false, Some((name, value))) => agent.get(address).header(name, value).call(),
            (false, None) => agent.get(address).call(),
        };
        let mut response = response.with_context(|| {
            format!("no rollscope server answers at {url}; start `rollscope serve`, or pass --data DIR or --server URL")
        })?;
        let status = response.status();
        let body: Value = response.body_mut().read_json().unwrap_or_default();
        if status.is_success() {
            return Ok(body);
        }
        let detail = body["detail"].as_str().unwrap_or("the server gave no reason").to_string();
        if matches!(status.as_u16(), 400 | 404) {
            return Err(Usage(detail).into());
        }
        anyhow::bail!("{status}: {detail}")
    })
    .await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_steps_are_told_apart() {
        let w = |run: &str, step| Which { run: run.to_string(), step };
        assert_eq!(which("demo:23", None).unwrap(), w("demo", Some(23)));
        assert_eq!(which("a:b", None).unwrap(), w("a:b", None));
        assert_eq!(which("a:b:4", None).unwrap(), w("a:b", Some(4)));
        assert_eq!(which("23", Some("demo")).unwrap(), w("demo", Some(23)));
        assert!(which("x", Some("demo")).is_err());
    }
}
