//! Steps straight from the generator, without a store between.

use rollscope_answers::difference::Shape;
use rollscope_answers::report::{StepAnswers, answer};
use rollscope_answers::step::StepData;
use rollscope_answers::summary::StepSummary;
use rollscope_demo::{DemoOptions, Generator, StepData as Generated};
use rollscope_model::Table;

/// A small generator of chance: the tests choose, the demo's dice generate.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1);
        // Neighbouring seeds begin alike.
        for _ in 0..8 {
            chance.bits();
        }
        chance
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 11) as usize % n
    }

    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * ((self.bits() >> 11) as f64 / (1u64 << 53) as f64)
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

pub fn read(generated: &Generated) -> StepData {
    let spans = generated.batch(Table::Spans).unwrap().clone();
    let samples = generated.batch(Table::Samples).unwrap().clone();
    StepData::read(std::slice::from_ref(&spans), std::slice::from_ref(&spans), &[samples]).unwrap()
}

pub fn answers(generated: &Generated) -> (StepSummary, StepAnswers, Shape) {
    answer(Some(generated.step as i64), &mut read(generated))
}

pub fn summaries(options: DemoOptions) -> Vec<StepSummary> {
    let mut generator = Generator::new(options);
    generator.steps().map(|s| answers(&s.unwrap()).0).collect()
}

pub fn seconds(generated: &Generated) -> f64 {
    (generated.end_ns - generated.start_ns) as f64 / 1e9
}
