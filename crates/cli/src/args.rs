//! The command line, as typed. Every flag of `serve` can also be set by the environment variable in its help.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

#[derive(Parser)]
#[command(name = "rollscope", version, about = "See where the time goes, and what the model did, in RL post-training.")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Receive, keep and show: OTLP on 4317 (gRPC) and 4318 (HTTP), page and API on 7200.
    Serve(ServeArgs),
    /// The same with a generated run that keeps going, so that every view has something to show.
    Demo(DemoArgs),
    /// Open rollout dumps and OTLP files: prints what is in them, writes a page that opens from disk, and serves it.
    View(ViewArgs),
    /// Ask the store in SQL, read-only.
    Sql(SqlArgs),
    /// Why a step took as long as it did, and what stands out in a run.
    Report(ReportArgs),
    /// What changed between two steps or two runs: `demo:22 demo:23`, `run-a run-b`, or `22 23 --run demo`.
    Diff(DiffArgs),
    /// Find conversations, read one, or take a selection along.
    Conversations(ConversationsArgs),
    /// Build the search index of conversations anew. The store must not be in use.
    Reindex(FolderArgs),
    /// Put files of any known format into a store.
    Import(ImportArgs),
    /// Write what a store holds for other tools.
    Export(ExportArgs),
    /// A small OTLP collector: traces over gRPC and HTTP into files of JSON lines, on disk before it acknowledges.
    Collect(CollectArgs),
    /// Set SGLang's trace level on many servers.
    TraceLevel(TraceLevelArgs),
    /// Print the metrics of a run's step: what it logged, and what rollscope worked out of its spans and samples.
    Metrics(MetricsArgs),
    /// Merge small files and compress what was written in a hurry. The store must not be in use.
    Compact(FolderArgs),
}

#[derive(Args)]
pub struct FolderArgs {
    /// Folder of the store.
    #[arg(long, value_name = "DIR", env = "ROLLSCOPE_DATA", default_value = crate::config::DEFAULT_DATA)]
    pub data: PathBuf,
}

#[derive(Args, Clone, Default)]
pub struct ServeArgs {
    /// Folder of the store; made if it is not there [default: rollscope-data].
    #[arg(long, value_name = "DIR", env = "ROLLSCOPE_DATA")]
    pub data: Option<PathBuf>,
    /// Address of the page and the API [default: 127.0.0.1:7200].
    #[arg(long, value_name = "ADDR", env = "ROLLSCOPE_LISTEN")]
    pub listen: Option<String>,
    /// Address for OTLP over gRPC [default: 127.0.0.1:4317].
    #[arg(long, value_name = "ADDR", env = "ROLLSCOPE_OTLP_GRPC")]
    pub otlp_grpc: Option<String>,
    /// Address for OTLP over HTTP [default: 127.0.0.1:4318].
    #[arg(long, value_name = "ADDR", env = "ROLLSCOPE_OTLP_HTTP")]
    pub otlp_http: Option<String>,
    /// Token that clients must show; needed for any address but loopback.
    #[arg(long, value_name = "TOKEN", env = "ROLLSCOPE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// File that holds the token.
    #[arg(long, value_name = "FILE", env = "ROLLSCOPE_TOKEN_FILE", conflicts_with = "token")]
    pub token_file: Option<PathBuf>,
    /// Listen beyond loopback without a token.
    #[arg(long, env = "ROLLSCOPE_INSECURE_NO_AUTH")]
    pub insecure_no_auth: bool,
    /// Certificate (PEM), with --tls-key.
    #[arg(long, value_name = "FILE", env = "ROLLSCOPE_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key (PEM), with --tls-cert.
    #[arg(long, value_name = "FILE", env = "ROLLSCOPE_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Largest OTLP message, in bytes, after decompression [default: 67108864].
    #[arg(long, value_name = "BYTES", env = "ROLLSCOPE_MAX_MESSAGE_BYTES")]
    pub max_message_bytes: Option<usize>,
    /// Delete what is older than this, such as 30d, 12h or 90m [default: keep everything].
    #[arg(long, value_name = "AGE", env = "ROLLSCOPE_RETENTION_AGE", value_parser = duration)]
    pub retention_age: Option<u64>,
    /// Delete the oldest while the store is larger than this many bytes [default: keep everything].
    #[arg(long, value_name = "BYTES", env = "ROLLSCOPE_RETENTION_BYTES")]
    pub retention_bytes: Option<u64>,
    /// Scrape this page of Prometheus text or OpenMetrics, such as http://ROUTER:30000/engine_metrics@10s; repeatable.
    #[arg(long, value_name = "URL[@INTERVAL]", env = "ROLLSCOPE_SCRAPE", value_delimiter = ',')]
    pub scrape: Vec<String>,
    /// Scrape what this Prometheus configuration lists (static targets and files of targets); repeatable.
    #[arg(long, value_name = "FILE", env = "ROLLSCOPE_SCRAPE_CONFIG", value_delimiter = ',')]
    pub scrape_config: Vec<PathBuf>,
    /// Keep scraped series in full this long, such as 7d; older ones are thinned [default: 7d].
    #[arg(long, value_name = "AGE", env = "ROLLSCOPE_SERIES_FULL_AGE", value_parser = duration)]
    pub series_full_age: Option<u64>,
    /// Write the metrics of every step as TensorBoard event files below this folder.
    #[arg(long, value_name = "DIR", env = "ROLLSCOPE_TENSORBOARD")]
    pub tensorboard: Option<PathBuf>,
    /// Append the metrics of every step to this file, a JSON object a line.
    #[arg(long, value_name = "FILE", env = "ROLLSCOPE_METRICS_JSONL")]
    pub metrics_jsonl: Option<PathBuf>,
    /// Configuration file (TOML); flags and environment win over it.
    #[arg(long, value_name = "FILE", env = "ROLLSCOPE_CONFIG")]
    pub config: Option<PathBuf>,
    /// Print the configuration in force and stop.
    #[arg(long)]
    pub print_config: bool,
    /// Logs as JSON lines.
    #[arg(long, env = "ROLLSCOPE_LOG_JSON")]
    pub log_json: bool,
}

#[derive(Args)]
pub struct DemoArgs {
    #[command(flatten)]
    pub serve: ServeArgs,
    /// The same seed gives the same run.
    #[arg(long, default_value_t = 7)]
    pub seed: u64,
    /// Finished steps; one more is in progress.
    #[arg(long, default_value_t = 40)]
    pub steps: u64,
    /// Samples in a step.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub samples: u64,
    /// Most turns of an agentic sample.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub turns: u64,
    /// Only generate the finished steps into the store, then stop.
    #[arg(long)]
    pub no_serve: bool,
}

/// Where to read: a folder (also while a server writes it) or a server.
#[derive(Args)]
pub struct SourceArgs {
    /// Folder of the store [default: rollscope-data; if that is not there, the server on this machine].
    #[arg(long, value_name = "DIR", env = "ROLLSCOPE_DATA", conflicts_with = "server")]
    pub data: Option<PathBuf>,
    /// Ask a running server instead, such as http://127.0.0.1:7200.
    #[arg(long, value_name = "URL", env = "ROLLSCOPE_SERVER")]
    pub server: Option<String>,
    /// Token of that server.
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
    /// How to print: a table, CSV, a JSON array of objects, or an Arrow IPC stream.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Most rows of the answer.
    #[arg(long, default_value_t = 1_000_000)]
    pub max_rows: usize,
    /// Longest time, in seconds.
    #[arg(long, default_value_t = 300)]
    pub timeout: u64,
    /// The query; `-` reads it from standard input. Tables: runs, spans, samples, conversations, metrics, series.
    pub query: String,
}

/// How answers are printed.
#[derive(Args)]
pub struct AnswerArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    /// For programs: the whole answer as JSON.
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    /// For a chat or a pull request.
    #[arg(long)]
    pub markdown: bool,
}

#[derive(Args)]
pub struct ReportArgs {
    /// The run: its id, its name, project/name, or a beginning that fits only one.
    pub run: String,
    /// The step [default: the run as a whole].
    #[arg(long, value_name = "N")]
    pub step: Option<i64>,
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
    /// A list for people; with --id the conversation as text.
    Table,
    /// One JSON document, as the API answers.
    Json,
    /// One conversation a line, with `messages` as OpenAI writes them.
    Jsonl,
    /// The columns of the table; needs --out.
    Parquet,
}

#[derive(Args)]
pub struct ConversationsArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    /// What to look for, as in the search box: words, "phrases", role:tool, reward:<0.5, step:100..120, status:truncated ...
    pub search: Vec<String>,
    /// Show this conversation.
    #[arg(long, value_name = "ID", conflicts_with_all = ["search", "run", "project"])]
    pub id: Option<String>,
    /// Only this run: its id, its name, project/name, or a beginning that fits only one.
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    /// Only runs of this project.
    #[arg(long, value_name = "PROJECT")]
    pub project: Option<String>,
    /// Only this step, or a range such as 100..120.
    #[arg(long, value_name = "N")]
    pub step: Option<String>,
    /// What to sort by, with - before it for descending order: -reward, step, -metadata.score ...
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub sort: Option<String>,
    /// Most conversations [default: 20 as a table, 50 as JSON, all as a file].
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Leave out so many.
    #[arg(long, value_name = "N")]
    pub offset: Option<usize>,
    #[arg(long, value_enum, default_value_t = ConversationsFormat::Table)]
    pub format: ConversationsFormat,
    /// Where to write [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(Args)]
pub struct MetricsArgs {
    /// The run: its id, its name, project/name, or a beginning that fits only one.
    pub run: String,
    #[command(flatten)]
    pub source: SourceArgs,
    /// The step [default: the last one that has metrics].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub step: Option<i64>,
    /// Only names that begin with this, such as perf/.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// How to print: a table, CSV, a JSON array of objects, or an Arrow IPC stream.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
}

#[derive(Args)]
pub struct ViewArgs {
    /// Dumps (rollout_0.pt), OTLP files, folders of them, or patterns such as 'dumps/rollout_*.pt'.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Only write the files.
    #[arg(long)]
    pub no_serve: bool,
    /// Make the files anew even if they are up to date.
    #[arg(long)]
    pub rebuild: bool,
    /// Write into this folder instead of beside the dump.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Port of the page [default: 7200, or a free one].
    #[arg(long, value_name = "N")]
    pub port: Option<u16>,
    /// Open the page in the browser.
    #[arg(long, conflicts_with = "no_serve")]
    pub open: bool,
    /// The cache beside a dump: as slime's own viewer writes and reads it, or none.
    #[arg(long, value_enum, default_value_t = CacheFormat::Slime)]
    pub cache_format: CacheFormat,
    /// Name of the run [default: the folder of the dumps].
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum CacheFormat {
    Slime,
    None,
}

#[derive(Args)]
pub struct ImportArgs {
    /// Files, plain or compressed with gzip or zstd; folders of dumps; patterns such as 'dumps/rollout_*.pt'.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub folder: FolderArgs,
    /// Everything goes into this run, whatever the files say.
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,
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
    /// A run as one HTML file that opens from disk, without a server.
    Html(ExportHtmlArgs),
    /// A run, a step or files for Perfetto (ui.perfetto.dev) or chrome://tracing.
    Perfetto(ExportPerfettoArgs),
}

#[derive(Args)]
pub struct ExportPerfettoArgs {
    /// Files of any known format instead of a store: OTLP JSON lines, dumps, profiles; folders, patterns.
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
    /// Where to write; `-` is standard output [default: a name made from the input].
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Perfetto's own protobuf, or Chrome's JSON.
    #[arg(long, value_enum, default_value_t = TraceFormat::Proto)]
    pub format: TraceFormat,
    /// A torch profile (JSON, plain or gzip) to merge: kernels and requests on one axis.
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
    /// Folder to write into: DIR/traces/traces.jsonl, then traces.1.jsonl, ...
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Address for OTLP over gRPC; empty for none.
    #[arg(long, value_name = "ADDR", env = "ROLLSCOPE_OTLP_GRPC", default_value = "127.0.0.1:4317")]
    pub otlp_grpc: String,
    /// Address for OTLP over HTTP; empty for none.
    #[arg(long, value_name = "ADDR", env = "ROLLSCOPE_OTLP_HTTP", default_value = "127.0.0.1:4318")]
    pub otlp_http: String,
    /// A file of this many bytes is followed by the next.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20)]
    pub max_file_bytes: u64,
    /// Largest OTLP message, in bytes, after decompression [default: 67108864].
    #[arg(long, value_name = "BYTES", env = "ROLLSCOPE_MAX_MESSAGE_BYTES")]
    pub max_message_bytes: Option<usize>,
    /// Token that senders must show; needed for any address but loopback.
    #[arg(long, value_name = "TOKEN", env = "ROLLSCOPE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Listen beyond loopback without a token.
    #[arg(long, env = "ROLLSCOPE_INSECURE_NO_AUTH")]
    pub insecure_no_auth: bool,
    /// Send everything on to this server (its page, or its OTLP port for HTTP); the files are the buffer while it is away,
    /// and go when it has them.
    #[arg(long, value_name = "URL")]
    pub forward: Option<String>,
    /// Token of that server.
    #[arg(long, value_name = "TOKEN", env = "ROLLSCOPE_FORWARD_TOKEN", hide_env_values = true, requires = "forward")]
    pub forward_token: Option<String>,
    /// Keep the files after they were sent on.
    #[arg(long, requires = "forward")]
    pub keep: bool,
    /// Logs as JSON lines.
    #[arg(long, env = "ROLLSCOPE_LOG_JSON")]
    pub log_json: bool,
}

/// What `otelcol` takes, as far as we stand in for it.
#[derive(Parser)]
#[command(name = "otelcol", version, about = "rollscope collect, started under the name of OpenTelemetry's collector")]
pub struct OtelcolArgs {
    /// The configuration: an `otlp` receiver over gRPC and a `file` exporter, in a pipeline of traces.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

#[derive(Args)]
pub struct TraceLevelArgs {
    /// 0 (off), 1 (important slices), 2 (all but nested) or 3 (all).
    pub level: String,
    /// SGLang servers, such as http://10.0.0.5:30000; or rollscope servers, which tell the SDKs that send to them.
    #[arg(required = true, value_name = "URL")]
    pub urls: Vec<String>,
    /// SGLang's API key, or rollscope's token, where there is one.
    #[arg(long, value_name = "KEY", env = "SGLANG_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Longest time for one server, in seconds.
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
    /// Folder to write to; every run gets a folder below it.
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
    /// Where to write [default: standard output].
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
    /// The step; may be given several times [default: all, the newest first, as many as make a file of reasonable size].
    #[arg(long, value_name = "N")]
    pub step: Vec<i64>,
    /// Where to write [default: RUN.html].
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// `30d`, `12h`, `90m`, `45s` or plain seconds.
fn duration(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let scale = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(format!("{unit:?} is no unit: use s, m, h or d")),
    };
    let number: u64 = number.parse().map_err(|_| "write a number and a unit, such as 30d".to_string())?;
    number.checked_mul(scale).ok_or_else(|| "that is too long".to_string())
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
        assert_eq!(duration("30d"), Ok(2_592_000));
        assert_eq!(duration("45"), Ok(45));
        assert!(duration("1w").is_err());
        assert!(duration("d").is_err());
        assert!(duration("99999999999999999999d").is_err());
    }
}
