//! Reads a `tokenizer.json`.

use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use crate::decoder::{self, decode};
use crate::{Tokenizer, TokenizerError};

/// Of a `tokenizer.json`. The largest that we know of, Gemma's, has 33 MB.
pub const MAX_FILE_BYTES: u64 = 128 << 20;
const NAME: &str = "tokenizer.json";

pub fn open(path: &Path) -> Result<Tokenizer, TokenizerError> {
    let folder = path.is_dir();
    let path = if folder { path.join(NAME) } else { path.to_path_buf() };
    let file = path.display().to_string();
    if folder && !path.exists() {
        let folder = path.parent().map(|folder| folder.display().to_string()).unwrap_or_default();
        return Err(TokenizerError::NoFile { folder });
    }
    let failed = |source| TokenizerError::Read { file: file.clone(), source };
    let mut json = Vec::new();
    std::fs::File::open(&path).map_err(failed)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut json).map_err(failed)?;
    if json.len() as u64 > MAX_FILE_BYTES {
        return Err(TokenizerError::TooLarge { file });
    }
    parse(&json).map_err(|reason| TokenizerError::Format { file, reason })
}

pub fn parse(json: &[u8]) -> Result<Tokenizer, String> {
    let file: File = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    let decoders = decoder::read(file.decoder.as_ref())?;
    let added = file.added_tokens.into_iter().map(|added| (added.content, added.id));
    // Added tokens come last: they replace those of the vocabulary.
    let tokens: Vec<(String, u32)> = file.model.vocab.0.into_iter().chain(added).collect();
    if tokens.is_empty() {
        return Err("it has no tokens".into());
    }
    let mut out = Tokenizer { bytes: Vec::new(), places: HashMap::with_capacity(tokens.len()), fingerprint: 0 };
    for (token, id) in tokens {
        let from = out.bytes.len() as u32;
        out.bytes.extend(decode(&token, &decoders));
        let to = u32::try_from(out.bytes.len()).map_err(|_| "its tokens are too long")?;
        out.places.insert(id, (from, to));
    }
    // Never 0, which stands for no tokenizer.
    out.fingerprint = xxh3_64(json).max(1);
    Ok(out)
}

/// What is read of it.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    decoder: Option<Value>,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
}

#[derive(Deserialize)]
struct Model {
    vocab: Vocabulary,
}

/// An object of ids by tokens (BPE, WordPiece, WordLevel), or a list of tokens with their scores (Unigram).
struct Vocabulary(Vec<(String, u32)>);

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tokens;
        impl<'de> Visitor<'de> for Tokens {
            type Value = Vocabulary;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a vocabulary: an object of ids, or a list of tokens with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
                let mut out = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    out.push(entry);
                }
                Ok(Vocabulary(out))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocabulary, A::Error> {
                let mut out = Vec::new();
                while let Some((token, IgnoredAny)) = list.next_element::<(String, IgnoredAny)>()? {
                    out.push((token, out.len() as u32));
                }
                Ok(Vocabulary(out))
            }
        }
        deserializer.deserialize_any(Tokens)
    }
}
