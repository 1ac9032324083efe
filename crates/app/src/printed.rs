//! Prints reports from the JSON that programs get, so that the answer of a server and of a folder look the same.

use serde_json::Value;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Terminal,
    Markdown,
}

/// Rows of a table.
const ROWS: usize = 8;
/// Rows of a table that shows how something goes on.
const NEWEST: usize = 20;
const WIDTH: usize = 100;
const BAR: usize = 24;

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[][..], Vec::as_slice)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// Text from data. Control characters are escaped.
fn clean(value: &Value) -> String {
    let text = value.as_str().unwrap_or("");
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] }).collect()
}

fn time(seconds: f64) -> String {
    rollscope_answers::words::time(seconds)
}

struct Page {
    style: Style,
    out: String,
}

impl Page {
    fn line(&mut self, text: &str) {
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn title(&mut self, text: &str) {
        match self.style {
            Style::Terminal => self.line(&format!("\n{text}")),
            Style::Markdown => self.line(&format!("\n### {text}\n")),
        }
    }

    fn paragraph(&mut self, text: &str) {
        match self.style {
            Style::Terminal => wrap(text, WIDTH).iter().for_each(|l| self.line(l)),
            Style::Markdown => self.line(text),
        }
    }

    fn item(&mut self, text: &str) {
        match self.style {
            Style::Terminal => {
                for (n, line) in wrap(text, WIDTH - 4).iter().enumerate() {
                    self.line(&format!("{}{line}", if n == 0 { "  • " } else { "    " }));
                }
            }
            Style::Markdown => self.line(&format!("- {text}")),
        }
    }

    /// Columns. Numbers are aligned to the right.
    fn table(&mut self, header: &[&str], rows: &[Vec<String>]) {
        if rows.is_empty() {
            return;
        }
        if self.style == Style::Markdown {
            self.line(&format!("| {} |", header.join(" | ")));
            self.line(&format!("|{}", "---|".repeat(header.len())));
            rows.iter().for_each(|r| self.line(&format!("| {} |", r.join(" | "))));
            return;
        }
        let width = |i: usize| {
            let cells = rows.iter().map(|r| r[i].chars().count()).chain([header[i].chars().count()]);
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..header.len()).map(width).collect();
        let set = |cells: Vec<&str>| {
            let cells = cells.iter().enumerate().map(|(i, c)| {
                let pad = " ".repeat(widths[i] - c.chars().count());
                if i == 0 || c.starts_with(['█', '▏', ' ']) { format!("{c}{pad}") } else { format!("{pad}{c}") }
            });
            format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_string()
        };
        self.line(&set(header.to_vec()));
        rows.iter().for_each(|r| self.line(&set(r.iter().map(String::as_str).collect())));
    }
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if !lines[last].is_empty() && lines[last].chars().count() + word.chars().count() + 1 > width {
            lines.push(word.to_string());
        } else {
            if !lines[last].is_empty() {
                lines[last].push(' ');
            }
            lines[last].push_str(word);
        }
    }
    lines
}

fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    if full == 0 { "▏".to_string() } else { "█".repeat(full) }
}

fn page(style: Style) -> Page {
    Page { style, out: String::new() }
}

fn findings(page: &mut Page, answer: &Value, with_step: bool) {
    let found = list(&answer["findings"]);
    if found.is_empty() {
        return;
    }
    page.title("Findings, by cost");
    for finding in found.iter().take(20) {
        let cost = number(&finding["cost_s"]);
        let cost = if cost > 0.0 { format!("{}: ", time(cost)) } else { String::new() };
        let step = match (with_step, finding["step"].as_i64()) {
            (true, Some(step)) => format!("step {step}, "),
            _ => String::new(),
        };
        let samples: Vec<String> = list(&finding["evidence"]["samples"]).iter().take(5).map(clean).collect();
        let samples = match (samples.len(), finding["evidence"]["count"].as_u64().unwrap_or(0)) {
            (0, _) => String::new(),
            (n, count) if count > n as u64 => format!(" Samples {}, ...", samples.join(", ")),
            (1, _) => format!(" Sample {}.", samples[0]),
            _ => format!(" Samples {}.", samples.join(", ")),
        };
        page.item(&format!("{cost}{step}{}.{samples} [{}]", clean(&finding["text"]), clean(&finding["kind"])));
    }
}

/// A step without spans has a length of nothing.
fn is_timed(step: &Value) -> bool {
    step["spans"].as_u64() != Some(0)
}

/// What is known of steps without times: the newest of them.
fn rewards(page: &mut Page, steps: &[&Value]) {
    let means = || steps.iter().filter_map(|s| s["reward_mean"].as_f64());
    let (low, high) = means().fold((0.0_f64, 1e-9_f64), |(low, high), mean| (low.min(mean), high.max(mean)));
    let shown = &steps[steps.len().saturating_sub(NEWEST)..];
    let rows: Vec<Vec<String>> = shown
        .iter()
        .map(|s| {
            let mean = s["reward_mean"].as_f64();
            vec![
                s["step"].as_i64().map_or("-".to_string(), |s| s.to_string()),
                s["samples"].as_u64().unwrap_or(0).to_string(),
                mean.map_or("-".to_string(), |mean| format!("{mean:.3}")),
                mean.map_or(String::new(), |mean| bar((mean - low) / (high - low))),
            ]
        })
        .collect();
    if !rows.is_empty() {
        page.title(if shown.len() < steps.len() { "The newest steps" } else { "The steps" });
        page.table(&["step", "samples", "mean reward", ""], &rows);
    }
}

pub fn run(answer: &Value, style: Style) -> String {
    let mut page = page(style);
    page.paragraph(&format!("{}: {}", clean(&answer["run"]), clean(&answer["text"])));
    findings(&mut page, answer, true);
    let mut steps: Vec<&Value> = list(&answer["steps"]).iter().collect();
    if steps.iter().all(|s| !is_timed(s)) {
        rewards(&mut page, &steps);
        return page.out;
    }
    steps.retain(|s| is_timed(s));
    steps.sort_by(|a, b| number(&b["wall_s"]).total_cmp(&number(&a["wall_s"])));
    let longest = steps.first().map_or(1.0, |s| number(&s["wall_s"])).max(1e-9);
    let rows: Vec<Vec<String>> = steps
        .iter()
        .take(ROWS)
        .map(|s| {
            let found = s["findings"].as_u64().unwrap_or(0);
            vec![
                s["step"].as_i64().map_or("-".to_string(), |s| s.to_string()),
                time(number(&s["wall_s"])),
                bar(number(&s["wall_s"]) / longest),
                if found > 0 { format!("{found} finding{}", if found == 1 { "" } else { "s" }) } else { String::new() },
            ]
        })
        .collect();
    page.title("The longest steps");
    page.table(&["step", "took", "", ""], &rows);
    page.out
}

pub fn step(answer: &Value, style: Style) -> String {
    let mut page = page(style);
    page.paragraph(&clean(&answer["text"]));
    findings(&mut page, answer, false);
    if is_timed(answer) {
        times(&mut page, answer);
    }
    health(&mut page, &answer["health"]);
    page.out
}

fn times(page: &mut Page, answer: &Value) {
    let wall = number(&answer["wall_s"]).max(1e-9);
    page.title("Where the time went");
    let rows: Vec<Vec<String>> = list(&answer["phases"])
        .iter()
        .map(|p| {
            let s = number(&p["seconds"]);
            vec![clean(&p["name"]), time(s), format!("{:.0} %", 100.0 * s / wall), bar(s / wall)]
        })
        .collect();
    page.table(&["phase", "wall", "", ""], &rows);

    let path = &answer["critical_path"];
    // An engine without a trainer: nobody says what its requests were for.
    let requests_only = matches!(list(&answer["phases"]), [only] if only["name"] == "requests");
    let (what, whole) = if requests_only { ("request", "requests") } else { ("sample", "step") };
    page.title(&format!("Critical path: what held the {whole}"));
    let rows: Vec<Vec<String>> = list(&path["totals"])
        .iter()
        .take(ROWS)
        .map(|p| {
            let s = number(&p["seconds"]);
            vec![clean(&p["name"]), clean(&p["kind"]), time(s), format!("{:.0} %", 100.0 * s / wall), bar(s / wall)]
        })
        .collect();
    page.table(&["part", "kind", "held", "", ""], &rows);
    // A trainer that scores in a phase of its own does so after the rollout.
    let scored_later = list(&answer["phases"]).iter().any(|p| p["kind"] == "reward");
    let scored = |p: &Value| scored_later && p["kind"] == "reward";
    let of_rollout = |p: &&Value| !clean(&p["sample_id"]).is_empty() && !scored(p);
    if let Some(last) = list(&path["parts"]).iter().rev().find(of_rollout) {
        let id = clean(&last["sample_id"]);
        page.paragraph(&match requests_only {
            true => format!("  The last request to end was {}.", id.trim_start_matches("Req ")),
            false => format!("  The rollout ended with sample {id}."),
        });
    }

    let tail = &answer["stragglers"];
    let count = tail["tail_count"].as_u64().unwrap_or(0);
    if count > 0 && tail["cost_s"].as_f64().unwrap_or(0.0) > 0.0 {
        page.title("The tail");
        let gpu = tail["gpu_hours"].as_f64().map_or(String::new(), |h| format!(", {h:.2} GPU-hours"));
        page.paragraph(&format!(
            "  The last {count} of {} {what}s took {} longer. Workers were idle for {} meanwhile{gpu}. The median {what} ({}) took {}.",
            tail["samples"],
            time(number(&tail["cost_s"])),
            time(number(&tail["idle_worker_s"])),
            clean(&tail["median_sample_id"]),
            time(number(&tail["median_s"])),
        ));
        let rows: Vec<Vec<String>> = list(&tail["tail"])
            .iter()
            .take(ROWS)
            .map(|s| {
                let why: Vec<String> = list(&s["why"])
                    .iter()
                    .filter(|w| number(&w["more_s"]) > 0.05 * number(&s["seconds"]))
                    .take(3)
                    .map(|w| format!("{} +{}", clean(&w["part"]), time(number(&w["more_s"]))))
                    .collect();
                vec![
                    clean(&s["sample_id"]),
                    time(number(&s["seconds"])),
                    time(number(&s["behind_s"])),
                    format!(" {}", why.join(", ")),
                ]
            })
            .collect();
        page.table(&[what, "took", "behind", &format!(" why, compared with the median {what}")], &rows);
    }

    let idle = &answer["idle"];
    if idle["workers"].as_u64().unwrap_or(0) > 0 {
        page.title("Idle");
        let why: Vec<String> = list(&idle["why"])
            .iter()
            .take(4)
            .map(|w| format!("{} {}", clean(&w["why"]), time(number(&w["seconds"]))))
            .collect();
        let workers = idle["workers"].as_u64().unwrap_or(0);
        page.paragraph(&format!(
            "  {workers} {} idle for {:.0} % of their time: {}.",
            if workers == 1 { "worker was" } else { "workers were" },
            100.0 * number(&idle["bubble_ratio"]),
            why.join(", ")
        ));
    }
}

fn health(page: &mut Page, health: &Value) {
    let mut said = Vec::new();
    let count = |v: &Value| v.as_u64().unwrap_or(0);
    let groups = &health["groups"];
    if count(&groups["groups"]) > 0 {
        said.push(format!(
            "{} of {} groups have rewards without variance ({} of sample time)",
            groups["zero_variance"],
            groups["groups"],
            time(number(&groups["sample_s"]))
        ));
    }
    for (name, value) in
        [("truncated", &health["truncated"]), ("aborted", &health["aborted"]), ("retried", &health["retried"])]
    {
        if count(value) > 0 {
            said.push(format!("{value} of {} samples were {name}", health["samples"]));
        }
    }
    let stale = &health["staleness"];
    if count(&stale["stale"]) > 0 {
        said.push(format!(
            "{} samples came from older weights, at most {} versions behind",
            stale["stale"], stale["most_versions_behind"]
        ));
    }
    for (name, value) in
        [("prefix cache hits", &health["cache_hit_rate"]), ("speculated tokens accepted", &health["spec_accept_rate"])]
    {
        if let Some(rate) = value.as_f64() {
            said.push(format!("{name}: {:.0} %", 100.0 * rate));
        }
    }
    let data = &health["data"];
    for (name, value) in
        [("spans whose parent never arrived", &data["missing_parents"]), ("spans without an end", &data["open"])]
    {
        if count(value) > 0 {
            said.push(format!("{value} {name}"));
        }
    }
    if !said.is_empty() {
        page.title("Health");
        said.iter().for_each(|s| page.item(s));
    }
    let rows: Vec<Vec<String>> = list(&health["tools"])
        .iter()
        .take(ROWS)
        .map(|t| {
            vec![
                clean(&t["tool"]),
                t["calls"].to_string(),
                t["failed"].to_string(),
                time(number(&t["median_s"])),
                time(number(&t["p95_s"])),
                time(number(&t["max_s"])),
            ]
        })
        .collect();
    if !rows.is_empty() {
        page.title("Tools");
        page.table(&["tool", "calls", "failed", "median", "p95", "max"], &rows);
    }
}

/// Numbers of nats, of which few digits mean anything.
fn nats(value: &Value) -> String {
    let value = number(value);
    if value.abs() >= 0.1 { format!("{value:.2}") } else { format!("{value:.4}") }
}

pub fn mismatch(answer: &Value, style: Style) -> String {
    let mut page = page(style);
    page.paragraph(&format!("{}: {}", clean(&answer["run"]), clean(&answer["text"])));
    findings(&mut page, answer, true);
    let step = answer["step"].as_i64().map_or("the run".to_string(), |step| format!("step {step}"));
    page.title(&format!("Trainer and engine in {step}"));
    page.table(
        &["tokens", "samples", "mean |d|", "k1", "k3", "99 % within", "99.9 % within"],
        &[vec![
            answer["tokens"].to_string(),
            answer["samples"].to_string(),
            nats(&answer["off"]),
            nats(&answer["k1"]),
            nats(&answer["k3"]),
            nats(&answer["p99"]),
            nats(&answer["p999"]),
        ]],
    );
    let groups = list(&answer["groups"]).iter().filter(|group| group["clear"] == true).take(ROWS);
    let rows: Vec<Vec<String>> = groups
        .map(|group| {
            let explains = number(&group["explains"]);
            vec![
                format!("{} {}", clean(&group["by"]), clean(&group["name"])),
                group["tokens"].to_string(),
                nats(&group["off"]),
                nats(&group["rest_off"]),
                format!("{:.0} %", 100.0 * explains),
                bar(explains),
            ]
        })
        .collect();
    if !rows.is_empty() {
        page.title("Groups of tokens that are more off than the rest");
        page.table(&["group", "tokens", "mean |d|", "the rest", "explains", ""], &rows);
    }
    let worst: Vec<Vec<String>> = list(&answer["worst"])
        .iter()
        .take(ROWS)
        .map(|token| {
            // Quoted, so that spaces and line ends are seen. Bytes that are no character are escaped already.
            let quoted = |text: &str| clean(&Value::from(format!("{text:?}").replace(r"\\", r"\")));
            let text = token["text"].as_str().map_or(String::new(), quoted);
            vec![clean(&token["sample_id"]), token["position"].to_string(), nats(&token["d"]), text]
        })
        .collect();
    if !worst.is_empty() {
        page.title("The worst tokens");
        page.table(&["sample", "token", "d", "text"], &worst);
    }
    let steps = list(&answer["steps"]);
    let shown = steps.iter().skip(steps.len().saturating_sub(2 * ROWS));
    let rows: Vec<Vec<String>> = shown
        .map(|line| {
            let found: Vec<String> = list(&line["findings"]).iter().map(clean).collect();
            vec![
                line["step"].as_i64().map_or("-".to_string(), |step| step.to_string()),
                nats(&line["off"]),
                nats(&line["k1"]),
                nats(&line["k3"]),
                found.join(", "),
            ]
        })
        .collect();
    page.title("Steps");
    page.table(&["step", "mean |d|", "k1", "k3", ""], &rows);
    page.out
}

pub fn hang(answer: &Value, style: Style) -> String {
    let mut page = page(style);
    page.paragraph(&format!("{}: {}", clean(&answer["run"]), clean(&answer["text"])));
    let at = answer["at_ns"].as_i64().unwrap_or(0);
    let since = |value: &Value| value.as_i64().map_or(String::new(), |ns| time((at - ns).max(0) as f64 / 1e9));
    let usual = |of: &Value| match (of["usual_s"].as_f64(), of["longest_s"].as_f64()) {
        (Some(usual), Some(longest)) => format!("{} (at most {})", time(usual), time(longest)),
        _ => String::new(),
    };
    let nodes = list(&answer["nodes"]);
    let chain: Vec<&Value> = list(&answer["chain"]).iter().filter_map(|at| nodes.get(at.as_u64()? as usize)).collect();
    if !chain.is_empty() {
        page.title("Who waits for whom");
        let rows: Vec<Vec<String>> = chain
            .iter()
            .enumerate()
            .map(|(depth, node)| {
                let arrow = if depth == 0 { String::new() } else { format!("{}\u{2514} ", "  ".repeat(depth - 1)) };
                vec![
                    format!("{arrow}{} {}", clean(&node["kind"]), clean(&node["label"])),
                    since(&node["since_ns"]),
                    usual(node),
                ]
            })
            .collect();
        page.table(&["", "open for", "usually"], &rows);
    }
    let suspects = list(&answer["suspects"]);
    if !suspects.is_empty() {
        page.title("Suspects");
        for suspect in suspects.iter().take(ROWS) {
            let known = if suspect["known"] == true { "known" } else { "likely" };
            page.item(&format!("{} [{known}]", clean(&suspect["text"])));
        }
    }
    let engines = list(&answer["engines"]);
    let rows: Vec<Vec<String>> = engines
        .iter()
        .filter(|engine| engine["state"] != "moving" && engine["state"] != "idle")
        .take(ROWS)
        .map(|engine| {
            let figure = |value: &Value| value.as_f64().map_or("?".to_string(), |value| format!("{value:.0}"));
            vec![
                clean(&engine["name"]),
                clean(&engine["state"]).replace('_', " "),
                figure(&engine["running"]),
                figure(&engine["queued"]),
                since(&engine["moved_ns"]),
            ]
        })
        .collect();
    if !rows.is_empty() {
        page.title(&format!("Engines that do not work ({} of {})", rows.len(), engines.len()));
        page.table(&["engine", "state", "running", "queued", "last progress, ago"], &rows);
    }
    if answer["state"] == "hanging" || answer["state"] == "slow" {
        let mut workers: Vec<&Value> = list(&answer["workers"]).iter().collect();
        workers.sort_by_key(|worker| (worker["silent"] != true, worker["since_ns"].as_i64().unwrap_or(i64::MAX)));
        let rows: Vec<Vec<String>> = workers
            .iter()
            .take(2 * ROWS)
            .map(|worker| {
                let doing = match clean(&worker["doing"]) {
                    doing if doing.is_empty() => format!("(last: {})", clean(&worker["last"])),
                    doing => doing,
                };
                let life = if worker["silent"] == true { "silent" } else { "" };
                vec![clean(&worker["name"]), doing, since(&worker["since_ns"]), usual(worker), life.to_string()]
            })
            .collect();
        page.title("Workers");
        page.table(&["worker", "is in", "for", "usually", ""], &rows);
    }
    let dumps = list(&answer["dumps"]);
    if !dumps.is_empty() {
        page.title("What stacks, dumps and Ray say");
        dumps.iter().take(4 * ROWS).for_each(|text| page.item(&clean(text)));
        if dumps.len() > 4 * ROWS {
            page.item(&format!("and {} more, with --json", dumps.len() - 4 * ROWS));
        }
    }
    let advice = list(&answer["advice"]);
    if !advice.is_empty() {
        page.title("What would tell more");
        advice.iter().for_each(|text| page.item(&clean(text)));
    }
    page.out
}

pub fn diff(answer: &Value, style: Style) -> String {
    let mut page = page(style);
    page.paragraph(&clean(&answer["text"]));
    let rows: Vec<Vec<String>> = list(&answer["changes"])
        .iter()
        .take(2 * ROWS)
        .map(|c| {
            let change = number(&c["change_s"]);
            let sign = if change >= 0.0 { "+" } else { "" };
            let clear = match c["significance"].as_f64() {
                Some(s) if s >= rollscope_answers::difference::CLEAR => "clear",
                Some(_) => "within the usual spread",
                None => "",
            };
            vec![
                clean(&c["name"]),
                time(number(&c["before_s"])),
                time(number(&c["after_s"])),
                format!("{sign}{}", time(change)),
                clean(&c["why"]),
                clear.to_string(),
            ]
        })
        .collect();
    page.title("What held the step, before and after (the changes add up to the difference)");
    page.table(&["part", "before", "after", "change", "why", ""], &rows);
    page.out
}
