//! Files that mean harm, or are damaged. None may run anything, panic, hang or ask for much memory.

use std::path::{Path, PathBuf};

use rollscope_formats::export::slime_cache;
use rollscope_formats::import::slime_pt::Dump;
use rollscope_formats::import::torch::render::Style;
use rollscope_formats::import::torch::{Tag, Torch};
use rollscope_formats::import::{ImportError, ImportOptions};
use rollscope_formats::testing::exercise;
use rollscope_formats::testing::torch_writer::{Archive, Pickler, torch_file};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/slime").join(name)
}

fn pickle(bytes: &[u8]) -> Result<Torch, ImportError> {
    Torch::from_bytes(torch_file(bytes))
}

#[test]
fn nothing_is_called_whatever_is_named() {
    let mark = std::env::temp_dir().join(format!("rollscope-was-executed-{}", std::process::id()));
    let command = format!("touch {}", mark.display());
    let text = |s: &str| [b"X".as_slice(), &(s.len() as u32).to_le_bytes(), s.as_bytes()].concat();
    for (module, name) in [
        ("os", "system"),
        ("posix", "system"),
        ("subprocess", "call"),
        ("subprocess", "Popen"),
        ("builtins", "eval"),
        ("builtins", "exec"),
        ("__builtin__", "eval"),
        ("builtins", "__import__"),
        ("builtins", "getattr"),
        ("builtins", "open"),
        ("torch", "load"),
        ("torch.storage", "_load_from_bytes"),
        ("torch.hub", "load"),
        ("numpy.testing._private.utils", "runstring"),
        ("pickle", "loads"),
        ("runpy", "_run_code"),
        ("nt", "system"),
    ] {
        let call: [Vec<u8>; 6] = [
            // GLOBAL, REDUCE
            [format!("\x02c{module}\n{name}\n").as_bytes(), &text(&command), b"\x85R."].concat(),
            // STACK_GLOBAL, REDUCE
            [b"\x04".as_slice(), &text(module), &text(name), b"\x93", &text(&command), b"\x85R."].concat(),
            // INST
            [b"\x02(".as_slice(), &text(&command), format!("i{module}\n{name}\n.").as_bytes()].concat(),
            // OBJ
            [format!("\x02(c{module}\n{name}\n").as_bytes(), &text(&command), b"o."].concat(),
            // NEWOBJ
            [format!("\x02c{module}\n{name}\n").as_bytes(), &text(&command), b"\x85\x81."].concat(),
            // NEWOBJ_EX
            [format!("\x04c{module}\n{name}\n").as_bytes(), &text(&command), b"\x85}\x92."].concat(),
        ];
        for bytes in call {
            let torch = pickle(&[b"\x80".as_slice(), &bytes].concat()).unwrap();
            assert_eq!(torch.root.tag(), Tag::Object, "{module}.{name}");
            assert_eq!(torch.class_name(torch.root), Some((module, name)));
            let shown = torch.json(torch.root, Style::Typed, 10_000);
            serde_json::from_str::<serde_json::Value>(&shown).unwrap();
        }
        // As the state, the items, the key and the value of others, and beside a real sample.
        let evil = [format!("c{module}\n{name}\n").as_bytes(), &text(&command), b"\x85R"].concat();
        for around in [
            [b"\x80\x02]".as_slice(), &evil, b"a."].concat(),
            [b"\x80\x02}".as_slice(), &evil, b"Ns."].concat(),
            [b"\x80\x02}N".as_slice(), &evil, b"s."].concat(),
            [b"\x80\x02cm\nC\n)\x81".as_slice(), &evil, b"b."].concat(),
            [b"\x80\x02".as_slice(), &evil, b"}(", &text("samples"), b"]ub."].concat(),
            [b"\x80\x02".as_slice(), &evil, b"Q."].concat(),
            [b"\x80\x02}(".as_slice(), &text("samples"), b"](}", &evil, b"Ns", &evil, b"eu."].concat(),
        ] {
            exercise(torch_file(&around));
        }
    }
    assert!(!mark.exists());
}

#[test]
fn getattr_makes_a_name_and_nothing_else() {
    let torch = pickle(b"\x80\x02c__builtin__\ngetattr\ncos\npath\nX\x06\0\0\0system\x86R.").unwrap();
    assert_eq!(torch.heap.global(torch.root), Some(("os", "path.system")));
    assert_eq!(torch.python_str(torch.root), "<class 'os.path.system'>");
}

#[test]
fn a_state_of_the_wrong_type_does_no_harm() {
    // `copyreg._reconstructor(C, dict or list, state)`, then entries and items for what should be a dict or a list.
    for base in ["dict", "list", "object"] {
        for state in
            [&b"N"[..], b"K\x01", b"X\x01\0\0\0a", b"]", b"}", b")", b"G\0\0\0\0\0\0\0\0", b"\x88", b"cos\nsystem\n"]
        {
            for more in [&b""[..], b"K\x01K\x02s", b"(K\x01K\x02u", b"K\x01a", b"(K\x01K\x02e", b"}b"] {
                let made = format!("\x02ccopyreg\n_reconstructor\n(cm\nC\nc__builtin__\n{base}\n");
                let bytes = [b"\x80".as_slice(), made.as_bytes(), state, b"tR", more, b"."].concat();
                if let Ok(torch) = pickle(&bytes) {
                    torch.python_str(torch.root);
                    let shown = torch.json(torch.root, Style::Typed, 10_000);
                    serde_json::from_str::<serde_json::Value>(&shown).unwrap();
                }
                exercise(torch_file(&bytes));
            }
        }
    }
}

fn sentence(error: &ImportError) -> String {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.contains('\n') && text.len() < 500, "{text}");
    text
}

#[test]
fn what_is_no_dump_gets_one_sentence() {
    let open = |bytes: Vec<u8>| match Dump::from_bytes(bytes, Path::new("x.pt")) {
        Ok(_) => panic!("that is no dump"),
        Err(e) => sentence(&e),
    };
    assert!(open(Vec::new()).contains("not a torch file"));
    assert!(open(b"hello".to_vec()).contains("not a torch file"));
    assert!(open(b"PK\x03\x04".to_vec()).contains("damaged"));
    assert!(open(torch_file(b"\x80\x02N.")).contains("not a rollout dump"));
    assert!(open(torch_file(b"\x80\x02}X\x01\0\0\0wK\x01s.")).contains("a dict with 1 entries (w)"));
    assert!(open(torch_file(b"\x80\x02](K\x01K\x02e.")).contains("not a rollout dump"));
    let weights = std::fs::read(fixture("../torch/dtypes_p2.pt")).unwrap();
    assert!(open(weights).contains("float64"));
    let mut zip = Archive::new(Vec::new(), "a");
    zip.entry("other", b"x").unwrap();
    assert!(open(zip.finish().unwrap()).contains("no data.pkl"));
    assert!(Dump::open(Path::new("/nowhere/at/all.pt")).is_err());
    assert!(Dump::open(&std::env::temp_dir()).is_err());
}

#[test]
fn damaged_pickles_are_refused() {
    for bytes in [
        b"".as_slice(),
        b"\x80\x02",
        b"\x80\x09N.",
        b".",
        b"0.",
        b"a.",
        b"e.",
        b"(e.",
        b"u.",
        b"}(K\x01u.",
        b"K\x01K\x02s.",
        b"K\x01(K\x02e.",
        b"NNa.",
        b"\x85.",
        b"t.",
        b"R.",
        b"NR.",
        b"b.",
        b"h\x05.",
        b"q\x05.",
        b"j\xff\xff\xff\xff.",
        b"X\xff\xff\xff\xffabc.",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        b"\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x8b\xff\xff\xff\xff.",
        b"\x8a\xff.",
        b"](K\x01K",
        b"](G\0e.",
        b"I12",
        b"Iabc\n.",
        b"Lx\n.",
        b"F1.2.3\n.",
        b"cos\n",
        b"\x93.",
        b"NN\x93.",
        b"\x97.",
        b"\xff.",
        b"Q.",
        b"2.",
        b"o.",
        b"(o.",
        b"p1\n.",
        b"gx\n.",
    ] {
        assert!(pickle(bytes).is_err(), "{bytes:x?}");
    }
    // Odd, but whole.
    for bytes in [
        b"N.".as_slice(),
        b"((1N.",
        b"(0N.",
        b"N\x98.",
        b"](e.",
        b"}(u.",
        b"N2\x86.",
        b"Nr\xff\xff\xff\x7f.",
        b"\x8a\0.",
    ] {
        assert!(pickle(bytes).is_ok(), "{bytes:x?}");
    }
}

/// Lists that double, 2^60 items when written out; the last is remembered as 60 and stands on the stack.
fn doubling() -> Vec<u8> {
    let mut bytes = b"\x80\x02]q\0".to_vec();
    for n in 0..60u8 {
        bytes.extend_from_slice(&[b']', b'q', n + 1, b'(', b'h', n, b'h', n, b'e']);
    }
    bytes
}

#[test]
fn shared_values_are_not_written_out_without_end() {
    let mut bytes = doubling();
    bytes.push(b'.');
    let torch = pickle(&bytes).unwrap();
    for style in [Style::Slime, Style::Typed] {
        // Whatever the caller allows, a small file gives no large text.
        for allowed in [10_000, usize::MAX] {
            assert!(torch.json(torch.root, style, allowed).len() < allowed.min(200_000) + 10_000);
        }
    }
    assert!(torch.python_str(torch.root).len() < 100_000);
    // The same as attributes, reward, metadata, label, ids, names and time of a sample.
    for field in ["attrs", "name", "span_id", "parent_span_id", "ts", "attempt", "type"] {
        let mut p = Pickler::new();
        p.out = doubling();
        p.op(b'0');
        p.op(b']');
        bomb_sample(&mut p, field);
        p.op(b'a');
        let file = torch_file(&p.finish());
        let dump = Dump::from_bytes(file.clone(), Path::new("x.pt")).unwrap();
        let cache = slime_cache::to_vec(&dump, "x", 0.0).unwrap().len();
        assert!(cache < 4 << 20, "{field}: {cache}");
        let mut columns = 0;
        dump.batches(&ImportOptions::default(), &mut |_, batch| {
            columns += batch.get_array_memory_size();
            Ok(())
        })
        .unwrap();
        assert!(columns < 8 << 20, "{field}: {columns}");
        assert!(exercise(file));
    }
}

#[test]
fn nesting_without_end_and_cycles_are_cut() {
    let mut deep = vec![b']'; 1_000_000];
    deep.extend(vec![b'a'; 999_999]);
    deep.push(b'.');
    let torch = pickle(&deep).unwrap();
    assert!(torch.json(torch.root, Style::Slime, 1 << 20).len() < 1000);
    let torch = pickle(b"\x80\x02]q\0h\0a}q\x01h\x01h\x01sa.").unwrap();
    assert!(torch.json(torch.root, Style::Slime, 1 << 16).len() < 1 << 18);
    assert!(torch.python_str(torch.root).len() < 1 << 20);
    exercise(torch_file(b"\x80\x02]q\0h\0a."));
    exercise(torch_file(b"\x80\x02}q\0(X\x07\0\0\0samples](h\0h\0h\0eX\x05\0\0\0traceh\0X\x06\0\0\0events](h\0h\0eu."));
}

#[test]
fn one_sample_many_times_is_refused_where_it_grows_too_much() {
    let mut p = Pickler::new();
    p.op(b']');
    p.op(b'(');
    bomb_sample(&mut p, "");
    let n = p.put();
    for _ in 0..100_000 {
        p.get(n);
    }
    p.op(b'e');
    let dump = Dump::from_bytes(torch_file(&p.finish()), Path::new("x.pt")).unwrap();
    assert_eq!(dump.samples().len(), 100_001);
    let mut written = Counted(0);
    let over = slime_cache::write(&dump, "x", 0.0, &mut written).unwrap_err();
    assert!(matches!(over, ImportError::Limit { name: "MAX_GROWTH", .. }), "{over}");
    assert!(written.0 < 64 << 20, "{}", written.0);
}

#[test]
fn one_long_text_many_times_is_refused_where_it_grows_too_much() {
    let mut p = Pickler::new();
    let text = p.push_text(&"x".repeat(1 << 20));
    p.op(b'0');
    p.list(1, |p, _| {
        p.dict(1, |p| {
            p.shared("trace");
            p.dict(1, |p| {
                p.shared("events");
                p.list(3000, |p, _| {
                    p.dict(2, |p| {
                        p.shared("ts");
                        p.float(1.0);
                        p.shared("attrs");
                        p.dict(1, |p| {
                            p.shared("k");
                            p.get(text);
                        });
                    });
                });
            });
        });
    });
    let dump = Dump::from_bytes(torch_file(&p.finish()), Path::new("x.pt")).unwrap();
    let mut written = Counted(0);
    let over = slime_cache::write(&dump, "x", 0.0, &mut written).unwrap_err();
    assert!(matches!(over, ImportError::Limit { name: "MAX_GROWTH", .. }), "{over}");
    assert!(written.0 < 1000, "{}", written.0);
    let mut batches = 0;
    let over = dump.batches(&ImportOptions::default(), &mut |_, _| {
        batches += 1;
        Ok(())
    });
    let over = over.unwrap_err();
    assert!(matches!(over, ImportError::Limit { name: "MAX_GROWTH", .. }), "{over}");
    assert_eq!(batches, 0);
}

#[test]
fn memo_numbers_may_be_sparse() {
    let mut bytes = b"\x80\x02N".to_vec();
    for n in 0..100_000u32 {
        bytes.push(b'r');
        bytes.extend_from_slice(&n.wrapping_mul(2_654_435_761).to_le_bytes());
    }
    bytes.push(b'.');
    pickle(&bytes).unwrap();
}

/// Counts what is written.
struct Counted(usize);

impl std::io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A sample whose trace has a few events; `field` of them is the list remembered as 60.
fn bomb_sample(p: &mut Pickler, field: &str) {
    p.dict(4, |p| {
        for name in ["reward", "metadata", "label"] {
            p.shared(name);
            if field.is_empty() { p.none() } else { p.get(60) }
        }
        p.shared("trace");
        p.dict(1, |p| {
            p.shared("events");
            p.list(3, |p, n| {
                p.dict(7, |p| {
                    for name in ["type", "ts", "name", "span_id", "parent_span_id", "attempt", "attrs"] {
                        p.shared(name);
                        match name {
                            _ if name == field => p.get(60),
                            "type" => p.shared(["span_start", "span_end", "event"][n]),
                            "ts" => p.float(1e9 + n as f64),
                            "attempt" => p.int(0),
                            "attrs" => p.none(),
                            _ => p.shared("same"),
                        }
                    }
                });
            });
        });
    });
}

#[test]
fn tensors_that_do_not_fit_their_storage_are_not_read() {
    for (numel, offset, size, stride) in [
        (4, 0, 5, 1),
        (4, 4, 1, 1),
        (4, 0, 2, 4),
        (4, 1 << 40, 1, 1),
        (1 << 40, 0, 1 << 40, 1),
        (4, 0, 2, -1),
        (4, 0, 4, i64::MAX),
    ] {
        let mut p = Pickler::new();
        p.global("torch._utils", "_rebuild_tensor_v2");
        p.op(b'(');
        p.op(b'(');
        p.shared("storage");
        p.global("torch", "LongStorage");
        p.push_text("0");
        p.push_text("cpu");
        p.int(numel);
        p.op(b't');
        p.op(b'Q');
        p.int(offset);
        p.int(size);
        p.op(0x85);
        p.int(stride);
        p.op(0x85);
        p.bool(false);
        p.none();
        p.op(b't');
        p.op(b'R');
        let pickle = p.finish();
        let mut archive = Archive::new(Vec::new(), "a");
        archive.entry("data.pkl", &pickle).unwrap();
        archive.entry("data/0", &[0; 32]).unwrap();
        let torch = Torch::from_bytes(archive.finish().unwrap()).unwrap();
        assert!(torch.view(torch.root).is_none(), "{numel} {offset} {size} {stride}");
        assert!(torch.integers(torch.root, 10).is_none());
        assert!(torch.python_str(torch.root).starts_with("tensor(shape="));
    }
    // Without end, but of one element: only what is asked for is read.
    let mut p = Pickler::new();
    p.tensor("LongStorage", "0", 4);
    let mut archive = Archive::new(Vec::new(), "a");
    archive.entry("data.pkl", &p.finish()).unwrap();
    archive.entry("data/0", &[1; 32]).unwrap();
    let torch = Torch::from_bytes(archive.finish().unwrap()).unwrap();
    assert_eq!(torch.integers(torch.root, 2), Some(vec![0x0101_0101_0101_0101; 2]));
}

#[test]
fn archives_that_torch_does_not_write_are_refused() {
    let good = torch_file(b"\x80\x02].");
    assert!(Torch::from_bytes(good.clone()).is_ok());
    let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|w| w == what).unwrap();
    let refused = |bytes: Vec<u8>| match Torch::from_bytes(bytes) {
        Ok(_) => panic!("that is no torch file"),
        Err(e) => sentence(&e),
    };
    // Compressed, as a bomb would be.
    let mut bomb = good.clone();
    let directory = find(&bomb, b"PK\x01\x02");
    bomb[directory + 10] = 8;
    assert!(refused(bomb).contains("compressed"));
    // Lies about the size: more than there is, and another size unpacked.
    let mut long = good.clone();
    long[directory + 20..directory + 28].copy_from_slice(&[0xf0, 0xff, 0xff, 0x7f, 0xf0, 0xff, 0xff, 0x7f]);
    refused(long);
    let mut other = good.clone();
    other[directory + 24] = 99;
    assert!(refused(other).contains("size"));
    // Two entries over the same bytes.
    let mut overlap = good.clone();
    let second = directory + 4 + find(&overlap[directory + 4..], b"PK\x01\x02");
    let first_place: [u8; 4] = overlap[directory + 42..directory + 46].try_into().unwrap();
    overlap[second + 42..second + 46].copy_from_slice(&first_place);
    refused(overlap);
    // Names that would climb out are names like any other; two pickles are one too many.
    let mut climbing = Archive::new(Vec::new(), "../../etc");
    climbing.entry("data.pkl", b"\x80\x02].").unwrap();
    climbing.entry("data/../../../passwd", b"x").unwrap();
    assert!(Torch::from_bytes(climbing.finish().unwrap()).is_ok());
    let mut twice = Archive::new(Vec::new(), "a");
    twice.entry("data.pkl", b"\x80\x02].").unwrap();
    twice.entry("data.pkl", b"\x80\x02}.").unwrap();
    assert!(refused(twice.finish().unwrap()).contains("more than one"));
}

/// Every place at both ends of a file, where its structure is, and at most about `most` between.
fn places(len: usize, ends: usize, most: usize) -> impl Iterator<Item = usize> {
    // Odd, so that no alignment of the format hides anything.
    let step = (len / most) | 1;
    (0..len).filter(move |at| *at < ends || *at + ends >= len || at % step == 0)
}

#[test]
fn files_cut_short_are_refused() {
    for name in ["breaks_nan.pt", "legacy.pt"] {
        let whole = std::fs::read(fixture(name)).unwrap();
        assert!(exercise(whole.clone()));
        for len in places(whole.len(), 600, 1000) {
            assert!(Dump::from_bytes(whole[..len].to_vec(), Path::new("x.pt")).is_err(), "{name} cut at {len}");
        }
    }
}

#[test]
fn files_with_a_byte_changed_do_no_harm() {
    for name in ["breaks_nan.pt", "legacy.pt", "tensors.pt", "sample_objects.pt"] {
        let whole = std::fs::read(fixture(name)).unwrap();
        for (n, at) in places(whole.len(), 64, 150).enumerate() {
            let mut bytes = whole.clone();
            bytes[at] ^= [0x01, 0x20, 0x80, 0xff][n % 4];
            exercise(bytes);
        }
    }
}

/// The fuzz target's work, with a fixed seed and a bounded number of rounds: `fuzz/` does the same without end.
#[test]
fn mutated_pickles_do_no_harm() {
    // Pickles without their archive, so that a change does not just break the zip.
    let seeds: Vec<Vec<u8>> = ["breaks_nan", "tensors", "sample_objects"]
        .map(|name| {
            let file = std::fs::read(fixture(&format!("{name}.pt"))).unwrap();
            let archive = rawzip::ZipArchive::from_slice(&file[..]).unwrap();
            let mut entries = archive.entries();
            let pickle = entries.next_entry().unwrap().unwrap();
            assert!(pickle.file_path().as_bytes().ends_with(b"data.pkl"));
            archive.get_entry(pickle.wayfinder()).unwrap().data().to_vec()
        })
        .to_vec();
    let mut state = 0x1234_5678_9abc_def0u64;
    let mut dice = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n.max(1) as u64) as usize
    };
    let opcodes: &[u8] = b"().0123FIJKLMNPQRSTUVXacdehjgqrstuloipb]}GBC\x80\x81\x82\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8f\x90\x91\x93\x94\x95\x96";
    for _ in 0..3000 {
        let mut bytes = seeds[dice(seeds.len())].clone();
        for _ in 0..1 + dice(6) {
            let at = dice(bytes.len());
            match dice(5) {
                0 => bytes[at] = opcodes[dice(opcodes.len())],
                1 => bytes[at] = dice(256) as u8,
                2 => drop(bytes.drain(at..(at + 1 + dice(8)).min(bytes.len()))),
                3 => bytes.insert(at, opcodes[dice(opcodes.len())]),
                _ => {
                    let from = dice(bytes.len());
                    let piece = bytes[from..(from + dice(64)).min(bytes.len())].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
        }
        exercise(torch_file(&bytes));
    }
    // Pickles of nothing but opcodes.
    for _ in 0..20_000 {
        let body: Vec<u8> = (0..dice(40)).map(|_| opcodes[dice(opcodes.len())]).chain([b'.']).collect();
        exercise(torch_file(&body));
    }
}
