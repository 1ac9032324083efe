//! Plans and runs queries on threads of their own, within limits.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use datafusion::common::{DFSchema, DataFusionError, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::logical_expr::{Expr, col, lit};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::{ExecutionPlan, collect, execute_stream};
use futures::StreamExt;
use futures::future::BoxFuture;
use rollscope_model::{SpanId, Table, TraceId};
use rollscope_store::{Snapshot, SnapshotSource};
use rollscope_tokenizer::Tokenizers;
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::describe::{self, ColumnInfo, TableStats};
use crate::error::{ErrorKind, QueryError};
use crate::functions::TableFunction;
use crate::interrupt::interruptible;
use crate::limits::{MAX_TRACE_SPANS, QueryLimits, too_many_spans};
use crate::progress::{Progress, ProgressSnapshot};
use crate::resources::{cores, threads};
use crate::running::{QueryStream, Registration, Running, task_failed, timed_out};
use crate::session::{self, Sessions};
use crate::tables;
use crate::workers::{Cluster, Workers, bytes_of, is_bound_here, is_spread};

/// How often a query is tried on workers, if some of them cannot be reached, before it runs here alone.
const SPREAD_ATTEMPTS: usize = 2;
/// Batches of an answer that wait for the reader.
const BATCHES_AHEAD: usize = 2;
/// Segments that a look-up by id asks at the same time: it waits for the disk, not for a core.
const LOOKUP_PARTITIONS: usize = 8;

/// Answers SQL over a store. Cheap to clone; queries end with their streams, not with the engine.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

/// For what lives inside of the engine and calls it.
#[derive(Clone)]
pub struct WeakEngine(Weak<Inner>);

impl WeakEngine {
    pub fn engine(&self) -> Option<Engine> {
        Some(Engine { inner: self.0.upgrade()? })
    }
}

struct Inner {
    source: Arc<dyn SnapshotSource>,
    limits: QueryLimits,
    sessions: Arc<Sessions>,
    permits: Arc<Semaphore>,
    running: Arc<Mutex<BTreeMap<u64, Arc<Progress>>>>,
    next_id: AtomicU64,
    threads: &'static Runtime,
    spread: Arc<Spread>,
}

/// Queries that ran on workers, and attempts to do so that failed.
#[derive(Default)]
struct Spread {
    done: AtomicU64,
    failed: AtomicU64,
}

impl Engine {
    /// Starts the query threads. Fails only if the system gives no threads.
    pub fn new(source: Arc<dyn SnapshotSource>, limits: QueryLimits) -> Result<Self, QueryError> {
        Engine::with_functions(source, limits, Tokenizers::default(), |_| Vec::new())
    }

    /// The same with tokenizers, which give tokens their texts, and with table functions that may ask the engine themselves.
    pub fn with_functions(
        source: Arc<dyn SnapshotSource>,
        limits: QueryLimits,
        tokenizers: Tokenizers,
        functions: impl FnOnce(WeakEngine) -> Vec<Arc<dyn TableFunction>>,
    ) -> Result<Self, QueryError> {
        let threads = threads()?;
        let sessions =
            Sessions::new(&limits, cores(), tokenizers).map_err(|e| QueryError::from_datafusion(&e, &limits))?;
        let permits = Arc::new(Semaphore::new(limits.max_concurrent.clamp(1, Semaphore::MAX_PERMITS)));
        let inner = Arc::new_cyclic(|engine| Inner {
            source,
            limits,
            sessions: Arc::new(sessions.with_functions(functions(WeakEngine(engine.clone())))),
            permits,
            running: Arc::default(),
            next_id: AtomicU64::new(1),
            threads,
            spread: Arc::default(),
        });
        Ok(Engine { inner })
    }

    /// From now on, large queries are run by these, too.
    pub fn use_workers(&self, workers: Arc<dyn Workers>) {
        self.inner.sessions.use_workers(Cluster::new(workers, &self.inner.limits));
    }

    /// How many queries ran on workers, and how many attempts to do so failed.
    pub fn spread(&self) -> (u64, u64) {
        (self.inner.spread.done.load(Relaxed), self.inner.spread.failed.load(Relaxed))
    }

    /// All tables as they are now.
    pub fn snapshot(&self) -> Snapshot {
        self.inner.source.snapshot()
    }

    /// Works something out on the query threads.
    pub async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, QueryError> {
        let task = self.inner.spawn(async move { work() });
        task.await.map_err(task_failed)
    }

    /// Of the runs, for the texts of their tokens.
    pub fn tokenizers(&self) -> &Tokenizers {
        self.inner.sessions.tokenizers()
    }

    pub fn limits(&self) -> &QueryLimits {
        &self.inner.limits
    }

    /// Plans one read-only statement and starts it. Waits its turn if `max_concurrent` queries run already.
    pub async fn sql(&self, sql: &str) -> Result<Running, QueryError> {
        self.sql_rows(sql, self.inner.limits.max_rows).await
    }

    /// The same with another limit on the rows of the answer, for callers that keep them short.
    pub async fn sql_rows(&self, sql: &str, max_rows: usize) -> Result<Running, QueryError> {
        let inner = &*self.inner;
        let deadline = Instant::now() + inner.limits.timeout;
        let registration = inner.register(sql);
        let permit = inner.turn(deadline, registration.progress()).await?;
        self.start(sql, max_rows, deadline, registration, Some(permit)).await
    }

    /// A query of our own on behalf of one that has had its turn: waiting for another could wait for ever.
    pub async fn sql_at_once(&self, sql: &str, max_rows: usize) -> Result<Running, QueryError> {
        let deadline = Instant::now() + self.inner.limits.timeout;
        self.start(sql, max_rows, deadline, self.inner.register(sql), None).await
    }

    /// Boxed, as is every way into DataFusion: the body of an `async fn` is compiled again in each crate that awaits it.
    fn start<'a>(
        &'a self,
        sql: &'a str,
        max_rows: usize,
        deadline: Instant,
        registration: Registration,
        permit: Option<OwnedSemaphorePermit>,
    ) -> BoxFuture<'a, Result<Running, QueryError>> {
        Box::pin(self.start_here(sql, max_rows, deadline, registration, permit))
    }

    async fn start_here(
        &self,
        sql: &str,
        max_rows: usize,
        deadline: Instant,
        registration: Registration,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<Running, QueryError> {
        let inner = &*self.inner;
        let limits = QueryLimits { max_rows, ..inner.limits.clone() };
        let progress = registration.progress().clone();
        let snapshot = inner.source.snapshot();
        let (schema_to, mut schema_from) = oneshot::channel();
        let (batches_to, batches) = mpsc::channel(BATCHES_AHEAD);
        let work = {
            let (sessions, limits, progress, sql) =
                (inner.sessions.clone(), limits.clone(), progress.clone(), sql.to_string());
            let spread = inner.spread.clone();
            async move {
                let _permit = permit;
                let work = run(&sessions, snapshot, &sql, &limits, &progress, &spread, schema_to, batches_to);
                progress.stopping().run_until_cancelled(work).await;
            }
        };
        let mut task = inner.spawn(work);
        let planned = tokio::select! {
            biased;
            error = stopped(&progress) => return Err(error),
            planned = &mut schema_from => planned.ok(),
            () = sleep_until(deadline) => return Err(timed_out(&limits)),
        };
        let schema = match planned {
            Some(schema) => schema?,
            // Neither a schema nor an error: the task was aborted or it panicked.
            None => match (&mut task).await {
                Err(e) => return Err(task_failed(e)),
                Ok(()) => return Err(QueryError::new(ErrorKind::Internal, "the query ended without a result")),
            },
        };
        let truncated = Arc::new(AtomicBool::new(false));
        let stream = QueryStream {
            batches,
            task,
            deadline: Box::pin(sleep_until(deadline)),
            stopping: Box::pin(progress.stopping().cancelled_owned()),
            rows_left: limits.max_rows,
            limits,
            truncated: truncated.clone(),
            registration,
            done: false,
        };
        Ok(Running { schema, stream, progress, truncated })
    }

    /// Queries that run or wait now, oldest first.
    pub fn running(&self) -> Vec<ProgressSnapshot> {
        let running = self.inner.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.values().map(|p| p.snapshot()).collect()
    }

    /// Cancels a query. False if there is none with this id.
    pub fn cancel(&self, id: u64) -> bool {
        let running = self.inner.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.get(&id).map(|p| p.cancel()).is_some()
    }

    /// All spans of a trace, with the columns of `spans` as stored, in no particular order. It has [`MAX_TRACE_SPANS`] at most.
    pub async fn trace(&self, id: TraceId) -> Result<Vec<RecordBatch>, QueryError> {
        let found = self.trace_up_to(id, MAX_TRACE_SPANS).await?;
        found.ok_or_else(|| QueryError::new(ErrorKind::Limit, too_many_spans(&id)))
    }

    /// The same, but `None` for a trace with more spans than these.
    pub async fn trace_up_to(&self, id: TraceId, max_spans: usize) -> Result<Option<Vec<RecordBatch>>, QueryError> {
        Ok(self.look_up(Table::Spans, "trace by id", of_trace(id), None, max_spans).await?.map(each_span_once))
    }

    /// The same with some columns only, `trace_id` and `span_id` among them: attributes are most of what a trace takes to read.
    pub async fn trace_columns(
        &self,
        id: TraceId,
        columns: &[&str],
        max_spans: usize,
    ) -> Result<Option<Vec<RecordBatch>>, QueryError> {
        Ok(self.look_up(Table::Spans, "trace by id", of_trace(id), Some(columns), max_spans).await?.map(each_span_once))
    }

    /// One span, with the columns of `spans` as stored: the first row of the batch, whose other rows are the same span in other runs.
    pub async fn span(&self, trace: TraceId, span: SpanId) -> Result<Option<RecordBatch>, QueryError> {
        let is_it = col("span_id").eq(lit(ScalarValue::FixedSizeBinary(8, Some(span.to_vec()))));
        let found = self.look_up(Table::Spans, "span by id", of_trace(trace).and(is_it), None, MAX_TRACE_SPANS).await?;
        Ok(found.and_then(|batches| batches.into_iter().next()))
    }

    /// Conversations by their ids, with the columns of `conversations` as stored, in no particular order.
    pub async fn conversations(&self, ids: Vec<String>) -> Result<Vec<RecordBatch>, QueryError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let filter = col("id").in_list(ids.into_iter().map(lit).collect(), false);
        // The ids are the limit.
        let found = self.look_up(Table::Conversations, "conversations by id", filter, None, usize::MAX).await?;
        Ok(found.unwrap_or_default())
    }

    /// The rows that a filter on an id leaves, or `None` if these are more than `max_rows`. It takes no turn: it is short, and the view of a
    /// trace needs as many as there are traces that served it.
    fn look_up(
        &self,
        table: Table,
        what: &str,
        filter: Expr,
        columns: Option<&[&str]>,
        max_rows: usize,
    ) -> BoxFuture<'_, Result<Option<Vec<RecordBatch>>, QueryError>> {
        let inner = &*self.inner;
        let (snapshot, sessions) = (inner.source.snapshot(), inner.sessions.clone());
        let progress = Arc::new(Progress::new(0, what));
        let columns: Option<Vec<String>> = columns.map(|names| names.iter().map(|name| (*name).to_string()).collect());
        Box::pin(self.direct(progress.clone(), async move {
            let state = sessions.by_hand(&snapshot)?;
            let rows = sessions.table(&snapshot, table, &progress);
            rows_by_id(state, table, rows, filter, columns, max_rows).await
        }))
    }

    /// Size and range of every table, from the manifest and the tail alone.
    pub fn table_stats(&self) -> Vec<TableStats> {
        describe::table_stats(&self.inner.source.snapshot())
    }

    /// Rows of a run in a table (those that newer ones replace counted, too) and the time of the newest, from the manifest and
    /// the tail alone.
    pub fn extent(&self, table: Table, run: &str) -> (u64, Option<i64>) {
        describe::extent(table, &self.inner.source.snapshot(), run)
    }

    /// The rows of `runs`, newest first, with `first_ns`, `last_ns`, `spans` and `samples` of each run; these come from
    /// the manifest and the tail, without reading any spans. Runs that sent data but no row of their own are there too.
    pub fn runs(&self) -> BoxFuture<'_, Result<RecordBatch, QueryError>> {
        let inner = &*self.inner;
        let snapshot = inner.source.snapshot();
        let sessions = inner.sessions.clone();
        let progress = Arc::new(Progress::new(0, "list of runs"));
        Box::pin(self.direct(progress.clone(), async move {
            let state = sessions.by_hand(&snapshot)?;
            let table = sessions.table(&snapshot, Table::Runs, &progress);
            let plan = Arc::new(CoalescePartitionsExec::new(table.plan(&state, None, &[], None, None).await?));
            let rows = collect(plan, state.task_ctx()).await?;
            Ok(describe::runs(&snapshot, &rows)?)
        }))
    }

    /// Every column of every table with its type and meaning, virtual columns included.
    pub fn columns(&self) -> Vec<ColumnInfo> {
        describe::columns()
    }

    /// Runs work of our own over one table of a snapshot, on the query threads, within the limits of a query.
    pub(crate) async fn with_table<T, F>(
        &self,
        table: Table,
        what: String,
        work: impl FnOnce(SessionState, tables::SnapshotTable) -> F + Send + 'static,
    ) -> Result<T, QueryError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, DataFusionError>> + Send + 'static,
    {
        let inner = &*self.inner;
        let registration = inner.register(&what);
        let permit = inner.turn(Instant::now() + inner.limits.timeout, registration.progress()).await?;
        self.with_table_at_once(table, registration.progress().clone(), move |state, table| async move {
            let _permit = permit;
            work(state, table).await
        })
        .await
    }

    /// The same without waiting for a turn: for what must go on however many queries run.
    pub(crate) async fn with_table_at_once<T, F>(
        &self,
        table: Table,
        progress: Arc<Progress>,
        work: impl FnOnce(SessionState, tables::SnapshotTable) -> F + Send + 'static,
    ) -> Result<T, QueryError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, DataFusionError>> + Send + 'static,
    {
        let snapshot = self.inner.source.snapshot();
        let sessions = self.inner.sessions.clone();
        self.direct(progress.clone(), async move {
            let state = sessions.by_hand(&snapshot)?;
            let table = sessions.table(&snapshot, table, &progress);
            work(state, table).await
        })
        .await
    }

    /// Runs a plan made by hand on the query threads, within the timeout and until it is cancelled.
    async fn direct<T: Send + 'static>(
        &self,
        progress: Arc<Progress>,
        work: impl Future<Output = Result<T, DataFusionError>> + Send + 'static,
    ) -> Result<T, QueryError> {
        let limits = &self.inner.limits;
        let mut task = AbortOnDrop(self.inner.spawn(work));
        tokio::select! {
            biased;
            done = &mut task.0 => match done {
                Ok(answer) => answer.map_err(|e| QueryError::from_datafusion(&e, limits)),
                Err(e) => Err(task_failed(e)),
            },
            error = stopped(&progress) => Err(error),
            () = sleep_until(Instant::now() + limits.timeout) => Err(timed_out(limits)),
        }
    }
}

/// Ends with the reason when a query is stopped.
async fn stopped(progress: &Progress) -> QueryError {
    progress.stopping().cancelled().await;
    progress.why_stopped().expect("the query was stopped")
}

/// A trace that was imported under two names is in two runs. Seen by its id it is one trace: each span counts once.
fn each_span_once(batches: Vec<RecordBatch>) -> Vec<RecordBatch> {
    let mut seen: HashSet<Vec<u8>> = HashSet::new();
    let keep = |batch: RecordBatch| {
        let Some(ids) = batch.column_by_name("span_id").and_then(|c| c.as_fixed_size_binary_opt()) else {
            return Some(batch);
        };
        let first: BooleanArray = (0..ids.len()).map(|row| Some(seen.insert(ids.value(row).to_vec()))).collect();
        match first.true_count() {
            0 => None,
            n if n == batch.num_rows() => Some(batch),
            _ => filter_record_batch(&batch, &first).ok(),
        }
    };
    batches.into_iter().filter_map(keep).collect()
}

/// A plan made by hand: bloom filters leave one or two segments, and nothing is optimised that is known to be good. What was read
/// counts as memory of queries until all of it is there.
async fn rows_by_id(
    mut state: SessionState,
    table: Table,
    mut rows: tables::SnapshotTable,
    filter: Expr,
    columns: Option<Vec<String>>,
    max_rows: usize,
) -> Result<Option<Vec<RecordBatch>>, DataFusionError> {
    state.config_mut().options_mut().execution.target_partitions = LOOKUP_PARTITIONS;
    let schema = tables::schema(table);
    let columns = columns.map(|names| names.iter().map(|name| schema.index_of(name)).collect::<Result<Vec<_>, _>>());
    let columns = columns.transpose()?;
    let predicate = state.create_physical_expr(filter.clone(), &DFSchema::try_from(schema)?)?;
    rows.narrow_tail(&*predicate)?;
    let filters = std::slice::from_ref(&filter);
    let scan = rows.plan(&state, columns.as_ref(), filters, Some(predicate), None).await?;
    let shown = DFSchema::try_from(scan.schema())?;
    let found = Arc::new(FilterExec::try_new(state.create_physical_expr(filter, &shown)?, scan)?);
    let plan: Arc<dyn ExecutionPlan> = Arc::new(CoalescePartitionsExec::new(found));
    let memory = MemoryConsumer::new("rows by id").register(&state.runtime_env().memory_pool);
    let mut stream = execute_stream(plan, state.task_ctx())?;
    let (mut batches, mut count, mut counted) = (Vec::new(), 0, HashSet::new());
    while let Some(batch) = stream.next().await {
        let batch = batch?;
        count += batch.num_rows();
        if count > max_rows {
            return Ok(None);
        }
        if batch.num_rows() > 0 {
            memory.try_grow(batch.columns().iter().map(|column| bytes_of(&column.to_data(), &mut counted)).sum())?;
            batches.push(batch);
        }
    }
    Ok(Some(batches))
}

fn of_trace(id: TraceId) -> Expr {
    col("trace_id").eq(lit(ScalarValue::FixedSizeBinary(16, Some(id.to_vec()))))
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Inner {
    /// Waits until fewer than `max_concurrent` queries run.
    async fn turn(&self, deadline: Instant, progress: &Progress) -> Result<OwnedSemaphorePermit, QueryError> {
        tokio::select! {
            biased;
            error = stopped(progress) => Err(error),
            permit = self.permits.clone().acquire_owned() => Ok(permit.expect("the semaphore is never closed")),
            () = sleep_until(deadline) => Err(QueryError::new(
                ErrorKind::Limit,
                format!(
                    "{} queries are running (the limit max_concurrent), and none ended within {} s; try again \
                     later or raise the limit",
                    self.limits.max_concurrent,
                    self.limits.timeout.as_secs_f64()
                ),
            )),
        }
    }

    fn register(&self, sql: &str) -> Registration {
        let progress = Arc::new(Progress::new(self.next_id.fetch_add(1, Relaxed), sql));
        Registration::new(self.running.clone(), progress)
    }

    fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> tokio::task::JoinHandle<T> {
        self.threads.spawn(work)
    }
}

/// The part of a query that runs on the query threads: plan, then rows until the reader has enough.
#[expect(clippy::too_many_arguments)]
async fn run(
    sessions: &Arc<Sessions>,
    snapshot: Snapshot,
    sql: &str,
    limits: &QueryLimits,
    progress: &Arc<Progress>,
    counts: &Spread,
    schema_to: oneshot::Sender<Result<SchemaRef, QueryError>>,
    batches_to: mpsc::Sender<Result<RecordBatch, QueryError>>,
) {
    let datafusion = |e: DataFusionError| QueryError::from_datafusion(&e, limits);
    let planned = async |spread: bool| {
        progress.begin_again();
        let mut state: SessionState = sessions.open(snapshot.clone(), progress, spread).map_err(datafusion)?;
        let logical = session::plan(&state, sql, limits).await?;
        let physical = session::physical(&mut state, &logical, limits).await.map_err(datafusion)?;
        Ok::<_, QueryError>((state, physical))
    };
    let started = async |spread: bool| {
        let (mut state, mut physical) = planned(spread).await?;
        if is_spread(&physical) && is_bound_here(&physical) {
            (state, physical) = planned(false).await?;
        }
        let spread = is_spread(&physical);
        let physical = interruptible(physical, progress).map_err(datafusion)?;
        Ok((execute_stream(physical, state.task_ctx()).map_err(datafusion)?, spread))
    };
    let mut schema_to = Some(schema_to);
    let mut attempts = if sessions.cluster().is_some() { SPREAD_ATTEMPTS } else { 0 };
    loop {
        let (mut stream, spread) = match started(attempts > 0).await {
            Ok(started) => started,
            // What cannot be cut into parts may still run as a whole.
            Err(_) if attempts > 0 => {
                attempts = 0;
                continue;
            }
            Err(e) => {
                if let Some(schema_to) = schema_to.take() {
                    let _ = schema_to.send(Err(e));
                }
                return;
            }
        };
        if let Some(schema_to) = schema_to.take()
            && schema_to.send(Ok(stream.schema())).is_err()
        {
            return;
        }
        let mut has_rows = false;
        let failed = loop {
            match stream.next().await {
                None => {
                    counts.done.fetch_add(u64::from(spread), Relaxed);
                    return;
                }
                Some(Ok(batch)) => {
                    has_rows |= batch.num_rows() > 0;
                    if batches_to.send(Ok(batch)).await.is_err() {
                        return;
                    }
                }
                Some(Err(e)) => break e,
            }
        };
        drop(stream);
        let error = datafusion(failed);
        if !spread || has_rows || error.kind == ErrorKind::Limit {
            let _ = batches_to.send(Err(error)).await;
            return;
        }
        // A worker may be gone, or not know something that is known here.
        tracing::warn!(%error, "a query on workers failed; it runs again");
        counts.failed.fetch_add(1, Relaxed);
        let missed = match sessions.cluster() {
            Some(cluster) => cluster.look().await,
            None => false,
        };
        attempts = if missed { attempts.saturating_sub(1) } else { 0 };
    }
}
