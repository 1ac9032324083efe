//! The answers of [`crate::analysis`] as table functions, for use in SQL:
//!
//! | function | a row is |
//! |---|---|
//! | `findings('run')`, `findings('run', step)` | what stands out, by cost |
//! | `breakdown('run', step)` | the time of a name |
//! | `critical_path('run', step)` | a part of the chain that held the step, in order |
//! | `stragglers('run', step)` | a sample of the tail and why it is there |
//! | `idle('run', step)` | why a worker was idle, and for how long |
//! | `difference('run', step, 'run', step)` | a part of the change in wall time |
//!
//! The arguments are literals. The rows are computed when the query is planned, by the engine that plans it.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::arrow::json::ReaderBuilder;
use datafusion::catalog::{Session, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{DataFusionError, Result, ScalarValue, plan_err};
use datafusion::datasource::TableType;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use serde::Serialize;
use serde_json::json;

use crate::analysis::ask::Which;
use crate::engine::{Engine, WeakEngine};
use crate::error::QueryError;

#[derive(Clone, Copy, Debug)]
enum Question {
    Findings,
    Breakdown,
    CriticalPath,
    Stragglers,
    Idle,
    Difference,
}

const QUESTIONS: [(&str, Question); 6] = [
    ("findings", Question::Findings),
    ("breakdown", Question::Breakdown),
    ("critical_path", Question::CriticalPath),
    ("stragglers", Question::Stragglers),
    ("idle", Question::Idle),
    ("difference", Question::Difference),
];

pub(crate) fn register_answers(state: &mut SessionState, engine: &WeakEngine) {
    for (name, question) in QUESTIONS {
        state.register_udtf(name, Arc::new(Function { name, question, engine: engine.clone() }));
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
            Question::Difference => {
                "difference('run', step, 'run', step), where a step of null means the whole run".to_string()
            }
            _ => format!("{name}('run', step)"),
        }
    }

    async fn ask(self, engine: &Engine, which: &[Which]) -> Result<RecordBatch, QueryError> {
        let first = &which[0];
        let schema = self.schema();
        let report = async || engine.step_report(&first.run, first.step).await;
        Ok(match self {
            Question::Findings if first.step.is_none() => {
                rows(schema, &engine.run_findings(&first.run).await?.findings)
            }
            Question::Findings => rows(schema, &report().await?.findings),
            Question::Breakdown => rows(schema, &report().await?.answers.breakdown.by_name),
            Question::CriticalPath => rows(schema, &report().await?.answers.critical_path.parts),
            Question::Stragglers => {
                let report = report().await?;
                let tail = report.answers.stragglers.tail.iter().flat_map(|s| {
                    s.why.iter().map(move |why| {
                        json!({
                            "sample_id": s.sample_id, "group_id": s.group_id, "seconds": s.seconds, "end_s": s.end_s,
                            "behind_s": s.behind_s, "group_waited_s": s.group_waited_s, "part": why.part,
                            "more_s": why.more_s,
                        })
                    })
                });
                rows(schema, &tail.collect::<Vec<_>>())
            }
            Question::Idle => {
                let report = report().await?;
                let workers = report.answers.idle.by_worker.iter().flat_map(|w| {
                    w.why.iter().map(move |share| {
                        json!({
                            "worker": w.worker, "busy_s": w.busy_s, "idle_s": w.idle_s, "why": share.why,
                            "seconds": share.seconds,
                        })
                    })
                });
                rows(schema, &workers.collect::<Vec<_>>())
            }
            Question::Difference => rows(schema, &engine.difference(first, &which[1]).await?.changes),
        })
    }
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
    engine: WeakEngine,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl TableFunctionImpl for Function {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let usage = self.question.usage(self.name);
        let Some(which) = which(args.exprs()) else { return plan_err!("wrong arguments; expected {usage}") };
        let fits = match self.question {
            Question::Findings => which.len() == 1,
            Question::Difference => which.len() == 2,
            _ => which.len() == 1 && args.exprs().len() == 2,
        };
        if !fits {
            return plan_err!("wrong arguments; expected {usage}");
        }
        Ok(Arc::new(Answer { question: self.question, which, engine: self.engine.clone() }))
    }
}

/// Runs, each followed by a step or by nothing.
fn which(arguments: &[Expr]) -> Option<Vec<Which>> {
    let mut out: Vec<Which> = Vec::new();
    let mut may_be_step = false;
    for argument in arguments {
        let Expr::Literal(value, _) = argument else { return None };
        match value {
            ScalarValue::Utf8(Some(run)) | ScalarValue::Utf8View(Some(run)) | ScalarValue::LargeUtf8(Some(run)) => {
                out.push(Which { run: run.clone(), step: None });
                may_be_step = true;
            }
            step if may_be_step => {
                may_be_step = false;
                out.last_mut()?.step = match step.cast_to(&DataType::Int64).ok()? {
                    ScalarValue::Int64(step) => step,
                    _ => return None,
                };
            }
            _ => return None,
        }
    }
    (!out.is_empty()).then_some(out)
}

struct Answer {
    question: Question,
    which: Vec<Which>,
    engine: WeakEngine,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Answer").field(&self.question).field(&self.which).finish()
    }
}

#[async_trait]
impl TableProvider for Answer {
    fn schema(&self) -> SchemaRef {
        self.question.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let external = |e: QueryError| DataFusionError::External(Box::new(e));
        let Some(engine) = self.engine.engine() else { return plan_err!("the server is shutting down") };
        let batch = self.question.ask(&engine, &self.which).await.map_err(external)?;
        Ok(MemorySourceConfig::try_new_exec(&[vec![batch]], self.schema(), projection.cloned())?)
    }
}
