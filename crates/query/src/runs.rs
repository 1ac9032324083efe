//! Which run is meant. Wherever a run is taken (commands, the API, the page's addresses), it may be given by its id, its
//! name, `project/name`, or a beginning of any of these that fits one run only. An id always wins; names that several runs
//! have are never guessed.

use arrow::array::RecordBatch;
use arrow::temporal_conversions::timestamp_s_to_datetime;
use futures::future::BoxFuture;
use rollscope_model::read::{Ints, Text, column};

use crate::engine::Engine;
use crate::error::{ErrorKind, QueryError};
use crate::sql_text;

/// Runs that an error lists.
const MAX_LISTED: usize = 8;
/// Longer texts are not compared letter by letter.
const MAX_COMPARED: usize = 100;

#[derive(Clone, Debug, Default)]
struct Listed {
    id: String,
    project: Option<String>,
    name: Option<String>,
    started_ns: i64,
}

impl Listed {
    fn full_name(&self) -> Option<String> {
        Some(format!("{}/{}", self.project.as_deref()?, self.name.as_deref()?))
    }

    /// All its names.
    fn names(&self) -> impl Iterator<Item = String> {
        [Some(self.id.clone()), self.name.clone(), self.full_name()].into_iter().flatten()
    }

    /// A description to choose by.
    fn line(&self) -> String {
        let name = self.full_name().or_else(|| self.name.clone()).filter(|name| *name != self.id);
        let name = name.map_or(String::new(), |name| format!("{name}, "));
        let started = timestamp_s_to_datetime(self.started_ns.div_euclid(1_000_000_000));
        let started = started.map_or(String::new(), |at| format!("started {at} UTC"));
        format!("`{}` ({name}{started})", self.id)
    }
}

impl Engine {
    /// The id of the run that `text` names. If none or several fit, the error lists the candidates.
    pub fn find_run<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<String, QueryError>> {
        Box::pin(async move {
            if self.has_rows_of(text) {
                return Ok(text.to_string());
            }
            let runs = self.listed_runs().await?;
            let mut ids = match choose(&runs, text) {
                Err(error) if error.kind == ErrorKind::NotFound => {
                    choose(&self.without_services(runs.clone()).await?, text)?
                }
                chosen => chosen?,
            };
            if ids.len() > 1 {
                let several: Vec<&Listed> = runs.iter().filter(|run| ids.contains(&run.id)).collect();
                return Err(ambiguous(text, "are called", &several));
            }
            Ok(ids.swap_remove(0))
        })
    }

    /// The same for whoever can take several: all runs of that name, within a project if one is given.
    pub fn find_runs<'a>(
        &'a self,
        project: Option<&'a str>,
        text: &'a str,
    ) -> BoxFuture<'a, Result<Vec<String>, QueryError>> {
        Box::pin(async move {
            let mut runs = self.listed_runs().await?;
            runs.retain(|run| project.is_none() || run.project.as_deref() == project);
            choose(&runs, text)
        })
    }

    /// The newest first.
    async fn listed_runs(&self) -> Result<Vec<Listed>, QueryError> {
        // A run that is being deleted may vanish between the snapshot and the reading: then the next snapshot knows.
        let runs = match self.runs().await {
            Err(_) => self.runs().await?,
            Ok(runs) => runs,
        };
        Ok(listed(&runs))
    }

    /// Where nobody names a run, it gets the name of the service. One span tells: such a run has no other service.
    pub async fn is_service(&self, run: &str) -> Result<bool, QueryError> {
        let sql = format!("select service from spans where run_id = {} limit 1", sql_text(run));
        let (rows, _) = self.sql(&sql).await?.collect().await?;
        let service =
            |batch: &RecordBatch| column::<Text>(batch, "service").is_ok_and(|services| services.get(0) == Some(run));
        Ok(rows.iter().find(|batch| batch.num_rows() > 0).is_some_and(service))
    }

    /// The runs to propose: engines and gateways are none, unless there is nothing else.
    async fn without_services(&self, runs: Vec<Listed>) -> Result<Vec<Listed>, QueryError> {
        let mut proposed = Vec::new();
        for run in &runs {
            let is_named = run.name.is_some() || run.project.is_some();
            if proposed.len() >= MAX_LISTED || is_named || !self.is_service(&run.id).await? {
                proposed.push(run.clone());
            }
        }
        Ok(if proposed.is_empty() { runs } else { proposed })
    }

    /// Is there a run with this very id? Asked of the manifest and the tail alone: it is what nearly every question names.
    fn has_rows_of(&self, id: &str) -> bool {
        let named = |batch: &RecordBatch| {
            column::<Text>(batch, "run_id").is_ok_and(|runs| runs.distinct().any(|run| run == id))
        };
        self.snapshot()
            .tables
            .values()
            .any(|rows| rows.segments.iter().any(|s| s.part(id).is_some()) || rows.tail.iter().any(named))
    }
}

fn listed(runs: &RecordBatch) -> Vec<Listed> {
    let text = |name| column::<Text>(runs, name).ok();
    let (ids, projects, names) = (text("run_id"), text("project"), text("name"));
    let started: Option<Ints> = column(runs, "started_ns").ok();
    let value = |column: &Option<Text>, row| {
        column.and_then(|texts| texts.get(row)).filter(|text| !text.is_empty()).map(str::to_string)
    };
    (0..runs.num_rows())
        .map(|row| Listed {
            id: value(&ids, row).unwrap_or_default(),
            project: value(&projects, row),
            name: value(&names, row),
            started_ns: started.and_then(|times| times.get(row)).unwrap_or(0),
        })
        .collect()
}

/// One run, or all that have this very name. `runs` are in the order in which they are to be listed.
fn choose(runs: &[Listed], text: &str) -> Result<Vec<String>, QueryError> {
    if runs.iter().any(|run| run.id == text) {
        return Ok(vec![text.to_string()]);
    }
    let which = |fits: &dyn Fn(&str) -> bool| -> Vec<&Listed> {
        runs.iter().filter(|run| run.names().any(|name| fits(&name))).collect()
    };
    let called = which(&|name| name == text);
    if !called.is_empty() {
        return Ok(called.into_iter().map(|run| run.id.clone()).collect());
    }
    match which(&|name| !text.is_empty() && name.starts_with(text)).as_slice() {
        [] => {}
        [one] => return Ok(vec![one.id.clone()]),
        several => return Err(ambiguous(text, "begin with", several)),
    }
    let near: Vec<&Listed> = nearest(runs, text);
    let message = match (near.is_empty(), runs.is_empty()) {
        (false, _) => format!("there is no run `{text}`; did you mean: {}", list(&near)),
        (true, false) => {
            format!("there is no run `{text}`; the newest runs are: {}", list(&runs.iter().collect::<Vec<_>>()))
        }
        (true, true) => format!("there is no run `{text}`; the store has no runs yet"),
    };
    Err(QueryError::new(ErrorKind::NotFound, message))
}

fn ambiguous(text: &str, how: &str, runs: &[&Listed]) -> QueryError {
    let message =
        format!("`{text}` is ambiguous: {} runs {how} this; use one of these ids: {}", runs.len(), list(runs));
    QueryError::new(ErrorKind::Plan, message)
}

fn list(runs: &[&Listed]) -> String {
    let mut lines: Vec<String> = runs.iter().take(MAX_LISTED).map(|run| run.line()).collect();
    if runs.len() > MAX_LISTED {
        lines.push(format!("and {} more", runs.len() - MAX_LISTED));
    }
    lines.join(", ")
}

/// Runs that contain the text, in upper or lower case, or that differ by a few letters. The nearest come first.
fn nearest<'a>(runs: &'a [Listed], text: &str) -> Vec<&'a Listed> {
    let wanted = text.to_lowercase();
    let mut near: Vec<(usize, &Listed)> = Vec::new();
    for run in runs {
        let distance = |name: String| {
            let name = name.to_lowercase();
            let contains = !wanted.is_empty() && name.contains(&wanted);
            let letters = letters_apart(&name, &wanted);
            if contains { Some(0) } else { letters.filter(|n| *n <= 1 + wanted.chars().count() / 4) }
        };
        near.extend(run.names().filter_map(distance).min().map(|distance| (distance, run)));
    }
    near.sort_by_key(|(distance, _)| *distance);
    near.into_iter().map(|(_, run)| run).collect()
}

/// Letters to add, leave out or change to make one text of the other.
fn letters_apart(a: &str, b: &str) -> Option<usize> {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().max(b.len()) > MAX_COMPARED {
        return None;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(corner + 1);
        }
    }
    row.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(id: &str, project: &str, name: &str, started_s: i64) -> Listed {
        let some = |text: &str| Some(text.to_string()).filter(|t| !t.is_empty());
        Listed { id: id.into(), project: some(project), name: some(name), started_ns: started_s * 1_000_000_000 }
    }

    fn runs() -> Vec<Listed> {
        vec![
            run("gpu-grpo-13dd042b", "gpu", "grpo", 3),
            run("toy-grpo-aa", "toy", "grpo", 2),
            run("toy-sft-bb", "toy", "sft", 1),
            run("sft", "", "", 0),
        ]
    }

    #[test]
    fn id_name_project_and_beginning() {
        for (text, id) in [
            ("toy-grpo-aa", "toy-grpo-aa"),
            ("toy/grpo", "toy-grpo-aa"),
            ("gpu/", "gpu-grpo-13dd042b"),
            ("gpu-", "gpu-grpo-13dd042b"),
            ("toy-s", "toy-sft-bb"),
            // An id wins over another run's name.
            ("sft", "sft"),
            ("toy/s", "toy-sft-bb"),
        ] {
            assert_eq!(choose(&runs(), text).unwrap(), [id], "{text}");
        }
    }

    #[test]
    fn several_and_none_are_listed() {
        assert_eq!(choose(&runs(), "grpo").unwrap(), ["gpu-grpo-13dd042b", "toy-grpo-aa"]);
        let error = choose(&runs(), "toy").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Plan);
        for part in ["`toy-grpo-aa` (toy/grpo, started 1970-01-01 00:00:02 UTC)", "`toy-sft-bb`", "ambiguous: 2 runs"] {
            assert!(error.message.contains(part), "{}", error.message);
        }
        let near = choose(&runs(), "gpro").unwrap_err();
        assert_eq!(near.kind, ErrorKind::NotFound);
        assert!(near.message.contains("there is no run `gpro`; did you mean: `gpu-grpo-13dd042b`"), "{}", near.message);
        assert!(choose(&runs(), "GRPO-13").unwrap_err().message.contains("did you mean: `gpu-grpo"));
        assert!(choose(&runs(), "zzz").unwrap_err().message.contains("the newest runs are: `gpu-grpo"));
        assert!(choose(&[], "").unwrap_err().message.contains("no runs yet"));
    }

    #[test]
    fn distance_counts_letters() {
        assert_eq!(letters_apart("grpo", "gpro"), Some(2));
        assert_eq!(letters_apart("", "abc"), Some(3));
        assert_eq!(letters_apart("abc", "abc"), Some(0));
    }
}
