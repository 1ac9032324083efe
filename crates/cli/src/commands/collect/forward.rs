//! Forwards the collected data to a server, line by line from the files. The files are the buffer while the server is away,
//! and after a restart the collector continues where it stopped. Delivery is at least once: the server counts duplicates once.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rollscope_server::collect::{file_name, indices};
use rollscope_store::Vitals;
use serde::{Deserialize, Serialize};

use crate::config::Usage;

const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const IDLE: Duration = Duration::from_millis(100);
/// At the end, this long is tried to get the rest through.
const LAST_TRY: Duration = Duration::from_secs(5);
/// The position is saved after this many bytes, and whenever there is nothing left to send.
const REMEMBER_EVERY: u64 = 1 << 20;

pub struct Forward {
    url: String,
    token: Option<String>,
    keep: bool,
    first: PathBuf,
    agent: ureq::Agent,
}

pub struct Forwarding {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// Up to where the server has everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    file: u64,
    offset: u64,
}

enum SendOutcome {
    Taken,
    /// It will never be taken.
    Refused(String),
    Later(String),
}

impl Forward {
    pub fn new(url: &str, token: Option<String>, keep: bool, first: &Path) -> anyhow::Result<Forward> {
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Usage(format!("--forward {url}: expected http://HOST:PORT")).into());
        }
        let url = format!("{}/v1/traces", url.trim_end_matches('/').trim_end_matches("/v1/traces"));
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(60)))
            .build()
            .into();
        Ok(Forward { url, token, keep, first: first.to_path_buf(), agent })
    }

    pub fn start(self, vitals: &Vitals) -> std::io::Result<Forwarding> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = vitals.thread("forward", move || self.run(&told))?;
        Ok(Forwarding { stop, thread })
    }

    fn run(&self, stop: &AtomicBool) {
        let mut position = self.remembered();
        let mut unsaved = 0;
        let mut wait = FIRST_WAIT;
        let mut deadline = None;
        loop {
            let stopping = stop.load(Relaxed);
            if stopping && *deadline.get_or_insert_with(|| Instant::now() + LAST_TRY) < Instant::now() {
                break;
            }
            match self.next(position) {
                Ok(None) => {
                    if unsaved > 0 {
                        self.remember(position);
                        unsaved = 0;
                    }
                    if stopping {
                        break;
                    }
                    std::thread::sleep(IDLE);
                }
                Ok(Some((line, after))) => match self.send(&line) {
                    SendOutcome::Later(why) => {
                        tracing::warn!(url = self.url, why, "the server does not accept data; trying again");
                        if stopping {
                            break;
                        }
                        pause(wait, stop);
                        wait = (wait * 2).min(LONGEST_WAIT);
                    }
                    answer => {
                        wait = FIRST_WAIT;
                        if let SendOutcome::Refused(why) = answer {
                            tracing::error!(
                                url = self.url,
                                why,
                                "the server refused a message for good; writing it to refused.jsonl"
                            );
                            self.set_aside(&line);
                        }
                        unsaved += line.len() as u64;
                        if after.file != position.file {
                            self.remember(after);
                            unsaved = 0;
                            if !self.keep {
                                let _ = std::fs::remove_file(file_name(&self.first, position.file));
                            }
                        } else if unsaved >= REMEMBER_EVERY {
                            self.remember(after);
                            unsaved = 0;
                        }
                        position = after;
                    }
                },
                Err(error) => {
                    tracing::warn!(%error, "cannot read the collected files; trying again");
                    pause(LONGEST_WAIT, stop);
                }
            }
        }
        self.remember(position);
    }

    /// The next line and the position after it. The line is empty where one file ends and the next begins.
    fn next(&self, position: Position) -> std::io::Result<Option<(Vec<u8>, Position)>> {
        let there = indices(&self.first)?;
        // The folder may have been cleared: then start again.
        let current = there.iter().copied().find(|i| *i >= position.file).or_else(|| there.first().copied());
        let Some(current) = current else { return Ok(None) };
        let offset = if current == position.file { position.offset } else { 0 };
        let mut file = BufReader::with_capacity(64 << 10, File::open(file_name(&self.first, current))?);
        file.seek(SeekFrom::Start(offset))?;
        let mut line = Vec::new();
        file.read_until(b'\n', &mut line)?;
        if line.last() == Some(&b'\n') {
            let after = Position { file: current, offset: offset + line.len() as u64 };
            return Ok(Some((line, after)));
        }
        // No whole line. The last file is still written to; any other is at its end.
        match there.iter().copied().find(|i| *i > current) {
            Some(next) => Ok(Some((Vec::new(), Position { file: next, offset: 0 }))),
            None => Ok(None),
        }
    }

    fn send(&self, line: &[u8]) -> SendOutcome {
        if line.is_empty() {
            return SendOutcome::Taken;
        }
        let mut request = self.agent.post(&self.url).header("content-type", "application/json");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        match request.send(line) {
            Err(error) => SendOutcome::Later(error.to_string()),
            Ok(mut answer) => {
                let status = answer.status().as_u16();
                if (200..300).contains(&status) {
                    return SendOutcome::Taken;
                }
                let text = answer.body_mut().with_config().limit(4096).read_to_string().unwrap_or_default();
                let why = format!("{status}: {}", text.chars().take(500).collect::<String>());
                match status {
                    400 | 413 | 415 | 422 => SendOutcome::Refused(why),
                    _ => SendOutcome::Later(why),
                }
            }
        }
    }

    fn position_file(&self) -> PathBuf {
        self.first.with_file_name("forward.json")
    }

    fn remembered(&self) -> Position {
        let text = std::fs::read(self.position_file()).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    fn remember(&self, position: Position) {
        let Ok(text) = serde_json::to_vec(&position) else { return };
        let written = rollscope_formats::export::atomically(&self.position_file(), |mut file| {
            file.write_all(&text)?;
            file.sync_data()
        });
        if let Err(error) = written {
            tracing::warn!(%error, "cannot save how much was forwarded; some data will be sent again");
        }
    }

    fn set_aside(&self, line: &[u8]) {
        let path = self.first.with_file_name("refused.jsonl");
        let written = File::options().append(true).create(true).open(path).and_then(|mut f| f.write_all(line));
        if let Err(error) = written {
            tracing::error!(%error, "cannot write a refused message to refused.jsonl");
        }
    }
}

fn pause(time: Duration, stop: &AtomicBool) {
    let until = Instant::now() + time;
    while Instant::now() < until && !stop.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Forwarding {
    pub fn stop(self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.join();
    }
}
