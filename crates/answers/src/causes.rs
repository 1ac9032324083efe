//! What can make the samples of a step end later.

/// Why samples ended later.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Cause {
    Tool(String),
    Reward,
    Tokens,
    /// More prompts of a source with longer outputs.
    Mix(String),
    Prompts,
    Cache,
    Prefill,
    Transfer,
    Retry,
    /// Of a generation, outside the engine.
    Rest,
    SlowEngine(String),
    Stall(String),
    Imbalance(String),
    Group(String),
    /// Requests waited for one engine.
    Starved(String),
    Pace,
    Queue,
}

impl Cause {
    /// Follows from other causes.
    pub fn is_second(&self) -> bool {
        matches!(self, Cause::Pace | Cause::Queue)
    }

    /// About one machine, tool or group among several: costs are compared with those of all.
    pub fn family(&self) -> Cause {
        match self {
            Cause::SlowEngine(_) | Cause::Stall(_) | Cause::Imbalance(_) | Cause::Starved(_) => {
                Cause::SlowEngine(String::new())
            }
            Cause::Group(_) => Cause::Pace,
            Cause::Mix(_) => Cause::Tokens,
            other => other.clone(),
        }
    }
}
