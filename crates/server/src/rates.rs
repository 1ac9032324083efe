//! How many requests one peer may send per second. Requests without a valid token are counted on their own, so that they do not
//! use up what those with a token may send from the same address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use parking_lot::Mutex;

use crate::config::Limits;

/// A peer that was quiet may send as much at once as in this many seconds.
const BURST_S: f64 = 10.0;
/// Peers that are remembered.
const MAX_PEERS: usize = 16_384;

#[derive(Debug)]
pub struct Rates {
    known: Rate,
    unknown: Rate,
}

impl Rates {
    pub fn new(limits: &Limits) -> Rates {
        Rates {
            known: Rate::new("max_requests_per_peer_s", limits.max_requests_per_peer_s),
            unknown: Rate::new("max_unauthorized_per_peer_s", limits.max_unauthorized_per_peer_s),
        }
    }

    /// Counts a request. If it is one too many, the name and value of the limit.
    pub fn count(&self, peer: IpAddr, known: bool) -> Result<(), (&'static str, u32)> {
        let rate = if known { &self.known } else { &self.unknown };
        if rate.allows(peer, Instant::now()) { Ok(()) } else { Err((rate.limit, rate.per_s)) }
    }
}

#[derive(Debug)]
struct Rate {
    limit: &'static str,
    /// 0: no limit.
    per_s: u32,
    peers: Mutex<HashMap<IpAddr, Bucket>>,
}

/// How many requests a peer may still send, as of a time.
#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Rate {
    fn new(limit: &'static str, per_s: u32) -> Rate {
        Rate { limit, per_s, peers: Mutex::default() }
    }

    fn allows(&self, peer: IpAddr, now: Instant) -> bool {
        if self.per_s == 0 {
            return true;
        }
        let (rate, most) = (f64::from(self.per_s), f64::from(self.per_s) * BURST_S);
        let left = |bucket: &Bucket| (bucket.left + now.duration_since(bucket.at).as_secs_f64() * rate).min(most);
        let mut peers = self.peers.lock();
        if peers.len() >= MAX_PEERS && !peers.contains_key(&peer) {
            // Those who were quiet lose nothing. If nobody was, all begin again.
            peers.retain(|_, bucket| left(bucket) < most);
            if peers.len() >= MAX_PEERS {
                peers.clear();
            }
        }
        let bucket = peers.entry(peer).or_insert(Bucket { left: most, at: now });
        *bucket = Bucket { left: left(bucket), at: now };
        if bucket.left < 1.0 {
            return false;
        }
        bucket.left -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_peer_may_send_a_burst_and_then_so_many_per_second() {
        let rate = Rate::new("limit", 2);
        let (one, other) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let start = Instant::now();
        assert_eq!((0..100).filter(|_| rate.allows(one, start)).count(), 20);
        assert!(rate.allows(other, start));
        let later = start + Duration::from_secs(3);
        assert_eq!((0..100).filter(|_| rate.allows(one, later)).count(), 6);
        assert!((0..100_000).all(|_| Rate::new("off", 0).allows(one, start)));
    }

    #[test]
    fn peers_are_forgotten() {
        let rate = Rate::new("limit", 1);
        let start = Instant::now();
        for i in 0..MAX_PEERS as u32 * 2 {
            rate.allows(IpAddr::from(i.to_be_bytes()), start);
        }
        assert!(rate.peers.lock().len() <= MAX_PEERS);
    }
}
