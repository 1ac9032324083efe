//! Where unpickled containers live, compactly, and how they are read.
//!
//! - A dict whose keys are text is a *shape* (its keys, shared by all dicts with the same keys in the same order) and a
//!   stretch of values. A rollout dump has millions of event dicts and a few dozen shapes.
//! - A list of numbers stays where it is: a stretch of opcodes in the file, decoded on demand.
//! - Everything is found by number, so that shared and cyclic references need no care, and nothing is freed one by one.

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::borrow::Cow;
use std::hash::BuildHasher as _;

use super::limits;
use super::source::Source;
use super::tensor::Extra;
use super::value::{OWNED, Tag, Value};
use crate::import::ImportError;

/// Number of an interned dict key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub(super) u32);

/// A container, by what its values need.
#[derive(Clone, Copy, Debug)]
enum Obj {
    Empty,
    /// A stretch of `slots`.
    Slots {
        start: u32,
        len: u32,
    },
    /// One of `vecs`: it grew after it was first filled. Dicts: keys and values in turn.
    Vec(u32),
    /// One of `runs`.
    Run(u32),
    /// A dict: a shape, and as many values in `slots`.
    Shaped {
        shape: u32,
        start: u32,
    },
}

/// Numbers, booleans and `None` that are next to each other in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub start: u64,
    pub end: u64,
    pub count: u32,
}

/// An object that is not built: what it would have been made of.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// A [`Tag::Global`], or what was in its place.
    pub class: Value,
    /// Arguments of its constructor or of the function that makes it.
    pub args: Value,
    /// What `__setstate__` would get: mostly the dict of its fields.
    pub state: Value,
    /// Appended items and set entries, for subclasses of list and dict.
    pub items: Value,
    pub entries: Value,
}

#[derive(Debug)]
pub(super) struct Global {
    pub module: Box<str>,
    pub name: Box<str>,
    pub known: super::reduce::KnownGlobal,
}

pub struct Heap {
    pub(super) source: Source,
    objects: Vec<Obj>,
    slots: Vec<Value>,
    vecs: Vec<Vec<Value>>,
    runs: Vec<Run>,
    shapes: Vec<Box<[Key]>>,
    shape_index: HashMap<Box<[Key]>, u32>,
    keys: Vec<Value>,
    key_index: HashTable<Key>,
    hasher: DefaultHashBuilder,
    /// Shapes met last, found by the positions of their keys, before any text is read.
    recent: Vec<Option<(Box<[Value]>, u32)>>,
    pub(super) globals: Vec<Global>,
    pub(super) things: Vec<Object>,
    pub(super) extras: Vec<Extra>,
    owned: Vec<Box<[u8]>>,
    /// Bytes that may still be made of this file.
    room: u64,
}

const RECENT: usize = 256;

impl Heap {
    pub(super) fn new(source: Source) -> Heap {
        let room = limits::OUTPUT_BASE.saturating_add(limits::MAX_GROWTH.saturating_mul(source.len() as u64));
        Heap {
            room,
            source,
            objects: Vec::new(),
            slots: Vec::new(),
            vecs: Vec::new(),
            runs: Vec::new(),
            shapes: Vec::new(),
            shape_index: HashMap::new(),
            keys: Vec::new(),
            key_index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            recent: vec![None; RECENT],
            globals: Vec::new(),
            things: Vec::new(),
            extras: Vec::new(),
            owned: Vec::new(),
        }
    }

    /// Bytes held, the file not counted.
    pub fn allocated(&self) -> usize {
        self.objects.capacity() * size_of::<Obj>()
            + self.slots.capacity() * size_of::<Value>()
            + self.vecs.iter().map(|v| v.capacity() * size_of::<Value>()).sum::<usize>()
    }

    // ---- making, for the reader of pickles ----

    /// Memory for what a pickle of this size usually holds, if there is enough.
    pub(super) fn reserve(&mut self, bytes: usize) {
        let _ = self.objects.try_reserve(bytes / 48);
        let _ = self.slots.try_reserve(bytes / 16);
    }

    fn object(&mut self, tag: Tag, obj: Obj) -> Result<Value, ImportError> {
        let number = self.objects.len() as u64;
        limits::check("values in the file", "MAX_OBJECTS", number, limits::MAX_OBJECTS)?;
        self.objects.push(obj);
        Ok(Value::tagged(tag, number))
    }

    pub(super) fn empty(&mut self, tag: Tag) -> Result<Value, ImportError> {
        self.object(tag, Obj::Empty)
    }

    /// Must be called before memory is used. What is in the file once is always granted; what names the same list or text
    /// again and again, to have it copied, is not.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), ImportError> {
        match self.room.checked_sub(bytes as u64) {
            Some(room) => self.room = room,
            None => {
                return Err(ImportError::Limit {
                    what: "the size of the values compared with the size of the file".into(),
                    name: "MAX_GROWTH",
                    limit: limits::MAX_GROWTH,
                });
            }
        }
        Ok(())
    }

    fn push_slots(&mut self, items: impl ExactSizeIterator<Item = Value>) -> Result<u32, ImportError> {
        let start = self.slots.len();
        let end = (start + items.len()) as u64;
        limits::check("values in the file", "MAX_SLOTS", end, limits::MAX_SLOTS)?;
        self.grow(items.len() * size_of::<Value>())?;
        self.slots.extend(items);
        Ok(start as u32)
    }

    pub(super) fn sequence(&mut self, tag: Tag, items: &[Value]) -> Result<Value, ImportError> {
        let start = self.push_slots(items.iter().copied())?;
        self.object(tag, Obj::Slots { start, len: items.len() as u32 })
    }

    /// More items for a list or set.
    pub(super) fn append(&mut self, list: Value, items: &[Value]) -> Result<(), ImportError> {
        let at = list.payload() as usize;
        match self.objects[at] {
            Obj::Empty => {
                let start = self.push_slots(items.iter().copied())?;
                self.objects[at] = Obj::Slots { start, len: items.len() as u32 };
            }
            Obj::Vec(v) => self.vecs[v as usize].extend_from_slice(items),
            Obj::Slots { .. } | Obj::Run(_) => {
                self.grow(self.len(list) * size_of::<Value>())?;
                let mut all: Vec<Value> = self.items(list).collect();
                all.extend_from_slice(items);
                self.objects[at] = Obj::Vec(self.vecs.len() as u32);
                self.vecs.push(all);
            }
            Obj::Shaped { .. } => {}
        }
        Ok(())
    }

    /// More numbers for a list, by their place in the file. `false` where the list holds other things already.
    pub(super) fn append_run(&mut self, list: Value, run: Run) -> bool {
        let at = list.payload() as usize;
        match self.objects[at] {
            Obj::Empty => {
                self.objects[at] = Obj::Run(self.runs.len() as u32);
                self.runs.push(run);
                true
            }
            Obj::Run(r) => {
                let old = &mut self.runs[r as usize];
                // Where nothing but `APPENDS`, `MARK` and frames lies between, the stretches are one.
                let mut pos = old.end as usize;
                while pos < run.start as usize
                    && let Some((None, next)) = super::pickle::scalar_at(&self.source, pos)
                {
                    pos = next;
                }
                match old.count.checked_add(run.count) {
                    Some(count) if pos == run.start as usize => {
                        *old = Run { end: run.end, count, ..*old };
                        true
                    }
                    _ => false,
                }
            }
            _ => false,
        }
    }

    /// Keys and values in turn, for a dict.
    pub(super) fn set_items(&mut self, dict: Value, pairs: &[Value]) -> Result<(), ImportError> {
        let at = dict.payload() as usize;
        if let Obj::Empty = self.objects[at]
            && let Some(shape) = self.shape_of(pairs)?
        {
            let start = self.push_slots(pairs.iter().skip(1).step_by(2).copied())?;
            self.objects[at] = Obj::Shaped { shape, start };
            return Ok(());
        }
        self.grow(size_of_val(pairs))?;
        if let Obj::Vec(v) = self.objects[at] {
            self.vecs[v as usize].extend_from_slice(pairs);
            return Ok(());
        }
        let mut all = Vec::new();
        for (k, v) in self.entries(dict) {
            all.push(k);
            all.push(v);
        }
        all.extend_from_slice(pairs);
        self.objects[at] = Obj::Vec(self.vecs.len() as u32);
        self.vecs.push(all);
        Ok(())
    }

    /// The shape of a dict's first keys; `None` if it has too many or one is not text.
    fn shape_of(&mut self, pairs: &[Value]) -> Result<Option<u32>, ImportError> {
        let count = pairs.len() / 2;
        if count > limits::MAX_SHAPE_KEYS {
            return Ok(None);
        }
        let keys = || pairs.iter().step_by(2);
        let mut hash = count as u64;
        for key in keys() {
            if key.tag() != Tag::Str {
                return Ok(None);
            }
            hash = (hash.rotate_left(5) ^ key.bits()).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        let place = (hash >> 40) as usize % RECENT;
        if let Some((recent, shape)) = &self.recent[place]
            && recent.len() == count
            && keys().eq(recent.iter())
        {
            return Ok(Some(*shape));
        }
        let interned: Box<[Key]> = keys().map(|k| self.intern(*k)).collect();
        let shape = match self.shape_index.get(&interned) {
            Some(shape) => *shape,
            None => {
                let shape = self.shapes.len() as u32;
                self.shape_index.insert(interned.clone(), shape);
                self.shapes.push(interned);
                shape
            }
        };
        self.recent[place] = Some((keys().copied().collect(), shape));
        Ok(Some(shape))
    }

    fn intern(&mut self, text: Value) -> Key {
        let source = self.source.clone();
        let bytes = text_bytes(&source, &self.owned, text);
        let hash = self.hasher.hash_one(bytes);
        let (keys, owned, hasher) = (&self.keys, &self.owned, &self.hasher);
        let of = |k: &Key| text_bytes(&source, owned, keys[k.0 as usize]);
        if let Some(key) = self.key_index.find(hash, |k| of(k) == bytes) {
            return *key;
        }
        let key = Key(self.keys.len() as u32);
        self.key_index.insert_unique(hash, key, |k| hasher.hash_one(if *k == key { bytes } else { of(k) }));
        self.keys.push(text);
        key
    }

    pub(super) fn owned_text(&mut self, tag: Tag, bytes: impl Into<Box<[u8]>>) -> Value {
        self.owned.push(bytes.into());
        Value::tagged(tag, OWNED | (self.owned.len() - 1) as u64)
    }

    pub(super) fn thing(&mut self, object: Object) -> Result<Value, ImportError> {
        let number = self.things.len() as u64;
        limits::check("objects in the file", "MAX_OBJECTS", number, limits::MAX_OBJECTS)?;
        self.things.push(object);
        Ok(Value::tagged(Tag::Object, number))
    }

    pub(super) fn extra(&mut self, extra: Extra) -> Result<Value, ImportError> {
        let number = self.extras.len() as u64;
        limits::check("tensors in the file", "MAX_OBJECTS", number, limits::MAX_OBJECTS)?;
        self.extras.push(extra);
        Ok(Value::tagged(Tag::Extra, number))
    }

    /// Frees what only the making needed.
    pub(super) fn finish(&mut self) {
        self.recent = Vec::new();
        self.shape_index = HashMap::new();
    }

    // ---- reading ----

    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The number of a key, where any dict of the file has it.
    pub fn key(&self, name: &str) -> Option<Key> {
        let hash = self.hasher.hash_one(name.as_bytes());
        let of = |k: &Key| text_bytes(&self.source, &self.owned, self.keys[k.0 as usize]);
        self.key_index.find(hash, |k| of(k) == name.as_bytes()).copied()
    }

    /// An entry of a dict. As in Python, the last of equal keys counts.
    pub fn get(&self, dict: Value, name: &str) -> Option<Value> {
        if dict.tag() != Tag::Dict {
            return None;
        }
        match self.objects[dict.payload() as usize] {
            Obj::Shaped { .. } => self.get_key(dict, self.key(name)?),
            _ => self.entries(dict).filter(|(k, _)| self.str_bytes(*k) == Some(name.as_bytes())).map(|(_, v)| v).last(),
        }
    }

    /// [`Heap::get`] for frequent calls: the key was looked up once.
    pub fn get_key(&self, dict: Value, key: Key) -> Option<Value> {
        if dict.tag() != Tag::Dict {
            return None;
        }
        match self.objects[dict.payload() as usize] {
            Obj::Shaped { shape, start } => {
                let at = self.shapes[shape as usize].iter().rposition(|k| *k == key)?;
                Some(self.slots[start as usize + at])
            }
            Obj::Empty => None,
            _ => {
                let name = self.str_bytes(self.keys[key.0 as usize]);
                self.entries(dict).filter(|(k, _)| self.str_bytes(*k) == name).map(|(_, v)| v).last()
            }
        }
    }

    /// The shape of a dict, for caches of field positions. Dicts of equal shape have the same keys.
    pub fn shape(&self, dict: Value) -> Option<u32> {
        match (dict.tag(), self.objects.get(dict.payload() as usize)) {
            (Tag::Dict, Some(Obj::Shaped { shape, .. })) => Some(*shape),
            _ => None,
        }
    }

    /// Values of a dict that has a shape, in the order of [`Heap::shape_keys`].
    pub fn shaped_values(&self, dict: Value) -> &[Value] {
        match (dict.tag(), self.objects.get(dict.payload() as usize)) {
            (Tag::Dict, Some(Obj::Shaped { shape, start })) => {
                let len = self.shapes[*shape as usize].len();
                &self.slots[*start as usize..*start as usize + len]
            }
            _ => &[],
        }
    }

    pub fn shape_keys(&self, shape: u32) -> &[Key] {
        &self.shapes[shape as usize]
    }

    /// A field of an object or an entry of a dict.
    pub fn field(&self, value: Value, name: &str) -> Option<Value> {
        match value.tag() {
            Tag::Dict => self.get(value, name),
            Tag::Object => {
                let object = self.things[value.payload() as usize];
                match object.state.tag() {
                    Tag::Dict => self.get(object.state, name),
                    // `__slots__`: a pair of dicts.
                    Tag::Tuple => self.items(object.state).filter_map(|d| self.get(d, name)).last(),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    pub fn entries(&self, dict: Value) -> Entries<'_> {
        if dict.tag() != Tag::Dict {
            return Entries::Pairs { items: [].iter() };
        }
        match self.objects[dict.payload() as usize] {
            Obj::Shaped { shape, start } => {
                let keys = &self.shapes[shape as usize];
                let values = &self.slots[start as usize..start as usize + keys.len()];
                Entries::Shaped { heap: self, keys: keys.iter(), values: values.iter() }
            }
            Obj::Vec(v) => Entries::Pairs { items: self.vecs[v as usize].iter() },
            _ => Entries::Pairs { items: [].iter() },
        }
    }

    /// Items of a list, tuple or set. Nothing for anything else.
    pub fn items(&self, value: Value) -> Items<'_> {
        if !matches!(value.tag(), Tag::List | Tag::Tuple | Tag::Set | Tag::FrozenSet) {
            return Items::Slice([].iter());
        }
        match self.objects[value.payload() as usize] {
            Obj::Slots { start, len } => Items::Slice(self.slots[start as usize..(start + len) as usize].iter()),
            Obj::Vec(v) => Items::Slice(self.vecs[v as usize].iter()),
            Obj::Run(r) => {
                let run = self.runs[r as usize];
                Items::Run(RunItems { src: &self.source, pos: run.start as usize, left: run.count })
            }
            _ => Items::Slice([].iter()),
        }
    }

    /// Items of a list or tuple, or entries of a dict.
    pub fn len(&self, value: Value) -> usize {
        match value.tag() {
            Tag::Dict => match self.objects[value.payload() as usize] {
                Obj::Shaped { shape, .. } => self.shapes[shape as usize].len(),
                Obj::Vec(v) => self.vecs[v as usize].len() / 2,
                _ => 0,
            },
            Tag::List | Tag::Tuple | Tag::Set | Tag::FrozenSet => match self.objects[value.payload() as usize] {
                Obj::Slots { len, .. } => len as usize,
                Obj::Vec(v) => self.vecs[v as usize].len(),
                Obj::Run(r) => self.runs[r as usize].count as usize,
                _ => 0,
            },
            _ => 0,
        }
    }

    pub fn object_of(&self, value: Value) -> Option<&Object> {
        (value.tag() == Tag::Object).then(|| &self.things[value.payload() as usize])
    }

    pub fn extra_of(&self, value: Value) -> Option<&Extra> {
        (value.tag() == Tag::Extra).then(|| &self.extras[value.payload() as usize])
    }

    /// Module and name of a class or function.
    pub fn global(&self, value: Value) -> Option<(&str, &str)> {
        let global = (value.tag() == Tag::Global).then(|| &self.globals[value.payload() as usize])?;
        Some((&global.module, &global.name))
    }

    pub(super) fn known(&self, value: Value) -> Option<super::reduce::KnownGlobal> {
        (value.tag() == Tag::Global).then(|| self.globals[value.payload() as usize].known)
    }

    /// Bytes of a text, as written in the file: UTF-8, except that lone surrogates may occur.
    pub fn str_bytes(&self, value: Value) -> Option<&[u8]> {
        (value.tag() == Tag::Str).then(|| text_bytes(&self.source, &self.owned, value))
    }

    pub fn str(&self, value: Value) -> Option<Cow<'_, str>> {
        // Nearly all text is whole, and that is checked faster than it is mended.
        self.str_bytes(value).map(|bytes| match std::str::from_utf8(bytes) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => String::from_utf8_lossy(bytes),
        })
    }

    /// Bytes objects that are in the file as they are. Others: [`Heap::bytes`].
    pub(super) fn raw_bytes(&self, value: Value) -> Option<&[u8]> {
        (value.tag() == Tag::Bytes).then(|| text_bytes(&self.source, &self.owned, value))
    }

    /// Bytes objects, also those that protocol 2 wrote as text in Latin-1.
    pub fn bytes(&self, value: Value) -> Option<Cow<'_, [u8]>> {
        match (value.tag(), self.extra_of(value)) {
            (Tag::Bytes, _) => self.raw_bytes(value).map(Cow::Borrowed),
            (_, Some(Extra::Latin1(text))) => {
                let text = std::str::from_utf8(self.str_bytes(*text)?).ok()?;
                text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect::<Option<Vec<u8>>>().map(Cow::Owned)
            }
            _ => None,
        }
    }

    /// An integer that fits, not a boolean.
    pub fn int(&self, value: Value) -> Option<i64> {
        match value.tag() {
            Tag::Int => value.as_small(),
            Tag::Long => super::pickle::long_at(&self.source, value.payload() as usize)?.to_i64(),
            _ => None,
        }
    }

    /// Decimal digits of a [`Tag::Long`]; `None` above [`limits::MAX_LONG_BYTES`].
    pub fn long_digits(&self, value: Value) -> Option<String> {
        super::pickle::long_at(&self.source, value.payload() as usize)?.digits()
    }
}

/// Bytes of a [`Tag::Str`] or [`Tag::Bytes`]. The reader of pickles checked the length when it made the value.
fn text_bytes<'a>(src: &'a [u8], owned: &'a [Box<[u8]>], value: Value) -> &'a [u8] {
    let at = value.payload();
    if at & OWNED != 0 {
        return &owned[(at & !OWNED) as usize];
    }
    let at = at as usize;
    match src.get(at) {
        Some(b'X' | b'B' | b'T') => {
            let len = u32::from_le_bytes(src[at + 1..at + 5].try_into().unwrap_or_default()) as usize;
            &src[at + 5..at + 5 + len]
        }
        Some(0x8c | b'C' | b'U') => &src[at + 2..at + 2 + src[at + 1] as usize],
        Some(_) => {
            let len = u64::from_le_bytes(src[at + 1..at + 9].try_into().unwrap_or_default()) as usize;
            &src[at + 9..at + 9 + len]
        }
        None => &[],
    }
}

#[derive(Clone)]
pub enum Entries<'a> {
    Shaped { heap: &'a Heap, keys: std::slice::Iter<'a, Key>, values: std::slice::Iter<'a, Value> },
    Pairs { items: std::slice::Iter<'a, Value> },
}

impl Iterator for Entries<'_> {
    type Item = (Value, Value);

    fn next(&mut self) -> Option<(Value, Value)> {
        match self {
            Entries::Shaped { heap, keys, values } => Some((heap.keys[keys.next()?.0 as usize], *values.next()?)),
            Entries::Pairs { items } => Some((*items.next()?, *items.next()?)),
        }
    }
}

#[derive(Clone)]
pub enum Items<'a> {
    Slice(std::slice::Iter<'a, Value>),
    Run(RunItems<'a>),
}

impl Iterator for Items<'_> {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        match self {
            Items::Slice(items) => items.next().copied(),
            Items::Run(run) => run.next(),
        }
    }
}

/// Reads a [`Run`] again.
#[derive(Clone)]
pub struct RunItems<'a> {
    src: &'a [u8],
    pos: usize,
    left: u32,
}

impl Iterator for RunItems<'_> {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.left = self.left.checked_sub(1)?;
        loop {
            match super::pickle::scalar_at(self.src, self.pos)? {
                (Some(value), next) => {
                    self.pos = next;
                    return Some(value);
                }
                (None, next) => self.pos = next,
            }
        }
    }
}
