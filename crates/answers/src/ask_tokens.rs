//! Asks the store for the tokens of a run's steps. What was worked out of a step is kept as long as its tokens stay the same.

use std::sync::Arc;

use futures::StreamExt;
use futures::future::BoxFuture;
use rollscope_model::Table;
use rollscope_query::columns::int_column;
use rollscope_query::{ErrorKind, QueryError, sql_text};
use rollscope_store::Snapshot;

use super::ask::{Answers, MAX_STEPS};
use super::extent::Extent;
use super::findings::Finding;
use super::mismatch::judge::{EARLIER, ENGINE, Found, Judge, StepTokens, nats};
use super::mismatch::read::{COLUMNS, StepPieces};
use super::mismatch::{Mismatch, MismatchStep};
use super::words;

/// Samples of one step that are read.
const MAX_SAMPLES: usize = 1_000_000;
/// Findings of a run that are reported.
const MAX_FINDINGS: usize = 20;

/// The tokens of a run's steps.
struct Run {
    name: String,
    steps: Vec<Arc<StepTokens>>,
    left_out: usize,
}

impl Answers {
    /// Where do trainer and engine disagree, in a step or in a run?
    pub fn mismatch<'a>(&'a self, run: &'a str, step: Option<i64>) -> BoxFuture<'a, Result<Mismatch, QueryError>> {
        Box::pin(async move {
            let name = self.engine.find_run(run).await?;
            let read = self.tokens_of(&name, step, MAX_STEPS).await?;
            let known = |s: &&Arc<StepTokens>| step.is_none() || s.step == step;
            if !read.steps.iter().any(|s| known(&s) && (s.tokens > 0 || s.lengths_differ > 0)) {
                return Err(QueryError::new(ErrorKind::NotFound, nothing_to_compare(&read, step)));
            }
            self.engine.compute(move || answer(&read, step)).await
        })
    }

    /// What stands out: in one step, or in each. Empty for runs without tokens.
    pub(crate) async fn disagreements(&self, run: &str, step: Option<i64>) -> Result<Vec<Finding>, QueryError> {
        // A step is judged by those before it. A whole run takes long if nothing of it is known yet.
        let before = if step.is_some() { EARLIER } else { MAX_STEPS };
        let read = match self.tokens_of(run, step, before).await {
            Ok(read) => read,
            // What is too large for this answer is no reason to give no other.
            Err(error) if matches!(error.kind, ErrorKind::Limit) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let found = self.engine.compute(move || {
            let judge = Judge { steps: read.steps.iter().map(AsRef::as_ref).collect() };
            let all = 0..judge.steps.len();
            match step {
                Some(_) => all.filter(|at| judge.steps[*at].step == step).flat_map(|at| of_step(&judge, at)).collect(),
                None => of_run(&judge),
            }
        });
        found.await
    }

    /// Works out the tokens of a step, so that whoever asks for them later finds them.
    pub(crate) async fn prepare_tokens(&self, run: &str, step: i64) -> Result<(), QueryError> {
        self.tokens_of(run, Some(step), 0).await.map(drop)
    }

    /// The steps around one, or the newest; of those before it at most so many.
    async fn tokens_of(&self, run: &str, around: Option<i64>, before: usize) -> Result<Run, QueryError> {
        let snapshot = self.engine.snapshot();
        let mut out = Run { name: run.to_string(), steps: Vec::new(), left_out: 0 };
        let extent = Extent::of_tables(&[Table::Tokens], &self.kept.censuses, &snapshot, run).await;
        if !extent.has_rows() {
            return Ok(out);
        }
        let mut steps: Vec<Option<i64>> = match extent.steps() {
            Some(steps) => steps.into_iter().map(Some).collect(),
            None => self.steps_with_tokens(run).await?,
        };
        if steps.is_empty() {
            steps.push(None);
        }
        if around.is_some() && before < MAX_STEPS {
            let Some(at) = steps.iter().position(|step| *step == around) else { return Ok(out) };
            steps = steps[at.saturating_sub(before)..=at].to_vec();
        }
        let all = steps.len();
        if all > MAX_STEPS {
            let at = steps.iter().position(|step| around.is_some() && *step == around).unwrap_or(all);
            let first = at.saturating_sub(MAX_STEPS / 2).min(all - MAX_STEPS);
            steps = steps[first..first + MAX_STEPS].to_vec();
            out.left_out = all - MAX_STEPS;
        }
        for step in steps {
            out.steps.push(self.tokens_of_step(&snapshot, &extent, run, step).await?);
        }
        Ok(out)
    }

    async fn steps_with_tokens(&self, run: &str) -> Result<Vec<Option<i64>>, QueryError> {
        let sql = format!(
            "select distinct step from tokens where run_id = {} and step is not null order by step",
            sql_text(run)
        );
        let mut steps = Vec::new();
        for batch in self.all_rows(&sql).await? {
            steps.extend(int_column(&batch, "step").unwrap_or_default());
        }
        Ok(steps)
    }

    async fn tokens_of_step(
        &self,
        snapshot: &Snapshot,
        extent: &Extent,
        run: &str,
        step: Option<i64>,
    ) -> Result<Arc<StepTokens>, QueryError> {
        // Another tokenizer gives other texts, and so other classes of tokens.
        let fingerprint = extent.fingerprint(step, (0, 0)) ^ self.engine.tokenizers().fingerprint(run);
        if let Some(known) = self.kept.tokens(snapshot, run, step, fingerprint).await {
            return Ok(known);
        }
        let _turn = self.kept.turns.acquire().await;
        let of_step = step.map_or("step is null".to_string(), |step| format!("step = {step}"));
        let sql = format!("select {COLUMNS} from tokens where run_id = {} and {of_step}", sql_text(run));
        let mut rows = self.engine.sql_at_once(&sql, MAX_SAMPLES).await?;
        let mut pieces = StepPieces::default();
        while let Some(batch) = rows.stream.next().await {
            let batch = batch?;
            let added = self.engine.compute(move || pieces.add(&batch).map(|()| pieces));
            pieces = added.await?.map_err(|e| {
                QueryError::new(ErrorKind::Internal, format!("cannot read the tokens of the step: {e}"))
            })?;
        }
        let known = Arc::new(self.engine.compute(move || StepTokens::of(step, pieces)).await?);
        self.kept.keep_tokens(snapshot, run, fingerprint, &known).await;
        Ok(known)
    }
}

fn nothing_to_compare(read: &Run, step: Option<i64>) -> String {
    let run = &read.name;
    let both = "log-probabilities of both engine and trainer";
    match (step, read.steps.iter().filter(|s| s.tokens > 0).map(|s| s.step).collect::<Vec<_>>().as_slice()) {
        (Some(step), [Some(first), .., Some(last)]) => {
            format!("step {step} of run `{run}` has no tokens with {both}; steps from {first} to {last} have")
        }
        _ => format!(
            "run `{run}` has no tokens with {both}; send them with rollscope.log_tokens(logprobs=..., trainer_logprobs=...)"
        ),
    }
}

/// The findings of a step. An engine that was off before is off since then.
fn of_step(judge: &Judge, at: usize) -> Vec<Finding> {
    judge.found(at).into_iter().map(|found| since(judge, at, found).finding).collect()
}

fn since(judge: &Judge, at: usize, mut found: Found) -> Found {
    let finding = &mut found.finding;
    let engine = finding.evidence.engine.clone();
    if let (ENGINE, Some(engine)) = (finding.kind, engine)
        && let first = judge.since(at, &engine)
        && first < at
        && let Some(step) = judge.steps[first].step
    {
        let when = match judge.newest(first) {
            Some(version) => format!("nats off since version {version} (step {step}),"),
            None => format!("nats off since step {step},"),
        };
        finding.text = finding.text.replacen("nats off,", &when, 1);
    }
    found
}

/// The findings of all steps. What lasts is one finding, of the step in which it is strongest.
fn of_run(judge: &Judge) -> Vec<Finding> {
    let mut all: Vec<(f64, usize, Found)> = Vec::new();
    for at in 0..judge.steps.len() {
        for found in judge.found(at) {
            let weight = found.weight;
            let same = |(_, _, other): &&mut (f64, usize, Found)| {
                other.finding.kind == found.finding.kind
                    && other.finding.evidence.engine == found.finding.evidence.engine
            };
            match all.iter_mut().find(same) {
                Some((sum, place, strongest)) => {
                    *sum += weight;
                    if weight > strongest.weight {
                        (*place, *strongest) = (at, found);
                    }
                }
                None => all.push((weight, at, found)),
            }
        }
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all.truncate(MAX_FINDINGS);
    all.into_iter().map(|(_, at, found)| since(judge, at, found).finding).collect()
}

fn answer(read: &Run, asked: Option<i64>) -> Mismatch {
    let judge = Judge {
        steps: read.steps.iter().map(AsRef::as_ref).filter(|s| s.tokens > 0 || s.lengths_differ > 0).collect(),
    };
    let of_steps: Vec<Vec<Found>> = (0..judge.steps.len()).map(|at| judge.found(at)).collect();
    let findings = match judge.steps.iter().position(|s| asked.is_some() && s.step == asked) {
        Some(at) => of_step(&judge, at),
        None => of_run(&judge),
    };
    let shown = asked.or_else(|| findings.first().and_then(|finding| finding.step));
    let at = judge.steps.iter().position(|s| s.step == shown).unwrap_or(judge.steps.len() - 1);
    let step = judge.steps[at];
    let mut groups = step.groups.clone();
    for group in &mut groups {
        group.usual_times = judge.usual_times(at, &group.dimension, &group.name);
    }
    let line = |(s, found): (&&StepTokens, &Vec<Found>)| MismatchStep {
        step: s.step,
        tokens: s.tokens,
        samples: s.samples,
        off: s.off,
        k1: s.k1,
        k3: s.k3,
        retokenized_turns: s.retokenized_turns,
        findings: found.iter().map(|found| found.finding.kind).collect(),
    };
    Mismatch {
        run: read.name.clone(),
        step: step.step,
        text: text(&findings, step, asked.is_some(), judge.steps.len()),
        steps: judge.steps.iter().zip(&of_steps).map(line).collect(),
        steps_left_out: read.left_out,
        findings,
        tokens: step.tokens,
        samples: step.samples,
        off: step.off,
        k1: step.k1,
        k3: step.k3,
        ratio_beyond_2: step.beyond_2(),
        p50: step.quantile(0.5),
        p99: step.quantile(0.99),
        p999: step.quantile(0.999),
        distribution: step.distribution(),
        groups,
        worst: step.worst.clone(),
        retokenized_turns: step.retokenized_turns,
        lengths_differ: step.lengths_differ,
        samples_left_out: step.left_out,
    }
}

fn text(findings: &[Finding], step: &StepTokens, is_asked: bool, steps: usize) -> String {
    let name = step.step.map_or("The run".to_string(), |step| format!("Step {step}"));
    let mut text = match findings.first() {
        Some(first) => {
            let at = first.step.map_or(String::new(), |step| format!("In step {step}, "));
            format!("{at}{}.", first.text)
        }
        None if step.tokens == 0 => format!("{name}: trainer and engine cannot be compared."),
        None => {
            let what = if is_asked || steps == 1 { name } else { format!("{steps} steps") };
            format!(
                "{what}: trainer and engine agree. Tokens are {} nats off on average (step {}), and nothing stands out.",
                nats(step.off),
                step.step.map_or("-".to_string(), |step| step.to_string())
            )
        }
    };
    for other in findings.iter().skip(1).take(2) {
        let at = other.step.map_or(String::new(), |step| format!("in step {step}, "));
        text.push_str(&format!(" Also: {at}{}.", other.text));
    }
    if step.lengths_differ > 0 {
        let samples = words::count(step.lengths_differ as usize, "sample");
        text.push_str(&format!(
            " Trainer and engine sent different numbers of tokens for {samples}, which cannot be compared."
        ));
    }
    text
}
