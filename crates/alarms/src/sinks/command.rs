//! A program that gets each message as JSON on its standard input. No shell is involved, and it has a time limit.

use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::Sink;
use crate::config::CommandConfig;
use crate::message::Message;

/// How often we look whether it has ended.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes of its errors that are kept.
const MAX_ERRORS: u64 = 2048;

pub struct Program(CommandConfig);

impl Program {
    pub fn new(config: &CommandConfig) -> Program {
        Program(config.clone())
    }
}

impl Sink for Program {
    fn send(&mut self, message: &Message) -> Result<(), String> {
        let body = serde_json::to_vec(message).map_err(|e| e.to_string())?;
        let (program, arguments) = self.0.command.split_first().ok_or("the command is empty")?;
        let mut child = Command::new(program)
            .args(arguments)
            // Not the program's business.
            .env_remove("ROLLSCOPE_TOKEN")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Its own group, so that what it started ends with it.
            .process_group(0)
            .spawn()
            .map_err(|e| format!("cannot start {program}: {e}"))?;
        let deadline = Instant::now() + Duration::from_secs_f64(self.0.timeout_s);
        // A program that reads nothing, or writes much, blocks these threads and not us. They end with it.
        if let Some(mut input) = child.stdin.take() {
            std::thread::spawn(move || input.write_all(&body));
        }
        let (errors_to, errors) = mpsc::channel();
        if let Some(mut output) = child.stderr.take() {
            std::thread::spawn(move || {
                let mut kept = Vec::new();
                let _ = output.by_ref().take(MAX_ERRORS).read_to_end(&mut kept);
                let _ = errors_to.send(String::from_utf8_lossy(&kept).trim().to_string());
                let _ = std::io::copy(&mut output, &mut std::io::sink());
            });
        }
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    let said = errors.recv_timeout(LOOK * 10).unwrap_or_default();
                    return Err(format!("{program} ended with {status}: {said}"));
                }
                Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
                Ok(None) => {
                    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                        let _ = kill_process_group(group, Signal::KILL);
                    }
                    let _ = child.wait();
                    return Err(format!("{program} took longer than {} s and was ended", self.0.timeout_s));
                }
                Err(e) => return Err(format!("{program}: {e}")),
            }
        }
    }
}
