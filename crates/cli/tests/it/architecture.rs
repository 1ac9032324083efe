//! Which crate may know which, as ARCHITECTURE.md says it. Fails when a new arrow or an unnamed crate appears.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Crate name to the names of its dependencies (not those of its tests).
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let dir = entry.unwrap().path();
        let text = std::fs::read_to_string(dir.join("Cargo.toml")).unwrap();
        let section = text.split("[dependencies]").nth(1).unwrap_or_default();
        let section = section.split("\n[").next().unwrap();
        let names = section.lines().filter_map(|l| l.split_once('=')).map(|(name, _)| name.trim().to_string());
        let name = dir.file_name().unwrap().to_str().unwrap().to_string();
        all.insert(name, names.collect());
    }
    all
}

#[test]
fn arrows_between_crates_are_the_allowed_ones() {
    let allowed: BTreeMap<&str, &[&str]> = [
        ("names", &[] as &[&str]),
        ("tokenizer", &[]),
        ("model", &["names"]),
        ("spans", &["model"]),
        ("formats", &["model", "spans"]),
        ("demo", &["model"]),
        ("store", &["model"]),
        ("lake", &["model", "store"]),
        ("query", &["model", "spans", "store", "tokenizer"]),
        ("search", &["model", "store"]),
        ("answers", &["model", "spans", "store", "query", "tokenizer"]),
        ("app", &["model", "spans", "formats", "store", "query", "answers", "search"]),
        ("mcp", &["model", "store", "query", "answers", "app"]),
        ("alarms", &["model", "store", "query", "answers", "app"]),
        ("server", &["model", "formats", "store", "query", "answers", "app", "mcp", "alarms"]),
        (
            "cli",
            &["model", "formats", "store", "lake", "query", "answers", "app", "mcp", "server", "demo", "tokenizer"],
        ),
    ]
    .into();
    let found = dependencies();
    assert_eq!(found.keys().map(String::as_str).collect::<Vec<_>>(), allowed.keys().copied().collect::<Vec<_>>());
    for (name, dependencies) in found {
        let ours: BTreeSet<&str> = dependencies.iter().filter_map(|d| d.strip_prefix("rollscope-")).collect();
        let allowed: BTreeSet<&str> = allowed[name.as_str()].iter().copied().collect();
        assert!(ours.is_subset(&allowed), "{name} depends on {:?}", ours.difference(&allowed));
    }
}

#[test]
fn heavy_dependencies_stay_behind_one_crate() {
    for (dependency, homes) in [
        ("datafusion", &["query"] as &[&str]),
        ("tantivy", &["search"]),
        ("axum", &["server"]),
        // Requests come in through one, and parts of queries go to workers through the other.
        ("tonic", &["server", "query"]),
        ("datafusion-distributed", &["query"]),
        ("parquet", &["store"]),
        ("object_store", &["store", "lake"]),
        ("deltalake-core", &["lake"]),
        ("clap", &["cli"]),
        ("rmcp", &["mcp"]),
    ] {
        for (name, dependencies) in dependencies() {
            assert!(!dependencies.contains(dependency) || homes.contains(&name.as_str()), "{name} knows {dependency}");
        }
    }
}

/// Modules of a crate, by their names below `src`, and which others each names.
fn modules(src: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut waiting: Vec<PathBuf> = vec![src.to_path_buf()];
    while let Some(folder) = waiting.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
                continue;
            }
            let top = path.strip_prefix(src).unwrap().iter().next().unwrap().to_str().unwrap();
            let top = top.trim_end_matches(".rs").to_string();
            if path.extension().is_none_or(|e| e != "rs") || matches!(top.as_str(), "lib" | "main") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            // What a test uses and what a comment points to is no dependency.
            let code = text.split("#[cfg(test)]").next().unwrap().lines();
            let code = code.filter(|line| !line.trim_start().starts_with(['/', '#'])).collect::<Vec<_>>().join("\n");
            // In a file right below `src`, `super` is the crate.
            let ways = if path.parent() == Some(src) { &["crate::", "super::"][..] } else { &["crate::"] };
            let named = ways.iter().flat_map(|way| code.split(way).skip(1)).flat_map(first_names);
            all.entry(top.clone()).or_default().extend(named.filter(|name| *name != top));
        }
    }
    all
}

/// What comes first in a path: one name, or those in the braces of `{a, b::c, d::{e, f}}`.
fn first_names(path: &str) -> Vec<String> {
    let Some(list) = path.strip_prefix('{') else { return vec![first_name(path)] };
    let (mut depth, mut from, mut names) = (0, 0, Vec::new());
    for (at, c) in list.char_indices() {
        if depth == 0 && matches!(c, ',' | '}') {
            names.push(first_name(list[from..at].trim_start()));
            from = at + 1;
        }
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            _ => {}
        }
    }
    names
}

fn first_name(path: &str) -> String {
    let end = path.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(path.len());
    path[..end].to_string()
}

#[test]
fn names_are_taken_out_of_paths() {
    assert_eq!(first_names("run::Plan;"), ["run"]);
    assert_eq!(first_names("{metrics, text::{a, b},\n  sim::MS};"), ["metrics", "text", "sim"]);
}

#[test]
fn no_circle_of_modules() {
    for name in dependencies().into_keys() {
        let modules = modules(&root().join("crates").join(&name).join("src"));
        for start in modules.keys() {
            let (mut seen, mut waiting) = (BTreeSet::new(), vec![start]);
            while let Some(at) = waiting.pop() {
                for next in modules.get(at).into_iter().flatten() {
                    assert!(next != start, "{name}: {start} comes back to itself through {at}");
                    if seen.insert(next) {
                        waiting.push(next);
                    }
                }
            }
        }
    }
}

#[test]
fn the_architecture_page_names_every_crate() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for name in dependencies().keys() {
        assert!(page.contains(&format!("crates/{name}")), "ARCHITECTURE.md does not name crates/{name}");
    }
}
