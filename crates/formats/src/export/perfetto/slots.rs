//! Which slot of its track a slice is drawn in. Slices of one slot never overlap except when one is the parent of the
//! other and holds it: what Perfetto and Chrome can draw. Slices come in the order of their start.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One slot: what is open in it, outermost first, as (end, slice).
type Stack = Vec<(i64, u32)>;

/// The slots of one track.
#[derive(Default)]
pub struct Slots {
    stacks: Vec<Stack>,
    /// Slots by the end of their outermost slice.
    busy: BinaryHeap<Reverse<(i64, u32)>>,
    free: BinaryHeap<Reverse<u32>>,
}

impl Slots {
    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Room for what has no duration.
    pub fn at_least_one(&mut self) {
        if self.stacks.is_empty() {
            self.stacks.push(Stack::new());
            self.free.push(Reverse(0));
        }
    }

    /// The slot for a slice. `parent` is a slice that was placed in `parent_slot` of this track.
    pub fn place(&mut self, slice: u32, start: i64, end: i64, parent: Option<(u32, u32)>) -> u32 {
        while let Some(Reverse((until, slot))) = self.busy.peek().copied() {
            if until > start {
                break;
            }
            self.busy.pop();
            self.stacks[slot as usize].clear();
            self.free.push(Reverse(slot));
        }
        if let Some((parent, slot)) = parent {
            let stack = &mut self.stacks[slot as usize];
            while stack.last().is_some_and(|(until, open)| *open != parent && *until <= start) {
                stack.pop();
            }
            if stack.last().is_some_and(|(until, open)| *open == parent && end <= *until && start < *until) {
                stack.push((end, slice));
                return slot;
            }
        }
        let slot = match self.free.pop() {
            Some(Reverse(slot)) => slot,
            None => {
                self.stacks.push(Stack::new());
                (self.stacks.len() - 1) as u32
            }
        };
        self.stacks[slot as usize].push((end, slice));
        // A slice without length is over before the next one begins, even at the same time.
        self.busy.push(Reverse((end, slot)));
        slot
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any slices, any parents: in a slot two slices are apart, or one holds the other and is its ancestor.
        #[test]
        fn slices_of_a_slot_are_apart_or_nested(
            mut slices in prop::collection::vec((0i64..60, 0i64..20, any::<prop::sample::Index>(), any::<bool>()), 1..60)
        ) {
            slices.sort_by_key(|(start, length, ..)| (*start, Reverse(*length)));
            let mut slots = Slots::default();
            let mut placed: Vec<(i64, i64, u32, Option<usize>)> = Vec::new();
            for (i, (start, length, parent, child)) in slices.iter().enumerate() {
                let parent = (*child && i > 0).then(|| parent.index(i));
                let of = parent.map(|p| (p as u32, placed[p].2));
                let slot = slots.place(i as u32, *start, start + length, of);
                placed.push((*start, start + length, slot, parent));
            }
            for (i, a) in placed.iter().enumerate() {
                for (j, b) in placed.iter().enumerate().skip(i + 1) {
                    if a.2 != b.2 || b.0 >= a.1 {
                        continue;
                    }
                    prop_assert!(b.1 <= a.1, "{a:?} {b:?} overlap in part");
                    let mut up = placed[j].3;
                    while up.is_some_and(|u| u != i) {
                        up = placed[up.unwrap()].3;
                    }
                    prop_assert_eq!(up, Some(i), "{:?} {:?} nested without being related", a, b);
                }
            }
        }
    }
}
