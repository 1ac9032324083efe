//! What can be compared between steps.

/// What is compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Factor {
    Tool(String),
    Reward,
    Queue,
    Transfer,
    /// Tokens of a prompt, and those of them that no cache had.
    Prompt,
    Uncached,
    /// Seconds per token that no cache had; of a prefill whose tokens nobody counted, seconds.
    PrefillPace,
    Prefill,
    /// Tokens of one generation; of those with prompts of one source.
    Tokens,
    TokensOf(String),
    /// Tokens that a sample made in all its turns.
    Made,
    /// Seconds per token; of a generation whose tokens nobody counted, seconds.
    Pace,
    Decode,
    /// Of a generation outside the engine.
    Rest,
    /// Seconds that samples lost to attempts that were given up.
    Retry,
}

/// Fewer tokens reveal little about pace.
const MIN_TOKENS: f64 = 32.0;

/// Seconds per token of a generation, if it is long enough.
pub fn pace(seconds: f64, tokens: f64) -> Option<f64> {
    (tokens >= MIN_TOKENS && seconds > 0.0).then(|| seconds / tokens)
}
