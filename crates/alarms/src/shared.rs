//! In a lake, all nodes look for alarms, and show them. One of those with the same configuration tells the sinks and writes the series
//! ([`rollscope_store::Store::speaker`]). Silences are shared: each is an object, so that two nodes that change them do not meet. What a sink
//! has been told is an object per sink, which whoever speaks next reads.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use rollscope_model::time::now_ns;
use rollscope_store::{SharedFiles, StoreError};
use tokio::sync::Mutex as AsyncMutex;

use crate::kept::Told;
use crate::silences::{Silence, Silences};

const SILENCES: &str = "alarms/silences";
const TOLD: &str = "alarms/told";

pub struct Shared {
    files: SharedFiles,
    /// Of this node: others with the same one know the same sinks by the same names.
    configuration: String,
    state: AsyncMutex<State>,
    /// Held while what was told is written.
    keeping: AsyncMutex<()>,
}

#[derive(Default)]
struct State {
    /// Silences that were read, each of which is written once, and when they end.
    read: HashMap<String, i64>,
    speaks: bool,
}

/// Whether this node speaks now, and what the one before it has told.
pub enum Turn {
    Speaks,
    /// From now on.
    Begins(Vec<Told>),
    /// No longer.
    Ends,
    Listens,
}

fn path_of(id: &str) -> String {
    format!("{SILENCES}/{id}.json")
}

/// Names of sinks are what users wrote.
fn path_of_told(configuration: &str, sink: &str) -> String {
    format!("{TOLD}/{configuration}/{}.json", hex::encode(sink))
}

impl Shared {
    pub fn new(files: SharedFiles, configuration: String) -> Shared {
        Shared { files, configuration, state: AsyncMutex::default(), keeping: AsyncMutex::default() }
    }

    pub async fn add(&self, silence: &Silence) -> Result<(), StoreError> {
        let text = serde_json::to_vec(silence).expect("it is plain data");
        self.files.put(&path_of(&silence.id), text).await
    }

    pub async fn remove(&self, id: &str) -> Result<(), StoreError> {
        self.files.delete(&path_of(id)).await
    }

    /// Takes in what other nodes have changed. `is_speaker`: this node speaks, if it knows what was told.
    pub async fn follow(
        &self,
        silences: &Mutex<Silences>,
        is_speaker: bool,
        sinks: &[String],
    ) -> Result<Turn, StoreError> {
        let mut state = self.state.lock().await;
        let listed = self.files.list(SILENCES).await?;
        let ids: HashSet<&str> =
            listed.iter().filter_map(|path| path.rsplit_once('/')?.1.strip_suffix(".json")).collect();
        for id in &ids {
            if state.read.contains_key(*id) {
                continue;
            }
            let Some(text) = self.files.get(&path_of(id)).await? else { continue };
            let ends = match serde_json::from_slice::<Silence>(&text) {
                Ok(silence) if silence.id == **id => {
                    let (ends, mut silences) = (silence.ends_ns, silences.lock());
                    let is_new = silences.list().iter().all(|known| known.id != silence.id);
                    if is_new && let Err(why) = silences.add(silence) {
                        tracing::warn!(silence = id, why, "a silence of another node is not in force here");
                    }
                    ends
                }
                _ => {
                    tracing::warn!(silence = id, "cannot read a silence; it is not in force");
                    i64::MAX
                }
            };
            state.read.insert(id.to_string(), ends);
        }
        for (id, _) in state.read.extract_if(|id, _| !ids.contains(id.as_str())) {
            silences.lock().remove(&id);
        }
        if is_speaker {
            let now = now_ns();
            for (id, _) in state.read.iter().filter(|(_, ends)| **ends < now) {
                if let Err(error) = self.remove(id).await {
                    tracing::warn!(silence = id, %error, "cannot delete a silence that has ended; trying again");
                }
            }
        }
        let turn = match (state.speaks, is_speaker) {
            (true, true) => Turn::Speaks,
            (false, true) => Turn::Begins(self.told(sinks).await?),
            (true, false) => Turn::Ends,
            (false, false) => Turn::Listens,
        };
        state.speaks = is_speaker;
        Ok(turn)
    }

    async fn told(&self, sinks: &[String]) -> Result<Vec<Told>, StoreError> {
        let mut told = Vec::new();
        for sink in sinks {
            let Some(text) = self.files.get(&path_of_told(&self.configuration, sink)).await? else { continue };
            match serde_json::from_slice::<Vec<Told>>(&text) {
                Ok(of_sink) => told.extend(of_sink),
                Err(error) => tracing::warn!(sink, %error, "cannot read what a sink has been told; it is told again"),
            }
        }
        Ok(told)
    }

    /// One at a time, so that the newest comes last.
    pub async fn keep(&self, told: impl Fn() -> Vec<Told>, sinks: &[String]) -> Result<(), StoreError> {
        let _alone = self.keeping.lock().await;
        let told = told();
        for sink in sinks {
            let of_sink: Vec<&Told> = told.iter().filter(|told| told.sink == *sink).collect();
            let text = serde_json::to_vec(&of_sink).expect("it is plain data");
            self.files.put(&path_of_told(&self.configuration, sink), text).await?;
        }
        Ok(())
    }
}
