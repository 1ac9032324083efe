//! What a file has for every token of a sample. Today, lengths and means of it are kept.

use rollscope_model::build::NewSample;

use super::record::Json;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_cut_off_and_lists_must_agree() {
        let tokens = || Tokens {
            count: 4,
            ids: vec![1, 2, 3, 4, 0],
            trained: vec![false, false, true, true, false],
            advantages: vec![0.0, 0.0, 2.0, 4.0, 9.0],
            rollout_log_probs: vec![0.0, 0.0, -1.0, -3.0, 0.0],
            train_log_probs: vec![0.0, 0.0, -2.0, -2.0, 0.0],
        };
        let good = tokens().checked().unwrap();
        let lengths = good.lengths();
        assert_eq!((lengths.prompt_tokens, lengths.response_tokens, lengths.total_tokens), (Some(2), Some(2), Some(4)));
        let means: Vec<f64> = good.means().iter().map(|(_, mean)| mean.as_f64().unwrap()).collect();
        assert_eq!(means, [3.0, -2.0, -2.0, 1.0]);
        assert!(Tokens { trained: vec![true; 3], ..tokens() }.checked().is_err());
        assert!(Tokens { advantages: vec![0.0; 7], ..tokens() }.checked().is_err());
        assert!(Tokens::default().checked().unwrap().means().is_empty());
    }
}
