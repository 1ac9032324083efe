//! Chance and ids. Everything random in a run comes from here, from one seed, so that the same options give the same
//! bytes. Each step has its own stream: step 23 is the same whether or not steps 0 to 22 were generated.

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rollscope_model::{SpanId, TraceId};

pub struct Dice(ChaCha8Rng);

impl Dice {
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Dice(rng)
    }

    /// From 0 up to, not including, 1.
    pub fn unit(&mut self) -> f64 {
        self.0.random::<f64>()
    }

    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// From 0 up to, not including, `n`.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.unit() * n as f64) as usize).min(n.saturating_sub(1))
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    pub fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.unit(), self.unit());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// Long-tailed: half of the draws are below `median`, and `sigma` sets the length of the tail.
    pub fn lognormal(&mut self, median: f64, sigma: f64) -> f64 {
        median * (sigma * self.normal()).exp()
    }

    pub fn bits(&mut self) -> u64 {
        self.0.random::<u64>()
    }
}

/// A bijection that scatters: different inputs give different outputs that look random.
pub fn scatter(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Ids that never repeat within a run: a counter, step in the upper half, scattered. Two seeds give different ids.
pub struct Ids {
    base: u64,
    next: u64,
}

impl Ids {
    pub fn new(seed: u64, step: u64) -> Self {
        Ids { base: scatter(seed ^ 0x726f_6c6c_7363_6f70), next: step << 32 }
    }

    fn number(&mut self) -> u64 {
        loop {
            self.next += 1;
            let id = scatter(self.next ^ self.base);
            if id != 0 {
                return id;
            }
        }
    }

    pub fn span(&mut self) -> SpanId {
        self.number().to_be_bytes()
    }

    pub fn trace(&mut self) -> TraceId {
        let low = self.number();
        ((u128::from(scatter(low ^ self.base)) << 64) | u128::from(low)).to_be_bytes()
    }
}
