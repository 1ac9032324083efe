//! Rules and alarms as Prometheus's API answers them.

use serde_json::{Map, Value, json};

use crate::alarm::Alarm;
use crate::evaluate::{Group, Rule};
use crate::text::{rfc3339, scientific};

/// Go's time that is none.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// What a client asks for. Empty lists mean all.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub alerting: bool,
    pub recording: bool,
    pub names: Vec<String>,
    pub groups: Vec<String>,
    pub files: Vec<String>,
    pub without_alerts: bool,
}

fn time(ms: Option<i64>) -> String {
    ms.map_or_else(|| NEVER.into(), rfc3339)
}

/// Whole seconds are written without a point, as Go does.
fn seconds(ms: i64) -> Value {
    if ms % 1000 == 0 { (ms / 1000).into() } else { (ms as f64 / 1000.0).into() }
}

fn labels(pairs: impl Iterator<Item = (String, String)>) -> Value {
    Value::Object(pairs.map(|(n, v)| (n, Value::String(v))).collect::<Map<_, _>>())
}

fn alert(alarm: &Alarm) -> Value {
    let own = alarm.labels.iter().map(|(n, v)| (n.to_string(), v.to_string()));
    let mut value = json!({
        "labels": labels(own),
        "annotations": alarm.annotations,
        "state": alarm.state.name(),
        "activeAt": rfc3339(alarm.active_ms),
        "value": scientific(alarm.value),
    });
    if let Some(since) = alarm.keep_since_ms {
        value["keepFiringSince"] = rfc3339(since).into();
    }
    value
}

fn rule(rule: &Rule, without_alerts: bool) -> Value {
    let texts = |all: &[(String, crate::template::Template)]| {
        labels(all.iter().map(|(n, t)| (n.clone(), t.source().to_string())))
    };
    let health = match (&rule.error, rule.last_ms) {
        (Some(_), _) => "err",
        (None, Some(_)) => "ok",
        (None, None) => "unknown",
    };
    let mut value = match &rule.watch {
        Some(watch) => json!({
            "state": rule.state().name(),
            "name": rule.name,
            "query": rule.text,
            "duration": seconds(watch.hold_ms),
            "keepFiringFor": seconds(watch.keep_ms),
            "labels": texts(&rule.labels),
            "annotations": texts(&rule.annotations),
            "alerts": if without_alerts { json!([]) } else { rule.active().map(alert).collect() },
        }),
        None => {
            let mut value = json!({ "name": rule.name, "query": rule.text });
            if !rule.labels.is_empty() {
                value["labels"] = texts(&rule.labels);
            }
            value
        }
    };
    value["health"] = health.into();
    if let Some(error) = &rule.error {
        value["lastError"] = error.as_str().into();
    }
    value["evaluationTime"] = rule.took_s.into();
    value["lastEvaluation"] = time(rule.last_ms).into();
    value["type"] = if rule.watch.is_some() { "alerting" } else { "recording" }.into();
    value
}

/// `data` of `/api/v1/rules`.
pub fn rules(groups: &[Group], wanted: &Wanted) -> Value {
    let any = |list: &[String], text: &str| list.is_empty() || list.iter().any(|one| one == text);
    let fits =
        |r: &&Rule| any(&wanted.names, &r.name) && if r.watch.is_some() { wanted.alerting } else { wanted.recording };
    let shown = groups.iter().filter(|g| any(&wanted.groups, &g.name) && any(&wanted.files, &g.file)).filter_map(|g| {
        let rules: Vec<Value> = g.rules.iter().filter(fits).map(|r| rule(r, wanted.without_alerts)).collect();
        // A group that is empty only because of a filter is left out.
        let filtered = !wanted.names.is_empty() || !wanted.alerting || !wanted.recording;
        (!rules.is_empty() || !filtered).then(|| {
            json!({
                "name": g.name, "file": g.file, "rules": rules, "interval": seconds(g.interval_ms), "limit": g.limit,
                "evaluationTime": g.took_s, "lastEvaluation": time(g.last_ms),
            })
        })
    });
    json!({ "groups": shown.collect::<Vec<_>>() })
}

/// `data` of `/api/v1/alerts`.
pub fn alerts(groups: &[Group]) -> Value {
    let all: Vec<Value> = groups.iter().flat_map(|g| &g.rules).flat_map(|r| r.active().map(alert)).collect();
    json!({ "alerts": all })
}
