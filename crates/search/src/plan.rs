//! Turns a parsed search into a query of the index.

use std::ops::Bound;
use std::sync::Arc;

use tantivy::Term;
use tantivy::query::{
    AllQuery, BooleanQuery, EmptyQuery, FuzzyTermQuery, Occur, PhraseQuery, Query, RangeQuery, TermQuery, TermSetQuery,
};
use tantivy::schema::{Field, IndexRecordOption};

use crate::error::SearchError;
use crate::query::Node;
use crate::schema::Fields;
use crate::terms::{Accepted, Beginning};
use crate::text::Role;
use crate::words::{is_unspaced, words};

type Boxed = Box<dyn Query>;

/// Which fields are searched for words.
struct Scope {
    fields: Vec<Field>,
}

impl Scope {
    fn roles(fields: &Fields, roles: &[Role]) -> Scope {
        Scope { fields: roles.iter().map(|r| fields.said(*r)).collect() }
    }

    fn everywhere(fields: &Fields) -> Scope {
        let mut scope = Scope::roles(fields, &Role::ALL);
        scope.fields.push(fields.about);
        scope
    }
}

pub fn plan(fields: &Fields, node: &Node) -> Result<Boxed, SearchError> {
    build(fields, node, &Scope::everywhere(fields))
}

/// A set of runs: this is how a search is limited to a project.
pub fn one_of_runs(fields: &Fields, runs: &[String]) -> Boxed {
    Box::new(TermSetQuery::new(runs.iter().map(|run| Term::from_field_text(fields.run, run))))
}

pub fn all_of(queries: Vec<Boxed>) -> Boxed {
    match queries.len() {
        0 => Box::new(AllQuery),
        1 => queries.into_iter().next().expect("there is one"),
        _ => Box::new(BooleanQuery::new(queries.into_iter().map(|q| (Occur::Must, q)).collect())),
    }
}

fn one_of(mut queries: Vec<Boxed>) -> Boxed {
    match queries.len() {
        0 => Box::new(EmptyQuery),
        1 => queries.swap_remove(0),
        _ => Box::new(BooleanQuery::union(queries)),
    }
}

fn not(query: Boxed) -> Boxed {
    Box::new(BooleanQuery::new(vec![(Occur::Must, Box::new(AllQuery)), (Occur::MustNot, query)]))
}

fn term(term: Term, scored: bool) -> Boxed {
    Box::new(TermQuery::new(term, if scored { IndexRecordOption::WithFreqs } else { IndexRecordOption::Basic }))
}

fn build(fields: &Fields, node: &Node, scope: &Scope) -> Result<Boxed, SearchError> {
    Ok(match node {
        Node::And(all) => {
            // A role sets the field in which the words next to it are searched.
            let roles: Vec<&Vec<Role>> =
                all.iter().filter_map(|n| if let Node::Role(r) = n { Some(r) } else { None }).collect();
            let inner = roles.first().map(|roles| Scope::roles(fields, roles));
            let scope = inner.as_ref().unwrap_or(scope);
            let parts = all.iter().map(|n| build(fields, n, scope)).collect::<Result<Vec<_>, _>>()?;
            all_of(parts)
        }
        Node::Or(any) => one_of(any.iter().map(|n| build(fields, n, scope)).collect::<Result<Vec<_>, _>>()?),
        Node::Not(inner) => not(build(fields, inner, scope)?),
        Node::Phrase(text) => {
            let words = words(text);
            match words.as_slice() {
                // Nothing but signs: nothing to look for.
                [] => Box::new(AllQuery),
                [one] if is_unspaced(&one.text) && one.text.chars().count() == 1 => prefix(&one.text, scope),
                [one] => each(scope, |field| term(Term::from_field_text(field, &one.text), true)),
                _ => {
                    // A stretch of unspaced text ends in a word of one character, which the text need not end with.
                    let closes = |n: usize| n > 0 && tail_of_stretch(&words[n - 1].text, &words[n].text);
                    let terms: Vec<(usize, &str)> = (0..words.len())
                        .filter(|n| !closes(*n))
                        .map(|n| (words[n].position, words[n].text.as_str()))
                        .collect();
                    match terms.as_slice() {
                        [(_, one)] => each(scope, |field| term(Term::from_field_text(field, one), true)),
                        _ => each(scope, |field| {
                            let terms = terms.iter().map(|(at, w)| (*at, Term::from_field_text(field, w))).collect();
                            Box::new(PhraseQuery::new_with_offset(terms))
                        }),
                    }
                }
            }
        }
        Node::Prefix(text) => {
            let words = words(text);
            match words.as_slice() {
                [] => Box::new(AllQuery),
                [one] => prefix(&one.text, scope),
                [before @ .., last] => {
                    let mut parts: Vec<Boxed> = before
                        .iter()
                        .map(|w| each(scope, |field| term(Term::from_field_text(field, &w.text), true)))
                        .collect();
                    parts.push(prefix(&last.text, scope));
                    all_of(parts)
                }
            }
        }
        Node::Fuzzy(text, distance) => {
            let words = words(text);
            all_of(words.iter().map(|w| near(&w.text, *distance, scope)).collect::<Result<_, _>>()?)
        }
        Node::Role(roles) => {
            one_of(roles.iter().map(|r| term(Term::from_field_text(fields.role, r.name()), false)).collect())
        }
        Node::Name { field, values } => name(fields, field, values),
        Node::Range { field, low, high } => range(fields, field, *low, *high),
        // Looked for in the texts of what the rest finds.
        Node::Contains(_) | Node::Regex(_) => Box::new(AllQuery),
    })
}

/// The one-character word that closes a stretch of unspaced text whose last pair is `pair`.
fn tail_of_stretch(pair: &str, word: &str) -> bool {
    is_unspaced(word) && word.chars().count() == 1 && pair.chars().count() == 2 && pair.ends_with(word)
}

fn each(scope: &Scope, make: impl Fn(Field) -> Boxed) -> Boxed {
    one_of(scope.fields.iter().map(|field| make(*field)).collect())
}

fn prefix(word: &str, scope: &Scope) -> Boxed {
    let beginning = Arc::new(Beginning(word.to_string()));
    each(scope, |field| Box::new(Accepted { field, by: beginning.clone() }))
}

/// Words with up to so many typos.
fn near(word: &str, distance: u8, scope: &Scope) -> Result<Boxed, SearchError> {
    let Some(field) = scope.fields.first() else { return Ok(Box::new(EmptyQuery)) };
    let near = Arc::new(FuzzyTermQuery::new(Term::from_field_text(*field, word), distance, true).automaton()?);
    Ok(each(scope, |field| Box::new(Accepted { field, by: near.clone() })))
}

fn name(fields: &Fields, name: &str, values: &[String]) -> Boxed {
    if let Some(path) = name.strip_prefix("metadata.") {
        let exact = |value: &String| {
            let mut text = Term::from_field_json_path(fields.metadata, path, true);
            text.append_type_and_str(value);
            let mut any = vec![term(text, false)];
            if let Ok(flag) = value.parse::<bool>() {
                let mut truth = Term::from_field_json_path(fields.metadata, path, true);
                truth.append_type_and_fast_value(flag);
                any.push(term(truth, false));
            }
            if let Ok(n) = value.parse::<f64>() {
                any.push(range(fields, name, Some((n, true)), Some((n, true))));
            }
            one_of(any)
        };
        return one_of(values.iter().map(exact).collect());
    }
    let field = fields.name(name).expect("the parser knows the fields");
    let one = |value: &String| -> Boxed {
        match value.strip_suffix('*') {
            Some(stem) => Box::new(Accepted { field, by: Arc::new(Beginning(stem.to_string())) }),
            None => term(Term::from_field_text(field, value), false),
        }
    };
    one_of(values.iter().map(one).collect())
}

fn range(fields: &Fields, name: &str, low: Option<(f64, bool)>, high: Option<(f64, bool)>) -> Boxed {
    let bound = |end: Option<(f64, bool)>, make: &dyn Fn(f64) -> Term| match end {
        None => Bound::Unbounded,
        Some((n, true)) => Bound::Included(make(n)),
        Some((n, false)) => Bound::Excluded(make(n)),
    };
    let (make, low, high): (Box<dyn Fn(f64) -> Term>, _, _) = match name.strip_prefix("metadata.") {
        Some(path) => {
            let path = path.to_string();
            let make = move |n: f64| {
                let mut term = Term::from_field_json_path(fields.metadata, &path, true);
                term.append_type_and_fast_value(n);
                term
            };
            (Box::new(make), low, high)
        }
        None => {
            let (field, float) = fields.number(name).expect("the parser knows the fields");
            if float {
                (Box::new(move |n| Term::from_field_f64(field, n)), low, high)
            } else {
                // Between whole numbers lies nothing: 2.5 from below is 3, from above 2.
                let low = low.map(|(n, counts)| if n.fract() == 0.0 { (n, counts) } else { (n.ceil(), true) });
                let high = high.map(|(n, counts)| if n.fract() == 0.0 { (n, counts) } else { (n.floor(), true) });
                (Box::new(move |n| Term::from_field_i64(field, n as i64)), low, high)
            }
        }
    };
    if low.is_none() && high.is_none() {
        // `reward:*..*`: those that have one.
        return Box::new(RangeQuery::new(Bound::Included(make(f64::MIN)), Bound::Included(make(f64::MAX))));
    }
    Box::new(RangeQuery::new(bound(low, &make), bound(high, &make)))
}
