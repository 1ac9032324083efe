//! What goes into the index, and when it is built again.

use rollscope_search::Search;
use serde_json::{Value, json};

use crate::{Talk, World, talk};

fn refused(world: &World) -> String {
    Search::open_existing(&world.index_dir()).err().expect("it cannot be used").to_string()
}

#[test]
fn an_index_of_another_version_is_built_again() {
    let world = World::empty();
    world.add(&[talk("1", "red fox")]);
    world.flush();
    world.catch_up();
    std::fs::write(world.index_dir().join("rollscope-index-version"), "0").unwrap();
    assert!(refused(&world).contains("another version"), "{}", refused(&world));
    let world = world.restart();
    assert!(world.search.is_empty());
    assert_eq!(world.catch_up(), 1);
    let world = world.restart();
    assert_eq!(world.find("red"), ["1"]);
}

#[test]
fn an_index_with_other_fields_is_built_again() {
    let world = World::empty();
    world.add(&[talk("1", "red fox")]);
    world.catch_up();
    let version = std::fs::read(world.index_dir().join("rollscope-index-version")).unwrap();
    std::fs::remove_dir_all(world.index_dir()).unwrap();
    std::fs::create_dir(world.index_dir()).unwrap();
    std::fs::write(world.index_dir().join("rollscope-index-version"), version).unwrap();
    let mut other = tantivy::schema::Schema::builder();
    other.add_text_field("id", tantivy::schema::STRING);
    tantivy::Index::create_in_dir(world.index_dir(), other.build()).unwrap();
    assert!(refused(&world).contains("other fields"), "{}", refused(&world));
    let world = world.restart();
    assert_eq!(world.catch_up(), 1);
    assert_eq!(world.find("red"), ["1"]);
}

#[test]
fn a_damaged_index_is_built_again() {
    let world = World::empty();
    world.add(&[talk("1", "red fox")]);
    world.catch_up();
    std::fs::write(world.index_dir().join("meta.json"), "{").unwrap();
    let world = world.restart();
    assert_eq!(world.catch_up(), 1);
    assert_eq!(world.find("red"), ["1"]);
}

#[test]
fn metadata_fill_in_what_the_columns_do_not_have() {
    let world = World::empty();
    let metadata = json!({
        "data_source": "gsm8k", "latency_s": 2.5, "completion_tokens": 40, "reward": 0.25, "status": "truncated",
    });
    world.add(&[
        Talk { metadata: Some(metadata.clone()), ..talk("bare", "x") },
        Talk { metadata: Some(metadata), reward: Some(1.0), status: Some("completed"), ..talk("full", "x") },
    ]);
    world.catch_up();
    assert_eq!(world.find("source:gsm8k"), ["bare", "full"]);
    assert_eq!(world.find("duration:2.5 tokens:40"), ["bare", "full"]);
    assert_eq!(world.find("reward:0.25 status:truncated"), ["bare"]);
    assert_eq!(world.find("reward:1 status:completed"), ["full"], "the columns win");
}

#[test]
fn metadata_are_searched_by_path_and_bounded() {
    let world = World::empty();
    let mut many = serde_json::Map::new();
    for n in 0..70 {
        many.insert(format!("k{n:02}"), n.into());
    }
    let long = "y".repeat(300);
    world.add(&[
        Talk {
            metadata: Some(
                json!({"env": {"name": "docker", "cpus": 8, "gpu": false, "tags": ["linux"]}, "gone": null, "long": long}),
            ),
            ..talk("nested", "x")
        },
        Talk { metadata: Some(Value::Object(many)), ..talk("many", "x") },
        Talk { metadata: Some(json!({"a": {"b": {"c": {"d": {"e": {"f": "deep"}}}}}})), ..talk("deep", "x") },
        Talk { metadata: Some(json!(["not an object"])), ..talk("list", "x") },
    ]);
    world.catch_up();
    for search in ["metadata.env.name:docker", "metadata.env.cpus:8", "metadata.env.cpus:>7", "metadata.env.gpu:false"]
    {
        assert_eq!(world.find(search), ["nested"], "{search}");
    }
    assert_eq!(world.find("linux"), ["nested"], "lists are found as words");
    assert_eq!(world.find(&format!("metadata.long:{}", "y".repeat(256))), ["nested"], "long values are cut");
    assert_eq!(world.find(&format!("metadata.long:{}", "y".repeat(257))), [""; 0]);
    assert_eq!(world.find("metadata.k63:63"), ["many"]);
    assert_eq!(world.find("metadata.k64:64"), [""; 0], "64 values are searchable");
    assert_eq!(world.find("metadata.a.b.c.d.e.f:deep"), [""; 0]);
    assert_eq!(world.find("deep"), ["deep"], "what is too deep for a path is found as a word");
}

#[test]
fn a_list_needs_nothing_but_the_index() {
    let world = World::empty();
    let image = json!({"type": "image", "media": "ab".repeat(32)});
    world.add(&[Talk {
        step: Some(7),
        sample: Some("s1"),
        reward: Some(0.5),
        messages: json!([
            {"role": "user", "content": [{"type": "text", "text": "count\n  the   foxes"}, image]},
            {"role": "assistant", "content": format!("{} end", "word ".repeat(100))},
        ]),
        ..talk("1", "")
    }]);
    world.catch_up();
    let found = world.ask("");
    let row: Value = serde_json::from_str(found.rows[0].json.get()).unwrap();
    assert_eq!((row["run_id"].as_str(), row["step"].as_i64()), (Some("a"), Some(7)));
    assert_eq!((row["sample_id"].as_str(), row["reward"].as_f64()), (Some("s1"), Some(0.5)));
    assert_eq!(row["message_count"], 2);
    assert_eq!(row["logged_ns"], crate::T0.to_string(), "too large for a number of JavaScript");
    assert_eq!(row["preview"], "count the foxes");
    let answer = row["answer"].as_str().unwrap();
    assert!(answer.starts_with("word word") && answer.ends_with('…') && answer.chars().count() == 241, "{answer}");
}
