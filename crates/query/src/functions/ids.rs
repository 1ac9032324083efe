//! Ids as people write them. `trace_id('…')` and `span_id('…')` make an id from text, mapped as importers map it, and are
//! folded while planning, so that bloom filters see a literal. `hex(id)` is the reverse. [`IdText`] makes
//! `trace_id = '…'` and `span_id in ('…', '…')` work without either.

use std::sync::Arc;

use arrow::array::cast::AsArray;
use arrow::array::{Array, ArrayRef, FixedSizeBinaryBuilder, StringArray, StringBuilder};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::sql::sqlparser::ast::BinaryOperator;
use rollscope_model::ids::{span_id_from_text, trace_id_from_text};

use super::udf;

const TRACE_ID: i32 = 16;
const SPAN_ID: i32 = 8;

pub fn trace_id() -> Arc<ScalarUDF> {
    udf(IdFunction { name: "trace_id", size: TRACE_ID, signature: Signature::string(1, Volatility::Immutable) })
}

pub fn span_id() -> Arc<ScalarUDF> {
    udf(IdFunction { name: "span_id", size: SPAN_ID, signature: Signature::string(1, Volatility::Immutable) })
}

pub fn hex() -> Arc<ScalarUDF> {
    udf(Hex { signature: Signature::any(1, Volatility::Immutable) })
}

fn id_from_text(size: i32, text: &str) -> Vec<u8> {
    match size {
        TRACE_ID => trace_id_from_text(text).0.to_vec(),
        _ => span_id_from_text(text).0.to_vec(),
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct IdFunction {
    name: &'static str,
    size: i32,
    signature: Signature,
}

impl ScalarUDFImpl for IdFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::FixedSizeBinary(self.size))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let ColumnarValue::Scalar(scalar) = &args.args[0] {
            let id = scalar.try_as_str().flatten().map(|text| id_from_text(self.size, text));
            return Ok(ColumnarValue::Scalar(ScalarValue::FixedSizeBinary(self.size, id)));
        }
        let texts = cast(&args.args[0].to_array(args.number_rows)?, &DataType::Utf8)?;
        let texts: &StringArray = texts.as_string();
        let mut out = FixedSizeBinaryBuilder::with_capacity(texts.len(), self.size);
        for text in texts {
            match text {
                Some(text) => out.append_value(id_from_text(self.size, text))?,
                None => out.append_null(),
            }
        }
        Ok(ColumnarValue::Array(Arc::new(out.finish())))
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Hex {
    signature: Signature,
}

impl ScalarUDFImpl for Hex {
    fn name(&self) -> &str {
        "hex"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        match &args[0] {
            DataType::FixedSizeBinary(_) | DataType::Binary | DataType::Null => Ok(DataType::Utf8),
            other => plan_err!("hex expects an id (trace_id, span_id) or bytes, not {other}"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let scalar = matches!(args.args[0], ColumnarValue::Scalar(_));
        let array = args.args[0].to_array(if scalar { 1 } else { args.number_rows })?;
        let mut out = StringBuilder::with_capacity(array.len(), array.len() * 32);
        let mut buffer = Vec::new();
        let mut push = |bytes: Option<&[u8]>| -> Result<()> {
            let Some(bytes) = bytes else {
                out.append_null();
                return Ok(());
            };
            buffer.resize(bytes.len() * 2, 0);
            match (hex::encode_to_slice(bytes, &mut buffer), std::str::from_utf8(&buffer)) {
                (Ok(()), Ok(text)) => out.append_value(text),
                _ => return exec_err!("cannot write bytes as hex"),
            }
            Ok(())
        };
        match array.data_type() {
            DataType::FixedSizeBinary(_) => array.as_fixed_size_binary().iter().try_for_each(&mut push)?,
            DataType::Binary => array.as_binary::<i32>().iter().try_for_each(&mut push)?,
            _ => (0..array.len()).try_for_each(|_| push(None))?,
        }
        let array: ArrayRef = Arc::new(out.finish());
        Ok(if scalar {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?)
        } else {
            ColumnarValue::Array(array)
        })
    }
}

/// Comparing an id with text means comparing it with the id in the text.
#[derive(Debug)]
pub struct IdText;

/// The size of the id that an expression is, if it is one.
fn id_size(expr: &Expr, schema: &DFSchema) -> Option<i32> {
    match expr {
        Expr::Literal(_, _) => None,
        _ => match expr.get_type(schema).ok()? {
            DataType::FixedSizeBinary(size @ (TRACE_ID | SPAN_ID)) => Some(size),
            _ => None,
        },
    }
}

fn literal_text(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Literal(value, _) => value.try_as_str().flatten(),
        _ => None,
    }
}

fn literal(size: i32, text: &str) -> Expr {
    Expr::Literal(ScalarValue::FixedSizeBinary(size, Some(id_from_text(size, text))), None)
}

impl ExprPlanner for IdText {
    fn plan_binary_op(&self, expr: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        let op = match expr.op {
            BinaryOperator::Eq => Operator::Eq,
            BinaryOperator::NotEq => Operator::NotEq,
            _ => return Ok(PlannerResult::Original(expr)),
        };
        let sides = match (id_size(&expr.left, schema), id_size(&expr.right, schema)) {
            (Some(size), _) => literal_text(&expr.right).map(|t| (expr.left.clone(), literal(size, t))),
            (_, Some(size)) => literal_text(&expr.left).map(|t| (literal(size, t), expr.right.clone())),
            _ => None,
        };
        Ok(match sides {
            Some((left, right)) => {
                PlannerResult::Planned(Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right))))
            }
            None => PlannerResult::Original(expr),
        })
    }
}

impl FunctionRewrite for IdText {
    fn name(&self) -> &str {
        "id_text"
    }

    fn rewrite(&self, expr: Expr, schema: &DFSchema, _: &ConfigOptions) -> Result<Transformed<Expr>> {
        let Expr::InList(list) = expr else { return Ok(Transformed::no(expr)) };
        let Some(size) = id_size(&list.expr, schema).filter(|_| list.list.iter().any(|e| literal_text(e).is_some()))
        else {
            return Ok(Transformed::no(Expr::InList(list)));
        };
        let values = list.list.into_iter().map(|e| literal_text(&e).map(|t| literal(size, t)).unwrap_or(e)).collect();
        Ok(Transformed::yes(Expr::InList(InList::new(list.expr, values, list.negated))))
    }
}
