//! Tensors, storages and arrays, as described in the file. Their elements are read on demand.

use std::borrow::Cow;

use super::Torch;
use super::limits;
use super::value::{Tag, Value};

/// What a pickle has beside plain values.
#[derive(Clone, Debug)]
pub enum Extra {
    Storage(Storage),
    Tensor(Tensor),
    Array(Array),
    NumpyDtype {
        code: Value,
        order: u8,
    },
    NumpyScalar {
        dtype: Value,
        data: Value,
    },
    /// Bytes that were written as text, one character per byte.
    Latin1(Value),
    Complex(f64, f64),
    /// A date: what `str()` shows.
    Text(Box<str>),
    /// A path, a device: what `str()` shows is joined on demand, since its parts may be shared by many.
    Joined {
        parts: Value,
        separator: &'static str,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct Storage {
    pub dtype: Dtype,
    pub key: Value,
    pub numel: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    pub storage: Value,
    pub offset: u64,
    pub size: Value,
    pub stride: Value,
    /// Where it is not the storage's.
    pub dtype: Option<Dtype>,
}

#[derive(Clone, Copy, Debug)]
pub struct Array {
    pub dtype: Value,
    pub shape: Value,
    pub fortran: bool,
    pub data: Value,
}

impl Array {
    pub const EMPTY: Array = Array { dtype: Value::NONE, shape: Value::NONE, fortran: false, data: Value::NONE };
}

macro_rules! dtypes {
    ($($variant:ident $torch:literal $storage:literal $size:literal),+ $(,)?) => {
        /// Type of an element, by torch's names.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Dtype { $($variant),+ }

        impl Dtype {
            /// `float32`, `bfloat16`, ...
            pub fn name(self) -> &'static str {
                match self { $(Dtype::$variant => $torch),+ }
            }

            pub fn size(self) -> usize {
                match self { $(Dtype::$variant => $size),+ }
            }

            pub(super) fn of_torch(name: &str) -> Option<Dtype> {
                match name { $($torch => Some(Dtype::$variant),)+ _ => None }
            }

            pub(super) fn of_storage(name: &str) -> Option<Dtype> {
                match name { $($storage => Some(Dtype::$variant),)+ "UntypedStorage" => Some(Dtype::U8), _ => None }
            }
        }
    };
}

dtypes! {
    F64 "float64" "DoubleStorage" 8,
    F32 "float32" "FloatStorage" 4,
    F16 "float16" "HalfStorage" 2,
    BF16 "bfloat16" "BFloat16Storage" 2,
    I64 "int64" "LongStorage" 8,
    I32 "int32" "IntStorage" 4,
    I16 "int16" "ShortStorage" 2,
    I8 "int8" "CharStorage" 1,
    U8 "uint8" "ByteStorage" 1,
    U16 "uint16" "UInt16Storage" 2,
    U32 "uint32" "UInt32Storage" 4,
    U64 "uint64" "UInt64Storage" 8,
    Bool "bool" "BoolStorage" 1,
    C32 "complex32" "ComplexHalfStorage" 4,
    C64 "complex64" "ComplexFloatStorage" 8,
    C128 "complex128" "ComplexDoubleStorage" 16,
    QI8 "qint8" "QInt8Storage" 1,
    QU8 "quint8" "QUInt8Storage" 1,
    QI32 "qint32" "QInt32Storage" 4,
    F8E4M3 "float8_e4m3fn" "Float8_e4m3fnStorage" 1,
    F8E5M2 "float8_e5m2" "Float8_e5m2Storage" 1,
    F8E4M3Z "float8_e4m3fnuz" "Float8_e4m3fnuzStorage" 1,
    F8E5M2Z "float8_e5m2fnuz" "Float8_e5m2fnuzStorage" 1,
    F8E8M0 "float8_e8m0fnu" "Float8_e8m0fnuStorage" 1,
}

/// One element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Int(i64),
    Unsigned(u64),
    Float(f64),
    Bool(bool),
    Complex(f64, f64),
}

impl Number {
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Int(i) => i as f64,
            Number::Unsigned(u) => u as f64,
            Number::Float(f) => f,
            Number::Bool(b) => f64::from(u8::from(b)),
            Number::Complex(re, _) => re,
        }
    }

    pub fn as_i64(self) -> Option<i64> {
        match self {
            Number::Int(i) => Some(i),
            Number::Unsigned(u) => i64::try_from(u).ok(),
            Number::Bool(b) => Some(b.into()),
            _ => None,
        }
    }
}

fn f16(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    sign * match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
    }
}

/// Eight-bit floats: exponent bits, bias, whether the all-ones exponent means infinity.
fn f8(bits: u8, exponent_bits: u32, bias: i32, dtype: Dtype) -> f64 {
    let fraction_bits = 7 - exponent_bits;
    let fraction_mask = (1u8 << fraction_bits) - 1;
    let sign = if bits >> 7 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from((bits & 0x7f) >> fraction_bits), bits & fraction_mask);
    let unsigned_zero = matches!(dtype, Dtype::F8E4M3Z | Dtype::F8E5M2Z);
    if unsigned_zero && bits == 0x80 || dtype == Dtype::F8E4M3 && bits & 0x7f == 0x7f {
        return f64::NAN;
    }
    if dtype == Dtype::F8E5M2 && exponent == 31 {
        return if fraction == 0 { sign * f64::INFINITY } else { f64::NAN };
    }
    let scale = 2f64.powi(-(fraction_bits as i32));
    sign * match exponent {
        0 => f64::from(fraction) * scale * 2f64.powi(1 - bias),
        _ => (1.0 + f64::from(fraction) * scale) * 2f64.powi(exponent - bias),
    }
}

/// An element from its bytes; `None` if there are too few.
fn decode(dtype: Dtype, bytes: &[u8], big_endian: bool) -> Option<Number> {
    let mut le = [0u8; 16];
    let size = dtype.size();
    le[..size].copy_from_slice(bytes.get(..size)?);
    if big_endian {
        let part = if matches!(dtype, Dtype::C32 | Dtype::C64 | Dtype::C128) { size / 2 } else { size };
        le[..size].chunks_mut(part).for_each(<[u8]>::reverse);
    }
    let u16_at = |i: usize| u16::from_le_bytes([le[i], le[i + 1]]);
    let u32_at = |i: usize| u32::from_le_bytes([le[i], le[i + 1], le[i + 2], le[i + 3]]);
    let u64_at = |i: usize| u64::from(u32_at(i)) | u64::from(u32_at(i + 4)) << 32;
    Some(match dtype {
        Dtype::F64 => Number::Float(f64::from_bits(u64_at(0))),
        Dtype::F32 => Number::Float(f32::from_bits(u32_at(0)).into()),
        Dtype::F16 => Number::Float(f16(u16_at(0))),
        Dtype::BF16 => Number::Float(f32::from_bits(u32::from(u16_at(0)) << 16).into()),
        Dtype::I64 => Number::Int(u64_at(0) as i64),
        Dtype::I32 | Dtype::QI32 => Number::Int((u32_at(0) as i32).into()),
        Dtype::I16 => Number::Int((u16_at(0) as i16).into()),
        Dtype::I8 | Dtype::QI8 => Number::Int((le[0] as i8).into()),
        Dtype::U8 | Dtype::QU8 => Number::Int(le[0].into()),
        Dtype::U16 => Number::Int(u16_at(0).into()),
        Dtype::U32 => Number::Int(u32_at(0).into()),
        Dtype::U64 => Number::Unsigned(u64_at(0)),
        Dtype::Bool => Number::Bool(le[0] != 0),
        Dtype::C32 => Number::Complex(f16(u16_at(0)), f16(u16_at(2))),
        Dtype::C64 => Number::Complex(f32::from_bits(u32_at(0)).into(), f32::from_bits(u32_at(4)).into()),
        Dtype::C128 => Number::Complex(f64::from_bits(u64_at(0)), f64::from_bits(u64_at(8))),
        Dtype::F8E4M3 => Number::Float(f8(le[0], 4, 7, dtype)),
        Dtype::F8E4M3Z => Number::Float(f8(le[0], 4, 8, dtype)),
        Dtype::F8E5M2 => Number::Float(f8(le[0], 5, 15, dtype)),
        Dtype::F8E5M2Z => Number::Float(f8(le[0], 5, 16, dtype)),
        Dtype::F8E8M0 => Number::Float(if le[0] == 255 { f64::NAN } else { 2f64.powi(i32::from(le[0]) - 127) }),
    })
}

/// A tensor or array whose place, extent and type were checked: every element is inside its bytes.
pub struct View<'a> {
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    /// In elements.
    strides: Vec<i64>,
    offset: i64,
    data: Cow<'a, [u8]>,
    big_endian: bool,
}

impl<'a> View<'a> {
    fn new(
        dtype: Dtype,
        shape: Vec<u64>,
        strides: Vec<i64>,
        offset: u64,
        data: Cow<'a, [u8]>,
        big_endian: bool,
    ) -> Option<View<'a>> {
        let offset = i64::try_from(offset).ok()?;
        if shape.len() != strides.len() {
            return None;
        }
        let (mut low, mut high, mut count) = (offset, offset, 1u64);
        for (size, stride) in shape.iter().zip(&strides) {
            count = count.checked_mul(*size)?;
            let reach = stride.checked_mul(i64::try_from(*size).ok()?.checked_sub(1)?.max(0))?;
            if reach < 0 { low = low.checked_add(reach)? } else { high = high.checked_add(reach)? }
        }
        let elements = (data.len() / dtype.size()) as i64;
        (count == 0 || low >= 0 && high < elements).then_some(View { dtype, shape, strides, offset, data, big_endian })
    }

    /// Total number of elements.
    pub fn len(&self) -> u64 {
        self.shape.iter().product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements in row-major order.
    pub fn iter(&self) -> impl Iterator<Item = Number> + '_ {
        let size = self.dtype.size();
        (0..self.len()).filter_map(move |mut n| {
            let mut at = self.offset;
            for (len, stride) in self.shape.iter().zip(&self.strides).rev() {
                at += (n % len) as i64 * stride;
                n /= len;
            }
            decode(self.dtype, self.data.get(at as usize * size..)?, self.big_endian)
        })
    }
}

impl Torch {
    fn extents(&self, value: Value) -> Option<Vec<u64>> {
        if self.heap.len(value) > limits::MAX_DIMENSIONS {
            return None;
        }
        self.heap.items(value).map(|n| self.heap.int(n).and_then(|n| u64::try_from(n).ok())).collect()
    }

    /// Shape of a tensor or array, without reading its data.
    pub fn shape(&self, value: Value) -> Option<Vec<u64>> {
        match self.heap.extra_of(value)? {
            Extra::Tensor(t) => self.extents(t.size),
            Extra::Array(a) => self.extents(a.shape),
            _ => None,
        }
    }

    pub fn dtype(&self, value: Value) -> Option<Dtype> {
        match self.heap.extra_of(value)? {
            Extra::Tensor(t) => t.dtype.or(match self.heap.extra_of(t.storage)? {
                Extra::Storage(s) => Some(s.dtype),
                _ => None,
            }),
            Extra::Array(a) => self.numpy_dtype(a.dtype).map(|d| d.0),
            Extra::NumpyScalar { dtype, .. } => self.numpy_dtype(*dtype).map(|d| d.0),
            _ => None,
        }
    }

    /// The type of an array, and whether it is big-endian. `None` for text and records.
    fn numpy_dtype(&self, value: Value) -> Option<(Dtype, bool)> {
        let Extra::NumpyDtype { code, order } = self.heap.extra_of(value)? else { return None };
        let code = self.heap.str(*code)?;
        let (order, code) = match code.as_bytes().first()? {
            o @ (b'<' | b'>' | b'=' | b'|') => (*o, &code[1..]),
            _ => (*order, &*code),
        };
        let dtype = match code {
            "f8" => Dtype::F64,
            "f4" => Dtype::F32,
            "f2" => Dtype::F16,
            "i8" => Dtype::I64,
            "i4" => Dtype::I32,
            "i2" => Dtype::I16,
            "i1" => Dtype::I8,
            "u8" => Dtype::U64,
            "u4" => Dtype::U32,
            "u2" => Dtype::U16,
            "u1" => Dtype::U8,
            "b1" => Dtype::Bool,
            "c8" => Dtype::C64,
            "c16" => Dtype::C128,
            _ => return None,
        };
        Some((dtype, order == b'>'))
    }

    /// A tensor or array, ready to be read. `None` if it does not fit its data.
    pub fn view(&self, value: Value) -> Option<View<'_>> {
        match self.heap.extra_of(value)? {
            Extra::Tensor(t) => {
                let shape = self.extents(t.size)?;
                let strides =
                    self.heap.items(t.stride).take(shape.len() + 1).map(|s| self.heap.int(s)).collect::<Option<_>>()?;
                let data = Cow::Borrowed(self.storage_bytes(t.storage)?);
                View::new(self.dtype(value)?, shape, strides, t.offset, data, self.big_endian)
            }
            Extra::Array(a) => {
                let (dtype, big_endian) = self.numpy_dtype(a.dtype)?;
                let shape = self.extents(a.shape)?;
                let mut strides = vec![0; shape.len()];
                let mut step = 1i64;
                let order: Vec<usize> =
                    if a.fortran { (0..shape.len()).collect() } else { (0..shape.len()).rev().collect() };
                for i in order {
                    strides[i] = step;
                    step = step.checked_mul(i64::try_from(shape[i]).ok()?)?;
                }
                View::new(dtype, shape, strides, 0, self.heap.bytes(a.data)?, big_endian)
            }
            _ => None,
        }
    }

    /// A numpy scalar, or the only element of a tensor or array without dimensions.
    pub fn scalar(&self, value: Value) -> Option<Number> {
        match self.heap.extra_of(value)? {
            Extra::NumpyScalar { dtype, data } => {
                let (dtype, big_endian) = self.numpy_dtype(*dtype)?;
                decode(dtype, &self.heap.bytes(*data)?, big_endian)
            }
            Extra::Tensor(_) | Extra::Array(_) => {
                let view = self.view(value).filter(|v| v.shape.is_empty())?;
                view.iter().next()
            }
            _ => None,
        }
    }

    /// A numpy text scalar (`numpy.str_`).
    pub(super) fn numpy_text(&self, value: Value) -> Option<String> {
        let Extra::NumpyScalar { dtype, data } = self.heap.extra_of(value)? else { return None };
        let Extra::NumpyDtype { code, .. } = self.heap.extra_of(*dtype)? else { return None };
        let code = self.heap.str(*code)?;
        if !code.trim_start_matches(['<', '=', '|']).starts_with('U') {
            return None;
        }
        if let Some(text) = self.heap.str(*data) {
            return Some(text.into_owned());
        }
        let bytes = self.heap.bytes(*data)?;
        let chars =
            bytes.as_chunks::<4>().0.iter().map(|c| char::from_u32(u32::from_le_bytes(*c)).unwrap_or('\u{fffd}'));
        Some(chars.collect::<String>().trim_end_matches('\0').to_string())
    }

    /// Elements of a list, tuple, tensor or array of numbers, in row-major order; at most `limit` of them.
    pub fn numbers(&self, value: Value, limit: usize) -> Option<Vec<f64>> {
        match value.tag() {
            Tag::List | Tag::Tuple => {
                self.heap.items(value).take(limit).map(|v| self.number(v).or(v.is_none().then_some(f64::NAN))).collect()
            }
            _ => Some(self.view(value)?.iter().take(limit).map(Number::as_f64).collect()),
        }
    }

    /// The same for whole numbers: token ids, masks.
    pub fn integers(&self, value: Value, limit: usize) -> Option<Vec<i64>> {
        match value.tag() {
            Tag::List | Tag::Tuple => {
                let one =
                    |v: Value| self.heap.int(v).or(v.as_bool().map(i64::from)).or_else(|| self.scalar(v)?.as_i64());
                self.heap.items(value).take(limit).map(one).collect()
            }
            _ => self.view(value)?.iter().take(limit).map(Number::as_i64).collect(),
        }
    }

    /// How many elements, without reading them.
    pub fn count(&self, value: Value) -> Option<u64> {
        match value.tag() {
            Tag::List | Tag::Tuple => Some(self.heap.len(value) as u64),
            _ => self.shape(value)?.iter().try_fold(1u64, |n, d| n.checked_mul(*d)),
        }
    }

    /// What `float()` makes of a value: numbers, booleans, numpy scalars, tensors of one element.
    pub fn number(&self, value: Value) -> Option<f64> {
        match value.tag() {
            Tag::Float => value.as_float(),
            Tag::Int => value.as_small().map(|i| i as f64),
            Tag::Long => self.heap.long_digits(value)?.parse().ok(),
            Tag::Bool => value.as_bool().map(|b| f64::from(u8::from(b))),
            Tag::Extra => self.scalar(value).map(Number::as_f64),
            _ => None,
        }
    }
}
