//! Functions that make large values from small ones, within the memory that queries may use. DataFusion counts what sorts, joins and
//! groups hold, but not what a function returns: `replace(name, 'a', '...')` with a long literal makes gigabytes of one batch.
//!
//! [`Bounded`] puts a [`Watched`] around each such call when a query is planned. It knows an upper bound of the size before it calls
//! the function, takes that from the pool, and gives back what was not needed. The rest is given back when the result is dropped,
//! because the result owns it. Where the bound is large, the rows are computed in portions. What a call needs besides its result is small,
//! but for regular expressions: [`patterns`] refuses those that are not.

use std::any::Any;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, make_array};
use arrow::buffer::Buffer;
use arrow::compute::concat;
use arrow::compute::kernels::concat_elements::concat_elements_dyn;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue, exec_err};
use datafusion::execution::FunctionRegistry;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::logical_expr::binary::BinaryTypeCoercer;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};

use super::{patterns, udf};

/// Smaller results are not counted: any column of a batch is as large.
const UNCOUNTED_BYTES: usize = 256 << 10;
/// Rows that could become more than this are computed in portions.
const PORTION_BYTES: u64 = 32 << 20;
/// Most bytes of a value that a function makes from literals. It becomes a part of the plan, like a literal of the query.
const MAX_LITERAL_BYTES: usize = 1 << 20;

/// How large the result of a row can be, by the sizes of the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Growth {
    /// So many times the arguments together.
    Sum(u64),
    /// `replace(text, from, to)`
    Replace,
    /// `regexp_replace(text, pattern, to, flags)`
    RegexpReplace,
    /// The second argument and those after it come once for each element of the first, or for each other argument.
    PerElement,
}

const GROWING: &[(&str, Growth)] = &[
    ("array_append", Growth::Sum(1)),
    ("array_concat", Growth::Sum(1)),
    ("array_prepend", Growth::Sum(1)),
    ("array_replace", Growth::PerElement),
    ("array_replace_all", Growth::PerElement),
    ("array_replace_n", Growth::PerElement),
    ("array_to_string", Growth::PerElement),
    ("concat", Growth::Sum(1)),
    ("concat_ws", Growth::PerElement),
    ("encode", Growth::Sum(2)),
    ("make_array", Growth::Sum(1)),
    ("map", Growth::Sum(1)),
    ("named_struct", Growth::Sum(1)),
    ("overlay", Growth::Sum(1)),
    ("regexp_replace", Growth::RegexpReplace),
    ("replace", Growth::Replace),
    ("string_to_array", Growth::Sum(16)),
    ("struct", Growth::Sum(1)),
    ("translate", Growth::Sum(4)),
];

/// Watches the calls of a query.
#[derive(Debug)]
pub struct Bounded(pub Arc<dyn MemoryPool>);

impl FunctionRewrite for Bounded {
    fn name(&self) -> &str {
        "bounded"
    }

    fn rewrite(&self, expr: Expr, schema: &DFSchema, _: &ConfigOptions) -> Result<Transformed<Expr>> {
        patterns::check(&expr)?;
        let watched = |inner: Arc<ScalarUDF>, growth: Growth, args: Vec<Expr>| {
            let function = udf(Watched { inner, growth, pool: self.0.clone() });
            Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(function, args))))
        };
        match expr {
            Expr::ScalarFunction(call) => {
                let growth = GROWING.iter().find(|(name, _)| *name == call.func.name()).map(|(_, growth)| *growth);
                match growth {
                    Some(growth) if !(call.func.inner().as_ref() as &dyn Any).is::<Watched>() => {
                        watched(call.func, growth, call.args)
                    }
                    _ => Ok(Transformed::no(Expr::ScalarFunction(call))),
                }
            }
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::StringConcat, right })
                if !left.get_type(schema).is_ok_and(|kind| kind.is_nested()) =>
            {
                watched(joined_texts(), Growth::Sum(1), vec![*left, *right])
            }
            expr => Ok(Transformed::no(expr)),
        }
    }
}

/// Registers every such function as one whose results are counted: for plans that come from another process, with the names of functions.
pub fn register_bounded(registry: &mut dyn FunctionRegistry, pool: &Arc<dyn MemoryPool>) -> Result<()> {
    let joined = (joined_texts(), Growth::Sum(1));
    let growing: Vec<_> =
        GROWING.iter().filter_map(|(name, growth)| Some((registry.udf(name).ok()?, *growth))).collect();
    for (inner, growth) in growing.into_iter().chain([joined]) {
        registry.register_udf(udf(Watched { inner, growth, pool: pool.clone() }))?;
    }
    Ok(())
}

/// A function whose results are counted.
#[derive(Debug)]
struct Watched {
    inner: Arc<ScalarUDF>,
    growth: Growth,
    pool: Arc<dyn MemoryPool>,
}

impl PartialEq for Watched {
    fn eq(&self, other: &Self) -> bool {
        self.inner == other.inner && self.growth == other.growth
    }
}

impl Eq for Watched {}

impl Hash for Watched {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

/// Everything is the function's own, except that it is not simplified: that would put another function in its place.
impl ScalarUDFImpl for Watched {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        self.inner.schema_name(args)
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        self.inner.return_type(args)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let memory = MemoryConsumer::new(self.inner.name().to_string()).register(&self.pool);
        let sizes: Vec<Sizes> = args.args.iter().map(Sizes::of).collect();
        let bound = |row: usize| self.growth.bound(&sizes, row);
        if args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_))) {
            memory.try_grow(usize::try_from(bound(0)).unwrap_or(usize::MAX))?;
            let made = self.inner.invoke_with_args(args)?;
            return match &made {
                ColumnarValue::Scalar(value) if value.size() > MAX_LITERAL_BYTES + size_of::<ScalarValue>() => {
                    exec_err!(
                        "`{}` makes a value of {} bytes; the limit for a value made from literals is {MAX_LITERAL_BYTES}; shorten \
                     the texts in the query",
                        self.inner.name(),
                        value.size()
                    )
                }
                ColumnarValue::Scalar(_) => Ok(made),
                ColumnarValue::Array(array) => counted(array.clone(), memory).map(ColumnarValue::Array),
            };
        }
        let mut portions: Vec<ArrayRef> = Vec::new();
        let mut begin = 0;
        while begin < args.number_rows {
            let (mut end, mut total) = (begin, 0u64);
            while end < args.number_rows {
                let row = bound(end);
                if end > begin && total.saturating_add(row) > PORTION_BYTES {
                    break;
                }
                total = total.saturating_add(row);
                end += 1;
            }
            // What came before stays counted while this is computed.
            let before = memory.size();
            memory.try_grow(usize::try_from(total).unwrap_or(usize::MAX))?;
            let part = part(&args, begin, end);
            let made = self.inner.invoke_with_args(part)?.into_array(end - begin)?;
            memory.try_resize(before.saturating_add(made.get_array_memory_size()))?;
            portions.push(made);
            begin = end;
        }
        let made = match portions.len() {
            0 => return self.inner.invoke_with_args(args),
            1 => portions.swap_remove(0),
            _ => {
                memory.try_grow(memory.size())?;
                let all: Vec<&dyn Array> = portions.iter().map(|portion| portion.as_ref()).collect();
                concat(&all)?
            }
        };
        drop(portions);
        counted(made, memory).map(ColumnarValue::Array)
    }
}

/// Some rows of the arguments.
fn part(args: &ScalarFunctionArgs, begin: usize, end: usize) -> ScalarFunctionArgs {
    let slice = |arg: &ColumnarValue| match arg {
        ColumnarValue::Array(array) => ColumnarValue::Array(array.slice(begin, end - begin)),
        scalar => scalar.clone(),
    };
    ScalarFunctionArgs {
        args: args.args.iter().map(slice).collect(),
        arg_fields: args.arg_fields.clone(),
        number_rows: end - begin,
        return_field: args.return_field.clone(),
        config_options: args.config_options.clone(),
    }
}

/// The same array, which gives the memory back when it is dropped.
fn counted(array: ArrayRef, memory: MemoryReservation) -> Result<ArrayRef> {
    let size = array.get_array_memory_size();
    if size < UNCOUNTED_BYTES {
        return Ok(array);
    }
    memory.try_resize(size)?;
    let mut memory = Some(memory);
    let data = owning(array.to_data(), &mut memory)?;
    Ok(make_array(data))
}

/// Its first buffer that holds anything owns the memory.
fn owning(data: ArrayData, memory: &mut Option<MemoryReservation>) -> Result<ArrayData> {
    let mut buffers = data.buffers().to_vec();
    let largest = buffers.iter_mut().max_by_key(|buffer| buffer.len()).filter(|buffer| !buffer.is_empty());
    if let Some(buffer) = largest {
        let Some(memory) = memory.take() else { return Ok(data) };
        *buffer = Buffer::from(bytes::Bytes::from_owner(Owner { buffer: buffer.clone(), _memory: memory }));
        return Ok(data.into_builder().buffers(buffers).build()?);
    }
    let children = data.child_data().iter().cloned().map(|child| owning(child, memory)).collect::<Result<Vec<_>>>()?;
    Ok(data.into_builder().child_data(children).build()?)
}

struct Owner {
    buffer: Buffer,
    _memory: MemoryReservation,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

/// The sizes of an argument, by row.
enum Sizes {
    Same { bytes: u64, elements: u64 },
    Each { bytes: Vec<u64>, elements: Vec<u64> },
}

impl Sizes {
    fn of(arg: &ColumnarValue) -> Sizes {
        match arg {
            ColumnarValue::Scalar(value) => match value.try_as_str().flatten() {
                Some(text) => Sizes::Same { bytes: text.len() as u64, elements: 1 },
                None => {
                    let bytes = value.size() as u64;
                    Sizes::Same { bytes, elements: if value.data_type().is_nested() { bytes } else { 1 } }
                }
            },
            ColumnarValue::Array(array) => Sizes::of_array(array),
        }
    }

    fn of_array(array: &ArrayRef) -> Sizes {
        let each = |bytes: &dyn Fn(usize) -> u64| Sizes::Each {
            bytes: (0..array.len()).map(|row| if array.is_null(row) { 0 } else { bytes(row) }).collect(),
            elements: vec![1; array.len()],
        };
        match array.data_type() {
            DataType::Utf8 => each(&|row| array.as_string::<i32>().value_length(row) as u64),
            DataType::LargeUtf8 => each(&|row| array.as_string::<i64>().value_length(row) as u64),
            DataType::Utf8View => each(&|row| u64::from(array.as_string_view().views()[row] as u32)),
            DataType::Binary => each(&|row| array.as_binary::<i32>().value_length(row) as u64),
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                let values = list.values();
                let bytes = (values.get_array_memory_size() / values.len().max(1)) as u64 + 1;
                let elements: Vec<u64> = (0..list.len()).map(|row| list.value_length(row) as u64).collect();
                Sizes::Each { bytes: elements.iter().map(|n| n * bytes).collect(), elements }
            }
            _ => {
                let bytes = (array.get_array_memory_size() / array.len().max(1)) as u64 + 1;
                Sizes::Same { bytes, elements: if array.data_type().is_nested() { bytes } else { 1 } }
            }
        }
    }

    fn bytes(&self, row: usize) -> u64 {
        match self {
            Sizes::Same { bytes, .. } => *bytes,
            Sizes::Each { bytes, .. } => bytes.get(row).copied().unwrap_or(0),
        }
    }

    fn elements(&self, row: usize) -> u64 {
        match self {
            Sizes::Same { elements, .. } => *elements,
            Sizes::Each { elements, .. } => elements.get(row).copied().unwrap_or(0),
        }
    }
}

impl Growth {
    /// At most so many bytes come out of this row.
    fn bound(self, sizes: &[Sizes], row: usize) -> u64 {
        let bytes = |at: usize| sizes.get(at).map_or(0, |size| size.bytes(row));
        let all = || sizes.iter().map(|size| size.bytes(row)).fold(0, u64::saturating_add);
        match self {
            Growth::Sum(times) => all().saturating_mul(times),
            Growth::Replace => {
                let (text, from, to) = (bytes(0), bytes(1), bytes(2));
                let times = text.checked_div(from).unwrap_or(text + 1);
                text.saturating_add(times.saturating_mul(to))
            }
            Growth::RegexpReplace => {
                let (text, to) = (bytes(0), bytes(2));
                // One match, or as many as there are characters. The groups named in `to` are parts of the text, each once.
                let times = if sizes.len() > 3 { text + 1 } else { 1 };
                let groups = (to / 2).saturating_mul(text);
                text.saturating_add(times.saturating_mul(to)).saturating_add(groups)
            }
            Growth::PerElement => {
                let elements = sizes.first().map_or(0, |size| size.elements(row)).max(sizes.len() as u64);
                // A number takes at most so many characters.
                let each = all().saturating_sub(bytes(0)).saturating_add(32);
                bytes(0).saturating_mul(sizes.len() as u64).saturating_add(elements.saturating_mul(each))
            }
        }
    }
}

/// `a || b`, of texts or bytes.
fn joined_texts() -> Arc<ScalarUDF> {
    static FUNCTION: LazyLock<Arc<ScalarUDF>> =
        LazyLock::new(|| udf(JoinedTexts { signature: Signature::user_defined(Volatility::Immutable) }));
    FUNCTION.clone()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct JoinedTexts {
    signature: Signature,
}

impl ScalarUDFImpl for JoinedTexts {
    fn name(&self) -> &str {
        "||"
    }

    /// That of the operator. With another name, a group of `rollup` would not be recognised.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let names: Vec<String> = args.iter().map(|arg| arg.schema_name().to_string()).collect();
        Ok(names.join(" || "))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [left, right] = types else { return exec_err!("|| has two sides") };
        let (left, right) = BinaryTypeCoercer::new(left, &Operator::StringConcat, right).get_input_types()?;
        let plain = |kind: DataType| match kind {
            DataType::Utf8View => DataType::Utf8,
            DataType::BinaryView | DataType::FixedSizeBinary(_) => DataType::Binary,
            kind => kind,
        };
        Ok(vec![plain(left), plain(right)])
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types[0].clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let scalar = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if scalar { 1 } else { args.number_rows };
        let [left, right] = &args.args[..] else { return exec_err!("|| has two sides") };
        let made = concat_elements_dyn(&left.to_array(rows)?, &right.to_array(rows)?)?;
        Ok(match scalar {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&made, 0)?),
            false => ColumnarValue::Array(made),
        })
    }
}
