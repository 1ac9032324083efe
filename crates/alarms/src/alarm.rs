//! What a condition is about over time: pending, firing, resolved, as Prometheus does it.

use std::collections::{BTreeMap, HashMap};

use rollscope_query::promql::Labels;
use serde::Serialize;
use utoipa::ToSchema;

/// How long what has ended is remembered. Who receives alarms may ask again.
const REMEMBERED_MS: i64 = 15 * 60_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AlarmState)]
pub enum State {
    /// The condition holds, but not for long enough yet.
    Pending,
    Firing,
    /// It has ended a while ago.
    Inactive,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Firing => "firing",
            State::Inactive => "inactive",
        }
    }
}

/// One set of labels for which a condition holds or held. Times are in milliseconds.
#[derive(Clone, Debug)]
pub struct Alarm {
    /// With `alertname`.
    pub labels: Labels,
    pub annotations: BTreeMap<String, String>,
    pub value: f64,
    pub state: State,
    pub active_ms: i64,
    pub fired_ms: Option<i64>,
    pub resolved_ms: Option<i64>,
    pub keep_since_ms: Option<i64>,
    /// Where the page shows it, after the `#`.
    pub place: String,
}

/// What a condition found.
#[derive(Clone, Debug)]
pub struct Seen {
    pub labels: Labels,
    pub annotations: BTreeMap<String, String>,
    pub value: f64,
    pub place: String,
}

/// What was known of an alarm when the program ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Before {
    pub active_ms: i64,
    /// When it was last seen.
    pub seen_ms: i64,
    pub firing: bool,
}

/// The alarms of one condition.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    pub hold_ms: i64,
    pub keep_ms: i64,
    alarms: BTreeMap<Labels, Alarm>,
}

impl Watch {
    pub fn new(hold_ms: i64, keep_ms: i64) -> Watch {
        Watch { hold_ms, keep_ms, alarms: BTreeMap::new() }
    }

    /// All that are pending or firing.
    pub fn active(&self) -> impl Iterator<Item = &Alarm> {
        self.alarms.values().filter(|a| a.state != State::Inactive)
    }

    /// Goes on where another left off, for instance after the rule was changed.
    pub fn take_over(&mut self, from: Watch) {
        self.alarms = from.alarms;
    }

    /// Takes note of what a condition found at a moment. `before` is what an earlier process knew.
    pub fn update(&mut self, at: i64, found: Vec<Seen>, before: &HashMap<Labels, Before>) -> Result<(), String> {
        let mut seen: BTreeMap<Labels, Seen> = BTreeMap::new();
        for one in found {
            let labels = one.labels.clone();
            if seen.insert(labels.clone(), one).is_some() {
                return Err(format!(
                    "vector contains metrics with the same labelset after applying alert labels: {labels}"
                ));
            }
        }
        for (labels, one) in &seen {
            match self.alarms.get_mut(labels).filter(|a| a.state != State::Inactive) {
                Some(alarm) => {
                    alarm.value = one.value;
                    alarm.annotations = one.annotations.clone();
                    alarm.place = one.place.clone();
                }
                None => {
                    let alarm = Alarm {
                        labels: labels.clone(),
                        annotations: one.annotations.clone(),
                        value: one.value,
                        state: State::Pending,
                        active_ms: at,
                        fired_ms: None,
                        resolved_ms: None,
                        keep_since_ms: None,
                        place: one.place.clone(),
                    };
                    self.alarms.insert(labels.clone(), restored(alarm, at, before.get(labels)));
                }
            }
        }
        let (hold, keep) = (self.hold_ms, self.keep_ms);
        self.alarms.retain(|labels, alarm| {
            if seen.contains_key(labels) {
                alarm.keep_since_ms = None;
            } else {
                let mut kept = false;
                if alarm.state == State::Firing && keep > 0 {
                    let since = *alarm.keep_since_ms.get_or_insert(at);
                    kept = at - since < keep;
                }
                if alarm.state == State::Pending || alarm.resolved_ms.is_some_and(|ended| at - ended > REMEMBERED_MS) {
                    return false;
                }
                if alarm.state != State::Inactive && !kept {
                    alarm.state = State::Inactive;
                    alarm.resolved_ms = Some(at);
                }
                if !kept {
                    return true;
                }
            }
            if alarm.state == State::Pending && at - alarm.active_ms >= hold {
                alarm.state = State::Firing;
                alarm.fired_ms.get_or_insert(at);
            }
            true
        });
        Ok(())
    }

    /// The series that Prometheus keeps of alarms.
    pub fn samples(&self) -> Vec<(Labels, f64)> {
        self.active()
            .flat_map(|alarm| {
                let named = |name: &str| alarm.labels.with("__name__", name);
                [
                    (named("ALERTS").with("alertstate", alarm.state.name()), 1.0),
                    (named("ALERTS_FOR_STATE"), alarm.active_ms as f64 / 1000.0),
                ]
            })
            .collect()
    }
}

/// An alarm that goes on after a restart. What was firing stays so. For what was pending, the time in between does not count, because
/// nobody watched.
fn restored(mut alarm: Alarm, at: i64, before: Option<&Before>) -> Alarm {
    let Some(before) = before.filter(|b| b.active_ms <= at && b.seen_ms <= at) else { return alarm };
    match before.firing {
        true => {
            alarm.active_ms = before.active_ms;
            alarm.state = State::Firing;
            alarm.fired_ms = Some(before.active_ms);
        }
        false => alarm.active_ms = before.active_ms + (at - before.seen_ms),
    }
    alarm
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(host: &str, value: f64) -> Seen {
        let labels = Labels::new([("alertname".into(), "A".into()), ("host".into(), host.into())]);
        Seen { labels, annotations: BTreeMap::new(), value, place: String::new() }
    }

    fn states(watch: &Watch) -> Vec<(&str, State)> {
        watch.alarms.values().map(|a| (a.labels.get("host"), a.state)).collect()
    }

    #[test]
    fn pending_then_firing_then_resolved_then_forgotten() {
        let (mut watch, none) = (Watch::new(30_000, 0), HashMap::new());
        watch.update(0, vec![seen("a", 1.0), seen("b", 1.0)], &none).unwrap();
        watch.update(15_000, vec![seen("a", 2.0)], &none).unwrap();
        assert_eq!(states(&watch), [("a", State::Pending)], "what was only pending is forgotten");
        watch.update(30_000, vec![seen("a", 3.0)], &none).unwrap();
        assert_eq!(states(&watch), [("a", State::Firing)]);
        assert_eq!(watch.samples()[1].1, 0.0);
        watch.update(45_000, vec![], &none).unwrap();
        assert_eq!(states(&watch), [("a", State::Inactive)]);
        assert!(watch.samples().is_empty());
        watch.update(60_000, vec![seen("a", 1.0)], &none).unwrap();
        assert_eq!(states(&watch), [("a", State::Pending)], "it begins again");
        watch.update(120_000, vec![], &none).unwrap();
        assert_eq!(states(&watch), []);
    }

    #[test]
    fn keeps_firing_for_a_while() {
        let (mut watch, none) = (Watch::new(0, 30_000), HashMap::new());
        watch.update(0, vec![seen("a", 1.0)], &none).unwrap();
        watch.update(15_000, vec![], &none).unwrap();
        assert_eq!(states(&watch), [("a", State::Firing)]);
        watch.update(30_000, vec![seen("a", 1.0)], &none).unwrap();
        watch.update(45_000, vec![], &none).unwrap();
        watch.update(60_000, vec![], &none).unwrap();
        assert_eq!(states(&watch), [("a", State::Firing)], "the time begins again");
        watch.update(75_000, vec![], &none).unwrap();
        assert_eq!(states(&watch), [("a", State::Inactive)]);
        watch.update(75_000 + REMEMBERED_MS + 1, vec![], &none).unwrap();
        assert_eq!(states(&watch), []);
    }

    #[test]
    fn a_restart_keeps_the_time() {
        let labels = |host: &str| seen(host, 0.0).labels;
        let before = HashMap::from([
            (labels("pending"), Before { active_ms: 0, seen_ms: 20_000, firing: false }),
            (labels("firing"), Before { active_ms: 0, seen_ms: 20_000, firing: true }),
        ]);
        let mut watch = Watch::new(30_000, 0);
        let found = || vec![seen("pending", 1.0), seen("firing", 1.0), seen("new", 1.0)];
        watch.update(100_000, found(), &before).unwrap();
        assert_eq!(states(&watch), [("firing", State::Firing), ("new", State::Pending), ("pending", State::Pending)]);
        // It had been pending for 20 s, and goes on from there.
        watch.update(110_000, found(), &before).unwrap();
        assert_eq!(states(&watch), [("firing", State::Firing), ("new", State::Pending), ("pending", State::Firing)]);
    }

    #[test]
    fn two_of_the_same_labels_are_an_error() {
        let why = Watch::new(0, 0).update(0, vec![seen("a", 1.0), seen("a", 2.0)], &HashMap::new()).unwrap_err();
        assert!(why.contains("same labelset"), "{why}");
    }
}
