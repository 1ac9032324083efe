//! Words of the index that an automaton accepts, in one field. It is built once per search, however many fields are looked at.

use std::fmt;
use std::sync::Arc;

use tantivy::query::{AutomatonWeight, EnableScoring, Query, Weight};
use tantivy::schema::Field;
use tantivy_fst::Automaton;

/// A query for them.
pub struct Accepted<A> {
    pub field: Field,
    pub by: Arc<A>,
}

impl<A> Clone for Accepted<A> {
    fn clone(&self) -> Self {
        Accepted { field: self.field, by: self.by.clone() }
    }
}

impl<A> fmt::Debug for Accepted<A> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Accepted").field("field", &self.field).finish_non_exhaustive()
    }
}

impl<A> Query for Accepted<A>
where
    A: Automaton + Send + Sync + 'static,
    A::State: Clone,
{
    fn weight(&self, _: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        Ok(Box::new(AutomatonWeight::<A>::new(self.field, self.by.clone())))
    }
}

/// Accepts what begins with these bytes. A state is how many of them were there.
pub struct Beginning(pub String);

impl Automaton for Beginning {
    type State = Option<usize>;

    fn start(&self) -> Option<usize> {
        Some(0)
    }

    fn is_match(&self, state: &Option<usize>) -> bool {
        *state == Some(self.0.len())
    }

    fn can_match(&self, state: &Option<usize>) -> bool {
        state.is_some()
    }

    fn will_always_match(&self, state: &Option<usize>) -> bool {
        self.is_match(state)
    }

    fn accept(&self, state: &Option<usize>, byte: u8) -> Option<usize> {
        let there = (*state)?;
        match self.0.as_bytes().get(there) {
            None => Some(there),
            Some(wanted) => (*wanted == byte).then_some(there + 1),
        }
    }
}
