//! Every input of the corpora, within the bounds of heap. Time is left to `make fuzz`.

use std::path::Path;

use rollscope_fuzz::TARGETS;
use rollscope_fuzz::oracle::heap;
use rollscope_fuzz::pickle;
use rollscope_fuzz::pump::{Dice, Shape, pump};

/// One test, because heap is counted for the whole process.
#[test]
fn the_corpora_do_no_harm() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in TARGETS {
        (target.run)(b"");
        let folder = corpora.join(target.name);
        let mut files = 0;
        for file in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = file.unwrap().path();
            let data = std::fs::read(&path).unwrap();
            heap(target, &data).unwrap_or_else(|excess| panic!("{}: {excess}", path.display()));
            files += 1;
        }
        assert!(files > 0, "{}", folder.display());
    }
    let torch = rollscope_fuzz::find("torch").unwrap();
    for seed in 0..2000 {
        heap(torch, &pickle::make(&mut Dice::new(seed), 2048)).unwrap_or_else(|excess| panic!("seed {seed}: {excess}"));
    }
}

#[test]
fn parts_are_repeated_where_lists_are() {
    let dice = || Dice::new(7);
    let text = pump(br#"{"a":[{"name":1},{"name":2}]}"#, 1000, Shape::Text, &mut dice()).unwrap();
    assert!(text.len() >= 1000 && text.starts_with(b"{"));
    // Field 1 holds field 2, which holds two bytes: the lengths stay right.
    let long = pump(&[0x0a, 4, 0x12, 2, 7, 7], 1000, Shape::Protobuf, &mut dice()).unwrap();
    assert!(long.len() >= 1000);
    assert!(pump(&[], 1000, Shape::Bytes, &mut dice()).is_none());
}
