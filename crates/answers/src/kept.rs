//! What was worked out already: in memory, and beside the rows it was worked out from
//! ([`Snapshot::keep_derived`]), so that a restart costs nothing. Everything names its basis: the steps with the
//! fingerprints that their rows had ([`Extent`]), and the version of the code that worked it out. What does not agree is
//! worked out again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use bitcode::{Decode, Encode};
use bytes::Bytes;
use hashbrown::HashMap;
use rollscope_model::Table;
use rollscope_model::time::{NS_PER_S, now_ns};
use rollscope_query::Engine;
use rollscope_spans::joins::SKEW_NS;
use rollscope_store::{Segment, Snapshot};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use xxhash_rust::xxh3::xxh3_64;

use crate::difference::Shape;
use crate::extent::{Censuses, Extent};
use crate::mismatch::StepTokens;
use crate::summary::StepSummary;

/// Steps that are worked out at the same time.
const AT_ONCE: usize = 2;
/// Requests and calls (see [`super::samples`]) that are kept in memory over all steps and runs, about 150 bytes each; the
/// longest unused go first.
const MAX_KEPT: usize = 2_000_000;
/// Full answers, and said ones, that are kept in memory.
const MAX_KEPT_ANSWERS: usize = 64;
const MAX_GOING_ON: usize = 10_000;
/// Steps of which the answer about their tokens is kept in memory, about 20 kB each.
const MAX_KEPT_TOKENS: usize = 2_000;
/// A hash of the sources that work out what is kept.
const VERSION: &str = env!("ROLLSCOPE_ANSWERS_VERSION");

/// [`StepAnswers`](super::report::StepAnswers) as JSON, which is all that anybody wants of them.
pub type AnswersJson = Map<String, Value>;

/// A run at one moment.
pub struct Moment {
    pub run: String,
    pub snapshot: Snapshot,
    pub extent: Extent,
    pub goes_on: bool,
}

impl Moment {
    /// Spans of the run and of others that ran beside it, as far as whole segments tell.
    pub fn most_rows(&self) -> i64 {
        let Some(spans) = self.snapshot.tables.get(&Table::Spans) else { return 0 };
        let stored = spans.segments.iter().filter_map(|segment| segment.part(&self.run));
        let stored = stored.map(|part| (part.min_time, part.max_time));
        // What was sent just now is in no segment.
        let parts = self.snapshot.tail_contents(Table::Spans).flat_map(|contents| &contents.parts);
        let recent = parts.filter(|part| part.run_id == self.run).map(|part| (part.min_time, part.max_time));
        let widest = |(from, to): (i64, i64), (min, max): (i64, i64)| (from.min(min), to.max(max));
        let (from, to) = stored.chain(recent).fold((i64::MAX, i64::MIN), widest);
        let (from, to) = (from.saturating_sub(SKEW_NS), to.saturating_add(SKEW_NS));
        let beside = |segment: &&Arc<Segment>| segment.min_time <= to && segment.max_time >= from;
        let stored: u64 = spans.segments.iter().filter(beside).map(|segment| segment.rows).sum();
        let tail: usize = spans.tail.iter().map(RecordBatch::num_rows).sum();
        (stored + tail as u64) as i64
    }
}

#[derive(Clone)]
pub struct KnownStep {
    basis: Basis,
    used: u64,
    at: Instant,
    pub summary: Arc<StepSummary>,
    pub shape: Arc<Shape>,
    pub answers: Option<Arc<AnswersJson>>,
}

/// A step, when it was, and its rows.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Basis {
    step: Option<i64>,
    window: (i64, i64),
    fingerprint: u64,
    /// Whether the run went on, where that matters: spans without an end go on or were cut off.
    went_on: Option<bool>,
}

impl Basis {
    fn of(moment: &Moment, summary: &StepSummary) -> Basis {
        let (step, window) = (summary.step, summary.window());
        let went_on = (summary.open > 0).then_some(moment.goes_on);
        Basis { step, window, fingerprint: moment.extent.fingerprint(step, window), went_on }
    }

    fn holds(&self, moment: &Moment) -> bool {
        self.went_on.is_none_or(|went_on| went_on == moment.goes_on)
            && self.fingerprint == moment.extent.fingerprint(self.step, self.window)
    }
}

/// As it is written, after a checksum.
#[derive(Encode, Decode)]
struct Record {
    version: String,
    basis: Vec<Basis>,
    parts: Vec<Vec<u8>>,
}

impl Record {
    fn write(basis: Vec<Basis>, parts: Vec<Vec<u8>>) -> Vec<u8> {
        let body = bitcode::encode(&Record { version: VERSION.to_string(), basis, parts });
        [xxh3_64(&body).to_le_bytes().as_slice(), &body].concat()
    }

    fn read(data: &[u8]) -> Option<Record> {
        let (checksum, body) = data.split_first_chunk::<8>()?;
        let read = (u64::from_le_bytes(*checksum) == xxh3_64(body)).then(|| bitcode::decode::<Record>(body))?;
        read.ok().filter(|record| record.version == VERSION)
    }
}

/// What is kept of each of a run's steps for a list of them.
pub struct Lines {
    pub(crate) moment: Moment,
    /// By step, as they were given to [`crate::Answers::keep_lines`], with the fingerprints of their rows.
    pub known: BTreeMap<i64, (u64, Vec<u8>)>,
    /// The steps that nothing is known of, in order.
    pub missing: Vec<i64>,
}

impl Lines {
    /// Of the rows of a step that was read just now.
    pub fn fingerprint(&self, step: i64, window: (i64, i64)) -> u64 {
        self.moment.extent.fingerprint(Some(step), window)
    }
}

/// What is kept of one step under a name, on the disk alone.
pub struct OnDisk {
    pub(crate) moment: Moment,
    step: i64,
    /// It was made from the rows that the step has now.
    pub data: Option<Bytes>,
}

impl OnDisk {
    /// May other rows be those of the step, if it lasted until `to`? `orphans`: the parents of some did not come, and might.
    pub fn may_change(&self, to: i64, orphans: bool) -> bool {
        let settles_in = if orphans { ORPHANS_SETTLE_IN_NS } else { SETTLES_IN_NS };
        self.moment.goes_on && now_ns() < to.saturating_add(settles_in)
    }
}

/// Of one step.
pub struct Line {
    pub step: i64,
    /// From the first start to the last end of its spans.
    pub window: (i64, i64),
    pub text: Vec<u8>,
}

type KeptLines = BTreeMap<i64, (Basis, Vec<u8>)>;

/// The file of a run's lines.
const LINES: &str = "lines";

/// A run and the name of what was said of it.
type AllSaid = HashMap<(String, String), Said>;

struct Said {
    used: u64,
    basis: Vec<Basis>,
    /// Steps that changed all the time when it was said, and when that was.
    changing: Vec<Option<i64>>,
    at: Instant,
    text: Bytes,
}

/// What is known of a step that changes all the time is good enough for what is said of another one for this long: it counts for
/// little there, and it would be worked out for every question.
const GOOD_ENOUGH_FOR: Duration = Duration::from_secs(15);
/// Rows that name no step, and come so long after its end, may still belong to it.
const SETTLES_IN_NS: i64 = 3 * SKEW_NS;
/// A parent that ended so much later is not waited for: many never come, and many runs never say that they are over.
const ORPHANS_SETTLE_IN_NS: i64 = 3600 * NS_PER_S;

/// Does it go on, or has it ended just now? Then every row of the engines is a reason to work it out again.
fn is_changing(summary: &StepSummary) -> bool {
    summary.running || now_ns() < summary.window().1.saturating_add(SETTLES_IN_NS)
}

/// What is known by run and step; the number counts uses.
type Known = (u64, HashMap<(String, Option<i64>), KnownStep>);

/// What is known of tokens by run and step, each with the fingerprint of its rows.
type KnownTokens = HashMap<(String, Option<i64>), (u64, Arc<StepTokens>)>;

pub struct Kept {
    known: Mutex<Known>,
    said: Mutex<(u64, AllSaid)>,
    lines: Mutex<HashMap<String, Arc<KeptLines>>>,
    /// Whether runs go on, by the segments that say so.
    going_on: Mutex<HashMap<String, (Vec<String>, bool)>>,
    tokens: Mutex<KnownTokens>,
    pub censuses: Censuses,
    /// Steps are large: few are read at the same time, whoever asks.
    pub turns: Semaphore,
}

impl Default for Kept {
    fn default() -> Self {
        let (known, said, lines, going_on, tokens, censuses) = Default::default();
        Kept { known, said, lines, going_on, tokens, censuses, turns: Semaphore::new(AT_ONCE) }
    }
}

fn decode(data: &[u8], full: bool) -> Option<KnownStep> {
    let record = Record::read(data)?;
    let [summary, shape, answers] = record.parts.as_slice() else { return None };
    Some(KnownStep {
        basis: record.basis.first()?.clone(),
        used: 0,
        at: Instant::now(),
        summary: Arc::new(bitcode::decode(summary).ok()?),
        shape: Arc::new(bitcode::decode(shape).ok()?),
        answers: if full { Some(Arc::new(serde_json::from_slice(answers).ok()?)) } else { None },
    })
}

fn tokens_file(step: Option<i64>) -> String {
    step.map_or("mismatch".to_string(), |step| format!("mismatch={step}"))
}

fn step_file(step: Option<i64>) -> String {
    step.map_or("run".to_string(), |step| format!("step={step}"))
}

impl Kept {
    /// Whether a run goes on, if these are the segments that said so.
    pub fn goes_on(&self, run: &str, stored: &[String]) -> Option<bool> {
        let going_on = self.going_on.lock().unwrap_or_else(PoisonError::into_inner);
        going_on.get(run).filter(|(by, _)| by == stored).map(|(_, said)| *said)
    }

    pub fn keep_goes_on(&self, run: &str, stored: Vec<String>, said: bool) {
        let mut going_on = self.going_on.lock().unwrap_or_else(PoisonError::into_inner);
        if going_on.len() >= MAX_GOING_ON {
            going_on.clear();
        }
        going_on.insert(run.to_string(), (stored, said));
    }

    /// What is known of a step's tokens, if they are still those with this fingerprint.
    pub async fn tokens(
        &self,
        snapshot: &Snapshot,
        run: &str,
        step: Option<i64>,
        fingerprint: u64,
    ) -> Option<Arc<StepTokens>> {
        {
            let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
            let found = tokens.get(&(run.to_string(), step)).filter(|(of, _)| *of == fingerprint);
            if let Some((_, known)) = found {
                return Some(known.clone());
            }
        }
        let record = Record::read(&snapshot.derived(run, &tokens_file(step)).await?)?;
        let basis = Basis { step, window: (0, 0), fingerprint, went_on: None };
        let ([of], [known]) = (record.basis.as_slice(), record.parts.as_slice()) else { return None };
        let known: StepTokens = bitcode::decode(known).ok().filter(|_| *of == basis)?;
        let known = Arc::new(known);
        self.put_tokens(run, fingerprint, known.clone());
        Some(known)
    }

    pub async fn keep_tokens(&self, snapshot: &Snapshot, run: &str, fingerprint: u64, known: &Arc<StepTokens>) {
        if snapshot.keeper.is_some() {
            let basis = Basis { step: known.step, window: (0, 0), fingerprint, went_on: None };
            let record = Record::write(vec![basis], vec![bitcode::encode(known.as_ref())]);
            snapshot.keep_derived(run, &tokens_file(known.step), record).await;
        }
        self.put_tokens(run, fingerprint, known.clone());
    }

    fn put_tokens(&self, run: &str, fingerprint: u64, known: Arc<StepTokens>) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.len() >= MAX_KEPT_TOKENS {
            tokens.clear();
        }
        tokens.insert((run.to_string(), known.step), (fingerprint, known));
    }

    /// A step as it is known in memory; `full`: with its answers.
    pub fn get(&self, moment: &Moment, step: Option<i64>, full: bool) -> Option<KnownStep> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.0 += 1;
        let now = known.0;
        let found = known.1.get_mut(&(moment.run.clone(), step))?;
        if !found.basis.holds(moment) || full && found.answers.is_none() {
            return None;
        }
        found.used = now;
        Some(found.clone())
    }

    /// A step that changes all the time, as it was known a moment ago: for what is said of others.
    pub fn get_changing(&self, moment: &Moment, step: Option<i64>) -> Option<KnownStep> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.1.get(&(moment.run.clone(), step))?;
        let is_fresh = moment.goes_on && is_changing(&found.summary) && found.at.elapsed() < GOOD_ENOUGH_FOR;
        is_fresh.then(|| found.clone())
    }

    /// The same from the disk, read on the threads of the engine.
    pub async fn read(&self, engine: &Engine, moment: &Moment, step: Option<i64>, full: bool) -> Option<KnownStep> {
        let data = moment.snapshot.derived(&moment.run, &step_file(step)).await?;
        let known = engine.compute(move || decode(&data, full)).await.ok()??;
        if known.basis.step != step || !known.basis.holds(moment) {
            return None;
        }
        self.put(&moment.run, known.clone());
        Some(known)
    }

    /// Is it on the disk? Nothing is taken into memory.
    pub async fn is_kept(&self, moment: &Moment, step: Option<i64>) -> bool {
        let data = moment.snapshot.derived(&moment.run, &step_file(step)).await;
        let record = data.and_then(|data| Record::read(&data));
        let first = record.and_then(|record| record.basis.into_iter().next());
        first.is_some_and(|basis| basis.step == step && basis.holds(moment))
    }

    /// A step that was worked out just now.
    pub async fn keep(&self, moment: &Moment, summary: StepSummary, shape: Shape, answers: AnswersJson) -> KnownStep {
        let basis = Basis::of(moment, &summary);
        // What goes on changes soon.
        if !summary.running && moment.snapshot.keeper.is_some() {
            let parts = vec![
                bitcode::encode(&summary),
                bitcode::encode(&shape),
                serde_json::to_vec(&answers).expect("it is JSON"),
            ];
            let record = Record::write(vec![basis.clone()], parts);
            moment.snapshot.keep_derived(&moment.run, &step_file(summary.step), record).await;
        }
        let answers = Some(Arc::new(answers));
        let known = KnownStep {
            basis,
            used: 0,
            at: Instant::now(),
            summary: Arc::new(summary),
            shape: Arc::new(shape),
            answers,
        };
        self.put(&moment.run, known.clone());
        known
    }

    fn put(&self, run: &str, mut new: KnownStep) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.0 += 1;
        new.used = known.0;
        known.1.insert((run.to_string(), new.summary.step), new);
        let mut by_use: Vec<(u64, usize, (String, Option<i64>))> =
            known.1.iter().map(|(key, k)| (k.used, k.summary.size(), key.clone())).collect();
        by_use.sort_by_key(|(used, ..)| std::cmp::Reverse(*used));
        let (mut kept, mut answers) = (0, 0);
        for (_, size, key) in by_use {
            kept += size;
            if kept > MAX_KEPT {
                known.1.remove(&key);
            } else if let Some(k) = known.1.get_mut(&key)
                && k.answers.is_some()
            {
                answers += 1;
                if answers > MAX_KEPT_ANSWERS {
                    k.answers = None;
                }
            }
        }
    }

    /// What was said of a run, or of one step `of` it, if it was said by these steps, and they are still the same.
    pub async fn said(
        &self,
        moment: &Moment,
        name: &str,
        of: Option<Option<i64>>,
        steps: &[Option<i64>],
    ) -> Option<Bytes> {
        let by_these = |basis: &[Basis]| basis.iter().map(|b| b.step).eq(steps.iter().copied());
        let key = (moment.run.clone(), name.to_string());
        {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            said.0 += 1;
            let now = said.0;
            if let Some(known) = said.1.get_mut(&key) {
                let is_fresh = moment.goes_on && known.at.elapsed() < GOOD_ENOUGH_FOR;
                let may_change = |step: Option<i64>| is_fresh && of != Some(step) && known.changing.contains(&step);
                let holds = |b: &Basis| of.is_some() && may_change(b.step) || b.holds(moment);
                if by_these(&known.basis) && known.basis.iter().all(holds) {
                    known.used = now;
                    return Some(known.text.clone());
                }
            }
        }
        let data = moment.snapshot.derived(&moment.run, name).await?;
        let holds = |basis: &[Basis]| by_these(basis) && basis.iter().all(|b| b.holds(moment));
        let mut record = Record::read(&data).filter(|record| holds(&record.basis))?;
        let text = Bytes::from(record.parts.pop()?);
        self.put_said(key, record.basis, Vec::new(), text.clone());
        Some(text)
    }

    /// Keeps what was said of these steps.
    pub async fn keep_said(&self, moment: &Moment, name: &str, steps: &[KnownStep], text: Vec<u8>) -> Bytes {
        let basis: Vec<Basis> = steps.iter().map(|step| step.basis.clone()).collect();
        let of_changing = steps.iter().filter(|step| is_changing(&step.summary));
        let changing: Vec<Option<i64>> = of_changing.map(|step| step.summary.step).collect();
        let is_over = !steps.iter().any(|step| step.summary.running);
        if is_over && moment.snapshot.keeper.is_some() {
            let record = Record::write(basis.clone(), vec![text.clone()]);
            moment.snapshot.keep_derived(&moment.run, name, record).await;
        }
        let text = Bytes::from(text);
        self.put_said((moment.run.clone(), name.to_string()), basis, changing, text.clone());
        text
    }

    /// It may be large: read on the threads of the engine.
    pub async fn on_disk(&self, engine: &Engine, moment: Moment, step: i64, name: &str) -> OnDisk {
        let record = match moment.snapshot.derived(&moment.run, &format!("{name}={step}")).await {
            Some(data) => engine.compute(move || Record::read(&data)).await.ok().flatten(),
            None => None,
        };
        let holds = |record: &Record| record.basis.first().is_some_and(|b| b.step == Some(step) && b.holds(&moment));
        let data = record.filter(holds).and_then(|mut record| record.parts.pop()).map(Bytes::from);
        OnDisk { moment, step, data }
    }

    /// Keeps what was made of the rows of a step that lasted from one time to another. False: it could not be written.
    pub async fn keep_on_disk(
        &self,
        engine: &Engine,
        of: &OnDisk,
        name: &str,
        window: (i64, i64),
        data: Vec<u8>,
    ) -> bool {
        let OnDisk { moment, step, .. } = of;
        if moment.snapshot.keeper.is_none() {
            return false;
        }
        let fingerprint = moment.extent.fingerprint(Some(*step), window);
        let basis = Basis { step: Some(*step), window, fingerprint, went_on: None };
        let Ok(record) = engine.compute(move || Record::write(vec![basis], vec![data])).await else { return false };
        moment.snapshot.keep_derived(&moment.run, &format!("{name}={step}"), record).await
    }

    /// The lines of these steps that are kept and still hold.
    pub async fn lines(&self, moment: Moment, steps: impl Iterator<Item = i64>) -> Lines {
        let in_memory = self.lines.lock().unwrap_or_else(PoisonError::into_inner).get(&moment.run).cloned();
        let kept = match in_memory {
            Some(kept) => kept,
            None => {
                let data = moment.snapshot.derived(&moment.run, LINES).await;
                let record = data.and_then(|data| Record::read(&data));
                let lines = record.map(|record| record.basis.into_iter().zip(record.parts)).into_iter().flatten();
                let lines = Arc::new(lines.filter_map(|(basis, text)| Some((basis.step?, (basis, text)))).collect());
                self.put_lines(&moment.run, Arc::clone(&lines));
                lines
            }
        };
        let (mut known, mut missing) = (BTreeMap::new(), Vec::new());
        for step in steps {
            match kept.get(&step).filter(|(basis, _)| basis.holds(&moment)) {
                Some((basis, text)) => drop(known.insert(step, (basis.fingerprint, text.clone()))),
                None => missing.push(step),
            }
        }
        Lines { moment, known, missing }
    }

    pub async fn keep_lines(&self, moment: &Moment, fresh: Vec<Line>) {
        let before = self.lines.lock().unwrap_or_else(PoisonError::into_inner).get(&moment.run).cloned();
        let mut kept: KeptLines = before.map_or_else(KeptLines::new, |kept| KeptLines::clone(&kept));
        let first = fresh.iter().map(|line| line.step).min();
        for Line { step, window, text } in fresh {
            let fingerprint = moment.extent.fingerprint(Some(step), window);
            kept.insert(step, (Basis { step: Some(step), window, fingerprint, went_on: None }, text));
        }
        // The newest step of a run that goes on changes soon.
        let settled = !moment.goes_on || first < kept.keys().next_back().copied();
        if moment.snapshot.keeper.is_some() && settled {
            let (basis, parts) = kept.values().cloned().unzip();
            moment.snapshot.keep_derived(&moment.run, LINES, Record::write(basis, parts)).await;
        }
        self.put_lines(&moment.run, Arc::new(kept));
    }

    fn put_lines(&self, run: &str, kept: Arc<KeptLines>) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= MAX_KEPT_ANSWERS && !lines.contains_key(run) {
            lines.clear();
        }
        lines.insert(run.to_string(), kept);
    }

    fn put_said(&self, key: (String, String), basis: Vec<Basis>, changing: Vec<Option<i64>>, text: Bytes) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.0 += 1;
        let used = said.0;
        said.1.insert(key, Said { used, basis, changing, at: Instant::now(), text });
        if said.1.len() > MAX_KEPT_ANSWERS {
            let oldest = said.1.iter().min_by_key(|(_, said)| said.used).map(|(key, _)| key.clone());
            oldest.and_then(|key| said.1.remove(&key));
        }
    }
}
