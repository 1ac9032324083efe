//! What a sample has of each of its tokens, as those who read it gather it: lists of equal length, or none.

use std::fmt;
use std::marker::PhantomData;

use rollscope_model::build::{NewPart, NewTokens, TokensBuilder};
use rollscope_model::tables::TRAINER_HALF;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

/// Tokens of one sample.
pub const MAX_TOKENS: usize = 4 << 20;
/// Parts of one sample: turns, and changes of the engine or of the weights within them.
pub const MAX_PARTS: usize = 64 << 10;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tokens {
    pub prompt_tokens: Option<i64>,
    pub ids: Option<Vec<i32>>,
    pub texts: Option<Vec<String>>,
    pub mask: Option<Vec<bool>>,
    pub logprobs: Option<Vec<f32>>,
    pub trainer_logprobs: Option<Vec<f32>>,
    pub entropy: Option<Vec<f32>>,
    pub advantages: Option<Vec<f32>>,
    pub ratios: Option<Vec<f32>>,
    pub clipped: Option<Vec<bool>>,
    pub parts: Vec<Part>,
    /// A trainer wrote it. What the engine sends of the same sample goes before it, except for what only a trainer knows.
    pub is_trainers: bool,
}

/// Consecutive tokens that were produced together, up to the next part ([`NewPart`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Part {
    pub start: i32,
    pub turn: Option<i32>,
    pub engine: Option<String>,
    pub weight_version: Option<String>,
    pub differs_at: Option<i32>,
}

/// Who the tokens belong to.
#[derive(Clone, Copy, Debug, Default)]
pub struct About<'a> {
    pub run_id: &'a str,
    pub step: Option<i64>,
    pub sample_id: &'a str,
    pub split: &'a str,
    pub group_id: Option<&'a str>,
    pub source: Option<&'a str>,
    pub logged_ns: Option<i64>,
    pub file: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    #[error("the lists of a sample's tokens differ in length (`{0}`)")]
    Lengths(&'static str),
    #[error("a sample has more than {MAX_TOKENS} tokens")]
    TooMany,
    #[error("the parts of a sample's tokens are not in order, or too many (more than {MAX_PARTS})")]
    Parts,
}

impl Tokens {
    /// How many there are, if the lists agree.
    fn count(&self) -> Result<i32, Mistake> {
        let lengths = [
            ("ids", self.ids.as_ref().map(Vec::len)),
            ("texts", self.texts.as_ref().map(Vec::len)),
            ("mask", self.mask.as_ref().map(Vec::len)),
            ("logprobs", self.logprobs.as_ref().map(Vec::len)),
            ("trainer_logprobs", self.trainer_logprobs.as_ref().map(Vec::len)),
            ("entropy", self.entropy.as_ref().map(Vec::len)),
            ("advantages", self.advantages.as_ref().map(Vec::len)),
            ("ratios", self.ratios.as_ref().map(Vec::len)),
            ("clipped", self.clipped.as_ref().map(Vec::len)),
        ];
        let mut found = lengths.iter().filter_map(|(name, length)| Some((*name, (*length)?)));
        let count = found.next().map_or(0, |(_, length)| length);
        if let Some((name, _)) = found.find(|(_, length)| *length != count) {
            return Err(Mistake::Lengths(name));
        }
        if count > MAX_TOKENS {
            return Err(Mistake::TooMany);
        }
        let starts = self.parts.iter().map(|part| part.start);
        let in_order =
            starts.clone().is_sorted_by(|a, b| a < b) && starts.clone().all(|s| (0..=count as i32).contains(&s));
        if self.parts.len() > MAX_PARTS || !in_order {
            return Err(Mistake::Parts);
        }
        Ok(count as i32)
    }

    /// Adds a row, and says how many tokens it has. None: nothing is known of any token.
    pub fn push(&self, about: About, rows: &mut TokensBuilder) -> Result<i32, Mistake> {
        let count = self.count()?;
        if count == 0 {
            return Ok(0);
        }
        let texts: Option<Vec<&str>> = self.texts.as_ref().map(|texts| texts.iter().map(String::as_str).collect());
        let parts: Vec<NewPart> = self.parts.iter().map(Part::row).collect();
        rows.push(&NewTokens {
            run_id: about.run_id,
            step: about.step,
            sample_id: about.sample_id,
            split: about.split,
            group_id: about.group_id,
            source: about.source,
            logged_ns: about.logged_ns,
            count,
            prompt_tokens: self.prompt_tokens,
            ids: self.ids.as_deref(),
            texts: texts.as_deref(),
            mask: self.mask.as_deref(),
            logprobs: self.logprobs.as_deref(),
            trainer_logprobs: self.trainer_logprobs.as_deref(),
            entropy: self.entropy.as_deref(),
            advantages: self.advantages.as_deref(),
            ratios: self.ratios.as_deref(),
            clipped: self.clipped.as_deref(),
            parts: &parts,
            file: about.file,
            half: self.is_trainer_half().then_some(TRAINER_HALF),
        });
        Ok(count)
    }

    /// Is it what only a trainer knows, to be joined with what the engine sends?
    fn is_trainer_half(&self) -> bool {
        let numbers = [&self.trainer_logprobs, &self.entropy, &self.advantages, &self.ratios];
        self.is_trainers
            || self.logprobs.is_none() && (self.clipped.is_some() || numbers.iter().any(|list| list.is_some()))
    }
}

impl Part {
    fn row(&self) -> NewPart<'_> {
        NewPart {
            start: self.start,
            turn: self.turn,
            engine: self.engine.as_deref(),
            weight_version: self.weight_version.as_deref(),
            differs_at: self.differs_at,
        }
    }
}

/// A list from JSON. One element more than may be there is kept, so that [`Tokens::push`] refuses it and says why; the rest is only
/// read: two bytes of text may stand for a hundred of memory.
pub(crate) struct AtMost<const N: usize, T>(pub Vec<T>);

impl<'de, const N: usize, T: Deserialize<'de>> Deserialize<'de> for AtMost<N, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements<const N: usize, T>(PhantomData<T>);
        impl<'de, const N: usize, T: Deserialize<'de>> Visitor<'de> for Elements<N, T> {
            type Value = AtMost<N, T>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
                let mut kept = Vec::new();
                while kept.len() <= N {
                    match elements.next_element()? {
                        Some(element) => kept.push(element),
                        None => return Ok(AtMost(kept)),
                    }
                }
                while elements.next_element::<IgnoredAny>()?.is_some() {}
                Ok(AtMost(kept))
            }
        }
        deserializer.deserialize_seq(Elements(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_kept_up_to_its_bound() {
        let read = |text: &str| serde_json::from_str::<AtMost<2, Part>>(text).map(|AtMost(parts)| parts.len()).ok();
        assert_eq!(read("[]"), Some(0));
        assert_eq!(read("[{},{}]"), Some(2));
        assert_eq!(read("[{},{},{},{},{}]"), Some(3));
        assert_eq!(read("[{},{},{},{"), None);
        assert_eq!(read("{}"), None);
    }

    fn push(tokens: &Tokens) -> Result<i32, Mistake> {
        tokens.push(About::default(), &mut TokensBuilder::default())
    }

    #[test]
    fn lists_that_disagree_are_refused() {
        let good = Tokens {
            ids: Some(vec![1, 2]),
            logprobs: Some(vec![-0.5, f32::NAN]),
            parts: vec![Part::default(), Part { start: 2, ..Part::default() }],
            ..Tokens::default()
        };
        assert_eq!(push(&good), Ok(2));
        assert_eq!(push(&Tokens::default()), Ok(0));
        assert_eq!(push(&Tokens { mask: Some(vec![true]), ..good.clone() }), Err(Mistake::Lengths("mask")));
        for start in [-1, 0, 3] {
            let parts = vec![Part { start: 0, ..Part::default() }, Part { start, ..Part::default() }];
            assert_eq!(push(&Tokens { parts, ..good.clone() }), Err(Mistake::Parts));
        }
    }
}
