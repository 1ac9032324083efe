//! Where commits are recorded: in the [journal](crate::journal) of a folder, or in the tables of a [lake](crate::lake).

use std::sync::Arc;

use rollscope_model::Table;

use crate::error::StoreError;
use crate::journal::{COMMITS, Journal, MANIFEST, Unwritten};
use crate::lake::LakeTables;
use crate::manifest::{Commit, Manifest, Uncommitted};
use crate::root::Folder;

pub(crate) enum Commits {
    Folder(Folder, Journal),
    Lake(Box<LakeTables>),
}

impl Commits {
    /// Tables that one commit can change: in a folder all, in a lake one.
    pub fn groups(&self) -> Vec<Vec<Table>> {
        match self {
            Commits::Folder(..) => vec![Table::ALL.to_vec()],
            // What names others goes last: a run that is half deleted can be deleted again.
            Commits::Lake(_) => Table::ALL.iter().rev().map(|table| vec![*table]).collect(),
        }
    }

    /// What can be committed at once.
    pub fn split(&self, commit: Commit) -> Vec<Commit> {
        match self {
            Commits::Folder(..) => vec![commit],
            Commits::Lake(_) => commit.by_table(),
        }
    }

    /// Returns when a commit will survive. `manifest` is what it leads to.
    pub async fn commit(&mut self, commit: Commit, manifest: &Arc<Manifest>) -> Result<(), Uncommitted> {
        match self {
            Commits::Folder(folder, journal) => {
                let next = manifest.clone();
                let written =
                    on_disk(folder, journal, move |folder, journal| journal.commit(folder, commit, &next)).await;
                let written = written.map_err(|error| Uncommitted { error, is_certain: false })?;
                written.map_err(|Unwritten { error, is_certain }| Uncommitted {
                    error: StoreError::io(folder.path(COMMITS), error),
                    is_certain,
                })
            }
            Commits::Lake(tables) => tables.commit(commit, manifest).await,
        }
    }

    /// Brings `manifest.json` up to date, where there is one.
    pub async fn write_manifest(&mut self, manifest: impl FnOnce() -> Manifest) {
        let Commits::Folder(folder, journal) = self else { return };
        if journal.has_commits() {
            let manifest = manifest();
            match on_disk(folder, journal, move |folder, journal| journal.rewrite(folder, &manifest)).await {
                Ok(Ok(())) => {}
                Ok(Err(failed)) => tracing::warn!(error = %failed.error, "cannot write {MANIFEST}"),
                Err(e) => tracing::warn!(error = %e, "cannot write {MANIFEST}"),
            }
        }
    }
}

/// Lets the journal wait for the disk, away from the reactor.
async fn on_disk<T: Send + 'static>(
    folder: &Folder,
    journal: &mut Journal,
    work: impl FnOnce(&Folder, &mut Journal) -> T + Send + 'static,
) -> Result<T, StoreError> {
    let (mut taken, folder) = (std::mem::take(journal), folder.clone());
    let done = tokio::task::spawn_blocking(move || {
        let result = work(&folder, &mut taken);
        (taken, result)
    });
    let (taken, result) = done.await.map_err(|e| StoreError::Busy(e.to_string()))?;
    *journal = taken;
    Ok(result)
}
