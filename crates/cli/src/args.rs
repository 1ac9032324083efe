//! The command line, as typed. Every flag of `serve` can also be set by the environment variable in its help.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use rollscope_app::duration::parse_duration;

#[derive(Parser)]
#[command(name = "rollscope", version, about = "See where the time goes, and what the model did, in RL post-training.")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Receive, store and show data: OTLP on ports 4317 (gRPC) and 4318 (HTTP), the page and the API on 7200.
    Serve(ServeArgs),
    /// Serve a generated run that keeps growing, so that every view has data.
    Demo(DemoArgs),
    /// Open rollout dumps and OTLP files: print what is in them, write a page that opens from disk, and serve it.
    View(ViewArgs),
    /// Query a store with read-only SQL.
    Sql(SqlArgs),
    /// Explain why a step took as long as it did, or what stands out in a run.
    Report(ReportArgs),
    /// Show where trainer and engine disagree about log-probabilities, token by token, and why.
    Mismatch(MismatchArgs),
    /// Show what changed between two steps or two runs: `demo:22 demo:23`, `run-a run-b`, or `22 23 --run demo`.
    Diff(DiffArgs),
    /// Say whether a run moves, and if not, who waits for whom.
    Hang(HangArgs),
    /// Search conversations, read one, or export a selection.
    Conversations(ConversationsArgs),
    /// Answer assistants over standard input and output (Model Context Protocol). Add it to the assistant's configuration: see docs/assistants.md.
    Mcp(McpArgs),
    /// Rebuild the search index of conversations. The store must not be in use.
    Reindex(FolderArgs),
    /// Import files of any supported format into a store.
    Import(ImportArgs),
    /// Export a store's data for other tools.
    Export(ExportArgs),
    /// Run a small OTLP collector. It writes traces from gRPC and HTTP to JSON lines files, and acknowledges them once they
    /// are on disk.
    Collect(CollectArgs),
    /// Work for the queries of a lake: the same as `serve --role worker`.
    Executor(ServeArgs),
    /// Set SGLang's trace level on many servers.
    TraceLevel(TraceLevelArgs),
    /// Print the metrics of a step: those that the run logged, and those that rollscope computed from its spans and samples.
    Metrics(MetricsArgs),
    /// Merge small files and compress them better. The store must not be in use.
    Compact(FolderArgs),
}

/// What tokens say, for commands that read them.
#[derive(Args, Clone, Default)]
pub struct TokenizerArgs {
    /// Show the text of tokens with this tokenizer.json, or the one in this folder. RUN=FILE is for some runs only, such as 'qwen-*=FILE'.
    /// Can be repeated; the first that fits counts.
    #[arg(long, value_name = "[RUN=]FILE", env = "ROLLSCOPE_TOKENIZER", value_delimiter = ',')]
    pub tokenizer: Vec<String>,
}

#[derive(Args)]
pub struct FolderArgs {
    /// Folder of the store, or a lake, such as s3://bucket/prefix.
    #[arg(long, value_name = "DIR|URL", env = "ROLLSCOPE_DATA", default_value = crate::config::DEFAULT_DATA)]
    pub data: PathBuf,
}

/// What a node of a lake does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Everything.
    #[default]
    All,
    /// Takes data in, and shows it: that of others once it is in the tables.
    Ingest,
    /// Shows the page and answers queries; has no OTLP ports.
    Query,
    /// Works for the queries of others.
    Worker,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::All => "all",
            Role::Ingest => "ingest",
            Role::Query => "query",
            Role::Worker => rollscope_store::WORKER,
        }
    }

    /// Does it show what others have taken in as soon as they have acknowledged it?
    pub fn answers(self) -> bool {
        matches!(self, Role::All | Role::Query)
    }

    /// Does it run parts of others' queries?
    pub fn works(self) -> bool {
        matches!(self, Role::All | Role::Worker)
    }
}

#[derive(Args, Clone, Default)]
pub struct ServeArgs {
    /// Folder of the store, or a lake on object storage, such as s3://bucket/prefix. It is created if it does not exist [default: rollscope-data].
    #[arg(long, value_name = "DIR|URL", env = "ROLLSCOPE_DATA")]
    pub data: Option<PathBuf>,
    /// For a lake: folder for what this machine can make again, such as its search index [default: in the user's cache].
    #[arg(long, value_name = "DIR", env = "ROLLSCOPE_CACHE")]
    pub cache: Option<PathBuf>,
    /// For a lake: name of this node. A process takes the place of one that had the same name before [default: the name of the host].
    #[arg(long, value_name = "NAME", env = "ROLLSCOPE_NODE")]
    pub node: Option<String>,
    /// For a lake: what this node does [default: all].
    #[arg(long, value_name = "ROLE", env = "ROLLSCOPE_ROLE", value_enum)]
    pub role: Option<Role>,
    /// For a lake: address where this node works for queries of others, with the roles all and worker [default: any port of 127.0.0.1].
    #[arg(long, value_name = "ADDR", env = "ROLLSCOPE_INTERNAL")]
    pub internal: Option<String>,
    /// For a lake: host, or host:port, under which others reach that address [default: the address, or the name of the host if it is 0.0.0.0].
    #[arg(long, value_name = "HOST[:PORT]", env = "ROLLSCOPE_ADVERTISE")]
    pub advertise: Option<String>,
    /// Address of the page and the API [default: 127.0.0.1:7200].
    #[arg(long, value_name = "ADDR", env = "ROLLSCOPE_LISTEN")]
    pub listen: Option<String>,
    /// Address for OTLP over gRPC [default: 127.0.0.1:4317].
    #[arg(long, value_name = "ADDR", env = "ROLLSCOPE_OTLP_GRPC")]
    pub otlp_grpc: Option<String>,
    /// Address for OTLP over HTTP [default: 127.0.0.1:4318].
    #[arg(long, value_name = "ADDR", env = "ROLLSCOPE_OTLP_HTTP")]
    pub otlp_http: Option<String>,
    /// Token that clients must send. Required on any address other than loopback. As a flag, every user of this machine can see it
    /// in the list of processes. Use --token-file or the environment variable instead.
    #[arg(long, value_name = "TOKEN", env = "ROLLSCOPE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// File that holds the token, or one line per token: SCOPES TOKEN [NAME], where SCOPES are some of ingest, read and admin with
    /// commas between them. It is read again when it changes.
    #[arg(long, value_name = "FILE", env = "ROLLSCOPE_TOKEN_FILE", conflicts_with = "token")]
    pub token_file: Option<PathBuf>,
    /// Allow addresses other than loopback without a token.
    #[arg(long, env = "ROLLSCOPE_INSECURE_NO_AUTH")]
    pub insecure_no_auth: bool,
    /// Certificate (PEM), with --tls-key.
    #[arg(long, value_name = "FILE", env = "ROLLSCOPE_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key (PEM), with --tls-cert.
    #[arg(long, value_name = "FILE", env = "ROLLSCOPE_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Require a certificate of every client, signed by one of the authorities in this file (PEM).
    #[arg(long, value_name = "FILE", env = "ROLLSCOPE_TLS_CLIENT_CA", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Record deletions, changes and refusals in this file, one JSON object per line [default: audit.log in the folder of the store].
    #[arg(long, value_name = "FILE", env = "ROLLSCOPE_AUDIT_LOG")]
    pub audit_log: Option<PathBuf>,
    /// Largest OTLP message, in bytes, after decompression [default: 67108864].
    #[arg(long, value_name = "BYTES", env = "ROLLSCOPE_MAX_MESSAGE_BYTES")]
    pub max_message_bytes: Option<usize>,
    /// Delete data older than this, such as 30d, 12h or 90m [default: keep everything].
    #[arg(long, value_name = "AGE", env = "ROLLSCOPE_RETENTION_AGE", value_parser = parse_seconds)]
    pub retention_age: Option<u64>,
    /// Delete the oldest data while the store is larger than this [default: keep everything].
    #[arg(long, value_name = "BYTES", env = "ROLLSCOPE_RETENTION_BYTES")]
    pub retention_bytes: Option<u64>,
    /// Scrape this page of Prometheus text or OpenMetrics, such as http://ROUTER:30000/engine_metrics@10s. Can be repeated.
    #[arg(long, value_name = "URL[@INTERVAL]", env = "ROLLSCOPE_SCRAPE", value_delimiter = ',')]
    pub scrape: Vec<String>,
    /// Ask Ray's dashboard, such as http://HEAD:8265, for actors that died and tasks that wait when a run hangs. Its token is taken from
    /// where Ray takes it: RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token.
    #[arg(long, value_name = "URL", env = "ROLLSCOPE_RAY")]
    pub ray: Option<String>,
    /// Scrape the targets in this Prometheus configuration (static_configs and file_sd_configs). Can be repeated.
    #[arg(long, value_name = "FILE", env = "ROLLSCOPE_SCRAPE_CONFIG", value_delimiter = ',')]
    pub scrape_config: Vec<PathBuf>,
    /// Evaluate the rules in this Prometheus rule file: alarms and recorded series. It is read again when it changes. Can be repeated.
    #[arg(long, value_name = "FILE", env = "ROLLSCOPE_RULES", value_delimiter = ',')]
    pub rules: Vec<PathBuf>,
    /// Keep every value of scraped series for this long, such as 7d. Older series are thinned [default: 7d].
    #[arg(long, value_name = "AGE", env = "ROLLSCOPE_SERIES_FULL_AGE", value_parser = parse_seconds)]
    pub series_full_age: Option<u64>,
    /// Import what a trainer adds to this folder, and keep looking. Patterns such as 'dumps/rollout_*.pt' work, too. Can be repeated.
    #[arg(long, value_name = "PATH", env = "ROLLSCOPE_WATCH", value_delimiter = ',')]
    pub watch: Vec<PathBuf>,
    /// Write the metrics of every step as TensorBoard event files into this folder.
    #[arg(long, value_name = "DIR", env = "ROLLSCOPE_TENSORBOARD")]
    pub tensorboard: Option<PathBuf>,
    /// Append the metrics of every step to this file, one JSON object per line.
    #[arg(long, value_name = "FILE", env = "ROLLSCOPE_METRICS_JSONL")]
    pub metrics_jsonl: Option<PathBuf>,
    #[command(flatten)]
    pub tokenizers: TokenizerArgs,
    /// Configuration file (TOML). Flags and environment variables take precedence over it.
    #[arg(long, value_name = "FILE", env = "ROLLSCOPE_CONFIG")]
    pub config: Option<PathBuf>,
    /// Print the effective configuration and exit.
    #[arg(long)]
    pub print_config: bool,
    /// Write logs as JSON lines.
    #[arg(long, env = "ROLLSCOPE_LOG_JSON")]
    pub log_json: bool,
}

#[derive(Args)]
pub struct DemoArgs {
    #[command(flatten)]
    pub serve: ServeArgs,
    /// Seed of the generator. The same seed gives the same run.
    #[arg(long, default_value_t = 7)]
    pub seed: u64,
    /// Number of finished steps. One more is in progress.
    #[arg(long, default_value_t = 40)]
    pub steps: u64,
    /// Samples per step.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub samples: u64,
    /// Maximum number of turns of an agentic sample.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub turns: u64,
    /// Who names run, step and sample, and what is a trace.
    #[arg(long, value_enum, default_value_t = DemoShape::PerSample)]
    pub shape: DemoShape,
    /// Write the finished steps to the store and exit.
    #[arg(long)]
    pub no_serve: bool,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum DemoShape {
    /// One trace per sample; engines and the gateway name nothing.
    PerSample,
    /// One trace per step; engines and the gateway name nothing.
    PerStep,
    /// As per-sample; the rollout of a step begins while the step before is trained on.
    Async,
    /// As per-sample; every span names run, step and sample.
    Stamped,
}

/// Where to read: a folder (also while a server writes to it) or a server.
#[derive(Args)]
pub struct SourceArgs {
    /// Folder of the store, or a lake, such as s3://bucket/prefix [default: rollscope-data or, if there is none, the server on this machine].
    #[arg(long, value_name = "DIR|URL", env = "ROLLSCOPE_DATA", conflicts_with = "server")]
    pub data: Option<PathBuf>,
    /// Query a running server instead, such as http://127.0.0.1:7200.
    #[arg(long, value_name = "URL", env = "ROLLSCOPE_SERVER")]
    pub server: Option<String>,
    /// Token of that server. As a flag, every user of this machine can see it. Use the environment variable instead.
    #[arg(long, value_name = "TOKEN", env = "ROLLSCOPE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum Format {
    Table,
    Csv,
    Json,
    Arrow,
}

#[derive(Args)]
pub struct SqlArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    /// Output format: a table, CSV, a JSON array of objects, or an Arrow IPC stream.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    #[command(flatten)]
    pub tokenizers: TokenizerArgs,
    /// Maximum number of rows.
    #[arg(long, default_value_t = 1_000_000)]
    pub max_rows: usize,
    /// Maximum time, in seconds.
    #[arg(long, default_value_t = 300)]
    pub timeout: u64,
    /// The query, or `-` to read it from standard input. Tables: runs, spans, samples, conversations, metrics, series.
    pub query: String,
}

/// How answers are printed.
#[derive(Args)]
pub struct AnswerArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    /// Print the whole answer as JSON, for programs.
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    /// Print Markdown, for a chat or a pull request.
    #[arg(long)]
    pub markdown: bool,
}

#[derive(Args)]
pub struct ReportArgs {
    /// The run: its id, its name, project/name, or the beginning of one of these if it fits only one run.
    pub run: String,
    /// The step [default: the run as a whole].
    #[arg(long, value_name = "N")]
    pub step: Option<i64>,
    #[command(flatten)]
    pub answer: AnswerArgs,
}

#[derive(Args)]
pub struct MismatchArgs {
    #[command(flatten)]
    pub report: ReportArgs,
    #[command(flatten)]
    pub tokenizers: TokenizerArgs,
}

#[derive(Args)]
pub struct HangArgs {
    /// The run: its id, its name, project/name, or the beginning of one of these if it fits only one run [default: the newest].
    pub run: Option<String>,
    /// The moment to ask about, such as 2026-11-17T14:22:51Z, or seconds since 1970 [default: now].
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
    /// Dumps of PyTorch's Flight Recorder, of py-spy, of nvidia-smi and of SGLang's requests, or folders of them. Can be repeated.
    #[arg(long, value_name = "PATH")]
    pub add: Vec<PathBuf>,
    /// Ask Ray's dashboard, such as http://HEAD:8265, for actors that died and tasks that wait. Its token is taken from where Ray takes
    /// it: RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token.
    #[arg(long, value_name = "URL", conflicts_with = "at")]
    pub ray: Option<String>,
    /// Ask the run's processes for the stacks of their Python threads, and wait for them. Needs a server.
    #[arg(long, conflicts_with = "at")]
    pub stacks: bool,
    #[command(flatten)]
    pub answer: AnswerArgs,
}

#[derive(Args)]
pub struct DiffArgs {
    /// Before: RUN, RUN:STEP, or a step with --run.
    pub before: String,
    /// After: RUN, RUN:STEP, or a step with --run.
    pub after: String,
    /// The run of both steps.
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    #[command(flatten)]
    pub answer: AnswerArgs,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum ConversationsFormat {
    /// A table to read, or the conversation as text with --id.
    Table,
    /// One JSON document, as the API returns it.
    Json,
    /// One conversation per line, with `messages` in OpenAI's format.
    Jsonl,
    /// The columns of the table. Requires --out.
    Parquet,
}

#[derive(Args)]
pub struct McpArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    /// Where the page of a folder is served, for links in answers.
    #[arg(long, value_name = "URL", default_value = crate::source::DEFAULT_SERVER)]
    pub page: String,
}

#[derive(Args)]
pub struct ConversationsArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    /// Search text, as in the search box: words, "phrases", role:tool, reward:<0.5, step:100..120, status:truncated ...
    pub search: Vec<String>,
    /// Show this conversation.
    #[arg(long, value_name = "ID", conflicts_with_all = ["search", "run", "project"])]
    pub id: Option<String>,
    /// Only this run: its id, its name, project/name, or the beginning of one of these.
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    /// Only runs of this project.
    #[arg(long, value_name = "PROJECT")]
    pub project: Option<String>,
    /// Only this step, or a range such as 100..120.
    #[arg(long, value_name = "N")]
    pub step: Option<String>,
    /// Sort key, with a leading - for descending order: -reward, step, -metadata.score ...
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub sort: Option<String>,
    /// Maximum number of conversations [default: 20 for a table, 50 for JSON, all for a file].
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Skip the first N.
    #[arg(long, value_name = "N")]
    pub offset: Option<usize>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = ConversationsFormat::Table)]
    pub format: ConversationsFormat,
    /// File to write [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(Args)]
pub struct MetricsArgs {
    /// The run: its id, its name, project/name, or the beginning of one of these if it fits only one run.
    pub run: String,
    #[command(flatten)]
    pub source: SourceArgs,
    /// The step [default: the last one that has metrics].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub step: Option<i64>,
    /// Only metrics whose names begin with this, such as perf/.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// Output format: a table, CSV, a JSON array of objects, or an Arrow IPC stream.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
}

#[derive(Args)]
pub struct ViewArgs {
    /// Dumps (rollout_0.pt), OTLP files, folders of them, or patterns such as 'dumps/rollout_*.pt'.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Write the files and exit.
    #[arg(long)]
    pub no_serve: bool,
    /// Write the files again, even if they are up to date.
    #[arg(long)]
    pub rebuild: bool,
    /// Write to this folder instead of next to the dump.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Port of the page [default: 7200, or a free one].
    #[arg(long, value_name = "N")]
    pub port: Option<u16>,
    /// Open the page in the browser.
    #[arg(long, conflicts_with = "no_serve")]
    pub open: bool,
    /// Format of the cache next to a dump: the one that slime's own viewer reads and writes, or none.
    #[arg(long, value_enum, default_value_t = CacheFormat::Slime)]
    pub cache_format: CacheFormat,
    /// Name of the run [default: the folder of the dumps].
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,
    #[command(flatten)]
    pub tokenizers: TokenizerArgs,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum CacheFormat {
    Slime,
    None,
}

#[derive(Args)]
pub struct ImportArgs {
    /// Files, plain or compressed with gzip or zstd; folders that a trainer writes; patterns such as 'dumps/rollout_*.pt'.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub folder: FolderArgs,
    /// Put everything into this run and ignore the run that the files name.
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,
    /// Keep importing what is added to the folders, until Ctrl-C.
    #[arg(long)]
    pub watch: bool,
}

#[derive(Args)]
pub struct ExportArgs {
    #[command(subcommand)]
    pub what: ExportCommand,
}

#[derive(Subcommand)]
pub enum ExportCommand {
    /// Spans as OTLP JSON lines.
    Otlp(ExportOtlpArgs),
    /// Metrics as TensorBoard event files.
    Tensorboard(ExportTensorboardArgs),
    /// A run as one HTML file that opens from disk without a server.
    Html(ExportHtmlArgs),
    /// A run, a step or files for Perfetto (ui.perfetto.dev) or chrome://tracing.
    Perfetto(ExportPerfettoArgs),
}

#[derive(Args)]
pub struct ExportPerfettoArgs {
    /// Files to read instead of a store, in any supported format: OTLP JSON lines, dumps, profiles. Folders and patterns
    /// work too.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub folder: FolderArgs,
    /// The run [default: all].
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    /// The step [default: all].
    #[arg(long, value_name = "N", requires = "run")]
    pub step: Option<i64>,
    /// File to write, or `-` for standard output [default: a name derived from the input].
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Output format: Perfetto's protobuf or Chrome's JSON.
    #[arg(long, value_enum, default_value_t = TraceFormat::Proto)]
    pub format: TraceFormat,
    /// Torch profile (JSON, plain or gzip) to merge, so that kernels and requests share one axis.
    #[arg(long, value_name = "FILE")]
    pub torch_file: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum TraceFormat {
    Proto,
    Chrome,
}

#[derive(Args, Clone)]
pub struct CollectArgs {
    /// Folder to write to: DIR/traces/traces.jsonl, then traces.1.jsonl, ...
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Address for OTLP over gRPC. Empty turns it off.
    #[arg(long, value_name = "ADDR", env = "ROLLSCOPE_OTLP_GRPC", default_value = "127.0.0.1:4317")]
    pub otlp_grpc: String,
    /// Address for OTLP over HTTP. Empty turns it off.
    #[arg(long, value_name = "ADDR", env = "ROLLSCOPE_OTLP_HTTP", default_value = "127.0.0.1:4318")]
    pub otlp_http: String,
    /// Start the next file when a file reaches this size.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20)]
    pub max_file_bytes: u64,
    /// Largest OTLP message, in bytes, after decompression [default: 67108864].
    #[arg(long, value_name = "BYTES", env = "ROLLSCOPE_MAX_MESSAGE_BYTES")]
    pub max_message_bytes: Option<usize>,
    /// Token that senders must send. Required on any address other than loopback. As a flag, every user of this machine can see it
    /// in the list of processes. Use --token-file or the environment variable instead.
    #[arg(long, value_name = "TOKEN", env = "ROLLSCOPE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// File that holds the token, or one line per token: SCOPES TOKEN [NAME]. It is read again when it changes.
    #[arg(long, value_name = "FILE", env = "ROLLSCOPE_TOKEN_FILE", conflicts_with = "token")]
    pub token_file: Option<PathBuf>,
    /// Allow addresses other than loopback without a token.
    #[arg(long, env = "ROLLSCOPE_INSECURE_NO_AUTH")]
    pub insecure_no_auth: bool,
    /// Forward everything to this server (the address of its page, or of OTLP over HTTP). The files buffer what it has not
    /// received yet. They are deleted once it has.
    #[arg(long, value_name = "URL")]
    pub forward: Option<String>,
    /// Token of that server. As a flag, every user of this machine can see it. Use the environment variable instead.
    #[arg(long, value_name = "TOKEN", env = "ROLLSCOPE_FORWARD_TOKEN", hide_env_values = true, requires = "forward")]
    pub forward_token: Option<String>,
    /// Keep the files after they were forwarded.
    #[arg(long, requires = "forward")]
    pub keep: bool,
    /// Write logs as JSON lines.
    #[arg(long, env = "ROLLSCOPE_LOG_JSON")]
    pub log_json: bool,
}

/// The flags of `otelcol` that rollscope supports when it stands in for it.
#[derive(Parser)]
#[command(name = "otelcol", version, about = "rollscope collect, started under the name of OpenTelemetry's collector")]
pub struct OtelcolArgs {
    /// Configuration file, with an `otlp` receiver over gRPC and a `file` exporter in a traces pipeline.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

#[derive(Args)]
pub struct TraceLevelArgs {
    /// 0 (off), 1 (important slices), 2 (all but nested) or 3 (all).
    pub level: String,
    /// SGLang servers, such as http://10.0.0.5:30000, or rollscope servers, which pass the level on to the SDKs that send
    /// to them.
    #[arg(required = true, value_name = "URL")]
    pub urls: Vec<String>,
    /// SGLang's API key or rollscope's token, if the server requires one. As a flag, every user of this machine can see it. Use the
    /// environment variable instead.
    #[arg(long, value_name = "KEY", env = "SGLANG_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Maximum time per server, in seconds.
    #[arg(long, default_value_t = 10)]
    pub timeout: u64,
}

#[derive(Args)]
pub struct ExportTensorboardArgs {
    #[command(flatten)]
    pub folder: FolderArgs,
    /// The run [default: all].
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    /// Folder to write to. Each run gets a subfolder.
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
}

#[derive(Args)]
pub struct ExportOtlpArgs {
    /// Folder of the store.
    #[command(flatten)]
    pub folder: FolderArgs,
    /// The run [default: all].
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    /// The step [default: all].
    #[arg(long, value_name = "N", requires = "run")]
    pub step: Option<i64>,
    /// File to write [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(Args)]
pub struct ExportHtmlArgs {
    #[command(flatten)]
    pub folder: FolderArgs,
    /// The run [default: the only one].
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    /// The step. Can be repeated [default: the newest steps, as many as fit into a file of reasonable size].
    #[arg(long, value_name = "N")]
    pub step: Vec<i64>,
    /// File to write [default: RUN.html].
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Whole seconds: `30d`, `12h`, `1h30m`, `45s` or plain seconds.
fn parse_seconds(text: &str) -> Result<u64, String> {
    text.parse().or_else(|_| Ok(parse_duration(text)?.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations() {
        assert_eq!(parse_seconds("30d"), Ok(2_592_000));
        assert_eq!(parse_seconds("1h30m"), Ok(5_400));
        assert_eq!(parse_seconds("45"), Ok(45));
        assert!(parse_seconds("d").is_err());
        assert!(parse_seconds("99999999999999999999d").is_err());
    }
}
