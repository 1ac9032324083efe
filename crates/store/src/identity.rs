//! Which rows are the same row. The hash of a row's identity columns (`Table::identity`) represents the row: 128 bits,
//! keyed by a secret of this process, so that no sender can make two rows collide on purpose.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use arrow::array::cast::AsArray;
use arrow::array::{Array, ArrayRef, FixedSizeBinaryArray, ListArray, RecordBatch, StringArray, new_null_array};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int32Type, Int64Type};
use rollscope_model::Table;
use rollscope_model::names::state;
use rollscope_model::read::{self, Text};
use rollscope_model::tables::Keep;
use xxhash_rust::xxh3::xxh3_128_with_seed;

static SECRET: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0x726f_6c6c_u64));

/// One hash per row. The batch needs only the identity columns. One that was added later is null in files from before.
pub fn identity_hashes(table: Table, batch: &RecordBatch) -> Vec<u128> {
    let schema = table.schema();
    let column = |name: &&str| {
        let field = schema.field_with_name(name).expect("identity columns are declared");
        let missing = || {
            assert!(field.is_nullable(), "the identity column `{name}` is missing");
            new_null_array(field.data_type(), batch.num_rows())
        };
        batch.column_by_name(name).cloned().unwrap_or_else(missing)
    };
    let columns: Vec<ArrayRef> = table.identity().iter().map(column).collect();
    identity_hashes_of(table, &columns.iter().collect::<Vec<_>>())
}

/// The same over the identity columns themselves, in the order of `Table::identity`.
pub fn identity_hashes_of(table: Table, columns: &[&ArrayRef]) -> Vec<u128> {
    identity_hashes_with(*SECRET, table, columns)
}

/// The secret of this process, for others that compare with its hashes.
pub fn identity_secret() -> u64 {
    *SECRET
}

/// The hashes that a process with this secret has.
pub fn identity_hashes_with(secret: u64, table: Table, columns: &[&ArrayRef]) -> Vec<u128> {
    assert_eq!(columns.len(), table.identity().len(), "all identity columns of {}", table.name());
    row_hashes(columns, secret).collect()
}

/// One hash per row of these columns.
pub(crate) fn row_hashes<'a>(columns: &'a [&ArrayRef], seed: u64) -> impl Iterator<Item = u128> + 'a {
    let mut values: Vec<Values> = columns.iter().map(|column| Values::of(column)).collect();
    let mut key = Vec::with_capacity(96);
    (0..columns[0].len()).map(move |row| {
        key.clear();
        for (column, values) in columns.iter().zip(&mut values) {
            // A tag and a value whose length the column's type or the value itself says: no two different rows give
            // the same bytes.
            if column.is_null(row) {
                key.push(0);
            } else {
                key.push(1);
                values.push(&mut key, row, seed);
            }
        }
        xxh3_128_with_seed(&key, seed)
    })
}

/// The values of a column.
enum Values<'a> {
    Integers(&'a [i64]),
    /// By their bits: every NaN is equal to itself, and a stale marker to no other NaN.
    Floats(&'a [f64]),
    Texts(&'a StringArray),
    Ids(&'a FixedSizeBinaryArray),
    Small(&'a [i32]),
    /// Lists of numbers, by their bits.
    Lists(&'a ListArray),
    /// Text that repeats is hashed once, when it is first met.
    Repeated {
        keys: &'a [i32],
        texts: &'a StringArray,
        hashes: Vec<Option<u128>>,
    },
}

impl<'a> Values<'a> {
    fn of(column: &'a ArrayRef) -> Values<'a> {
        match column.data_type() {
            DataType::Int64 => Values::Integers(column.as_primitive::<Int64Type>().values()),
            DataType::Float64 => Values::Floats(column.as_primitive::<Float64Type>().values()),
            DataType::Utf8 => Values::Texts(column.as_string()),
            DataType::FixedSizeBinary(_) => Values::Ids(column.as_fixed_size_binary()),
            DataType::Int32 => Values::Small(column.as_primitive::<Int32Type>().values()),
            DataType::List(item) if *item.data_type() == DataType::Float32 => Values::Lists(column.as_list()),
            DataType::Dictionary(_, _) => {
                let dict = column.as_dictionary::<Int32Type>();
                let texts = dict.values().as_string::<i32>();
                Values::Repeated { keys: dict.keys().values(), texts, hashes: vec![None; texts.len()] }
            }
            other => unreachable!("columns of type {other} are not hashed"),
        }
    }

    fn push(&mut self, key: &mut Vec<u8>, row: usize, seed: u64) {
        match self {
            Values::Integers(values) => key.extend_from_slice(&values[row].to_le_bytes()),
            Values::Floats(values) => key.extend_from_slice(&values[row].to_bits().to_le_bytes()),
            Values::Texts(values) => {
                let text = values.value(row).as_bytes();
                key.extend_from_slice(&(text.len() as u32).to_le_bytes());
                key.extend_from_slice(text);
            }
            Values::Ids(values) => key.extend_from_slice(values.value(row)),
            Values::Small(values) => key.extend_from_slice(&values[row].to_le_bytes()),
            Values::Lists(lists) => {
                let offsets = lists.value_offsets();
                let (from, to) = (offsets[row] as usize, offsets[row + 1] as usize);
                let numbers = lists.values().as_primitive::<Float32Type>().values().inner();
                let bytes = &numbers.as_slice()[from * size_of::<f32>()..to * size_of::<f32>()];
                key.extend_from_slice(&xxh3_128_with_seed(bytes, seed).to_le_bytes());
            }
            Values::Repeated { keys, texts, hashes } => {
                let at = keys[row] as usize;
                let hash = hashes[at].get_or_insert_with(|| xxh3_128_with_seed(texts.value(at).as_bytes(), seed));
                key.extend_from_slice(&hash.to_le_bytes());
            }
        }
    }
}

/// For tables where a closed row replaces an open one: which rows are open. Empty if none is.
pub(crate) fn open_rows(table: Table, batch: &RecordBatch) -> Vec<bool> {
    if table.keep() != Keep::FirstClosed {
        return Vec::new();
    }
    let states = read::column::<Text>(batch, "state").expect("spans have a state");
    let (keys, values) = states.dictionary().expect("it is declared as a dictionary");
    let open: Vec<bool> = values.iter().map(|v| v == Some(state::OPEN)).collect();
    if !open.contains(&true) {
        return Vec::new();
    }
    let rows: Vec<bool> = keys.values().iter().map(|k| open.get(*k as usize).copied().unwrap_or(false)).collect();
    if rows.contains(&true) { rows } else { Vec::new() }
}

/// A sorted set of identities. They are uniform hashes, so the place of one is computed, not searched.
#[derive(Debug, Default)]
pub(crate) struct IdentitySet {
    sorted: Vec<u128>,
}

impl IdentitySet {
    pub fn new(mut hashes: Vec<u128>) -> IdentitySet {
        hashes.sort_unstable();
        IdentitySet { sorted: hashes }
    }

    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Do both hold the same row?
    pub fn meets(&self, other: &IdentitySet) -> bool {
        let (few, many) = if self.len() < other.len() { (self, other) } else { (other, self) };
        few.sorted.iter().any(|hash| many.contains(*hash))
    }

    pub fn contains(&self, hash: u128) -> bool {
        let n = self.sorted.len();
        if n == 0 {
            return false;
        }
        let high = (hash >> 64) as u64;
        let mut at = ((u128::from(high) * n as u128) >> 64) as usize;
        while at > 0 && self.sorted[at] > hash {
            at -= 1;
        }
        while at < n && self.sorted[at] < hash {
            at += 1;
        }
        at < n && self.sorted[at] == hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_finds_what_it_holds_and_nothing_else() {
        let all: Vec<u128> = (0..5_000u32).map(|i| xxh3_128_with_seed(&i.to_le_bytes(), 7)).collect();
        let set = IdentitySet::new(all[..2_500].to_vec());
        assert!(all[..2_500].iter().all(|h| set.contains(*h)));
        assert!(!all[2_500..].iter().any(|h| set.contains(*h)));
        assert!(!IdentitySet::default().contains(0));
        assert!(IdentitySet::new(vec![u128::MAX, 0]).contains(u128::MAX));
    }
}
