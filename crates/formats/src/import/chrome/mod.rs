//! Chrome's trace event format, which torch's profiler, Chrome, Perfetto's converters and many others write: one JSON
//! object with `traceEvents`, or the bare list. Read event by event in bounded memory.
//!
//! A file is one trace. Slices (`X`, `B`/`E`, `b`/`e`) become spans, instants (`i`, `I`, `R`, `n`) instants, counters (`C`) rows of
//! `series`; names of processes and threads (`M`) become service and thread. A slice's parent is the slice of the same thread
//! that holds it; that is exact when the slices of a thread come in the order of their start, as torch writes them. A
//! kernel is linked to the call that launched it by torch's correlation id. Times are microseconds, from
//! `baseTimeNanoseconds` on where the file names it.

mod event;
mod rows;
mod stream;

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use event::{Event, Id};
use rows::Import;
use stream::{Part, Stream, walk};

use super::trainers::{areal, lines};
use super::{ImportError, ImportOptions, Imported, Importer, Sink};
use crate::json::BOM;

pub struct Chrome;

impl Importer for Chrome {
    fn name(&self) -> &'static str {
        "Chrome trace JSON"
    }

    /// Ray's `timeline.json` and torch's `NAME.pt.trace.json`.
    fn belongs(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        name.ends_with(".trace.json") || (name.contains("timeline") && name.ends_with(".json"))
    }

    fn detects(&self, head: &[u8], _path: &Path) -> bool {
        let head = head.strip_prefix(BOM).unwrap_or(head).trim_ascii_start();
        let has = |key: &[u8]| memchr::memmem::find(head, key).is_some();
        match head.first() {
            Some(b'{') => has(b"\"traceEvents\"") || (has(b"\"schemaVersion\"") && has(b"\"deviceProperties\"")),
            Some(b'[') => has(b"\"ph\""),
            _ => false,
        }
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let mut import = Import::new(path, options, sink);
        let mut stream = Stream::new(input);
        walk(&mut stream, &mut |part| match part {
            Part::Header(key, json) => {
                import.header(key, json);
                Ok(())
            }
            Part::Event(json) => import.event(json),
        })?;
        import.finish()
    }
}

/// AReaL's `perf_tracer/[ROLE/]traces-r{rank}.jsonl`: an event per line. Their times count from the start of the process, and nothing
/// says when that was. They are placed so that the last of them ends when the file was written last.
pub struct ArealEvents;

impl Importer for ArealEvents {
    fn name(&self) -> &'static str {
        "AReaL events"
    }

    fn belongs(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("traces-r") && name.contains(".jsonl")
    }

    fn detects(&self, head: &[u8], path: &Path) -> bool {
        let (keys, _) = lines::first_keys(head);
        self.belongs(path) && ["name", "ph", "pid"].iter().all(|name| keys.iter().any(|key| key == name))
    }

    fn import(
        &self,
        path: &Path,
        input: &mut dyn Read,
        options: &ImportOptions,
        sink: &mut Sink,
    ) -> Result<Imported, ImportError> {
        let home = areal::home(path, "perf_tracer");
        let mut last_ns = 0;
        lines::each_text(&mut File::open(path)?, lines::Range::default(), |_, text| {
            if let Some(Ok(event)) = text.ok().map(Event::parse) {
                last_ns = event.ts_ns.unwrap_or(0).saturating_add(event.dur_ns.unwrap_or(0)).max(last_ns);
            }
            Ok(())
        })?;
        let mut import = Import::new(path, options, sink);
        import.of_process(&home, path, "areal", options, last_ns);
        lines::each_text(input, lines::Range::default(), |line, text| match text {
            Ok(text) => import.event(text),
            Err(why) => {
                import.left_out(line, why);
                Ok(())
            }
        })?;
        import.finish()
    }
}

/// Calls `each` with the text of every event.
pub fn events(input: &mut dyn Read, each: &mut dyn FnMut(&[u8]) -> Result<(), ImportError>) -> Result<(), ImportError> {
    walk(&mut Stream::new(input), &mut |part| match part {
        Part::Event(json) => each(json),
        Part::Header(..) => Ok(()),
    })
}

/// The zero of a torch profile, and the process ids in it.
pub fn profile_facts(input: &mut dyn Read) -> Result<(Option<i64>, HashSet<i64>), ImportError> {
    let (mut zero, mut pids) = (None, HashSet::new());
    walk(&mut Stream::new(input), &mut |part| {
        match part {
            Part::Header("baseTimeNanoseconds", json) => {
                zero = std::str::from_utf8(json).ok().and_then(|t| t.parse().ok())
            }
            Part::Header(..) => {}
            Part::Event(json) => {
                if let Ok(event) = Event::parse(json)
                    && let Some(Id::Number(pid)) = event.pid
                {
                    pids.insert(pid);
                }
            }
        }
        Ok(())
    })?;
    Ok((zero, pids))
}

#[cfg(test)]
mod tests {
    use rollscope_model::Table;
    use rollscope_model::read::{Text, column};

    use super::*;

    /// Every row has what stands beside the events, so it is bounded.
    #[test]
    fn many_values_beside_the_events_do_not_multiply() {
        let beside: String = (0..20_000).map(|n| format!("\"k{n}\":\"v\",")).collect();
        let file =
            format!("{{\"first\":{{\"a\":1}},{beside}\"traceEvents\":[{{\"ph\":\"i\",\"ts\":1,\"name\":\"x\"}}]}}");
        let mut resources = Vec::new();
        Chrome
            .import(Path::new("x.json"), &mut file.as_bytes(), &ImportOptions::default(), &mut |table, batch| {
                if table == Table::Spans {
                    let resource: Text = column(&batch, "resource").expect("a column of spans");
                    resources.push(resource.at(0).to_string());
                }
                Ok(())
            })
            .unwrap();
        let [resource] = &resources[..] else { panic!("{resources:?}") };
        assert!(resource.starts_with("{\"first\":{\"a\":1},\"k0\":\"v\",") && resource.ends_with("\"}"));
        assert!((60 << 10..64 << 10).contains(&resource.len()), "{}", resource.len());
        assert!(rollscope_model::attrs::parse(resource).is_some());
    }

    /// Found by fuzzing: each event had a longer resource than the one before, up to 64 KiB.
    #[test]
    fn values_between_events_do_not_make_a_resource_for_each() {
        let part = |n: usize| format!("\"traceEvents\":[{{\"ph\":\"i\",\"ts\":{n},\"name\":\"x\"}}],\"k{n}\":{n}");
        let file = format!("{{{}}}", (0..2_000).map(part).collect::<Vec<_>>().join(","));
        let mut resources = HashSet::new();
        let mut rows = 0;
        Chrome
            .import(Path::new("x.json"), &mut file.as_bytes(), &ImportOptions::default(), &mut |table, batch| {
                if table == Table::Spans {
                    let resource: Text = column(&batch, "resource").expect("a column of spans");
                    resources.extend((0..batch.num_rows()).map(|row| resource.at(row).to_string()));
                    rows += batch.num_rows();
                }
                Ok(())
            })
            .unwrap();
        assert_eq!((rows, resources.len()), (2_000, 17));
    }
}
