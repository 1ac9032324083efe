//! The part of a conversation that matches a search, cut out for a list.

use serde::Serialize;
use utoipa::ToSchema;

use crate::query::Node;
use crate::text::{Role, Said};
use crate::words::words;

/// Characters before and after the first hit.
const BEFORE: usize = 60;
const AFTER: usize = 160;

/// A cut of text in pieces, every other one being a hit: plain, hit, plain, hit, plain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Snippet {
    /// Number of the message.
    pub message: usize,
    pub role: &'static str,
    pub pieces: Vec<String>,
}

/// The words of a search, ready to be found in texts.
pub struct Needles {
    words: Vec<Needle>,
    exact: Vec<String>,
    roles: Option<Vec<Role>>,
}

struct Needle {
    text: String,
    prefix: bool,
    fuzzy: bool,
}

impl Needles {
    /// `None` if the search has no words.
    pub fn new(search: &Node) -> Option<Needles> {
        let mut needles = Needles { words: Vec::new(), exact: Vec::new(), roles: None };
        if let Node::And(all) = search {
            needles.roles = all.iter().find_map(|n| if let Node::Role(roles) = n { Some(roles.clone()) } else { None });
        }
        for node in search.wanted() {
            match node {
                Node::Phrase(text) => needles.add(text, false, false),
                Node::Prefix(text) => needles.add(text, true, false),
                Node::Fuzzy(text, _) => needles.add(text, false, true),
                Node::Contains(text) => needles.exact.push(text.clone()),
                _ => {}
            }
        }
        (!needles.words.is_empty() || !needles.exact.is_empty()).then_some(needles)
    }

    fn add(&mut self, text: &str, prefix: bool, fuzzy: bool) {
        let all = words(text);
        let last = all.len().saturating_sub(1);
        for (n, word) in all.into_iter().enumerate() {
            self.words.push(Needle { text: word.text, prefix: prefix && n == last, fuzzy });
        }
    }

    fn hits(&self, text: &str) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for needle in &self.exact {
            found.extend(text.match_indices(needle.as_str()).map(|(at, hit)| (at, at + hit.len())));
        }
        if !self.words.is_empty() {
            for word in words(text) {
                let is = self.words.iter().any(|n| match (n.prefix, n.fuzzy) {
                    (true, _) => word.text.starts_with(&n.text),
                    (_, true) => near(&word.text, &n.text),
                    _ => word.text == n.text,
                });
                if is {
                    found.push((word.from, word.to));
                }
            }
        }
        found.sort_unstable();
        // Overlapping hits become one.
        let mut merged: Vec<(usize, usize)> = Vec::new();
        for (from, to) in found {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        merged
    }

    /// The best place: the piece with the most different hits, in the roles of the search.
    pub fn find(&self, said: &Said) -> Option<Snippet> {
        let wanted = |role: &Role| self.roles.as_ref().is_none_or(|roles| roles.contains(role));
        let mut best: Option<Candidate> = None;
        for piece in said.pieces.iter().filter(|p| wanted(&p.role)) {
            let hits = self.hits(&piece.text);
            if hits.is_empty() {
                continue;
            }
            let mut different: Vec<String> = hits.iter().map(|(a, b)| piece.text[*a..*b].to_lowercase()).collect();
            different.sort_unstable();
            different.dedup();
            if best.as_ref().is_none_or(|(count, _, _)| different.len() > *count) {
                best = Some((different.len(), piece, hits));
            }
        }
        let (_, piece, hits) = best?;
        Some(cut(piece.message, piece.role, &piece.text, &hits))
    }
}

/// How many different hits a piece has, the piece, and where they are.
type Candidate<'a> = (usize, &'a crate::text::Piece, Vec<(usize, usize)>);

fn cut(message: usize, role: Role, text: &str, hits: &[(usize, usize)]) -> Snippet {
    let first = hits[0];
    let from = text[..first.0].char_indices().rev().nth(BEFORE).map_or(0, |(at, _)| at);
    let to = text[first.0..].char_indices().nth(AFTER).map_or(text.len(), |(at, _)| first.0 + at);
    let mut pieces = Vec::new();
    let mut at = from;
    for (start, end) in hits.iter().filter(|(_, end)| *end <= to) {
        pieces.push(text[at..*start].to_string());
        pieces.push(text[*start..*end].to_string());
        at = *end;
    }
    pieces.push(text[at.min(to)..to].to_string());
    if from > 0 {
        pieces[0].insert(0, '…');
    }
    if to < text.len() {
        pieces.last_mut().expect("there is a piece").push('…');
    }
    Snippet { message, role: role.name(), pieces }
}

/// At most two letters apart: good enough for a mark.
fn near(a: &str, b: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > 2 {
        return false;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let next = (corner + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            corner = row[j + 1];
            row[j + 1] = next;
        }
    }
    row[b.len()] <= 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::parse;

    #[test]
    fn the_place_of_the_hit_is_cut_out() {
        let said = Said::from_messages(
            &serde_json::json!([
                {"role": "user", "content": "memory of a walk"},
                {"role": "tool", "content": format!("{} CUDA out of memory. Tried", "x ".repeat(100))},
            ])
            .to_string(),
        );
        let find = |q: &str| Needles::new(&parse(q).unwrap()).and_then(|n| n.find(&said));
        let found = find("\"out of memory\"").unwrap();
        assert_eq!((found.message, found.role), (1, "tool"));
        assert_eq!(found.pieces.iter().skip(1).step_by(2).collect::<Vec<_>>(), ["out", "of", "memory"]);
        assert!(found.pieces[0].starts_with('…'));
        assert_eq!(find("role:user memory").unwrap().message, 0);
        assert_eq!(find("mem*").unwrap().message, 0);
        assert_eq!(find("memroy~").unwrap().message, 0);
        assert_eq!(find("step:3"), None);
        assert_eq!(find("absent"), None);
        assert_eq!(find("contains:\"of a\"").unwrap().pieces, ["memory ", "of a", " walk"]);
    }
}
