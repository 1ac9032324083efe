//! Where do trainer and engine disagree, token by token?
//!
//! **Distance.** Of a token that is trained on, `d = trainer_logprob - logprob`. Its ratio is `exp(d)`. The engine drew the tokens,
//! so the mean of `-d` estimates the divergence of engine and trainer (`k1`), and that of `exp(d) - 1 - d`, which is never negative,
//! does so with less noise (`k3`). How far a group of tokens is *off* is the mean of `|d|`, each at most [`MAX_OFF`].
//!
//! **Excess.** Rounding alone moves an unlikely token more than a likely one. So a group is compared with what the *rest of the
//! same step* has for tokens that are as likely: `-logprob` is divided into octaves, and the expected distance of the group is the
//! rest's mean per octave, weighted by the group's tokens. The excess is what the group has beyond that.
//!
//! **Chance.** The tokens of a sample are no independent trials. The uncertainty of an excess is computed from the excesses of the
//! group's samples, so that a group of few samples, or one wild sample, does not stand out. Nor does a group that has always been
//! off in earlier steps, up to a bound.
//!
//! **Rank.** Groups overlap: tokens that one engine garbled are also tokens of the second turn. Groups are ordered by what a
//! division of the step into the group and the rest explains of the differences, `n * m / (n + m)` times the squared difference of
//! the means: of two groups with the same excess, the smaller explains more.
//!
//! **Temperature.** Where one side divides its logits by another temperature, `d` follows from the log-probability itself. A line
//! through (logprob, d) then explains a good part of `d`. With other weights or other rounding, it explains nothing.
//!
//! One pass over the tokens: a sample is cut into pieces in which nothing but the tokens changes, and everything else is sums of
//! pieces.

pub(crate) mod judge;
pub(crate) mod read;

use bitcode::{Decode, Encode};
use serde::Serialize;
use utoipa::ToSchema;

use crate::findings::Finding;
pub(crate) use judge::StepTokens;

/// A distance counts as this much at most: one wild token is not more than wild.
pub(crate) const MAX_OFF: f32 = 8.0;

/// Tokens that have something in common, and how far they are off.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema, Encode, Decode)]
pub struct MismatchGroup {
    /// What they have in common: `engine`, `version`, `lag` (versions behind the newest of the step), `turn`, `turn_start` (the first
    /// tokens of a later turn), `position` (in the response), `class` (of the token's text), `source` (of the prompt), `retokenized`.
    #[serde(rename = "by")]
    pub dimension: String,
    pub name: String,
    pub tokens: u64,
    pub samples: u64,
    /// The mean of |d|.
    pub off: f64,
    /// The same for tokens of the rest of the step that are as likely.
    pub rest_off: f64,
    /// Share of all distances of the step that is the excess of this group.
    pub explains: f64,
    /// By how many standard errors the group is more off than the rest.
    pub sigmas: f64,
    /// What a division into this group and the rest explains. Groups are ordered by it.
    pub weight: f64,
    /// Whether it is more than chance.
    pub clear: bool,
    /// How many times as far off as the rest the same group usually is in earlier steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usual_times: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst: Option<MismatchToken>,
}

/// One token, to look at.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema, Encode, Decode)]
pub struct MismatchToken {
    pub sample_id: String,
    pub split: String,
    /// From the end of the prompt.
    pub position: u32,
    /// trainer_logprob - logprob.
    pub d: f32,
    /// What it says, if that is known, among the worst tokens of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Tokens with a distance between two bounds.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct MismatchBucket {
    pub from: f64,
    pub to: f64,
    pub tokens: u64,
}

/// A step in short.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct MismatchStep {
    #[schema(required)]
    pub step: Option<i64>,
    pub tokens: u64,
    pub samples: u64,
    pub off: f64,
    pub k1: f64,
    pub k3: f64,
    /// Turns whose prefix was tokenised again.
    pub retokenized_turns: u64,
    /// Kinds of its findings.
    pub findings: Vec<&'static str>,
}

/// Where trainer and engine disagree in a step, among the steps of its run.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Mismatch {
    pub run: String,
    /// The step of `groups`, `distribution` and `worst`: the one asked for, else the one that stands out most, else the newest.
    #[schema(required)]
    pub step: Option<i64>,
    pub text: String,
    pub findings: Vec<Finding>,
    /// The steps that have log-probabilities of both, in order.
    pub steps: Vec<MismatchStep>,
    pub steps_left_out: usize,
    pub tokens: u64,
    pub samples: u64,
    /// The mean of |d|.
    pub off: f64,
    /// The mean of -d, and of exp(d) - 1 - d.
    pub k1: f64,
    pub k3: f64,
    /// Share of tokens whose ratio exp(d) is above 2 or below 1/2.
    pub ratio_beyond_2: f64,
    /// Of |d|: the median, and what one token of a hundred and of a thousand exceeds.
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    /// Of d.
    pub distribution: Vec<MismatchBucket>,
    pub groups: Vec<MismatchGroup>,
    /// The tokens that are most off.
    pub worst: Vec<MismatchToken>,
    pub retokenized_turns: u64,
    /// Samples of which trainer and engine sent different numbers of tokens. They are not compared.
    pub lengths_differ: u64,
    /// Samples beyond what is read of one step.
    pub samples_left_out: u64,
}
