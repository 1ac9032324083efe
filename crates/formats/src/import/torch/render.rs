//! Values as JSON, in two styles, and as Python's `str()` would show them. Shared and cyclic values are written where
//! they stand, so depth and size are bounded: beyond a bound, a text states it.

use std::fmt::Write as _;

use rollscope_model::attrs;

use super::Torch;
use super::limits::{MAX_DEPTH, MAX_GROWTH, VALUE_BASE};
use super::tensor::{Dtype, Extra, Number};
use super::value::{Tag, Value};

/// How values that JSON does not have are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// As slime's viewer does: anything but plain values is the text of `str()`. NaN and infinities, for which that
    /// viewer writes invalid JSON, are `null`.
    Slime,
    /// As our attribute columns do (see [`rollscope_model::attrs`]): numbers stay numbers, bytes and NaN are marked.
    Typed,
}

/// Deepest nesting in attribute columns.
const TYPED_DEPTH: usize = attrs::MAX_DEPTH - 1;
/// Elements of a tensor or array that are written out; larger ones are described.
const SHOWN_ELEMENTS: u64 = 64;
/// Bytes of one text made by `str()`.
const MAX_TEXT: usize = 64 << 10;
const TOO_MUCH: &str = "…(left out: too large)";

impl Torch {
    /// Appends JSON, at most about `limit` bytes, and not much more than the file can hold. `false` where something was
    /// left out.
    pub fn write_json(&self, out: &mut Vec<u8>, value: Value, style: Style, limit: usize) -> bool {
        let held = VALUE_BASE.saturating_add(self.file_len().saturating_mul(MAX_GROWTH));
        let limit = limit.min(usize::try_from(held).unwrap_or(usize::MAX));
        let mut writer = Writer { torch: self, style, end: out.len().saturating_add(limit), whole: true };
        writer.value(out, value, 0);
        writer.whole
    }

    pub fn json(&self, value: Value, style: Style, limit: usize) -> String {
        let mut out = Vec::new();
        self.write_json(&mut out, value, style, limit);
        String::from_utf8(out).unwrap_or_default()
    }

    /// What Python's `str()` shows, for what can be known without running it.
    pub fn python_str(&self, value: Value) -> String {
        match self.heap.str(value) {
            Some(text) => text.into_owned(),
            None => {
                let mut out = String::new();
                self.repr(&mut out, value, 0);
                out
            }
        }
    }

    fn repr(&self, out: &mut String, value: Value, depth: usize) {
        if depth > MAX_DEPTH || out.len() > MAX_TEXT {
            out.push('…');
            return;
        }
        match value.tag() {
            Tag::None => out.push_str("None"),
            Tag::Bool => out.push_str(if value == Value::TRUE { "True" } else { "False" }),
            Tag::Int => put(out, format_args!("{}", value.as_small().unwrap_or_default())),
            Tag::Long => match self.heap.long_digits(value) {
                Some(digits) => out.push_str(&digits),
                None => out.push_str("<integer>"),
            },
            Tag::Float => out.push_str(&float_text(value.as_float().unwrap_or_default())),
            Tag::Str => quoted(out, &self.heap.str(value).unwrap_or_default()),
            Tag::Bytes => bytes_text(out, &self.heap.bytes(value).unwrap_or_default()),
            Tag::List => self.repr_items(out, value, "[", "]", depth),
            Tag::Tuple if self.heap.len(value) == 1 => self.repr_items(out, value, "(", ",)", depth),
            Tag::Tuple => self.repr_items(out, value, "(", ")", depth),
            Tag::Set if self.heap.len(value) == 0 => out.push_str("set()"),
            Tag::Set => self.repr_items(out, value, "{", "}", depth),
            Tag::FrozenSet if self.heap.len(value) == 0 => out.push_str("frozenset()"),
            Tag::FrozenSet => self.repr_items(out, value, "frozenset({", "})", depth),
            Tag::Dict => {
                out.push('{');
                for (i, (k, v)) in self.heap.entries(value).enumerate() {
                    if out.len() > MAX_TEXT {
                        break;
                    }
                    out.push_str(if i > 0 { ", " } else { "" });
                    self.repr(out, k, depth + 1);
                    out.push_str(": ");
                    self.repr(out, v, depth + 1);
                }
                out.push('}');
            }
            Tag::Global => match self.heap.global(value) {
                Some(("torch", name)) => put(out, format_args!("torch.{name}")),
                Some((module, name)) => put(out, format_args!("<class '{module}.{name}'>")),
                None => {}
            },
            Tag::Object => match (self.enum_value(value), self.class_name(value)) {
                (Some(inner), Some((_, name))) => {
                    let _ = write!(out, "{name}(");
                    self.repr(out, inner, depth + 1);
                    out.push(')');
                }
                (_, Some((module, name))) => put(out, format_args!("<{module}.{name} object>")),
                _ => out.push_str("<object>"),
            },
            Tag::Extra => self.repr_extra(out, value),
        }
    }

    fn repr_items(&self, out: &mut String, value: Value, open: &str, close: &str, depth: usize) {
        out.push_str(open);
        for (i, item) in self.heap.items(value).enumerate() {
            if out.len() > MAX_TEXT {
                out.push('…');
                break;
            }
            out.push_str(if i > 0 { ", " } else { "" });
            self.repr(out, item, depth + 1);
        }
        out.push_str(close);
    }

    fn repr_extra(&self, out: &mut String, value: Value) {
        match self.heap.extra_of(value) {
            Some(Extra::Latin1(_)) => bytes_text(out, &self.heap.bytes(value).unwrap_or_default()),
            Some(Extra::Text(text)) => out.push_str(text),
            Some(Extra::Joined { parts, separator }) => {
                let start = out.len();
                for part in self.heap.items(*parts) {
                    if out.len() > MAX_TEXT {
                        out.push('…');
                        break;
                    }
                    // The root of a path brings its own separator.
                    if out.len() > start && !out.ends_with(separator) {
                        out.push_str(separator);
                    }
                    match self.heap.str(part) {
                        Some(text) => out.push_str(&text),
                        None => put(out, format_args!("{}", self.heap.int(part).unwrap_or_default())),
                    }
                }
            }
            Some(Extra::Complex(re, im)) => {
                let _ = write!(out, "({}{:+}j)", float_text(*re).trim_end_matches(".0"), im);
            }
            Some(Extra::NumpyScalar { .. }) => match (self.scalar(value), self.numpy_text(value)) {
                (Some(number), _) => out.push_str(&number_text(number, self.dtype(value))),
                (_, Some(text)) => out.push_str(&text),
                _ => out.push_str("<numpy scalar>"),
            },
            Some(Extra::Tensor(_)) => self.tensor_text(out, value),
            Some(Extra::Array(_)) => match self.view(value) {
                Some(view) if view.shape.is_empty() => {
                    out.extend(view.iter().next().map(|n| number_text(n, Some(view.dtype))));
                }
                Some(view) if view.shape.len() == 1 && view.len() <= SHOWN_ELEMENTS && !is_float(view.dtype) => {
                    let items: Vec<String> = view.iter().map(|n| number_text(n, None)).collect();
                    let width = items.iter().map(String::len).max().unwrap_or(0);
                    let items: Vec<String> = items.iter().map(|i| format!("{i:>width$}")).collect();
                    let _ = write!(out, "[{}]", items.join(" "));
                }
                _ => put(out, format_args!("array({})", self.described(value))),
            },
            Some(Extra::Storage(s)) => put(out, format_args!("<storage of {} {}>", s.numel, s.dtype.name())),
            Some(Extra::NumpyDtype { code, .. }) => out.push_str(&self.heap.str(*code).unwrap_or_default()),
            None => {}
        }
    }

    /// Shape and type, for what is too large to be shown.
    fn described(&self, value: Value) -> String {
        let dtype = self.dtype(value).map_or("?", Dtype::name);
        format!("shape={:?}, dtype={dtype}", self.shape(value).unwrap_or_default())
    }

    /// As torch prints it, for single elements and short rows of integers.
    fn tensor_text(&self, out: &mut String, value: Value) {
        let Some(view) = self.view(value) else { return put(out, format_args!("tensor({})", self.described(value))) };
        let suffix = match view.dtype {
            Dtype::F32 | Dtype::I64 | Dtype::Bool => String::new(),
            dtype => format!(", dtype=torch.{}", dtype.name()),
        };
        match (view.shape.len(), view.iter().next()) {
            (0, Some(Number::Float(f))) => put(out, format_args!("tensor({}{suffix})", torch_float(f))),
            (0, Some(number)) => put(out, format_args!("tensor({}{suffix})", number_text(number, None))),
            (1, _) if view.len() <= SHOWN_ELEMENTS && !is_float(view.dtype) => {
                let items: Vec<String> = view.iter().map(|n| number_text(n, None)).collect();
                let width = items.iter().map(String::len).max().unwrap_or(0);
                let items: Vec<String> = items.iter().map(|i| format!("{i:>width$}")).collect();
                let _ = write!(out, "tensor([{}]{suffix})", items.join(", "));
            }
            _ => put(out, format_args!("tensor({})", self.described(value))),
        }
    }

    /// Module and name of an object's class.
    pub fn class_name(&self, value: Value) -> Option<(&str, &str)> {
        self.heap.global(self.heap.object_of(value)?.class)
    }

    /// The value of an enum member: an object made from one plain value, without fields.
    pub fn enum_value(&self, value: Value) -> Option<Value> {
        let object = self.heap.object_of(value)?;
        let plain = object.state.is_none() && object.items.is_none() && object.entries.is_none();
        let mut args = self.heap.items(object.args);
        match (args.next(), args.next()) {
            (Some(only), None)
                if plain && matches!(only.tag(), Tag::Str | Tag::Int | Tag::Float | Tag::Bool | Tag::Long) =>
            {
                Some(only)
            }
            _ => None,
        }
    }
}

struct Writer<'a> {
    torch: &'a Torch,
    style: Style,
    end: usize,
    whole: bool,
}

impl Writer<'_> {
    fn room(&mut self, out: &[u8], more: usize) -> bool {
        let fits = out.len().saturating_add(more) <= self.end;
        self.whole &= fits;
        fits
    }

    fn write_text(&mut self, out: &mut Vec<u8>, text: &str) {
        if self.room(out, text.len()) { attrs::write_str(out, text) } else { attrs::write_str(out, TOO_MUCH) }
    }

    fn float(&mut self, out: &mut Vec<u8>, f: f64) {
        match self.style {
            Style::Slime if !f.is_finite() => out.extend_from_slice(b"null"),
            _ => attrs::write_double(out, f),
        }
    }

    fn value(&mut self, out: &mut Vec<u8>, value: Value, depth: usize) {
        let deepest = if self.style == Style::Slime { MAX_DEPTH } else { TYPED_DEPTH };
        if depth > deepest || !self.room(out, 0) {
            self.whole = false;
            return attrs::write_str(out, TOO_MUCH);
        }
        let heap = &self.torch.heap;
        match value.tag() {
            Tag::None => out.extend_from_slice(b"null"),
            Tag::Bool => attrs::write_bool(out, value == Value::TRUE),
            Tag::Int => attrs::write_int(out, value.as_small().unwrap_or_default()),
            Tag::Long => match heap.long_digits(value) {
                Some(digits) => out.extend_from_slice(digits.as_bytes()),
                None => attrs::write_str(out, "<integer>"),
            },
            Tag::Float => self.float(out, value.as_float().unwrap_or_default()),
            Tag::Str => match heap.str_bytes(value).map(std::str::from_utf8) {
                Some(Ok(text)) => self.write_text(out, text),
                _ => self.write_text(out, &heap.str(value).unwrap_or_default()),
            },
            Tag::List | Tag::Tuple => self.items(out, value, depth),
            Tag::Dict => {
                out.push(b'{');
                self.entries(out, value, depth, false);
                out.push(b'}');
            }
            _ if self.style == Style::Typed => self.typed(out, value, depth),
            // Subclasses of list and dict are lists and dicts to Python.
            Tag::Object if heap.object_of(value).is_some_and(|o| !o.items.is_none()) => {
                let items = heap.object_of(value).map_or(Value::NONE, |o| o.items);
                self.items(out, items, depth);
            }
            Tag::Object if heap.object_of(value).is_some_and(|o| !o.entries.is_none()) => {
                out.push(b'{');
                self.entries(out, heap.object_of(value).map_or(Value::NONE, |o| o.entries), depth, false);
                out.push(b'}');
            }
            _ => match self.torch.scalar(value) {
                // `numpy.float64` is a `float` to Python.
                Some(Number::Float(f))
                    if matches!(heap.extra_of(value), Some(Extra::NumpyScalar { .. }))
                        && self.torch.dtype(value) == Some(Dtype::F64) =>
                {
                    self.float(out, f);
                }
                _ => {
                    let text = self.torch.python_str(value);
                    self.write_text(out, &text);
                }
            },
        }
    }

    fn items(&mut self, out: &mut Vec<u8>, value: Value, depth: usize) {
        out.push(b'[');
        for (i, item) in self.torch.heap.items(value).enumerate() {
            if i > 0 {
                out.push(b',');
            }
            self.value(out, item, depth + 1);
            if !self.room(out, 0) {
                break;
            }
        }
        out.push(b']');
    }

    fn entries(&mut self, out: &mut Vec<u8>, dict: Value, depth: usize, mut comma: bool) {
        for (key, value) in self.torch.heap.entries(dict) {
            if comma {
                out.push(b',');
            }
            comma = true;
            let text = match self.torch.heap.str(key) {
                Some(text) => text,
                None => self.torch.python_str(key).into(),
            };
            let fits = self.room(out, text.len());
            let text = if fits { &*text } else { TOO_MUCH };
            match self.style {
                Style::Typed => attrs::write_key(out, text),
                Style::Slime => {
                    attrs::write_str(out, text);
                    out.push(b':');
                }
            }
            self.value(out, value, depth + 1);
            // A key that does not fit ends it: the next may be as long to read.
            if !fits || !self.room(out, 0) {
                break;
            }
        }
    }

    /// What JSON has no word for, in our own style.
    fn typed(&mut self, out: &mut Vec<u8>, value: Value, depth: usize) {
        let (torch, heap) = (self.torch, &self.torch.heap);
        if let Some(bytes) = heap.bytes(value) {
            return if self.room(out, bytes.len() / 3 * 4) {
                attrs::write_bytes(out, &bytes);
            } else {
                attrs::write_str(out, TOO_MUCH);
            };
        }
        if let Some(number) = torch.scalar(value) {
            return self.number(out, number);
        }
        match (value.tag(), heap.extra_of(value)) {
            (Tag::Set | Tag::FrozenSet, _) => self.items(out, value, depth),
            (_, Some(Extra::Tensor(_) | Extra::Array(_))) => match torch.view(value) {
                Some(view) if view.shape.len() == 1 && view.len() <= SHOWN_ELEMENTS => {
                    out.push(b'[');
                    for (i, number) in view.iter().enumerate() {
                        if i > 0 {
                            out.push(b',');
                        }
                        self.number(out, number);
                    }
                    out.push(b']');
                }
                _ => attrs::write_str(out, &torch.python_str(value)),
            },
            (Tag::Object, _) => match torch.enum_value(value) {
                Some(inner) => self.value(out, inner, depth + 1),
                None => {
                    out.extend_from_slice(b"{\"$class\":");
                    let name = torch.class_name(value).map(|(m, n)| format!("{m}.{n}"));
                    self.write_text(out, &name.unwrap_or_default());
                    if let Some(object) = heap.object_of(value).copied() {
                        self.fields(out, &object, depth);
                    }
                    out.push(b'}');
                }
            },
            _ => {
                let text = torch.python_str(value);
                self.write_text(out, &text);
            }
        }
    }

    fn fields(&mut self, out: &mut Vec<u8>, object: &super::Object, depth: usize) {
        let heap = &self.torch.heap;
        match object.state.tag() {
            Tag::Dict => self.entries(out, object.state, depth, true),
            Tag::Tuple => {
                for dict in heap.items(object.state).take(2) {
                    self.entries(out, dict, depth, true);
                }
            }
            _ => {}
        }
        let parts = [("$args", object.args), ("$items", object.items), ("$entries", object.entries)];
        for (name, part) in parts.into_iter().filter(|(_, p)| heap.len(*p) > 0) {
            let _ = write!(Utf8(out), ",\"{name}\":");
            self.value(out, part, depth + 1);
        }
    }

    fn number(&mut self, out: &mut Vec<u8>, number: Number) {
        match number {
            Number::Int(i) => attrs::write_int(out, i),
            Number::Unsigned(u) => out.extend_from_slice(u.to_string().as_bytes()),
            Number::Float(f) => self.float(out, f),
            Number::Bool(b) => attrs::write_bool(out, b),
            Number::Complex(..) => attrs::write_str(out, &number_text(number, None)),
        }
    }
}

struct Utf8<'a>(&'a mut Vec<u8>);

impl std::fmt::Write for Utf8<'_> {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        self.0.extend_from_slice(s.as_bytes());
        Ok(())
    }
}

fn put(out: &mut String, text: std::fmt::Arguments) {
    let _ = out.write_fmt(text);
}

fn is_float(dtype: Dtype) -> bool {
    dtype.name().contains("float") || dtype.name().starts_with("complex")
}

fn number_text(number: Number, dtype: Option<Dtype>) -> String {
    match number {
        Number::Int(i) => i.to_string(),
        Number::Unsigned(u) => u.to_string(),
        Number::Bool(b) => if b { "True" } else { "False" }.to_string(),
        // The shortest text that reads back as the same number of that width.
        Number::Float(f) if dtype == Some(Dtype::F32) && f.is_finite() => float_digits(&format!("{:e}", f as f32)),
        Number::Float(f) => float_text(f),
        Number::Complex(re, im) => format!("({}{:+}j)", float_text(re).trim_end_matches(".0"), im),
    }
}

/// One element as torch prints it: four decimals, or none, or an exponent.
fn torch_float(f: f64) -> String {
    let size = f.abs();
    if !f.is_finite() {
        return float_text(f);
    }
    if f == f.trunc() {
        return if size >= 1e8 { exponent(&format!("{f:.4e}")) } else { format!("{f:.0}.") };
    }
    if !(1e-4..=1e8).contains(&size) { exponent(&format!("{f:.4e}")) } else { format!("{f:.4}") }
}

/// `1.5e7` as Python writes it: `1.5e+07`.
fn exponent(text: &str) -> String {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// A double as Python's `repr` writes it.
pub(crate) fn float_text(f: f64) -> String {
    if f.is_nan() {
        "nan".into()
    } else if f.is_infinite() {
        if f > 0.0 { "inf" } else { "-inf" }.into()
    } else {
        float_digits(&format!("{f:e}"))
    }
}

/// From shortest scientific notation to Python's choice of notation.
fn float_digits(scientific: &str) -> String {
    let (mantissa, e) = scientific.split_once('e').unwrap_or((scientific, "0"));
    let e: i32 = e.parse().unwrap_or_default();
    if !(-4..16).contains(&e) {
        return exponent(scientific);
    }
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |m| ("-", m));
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let point = e + 1;
    if point <= 0 {
        format!("{sign}0.{}{digits}", "0".repeat(-point as usize))
    } else if (point as usize) >= digits.len() {
        format!("{sign}{digits}{}.0", "0".repeat(point as usize - digits.len()))
    } else {
        format!("{sign}{}.{}", &digits[..point as usize], &digits[point as usize..])
    }
}

fn quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars().take(MAX_TEXT) {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 32 || c as u32 == 127 => put(out, format_args!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn bytes_text(out: &mut String, bytes: &[u8]) {
    let quote = if bytes.contains(&b'\'') && !bytes.contains(&b'"') { '"' } else { '\'' };
    out.push('b');
    out.push(quote);
    for &b in bytes.iter().take(MAX_TEXT) {
        match b {
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            b if char::from(b) == quote => {
                out.push('\\');
                out.push(quote);
            }
            32..=126 => out.push(char::from(b)),
            _ => put(out, format_args!("\\x{b:02x}")),
        }
    }
    out.push(quote);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_read_like_python() {
        for (f, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-7, "1.5e-07"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (123456.789, "123456.789"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float_text(f), text);
        }
        assert_eq!(torch_float(3.0), "3.");
        assert_eq!(torch_float(0.25), "0.2500");
        assert_eq!(torch_float(1.5e-7), "1.5000e-07");
    }
}
