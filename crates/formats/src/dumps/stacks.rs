//! Stacks by py-spy: `py-spy dump --pid PID`, as text or with `--json`; by Python's own `faulthandler`; and by the rollscope package,
//! which writes them as either does. One file may hold several processes.

use serde_json::Value;

use super::{cut, rank_in};
use crate::import::ImportError;

/// Processes of a file, threads of a process, frames of a thread.
const MAX_PROCESSES: usize = 4096;
const MAX_THREADS: usize = 4096;
const MAX_FRAMES: usize = 256;

const MAIN: &str = "MainThread";
const FIRST: &str = " (most recent call first):";

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    pub pid: Option<i64>,
    pub command: String,
    /// Where the name of the file tells it.
    pub rank: Option<i64>,
    pub threads: Vec<Thread>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Thread {
    pub name: String,
    pub active: bool,
    /// From the inside out.
    pub frames: Vec<Frame>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Frame {
    pub function: String,
    /// The last part of its path.
    pub file: String,
    pub line: i64,
}

/// None: it is something else.
pub fn read_text(name: &str, text: &str) -> Option<Vec<Process>> {
    let rank = rank_in(name);
    let mut out: Vec<Process> = Vec::new();
    for line in text.lines() {
        if let Some((pid, command)) = line.strip_prefix("Process ").and_then(|rest| rest.split_once(": ")) {
            if out.len() >= MAX_PROCESSES {
                break;
            }
            out.push(Process { pid: pid.trim().parse().ok(), command: cut(command), rank, threads: Vec::new() });
        } else if let Some(rest) = line.strip_prefix("Thread ").or_else(|| line.strip_prefix("Current thread ")) {
            if out.is_empty() {
                out.push(Process { rank, ..Process::default() });
            }
            let threads = &mut out.last_mut()?.threads;
            if threads.len() < MAX_THREADS {
                threads.push(thread(rest));
            }
        } else if let Some(frame) = line
            .strip_prefix("    ")
            .filter(|line| !line.starts_with("    "))
            .and_then(frame)
            .or_else(|| line.strip_prefix("  File ").and_then(faulthandler_frame))
            && let Some(thread) = out.last_mut().and_then(|process| process.threads.last_mut())
            && thread.frames.len() < MAX_FRAMES
        {
            thread.frames.push(frame);
        }
    }
    out.retain(|process| !process.threads.is_empty());
    for process in &mut out {
        // `faulthandler` does not name threads before Python 3.14. It writes the newest first, so the main one is last.
        if process.threads.iter().all(|thread| thread.name.is_empty())
            && let Some(last) = process.threads.last_mut()
        {
            last.name = MAIN.into();
        }
    }
    (!out.is_empty()).then_some(out)
}

/// What comes after the word `Thread`: `11 (idle): "MainThread"` by py-spy, `0x00007f1c [MainThread] (most recent call first):` by
/// `faulthandler`.
fn thread(rest: &str) -> Thread {
    let name = match rest.strip_suffix(FIRST) {
        Some(before) => before.split_once('[').map_or("", |(_, name)| name.trim_end_matches(']')),
        None => rest.split_once(": ").map_or(rest, |(_, name)| name).trim().trim_matches('"'),
    };
    Thread { name: cut(name), active: rest.contains("(active"), frames: Vec::new() }
}

/// `"/lib/threading.py", line 320 in wait`.
fn faulthandler_frame(line: &str) -> Option<Frame> {
    let (path, rest) = line.strip_prefix('"')?.rsplit_once("\", line ")?;
    let (number, function) = rest.split_once(" in ")?;
    let file = path.rsplit('/').next().unwrap_or(path);
    Some(Frame { function: cut(function.trim()), file: cut(file), line: number.parse().unwrap_or(0) })
}

/// `wait (threading.py:320)`. What is deeper in the line, such as arguments, is passed over.
fn frame(line: &str) -> Option<Frame> {
    let (function, rest) = line.trim_end().rsplit_once(" (")?;
    let (file, number) = rest.strip_suffix(')')?.rsplit_once(':')?;
    let file = file.rsplit('/').next().unwrap_or(file);
    Some(Frame { function: cut(function.trim()), file: cut(file), line: number.parse().ok()? })
}

pub fn read_json(name: &str, text: &str) -> Result<Vec<Process>, ImportError> {
    let bad = |what: String| ImportError::Malformed(format!("this is no dump of py-spy: {what}"));
    let threads: Vec<Value> = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
    let rank = rank_in(name);
    let mut out: Vec<Process> = Vec::new();
    for thread in threads.iter().take(MAX_PROCESSES * 16) {
        let Some(frames) = thread["frames"].as_array() else { return Err(bad("a thread has no `frames`".into())) };
        let pid = thread["pid"].as_i64();
        let at = out.iter().position(|process| process.pid == pid).unwrap_or_else(|| {
            let command = cut(thread["process_info"]["command_line"].as_str().unwrap_or(""));
            out.push(Process { pid, command, rank, threads: Vec::new() });
            out.len() - 1
        });
        let frame = |frame: &Value| {
            let file = frame["short_filename"].as_str().or(frame["filename"].as_str()).unwrap_or("");
            Frame {
                function: cut(frame["name"].as_str().unwrap_or("?")),
                file: cut(file.rsplit('/').next().unwrap_or(file)),
                line: frame["line"].as_i64().unwrap_or(0),
            }
        };
        if out[at].threads.len() < MAX_THREADS && out.len() <= MAX_PROCESSES {
            out[at].threads.push(Thread {
                name: cut(thread["thread_name"].as_str().unwrap_or("")),
                active: thread["active"].as_bool().unwrap_or(false),
                frames: frames.iter().take(MAX_FRAMES).map(frame).collect(),
            });
        }
    }
    if out.is_empty() {
        return Err(bad("it has no threads".into()));
    }
    Ok(out)
}

/// Files of the standard library in which threads wait.
const WAITING: &[&str] = &[
    "threading.py",
    "queue.py",
    "selectors.py",
    "socket.py",
    "ssl.py",
    "subprocess.py",
    "connection.py",
    "popen_fork.py",
    "base_events.py",
    "runners.py",
    "futures.py",
    "_base.py",
    "thread.py",
];

impl Process {
    /// The thread that matters: the main one, else the first that is active.
    pub fn main(&self) -> Option<&Thread> {
        let is_main = |thread: &&Thread| thread.name.contains(MAIN);
        self.threads
            .iter()
            .find(is_main)
            .or_else(|| self.threads.iter().find(|thread| thread.active))
            .or(self.threads.first())
    }

    /// Where it is, in words: the innermost frame that is not of the standard library.
    pub fn place(&self) -> Option<String> {
        let frames = &self.main()?.frames;
        let own = frames.iter().find(|frame| !WAITING.contains(&frame.file.as_str())).or(frames.first())?;
        Some(format!("`{}` ({}:{})", own.function, own.file, own.line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_several_processes() {
        let text = "Process 11: python train.py --rank 0\nPython v3.11.2 (/usr/bin/python3.11)\n\nThread 11 (idle): \"MainThread\"\n    \
                    wait (threading.py:320)\n    tokenize (lib/tok.py:5)\n        Arguments:\n            x: 5\nThread 12 (active)\n    spin (a (b).py:7)\n\
                    Process 13: python engine.py\nThread 13 (idle): \"MainThread\"\n    <module> (engine.py:1)\n";
        let found = read_text("stacks.rank4.txt", text).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].pid, found[0].rank, found[0].threads.len()), (Some(11), Some(4), 2));
        assert_eq!(found[0].place().as_deref(), Some("`tokenize` (tok.py:5)"));
        assert!(found[0].threads[1].active && !found[0].threads[0].active);
        assert_eq!(found[1].command, "python engine.py");
        assert_eq!(read_text("x", "nothing of the kind"), None);
    }

    #[test]
    fn faulthandlers_text() {
        let text = "Process 7: Python's lock has not been free for 3 s\nThread 0x00007f32 (most recent call first):\n  File \"/usr/lib/python3.11/threading.py\", line 320 in wait\n\n\
                    Thread 0x00007f99 (most recent call first):\n  File \"/app/train.py\", line 12 in all_reduce\n  File \"/app/train.py\", line 40 in <module>\n";
        let found = read_text("stacks", text).unwrap();
        assert_eq!((found.len(), found[0].pid, found[0].threads.len()), (1, Some(7), 2));
        assert_eq!(found[0].place().as_deref(), Some("`all_reduce` (train.py:12)"));
        let named = "Current thread 0x00007f32 [worker] (most recent call first):\n  File \"a.py\", line 1 in f\nThread 0x1 [MainThread] (most recent call first):\n  File \"b.py\", line ??? in g\n";
        let found = read_text("x.rank3", named).unwrap();
        assert_eq!((found[0].rank, found[0].place().as_deref()), (Some(3), Some("`g` (b.py:0)")));
        assert_eq!(found[0].threads[0].name, "worker");
    }
}
