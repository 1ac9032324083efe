//! Where tools ask: a store that is open, or a folder that is opened to be read.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rollscope_answers::Answers;
use rollscope_app::conversations::Conversations;
use rollscope_app::listings::runs::KnownRuns;
use rollscope_app::problem::Problem;
use rollscope_query::promql::PromLimits;
use rollscope_query::{Engine, QueryLimits};
use rollscope_store::ReadOnlyStore;

/// Everything that can be asked. Cheap to clone.
#[derive(Clone)]
pub struct Desk {
    pub answers: Answers,
    pub promql: PromLimits,
    pub known_runs: Arc<KnownRuns>,
}

impl Desk {
    pub fn engine(&self) -> &Engine {
        self.answers.engine()
    }
}

#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "a server has one of them")]
pub enum Source {
    /// None: the search index could not be opened.
    Store(Desk, Option<Conversations>),
    Folder(Arc<Folder>),
}

/// A folder, whether a server writes it or not. It is opened again when its files have changed.
pub struct Folder {
    dir: PathBuf,
    limits: QueryLimits,
    open: tokio::sync::Mutex<Option<(Files, Desk)>>,
}

/// What changes when rows come or move: names, sizes and times of the log and of the list of segments.
type Files = Vec<(PathBuf, u64, Option<SystemTime>)>;

impl Folder {
    pub fn new(dir: &Path, limits: QueryLimits) -> Folder {
        Folder { dir: dir.to_path_buf(), limits, open: tokio::sync::Mutex::default() }
    }

    fn files(&self) -> Files {
        let logs = std::fs::read_dir(self.dir.join("wal")).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut files: Files = ["commits.log", "manifest.json"]
            .map(|name| self.dir.join(name))
            .into_iter()
            .chain(logs)
            .filter_map(|path| {
                let found = path.metadata().ok()?;
                Some((path, found.len(), found.modified().ok()))
            })
            .collect();
        files.sort();
        files
    }

    async fn engine_source(&self) -> Result<Arc<ReadOnlyStore>, Problem> {
        Ok(Arc::new(ReadOnlyStore::open(&self.dir).await?))
    }

    async fn desk(&self) -> Result<Desk, Problem> {
        let mut open = self.open.lock().await;
        let files = self.files();
        if let Some((_, desk)) = open.as_ref().filter(|(seen, _)| *seen == files) {
            return Ok(desk.clone());
        }
        let answers = Answers::new(self.engine_source().await?, self.limits.clone())?;
        let desk = Desk { answers, promql: PromLimits::default(), known_runs: Arc::default() };
        *open = Some((files, desk.clone()));
        Ok(desk)
    }

    /// As `rollscope conversations` opens them: the index first, because it may be brought up to date; then what it refers to.
    async fn conversations(&self) -> Result<Conversations, Problem> {
        let engine = Engine::new(self.engine_source().await?, self.limits.clone())?;
        let index = Conversations::open(&self.dir, engine).await.map_err(|e| Problem::internal(e.to_string()))?;
        Ok(index.with_engine(self.desk().await?.engine().clone()))
    }
}

impl Source {
    pub async fn desk(&self) -> Result<Desk, Problem> {
        match self {
            Source::Store(desk, _) => Ok(desk.clone()),
            Source::Folder(folder) => folder.desk().await,
        }
    }

    pub async fn conversations(&self) -> Result<Conversations, Problem> {
        match self {
            Source::Store(_, Some(conversations)) => Ok(conversations.clone()),
            Source::Store(_, None) => Err(Problem::unavailable(
                "cannot open the search index; see the server's log. SQL over `conversations` still works",
                std::time::Duration::from_secs(10),
            )),
            Source::Folder(folder) => folder.conversations().await,
        }
    }
}
