//! Times that overlap.

/// The times during which at least one of these runs, in order.
pub fn union(list: &mut Vec<(i64, i64)>) {
    list.sort_unstable();
    let mut out: Vec<(i64, i64)> = Vec::new();
    for (start, end) in list.drain(..) {
        match out.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => out.push((start, end)),
        }
    }
    *list = out;
}

/// The time of a [`union`].
pub fn length(list: &[(i64, i64)]) -> i64 {
    list.iter().fold(0, |sum: i64, (start, end)| sum.saturating_add(end.saturating_sub(*start)))
}

/// How much of `from..to` these cover. They come by start.
pub fn covered(by_start: impl Iterator<Item = (i64, i64)>, from: i64, to: i64) -> i64 {
    let (mut covered, mut until) = (0, from);
    for (start, end) in by_start {
        let (start, end) = (start.max(until), end.min(to));
        if end > start {
            covered += end - start;
            until = end;
        }
    }
    covered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unions_join_what_overlaps_or_touches() {
        let mut list = vec![(5, 6), (0, 2), (1, 3), (3, 4)];
        union(&mut list);
        assert_eq!(list, [(0, 4), (5, 6)]);
        assert_eq!(length(&list), 5);
    }

    #[test]
    fn what_is_covered_counts_once_and_only_inside() {
        assert_eq!(covered([(-5, 2), (1, 4), (2, 3), (8, 20)].into_iter(), 0, 10), 6);
        assert_eq!(covered(std::iter::empty(), 0, 10), 0);
    }
}
