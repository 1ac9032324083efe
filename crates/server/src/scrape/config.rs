//! What is scraped and how. The operator configures targets, data never does.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rollscope_app::duration::parse_duration;
use rollscope_formats::import::prometheus::Limits;
use serde::{Deserialize, Serialize};

use rollscope_app::secret::Secret;

/// `[server.scrape]` of the configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScrapeConfig {
    /// Seconds between two scrapes, unless a target sets its own.
    pub interval_s: f64,
    /// Seconds that a scrape may take. At most the interval.
    pub timeout_s: f64,
    /// Prometheus configuration files whose `scrape_configs` are used.
    pub prometheus_files: Vec<PathBuf>,
    pub limits: ScrapeLimits,
    pub targets: Vec<ScrapeTarget>,
}

impl Default for ScrapeConfig {
    fn default() -> Self {
        ScrapeConfig {
            interval_s: 10.0,
            timeout_s: 10.0,
            prometheus_files: Vec::new(),
            limits: ScrapeLimits::default(),
            targets: Vec::new(),
        }
    }
}

/// If one of these is exceeded, the whole scrape fails: `up` is 0, and the status of the target gives the reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScrapeLimits {
    /// Bytes of a page, after decompression.
    pub max_page_bytes: u64,
    /// Samples per page. This stops label sets that explode.
    pub max_samples: usize,
    /// Labels per series. If this or the next limit is exceeded, only the line is rejected.
    pub max_labels: usize,
    /// Bytes of a label's value.
    pub max_label_bytes: usize,
    /// Total number of targets.
    pub max_targets: usize,
}

impl Default for ScrapeLimits {
    fn default() -> Self {
        ScrapeLimits {
            max_page_bytes: 64 << 20,
            max_samples: 200_000,
            max_labels: 64,
            max_label_bytes: 4096,
            max_targets: 4096,
        }
    }
}

impl ScrapeLimits {
    /// What one series may have.
    pub fn of_series(&self) -> Limits {
        Limits { labels: self.max_labels, value_bytes: self.max_label_bytes, ..Limits::default() }
    }
}

/// One page that is scraped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScrapeTarget {
    pub url: String,
    /// 0 means the value in `[server.scrape]`.
    pub interval_s: f64,
    /// 0 means the value in `[server.scrape]`.
    pub timeout_s: f64,
    /// The label `job`. Empty: `rollscope`.
    pub job: String,
    /// The label `instance`. Empty: host and port of the URL.
    pub instance: String,
    /// Further labels of every series of the target.
    pub labels: BTreeMap<String, String>,
    /// Sent with every scrape.
    pub headers: BTreeMap<String, Secret>,
    /// File whose text is sent as a bearer token; read for every scrape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bearer_token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ScrapeTls>,
    /// Labels of the page take precedence over those of the target. Otherwise the page's are renamed to `exported_...`.
    pub honor_labels: bool,
    /// Ignore the times on the page.
    pub ignore_timestamps: bool,
    /// The run that the series belong to. Empty: no run in particular. They then show under every run at that time.
    pub run: String,
}

/// How to trust an HTTPS target, and how to be trusted by it. PEM files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScrapeTls {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    pub insecure_skip_verify: bool,
}

/// An address without the user and the password in it: for logs and answers.
pub fn without_credentials(url: &str) -> String {
    let (scheme, rest) = url.split_at(url.find("://").map_or(0, |at| at + 3));
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}{host}{path}")
}

impl ScrapeTarget {
    /// `URL` or `URL@10s`, as on the command line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (url, interval) = match text.rsplit_once('@') {
            // `user@host` is not an interval.
            Some((url, interval))
                if interval.starts_with(|c: char| c.is_ascii_digit()) && !interval.contains(['/', '.', ':']) =>
            {
                (url, Some(interval))
            }
            _ => (text, None),
        };
        let interval_s = interval.map(parse_duration).transpose()?.map_or(0.0, |d| d.as_secs_f64());
        if interval.is_some() && interval_s < 0.1 {
            return Err(format!("{}: the interval must be at least 100ms", without_credentials(text)));
        }
        let target = ScrapeTarget { url: url.to_string(), interval_s, ..ScrapeTarget::default() };
        target.check()?;
        Ok(target)
    }

    pub fn check(&self) -> Result<(), String> {
        let rest = self.url.strip_prefix("http://").or_else(|| self.url.strip_prefix("https://"));
        match rest {
            Some(rest) if !rest.is_empty() && !rest.starts_with('/') => Ok(()),
            _ => {
                let shown = self.shown_url();
                Err(format!("{shown:?} is not a valid address; expected http://HOST:PORT/metrics"))
            }
        }
    }

    pub fn shown_url(&self) -> String {
        without_credentials(&self.url)
    }

    pub fn instance(&self) -> String {
        if !self.instance.is_empty() {
            return self.instance.clone();
        }
        let rest = self.url.split_once("://").map_or(self.url.as_str(), |(_, rest)| rest);
        let host = rest.split(['/', '?']).next().unwrap_or(rest);
        host.rsplit_once('@').map_or(host, |(_, host)| host).to_string()
    }

    pub fn job(&self) -> &str {
        if self.job.is_empty() { "rollscope" } else { &self.job }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_intervals() {
        let target = ScrapeTarget::parse("http://router:30000/engine_metrics@10s").unwrap();
        assert_eq!((target.url.as_str(), target.interval_s), ("http://router:30000/engine_metrics", 10.0));
        assert_eq!(target.instance(), "router:30000");
        assert_eq!(ScrapeTarget::parse("http://h:1/metrics").unwrap().interval_s, 0.0);
        assert_eq!(ScrapeTarget::parse("http://h/m@1m30s").unwrap().interval_s, 90.0);
        assert_eq!(ScrapeTarget::parse("http://u@host:9/metrics").unwrap().instance(), "host:9");
        assert_eq!(ScrapeTarget::parse("http://u:secret@host:9/m").unwrap().url, "http://u:secret@host:9/m");
        for bad in ["router:30000", "ftp://x/y", "http:///metrics", "http://h/m@0s", "http://h/m@5x", "http://h/m@1ms"]
        {
            assert!(ScrapeTarget::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_shown_has_no_credentials() {
        for (url, shown) in [
            ("http://user:secret@host:9/metrics?a=b@c", "http://host:9/metrics?a=b@c"),
            ("https://user:se@cret@host", "https://host"),
            ("http://secret@host?x", "http://host?x"),
            ("user:secret@host:9", "host:9"),
            ("http://host/a@b", "http://host/a@b"),
            ("http://host:30000/engine_metrics", "http://host:30000/engine_metrics"),
            ("", ""),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
        let bad = ScrapeTarget::parse("ftp://user:secret@host/").unwrap_err();
        assert!(bad.contains("ftp://host/") && !bad.contains("secret"), "{bad}");
    }
}
