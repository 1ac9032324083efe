//! Whose time a moment is, where phases run at the same time: the one place that divides time among phases. Every moment
//! counts once, for the claim with the highest rank. n log n in the number of claims.

use std::collections::BTreeSet;

/// A phase runs from `start` to `end`.
#[derive(Clone, Copy, Debug)]
pub struct Claim<R> {
    pub start: i64,
    pub end: i64,
    /// The highest wins; of equal ones the later in the list.
    pub rank: R,
}

/// A stretch of time and whose it is: a place in the list of claims, or nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub start: i64,
    pub end: i64,
    pub winner: Option<usize>,
}

impl Piece {
    pub fn length(&self) -> i64 {
        self.end - self.start
    }
}

/// Divides the time from `from` to `to`. The pieces have no gaps and no overlaps, so they add up exactly.
pub fn divide<R: Ord + Copy>(claims: &[Claim<R>], from: i64, to: i64) -> Vec<Piece> {
    let inside = |at: i64| at.clamp(from, to);
    let mut cuts: Vec<i64> = claims.iter().flat_map(|c| [inside(c.start), inside(c.end)]).chain([from, to]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut starting: Vec<usize> = (0..claims.len()).collect();
    starting.sort_by_key(|i| claims[*i].start);
    let mut ending = starting.clone();
    ending.sort_by_key(|i| claims[*i].end);
    let (mut started, mut ended) = (0, 0);
    let mut open: BTreeSet<(R, usize)> = BTreeSet::new();
    let mut out: Vec<Piece> = Vec::new();
    for cut in cuts.windows(2) {
        while started < starting.len() && inside(claims[starting[started]].start) <= cut[0] {
            let claim = starting[started];
            // What ends before it starts has no time.
            if claims[claim].end > cut[0] {
                open.insert((claims[claim].rank, claim));
            }
            started += 1;
        }
        while ended < ending.len() && claims[ending[ended]].end <= cut[0] {
            open.remove(&(claims[ending[ended]].rank, ending[ended]));
            ended += 1;
        }
        let winner = open.last().map(|(_, i)| *i);
        match out.last_mut() {
            Some(last) if last.winner == winner => last.end = cut[1],
            _ => out.push(Piece { start: cut[0], end: cut[1], winner }),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_rank_has_a_moment_and_gaps_are_nobodys() {
        let claim = |start, end, rank| Claim { start, end, rank };
        let claims = [claim(0, 10, 1), claim(4, 6, 2), claim(8, 12, 0), claim(15, 30, 1)];
        let pieces = divide(&claims, 2, 20);
        let told: Vec<(i64, i64, Option<usize>)> = pieces.iter().map(|p| (p.start, p.end, p.winner)).collect();
        let wanted =
            [(2, 4, Some(0)), (4, 6, Some(1)), (6, 10, Some(0)), (10, 12, Some(2)), (12, 15, None), (15, 20, Some(3))];
        assert_eq!(told, wanted);
        assert_eq!(pieces.iter().map(Piece::length).sum::<i64>(), 18);
        assert_eq!(divide::<u8>(&[], 3, 5), [Piece { start: 3, end: 5, winner: None }]);
    }

    #[test]
    fn what_ends_before_it_starts_has_no_time() {
        let claims = [Claim { start: 5, end: 2, rank: 9 }, Claim { start: 0, end: 10, rank: 1 }];
        assert!(divide(&claims, 0, 10).iter().all(|p| p.winner == Some(1)));
    }
}
