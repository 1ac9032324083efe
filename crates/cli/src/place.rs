//! What `--data` names: a folder, or a lake on object storage.

use std::path::{Path, PathBuf};

use rollscope_lake::LakeError;
use rollscope_store::{ReadOnlyStore, Store, StoreOptions};

use crate::output::Usage;

/// In a lake, others read the tables: rows get there soon, and files stay longer.
const LAKE_FLUSH_AGE_S: u64 = 30;
const LAKE_DELETE_GRACE_S: u64 = 900;

/// The URL of a lake. `None`: it is a folder.
pub fn lake_url(data: &Path) -> Option<&str> {
    data.to_str().filter(|text| rollscope_lake::is_url(text))
}

fn told(error: LakeError) -> anyhow::Error {
    match error {
        LakeError::Url { .. } => Usage(format!("--data {error}")).into(),
        error => error.into(),
    }
}

pub async fn open_for_reading(data: &Path) -> anyhow::Result<ReadOnlyStore> {
    Ok(match lake_url(data) {
        None => ReadOnlyStore::open(data).await?,
        Some(url) => ReadOnlyStore::open_lake(rollscope_lake::open_for_reading(url).await.map_err(told)?).await?,
    })
}

/// Opens a store for writing. `options.dir` is the folder itself or, for a lake, a folder for what can be lost.
pub async fn open(data: &Path, mut options: StoreOptions, node: Option<&str>) -> anyhow::Result<Store> {
    let Some(url) = lake_url(data) else { return Ok(Store::open(options).await?) };
    let usual = StoreOptions::default();
    if options.flush_age_s == usual.flush_age_s {
        options.flush_age_s = LAKE_FLUSH_AGE_S;
    }
    if options.delete_grace_s == usual.delete_grace_s {
        options.delete_grace_s = LAKE_DELETE_GRACE_S;
    }
    let node = node.map_or_else(host_name, str::to_string);
    let lake = rollscope_lake::open(url, &node).await.map_err(told)?;
    Ok(Store::open_lake(options, lake).await?)
}

pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "node".into() } else { name.trim().to_string() }
}

/// Where this machine keeps what it can make again: the search index of a lake.
pub fn cache_of(url: &str) -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' };
    base.unwrap_or_else(std::env::temp_dir).join("rollscope").join(url.chars().map(safe).collect::<String>())
}

/// A command that can only use a folder says so.
pub fn only_folder(data: &Path, command: &str) -> anyhow::Result<()> {
    match lake_url(data) {
        None => Ok(()),
        Some(url) => Err(Usage(format!(
            "`{command}` works on a folder, not on a lake ({url}); ask a server of the lake instead"
        ))
        .into()),
    }
}
