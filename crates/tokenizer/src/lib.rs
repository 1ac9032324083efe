//! The text of tokens, by their ids. A tokenizer is read from the `tokenizer.json` of a model (Hugging Face's format). Only what turns
//! ids back into text is read: the vocabulary, the added tokens and the decoder. It becomes a table of the bytes of each id.
//!
//! A token is not always whole characters: byte-level vocabularies cut an emoji into up to four tokens. [`Tokenizer::texts`] joins the
//! bytes of neighbours. A character belongs to the token that it begins in, and bytes that are no character are shown as `\xE2`.
//!
//! This is not the `tokenizers` crate: that would change the features of crates that Arrow is compiled with, and it decodes sequences,
//! not tokens ([ADR 0019](../../../docs/adr/0019-texts-of-tokens.md)).

mod decoder;
mod file;
mod texts;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use glob::Pattern;
use serde::{Deserialize, Serialize};

pub use file::MAX_FILE_BYTES;

/// Why a tokenizer cannot be used, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error("cannot read {file}: {source}")]
    Read { file: String, source: std::io::Error },
    #[error(
        "{folder} has no tokenizer.json; write one with AutoTokenizer.from_pretrained(MODEL).save_pretrained({folder:?})"
    )]
    NoFile { folder: String },
    #[error("{file} is larger than {MAX_FILE_BYTES} bytes (MAX_FILE_BYTES); is it a tokenizer.json?")]
    TooLarge { file: String },
    #[error("{file} is no tokenizer.json: {reason}")]
    Format { file: String, reason: String },
    #[error("{run}: invalid pattern for runs: {reason}")]
    Pattern { run: String, reason: String },
}

/// The bytes of each id.
pub struct Tokenizer {
    bytes: Vec<u8>,
    /// Where those of an id are. A map: a small file may name large ids.
    places: HashMap<u32, (u32, u32)>,
    fingerprint: u64,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`, or the one in a folder.
    pub fn open(path: &Path) -> Result<Tokenizer, TokenizerError> {
        file::open(path)
    }

    /// Reads the contents of a `tokenizer.json`.
    pub fn parse(json: &[u8]) -> Result<Tokenizer, String> {
        file::parse(json)
    }

    /// The text of each token of a sequence.
    pub fn texts(&self, ids: &[i32]) -> Vec<String> {
        texts::texts(ids, |id| self.piece(id))
    }

    fn piece(&self, id: i32) -> Option<&[u8]> {
        let (from, to) = *self.places.get(&u32::try_from(id).ok()?)?;
        Some(&self.bytes[from as usize..to as usize])
    }
}

/// Which tokenizer a run has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerRule {
    /// Runs by their ids: `*` stands for anything. All of them by default.
    #[serde(default = "all_runs")]
    pub run: String,
    /// A `tokenizer.json`, or a folder with one.
    pub file: std::path::PathBuf,
}

fn all_runs() -> String {
    "*".into()
}

impl TokenizerRule {
    /// As on the command line: `FILE`, or `RUN=FILE`.
    pub fn from_flag(text: &str) -> TokenizerRule {
        match text.split_once('=') {
            Some((run, file)) if !run.is_empty() && !run.contains('/') => {
                TokenizerRule { run: run.into(), file: file.into() }
            }
            _ => TokenizerRule { run: all_runs(), file: text.into() },
        }
    }
}

/// The tokenizers of runs. Cheap to clone.
#[derive(Clone, Default)]
pub struct Tokenizers(Arc<Vec<(Pattern, Arc<Tokenizer>)>>);

impl Tokenizers {
    /// Reads the tokenizer of each rule.
    pub fn open(rules: &[TokenizerRule]) -> Result<Tokenizers, TokenizerError> {
        let open = |rule: &TokenizerRule| {
            let pattern = Pattern::new(&rule.run)
                .map_err(|e| TokenizerError::Pattern { run: rule.run.clone(), reason: e.to_string() })?;
            Ok((pattern, Arc::new(Tokenizer::open(&rule.file)?)))
        };
        Ok(Tokenizers(Arc::new(rules.iter().map(open).collect::<Result<_, _>>()?)))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// That of the first rule that names the run.
    pub fn of_run(&self, run: &str) -> Option<&Tokenizer> {
        self.0.iter().find(|(pattern, _)| pattern.matches(run)).map(|(_, tokenizer)| tokenizer.as_ref())
    }

    /// The same for the same texts of the run's tokens. 0: it has no tokenizer.
    pub fn fingerprint(&self, run: &str) -> u64 {
        self.of_run(run).map_or(0, |tokenizer| tokenizer.fingerprint)
    }

    fn key(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(pattern, tokenizer)| (pattern.as_str(), tokenizer.fingerprint))
    }
}

impl PartialEq for Tokenizers {
    fn eq(&self, other: &Self) -> bool {
        self.key().eq(other.key())
    }
}

impl Eq for Tokenizers {}

impl std::hash::Hash for Tokenizers {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key().for_each(|key| key.hash(state));
    }
}

impl std::fmt::Debug for Tokenizers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.key()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_names_a_run_counts() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, token: &str| {
            let file = dir.path().join(name);
            let json = serde_json::json!({ "model": { "type": "BPE", "vocab": { token: 0 } }, "decoder": { "type": "ByteLevel" } });
            std::fs::write(&file, json.to_string()).unwrap();
            file
        };
        let (a, b) = (write("a.json", "a"), write("b=.json", "b"));
        let flags = [format!("qwen-*={}", a.display()), b.display().to_string()];
        let rules: Vec<TokenizerRule> = flags.iter().map(|flag| TokenizerRule::from_flag(flag)).collect();
        let all = Tokenizers::open(&rules).unwrap();
        let text = |run: &str| all.of_run(run).unwrap().texts(&[0]);
        assert_eq!((text("qwen-8b"), text("llama")), (vec!["a".to_string()], vec!["b".to_string()]));
        assert_ne!(all.fingerprint("qwen-8b"), all.fingerprint("llama"));
        assert_eq!(Tokenizers::open(&rules).unwrap(), all);
        assert_eq!(Tokenizers::default().fingerprint("llama"), 0);
        assert!(Tokenizers::open(&[TokenizerRule { run: "[".into(), file: a }]).is_err());
    }

    #[test]
    fn what_is_no_tokenizer_is_refused_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |path: &Path| Tokenizer::open(path).map(drop).unwrap_err().to_string();
        assert!(refused(dir.path()).contains("has no tokenizer.json; write one with"));
        assert!(refused(&dir.path().join("missing.json")).contains("cannot read"));
        let file = dir.path().join("tokenizer.json");
        for (text, reason) in [
            ("", "EOF"),
            ("[]", "expected"),
            ("{}", "`model`"),
            (r#"{"model": {"vocab": {"a": -1}}}"#, "-1"),
            (r#"{"model": {"vocab": {"a": 4294967296}}}"#, "4294967296"),
            (r#"{"model": {"vocab": {}}}"#, "no tokens"),
            (r#"{"model": {"vocab": {"a": 1}}, "decoder": {"type": "Sequins"}}"#, "decoder `Sequins` is not supported"),
        ] {
            std::fs::write(&file, text).unwrap();
            let found = refused(dir.path());
            assert!(found.contains(reason) && found.contains("tokenizer.json"), "{text}: {found}");
        }
    }
}
