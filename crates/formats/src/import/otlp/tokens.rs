//! Tokens as our SDK sends them: the body of a record is a map from column to numbers, as bytes in little-endian order.

use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;

use super::span::Reason;
use crate::tokens::{AtMost, MAX_PARTS, MAX_TOKENS, Tokens};

/// Numbers of four bytes each.
fn numbers<T>(bytes: &[u8], read: impl Fn([u8; 4]) -> T) -> Result<Vec<T>, Reason> {
    let (numbers, []) = bytes.as_chunks::<4>() else { return Err(Reason::Body) };
    Ok(numbers.iter().map(|bytes| read(*bytes)).collect())
}

fn flags(bytes: &[u8]) -> Vec<bool> {
    bytes.iter().map(|flag| *flag != 0).collect()
}

pub(super) fn read(body: Option<AnyValue>) -> Result<Tokens, Reason> {
    let Some(Value::KvlistValue(columns)) = body.and_then(|body| body.value) else { return Err(Reason::Body) };
    let mut tokens = Tokens::default();
    for column in columns.values {
        let value = column.value.and_then(|value| value.value).ok_or(Reason::Body)?;
        match (column.key.as_str(), value) {
            ("prompt_tokens", Value::IntValue(count)) => tokens.prompt_tokens = Some(count),
            ("ids", Value::BytesValue(bytes)) => tokens.ids = Some(numbers(&bytes, i32::from_le_bytes)?),
            ("mask", Value::BytesValue(bytes)) => tokens.mask = Some(flags(&bytes)),
            ("clipped", Value::BytesValue(bytes)) => tokens.clipped = Some(flags(&bytes)),
            ("texts", Value::StringValue(text)) => {
                let AtMost::<MAX_TOKENS, _>(texts) = serde_json::from_str(&text).map_err(|_| Reason::NotJson)?;
                tokens.texts = Some(texts);
            }
            ("parts", Value::StringValue(text)) => {
                let AtMost::<MAX_PARTS, _>(parts) = serde_json::from_str(&text).map_err(|_| Reason::NotJson)?;
                tokens.parts = parts;
            }
            (name, Value::BytesValue(bytes)) => {
                let list = match name {
                    "logprobs" => &mut tokens.logprobs,
                    "trainer_logprobs" => &mut tokens.trainer_logprobs,
                    "entropy" => &mut tokens.entropy,
                    "advantages" => &mut tokens.advantages,
                    "ratios" => &mut tokens.ratios,
                    _ => return Err(Reason::Body),
                };
                *list = Some(numbers(&bytes, f32::from_le_bytes)?);
            }
            _ => return Err(Reason::Body),
        }
    }
    Ok(tokens)
}
