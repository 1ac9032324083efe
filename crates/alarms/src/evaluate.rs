//! Rules with their state, and how one is evaluated.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use rollscope_query::promql::{ABSENT, Labels, PromAnswer, PromQuery, PromRound};

use crate::alarm::{Alarm, Before, Seen, State, Watch};
use crate::rules::{GroupText, RuleKind, RuleText};
use crate::template::Template;
use crate::text::address_part;

/// Where a rule comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    File,
    Sql,
    Builtin,
}

impl Origin {
    pub fn name(self) -> &'static str {
        match self {
            Origin::File => "rule",
            Origin::Sql => "sql",
            Origin::Builtin => "built-in",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Group {
    pub file: String,
    pub name: String,
    pub origin: Origin,
    pub interval_ms: i64,
    pub limit: usize,
    pub rules: Vec<Rule>,
    pub due_ms: i64,
    pub last_ms: Option<i64>,
    pub took_s: f64,
}

#[derive(Clone, Debug)]
pub struct Rule {
    pub name: String,
    /// The expression, the SQL, or what a built-in alarm means.
    pub text: String,
    /// None: something else finds what it is about.
    pub query: Option<PromQuery>,
    pub labels: Vec<(String, Template)>,
    pub annotations: Vec<(String, Template)>,
    /// None: a recording rule.
    pub watch: Option<Watch>,
    pub error: Option<String>,
    pub last_ms: Option<i64>,
    pub took_s: f64,
    /// It has gone on from what an earlier process knew.
    restored: bool,
    /// What it wrote last. What is missing the next time is stale.
    written: HashSet<Labels>,
}

/// What a rule writes into `series`.
pub type Samples = Vec<(Labels, f64)>;

impl Rule {
    pub fn condition(name: &str, text: String, hold_ms: i64) -> Rule {
        Rule {
            name: name.into(),
            text,
            query: None,
            labels: Vec::new(),
            annotations: Vec::new(),
            watch: Some(Watch::new(hold_ms, 0)),
            error: None,
            last_ms: None,
            took_s: 0.0,
            restored: false,
            written: HashSet::new(),
        }
    }

    fn new(rule: RuleText) -> Rule {
        let (watch, annotations) = match rule.kind {
            RuleKind::Record => (None, Vec::new()),
            RuleKind::Alert { hold_ms, keep_ms, annotations } => (Some(Watch::new(hold_ms, keep_ms)), annotations),
        };
        let text = rule.query.to_string();
        Rule {
            watch,
            annotations,
            labels: rule.labels,
            query: Some(rule.query),
            ..Rule::condition(&rule.name, text, 0)
        }
    }

    pub fn active(&self) -> impl Iterator<Item = &Alarm> {
        self.watch.iter().flat_map(Watch::active)
    }

    /// The worst state of its alarms.
    pub fn state(&self) -> State {
        let states: Vec<State> = self.active().map(|a| a.state).collect();
        match () {
            () if states.contains(&State::Firing) => State::Firing,
            () if states.contains(&State::Pending) => State::Pending,
            () => State::Inactive,
        }
    }

    /// Goes on from what a rule of an earlier configuration knew.
    fn take_over(&mut self, from: Rule) {
        if let (Some(watch), Some(before)) = (&mut self.watch, from.watch) {
            watch.take_over(before);
        }
        (self.written, self.restored, self.last_ms) = (from.written, from.restored, from.last_ms);
    }

    /// Takes note of what was found, or of why it is not known. Returns what to write.
    pub fn settle(
        &mut self,
        at: i64,
        found: Result<Vec<Seen>, String>,
        before: &HashMap<Labels, Before>,
        limit: usize,
    ) -> Samples {
        self.last_ms = Some(at);
        let Some(watch) = &mut self.watch else { return Vec::new() };
        let nothing = HashMap::new();
        let settled = found.and_then(|found| {
            if found.len() > limit {
                return Err(format!("exceeded limit of {limit} with {} alerts", found.len()));
            }
            watch.update(at, found, if self.restored { &nothing } else { before })
        });
        match settled {
            Ok(()) => {
                (self.error, self.restored) = (None, true);
                let samples = watch.samples();
                self.with_stale(samples)
            }
            Err(why) => {
                self.error = Some(why);
                Vec::new()
            }
        }
    }

    fn with_stale(&mut self, mut samples: Samples) -> Samples {
        let now: HashSet<Labels> = samples.iter().map(|(labels, _)| labels.clone()).collect();
        let gone: Vec<Labels> = self.written.difference(&now).cloned().collect();
        self.written = now;
        samples.extend(gone.into_iter().map(|labels| (labels, ABSENT)));
        samples
    }

    /// That it is no more.
    pub fn ended(&self) -> Samples {
        self.written.iter().map(|labels| (labels.clone(), ABSENT)).collect()
    }

    /// Evaluates a rule from a file. What it records counts for those after it.
    fn evaluate(
        &mut self,
        at: i64,
        round: &mut PromRound,
        before: &HashMap<Labels, Before>,
        limits: Limits,
    ) -> Samples {
        let Some(query) = &self.query else { return Vec::new() };
        let started = Instant::now();
        let rows = round.answer(query).map_err(|e| e.message).and_then(rows);
        let samples = match &self.watch {
            Some(_) => {
                let found = rows.and_then(|rows| rows.into_iter().map(|(l, v)| self.seen(&l, v)).collect());
                let limit = if limits.group > 0 { limits.group.min(limits.alarms) } else { limits.alarms };
                self.settle(at, found, before, limit)
            }
            None => {
                self.last_ms = Some(at);
                match rows.and_then(|rows| self.recorded(rows, limits.group)) {
                    Ok(samples) => {
                        self.error = None;
                        self.with_stale(samples)
                    }
                    Err(why) => {
                        self.error = Some(why);
                        Vec::new()
                    }
                }
            }
        };
        for (labels, value) in &samples {
            round.add(labels, *value);
        }
        self.took_s = started.elapsed().as_secs_f64();
        samples
    }

    fn seen(&self, labels: &Labels, value: f64) -> Result<Seen, String> {
        let filled = |templates: &[(String, Template)]| -> Result<Vec<(String, String)>, String> {
            templates.iter().map(|(name, template)| Ok((name.clone(), template.expand(labels, value)?))).collect()
        };
        let mut own = labels.without_name();
        for (name, text) in filled(&self.labels)? {
            own = own.with(&name, &text);
        }
        // One whose words cannot be filled in is still an alarm.
        let annotations: BTreeMap<String, String> = filled(&self.annotations)
            .unwrap_or_else(|why| {
                self.annotations
                    .iter()
                    .map(|(name, _)| (name.clone(), format!("<error expanding template: {why}>")))
                    .collect()
            })
            .into_iter()
            .collect();
        let place = format!("/alarms?alarm={}", address_part(&self.name));
        Ok(Seen { labels: own.with("alertname", &self.name), annotations, value, place })
    }

    fn recorded(&self, rows: Vec<(Labels, f64)>, limit: usize) -> Result<Samples, String> {
        if limit > 0 && rows.len() > limit {
            return Err(format!("exceeded limit of {limit} with {} series", rows.len()));
        }
        let mut known = HashSet::new();
        rows.into_iter()
            .map(|(labels, value)| {
                let mut labels = labels.with("__name__", &self.name);
                for (name, text) in &self.labels {
                    labels = labels.with(name, text.source());
                }
                match known.insert(labels.clone()) {
                    true => Ok((labels, value)),
                    false => Err(format!(
                        "vector contains metrics with the same labelset after applying rule labels: {labels}"
                    )),
                }
            })
            .collect()
    }
}

fn rows(answer: PromAnswer) -> Result<Vec<(Labels, f64)>, String> {
    match answer {
        PromAnswer::Vector(rows) => {
            Ok(rows.into_iter().filter_map(|(labels, points)| Some((labels, points.first()?.1))).collect())
        }
        PromAnswer::Scalar(points) => Ok(points.first().map(|p| (Labels::default(), p.1)).into_iter().collect()),
        PromAnswer::Text(_) | PromAnswer::Matrix(_) => Err("rule result is not a vector or scalar".into()),
    }
}

/// What a rule may have: alarms, and what its group allows.
#[derive(Clone, Copy, Debug)]
struct Limits {
    alarms: usize,
    group: usize,
}

/// The first multiple of the interval after a time.
pub fn next_due(now: i64, interval: i64) -> i64 {
    (now.div_euclid(interval) + 1) * interval
}

impl Group {
    pub fn new(text: GroupText, origin: Origin, default_ms: i64, now: i64) -> Group {
        let interval_ms = text.interval_ms.unwrap_or(default_ms).max(1);
        Group {
            file: text.file,
            name: text.name,
            origin,
            interval_ms,
            limit: text.limit,
            rules: text.rules.into_iter().map(Rule::new).collect(),
            due_ms: now,
            last_ms: None,
            took_s: 0.0,
        }
    }

    /// Evaluates its rules in order. Returns what to write.
    pub fn evaluate(
        &mut self,
        at: i64,
        round: &mut PromRound,
        before: &HashMap<Labels, Before>,
        max_alarms: usize,
    ) -> Samples {
        let started = Instant::now();
        let limits = Limits { alarms: max_alarms, group: self.limit };
        let mut samples = Vec::new();
        for rule in &mut self.rules {
            samples.extend(rule.evaluate(at, round, before, limits));
        }
        self.last_ms = Some(at);
        self.took_s = started.elapsed().as_secs_f64();
        samples
    }
}

/// Groups of a changed configuration go on where the same rules left off. Returns the groups, and that what is gone has ended.
pub fn replaced(old: Vec<Group>, mut new: Vec<Group>) -> (Vec<Group>, Samples) {
    let mut known: HashMap<(String, String, String), Vec<Rule>> = HashMap::new();
    let mut due: HashMap<(String, String), (i64, i64, Option<i64>)> = HashMap::new();
    for group in old {
        due.insert((group.file.clone(), group.name.clone()), (group.interval_ms, group.due_ms, group.last_ms));
        for rule in group.rules.into_iter().rev() {
            known.entry((group.file.clone(), group.name.clone(), rule.name.clone())).or_default().push(rule);
        }
    }
    for group in &mut new {
        if let Some((interval, due_ms, last_ms)) = due.get(&(group.file.clone(), group.name.clone()))
            && *interval == group.interval_ms
        {
            (group.due_ms, group.last_ms) = (*due_ms, *last_ms);
        }
        for rule in &mut group.rules {
            let key = (group.file.clone(), group.name.clone(), rule.name.clone());
            if let Some(before) = known.get_mut(&key).and_then(Vec::pop) {
                rule.take_over(before);
            }
        }
    }
    let ended = known.into_values().flatten().flat_map(|rule| rule.ended()).collect();
    (new, ended)
}
