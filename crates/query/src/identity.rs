//! The identity of a row as one number. Stands in for `rollscope_store::identity_hashes` and goes when that is there:
//! the one place to swap.

use std::hash::{DefaultHasher, Hasher};

use arrow::array::RecordBatch;
use arrow::row::{RowConverter, SortField};
use rollscope_model::Table;

/// One hash a row over the columns of `Table::identity`; empty for tables whose rows have no identity.
pub fn identity_hashes(table: Table, batch: &RecordBatch) -> Vec<u128> {
    let columns: Vec<_> = table.identity().iter().filter_map(|name| batch.column_by_name(name).cloned()).collect();
    if columns.is_empty() {
        return Vec::new();
    }
    let fields = columns.iter().map(|c| SortField::new(c.data_type().clone())).collect();
    let rows = RowConverter::new(fields).and_then(|converter| converter.convert_columns(&columns));
    let rows = rows.expect("identity columns have types that can be ordered");
    rows.iter()
        .map(|row| {
            let half = |seed: u8| {
                let mut hasher = DefaultHasher::new();
                hasher.write_u8(seed);
                hasher.write(row.as_ref());
                u128::from(hasher.finish())
            };
            half(0) << 64 | half(1)
        })
        .collect()
}
