//! `rollscope compact`.

use rollscope_store::{Store, StoreOptions};

use crate::args::FolderArgs;
use crate::output::{count, size};
use crate::place;

pub async fn run(args: FolderArgs) -> anyhow::Result<()> {
    place::only_folder(&args.data, "rollscope compact")?;
    let store = Store::open(StoreOptions { delete_grace_s: 0, ..StoreOptions::at(&args.data) }).await?;
    let before = store.stats();
    store.compact().await?;
    let after = store.stats();
    store.close().await?;
    println!(
        "{} rows: merged {} files ({}) into {} ({})",
        count(after.segment_rows),
        count(before.segments),
        size(before.segment_bytes),
        count(after.segments),
        size(after.segment_bytes)
    );
    Ok(())
}
