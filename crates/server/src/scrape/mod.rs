//! Scraping: one loop per target reads its page at intervals, [`page`] turns it into rows, the store appends them. [`files`]
//! reads Prometheus's configuration. A target that is down is visible (`GET /api/v1/scrape`, `up`) and counted.
//!
//! The time of a sample is the planned time of its scrape if it began within half a percent of the interval of it: regular
//! times take almost no room on disk, and rates do not shake.

pub mod config;
mod files;
mod page;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use base64::Engine as _;
use parking_lot::Mutex;
use rollscope_model::Table;
use rollscope_model::time::now_ns;
use rollscope_store::Store;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use ureq::tls;
use utoipa::ToSchema;

use crate::metrics::add;
use config::{ScrapeConfig, ScrapeLimits, ScrapeTarget};
use files::Discovery;
use page::Pages;

/// How often files with lists of targets are read again.
const REFRESH: Duration = Duration::from_secs(5);
/// What we can read, best first: word for word what Prometheus 3 asks for. Without `escaping=allow-utf-8` newer clients
/// write `_` for every colon and dot of a name.
const ACCEPT: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
    application/openmetrics-text;version=0.0.1;q=0.5,\
    text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
    text/plain;version=0.0.4;q=0.3,*/*;q=0.2";

pub(crate) fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// How a target is.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct TargetStatus {
    pub url: String,
    pub job: String,
    pub instance: String,
    pub labels: BTreeMap<String, String>,
    pub interval_s: f64,
    /// Null before the first scrape.
    #[schema(required)]
    pub up: Option<bool>,
    /// Why the last scrape failed, or what was wrong on the page.
    #[schema(required)]
    pub problem: Option<String>,
    /// Nanoseconds, as text.
    #[schema(required)]
    pub last_ns: Option<String>,
    pub duration_s: f64,
    /// Samples of the last page.
    pub samples: u64,
    /// Series the target has now.
    pub series: u64,
    pub scrapes: u64,
    pub failures: u64,
    pub bad_lines: u64,
    pub duplicates: u64,
    pub out_of_order: u64,
}

/// Over all targets, for `/metrics`.
#[derive(Debug, Default)]
pub struct ScrapeCounters {
    pub scrapes: AtomicU64,
    pub failures: AtomicU64,
    pub samples: AtomicU64,
    pub bad_lines: AtomicU64,
    pub duplicates: AtomicU64,
    pub out_of_order: AtomicU64,
    /// Pages whose rows the store did not take.
    pub not_stored: AtomicU64,
}

/// A target that is scraped. Its status is for everyone to see, and its address there has no credentials.
struct Known {
    url: String,
    status: Arc<Mutex<TargetStatus>>,
}

/// The running scrapes.
#[derive(Clone, Default)]
pub struct Scraping {
    targets: Arc<Mutex<BTreeMap<String, Known>>>,
    pub counters: Arc<ScrapeCounters>,
    /// What is wrong with lists of targets.
    problems: Arc<Mutex<Vec<String>>>,
}

impl Scraping {
    /// Checks the configuration and starts a loop for every target. Ends with `stop`.
    pub fn start(config: &ScrapeConfig, store: &Store, stop: &CancellationToken) -> Result<Scraping, String> {
        let scraping = Scraping::default();
        let mut targets = config.targets.clone();
        let mut discovered = Vec::new();
        for target in &targets {
            target.check()?;
        }
        for path in &config.prometheus_files {
            let jobs = files::load(path)?;
            targets.extend(jobs.targets);
            discovered.extend(jobs.discovered);
        }
        if targets.len() > config.limits.max_targets {
            return Err(format!(
                "there are {} targets, more than max_targets = {}; remove some or raise the limit",
                targets.len(),
                config.limits.max_targets
            ));
        }
        let runner = Runner {
            config: config.clone(),
            store: store.clone(),
            scraping: scraping.clone(),
            stop: stop.clone(),
            running: BTreeMap::new(),
        };
        if !targets.is_empty() || !discovered.is_empty() {
            store.vitals().task("scraper", runner.run(targets, discovered));
        }
        Ok(scraping)
    }

    pub fn status(&self) -> Vec<TargetStatus> {
        self.targets.lock().values().map(|t| t.status.lock().clone()).collect()
    }

    /// The addresses of the targets, with the credentials in them: to call them, not to show them.
    pub fn urls(&self) -> Vec<String> {
        self.targets.lock().values().map(|t| t.url.clone()).collect()
    }

    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.problems.lock().clone();
        for target in self.status().iter().filter(|t| t.up == Some(false)) {
            let why = target.problem.as_deref().unwrap_or("unknown reason");
            problems.push(format!("the scrape target {} is down: {why}", target.url));
        }
        problems
    }
}

struct Runner {
    config: ScrapeConfig,
    store: Store,
    scraping: Scraping,
    stop: CancellationToken,
    running: BTreeMap<String, (ScrapeTarget, CancellationToken)>,
}

/// A target is known by its address and its labels.
fn key(target: &ScrapeTarget) -> String {
    format!("{} {} {} {:?}", target.url, target.job(), target.instance(), target.labels)
}

impl Runner {
    async fn run(mut self, fixed: Vec<ScrapeTarget>, discovered: Vec<Discovery>) {
        loop {
            let mut wanted = fixed.clone();
            let mut problems = Vec::new();
            if !discovered.is_empty() {
                let lists = discovered.clone();
                let found = tokio::task::spawn_blocking(move || {
                    let mut problems = Vec::new();
                    let targets: Vec<_> = lists.iter().flat_map(|d| d.targets(|e| problems.push(e))).collect();
                    (targets, problems)
                });
                if let Ok((targets, failed)) = found.await {
                    wanted.extend(targets);
                    problems = failed;
                }
            }
            let over = wanted.len().saturating_sub(self.config.limits.max_targets);
            if over > 0 {
                problems.push(format!(
                    "{over} scrape targets were left out because of max_targets = {}",
                    self.config.limits.max_targets
                ));
                wanted.truncate(self.config.limits.max_targets);
            }
            let before = std::mem::replace(&mut *self.scraping.problems.lock(), problems.clone());
            problems.iter().filter(|p| !before.contains(p)).for_each(|p| tracing::warn!("scraping: {p}"));
            self.apply(wanted);
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(REFRESH), if !discovered.is_empty() => {}
            }
        }
    }

    /// Starts what is new, stops what is gone.
    fn apply(&mut self, wanted: Vec<ScrapeTarget>) {
        let wanted: BTreeMap<String, ScrapeTarget> = wanted.into_iter().map(|t| (key(&t), t)).collect();
        self.running.retain(|key, (target, stop)| {
            let stays = wanted.get(key) == Some(target);
            if !stays {
                stop.cancel();
                self.scraping.targets.lock().remove(key);
            }
            stays
        });
        for (key, target) in wanted {
            if self.running.contains_key(&key) {
                continue;
            }
            let stop = self.stop.child_token();
            let or = |own: f64, shared: f64| if own > 0.0 { own } else { shared };
            let interval = Duration::from_secs_f64(or(target.interval_s, self.config.interval_s).clamp(0.1, 86_400.0));
            let timeout = Duration::from_secs_f64(or(target.timeout_s, self.config.timeout_s).clamp(0.1, 86_400.0));
            let status = Arc::new(Mutex::new(TargetStatus {
                url: target.shown_url(),
                job: target.job().to_string(),
                instance: target.instance(),
                labels: target.labels.clone(),
                interval_s: interval.as_secs_f64(),
                ..TargetStatus::default()
            }));
            let known = Known { url: target.url.clone(), status: status.clone() };
            self.scraping.targets.lock().insert(key.clone(), known);
            let job = Job {
                target: target.clone(),
                limits: self.config.limits.clone(),
                interval,
                timeout: timeout.min(interval),
                store: self.store.clone(),
                status,
                counters: self.scraping.counters.clone(),
            };
            self.store.vitals().task("scrape-target", job.run(stop.clone()));
            self.running.insert(key, (target, stop));
        }
    }
}

/// One target's loop.
struct Job {
    target: ScrapeTarget,
    limits: ScrapeLimits,
    interval: Duration,
    timeout: Duration,
    store: Store,
    status: Arc<Mutex<TargetStatus>>,
    counters: Arc<ScrapeCounters>,
}

fn now_ms() -> i64 {
    now_ns() / 1_000_000
}

impl Job {
    async fn run(self, stop: CancellationToken) {
        let mut pages = Pages::new(&self.target, &self.limits);
        let every = (self.interval.as_millis() as i64).max(1);
        let tolerance = (every / 200).max(2);
        let mut planned = now_ms();
        loop {
            let wait = planned - now_ms();
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(Duration::from_millis(wait.max(0) as u64)) => {}
            }
            let now = now_ms();
            let at = if (now - planned).abs() <= tolerance { planned } else { now };
            pages = self.once(pages, at).await;
            // A scrape that took longer than the interval leaves out what it missed.
            planned += every;
            let late = now_ms() - planned;
            if late > tolerance {
                planned += (late / every + 1) * every;
            }
        }
    }

    async fn once(&self, mut pages: Pages, at_ms: i64) -> Pages {
        let started = Instant::now();
        let (target, limits, timeout) = (self.target.clone(), self.limits.clone(), self.timeout);
        let fetched = tokio::task::spawn_blocking(move || fetch(&target, limits.max_page_bytes, timeout)).await;
        let took_s = started.elapsed().as_secs_f64();
        let fetched = fetched.unwrap_or_else(|e| Err(format!("the scrape ended unexpectedly: {e}")));
        let read = match fetched {
            Err(why) => Err(why),
            Ok((text, open_metrics)) => {
                let task = tokio::task::spawn_blocking(move || {
                    let read = pages.read_page(&text, open_metrics, at_ms, took_s);
                    (pages, read)
                });
                match task.await {
                    Ok((back, read)) => {
                        pages = back;
                        read
                    }
                    Err(e) => {
                        pages = Pages::new(&self.target, &self.limits);
                        Err(format!("cannot read the page: {e}"))
                    }
                }
            }
        };
        add(&self.counters.scrapes, 1);
        let mut status = self.status.lock().clone();
        status.scrapes += 1;
        status.last_ns = Some((at_ms * 1_000_000).to_string());
        status.duration_s = took_s;
        let batch = match read {
            Ok((batch, out)) => {
                status.up = Some(true);
                status.problem = (!out.reasons.is_empty()).then(|| out.reasons.join("; "));
                status.samples = out.samples as u64;
                status.bad_lines += out.bad_lines;
                status.duplicates += out.duplicates;
                status.out_of_order += out.out_of_order;
                add(&self.counters.samples, out.kept as u64);
                add(&self.counters.bad_lines, out.bad_lines);
                add(&self.counters.duplicates, out.duplicates);
                add(&self.counters.out_of_order, out.out_of_order);
                Ok(batch)
            }
            Err(why) => {
                if status.up != Some(false) {
                    tracing::warn!(url = self.target.shown_url(), why, "a scrape target is down");
                }
                status.up = Some(false);
                status.problem = Some(why);
                status.failures += 1;
                status.samples = 0;
                add(&self.counters.failures, 1);
                pages.failed(at_ms, took_s)
            }
        };
        status.series = pages.series() as u64;
        let stored = match batch {
            Ok(batch) => self.store.append(Table::Series, batch).await.map(|_| ()).map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        };
        if let Err(e) = stored {
            add(&self.counters.not_stored, 1);
            tracing::warn!(url = self.target.shown_url(), error = e, "cannot store scraped samples");
            status.problem = Some(format!("cannot store the samples: {e}"));
        }
        *self.status.lock() = status;
        pages
    }
}

fn agent(target: &ScrapeTarget, timeout: Duration) -> Result<ureq::Agent, String> {
    let mut config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(timeout))
        .max_redirects(2)
        .user_agent(concat!("rollscope/", env!("CARGO_PKG_VERSION")));
    if let Some(wanted) = &target.tls {
        let read = |path: &std::path::Path| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
        let mut builder = tls::TlsConfig::builder().disable_verification(wanted.insecure_skip_verify);
        if let Some(path) = &wanted.ca_file {
            let pem = read(path)?;
            let certs: Vec<_> = tls::parse_pem(&pem)
                .filter_map(|item| match item {
                    Ok(tls::PemItem::Certificate(cert)) => Some(cert),
                    _ => None,
                })
                .collect();
            if certs.is_empty() {
                return Err(format!("{}: the file has no certificate", path.display()));
            }
            builder = builder.root_certs(tls::RootCerts::new_with_certs(&certs));
        }
        if let (Some(cert), Some(key)) = (&wanted.cert_file, &wanted.key_file) {
            let (cert_pem, key_pem) = (read(cert)?, read(key)?);
            let cert = tls::Certificate::from_pem(&cert_pem).map_err(|e| format!("{}: {e}", cert.display()))?;
            let key = tls::PrivateKey::from_pem(&key_pem).map_err(|e| format!("{}: {e}", key.display()))?;
            builder = builder.client_cert(Some(tls::ClientCert::new_with_certs(&[cert], key)));
        }
        config = config.tls_config(builder.build());
    }
    Ok(config.build().into())
}

/// The page, and whether it is OpenMetrics.
fn fetch(target: &ScrapeTarget, limit: u64, timeout: Duration) -> Result<(String, bool), String> {
    let mut request = agent(target, timeout)?.get(&target.url).header("accept", ACCEPT);
    for (name, value) in &target.headers {
        request = request.header(name, value.expose());
    }
    if let Some(path) = &target.bearer_token_file {
        let token = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        request = request.header("authorization", format!("Bearer {}", token.trim()));
    }
    // An address that is wrong is in the error.
    let failed = |e: ureq::Error| e.to_string().replace(&target.url, &target.shown_url());
    let mut response = request.call().map_err(failed)?;
    if !response.status().is_success() {
        return Err(format!("the target answered {}", response.status()));
    }
    let kind = response.headers().get("content-type").and_then(|v| v.to_str().ok()).unwrap_or_default();
    let open_metrics = kind.starts_with("application/openmetrics-text");
    let body = response.body_mut().with_config().limit(limit).read_to_vec().map_err(|e| match e {
        ureq::Error::BodyExceedsLimit(_) => format!("the page is larger than max_page_bytes = {limit}"),
        other => other.to_string(),
    })?;
    let text = String::from_utf8(body)
        .map_err(|e| format!("the page is not valid UTF-8 at byte {}", e.utf8_error().valid_up_to()))?;
    Ok((text, open_metrics))
}
