//! What a file has for every token of a sample.

use rollscope_model::build::NewSample;

use super::record::Json;
use crate::tokens::Part;

/// The tokens of a sample, prompt first, without padding. Every list that is not empty has a value per token.
#[derive(Default)]
pub struct Tokens {
    /// How many there are, also where their ids are not in the file.
    pub count: usize,
    pub ids: Vec<i64>,
    /// Those that the model produced and that are trained on.
    pub trained: Vec<bool>,
    pub advantages: Vec<f64>,
    /// Log probabilities as the serving engine computed them when it produced the tokens.
    pub rollout_log_probs: Vec<f64>,
    /// The same from the trainer, before the step.
    pub train_log_probs: Vec<f64>,
    /// The first token of each turn.
    pub turns: Vec<usize>,
}

impl Tokens {
    /// Checks that the lists agree, and cuts off padding.
    pub fn checked(mut self) -> Result<Tokens, String> {
        let count = self.count;
        let lengths = [
            ("token ids", self.ids.len()),
            ("values of the loss mask", self.trained.len()),
            ("advantages", self.advantages.len()),
            ("log probabilities of the rollout", self.rollout_log_probs.len()),
            ("log probabilities of the trainer", self.train_log_probs.len()),
        ];
        if let Some((what, length)) = lengths.into_iter().find(|(_, length)| *length > 0 && *length < count) {
            return Err(format!("it has {length} {what} for {count} tokens"));
        }
        let longest = lengths.iter().map(|(_, length)| *length).max().unwrap_or(0);
        if let Some((what, length)) = lengths.into_iter().find(|(_, length)| *length > 0 && *length != longest) {
            return Err(format!("it has {length} {what}, but {longest} values of another kind"));
        }
        self.ids.truncate(count);
        self.trained.truncate(count);
        self.advantages.truncate(count);
        self.rollout_log_probs.truncate(count);
        self.train_log_probs.truncate(count);
        Ok(self)
    }

    /// The lengths of a sample with these tokens. What comes before the first that is trained on is the prompt.
    pub fn lengths<'a>(&self) -> NewSample<'a> {
        let int = |n: usize| i64::try_from(n).ok();
        let total = (self.count > 0).then_some(self.count).and_then(int);
        let prompt = self.trained.iter().position(|trained| *trained);
        let produced = self.trained.iter().filter(|trained| **trained).count();
        NewSample {
            prompt_tokens: prompt.and_then(int),
            response_tokens: prompt.and(int(produced)),
            total_tokens: total,
            response_length: prompt.and_then(|prompt| int(self.count - prompt)),
            ..NewSample::default()
        }
    }

    /// The tokens after the prompt, as they are kept. Nothing if none is trained on: then the prompt has no end.
    pub fn after_prompt(&self) -> crate::tokens::Tokens {
        let Some(prompt) = self.trained.iter().position(|trained| *trained) else {
            return crate::tokens::Tokens::default();
        };
        let floats = |values: &[f64]| -> Option<Vec<f32>> {
            (!values.is_empty()).then(|| values[prompt..].iter().map(|value| *value as f32).collect())
        };
        let ids: Option<Vec<i32>> = self.ids.iter().skip(prompt).map(|id| i32::try_from(*id).ok()).collect();
        crate::tokens::Tokens {
            prompt_tokens: i64::try_from(prompt).ok(),
            ids: ids.filter(|ids| !ids.is_empty()),
            mask: Some(self.trained[prompt..].to_vec()),
            logprobs: floats(&self.rollout_log_probs),
            trainer_logprobs: floats(&self.train_log_probs),
            advantages: floats(&self.advantages),
            parts: self.parts(prompt),
            ..crate::tokens::Tokens::default()
        }
    }

    fn parts(&self, prompt: usize) -> Vec<Part> {
        let starts = self.turns.iter().filter_map(|at| i32::try_from(at.checked_sub(prompt)?).ok());
        starts.zip(0..).map(|(start, turn)| Part { start, turn: Some(turn), ..Part::default() }).collect()
    }

    /// Means over the tokens that are trained on.
    pub fn means(&self) -> Vec<(String, Json)> {
        let mut means = Vec::new();
        let both = self.rollout_log_probs.iter().zip(&self.train_log_probs);
        let difference: Vec<f64> = both.map(|(rollout, train)| (train - rollout).abs()).collect();
        for (name, values) in [
            ("advantage", &self.advantages),
            ("rollout_log_prob_mean", &self.rollout_log_probs),
            ("train_log_prob_mean", &self.train_log_probs),
            ("log_prob_difference_mean", &difference),
        ] {
            let trained = values.iter().zip(&self.trained).filter(|(_, trained)| **trained).map(|(value, _)| *value);
            let (sum, count) = trained.fold((0.0, 0u64), |(sum, count), value| (sum + value, count + 1));
            if count > 0 {
                means.push((name.to_string(), Json::Double(sum / count as f64)));
            }
        }
        means
    }
}

/// One answer of a model: what it was given, if the file says so, and what it produced.
#[derive(Default)]
pub struct Turn {
    pub prompt: Vec<i32>,
    pub produced: Vec<i32>,
    /// As many as were produced, or none.
    pub logprobs: Vec<f32>,
    pub weight_version: Option<String>,
}

impl Turn {
    /// Lists of numbers as they are in a file.
    pub fn read(prompt: Option<&Json>, produced: Option<&Json>, logprobs: Option<&Json>) -> Result<Turn, String> {
        let numbers = |list: Option<&Json>| list.and_then(Json::numbers).unwrap_or_default();
        let ids = |list: Option<&Json>, what: &str| -> Result<Vec<i32>, String> {
            let id = |id: f64| (id.fract() == 0.0 && id >= 0.0 && id <= f64::from(i32::MAX)).then_some(id as i32);
            numbers(list).into_iter().map(id).collect::<Option<_>>().ok_or(format!("a token id of the {what} is no id"))
        };
        let (prompt, produced) = (ids(prompt, "prompt")?, ids(produced, "answer")?);
        let logprobs: Vec<f32> = numbers(logprobs).into_iter().map(|value| value as f32).collect();
        if !logprobs.is_empty() && logprobs.len() != produced.len() {
            return Err(format!("it has {} log probabilities for {} tokens", logprobs.len(), produced.len()));
        }
        Ok(Turn { prompt, produced, logprobs, weight_version: None })
    }
}

/// The tokens after the first prompt, as the model saw them last. Where the prompt of a turn is not what was there before, the text
/// was tokenised again, and the part says from where on.
pub fn of_turns(turns: &[Turn]) -> Option<crate::tokens::Tokens> {
    let first = turns.iter().position(|turn| !turn.produced.is_empty())?;
    let prompt = turns[first].prompt.len();
    let (mut ids, mut mask, mut logprobs) = (Vec::new(), Vec::new(), Vec::new());
    let mut parts: Vec<Part> = Vec::new();
    for (number, turn) in (0..).zip(turns.iter().filter(|turn| !turn.produced.is_empty())) {
        let mut differs_at = None;
        // An empty prompt is one that the file does not have.
        if number > 0 && !turn.prompt.is_empty() && turn.prompt.len() >= prompt {
            let given = &turn.prompt[prompt..];
            let same = ids.iter().zip(given).take_while(|(a, b)| a == b).count();
            if same < ids.len() {
                differs_at = i32::try_from(same).ok();
                ids.truncate(same);
                mask.truncate(same);
                logprobs.truncate(same);
                parts.retain(|part| usize::try_from(part.start).is_ok_and(|start| start < same));
            }
            ids.extend_from_slice(&given[same..]);
            mask.resize(ids.len(), false);
            logprobs.resize(ids.len(), f32::NAN);
        }
        let start = i32::try_from(ids.len()).ok()?;
        parts.push(Part {
            start,
            turn: Some(number),
            weight_version: turn.weight_version.clone(),
            differs_at: differs_at.filter(|at| *at < start),
            ..Part::default()
        });
        ids.extend_from_slice(&turn.produced);
        mask.resize(ids.len(), true);
        logprobs.extend_from_slice(&turn.logprobs);
        logprobs.resize(ids.len(), f32::NAN);
    }
    Some(crate::tokens::Tokens {
        prompt_tokens: (prompt > 0).then_some(prompt as i64),
        logprobs: logprobs.iter().any(|value| !value.is_nan()).then_some(logprobs),
        ids: Some(ids),
        mask: Some(mask),
        parts,
        ..crate::tokens::Tokens::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_become_one_sequence() {
        let turn = |prompt: &[i32], produced: &[i32]| Turn {
            prompt: prompt.into(),
            produced: produced.into(),
            logprobs: vec![-0.5; produced.len()],
            weight_version: None,
        };
        let whole = of_turns(&[turn(&[1, 2], &[3, 4]), turn(&[1, 2, 3, 4, 9], &[5])]).unwrap();
        assert_eq!((whole.prompt_tokens, whole.ids.unwrap()), (Some(2), vec![3, 4, 9, 5]));
        assert_eq!(whole.mask.unwrap(), [true, true, false, true]);
        assert_eq!(whole.parts.iter().map(|p| (p.start, p.differs_at)).collect::<Vec<_>>(), [(0, None), (3, None)]);
        // The second prompt has another token in the place of 4.
        let again = of_turns(&[turn(&[1, 2], &[3, 4]), turn(&[1, 2, 3, 7, 9], &[5])]).unwrap();
        assert_eq!(again.ids.unwrap(), [3, 7, 9, 5]);
        assert_eq!(again.mask.unwrap(), [true, false, false, true]);
        assert_eq!(again.parts.iter().map(|p| (p.start, p.differs_at)).collect::<Vec<_>>(), [(0, None), (3, Some(1))]);
        // Without prompts, answers follow each other.
        assert_eq!(of_turns(&[turn(&[], &[1]), turn(&[], &[2])]).unwrap().ids.unwrap(), [1, 2]);
        assert!(of_turns(&[turn(&[1], &[])]).is_none());
    }

    #[test]
    fn padding_is_cut_off_and_lists_must_agree() {
        let tokens = || Tokens {
            count: 4,
            ids: vec![1, 2, 3, 4, 0],
            trained: vec![false, false, true, true, false],
            advantages: vec![0.0, 0.0, 2.0, 4.0, 9.0],
            rollout_log_probs: vec![0.0, 0.0, -1.0, -3.0, 0.0],
            train_log_probs: vec![0.0, 0.0, -2.0, -2.0, 0.0],
            turns: vec![2],
        };
        let good = tokens().checked().unwrap();
        let lengths = good.lengths();
        assert_eq!((lengths.prompt_tokens, lengths.response_tokens, lengths.total_tokens), (Some(2), Some(2), Some(4)));
        let means: Vec<f64> = good.means().iter().map(|(_, mean)| mean.as_f64().unwrap()).collect();
        assert_eq!(means, [3.0, -2.0, -2.0, 1.0]);
        let kept = good.after_prompt();
        assert_eq!((kept.prompt_tokens, kept.ids, kept.mask), (Some(2), Some(vec![3, 4]), Some(vec![true, true])));
        assert_eq!(kept.parts, [Part { turn: Some(0), ..Part::default() }]);
        assert_eq!((kept.logprobs, kept.trainer_logprobs), (Some(vec![-1.0, -3.0]), Some(vec![-2.0, -2.0])));
        assert!(Tokens { trained: vec![true; 3], ..tokens() }.checked().is_err());
        assert!(Tokens { advantages: vec![0.0; 7], ..tokens() }.checked().is_err());
        assert!(Tokens::default().checked().unwrap().means().is_empty());
    }
}
