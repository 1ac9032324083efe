//! Every parser of input that others write, as something that eats bytes: [`TARGETS`] is the whole list. `make fuzz` runs them with
//! libFuzzer (`main.rs`), `make test` replays the corpora (`tests/corpus.rs`). [`oracle`] states what an input may cost.

mod heap;
pub mod oracle;
pub mod pickle;
pub mod pump;
mod targets;

pub use pump::Shape;

/// One parser.
pub struct Target {
    pub name: &'static str,
    /// Longest input that libFuzzer tries.
    pub max_len: usize,
    pub shape: Shape,
    /// Panics only if the parser has a mistake.
    pub run: fn(&[u8]),
}

pub use targets::TARGETS;

pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
