//! The tasks of the samples of a step, before anything has a time: prompts, lengths, tools, how it ends. Drawn
//! from the dice of the step; plants change it afterwards.

use crate::dice::{Dice, scatter};

/// Tokens one answer may have, single-turn and within an agent's turn.
pub const MAX_NEW_TOKENS: i64 = 4096;
pub const MAX_TURN_TOKENS: i64 = 1024;

/// Prompts in the data set. Small, so that the same prompt comes back over the steps.
pub const PROBLEMS: u64 = 96;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    Math,
    Code,
    Agent,
}

impl Domain {
    pub fn source(self) -> &'static str {
        match self {
            Domain::Math => "dapo-math-17k",
            Domain::Code => "livecodebench",
            Domain::Agent => "browse-and-code",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Completed,
    Truncated,
    Aborted,
    Failed,
}

impl Status {
    pub fn name(self) -> &'static str {
        match self {
            Status::Completed => "completed",
            Status::Truncated => "truncated",
            Status::Aborted => "aborted",
            Status::Failed => "failed",
        }
    }
}

/// How a tool can fail: error type and message, as an exception would carry them.
pub type Failure = (&'static str, &'static str);

const FAILURES: [Failure; 4] = [
    ("RuntimeError", "CUDA error: out of memory"),
    ("TimeoutError", "tool did not answer within 12 s"),
    ("HTTPError", "502 Bad Gateway"),
    ("CalledProcessError", "command returned non-zero exit status 1"),
];

/// The one that ends an attempt.
pub const SANDBOX_LOST: Failure = ("SandboxError", "sandbox was killed: out of memory");

#[derive(Clone, Debug)]
pub struct ToolCall {
    pub tool: &'static str,
    pub seconds: f64,
    pub failure: Option<Failure>,
}

pub const TOOLS: [&str; 4] = ["python", "bash", "browser", "search"];

/// One generation, and the tool call that follows it.
#[derive(Clone, Debug)]
pub struct Turn {
    pub attempt: i32,
    pub prompt_tokens: i64,
    pub cached_tokens: i64,
    pub completion_tokens: i64,
    pub max_new_tokens: i64,
    /// Tokens per second this request would get on an empty engine.
    pub speed: f64,
    pub finish: &'static str,
    pub tool: Option<ToolCall>,
    /// Speculation: rounds of drafting, each of [`DRAFT`] tokens.
    pub verifies: i64,
}

/// Tokens drafted in one round of speculation.
pub const DRAFT: i64 = 4;

#[derive(Clone, Debug)]
pub struct Task {
    pub group: usize,
    pub problem: u64,
    pub domain: Domain,
    /// Prefill and decode on different engines.
    pub disaggregated: bool,
    pub turns: Vec<Turn>,
    pub status: Status,
    pub reward: Option<f64>,
    pub reward_s: f64,
    pub reward_timeout: bool,
    /// Steps by which the oldest weights that produced it are behind.
    pub staleness: u64,
    pub submit_s: f64,
    /// What the text of its conversation is made from.
    pub text_seed: u64,
}

impl Task {
    pub fn attempts(&self) -> i32 {
        self.turns.last().map_or(1, |t| t.attempt + 1)
    }

    pub fn tool_calls(&self) -> usize {
        self.turns.iter().filter(|t| t.tool.is_some()).count()
    }
}

/// Share of groups that are agentic, and of groups that run disaggregated.
const AGENTIC: f64 = 0.4;
const DISAGGREGATED: f64 = 0.35;

pub struct Shape {
    pub samples: usize,
    pub group_size: usize,
    pub max_turns: usize,
}

/// Draws the tasks of a step. The policy gets better with the steps: `skill` moves the chance to solve a problem.
pub fn draw(dice: &mut Dice, step: u64, shape: &Shape) -> Vec<Task> {
    let mut tasks = Vec::with_capacity(shape.samples);
    let skill = -0.9 + 2.4 * (1.0 - (-(step as f64) / 18.0).exp());
    let groups = shape.samples.div_ceil(shape.group_size);
    for group in 0..groups {
        let agentic = shape.max_turns > 1 && (group % 4 == 2 || dice.chance((AGENTIC - 0.25) / 0.75));
        let domain = match agentic {
            true => Domain::Agent,
            false if dice.chance(0.3) => Domain::Code,
            false => Domain::Math,
        };
        let problem = dice.below(PROBLEMS as usize) as u64;
        // A property of the prompt, not of the step: easy and hopeless ones give groups without variance.
        let difficulty = 2.2 * (scatter(problem + 1) as f64 / u64::MAX as f64 * 2.0 - 1.0);
        let solve = 1.0 / (1.0 + (1.6 * (difficulty - skill)).exp());
        let disaggregated = group % 3 == 1 || dice.chance(DISAGGREGATED * 0.1);
        let prompt = 180 + (scatter(problem ^ 77) % 420) as i64;
        for member in 0..shape.group_size.min(shape.samples - group * shape.group_size) {
            tasks.push(one(dice, step, shape, group, member, domain, problem, disaggregated, prompt, solve));
        }
    }
    tasks
}

#[allow(clippy::too_many_arguments)]
fn one(
    dice: &mut Dice,
    step: u64,
    shape: &Shape,
    group: usize,
    member: usize,
    domain: Domain,
    problem: u64,
    disaggregated: bool,
    prompt: i64,
    solve: f64,
) -> Task {
    let solved = dice.chance(solve);
    let mut status = Status::Completed;
    let mut turns = Vec::new();
    // Siblings share their prompt: all but the first to arrive find it in the prefix cache.
    let cached = if member == 0 { 0 } else { prompt / 16 * 16 };
    if domain == Domain::Agent {
        let count = (2 + dice.lognormal(2.0, 0.6) as usize).min(shape.max_turns);
        let retry = dice.chance(0.05);
        if retry {
            let lost_at = dice.below(count.min(3));
            agent_turns(dice, &mut turns, 0, lost_at + 1, prompt, cached);
            if let Some(tool) = turns.last_mut().map(|t| &mut t.tool) {
                *tool = Some(ToolCall { tool: "bash", seconds: dice.between(2.0, 8.0), failure: Some(SANDBOX_LOST) });
            }
            if dice.chance(0.2) {
                status = Status::Failed;
            }
        }
        agent_turns(dice, &mut turns, i32::from(retry), count, prompt, cached);
        if let Some(last) = turns.last_mut() {
            last.tool = None;
            if status == Status::Failed {
                last.finish = "abort";
            }
        }
    } else {
        let wanted = dice.lognormal(if domain == Domain::Math { 950.0 } else { 700.0 }, 0.75) as i64;
        let mut turn = generation(dice, 0, prompt, cached, wanted.max(24), MAX_NEW_TOKENS);
        if turn.finish == "length" {
            status = Status::Truncated;
        } else if dice.chance(0.01) {
            status = Status::Aborted;
            turn.finish = "abort";
            turn.completion_tokens = (turn.completion_tokens as f64 * dice.between(0.1, 0.6)) as i64 + 1;
        }
        turns.push(turn);
    }
    // The slow few: the same work on a node that is hot, shared or unlucky.
    if dice.chance(0.03) {
        let slow = dice.between(0.55, 0.75);
        turns.iter_mut().for_each(|t| t.speed *= slow);
    }
    let reward = match status {
        Status::Aborted => None,
        Status::Failed => Some(0.0),
        Status::Truncated => Some(f64::from(solved && dice.chance(0.2))),
        Status::Completed if domain == Domain::Agent && !solved && dice.chance(0.25) => Some(0.5),
        Status::Completed => Some(f64::from(solved)),
    };
    Task {
        group,
        problem,
        domain,
        disaggregated,
        turns,
        status,
        reward,
        reward_s: match domain {
            Domain::Math => dice.lognormal(0.03, 0.4),
            Domain::Code => dice.lognormal(1.6, 0.5).min(8.0),
            Domain::Agent => dice.lognormal(0.8, 0.5).min(6.0),
        },
        reward_timeout: false,
        staleness: u64::from(dice.chance(0.08)).min(step),
        submit_s: 0.004 + 0.0004 * (group * shape.group_size + member) as f64 + dice.between(0.0, 0.0003),
        text_seed: dice.bits(),
    }
}

fn agent_turns(dice: &mut Dice, turns: &mut Vec<Turn>, attempt: i32, count: usize, prompt: i64, cached: i64) {
    let (mut prompt, mut cached) = (prompt + 350, cached);
    for _ in 0..count {
        let wanted = dice.lognormal(210.0, 0.6) as i64;
        let mut turn = generation(dice, attempt, prompt, cached, wanted.max(16), MAX_TURN_TOKENS);
        let tool = *dice.pick(&TOOLS);
        let seconds = match tool {
            "python" => dice.lognormal(1.1, 0.7),
            "bash" => dice.lognormal(1.6, 0.8),
            "browser" => dice.lognormal(3.2, 0.5),
            _ => dice.lognormal(0.7, 0.4),
        };
        let failure = dice.chance(0.07).then(|| *dice.pick(&FAILURES));
        let seconds = if matches!(failure, Some(("TimeoutError", _))) { 12.0 } else { seconds.min(10.0) };
        // The conversation so far is in the prefix cache of the engine, except for the last partial page.
        cached = (prompt + turn.completion_tokens) / 16 * 16;
        prompt += turn.completion_tokens + dice.lognormal(160.0, 0.8).min(2_000.0) as i64;
        turn.tool = Some(ToolCall { tool, seconds, failure });
        turns.push(turn);
    }
}

fn generation(dice: &mut Dice, attempt: i32, prompt: i64, cached: i64, wanted: i64, limit: i64) -> Turn {
    let completion = wanted.min(limit);
    Turn {
        attempt,
        prompt_tokens: prompt,
        cached_tokens: cached.min(prompt - 1),
        completion_tokens: completion,
        max_new_tokens: limit,
        speed: dice.between(88.0, 102.0),
        finish: if wanted > limit { "length" } else { "stop" },
        tool: None,
        verifies: (completion as f64 / dice.between(2.2, 3.1)).ceil() as i64,
    }
}

impl Turn {
    /// Speculated tokens that were accepted: what came out beyond one token a round.
    pub fn accepted(&self) -> i64 {
        (self.completion_tokens - self.verifies).max(0)
    }
}

/// Gives a task a call of `tool` before its last answer, when it has none.
pub fn give_tool(task: &mut Task, tool: &'static str) {
    if let Some(call) = task.turns.iter_mut().rev().find_map(|t| t.tool.as_mut().filter(|c| c.failure.is_none())) {
        call.tool = tool;
        return;
    }
    let Some(last) = task.turns.last() else { return };
    let mut before = last.clone();
    before.completion_tokens = before.completion_tokens.min(64);
    before.verifies = before.completion_tokens / 2;
    before.finish = "stop";
    before.tool = Some(ToolCall { tool, seconds: 2.0, failure: None });
    let at = task.turns.len() - 1;
    task.turns.insert(at, before);
}

/// The tool's name as one of ours, or `browser` for an unknown one.
pub fn known_tool(name: &str) -> &'static str {
    TOOLS.into_iter().find(|t| *t == name).unwrap_or("browser")
}
