//! Rows of all tables but `spans`.

use arrow::array::RecordBatch;
use arrow::datatypes::{Float32Type, Int32Type};
use arrow::error::ArrowError;

use super::columns::{Bools, Floats, Ids, Ints, SmallInts, Text, column};
use super::lists::{BoolLists, Lists, Parts, TextLists};
use crate::plain::plain_tables;

macro_rules! reader {
    ($table:ident, $row:ident, $builder:ident, { $($field:ident : $kind:ident),+ $(,)? }) => {
        #[doc = concat!("Every column of the table, as [`", stringify!($builder), "`](crate::build::", stringify!($builder), ") writes them.")]
        pub struct $table<'a> {
            rows: usize,
            $(pub $field: reader!(@column $kind 'a)),+
        }

        impl<'a> $table<'a> {
            pub fn of(batch: &'a RecordBatch) -> Result<Self, ArrowError> {
                Ok($table { rows: batch.num_rows(), $($field: column(batch, stringify!($field))?),+ })
            }

            pub fn len(&self) -> usize {
                self.rows
            }

            pub fn is_empty(&self) -> bool {
                self.rows == 0
            }
        }
    };
    (@column dict $l:lifetime) => { Text<$l> };
    (@column dict_opt $l:lifetime) => { Text<$l> };
    (@column text $l:lifetime) => { Text<$l> };
    (@column text_opt $l:lifetime) => { Text<$l> };
    (@column int $l:lifetime) => { Ints<$l> };
    (@column int_opt $l:lifetime) => { Ints<$l> };
    (@column int32_opt $l:lifetime) => { SmallInts<$l> };
    (@column float $l:lifetime) => { Floats<$l> };
    (@column float_opt $l:lifetime) => { Floats<$l> };
    (@column int32 $l:lifetime) => { SmallInts<$l> };
    (@column ints_opt $l:lifetime) => { Lists<$l, Int32Type> };
    (@column measured_opt $l:lifetime) => { Lists<$l, Float32Type> };
    (@column bools_opt $l:lifetime) => { BoolLists<$l> };
    (@column texts_opt $l:lifetime) => { TextLists<$l> };
    (@column parts $l:lifetime) => { Parts<$l> };
    (@column bool_opt $l:lifetime) => { Bools<$l> };
    (@column trace_opt $l:lifetime) => { Ids<$l, 16> };
    (@column span_opt $l:lifetime) => { Ids<$l, 8> };
}

plain_tables!(reader);
