//! Files that torch wrote, value by value. `fixtures/torch` was made with torch 2.15 and numpy 2.4; the JSON beside them
//! is what Python says is in them.

use std::path::{Path, PathBuf};

use rollscope_formats::import::torch::render::Style;
use rollscope_formats::import::torch::{Number, Tag, Torch};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/torch").join(name)
}

fn expected(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(name)).unwrap()).unwrap()
}

#[test]
fn tensors_and_arrays_of_every_type() {
    let wanted = expected("dtypes.json");
    for file in ["dtypes_p2.pt", "dtypes_p3.pt", "dtypes_p4.pt", "dtypes_p5.pt", "dtypes_legacy.pt"] {
        let torch = Torch::open(&fixture(file)).unwrap();
        assert!(torch.heap.len(torch.root) >= 20);
        for (key, value) in torch.heap.entries(torch.root) {
            let name = torch.python_str(key);
            let wanted = &wanted[&name];
            let view = torch.view(value).unwrap_or_else(|| panic!("{file} {name}"));
            let shape: Vec<u64> = wanted["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
            assert_eq!(view.shape, shape, "{file} {name}");
            let numbers: Vec<Value> = view
                .iter()
                .map(|n| match n {
                    Number::Int(i) => i.into(),
                    Number::Unsigned(u) => u.into(),
                    Number::Float(f) => f.into(),
                    Number::Bool(b) => i64::from(b).into(),
                    Number::Complex(re, im) => vec![re, im].into(),
                })
                .collect();
            assert_eq!(Value::Array(numbers), wanted["values"], "{file} {name}");
        }
    }
}

#[test]
fn plain_values_read_as_slime_would_show_them() {
    let wanted = expected("plain.json");
    for file in ["plain_p0.pt", "plain_p1.pt", "plain_p2.pt", "plain_p4.pt", "plain_p5.pt"] {
        let torch = Torch::open(&fixture(file)).unwrap();
        let mut compared = 0;
        for (key, value) in torch.heap.entries(torch.root) {
            let name = torch.python_str(key);
            let ours: Value = serde_json::from_str(&torch.json(value, Style::Slime, 1 << 20)).expect("valid JSON");
            match &*name {
                // What Python shows needs the class to be loaded.
                "enum" => assert_eq!(ours, "Color('red')"),
                "thing" => assert_eq!(ours, "<odd.things.Thing object>"),
                "slot" => assert_eq!(ours, "<odd.things.Slotted object>"),
                "rng" => assert_eq!(
                    ours,
                    "<builtins.range object>"
                        .replace("builtins", if file < "plain_p3" { "__builtin__" } else { "builtins" })
                        .replace("__builtin__.range", "__builtin__.xrange")
                ),
                "deque" => assert_eq!(ours, serde_json::json!([1, 2])),
                "ba" => assert_eq!(ours, "b'xy'"),
                "loop" => assert!(ours[1][1][0] == 1),
                _ => {
                    assert_eq!(ours, wanted[&name], "{file} {name}");
                    compared += 1;
                }
            }
        }
        assert!(compared > 30, "{file}: {compared}");
    }
}

#[test]
fn objects_keep_their_class_and_fields() {
    let torch = Torch::open(&fixture("plain_p4.pt")).unwrap();
    let get = |name| torch.heap.get(torch.root, name).unwrap();
    assert_eq!(torch.class_name(get("thing")), Some(("odd.things", "Thing")));
    assert_eq!(torch.heap.field(get("thing"), "a").and_then(|v| torch.heap.int(v)), Some(1));
    assert_eq!(torch.heap.field(get("slot"), "y").and_then(|v| torch.heap.str(v)).as_deref(), Some("z"));
    assert_eq!(torch.enum_value(get("enum")).and_then(|v| torch.heap.str(v)).as_deref(), Some("red"));
    assert_eq!(torch.json(get("thing"), Style::Typed, 1000), r#"{"$class":"odd.things.Thing","a":1,"b":[2,3]}"#);
    assert_eq!(torch.json(get("npi"), Style::Typed, 1000), "7");
    assert_eq!(torch.json(get("by"), Style::Typed, 1000), r#"[{"$bytes":""},{"$bytes":"YWL/"}]"#);
    assert_eq!(get("longlist").tag(), Tag::List);
    assert_eq!(torch.integers(get("longlist"), usize::MAX), Some((0..2500).collect()));
    assert_eq!(torch.count(get("longlist")), Some(2500));
}

#[test]
fn what_is_too_large_or_too_deep_is_left_out_and_the_rest_is_valid() {
    let torch = Torch::open(&fixture("plain_p4.pt")).unwrap();
    for limit in [0, 1, 10, 100, 1000, 10_000] {
        for style in [Style::Slime, Style::Typed] {
            let json = torch.json(torch.root, style, limit);
            serde_json::from_str::<Value>(&json).expect("valid JSON");
            assert!(json.len() < limit + 8000, "{limit} {}", json.len());
        }
    }
}
