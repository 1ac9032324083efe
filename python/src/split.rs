//! Takes a request apart: what the server fails on is found by halves, so that what it came with is not lost with it.

use rollscope_names::attributes::event;

use crate::core::Signal;
use crate::sender::envelope;
use crate::transport::{Value, fields};
use crate::wire::Out;

/// The field of a span that says when it ended, and that of a record that says what it is.
const END_TIME: u64 = 8;
const EVENT_NAME: u64 = 12;

/// Both halves of a message as [`envelope`] writes it, framed, and how many records each has. `None` if it holds only one.
pub fn halves(signal: Signal, message: &[u8]) -> Option<[(Vec<u8>, u64); 2]> {
    let all = bytes_of(message, 1).next()?;
    let resource = bytes_of(all, 1).next()?;
    let scoped = bytes_of(all, 2).next()?;
    let items: Vec<&[u8]> = bytes_of(scoped, 2).collect();
    if items.len() < 2 {
        return None;
    }
    let (first, second) = items.split_at(items.len() / 2);
    Some([first, second].map(|half| {
        let mut chunk = Vec::new();
        half.iter().for_each(|item| chunk.field(0x12, item));
        (envelope(resource, &[&chunk]), half.iter().filter(|item| is_counted(signal, item)).count() as u64)
    }))
}

fn bytes_of(message: &[u8], number: u64) -> impl Iterator<Item = &[u8]> {
    fields(message).into_iter().filter_map(move |(field, value)| match value {
        Value::Bytes(bytes) if field == number => Some(bytes),
        _ => None,
    })
}

/// Spans that are still open are counted when they end, and the counters not at all.
fn is_counted(signal: Signal, item: &[u8]) -> bool {
    match signal {
        Signal::Spans => fields(item).iter().any(|(field, _)| *field == END_TIME),
        Signal::Records => bytes_of(item, EVENT_NAME).all(|name| name != event::STATS.as_bytes()),
    }
}
