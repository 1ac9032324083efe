//! SeaweedFS as a child process: an object store with the S3 API, on this machine. It has no keys, so that nothing here has to
//! sign what it asks. What nodes sign is not checked.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rand::prelude::*;

const BUCKET: &str = "bench";
/// It serves gRPC that far above each of its ports.
const GRPC_ABOVE: u16 = 10_000;
const STARTS_WITHIN: Duration = Duration::from_secs(120);

pub struct Seaweed {
    child: Child,
    s3: String,
    metrics: String,
    agent: ureq::Agent,
}

/// Where `make test` installs it.
pub fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/bin/weed")
}

impl Seaweed {
    pub fn start(folder: &Path) -> anyhow::Result<Seaweed> {
        std::fs::create_dir_all(folder)?;
        let [s3, master, filer, volume, admin, metrics] = free_ports();
        let log = folder.join("log");
        let out = std::fs::File::create(&log)?;
        let mut command = Command::new(program());
        without_ours(&mut command).arg("mini").arg(format!("-dir={}", folder.display()));
        command.args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-admin.ui=false", "-webdav=false"]);
        command.args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]);
        let ports = [("s3.port", s3), ("master.port", master), ("filer.port", filer), ("volume.port", volume)];
        for (name, port) in ports.into_iter().chain([("admin.port", admin), ("metricsPort", metrics)]) {
            command.arg(format!("-{name}={port}"));
        }
        command.arg(format!("-bucket={BUCKET}")).current_dir(folder).stdin(Stdio::null());
        let child = command.stdout(out.try_clone()?).stderr(out).spawn().with_context(|| format!("{command:?}"))?;
        let at = |port| format!("http://127.0.0.1:{port}");
        let agent = ureq::Agent::config_builder().proxy(None).build().into();
        let mut started = Seaweed { child, s3: at(s3), metrics: at(metrics), agent };
        let since = Instant::now();
        while !std::fs::read_to_string(&log)?.contains("running and ready") {
            let ended = started.child.try_wait()?;
            anyhow::ensure!(ended.is_none() && since.elapsed() < STARTS_WITHIN, "SeaweedFS did not start, see {log:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(started)
    }

    /// What `--data` is for a lake.
    pub fn url(&self, prefix: &str) -> String {
        format!("s3://{BUCKET}/{prefix}")
    }

    /// A program that finds it.
    pub fn client(&self, program: PathBuf) -> Command {
        let mut command = Command::new(program);
        without_ours(&mut command).env("AWS_ENDPOINT_URL", &self.s3).env("AWS_REGION", "us-east-1");
        command.env("AWS_ACCESS_KEY_ID", "bench").env("AWS_SECRET_ACCESS_KEY", "not-checked");
        command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
        command
    }

    /// Keys and sizes of all objects whose keys begin so.
    pub fn list(&self, prefix: &str) -> anyhow::Result<Vec<(String, u64)>> {
        let mut found: Vec<(String, u64)> = Vec::new();
        loop {
            let after = found.last().map_or("", |(key, _)| key);
            let asked = self.agent.get(format!("{}/{BUCKET}", self.s3)).query("list-type", "2");
            let text = asked.query("prefix", prefix).query("start-after", after).call()?.body_mut().read_to_string()?;
            for object in text.split("<Contents>").skip(1) {
                let field = |name: &str| {
                    let rest = object.split_once(&format!("<{name}>"))?.1;
                    Some(rest.split_once("</")?.0)
                };
                let (key, bytes) = field("Key").zip(field("Size")).context("an object has no name or no size")?;
                found.push((key.to_string(), bytes.parse()?));
            }
            if !text.contains("<IsTruncated>true") {
                return Ok(found);
            }
        }
    }

    /// How long it takes to create an object of this size, one after the other, as a node creates those of its log. Shortest first.
    pub fn put_ms(&self, bytes: usize, times: u64) -> anyhow::Result<Vec<f64>> {
        // Nothing that it could compress: objects of the log are compressed already.
        let mut body = vec![0; bytes];
        StdRng::seed_from_u64(1).fill_bytes(&mut body);
        let put = |n| -> anyhow::Result<f64> {
            let begun = Instant::now();
            let request = self.agent.put(format!("{}/{BUCKET}/puts/{n}", self.s3)).header("if-none-match", "*");
            request.send(&body[..])?;
            Ok(begun.elapsed().as_secs_f64() * 1e3)
        };
        let mut times = (0..times).map(put).collect::<anyhow::Result<Vec<f64>>>()?;
        times.sort_by(f64::total_cmp);
        Ok(times)
    }

    /// How many requests of each kind (`PUT`, `GET`, ...) it has answered.
    pub fn requests(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        let text = self.agent.get(format!("{}/metrics", self.metrics)).call()?.body_mut().read_to_string()?;
        let mut kinds = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with("SeaweedFS_s3_request_total{")) {
            let kind = line.split_once("type=\"").and_then(|(_, rest)| rest.split_once('"'));
            let number = line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok());
            let ((kind, _), number) =
                kind.zip(number).with_context(|| format!("SeaweedFS counts like this: {line}"))?;
            *kinds.entry(kind.to_string()).or_default() += number;
        }
        Ok(kinds)
    }

    pub fn requests_since(&self, before: &BTreeMap<String, f64>) -> anyhow::Result<BTreeMap<String, f64>> {
        let mut kinds = self.requests()?;
        kinds.iter_mut().for_each(|(kind, n)| *n -= before.get(kind).unwrap_or(&0.0));
        Ok(kinds)
    }
}

impl Drop for Seaweed {
    fn drop(&mut self) {
        // In order, it takes ten seconds.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Without what the shell says of rollscope and of S3: that is about something else.
fn without_ours(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("AWS_") || name.starts_with("ROLLSCOPE_")) {
            command.env_remove(name);
        }
    }
    command
}

/// Below those that the system gives to connections. Nobody listens there, nor where gRPC will be.
fn free_ports<const N: usize>() -> [u16; N] {
    let mut dice = rand::rng();
    let mut taken = Vec::new();
    std::array::from_fn(|_| {
        loop {
            let port = dice.random_range(10_000..20_000);
            let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
            if !taken.contains(&port) && is_free(port) && is_free(port + GRPC_ABOVE) {
                taken.push(port);
                return port;
            }
        }
    })
}
