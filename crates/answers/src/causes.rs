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

    pub fn is_engines(&self) -> bool {
        matches!(self, Cause::SlowEngine(_) | Cause::Stall(_) | Cause::Imbalance(_) | Cause::Starved(_))
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

    /// In findings.
    pub fn kind(&self) -> &'static str {
        match self {
            Cause::Tool(_) => "slow_tool",
            Cause::Reward => "slow_reward",
            Cause::Tokens => "long_outputs",
            Cause::Mix(_) => "source_mix",
            Cause::Prompts => "long_prompts",
            Cause::Cache => "cache_misses",
            Cause::Prefill => "slow_prefill",
            Cause::Transfer => "kv_transfer_stall",
            Cause::Retry => "retries",
            Cause::Rest => "slow_gateway",
            Cause::SlowEngine(_) => "slow_engine",
            Cause::Stall(_) => "engine_stall",
            Cause::Imbalance(_) => "load_imbalance",
            Cause::Group(_) => "straggling_group",
            Cause::Starved(_) | Cause::Queue => "starved_engine",
            Cause::Pace => "slow_decode",
        }
    }

    /// The tool, source, engine or group.
    pub fn subject(&self) -> &str {
        match self {
            Cause::Tool(name)
            | Cause::Mix(name)
            | Cause::SlowEngine(name)
            | Cause::Stall(name)
            | Cause::Imbalance(name)
            | Cause::Group(name)
            | Cause::Starved(name) => name,
            _ => "",
        }
    }
}
