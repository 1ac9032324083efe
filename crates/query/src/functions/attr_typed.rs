//! `attr_str`, `attr_int`, `attr_num`, `attr_bool`, `attr_json`: an attribute as one type, null if it is missing or of
//! another type. They take several columns before the key: the first column that has the key answers.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, StringBuilder};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExpressionPlacement, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use rollscope_model::attrs;

use super::lookup::{Source, check_source, normalise};
use super::{maps, udf};

/// What an attribute is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum As {
    Str,
    Int,
    Num,
    Bool,
    Json,
}

impl As {
    const ALL: [As; 5] = [As::Str, As::Int, As::Num, As::Bool, As::Json];

    fn function_name(self) -> &'static str {
        match self {
            As::Str => "attr_str",
            As::Int => "attr_int",
            As::Num => "attr_num",
            As::Bool => "attr_bool",
            As::Json => "attr_json",
        }
    }

    pub fn data_type(self) -> DataType {
        match self {
            As::Str | As::Json => DataType::Utf8,
            As::Int => DataType::Int64,
            As::Num => DataType::Float64,
            As::Bool => DataType::Boolean,
        }
    }

    pub fn function(self) -> Arc<ScalarUDF> {
        static FUNCTIONS: LazyLock<[Arc<ScalarUDF>; 5]> = LazyLock::new(|| {
            As::ALL.map(|kind| udf(AttrAs { kind, signature: Signature::variadic_any(Volatility::Immutable) }))
        });
        FUNCTIONS[self as usize].clone()
    }

    /// Reads one key from columns of any form.
    pub fn evaluate(self, columns: &[ArrayRef], key: &str, rows: usize) -> Result<ArrayRef> {
        let columns = columns.iter().map(normalise).collect::<Result<Vec<_>>>()?;
        let sources = columns.iter().map(|c| Source::new(c, key)).collect::<Result<Vec<_>>>()?;
        let get = |row: usize| sources.iter().find_map(|source| source.get(row));
        Ok(match self {
            As::Int => Arc::new((0..rows).map(|row| int(get(row)?)).collect::<Int64Array>()),
            As::Num => Arc::new((0..rows).map(|row| attrs::number(get(row)?)).collect::<Float64Array>()),
            As::Bool => Arc::new((0..rows).map(|row| boolean(get(row)?)).collect::<BooleanArray>()),
            As::Str => {
                let mut out = StringBuilder::with_capacity(rows, rows * 8);
                (0..rows).for_each(|row| out.append_option(get(row).and_then(json_as_text)));
                Arc::new(out.finish())
            }
            As::Json => {
                let mut out = StringBuilder::with_capacity(rows, rows * 8);
                (0..rows).for_each(|row| out.append_option(get(row)));
                Arc::new(out.finish())
            }
        })
    }
}

/// An integer; a double only if it is whole.
fn int(json: &str) -> Option<i64> {
    json.parse().ok().or_else(|| {
        let d = attrs::number(json)?;
        (d.fract() == 0.0 && d.abs() < 9.0e18).then_some(d as i64)
    })
}

fn boolean(json: &str) -> Option<bool> {
    match json {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// Text without quotes; a number that JSON cannot write by its name; everything else as JSON. JSON's null is null.
fn json_as_text(json: &str) -> Option<Cow<'_, str>> {
    match json.as_bytes().first()? {
        b'n' => None,
        b'{' if json.starts_with("{\"$double\":") => attrs::number(json).map(|d| d.to_string().into()),
        _ => Some(attrs::display(json)),
    }
}

pub fn all() -> Vec<Arc<ScalarUDF>> {
    As::ALL.into_iter().map(As::function).collect()
}

/// Splits and checks the arguments of an attribute function: columns, then the key.
pub fn check_args(function: &str, args: &ReturnFieldArgs) -> Result<String> {
    let Some((key, columns)) = args.scalar_arguments.split_last().filter(|(_, columns)| !columns.is_empty()) else {
        return plan_err!("{function} expects an attribute column and a key, as in {function}(end_attrs, 'key')");
    };
    for field in &args.arg_fields[..columns.len()] {
        check_source(function, field.data_type())?;
    }
    match key.and_then(ScalarValue::try_as_str).flatten() {
        Some(key) => Ok(key.to_string()),
        None => plan_err!("the key of {function} must be a text literal, as in {function}(end_attrs, 'key')"),
    }
}

/// Evaluates any attribute function: one array per column, and the key.
pub fn invoke(kind: As, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
    let Some((ColumnarValue::Scalar(key), columns)) = args.args.split_last() else {
        return exec_err!("the key of an attribute function must be a text literal");
    };
    let Some(Some(key)) = key.try_as_str() else {
        return exec_err!("the key of an attribute function must be text");
    };
    let scalar = columns.iter().all(|c| matches!(c, ColumnarValue::Scalar(_)));
    let rows = if scalar { 1 } else { args.number_rows };
    let columns = columns.iter().map(|c| c.to_array(rows)).collect::<Result<Vec<_>>>()?;
    let array = kind.evaluate(&columns, key, rows)?;
    Ok(if scalar {
        ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?)
    } else {
        ColumnarValue::Array(array)
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct AttrAs {
    kind: As,
    signature: Signature,
}

impl ScalarUDFImpl for AttrAs {
    fn name(&self) -> &str {
        self.kind.function_name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("return_field_from_args is used instead")
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        check_args(self.name(), &args)?;
        Ok(Arc::new(Field::new(self.name(), self.kind.data_type(), true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        invoke(self.kind, args)
    }

    /// The parts of merged attributes are searched one after the other, so that nothing has to be merged.
    fn simplify(&self, args: Vec<Expr>, _: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let is_merge = |e: &Expr| matches!(e, Expr::ScalarFunction(f) if f.func.name() == maps::MERGE);
        if !args.iter().any(is_merge) {
            return Ok(ExprSimplifyResult::Original(args));
        }
        let mut flat = Vec::with_capacity(args.len() + 1);
        for arg in args {
            match arg {
                Expr::ScalarFunction(f) if f.func.name() == maps::MERGE => flat.extend(f.args.into_iter().rev()),
                other => flat.push(other),
            }
        }
        Ok(ExprSimplifyResult::Simplified(Expr::ScalarFunction(ScalarFunction::new_udf(self.kind.function(), flat))))
    }

    /// Cheap, and its result is much smaller than its input: read it where the attributes are read.
    fn placement(&self, args: &[ExpressionPlacement]) -> ExpressionPlacement {
        match args.split_last() {
            Some((ExpressionPlacement::Literal, columns))
                if columns
                    .iter()
                    .all(|c| matches!(c, ExpressionPlacement::Column | ExpressionPlacement::MoveTowardsLeafNodes)) =>
            {
                ExpressionPlacement::MoveTowardsLeafNodes
            }
            _ => ExpressionPlacement::KeepInPlace,
        }
    }
}
