//! `[server.alarms]` of the configuration file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rollscope_app::secret::Secret;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::specs::{self, SPECS, Spec};
use crate::template::{Template, is_label_name};
use crate::text::parse_duration;

/// Conditions in SQL, and sinks.
const MAX_SQL: usize = 100;
const MAX_SINKS: usize = 50;
/// Words of a command.
const MAX_WORDS: usize = 100;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlarmsConfig {
    /// False: no rule is evaluated and nothing is sent.
    pub enabled: bool,
    /// Seconds between rounds. Groups of a rule file may state their own.
    pub interval_s: f64,
    /// Prometheus rule files. They are read again when they change.
    pub rules: Vec<PathBuf>,
    /// Address of the page for links in messages, such as https://rollscope.example.com. By default that of `listen`.
    pub page_url: String,
    /// Seconds after which an alarm that still fires is sent again.
    pub repeat_s: f64,
    /// The most alarms that one rule or condition may have at a time. More are an error of the rule.
    pub max_alarms: usize,
    /// Messages that may wait for a sink. Further ones are dropped and counted, and tried again in the next round.
    pub max_backlog: usize,
    /// The alarms that are there without being asked for.
    pub builtin: BuiltinConfig,
    /// Conditions in SQL.
    pub sql: Vec<SqlAlarm>,
    pub webhook: Vec<WebhookConfig>,
    pub slack: Vec<WebhookConfig>,
    pub alertmanager: Vec<WebhookConfig>,
    pub command: Vec<CommandConfig>,
    pub email: Vec<EmailConfig>,
}

impl Default for AlarmsConfig {
    fn default() -> Self {
        AlarmsConfig {
            enabled: true,
            interval_s: 15.0,
            rules: Vec::new(),
            page_url: String::new(),
            repeat_s: 4.0 * 3600.0,
            max_alarms: 1000,
            max_backlog: 100,
            builtin: BuiltinConfig::default(),
            sql: Vec::new(),
            webhook: Vec::new(),
            slack: Vec::new(),
            alertmanager: Vec::new(),
            command: Vec::new(),
            email: Vec::new(),
        }
    }
}

/// What can be set about a built-in alarm. `docs/alarms.md` has the defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BuiltinSetting {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
    /// How long it must hold, such as "1m".
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BuiltinConfig {
    pub no_progress: BuiltinSetting,
    pub step_slow: BuiltinSetting,
    pub reward_collapse: BuiltinSetting,
    pub entropy_collapse: BuiltinSetting,
    pub samples_truncated: BuiltinSetting,
    pub samples_aborted: BuiltinSetting,
    pub groups_without_variance: BuiltinSetting,
    pub engine_gone: BuiltinSetting,
    pub data_dropped: BuiltinSetting,
    pub disk_nearly_full: BuiltinSetting,
}

/// What counts for a built-in alarm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    pub enabled: bool,
    pub threshold: f64,
    pub hold_ms: i64,
}

impl BuiltinConfig {
    fn setting(&self, key: &str) -> &BuiltinSetting {
        match key {
            specs::NO_PROGRESS => &self.no_progress,
            specs::STEP_SLOW => &self.step_slow,
            specs::REWARD_COLLAPSE => &self.reward_collapse,
            specs::ENTROPY_COLLAPSE => &self.entropy_collapse,
            specs::SAMPLES_TRUNCATED => &self.samples_truncated,
            specs::SAMPLES_ABORTED => &self.samples_aborted,
            specs::GROUPS_WITHOUT_VARIANCE => &self.groups_without_variance,
            specs::ENGINE_GONE => &self.engine_gone,
            specs::DATA_DROPPED => &self.data_dropped,
            _ => &self.disk_nearly_full,
        }
    }

    /// The setting of a built-in alarm, or its default.
    pub fn chosen(&self, spec: &Spec) -> Result<Chosen, String> {
        let setting = self.setting(spec.key);
        let hold = setting.hold.as_deref().map(parse_duration).transpose();
        Ok(Chosen {
            enabled: setting.enabled.unwrap_or(true),
            threshold: setting.threshold.unwrap_or(spec.threshold),
            hold_ms: hold
                .map_err(|why| format!("server.alarms.builtin.{}.for: {why}", spec.key))?
                .unwrap_or(spec.hold_ms),
        })
    }
}

/// Each row that the query returns is an alarm. Columns are labels; a number in the column `value` is its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqlAlarm {
    pub name: String,
    pub query: String,
    /// How long it must hold, such as "5m".
    #[serde(default, rename = "for")]
    pub hold: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The sentence, with templates such as {{ $labels.run }}.
    #[serde(default)]
    pub summary: String,
}

/// Somewhere that takes messages over HTTP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookConfig {
    /// By default its kind.
    #[serde(default)]
    pub name: String,
    /// May hold a secret, so it is never printed.
    pub url: Secret,
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
    #[serde(default = "ten_seconds")]
    pub timeout_s: f64,
}

/// A program that gets each message as JSON on its standard input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandConfig {
    #[serde(default)]
    pub name: String,
    /// The program and its arguments. No shell reads them.
    pub command: Vec<String>,
    #[serde(default = "ten_seconds")]
    pub timeout_s: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmailTls {
    /// Encrypted after STARTTLS, which the server must offer.
    #[default]
    Starttls,
    /// Encrypted from the start.
    Tls,
    None,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmailConfig {
    #[serde(default)]
    pub name: String,
    /// HOST:PORT of the SMTP server.
    pub server: String,
    pub from: String,
    pub to: Vec<String>,
    #[serde(default)]
    pub tls: EmailTls,
    /// Certificates to trust instead of the usual ones, PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    #[serde(default)]
    pub username: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    #[serde(default = "ten_seconds")]
    pub timeout_s: f64,
}

fn ten_seconds() -> f64 {
    10.0
}

impl AlarmsConfig {
    /// Equal for nodes of a lake that watch for the same alarms and tell the same sinks. `None`: it watches for none.
    pub fn fingerprint(&self) -> Option<String> {
        let mut hash = Sha256::new_with_prefix(serde_json::to_vec(self).expect("it is plain data"));
        // Addresses are left out of that, because they may hold a secret, and rules are in files.
        for sink in [&self.webhook, &self.slack, &self.alertmanager].into_iter().flatten() {
            hash.update(sink.url.expose());
        }
        for rules in self.rules.iter().filter_map(|path| std::fs::read(path).ok()) {
            hash.update(rules);
        }
        self.enabled.then(|| hex::encode(&hash.finalize()[..8]))
    }

    /// What is wrong, before anything is started.
    pub fn check(&self) -> Result<(), String> {
        let range = |name: &str, value: f64, least: f64, most: f64| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(format!("server.alarms.{name} = {value}: expected {least} to {most}")),
        };
        range("interval_s", self.interval_s, 0.1, 3600.0)?;
        range("repeat_s", self.repeat_s, 1.0, 31_536_000.0)?;
        if self.max_alarms == 0 || self.max_backlog == 0 {
            return Err("server.alarms: max_alarms and max_backlog must be at least 1".into());
        }
        if !self.page_url.is_empty() && !is_http(&self.page_url) {
            return Err(format!("server.alarms.page_url = {:?}: expected http://... or https://...", self.page_url));
        }
        if self.sql.len() > MAX_SQL {
            return Err(format!("server.alarms.sql: more than {MAX_SQL} conditions"));
        }
        let mut names = std::collections::HashSet::new();
        for sql in &self.sql {
            sql.check().map_err(|why| format!("server.alarms.sql {:?}: {why}", sql.name))?;
            if !names.insert(&sql.name) {
                return Err(format!(
                    "server.alarms.sql: {:?} is there twice; give each condition its own name",
                    sql.name
                ));
            }
        }
        let http = self.webhook.iter().chain(&self.slack).chain(&self.alertmanager);
        for sink in http.clone() {
            if !is_http(sink.url.expose()) {
                return Err(format!(
                    "server.alarms: the url of the sink {:?} must begin with http:// or https://",
                    sink.name
                ));
            }
            range("timeout_s", sink.timeout_s, 0.1, 300.0)?;
        }
        for sink in &self.command {
            if sink.command.first().is_none_or(String::is_empty) || sink.command.len() > MAX_WORDS {
                return Err(format!(
                    "server.alarms.command: `command` must have 1 to {MAX_WORDS} words, the program first"
                ));
            }
            range("timeout_s", sink.timeout_s, 0.1, 300.0)?;
        }
        for sink in &self.email {
            sink.check().map_err(|why| format!("server.alarms.email: {why}"))?;
            range("timeout_s", sink.timeout_s, 0.1, 300.0)?;
        }
        if http.count() + self.command.len() + self.email.len() > MAX_SINKS {
            return Err(format!("server.alarms: more than {MAX_SINKS} sinks"));
        }
        for spec in SPECS {
            let chosen = self.builtin.chosen(&spec)?;
            let (least, most) = spec.range;
            range(&format!("builtin.{}.threshold", spec.key), chosen.threshold, least, most)?;
        }
        Ok(())
    }
}

fn is_http(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

impl SqlAlarm {
    fn check(&self) -> Result<(), String> {
        if self.name.trim().is_empty() {
            return Err("`name` must not be empty".into());
        }
        if self.query.trim().is_empty() {
            return Err("`query` must not be empty".into());
        }
        if let Some(name) = self.labels.keys().find(|name| !is_label_name(name)) {
            return Err(format!("invalid label name {name:?}; expected letters, digits and _"));
        }
        self.hold_ms()?;
        Template::parse(&self.summary).map(drop).map_err(|why| format!("summary: {why}"))
    }

    pub fn hold_ms(&self) -> Result<i64, String> {
        if self.hold.is_empty() { Ok(0) } else { parse_duration(&self.hold).map_err(|why| format!("for: {why}")) }
    }
}

impl EmailConfig {
    fn check(&self) -> Result<(), String> {
        let address = |text: &str| {
            text.contains('@') && !text.contains(|c: char| c.is_whitespace() || c.is_control() || "<>".contains(c))
        };
        let Some((host, port)) = self.server.rsplit_once(':') else {
            return Err(format!("server = {:?}: expected HOST:PORT, such as smtp.example.com:587", self.server));
        };
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(format!("server = {:?}: expected HOST:PORT, such as smtp.example.com:587", self.server));
        }
        if self.to.is_empty() || self.to.len() > 100 {
            return Err("`to` must have 1 to 100 addresses".into());
        }
        if let Some(bad) = self.to.iter().chain([&self.from]).find(|a| !address(a)) {
            return Err(format!("{bad:?} is not an address; expected one such as ops@example.com"));
        }
        let nearby = matches!(host.trim_matches(['[', ']']), "localhost" | "127.0.0.1" | "::1");
        if self.password.is_some() && self.tls == EmailTls::None && !nearby {
            return Err("a password is not sent without encryption; set tls = \"starttls\" or \"tls\"".into());
        }
        if self.password.is_some() && self.username.is_empty() {
            return Err("`password` needs `username`".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AlarmsConfig, String> {
        let config: AlarmsConfig = serde_json::from_str(text).map_err(|e| e.to_string())?;
        config.check().map(|()| config)
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(read("{}").is_ok());
        for (text, named) in [
            (r#"{"intervall_s": 1}"#, "intervall_s"),
            (r#"{"interval_s": 0}"#, "interval_s"),
            (r#"{"page_url": "rollscope.example.com"}"#, "page_url"),
            (r#"{"builtin": {"step_slwo": {}}}"#, "step_slwo"),
            (r#"{"builtin": {"step_slow": {"threshold": -1}}}"#, "step_slow"),
            (r#"{"builtin": {"step_slow": {"for": "soon"}}}"#, "soon"),
            (r#"{"sql": [{"name": "a", "query": "select 1", "summary": "{{ query }}"}]}"#, "query"),
            (r#"{"sql": [{"name": "a", "query": ""}]}"#, "query"),
            (r#"{"sql": [{"name": "a", "query": "select 1"}, {"name": "a", "query": "select 1"}]}"#, "twice"),
            (r#"{"webhook": [{"url": "example.com"}]}"#, "http://"),
            (r#"{"command": [{"command": []}]}"#, "command"),
            (r#"{"email": [{"server": "mail", "from": "a@b", "to": ["c@d"]}]}"#, "HOST:PORT"),
            (r#"{"email": [{"server": "mail:25", "from": "a@b", "to": ["x> RCPT"]}]}"#, "not an address"),
            (
                r#"{"email": [{"server": "mail:25", "from": "a@b", "to": ["c@d"], "tls": "none", "username": "u", "password": "p"}]}"#,
                "encryption",
            ),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(named), "{text}: {why}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let config = read(r#"{"slack": [{"url": "https://hooks.example.com/T0/s3cret"}]}"#).unwrap();
        assert!(!serde_json::to_string(&config).unwrap().contains("s3cret"));
        assert!(!format!("{config:?}").contains("s3cret"));
    }
}
