//! Files as people name them: paths, folders that trainers write, patterns that the shell did not expand.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rollscope_formats::import::{self, ImportError};

use crate::config::Usage;

/// More files than this are a mistake.
const MAX_FILES: usize = 100_000;
/// How deep a folder is searched, and how much of it. AReaL's files are the deepest: five folders below its `fileroot`.
const MAX_FOLDER_DEPTH: usize = 8;
const MAX_FOLDER_ENTRIES: usize = 1_000_000;

/// Every file that is meant, each once, in the order of the numbers in their names.
pub fn expand(named: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for path in named {
        let mut found = if path.is_dir() {
            known_in(path)?
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

/// The same as far as it is there, and what cannot be looked at: folders may be empty, and files may still be written.
pub fn present(named: &[PathBuf]) -> (Vec<PathBuf>, Vec<anyhow::Error>) {
    let (mut files, mut problems): (Vec<PathBuf>, Vec<anyhow::Error>) = (Vec::new(), Vec::new());
    for path in named {
        let there = match path.exists() {
            false if is_pattern(path) => glob::glob(&path.to_string_lossy())
                .map_or(Vec::new(), |paths| paths.take(MAX_FILES).filter_map(Result::ok).collect()),
            false => Vec::new(),
            true => vec![path.clone()],
        };
        let mut found = Vec::new();
        for path in there {
            match path.is_dir() {
                false => found.push(path),
                true => match named_in(&path) {
                    Ok(inside) => found.extend(inside),
                    Err(e) => problems.push(e),
                },
            }
        }
        found.sort_by_cached_key(|p| natural(&p.to_string_lossy()));
        files.extend(found);
    }
    // What is looked at twice at once would seem not to change.
    let mut seen = std::collections::HashSet::new();
    files.retain(|f| seen.insert(std::fs::canonicalize(f).unwrap_or_else(|_| f.clone())));
    (files, problems)
}

pub fn is_pattern(path: &Path) -> bool {
    path.to_string_lossy().contains(['*', '?', '['])
}

/// A pattern that can match nothing is a mistake.
pub fn check_patterns(named: &[PathBuf]) -> Result<(), Usage> {
    for path in named.iter().filter(|path| is_pattern(path) && !path.exists()) {
        let text = path.to_string_lossy();
        glob::Pattern::new(&text).map_err(|e| Usage(format!("{text}: {e}")))?;
    }
    Ok(())
}

/// Files with the names that writers of known formats give, and that are what their names say.
fn known_in(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    // One that cannot be read stays: whoever reads it reports why.
    let is_other = |path: &PathBuf| matches!(import::open(path), Err(ImportError::Malformed(_)));
    let (other, found): (Vec<_>, Vec<_>) = named_in(folder)?.into_iter().partition(is_other);
    if let Some(first) = other.first() {
        let (files, such_as) = (other.len(), first.display());
        eprintln!("rollscope: left out {files} files of unknown formats in {}, such as {such_as}", folder.display());
    }
    if found.is_empty() {
        anyhow::bail!("folder {} has no files of a known layout; pass other files by name", folder.display());
    }
    Ok(found)
}

/// Files with the names that writers of known formats give.
fn named_in(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let (mut found, mut entries) = (Vec::new(), 0);
    let mut waiting = vec![(folder.to_path_buf(), 0)];
    while let Some((at, depth)) = waiting.pop() {
        let list = match std::fs::read_dir(&at) {
            // Trainers delete old checkpoints, and some folders are not for everyone.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) && depth > 0 => continue,
            list => list.with_context(|| at.display().to_string())?,
        };
        for entry in list {
            let entry = entry?;
            entries += 1;
            if entries > MAX_FOLDER_ENTRIES {
                let many = format!("folder {} holds more than {MAX_FOLDER_ENTRIES} files", folder.display());
                return Err(Usage(format!("{many}; pass a folder inside it")).into());
            }
            let path = entry.path();
            // Links to folders may lead in a circle.
            if entry.file_type()?.is_dir() {
                if depth < MAX_FOLDER_DEPTH {
                    waiting.push((path, depth + 1));
                }
            } else if import::belongs(path.strip_prefix(folder).unwrap_or(&path)) && path.is_file() {
                found.push(path);
            }
        }
    }
    Ok(found)
}

fn matching(pattern: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let text = pattern.to_string_lossy();
    if !is_pattern(pattern) {
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
        std::fs::create_dir_all(folder.path().join("checkpoint/rollout_data")).unwrap();
        for name in
            ["rollout_10.pt", "rollout_2.pt", "notes.txt", "checkpoint/model.pt", "checkpoint/rollout_data/3.pt"]
        {
            std::fs::write(folder.path().join(name), "PK\u{3}\u{4}").unwrap();
        }
        let names = |files: Vec<PathBuf>| -> Vec<String> {
            files.iter().map(|f| f.file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        let all = expand(&[folder.path().to_path_buf(), folder.path().join("rollout_*.pt")]).unwrap();
        assert_eq!(names(all), ["3.pt", "rollout_2.pt", "rollout_10.pt"]);
        std::fs::write(folder.path().join("rollout_11.pt"), "no dump").unwrap();
        assert_eq!(expand(&[folder.path().to_path_buf()]).unwrap().len(), 3);
        assert!(expand(&[folder.path().join("none_*.pt")]).is_err());
        assert!(expand(&[folder.path().join("absent.pt")]).is_err());
    }
}
