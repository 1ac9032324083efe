//! The answers as table functions, for use in SQL:
//!
//! | function | a row is |
//! |---|---|
//! | `findings('run')`, `findings('run', step)` | what stands out, by cost |
//! | `breakdown('run', step)` | the time of a name |
//! | `critical_path('run', step)` | a part of the chain that held the step, in order |
//! | `stragglers('run', step)` | a sample of the tail and why it is there |
//! | `idle('run', step)` | why a worker was idle, and for how long |
//! | `difference('run', step, 'run', step)` | a part of the change in wall time |
//! | `mismatch('run')`, `mismatch('run', step)` | tokens that trainer and engine disagree about, by what they have in common |
//!
//! The arguments are literals. The rows are computed when the query is planned, by the engine that plans it.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::json::ReaderBuilder;
use futures::future::BoxFuture;
use rollscope_query::functions::{Argument, TableFunction};
use rollscope_query::{Engine, ErrorKind, QueryError, QueryLimits, WeakEngine};
use rollscope_store::SnapshotSource;
use rollscope_tokenizer::Tokenizers;
use serde::Serialize;
use serde_json::{Value, json};

use crate::ask::{Answers, Which};
use crate::kept::Kept;

#[derive(Clone, Copy, Debug)]
enum Question {
    Findings,
    Breakdown,
    CriticalPath,
    Stragglers,
    Idle,
    Difference,
    Mismatch,
}

const QUESTIONS: [(&str, Question); 7] = [
    ("findings", Question::Findings),
    ("breakdown", Question::Breakdown),
    ("critical_path", Question::CriticalPath),
    ("stragglers", Question::Stragglers),
    ("idle", Question::Idle),
    ("difference", Question::Difference),
    ("mismatch", Question::Mismatch),
];

impl Answers {
    /// An engine of its own, whose SQL has the answers as table functions.
    pub fn new(source: Arc<dyn SnapshotSource>, limits: QueryLimits) -> Result<Answers, QueryError> {
        Answers::with_tokenizers(source, limits, Tokenizers::default())
    }

    /// The same with tokenizers, which give tokens their texts.
    pub fn with_tokenizers(
        source: Arc<dyn SnapshotSource>,
        limits: QueryLimits,
        tokenizers: Tokenizers,
    ) -> Result<Answers, QueryError> {
        let kept = Arc::<Kept>::default();
        let engine = Engine::with_functions(source, limits, tokenizers, |engine| {
            let function = |(name, question)| -> Arc<dyn TableFunction> {
                Arc::new(Function { name, question, engine: engine.clone(), kept: kept.clone() })
            };
            QUESTIONS.into_iter().map(function).collect()
        })?;
        Ok(Answers { engine, kept })
    }
}

impl Question {
    /// Names and types of the columns: `s` text, `i` integer, `f` number.
    fn columns(self) -> &'static str {
        match self {
            Question::Findings => "step:i kind:s text:s cost_s:f without_s:f",
            Question::Breakdown => "name:s kind:s spans:i wall_s:f inclusive_s:f exclusive_s:f",
            Question::CriticalPath => {
                "name:s kind:s start_s:f seconds:f slack_s:f sample_id:s worker:s trace_id:s span_id:s"
            }
            Question::Stragglers => {
                "sample_id:s group_id:s seconds:f end_s:f behind_s:f group_waited_s:f part:s more_s:f"
            }
            Question::Idle => "worker:s busy_s:f idle_s:f why:s seconds:f",
            Question::Difference => {
                "name:s kind:s before_s:f after_s:f change_s:f why:s count_before:f count_after:f each_before_s:f \
                 each_after_s:f significance:f"
            }
            Question::Mismatch => {
                "by:s name:s tokens:i samples:i off:f rest_off:f explains:f sigmas:f weight:f usual_times:f"
            }
        }
    }

    fn schema(self) -> SchemaRef {
        let fields = self.columns().split(' ').map(|column| {
            let (name, kind) = column.split_once(':').expect("written above");
            let kind = match kind {
                "s" => DataType::Utf8,
                "i" => DataType::Int64,
                _ => DataType::Float64,
            };
            Field::new(name, kind, true)
        });
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    fn usage(self, name: &str) -> String {
        match self {
            Question::Findings => "findings('run') or findings('run', step)".to_string(),
            Question::Mismatch => "mismatch('run') or mismatch('run', step)".to_string(),
            Question::Difference => {
                "difference('run', step, 'run', step), where a step of null means the whole run".to_string()
            }
            _ => format!("{name}('run', step)"),
        }
    }

    async fn ask(self, answers: &Answers, which: &[Which]) -> Result<RecordBatch, QueryError> {
        let first = &which[0];
        let schema = self.schema();
        let report = async || answers.step_report(&first.run, first.step).await;
        Ok(match self {
            Question::Findings if first.step.is_none() => {
                rows(schema, &answers.run_findings(&first.run).await?.findings)
            }
            Question::Findings => rows(schema, &report().await?.findings),
            Question::Breakdown => rows(schema, list(&report().await?.answers["breakdown"]["by_name"])),
            Question::CriticalPath => rows(schema, list(&report().await?.answers["critical_path"]["parts"])),
            Question::Stragglers => {
                let report = report().await?;
                let tail = list(&report.answers["stragglers"]["tail"]).iter().flat_map(|s| {
                    list(&s["why"]).iter().map(move |why| {
                        json!({
                            "sample_id": s["sample_id"], "group_id": s["group_id"], "seconds": s["seconds"],
                            "end_s": s["end_s"], "behind_s": s["behind_s"], "group_waited_s": s["group_waited_s"],
                            "part": why["part"], "more_s": why["more_s"],
                        })
                    })
                });
                rows(schema, &tail.collect::<Vec<_>>())
            }
            Question::Idle => {
                let report = report().await?;
                let workers = list(&report.answers["idle"]["by_worker"]).iter().flat_map(|w| {
                    list(&w["why"]).iter().map(move |share| {
                        json!({
                            "worker": w["worker"], "busy_s": w["busy_s"], "idle_s": w["idle_s"], "why": share["why"],
                            "seconds": share["seconds"],
                        })
                    })
                });
                rows(schema, &workers.collect::<Vec<_>>())
            }
            Question::Difference => rows(schema, &answers.difference(first, &which[1]).await?.changes),
            Question::Mismatch => rows(schema, &answers.mismatch(&first.run, first.step).await?.groups),
        })
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[][..], Vec::as_slice)
}

/// What can be serialised, as rows with the columns of the schema.
fn rows<T: Serialize>(schema: SchemaRef, values: &[T]) -> RecordBatch {
    let read = || -> Result<Option<RecordBatch>, arrow::error::ArrowError> {
        let mut decoder = ReaderBuilder::new(schema.clone()).build_decoder()?;
        decoder.serialize(values)?;
        decoder.flush()
    };
    match read() {
        Ok(Some(batch)) => batch,
        Ok(None) => RecordBatch::new_empty(schema),
        Err(e) => unreachable!("the columns are those of the answer: {e}"),
    }
}

struct Function {
    name: &'static str,
    question: Question,
    /// The engine holds its functions, not they it.
    engine: WeakEngine,
    kept: Arc<Kept>,
}

impl TableFunction for Function {
    fn name(&self) -> &'static str {
        self.name
    }

    fn usage(&self) -> String {
        self.question.usage(self.name)
    }

    fn accepts(&self, arguments: &[Argument]) -> bool {
        which(arguments).is_some_and(|which| match self.question {
            Question::Findings | Question::Mismatch => which.len() == 1,
            Question::Difference => which.len() == 2,
            _ => which.len() == 1 && arguments.len() == 2,
        })
    }

    fn schema(&self) -> SchemaRef {
        self.question.schema()
    }

    fn rows<'a>(&'a self, arguments: &'a [Argument]) -> BoxFuture<'a, Result<RecordBatch, QueryError>> {
        Box::pin(async {
            let shutting_down = || QueryError::new(ErrorKind::Plan, "the server is shutting down");
            let engine = self.engine.engine().ok_or_else(shutting_down)?;
            let answers = Answers { engine, kept: self.kept.clone() };
            self.question.ask(&answers, &which(arguments).unwrap_or_default()).await
        })
    }
}

/// Runs, each followed by a step or by nothing.
fn which(arguments: &[Argument]) -> Option<Vec<Which>> {
    let mut out: Vec<Which> = Vec::new();
    let mut may_be_step = false;
    for argument in arguments {
        match argument {
            Argument::Text(run) => {
                out.push(Which { run: run.clone(), step: None });
                may_be_step = true;
            }
            Argument::Number(step) if may_be_step => {
                may_be_step = false;
                out.last_mut()?.step = *step;
            }
            Argument::Number(_) => return None,
        }
    }
    (!out.is_empty()).then_some(out)
}
