//! Which groups stand out, and why. First what needs only the step itself ([`StepTokens::of`], which is kept), then among the others.

use std::collections::BTreeMap;

use bitcode::{Decode, Encode};

use super::read::{CLASSES, Fit, OCTAVES, Piece, Quarters, StepPieces, Sums, Told};
use super::{MismatchBucket, MismatchGroup, MismatchToken};
use crate::findings::{Evidence, Finding};
use crate::robust::{median, quantile, sorted};

/// A group stands out if it is so many times as far off as the rest of its step, and by so many standard errors.
const MIN_TIMES: f64 = 1.3;
const MIN_SIGMAS: f64 = 5.0;
/// Of few samples, nobody knows how much they vary: of eleven, it must be this tenth more standard errors.
const FEW_SAMPLES: f64 = 2.0;
/// By so much at least. Less means nothing to a trainer.
const MIN_OFF: f64 = 0.002;
/// And it has so many tokens, of so many samples.
const MIN_TOKENS: u64 = 50;
const MIN_SAMPLES: u64 = 3;
/// What a group was in so many earlier steps is usual. It excuses this much at most: engines have the same weights, or they do not.
const USUAL_STEPS: usize = 3;
const USUAL_EXCUSES: f64 = 2.0;
/// Steps that are compared with.
pub const EARLIER: usize = 24;
/// The share of the variance of d that a line explains if temperatures differ, and its slope.
const MIN_EXPLAINED: f64 = 0.25;
const MIN_SLOPE: f64 = 0.03;
/// Tokens that a line is drawn through at least.
const MIN_FIT: f64 = 200.0;
/// If so much of a step's tokens shows another temperature, it is not one engine's.
const ALL_ENGINES: f64 = 0.8;
/// More versions behind than this is not how asynchronous training usually goes.
const USUAL_LAG: i64 = 2;
/// Tokens are staler than usual if so many times, and this share, more of them are that far behind.
const STALER: (f64, f64) = (2.0, 0.02);
/// So far off, they are reported however usual that is.
const MUCH_STALER: f64 = 3.0;
/// If so many of the tokens that are behind are one engine's, it is the engine that is behind, unless it has most tokens anyway.
const ONE_ENGINE: f64 = 0.8;
const MOST_TOKENS: f64 = 0.6;
/// A finding beside a stronger one of its step must explain this much of what that explains.
const BESIDE: f64 = 0.2;
/// Groups that are listed.
const MAX_GROUPS: usize = 100;
/// Tokens of the rest of an octave below which all octaves together count.
const MIN_REST: u64 = 20;

/// What is known of a step's tokens.
#[derive(Clone, Debug, Default, Encode, Decode)]
pub struct StepTokens {
    pub step: Option<i64>,
    pub tokens: u64,
    pub samples: u64,
    pub off: f64,
    pub k1: f64,
    pub k3: f64,
    /// By quarter octaves of |d|.
    pub negative: Vec<u64>,
    pub positive: Vec<u64>,
    pub groups: Vec<MismatchGroup>,
    pub worst: Vec<MismatchToken>,
    pub retokenized_turns: u64,
    pub lengths_differ: u64,
    pub left_out: u64,
    newest: Option<String>,
    /// Without what was tokenised again.
    engines: Vec<MismatchGroup>,
    /// By at least how many versions behind.
    stale: Vec<(i64, MismatchGroup, Option<Behind>)>,
    retokenized: Option<MismatchGroup>,
    temperatures: Vec<Temperature>,
}

/// The engine that most of the tokens that are behind come from.
#[derive(Clone, Debug, Encode, Decode)]
struct Behind {
    engine: String,
    version: String,
    /// Of these tokens, and of all.
    share: f64,
    of_all: f64,
}

#[derive(Clone, Debug, Encode, Decode)]
struct Temperature {
    /// None: all of them.
    engine: Option<String>,
    slope: f64,
    explained: f64,
    group: MismatchGroup,
}

/// The number at the end of a version.
fn number(version: &str) -> Option<i64> {
    let digits = version.bytes().rev().take_while(u8::is_ascii_digit).count().min(18);
    version[version.len() - digits..].parse().ok()
}

/// Engines are compared by tokens that are as likely and as old: up to two versions behind, and what is older or unknown.
const AGES: usize = 4;
const BY_AGE: usize = OCTAVES * AGES;

/// Adds pieces of samples that come in order, for one group, by strata: octaves, or octaves and ages.
#[derive(Clone)]
struct Collected<const N: usize = OCTAVES> {
    count: [u64; N],
    off: [f64; N],
    /// By sample.
    samples: Vec<(u32, [u32; N], f64)>,
    worst: (f32, u32, u32),
}

impl<const N: usize> Default for Collected<N> {
    fn default() -> Self {
        Collected { count: [0; N], off: [0.0; N], samples: Vec::new(), worst: (0.0, 0, 0) }
    }
}

impl<const N: usize> Collected<N> {
    fn add(&mut self, sample: u32, sums: &Sums, age: usize) {
        if self.samples.last().is_none_or(|(last, ..)| *last != sample) {
            self.samples.push((sample, [0; N], 0.0));
        }
        let last = self.samples.last_mut().expect("it was pushed");
        for octave in 0..OCTAVES {
            let stratum = octave + age * OCTAVES % N;
            self.count[stratum] += u64::from(sums.count[octave]);
            self.off[stratum] += f64::from(sums.off[octave]);
            last.1[stratum] += sums.count[octave];
            last.2 += f64::from(sums.off[octave]);
        }
        if sums.worst.0.abs() > self.worst.0.abs() {
            self.worst = (sums.worst.0, sample, sums.worst.1);
        }
    }

    fn tokens(&self) -> u64 {
        self.count.iter().sum()
    }

    fn all_off(&self) -> f64 {
        self.off.iter().sum()
    }

    /// Compared with the rest of `all`.
    fn group(&self, dimension: &str, name: &str, all: &Self, of: &StepPieces) -> MismatchGroup {
        let (tokens, rest_tokens) = (self.tokens(), all.tokens().saturating_sub(self.tokens()));
        let rest_mean = (all.all_off() - self.all_off()).max(0.0) / rest_tokens.max(1) as f64;
        let expected: Vec<f64> = (0..N)
            .map(|at| match all.count[at] - self.count[at] {
                n if n >= MIN_REST => (all.off[at] - self.off[at]).max(0.0) / n as f64,
                _ => rest_mean,
            })
            .collect();
        let of_counts =
            |counts: &mut dyn Iterator<Item = f64>| -> f64 { counts.zip(&expected).map(|(n, off)| n * off).sum() };
        let n = tokens.max(1) as f64;
        let rest_off = of_counts(&mut self.count.iter().map(|n| *n as f64)) / n;
        let off = self.all_off() / n;
        let excess = off - rest_off;
        // By sample: tokens of one sample are no independent trials.
        let squares: f64 = self
            .samples
            .iter()
            .map(|(_, counts, off)| {
                let tokens: f64 = counts.iter().map(|n| f64::from(*n)).sum();
                let beyond = off - of_counts(&mut counts.iter().map(|n| f64::from(*n))) - excess * tokens;
                beyond * beyond
            })
            .sum();
        let many = self.samples.len() as f64;
        let error = (squares * many / (many - 1.0).max(0.1)).sqrt() / n;
        let sigmas = if error > 0.0 { excess / error } else { 0.0 };
        let both = tokens as f64 * rest_tokens as f64 / (tokens + rest_tokens).max(1) as f64;
        let clear = rest_tokens > 0
            && tokens >= MIN_TOKENS
            && self.samples.len() as u64 >= MIN_SAMPLES
            && sigmas >= MIN_SIGMAS * (1.0 + FEW_SAMPLES / (many - 1.0).max(0.1))
            && excess >= MIN_OFF
            && off >= MIN_TIMES * rest_off;
        let worst = (self.worst.0 != 0.0).then(|| token(of, self.worst.1, self.worst.2, self.worst.0));
        MismatchGroup {
            dimension: dimension.to_string(),
            name: name.to_string(),
            tokens,
            samples: self.samples.len() as u64,
            off,
            rest_off,
            explains: (excess * n / all.all_off().max(1e-12)).max(0.0),
            sigmas,
            weight: both * excess.max(0.0).powi(2),
            clear,
            usual_times: None,
            worst,
        }
    }
}

fn token(of: &StepPieces, sample: u32, position: u32, d: f32) -> MismatchToken {
    let (sample_id, split) = of.samples[sample as usize].clone();
    MismatchToken { sample_id, split, position, d, text: None }
}

/// Pieces by a key.
fn collect<K: Ord>(pieces: &[Piece], key: impl Fn(&Piece) -> Option<K>) -> BTreeMap<K, Collected> {
    let mut out: BTreeMap<K, Collected> = BTreeMap::new();
    for piece in pieces {
        if let Some(key) = key(piece) {
            out.entry(key).or_default().add(piece.sample, &piece.sums, 0);
        }
    }
    out
}

fn one(pieces: &[Piece], is: impl Fn(&Piece) -> bool) -> Collected {
    collect(pieces, |piece| is(piece).then_some(())).remove(&()).unwrap_or_default()
}

impl StepTokens {
    pub fn of(step: Option<i64>, read: StepPieces) -> StepTokens {
        let read = &read;
        let pieces = &read.pieces;
        let all = one(pieces, |_| true);
        let versions: Vec<Option<i64>> = {
            let used = pieces.iter().map(|piece| piece.version).filter(|version| *version != u32::MAX);
            (0..used.max().map_or(0, |most| most + 1)).map(|version| number(read.version(version))).collect()
        };
        let version_of = |piece: &Piece| versions.get(piece.version as usize).copied().flatten();
        let newest = pieces.iter().filter_map(version_of).max();
        let lag_of = |piece: &Piece| Some(newest? - version_of(piece)?);

        let mut groups = Vec::new();
        let mut add = |dimension: &str, found: Vec<(String, Collected)>| {
            // One value tells nothing apart.
            let is_whole = found.len() == 1 && found[0].1.tokens() == all.tokens();
            if !is_whole {
                groups.extend(found.into_iter().map(|(name, of)| of.group(dimension, &name, &all, read)));
            }
        };
        let known = |number: u32| (number != u32::MAX).then_some(number);
        let named = |found: BTreeMap<u32, Collected>, name: &dyn Fn(u32) -> String| -> Vec<(String, Collected)> {
            found.into_iter().map(|(number, of)| (name(number), of)).collect()
        };
        add("engine", named(collect(pieces, |p| known(p.engine)), &|n| read.engine(n).to_string()));
        add("version", named(collect(pieces, |p| known(p.version)), &|n| read.version(n).to_string()));
        add("source", named(collect(pieces, |p| known(p.source)), &|n| read.source(n).to_string()));
        let numbered = |found: BTreeMap<i64, Collected>| found.into_iter().map(|(n, of)| (n.to_string(), of)).collect();
        add("lag", numbered(collect(pieces, lag_of)));
        add("turn", numbered(collect(pieces, |p| (p.turn >= 0).then_some(i64::from(p.turn)))));
        let positions = collect(pieces, |p| Some(p.position)).into_iter();
        let range = |p: u8| format!("{} to {}", (1_u64 << p) - 1, (2_u64 << p) - 2);
        add("position", positions.map(|(p, of)| (range(p), of)).collect());
        let first = format!("first {} tokens of later turns", super::read::OPENING);
        add("turn_start", vec![(first, one(pieces, |p| p.opening))]);
        let told = |told: Told| one(pieces, |p| p.told == told);
        add(
            "retokenized",
            vec![("tokens that changed".into(), told(Told::Again)), ("turns after them".into(), told(Told::After))],
        );
        let mut classes: BTreeMap<usize, Collected> = BTreeMap::new();
        let mut of_classes = Collected::default();
        for (sample, class, sums) in &read.classes {
            classes.entry(*class).or_default().add(*sample, sums, 0);
            of_classes.add(*sample, sums, 0);
        }
        if classes.len() > 1 {
            let named = classes.into_iter().map(|(class, of)| of.group("class", CLASSES[class], &of_classes, read));
            groups.extend(named);
        }
        groups.retain(|group| group.tokens > 0);
        groups.sort_by(|a, b| b.clear.cmp(&a.clear).then(b.weight.total_cmp(&a.weight)));
        groups.truncate(MAX_GROUPS);

        let plain: Vec<Piece> = pieces.iter().filter(|p| p.told != Told::Again).cloned().collect();
        let all_plain = one(&plain, |_| true);
        let by_engine = collect(&plain, |p| known(p.engine));
        let (mut aged, mut all_aged): (BTreeMap<u32, Collected<BY_AGE>>, Collected<BY_AGE>) = Default::default();
        for piece in plain.iter().filter(|p| p.engine != u32::MAX) {
            let age = lag_of(piece).map_or(AGES - 1, |lag| (lag as usize).min(AGES - 1));
            aged.entry(piece.engine).or_default().add(piece.sample, &piece.sums, age);
            all_aged.add(piece.sample, &piece.sums, age);
        }
        let engines: Vec<MismatchGroup> = aged
            .iter()
            .map(|(engine, of)| of.group("engine", read.engine(*engine), &all_aged, read))
            .filter(|group| aged.len() > 1 && group.clear)
            .collect();
        let mut lags: Vec<i64> = plain.iter().filter_map(lag_of).filter(|lag| *lag > 0).collect();
        lags.sort_unstable();
        lags.dedup();
        // The nearest and the farthest tell it.
        lags.truncate(64);
        let stale = lags.into_iter().map(|least| {
            let is_behind = |p: &Piece| lag_of(p).is_some_and(|lag| lag >= least);
            let group = one(&plain, is_behind).group("lag", &format!("at least {least}"), &all_plain, read);
            (least, group, behind(&plain, is_behind, &by_engine, &all_plain, read))
        });
        let stale: Vec<_> = stale.collect();
        let changed = one(pieces, |p| p.told == Told::Again);
        let with_after = one(pieces, |p| p.told != Told::Once);
        let retokenized = [changed, with_after]
            .iter()
            .map(|of| of.group("retokenized", "", &all, read))
            .filter(|group| group.clear)
            .max_by(|a, b| a.weight.total_cmp(&b.weight));
        let sum = |quarters: &Quarters| quarters.0.clone();
        StepTokens {
            step,
            tokens: read.tokens,
            samples: read.samples.len() as u64,
            off: all.all_off() / read.tokens.max(1) as f64,
            k1: read.k1 / read.tokens.max(1) as f64,
            k3: read.k3 / read.tokens.max(1) as f64,
            negative: sum(&read.negative),
            positive: sum(&read.positive),
            groups,
            worst: read
                .worst
                .iter()
                .map(|w| MismatchToken { text: w.text.clone(), ..token(read, w.sample, w.position, w.d) })
                .collect(),
            retokenized_turns: read.retokenized_turns,
            lengths_differ: read.lengths_differ,
            left_out: read.left_out,
            newest: newest.and_then(|newest| {
                let at = versions.iter().position(|version| *version == Some(newest))?;
                Some(read.version(at as u32).to_string())
            }),
            engines,
            stale,
            retokenized,
            temperatures: temperatures(read, &by_engine, &all_plain),
        }
    }

    /// Of d.
    pub fn distribution(&self) -> Vec<MismatchBucket> {
        const BOUNDS: [f64; 10] = [0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 64.0];
        let of = |quarters: &[u64], from: f64, to: f64| -> u64 {
            quarters
                .iter()
                .enumerate()
                .filter(|(at, _)| (from..to).contains(&Quarters::bound(*at)))
                .map(|(_, n)| n)
                .sum()
        };
        let pairs = || BOUNDS.windows(2).map(|pair| (pair[0], pair[1]));
        let below = pairs().rev().map(|(from, to)| MismatchBucket {
            from: -to,
            to: -from,
            tokens: of(&self.negative, from, to),
        });
        let above = pairs().map(|(from, to)| MismatchBucket { from, to, tokens: of(&self.positive, from, to) });
        below.chain(above).collect()
    }

    /// The |d| that this share of the tokens does not exceed, to a quarter of an octave.
    pub fn quantile(&self, q: f64) -> f64 {
        let mut left = q * self.tokens as f64;
        for (at, (below, above)) in self.negative.iter().zip(&self.positive).enumerate() {
            left -= (below + above) as f64;
            if left <= 0.0 {
                return if at == 0 { 0.0 } else { Quarters::bound(at + 1) };
            }
        }
        0.0
    }

    pub fn beyond_2(&self) -> f64 {
        let far = |quarters: &[u64]| -> u64 {
            quarters
                .iter()
                .enumerate()
                .filter(|(at, _)| Quarters::bound(*at) >= std::f64::consts::LN_2 * 0.95)
                .map(|(_, n)| n)
                .sum()
        };
        (far(&self.negative) + far(&self.positive)) as f64 / self.tokens.max(1) as f64
    }

    fn times(&self, dimension: &str, name: &str) -> Option<f64> {
        let group = self.groups.iter().find(|group| group.dimension == dimension && group.name == name)?;
        (group.rest_off > 0.0).then(|| group.off / group.rest_off)
    }

    fn share_behind(&self, least: i64) -> f64 {
        let tokens = self.stale.iter().filter(|(lag, ..)| *lag >= least).map(|(_, group, _)| group.tokens).max();
        tokens.unwrap_or(0) as f64 / self.tokens.max(1) as f64
    }
}

fn behind(
    plain: &[Piece],
    is_behind: impl Fn(&Piece) -> bool,
    by_engine: &BTreeMap<u32, Collected>,
    all: &Collected,
    read: &StepPieces,
) -> Option<Behind> {
    let of = collect(plain, |p| (p.engine != u32::MAX && is_behind(p)).then_some(p.engine));
    let tokens: u64 = of.values().map(Collected::tokens).sum();
    let (engine, most) = of.iter().max_by_key(|(_, of)| of.tokens())?;
    let version = plain.iter().filter(|p| p.engine == *engine && is_behind(p)).map(|p| p.version).max()?;
    Some(Behind {
        engine: read.engine(*engine).to_string(),
        version: read.version(version).to_string(),
        share: most.tokens() as f64 / tokens.max(1) as f64,
        of_all: by_engine.get(engine)?.tokens() as f64 / all.tokens().max(1) as f64,
    })
}

fn temperatures(read: &StepPieces, by_engine: &BTreeMap<u32, Collected>, all: &Collected) -> Vec<Temperature> {
    let shows = |fit: &Fit| {
        let line = fit.line().filter(|_| fit.n >= MIN_FIT)?;
        (line.1 >= MIN_EXPLAINED && line.0.abs() >= MIN_SLOPE).then_some(line)
    };
    let found: Vec<(u32, &Fit, (f64, f64))> =
        read.fits.iter().filter_map(|(engine, fit)| Some((*engine, fit, shows(fit)?))).collect();
    let tokens: f64 = found.iter().map(|(_, fit, _)| fit.n).sum();
    let mut together = Fit::default();
    read.fits.values().for_each(|fit| together.add(fit));
    if tokens >= ALL_ENGINES * together.n
        && let Some((slope, explained)) = shows(&together)
    {
        let mut group = all.group("temperature", "all", all, read);
        group.weight = all.tokens() as f64 * group.off * group.off;
        return vec![Temperature { engine: None, slope, explained, group }];
    }
    let of_engine = found.into_iter().filter(|(engine, ..)| *engine != u32::MAX).filter_map(|(engine, _, line)| {
        let name = read.engine(engine);
        let group = by_engine.get(&engine)?.group("engine", name, all, read);
        Some(Temperature { engine: Some(name.to_string()), slope: line.0, explained: line.1, group })
    });
    of_engine.collect()
}

/// `0.91`, `0.025`, `0.0031`.
pub fn nats(off: f64) -> String {
    match off {
        off if off >= 0.995 => format!("{off:.1}"),
        off if off >= 0.0995 => format!("{off:.2}"),
        off if off >= 0.00995 => format!("{off:.3}"),
        off => format!("{off:.4}"),
    }
}

/// `engine 7`, `engine 10.0.0.12:30000`, `engine-7`.
fn engine_name(name: &str) -> String {
    if name.to_ascii_lowercase().starts_with("engine") { name.to_string() } else { format!("engine {name}") }
}

/// What stands out in a step, and how strongly.
pub struct Found {
    pub finding: Finding,
    pub weight: f64,
}

/// The steps of a run, in order.
pub struct Judge<'a> {
    pub steps: Vec<&'a StepTokens>,
}

impl Judge<'_> {
    fn earlier(&self, index: usize) -> &[&StepTokens] {
        &self.steps[index.saturating_sub(EARLIER)..index]
    }

    /// How many times as far off as the rest a group usually is: in the better half of the earlier steps, for what stays off is not
    /// usual because it stays.
    pub fn usual_times(&self, index: usize, dimension: &str, name: &str) -> Option<f64> {
        let times = sorted(self.earlier(index).iter().filter_map(|step| step.times(dimension, name)));
        if times.len() >= USUAL_STEPS { quantile(&times, 0.25) } else { None }
    }

    fn is_unusual(&self, index: usize, group: &MismatchGroup) -> bool {
        let usual = self.usual_times(index, &group.dimension, &group.name).unwrap_or(1.0);
        group.off >= MIN_TIMES * usual.clamp(1.0, USUAL_EXCUSES) * group.rest_off
    }

    /// What stands out in a step, the strongest first.
    pub fn found(&self, index: usize) -> Vec<Found> {
        let step = self.steps[index];
        let mut out: Vec<Found> = Vec::new();
        let is_hot = |engine: &str| step.temperatures.iter().any(|t| t.engine.as_deref().is_none_or(|of| of == engine));
        for temperature in &step.temperatures {
            out.push(temperature_finding(step, temperature));
        }
        for group in step.engines.iter().filter(|group| !is_hot(&group.name) && self.is_unusual(index, group)) {
            let behind = step.stale.iter().rev().find_map(|(_, _, behind)| {
                behind.as_ref().filter(|behind| behind.engine == group.name && is_one_engine(behind))
            });
            out.push(engine_finding(step, group, behind));
        }
        if let Some((least, group)) = self.stale(index).filter(|_| step.temperatures.iter().all(|t| t.engine.is_some()))
        {
            out.push(stale_finding(step, least, group));
        }
        if let Some(group) = &step.retokenized {
            out.push(retokenized_finding(step, group));
        }
        out.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        let least = out.first().map_or(0.0, |first| BESIDE * first.weight);
        out.retain(|found| found.weight >= least);
        out
    }

    /// Tokens that are further behind than usual, and off for that.
    fn stale(&self, index: usize) -> Option<(i64, &MismatchGroup)> {
        let step = self.steps[index];
        let is_unusual = |least: i64, group: &MismatchGroup| {
            let shares = self.earlier(index).iter().map(|earlier| earlier.share_behind(least));
            let usual = if self.earlier(index).len() >= USUAL_STEPS { median(shares) } else { None };
            let is_far = least > USUAL_LAG;
            match usual {
                Some(usual) => {
                    let more = step.share_behind(least) >= STALER.0 * usual + STALER.1;
                    (more && (is_far || usual == 0.0)) || (is_far && group.off >= MUCH_STALER * group.rest_off)
                }
                None => is_far,
            }
        };
        let of_all = step.stale.iter().filter(|(least, group, behind)| {
            group.clear && is_unusual(*least, group) && !behind.as_ref().is_some_and(is_one_engine)
        });
        let best = of_all.max_by(|a, b| a.1.weight.total_cmp(&b.1.weight))?;
        Some((best.0, &best.1))
    }

    /// Why one engine is off is told with the first step and version in which it was.
    pub fn since(&self, index: usize, engine: &str) -> usize {
        let is_off = |at: &usize| {
            self.found(*at)
                .iter()
                .any(|found| found.finding.kind == ENGINE && found.finding.evidence.engine.as_deref() == Some(engine))
        };
        (0..index).rev().take_while(is_off).last().unwrap_or(index)
    }

    pub fn newest(&self, index: usize) -> Option<&str> {
        self.steps[index].newest.as_deref()
    }
}

fn is_one_engine(behind: &Behind) -> bool {
    behind.share >= ONE_ENGINE && behind.of_all < MOST_TOKENS
}

pub const ENGINE: &str = "engine_out_of_sync";

fn finding(step: &StepTokens, kind: &'static str, text: String, group: &MismatchGroup) -> Found {
    let evidence = Evidence {
        count: group.samples as usize,
        of: step.samples as usize,
        samples: group.worst.iter().map(|token| token.sample_id.clone()).collect(),
        engine: (group.dimension == "engine").then(|| group.name.clone()),
        measured: Some(group.off),
        usual: Some(group.rest_off),
        ..Evidence::default()
    };
    let finding = Finding { kind, step: step.step, text, cost_s: 0.0, without_s: None, evidence };
    Found { finding, weight: group.weight }
}

fn engine_finding(step: &StepTokens, group: &MismatchGroup, behind: Option<&Behind>) -> Found {
    let (name, off, rest) = (engine_name(&group.name), nats(group.off), nats(group.rest_off));
    let mut text = format!("{name} is {off} nats off, the others {rest}: it missed a weight sync");
    if let (Some(behind), Some(newest)) = (behind, &step.newest) {
        text.push_str(&format!(" (it reports version {}, the newest is {newest})", behind.version));
    }
    finding(step, ENGINE, text, group)
}

fn stale_finding(step: &StepTokens, least: i64, group: &MismatchGroup) -> Found {
    let share = 100.0 * group.tokens as f64 / step.tokens.max(1) as f64;
    let text = format!(
        "{share:.0} % of the tokens come from weights that are {least} or more versions old; they are {} nats off, the others {}",
        nats(group.off),
        nats(group.rest_off)
    );
    finding(step, "stale_tokens", text, group)
}

fn retokenized_finding(step: &StepTokens, group: &MismatchGroup) -> Found {
    let turns = crate::words::count(step.retokenized_turns as usize, "turn");
    let verb = if step.retokenized_turns == 1 { "follows" } else { "follow" };
    let text = format!(
        "{turns} {verb} text that was tokenised again: {} tokens are {} nats off, the others {}",
        group.tokens,
        nats(group.off),
        nats(group.rest_off)
    );
    finding(step, "retokenized_turns", text, group)
}

fn temperature_finding(step: &StepTokens, temperature: &Temperature) -> Found {
    let who = temperature.engine.as_ref().map_or("the engines".to_string(), |engine| engine_name(engine));
    let verb = if temperature.engine.is_some() { "samples" } else { "sample" };
    // A lower temperature makes what is unlikely more unlikely: the trainer's log-probabilities are then nearer to 0.
    let how = if temperature.slope < 0.0 { "lower" } else { "higher" };
    let text = format!(
        "{who} {verb} at a {how} temperature than the trainer computes with: the difference follows the log-probability \
         (slope {:.2}, which explains {:.0} % of it)",
        temperature.slope,
        100.0 * temperature.explained
    );
    finding(step, "wrong_temperature", text, &temperature.group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers_at_the_end() {
        assert_eq!((number("212"), number("step_212"), number("v"), number("")), (Some(212), Some(212), None, None));
        assert_eq!(number("99999999999999999999999"), Some(999_999_999_999_999_999));
    }

    #[test]
    fn numbers_in_nats() {
        assert_eq!([3.47, 0.912, 0.0204, 0.0031, 0.0002].map(nats), ["3.5", "0.91", "0.020", "0.0031", "0.0002"]);
        assert_eq!([engine_name("7"), engine_name("engine-7")], ["engine 7", "engine-7"]);
    }
}
