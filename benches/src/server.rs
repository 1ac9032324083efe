//! The release binary as a child process, with the kernel's statistics about it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

pub fn binary() -> PathBuf {
    let beside = std::env::current_exe().map(|p| p.with_file_name("rollscope")).unwrap_or_default();
    std::env::var_os("ROLLSCOPE_BIN").map_or(beside, PathBuf::from)
}

pub struct Server {
    child: Child,
    pub page: String,
    pub grpc: String,
}

impl Server {
    pub fn start(data: &Path) -> anyhow::Result<Server> {
        let mut command = Command::new(binary());
        command.arg("serve").arg("--data").arg(data);
        command.args(["--listen", "127.0.0.1:0", "--otlp-grpc", "127.0.0.1:0", "--otlp-http", ""]);
        Self::spawn(command)
    }

    /// A process that prints its addresses as rollscope does, and its data last. A worker has neither page nor gRPC.
    pub fn spawn(mut command: Command) -> anyhow::Result<Server> {
        let mut child =
            command.stdout(Stdio::piped()).spawn().with_context(|| format!("{command:?}: run `make release`"))?;
        let (mut page, mut grpc, mut is_up) = (String::new(), String::new(), false);
        for line in BufReader::new(child.stdout.take().context("stdout")?).lines() {
            let line = line?;
            let last = line.rsplit(' ').next().unwrap_or_default().to_string();
            if line.starts_with("rollscope is at") {
                page = last;
            } else if line.starts_with("OTLP gRPC") {
                grpc = last;
            } else if line.starts_with("data") {
                is_up = true;
                break;
            }
        }
        if !is_up {
            let _ = child.kill();
            let _ = child.wait();
            anyhow::bail!("{command:?} did not start");
        }
        Ok(Server { child, page, grpc })
    }

    /// CPU seconds used so far, all threads.
    pub fn cpu_s(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
        Ok(ticks / 100.0)
    }

    /// Resident memory, in bytes: now and the highest so far.
    pub fn memory(&self) -> anyhow::Result<(u64, u64)> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let kib = |key: &str| -> u64 {
            let line = status.lines().find(|l| l.starts_with(key)).unwrap_or_default();
            line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        Ok((kib("VmRSS:") * 1024, kib("VmHWM:") * 1024))
    }

    pub fn sql(&self, query: &str) -> anyhow::Result<serde_json::Value> {
        let body = serde_json::json!({ "query": query, "format": "json" });
        let mut answer = ureq::post(format!("{}/api/v1/sql", self.page)).send_json(body)?;
        Ok(answer.body_mut().read_json()?)
    }

    pub fn get(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        Ok(ureq::get(format!("{}{path}", self.page)).call()?.body_mut().with_config().limit(1 << 30).read_to_vec()?)
    }

    /// A figure of `/metrics` that has no labels. Zero if there is none.
    pub fn figure(&self, name: &str) -> anyhow::Result<f64> {
        let text = String::from_utf8(self.get("/metrics")?)?;
        let line = text.lines().find(|l| l.starts_with(name) && l.as_bytes().get(name.len()) == Some(&b' '));
        Ok(line.and_then(|l| l.rsplit(' ').next()).unwrap_or("0").parse()?)
    }

    /// SIGTERM, so that it flushes.
    pub fn stop(mut self) -> anyhow::Result<()> {
        Command::new("kill").arg(self.child.id().to_string()).status()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Seconds from start to end of the process, and the most memory it held.
pub fn timed(command: &mut Command) -> anyhow::Result<(f64, u64)> {
    let started = Instant::now();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut peak = 0;
    let status = loop {
        let text = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = text.lines().find(|l| l.starts_with("VmHWM:")).unwrap_or_default();
        let kib: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
        peak = peak.max(kib * 1024);
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    anyhow::ensure!(status.success(), "{command:?} failed");
    Ok((started.elapsed().as_secs_f64(), peak))
}

/// Bytes of all files in a folder.
pub fn size(folder: &Path) -> anyhow::Result<u64> {
    let mut total = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        total += if about.is_dir() { size(&entry.path())? } else { about.len() };
    }
    Ok(total)
}

/// What a script of the page's folder prints last, as JSON.
pub fn node(args: &[&str]) -> anyhow::Result<serde_json::Value> {
    let ui = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ui");
    let output = Command::new("node").args(args).current_dir(&ui).output().context("node")?;
    anyhow::ensure!(output.status.success(), "{}: {}", args[0], String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    serde_json::from_str(text.lines().last().unwrap_or_default()).with_context(|| text)
}
