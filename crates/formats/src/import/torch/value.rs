//! One unpickled value in eight bytes: a double, or a tag and 47 bits.
//!
//! Scalars and text cost no memory of their own: a text is the position of its opcode in the file, and containers are
//! numbers of entries in the [`Heap`](super::Heap). Doubles are stored as they are; everything else lives in the space of
//! negative quiet NaNs, which no double of a pickle keeps (NaNs are made positive when they are read).

/// See the module. Only the heap that it came from knows its meaning.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    None = 0,
    Bool,
    /// Fits 47 bits, sign included.
    Int,
    /// Any other integer: position of its opcode.
    Long,
    /// Position of its opcode, or, with [`OWNED`] set, number of an owned text.
    Str,
    /// Position of its opcode, or, with [`OWNED`] set, number of owned bytes.
    Bytes,
    List,
    Tuple,
    Dict,
    Set,
    FrozenSet,
    /// An object of a class that is not ours to build: its class, arguments and fields.
    Object,
    /// A class or function by name.
    Global,
    /// A tensor, an array and the like: number of an [`Extra`](super::Extra).
    Extra,
    /// A double; never stored as a tag.
    Float,
}

const BOXED: u64 = 0xFFF8_0000_0000_0000;
const TAG_SHIFT: u32 = 47;
const PAYLOAD: u64 = (1 << TAG_SHIFT) - 1;
/// In a [`Tag::Str`] or [`Tag::Bytes`]: not in the file but in the heap.
pub const OWNED: u64 = 1 << (TAG_SHIFT - 1);
/// Files are shorter than this; checked when one is opened.
pub const MAX_POSITION: u64 = OWNED - 1;

const INT_MAX: i64 = (1 << (TAG_SHIFT - 1)) - 1;
const INT_MIN: i64 = -(1 << (TAG_SHIFT - 1));

impl Value {
    pub const NONE: Value = Value::tagged(Tag::None, 0);
    pub const TRUE: Value = Value::tagged(Tag::Bool, 1);
    pub const FALSE: Value = Value::tagged(Tag::Bool, 0);
    /// No value of any pickle.
    pub(super) const ABSENT: Value = Value(u64::MAX);

    pub const fn tagged(tag: Tag, payload: u64) -> Value {
        Value(BOXED | (tag as u64) << TAG_SHIFT | payload & PAYLOAD)
    }

    pub fn float(f: f64) -> Value {
        Value(if f.is_nan() { f64::NAN.to_bits() & !(1 << 63) } else { f.to_bits() })
    }

    /// `None` if it needs more than 47 bits.
    pub fn int(i: i64) -> Option<Value> {
        (INT_MIN..=INT_MAX).contains(&i).then(|| Value::tagged(Tag::Int, i as u64))
    }

    pub fn small(i: i32) -> Value {
        Value::tagged(Tag::Int, i64::from(i) as u64)
    }

    pub fn tag(self) -> Tag {
        if self.0 < BOXED {
            return Tag::Float;
        }
        match (self.0 >> TAG_SHIFT) & 15 {
            0 => Tag::None,
            1 => Tag::Bool,
            2 => Tag::Int,
            3 => Tag::Long,
            4 => Tag::Str,
            5 => Tag::Bytes,
            6 => Tag::List,
            7 => Tag::Tuple,
            8 => Tag::Dict,
            9 => Tag::Set,
            10 => Tag::FrozenSet,
            11 => Tag::Object,
            12 => Tag::Global,
            _ => Tag::Extra,
        }
    }

    pub fn payload(self) -> u64 {
        self.0 & PAYLOAD
    }

    pub fn is_none(self) -> bool {
        self == Value::NONE
    }

    pub fn as_float(self) -> Option<f64> {
        (self.0 < BOXED).then(|| f64::from_bits(self.0))
    }

    /// Of a [`Tag::Int`].
    pub fn as_small(self) -> Option<i64> {
        (self.tag() == Tag::Int).then(|| ((self.payload() << (64 - TAG_SHIFT)) as i64) >> (64 - TAG_SHIFT))
    }

    pub fn as_bool(self) -> Option<bool> {
        (self.tag() == Tag::Bool).then_some(self.payload() == 1)
    }

    pub(super) fn bits(self) -> u64 {
        self.0
    }
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match (self.tag(), self.as_float(), self.as_small()) {
            (_, Some(d), _) => write!(f, "{d}"),
            (_, _, Some(i)) => write!(f, "{i}"),
            (tag, ..) => write!(f, "{tag:?}({})", self.payload()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bytes_hold_every_kind() {
        for d in [0.0, -0.0, 1.5, f64::INFINITY, f64::NEG_INFINITY, f64::MIN, f64::MIN_POSITIVE] {
            assert_eq!(Value::float(d).as_float().map(f64::to_bits), Some(d.to_bits()));
        }
        let odd_nan = f64::from_bits(0xFFFF_FFFF_FFFF_FFFF);
        assert!(Value::float(odd_nan).as_float().is_some_and(f64::is_nan));
        for i in [0, 1, -1, INT_MAX, INT_MIN] {
            assert_eq!(Value::int(i).and_then(Value::as_small), Some(i));
        }
        assert_eq!(Value::int(INT_MAX + 1), None);
        assert_eq!(Value::small(-7).as_small(), Some(-7));
        assert_eq!(Value::TRUE.as_bool(), Some(true));
        assert_eq!(Value::tagged(Tag::Extra, 9).tag(), Tag::Extra);
        assert_eq!(Value::tagged(Tag::Str, OWNED | 5).payload(), OWNED | 5);
    }
}
