//! Nodes of a lake: this one's work for the queries of others, and theirs for the queries of this one.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context;
use rollscope_query::{WorkerServer, Workers};
use rollscope_store::{AboutNode, BEAT, Lake, SeenNode, Store, WorkerEntry};
use tokio::net::TcpListener;
use url::{Host, Url};

use super::serve::StopSignals;
use crate::args::Role;
use crate::config::{Config, Usage};
use crate::place;

/// On any port: others find it through the lake.
const DEFAULT_INTERNAL: &str = "127.0.0.1:0";

/// Where this node will work for others.
pub struct Internal {
    listener: TcpListener,
    url: String,
}

impl Internal {
    /// Listens, if the role of the node asks for it.
    pub async fn listen(config: &Config) -> anyhow::Result<Option<Internal>> {
        if !config.role.unwrap_or_default().works() {
            return Ok(None);
        }
        let address = config.internal.as_deref().unwrap_or(DEFAULT_INTERNAL);
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| {
            format!("cannot listen on --internal {address}, where other nodes reach this one; choose another address, or --role ingest or query")
        })?;
        let url = advertised(listener.local_addr()?, config.advertise.as_deref())?;
        Ok(Some(Internal { listener, url }))
    }

    /// Begins to work.
    pub fn start(self, config: &Config, lake: &Lake) -> anyhow::Result<WorkerServer> {
        Ok(WorkerServer::start(self.listener.into_std()?, lake.objects.clone(), &lake.key, &config.query)?)
    }
}

/// Under which URL others reach this address.
fn advertised(bound: SocketAddr, given: Option<&str>) -> anyhow::Result<String> {
    let host = match given {
        Some(given) if given.parse::<Ipv6Addr>().is_ok() => format!("[{given}]"),
        Some(given) => given.to_string(),
        None if bound.ip().is_unspecified() => place::host_name(),
        None => match bound.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        },
    };
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let text = if has_port { format!("http://{host}") } else { format!("http://{host}:{}", bound.port()) };
    let url = Url::parse(&text).ok().filter(|url| url.has_host() && url.path() == "/" && url.query().is_none());
    match url {
        Some(_) => Ok(text),
        None => {
            Err(Usage(format!("--advertise {host}: expected a host, or a host and a port, such as 10.0.0.3:7201"))
                .into())
        }
    }
}

/// What this node says of itself.
pub fn about(config: &Config, internal: Option<&Internal>) -> AboutNode {
    let role = config.role.unwrap_or_default();
    AboutNode {
        name: place::node_name(config.node.as_deref(), role),
        role: role.name().into(),
        host: place::host_name(),
        worker: internal.map(|internal| internal.url.clone()),
        alarms: config.server.alarms.fingerprint(),
    }
}

/// The nodes that work for the queries of a store.
pub struct Peers {
    store: Store,
    key: String,
    own: AboutNode,
}

impl Peers {
    pub fn new(store: &Store, lake: &Lake) -> Arc<Peers> {
        Arc::new(Peers { store: store.clone(), key: lake.key.clone(), own: lake.node.clone() })
    }
}

impl Workers for Peers {
    fn urls(&self) -> Vec<Url> {
        let nodes = self.store.nodes().into_iter();
        let there = nodes.filter(|node| node.is_there() && node.version == env!("CARGO_PKG_VERSION"));
        let reached = |node: SeenNode| {
            let url = Url::parse(&node.about.worker?).ok()?;
            // The loopback of another machine is not ours.
            let local = match url.host()? {
                Host::Ipv4(ip) => ip.is_loopback(),
                Host::Ipv6(ip) => ip.is_loopback(),
                Host::Domain(name) => name == "localhost",
            };
            (!local || node.about.host == self.own.host).then_some(url)
        };
        let workers: Vec<Url> = there.filter_map(reached).collect();
        let own = self.own.worker.as_deref().and_then(|url| Url::parse(url).ok());
        // This node alone needs no network.
        if workers.iter().all(|url| Some(url) == own.as_ref()) { Vec::new() } else { workers }
    }

    fn key(&self) -> String {
        self.key.clone()
    }
}

/// `rollscope executor`, or `serve --role worker`: works for others until it is told to stop.
pub async fn work(config: &Config, mut signals: StopSignals) -> anyhow::Result<()> {
    let Some(url) = place::lake_url(&config.data) else {
        let text = "--data must name a lake, such as s3://BUCKET/PREFIX; a folder has no workers";
        return Err(Usage(text.into()).into());
    };
    let config = &Config { role: Some(Role::Worker), ..config.clone() };
    let internal = Internal::listen(config).await?.expect("a worker works");
    let mut node = about(config, Some(&internal));
    if config.node.is_none() {
        // Several workers of a machine have several ports.
        node.name = format!("{}-{}", node.name, internal.listener.local_addr()?.port());
    }
    let (name, address) = (node.name.clone(), internal.url.clone());
    let lake = place::lake_for_reading(url, node).await?;
    let server = internal.start(config, &lake)?;
    let mut entry = WorkerEntry::new(&lake);
    entry.beat().await?;
    println!("worker {name} is at {address}");
    println!("data            {url}");
    let beats = async {
        loop {
            tokio::time::sleep(BEAT).await;
            if let Err(e) = entry.beat().await {
                tracing::warn!(error = %e, "cannot tell the other nodes that this one is there");
            }
        }
    };
    tokio::select! {
        () = signals.received() => {}
        () = beats => {}
    }
    if let Err(e) = entry.leave().await {
        tracing::warn!(error = %e, "cannot sign off");
    }
    server.stop().await;
    Ok(())
}
