//! Background work that must go on as long as the program does. A part that panics is gone for good, so everybody can see
//! it: it is logged, listed by [`Vitals::deaths`] for health checks, and [`Vitals::died`] wakes who ends the program.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures::FutureExt;
use serde::Serialize;
use tokio::sync::watch;
use utoipa::ToSchema;

/// A part that panicked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Death {
    pub part: String,
    /// The message of the panic.
    pub why: String,
}

impl std::fmt::Display for Death {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} has failed ({}); restart rollscope (acknowledged data is on disk)", self.part, self.why)
    }
}

/// A handle; clones share the list.
#[derive(Clone, Debug)]
pub struct Vitals {
    deaths: Arc<watch::Sender<Vec<Death>>>,
}

impl Default for Vitals {
    fn default() -> Self {
        Vitals { deaths: Arc::new(watch::Sender::new(Vec::new())) }
    }
}

impl Vitals {
    /// Starts a thread. It may end; it may not panic.
    pub fn thread(
        &self,
        part: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<std::thread::JoinHandle<()>> {
        let (vitals, name) = (self.clone(), part.to_string());
        std::thread::Builder::new().name(part.into()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                fail_if_asked(&name);
                body();
            }));
            if let Err(panic) = ended {
                vitals.record(name, &*panic);
            }
        })
    }

    /// Starts a task. It may end; it may not panic.
    pub fn task(&self, part: &str, body: impl Future<Output = ()> + Send + 'static) -> tokio::task::JoinHandle<()> {
        let (vitals, name) = (self.clone(), part.to_string());
        tokio::spawn(async move {
            let ended = AssertUnwindSafe(async {
                fail_if_asked(&name);
                body.await;
            });
            if let Err(panic) = ended.catch_unwind().await {
                vitals.record(name, &*panic);
            }
        })
    }

    fn record(&self, part: String, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        let death = Death { part, why: text.unwrap_or("no message").to_string() };
        tracing::error!("{death}");
        self.deaths.send_modify(|deaths| deaths.push(death));
    }

    pub fn deaths(&self) -> Vec<Death> {
        self.deaths.borrow().clone()
    }

    pub fn is_dead(&self, part: &str) -> bool {
        self.deaths.borrow().iter().any(|death| death.part == part)
    }

    /// Returns when a part has died; at once if one has.
    pub async fn died(&self) -> Death {
        let mut deaths = self.deaths.subscribe();
        let seen = deaths.wait_for(|deaths| !deaths.is_empty()).await;
        seen.expect("we hold the sender")[0].clone()
    }
}

/// Tests of the whole program make a part fail by its name. Release builds do not have this.
fn fail_if_asked(part: &str) {
    if cfg!(debug_assertions) && std::env::var("ROLLSCOPE_TEST_PANIC").is_ok_and(|asked| asked == part) {
        panic!("failing because of ROLLSCOPE_TEST_PANIC");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_seen_and_an_end_is_not() {
        let vitals = Vitals::default();
        vitals.thread("ends", || {}).unwrap().join().unwrap();
        vitals.task("ends too", async {}).await.unwrap();
        assert_eq!(vitals.deaths(), []);
        let waits = tokio::spawn({
            let vitals = vitals.clone();
            async move { vitals.died().await }
        });
        vitals.task("task", async { panic!("number {}", 7) }).await.unwrap();
        assert_eq!(waits.await.unwrap(), Death { part: "task".into(), why: "number 7".into() });
        vitals.thread("thread", || panic!("gone")).unwrap().join().unwrap();
        assert!(vitals.is_dead("thread") && vitals.is_dead("task") && !vitals.is_dead("ends"));
        assert_eq!(vitals.died().await.part, "task", "the first one, also for who asks late");
        assert!(vitals.deaths()[1].to_string().contains("thread has failed (gone); restart"));
    }
}
