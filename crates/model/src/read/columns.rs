//! Columns by what they hold.

use arrow::array::cast::AsArray;
use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, BooleanArray, FixedSizeBinaryArray, Int32Array, MapArray, PrimitiveArray,
    RecordBatch, StringArray,
};
use arrow::datatypes::{Float64Type, Int32Type, Int64Type, UInt32Type};
use arrow::error::ArrowError;

/// A column of a certain type.
pub trait Column<'a>: Sized {
    /// For messages.
    const WHAT: &'static str;

    fn of(array: &'a ArrayRef) -> Option<Self>;
}

/// The column of this name, as the type that the caller wants.
pub fn column<'a, C: Column<'a>>(batch: &'a RecordBatch, name: &str) -> Result<C, ArrowError> {
    let found = batch.column_by_name(name);
    let array = found.ok_or_else(|| ArrowError::SchemaError(format!("there is no column `{name}`")))?;
    C::of(array)
        .ok_or_else(|| ArrowError::SchemaError(format!("column `{name}` is {}, not {}", array.data_type(), C::WHAT)))
}

/// Text, repeated (a dictionary) or not.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    keys: Option<&'a Int32Array>,
    values: &'a StringArray,
}

impl<'a> Column<'a> for Text<'a> {
    const WHAT: &'static str = "text";

    fn of(array: &'a ArrayRef) -> Option<Self> {
        match array.as_dictionary_opt::<Int32Type>() {
            Some(dictionary) => {
                Some(Text { keys: Some(dictionary.keys()), values: dictionary.values().as_string_opt()? })
            }
            None => Some(Text { keys: None, values: array.as_string_opt()? }),
        }
    }
}

impl<'a> Text<'a> {
    pub fn get(&self, row: usize) -> Option<&'a str> {
        match self.keys {
            Some(keys) => keys.is_valid(row).then(|| self.values.value(keys.value(row) as usize)),
            None => self.values.is_valid(row).then(|| self.values.value(row)),
        }
    }

    /// Empty where there is none: for columns that are never null.
    pub fn at(&self, row: usize) -> &'a str {
        self.get(row).unwrap_or_default()
    }

    /// The bytes of every text, end to end: for one quick look whether a word occurs.
    pub fn bytes(&self) -> &'a [u8] {
        self.values.value_data()
    }

    /// Each text once, or more often where nobody took care: for those who ask which there are.
    pub fn distinct(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.values.iter().flatten()
    }

    /// Keys and distinct values, where repeated text is kept once: for those who look at each text once.
    pub fn dictionary(&self) -> Option<(&'a Int32Array, &'a StringArray)> {
        self.keys.map(|keys| (keys, self.values))
    }
}

pub struct Numbers<'a, T: ArrowPrimitiveType>(&'a PrimitiveArray<T>);

// Derived, they would ask the same of `T`.
impl<T: ArrowPrimitiveType> Clone for Numbers<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ArrowPrimitiveType> Copy for Numbers<'_, T> {}

pub type Ints<'a> = Numbers<'a, Int64Type>;
pub type SmallInts<'a> = Numbers<'a, Int32Type>;
pub type Counts<'a> = Numbers<'a, UInt32Type>;
pub type Floats<'a> = Numbers<'a, Float64Type>;

impl<'a, T: ArrowPrimitiveType> Column<'a> for Numbers<'a, T> {
    const WHAT: &'static str = "such numbers";

    fn of(array: &'a ArrayRef) -> Option<Self> {
        array.as_primitive_opt().map(Numbers)
    }
}

impl<'a, T: ArrowPrimitiveType> Numbers<'a, T> {
    pub fn get(&self, row: usize) -> Option<T::Native> {
        self.0.is_valid(row).then(|| self.0.value(row))
    }

    /// For columns that are never null.
    pub fn at(&self, row: usize) -> T::Native {
        self.0.value(row)
    }

    pub fn iter(&self) -> impl Iterator<Item = Option<T::Native>> + use<'a, T> {
        self.0.iter()
    }

    /// All of them at once, for columns that are never null.
    pub fn values(&self) -> &'a [T::Native] {
        self.0.values()
    }
}

#[derive(Clone, Copy)]
pub struct Bools<'a>(&'a BooleanArray);

impl<'a> Column<'a> for Bools<'a> {
    const WHAT: &'static str = "booleans";

    fn of(array: &'a ArrayRef) -> Option<Self> {
        array.as_boolean_opt().map(Bools)
    }
}

impl Bools<'_> {
    pub fn get(&self, row: usize) -> Option<bool> {
        self.0.is_valid(row).then(|| self.0.value(row))
    }
}

/// Ids of `N` bytes.
#[derive(Clone, Copy)]
pub struct Ids<'a, const N: usize>(&'a FixedSizeBinaryArray);

impl<'a, const N: usize> Column<'a> for Ids<'a, N> {
    const WHAT: &'static str = if N == 16 { "trace ids" } else { "span ids" };

    fn of(array: &'a ArrayRef) -> Option<Self> {
        array.as_fixed_size_binary_opt().filter(|ids| ids.value_length() == N as i32).map(Ids)
    }
}

impl<const N: usize> Ids<'_, N> {
    pub fn get(&self, row: usize) -> Option<[u8; N]> {
        self.0.is_valid(row).then(|| self.at(row))
    }

    /// For columns that are never null.
    pub fn at(&self, row: usize) -> [u8; N] {
        self.0.value(row).try_into().expect("the length was checked")
    }
}

/// Attributes: keys, and values as JSON text.
#[derive(Clone, Copy)]
pub struct Attrs<'a> {
    map: &'a MapArray,
    keys: &'a StringArray,
    values: &'a StringArray,
}

impl<'a> Column<'a> for Attrs<'a> {
    const WHAT: &'static str = "attributes";

    fn of(array: &'a ArrayRef) -> Option<Self> {
        let map = array.as_map_opt()?;
        Some(Attrs { map, keys: map.keys().as_string_opt()?, values: map.values().as_string_opt()? })
    }
}

impl<'a> Attrs<'a> {
    pub fn row(&self, row: usize) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let offsets = self.map.value_offsets();
        let (keys, values) = (self.keys, self.values);
        let range = if self.map.is_null(row) { 0..0 } else { offsets[row] as usize..offsets[row + 1] as usize };
        range.map(move |i| (keys.value(i), values.value(i)))
    }

    /// The bytes of every key, end to end: for one quick look whether a word occurs.
    pub fn key_bytes(&self) -> &'a [u8] {
        self.keys.value_data()
    }

    pub fn get(&self, row: usize, key: &str) -> Option<&'a str> {
        self.row(row).find(|(k, _)| *k == key).map(|(_, value)| value)
    }
}
