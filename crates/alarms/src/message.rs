//! What is sent to sinks.

use std::collections::BTreeMap;

use serde::Serialize;
use sha2::{Digest, Sha256};

use rollscope_query::promql::Labels;

use crate::alarm::Alarm;
use crate::text::{number, rfc3339};

/// Characters of a sentence in a message.
const MAX_SENTENCE: usize = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Firing,
    Resolved,
}

/// One alarm of a message.
#[derive(Clone, Debug, Serialize)]
pub struct Note {
    pub status: Status,
    pub alarm: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// As text: JSON has no NaN.
    pub value: String,
    pub sentence: String,
    pub link: String,
    pub started_at: String,
    pub ended_at: Option<String>,
    /// The same for the same labels.
    pub fingerprint: String,
    #[serde(skip)]
    pub started_ms: i64,
}

/// Alarms of one name that began, ended or are repeated, as a webhook and a command get them.
#[derive(Clone, Debug, Serialize)]
pub struct Message {
    pub version: u32,
    pub source: &'static str,
    pub status: Status,
    pub alarm: String,
    /// Of the first alarm.
    pub sentence: String,
    pub link: String,
    pub alarms: Vec<Note>,
}

pub fn fingerprint(labels: &Labels) -> String {
    let mut hash = Sha256::new();
    for (name, value) in labels.iter() {
        hash.update(name.as_bytes());
        hash.update([0xff]);
        hash.update(value.as_bytes());
        hash.update([0xff]);
    }
    hex::encode(&hash.finalize()[..8])
}

/// What the alarm says of itself.
pub fn sentence(alarm: &Alarm) -> String {
    let said = ["summary", "description", "message"].iter().find_map(|key| alarm.annotations.get(*key));
    let text = match said.filter(|text| !text.trim().is_empty()) {
        Some(text) => text.clone(),
        None => {
            let name = alarm.labels.get("alertname");
            let rest: Vec<String> =
                alarm.labels.iter().filter(|(n, _)| *n != "alertname").map(|(n, v)| format!("{n} {v}")).collect();
            let of = if rest.is_empty() { String::new() } else { format!(" ({})", rest.join(", ")) };
            format!("{name}{of}: the value is {}.", number(alarm.value))
        }
    };
    match text.char_indices().nth(MAX_SENTENCE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

impl Note {
    pub fn new(alarm: &Alarm, status: Status, ended_ms: Option<i64>, page: &str) -> Note {
        let place = if alarm.place.is_empty() { "/alarms" } else { &alarm.place };
        Note {
            status,
            alarm: alarm.labels.get("alertname").to_string(),
            labels: alarm.labels.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect(),
            annotations: alarm.annotations.clone(),
            value: number(alarm.value),
            sentence: sentence(alarm),
            link: format!("{}/#{place}", page.trim_end_matches('/')),
            started_at: rfc3339(alarm.active_ms),
            ended_at: ended_ms.map(rfc3339),
            fingerprint: fingerprint(&alarm.labels),
            started_ms: alarm.active_ms,
        }
    }
}

impl Message {
    /// `notes` are of one name and one status, and there is at least one.
    pub fn new(notes: Vec<Note>) -> Message {
        let first = &notes[0];
        Message {
            version: 1,
            source: "rollscope",
            status: first.status,
            alarm: first.alarm.clone(),
            sentence: first.sentence.clone(),
            link: first.link.clone(),
            alarms: notes,
        }
    }

    /// `Firing: StepSlow (2)`.
    pub fn title(&self) -> String {
        let status = if self.status == Status::Firing { "Firing" } else { "Resolved" };
        let count = self.alarms.len();
        let count = if count > 1 { format!(" ({count})") } else { String::new() };
        format!("{status}: {}{count}", self.alarm)
    }
}
