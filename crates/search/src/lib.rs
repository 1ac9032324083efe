//! Full-text search over conversations: the only crate that knows tantivy.
//!
//! A [`Follower`] keeps an index beside the store up to date: from snapshots of the store it takes rows that it has not
//! seen ([`follow`]), [`text`] extracts the text of each role from their messages, [`words`] cuts that into words, [`schema`] makes a
//! document of it. A search goes in the other direction: [`query`] reads the language of the search box, [`plan`] turns it into
//! what the index does, [`collect`] walks over what matches once and brings back a page of it, in order, with the count and
//! the facets. The index can always be thrown away: everything in it comes from the store. In a lake, whoever writes a segment puts the index
//! of it beside it ([`split`]), so that others need not read its texts.

mod collect;
mod error;
#[cfg(test)]
mod faults;
mod follow;
mod index;
mod plan;
mod priority;
mod query;
mod schema;
pub mod snippet;
mod split;
mod terms;
pub mod text;
mod words;

pub use collect::{By, Place, Sort};
pub use error::SearchError;
pub use follow::{Follower, Status, catch_up};
pub use index::{
    FACETS, Facet, FacetValue, MAX_LIMIT, MAX_OFFSET, Request, Row, Search, SearchResults, parse_search, parse_sort,
};
pub use query::Node;
pub use schema::{ListedRow, id_hash};
pub use split::Splitter;
