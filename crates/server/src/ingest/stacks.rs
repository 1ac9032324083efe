//! Requests for the Python stacks of a run's processes. Each process that uses the rollscope package sends something every few
//! seconds and gets them with the response; those of the run answer with a span (`docs/hang.md`).

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use rollscope_model::names::event::STACKS_HEADER;
use rollscope_model::percent;
use rollscope_model::time::now_ns;

/// How long a request is repeated. Processes send at least every few seconds, and answer once.
const REPEATED: Duration = Duration::from_secs(60);
/// Runs that are asked at the same time.
const MAX_RUNS: usize = 16;

#[derive(Debug, Default)]
pub struct StackRequests(Mutex<Vec<Asked>>);

#[derive(Debug)]
struct Asked {
    run: String,
    since: Instant,
    header: HeaderValue,
}

impl StackRequests {
    /// Asks the processes of a run. False: they have been asked within the last minute, or too many runs have been.
    pub fn ask(&self, run: &str) -> bool {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.retain(|asked| asked.since.elapsed() < REPEATED);
        if asked.len() >= MAX_RUNS || asked.iter().any(|asked| asked.run == run) {
            return false;
        }
        // Processes answer what is newer than what they answered last, also after a restart of the server.
        let Ok(header) = HeaderValue::try_from(format!("{} {}", now_ns(), percent(run))) else { return false };
        asked.push(Asked { run: run.to_string(), since: Instant::now(), header });
        true
    }

    pub fn tell(&self, headers: &mut HeaderMap) {
        let asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for asked in asked.iter().filter(|asked| asked.since.elapsed() < REPEATED) {
            headers.append(HeaderName::from_static(STACKS_HEADER), asked.header.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_response_asks_and_a_run_is_asked_once() {
        let requests = StackRequests::default();
        let told = |requests: &StackRequests| {
            let mut headers = HeaderMap::new();
            requests.tell(&mut headers);
            headers.get_all(STACKS_HEADER).iter().map(|v| v.to_str().unwrap().to_string()).collect::<Vec<_>>()
        };
        assert!(told(&requests).is_empty());
        assert!(requests.ask("a b"));
        assert!(!requests.ask("a b"));
        assert!(requests.ask("c"));
        let said = told(&requests);
        assert!(said.len() == 2 && said[0].ends_with(" a%20b") && said[1].ends_with(" c"), "{said:?}");
        assert_eq!(told(&requests), said);
        let more: Vec<bool> = (0..20).map(|n| requests.ask(&format!("run-{n}"))).collect();
        assert_eq!(more.iter().filter(|asked| **asked).count(), MAX_RUNS - 2);
    }
}
