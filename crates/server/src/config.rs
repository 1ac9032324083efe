//! Everything that an operator can set about the server, with its default. The command line fills this from flags, environment
//! variables and the file. Nothing here reads any of them. If a limit is exceeded, the error names the field below.

use std::path::PathBuf;

use rollscope_alarms::AlarmsConfig;
use rollscope_answers::perf::PerfRules;
use rollscope_app::sinks::SinkConfig;
use rollscope_formats::import::otlp;
use rollscope_model::limits::MESSAGE_BYTES;
use rollscope_query::promql::PromLimits;
use serde::{Deserialize, Serialize};

use crate::scrape::config::ScrapeConfig;
use rollscope_app::secret::Secret;

/// Where the server listens, who may use it, and how much it accepts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Address of the page and the API. Empty turns it off.
    pub listen: String,
    /// Address for OTLP over gRPC (and over HTTP, for clients that mix up the ports). Empty turns it off.
    pub otlp_grpc: String,
    /// Address for OTLP over HTTP (and over gRPC). Empty turns it off.
    pub otlp_http: String,
    /// Clients send one of these as `Authorization: Bearer TOKEN` or on the log-in page. Empty: no authentication.
    pub tokens: Vec<Secret>,
    /// A file of further tokens, with scopes. It is read again when it changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Allow addresses other than loopback without a token.
    pub insecure_no_auth: bool,
    /// Certificate and key. Without them, connections are not encrypted.
    pub tls: Option<TlsConfig>,
    /// Where deletions, changes and refusals are recorded, one JSON object per line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit_log: Option<PathBuf>,
    pub limits: Limits,
    /// What is scraped.
    pub scrape: ScrapeConfig,
    /// Ray's dashboard, such as `http://HEAD:8265`. It is asked which actors died and which tasks wait when somebody asks what a run waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ray: Option<String>,
    /// Where the metrics of a step go besides the store.
    pub sinks: SinkConfig,
    /// What counts as a request, a step, a rollout.
    pub perf: PerfRules,
    /// What a PromQL query may cost.
    pub promql: PromLimits,
    /// What is watched, and who is told.
    pub alarms: AlarmsConfig,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            listen: "127.0.0.1:7200".into(),
            otlp_grpc: "127.0.0.1:4317".into(),
            otlp_http: "127.0.0.1:4318".into(),
            tokens: Vec::new(),
            token_file: None,
            insecure_no_auth: false,
            tls: None,
            audit_log: None,
            limits: Limits::default(),
            scrape: ScrapeConfig::default(),
            ray: None,
            sinks: SinkConfig::default(),
            perf: PerfRules::default(),
            promql: PromLimits::default(),
            alarms: AlarmsConfig::default(),
        }
    }
}

/// PEM files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The certificate, followed by its chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Clients must have a certificate that one of these authorities signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
}

/// Bounds on what one client and one message may cost. What a query may cost is the engine's
/// ([`rollscope_query::QueryLimits`]).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// One OTLP message, after decompression.
    pub max_message_bytes: usize,
    /// OTLP bytes in memory at the same time, over all clients. More is refused with a retryable error.
    pub max_inflight_bytes: usize,
    /// Different runs named in one OTLP message.
    pub max_runs_per_message: usize,
    /// Open connections, over all ports. A connection on which no request was let in yet gives way to a new one. If there is none,
    /// the new one is answered 503 and closed.
    pub max_connections: usize,
    /// The same for the connections of one address (of one /64 with IPv6).
    pub max_connections_per_peer: usize,
    /// Requests per second from one address with a valid token (or without, if none is needed), on average over 10 seconds. More
    /// are answered 429. 0: no limit.
    pub max_requests_per_peer_s: u32,
    /// The same for requests without a valid token.
    pub max_unauthorized_per_peer_s: u32,
    /// Concurrent requests on one HTTP/2 connection.
    pub max_concurrent_streams: u32,
    /// Bytes of one request's headers.
    pub max_header_bytes: u32,
    /// Seconds that a client may take to send the headers of a request or its TLS handshake. Also how long an idle HTTP/1
    /// connection is kept, and any connection on which no request was let in.
    pub header_timeout_s: u64,
    /// Seconds that a connection is kept while no request runs on it.
    pub idle_timeout_s: u64,
    /// Seconds without data after which the body of a request is given up.
    pub body_timeout_s: u64,
    /// Seconds between HTTP/2 pings that find dead peers.
    pub keep_alive_s: u64,
    /// Seconds that running requests get to finish at shutdown.
    pub shutdown_s: u64,
    /// Seconds that the server keeps answering after a part of it has failed, so that `/readyz` and `/api/v1/health` can
    /// report it. Then it ends with exit code 1.
    pub failed_linger_s: u64,
    /// Bytes of a request to `/api/v1` (an SQL text, a log-in).
    pub max_api_request_bytes: usize,
    /// Concurrent clients of `/api/v1/live`.
    pub max_live_clients: usize,
    /// Attributes per span. If any of these five limits is exceeded, the span is rejected (partial success).
    pub attributes_per_span: usize,
    /// Bytes of one attribute's value.
    pub attribute_bytes: usize,
    pub events_per_span: usize,
    pub links_per_span: usize,
    /// Depth of lists and maps inside an attribute.
    pub attribute_nesting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let otlp = otlp::Limits::default();
        Limits {
            max_message_bytes: MESSAGE_BYTES,
            max_inflight_bytes: 512 << 20,
            max_runs_per_message: 1024,
            max_connections: 4096,
            max_connections_per_peer: 2048,
            max_requests_per_peer_s: 5000,
            max_unauthorized_per_peer_s: 50,
            max_concurrent_streams: 256,
            max_header_bytes: 64 << 10,
            header_timeout_s: 30,
            idle_timeout_s: 600,
            body_timeout_s: 60,
            keep_alive_s: 30,
            shutdown_s: 10,
            failed_linger_s: 10,
            max_api_request_bytes: 1 << 20,
            max_live_clients: 256,
            attributes_per_span: otlp.attributes_per_span,
            attribute_bytes: otlp.attribute_bytes,
            events_per_span: otlp.events_per_span,
            links_per_span: otlp.links_per_span,
            attribute_nesting: otlp.nesting,
        }
    }
}

impl ServerConfig {
    /// Whoever gets in has shown who they are.
    pub(crate) fn has_authentication(&self) -> bool {
        let certificates = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        !self.tokens.is_empty() || self.token_file.is_some() || certificates
    }
}

impl Limits {
    pub(crate) fn decode_options(&self) -> otlp::DecodeOptions {
        otlp::DecodeOptions {
            limits: otlp::Limits {
                attributes_per_span: self.attributes_per_span,
                attribute_bytes: self.attribute_bytes,
                events_per_span: self.events_per_span,
                links_per_span: self.links_per_span,
                nesting: self.attribute_nesting,
            },
            run: None,
            live: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_but_never_written() {
        let config: ServerConfig = serde_json::from_str(r#"{"tokens": ["hunter2"]}"#).unwrap();
        assert_eq!(config.tokens[0].expose(), "hunter2");
        assert!(!serde_json::to_string(&config).unwrap().contains("hunter2"));
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    #[test]
    fn a_misspelt_setting_is_refused() {
        let error = serde_json::from_str::<ServerConfig>(r#"{"limits": {"max_mesage_bytes": 1}}"#).unwrap_err();
        assert!(error.to_string().contains("max_mesage_bytes"), "{error}");
    }
}
