//! The index on a disk that fails, and with damaged files. It is made from the store, so nothing of it may be missing in the end.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rollscope_model::Table;
use rollscope_model::build::{ConversationsBuilder, NewConversation};
use rollscope_store::{Snapshot, SnapshotSource, Store, StoreOptions};
use tantivy::directory::error::{DeleteError, LockError, OpenReadError, OpenWriteError};
use tantivy::directory::{
    AntiCallToken, Directory, DirectoryLock, FileHandle, Lock, MmapDirectory, TerminatingWrite, WatchCallback,
    WatchHandle, WritePtr,
};
use tokio::runtime::Runtime;

use crate::{Request, Search, catch_up, parse_search};

const EIO: i32 = 5;
const EACCES: i32 = 13;
const ENOSPC: i32 = 28;

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Error(i32),
    /// Half of what was to be written is.
    Half,
}

/// Which calls fail: those from the N-th on, so many.
#[derive(Debug, Default)]
struct Plan {
    calls: Vec<&'static str>,
    first: usize,
    count: usize,
    kind: Option<Kind>,
}

/// A folder of files that fail.
#[derive(Clone, Debug)]
struct Failing {
    files: MmapDirectory,
    plan: Arc<Mutex<Plan>>,
}

impl Failing {
    fn strike(&self, call: &'static str) -> Result<(), (Kind, io::Error)> {
        strike(&self.plan, call)
    }
}

fn strike(plan: &Mutex<Plan>, call: &'static str) -> Result<(), (Kind, io::Error)> {
    let mut plan = plan.lock();
    let at = plan.calls.len();
    plan.calls.push(call);
    match plan.kind {
        Some(kind) if (plan.first..plan.first + plan.count).contains(&at) => {
            let code = if let Kind::Error(code) = kind { code } else { ENOSPC };
            Err((kind, io::Error::from_raw_os_error(code)))
        }
        _ => Ok(()),
    }
}

impl Directory for Failing {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        self.strike("open").map_err(|(_, e)| OpenReadError::wrap_io_error(e, path.into()))?;
        self.files.get_file_handle(path)
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        let failed = |e| DeleteError::IoError { io_error: Arc::new(e), filepath: path.into() };
        self.strike("delete").map_err(|(_, e)| failed(e))?;
        self.files.delete(path)
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.files.exists(path)
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        self.strike("create").map_err(|(_, e)| OpenWriteError::wrap_io_error(e, path.into()))?;
        let file = FailingFile { file: self.files.open_write(path)?, plan: self.plan.clone() };
        Ok(WritePtr::new(Box::new(file)))
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        self.strike("read").map_err(|(_, e)| OpenReadError::wrap_io_error(e, path.into()))?;
        self.files.atomic_read(path)
    }

    fn atomic_write(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        self.strike("replace").map_err(|(_, e)| e)?;
        self.files.atomic_write(path, data)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.strike("sync").map_err(|(_, e)| e)?;
        self.files.sync_directory()
    }

    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        self.strike("lock").map_err(|(_, e)| LockError::wrap_io_error(e))?;
        self.files.acquire_lock(lock)
    }

    fn watch(&self, callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        self.files.watch(callback)
    }
}

struct FailingFile {
    file: WritePtr,
    plan: Arc<Mutex<Plan>>,
}

impl Write for FailingFile {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match strike(&self.plan, "write") {
            Ok(()) => self.file.write(data),
            Err((kind, error)) => {
                if kind == Kind::Half {
                    self.file.write_all(&data[..data.len() / 2])?;
                }
                Err(error)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        strike(&self.plan, "flush").map_err(|(_, e)| e)?;
        self.file.flush()
    }
}

impl TerminatingWrite for FailingFile {
    fn terminate_ref(&mut self, token: AntiCallToken) -> io::Result<()> {
        strike(&self.plan, "finish").map_err(|(_, e)| e)?;
        self.file.terminate_ref(token)
    }
}

/// A store whose conversations come, are replaced, merged and deleted, as the index saw it on the way.
struct Course {
    _folder: tempfile::TempDir,
    runtime: Runtime,
    _store: Store,
    snapshots: Vec<Snapshot>,
    /// What searches find in the end.
    wanted: BTreeMap<&'static str, Vec<String>>,
}

fn add(runtime: &Runtime, store: &Store, talks: &[(&str, &str, i64, &str)]) {
    let mut rows = ConversationsBuilder::default();
    for (id, run_id, logged_ns, text) in talks {
        let messages =
            format!(r#"[{{"role":"user","content":"{text}"}},{{"role":"assistant","content":"well {id}"}}]"#);
        rows.push(&NewConversation {
            id,
            run_id,
            step: Some(*logged_ns),
            messages: &messages,
            message_count: 2,
            char_count: messages.len() as i64,
            logged_ns: *logged_ns,
            ..NewConversation::default()
        });
    }
    runtime.block_on(store.append(Table::Conversations, rows.finish().unwrap())).unwrap();
}

impl Course {
    fn new() -> Course {
        let (runtime, folder) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
        let store = runtime.block_on(Store::open(StoreOptions::at(folder.path()))).unwrap();
        let mut snapshots = Vec::new();
        add(&runtime, &store, &[("1", "a", 1, "red fox"), ("2", "a", 2, "red hen"), ("3", "b", 3, "blue fox")]);
        snapshots.push(store.snapshot());
        runtime.block_on(store.flush()).unwrap();
        add(&runtime, &store, &[("2", "a", 4, "green hen"), ("4", "b", 5, "blue cat")]);
        snapshots.push(store.snapshot());
        // Each pass makes a segment of the index, and the deletion concerns them all.
        for n in 6..13 {
            add(&runtime, &store, &[(&n.to_string(), "b", 10 + n, "blue whale")]);
            snapshots.push(store.snapshot());
        }
        runtime.block_on(store.flush()).unwrap();
        runtime.block_on(store.delete_run("b")).unwrap();
        add(&runtime, &store, &[("5", "c", 6, "red cat")]);
        snapshots.push(store.snapshot());
        let wanted = [
            ("red", vec!["1", "5"]),
            ("fox", vec!["1"]),
            ("hen", vec!["2"]),
            ("bl*", vec![]),
            ("catt~", vec!["5"]),
            ("role:assistant well", vec!["1", "2", "5"]),
            ("step:2..5", vec!["2"]),
            ("\"green hen\"", vec!["2"]),
            ("run:a", vec!["1", "2"]),
        ];
        let owned = |ids: Vec<&str>| ids.into_iter().map(str::to_string).collect();
        let wanted = wanted.into_iter().map(|(text, ids)| (text, owned(ids))).collect();
        Course { _folder: folder, runtime, _store: store, snapshots, wanted }
    }

    /// Follows the store to its end, past failures. Returns how many passes failed.
    fn follow(&self, search: &Search) -> usize {
        let passed = |snapshot| catch_up(search, snapshot, self.runtime.handle()).is_ok();
        self.snapshots.iter().filter(|snapshot| !passed(snapshot)).count()
    }

    fn catch_up(&self, search: &Search, when: &str) {
        let last = self.snapshots.last().unwrap();
        catch_up(search, last, self.runtime.handle()).unwrap_or_else(|e| panic!("{when}: {e}"));
    }

    fn check(&self, search: &Search, when: &str) {
        for (text, wanted) in &self.wanted {
            let request = Request { search: parse_search(text).unwrap(), ..Request::default() };
            let found = search.ask(&request).unwrap_or_else(|e| panic!("{when}: {text}: {e}"));
            let mut ids: Vec<String> = found.rows.into_iter().map(|row| row.id).collect();
            ids.sort();
            assert_eq!(&ids, wanted, "{when}: {text}");
        }
    }
}

/// After any failure, the same process finds everything when the disk is good again, and so does the next one.
#[test]
fn any_call_on_the_files_of_the_index_may_fail() {
    let course = Course::new();
    let run = |first: usize, count: usize, kind: Option<Kind>| {
        let folder = tempfile::tempdir().unwrap();
        let when = format!("call {first}, {count} times, {kind:?}");
        let plan = Arc::new(Mutex::new(Plan { first, count, kind, ..Plan::default() }));
        let files = Failing { files: MmapDirectory::open(folder.path()).unwrap(), plan: plan.clone() };
        let mut failed = 0;
        // The server that cannot make it does not start.
        let search = Search::create_in(folder.path(), files.clone());
        if let Ok(search) = &search {
            failed = course.follow(search);
            plan.lock().kind = None;
            course.catch_up(search, &when);
            course.check(search, &when);
        }
        drop(search);
        let next = Search::open(folder.path()).unwrap_or_else(|e| panic!("{when}: {e}"));
        course.catch_up(&next, &when);
        course.check(&next, &when);
        let calls = plan.lock().calls.clone();
        (calls, failed)
    };
    let (calls, failed) = run(0, 0, None);
    assert_eq!(failed, 0);
    let (mut tried, mut struck) = (0, 0);
    let step = std::env::var("EVERY").map_or(80, |n| n.parse().expect("EVERY is a number"));
    let kinds = [
        (Kind::Error(EIO), 1),
        (Kind::Error(EIO), 2),
        (Kind::Error(EACCES), 3),
        (Kind::Error(ENOSPC), 10_000),
        (Kind::Half, 1),
    ];
    for (turn, (kind, count)) in kinds.into_iter().enumerate() {
        for first in (turn % step..calls.len()).step_by(step) {
            let (_, failed) = run(first, count, Some(kind));
            tried += 1;
            struck += usize::from(failed > 0);
        }
    }
    println!("index: {} calls, {tried} failures tried, {struck} of them failed a pass", calls.len());
    assert!(struck > tried / 10, "the failures reach the index: {struck} of {tried}");
}

/// A file of the index with a flipped bit is noticed, and the index is made again.
#[test]
fn a_flipped_bit_in_the_index_is_mended() {
    let course = Course::new();
    let good = tempfile::tempdir().unwrap();
    let search = Search::create(good.path()).unwrap();
    assert_eq!(course.follow(&search), 0);
    drop(search);
    let names = || std::fs::read_dir(good.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let files: Vec<_> = names().filter(|name| !name.to_string_lossy().ends_with(".lock")).collect();
    let (mut flipped, mut noticed) = (0, 0);
    for name in &files {
        let bytes = std::fs::read(good.path().join(name)).unwrap();
        let places = 12.min(bytes.len());
        for place in 0..places {
            let at = place * bytes.len() / places;
            let when = format!("byte {at} of {}", name.to_string_lossy());
            let folder = tempfile::tempdir().unwrap();
            for other in names() {
                std::fs::copy(good.path().join(&other), folder.path().join(&other)).unwrap();
            }
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            std::fs::write(folder.path().join(name), &damaged).unwrap();
            let search = Search::open(folder.path()).unwrap_or_else(|e| panic!("{when}: {e}"));
            // Until it is noticed, an answer may be an error, and may not bring the program down.
            let _ = catch_unwind(AssertUnwindSafe(|| search.ask(&Request::default()).is_ok()));
            noticed += u32::from(search.is_empty());
            if search.is_damaged(&|| false) {
                noticed += 1;
                search.start_over().unwrap_or_else(|e| panic!("{when}: {e}"));
            }
            course.catch_up(&search, &when);
            course.check(&search, &when);
            flipped += 1;
        }
    }
    println!("index: {flipped} bits flipped in {} files, {noticed} noticed, all mended", files.len());
    assert!(noticed > flipped / 2);
}
