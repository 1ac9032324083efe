//! Why was it slow, what stands out, what changed.

use rollscope_answers::Which;
use rollscope_app::hang::{self, MOMENT, parse_moment};
use rollscope_app::printed::{self, Style};
use serde_json::{Value, json};

use super::{Answer, Call, LIMIT, Problem, RUN, STEP, Tool, integer, needed, page_of, text};
use crate::desk::Desk;
use crate::text::{cell, seconds, table};

fn read(json: &[u8]) -> Result<Value, Problem> {
    serde_json::from_slice(json).map_err(|e| Problem::internal(e.to_string()))
}

pub const FINDINGS: Tool = Tool {
    name: "findings",
    title: "What stands out in a run",
    about: "Lists what is unusual about the steps of a run, by the seconds that it cost, each with its cause and step, and the longest steps. \
            Start here for \"why is my run slow\".",
    arguments: &[RUN.required(), LIMIT],
    run: |call| Box::pin(findings(call)),
};

async fn findings(call: Call) -> Result<Answer, Problem> {
    let mut params = call.params()?;
    let run = needed(&mut params, "run", "the run; `runs` lists them")?;
    let (limit, _) = page_of(&mut params, 10, 20)?;
    params.done()?;
    let desk = call.source.desk().await?;
    let run = desk.engine().find_run(&run).await?;
    let mut found = read(&desk.answers.run_findings_json(&run).await?)?;
    let link = call.page.to(&["run", &run, "findings"]);
    let all = found["findings"].as_array().map_or(0, Vec::len);
    if let Some(findings) = found["findings"].as_array_mut() {
        findings.truncate(limit);
    }
    let mut text = printed::run(&found, Style::Markdown);
    if all > limit {
        text.push_str(&format!(
            "\n{all} findings, of which the {limit} costliest are shown. `report` has all findings of one step.\n"
        ));
    }
    Ok(Answer { text, link })
}

pub const REPORT: Tool = Tool {
    name: "report",
    title: "Why a step took as long as it did",
    about: "Explains one training step: its findings with their cost, where the time went by phase, the critical path, the slowest samples and why, \
            idle workers, and the health of samples, groups and tools. Without a step, it explains the newest step that has ended.",
    arguments: &[RUN.required(), STEP],
    run: |call| Box::pin(report(call)),
};

/// The step that is meant: the one named, else the newest that has ended. None: the run has no steps.
async fn step_of(desk: &Desk, run: &str, step: Option<i64>) -> Result<Option<i64>, Problem> {
    if step.is_some() {
        return Ok(step);
    }
    let found = read(&desk.answers.run_findings_json(run).await?)?;
    let steps = found["steps"].as_array().map_or(&[][..], Vec::as_slice);
    let newest = steps.iter().rev().find(|step| step["running"] == false).or(steps.last());
    Ok(newest.and_then(|step| step["step"].as_i64()))
}

fn step_link(call: &Call, run: &str, step: Option<i64>) -> String {
    match step {
        Some(step) => call.page.to(&["run", run, "step", &step.to_string()]),
        None => call.page.to(&["run", run]),
    }
}

async fn report(call: Call) -> Result<Answer, Problem> {
    let mut params = call.params()?;
    let run = needed(&mut params, "run", "the run; `runs` lists them")?;
    let step = params.number("step", "an integer")?;
    params.done()?;
    let desk = call.source.desk().await?;
    let run = desk.engine().find_run(&run).await?;
    let step = step_of(&desk, &run, step).await?;
    let found = read(&desk.answers.step_report_json(&run, step).await?)?;
    let title = step.map_or(format!("Run {run}: "), |step| format!("Step {step} of run {run}: "));
    Ok(Answer { text: title + &printed::step(&found, Style::Markdown), link: step_link(&call, &run, step) })
}

pub const DIFF: Tool = Tool {
    name: "diff",
    title: "What changed",
    about: "Compares two steps of a run (`step` and `with`), two runs (`other`), or a step with a step of another run, and says which parts of the time \
            changed, by how much, why, and whether that is more than the usual spread.",
    arguments: &[
        RUN.required(),
        integer("step", "The step before. All steps if it is left out"),
        text("other", "The run after. The same run if it is left out"),
        integer("with", "The step after. All steps if it is left out"),
    ],
    run: |call| Box::pin(diff(call)),
};

async fn diff(call: Call) -> Result<Answer, Problem> {
    let mut params = call.params()?;
    let run = needed(&mut params, "run", "the run; `runs` lists them")?;
    let (step, with) = (params.number("step", "an integer")?, params.number("with", "an integer")?);
    let other = params.text("other").map(str::to_string);
    params.done()?;
    if other.is_none() && (step.is_none() || with.is_none()) {
        return Err(Problem::missing_parameter("with", "`step` and `with`, or `other`"));
    }
    let desk = call.source.desk().await?;
    let run = desk.engine().find_run(&run).await?;
    let other = match other {
        Some(other) => desk.engine().find_run(&other).await?,
        None => run.clone(),
    };
    let (before, after) = (Which { run: run.clone(), step }, Which { run: other.clone(), step: with });
    let found = json!(desk.answers.difference(&before, &after).await?);
    let mut link = call.page.to(&["run", &run, "diff"]);
    let also = [
        ("step", step.map(|s| s.to_string())),
        ("other", Some(other).filter(|o| *o != run)),
        ("with", with.map(|s| s.to_string())),
    ];
    let also: Vec<String> =
        also.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", crate::link::encode(&value?)))).collect();
    if !also.is_empty() {
        link.push_str(&format!("?{}", also.join("&")));
    }
    Ok(Answer { text: printed::diff(&found, Style::Markdown), link })
}

pub const MISMATCH: Tool = Tool {
    name: "mismatch",
    title: "Where trainer and engine disagree",
    about: "Compares the log-probabilities of trainer and engine token by token: KL estimates per step, and which engine, version of the weights, turn, \
            position, class of token or source is off, in words. Use it for \"why is my KL high\" or \"is training off-policy\". Without a step, it shows the \
            step that stands out most.",
    arguments: &[RUN.required(), STEP],
    run: |call| Box::pin(mismatch(call)),
};

async fn mismatch(call: Call) -> Result<Answer, Problem> {
    let mut params = call.params()?;
    let run = needed(&mut params, "run", "the run; `runs` lists them")?;
    let step: Option<i64> = params.number("step", "an integer")?;
    params.done()?;
    let desk = call.source.desk().await?;
    let run = desk.engine().find_run(&run).await?;
    let found = desk.answers.mismatch(&run, step).await?;
    let link = call.page.to(&["run", &run, "mismatch"]) + &step.map_or(String::new(), |step| format!("?step={step}"));
    Ok(Answer { text: printed::mismatch(&json!(found), Style::Markdown), link })
}

pub const CRITICAL_PATH: Tool = Tool {
    name: "critical_path",
    title: "What held a step or a trace",
    about: "Returns the critical path of a training step, or of one trace: which span held it, moment by moment, and how much each part would save. \
            Without a step or a trace, it takes the newest step that has ended.",
    arguments: &[
        text("run", "The run of the step. Not needed with `trace`"),
        STEP,
        text("trace", "The id of a trace in hex, instead of a step; `traces` finds them"),
        LIMIT,
    ],
    run: |call| Box::pin(critical_path(call)),
};

async fn critical_path(call: Call) -> Result<Answer, Problem> {
    let mut params = call.params()?;
    let (run, trace) = (params.text("run").map(str::to_string), params.text("trace").map(str::to_string));
    let step = params.number("step", "an integer")?;
    let (limit, _) = page_of(&mut params, 12, 100)?;
    params.done()?;
    let desk = call.source.desk().await?;
    let (what, path, link) = match (run, trace) {
        (_, Some(trace)) => {
            let id = super::traces::trace_id(&trace)?;
            let (_, path) = desk.answers.trace_path(id).await?;
            (format!("trace {trace}"), json!(path), call.page.to(&["trace", &trace]))
        }
        (Some(run), None) => {
            let run = desk.engine().find_run(&run).await?;
            let step = step_of(&desk, &run, step).await?;
            let mut found = read(&desk.answers.step_report_json(&run, step).await?)?;
            let what = step.map_or(format!("run {run}"), |step| format!("step {step} of run {run}"));
            (what, found["critical_path"].take(), step_link(&call, &run, step))
        }
        (None, None) => return Err(Problem::missing_parameter("run", "`run` and `step`, or `trace`")),
    };
    Ok(Answer { text: path_text(&what, &path, limit), link })
}

fn path_text(what: &str, path: &Value, limit: usize) -> String {
    let list = |name: &str| path[name].as_array().map_or(&[][..], Vec::as_slice);
    let held = |part: &Value| part["seconds"].as_f64().unwrap_or(0.0);
    let all: f64 = list("totals").iter().map(held).sum();
    let share = |s: f64| if all > 0.0 { format!("{:.0} %", 100.0 * s / all) } else { String::new() };
    let totals: Vec<Vec<String>> = list("totals")
        .iter()
        .take(limit)
        .map(|p| vec![cell(&p["name"]), cell(&p["kind"]), seconds(held(p)), share(held(p)), cell(&p["parts"])])
        .collect();
    // The longest parts, in the order of time.
    let mut longest: Vec<&Value> = list("parts").iter().collect();
    let count = longest.len();
    longest.sort_by(|a, b| held(b).total_cmp(&held(a)));
    longest.truncate(limit);
    longest.sort_by(|a, b| a["start_s"].as_f64().unwrap_or(0.0).total_cmp(&b["start_s"].as_f64().unwrap_or(0.0)));
    let parts: Vec<Vec<String>> = longest
        .iter()
        .map(|p| {
            vec![
                format!("+{}", seconds(p["start_s"].as_f64().unwrap_or(0.0))),
                cell(&p["name"]),
                cell(&p["kind"]),
                seconds(held(p)),
                seconds(p["slack_s"].as_f64().unwrap_or(0.0)),
                cell(&p["sample_id"]),
                cell(&p["worker"]),
            ]
        })
        .collect();
    let mut text = format!("The critical path of {what}: {}.\n\n", seconds(all));
    text.push_str(&table(&["part", "kind", "held", "share", "times"], &totals));
    text.push_str("\nIts longest parts, in order:\n\n");
    text.push_str(&table(&["from", "part", "kind", "held", "could save", "sample", "worker"], &parts));
    if count > parts.len() {
        text.push_str(&format!("\n{} of {count} parts are shown; pass limit for more.\n", parts.len()));
    }
    text
}

pub const HANG: Tool = Tool {
    name: "hang",
    title: "Is it hanging, and what does it wait for",
    about: "Says whether a run moves, is slow, hangs or has ended, and who waits for whom: the step, its samples, the engines, tools, judges and ranks \
            behind them. Use it for \"is it hanging\" and \"what is it waiting for\".",
    arguments: &[
        RUN.required(),
        text("at", "The moment to ask about, such as 2026-11-17T14:22:51Z. Now if it is left out"),
    ],
    run: |call| Box::pin(hang(call)),
};

async fn hang(call: Call) -> Result<Answer, Problem> {
    let mut params = call.params()?;
    let run = needed(&mut params, "run", "the run; `runs` lists them")?;
    let at = match params.text("at").filter(|text| !text.is_empty()) {
        Some(text) => Some(parse_moment(text).ok_or_else(|| Problem::parameter("at", MOMENT))?),
        None => None,
    };
    params.done()?;
    let desk = call.source.desk().await?;
    let found = hang::ask(desk.engine(), &run, at).await?;
    let link = call.page.to(&["run", &found.run, "now"]);
    let found = serde_json::to_value(&found).map_err(|e| Problem::internal(e.to_string()))?;
    Ok(Answer { text: printed::hang(&found, Style::Markdown), link })
}
