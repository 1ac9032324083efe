//! The table of `nvidia-smi`.

use super::cut;

const MAX_GPUS: usize = 1024;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    pub index: i64,
    pub name: String,
    pub memory_mib: i64,
    pub of_mib: i64,
    /// Percent.
    pub busy: i64,
    pub watts: Option<f64>,
}

/// None: it is something else. A GPU has two lines: its number and name, then its figures.
pub fn read_text(text: &str) -> Option<Vec<Gpu>> {
    if !text.contains("NVIDIA-SMI") {
        return None;
    }
    let mut out: Vec<Gpu> = Vec::new();
    let mut named: Option<(i64, String)> = None;
    for line in text.lines() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        if let [_, memory, busy, ..] = &cells[..]
            && let Some((used, all)) = memory.split_once('/')
            && let (Some(used), Some(all)) = (mib(used), mib(all))
            && let Some((index, name)) = named.take()
        {
            let watts = cells[0].split_once('/').and_then(|(before, _)| before.split_whitespace().last());
            let watts = watts.and_then(|watts| watts.strip_suffix('W')?.parse().ok());
            let busy = busy.split('%').next().and_then(|busy| busy.trim().parse().ok()).unwrap_or(0);
            out.push(Gpu { index, name, memory_mib: used, of_mib: all, busy, watts });
            if out.len() >= MAX_GPUS {
                break;
            }
        } else if let Some((index, rest)) = cells[0].split_once(char::is_whitespace)
            && let Ok(index) = index.parse()
        {
            let name = rest.split("  ").map(str::trim).find(|part| !part.is_empty()).unwrap_or("");
            named = Some((index, cut(name)));
        }
    }
    (!out.is_empty()).then_some(out)
}

fn mib(text: &str) -> Option<i64> {
    text.trim().strip_suffix("MiB")?.trim().parse().ok()
}
