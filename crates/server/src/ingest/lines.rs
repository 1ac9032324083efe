//! Where `rollscope collect` puts what it takes: JSON lines in files that rotate by size. One thread writes: what waits is
//! written and synced together, then every sender gets its response. Files are `traces.jsonl`, `traces.1.jsonl`, `traces.2.jsonl`, ...
//!
//! A line that was not finished when the process died was never acknowledged: it is cut off at the next start. A write
//! that fails is undone, and the senders are asked to send again.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rollscope_store::Vitals;
use tokio::sync::{mpsc, oneshot};

use super::Refusal;

/// Lines that wait for the writer.
const WAITING: usize = 1024;
/// Bytes that are written before the next sync.
const GROUP_BYTES: usize = 16 << 20;

struct Job {
    line: Vec<u8>,
    spans: u64,
    done: oneshot::Sender<Result<(), String>>,
}

/// A handle to the writer.
#[derive(Clone)]
pub struct Lines {
    to: mpsc::Sender<Job>,
    written: Arc<Written>,
}

/// What is safe on disk.
#[derive(Debug, Default)]
pub struct Written {
    pub lines: AtomicU64,
    pub spans: AtomicU64,
    pub bytes: AtomicU64,
}

impl Lines {
    /// Opens the newest file of `path`, or makes the first.
    pub fn open(path: &Path, max_file_bytes: u64, vitals: &Vitals) -> io::Result<Lines> {
        let mut files = Files::open(path, max_file_bytes)?;
        let (to, mut jobs) = mpsc::channel::<Job>(WAITING);
        let written = Arc::new(Written::default());
        let counts = written.clone();
        // It ends when the last handle is dropped. No one has to wait for it: what it has not written is not acknowledged.
        vitals.thread("lines", move || {
            let mut group: Vec<Job> = Vec::new();
            while let Some(first) = jobs.blocking_recv() {
                let mut bytes = first.line.len();
                group.push(first);
                while bytes < GROUP_BYTES
                    && let Ok(job) = jobs.try_recv()
                {
                    bytes += job.line.len();
                    group.push(job);
                }
                let done = files.append(group.iter().map(|job| &job.line[..])).map_err(|e| e.to_string());
                if done.is_ok() {
                    counts.lines.fetch_add(group.len() as u64, Relaxed);
                    counts.spans.fetch_add(group.iter().map(|job| job.spans).sum(), Relaxed);
                    counts.bytes.fetch_add(bytes as u64, Relaxed);
                }
                for job in group.drain(..) {
                    let _ = job.done.send(done.clone());
                }
            }
        })?;
        Ok(Lines { to, written })
    }

    pub fn written(&self) -> &Arc<Written> {
        &self.written
    }

    /// Returns when the line is on disk.
    pub async fn append(&self, line: Vec<u8>, spans: u64) -> Result<(), Refusal> {
        let (done, answer) = oneshot::channel();
        let gone =
            || Refusal::Unavailable { detail: "the collector is stopping".into(), after: Duration::from_secs(1) };
        self.to.send(Job { line, spans, done }).await.map_err(|_| gone())?;
        match answer.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Refusal::Unavailable {
                detail: format!("cannot write the file: {error}; send again"),
                after: Duration::from_secs(5),
            }),
            Err(_) => Err(gone()),
        }
    }
}

struct Files {
    first: PathBuf,
    index: u64,
    file: File,
    len: u64,
    max_bytes: u64,
}

/// `traces.jsonl`, `traces.1.jsonl`, ...
pub fn file_name(first: &Path, index: u64) -> PathBuf {
    if index == 0 {
        return first.to_path_buf();
    }
    let stem = first.file_stem().unwrap_or_default().to_string_lossy();
    match first.extension() {
        Some(extension) => first.with_file_name(format!("{stem}.{index}.{}", extension.to_string_lossy())),
        None => first.with_file_name(format!("{stem}.{index}")),
    }
}

/// The indices of the files that are there, in order.
pub fn indices(first: &Path) -> io::Result<Vec<u64>> {
    let folder = match first.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let stem = first.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let extension = first.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name == format!("{stem}{extension}") {
            found.push(0);
        } else if let Some(rest) = name.strip_prefix(&format!("{stem}."))
            && let Some(Ok(index)) = rest.strip_suffix(&extension).map(str::parse)
        {
            found.push(index);
        }
    }
    found.sort_unstable();
    Ok(found)
}

impl Files {
    fn open(first: &Path, max_bytes: u64) -> io::Result<Files> {
        if let Some(folder) = first.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let index = indices(first)?.last().copied().unwrap_or(0);
        let (file, len) = open_at_end(&file_name(first, index))?;
        Ok(Files { first: first.to_path_buf(), index, file, len, max_bytes })
    }

    fn append<'a>(&mut self, lines: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
        if self.len >= self.max_bytes && self.len > 0 {
            let (file, len) = open_at_end(&file_name(&self.first, self.index + 1))?;
            (self.file, self.len, self.index) = (file, len, self.index + 1);
        }
        let before = self.len;
        let result = (|| {
            for line in lines {
                self.file.write_all(line)?;
                self.len += line.len() as u64;
            }
            self.file.sync_data()
        })();
        if result.is_err() {
            // What was written of the group goes away: it is not acknowledged, and it would come twice.
            self.len = before;
            let _ = self.file.set_len(before);
            let _ = self.file.seek(SeekFrom::Start(before));
        }
        result
    }
}

/// The file, ready to be appended to; an unfinished line is removed. The entry in the folder is synced.
fn open_at_end(path: &Path) -> io::Result<(File, u64)> {
    // Prompts and answers may be in it: new files are for their owner alone.
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let len = file.metadata()?.len();
    let good = after_last_newline(&mut file, len)?;
    if good < len {
        tracing::warn!(file = %path.display(), bytes = len - good, "removed an unfinished line");
        file.set_len(good)?;
    }
    file.seek(SeekFrom::Start(good))?;
    file.sync_all()?;
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        File::open(folder)?.sync_all()?;
    }
    Ok((file, good))
}

fn after_last_newline(file: &mut File, len: u64) -> io::Result<u64> {
    let mut end = len;
    let mut chunk = vec![0; 64 << 10];
    while end > 0 {
        let from = end.saturating_sub(chunk.len() as u64);
        let part = &mut chunk[..(end - from) as usize];
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(part)?;
        if let Some(at) = part.iter().rposition(|b| *b == b'\n') {
            return Ok(from + at as u64 + 1);
        }
        end = from;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(first: &Path) -> Vec<String> {
        let indices = indices(first).unwrap();
        indices.iter().map(|i| std::fs::read_to_string(file_name(first, *i)).unwrap()).collect()
    }

    #[test]
    fn files_rotate_and_go_on_where_they_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let first = folder.path().join("sub/traces.jsonl");
        let mut files = Files::open(&first, 10).unwrap();
        for _ in 0..5 {
            files.append([&b"12345\n"[..]].into_iter()).unwrap();
        }
        assert_eq!(texts(&first), ["12345\n12345\n", "12345\n12345\n", "12345\n"]);
        drop(files);
        // Killed while it wrote.
        let last = file_name(&first, 2);
        std::fs::write(&last, "12345\n123").unwrap();
        let mut files = Files::open(&first, 10).unwrap();
        files.append([&b"67890\n"[..]].into_iter()).unwrap();
        assert_eq!(texts(&first)[2], "12345\n67890\n");
    }

    #[tokio::test]
    async fn what_is_acknowledged_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let first = folder.path().join("traces.jsonl");
        let lines = Lines::open(&first, 1 << 30, &Vitals::default()).unwrap();
        let all = (0..200).map(|i| {
            let lines = lines.clone();
            async move { lines.append(format!("{i}\n").into_bytes(), 1).await }
        });
        for done in futures::future::join_all(all).await {
            done.unwrap();
        }
        assert_eq!(lines.written().spans.load(Relaxed), 200);
        assert_eq!(std::fs::read_to_string(&first).unwrap().lines().count(), 200);
    }
}
