//! The effective configuration: defaults, then the file, then environment variables and flags.

use std::path::PathBuf;

use anyhow::Context;
use rollscope_query::QueryLimits;
use rollscope_server::scrape::config::ScrapeTarget;
use rollscope_server::{Secret, ServerConfig, TlsConfig};
use rollscope_store::StoreOptions;
use rollscope_tokenizer::{TokenizerRule, Tokenizers};
use serde::{Deserialize, Serialize};

use crate::args::{Role, ServeArgs, TokenizerArgs};
pub use crate::output::Usage;
use crate::place;

pub const DEFAULT_DATA: &str = "rollscope-data";

/// What the file may contain, and what `--print-config` prints.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Folder of the store, or the URL of a lake.
    pub data: PathBuf,
    /// For a lake: folder for what can be made again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<PathBuf>,
    /// For a lake: the name of this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// For a lake: what this node does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// For a lake: where this node works for queries of others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internal: Option<String>,
    /// For a lake: under which host, and perhaps port, others reach it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// Write logs as JSON lines.
    pub log_json: bool,
    pub server: ServerConfig,
    pub query: QueryLimits,
    pub store: StoreOptions,
    /// Folders that trainers write to. What is added is imported.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub watch: Vec<PathBuf>,
    /// The tokenizers of runs. The first that fits counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokenizers: Vec<TokenizerRule>,
}

impl Config {
    pub fn resolve(args: &ServeArgs) -> anyhow::Result<Config> {
        let mut config = match &args.config {
            None => Config::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path).with_context(|| format!("--config {}", path.display()))?;
                toml::from_str(&text).map_err(|e| Usage(format!("{}: {e}", path.display())))?
            }
        };
        if let Some(data) = &args.data {
            config.data = data.clone();
        }
        if config.data.as_os_str().is_empty() {
            config.data = DEFAULT_DATA.into();
        }
        config.cache = args.cache.clone().or(config.cache.take());
        config.node = args.node.clone().or(config.node.take());
        config.role = args.role.or(config.role);
        config.internal = args.internal.clone().or(config.internal.take());
        config.advertise = args.advertise.clone().or(config.advertise.take());
        if place::lake_url(&config.data).is_none() {
            let given = [
                ("role", config.role.is_some()),
                ("internal", config.internal.is_some()),
                ("advertise", config.advertise.is_some()),
            ];
            if let Some((name, _)) = given.iter().find(|(_, given)| *given) {
                let text =
                    format!("--{name} is for a lake (--data s3://BUCKET/PREFIX); a folder is served by one process");
                return Err(Usage(text).into());
            }
        }
        config.store.dir = match place::lake_url(&config.data) {
            None => config.data.clone(),
            Some(url) => {
                let node = place::node_name(config.node.as_deref(), config.role.unwrap_or_default());
                config.cache.clone().unwrap_or_else(|| place::cache_of(url).join(node))
            }
        };
        let server = &mut config.server;
        let set = |to: &mut String, from: &Option<String>| {
            if let Some(from) = from {
                *to = from.clone();
            }
        };
        set(&mut server.listen, &args.listen);
        set(&mut server.otlp_grpc, &args.otlp_grpc);
        set(&mut server.otlp_http, &args.otlp_http);
        if config.role == Some(Role::Query) {
            (server.otlp_grpc, server.otlp_http) = (String::new(), String::new());
        }
        if let Some(token) = &args.token {
            server.tokens = vec![Secret::new(token.clone())];
        }
        server.token_file = args.token_file.clone().or(server.token_file.take());
        server.insecure_no_auth |= args.insecure_no_auth;
        if let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) {
            let client_ca = server.tls.take().and_then(|tls| tls.client_ca);
            server.tls = Some(TlsConfig { cert: cert.clone(), key: key.clone(), client_ca });
        }
        if let (Some(ca), Some(tls)) = (&args.tls_client_ca, &mut server.tls) {
            tls.client_ca = Some(ca.clone());
        }
        let audit_log = args.audit_log.clone().or(server.audit_log.take());
        server.audit_log = audit_log.or_else(|| Some(config.store.dir.join("audit.log")));
        if let Some(bytes) = args.max_message_bytes {
            server.limits.max_message_bytes = bytes;
        }
        if let Some(seconds) = args.retention_age {
            config.store.retention_age_s = seconds;
        }
        if let Some(bytes) = args.retention_bytes {
            config.store.retention_bytes = bytes;
        }
        for text in &args.scrape {
            server.scrape.targets.push(ScrapeTarget::parse(text).map_err(|e| Usage(format!("--scrape {e}")))?);
        }
        server.scrape.prometheus_files.extend(args.scrape_config.iter().cloned());
        server.alarms.rules.extend(args.rules.iter().cloned());
        server.ray = args.ray.clone().or(server.ray.take());
        server.sinks.tensorboard = args.tensorboard.clone().or(server.sinks.tensorboard.take());
        server.sinks.json_lines = args.metrics_jsonl.clone().or(server.sinks.json_lines.take());
        if let Some(seconds) = args.series_full_age {
            config.store.series_full_age_s = seconds;
        }
        config.watch.extend(args.watch.iter().cloned());
        // Those of the command line come first.
        config.tokenizers.splice(..0, args.tokenizers.rules());
        config.log_json |= args.log_json;
        Ok(config)
    }

    /// A file that cannot be used is the user's mistake.
    pub fn open_tokenizers(&self) -> anyhow::Result<Tokenizers> {
        open_tokenizers(&self.tokenizers)
    }

    pub fn to_toml(&self) -> anyhow::Result<String> {
        Ok(toml::to_string_pretty(self)?)
    }
}

fn open_tokenizers(rules: &[TokenizerRule]) -> anyhow::Result<Tokenizers> {
    Tokenizers::open(rules).map_err(|e| Usage(format!("tokenizer: {e}")).into())
}

impl TokenizerArgs {
    fn rules(&self) -> impl Iterator<Item = TokenizerRule> {
        self.tokenizer.iter().map(|flag| TokenizerRule::from_flag(flag))
    }

    /// For commands that read a folder. A server has tokenizers of its own.
    pub fn open(&self, reads_folder: bool) -> anyhow::Result<Tokenizers> {
        if !reads_folder && !self.tokenizer.is_empty() {
            let text =
                "--tokenizer is for folders (--data DIR); a server uses those that `rollscope serve` was started with";
            return Err(Usage(text.into()).into());
        }
        open_tokenizers(&self.rules().collect::<Vec<_>>())
    }
}
