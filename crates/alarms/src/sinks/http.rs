//! Webhooks: our own JSON, Slack's, and Alertmanager's API v2.

use std::io::Read as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::Sink;
use crate::config::WebhookConfig;
use crate::message::{Message, Status};
use crate::text::rfc3339;

/// Bytes of an answer that are read.
const MAX_ANSWER: u64 = 4096;
/// Characters of it that an error quotes.
const MAX_QUOTED: usize = 200;
/// How long Alertmanager keeps an alarm that it hears no more about.
const ALERTMANAGER_KEEPS_MS: i64 = 5 * 60_000;
/// Alarms that a text for people lists.
const MAX_LINES: usize = 10;

pub enum Form {
    Webhook,
    Slack,
    Alertmanager,
}

pub struct Http {
    config: WebhookConfig,
    form: Form,
    agent: ureq::Agent,
}

impl Http {
    pub fn new(config: &WebhookConfig, form: Form) -> Http {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs_f64(config.timeout_s)))
            .max_redirects(0)
            .user_agent(concat!("rollscope/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        Http { config: config.clone(), form, agent }
    }
}

impl Sink for Http {
    fn send(&mut self, message: &Message) -> Result<(), String> {
        let base = self.config.url.expose();
        let (url, body) = match self.form {
            Form::Webhook => (base.to_string(), json!(message)),
            Form::Slack => (base.to_string(), slack(message)),
            Form::Alertmanager => {
                let now = rollscope_model::time::now_ns() / 1_000_000;
                (format!("{}/api/v2/alerts", base.trim_end_matches('/')), alertmanager(message, now))
            }
        };
        let mut request = self.agent.post(url).header("content-type", "application/json");
        for (name, value) in &self.config.headers {
            request = request.header(name, value.expose());
        }
        let mut answer = request.send(body.to_string()).map_err(|e| e.to_string())?;
        let mut said = Vec::new();
        let _ = answer.body_mut().as_reader().take(MAX_ANSWER).read_to_end(&mut said);
        match answer.status().is_success() {
            true => Ok(()),
            false => {
                let said: String = String::from_utf8_lossy(&said).chars().take(MAX_QUOTED).collect();
                Err(format!("the sink answered {}: {said}", answer.status()))
            }
        }
    }
}

/// `&`, `<` and `>` are control characters of Slack's.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn slack(message: &Message) -> Value {
    let mark = if message.status == Status::Firing { ":rotating_light:" } else { ":white_check_mark:" };
    let mut text = format!("{mark} *{}*", escaped(&message.title()));
    for note in message.alarms.iter().take(MAX_LINES) {
        text += &format!("\n• {} <{}|open>", escaped(&note.sentence), note.link);
    }
    let more = message.alarms.len().saturating_sub(MAX_LINES);
    if more > 0 {
        text += &format!("\nand {more} more");
    }
    json!({ "text": text })
}

fn alertmanager(message: &Message, now_ms: i64) -> Value {
    let alerts = message.alarms.iter().map(|note| {
        let ends = note.ended_at.clone().unwrap_or_else(|| rfc3339(now_ms + ALERTMANAGER_KEEPS_MS));
        let mut annotations = note.annotations.clone();
        annotations.entry("summary".into()).or_insert_with(|| note.sentence.clone());
        json!({
            "labels": note.labels, "annotations": annotations, "startsAt": note.started_at, "endsAt": ends,
            "generatorURL": note.link,
        })
    });
    alerts.collect()
}
