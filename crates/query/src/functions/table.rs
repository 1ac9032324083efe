//! Table functions that crates above add to SQL. Their arguments are literals, and their rows are computed when the query is
//! planned, so the plan holds them.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{DataFusionError, Result, ScalarValue, plan_err};
use datafusion::datasource::TableType;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use futures::future::BoxFuture;

use crate::error::QueryError;

/// A literal that a table function was called with.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    Text(String),
    /// None: `null`.
    Number(Option<i64>),
}

pub trait TableFunction: Send + Sync {
    fn name(&self) -> &'static str;

    /// How to call it, for whoever did not.
    fn usage(&self) -> String;

    fn accepts(&self, arguments: &[Argument]) -> bool;

    fn schema(&self) -> SchemaRef;

    /// Called with arguments that it accepts.
    fn rows<'a>(&'a self, arguments: &'a [Argument]) -> BoxFuture<'a, Result<RecordBatch, QueryError>>;
}

pub(crate) fn register_table_functions(state: &mut SessionState, functions: Vec<Arc<dyn TableFunction>>) {
    for function in functions {
        state.register_udtf(function.name(), Arc::new(Function(function)));
    }
}

struct Function(Arc<dyn TableFunction>);

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

impl TableFunctionImpl for Function {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let arguments: Option<Vec<Argument>> = args.exprs().iter().map(argument).collect();
        match arguments.filter(|arguments| self.0.accepts(arguments)) {
            Some(arguments) => Ok(Arc::new(Call { function: self.0.clone(), arguments })),
            None => plan_err!("call it as {}", self.0.usage()),
        }
    }
}

fn argument(expression: &Expr) -> Option<Argument> {
    let Expr::Literal(value, _) = expression else { return None };
    match value {
        ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)) | ScalarValue::LargeUtf8(Some(text)) => {
            Some(Argument::Text(text.clone()))
        }
        value => match value.cast_to(&DataType::Int64).ok()? {
            ScalarValue::Int64(number) => Some(Argument::Number(number)),
            _ => None,
        },
    }
}

struct Call {
    function: Arc<dyn TableFunction>,
    arguments: Vec<Argument>,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Call").field(&self.function.name()).field(&self.arguments).finish()
    }
}

#[async_trait]
impl TableProvider for Call {
    fn schema(&self) -> SchemaRef {
        self.function.schema()
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
        let batch = self.function.rows(&self.arguments).await.map_err(external)?;
        Ok(MemorySourceConfig::try_new_exec(&[vec![batch]], self.schema(), projection.cloned())?)
    }
}
