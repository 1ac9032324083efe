//! The parameters of a search for conversations, read and checked in one place for the API, the command line and the export.

use rollscope_search::{FACETS, MAX_LIMIT, MAX_OFFSET, Node, Place, Request, parse_search, parse_sort};

use crate::params::Params;
use crate::problem::Problem;

/// How many conversations are returned by default.
pub const DEFAULT_LIMIT: usize = 50;

/// A search for [`super::Conversations::list`].
pub struct Ask {
    pub project: Option<String>,
    pub run: Option<String>,
    /// Everything but the runs.
    pub request: Request,
    /// As requested, because a cursor belongs to it.
    pub sort: String,
    pub messages: bool,
    pub snippets: bool,
}

impl Ask {
    /// Reads the parameters of a request. Unknown names are refused.
    pub fn from_params(mut params: Params) -> Result<Ask, Problem> {
        let project = params.text("project").map(str::to_string);
        let run = params.text("run").map(str::to_string);
        let run_id = params.text("run_id").map(str::to_string);
        let search = parse_search(params.text("search").unwrap_or_default())?;
        let mut filters = Vec::new();
        if let Some(step) = params.text("step").map(str::to_string) {
            match parse_search(&format!("step:{step}")) {
                Ok(node @ Node::Range { .. }) => filters.push(node),
                _ => return Err(Problem::parameter("step", "an integer, a range such as 100..120, or <100")),
            }
        }
        for name in ["sample", "group", "status", "key", "source", "tool", "trace"] {
            if let Some(value) = params.text(name) {
                filters.push(Node::Name { field: name.into(), values: vec![value.to_string()] });
            }
        }
        let sort = match params.text("sort") {
            Some(sort) if !sort.is_empty() => sort.to_string(),
            _ => if search.wanted().is_empty() { "-time" } else { "relevance" }.to_string(),
        };
        let order = parse_sort(&sort)?;
        let good = format!("an integer from 0 to {MAX_LIMIT}");
        let limit: usize = params.number("limit", &good)?.unwrap_or(DEFAULT_LIMIT);
        if limit > MAX_LIMIT {
            return Err(Problem::parameter("limit", good));
        }
        let good = format!("an integer from 0 to {MAX_OFFSET}; to go further, pass `next` as `cursor`");
        let offset: usize = params.number("offset", &good)?.unwrap_or(0);
        if offset > MAX_OFFSET {
            return Err(Problem::parameter("offset", good));
        }
        let after = match params.text("cursor") {
            None | Some("") => None,
            Some(text) => Some(parse_cursor(&sort, text)?),
        };
        if after.is_some() && offset > 0 {
            return Err(Problem::parameter("offset", "left out if there is a `cursor`"));
        }
        let facets = match params.text("facets") {
            None | Some("") => Vec::new(),
            Some(text) => text
                .split(',')
                .map(|name| {
                    let known = FACETS.iter().find(|f| **f == name.trim()).copied();
                    known.ok_or_else(|| {
                        Problem::parameter("facets", format!("a comma-separated list of: {}", FACETS.join(", ")))
                    })
                })
                .collect::<Result<Vec<_>, _>>()?,
        };
        let messages = flag(&mut params, "messages", true)?;
        let snippets = flag(&mut params, "snippets", false)?;
        params.done()?;
        let request = Request { search, runs: None, filters, sort: order, limit, offset, after, facets, allowed: None };
        Ok(Ask { project, run: run_id.or(run), request, sort, messages, snippets })
    }

    /// From `name=value` pairs, as the command line has them.
    pub fn from_pairs(pairs: Vec<(String, String)>) -> Result<Ask, Problem> {
        Ask::from_params(Params::from_pairs(pairs)?)
    }
}

fn flag(params: &mut Params, name: &'static str, default: bool) -> Result<bool, Problem> {
    match params.text(name) {
        None => Ok(default),
        Some("true" | "1" | "") => Ok(true),
        Some("false" | "0") => Ok(false),
        Some(_) => Err(Problem::parameter(name, "true or false")),
    }
}

/// Where the next page begins, as text. It is valid for one order only.
pub fn cursor(sort: &str, place: &Place) -> String {
    format!("{sort}~{}", place.to_text())
}

fn parse_cursor(sort: &str, text: &str) -> Result<Place, Problem> {
    let bad = || Problem::parameter("cursor", "the unchanged `next` of a response with the same `sort`");
    let (of, place) = text.rsplit_once('~').ok_or_else(bad)?;
    if of != sort {
        return Err(bad());
    }
    Place::from_text(place).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use rollscope_search::By;

    use super::*;

    fn ask(pairs: &[(&str, &str)]) -> Result<Ask, String> {
        let pairs = pairs.iter().map(|(k, v)| ((*k).to_string(), (*v).to_string())).collect();
        Ask::from_pairs(pairs).map_err(|p| p.detail().to_string())
    }

    #[test]
    fn good_parameters_are_taken_and_bad_ones_named() {
        let good = ask(&[("search", "loss"), ("step", "1..3"), ("limit", "10"), ("facets", "step,status")]).unwrap();
        assert_eq!((good.sort.as_str(), good.request.limit, good.request.filters.len()), ("relevance", 10, 1));
        assert_eq!(ask(&[]).unwrap().sort, "-time");
        assert_eq!(ask(&[("sort", "-metadata.reward")]).unwrap().request.sort.by, By::Metadata("reward".into()));
        for (name, value, says) in [
            ("limit", "-1", "from 0 to 1000"),
            ("limit", "1001", "from 0 to 1000"),
            ("limit", "x", "from 0 to 1000"),
            ("offset", "1e3", "from 0 to"),
            ("sort", "bogus", "one of: relevance, step, reward, time"),
            ("sort", "-metadata.", "metadata.NAME"),
            ("step", "x", "an integer, a range"),
            ("facets", "colour", "a comma-separated list of: step, reward"),
            ("cursor", "abc", "the unchanged `next` of a response"),
            ("cursor", "step~i1.2.3", "the unchanged `next` of a response"),
            ("messages", "maybe", "true or false"),
            ("search", "stpe:3", "unknown field `stpe`"),
            ("serach", "x", "one of: project, run"),
        ] {
            let error = ask(&[(name, value)]).err().unwrap_or_default();
            assert!(error.contains(&format!("`{name}`")) && error.contains(says), "{name}={value}: {error}");
        }
    }
}
