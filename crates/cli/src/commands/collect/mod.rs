//! `rollscope collect`, also under the name `otelcol`: OTLP into files, and on to a server if there is one.

mod forward;
mod otelcol;

use rollscope_server::collect::{CollectFiles, Collector};
use rollscope_server::{Secret, ServerConfig, StartError};

use super::serve::{StopSignals, alive, until_told_to_stop, warn_of_flag};
use crate::args::{CollectArgs, OtelcolArgs};
use crate::config::Usage;
use crate::output;

pub async fn run(args: CollectArgs) -> anyhow::Result<()> {
    output::start_logs("info", args.log_json);
    warn_of_flag("--token", args.token.as_deref(), "--token-file or ROLLSCOPE_TOKEN");
    warn_of_flag("--forward-token", args.forward_token.as_deref(), "ROLLSCOPE_FORWARD_TOKEN");
    let mut config = ServerConfig {
        listen: String::new(),
        otlp_grpc: args.otlp_grpc.clone(),
        otlp_http: args.otlp_http.clone(),
        insecure_no_auth: args.insecure_no_auth,
        tokens: args.token.iter().map(|t| Secret::new(t.clone())).collect(),
        token_file: args.token_file.clone(),
        ..ServerConfig::default()
    };
    if let Some(bytes) = args.max_message_bytes {
        config.limits.max_message_bytes = bytes;
    }
    let files =
        CollectFiles { path: args.out.join("traces").join("traces.jsonl"), max_file_bytes: args.max_file_bytes.max(1) };
    serve(&config, &files, Some(&args)).await
}

pub async fn run_otelcol(args: OtelcolArgs) -> anyhow::Result<()> {
    output::start_logs("info", false);
    let (config, path) = otelcol::read_config(&args.config)?;
    // ROLL names no size: one file is what it and its users look for, so the next begins late.
    serve(&config, &CollectFiles { path, max_file_bytes: 4 << 30 }, None).await
}

async fn serve(config: &ServerConfig, files: &CollectFiles, args: Option<&CollectArgs>) -> anyhow::Result<()> {
    let forward = match args.and_then(|a| a.forward.as_ref().map(|url| (a, url))) {
        Some((args, url)) => Some(forward::Forward::new(url, args.forward_token.clone(), args.keep, &files.path)?),
        None => None,
    };
    let collector = Collector::start(config, files).await.map_err(|e| match e {
        StartError::NoToken { .. }
        | StartError::Address { .. }
        | StartError::EmptyToken
        | StartError::TokenFile(_)
        | StartError::Nothing => anyhow::Error::from(Usage(e.to_string())),
        other => other.into(),
    })?;
    let mut signals = StopSignals::listen()?;
    let at = collector.addresses();
    if let Some(grpc) = at.otlp_grpc {
        println!("OTLP gRPC       http://{grpc}");
    }
    if let Some(http) = at.otlp_http {
        println!("OTLP HTTP       http://{http}");
    }
    println!("writing         {}", files.path.display());
    let forwarding = forward.map(|forward| forward.start(collector.vitals())).transpose()?;
    let vitals = collector.vitals().clone();
    until_told_to_stop(&mut signals, &vitals, &config.limits).await;
    collector.shutdown().await;
    if let Some(forwarding) = forwarding {
        // A last try with what just came; what does not get through is in the files for the next start.
        tokio::task::spawn_blocking(move || forwarding.stop()).await?;
    }
    alive(&vitals)
}
