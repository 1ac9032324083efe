//! The prompts and the answers of the model. Templates, filled from the seed of the sample: plausible enough to read,
//! search and compare; siblings share their prompt and differ in the answer.

use serde_json::{Value, json};

use crate::dice::Dice;
use crate::media::Media;
use crate::task::{Domain, Status, Task, ToolCall};

/// One conversation, ready for its table.
pub struct Conversation {
    pub messages: String,
    pub message_count: i64,
    pub turn_count: i64,
    pub tool_call_count: i64,
    pub media_count: i64,
    pub char_count: i64,
}

/// Seed of the texts that belong to a prompt, the same for every sample.
const PROMPT_STREAM: u64 = 0x70_726f_6d70;

fn prompt(task: &Task, media: &[Media]) -> (Value, String) {
    let mut dice = Dice::new(task.problem, PROMPT_STREAM);
    let (a, b, c) = (2 + dice.below(40), 3 + dice.below(25), 5 + dice.below(90));
    let kind = dice.below(6);
    let (text, answer) = match (task.domain, kind) {
        (Domain::Math, 0) => (
            format!("Find the remainder when ${a}^{{{c}}}$ is divided by ${}$. Put the answer in \\boxed{{}}.", b + 4),
            (0..c).fold(1, |x, _| x * a % (b + 4)).to_string(),
        ),
        (Domain::Math, 1) => (
            format!(
                "A box holds {a} red and {b} blue balls. Two are drawn without replacement. The probability that both \
                 are red is $m/n$ in lowest terms. Find $m+n$."
            ),
            {
                let (m, n) = (a * (a - 1), (a + b) * (a + b - 1));
                let g = gcd(m, n);
                (m / g + n / g).to_string()
            },
        ),
        (Domain::Math, 2) => (
            format!("已知等差数列的首项为 {a}，公差为 {b}，求前 {c} 项的和。请把最终答案写在 \\boxed{{}} 中。"),
            (c * a + b * c * (c - 1) / 2).to_string(),
        ),
        (Domain::Math, 3) => (
            format!(
                "円に内接する四角形の辺の長さが {a}, {b}, {a}, {b} である。この四角形の面積を求めよ。答えは整数で答えなさい。"
            ),
            (a * b).to_string(),
        ),
        (Domain::Math, 4) => (
            format!("Look at the figure. How many lattice points lie strictly inside the rectangle of {a} by {c}?"),
            ((a - 1) * (c - 1)).to_string(),
        ),
        (Domain::Math, _) => (
            format!("Compute the sum of all positive integers $n \\le {c}$ that are divisible by ${b}$."),
            (1..=c / b).map(|k| k * b).sum::<usize>().to_string(),
        ),
        (Domain::Code, k) => {
            let (what, name) = [
                ("the length of the longest strictly increasing subsequence", "lis"),
                ("the number of connected components of an undirected graph", "components"),
                ("the smallest window of the string that contains all letters of the pattern", "min_window"),
                ("the k-th smallest element of two sorted arrays", "kth"),
                ("the maximum profit with at most two transactions", "max_profit"),
                ("the number of ways to tile a board of 2 by n", "tilings"),
            ][k];
            (
                format!(
                    "Write a Python function `{name}` that returns {what}. Input has at most {} elements; the time \
                     limit is {} s. Reply with one code block.",
                    c * 1000,
                    1 + a % 4
                ),
                name.to_string(),
            )
        }
        (Domain::Agent, k) => {
            let task = [
                "Find the population of the three largest cities on the river that flows through Basel and plot them.",
                "The test suite in /workspace/repo fails. Find the cause, fix it, and show that all tests pass.",
                "Which of the two papers on rotary embeddings was published first, and how many authors does it have?",
                "Download the CSV of monthly totals, remove outliers beyond three sigma, and report the slope.",
                "请查询今年的诺贝尔物理学奖得主，并用一句话总结其贡献。",
                "Reproduce the plot in the attached picture and tell at which x the curve has its maximum.",
            ][k];
            (format!("{task} (budget: {} tool calls)", 4 + a % 8), format!("answer-{}", c))
        }
    };
    let pictured = (task.domain == Domain::Math && kind == 4) || (task.domain == Domain::Agent && kind == 5);
    let content = match (pictured, media.get(if task.domain == Domain::Math { 4 } else { 1 })) {
        (true, Some(picture)) => json!([{"type": "text", "text": text}, image(picture)]),
        _ => Value::from(text),
    };
    (content, answer)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn image(media: &Media) -> Value {
    json!({"type": "image", "media": media.hash, "caption": media.caption})
}

/// The label: what the verifier compares with.
pub fn label(task: &Task) -> String {
    Value::from(prompt(task, &[]).1).to_string()
}

const THOUGHTS: [&str; 16] = [
    "Let me restate the problem in my own words before computing anything.",
    "First consider the small cases, they usually show the pattern.",
    "Hmm, wait. That would count the boundary twice.",
    "Let me check this with a different method.",
    "We can factor the expression and use the periodicity of the powers.",
    "So the recurrence is linear and the characteristic polynomial splits.",
    "Substituting back gives the same value, which is reassuring.",
    "I should be careful with the off-by-one error here.",
    "By symmetry both cases contribute equally.",
    "The greedy choice fails on this input, so dynamic programming is needed.",
    "Let me set up the equation again and solve step by step.",
    "Actually, the condition says strictly less, so the last term drops out.",
    "This matches the bound from the previous part.",
    "接下来验证一下边界情况。",
    "Now simplify: the common factor cancels.",
    "Let me verify with a quick mental computation.",
];

fn thoughts(dice: &mut Dice, tokens: i64) -> String {
    let count = (tokens / 24).clamp(1, 48) as usize;
    let mut out = String::with_capacity(count * 60);
    for i in 0..count {
        if i > 0 {
            out.push_str(if i % 6 == 0 { "\n\n" } else { " " });
        }
        out.push_str(THOUGHTS[dice.below(THOUGHTS.len())]);
    }
    out
}

fn arguments(dice: &mut Dice, tool: &str) -> Value {
    match tool {
        "python" => json!({"code": format!("import math\nxs = [{}, {}, {}]\nprint(sum(xs) / len(xs))",
            dice.below(99), dice.below(99), dice.below(99))}),
        "bash" => json!({"command": *dice.pick(&["pytest -x -q", "ls -la /workspace/repo", "git diff --stat",
            "sed -n '1,80p' src/parser.py", "python train.py --batch-size 64"])}),
        "browser" => json!({"url": format!("https://example.org/articles/{}", 100 + dice.below(900)), "wait": "load"}),
        _ => json!({"query": *dice.pick(&["Rhine largest cities population", "rotary position embedding paper authors",
            "monthly totals csv outlier removal", "诺贝尔物理学奖 得主"]), "k": 5}),
    }
}

fn result(dice: &mut Dice, call: &ToolCall) -> String {
    if let Some((kind, message)) = call.failure {
        return match kind {
            "RuntimeError" => format!(
                "Traceback (most recent call last):\n  File \"train.py\", line {}, in <module>\n    loss.backward()\n\
                 torch.OutOfMemoryError: {message}. Tried to allocate {:.2} GiB.",
                20 + dice.below(200),
                dice.between(0.5, 6.0)
            ),
            _ => format!("{kind}: {message}"),
        };
    }
    match call.tool {
        "python" => format!("{:.4}\n", dice.between(1.0, 99.0)),
        "bash" => {
            format!("{} passed, {} warnings in {:.2}s\n", 4 + dice.below(60), dice.below(4), dice.between(0.3, 9.0))
        }
        "browser" => format!(
            "# Article {}\n\nThe population grew from {} to {} within ten years, according to the statistical office.",
            dice.below(999),
            10_000 + dice.below(400_000),
            410_000 + dice.below(900_000)
        ),
        _ => (1..=3)
            .map(|i| format!("{i}. https://example.org/r/{} (score {:.2})\n", dice.below(9999), dice.unit()))
            .collect(),
    }
}

const CODE: [&str; 3] = [
    "    best = []\n    for x in xs:\n        i = bisect_left(best, x)\n        best[i:i + 1] = [x]\n    return len(best)",
    "    seen, count = set(), 0\n    for v in range(n):\n        if v not in seen:\n            count += 1\n            stack = [v]\n            while stack:\n                u = stack.pop()\n                if u not in seen:\n                    seen.add(u)\n                    stack.extend(graph[u])\n    return count",
    "    a, b = 1, 1\n    for _ in range(n - 1):\n        a, b = b, a + b\n    return b",
];

pub fn conversation(task: &Task, sample_id: &str, media: &[Media]) -> Conversation {
    let mut dice = Dice::new(task.text_seed, 1);
    let (content, answer) = prompt(task, media);
    let mut messages = Vec::with_capacity(2 + 2 * task.turns.len());
    if task.domain == Domain::Agent {
        messages.push(json!({"role": "system", "content":
            "You are a careful agent. Use the tools python, bash, browser and search when they help. Finish with one answer."}));
    }
    messages.push(json!({"role": "user", "content": content}));
    let attempt = task.attempts() - 1;
    let (mut tools, mut turns) = (0, 0);
    for (number, turn) in task.turns.iter().enumerate().filter(|(_, t)| t.attempt == attempt) {
        turns += 1;
        let mut message =
            json!({"role": "assistant", "reasoning_content": thoughts(&mut dice, turn.completion_tokens)});
        match &turn.tool {
            Some(call) => {
                tools += 1;
                let id = format!("call_{number}_{sample_id}");
                let arguments = arguments(&mut dice, call.tool).to_string();
                message["content"] = Value::from("");
                message["tool_calls"] = json!([{"id": id, "type": "function",
                    "function": {"name": call.tool, "arguments": arguments}}]);
                messages.push(message);
                let text = result(&mut dice, call);
                let shown = call.tool == "browser" && call.failure.is_none() && dice.chance(0.5);
                let content = match (shown, media.first()) {
                    (true, Some(picture)) => json!([{"type": "text", "text": text}, image(picture)]),
                    _ => Value::from(text),
                };
                messages.push(json!({"role": "tool", "tool_call_id": id, "name": call.tool, "content": content}));
            }
            None => {
                let text = closing(&mut dice, task, &answer);
                message["content"] = match media.get(3 + dice.below(3)) {
                    Some(picture) if task.domain == Domain::Agent && dice.chance(0.15) => {
                        json!([{"type": "text", "text": text}, image(picture)])
                    }
                    _ => Value::from(text),
                };
                messages.push(message);
            }
        }
    }
    Conversation {
        message_count: messages.len() as i64,
        turn_count: turns,
        tool_call_count: tools,
        media_count: messages.iter().map(images).sum(),
        char_count: messages.iter().map(chars).sum(),
        messages: Value::from(messages).to_string(),
    }
}

/// The last words. A truncated answer stops in the middle; a wrong one differs from the label.
fn closing(dice: &mut Dice, task: &Task, answer: &str) -> String {
    let solved = task.reward == Some(1.0);
    match (task.status, task.domain) {
        (Status::Truncated | Status::Aborted, _) => "So, continuing from the previous line, we have that".to_string(),
        (Status::Failed, _) => "The sandbox is gone, I cannot continue.".to_string(),
        (_, Domain::Math) => {
            let shown = if solved { answer.to_string() } else { (3 + dice.below(900)).to_string() };
            format!("Therefore the answer is $\\boxed{{{shown}}}$.")
        }
        (_, Domain::Code) => {
            let body = if solved { *dice.pick(&CODE) } else { "    return 0  # placeholder for the general case" };
            format!("```python\nfrom bisect import bisect_left\n\ndef {answer}(xs, n=None, graph=None):\n{body}\n```")
        }
        (_, Domain::Agent) if solved => format!("Done. The result is **{answer}**, confirmed by two sources."),
        (_, Domain::Agent) => "I could not confirm the result; my best guess is **unknown**.".to_string(),
    }
}

fn images(message: &Value) -> i64 {
    let parts = message["content"].as_array();
    parts.map_or(0, |parts| parts.iter().filter(|p| p["type"] == "image").count() as i64)
}

fn chars(message: &Value) -> i64 {
    let length = |v: &Value| v.as_str().map_or(0, |s| s.chars().count() as i64);
    let parts = message["content"].as_array().map_or(0, |parts| parts.iter().map(|p| length(&p["text"])).sum());
    let arguments = message["tool_calls"]
        .as_array()
        .map_or(0, |calls| calls.iter().map(|c| length(&c["function"]["arguments"])).sum());
    length(&message["content"]) + length(&message["reasoning_content"]) + parts + arguments
}
