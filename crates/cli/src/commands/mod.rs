//! One file per command.

mod answers;
mod collect;
mod compact;
mod conversations;
mod demo;
mod export;
mod export_html;
mod export_perfetto;
mod files;
mod import;
mod mcp;
mod metrics;
mod nodes;
mod serve;
mod sql;
mod trace_level;
mod view;
mod watch;

use crate::args::{Cli, Command, ExportCommand, Role, ServeArgs};

pub async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Serve(args) => serve::run(args).await,
        Command::Executor(args) => serve::run(ServeArgs { role: Some(Role::Worker), ..args }).await,
        Command::Demo(args) => demo::run(args).await,
        Command::View(args) => view::run(args).await,
        Command::Collect(args) => collect::run(args).await,
        Command::TraceLevel(args) => trace_level::run(args).await,
        Command::Sql(args) => sql::run(args).await,
        Command::Report(args) => answers::report(args).await,
        Command::Mismatch(args) => answers::mismatch(args).await,
        Command::Diff(args) => answers::diff(args).await,
        Command::Hang(args) => answers::hang(args).await,
        Command::Conversations(args) => conversations::run(args).await,
        Command::Mcp(args) => mcp::run(args).await,
        Command::Reindex(args) => conversations::reindex(args).await,
        Command::Import(args) => import::run(args).await,
        Command::Export(args) => match args.what {
            ExportCommand::Otlp(args) => export::otlp(args).await,
            ExportCommand::Perfetto(args) => export_perfetto::run(args).await,
            ExportCommand::Tensorboard(args) => metrics::tensorboard(args).await,
            ExportCommand::Html(args) => export_html::run(args).await,
        },
        Command::Metrics(args) => metrics::run(args).await,
        Command::Compact(args) => compact::run(args).await,
    }
}

/// Started under the name of OpenTelemetry's collector.
pub async fn run_otelcol(args: crate::args::OtelcolArgs) -> anyhow::Result<()> {
    collect::run_otelcol(args).await
}
