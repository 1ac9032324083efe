//! `is_replaced(table, hashes, identity columns...)`: is this row of a segment replaced by a newer one in the live tail?
//! `hashes` is a literal: the secret that they were made with, 8 bytes, and the identities of the replaced rows, 16 bytes each, in order.
//! So the plan carries all it needs, also to another process.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, BooleanArray};
use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use rollscope_model::Table;
use rollscope_store::{identity_hashes_with, identity_secret};

use super::udf;

pub fn is_replaced() -> Arc<ScalarUDF> {
    static FUNCTION: LazyLock<Arc<ScalarUDF>> =
        LazyLock::new(|| udf(IsReplaced { signature: Signature::variadic_any(Volatility::Immutable) }));
    FUNCTION.clone()
}

/// The second argument.
pub fn hashes_literal(hashes: &HashSet<u128>) -> ScalarValue {
    let mut sorted: Vec<u128> = hashes.iter().copied().collect();
    sorted.sort_unstable();
    let secret = identity_secret().to_be_bytes();
    ScalarValue::LargeBinary(Some(secret.into_iter().chain(sorted.into_iter().flat_map(u128::to_be_bytes)).collect()))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct IsReplaced {
    signature: Signature,
}

impl ScalarUDFImpl for IsReplaced {
    fn name(&self) -> &str {
        "is_replaced"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [ColumnarValue::Scalar(table), ColumnarValue::Scalar(ScalarValue::LargeBinary(Some(hashes))), columns @ ..] =
            args.args.as_slice()
        else {
            return exec_err!("is_replaced takes a table, hashes and the identity columns");
        };
        let Some(table) = table.try_as_str().flatten().and_then(Table::from_name) else {
            return exec_err!("is_replaced: no such table");
        };
        let Some((secret, hashes)) = hashes.split_first_chunk() else { return exec_err!("is_replaced: no secret") };
        let (hashes, []) = hashes.as_chunks::<16>() else { return exec_err!("is_replaced: bad hashes") };
        let full = table.schema();
        let names = table.identity();
        if columns.is_empty() || columns.len() != names.len() {
            return exec_err!("is_replaced takes {} identity columns of {}", names.len(), table.name());
        }
        let mut arrays = Vec::with_capacity(names.len());
        for (name, column) in names.iter().zip(columns) {
            let array = column.to_array(args.number_rows)?;
            if *array.data_type() != *full.field_with_name(name)?.data_type() {
                return exec_err!("is_replaced: {name} has type {}", array.data_type());
            }
            arrays.push(array);
        }
        let columns: Vec<&ArrayRef> = arrays.iter().collect();
        let found: BooleanArray = identity_hashes_with(u64::from_be_bytes(*secret), table, &columns)
            .into_iter()
            .map(|hash| Some(hashes.binary_search(&hash.to_be_bytes()).is_ok()))
            .collect();
        Ok(ColumnarValue::Array(Arc::new(found)))
    }
}
