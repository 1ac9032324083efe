//! Who a span belongs to: step, sample, group and attempt, written into every span below it.

use std::sync::Arc;

use pyo3::prelude::*;
use rollscope_names::attributes::{ATTEMPT, GROUP_ID, SAMPLE_ID, STEP};

use super::Start;
use crate::args;
use crate::value;
use crate::wire::{self, Out, attrs_of};

#[derive(Clone, Default)]
pub struct Identity {
    pub step: Option<i64>,
    sample: Option<Arc<[u8]>>,
    group: Option<Arc<[u8]>>,
    attempt: Option<i64>,
    /// All of it as attributes.
    pub bytes: Vec<u8>,
    pub count: u32,
}

impl Identity {
    /// What a span hands down that has it encoded only.
    pub fn encoded(step: Option<i64>, bytes: Vec<u8>, count: u32) -> Identity {
        Identity { step, bytes, count, ..Identity::default() }
    }

    /// The parent's, with what a span says of its own.
    #[cold]
    pub fn of(inherited: Option<&Identity>, start: &Start<'_, '_>) -> Arc<Identity> {
        let mut identity = inherited.cloned().unwrap_or_default();
        if let Some(step) = start.step {
            identity.step = args::whole(step);
        }
        if let Some(attempt) = start.attempt {
            identity.attempt = args::whole(attempt);
        }
        let encoded = |key: &str, value: &Bound<'_, PyAny>| -> Arc<[u8]> {
            let mut out = Vec::new();
            value::put_id(&mut out, attrs_of::SPAN, key.as_bytes(), value);
            out.into()
        };
        if let Some(sample) = start.sample {
            identity.sample = Some(encoded(SAMPLE_ID[0], sample));
        }
        if let Some(group) = start.group {
            identity.group = Some(encoded(GROUP_ID[0], group));
        }
        identity.write();
        Arc::new(identity)
    }

    fn write(&mut self) {
        self.bytes.clear();
        self.count = 0;
        for (key, number) in [(STEP[0], self.step), (ATTEMPT[0], self.attempt)] {
            if let Some(number) = number {
                wire::int_attr(&mut self.bytes, attrs_of::SPAN, key.as_bytes(), number);
                self.count += 1;
            }
        }
        for attribute in [&self.sample, &self.group].into_iter().flatten() {
            self.bytes.put(attribute);
            self.count += 1;
        }
    }
}
