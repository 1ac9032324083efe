//! Images inside messages, as `data:` addresses, become files next to the tables, each stored once. Anything but an image
//! that can be shown stays where it was.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringArray};
use base64::Engine as _;
use rollscope_model::limits::MEDIA_BYTES;
use rollscope_store::{Store, StoreError};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::media::sniff;
use crate::work::work;

/// Most files of one conversation, and how deep they may be nested.
const MAX_MEDIA: usize = 256;
const MAX_DEPTH: usize = 8;

/// Lifts the images out of a batch of `conversations`.
pub async fn media(store: &Store, batch: RecordBatch) -> Result<RecordBatch, StoreError> {
    let Ok(at) = batch.schema().index_of("messages") else { return Ok(batch) };
    let messages = batch.column(at).as_string::<i32>();
    if !messages.iter().flatten().any(|text| text.contains("data:image/")) {
        return Ok(batch);
    }
    let mut lifted: Vec<String> = Vec::with_capacity(batch.num_rows());
    for text in messages.iter().map(Option::unwrap_or_default) {
        let text = text.to_string();
        if !text.contains("data:image/") {
            lifted.push(text);
            continue;
        }
        let (text, found) = work(move || of_text(text)).await?;
        for data in found {
            store.media_put(data).await?;
        }
        lifted.push(text);
    }
    let mut columns: Vec<ArrayRef> = batch.columns().to_vec();
    columns[at] = Arc::new(StringArray::from(lifted));
    Ok(RecordBatch::try_new(batch.schema(), columns)?)
}

/// The messages of one conversation without their images, and these. A text that is not JSON stays as it is.
fn of_text(text: String) -> (String, Vec<Vec<u8>>) {
    match serde_json::from_str::<Value>(&text) {
        Ok(mut value) => {
            let found = message(&mut value);
            (value.to_string(), found)
        }
        Err(_) => (text, Vec::new()),
    }
}

/// Takes the images out of one message, or out of all of a conversation.
pub fn message(message: &mut Value) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    take(message, &mut found, 0);
    found
}

/// Replaces parts that are images by their hashes, and collects the bytes.
fn take(value: &mut Value, found: &mut Vec<Vec<u8>>, depth: usize) {
    if depth > MAX_DEPTH || found.len() >= MAX_MEDIA {
        return;
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| take(item, found, depth + 1)),
        Value::Object(fields) => {
            let url = fields.get("image_url").and_then(|u| u.as_str().or_else(|| u.get("url")?.as_str()));
            let data = url.or_else(|| fields.get("url")?.as_str()).and_then(image_bytes);
            match data {
                Some(data) => {
                    let caption = fields.get("caption").cloned();
                    let mut part = json!({ "type": "image", "media": hash(&data) });
                    if let Some(caption) = caption {
                        part["caption"] = caption;
                    }
                    found.push(data);
                    *value = part;
                }
                None => fields.values_mut().for_each(|v| take(v, found, depth + 1)),
            }
        }
        _ => {}
    }
}

fn image_bytes(url: &str) -> Option<Vec<u8>> {
    let (_, data) = url.strip_prefix("data:")?.split_once(";base64,")?;
    if data.len() / 4 * 3 > MEDIA_BYTES {
        return None;
    }
    let bytes = base64::engine::general_purpose::STANDARD.decode(data.trim()).ok()?;
    sniff(&bytes).is_some().then_some(bytes)
}

/// The name under which the store keeps a file.
fn hash(data: &[u8]) -> String {
    hex::encode(Sha256::digest(data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_leave_their_messages_and_other_data_stay() {
        let png = base64::engine::general_purpose::STANDARD.encode(b"\x89PNG\r\n\x1a\nrest");
        let forged = base64::engine::general_purpose::STANDARD.encode(b"<svg onload=alert(1)>");
        let mut value = json!([{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{png}")}, "caption": "cat"},
            {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{forged}")}},
            {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}},
        ]}]);
        let mut found = Vec::new();
        take(&mut value, &mut found, 0);
        assert_eq!(found, [b"\x89PNG\r\n\x1a\nrest".to_vec()]);
        let parts = &value[0]["content"];
        assert_eq!((&parts[0]["type"], &parts[0]["caption"]), (&json!("image"), &json!("cat")));
        assert_eq!(parts[0]["media"].as_str().unwrap().len(), 64);
        assert!(parts[1]["image_url"]["url"].as_str().unwrap().starts_with("data:"));
        assert_eq!(parts[2]["image_url"]["url"], "https://example.org/x.png");
    }
}
