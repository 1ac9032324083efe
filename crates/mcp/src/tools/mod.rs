//! The tools. One entry in [`TOOLS`] is all that a new one needs.

mod answers;
mod conversations;
mod metrics;
mod runs;
mod sql;
mod traces;

use futures::future::BoxFuture;
use rollscope_app::params::Params;
use rollscope_app::problem::Problem;
use serde_json::{Map, Value, json};

use crate::desk::Source;
use crate::link::Page;

/// All of them, in the order in which assistants see them.
pub const TOOLS: &[Tool] = &[
    runs::RUNS,
    runs::STEPS,
    answers::FINDINGS,
    answers::REPORT,
    answers::DIFF,
    answers::CRITICAL_PATH,
    answers::MISMATCH,
    answers::HANG,
    traces::TRACES,
    conversations::SEARCH,
    conversations::READ,
    metrics::METRICS,
    metrics::PROMQL,
    sql::SQL,
];

pub struct Tool {
    pub name: &'static str,
    pub title: &'static str,
    /// For the assistant: when to use it, and what comes back.
    pub about: &'static str,
    pub arguments: &'static [Argument],
    run: fn(Call) -> BoxFuture<'static, Result<Answer, Problem>>,
}

pub struct Argument {
    pub name: &'static str,
    pub kind: Kind,
    pub about: &'static str,
    pub required: bool,
}

#[derive(Clone, Copy)]
pub enum Kind {
    Text,
    Integer,
}

const fn text(name: &'static str, about: &'static str) -> Argument {
    Argument { name, kind: Kind::Text, about, required: false }
}

const fn integer(name: &'static str, about: &'static str) -> Argument {
    Argument { name, kind: Kind::Integer, about, required: false }
}

impl Argument {
    const fn required(self) -> Argument {
        Argument { required: true, ..self }
    }
}

const RUN: Argument =
    text("run", "The run: its id, its name, project/name, or the beginning of one of these if it fits only one run");
const STEP: Argument = integer("step", "The number of a training step");
const LIMIT: Argument = integer("limit", "How many to show");
const OFFSET: Argument = integer("offset", "How many to skip");

/// A text and where the page shows the same.
pub struct Answer {
    pub text: String,
    pub link: String,
}

/// One call of a tool.
pub struct Call {
    pub source: Source,
    pub page: Page,
    pub arguments: Map<String, Value>,
}

impl Call {
    /// The arguments as the parameters of the HTTP API, which are checked in one place.
    fn pairs(&self) -> Result<Vec<(String, String)>, Problem> {
        let text = |(name, value): (&String, &Value)| match value {
            Value::Null => None,
            Value::String(text) => Some(Ok((name.clone(), text.clone()))),
            Value::Number(_) | Value::Bool(_) => Some(Ok((name.clone(), value.to_string()))),
            _ => Some(Err(Problem::parameter(name, "text or a number"))),
        };
        self.arguments.iter().filter_map(text).collect()
    }

    fn params(&self) -> Result<Params, Problem> {
        Params::from_pairs(self.pairs()?)
    }
}

/// A parameter that must be there.
fn needed(params: &mut Params, name: &'static str, what: &str) -> Result<String, Problem> {
    match params.text(name) {
        Some(text) if !text.is_empty() => Ok(text.to_string()),
        _ => Err(Problem::missing_parameter(name, what)),
    }
}

/// How many to show and how many to skip.
fn page_of(params: &mut Params, usual: usize, most: usize) -> Result<(usize, usize), Problem> {
    let good = format!("an integer from 1 to {most}");
    let limit = params.number("limit", &good)?.unwrap_or(usual);
    if !(1..=most).contains(&limit) {
        return Err(Problem::parameter("limit", good));
    }
    Ok((limit, params.number("offset", "a non-negative integer")?.unwrap_or(0)))
}

impl Tool {
    pub fn find(name: &str) -> Option<&'static Tool> {
        TOOLS.iter().find(|tool| tool.name == name)
    }

    pub fn schema(&self) -> Map<String, Value> {
        let property = |argument: &Argument| {
            let kind = match argument.kind {
                Kind::Text => "string",
                Kind::Integer => "integer",
            };
            (argument.name.to_string(), json!({ "type": kind, "description": argument.about }))
        };
        let properties: Map<String, Value> = self.arguments.iter().map(property).collect();
        let required: Vec<&str> = self.arguments.iter().filter(|a| a.required).map(|a| a.name).collect();
        let schema = json!({
            "type": "object", "properties": properties, "required": required, "additionalProperties": false,
        });
        match schema {
            Value::Object(schema) => schema,
            _ => unreachable!("it is an object"),
        }
    }

    pub async fn call(&self, call: Call) -> Result<Answer, Problem> {
        let known: Vec<&str> = self.arguments.iter().map(|a| a.name).collect();
        if let Some(name) = call.arguments.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(Problem::unknown_parameter(name, &known));
        }
        (self.run)(call).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_described() {
        let mut names: Vec<&str> = TOOLS.iter().map(|tool| tool.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TOOLS.len());
        for tool in TOOLS {
            assert!(tool.about.len() > 40 && tool.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            let schema = tool.schema();
            assert_eq!(schema["properties"].as_object().unwrap().len(), tool.arguments.len(), "{}", tool.name);
        }
    }
}
