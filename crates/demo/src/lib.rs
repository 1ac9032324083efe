//! A training run that never happened but looks as if it had: a 7B model, GRPO, slime and SGLang, in part with prefill
//! and decode on different engines. It feeds `rollscope demo`, tests and benchmarks. The same options give the same
//! bytes.
//!
//! How a step comes about: [`task`] draws the tasks of its samples; [`plant`]s change that, or the machines;
//! [`sim`] runs it through simulated engines, which gives every request its times; [`trainer`] lays the phases behind
//! it. Then it is written: [`sample`] and [`engine`] and [`trainer`] write spans through [`emit`], [`text`] what was
//! said, [`metrics`] and [`series`] what was measured, all from the same plan, so that tables agree with each other.
//! [`run`] puts it together; [`live`] deals the same rows out in the order of time.

mod bench;
mod dice;
mod emit;
mod engine;
mod live;
mod media;
mod metrics;
mod plant;
mod run;
mod sample;
mod series;
mod sim;
mod step;
mod task;
mod text;
mod trainer;

pub use bench::bench_spans;
pub use live::{Arrival, Live, TICK};
pub use media::{Media, default_hash};
pub use plant::Plant;
pub use run::{DEFAULT_START_NS, DemoOptions, Generator, Layout};
pub use step::StepData;
