//! Who holds a connection. A connection is a stranger until a request on it was let in. Strangers give way: to any other connection
//! when the server is full, and after `header_timeout_s` in any case. So those who have no token cannot keep out those who have one.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::config::Limits;

/// The peer that a limit per peer is about. Whoever has one IPv6 address has the whole /64.
pub fn peer_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        ip => ip,
    }
}

/// Of the files that the process may open, so many of these parts are for connections.
const PARTS_FOR_CONNECTIONS: (u64, u64) = (3, 4);

/// As many connections as there may be open files, once the process has taken all that the system allows it. A server that runs out
/// of files can neither accept anyone nor write what it accepted.
fn most_connections(wanted: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let files = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    let Some(files) = files else { return wanted };
    let room = usize::try_from(files / PARTS_FOR_CONNECTIONS.1 * PARTS_FOR_CONNECTIONS.0).unwrap_or(usize::MAX).max(1);
    if room < wanted {
        tracing::warn!(
            "max_connections is {room} instead of {wanted}, because the process may open only {files} files (ulimit -n)"
        );
    }
    wanted.min(room)
}

/// What is known of one connection. Requests carry it as an extension.
#[derive(Debug)]
pub struct Connection {
    peer: IpAddr,
    known: AtomicBool,
    running: AtomicUsize,
    idle_since: Mutex<Instant>,
    /// Another connection got its place.
    pub gave_way: CancellationToken,
}

impl Connection {
    pub fn new(peer: IpAddr) -> Arc<Self> {
        Arc::new(Connection {
            peer,
            known: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            idle_since: Mutex::new(Instant::now()),
            gave_way: CancellationToken::new(),
        })
    }

    pub fn peer(&self) -> IpAddr {
        self.peer
    }

    fn is_known(&self) -> bool {
        self.known.load(Relaxed)
    }

    /// A request on it was let in: it keeps its place.
    pub fn know(&self) {
        self.known.store(true, Relaxed);
    }

    /// A request that runs until the returned value is dropped.
    pub fn begin(self: &Arc<Self>) -> Request {
        self.running.fetch_add(1, Relaxed);
        Request(self.clone())
    }

    /// How long it may stay as it is, unless a request comes. None while a request runs.
    pub fn patience(&self, limits: &Limits) -> Option<Duration> {
        if self.running.load(Relaxed) > 0 {
            return None;
        }
        let most = if self.is_known() { limits.idle_timeout_s } else { limits.header_timeout_s };
        Some(Duration::from_secs(most).saturating_sub(self.idle_since.lock().elapsed()))
    }
}

/// A running request, up to the last byte of its response.
#[derive(Debug)]
pub struct Request(Arc<Connection>);

impl Drop for Request {
    fn drop(&mut self) {
        *self.0.idle_since.lock() = Instant::now();
        self.0.running.fetch_sub(1, Relaxed);
    }
}

/// A limit that left no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    pub limit: &'static str,
    pub value: usize,
}

/// All open connections.
#[derive(Debug)]
pub struct Connections {
    most: usize,
    most_per_peer: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    next: u64,
    /// The oldest comes first.
    all: BTreeMap<u64, Arc<Connection>>,
    per_peer: HashMap<IpAddr, usize>,
}

impl Connections {
    pub fn new(limits: &Limits) -> Arc<Self> {
        let most = most_connections(limits.max_connections);
        // With few files, too, one peer does not get all places.
        let share = if most < limits.max_connections { (most / 2).max(1) } else { usize::MAX };
        let most_per_peer = limits.max_connections_per_peer.min(share);
        Arc::new(Connections { most, most_per_peer, held: Mutex::default() })
    }

    /// A place for a new connection, if need be that of the oldest stranger.
    pub fn admit(self: &Arc<Self>, peer: IpAddr) -> Result<Place, Full> {
        let mut held = self.held.lock();
        let of_peer = held.per_peer.get(&peer).copied().unwrap_or(0);
        if of_peer >= self.most_per_peer && !held.give_way(|other| other.peer == peer) {
            return Err(Full { limit: "max_connections_per_peer", value: self.most_per_peer });
        }
        if held.all.len() >= self.most && !held.give_way(|_| true) {
            return Err(Full { limit: "max_connections", value: self.most });
        }
        let id = held.next;
        held.next += 1;
        let connection = Connection::new(peer);
        held.all.insert(id, connection.clone());
        *held.per_peer.entry(peer).or_default() += 1;
        Ok(Place { id, connection, all: self.clone() })
    }
}

impl Held {
    /// Ends the oldest stranger of these. False if there is none.
    fn give_way(&mut self, among: impl Fn(&Connection) -> bool) -> bool {
        let found = self.all.iter().find(|(_, other)| !other.is_known() && among(other));
        match found.map(|(id, _)| *id) {
            Some(id) => {
                self.remove(id);
                true
            }
            None => false,
        }
    }

    fn remove(&mut self, id: u64) {
        let Some(gone) = self.all.remove(&id) else { return };
        gone.gave_way.cancel();
        if let Some(count) = self.per_peer.get_mut(&gone.peer) {
            *count -= 1;
            if *count == 0 {
                self.per_peer.remove(&gone.peer);
            }
        }
    }
}

/// The place of one connection, given back when dropped.
#[derive(Debug)]
pub struct Place {
    id: u64,
    pub connection: Arc<Connection>,
    all: Arc<Connections>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.held.lock().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(most: usize, most_per_peer: usize) -> Arc<Connections> {
        Connections::new(&Limits {
            max_connections: most,
            max_connections_per_peer: most_per_peer,
            ..Limits::default()
        })
    }

    fn ip(text: &str) -> IpAddr {
        peer_of(text.parse().unwrap())
    }

    #[test]
    fn strangers_give_way_and_others_do_not() {
        let places = places(2, 2);
        let (first, second) = (places.admit(ip("10.0.0.1")).unwrap(), places.admit(ip("10.0.0.2")).unwrap());
        first.connection.know();
        let third = places.admit(ip("10.0.0.3")).unwrap();
        assert!(!first.connection.gave_way.is_cancelled() && second.connection.gave_way.is_cancelled());
        third.connection.know();
        let full = places.admit(ip("10.0.0.4")).unwrap_err();
        assert_eq!(full, Full { limit: "max_connections", value: 2 });
        // What gave way does not give its place back a second time.
        drop(second);
        assert!(places.admit(ip("10.0.0.4")).is_err());
        drop(third);
        assert!(places.admit(ip("10.0.0.4")).is_ok());
    }

    #[test]
    fn one_peer_does_not_get_all_places() {
        let places = places(10, 2);
        let held: Vec<Place> = ["2001:db8::1", "2001:db8::2"].map(|a| places.admit(ip(a)).unwrap()).into();
        held.iter().for_each(|p| p.connection.know());
        let full = places.admit(ip("2001:db8::3")).unwrap_err();
        assert_eq!(full, Full { limit: "max_connections_per_peer", value: 2 });
        assert!(places.admit(ip("2001:db8:0:1::3")).is_ok());
        assert_eq!(ip("::ffff:10.0.0.1"), ip("10.0.0.1"));
    }

    #[test]
    fn a_request_that_runs_has_time() {
        let limits = Limits { header_timeout_s: 5, idle_timeout_s: 50, ..Limits::default() };
        let connection = Connection::new(ip("::1"));
        assert!(connection.patience(&limits).unwrap() <= Duration::from_secs(5));
        let request = connection.begin();
        assert_eq!(connection.patience(&limits), None);
        connection.know();
        drop(request);
        assert!(connection.patience(&limits).unwrap() > Duration::from_secs(5));
    }
}
