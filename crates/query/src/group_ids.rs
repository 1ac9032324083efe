//! Groups by ids as numbers. DataFusion 55 keeps groups of numbers in a plain hash table, and those of bytes with a fixed length as
//! encoded rows, which takes several times as long. Ids are such bytes, and a store has millions of traces.

use std::sync::{Arc, LazyLock};

use arrow::array::cast::AsArray;
use arrow::array::{Array, ArrayRef, Decimal128Array, FixedSizeBinaryArray, PrimitiveArray, UInt64Array};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, ArrowPrimitiveType, DataType, Decimal128Type, UInt64Type};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result, exec_err, plan_err};
use datafusion::logical_expr::logical_plan::Projection;
use datafusion::logical_expr::{
    Aggregate, ColumnarValue, Expr, ExprSchemable, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

/// The bits of a trace id. No digits are ever shown.
const NUMBER_16: DataType = DataType::Decimal128(38, 0);
const NUMBER_8: DataType = DataType::UInt64;

#[derive(Debug)]
pub struct GroupIds;

impl OptimizerRule for GroupIds {
    fn name(&self) -> &str {
        "group_ids"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Aggregate(aggregate) = &plan else { return Ok(Transformed::no(plan)) };
        let is_id = |expr: &Expr| {
            let kind = expr.get_type(aggregate.input.schema());
            matches!((bare(expr), kind), (Expr::Column(_), Ok(DataType::FixedSizeBinary(8 | 16))))
        };
        let ids: Vec<bool> = aggregate.group_expr.iter().map(is_id).collect();
        let sets = aggregate.group_expr.iter().any(|expr| matches!(expr, Expr::GroupingSet(_)));
        if sets || !ids.contains(&true) {
            return Ok(Transformed::no(plan));
        }
        let [number_of, id_of] = functions();
        let number = |(expr, is_id): (&Expr, &bool)| match is_id {
            true => number_of.call(vec![bare(expr).clone()]),
            false => expr.clone(),
        };
        let numbers = aggregate.group_expr.iter().zip(&ids).map(number).collect();
        let grouped = Aggregate::try_new(aggregate.input.clone(), numbers, aggregate.aggr_expr.clone())?;
        let shown = aggregate.schema.iter().enumerate().map(|(at, (qualifier, field))| {
            let inner = Expr::Column(Column::from(grouped.schema.qualified_field(at)));
            match ids.get(at).copied().unwrap_or(false) {
                true => id_of.call(vec![inner]).alias_qualified(qualifier.cloned(), field.name()),
                false => inner,
            }
        });
        let shown = shown.collect();
        let projection = Projection::try_new_with_schema(
            shown,
            Arc::new(LogicalPlan::Aggregate(grouped)),
            aggregate.schema.clone(),
        )?;
        Ok(Transformed::yes(LogicalPlan::Projection(projection)))
    }
}

/// Without the alias that DataFusion gives to what it counts distinct values of.
fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => &alias.expr,
        expr => expr,
    }
}

/// Ids as numbers, and numbers as ids. A process that runs plans of others needs them under their names.
pub fn functions() -> [Arc<ScalarUDF>; 2] {
    static BOTH: LazyLock<[Arc<ScalarUDF>; 2]> = LazyLock::new(|| {
        [("rollscope_id_number", false), ("rollscope_number_id", true)].map(|(name, back)| {
            let signature = Signature::any(1, Volatility::Immutable);
            Arc::new(ScalarUDF::from(Bits { name, back, signature }))
        })
    });
    BOTH.clone()
}

/// The same bits as another type, as a rule without a copy.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Bits {
    name: &'static str,
    /// From a number to an id.
    back: bool,
    signature: Signature,
}

impl ScalarUDFImpl for Bits {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        match (self.back, &args[0]) {
            (true, &NUMBER_16) => Ok(DataType::FixedSizeBinary(16)),
            (true, &NUMBER_8) => Ok(DataType::FixedSizeBinary(8)),
            (false, DataType::FixedSizeBinary(16)) => Ok(NUMBER_16),
            (false, DataType::FixedSizeBinary(8)) => Ok(NUMBER_8),
            (_, other) => plan_err!("an id of 8 or 16 bytes, or its number, not {other}"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let array = args.args[0].to_array(args.number_rows)?;
        let same: ArrayRef = match (self.back, array.data_type()) {
            (true, &NUMBER_16) => Arc::new(bytes_of::<Decimal128Type>(16, &array)?),
            (true, &NUMBER_8) => Arc::new(bytes_of::<UInt64Type>(8, &array)?),
            (false, DataType::FixedSizeBinary(16)) => {
                let numbers: Decimal128Array = numbers_of(array.as_fixed_size_binary());
                Arc::new(numbers.with_data_type(NUMBER_16))
            }
            (false, DataType::FixedSizeBinary(8)) => {
                let numbers: UInt64Array = numbers_of(array.as_fixed_size_binary());
                Arc::new(numbers)
            }
            (_, other) => return exec_err!("an id or its number, not {other}"),
        };
        Ok(ColumnarValue::Array(same))
    }
}

fn bytes_of<T: ArrowPrimitiveType>(size: i32, numbers: &ArrayRef) -> Result<FixedSizeBinaryArray> {
    let numbers = numbers.as_primitive::<T>();
    let bytes = numbers.values().inner().clone();
    Ok(FixedSizeBinaryArray::try_new(size, bytes, numbers.nulls().cloned())?)
}

fn numbers_of<T: ArrowPrimitiveType>(ids: &FixedSizeBinaryArray) -> PrimitiveArray<T> {
    let size = T::Native::get_byte_width();
    let bytes = &ids.value_data()[..ids.len() * size];
    let aligned = match bytes.as_ptr().align_offset(align_of::<T::Native>()) {
        0 => ids.values().clone(),
        _ => Buffer::from(bytes),
    };
    PrimitiveArray::new(ScalarBuffer::new(aligned, 0, ids.len()), ids.nulls().cloned())
}
