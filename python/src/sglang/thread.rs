//! The threads that requests pass, as they have named themselves.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use crate::core::lock;
use crate::wire::{self, attrs_of};

use super::piece::Piece;

static THREADS: LazyLock<Mutex<HashMap<i64, Thread>>> = LazyLock::new(Mutex::default);

#[derive(Clone)]
pub struct Thread {
    pub label: String,
    pub tp: Option<i64>,
    pub dp: Option<i64>,
    pub pp: Option<i64>,
}

pub fn number() -> i64 {
    // SAFETY: no arguments, always succeeds.
    i64::from(unsafe { libc::gettid() })
}

fn host_id() -> &'static str {
    static HOST: LazyLock<String> = LazyLock::new(|| {
        let read =
            |path: &str| std::fs::read_to_string(path).ok().map(|t| t.trim().to_string()).filter(|t| !t.is_empty());
        read("/etc/machine-id").or_else(|| read("/proc/sys/kernel/hostname")).unwrap_or_else(|| "unknown".into())
    });
    &HOST
}

/// Names a thread, the first time.
pub fn set(number: i64, thread: Thread) {
    lock(&THREADS).entry(number).or_insert(thread);
}

/// Writes who the thread is into the span of a request's way through it.
pub fn describe(number: i64, piece: &mut Piece) {
    let thread = lock(&THREADS).get(&number).cloned();
    let thread = thread.unwrap_or_else(|| Thread { label: "unknown".into(), tp: None, dp: None, pp: None });
    let mut name = thread.label.clone();
    let attrs = &mut piece.attrs;
    for (mark, key, rank) in [("TP", "tp_rank", thread.tp), ("PP", "pp_rank", thread.pp), ("DP", "dp_rank", thread.dp)]
    {
        if let Some(rank) = rank {
            name.push_str(&format!(" [{mark} {rank}] "));
            wire::int_attr(attrs, attrs_of::SPAN, key.as_bytes(), rank);
            piece.count += 1;
        }
    }
    let host = host_id();
    let short: String = host.chars().take(8).collect();
    name.push_str(&format!("(host:{short} | pid:{number})"));
    wire::text_attr(attrs, attrs_of::SPAN, b"host_id", host.as_bytes());
    wire::int_attr(attrs, attrs_of::SPAN, b"pid", number);
    wire::text_attr(attrs, attrs_of::SPAN, b"thread_label", thread.label.as_bytes());
    piece.count += 3;
    piece.name = name.into_bytes().into();
}
