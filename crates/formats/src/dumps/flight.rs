//! Dumps of PyTorch's Flight Recorder: one file per rank, `TORCH_FR_DUMP_TEMP_FILE` (or `TORCH_NCCL_DEBUG_INFO_TEMP_FILE`) and the
//! rank. Written as a pickle, or as JSON. Both hold the same: the process groups, and the last collectives with their states.

use serde_json::Value;

use super::{MAX_FILE_BYTES, cut, rank_in};
use crate::import::ImportError;
use crate::import::torch::Torch;
use crate::import::torch::render::Style;

/// Collectives of one rank, process groups, ranks of a group, frames of a stack.
const MAX_ENTRIES: usize = 1_000_000;
const MAX_GROUPS: usize = 100_000;
const MAX_RANKS: usize = 1_000_000;
const MAX_FRAMES: usize = 64;

/// What one rank recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flight {
    pub rank: i64,
    pub groups: Vec<Group>,
    pub entries: Vec<Entry>,
}

/// A process group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    pub name: String,
    pub about: String,
    pub ranks: Vec<i64>,
}

/// One collective, as one rank saw it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// The name of its process group.
    pub group: String,
    /// Counts the collectives of the group; all ranks must agree.
    pub seq: i64,
    pub p2p: bool,
    /// `all_reduce`, without the backend.
    pub name: String,
    /// scheduled, started or completed.
    pub state: String,
    /// Sizes of the inputs, as JSON.
    pub sizes: String,
    pub created_ns: i64,
    /// From the inside out: `all_reduce (distributed_c10d.py:2696)`.
    pub frames: Vec<String>,
}

pub fn read_pickle(name: &str, bytes: &[u8]) -> Result<Flight, ImportError> {
    let torch = Torch::from_pickle(bytes.to_vec())?;
    let json = torch.json(torch.root, Style::Typed, MAX_FILE_BYTES as usize);
    read_json(name, &json)
}

pub fn read_json(name: &str, text: &str) -> Result<Flight, ImportError> {
    let bad = |what: String| ImportError::Malformed(format!("this is no dump of the Flight Recorder: {what}"));
    let dump: Value = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
    let Some(entries) = dump["entries"].as_array() else { return Err(bad("it has no list `entries`".into())) };
    if entries.len() > MAX_ENTRIES {
        return Err(ImportError::Limit { what: "entries".into(), name: "MAX_ENTRIES", limit: MAX_ENTRIES as u64 });
    }
    let Some(rank) = dump["rank"].as_i64().or_else(|| rank_in(name)).or_else(|| digits_at_end(name)) else {
        return Err(bad(format!(
            "the name of the file must end with the rank, as PyTorch writes it, and `{name}` does not"
        )));
    };
    let groups = dump["pg_config"].as_object().into_iter().flatten().take(MAX_GROUPS).map(|(id, group)| Group {
        name: cut(group["name"].as_str().unwrap_or(id)),
        about: cut(group["desc"].as_str().unwrap_or("")),
        ranks: ranks(&group["ranks"]),
    });
    Ok(Flight { rank, groups: groups.collect(), entries: entries.iter().map(entry).collect() })
}

fn digits_at_end(name: &str) -> Option<i64> {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    name[name.len() - digits..].parse().ok()
}

/// A list, or a text that looks like one: `[0, 1, 2]`. Empty: all.
fn ranks(value: &Value) -> Vec<i64> {
    match value {
        Value::Array(list) => list.iter().filter_map(Value::as_i64).take(MAX_RANKS).collect(),
        Value::String(text) => {
            let inner = text.trim_matches(['[', ']', '(', ')']);
            inner.split(',').filter_map(|rank| rank.trim().parse().ok()).take(MAX_RANKS).collect()
        }
        _ => Vec::new(),
    }
}

/// Numbers are texts in some versions.
fn number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

fn entry(entry: &Value) -> Entry {
    // `(name, description)`, or the name alone in the first versions.
    let group = &entry["process_group"];
    let group = group.as_str().or_else(|| group[0].as_str()).map_or_else(|| entry["pg_id"].to_string(), str::to_string);
    let p2p = entry["is_p2p"].as_bool().unwrap_or(false);
    let seq = if p2p { number(&entry["p2p_seq_id"]) } else { None };
    let seq = seq.or_else(|| number(&entry["collective_seq_id"])).or_else(|| number(&entry["seq_id"]));
    let name = entry["profiling_name"].as_str().unwrap_or("");
    let frame = |frame: &Value| {
        let file = frame["filename"].as_str().unwrap_or("");
        let file = file.rsplit('/').next().unwrap_or(file);
        cut(&format!("{} ({file}:{})", frame["name"].as_str().unwrap_or("?"), frame["line"]))
    };
    Entry {
        group: cut(&group),
        seq: seq.unwrap_or(-1),
        p2p,
        name: cut(name.split_once(':').map_or(name, |(_, name)| name)),
        state: cut(entry["state"].as_str().unwrap_or("")),
        sizes: cut(&entry["input_sizes"].to_string()),
        created_ns: number(&entry["time_created_ns"]).unwrap_or(0),
        frames: entry["frames"].as_array().into_iter().flatten().take(MAX_FRAMES).map(frame).collect(),
    }
}
