//! From the roots down.

use crate::forest::{Forest, NONE};

/// Children by their parents, in the order of the rows: by start, unless they were read as given.
pub struct Children {
    from: Vec<u32>,
    all: Vec<u32>,
}

impl Children {
    pub fn of_parents(parent: &[u32]) -> Children {
        let mut from = vec![0u32; parent.len() + 1];
        for up in parent.iter().filter(|up| **up != NONE) {
            from[*up as usize + 1] += 1;
        }
        for row in 0..parent.len() {
            from[row + 1] += from[row];
        }
        let mut all = vec![0; from[parent.len()] as usize];
        let mut next = from.clone();
        for (row, up) in parent.iter().enumerate().filter(|(_, up)| **up != NONE) {
            all[next[*up as usize] as usize] = row as u32;
            next[*up as usize] += 1;
        }
        Children { from, all }
    }

    pub fn of(&self, row: usize) -> &[u32] {
        &self.all[self.from[row] as usize..self.from[row + 1] as usize]
    }
}

/// Every span once, parents before children, children by start: the order of a waterfall.
pub struct Walk {
    pub order: Vec<u32>,
    /// By row, not by place in the walk.
    pub depth: Vec<u32>,
    pub children: Children,
}

impl Walk {
    pub fn of(forest: &Forest) -> Walk {
        let children = Children::of_parents(&forest.parent);
        let mut order = Vec::with_capacity(forest.len());
        let mut depth = vec![0; forest.len()];
        let mut waiting: Vec<u32> = Vec::new();
        for root in (0..forest.len()).filter(|row| forest.parent[*row] == NONE) {
            waiting.push(root as u32);
            while let Some(row) = waiting.pop() {
                order.push(row);
                for child in children.of(row as usize).iter().rev() {
                    depth[*child as usize] = depth[row as usize] + 1;
                    waiting.push(*child);
                }
            }
        }
        Walk { order, depth, children }
    }

    /// Every span below this one, parents before children.
    pub fn below(&self, row: usize) -> Vec<u32> {
        let mut found = self.children.of(row).to_vec();
        let mut next = 0;
        while next < found.len() {
            found.extend_from_slice(self.children.of(found[next] as usize));
            next += 1;
        }
        found
    }
}
