//! The alarms of a server: a task that evaluates rules at intervals, one that looks at runs, and what the API asks of them.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rollscope_model::time::now_ns;
use rollscope_query::promql::{Labels, PromLimits};
use rollscope_query::{Engine, QueryError};
use rollscope_store::Store;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use crate::alarm::{Alarm, Before, State};
use crate::builtin::{Builtin, Sources};
use crate::config::AlarmsConfig;
use crate::evaluate::{Group, Origin, Rule, Samples, next_due, replaced};
use crate::history::{self, Episode};
use crate::kept::{Kept, KeptFile};
use crate::message::sentence;
use crate::notify::Notifier;
use crate::prometheus::{self, Wanted};
use crate::rules::{self, GroupText};
use crate::shared::{Shared, Turn};
use crate::silences::{Silence, Silences};
use crate::sinks::{self, SinkStatus};
use crate::specs::{self, SPECS};
use crate::{sql, text};

/// How often we look whether a rule file has changed.
const LOOK: Duration = Duration::from_secs(1);
/// The name of the groups that no file states.
const BUILTIN: &str = "built-in";
const SQL: &str = "sql";

#[derive(Debug, Default)]
pub struct AlarmCounters {
    pub rounds: AtomicU64,
    /// Of the last round of rules.
    pub microseconds: AtomicU64,
    pub rules: AtomicU64,
    /// Evaluations that failed.
    pub failures: AtomicU64,
    /// Samples that could not be stored.
    pub not_stored: AtomicU64,
    /// Changes of rule files that could not be read.
    pub bad_files: AtomicU64,
}

struct Inner {
    config: AlarmsConfig,
    engine: Engine,
    store: Store,
    promql: PromLimits,
    counters: AlarmCounters,
    notifier: Notifier,
    silences: Mutex<Silences>,
    file: KeptFile,
    /// In a lake, in place of the file.
    shared: Option<Shared>,
    /// This node tells the sinks and writes the series: always, where no other one does.
    speaks: AtomicBool,
    /// Rules as of the last round, and conditions as of the last look.
    rules: Mutex<Arc<Vec<Group>>>,
    conditions: Mutex<Arc<Vec<Group>>>,
    /// Why a rule file was not read again.
    problem: Mutex<Option<String>>,
}

/// A handle. Clones share everything.
#[derive(Clone)]
pub struct Alarms(Arc<Inner>);

/// When a file was changed, as far as the system says.
type Stamp = Option<(SystemTime, u64)>;

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| std::fs::metadata(path).ok().and_then(|m| Some((m.modified().ok()?, m.len())));
    paths.iter().map(stamp).collect()
}

fn now_ms() -> i64 {
    now_ns() / 1_000_000
}

/// What the task that evaluates rules works with.
struct Rounds {
    alarms: Alarms,
    groups: Vec<Group>,
    stamps: Vec<Stamp>,
    before: Arc<HashMap<Labels, Before>>,
}

impl Alarms {
    /// Checks the configuration and reads the rule files.
    pub fn check(config: &AlarmsConfig) -> Result<Vec<GroupText>, String> {
        config.check()?;
        rules::load_all(&config.rules)
    }

    /// Starts the tasks. They end with `stop`.
    pub fn start(
        config: &AlarmsConfig,
        sources: Sources,
        promql: &PromLimits,
        page: String,
        stop: &CancellationToken,
    ) -> Result<Alarms, String> {
        let stamps = stamps(&config.rules);
        let texts = Alarms::check(config)?;
        let configured = sinks::configured(config)?;
        let store = sources.store.clone();
        let file = KeptFile::new(&store.options().dir);
        let shared = store.shared_files().map(|files| Shared::new(files, config.fingerprint().unwrap_or_default()));
        let kept = if shared.is_none() { file.read() } else { Kept::default() };
        let page = if config.page_url.is_empty() { page } else { config.page_url.clone() };
        let repeat_ms = (config.repeat_s * 1000.0) as i64;
        let notifier = Notifier::start(configured, config.max_backlog, repeat_ms, page, kept.told, store.vitals());
        let alarms = Alarms(Arc::new(Inner {
            config: config.clone(),
            engine: sources.answers.engine().clone(),
            store: store.clone(),
            promql: promql.clone(),
            counters: AlarmCounters::default(),
            notifier,
            silences: Mutex::new(Silences::new(kept.silences)),
            file,
            speaks: AtomicBool::new(shared.is_none()),
            shared,
            rules: Mutex::default(),
            conditions: Mutex::default(),
            problem: Mutex::default(),
        }));
        let now = now_ms();
        let groups = alarms.groups(texts, now)?;
        alarms.show_rules(&groups);
        let conditions = alarms.conditions(now)?;
        *alarms.0.conditions.lock() = Arc::new(conditions.clone());
        if config.enabled {
            let (handle, stop) = (alarms.clone(), stop.clone());
            store.vitals().task("alarms", async move {
                // What an earlier process knew is needed by both tasks, and read once.
                let before = match history::before(&handle.0.engine, now_ms(), &handle.0.promql).await {
                    Ok(before) => Arc::new(before),
                    Err(error) => {
                        tracing::warn!(%error, "cannot read what alarms were on before the start");
                        Arc::default()
                    }
                };
                let rounds = Rounds { alarms: handle.clone(), groups, stamps, before: before.clone() };
                let builtin = Builtin::new(sources, &handle.0.config);
                tokio::join!(rounds.run(stop.clone()), handle.look(conditions, builtin, before, stop));
            });
        }
        Ok(alarms)
    }

    fn inner(&self) -> &Inner {
        &self.0
    }

    fn interval_ms(&self) -> i64 {
        ((self.0.config.interval_s * 1000.0) as i64).max(100)
    }

    /// Groups of rules: those of files, and those of our own that PromQL can state.
    fn groups(&self, texts: Vec<GroupText>, now: i64) -> Result<Vec<Group>, String> {
        let mut own = Vec::new();
        for spec in SPECS.iter().filter(|spec| spec.key == specs::ENGINE_GONE) {
            let chosen = self.0.config.builtin.chosen(spec)?;
            if chosen.enabled {
                let words = "{{ $labels.instance }} (job {{ $labels.job }}) does not answer: its last scrape failed.";
                let text = format!(
                    "groups:\n- name: {BUILTIN}\n  rules:\n  - alert: {}\n    expr: up == 0\n    for: {}\n    \
                     annotations:\n      summary: '{words}'\n",
                    spec.name,
                    text::duration(chosen.hold_ms)
                );
                own.extend(rules::parse(BUILTIN, &text)?);
            }
        }
        let interval = self.interval_ms();
        let group = |text, origin| Group::new(text, origin, interval, now);
        let of_files = texts.into_iter().map(|text| group(text, Origin::File));
        Ok(of_files.chain(own.into_iter().map(|text| group(text, Origin::Builtin))).collect())
    }

    /// Conditions that are not PromQL, as groups, so that they look the same.
    fn conditions(&self, now: i64) -> Result<Vec<Group>, String> {
        let config = &self.0.config;
        let mut builtin = Vec::new();
        for spec in SPECS.iter().filter(|spec| spec.key != specs::ENGINE_GONE) {
            let chosen = config.builtin.chosen(spec)?;
            if chosen.enabled {
                let about = spec.about.replace("{}", &text::number(chosen.threshold));
                builtin.push(Rule::condition(spec.name, about, chosen.hold_ms));
            }
        }
        let condition = |alarm: &crate::config::SqlAlarm| {
            alarm.hold_ms().map(|hold| Rule::condition(&alarm.name, alarm.query.clone(), hold))
        };
        let sql = config.sql.iter().map(condition).collect::<Result<Vec<_>, _>>()?;
        let group = |name: &str, origin, rules| Group {
            file: name.into(),
            name: name.into(),
            origin,
            interval_ms: self.interval_ms(),
            limit: 0,
            rules,
            due_ms: now,
            last_ms: None,
            took_s: 0.0,
        };
        let all = [group(BUILTIN, Origin::Builtin, builtin), group(SQL, Origin::Sql, sql)];
        Ok(all.into_iter().filter(|group| !group.rules.is_empty()).collect())
    }

    fn show_rules(&self, groups: &[Group]) {
        *self.0.rules.lock() = Arc::new(groups.to_vec());
        self.0.counters.rules.store(groups.iter().map(|g| g.rules.len() as u64).sum(), Relaxed);
    }

    /// All groups: those of files first.
    fn all(&self) -> Vec<Group> {
        let (rules, conditions) = (self.0.rules.lock().clone(), self.0.conditions.lock().clone());
        rules.iter().chain(conditions.iter()).cloned().collect()
    }

    async fn store_samples(&self, at: i64, samples: &Samples) {
        if !self.0.speaks.load(Relaxed) {
            return;
        }
        if let Err(error) = history::append(&self.0.store, at, samples).await {
            self.0.counters.not_stored.fetch_add(samples.len() as u64, Relaxed);
            tracing::warn!(error, "cannot store the series of alarms");
        }
    }

    /// In a lake: takes in what other nodes have changed. Returns whether this node speaks.
    async fn follow(&self) -> bool {
        let inner = self.inner();
        let Some(shared) = &inner.shared else { return true };
        let is_speaker = inner.store.speaker().as_deref() == inner.store.node_name();
        let speaks = match shared.follow(&inner.silences, is_speaker, &inner.notifier.sinks()).await {
            Ok(Turn::Speaks) => true,
            Ok(Turn::Begins(told)) => {
                inner.notifier.remember(told);
                true
            }
            Ok(Turn::Ends) => {
                inner.notifier.forget(|labels| self.is_of_this_node(labels));
                false
            }
            Ok(Turn::Listens) => false,
            Err(error) => {
                tracing::warn!(%error, "cannot see what other nodes have changed about alarms");
                inner.speaks.load(Relaxed)
            }
        };
        inner.speaks.store(speaks, Relaxed);
        speaks
    }

    /// Tells sinks what is due, and keeps what they know.
    async fn tell(&self) {
        let speaks = self.follow().await;
        let now = now_ns();
        let (has_looked, firing): (bool, Vec<(Alarm, bool)>) = {
            let mut silences = self.0.silences.lock();
            silences.expire(now);
            let silenced = |alarm: &Alarm| silences.of(&alarm.labels, now).is_some();
            let (rules, conditions) = (self.0.rules.lock().clone(), self.0.conditions.lock().clone());
            let all = rules.iter().chain(conditions.iter());
            let has_looked = all.clone().all(|group| group.last_ms.is_some());
            let firing = all.flat_map(|g| &g.rules).flat_map(Rule::active).filter(|a| a.state == State::Firing);
            let firing = firing.filter(|alarm| speaks || self.is_of_this_node(&alarm.labels));
            (has_looked, firing.map(|alarm| (alarm.clone(), silenced(alarm))).collect())
        };
        // What nobody has looked for since the start has not ended.
        if !has_looked {
            return;
        }
        self.0.notifier.round(&firing, now / 1_000_000);
        if self.0.notifier.changed()
            && speaks
            && let Err(error) = self.keep().await
        {
            self.0.notifier.keep_again();
            tracing::warn!(error, "cannot keep what alarm sinks have been told; trying again");
        }
    }

    /// In a lake: is it about this node alone?
    fn is_of_this_node(&self, labels: &Labels) -> bool {
        let node = self.0.store.node_name();
        node.is_some_and(|node| specs::OF_A_NODE.contains(&labels.get("alertname")) && labels.get("node") == node)
    }

    async fn keep(&self) -> Result<(), String> {
        if let Some(shared) = &self.0.shared {
            let notifier = &self.0.notifier;
            let told = || {
                let mut told = notifier.told();
                told.retain(|told| !self.is_of_this_node(&Labels::new(told.labels.clone())));
                told
            };
            return shared.keep(told, &notifier.sinks()).await.map_err(|e| e.to_string());
        }
        let alarms = self.clone();
        let written = tokio::task::spawn_blocking(move || {
            let inner = alarms.inner();
            // One writer at a time, and the newest last.
            let silences = inner.silences.lock();
            let kept = Kept::new(silences.list(), inner.notifier.told());
            inner.file.write(&kept).map_err(|e| e.to_string())
        });
        written.await.map_err(|e| e.to_string())?
    }

    /// Looks at runs and asks conditions in SQL, at intervals.
    async fn look(
        self,
        mut groups: Vec<Group>,
        mut builtin: Builtin,
        before: Arc<HashMap<Labels, Before>>,
        stop: CancellationToken,
    ) {
        if groups.is_empty() {
            return;
        }
        let interval = self.interval_ms();
        let mut due = now_ms();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(Duration::from_millis((due - now_ms()).max(0) as u64)) => {}
            }
            let at = now_ms();
            let most = self.0.config.max_alarms;
            let mut samples = Vec::new();
            for group in &mut groups {
                let started = Instant::now();
                if group.origin == Origin::Builtin {
                    for (spec, _, found) in builtin.look(at).await {
                        if let Some(rule) = group.rules.iter_mut().find(|rule| rule.name == spec.name) {
                            samples.extend(rule.settle(at, found, &before, most));
                        }
                    }
                } else {
                    for (rule, condition) in group.rules.iter_mut().zip(&self.0.config.sql) {
                        let asked = Instant::now();
                        let found = sql::ask(&self.0.engine, condition, most).await;
                        samples.extend(rule.settle(at, found, &before, most));
                        rule.took_s = asked.elapsed().as_secs_f64();
                    }
                }
                (group.last_ms, group.took_s) = (Some(at), started.elapsed().as_secs_f64());
                self.count_failures(std::slice::from_ref(group));
            }
            self.store_samples(at, &samples).await;
            *self.0.conditions.lock() = Arc::new(groups.clone());
            self.tell().await;
            due = next_due(now_ms(), interval);
        }
    }

    fn count_failures(&self, groups: &[Group]) {
        let failed = groups.iter().flat_map(|g| &g.rules).filter(|rule| rule.error.is_some()).count();
        self.0.counters.failures.fetch_add(failed as u64, Relaxed);
    }
}

impl Rounds {
    async fn run(mut self, stop: CancellationToken) {
        loop {
            self.reload().await;
            let due = self.groups.iter().map(|g| g.due_ms).min();
            let now = now_ms();
            if due.is_some_and(|due| due <= now) {
                self.round(now).await;
                continue;
            }
            let wait = due.map_or(LOOK, |due| Duration::from_millis((due - now).max(1) as u64).min(LOOK));
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Reads the files again if one has changed. A bad change leaves the rules as they were.
    async fn reload(&mut self) {
        let inner = self.alarms.0.clone();
        if inner.config.rules.is_empty() {
            return;
        }
        let now = stamps(&inner.config.rules);
        if now == self.stamps {
            return;
        }
        self.stamps = now;
        let paths = inner.config.rules.clone();
        let read = tokio::task::spawn_blocking(move || rules::load_all(&paths)).await;
        let at = now_ms();
        let groups = match read.unwrap_or_else(|e| Err(e.to_string())) {
            Ok(texts) => self.alarms.groups(texts, at),
            Err(why) => Err(why),
        };
        match groups {
            Ok(groups) => {
                let (groups, ended) = replaced(std::mem::take(&mut self.groups), groups);
                self.groups = groups;
                self.alarms.store_samples(at, &ended).await;
                self.alarms.show_rules(&self.groups);
                *inner.problem.lock() = None;
                tracing::info!(rules = inner.counters.rules.load(Relaxed), "read the rule files again");
            }
            Err(why) => {
                inner.counters.bad_files.fetch_add(1, Relaxed);
                tracing::error!(why, "a rule file has changed and cannot be read; the rules stay as they were");
                *inner.problem.lock() = Some(format!("{why}; the rules stay as they were"));
            }
        }
    }

    async fn round(&mut self, now: i64) {
        let inner = self.alarms.0.clone();
        let started = Instant::now();
        let (mut due, rest): (Vec<Group>, Vec<Group>) =
            std::mem::take(&mut self.groups).into_iter().partition(|group| group.due_ms <= now);
        // Planned times are regular, so that they take little room. After a pause they are of no use.
        let planned = due.iter().map(|g| g.due_ms).max().unwrap_or(now);
        let at = if now - planned < 1000 { planned } else { now };
        let queries = due.iter().flat_map(|g| &g.rules).filter_map(|r| r.query.as_ref());
        let mut round = inner.engine.promql_round(queries, at, &inner.promql).await;
        let (before, most) = (self.before.clone(), inner.config.max_alarms);
        let spare = due.clone();
        let evaluated = inner.engine.compute(move || {
            let samples: Samples = due.iter_mut().flat_map(|g| g.evaluate(at, &mut round, &before, most)).collect();
            (due, samples)
        });
        let (mut due, samples) = match evaluated.await {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "a round of rules failed");
                inner.counters.failures.fetch_add(1, Relaxed);
                (spare, Samples::new())
            }
        };
        for group in &mut due {
            (group.due_ms, group.last_ms) = (next_due(now, group.interval_ms), Some(at));
        }
        self.alarms.count_failures(&due);
        due.extend(rest);
        due.sort_by(|a, b| (a.origin == Origin::Builtin, &a.file).cmp(&(b.origin == Origin::Builtin, &b.file)));
        self.groups = due;
        self.alarms.store_samples(at, &samples).await;
        inner.counters.rounds.fetch_add(1, Relaxed);
        inner.counters.microseconds.store(started.elapsed().as_micros() as u64, Relaxed);
        self.alarms.show_rules(&self.groups);
        self.alarms.tell().await;
    }
}

/// An alarm that is pending or fires. Nanoseconds are text.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AlarmInfo {
    pub alarm: String,
    pub state: State,
    /// rule, sql or built-in.
    pub origin: &'static str,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub sentence: String,
    /// As text: JSON has no NaN.
    pub value: String,
    /// Where the page shows what it is about, after the `#`.
    pub place: String,
    pub since_ns: String,
    #[schema(required)]
    pub fired_ns: Option<String>,
    /// The silence that holds it back.
    #[schema(required)]
    pub silenced_by: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = AlarmRule)]
pub struct RuleInfo {
    pub name: String,
    /// alerting or recording.
    pub kind: &'static str,
    pub origin: &'static str,
    pub group: String,
    pub file: String,
    /// The expression, the SQL, or what a built-in alarm means.
    pub text: String,
    pub for_s: f64,
    pub state: State,
    #[schema(required)]
    pub error: Option<String>,
    #[schema(required)]
    pub last_ns: Option<String>,
    pub seconds: f64,
}

/// Everything about alarms.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AlarmsAnswer {
    pub enabled: bool,
    pub interval_s: f64,
    /// How many fire and are not silenced.
    pub firing: usize,
    /// Firing first, then pending; the newest first.
    pub alarms: Vec<AlarmInfo>,
    /// When alarms were on, newest first.
    pub history: Vec<Episode>,
    pub silences: Vec<Silence>,
    pub rules: Vec<RuleInfo>,
    pub sinks: Vec<SinkStatus>,
    /// In a lake: the node that tells the sinks, for all that have the same configuration.
    #[schema(required)]
    pub speaker: Option<String>,
    /// What is wrong with rule files.
    pub problems: Vec<String>,
    pub rounds: u64,
    /// Seconds that the last round of rules took.
    pub round_s: f64,
}

/// What the body of a new silence holds.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSilence {
    /// Which alarms, such as `StepSlow{run="a"}` or `{severity!="page"}`.
    pub selector: String,
    /// How long, such as 2h.
    pub duration: String,
    #[serde(default)]
    pub comment: String,
    #[serde(default)]
    pub created_by: String,
}

impl Alarms {
    pub fn counters(&self) -> &AlarmCounters {
        &self.0.counters
    }

    pub fn sinks(&self) -> Vec<SinkStatus> {
        self.0.notifier.status()
    }

    /// What an operator should look at.
    pub fn problems(&self) -> Vec<String> {
        self.0.problem.lock().iter().cloned().collect()
    }

    pub fn prometheus_rules(&self, wanted: &Wanted) -> Value {
        prometheus::rules(&self.all(), wanted)
    }

    pub fn prometheus_alerts(&self) -> Value {
        prometheus::alerts(&self.all())
    }

    /// State and history. `between` is the time of the history, in milliseconds; none means no history.
    pub async fn answer(&self, run: Option<&str>, between: Option<(i64, i64)>) -> Result<AlarmsAnswer, QueryError> {
        let inner = self.inner();
        let groups = self.all();
        let now = now_ns();
        let ns = |ms: i64| (ms * 1_000_000).to_string();
        let silences = inner.silences.lock().clone();
        let (mut alarms, mut open) = (Vec::new(), HashMap::new());
        for group in &groups {
            for alarm in group.rules.iter().flat_map(Rule::active) {
                open.insert(alarm.labels.clone(), alarm.active_ms);
                if run.is_some_and(|run| alarm.labels.get("run") != run) {
                    continue;
                }
                alarms.push(AlarmInfo {
                    alarm: alarm.labels.get("alertname").into(),
                    state: alarm.state,
                    origin: group.origin.name(),
                    labels: alarm.labels.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect(),
                    annotations: alarm.annotations.clone(),
                    sentence: sentence(alarm),
                    value: text::number(alarm.value),
                    place: if alarm.place.is_empty() { "/alarms".into() } else { alarm.place.clone() },
                    since_ns: ns(alarm.active_ms),
                    fired_ns: alarm.fired_ms.map(ns),
                    silenced_by: silences.of(&alarm.labels, now).map(|s| s.id.clone()),
                });
            }
        }
        alarms.sort_by_key(|a| (a.state != State::Firing, std::cmp::Reverse(a.since_ns.clone())));
        let history = match between {
            Some((from, to)) => history::episodes(&inner.engine, from, to, run, &open, &inner.promql).await?,
            None => Vec::new(),
        };
        let rule = |group: &Group, rule: &Rule| RuleInfo {
            name: rule.name.clone(),
            kind: if rule.watch.is_some() { "alerting" } else { "recording" },
            origin: group.origin.name(),
            group: group.name.clone(),
            file: group.file.clone(),
            text: rule.text.clone(),
            for_s: rule.watch.as_ref().map_or(0.0, |w| w.hold_ms as f64 / 1000.0),
            state: rule.state(),
            error: rule.error.clone(),
            last_ns: rule.last_ms.map(ns),
            seconds: rule.took_s,
        };
        Ok(AlarmsAnswer {
            enabled: inner.config.enabled,
            interval_s: inner.config.interval_s,
            firing: alarms.iter().filter(|a| a.state == State::Firing && a.silenced_by.is_none()).count(),
            alarms,
            history,
            silences: silences.list(),
            rules: groups.iter().flat_map(|g| g.rules.iter().map(move |r| rule(g, r))).collect(),
            sinks: self.sinks(),
            speaker: inner.store.speaker(),
            problems: self.problems(),
            rounds: inner.counters.rounds.load(Relaxed),
            round_s: inner.counters.microseconds.load(Relaxed) as f64 / 1e6,
        })
    }

    /// Adds a silence. It is on disk when this returns. The error is the client's.
    pub async fn silence(&self, new: NewSilence) -> Result<Silence, SilenceError> {
        let ms =
            text::parse_duration(new.duration.trim()).map_err(|why| SilenceError::Bad(format!("duration: {why}")))?;
        let starts_ns = now_ns();
        let silence = Silence {
            id: uuid::Uuid::new_v4().to_string(),
            selector: new.selector,
            starts_ns,
            ends_ns: starts_ns.saturating_add(ms.saturating_mul(1_000_000)),
            comment: new.comment,
            created_by: new.created_by,
        };
        self.0.silences.lock().add(silence.clone()).map_err(SilenceError::Bad)?;
        let kept = match &self.0.shared {
            Some(shared) => shared.add(&silence).await.map_err(|e| e.to_string()),
            None => self.keep().await,
        };
        match kept {
            Ok(()) => Ok(silence),
            Err(why) => {
                self.0.silences.lock().remove(&silence.id);
                Err(SilenceError::NotKept(why))
            }
        }
    }

    /// Ends a silence. False if there is none with this id.
    pub async fn unsilence(&self, id: &str) -> Result<bool, SilenceError> {
        let Some(shared) = &self.0.shared else {
            if !self.0.silences.lock().remove(id) {
                return Ok(false);
            }
            return self.keep().await.map(|()| true).map_err(SilenceError::NotKept);
        };
        if self.0.silences.lock().list().iter().all(|silence| silence.id != id) {
            return Ok(false);
        }
        shared.remove(id).await.map_err(|e| SilenceError::NotKept(e.to_string()))?;
        self.0.silences.lock().remove(id);
        Ok(true)
    }
}

/// Why a silence was not changed.
#[derive(Debug, thiserror::Error)]
pub enum SilenceError {
    #[error("{0}")]
    Bad(String),
    #[error("cannot keep it: {0}")]
    NotKept(String),
}
