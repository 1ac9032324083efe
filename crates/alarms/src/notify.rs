//! Decides what each sink must be told: an alarm when it fires, again while it goes on, and once more when it has ended. What a sink
//! has been told is remembered over restarts. What could not be sent is due again, later each time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use rollscope_model::time::now_ns;
use rollscope_query::promql::Labels;
use rollscope_store::Vitals;

use crate::alarm::{Alarm, State};
use crate::kept::Told;
use crate::message::{Message, Note, Status, fingerprint};
use crate::sinks::{self, ALERTMANAGER, Configured, Running, SinkStatus};

/// Alarms of one message.
const MAX_NOTES: usize = 100;
/// How often Alertmanager is told what fires.
const ALERTMANAGER_REPEAT_MS: i64 = 60_000;
/// The first pause after a failure, which doubles, and the longest.
const FIRST_PAUSE_MS: i64 = 1000;
const LONGEST_PAUSE_MS: i64 = 300_000;
/// That an alarm has ended is tried so often.
const MAX_TRIES_OF_END: u32 = 20;

/// What a sink knows of an alarm.
#[derive(Clone, Debug)]
struct Entry {
    alarm: Alarm,
    /// When it was told last, and with which start.
    told: Option<(i64, i64)>,
    /// It is in the sink's queue.
    waiting: bool,
    tries: u32,
    not_before_ms: i64,
    ended_ms: Option<i64>,
    /// Another process has told it, for which it began at a time of its own, and this one knows that since then.
    remembered_ms: Option<i64>,
}

impl Entry {
    fn told_ms(&self) -> i64 {
        self.told.map_or(0, |(at, _)| at)
    }
}

/// What a sink must be told.
struct Due {
    alarm: Alarm,
    ended_ms: Option<i64>,
    /// When it was told last. 0: never.
    told_ms: i64,
}

/// By sink and fingerprint.
#[derive(Default)]
struct Ledger {
    entries: HashMap<(String, String), Entry>,
    changed: bool,
}

pub struct Notifier {
    sinks: Vec<Running>,
    ledger: Arc<Mutex<Ledger>>,
    repeat_ms: i64,
    page: String,
}

fn now_ms() -> i64 {
    now_ns() / 1_000_000
}

impl Notifier {
    pub fn start(
        configured: Vec<Configured>,
        capacity: usize,
        repeat_ms: i64,
        page: String,
        told: Vec<Told>,
        vitals: &Vitals,
    ) -> Notifier {
        let mut ledger = Ledger::default();
        for one in told {
            let told_ms = one.told_ms;
            ledger.remember(one, told_ms);
        }
        // What is known of a sink that was removed from the configuration is of no use.
        ledger.entries.retain(|(sink, _), _| configured.iter().any(|(name, ..)| name == sink));
        let ledger = Arc::new(Mutex::new(ledger));
        let start = |sink: Configured| {
            let (ledger, name) = (ledger.clone(), sink.0.clone());
            let done = move |message: &Message, sent: bool| ledger.lock().done(&name, message, sent, now_ms());
            sinks::start(sink, capacity, vitals, Arc::new(done))
        };
        let sinks = configured.into_iter().map(start).collect();
        Notifier { sinks, ledger, repeat_ms, page }
    }

    /// What others have told the sinks until now. What fires here already is that: it may have begun a round later here.
    pub fn remember(&self, told: Vec<Told>) {
        let mut ledger = self.ledger.lock();
        told.into_iter().for_each(|one| ledger.remember(one, now_ms()));
    }

    /// Others tell the sinks now, but for this.
    pub fn forget(&self, stays: impl Fn(&Labels) -> bool) {
        self.ledger.lock().entries.retain(|_, entry| stays(&entry.alarm.labels));
    }

    pub fn sinks(&self) -> Vec<String> {
        self.sinks.iter().map(|sink| sink.name.clone()).collect()
    }

    pub fn status(&self) -> Vec<SinkStatus> {
        self.sinks.iter().map(Running::status).collect()
    }

    /// Hands sinks what is due. `firing` is all that fires, each with whether it is silenced. Never waits.
    pub fn round(&self, firing: &[(Alarm, bool)], now: i64) {
        let mut ledger = self.ledger.lock();
        for sink in &self.sinks {
            let repeat = if sink.kind == ALERTMANAGER { ALERTMANAGER_REPEAT_MS } else { self.repeat_ms };
            let (due, given_up) = ledger.due(&sink.name, firing, repeat, now);
            sink.count_dropped(given_up);
            let mut by_name: BTreeMap<(String, bool), (i64, Vec<Note>)> = BTreeMap::new();
            for Due { alarm, ended_ms, told_ms } in due {
                let status = if ended_ms.is_some() { Status::Resolved } else { Status::Firing };
                let note = Note::new(&alarm, status, ended_ms, &self.page);
                let of_name = by_name.entry((note.alarm.clone(), ended_ms.is_some())).or_insert((i64::MAX, Vec::new()));
                of_name.0 = of_name.0.min(told_ms);
                of_name.1.push(note);
            }
            // Where there is little room, what was never told comes first.
            let mut messages: Vec<(i64, Vec<Note>)> = by_name.into_values().collect();
            messages.sort_by_key(|(told_ms, _)| *told_ms);
            for (_, notes) in messages {
                for part in notes.chunks(MAX_NOTES) {
                    let prints: Vec<String> = part.iter().map(|n| n.fingerprint.clone()).collect();
                    if sink.offer(Message::new(part.to_vec())) {
                        ledger.queued(&sink.name, &prints);
                    }
                }
            }
        }
    }

    /// What to keep on disk, if it changed.
    pub fn changed(&self) -> bool {
        std::mem::take(&mut self.ledger.lock().changed)
    }

    /// It could not be kept.
    pub fn keep_again(&self) {
        self.ledger.lock().changed = true;
    }

    pub fn told(&self) -> Vec<Told> {
        let ledger = self.ledger.lock();
        let told = ledger.entries.iter().filter_map(|((sink, _), entry)| {
            let (told_ms, started_ms) = entry.told?;
            Some(Told {
                sink: sink.clone(),
                labels: entry.alarm.labels.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect(),
                started_ms,
                told_ms,
                sentence: crate::message::sentence(&entry.alarm),
                place: entry.alarm.place.clone(),
            })
        });
        told.collect()
    }
}

impl Ledger {
    /// An alarm that is active since a time up to `until_ms` is the one that was told.
    fn remember(&mut self, told: Told, until_ms: i64) {
        let alarm = Alarm {
            labels: Labels::new(told.labels),
            annotations: BTreeMap::from([("summary".into(), told.sentence)]),
            value: f64::NAN,
            state: State::Firing,
            active_ms: told.started_ms,
            fired_ms: Some(told.started_ms),
            resolved_ms: None,
            keep_since_ms: None,
            place: told.place,
        };
        let key = (told.sink, fingerprint(&alarm.labels));
        let (waiting, tries, not_before_ms, ended_ms) = (false, 0, 0, None);
        let (told, remembered_ms) = (Some((told.told_ms, told.started_ms)), Some(until_ms));
        self.entries.insert(key, Entry { alarm, told, waiting, tries, not_before_ms, ended_ms, remembered_ms });
    }

    /// What a sink must be told now, and how many ends it will never hear of.
    fn due(&mut self, sink: &str, firing: &[(Alarm, bool)], repeat: i64, now: i64) -> (Vec<Due>, u64) {
        let (mut due, mut active, mut given_up) = (Vec::new(), HashSet::new(), 0);
        for (alarm, silenced) in firing {
            let key = (sink.to_string(), fingerprint(&alarm.labels));
            active.insert(key.1.clone());
            if *silenced {
                continue;
            }
            let fresh = || Entry {
                alarm: alarm.clone(),
                told: None,
                waiting: false,
                tries: 0,
                not_before_ms: 0,
                ended_ms: None,
                remembered_ms: None,
            };
            let entry = self.entries.entry(key).or_insert_with(fresh);
            if entry.ended_ms.take().is_some() {
                (entry.tries, entry.not_before_ms) = (0, 0);
            }
            entry.alarm = alarm.clone();
            if let (Some(remembered_ms), Some((_, started))) = (entry.remembered_ms.take(), &mut entry.told)
                && alarm.active_ms <= remembered_ms
            {
                *started = alarm.active_ms;
            }
            let known = entry.told.is_some_and(|(at, started)| now - at < repeat && started == alarm.active_ms);
            if !entry.waiting && !known && now >= entry.not_before_ms {
                due.push(Due { alarm: alarm.clone(), ended_ms: None, told_ms: entry.told_ms() });
            }
        }
        self.entries.retain(|(of, print), entry| {
            if of != sink || active.contains(print) || entry.waiting {
                return true;
            }
            if entry.told.is_none() {
                return false;
            }
            if entry.ended_ms.is_some() && entry.tries > MAX_TRIES_OF_END {
                given_up += 1;
                self.changed = true;
                return false;
            }
            if entry.ended_ms.is_none() {
                (entry.tries, entry.not_before_ms) = (0, 0);
            }
            let ended = *entry.ended_ms.get_or_insert(now);
            if now >= entry.not_before_ms {
                due.push(Due { alarm: entry.alarm.clone(), ended_ms: Some(ended), told_ms: entry.told_ms() });
            }
            true
        });
        (due, given_up)
    }

    fn queued(&mut self, sink: &str, prints: &[String]) {
        for print in prints {
            if let Some(entry) = self.entries.get_mut(&(sink.to_string(), print.clone())) {
                entry.waiting = true;
            }
        }
    }

    /// A message was sent, or not.
    fn done(&mut self, sink: &str, message: &Message, sent: bool, now: i64) {
        for note in &message.alarms {
            let key = (sink.to_string(), note.fingerprint.clone());
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            entry.waiting = false;
            match (sent, note.status) {
                (true, Status::Firing) => {
                    (entry.told, entry.tries, entry.not_before_ms) = (Some((now, note.started_ms)), 0, 0);
                    self.changed = true;
                }
                (true, Status::Resolved) => {
                    self.entries.remove(&key);
                    self.changed = true;
                }
                (false, _) => {
                    let pause = FIRST_PAUSE_MS.saturating_mul(1 << entry.tries.min(20));
                    entry.tries += 1;
                    entry.not_before_ms = now + pause.min(LONGEST_PAUSE_MS);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alarm(host: &str, active_ms: i64) -> Alarm {
        Alarm {
            labels: Labels::new([("alertname".into(), "A".into()), ("host".into(), host.into())]),
            annotations: BTreeMap::new(),
            value: 1.0,
            state: State::Firing,
            active_ms,
            fired_ms: Some(active_ms),
            resolved_ms: None,
            keep_since_ms: None,
            place: String::new(),
        }
    }

    struct Desk(Ledger);

    impl Desk {
        /// What is due, as `host firing`, and that it was sent or not.
        fn round(&mut self, firing: &[(Alarm, bool)], now: i64, sent: bool) -> Vec<String> {
            let (due, _) = self.0.due("s", firing, 100_000, now);
            let mut said = Vec::new();
            for Due { alarm, ended_ms: ended, .. } in due {
                let status = if ended.is_some() { Status::Resolved } else { Status::Firing };
                said.push(format!("{} {status:?}", alarm.labels.get("host")));
                let note = Note::new(&alarm, status, ended, "");
                self.0.queued("s", std::slice::from_ref(&note.fingerprint));
                self.0.done("s", &Message::new(vec![note]), sent, now);
            }
            said.sort();
            said
        }
    }

    #[test]
    fn once_when_it_fires_again_after_a_while_and_once_when_it_ended() {
        let mut desk = Desk(Ledger::default());
        let (a, b) = ((alarm("a", 0), false), (alarm("b", 0), false));
        assert_eq!(desk.round(&[a.clone(), b.clone()], 1000, true), ["a Firing", "b Firing"]);
        assert!(desk.round(&[a.clone(), b], 50_000, true).is_empty());
        assert_eq!(desk.round(&[a], 60_000, true), ["b Resolved"]);
        assert_eq!(desk.round(&[(alarm("a", 0), false)], 101_000, true), ["a Firing"], "repeated");
        assert_eq!(desk.round(&[(alarm("a", 105_000), false)], 106_000, true), ["a Firing"], "it began again");
        assert_eq!(desk.round(&[], 107_000, true), ["a Resolved"]);
        assert!(desk.round(&[], 108_000, true).is_empty() && desk.0.entries.is_empty());
    }

    #[test]
    fn whoever_takes_over_does_not_tell_again_what_began_there_a_little_later() {
        let mut desk = Desk(Ledger::default());
        let told = |host: &str| Told {
            sink: "s".into(),
            labels: vec![("alertname".into(), "A".into()), ("host".into(), host.into())],
            started_ms: 900,
            told_ms: 1000,
            sentence: String::new(),
            place: String::new(),
        };
        for host in ["a", "b", "c"] {
            desk.0.remember(told(host), 30_000);
        }
        let firing = [(alarm("a", 1500), false), (alarm("b", 31_000), false)];
        assert_eq!(desk.round(&firing, 40_000, true), ["b Firing", "c Resolved"], "the second one has begun again");
        assert!(desk.round(&firing, 50_000, true).is_empty());
        assert_eq!(desk.round(&[], 60_000, true), ["a Resolved", "b Resolved"]);
    }

    #[test]
    fn what_fails_is_tried_again_later_each_time() {
        let mut desk = Desk(Ledger::default());
        let firing = [(alarm("a", 0), false)];
        assert_eq!(desk.round(&firing, 0, false), ["a Firing"]);
        assert!(desk.round(&firing, 900, false).is_empty());
        assert_eq!(desk.round(&firing, 1000, false), ["a Firing"]);
        assert!(desk.round(&firing, 2900, false).is_empty());
        assert_eq!(desk.round(&firing, 3000, true), ["a Firing"]);
        // The end is tried again, too, but not for ever.
        let (mut now, mut tries) = (4000, 0);
        while !desk.0.entries.is_empty() {
            tries += desk.round(&[], now, false).len();
            now += LONGEST_PAUSE_MS;
        }
        assert_eq!(tries as u32, MAX_TRIES_OF_END + 1);
        // An alarm that nobody was told of ends without a word.
        assert_eq!(desk.round(&firing, now, false), ["a Firing"]);
        assert!(desk.round(&[], now + 1, true).is_empty());
    }

    #[test]
    fn a_silence_holds_back_the_beginning_and_not_the_end() {
        let mut desk = Desk(Ledger::default());
        assert!(desk.round(&[(alarm("a", 0), true)], 0, true).is_empty());
        assert_eq!(desk.round(&[(alarm("a", 0), false)], 1000, true), ["a Firing"]);
        assert!(desk.round(&[(alarm("a", 0), true)], 200_000, true).is_empty());
        assert_eq!(desk.round(&[], 201_000, true), ["a Resolved"]);
    }
}
