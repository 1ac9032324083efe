//! The binary: arguments, configuration, commands. It only connects the other crates.
//!
//! Arguments pass two stages: as typed ([`args`]), then resolved with environment and file ([`config`]). Each command is
//! one file in [`commands`]. The exit code is 2 for a usage error and 1 for a failure.

// This comes first, because all other modules use its `println!` and `eprintln!`.
#[macro_use]
mod output;
mod args;
mod commands;
mod config;
mod place;
mod progress;
mod source;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let otelcol = called_otelcol().then(args::OtelcolArgs::parse);
    let cli = if otelcol.is_none() { Some(args::Cli::parse()) } else { None };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("rollscope: cannot start: {e}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        match (otelcol, cli) {
            (Some(args), _) => commands::run_otelcol(args).await,
            (None, Some(cli)) => commands::run(cli).await,
            (None, None) => Ok(()),
        }
    });
    // Tasks are cut off from here on. A library that waits for one of its own panics then (Delta's does), which is no news to anybody.
    std::panic::set_hook(Box::new(|panic| tracing::debug!(%panic, "a task was cut off at the end")));
    // Work that ignores its cancellation must not keep the process alive.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    match result.and_then(|()| output::said()) {
        Ok(()) => ExitCode::SUCCESS,
        // `rollscope sql ... | head` is not a failure.
        Err(_) if output::reader_left() => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("rollscope: {e:#}");
            if e.is::<config::Usage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// A link named `otelcol` on the path makes us the collector that ROLL looks for.
fn called_otelcol() -> bool {
    let name = std::env::args_os().next().map(std::path::PathBuf::from);
    let name = name.as_deref().and_then(std::path::Path::file_name).and_then(|n| n.to_str());
    matches!(name, Some("otelcol" | "otelcol-contrib"))
}
