//! One DataFusion session a query, cheap: configuration, functions, caches and the memory pool are made once and shared.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, MemoryCatalogProvider, MemoryCatalogProviderList, SchemaProvider,
    TableProvider,
};
use datafusion::common::config::ConfigNonZeroUsize;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreUrl};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::SessionState;
use datafusion::execution::{FunctionRegistry, SessionStateBuilder};
use datafusion::logical_expr::{Explain, Expr, LogicalPlan, PlanType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::explain::ExplainExec;
use datafusion::prelude::{SQLOptions, SessionConfig};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use rollscope_model::Table;
use rollscope_store::Snapshot;
use rollscope_tokenizer::Tokenizers;

use crate::error::{ErrorKind, QueryError};
use crate::functions::{self, AttrTypes, Bounded, TableFunction};
use crate::limits::QueryLimits;
use crate::optimizer;
use crate::progress::Progress;
use crate::resources::{BATCH_ROWS, runtime};
use crate::tables::{CountingReaderFactory, IdFilters, STORE_URL, SnapshotTable, visible};
use crate::workers::{self, Cluster};

/// Longest text of a query.
const MAX_SQL_BYTES: usize = 1 << 20;
/// Most words and operators in a query; values in lists do not count. Plans are trees and are walked by recursion.
const MAX_SQL_WORDS: usize = 1_000;
/// Most bytes that a literal takes in one column of one batch.
const LITERAL_COLUMN_BYTES: usize = 4 << 20;

const CATALOG: &str = "rollscope";
const SCHEMA: &str = "public";

/// What all sessions share.
pub struct Sessions {
    base: SessionState,
    runtime: RuntimeEnv,
    ids: Arc<IdFilters>,
    tokenizers: Tokenizers,
    cluster: OnceLock<Cluster>,
}

impl Sessions {
    pub fn new(limits: &QueryLimits, threads: usize, tokenizers: Tokenizers) -> Result<Self> {
        let runtime = runtime(limits)?;
        let mut base = SessionStateBuilder::new()
            .with_config(config(threads))
            .with_runtime_env(Arc::new(runtime.clone()))
            .with_default_features()
            .with_optimizer_rules(optimizer::logical())
            .with_physical_optimizer_rules(optimizer::physical())
            .build();
        functions::register(&mut base)?;
        base.register_function_rewrite(Arc::new(Bounded(runtime.memory_pool.clone())))?;
        Ok(Sessions { base, runtime, ids: Arc::default(), tokenizers, cluster: OnceLock::new() })
    }

    /// From now on, large queries are run by these, too.
    pub fn use_workers(&self, cluster: Cluster) {
        if self.cluster.set(cluster).is_err() {
            tracing::error!("the workers of queries were named twice");
        }
    }

    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.get()
    }

    /// The same with these table functions.
    pub fn with_functions(mut self, functions: Vec<Arc<dyn TableFunction>>) -> Sessions {
        functions::register_table_functions(&mut self.base, functions);
        self
    }

    /// A session in which a snapshot's tables are visible. With `spread`, large queries go to workers, if there are any.
    pub fn open(self: &Arc<Self>, snapshot: Snapshot, progress: &Arc<Progress>, spread: bool) -> Result<SessionState> {
        let snapshot = Arc::new(snapshot);
        let schema = Tables { sessions: self.clone(), snapshot: snapshot.clone(), progress: progress.clone() };
        let catalog = MemoryCatalogProvider::new();
        catalog.register_schema(SCHEMA, Arc::new(schema))?;
        let catalogs = MemoryCatalogProviderList::new();
        catalogs.register_catalog(CATALOG.to_string(), Arc::new(catalog));

        let base = match self.cluster.get().filter(|_| spread) {
            Some(cluster) => cluster.builder(&self.base)?,
            None => None,
        };
        let base = base.unwrap_or_else(|| SessionStateBuilder::new_from_existing(self.base.clone()));
        let state = base.with_runtime_env(self.runtime_of(&snapshot)?).with_catalog_list(Arc::new(catalogs)).build();
        bound(state, &snapshot)
    }

    /// A session for a plan made by hand, over [`Sessions::table`].
    pub fn by_hand(&self, snapshot: &Snapshot) -> Result<SessionState> {
        let base = SessionStateBuilder::new_from_existing(self.base.clone());
        bound(base.with_runtime_env(self.runtime_of(snapshot)?).build(), snapshot)
    }

    fn runtime_of(&self, snapshot: &Snapshot) -> Result<Arc<RuntimeEnv>> {
        let url = ObjectStoreUrl::parse(STORE_URL)?;
        let registry = DefaultObjectStoreRegistry::new();
        let runtime = RuntimeEnv { object_store_registry: Arc::new(registry), ..self.runtime.clone() };
        runtime.register_object_store(url.as_ref(), snapshot.object_store.clone());
        Ok(Arc::new(runtime))
    }

    pub fn tokenizers(&self) -> &Tokenizers {
        &self.tokenizers
    }

    /// One stored table of a snapshot.
    pub fn table(&self, snapshot: &Snapshot, table: Table, progress: &Arc<Progress>) -> SnapshotTable {
        let footers = self.runtime.cache_manager.get_file_metadata_cache();
        let reader = CountingReaderFactory::new(snapshot.object_store.clone(), footers, progress.clone());
        let rows = snapshot.tables.get(&table).cloned().unwrap_or_default();
        SnapshotTable::new(table, rows, Arc::new(reader), self.ids.clone(), progress.clone())
    }
}

fn bound(mut state: SessionState, snapshot: &Snapshot) -> Result<SessionState> {
    functions::bind_attr(&mut state, AttrTypes(snapshot.attr_types.clone()))?;
    // The time of `now()` and `current_date`, the same everywhere in the query.
    state.mark_start_execution();
    Ok(state)
}

/// The tables of a snapshot, each made when a query names it: to plan a view takes longer than to run a small query.
struct Tables {
    sessions: Arc<Sessions>,
    snapshot: Arc<Snapshot>,
    progress: Arc<Progress>,
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables").finish_non_exhaustive()
    }
}

#[async_trait]
impl SchemaProvider for Tables {
    fn table_names(&self) -> Vec<String> {
        Table::ALL.iter().map(|table| table.name().to_string()).collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let Some(table) = Table::from_name(name) else { return Ok(None) };
        let stored = Arc::new(self.sessions.table(&self.snapshot, table, &self.progress));
        visible(table, stored, &self.sessions.tokenizers).map(Some)
    }

    fn table_exist(&self, name: &str) -> bool {
        Table::from_name(name).is_some()
    }
}

fn config(threads: usize) -> SessionConfig {
    let mut config = SessionConfig::new()
        .with_default_catalog_and_schema(CATALOG, SCHEMA)
        .with_create_default_catalog_and_schema(false)
        .with_information_schema(true)
        .with_target_partitions(threads)
        .with_batch_size(BATCH_ROWS)
        // Statistics come from the manifest, not from listing and opening files.
        .with_collect_statistics(false);
    let options = config.options_mut();
    // The tables divide their rows themselves. Whoever passes rows on holds slices of large batches, each of which counts as
    // the whole batch against the memory that queries may use.
    options.optimizer.enable_round_robin_repartition = false;
    // It reserves room for ten times the limit of a query, which the memory of queries does not bound.
    options.optimizer.enable_topk_aggregation = false;
    // Decode the columns of a filter first, and the wide ones (attributes) only for rows that pass it.
    options.execution.parquet.pushdown_filters = true;
    options.execution.parquet.reorder_filters = true;
    options.execution.parquet.bloom_filter_on_read = true;
    options.execution.parquet.enable_page_index = true;
    // Columns keep the types that the model declares.
    options.execution.parquet.schema_force_view_types = false;
    options.sql_parser.map_string_types_to_utf8view = false;
    // The check takes two columns of a union with different descriptions, and `is true` in a filter, for errors of the planner.
    options.execution.skip_physical_aggregate_schema_check = true;
    config
}

/// Plans how a statement runs. A literal that becomes a column is repeated in every row, so batches are short where literals are long.
pub async fn physical(
    state: &mut SessionState,
    plan: &LogicalPlan,
    limits: &QueryLimits,
) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = state.optimize(plan)?;
    let mut longest = 0;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::Literal(value, _) = expr
                    && let Some(text) = value.try_as_str().flatten()
                {
                    longest = longest.max(text.len());
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    let rows = (LITERAL_COLUMN_BYTES / longest.max(1)).clamp(1, BATCH_ROWS);
    state.config_mut().options_mut().execution.batch_size = ConfigNonZeroUsize::try_new(rows)?;
    let has_workers = workers::are_known(state);
    if has_workers {
        workers::tell(state.config_mut(), rows, limits.timeout)?;
    }
    let physical = state.query_planner().create_physical_plan(&plan, state).await?;
    match (&plan, physical.downcast_ref::<ExplainExec>()) {
        (LogicalPlan::Explain(explain), Some(shown)) if has_workers => explained(state, explain, shown).await,
        _ => Ok(physical),
    }
}

/// `EXPLAIN` of a query that goes to workers shows what goes where.
async fn explained(state: &SessionState, explain: &Explain, shown: &ExplainExec) -> Result<Arc<dyn ExecutionPlan>> {
    let mut plans = shown.stringified_plans().to_vec();
    let planned = state.query_planner().create_physical_plan(&explain.plan, state).await;
    if let Ok(plan) = planned
        && workers::is_spread(&plan)
    {
        for shown in plans.iter_mut().filter(|shown| shown.plan_type == PlanType::FinalPhysicalPlan) {
            shown.plan = Arc::new(workers::show(&plan));
        }
    }
    Ok(Arc::new(ExplainExec::new(shown.schema(), plans, shown.verbose())))
}

/// Parses and plans one read-only statement.
pub async fn plan(state: &SessionState, sql: &str, limits: &QueryLimits) -> Result<LogicalPlan, QueryError> {
    check_size(sql)?;
    let datafusion = |e: DataFusionError| QueryError::from_datafusion(&e, limits);
    let dialect = state.config_options().sql_parser.dialect;
    let statement = state.sql_to_statement(sql, &dialect).map_err(|e| match e.find_root() {
        DataFusionError::NotImplemented(text) if text.contains("single SQL statement") => {
            QueryError::new(ErrorKind::Plan, "expected one statement; send each statement on its own")
        }
        _ => datafusion(e),
    })?;
    let plan = state.statement_to_plan(statement).await.map_err(datafusion)?;
    SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false)
        .verify_plan(&plan)
        .map_err(|e| {
            let what = QueryError::from_datafusion(&e, limits).message;
            let what = what.rsplit(": ").next().unwrap_or_default();
            QueryError::new(ErrorKind::Plan, format!("only read-only SQL is allowed, not {what}"))
        })?;
    Ok(plan)
}

/// Refuses text that could only be an accident or an attack, before it is parsed.
fn check_size(sql: &str) -> Result<(), QueryError> {
    if sql.len() > MAX_SQL_BYTES {
        let text = format!("the query is {} bytes long; the limit is {MAX_SQL_BYTES}", sql.len());
        return Err(QueryError::new(ErrorKind::Limit, text));
    }
    let tokens = Tokenizer::new(&GenericDialect {}, sql)
        .tokenize()
        .map_err(|e| QueryError::new(ErrorKind::Parse, e.to_string()))?;
    let words = tokens
        .iter()
        .filter(|t| {
            !matches!(
                t,
                Token::Whitespace(_)
                    | Token::Comma
                    | Token::LParen
                    | Token::RParen
                    | Token::Number(..)
                    | Token::SingleQuotedString(_)
            )
        })
        .count();
    if words > MAX_SQL_WORDS {
        let text = format!("the query has {words} words and operators; the limit is {MAX_SQL_WORDS}");
        return Err(QueryError::new(ErrorKind::Limit, text));
    }
    Ok(())
}
