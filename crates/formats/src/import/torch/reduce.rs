//! What a pickle may name, and what we make of it. This list is the whole of what is understood; a class or function
//! that is not in it becomes an [`Object`] with its name and arguments. Nothing here calls anything.

use super::heap::{Global, Heap, Object};
use super::limits;
use super::tensor::{Array, Dtype, Extra, Storage, Tensor};
use super::value::{Tag, Value};
use crate::import::ImportError;

/// Names that mean something to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownGlobal {
    /// Remembered by name, nothing more.
    Opaque,
    /// `object`: base of a reconstructed instance.
    PlainObject,
    Dict,
    DictOf,
    DefaultDict,
    List,
    Tuple,
    Set,
    FrozenSet,
    Deque,
    Bytes,
    Text,
    Complex,
    Encode,
    GetAttr,
    Reconstructor,
    NewObj,
    NewObjEx,
    Size,
    Device,
    StorageType(Dtype),
    TorchDtype(Dtype),
    RebuildTensor,
    RebuildTensorV3,
    RebuildParameter,
    RebuildFromType,
    NumpyReconstruct,
    NumpyScalar,
    NumpyDtype,
    NumpyFromBuffer,
    Path,
    DateTime,
    Date,
    Decimal,
}

fn known(module: &str, name: &str) -> KnownGlobal {
    use KnownGlobal::*;
    match (module, name) {
        ("builtins" | "__builtin__", "object") => PlainObject,
        ("builtins" | "__builtin__", "dict") | ("collections", "OrderedDict") => Dict,
        ("collections", "Counter") => DictOf,
        ("collections", "defaultdict") => DefaultDict,
        ("builtins" | "__builtin__", "list") => List,
        ("builtins" | "__builtin__", "tuple") => Tuple,
        ("builtins" | "__builtin__", "set") => Set,
        ("builtins" | "__builtin__", "frozenset") => FrozenSet,
        ("collections", "deque") => Deque,
        ("builtins" | "__builtin__", "bytes" | "bytearray") => Bytes,
        ("builtins" | "__builtin__", "str" | "unicode") => Text,
        ("builtins" | "__builtin__", "complex") => Complex,
        ("builtins" | "__builtin__", "getattr") => GetAttr,
        ("_codecs", "encode") => Encode,
        ("copyreg" | "copy_reg", "_reconstructor") => Reconstructor,
        ("copyreg" | "copy_reg", "__newobj__") => NewObj,
        ("copyreg" | "copy_reg", "__newobj_ex__") => NewObjEx,
        ("torch", "Size") => Size,
        ("torch", "device") => Device,
        ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => RebuildTensor,
        ("torch._utils", "_rebuild_tensor_v3") => RebuildTensorV3,
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => RebuildParameter,
        ("torch._tensor", "_rebuild_from_type_v2") => RebuildFromType,
        ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => NumpyReconstruct,
        ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => NumpyScalar,
        ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => NumpyFromBuffer,
        ("numpy", "dtype") => NumpyDtype,
        (
            "pathlib" | "pathlib._local",
            "PosixPath" | "WindowsPath" | "PurePosixPath" | "PureWindowsPath" | "Path" | "PurePath",
        ) => Path,
        ("datetime", "datetime") => DateTime,
        ("datetime", "date") => Date,
        ("decimal" | "_decimal", "Decimal") => Decimal,
        ("torch" | "torch.cuda" | "torch.storage", _) => match (Dtype::of_storage(name), Dtype::of_torch(name)) {
            (Some(dtype), _) => StorageType(dtype),
            (_, Some(dtype)) if module == "torch" => TorchDtype(dtype),
            _ => Opaque,
        },
        _ => Opaque,
    }
}

impl Heap {
    pub(super) fn find_global(&mut self, module: &[u8], name: &[u8]) -> Result<Value, ImportError> {
        if module.len() + name.len() > limits::MAX_NAME_BYTES {
            return Err(ImportError::Limit {
                what: "the name of a class".into(),
                name: "MAX_NAME_BYTES",
                limit: limits::MAX_NAME_BYTES as u64,
            });
        }
        let (module, name) = (String::from_utf8_lossy(module), String::from_utf8_lossy(name));
        // A pickle remembers a class after naming it, so this list stays short and is rarely used.
        let recent = self.globals.len().saturating_sub(64);
        if let Some(at) = self.globals[recent..].iter().position(|g| *g.module == *module && *g.name == *name) {
            return Ok(Value::tagged(Tag::Global, (recent + at) as u64));
        }
        let number = self.globals.len() as u64;
        limits::check("classes named", "MAX_GLOBALS", number, limits::MAX_GLOBALS)?;
        self.grow(module.len() + name.len())?;
        let known = known(&module, &name);
        self.globals.push(Global { module: module.into(), name: name.into(), known });
        Ok(Value::tagged(Tag::Global, number))
    }

    fn arg(&self, args: Value, n: usize) -> Option<Value> {
        if args.tag() != Tag::Tuple { None } else { self.items(args).nth(n) }
    }

    /// What calling `callable` with `args` would have made.
    pub(super) fn reduce(&mut self, callable: Value, args: Value) -> Result<Value, ImportError> {
        match self.understand(callable, args)? {
            Some(value) => Ok(value),
            None => self.thing(Object::new(callable, args)),
        }
    }

    /// `None` where the name is unknown or its arguments are not what it takes.
    fn understand(&mut self, callable: Value, args: Value) -> Result<Option<Value>, ImportError> {
        let Some(known) = self.known(callable) else { return Ok(None) };
        let first = self.arg(args, 0);
        Ok(match known {
            KnownGlobal::Opaque
            | KnownGlobal::PlainObject
            | KnownGlobal::StorageType(_)
            | KnownGlobal::TorchDtype(_) => None,
            KnownGlobal::Dict | KnownGlobal::DictOf => match first {
                None => Some(self.empty(Tag::Dict)?),
                Some(given) if given.tag() == Tag::Dict => Some(given),
                Some(pairs) => {
                    let flat: Option<Vec<Value>> = self
                        .items(pairs)
                        .map(|p| Some([self.items(p).next()?, self.items(p).nth(1)?]))
                        .collect::<Option<Vec<_>>>()
                        .map(|v| v.concat());
                    match flat {
                        Some(flat) => {
                            let dict = self.empty(Tag::Dict)?;
                            self.set_items(dict, &flat)?;
                            Some(dict)
                        }
                        None => None,
                    }
                }
            },
            KnownGlobal::DefaultDict => Some(self.empty(Tag::Dict)?),
            KnownGlobal::Deque => {
                let list = self.empty(Tag::List)?;
                self.copy_into(list, first)?;
                Some(list)
            }
            KnownGlobal::List | KnownGlobal::Tuple | KnownGlobal::Set | KnownGlobal::FrozenSet | KnownGlobal::Size => {
                let tag = match known {
                    KnownGlobal::List => Tag::List,
                    KnownGlobal::Set => Tag::Set,
                    KnownGlobal::FrozenSet => Tag::FrozenSet,
                    _ => Tag::Tuple,
                };
                if first.is_some_and(|f| !matches!(f.tag(), Tag::List | Tag::Tuple | Tag::Set | Tag::FrozenSet)) {
                    return Ok(None);
                }
                let value = self.empty(tag)?;
                self.copy_into(value, first)?;
                Some(value)
            }
            KnownGlobal::Bytes => match first {
                None => Some(self.owned_text(Tag::Bytes, [])),
                // Below protocol 3 bytes come as text that is to be encoded.
                Some(given) if given.tag() == Tag::Bytes || matches!(self.extra_of(given), Some(Extra::Latin1(_))) => {
                    Some(given)
                }
                // Python 2's `bytearray(text, "latin-1")`.
                Some(text) if text.tag() == Tag::Str => Some(self.extra(Extra::Latin1(text))?),
                _ => None,
            },
            KnownGlobal::Text => match first {
                None => Some(self.owned_text(Tag::Str, [])),
                Some(given) if given.tag() == Tag::Str => Some(given),
                _ => None,
            },
            KnownGlobal::Encode => match first {
                Some(text) if text.tag() == Tag::Str => {
                    let latin1 = self
                        .arg(args, 1)
                        .and_then(|e| self.str(e))
                        .is_some_and(|e| matches!(&*e, "latin1" | "latin-1" | "iso-8859-1"));
                    if latin1 { Some(self.extra(Extra::Latin1(text))?) } else { None }
                }
                _ => None,
            },
            KnownGlobal::Complex => match (self.number(first), self.number(self.arg(args, 1))) {
                (Some(re), Some(im)) => Some(self.extra(Extra::Complex(re, im))?),
                _ => None,
            },
            // How protocols below 4 name a class inside a class. Only a name comes out.
            KnownGlobal::GetAttr => {
                let inner = self.arg(args, 1).and_then(|n| self.str(n)).map(|n| n.into_owned());
                let outer = first.and_then(|g| self.global(g)).map(|(m, n)| (m.to_string(), n.to_string()));
                match (outer, inner) {
                    (Some((module, outer)), Some(inner)) => {
                        Some(self.find_global(module.as_bytes(), format!("{outer}.{inner}").as_bytes())?)
                    }
                    _ => None,
                }
            }
            KnownGlobal::Reconstructor => match first {
                Some(class) => {
                    let base = self.arg(args, 1).and_then(|b| self.known(b));
                    let state = self.arg(args, 2).unwrap_or(Value::NONE);
                    let mut object = Object::new(class, args);
                    // Later items and entries are added to these, so they must be what they are called.
                    match (base, state.tag()) {
                        (Some(KnownGlobal::Dict), Tag::Dict) => object.entries = state,
                        (Some(KnownGlobal::List), Tag::List) => object.items = state,
                        _ => {}
                    }
                    Some(self.thing(object)?)
                }
                None => None,
            },
            KnownGlobal::NewObj | KnownGlobal::NewObjEx => match first {
                Some(class) => Some(self.new_object(class, args)?),
                None => None,
            },
            KnownGlobal::Device | KnownGlobal::Path | KnownGlobal::Decimal => {
                let separator = if known == KnownGlobal::Device { ":" } else { "/" };
                let is_part = |part: Value| part.tag() == Tag::Str || self.int(part).is_some();
                match self.len(args) <= limits::MAX_PATH_PARTS && self.items(args).all(is_part) {
                    true => Some(self.extra(Extra::Joined { parts: args, separator })?),
                    false => None,
                }
            }
            KnownGlobal::DateTime | KnownGlobal::Date => {
                match first.and_then(|b| self.bytes(b)).and_then(|b| date_text(&b)) {
                    Some(text) => Some(self.extra(Extra::Text(text.into()))?),
                    None => None,
                }
            }
            KnownGlobal::RebuildTensor | KnownGlobal::RebuildTensorV3 => {
                let get = |n| self.arg(args, n);
                let (Some(storage), Some(offset), Some(size), Some(stride)) = (get(0), get(1), get(2), get(3)) else {
                    return Ok(None);
                };
                let dtype = match known {
                    KnownGlobal::RebuildTensorV3 => match get(6).and_then(|d| self.known(d)) {
                        Some(KnownGlobal::TorchDtype(dtype)) => Some(dtype),
                        _ => return Ok(None),
                    },
                    _ => None,
                };
                let Some(offset) = self.int(offset).and_then(|o| u64::try_from(o).ok()) else { return Ok(None) };
                let Some(Extra::Storage(_)) = self.extra_of(storage) else { return Ok(None) };
                Some(self.extra(Extra::Tensor(Tensor { storage, offset, size, stride, dtype }))?)
            }
            // A parameter is its tensor.
            KnownGlobal::RebuildParameter => first.filter(|t| matches!(self.extra_of(*t), Some(Extra::Tensor(_)))),
            KnownGlobal::RebuildFromType => match (first, self.arg(args, 2)) {
                (Some(function), Some(inner)) if self.known(function) != Some(KnownGlobal::RebuildFromType) => {
                    self.understand(function, inner)?
                }
                _ => None,
            },
            KnownGlobal::NumpyReconstruct => Some(self.extra(Extra::Array(Array::EMPTY))?),
            KnownGlobal::NumpyDtype => match first {
                Some(code) if code.tag() == Tag::Str => Some(self.extra(Extra::NumpyDtype { code, order: b'=' })?),
                _ => None,
            },
            KnownGlobal::NumpyScalar => match (first, self.arg(args, 1)) {
                (Some(dtype), Some(data)) if matches!(self.extra_of(dtype), Some(Extra::NumpyDtype { .. })) => {
                    Some(self.extra(Extra::NumpyScalar { dtype, data })?)
                }
                _ => None,
            },
            KnownGlobal::NumpyFromBuffer => {
                let get = |n| self.arg(args, n);
                let (Some(data), Some(dtype), Some(shape)) = (get(0), get(1), get(2)) else { return Ok(None) };
                let fortran = get(3).and_then(|o| self.str(o)).is_some_and(|o| o == "F");
                Some(self.extra(Extra::Array(Array { dtype, shape, fortran, data }))?)
            }
        })
    }

    fn copy_into(&mut self, to: Value, from: Option<Value>) -> Result<(), ImportError> {
        let items: Vec<Value> = from.map(|f| self.items(f).collect()).unwrap_or_default();
        if items.is_empty() { Ok(()) } else { self.append(to, &items) }
    }

    fn number(&self, value: Option<Value>) -> Option<f64> {
        let value = value?;
        value.as_float().or_else(|| self.int(value).map(|i| i as f64))
    }

    /// `class.__new__(class, *args)`: dicts and lists of the standard library are what they are, the rest are objects.
    pub(super) fn new_object(&mut self, class: Value, args: Value) -> Result<Value, ImportError> {
        match self.known(class) {
            Some(
                KnownGlobal::Dict
                | KnownGlobal::DictOf
                | KnownGlobal::DefaultDict
                | KnownGlobal::List
                | KnownGlobal::Tuple
                | KnownGlobal::Set
                | KnownGlobal::FrozenSet
                | KnownGlobal::Size
                | KnownGlobal::Deque
                | KnownGlobal::Path,
            ) => self.reduce(class, args),
            _ => self.thing(Object::new(class, args)),
        }
    }

    /// `__setstate__`, for those who have a state that we keep.
    pub(super) fn build(&mut self, value: Value, state: Value) {
        match value.tag() {
            Tag::Object => self.things[value.payload() as usize].state = state,
            Tag::Extra => {
                let get = |n| self.arg(state, n);
                let filled = match &self.extras[value.payload() as usize] {
                    Extra::Array(_) => match (get(1), get(2), get(3), get(4)) {
                        (Some(shape), Some(dtype), Some(fortran), Some(data)) => {
                            Extra::Array(Array { dtype, shape, fortran: fortran.as_bool() == Some(true), data })
                        }
                        _ => return,
                    },
                    Extra::NumpyDtype { code, .. } => match get(1).and_then(|o| self.str_bytes(o)) {
                        Some([order]) => Extra::NumpyDtype { code: *code, order: *order },
                        _ => return,
                    },
                    _ => return,
                };
                self.extras[value.payload() as usize] = filled;
            }
            _ => {}
        }
    }

    /// A persistent id: torch names a storage with it.
    pub(super) fn persistent(&mut self, id: Value) -> Result<Value, ImportError> {
        let kind = self.arg(id, 0).and_then(|k| self.str(k)).map(|k| k.into_owned());
        match kind.as_deref() {
            Some("storage") => {
                let dtype = match self.arg(id, 1).and_then(|t| self.known(t)) {
                    Some(KnownGlobal::StorageType(dtype)) => dtype,
                    _ => Dtype::U8,
                };
                let numel = self.arg(id, 4).and_then(|n| self.int(n)).and_then(|n| u64::try_from(n).ok());
                if let (Some(key), Some(numel)) = (self.arg(id, 2), numel) {
                    return self.extra(Extra::Storage(Storage { dtype, key, numel }));
                }
            }
            // The old format keeps a class with its source text.
            Some("module") => {
                if let Some(class) = self.arg(id, 1) {
                    return Ok(class);
                }
            }
            _ => {}
        }
        let class = self.find_global(b"pickle", b"persistent_id")?;
        self.thing(Object::new(class, id))
    }
}

/// The packed bytes of `datetime.datetime` and `datetime.date`, as `str()` shows them.
fn date_text(b: &[u8]) -> Option<String> {
    let (y, m, d) = match b {
        [y1, y2, m, d, ..] => (u16::from_be_bytes([*y1, *y2]), m & 0x7f, d),
        _ => return None,
    };
    let date = format!("{y:04}-{m:02}-{d:02}");
    match b.get(4..) {
        Some([]) => Some(date),
        Some([h, min, s, u1, u2, u3]) => {
            let micros = u32::from_be_bytes([0, *u1, *u2, *u3]);
            let fraction = if micros == 0 { String::new() } else { format!(".{micros:06}") };
            Some(format!("{date} {h:02}:{min:02}:{s:02}{fraction}"))
        }
        _ => None,
    }
}
