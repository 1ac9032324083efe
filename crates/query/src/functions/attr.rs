//! `attr(col, 'key')`: the attribute with the type that the store has seen under this key. The type is chosen while the
//! query is planned, from the snapshot's [`AttrTypes`] and the metadata of the column ([`ATTRS_OF`] names where its
//! attributes come from, through views, aliases and subqueries); the call is then rewritten into `attr_int` and friends,
//! so that a plan shows what it does.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue, internal_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use rollscope_model::Table;
use rollscope_model::attrs::Type;

use super::attr_typed::{As, check_args, invoke};
use super::udf;

/// Field metadata of a column of attributes: where they come from, as `table.column`, several separated by spaces.
pub const ATTRS_OF: &str = "attrs_of";

const NAME: &str = "attr";

/// The types seen under each key, by table and column. Equal if it is the same snapshot.
#[derive(Clone, Debug, Default)]
pub struct AttrTypes(pub Arc<BTreeMap<Table, rollscope_store::AttrTypes>>);

impl PartialEq for AttrTypes {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for AttrTypes {}

impl Hash for AttrTypes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl AttrTypes {
    /// What a key of these columns is read as. Text where types are mixed or nothing is known.
    fn choose<'a>(&self, columns: impl Iterator<Item = &'a Field>, key: &str) -> As {
        let mut bits = 0;
        for field in columns {
            for origin in field.metadata().get(ATTRS_OF).map_or("", String::as_str).split_whitespace() {
                let Some((table, column)) = origin.split_once('.') else { continue };
                let keys = Table::from_name(table).and_then(|t| self.0.get(&t)).and_then(|t| t.get(column));
                bits |= keys.and_then(|keys| keys.get(key)).copied().unwrap_or(0);
            }
        }
        const INT: u8 = Type::Int as u8;
        const NUM: u8 = Type::Int as u8 | Type::Double as u8;
        const BOOL: u8 = Type::Bool as u8;
        match bits {
            0 => As::Str,
            INT => As::Int,
            bits if bits & !NUM == 0 => As::Num,
            BOOL => As::Bool,
            _ => As::Str,
        }
    }
}

pub fn bound(types: AttrTypes) -> Arc<ScalarUDF> {
    udf(Attr { types, signature: Signature::variadic_any(Volatility::Immutable) })
}

/// Without a snapshot every attribute is text.
pub fn unbound() -> Arc<ScalarUDF> {
    bound(AttrTypes::default())
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Attr {
    types: AttrTypes,
    signature: Signature,
}

impl ScalarUDFImpl for Attr {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("return_field_from_args is used instead")
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let key = check_args(NAME, &args)?;
        let columns = args.arg_fields[..args.arg_fields.len() - 1].iter().map(AsRef::as_ref);
        Ok(Arc::new(Field::new(NAME, self.types.choose(columns, &key).data_type(), true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let kind = match args.return_field.data_type() {
            DataType::Int64 => As::Int,
            DataType::Float64 => As::Num,
            DataType::Boolean => As::Bool,
            _ => As::Str,
        };
        invoke(kind, args)
    }
}

/// Turns `attr` into the function of the type it was planned with.
#[derive(Debug)]
pub struct TypeAttr(pub AttrTypes);

impl FunctionRewrite for TypeAttr {
    fn name(&self) -> &str {
        "type_attr"
    }

    fn rewrite(&self, expr: Expr, schema: &DFSchema, _: &ConfigOptions) -> Result<Transformed<Expr>> {
        let Expr::ScalarFunction(call) = &expr else { return Ok(Transformed::no(expr)) };
        let (NAME, Some((Expr::Literal(key, _), columns))) = (call.func.name(), call.args.split_last()) else {
            return Ok(Transformed::no(expr));
        };
        let Some(key) = ScalarValue::try_as_str(key).flatten() else { return Ok(Transformed::no(expr)) };
        let fields = columns.iter().map(|c| Ok(c.to_field(schema)?.1)).collect::<Result<Vec<_>>>()?;
        let kind = self.0.choose(fields.iter().map(AsRef::as_ref), key);
        let call = ScalarFunction::new_udf(kind.function(), call.args.clone());
        Ok(Transformed::yes(Expr::ScalarFunction(call)))
    }
}
