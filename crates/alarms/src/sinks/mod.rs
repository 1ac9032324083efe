//! Where messages go. Each sink has a thread and a bounded queue of its own, so that one that is down or slow holds nothing up.

mod command;
mod http;
mod smtp;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use rollscope_store::Vitals;
use serde::Serialize;
use tokio::sync::mpsc::{self, error::TrySendError};
use utoipa::ToSchema;

use crate::config::AlarmsConfig;
use crate::message::Message;

/// What to do when a message was sent or not. Called on the sink's thread.
pub type Done = Arc<dyn Fn(&Message, bool) + Send + Sync>;

/// Sends one message. May block, within its own time limit.
pub trait Sink: Send {
    fn send(&mut self, message: &Message) -> Result<(), String>;
}

#[derive(Default)]
struct Figures {
    sent: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    last_error: Mutex<Option<String>>,
}

/// How a sink is.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = AlarmSinkStatus)]
pub struct SinkStatus {
    pub name: String,
    /// webhook, slack, alertmanager, command or email.
    pub kind: String,
    /// Messages that wait.
    pub backlog: u64,
    pub sent: u64,
    /// Attempts that failed. What failed is tried again.
    pub failed: u64,
    /// Messages that found the backlog full, or whose end could not be sent for too long.
    pub dropped: u64,
    /// Why the last attempt failed. Null after one that did not.
    #[schema(required)]
    pub last_error: Option<String>,
}

pub struct Running {
    pub name: String,
    pub kind: &'static str,
    queue: mpsc::Sender<Message>,
    capacity: usize,
    figures: Arc<Figures>,
}

impl Running {
    /// Never waits. False if there is no room.
    pub fn offer(&self, message: Message) -> bool {
        match self.queue.try_send(message) {
            Ok(()) => true,
            Err(TrySendError::Full(message) | TrySendError::Closed(message)) => {
                self.count_dropped(1);
                tracing::warn!(sink = self.name, alarm = message.alarm, "the backlog of an alarm sink is full");
                false
            }
        }
    }

    pub fn count_dropped(&self, n: u64) {
        self.figures.dropped.fetch_add(n, Relaxed);
    }

    pub fn status(&self) -> SinkStatus {
        SinkStatus {
            name: self.name.clone(),
            kind: self.kind.into(),
            backlog: (self.capacity - self.queue.capacity()) as u64,
            sent: self.figures.sent.load(Relaxed),
            failed: self.figures.failed.load(Relaxed),
            dropped: self.figures.dropped.load(Relaxed),
            last_error: self.figures.last_error.lock().clone(),
        }
    }
}

/// The name, the kind and the sink.
pub type Configured = (String, &'static str, Box<dyn Sink>);

/// All sinks of a configuration, not yet running. Names are made unique.
pub fn configured(config: &AlarmsConfig) -> Result<Vec<Configured>, String> {
    let mut all: Vec<Configured> = Vec::new();
    let mut add = |name: &str, kind: &'static str, sink: Box<dyn Sink>| {
        let wanted = if name.is_empty() { kind } else { name };
        let taken = |name: &str, all: &[Configured]| all.iter().any(|(n, ..)| n == name);
        let mut unique = wanted.to_string();
        let mut n = 2;
        while taken(&unique, &all) {
            unique = format!("{wanted}-{n}");
            n += 1;
        }
        all.push((unique, kind, sink));
    };
    for c in &config.webhook {
        add(&c.name, "webhook", Box::new(http::Http::new(c, http::Form::Webhook)));
    }
    for c in &config.slack {
        add(&c.name, "slack", Box::new(http::Http::new(c, http::Form::Slack)));
    }
    for c in &config.alertmanager {
        add(&c.name, ALERTMANAGER, Box::new(http::Http::new(c, http::Form::Alertmanager)));
    }
    for c in &config.command {
        add(&c.name, "command", Box::new(command::Program::new(c)));
    }
    for c in &config.email {
        add(&c.name, "email", Box::new(smtp::Email::new(c).map_err(|why| format!("server.alarms.email: {why}"))?));
    }
    Ok(all)
}

/// This kind is told all the time what fires, as by Prometheus, and decides itself whom to tell.
pub const ALERTMANAGER: &str = "alertmanager";

pub fn start((name, kind, mut sink): Configured, capacity: usize, vitals: &Vitals, done: Done) -> Running {
    let (queue, mut messages) = mpsc::channel::<Message>(capacity);
    let figures = Arc::new(Figures::default());
    let (counted, label) = (figures.clone(), name.clone());
    let spawned = vitals.thread("alarm-sink", move || {
        while let Some(message) = messages.blocking_recv() {
            let sent = sink.send(&message);
            match &sent {
                Ok(()) => {
                    counted.sent.fetch_add(1, Relaxed);
                    *counted.last_error.lock() = None;
                }
                Err(error) => {
                    tracing::warn!(sink = label, alarm = message.alarm, error, "cannot send an alarm");
                    counted.failed.fetch_add(1, Relaxed);
                    *counted.last_error.lock() = Some(error.clone());
                }
            }
            done(&message, sent.is_ok());
        }
    });
    if let Err(error) = spawned {
        tracing::error!(sink = name, %error, "cannot start an alarm sink");
    }
    Running { name, kind, queue, capacity, figures }
}
