//! What searches find.

use rollscope_search::{Request, parse_search};
use serde_json::json;

use crate::{Talk, World, ids, talk};

const NONE: [&str; 0] = [];

#[test]
fn words_phrases_prefixes_and_typing_errors() {
    let world = World::empty();
    world.add(&[
        talk("order", "the kernel ran out of memory twice"),
        talk("other", "memory was not short, the time ran out of bounds"),
        talk("alloc", "allocator failed: std::bad_alloc"),
        talk("case", "Out Of Memory"),
    ]);
    world.catch_up();
    for (search, found) in [
        ("memory out", &["case", "order", "other"] as &[&str]),
        ("\"out of memory\"", &["case", "order"]),
        ("\"memory of out\"", &NONE),
        ("\"ran out of memory\"", &["order"]),
        ("alloc", &["alloc"]),
        ("allocat*", &["alloc"]),
        ("mem*", &["case", "order", "other"]),
        ("mem", &NONE),
        ("memroy~", &["case", "order", "other"]),
        ("memroy", &NONE),
        ("mmroy~2", &["case", "order", "other"]),
        ("memory -bounds", &["case", "order"]),
        ("twice OR bounds", &["order", "other"]),
        ("ran (twice OR bounds) -short", &["order"]),
        ("-memory", &["alloc"]),
        ("", &["alloc", "case", "order", "other"]),
        ("\"...\"", &["alloc", "case", "order", "other"]),
    ] {
        assert_eq!(world.find(search), found, "{search}");
    }
}

#[test]
fn a_role_holds_for_the_words_beside_it() {
    let world = World::empty();
    let said = |role: &str, text: &str| json!({"role": role, "content": text});
    world.add(&[
        Talk { messages: json!([said("user", "fix it"), said("tool", "error 7")]), ..talk("tool", "") },
        Talk { messages: json!([said("user", "error 7"), said("tool", "all fine")]), ..talk("user", "") },
        talk("alone", "error 7"),
    ]);
    world.catch_up();
    for (search, found) in [
        ("error", &["alone", "tool", "user"] as &[&str]),
        ("role:tool", &["tool", "user"]),
        ("role:tool error", &["tool"]),
        ("role:user,tool error", &["alone", "tool", "user"]),
        ("(role:tool error) fix", &["tool"]),
        ("(role:tool fine) error", &["user"]),
        ("-role:tool error", &["alone"]),
        ("role:tool \"error 7\"", &["tool"]),
        ("role:tool err*", &["tool"]),
    ] {
        assert_eq!(world.find(search), found, "{search}");
    }
}

#[test]
fn names_are_taken_as_they_are() {
    let world = World::empty();
    world.add(&[
        Talk { sample: Some("a.b-1"), status: Some("completed"), ..talk("dot", "x") },
        Talk { sample: Some("axb-1"), status: Some("aborted"), ..talk("letter", "x") },
        Talk { run: "b", sample: Some("A.B"), ..talk("large", "x") },
    ]);
    world.catch_up();
    for (search, found) in [
        ("sample:a.b-1", &["dot"] as &[&str]),
        ("sample:a.b*", &["dot"]),
        ("sample:a*", &["dot", "letter"]),
        ("sample:a.b", &NONE),
        ("status:completed,aborted", &["dot", "letter"]),
        ("-status:completed", &["large", "letter"]),
        ("run:b", &["large"]),
        ("id:dot", &["dot"]),
    ] {
        assert_eq!(world.find(search), found, "{search}");
    }
    let of_runs = |runs: &[&str]| {
        let runs = Some(runs.iter().map(ToString::to_string).collect());
        ids(&world.search.ask(&Request { search: parse_search("x").unwrap(), runs, ..Request::default() }).unwrap())
    };
    assert_eq!(of_runs(&["b", "c"]), ["large"]);
    assert_eq!(of_runs(&["a", "b"]), ["dot", "large", "letter"]);
    assert_eq!(of_runs(&[]), NONE, "no run is not all runs");
}

#[test]
fn ranges_of_whole_and_of_other_numbers() {
    let world = World::empty();
    world.add(&[
        Talk { step: Some(2), reward: Some(-0.5), ..talk("2", "x") },
        Talk { step: Some(3), reward: Some(0.5), metadata: Some(json!({"score": 3})), ..talk("3", "x") },
        Talk { step: Some(4), metadata: Some(json!({"score": 3.5})), ..talk("4", "x") },
        talk("none", "x"),
    ]);
    world.catch_up();
    for (search, found) in [
        ("step:3", &["3"] as &[&str]),
        ("step:2..3", &["2", "3"]),
        ("step:>2.5", &["3", "4"]),
        ("step:<2.5", &["2"]),
        ("step:>=2.5", &["3", "4"]),
        ("step:<=3.5", &["2", "3"]),
        ("step:>3", &["4"]),
        ("step:3..*", &["3", "4"]),
        ("step:*..*", &["2", "3", "4"]),
        ("reward:<0", &["2"]),
        ("reward:-0.5", &["2"]),
        ("reward:>=0.5", &["3"]),
        ("reward:*..*", &["2", "3"]),
        ("-reward:*..*", &["4", "none"]),
        ("metadata.score:3", &["3"]),
        ("metadata.score:>3", &["4"]),
        ("metadata.score:3..4", &["3", "4"]),
    ] {
        assert_eq!(world.find(search), found, "{search}");
    }
}

#[test]
fn text_without_spaces_is_found_by_its_parts() {
    let world = World::empty();
    world.add(&[talk("zh", "内存不足，请重试"), talk("other", "内部存储充足")]);
    world.catch_up();
    for (search, found) in [
        ("内存", &["zh"] as &[&str]),
        ("内存不足", &["zh"]),
        ("存不足", &["zh"]),
        ("内", &["other", "zh"]),
        ("足内", &NONE),
    ] {
        assert_eq!(world.find(search), found, "{search}");
    }
}

#[test]
fn what_needs_the_texts_is_left_to_who_has_them() {
    let world = World::empty();
    world.add(&[talk("1", "red fox"), talk("2", "red hen")]);
    world.catch_up();
    let candidates = |text: &str| {
        let request = Request { search: parse_search(text).unwrap(), ..Request::default() };
        world.search.candidates(&request).unwrap().len()
    };
    assert_eq!(candidates("red contains:\"d f\""), 2, "the words narrow down, the characters are looked for later");
    assert_eq!(candidates("fox /r.d/"), 1);
}
