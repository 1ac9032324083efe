//! The texts of tokens, by their ids and the tokenizer of their run.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, ListBuilder, StringArray, StringBuilder};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int32Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use rollscope_model::Table;
use rollscope_tokenizer::Tokenizers;

use super::udf;

pub const TOKEN_TEXTS: &str = "token_texts";

/// `token_texts(run_id, ids)`: a list of texts; null where the run has no tokenizer.
pub fn token_texts(tokenizers: &Tokenizers) -> Arc<ScalarUDF> {
    udf(TokenTexts { tokenizers: tokenizers.clone(), signature: Signature::any(2, Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TokenTexts {
    tokenizers: Tokenizers,
    signature: Signature,
}

/// As the column has it.
fn item() -> Arc<Field> {
    match Table::Tokens.schema().field_with_name("texts").map(|field| field.data_type().clone()) {
        Ok(DataType::List(item)) => item,
        _ => Arc::new(Field::new_list_field(DataType::Utf8, true)),
    }
}

impl ScalarUDFImpl for TokenTexts {
    fn name(&self) -> &str {
        TOKEN_TEXTS
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::List(item()))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let [runs, ids] = args.args.as_slice() else { return exec_err!("token_texts expects a run and a list of ids") };
        let runs = cast(&runs.to_array(rows)?, &DataType::Utf8)?;
        let (runs, ids): (&StringArray, ArrayRef) = (runs.as_string(), ids.to_array(rows)?);
        let Some(ids) = ids.as_list_opt::<i32>() else { return exec_err!("token_texts expects a list of ids") };
        Ok(ColumnarValue::Array(Arc::new(self.texts(runs, ids))))
    }
}

impl TokenTexts {
    fn texts(&self, runs: &StringArray, ids: &ListArray) -> ListArray {
        let mut out = ListBuilder::new(StringBuilder::new()).with_field(item());
        for row in 0..ids.len() {
            let tokenizer = runs.is_valid(row).then(|| self.tokenizers.of_run(runs.value(row))).flatten();
            let (Some(tokenizer), true) = (tokenizer, ids.is_valid(row)) else {
                out.append_null();
                continue;
            };
            let ids = ids.value(row);
            for text in tokenizer.texts(ids.as_primitive::<Int32Type>().values()) {
                out.values().append_value(text);
            }
            out.append(true);
        }
        out.finish()
    }
}
