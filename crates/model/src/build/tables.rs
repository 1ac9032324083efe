//! Rows of all tables but `spans`.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanBuilder, Float64Builder, Int32Builder, Int64Builder, RecordBatch, StringBuilder};
use arrow::datatypes::{Float32Type, Int32Type};
use arrow::error::ArrowError;

use super::columns::{DictColumn, IdColumn};
use super::lists::{BoolsColumn, NewPart, NumbersColumn, PartsColumn, TextsColumn, rounded};
use crate::ids::{SpanId, TraceId};
use crate::plain::plain_tables;
use crate::tables::Table;

/// Declares a row struct and its builder for a table, in the order of the schema.
macro_rules! builder {
    ($table:ident, $row:ident, $builder:ident, { $($field:ident : $kind:ident),+ $(,)? }) => {
        #[doc = concat!("Named arguments of [`", stringify!($builder), "::push`].")]
        #[derive(Clone, Debug, Default)]
        pub struct $row<'a> { $(pub $field: builder!(@arg $kind 'a)),+ }

        #[derive(Default)]
        pub struct $builder { $($field: builder!(@builder $kind)),+ }

        impl $builder {
            pub fn push(&mut self, row: &$row) {
                $(builder!(@push $kind self.$field, row.$field);)+
            }

            pub fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
                RecordBatch::try_new(Table::$table.schema(), vec![$(builder!(@finish $kind self.$field)),+])
            }
        }
    };
    (@arg dict $l:lifetime) => { &$l str };
    (@arg dict_opt $l:lifetime) => { Option<&$l str> };
    (@arg text $l:lifetime) => { &$l str };
    (@arg text_opt $l:lifetime) => { Option<&$l str> };
    (@arg int $l:lifetime) => { i64 };
    (@arg int_opt $l:lifetime) => { Option<i64> };
    (@arg int32_opt $l:lifetime) => { Option<i32> };
    (@arg float $l:lifetime) => { f64 };
    (@arg float_opt $l:lifetime) => { Option<f64> };
    (@arg int32 $l:lifetime) => { i32 };
    (@arg ints_opt $l:lifetime) => { Option<&$l [i32]> };
    (@arg measured_opt $l:lifetime) => { Option<&$l [f32]> };
    (@arg bools_opt $l:lifetime) => { Option<&$l [bool]> };
    (@arg texts_opt $l:lifetime) => { Option<&$l [&$l str]> };
    (@arg parts $l:lifetime) => { &$l [NewPart<$l>] };
    (@arg bool_opt $l:lifetime) => { Option<bool> };
    (@arg trace_opt $l:lifetime) => { Option<TraceId> };
    (@arg span_opt $l:lifetime) => { Option<SpanId> };
    (@builder dict) => { DictColumn };
    (@builder dict_opt) => { DictColumn };
    (@builder text) => { StringBuilder };
    (@builder text_opt) => { StringBuilder };
    (@builder int) => { Int64Builder };
    (@builder int_opt) => { Int64Builder };
    (@builder int32_opt) => { Int32Builder };
    (@builder float) => { Float64Builder };
    (@builder float_opt) => { Float64Builder };
    (@builder int32) => { Int32Builder };
    (@builder ints_opt) => { NumbersColumn<Int32Type> };
    (@builder measured_opt) => { NumbersColumn<Float32Type> };
    (@builder bools_opt) => { BoolsColumn };
    (@builder texts_opt) => { TextsColumn };
    (@builder parts) => { PartsColumn };
    (@builder bool_opt) => { BooleanBuilder };
    (@builder trace_opt) => { IdColumn<16> };
    (@builder span_opt) => { IdColumn<8> };
    (@push dict $b:expr, $v:expr) => { $b.push($v) };
    (@push dict_opt $b:expr, $v:expr) => { $b.push_opt($v) };
    (@push text $b:expr, $v:expr) => { $b.append_value($v) };
    (@push text_opt $b:expr, $v:expr) => { $b.append_option($v) };
    (@push int $b:expr, $v:expr) => { $b.append_value($v) };
    (@push int_opt $b:expr, $v:expr) => { $b.append_option($v) };
    (@push int32_opt $b:expr, $v:expr) => { $b.append_option($v) };
    (@push float $b:expr, $v:expr) => { $b.append_value($v) };
    (@push float_opt $b:expr, $v:expr) => { $b.append_option($v) };
    (@push int32 $b:expr, $v:expr) => { $b.append_value($v) };
    (@push ints_opt $b:expr, $v:expr) => { $b.push($v, |id| id) };
    (@push measured_opt $b:expr, $v:expr) => { $b.push($v, rounded) };
    (@push bools_opt $b:expr, $v:expr) => { $b.push($v) };
    (@push texts_opt $b:expr, $v:expr) => { $b.push($v) };
    (@push parts $b:expr, $v:expr) => { $b.push($v) };
    (@push bool_opt $b:expr, $v:expr) => { $b.append_option($v) };
    (@push trace_opt $b:expr, $v:expr) => { $b.push_opt($v.as_ref()) };
    (@push span_opt $b:expr, $v:expr) => { $b.push_opt($v.as_ref()) };
    (@finish ints_opt $b:expr) => { $b.finish() };
    (@finish measured_opt $b:expr) => { $b.finish() };
    (@finish bools_opt $b:expr) => { $b.finish() };
    (@finish texts_opt $b:expr) => { $b.finish() };
    (@finish parts $b:expr) => { $b.finish() };
    (@finish dict $b:expr) => { $b.finish() };
    (@finish dict_opt $b:expr) => { $b.finish() };
    (@finish trace_opt $b:expr) => { $b.finish() };
    (@finish span_opt $b:expr) => { $b.finish() };
    (@finish $other:ident $b:expr) => { Arc::new($b.finish()) as ArrayRef };
}

plain_tables!(builder);
