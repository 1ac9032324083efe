//! Runs and their steps.

use rollscope_app::listings;
use serde_json::{Value, json};

use super::{Answer, Call, LIMIT, OFFSET, Problem, RUN, Tool, integer, needed, page_of, text};
use crate::text::{cell, seconds, shown, table, when};

pub const RUNS: Tool = Tool {
    name: "runs",
    title: "Training runs",
    about: "Lists the training runs, newest first: id, name, status, times and how many steps, samples and spans each has. \
            Call this first if you do not know the id of a run.",
    arguments: &[text("project", "Only runs of this project"), LIMIT, OFFSET],
    run: |call| Box::pin(runs(call)),
};

async fn runs(call: Call) -> Result<Answer, Problem> {
    let mut params = call.params()?;
    let project = params.text("project").map(str::to_string);
    let (limit, offset) = page_of(&mut params, 20, 200)?;
    params.done()?;
    let desk = call.source.desk().await?;
    let listed = json!(listings::runs::list(desk.engine(), &desk.known_runs).await?);
    let wanted = |run: &&Value| {
        run["service"] != true && project.as_ref().is_none_or(|project| run["project"] == project.as_str())
    };
    let runs: Vec<&Value> = listed.as_array().into_iter().flatten().filter(wanted).collect();
    let row = |run: &&Value| {
        vec![
            cell(&run["run_id"]),
            cell(&run["name"]),
            cell(&run["project"]),
            cell(&run["status"]),
            when(&run["started_ns"]),
            when(&run["last_ns"]),
            cell(&run["steps"]),
            cell(&run["samples"]),
            cell(&run["spans"]),
        ]
    };
    let rows: Vec<_> = runs.iter().skip(offset).take(limit).map(row).collect();
    let header = ["run", "name", "project", "status", "started", "last row", "steps", "samples", "spans"];
    let note = shown(rows.len(), offset, runs.len(), "runs");
    let text = if rows.is_empty() { note } else { format!("{}\n{note}", table(&header, &rows)) };
    Ok(Answer { text, link: call.page.to(&[]) })
}

pub const STEPS: Tool = Tool {
    name: "steps",
    title: "Steps of a run",
    about: "Lists the training steps of a run, newest first: how long each took, its samples, mean reward, and the seconds of its \
            phases. Use it to see which steps are slow or how the reward goes. Pass sort=duration for the slowest first.",
    arguments: &[
        RUN.required(),
        text("sort", "step (newest first, the default) or duration (slowest first)"),
        integer("from", "Only this step and later ones"),
        integer("to", "Only this step and earlier ones"),
        LIMIT,
        OFFSET,
    ],
    run: |call| Box::pin(steps(call)),
};

async fn steps(call: Call) -> Result<Answer, Problem> {
    let mut params = call.params()?;
    let run = needed(&mut params, "run", "the run; `runs` lists them")?;
    let by_duration = match params.text("sort") {
        None | Some("step") => false,
        Some("duration") => true,
        Some(_) => return Err(Problem::parameter("sort", "step or duration")),
    };
    let from: i64 = params.number("from", "an integer")?.unwrap_or(i64::MIN);
    let to: i64 = params.number("to", "an integer")?.unwrap_or(i64::MAX);
    let (limit, offset) = page_of(&mut params, 20, 200)?;
    params.done()?;
    let desk = call.source.desk().await?;
    let run = desk.engine().find_run(&run).await?;
    let listed = json!(listings::steps::list(&desk.answers, &run).await?);
    let in_range = |step: &&Value| step["step"].as_i64().is_some_and(|n| (from..=to).contains(&n));
    let mut steps: Vec<&Value> = listed.as_array().into_iter().flatten().filter(in_range).collect();
    steps.reverse();
    if by_duration {
        steps.sort_by(|a, b| took(b).total_cmp(&took(a)));
    }
    let rows: Vec<_> = steps.iter().skip(offset).take(limit).map(|step| row(step)).collect();
    let note = shown(rows.len(), offset, steps.len(), "steps");
    let header = ["step", "took", "samples", "mean reward", "phases"];
    let text = if rows.is_empty() { note } else { format!("{}\n{note}", table(&header, &rows)) };
    Ok(Answer { text, link: call.page.to(&["run", &run]) })
}

fn took(step: &Value) -> f64 {
    let ns = |name: &str| step[name].as_str().and_then(|text| text.parse::<i64>().ok());
    ns("end_ns").zip(ns("start_ns")).map_or(0.0, |(end, start)| (end - start) as f64 / 1e9)
}

fn row(step: &Value) -> Vec<String> {
    let mut phases: Vec<(&String, f64)> = step["exclusive"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, s)| (name, s.as_f64().unwrap_or(0.0)))
        .collect();
    phases.sort_by(|a, b| b.1.total_cmp(&a.1));
    let phases: Vec<String> = phases.iter().take(5).map(|(name, s)| format!("{name} {}", seconds(*s))).collect();
    let running = if step["running"] == true { " so far" } else { "" };
    vec![
        cell(&step["step"]),
        format!("{}{running}", seconds(took(step))),
        cell(&step["samples"]),
        cell(&step["reward_mean"]),
        phases.join(", "),
    ]
}
