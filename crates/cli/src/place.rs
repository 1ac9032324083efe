//! What `--data` names: a folder, or a lake on object storage.

use std::path::{Path, PathBuf};

use rollscope_lake::LakeError;
use rollscope_store::{AboutNode, Lake, ReadOnlyStore, Store, StoreOptions};

use crate::args::Role;
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
        Some(url) => ReadOnlyStore::open_lake(lake_for_reading(url, AboutNode::default()).await?).await?,
    })
}

pub async fn lake_for_reading(url: &str, node: AboutNode) -> anyhow::Result<Lake> {
    rollscope_lake::open_for_reading(url, node).await.map_err(told)
}

pub async fn lake_for_writing(url: &str, node: AboutNode) -> anyhow::Result<Lake> {
    rollscope_lake::open(url, node).await.map_err(told)
}

/// Opens a store for writing. `options.dir` is the folder itself or, for a lake, a folder for what can be lost.
pub async fn open(data: &Path, options: StoreOptions, node: Option<&str>) -> anyhow::Result<Store> {
    let Some(url) = lake_url(data) else { return Ok(Store::open(options).await?) };
    let node = AboutNode { name: node_name(node, Role::All), ..AboutNode::default() };
    open_lake(options, lake_for_writing(url, node).await?).await
}

pub async fn open_lake(mut options: StoreOptions, lake: Lake) -> anyhow::Result<Store> {
    let usual = StoreOptions::default();
    if options.flush_age_s == usual.flush_age_s {
        options.flush_age_s = LAKE_FLUSH_AGE_S;
    }
    if options.delete_grace_s == usual.delete_grace_s {
        options.delete_grace_s = LAKE_DELETE_GRACE_S;
    }
    Ok(Store::open_lake(options, lake).await?)
}

/// Two nodes may not have one name, and a machine may have one of each role.
pub fn node_name(given: Option<&str>, role: Role) -> String {
    match (given, role) {
        (Some(name), _) => name.into(),
        (None, Role::All) => host_name(),
        (None, role) => format!("{}-{}", host_name(), role.name()),
    }
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
