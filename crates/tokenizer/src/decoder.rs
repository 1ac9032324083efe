//! How a token is spelt in the vocabulary, and what its bytes are. As `tokenizers` decodes a token that is not the first: the tokens
//! that we show follow a prompt.

use serde_json::Value;

/// Decoders inside of decoders.
const MAX_DEPTH: usize = 8;

pub enum Decoder {
    /// Characters stand for bytes (GPT-2 and most models since).
    ByteLevel,
    /// `<0xE2>` stands for a byte (Llama 2, Gemma).
    ByteFallback,
    Replace(String, String),
    /// Tokens that begin with the prefix continue a word, others begin one (BERT).
    WordPiece {
        prefix: String,
        cleanup: bool,
    },
    /// There is no decoder: tokens are words.
    Words,
}

/// The steps of the decoder of a file, in order.
pub fn read(decoder: Option<&Value>) -> Result<Vec<Decoder>, String> {
    let mut out = Vec::new();
    match decoder {
        None | Some(Value::Null) => out.push(Decoder::Words),
        Some(decoder) => add(decoder, &mut out, 0)?,
    }
    Ok(out)
}

fn add(decoder: &Value, out: &mut Vec<Decoder>, depth: usize) -> Result<(), String> {
    let text = |key: &str, default: &str| decoder[key].as_str().unwrap_or(default).to_string();
    match decoder["type"].as_str().unwrap_or_default() {
        "ByteLevel" => out.push(Decoder::ByteLevel),
        "ByteFallback" => out.push(Decoder::ByteFallback),
        "Metaspace" => out.push(Decoder::Replace(text("replacement", "▁"), " ".into())),
        "BPEDecoder" => out.push(Decoder::Replace(text("suffix", "</w>"), " ".into())),
        "WordPiece" => out.push(Decoder::WordPiece {
            prefix: text("prefix", "##"),
            cleanup: decoder["cleanup"].as_bool().unwrap_or(true),
        }),
        "Replace" => match decoder["pattern"]["String"].as_str() {
            Some(pattern) if !pattern.is_empty() => {
                out.push(Decoder::Replace(pattern.to_string(), text("content", "")))
            }
            _ => return Err("a decoder replaces a regular expression, which is not supported".into()),
        },
        // These concern the first or last token of a text, or how tokens are put together.
        "Fuse" | "Strip" => {}
        "Sequence" if depth < MAX_DEPTH => {
            for inner in decoder["decoders"].as_array().into_iter().flatten() {
                add(inner, out, depth + 1)?;
            }
        }
        other => {
            return Err(format!(
                "the decoder `{other}` is not supported; expected one of: ByteLevel, ByteFallback, Metaspace, BPEDecoder, WordPiece, \
                 Replace, Fuse, Strip, Sequence"
            ));
        }
    }
    Ok(())
}

/// The bytes of a token.
pub fn decode(token: &str, decoders: &[Decoder]) -> Vec<u8> {
    let mut text = token.to_string();
    for decoder in decoders {
        match decoder {
            Decoder::ByteLevel => {
                return text.chars().map(byte_of).collect::<Option<Vec<u8>>>().unwrap_or(text.into_bytes());
            }
            Decoder::ByteFallback => {
                if let Some(byte) = fallback(&text) {
                    return vec![byte];
                }
            }
            Decoder::Replace(from, to) => text = text.replace(from, to),
            Decoder::WordPiece { prefix, cleanup } => {
                text = match text.strip_prefix(prefix.as_str()).filter(|_| !prefix.is_empty()) {
                    Some(rest) => rest.to_string(),
                    None => format!(" {text}"),
                };
                if *cleanup {
                    text = tidy(&text);
                }
            }
            Decoder::Words => text.insert(0, ' '),
        }
    }
    text.into_bytes()
}

/// `<0xE2>`
fn fallback(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// Which byte a character of a byte-level vocabulary stands for: printable ones for themselves, the others for those from U+0100 on.
fn byte_of(c: char) -> Option<u8> {
    let is_itself = |b: u32| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    match u32::from(c) {
        code if is_itself(code) => Some(code as u8),
        code @ 0x100..=0x143 => {
            let nth = (code - 0x100) as usize;
            (0..=255u32).filter(|b| !is_itself(*b)).nth(nth).map(|b| b as u8)
        }
        _ => None,
    }
}

/// What BERT's decoder takes back of the spaces that it adds.
fn tidy(text: &str) -> String {
    [(" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" n't", "n't"), (" 'm", "'m"), (" 's", "'s")]
        .into_iter()
        .chain([(" 've", "'ve"), (" 're", "'re")])
        .fold(text.to_string(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(decoder: &str, token: &str) -> Vec<u8> {
        decode(token, &read(serde_json::from_str::<Value>(decoder).ok().as_ref()).unwrap())
    }

    #[test]
    fn spellings_of_vocabularies() {
        assert_eq!(decoded(r#"{"type":"ByteLevel"}"#, "Ġhello"), b" hello");
        assert_eq!(decoded(r#"{"type":"ByteLevel"}"#, "Ã©Ċ"), "é\n".as_bytes());
        // Added tokens are spelt as they are.
        assert_eq!(decoded(r#"{"type":"ByteLevel"}"#, "<｜end｜>"), "<｜end｜>".as_bytes());
        let llama = r#"{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},
            {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}"#;
        assert_eq!(decoded(llama, "▁the"), b" the");
        assert_eq!(decoded(llama, "<0xE2>"), [0xE2]);
        assert_eq!(decoded(llama, "<0xE>"), b"<0xE>");
        assert_eq!(decoded(r#"{"type":"Metaspace","replacement":"_"}"#, "_a"), b" a");
        let bert = r###"{"type":"WordPiece","prefix":"##","cleanup":true}"###;
        assert_eq!(
            (decoded(bert, "##ing"), decoded(bert, "play"), decoded(bert, ".")),
            (b"ing".into(), b" play".into(), b".".into())
        );
        assert_eq!(decoded("null", "word"), b" word");
    }

    #[test]
    fn every_byte_has_one_character() {
        let mut seen: Vec<u8> = (0..0x200u32).filter_map(char::from_u32).filter_map(byte_of).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
    }
}
