//! Pickles from a grammar: every opcode, and every class and function that the reader knows, with arguments of every type,
//! right and wrong.

use crate::pump::Dice;

/// Modules and names that mean something to the reader (`formats::import::torch::reduce`).
const GLOBALS: &[(&str, &str)] = &[
    ("builtins", "object"),
    ("builtins", "dict"),
    ("builtins", "list"),
    ("builtins", "tuple"),
    ("builtins", "set"),
    ("__builtin__", "frozenset"),
    ("builtins", "bytes"),
    ("__builtin__", "bytearray"),
    ("builtins", "str"),
    ("__builtin__", "unicode"),
    ("builtins", "complex"),
    ("builtins", "getattr"),
    ("collections", "OrderedDict"),
    ("collections", "Counter"),
    ("collections", "defaultdict"),
    ("collections", "deque"),
    ("_codecs", "encode"),
    ("copyreg", "_reconstructor"),
    ("copy_reg", "__newobj__"),
    ("copyreg", "__newobj_ex__"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch", "FloatStorage"),
    ("torch", "LongStorage"),
    ("torch", "BFloat16Storage"),
    ("torch", "BoolStorage"),
    ("torch.storage", "UntypedStorage"),
    ("torch.cuda", "HalfStorage"),
    ("torch", "float32"),
    ("torch", "int64"),
    ("torch", "complex64"),
    ("torch._utils", "_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_tensor_v3"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_parameter_with_state"),
    ("torch._tensor", "_rebuild_from_type_v2"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PureWindowsPath"),
    ("datetime", "datetime"),
    ("datetime", "date"),
    ("decimal", "Decimal"),
    ("slime.utils.types", "Sample"),
    ("slime.utils.types", "Sample.Status"),
];

/// Names that the reader of dumps looks for, and values that some reducers expect.
const WORDS: &[&str] = &[
    "samples",
    "index",
    "group_index",
    "trace",
    "events",
    "trace_id",
    "attempt",
    "type",
    "ts",
    "name",
    "span_id",
    "parent_span_id",
    "attrs",
    "span_start",
    "span_end",
    "rollout_id",
    "status",
    "reward",
    "tokens",
    "loss_mask",
    "rollout_log_probs",
    "prompt",
    "response",
    "metadata",
    "source",
    "storage",
    "module",
    "cpu",
    "cuda:0",
    "0",
    "latin1",
    "f8",
    "i4",
    "b1",
    "<",
    "|",
    "O8",
    "C",
    "F",
    "",
];

const MAX_DEPTH: usize = 6;

/// A pickle of at most `max` bytes.
pub fn make(dice: &mut Dice, max: usize) -> Vec<u8> {
    let mut pickle = Pickle { out: Vec::new(), dice, remembered: 0, max };
    if !pickle.dice.one_in(8) {
        pickle.op(0x80);
        let protocol = *pickle.dice.pick(&[0, 1, 2, 3, 4, 5, 255]);
        pickle.op(protocol);
    }
    if pickle.dice.one_in(4) {
        pickle.value(0);
    } else {
        pickle.dump();
    }
    pickle.op(b'.');
    let mut out = pickle.out;
    out.truncate(max);
    // Damage in some: what does not fit the grammar at all.
    if dice.one_in(4) && !out.is_empty() {
        let at = dice.below(out.len());
        out[at] = dice.roll() as u8;
    }
    out
}

struct Pickle<'a> {
    out: Vec<u8>,
    dice: &'a mut Dice,
    remembered: usize,
    max: usize,
}

impl Pickle<'_> {
    fn op(&mut self, op: u8) {
        self.out.push(op);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// What slime writes, of any values: a dict with samples that have traces.
    fn dump(&mut self) {
        self.bytes(b"}(");
        self.text("samples");
        self.op(b']');
        self.op(b'(');
        for _ in 0..1 + self.dice.below(2) {
            self.fields(&["index", "group_index", "status", "reward", "tokens", "metadata", "response"], 2);
            // The trace goes into the dict that was just made.
            self.text("trace");
            self.bytes(b"}(");
            self.text("events");
            self.bytes(b"](");
            for _ in 0..self.dice.below(4) {
                self.fields(&["type", "ts", "name", "attempt", "span_id", "parent_span_id", "attrs"], 4);
            }
            self.op(b'e');
            self.bytes(b"us");
        }
        self.op(b'e');
        if self.dice.one_in(2) {
            self.text("rollout_id");
            self.value(3);
        }
        self.op(b'u');
    }

    /// A dict with some of the names, each with the value that it should have, or any.
    fn fields(&mut self, names: &[&str], depth: usize) {
        self.bytes(b"}(");
        for name in names {
            if self.dice.one_in(6) {
                continue;
            }
            self.text(name);
            match *name {
                "type" if !self.dice.one_in(8) => {
                    let kind = *self.dice.pick(&["span_start", "span_end", "event"]);
                    self.text(kind);
                }
                "ts" if !self.dice.one_in(4) => {
                    let at = 1.7e9 + self.dice.below(100) as f64 / 8.0;
                    self.op(b'G');
                    self.bytes(&at.to_be_bytes());
                }
                "name" | "span_id" | "parent_span_id" if !self.dice.one_in(4) => {
                    let text = *self.dice.pick(&["a", "b", "c", "sglang_generate", "reward"]);
                    self.text(text);
                }
                _ => self.value(depth),
            }
        }
        self.op(b'u');
    }

    fn text(&mut self, text: &str) {
        let len = text.len();
        match self.dice.below(4) {
            0 => {
                self.bytes(&[0x8c, len as u8]);
                self.bytes(text.as_bytes());
            }
            1 => {
                self.op(0x8d);
                self.bytes(&(len as u64).to_le_bytes());
                self.bytes(text.as_bytes());
            }
            _ => {
                self.op(b'X');
                self.bytes(&(len as u32).to_le_bytes());
                self.bytes(text.as_bytes());
            }
        }
        self.maybe_remember();
    }

    fn maybe_remember(&mut self) {
        match self.dice.below(8) {
            0 => self.op(0x94),
            1 => {
                let number = self.remembered as u8;
                self.bytes(&[b'q', number]);
            }
            2 => {
                self.op(b'r');
                let far = self.dice.one_in(16);
                let number = if far { self.dice.roll() as u32 } else { self.remembered as u32 };
                self.bytes(&number.to_le_bytes());
            }
            3 => {
                let line = format!("p{}\n", self.remembered);
                self.bytes(line.as_bytes());
            }
            _ => return,
        }
        self.remembered += 1;
    }

    /// Exactly one value, of any type.
    fn value(&mut self, depth: usize) {
        let flat = depth >= MAX_DEPTH || self.out.len() > self.max * 3 / 4;
        match self.dice.below(if flat { 6 } else { 16 }) {
            0 => self.number(),
            1 => {
                let word = *self.dice.pick(WORDS);
                self.text(word);
            }
            2 => {
                let op = *self.dice.pick(b"N\x88\x89)]}\x8f");
                self.op(op);
            }
            3 => self.raw_bytes(),
            4 => self.recall(),
            5 => self.global(),
            6 => {
                let (open, close) = *self.dice.pick(&[(b"(", b't'), (b"(", b'l'), (b"(", 0x91)]);
                self.bytes(open);
                self.values(depth);
                self.op(close);
            }
            7 => {
                self.bytes(b"](");
                self.values(depth);
                self.op(b'e');
            }
            8 => {
                self.bytes(b"\x8f(");
                self.values(depth);
                self.op(0x90);
            }
            9 => {
                let count = 1 + self.dice.below(3);
                (0..count).for_each(|_| self.value(depth + 1));
                self.op(0x84 + count as u8);
            }
            10 => {
                let update = self.dice.one_in(2);
                self.bytes(if update { b"}(" } else { b"(" });
                for _ in 0..self.dice.below(4) {
                    self.value(depth + 2);
                    self.value(depth + 1);
                }
                self.op(if update { b'u' } else { b'd' });
            }
            11 => self.storage(depth),
            12 => self.tensor(depth),
            _ => self.object(depth),
        }
        self.maybe_remember();
        match self.dice.below(40) {
            0 => self.bytes(b"20"),
            1 => self.bytes(b"(1"),
            2 => {
                self.op(0x95);
                let length = self.dice.below(64) as u64;
                self.bytes(&length.to_le_bytes());
            }
            _ => {}
        }
    }

    fn values(&mut self, depth: usize) {
        for _ in 0..self.dice.below(5) {
            self.value(depth + 1);
        }
    }

    fn number(&mut self) {
        let any = self.dice.roll();
        let small = (any % 7) as u8;
        match self.dice.below(10) {
            0 => self.bytes(&[b'K', any as u8]),
            1 => {
                self.op(b'M');
                self.bytes(&(any as u16).to_le_bytes());
            }
            2 => {
                self.op(b'J');
                self.bytes(&(any as i32).to_le_bytes());
            }
            3 => {
                self.op(b'G');
                let float = *self.dice.pick(&[0.0, -1.5, f64::NAN, f64::INFINITY, 1e308, 5e-324, 1.7e9]);
                self.bytes(&float.to_be_bytes());
            }
            4 => {
                let len = self.dice.below(12) as u8;
                self.bytes(&[0x8a, len]);
                (0..len).for_each(|n| self.op((any >> (n % 8 * 8)) as u8));
            }
            5 => {
                let len = *self.dice.pick(&[0, 1, 9, -1, i32::MAX]);
                self.op(0x8b);
                self.bytes(&len.to_le_bytes());
                (0..len.clamp(0, 9)).for_each(|n| self.op(n as u8));
            }
            6 => {
                let line = *self.dice.pick(&["I01\n", "I00\n", "I-5\n", "L99999999999999999999L\n", "Ix\n", "I\n"]);
                self.bytes(line.as_bytes());
            }
            7 => {
                let line = *self.dice.pick(&["F1.5\n", "Fnan\n", "F-inf\n", "F1e999\n", "F\n"]);
                self.bytes(line.as_bytes());
            }
            _ => self.bytes(&[b'K', small]),
        }
    }

    fn raw_bytes(&mut self) {
        let len = *self.dice.pick(&[0usize, 1, 4, 8, 10, 16]);
        let claimed = if self.dice.one_in(12) { usize::MAX >> self.dice.below(60) } else { len };
        match self.dice.below(7) {
            0 => self.bytes(&[b'C', claimed as u8]),
            1 => {
                self.op(b'B');
                self.bytes(&(claimed as u32).to_le_bytes());
            }
            2 => {
                self.op(0x8e);
                self.bytes(&(claimed as u64).to_le_bytes());
            }
            3 => {
                self.op(0x96);
                self.bytes(&(claimed as u64).to_le_bytes());
            }
            4 => self.bytes(&[b'U', claimed as u8]),
            5 => {
                self.op(b'T');
                self.bytes(&(claimed as u32).to_le_bytes());
            }
            _ => {
                let line = *self.dice.pick(&["S'a\\x41\\n'\n", "S\"\n", "Va\\u00e9\n", "V\\ud800\n", "S'''\n"]);
                self.bytes(line.as_bytes());
                return;
            }
        }
        let byte = self.dice.roll() as u8;
        (0..len).for_each(|n| self.op(byte.wrapping_add(n as u8)));
    }

    fn recall(&mut self) {
        let number = self.dice.below(self.remembered.max(1) + 1);
        match self.dice.below(3) {
            0 => self.bytes(&[b'h', number as u8]),
            1 => {
                self.op(b'j');
                self.bytes(&(number as u32).to_le_bytes());
            }
            _ => {
                let line = format!("g{number}\n");
                self.bytes(line.as_bytes());
            }
        }
    }

    fn global(&mut self) {
        let (module, name) = *self.dice.pick(GLOBALS);
        match self.dice.below(8) {
            0 => {
                self.text(module);
                self.text(name);
                self.op(0x93);
            }
            1 => {
                let code = *self.dice.pick(&[1u8, 2, 250]);
                self.bytes(&[0x82, code]);
            }
            _ => {
                let line = format!("c{module}\n{name}\n");
                self.bytes(line.as_bytes());
            }
        }
    }

    /// A call of something known with any arguments, and state for what it makes.
    fn object(&mut self, depth: usize) {
        match self.dice.below(6) {
            0 => {
                self.op(b'(');
                self.global();
                self.values(depth);
                self.op(b'o');
            }
            1 => {
                let (module, name) = *self.dice.pick(GLOBALS);
                self.op(b'(');
                self.values(depth);
                let line = format!("i{module}\n{name}\n");
                self.bytes(line.as_bytes());
            }
            2 => {
                self.global();
                self.arguments(depth);
                self.op(0x81);
            }
            3 => {
                self.global();
                self.arguments(depth);
                self.bytes(b"}");
                self.op(0x92);
            }
            _ => {
                self.global();
                self.arguments(depth);
                self.op(b'R');
            }
        }
        while self.dice.one_in(3) {
            self.value(depth + 1);
            let op = *self.dice.pick(b"bbbas");
            if op == b's' {
                self.value(depth + 1);
            }
            self.op(op);
        }
    }

    fn arguments(&mut self, depth: usize) {
        match self.dice.below(6) {
            0 => self.op(b')'),
            1 => self.value(depth + 1),
            _ => {
                self.op(b'(');
                for _ in 0..self.dice.below(6) {
                    self.value(depth + 1);
                }
                self.op(b't');
            }
        }
    }

    /// What a persistent id means to torch.
    fn storage(&mut self, depth: usize) {
        self.op(b'(');
        let word = if self.dice.one_in(10) { "module" } else { "storage" };
        self.text(word);
        if self.dice.one_in(8) {
            self.value(depth + 1);
        } else {
            let name = *self.dice.pick(&["FloatStorage", "LongStorage", "ByteStorage", "BFloat16Storage", "NoStorage"]);
            let line = format!("ctorch\n{name}\n");
            self.bytes(line.as_bytes());
        }
        let key = *self.dice.pick(&["0", "1", "../0", ""]);
        self.text(key);
        self.text("cpu");
        self.size();
        if self.dice.one_in(4) {
            self.value(depth + 1);
        }
        self.op(b't');
        if self.dice.one_in(16) {
            self.bytes(b"0P0\n");
        } else {
            self.op(b'Q');
        }
    }

    /// A number of elements, most of them small, some absurd.
    fn size(&mut self) {
        match self.dice.below(6) {
            0 => self.number(),
            1 => {
                let large = *self.dice.pick(&[i64::MAX, i64::MIN, 1 << 40, 1 << 31, -1]);
                self.bytes(&[0x8a, 8]);
                self.bytes(&large.to_le_bytes());
            }
            _ => {
                let small = self.dice.below(5) as u8;
                self.bytes(&[b'K', small]);
            }
        }
    }

    fn sizes(&mut self) {
        self.op(b'(');
        for _ in 0..self.dice.below(4) {
            self.size();
        }
        self.op(b't');
    }

    fn tensor(&mut self, depth: usize) {
        let version = *self.dice.pick(&["_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"]);
        let line = format!("ctorch._utils\n{version}\n(");
        self.bytes(line.as_bytes());
        if self.dice.one_in(8) {
            self.value(depth + 1);
        } else {
            self.storage(depth);
        }
        self.size();
        self.sizes();
        self.sizes();
        self.op(0x89);
        self.bytes(b"ccollections\nOrderedDict\n)R");
        if version.ends_with("v3") {
            self.bytes(b"ctorch\nfloat32\n");
        }
        self.op(b't');
        self.op(b'R');
    }
}
