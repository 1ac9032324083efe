//! Substrings and regular expressions: no index helps, so the texts themselves are read, those of what the rest of the
//! search leaves. Bounded by the time that a query may take.

use std::collections::HashSet;

use futures::StreamExt;
use regex::{Regex, RegexBuilder};
use rollscope_query::Engine;
use rollscope_search::text::Said;
use rollscope_search::{Node, Request, Search, id_hash};

use crate::problem::Problem;
use crate::query::{sql_text, text_column};

/// Memory that a compiled expression may take.
const MAX_REGEX_BYTES: usize = 1 << 20;

enum Needle {
    Text(String),
    Regex(Regex),
}

impl Needle {
    fn is_in(&self, said: &Said) -> bool {
        said.pieces.iter().any(|piece| match self {
            Needle::Text(text) => piece.text.contains(text.as_str()),
            Needle::Regex(regex) => regex.is_match(&piece.text),
        })
    }
}

/// The conversations that the slow part of a question holds for, among those that the rest of it finds.
pub async fn look(engine: &Engine, search: &Search, request: &Request) -> Result<HashSet<u64>, Problem> {
    let needles = request.search.slow().into_iter().map(needle).collect::<Result<Vec<_>, _>>()?;
    let (index, rest) = (search.clone(), request.clone());
    let candidates = tokio::task::spawn_blocking(move || index.candidates(&rest))
        .await
        .map_err(|e| Problem::internal(e.to_string()))??;
    let mut found = HashSet::new();
    if candidates.is_empty() {
        return Ok(found);
    }
    let filter = match &request.runs {
        Some(runs) => {
            let list: Vec<String> = runs.iter().map(|run| sql_text(run)).collect();
            format!(" where run_id in ({})", list.join(", "))
        }
        None => String::new(),
    };
    let mut running = engine.sql(&format!("select id, messages from conversations{filter}")).await?;
    while let Some(batch) = running.stream.next().await {
        let batch = batch?;
        let (ids, messages) = (text_column(&batch, "id")?, text_column(&batch, "messages")?);
        for (id, messages) in ids.iter().zip(&messages) {
            let (Some(id), Some(messages)) = (id, messages) else { continue };
            let hash = id_hash(id);
            if candidates.contains(&hash) {
                let said = Said::from_messages(messages);
                if needles.iter().all(|needle| needle.is_in(&said)) {
                    found.insert(hash);
                }
            }
        }
        // The texts keep a core busy; others want it too.
        tokio::task::yield_now().await;
    }
    if running.truncated.load(std::sync::atomic::Ordering::Relaxed) {
        return Err(Problem::bad_request(
            "parameter `search`: too many conversations to scan; narrow the search by run, step or words",
        ));
    }
    Ok(found)
}

fn needle(node: &Node) -> Result<Needle, Problem> {
    Ok(match node {
        Node::Regex(pattern) => {
            let built = RegexBuilder::new(pattern).size_limit(MAX_REGEX_BYTES).dfa_size_limit(MAX_REGEX_BYTES).build();
            Needle::Regex(built.map_err(|e| Problem::about("search", format!("parameter `search`: /{pattern}/: {e}")))?)
        }
        Node::Contains(text) => Needle::Text(text.clone()),
        other => unreachable!("{other:?} is not slow"),
    })
}
