//! The configuration that ROLL writes for OpenTelemetry's collector, and exactly that. Anything else in the file is an error
//! that names it, because ignoring it would silently lose data.

use std::path::{Path, PathBuf};

use anyhow::Context;
use rollscope_server::ServerConfig;
use serde::Deserialize;

use crate::config::Usage;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Otelcol {
    receivers: Receivers,
    exporters: Exporters,
    service: Service,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Receivers {
    otlp: Otlp,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Otlp {
    protocols: Protocols,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Protocols {
    grpc: Endpoint,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Endpoint {
    endpoint: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exporters {
    file: FileExporter,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileExporter {
    path: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Service {
    telemetry: Option<Telemetry>,
    pipelines: Pipelines,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Telemetry {
    metrics: Option<Level>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Level {
    level: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pipelines {
    traces: Pipeline,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pipeline {
    receivers: Vec<String>,
    exporters: Vec<String>,
}

/// Where to listen, and the file to write.
pub fn read_config(path: &Path) -> anyhow::Result<(ServerConfig, PathBuf)> {
    // otelcol takes a scheme before the path.
    let text = path.to_string_lossy();
    let path = Path::new(text.strip_prefix("file:").unwrap_or(&text));
    let yaml = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    parse(&yaml).map_err(|why| Usage(format!("{}: {why}", path.display())).into())
}

fn parse(yaml: &str) -> Result<(ServerConfig, PathBuf), String> {
    let only = "rollscope supports one otlp receiver over gRPC and one file exporter, for traces";
    let config: Otelcol = serde_yaml_ng::from_str(yaml).map_err(|e| format!("{e}; {only}"))?;
    let traces = &config.service.pipelines.traces;
    if let Some(other) = traces.receivers.iter().find(|r| *r != "otlp") {
        return Err(format!("service.pipelines.traces.receivers: unknown receiver {other:?}; {only}"));
    }
    if let Some(other) = traces.exporters.iter().find(|e| *e != "file") {
        return Err(format!("service.pipelines.traces.exporters: unknown exporter {other:?}; {only}"));
    }
    if traces.receivers.is_empty() || traces.exporters.is_empty() {
        return Err(format!("service.pipelines.traces needs a receiver and an exporter; {only}"));
    }
    if let Some(level) = config.service.telemetry.as_ref().and_then(|t| t.metrics.as_ref())
        && level.level != "none"
    {
        return Err(format!(
            "service.telemetry.metrics.level: {:?} is not supported; expected \"none\"; {only}",
            level.level
        ));
    }
    let server = ServerConfig {
        listen: String::new(),
        otlp_grpc: config.receivers.otlp.protocols.grpc.endpoint,
        otlp_http: String::new(),
        // otelcol knows no tokens. The user who wrote 0.0.0.0 has decided.
        insecure_no_auth: true,
        ..ServerConfig::default()
    };
    Ok((server, config.exporters.file.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLL: &str = r#"
receivers:
  otlp:
    protocols:
      grpc:
        endpoint: "0.0.0.0:4317"
exporters:
  file:
    path: "/tmp/out/traces/traces.jsonl"
service:
  telemetry:
    metrics:
      level: none
  pipelines:
    traces:
      receivers: [otlp]
      exporters: [file]
"#;

    #[test]
    fn rolls_configuration_is_understood() {
        let (server, path) = parse(ROLL).unwrap();
        assert_eq!(server.otlp_grpc, "0.0.0.0:4317");
        assert_eq!(path, Path::new("/tmp/out/traces/traces.jsonl"));
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        for (from, to, name) in [
            ("exporters:\n  file:", "exporters:\n  debug: {}\n  file:", "debug"),
            ("receivers: [otlp]", "receivers: [otlp]\n      processors: [batch]", "processors"),
            ("receivers: [otlp]", "receivers: [zipkin]", "zipkin"),
            ("      exporters: [file]", "      exporters: [file]\n    metrics:\n      receivers: [otlp]", "metrics"),
            ("traces.jsonl\"", "traces.jsonl\"\n    compression: zstd", "compression"),
            ("level: none", "level: detailed", "detailed"),
            ("receivers:\n  otlp:", "processors:\n  batch: {}\nreceivers:\n  otlp:", "processors"),
            (
                "      grpc:\n        endpoint: \"0.0.0.0:4317\"",
                "      http:\n        endpoint: \"0.0.0.0:4318\"",
                "http",
            ),
        ] {
            let changed = ROLL.replacen(from, to, 1);
            assert_ne!(changed, ROLL, "{name}");
            let error = parse(&changed).unwrap_err();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
