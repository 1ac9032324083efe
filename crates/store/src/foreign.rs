//! Parquet files that somebody else wrote, for importers. They know nothing of Parquet: this crate does.

use std::fs::File;

use arrow::array::RecordBatch;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::error::StoreError;

/// A row group is unpacked column by column: what the footer says that it takes.
pub const MAX_FOREIGN_ROW_GROUP_BYTES: i64 = 2 << 30;
pub const MAX_FOREIGN_COLUMNS: usize = 10_000;
/// Rows of a batch: completions are long.
const BATCH_ROWS: usize = 512;

/// Reads a file, batch by batch.
pub fn read_parquet(file: File) -> Result<impl Iterator<Item = Result<RecordBatch, StoreError>>, StoreError> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(file)?;
    let groups = reader.metadata().row_groups();
    let columns = reader.parquet_schema().num_columns();
    let too_large = |what: String| StoreError::Unreadable(format!("the Parquet file has {what}"));
    if columns > MAX_FOREIGN_COLUMNS {
        return Err(too_large(format!("{columns} columns, more than {MAX_FOREIGN_COLUMNS} (MAX_FOREIGN_COLUMNS)")));
    }
    if let Some(group) = groups.iter().find(|g| g.total_byte_size() > MAX_FOREIGN_ROW_GROUP_BYTES) {
        let (size, limit) = (group.total_byte_size(), MAX_FOREIGN_ROW_GROUP_BYTES);
        return Err(too_large(format!("a row group of {size} bytes, more than {limit} (MAX_FOREIGN_ROW_GROUP_BYTES)")));
    }
    Ok(reader.with_batch_size(BATCH_ROWS).build()?.map(|batch| Ok(batch?)))
}
