//! From a scene to an answer: the graph of who waits for whom, the suspects, and the verdict.

use hashbrown::{HashMap, HashSet};
use rollscope_spans::NONE;

use super::peers::{self, Collective};
use super::scene::{Open, Scene, Sender};
use super::signs::{Beat, EngineState, Signs};
use super::words::{capital, lasted, list, moment};
use super::*;
use crate::kinds::Kind;
use crate::words::{count, some_of, time};

/// What is held against a suspect; the highest first.
mod weight {
    pub const ALL_SILENT: i64 = 1000;
    pub const DEADLOCK: i64 = 900;
    pub const SILENT: i64 = 800;
    pub const MISSING: i64 = 700;
    pub const DOWN: i64 = 650;
    pub const STILL: i64 = 600;
    pub const CALL: i64 = 500;
    pub const ENGINE: i64 = 450;
    pub const SPAN: i64 = 400;
    /// Nobody is known to wait for it now.
    pub const APART: i64 = -350;
    /// It follows only by exclusion.
    pub const LIKELY: i64 = -25;
}

/// Names in a list within a sentence.
const NAMES: usize = 4;

#[derive(Clone, Copy, PartialEq)]
enum Call {
    Engine,
    Tool,
    Judge,
}

/// What a span calls. An environment's step, as ROLL names it, is a tool's, and so is what says which tool it is.
fn call_of(open: &Open) -> Option<Call> {
    let of_tool = open.kind == Kind::Step || open.kind == Kind::Other && open.tool.is_some();
    if of_tool && open.sample != NONE { Some(Call::Tool) } else { call(open.kind) }
}

fn call(kind: Kind) -> Option<Call> {
    match kind {
        Kind::Generate | Kind::Decode | Kind::Prefill | Kind::Queue | Kind::Transfer | Kind::Tokenize => {
            Some(Call::Engine)
        }
        Kind::Tool => Some(Call::Tool),
        Kind::Reward => Some(Call::Judge),
        _ => None,
    }
}

struct Found {
    suspect: Suspect,
    weight: i64,
    /// Known by a sign that does not depend on how long things take.
    hard: bool,
    overdue: bool,
    far_overdue: bool,
}

/// When something last happened, for how long nothing has, the longest such pause before, and for how long the step has run.
#[derive(Clone, Copy)]
struct Times {
    last: Option<i64>,
    quiet: f64,
    pause: Option<f64>,
    step: Option<f64>,
}

struct Judge {
    scene: Scene,
    signs: Signs,
    nodes: Vec<Node>,
    by_key: HashMap<(&'static str, String), usize>,
    waits: Vec<Wait>,
    by_wait: HashMap<(usize, usize), usize>,
    found: Vec<Found>,
    advice: Vec<String>,
}

pub fn judge(scene: Scene, signs: Signs) -> Hang {
    let mut judge = Judge {
        scene,
        signs,
        nodes: Vec::new(),
        by_key: HashMap::new(),
        waits: Vec::new(),
        by_wait: HashMap::new(),
        found: Vec::new(),
        advice: Vec::new(),
    };
    judge.relate();
    judge.answer()
}

impl Judge {
    fn name(&self, number: u32) -> &str {
        self.scene.texts.get(number)
    }

    fn node(&mut self, kind: &'static str, label: String) -> usize {
        let is_known = self.by_key.contains_key(&(kind, label.clone()));
        let label = if is_known || self.nodes.len() < MAX_GRAPH { label } else { "others".to_string() };
        let nodes = &mut self.nodes;
        *self.by_key.entry((kind, label.clone())).or_insert_with(|| {
            nodes.push(Node {
                kind: kind.to_string(),
                label,
                count: 0,
                since_ns: None,
                usual_s: None,
                longest_s: None,
                about: String::new(),
                spans: Vec::new(),
            });
            nodes.len() - 1
        })
    }

    /// One more open span stands behind a node.
    fn add(&mut self, node: usize, open: usize) {
        let of = &self.scene.open[open];
        let usual = self.scene.usual(of.name);
        let sample = (of.sample != NONE).then(|| self.name(of.sample).to_string());
        let span = OpenSpan { trace_id: hex::encode(of.trace), span_id: hex::encode(of.span), sample_id: sample };
        let start = of.start;
        let node = &mut self.nodes[node];
        node.count += 1;
        if node.since_ns.is_none_or(|since| start < since) {
            node.since_ns = Some(start);
            (node.usual_s, node.longest_s) = (usual.map(|u| u.median), usual.map(|u| u.longest));
        }
        if node.spans.len() < MAX_SPANS {
            node.spans.push(span);
        }
    }

    fn wait(&mut self, from: usize, to: usize, known: bool) {
        if from == to {
            return;
        }
        let waits = &mut self.waits;
        let at = *self.by_wait.entry((from, to)).or_insert_with(|| {
            waits.push(Wait { from, to, count: 0, known });
            waits.len() - 1
        });
        waits[at].count += 1;
        waits[at].known &= known;
    }

    fn beat(&self, sender: u32) -> Option<Beat> {
        let sender = self.scene.senders.get(&sender)?;
        self.signs.beats.get(&sender.target).or_else(|| self.signs.beats.get(&sender.service)).copied()
    }

    fn is_silent(&self, sender: u32) -> bool {
        !self.signs.all_silent && self.beat(sender).is_some_and(|beat| beat.silent)
    }

    fn is_overdue(&self, open: &Open, by: f64, least: f64) -> bool {
        let age = self.scene.age(open.start);
        match self.scene.usual(open.name) {
            Some(usual) => age > (by * usual.longest).max(least),
            None => age > PATIENCE_S.max(least),
        }
    }

    fn suspect(&mut self, node: usize, weight: i64, known: bool, hard: bool, text: String, opens: &[usize]) {
        let overdue = |by, least| opens.iter().any(|open| self.is_overdue(&self.scene.open[*open], by, least));
        let (overdue, far_overdue) = (overdue(OVERDUE, 0.0), overdue(FAR_OVERDUE, FAR_OVERDUE_S));
        let of = &mut self.nodes[node];
        if of.about.is_empty() {
            of.about = text.clone();
        }
        let suspect =
            Suspect { node, kind: of.kind.clone(), name: of.label.clone(), text, known, waiting: opens.len().max(1) };
        self.found.push(Found { suspect, weight, hard, overdue, far_overdue });
    }

    /// Builds the graph.
    fn relate(&mut self) {
        let root = match self.scene.step {
            Some(step) => self.node("step", format!("step {step}")),
            None => self.node("run", "the run".to_string()),
        };
        self.nodes[root].since_ns = self.scene.step_start;
        (self.nodes[root].usual_s, self.nodes[root].longest_s) =
            (self.scene.usual_step.map(|u| u.median), self.scene.usual_step.map(|u| u.longest));
        self.nodes[root].count = 1;
        // The trainer's spans, from the outside in.
        let mut places: Vec<Option<usize>> = vec![None; self.scene.open.len()];
        let is_trainers = |open: &Open| !open.foreign && open.sample == NONE && call(open.kind).is_none();
        let trainers: Vec<usize> = (0..self.scene.open.len()).filter(|at| is_trainers(&self.scene.open[*at])).collect();
        for at in &trainers {
            places[*at] = Some(match self.scene.open[*at].kind {
                Kind::Step => root,
                kind => {
                    let name = self.name(self.scene.open[*at].name).to_string();
                    let kind =
                        if peers::is_collective(&name, kind) && kind == Kind::Idle { "collective" } else { "phase" };
                    let node = self.node(kind, name);
                    self.add(node, *at);
                    node
                }
            });
        }
        let above = |judge: &Judge, mut at: usize, places: &[Option<usize>]| {
            for _ in 0..64 {
                let Some(up) = judge.scene.open[at].parent else { break };
                if let Some(place) = places[up] {
                    return Some(place);
                }
                at = up;
            }
            None
        };
        for at in &trainers {
            let from = above(self, *at, &places).unwrap_or(root);
            if let Some(to) = places[*at] {
                self.wait(from, to, true);
            }
        }
        let leaves: Vec<usize> = trainers.iter().copied().filter(|at| !self.scene.open[*at].has_children).collect();
        let calls = self.calls(&mut places, root, &leaves, &above);
        self.trainer_leaves(&leaves, &places, calls);
        self.silent_senders(root);
    }

    /// What samples, and the trainer itself, have called. True if samples are open.
    fn calls(
        &mut self,
        places: &mut [Option<usize>],
        root: usize,
        leaves: &[usize],
        above: &impl Fn(&Judge, usize, &[Option<usize>]) -> Option<usize>,
    ) -> bool {
        let scene = &self.scene;
        let served: HashMap<u32, u32> = scene
            .open
            .iter()
            .filter(|open| open.foreign && open.request != NONE)
            .map(|open| (open.request, open.sender))
            .collect();
        let is_call = |open: &Open| {
            !open.has_children
                && (open.sample != NONE || call(open.kind).is_some())
                && !(open.foreign && open.parent.is_none())
        };
        let ends: Vec<usize> = (0..scene.open.len()).filter(|at| is_call(&scene.open[*at])).collect();
        let samples: HashSet<u32> = ends.iter().map(|at| scene.open[*at].sample).filter(|s| *s != NONE).collect();
        let (open, all) = (samples.len(), scene.samples.max(samples.len()));
        let samples = (open > 0).then(|| self.node("samples", some_of(open, all, "sample")));
        if let Some(samples) = samples {
            self.nodes[samples].count = open;
            // Whoever contains the samples waits for them. In traces of their own, nobody does: then what a trainer does meanwhile counts.
            let containers: Vec<usize> = leaves
                .iter()
                .copied()
                .filter(|at| {
                    let kind = self.scene.open[*at].kind;
                    !matches!(kind, Kind::Train | Kind::WeightSync | Kind::LogProbs | Kind::Checkpoint)
                })
                .filter_map(|at| places[at])
                .collect();
            for from in &containers {
                self.wait(*from, samples, true);
            }
            for at in &ends {
                let above = above(self, *at, places).filter(|_| self.scene.open[*at].sample != NONE);
                if let Some(from) = above {
                    self.wait(from, samples, true);
                }
            }
            if !self.waits.iter().any(|wait| wait.to == samples) {
                self.wait(root, samples, leaves.is_empty());
            }
        }
        let apart = samples.is_some_and(|samples| {
            !leaves.is_empty() && self.waits.iter().any(|wait| wait.to == samples && !wait.known)
        });
        // By what they wait for.
        let mut groups: HashMap<(&'static str, String), Vec<usize>> = HashMap::new();
        let mut unknown: Vec<usize> = Vec::new();
        for at in &ends {
            let open = &self.scene.open[*at];
            let sender = self.scene.senders.get(&open.sender);
            if self.is_silent(open.sender) {
                let name = sender.map_or_else(String::new, Sender::name);
                groups.entry(("process", name)).or_default().push(*at);
                continue;
            }
            let name = self.name(open.name).to_string();
            let key = match call_of(open) {
                Some(Call::Engine) => {
                    let by_request = served.get(&open.request).filter(|_| open.request != NONE);
                    let by_span = open.foreign.then_some(&open.sender);
                    let engine = by_span.or(by_request).and_then(|sender| self.scene.senders.get(sender));
                    match (engine.map(|sender| sender.label.clone()), &open.address) {
                        (Some(label), _) => ("engine", self.engine_name(&label)),
                        (None, Some(address)) => ("engine", self.engine_name(address)),
                        (None, None) => {
                            unknown.push(*at);
                            continue;
                        }
                    }
                }
                Some(Call::Tool) => ("tool", open.tool.clone().unwrap_or(name)),
                Some(Call::Judge) => ("judge", name),
                None => ("span", name),
            };
            groups.entry(key).or_default().push(*at);
        }
        self.by_exclusion(unknown, &mut groups);
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then_with(|| a.0.cmp(&b.0)));
        groups.truncate(MAX_NODES);
        for ((kind, label), opens) in groups {
            let (kind, known) = match kind {
                "likely engine" => ("engine", false),
                kind => (kind, true),
            };
            let node = self.node(kind, label.clone());
            let mut waiting: HashSet<u32> = HashSet::new();
            for at in &opens {
                self.add(node, *at);
                let from = match (self.scene.open[*at].sample, samples) {
                    (NONE, _) | (_, None) => above(self, *at, places).unwrap_or(root),
                    (sample, Some(samples)) => {
                        if !waiting.insert(sample) {
                            continue;
                        }
                        samples
                    }
                };
                self.wait(from, node, known);
            }
            self.suspect_call(node, kind, &label, known, apart, &opens);
        }
        open > 0
    }

    /// An address as the engine's own series have it, where it has any.
    fn engine_name(&self, address: &str) -> String {
        match self.signs.engine(address) {
            Some(at) => self.signs.engines[at].name.clone(),
            None => signs::bare(address).to_string(),
        }
    }

    /// Requests that do not say where they went: to the engines that stand still, if any do.
    fn by_exclusion(&self, unknown: Vec<usize>, groups: &mut HashMap<(&'static str, String), Vec<usize>>) {
        if unknown.is_empty() {
            return;
        }
        let bad = |state| matches!(state, EngineState::Down | EngineState::Still | EngineState::NotServing);
        let suspects: Vec<&EngineNow> = self.signs.engines.iter().filter(|engine| bad(engine.state)).collect();
        let moving = self.signs.engines.iter().any(|engine| engine.state == EngineState::Moving);
        match &suspects[..] {
            [] => {
                // The series of engines tell nothing: the calls are all that is known.
                for at in unknown {
                    let name = self.name(self.scene.open[at].name).to_string();
                    groups.entry(("span", name)).or_default().push(at);
                }
            }
            [first, ..] => {
                let worst = suspects.iter().find(|e| e.state == EngineState::Down).unwrap_or(first);
                let kind = if suspects.len() == 1 && !moving { "engine" } else { "likely engine" };
                groups.entry((kind, worst.name.clone())).or_default().extend(unknown);
            }
        }
    }

    fn suspect_call(
        &mut self,
        node: usize,
        kind: &'static str,
        label: &str,
        known: bool,
        apart: bool,
        opens: &[usize],
    ) {
        let oldest = opens.iter().copied().min_by_key(|at| self.scene.open[*at].start).unwrap_or(0);
        let open = &self.scene.open[oldest];
        let usual = self.scene.usual(open.name).map(|usual| (usual.median, usual.longest));
        let age = lasted(self.scene.age(open.start), usual);
        let (name, sender) = (self.name(open.name).to_string(), open.sender);
        let some = opens.len().min(99) as i64;
        let likely = if known { 0 } else { weight::LIKELY };
        let apart = if apart { weight::APART } else { 0 };
        let calls = match opens.len() {
            1 => format!("has not answered {age}"),
            n => format!("has not answered {n} calls, the oldest {age}"),
        };
        match kind {
            "engine" => {
                let at = self.signs.engine(label);
                let (state, about) = match at {
                    Some(at) => (self.signs.engines[at].state, self.about_engine(at)),
                    None => (EngineState::Unknown, "its own figures are not known".to_string()),
                };
                let (weight, hard) = match state {
                    EngineState::Down => (weight::DOWN, true),
                    EngineState::Still | EngineState::NotServing => (weight::STILL, true),
                    EngineState::Moving => (weight::ENGINE + weight::APART, false),
                    EngineState::Idle => (weight::ENGINE - 1, false),
                    EngineState::Unknown => (weight::ENGINE, false),
                };
                if at.is_none() {
                    self.advise("Scrape the engines (`rollscope serve --scrape URL`) to see whether they work.");
                }
                let text = format!("engine {label} {calls}: {about}");
                self.suspect(node, weight + likely + apart, known, hard && known, text, opens);
            }
            "tool" => {
                let text = format!("tool `{label}` {calls}");
                self.suspect(node, weight::CALL + some + apart, true, false, text, opens);
            }
            "judge" => {
                let text = format!("the judge (`{label}`) {calls}");
                self.suspect(node, weight::CALL + some + apart, true, false, text, opens);
            }
            "process" => self.suspect_silent(node, sender, opens, apart),
            _ => {
                let text = format!("`{name}` has been open {age}, and nothing is known to be below it");
                if call(self.scene.open[oldest].kind) == Some(Call::Engine) {
                    self.advise(
                        "The requests do not say which engine serves them: set `server.address` on their spans, and scrape the engines (`rollscope serve --scrape URL`).",
                    );
                }
                self.suspect(node, weight::ENGINE - 10 + likely + apart, false, false, text, opens);
            }
        }
    }

    fn about_engine(&self, at: usize) -> String {
        let engine = &self.signs.engines[at];
        let when =
            |ns: Option<i64>| ns.map_or("not in sight".to_string(), |ns| format!("at {}", moment(ns, self.scene.at)));
        let (reported, moved) = (when(engine.reported_ns), when(engine.moved_ns));
        let now = |value: Option<f64>| value.map_or("an unknown number of".to_string(), |value| format!("{value:.0}"));
        match engine.state {
            EngineState::Down => {
                format!("it does not answer scrapes. Its last report was {reported}, its last progress {moved}")
            }
            EngineState::Still => format!(
                "it reports {} running and {} queued requests, but its last progress was {moved}",
                now(engine.running),
                now(engine.queued)
            ),
            EngineState::NotServing => {
                format!("it has {} queued requests and runs none. Its last progress was {moved}", now(engine.queued))
            }
            EngineState::Moving => format!("it works: its last progress was {moved}"),
            EngineState::Idle => {
                format!("it reports that it has no requests (at {})", reported.trim_start_matches("at "))
            }
            EngineState::Unknown => format!("it has not been scraped lately (last report {reported})"),
        }
    }

    fn suspect_silent(&mut self, node: usize, sender: u32, opens: &[usize], apart: i64) {
        let Some(beat) = self.beat(sender) else { return };
        let last = moment(beat.last_ns, self.scene.at);
        let doing = opens.iter().copied().min_by_key(|at| self.scene.open[*at].start);
        let doing = doing.map(|at| self.name(self.scene.open[at].name).to_string());
        let doing = doing.map_or(String::new(), |name| format!(" It was in `{name}`."));
        let label = self.nodes[node].label.clone();
        let text = format!("{label} has given no sign of life since {last}; it has likely exited.{doing}");
        let text = text.trim_end_matches('.').to_string();
        self.suspect(node, weight::SILENT + opens.len().min(99) as i64 + apart, true, true, text, opens);
    }

    /// What the trainer itself is in, with nothing open below.
    fn trainer_leaves(&mut self, leaves: &[usize], places: &[Option<usize>], samples: bool) {
        let collectives = peers::collectives(&self.scene, leaves);
        if let Some((a, b)) = peers::deadlock(&collectives) {
            self.deadlock(&collectives[a], &collectives[b], leaves, places);
            return;
        }
        let mut explained: HashSet<u32> = HashSet::new();
        for collective in collectives.iter().filter(|collective| !collective.missing.is_empty()) {
            let inside: Vec<usize> =
                leaves.iter().copied().filter(|at| self.scene.open[*at].name == collective.name).collect();
            let Some(from) = inside.first().and_then(|at| places[*at]) else { continue };
            explained.insert(collective.name);
            for missing in &collective.missing {
                let Some(sender) = self.scene.senders.get(missing) else { continue };
                let (label, last, last_name) = (sender.name(), sender.last_ns, sender.last_name);
                let node = self.node("process", label.clone());
                self.wait(from, node, true);
                let own: Vec<usize> =
                    leaves.iter().copied().filter(|at| self.scene.open[*at].sender == *missing).collect();
                own.iter().for_each(|at| {
                    self.add(node, *at);
                    explained.insert(self.scene.open[*at].name);
                });
                if self.is_silent(*missing) {
                    self.suspect_silent(node, *missing, if own.is_empty() { &inside } else { &own }, 0);
                    continue;
                }
                let what = self.name(collective.name).to_string();
                let doing = match own.first() {
                    Some(at) => {
                        let open = &self.scene.open[*at];
                        format!("it has been in `{}` since {}", self.name(open.name), moment(open.start, self.scene.at))
                    }
                    None => {
                        format!("its last span, `{}`, was at {}", self.name(last_name), moment(last, self.scene.at))
                    }
                };
                let text = format!(
                    "{label} has not entered `{what}`, in which {} {}: {doing}",
                    count(collective.inside.len(), "other"),
                    if collective.inside.len() == 1 { "waits" } else { "wait" }
                );
                self.suspect(node, weight::MISSING, true, false, text, &inside);
            }
        }
        let mut by_name: HashMap<u32, Vec<usize>> = HashMap::new();
        for at in leaves.iter().filter(|at| !explained.contains(&self.scene.open[**at].name)) {
            by_name.entry(self.scene.open[*at].name).or_default().push(*at);
        }
        let mut by_name: Vec<(u32, Vec<usize>)> = by_name.into_iter().collect();
        by_name.sort_by_key(|(name, opens)| (std::cmp::Reverse(opens.len()), *name));
        for (name, opens) in by_name.into_iter().take(MAX_NODES) {
            let Some(node) = places[opens[0]] else { continue };
            let silent = opens.iter().map(|at| self.scene.open[*at].sender).find(|sender| self.is_silent(*sender));
            if let Some(sender) = silent {
                let label = self.scene.senders.get(&sender).map_or_else(String::new, Sender::name);
                let process = self.node("process", label);
                self.wait(node, process, true);
                self.suspect_silent(process, sender, &opens, 0);
                continue;
            }
            // It waits for samples, or for what it called.
            if self.waits.iter().any(|wait| wait.from == node) || node == 0 && samples {
                continue;
            }
            self.suspect_span(node, name, &opens);
        }
    }

    fn suspect_span(&mut self, node: usize, name: u32, opens: &[usize]) {
        let oldest = opens.iter().copied().min_by_key(|at| self.scene.open[*at].start).unwrap_or(opens[0]);
        let usual = self.scene.usual(name).map(|usual| (usual.median, usual.longest));
        let age = lasted(self.scene.age(self.scene.open[oldest].start), usual);
        let senders: HashSet<u32> = opens.iter().map(|at| self.scene.open[*at].sender).collect();
        let mut labels: Vec<String> =
            senders.iter().filter_map(|sender| self.scene.senders.get(sender)).map(Sender::name).collect();
        labels.sort();
        let text = format!("`{}` has been open {age} in {}", self.name(name), list(&labels, NAMES));
        if peers::is_collective(self.name(name), self.scene.open[oldest].kind) {
            self.advise(
                "To see which rank holds a collective, add the dumps of PyTorch's Flight Recorder and of py-spy: `rollscope hang RUN --add DIR`.",
            );
        }
        self.suspect(node, weight::SPAN, false, false, text, opens);
    }

    fn deadlock(&mut self, a: &Collective, b: &Collective, leaves: &[usize], places: &[Option<usize>]) {
        let names = |judge: &Judge, senders: &[u32]| {
            let mut labels: Vec<String> =
                senders.iter().filter_map(|s| judge.scene.senders.get(s)).map(Sender::name).collect();
            labels.sort();
            list(&labels, NAMES)
        };
        let (first, second) = (self.name(a.name).to_string(), self.name(b.name).to_string());
        let text = format!(
            "a deadlock: {} wait in `{first}` for {}, which wait in `{second}` for them",
            names(self, &a.inside),
            names(self, &b.inside)
        );
        let node = self.node("deadlock", format!("{first} and {second}"));
        let inside: Vec<usize> =
            leaves.iter().copied().filter(|at| [a.name, b.name].contains(&self.scene.open[*at].name)).collect();
        for at in &inside {
            self.add(node, *at);
            if let Some(from) = places[*at] {
                self.wait(from, node, true);
            }
        }
        self.suspect(node, weight::DEADLOCK, true, false, text, &inside);
    }

    /// Processes that fell silent, though nothing that is open says that somebody waits for them.
    fn silent_senders(&mut self, root: usize) {
        if self.signs.all_silent {
            let last = self.signs.beats.values().map(|beat| beat.last_ns).max().unwrap_or(0);
            let last = moment(last, self.scene.at);
            let node = self.node("process", "all processes".to_string());
            self.wait(root, node, true);
            let text = match self.signs.beats.len() {
                1 => format!(
                    "the only process that gave signs of life has given none since {last}; it has likely exited"
                ),
                n => format!(
                    "none of {n} processes has given a sign of life since {last}; they have likely exited, or cannot reach the server"
                ),
            };
            self.suspect(node, weight::ALL_SILENT, true, true, text, &[]);
            return;
        }
        let named: HashSet<usize> = self.found.iter().map(|found| found.suspect.node).collect();
        let mut silent: Vec<(u32, String)> = self
            .scene
            .senders
            .iter()
            .filter(|(number, sender)| {
                // Whoever left long before the run stood still has nothing to do with it.
                let near = self.scene.last.is_none_or(|last| sender.last_ns >= last - 600 * scene::SECOND);
                near && self.is_silent(**number)
            })
            .map(|(number, sender)| (*number, sender.name()))
            .collect();
        silent.sort();
        for (sender, label) in silent.into_iter().take(MAX_SUSPECTS) {
            let node = self.node("process", label);
            if named.contains(&node) {
                continue;
            }
            let holds: Vec<usize> = (0..self.scene.open.len())
                .filter(|at| self.scene.open[*at].sender == sender && !self.scene.open[*at].foreign)
                .collect();
            self.wait(root, node, !holds.is_empty());
            let apart = if holds.is_empty() { weight::APART } else { 0 };
            self.suspect_silent(node, sender, &holds, apart);
        }
    }

    fn advise(&mut self, text: &str) {
        if !self.advice.iter().any(|known| known == text) {
            self.advice.push(text.to_string());
        }
    }

    fn answer(mut self) -> Hang {
        self.found.sort_by(|a, b| b.weight.cmp(&a.weight).then_with(|| a.suspect.name.cmp(&b.suspect.name)));
        self.found.truncate(MAX_SUSPECTS);
        // A request that an engine works on moves, though no span says so.
        let serving = self.scene.open.iter().any(|open| call(open.kind) == Some(Call::Engine));
        let worked = std::mem::take(&mut self.signs.worked);
        let last_worked = worked.iter().copied().max().filter(|_| serving);
        let last = self.scene.last.max(last_worked);
        worked.into_iter().for_each(|time| self.scene.note(time));
        let at = self.scene.at;
        let times = Times {
            last,
            quiet: last.map_or(0.0, |last| self.scene.age(last)),
            pause: last.and_then(|last| self.scene.longest_pause(last)),
            step: self.scene.step_start.map(|start| self.scene.age(start)),
        };
        let usual_step = self.scene.usual_step;
        let state = self.state(times);
        let hangs = state == State::Hanging;
        if self.signs.beats.is_empty() && hangs {
            self.advise("No process gives signs of life. Those that use the rollscope package do, every second.");
        }
        if self.scene.open.is_empty() && hangs {
            self.advise(
                "No span is open: these senders report spans only when they end. The rollscope package also reports spans that are open.",
            );
        }
        let suspects: Vec<Suspect> = match state {
            State::Hanging => self.found.iter().map(|found| found.suspect.clone()).collect(),
            State::Finished | State::Unknown => Vec::new(),
            // Most of what is open in a run that moves is as it should be.
            _ => self.found.iter().filter(|f| f.hard || f.far_overdue).map(|f| f.suspect.clone()).collect(),
        };
        let chain = suspects.first().map_or(Vec::new(), |first| self.chain(first.node));
        let text = self.text(state, times, &suspects, &chain);
        let workers = self.workers();
        Hang {
            run: self.scene.run.clone(),
            at_ns: at,
            state,
            text,
            last_ns: last,
            quiet_s: times.quiet,
            pause_s: times.pause,
            step: self.scene.step,
            step_s: times.step.filter(|_| state != State::Finished),
            usual_step_s: usual_step.map(|usual| usual.median),
            suspects,
            chain,
            engines: self.signs.engines,
            workers,
            nodes: self.nodes,
            waits: self.waits,
            advice: self.advice,
            dumps: Vec::new(),
            spans: self.scene.spans,
        }
    }

    fn state(&self, times: Times) -> State {
        let Times { last, quiet, pause, step: step_s } = times;
        if self.scene.over.is_some() {
            return State::Finished;
        }
        if last.is_none() {
            return State::Unknown;
        }
        let first = self.found.first();
        let hard = first.is_some_and(|first| first.hard);
        // What a whole step shows is what is usual. Before the first has ended, little is.
        let least = match (self.scene.usual_step, hard) {
            (None, false) => PATIENCE_S,
            _ => LEAST_QUIET_S,
        };
        let limit = pause.map_or(least, |pause| least.max(PAUSES * pause));
        let overdue = match first {
            Some(first) => first.overdue || hard,
            None => quiet > (2.0 * limit).max(PATIENCE_S / 2.0),
        };
        let step_overdue = match (step_s, self.scene.usual_step) {
            (Some(step), Some(usual)) => step > OVERDUE * usual.longest,
            _ => false,
        };
        let apart = first.is_some_and(|first| first.far_overdue && first.weight >= weight::SPAN) && step_overdue;
        if quiet > limit && overdue || apart {
            return State::Hanging;
        }
        match (step_s, self.scene.usual_step) {
            (Some(step), Some(usual)) if step > SLOW * usual.median.max(usual.longest) => State::Slow,
            _ => State::Moving,
        }
    }

    /// The shortest way from the root to a node.
    fn chain(&self, to: usize) -> Vec<usize> {
        let mut from: HashMap<usize, usize> = HashMap::new();
        let mut queue = std::collections::VecDeque::from([0]);
        while let Some(at) = queue.pop_front() {
            for wait in self.waits.iter().filter(|wait| wait.from == at) {
                if wait.to != 0 && !from.contains_key(&wait.to) {
                    from.insert(wait.to, at);
                    queue.push_back(wait.to);
                }
            }
        }
        let mut chain = vec![to];
        while let Some(before) = chain.last().and_then(|at| from.get(at)) {
            chain.push(*before);
        }
        chain.reverse();
        chain
    }

    fn text(&self, state: State, times: Times, suspects: &[Suspect], chain: &[usize]) -> String {
        let Times { last, quiet, pause, step: step_s } = times;
        let at = self.scene.at;
        let step = match (self.scene.step, step_s, self.scene.usual_step) {
            (Some(step), Some(seconds), Some(usual)) if usual.median > 0.0 => {
                let times = seconds / usual.median;
                match times > SLOW {
                    true => format!("; step {step} has taken {times:.1} times the usual so far ({})", time(seconds)),
                    false => format!("; step {step} has run for {} of the usual {}", time(seconds), time(usual.median)),
                }
            }
            (Some(step), Some(seconds), None) => format!("; step {step} has run for {}", time(seconds)),
            _ => String::new(),
        };
        match state {
            State::Finished => {
                let (status, ended) = self.scene.over.clone().unwrap_or_default();
                format!("The run is over: it {status} at {} UTC.", moment(ended, at))
            }
            State::Unknown => "Nothing is known of this run at that time: no span and no metric.".to_string(),
            State::Moving | State::Slow => {
                let unusual = pause.is_none_or(|pause| quiet > PAUSES * pause);
                let mut text = match (quiet > LEAST_QUIET_S, unusual) {
                    (false, _) => format!("Moving: the last event was {} ago{step}.", time(quiet)),
                    (true, false) => format!("Nothing new for {}, which is not unusual here{step}.", time(quiet)),
                    (true, true) => format!(
                        "Nothing new for {}, but nothing that is open has taken unusually long{step}.",
                        time(quiet)
                    ),
                };
                if let Some(first) = suspects.first() {
                    text.push_str(&format!(" But look at this: {}.", first.text));
                }
                text
            }
            State::Hanging => {
                let since = last.map_or(String::new(), |last| moment(last, at));
                let before =
                    pause.map_or(String::new(), |pause| format!("; the longest pause before was {}", time(pause)));
                let mut text = match quiet > LEAST_QUIET_S {
                    true => format!("Nothing has moved since {since} UTC ({}{before}).", time(quiet)),
                    false => format!("The step stands still, though other things move (the last {} ago).", time(quiet)),
                };
                if chain.len() > 1 {
                    text.push_str(&format!(" {}.", capital(&self.way(chain))));
                }
                for (n, suspect) in suspects.iter().take(3).enumerate() {
                    let lead = match (n, suspect.known) {
                        (0, true) => "",
                        (0, false) => "Likely: ",
                        (_, true) => "Also: ",
                        (_, false) => "Also likely: ",
                    };
                    let said = if lead.is_empty() { capital(&suspect.text) } else { suspect.text.clone() };
                    text.push_str(&format!(" {lead}{said}."));
                }
                if suspects.is_empty() {
                    text.push_str(" What it waits for cannot be seen in what was sent.");
                }
                text
            }
        }
    }

    /// `step 14 waits in `rollout` for 3 of 512 samples, which wait for engine x`.
    fn way(&self, chain: &[usize]) -> String {
        let mut text = self.nodes[chain[0]].label.clone();
        let inner: Vec<String> = chain[1..]
            .iter()
            .map(|at| &self.nodes[*at])
            .filter(|n| n.kind == "phase")
            .map(|n| format!("`{}`", n.label))
            .collect();
        text.push_str(" waits");
        if !inner.is_empty() {
            text.push_str(&format!(" in {}", inner.join(" > ")));
        }
        let mut verb = " for ";
        for at in &chain[1..] {
            let node = &self.nodes[*at];
            let named = match node.kind.as_str() {
                "phase" => continue,
                "samples" => node.label.clone(),
                "tool" | "judge" | "span" | "collective" => {
                    format!("{} `{}`", if node.kind == "span" { "" } else { &node.kind }, node.label)
                }
                "engine" => format!("engine {}", node.label),
                "deadlock" => "itself".to_string(),
                _ => node.label.clone(),
            };
            text.push_str(verb);
            text.push_str(named.trim());
            verb = match node.kind.as_str() {
                "samples" if node.count == 1 => ", which waits for ",
                _ => ", which wait for ",
            };
        }
        text
    }

    fn workers(&self) -> Vec<WorkerNow> {
        let mut doing: HashMap<u32, (usize, usize)> = HashMap::new();
        for (at, open) in self.scene.open.iter().enumerate().filter(|(_, open)| !open.has_children) {
            let of = doing.entry(open.sender).or_insert((at, 0));
            of.1 += 1;
            if open.start < self.scene.open[of.0].start {
                of.0 = at;
            }
        }
        let mut workers: Vec<WorkerNow> = self
            .scene
            .senders
            .iter()
            .map(|(number, sender)| {
                let open = doing.get(number).map(|(at, n)| (&self.scene.open[*at], *n));
                let usual = open.and_then(|(open, _)| self.scene.usual(open.name));
                let beat = self.beat(*number);
                WorkerNow {
                    name: sender.name(),
                    service: sender.service.clone(),
                    host: sender.host.clone(),
                    pid: sender.pid,
                    doing: open.map_or(String::new(), |(open, _)| self.name(open.name).to_string()),
                    open: open.map_or(0, |(_, n)| n),
                    since_ns: open.map(|(open, _)| open.start),
                    usual_s: usual.map(|usual| usual.median),
                    longest_s: usual.map(|usual| usual.longest),
                    last: self.name(sender.last_name).to_string(),
                    last_ns: sender.last_ns,
                    beat_ns: beat.map(|beat| beat.last_ns),
                    silent: beat.is_some_and(|beat| beat.silent),
                    place: None,
                    stacks: None,
                }
            })
            .collect();
        workers.sort_by(|a, b| a.service.cmp(&b.service).then_with(|| a.name.cmp(&b.name)).then(a.pid.cmp(&b.pid)));
        workers.truncate(MAX_WORKERS);
        workers
    }
}
