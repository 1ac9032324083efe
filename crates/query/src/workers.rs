//! Queries on many nodes. The only module that knows `datafusion-distributed`.
//!
//! Where there are [`Workers`], the plan of a large query is cut into stages. Each stage runs as several tasks, each task on a worker, and
//! tasks get their rows from those below them. What a plan needs is in it ([`crate`]), and files are in the object store, so a
//! worker needs neither a snapshot nor a state. Queries over few bytes run where they were asked.
//!
//! A worker takes plans from whoever has the key of the lake. It reads from the object store of the lake, and from nothing else.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::ArrayData;
use async_trait::async_trait;
use datafusion::common::config::ConfigNonZeroUsize;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::sink::DataSinkExec;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::object_store::ObjectStoreRegistry;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{FunctionRegistry, SessionState, SessionStateBuilder};
use datafusion::object_store::ObjectStore;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use datafusion_distributed::grpc::{BoxCloneSyncChannel, create_worker_client};
use datafusion_distributed::{
    ChannelResolver, DistributedExec, DistributedExt, DistributedGetterExt, GetWorkerInfoRequest,
    SessionStateBuilderExt, Worker, WorkerChannel, WorkerPlanRewriteEvent, WorkerPlanRewriteEventResponse,
    WorkerQueryContext, WorkerResolver,
};
use futures::future::join_all;
use http::{HeaderMap, HeaderName, HeaderValue};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Status};
use tower::ServiceBuilder;
use url::Url;

use crate::error::QueryError;
use crate::functions::{self, TOKEN_TEXTS};
use crate::group_ids;
use crate::interrupt::interruptible_part;
use crate::limits::QueryLimits;
use crate::progress::Progress;
use crate::resources::{BATCH_ROWS, runtime, threads};
use crate::tables::STORE_URL;

mod door;

/// How long to wait for a worker to accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
/// A worker that could not be reached is left alone for this long.
const AVOIDED: Duration = Duration::from_secs(30);
/// A worker does nothing for longer than this.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Most connections that are kept.
const MOST_CHANNELS: usize = 1000;

/// Who works for queries.
pub trait Workers: Send + Sync {
    /// Where they are, such as `http://10.0.0.3:7201`. Empty: every query runs where it is asked.
    fn urls(&self) -> Vec<Url>;
    /// What they let in.
    fn key(&self) -> String;
}

/// The workers, as a query sees them.
#[derive(Clone)]
pub(crate) struct Cluster {
    workers: Arc<dyn Workers>,
    channels: Channels,
    bytes_per_partition: usize,
}

impl Cluster {
    pub fn new(workers: Arc<dyn Workers>, limits: &QueryLimits) -> Cluster {
        let channels = Channels::new(&workers.key());
        Cluster { workers, channels, bytes_per_partition: limits.spread_bytes.max(1) }
    }

    fn urls(&self) -> Vec<Url> {
        let avoided = self.channels.avoided.lock().unwrap_or_else(PoisonError::into_inner);
        let avoid = |url: &Url| avoided.get(url).is_some_and(|since| since.elapsed() < AVOIDED);
        self.workers.urls().into_iter().filter(|url| !avoid(url)).collect()
    }

    /// A session whose plans go to workers. `None` if there are none.
    pub fn builder(&self, base: &SessionState) -> Result<Option<SessionStateBuilder>> {
        let urls = self.urls();
        if urls.is_empty() {
            return Ok(None);
        }
        let builder = SessionStateBuilder::new_from_existing(base.clone())
            .with_distributed_worker_resolver(Urls(urls))
            .with_distributed_channel_resolver(self.channels.clone())
            .with_distributed_file_scan_config_bytes_per_partition(self.bytes_per_partition)?
            .with_distributed_planner();
        Ok(Some(builder))
    }

    /// After a failure: who does not answer is avoided for a while. Was there anybody?
    pub async fn look(&self) -> bool {
        let urls = self.urls();
        let missed = join_all(urls.iter().map(|url| async move {
            let asked = tokio::time::timeout(CONNECT_PATIENCE, self.channels.ask(url)).await;
            let asked = asked.unwrap_or_else(|_| exec_err!("no answer within {} s", CONNECT_PATIENCE.as_secs()));
            if let Err(e) = &asked {
                tracing::warn!(worker = %url, error = %e, "a worker cannot be reached; queries avoid it for {} s", AVOIDED.as_secs());
                self.channels.forget(url);
            }
            asked.is_err()
        }));
        missed.await.contains(&true)
    }
}

/// Does a part of this plan run on workers?
pub(crate) fn is_spread(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.exists(|node| Ok(node.is::<DistributedExec>())).unwrap_or(false)
}

/// Most bytes of rows that travel in a plan: those of the live tail. With more, the query runs here.
const TRAVELLING: usize = 16 << 20;
/// Most bytes of a message to a worker: rows take more room in a plan than here.
const MESSAGE: usize = 4 * TRAVELLING;

/// Bytes of rows in a plan.
fn rows_inside(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let source = plan.downcast_ref::<DataSourceExec>().map(|scan| scan.data_source());
    let rows = source.and_then(|source| source.downcast_ref::<MemorySourceConfig>());
    let batches = rows.into_iter().flat_map(|rows| rows.partitions().iter().flatten());
    let mut seen = HashSet::new();
    let columns = batches.flat_map(|batch| batch.columns());
    let here: usize = columns.map(|column| bytes_of(&column.to_data(), &mut seen)).sum();
    here + plan.children().into_iter().map(rows_inside).sum::<usize>()
}

/// Bytes of buffers that were not seen before: slices of a batch share those of lists, maps and texts.
pub(crate) fn bytes_of(data: &ArrayData, seen: &mut HashSet<usize>) -> usize {
    let own: usize = data.buffers().iter().filter(|buffer| seen.insert(buffer.as_ptr().addr())).map(|b| b.len()).sum();
    own + data.child_data().iter().map(|child| bytes_of(child, seen)).sum::<usize>()
}

/// Does it need something that only this process has? Workers have no tokenizers, and plans that travel have limits of 32 bits.
pub(crate) fn is_bound_here(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if rows_inside(plan) > TRAVELLING {
        return true;
    }
    let here = |expr: &Arc<dyn PhysicalExpr>| {
        expr.exists(|expr| Ok(expr.downcast_ref::<ScalarFunctionExpr>().is_some_and(|call| call.name() == TOKEN_TEXTS)))
    };
    let any = plan.exists(|node| {
        let mut found = node.fetch().is_some_and(|rows| u32::try_from(rows).is_err());
        node.apply_expressions(&mut |expr| {
            found |= here(expr)?;
            Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        Ok(found)
    });
    any.unwrap_or(false)
}

/// How `EXPLAIN` shows it.
pub(crate) fn show(plan: &Arc<dyn ExecutionPlan>) -> String {
    datafusion_distributed::display_plan_ascii(plan.as_ref(), false)
}

/// What workers must know of a query besides its plan: how short its batches are, and how long it may take.
const BATCH_ROWS_HEADER: &str = "rollscope-batch-rows";
const TIMEOUT_HEADER: &str = "rollscope-timeout-s";

pub(crate) fn tell(config: &mut SessionConfig, rows: usize, timeout: Duration) -> Result<()> {
    let headers = [
        (HeaderName::from_static(BATCH_ROWS_HEADER), HeaderValue::from(rows)),
        (HeaderName::from_static(TIMEOUT_HEADER), HeaderValue::from(timeout.as_secs() + 1)),
    ];
    config.set_distributed_passthrough_headers(HeaderMap::from_iter(headers))
}

fn told(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Does this session have workers?
pub(crate) fn are_known(state: &SessionState) -> bool {
    state.config().get_distributed_worker_resolver().is_ok()
}

/// Those that a query began with.
struct Urls(Vec<Url>);

impl WorkerResolver for Urls {
    fn get_urls(&self) -> Result<Vec<Url>> {
        Ok(self.0.clone())
    }
}

/// Connections to workers, with the key.
#[derive(Clone)]
struct Channels {
    authorization: MetadataValue<tonic::metadata::Ascii>,
    open: Arc<Mutex<HashMap<Url, Channel>>>,
    avoided: Arc<Mutex<HashMap<Url, Instant>>>,
}

impl Channels {
    fn new(key: &str) -> Channels {
        let authorization = format!("Bearer {key}").parse().unwrap_or(MetadataValue::from_static("Bearer"));
        Channels { authorization, open: Arc::default(), avoided: Arc::default() }
    }

    async fn connect(&self, url: &Url) -> Result<Channel> {
        let failed = |e: &dyn fmt::Display| exec_datafusion_err!("cannot reach the worker {url}: {e}");
        let endpoint = Endpoint::from_shared(url.to_string()).map_err(|e| failed(&e))?;
        let endpoint = endpoint.connect_timeout(CONNECT_PATIENCE).http2_keep_alive_interval(Duration::from_secs(10));
        endpoint.keep_alive_timeout(Duration::from_secs(10)).connect().await.map_err(|e| failed(&e))
    }

    /// Is it there, and does it let us in?
    async fn ask(&self, url: &Url) -> Result<()> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(url);
        self.get_worker_client_for_url(url).await?.get_worker_info(GetWorkerInfoRequest {}).await.map(drop)
    }

    fn forget(&self, url: &Url) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(url);
        let mut avoided = self.avoided.lock().unwrap_or_else(PoisonError::into_inner);
        avoided.retain(|_, since| since.elapsed() < AVOIDED);
        avoided.insert(url.clone(), Instant::now());
    }
}

#[async_trait]
impl ChannelResolver for Channels {
    async fn get_worker_client_for_url(&self, url: &Url) -> Result<Box<dyn WorkerChannel>> {
        let open = || self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let known = open().get(url).cloned();
        let channel = match known {
            Some(channel) => channel,
            None => {
                let channel = self.connect(url).await.inspect_err(|_| self.forget(url))?;
                let mut open = open();
                if open.len() >= MOST_CHANNELS {
                    open.clear();
                }
                open.insert(url.clone(), channel.clone());
                channel
            }
        };
        let authorization = HeaderValue::from_bytes(self.authorization.as_bytes()).expect("it is a header");
        let with_key = move |mut request: http::Request<tonic::body::Body>| {
            request.headers_mut().insert(http::header::AUTHORIZATION, authorization.clone());
            request
        };
        Ok(create_worker_client(BoxCloneSyncChannel::new(ServiceBuilder::new().map_request(with_key).service(channel))))
    }
}

/// Runs parts of plans until it is stopped.
pub struct WorkerServer {
    address: SocketAddr,
    stop: CancellationToken,
    task: Option<tokio::task::JoinHandle<Result<(), tonic::transport::Error>>>,
}

impl WorkerServer {
    /// Listens. `objects` is what plans read from; `key` is what a request must have.
    pub fn start(
        listener: std::net::TcpListener,
        objects: Arc<dyn ObjectStore>,
        key: &str,
        limits: &QueryLimits,
    ) -> Result<WorkerServer, QueryError> {
        let failed = |e: &dyn fmt::Display| QueryError::new(crate::ErrorKind::Internal, e.to_string());
        let threads = threads()?;
        let _inside = threads.enter();
        let address = listener.local_addr().map_err(|e| failed(&e))?;
        listener.set_nonblocking(true).map_err(|e| failed(&e))?;
        let listener = TcpListener::from_std(listener).map_err(|e| failed(&e))?;
        let session = WorkerSession::new(objects, key, limits).map_err(|e| failed(&e))?;
        let worker = Worker::from_session_builder(move |context: WorkerQueryContext| {
            let state = session.state(context);
            async move { state }
        })
        .with_version(env!("CARGO_PKG_VERSION"));
        let expected = format!("Bearer {key}");
        let let_in = move |request: Request<()>| {
            let given = request.metadata().get("authorization").map(|value| value.as_bytes()).unwrap_or_default();
            if !bool::from(given.ct_eq(expected.as_bytes())) {
                return Err(Status::unauthenticated("wrong key"));
            }
            if let Some(visitor) = request.extensions().get::<Arc<door::Visitor>>() {
                visitor.know();
            }
            Ok(request)
        };
        let service = worker.into_worker_server().max_decoding_message_size(MESSAGE);
        let service = InterceptedService::new(service, let_in);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let serving = Server::builder()
            // Who asked may be gone without a word.
            .http2_keepalive_interval(Some(Duration::from_secs(10)))
            .http2_keepalive_timeout(Some(Duration::from_secs(10)))
            .add_service(service)
            .serve_with_incoming_shutdown(door::visitors(listener), async move { stopped.cancelled().await });
        // What a plan computes is computed there, too: tasks start where they are asked for.
        let task = Some(threads.spawn(serving));
        Ok(WorkerServer { address, stop, task })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends what it does.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            let abort = task.abort_handle();
            if tokio::time::timeout(Duration::from_secs(5), task).await.is_err() {
                abort.abort();
            }
        }
    }
}

impl Drop for WorkerServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What the parts of plans run in.
#[derive(Clone)]
struct WorkerSession {
    runtime: Arc<RuntimeEnv>,
    channels: Channels,
    timeout: Duration,
}

impl WorkerSession {
    fn new(objects: Arc<dyn ObjectStore>, key: &str, limits: &QueryLimits) -> Result<WorkerSession> {
        let registry: Arc<dyn ObjectStoreRegistry> = Arc::new(OnlyStore(objects));
        let runtime = Arc::new(RuntimeEnv { object_store_registry: registry, ..runtime(limits)? });
        Ok(WorkerSession { runtime, channels: Channels::new(key), timeout: limits.timeout })
    }

    fn state(&self, context: WorkerQueryContext) -> Result<SessionState> {
        let progress = Arc::new(Progress::new(0, "a part of a query"));
        let timeout = told(&context.headers, TIMEOUT_HEADER).map_or(self.timeout, Duration::from_secs).min(LONGEST);
        let until = Arc::downgrade(&progress);
        // Who asked has given up by then. What does not end by itself ends now.
        tokio::spawn(async move {
            tokio::time::sleep(timeout).await;
            if let Some(progress) = until.upgrade() {
                progress.stop();
            }
        });
        let prepare = move |event: WorkerPlanRewriteEvent<'_>| {
            if event.plan.exists(|node| Ok(node.is::<DataSinkExec>()))? {
                return exec_err!("a worker only reads");
            }
            Ok(WorkerPlanRewriteEventResponse::new(interruptible_part(event.plan, &progress)?))
        };
        let rows =
            told(&context.headers, BATCH_ROWS_HEADER).map_or(BATCH_ROWS, |rows| rows as usize).clamp(1, BATCH_ROWS);
        let mut state = context
            .builder
            .with_runtime_env(self.runtime.clone())
            .with_distributed_channel_resolver(self.channels.clone())
            .with_distributed_worker_plan_rewrite_handler(prepare)
            .build();
        state.config_mut().options_mut().execution.batch_size = ConfigNonZeroUsize::try_new(rows)?;
        functions::register(&mut state)?;
        for function in group_ids::functions() {
            state.register_udf(function)?;
        }
        functions::register_bounded(&mut state, &self.runtime.memory_pool)?;
        Ok(state)
    }
}

/// One object store, under the name that plans have for it.
struct OnlyStore(Arc<dyn ObjectStore>);

impl fmt::Debug for OnlyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnlyStore")
    }
}

impl ObjectStoreRegistry for OnlyStore {
    fn register_store(&self, _: &Url, _: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        None
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        match url.as_str().trim_end_matches('/') == STORE_URL {
            true => Ok(self.0.clone()),
            false => Err(DataFusionError::Execution(format!("a worker does not read from {url}"))),
        }
    }
}
