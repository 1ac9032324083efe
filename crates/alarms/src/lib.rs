//! Alarms: conditions that are looked at again and again, and who is told when one holds.
//!
//! A condition is a rule of a Prometheus rule file ([`rules`]), a query in SQL ([`sql`]) or built in ([`builtin`], judged by
//! [`judge`]). Each has alarms, one per set of labels ([`alarm`]), which are pending, firing or resolved. [`service`] evaluates rules in
//! rounds: what all of them need is read in one pass. It writes `ALERTS` and `ALERTS_FOR_STATE` into `series` ([`history`]), so that
//! alarms can be queried and drawn, and go on after a restart. [`notify`] decides what each of the [`sinks`] must be told,
//! minus [`silences`]; [`kept`] has what must survive a restart, and in a lake [`shared`], what its nodes share. [`prometheus`] is Prometheus's view of all this.

mod alarm;
mod builtin;
mod config;
mod evaluate;
mod history;
mod judge;
mod kept;
mod message;
mod notify;
mod prometheus;
pub mod rules;
mod service;
mod shared;
mod silences;
mod sinks;
mod specs;
mod sql;
mod template;
mod text;

pub use alarm::State;
pub use builtin::{Dropped, Sources};
pub use config::AlarmsConfig;
pub use history::Episode;
pub use prometheus::Wanted;
pub use service::{AlarmCounters, AlarmInfo, Alarms, AlarmsAnswer, NewSilence, RuleInfo, SilenceError};
pub use silences::Silence;
pub use sinks::SinkStatus;
