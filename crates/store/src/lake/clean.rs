//! Files that no table names: a process was killed between writing and committing them, or before it deleted what it had merged.
//!
//! Nobody may be about to commit such a file, and nobody may still read it. The first holds if its writer has ended: others have fenced it, or
//! it has left. The second holds if it was so when somebody last looked, long ago.

use std::collections::HashSet;

use futures::TryStreamExt;
use object_store::ObjectMeta;
use object_store::path::Path;
use rollscope_model::Table;

use super::{WRITER_ID_LENGTH, nodes};
use crate::error::StoreError;
use crate::root::Root;
use crate::snapshot::SPLIT;

/// What one look has found.
#[derive(Default)]
pub(crate) struct Found {
    /// Files of tables.
    files: Vec<String>,
    /// Beginnings of the names of writers that may commit.
    writers: HashSet<String>,
}

impl Found {
    /// Lists files, then writers. Tables are to be read after that.
    pub async fn look(root: &Root) -> Result<Found, StoreError> {
        let mut files = Vec::new();
        for table in Table::ALL {
            let listed: Vec<ObjectMeta> = root.objects.list(Some(&Path::from(table.name()))).try_collect().await?;
            files.extend(listed.into_iter().map(|file| file.location.to_string()));
        }
        let named = nodes::named(root).await?;
        let writers = named.iter().filter_map(|writer| writer.get(..WRITER_ID_LENGTH)).map(String::from).collect();
        Ok(Found { files, writers })
    }

    /// Paths of files that are there.
    pub fn files(&self) -> HashSet<&str> {
        self.files.iter().map(String::as_str).collect()
    }

    /// Those that no table names and nobody can commit any more.
    pub fn left_over(self, is_live: impl Fn(&str) -> bool) -> HashSet<String> {
        let is_over = |path: &String| {
            let Some((name, writer)) = segment_of(path) else { return false };
            // A split is made of a segment that is committed: where no table names that any more, nobody needs it.
            let may_come = !path.ends_with(SPLIT) && self.writers.contains(writer);
            !may_come && !is_live(&format!("{name}.parquet"))
        };
        self.files.into_iter().filter(is_over).collect()
    }
}

/// The segment that a file is, or is the split of, without `.parquet`, and its writer, in whose name it ends. Everything else is not ours
/// to delete.
fn segment_of(path: &str) -> Option<(&str, &str)> {
    let name = path.strip_suffix(".parquet").or_else(|| path.strip_suffix(SPLIT))?;
    let (_, writer) = name.rsplit_once('-')?;
    (writer.len() == WRITER_ID_LENGTH && writer.bytes().all(|b| b.is_ascii_hexdigit())).then_some((name, writer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_segments_of_writers_that_have_ended_are_left_over() {
        let file = |writer: &str| format!("spans/run=a/00000000000000000001000-1-{writer}.parquet");
        let (ended, lives, live) = (file("00112233aabbccdd"), file("ffffffffffffffff"), file("0000000000000000"));
        let other =
            ["spans/_delta_log/00000000000000000000.json", "spans/run=a/mine.parquet", "spans/run=a/x-y.parquet"];
        let split = |path: &str| path.replace(".parquet", ".index.tar");
        let late = split(&lives);
        let files = [ended.clone(), lives, live.clone(), split(&ended), split(&live), late.clone()];
        let files = files.into_iter().chain(other.map(String::from)).collect();
        let found = Found { files, writers: HashSet::from(["ffffffffffffffff".to_string()]) };
        assert_eq!(found.left_over(|path| path == live), HashSet::from([split(&ended), ended, late]));
    }
}
