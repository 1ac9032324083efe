//! Prometheus's own configuration, as far as we understand it: static targets and file-based discovery. Everything else is
//! refused by name, because a target that is silently scraped differently is worse than one that is not scraped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rollscope_app::duration::parse_duration;
use serde::Deserialize;
use serde_yaml_ng::Value;

use super::config::{ScrapeTarget, ScrapeTls, without_credentials};
use rollscope_app::secret::Secret;

/// Largest file that is read.
const MAX_BYTES: u64 = 8 << 20;

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    global: Global,
    #[serde(default)]
    scrape_configs: Vec<Job>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

#[derive(Default, Deserialize)]
struct Global {
    scrape_interval: Option<String>,
    scrape_timeout: Option<String>,
    /// Has no effect on what is stored here, as in Prometheus.
    #[serde(default, rename = "external_labels")]
    _external_labels: BTreeMap<String, String>,
    #[serde(rename = "evaluation_interval")]
    _evaluation_interval: Option<String>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Job {
    job_name: String,
    scrape_interval: Option<String>,
    scrape_timeout: Option<String>,
    metrics_path: Option<String>,
    scheme: Option<String>,
    #[serde(default)]
    params: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    honor_labels: bool,
    honor_timestamps: Option<bool>,
    basic_auth: Option<BasicAuth>,
    authorization: Option<Authorization>,
    bearer_token: Option<String>,
    bearer_token_file: Option<PathBuf>,
    tls_config: Option<Tls>,
    #[serde(default)]
    static_configs: Vec<Group>,
    #[serde(default)]
    file_sd_configs: Vec<FileSd>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

#[derive(Clone, Deserialize)]
struct Group {
    #[serde(default)]
    targets: Vec<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct FileSd {
    files: Vec<String>,
    #[serde(rename = "refresh_interval")]
    _refresh_interval: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BasicAuth {
    username: String,
    #[serde(default)]
    password: String,
    password_file: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Authorization {
    #[serde(rename = "type")]
    kind: Option<String>,
    credentials: Option<String>,
    credentials_file: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tls {
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    #[serde(default)]
    insecure_skip_verify: bool,
}

/// The jobs of a Prometheus file: targets that are known, and files to look for more.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    pub targets: Vec<ScrapeTarget>,
    pub discovered: Vec<Discovery>,
}

/// Targets listed in files that may change: each of them is a copy of `like` with its own address and labels.
#[derive(Clone, Debug)]
pub struct Discovery {
    like: ScrapeTarget,
    scheme: String,
    path: String,
    patterns: Vec<String>,
}

fn read_small_file(path: &Path) -> Result<String, String> {
    let size = std::fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?.len();
    if size > MAX_BYTES {
        return Err(format!("{}: the file is larger than {MAX_BYTES} bytes", path.display()));
    }
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn refuse(path: &Path, place: &str, rest: &BTreeMap<String, Value>) -> Result<(), String> {
    match rest.keys().next() {
        None => Ok(()),
        Some(key) => Err(format!(
            "{}: {place}`{key}` is not supported; rollscope supports static_configs and file_sd_configs with their addresses, \
             labels, intervals, credentials and TLS; remove it, or let Prometheus scrape this job",
            path.display()
        )),
    }
}

pub fn load(path: &Path) -> Result<Jobs, String> {
    let text = read_small_file(path)?;
    let file: File = serde_yaml_ng::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
    refuse(path, "", &file.rest)?;
    refuse(path, "global.", &file.global.rest)?;
    let base = path.parent().unwrap_or(Path::new("."));
    let mut jobs = Jobs::default();
    for job in &file.scrape_configs {
        let place = format!("job {:?}: ", job.job_name);
        refuse(path, &place, &job.rest)?;
        let fail = |e: String| format!("{}: {place}{e}", path.display());
        let like = template(job, &file.global, base).map_err(fail)?;
        let scheme = job.scheme.clone().unwrap_or_else(|| "http".into());
        if scheme != "http" && scheme != "https" {
            return Err(fail(format!("unknown scheme {scheme:?}; expected http or https")));
        }
        let path = with_params(job);
        for group in &job.static_configs {
            jobs.targets.extend(expand(&like, &scheme, &path, group).map_err(fail)?);
        }
        for sd in &job.file_sd_configs {
            let patterns = sd.files.iter().map(|f| base.join(f).to_string_lossy().into_owned()).collect();
            let (scheme, path) = (scheme.clone(), path.clone());
            jobs.discovered.push(Discovery { like: like.clone(), scheme, path, patterns });
        }
    }
    Ok(jobs)
}

fn with_params(job: &Job) -> String {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    let mut path = job.metrics_path.clone().unwrap_or_else(|| "/metrics".into());
    for (key, values) in &job.params {
        for value in values {
            path.push(if path.contains('?') { '&' } else { '?' });
            path.push_str(&utf8_percent_encode(key, NON_ALPHANUMERIC).to_string());
            path.push('=');
            path.push_str(&utf8_percent_encode(value, NON_ALPHANUMERIC).to_string());
        }
    }
    path
}

fn template(job: &Job, global: &Global, base: &Path) -> Result<ScrapeTarget, String> {
    let seconds = |own: &Option<String>, shared: &Option<String>, default: f64| -> Result<f64, String> {
        own.as_ref().or(shared.as_ref()).map_or(Ok(default), |text| Ok(parse_duration(text)?.as_secs_f64()))
    };
    let mut headers = BTreeMap::new();
    if let Some(auth) = &job.basic_auth {
        let password = match &auth.password_file {
            Some(file) => read_small_file(&base.join(file))?.trim().to_string(),
            None => auth.password.clone(),
        };
        let token = crate::scrape::base64(format!("{}:{password}", auth.username).as_bytes());
        headers.insert("authorization".to_string(), Secret::new(format!("Basic {token}")));
    }
    let mut token_file = job.bearer_token_file.clone();
    if let Some(token) = &job.bearer_token {
        headers.insert("authorization".into(), Secret::new(format!("Bearer {token}")));
    }
    if let Some(auth) = &job.authorization {
        let kind = auth.kind.as_deref().unwrap_or("Bearer");
        if let Some(credentials) = &auth.credentials {
            headers.insert("authorization".into(), Secret::new(format!("{kind} {credentials}")));
        }
        match &auth.credentials_file {
            Some(_) if kind != "Bearer" => return Err("credentials_file is supported only with type Bearer".into()),
            file => token_file = file.clone().or(token_file),
        }
    }
    Ok(ScrapeTarget {
        // Prometheus's own defaults.
        interval_s: seconds(&job.scrape_interval, &global.scrape_interval, 60.0)?,
        timeout_s: seconds(&job.scrape_timeout, &global.scrape_timeout, 10.0)?,
        job: job.job_name.clone(),
        headers,
        bearer_token_file: token_file.map(|f| base.join(f)),
        tls: job.tls_config.as_ref().map(|tls| ScrapeTls {
            ca_file: tls.ca_file.as_ref().map(|f| base.join(f)),
            cert_file: tls.cert_file.as_ref().map(|f| base.join(f)),
            key_file: tls.key_file.as_ref().map(|f| base.join(f)),
            insecure_skip_verify: tls.insecure_skip_verify,
        }),
        honor_labels: job.honor_labels,
        ignore_timestamps: job.honor_timestamps == Some(false),
        ..ScrapeTarget::default()
    })
}

fn expand(like: &ScrapeTarget, scheme: &str, path: &str, group: &Group) -> Result<Vec<ScrapeTarget>, String> {
    if let Some(special) = group.labels.keys().find(|k| k.starts_with("__")) {
        return Err(format!("the label {special:?} is not supported, because it is for relabelling"));
    }
    let targets = group.targets.iter().map(|address| {
        if address.contains('/') {
            let shown = without_credentials(address);
            return Err(format!("{shown:?} is not a valid address; expected HOST:PORT"));
        }
        let port = if scheme == "https" { 443 } else { 80 };
        // `USER:PASSWORD@` is for the request alone.
        let (credentials, host) = address.split_at(address.rfind('@').map_or(0, |at| at + 1));
        let full = if host.contains(':') { host.to_string() } else { format!("{host}:{port}") };
        let mut target = like.clone();
        target.url = format!("{scheme}://{credentials}{full}{path}");
        target.instance = full;
        target.labels = group.labels.clone();
        for (name, into) in [("job", &mut target.job), ("instance", &mut target.instance)] {
            if let Some(value) = target.labels.remove(name) {
                *into = value;
            }
        }
        target.check()?;
        Ok(target)
    });
    targets.collect()
}

impl Discovery {
    /// The targets that the files list now. A file that cannot be read is reported; the others count.
    pub fn targets(&self, mut failed: impl FnMut(String)) -> Vec<ScrapeTarget> {
        let mut found = Vec::new();
        for pattern in &self.patterns {
            let paths = match glob::glob(pattern) {
                Ok(paths) => paths.flatten().collect::<Vec<_>>(),
                Err(e) => {
                    failed(format!("{pattern}: {e}"));
                    continue;
                }
            };
            for path in paths {
                // JSON is YAML.
                let groups = read_small_file(&path).and_then(|text| {
                    serde_yaml_ng::from_str::<Vec<Group>>(&text).map_err(|e| format!("{}: {e}", path.display()))
                });
                match groups.and_then(|groups| {
                    groups
                        .iter()
                        .map(|g| expand(&self.like, &self.scheme, &self.path, g))
                        .collect::<Result<Vec<_>, _>>()
                }) {
                    Ok(targets) => found.extend(targets.into_iter().flatten()),
                    Err(e) => failed(e),
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str, work: impl Fn(Result<Jobs, String>, &Path)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("prometheus.yml");
        std::fs::write(&path, text).unwrap();
        work(load(&path), dir.path());
    }

    #[test]
    fn static_and_file_targets() {
        let text = "global:\n  scrape_interval: 5s\nscrape_configs:\n- job_name: sglang\n  metrics_path: /engine_metrics\n  \
            params: {a: [b c]}\n  authorization: {credentials: secret}\n  static_configs:\n  - targets: ['h1:30000', h2]\n    \
            labels: {role: decode}\n  file_sd_configs:\n  - files: ['t*.json']\n";
        with(text, |jobs, dir| {
            let jobs = jobs.unwrap();
            let first = &jobs.targets[0];
            assert_eq!(first.url, "http://h1:30000/engine_metrics?a=b%20c");
            assert_eq!((first.job(), first.interval_s, first.labels["role"].as_str()), ("sglang", 5.0, "decode"));
            assert_eq!(first.headers["authorization"].expose(), "Bearer secret");
            assert_eq!(jobs.targets[1].instance(), "h2:80");
            std::fs::write(dir.join("t1.json"), r#"[{"targets": ["h3:1"], "labels": {"instance": "three"}}]"#).unwrap();
            std::fs::write(dir.join("t2.json"), "no list").unwrap();
            let mut failed = Vec::new();
            let found = jobs.discovered[0].targets(|e| failed.push(e));
            assert_eq!(
                (found[0].url.as_str(), found[0].instance().as_str()),
                ("http://h3:1/engine_metrics?a=b%20c", "three")
            );
            assert_eq!((found.len(), failed.len()), (1, 1));
        });
    }

    #[test]
    fn credentials_of_an_address_are_in_its_url_alone() {
        with(
            "scrape_configs: [{job_name: a, static_configs: [{targets: ['u:secret@h1', 'u:secret@h2:9']}]}]",
            |jobs, _| {
                let targets = jobs.unwrap().targets;
                let shown: Vec<_> = targets.iter().map(|t| (t.url.as_str(), t.instance(), t.shown_url())).collect();
                let one = ("http://u:secret@h1:80/metrics", "h1:80".to_string(), "http://h1:80/metrics".to_string());
                let two = ("http://u:secret@h2:9/metrics", "h2:9".to_string(), "http://h2:9/metrics".to_string());
                assert_eq!(shown, [one, two]);
            },
        );
        let bad = "scrape_configs: [{job_name: a, static_configs: [{targets: ['http://u:secret@x/y']}]}]";
        with(bad, |jobs, _| {
            let error = jobs.unwrap_err();
            assert!(error.contains("http://x/y") && !error.contains("secret"), "{error}");
        });
    }

    #[test]
    fn the_rest_is_refused_by_name() {
        for (text, named) in [
            ("scrape_configs: [{job_name: a, relabel_configs: []}]", "`relabel_configs`"),
            ("scrape_configs: [{job_name: a, kubernetes_sd_configs: []}]", "`kubernetes_sd_configs`"),
            ("remote_write: []", "`remote_write`"),
            ("global: {query_log_file: x}", "`query_log_file`"),
            ("scrape_configs: [{job_name: a, static_configs: [{targets: ['http://x/y']}]}]", "not a valid address"),
            ("scrape_configs: [{job_name: a, scrape_interval: soon}]", "soon"),
            ("scrape_configs: [{job_name: a, static_configs: [{targets: [x], labels: {__path__: y}}]}]", "__path__"),
            ("[", "prometheus.yml"),
        ] {
            with(text, |jobs, _| {
                let error = jobs.unwrap_err();
                assert!(error.contains(named), "{error}");
            });
        }
    }
}
