//! Columns of lists.

use std::ops::Range;

use arrow::array::cast::AsArray;
use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, BooleanArray, ListArray, PrimitiveArray, StringArray};

use super::columns::{Attrs, Column, Counts, Ids, Ints, SmallInts, Text};

/// Where the items of a row are.
fn items_of(list: &ListArray, row: usize) -> Range<usize> {
    let offsets = list.value_offsets();
    offsets[row] as usize..offsets[row + 1] as usize
}

/// Lists of numbers.
pub struct Lists<'a, T: ArrowPrimitiveType> {
    list: &'a ListArray,
    values: &'a PrimitiveArray<T>,
}

impl<'a, T: ArrowPrimitiveType> Column<'a> for Lists<'a, T> {
    const WHAT: &'static str = "lists of such numbers";

    fn of(array: &'a ArrayRef) -> Option<Self> {
        let list = array.as_list_opt::<i32>()?;
        Some(Lists { list, values: list.values().as_primitive_opt()? })
    }
}

impl<'a, T: ArrowPrimitiveType> Lists<'a, T> {
    pub fn get(&self, row: usize) -> Option<&'a [T::Native]> {
        self.list.is_valid(row).then(|| &self.values.values()[items_of(self.list, row)])
    }
}

/// Lists of booleans.
pub struct BoolLists<'a> {
    list: &'a ListArray,
    values: &'a BooleanArray,
}

impl<'a> Column<'a> for BoolLists<'a> {
    const WHAT: &'static str = "lists of booleans";

    fn of(array: &'a ArrayRef) -> Option<Self> {
        let list = array.as_list_opt::<i32>()?;
        Some(BoolLists { list, values: list.values().as_boolean_opt()? })
    }
}

impl<'a> BoolLists<'a> {
    pub fn get(&self, row: usize) -> Option<impl Iterator<Item = bool> + use<'a>> {
        let values = self.values;
        self.list.is_valid(row).then(|| items_of(self.list, row).map(move |at| values.value(at)))
    }
}

/// Lists of texts.
pub struct TextLists<'a> {
    list: &'a ListArray,
    values: &'a StringArray,
}

impl<'a> Column<'a> for TextLists<'a> {
    const WHAT: &'static str = "lists of texts";

    fn of(array: &'a ArrayRef) -> Option<Self> {
        let list = array.as_list_opt::<i32>()?;
        Some(TextLists { list, values: list.values().as_string_opt()? })
    }
}

impl<'a> TextLists<'a> {
    pub fn get(&self, row: usize) -> Option<impl Iterator<Item = &'a str> + use<'a>> {
        let values = self.values;
        self.list.is_valid(row).then(|| items_of(self.list, row).map(move |at| values.value(at)))
    }
}

macro_rules! items {
    ($(#[$doc:meta])* $name:ident, $what:literal, { $($field:ident: $type:ty),+ $(,)? }) => {
        $(#[$doc])*
        pub struct $name<'a> {
            list: &'a ListArray,
            $(pub $field: $type),+
        }

        impl<'a> Column<'a> for $name<'a> {
            const WHAT: &'static str = $what;

            fn of(array: &'a ArrayRef) -> Option<Self> {
                let list = array.as_list_opt::<i32>()?;
                let items = list.values().as_struct_opt()?;
                Some($name { list, $($field: Column::of(items.column_by_name(stringify!($field))?)?),+ })
            }
        }

        impl $name<'_> {
            /// Where those of a row are in the fields.
            pub fn of(&self, row: usize) -> Range<usize> {
                items_of(self.list, row)
            }
        }
    };
}

items!(
    /// Events of spans.
    Events, "events", { time_ns: Ints<'a>, name: Text<'a>, attrs: Attrs<'a>, dropped_attrs: Counts<'a> }
);
items!(
    /// Links of spans.
    Links, "links", {
        trace_id: Ids<'a, 16>, span_id: Ids<'a, 8>, trace_state: Text<'a>, attrs: Attrs<'a>, flags: Counts<'a>,
        dropped_attrs: Counts<'a>,
    }
);
items!(
    /// Consecutive tokens that were produced together.
    Parts, "parts", {
        start: SmallInts<'a>, turn: SmallInts<'a>, engine: Text<'a>, weight_version: Text<'a>, differs_at: SmallInts<'a>,
    }
);
