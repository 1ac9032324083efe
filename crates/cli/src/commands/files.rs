//! Files as people name them: paths, folders of dumps, patterns that the shell did not expand.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::config::Usage;

/// More files than this are a mistake.
const MAX_FILES: usize = 100_000;

/// Every file that is meant, each once, in the order of the numbers in their names.
pub fn expand(named: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for path in named {
        let mut found = if path.is_dir() {
            dumps_in(path)?
        } else if path.exists() {
            vec![path.clone()]
        } else {
            matching(path)?
        };
        found.sort_by_cached_key(|p| natural(&p.to_string_lossy()));
        files.extend(found);
        if files.len() > MAX_FILES {
            return Err(Usage(format!("more than {MAX_FILES} files; pass fewer at a time")).into());
        }
    }
    let mut seen = std::collections::HashSet::new();
    files.retain(|f| seen.insert(std::fs::canonicalize(f).unwrap_or_else(|_| f.clone())));
    Ok(files)
}

fn dumps_in(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let list = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut found = Vec::new();
    for entry in list {
        let path = entry?.path();
        if path.is_file() && path.extension().is_some_and(|e| e == "pt") {
            found.push(path);
        }
    }
    if found.is_empty() {
        anyhow::bail!("folder {} has no dumps (*.pt); pass other files by name", folder.display());
    }
    Ok(found)
}

fn matching(pattern: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let text = pattern.to_string_lossy();
    if !text.contains(['*', '?', '[']) {
        anyhow::bail!("{text}: no such file");
    }
    let paths = glob::glob(&text).map_err(|e| Usage(format!("{text}: {e}")))?;
    let found: Vec<PathBuf> = paths.take(MAX_FILES + 1).filter_map(Result::ok).filter(|p| p.is_file()).collect();
    if found.is_empty() {
        anyhow::bail!("{text}: no file matches this pattern");
    }
    Ok(found)
}

/// Numbers compare as numbers: `rollout_9` before `rollout_10`.
fn natural(text: &str) -> Vec<(u128, String)> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let words = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let digits = rest[words..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |n| words + n);
        // The text goes first within a part; a number too long to compare counts as the largest.
        parts.push((0, rest[..words].to_string()));
        parts.push((rest[words..digits].parse().unwrap_or(u128::MAX), String::new()));
        rest = &rest[digits..];
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_sort_as_numbers() {
        let mut names = ["b_1.pt", "a_10.pt", "a_9.pt", "a_eval_2.pt"];
        names.sort_by_cached_key(|n| natural(n));
        assert_eq!(names, ["a_9.pt", "a_10.pt", "a_eval_2.pt", "b_1.pt"]);
    }

    #[test]
    fn folders_patterns_and_repeats() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["rollout_10.pt", "rollout_2.pt", "notes.txt"] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        let names = |files: Vec<PathBuf>| -> Vec<String> {
            files.iter().map(|f| f.file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        let all = expand(&[folder.path().to_path_buf(), folder.path().join("rollout_*.pt")]).unwrap();
        assert_eq!(names(all), ["rollout_2.pt", "rollout_10.pt"]);
        assert!(expand(&[folder.path().join("none_*.pt")]).is_err());
        assert!(expand(&[folder.path().join("absent.pt")]).is_err());
    }
}
