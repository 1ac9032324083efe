//! Tokens and what they allow. They come from the configuration, where each allows everything, and from a file that is read again when
//! it changes, so that a token can be added or taken away without a restart:
//!
//! ```text
//! # SCOPES TOKEN [NAME]
//! ingest       f3b1...  trainers
//! read         77c0...  grafana
//! read,ingest  0a9e...
//! admin        5d2f...  alice
//! ```
//!
//! A file with a single line may also hold nothing but a token, which allows everything.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::http::Method;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::ingest::REMOTE_WRITE;
use rollscope_app::secret::Secret;

/// How often the file is looked at, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The largest file of tokens, and the most tokens in it: each is compared with each request.
const MAX_FILE_BYTES: u64 = 256 << 10;
const MAX_TOKENS: usize = 1000;

/// What a request may be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Sending data.
    Ingest,
    /// Queries and the page.
    Read,
    /// Deleting and changing. Includes everything else.
    Admin,
}

impl Scope {
    const ALL: [Scope; 3] = [Scope::Ingest, Scope::Read, Scope::Admin];

    pub fn name(self) -> &'static str {
        match self {
            Scope::Ingest => "ingest",
            Scope::Read => "read",
            Scope::Admin => "admin",
        }
    }

    /// What a request needs.
    pub fn of(method: &Method, path: &str) -> Scope {
        if path.starts_with("/v1/") || path.starts_with("/opentelemetry.") || path == REMOTE_WRITE {
            return Scope::Ingest;
        }
        let reads = match *method {
            Method::GET | Method::HEAD | Method::OPTIONS => true,
            Method::POST => path == "/api/v1/sql" || path == crate::MCP || path.starts_with("/prometheus/"),
            // Whoever may ask may also stop asking.
            Method::DELETE => path.starts_with("/api/v1/queries/"),
            _ => false,
        };
        if reads { Scope::Read } else { Scope::Admin }
    }
}

/// Whose token it is, and what it allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// For the audit log. Never the token.
    pub who: Arc<str>,
    scopes: Vec<Scope>,
    digest: [u8; 32],
}

impl Grant {
    /// Everything, for everybody: no token is needed.
    pub fn everything() -> Grant {
        Grant { who: "anybody".into(), scopes: vec![Scope::Admin], digest: [0; 32] }
    }

    pub fn allows(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope) || self.scopes.contains(&Scope::Admin)
    }

    /// `ingest,read`
    pub fn scopes(&self) -> String {
        self.scopes.iter().map(|s| s.name()).collect::<Vec<_>>().join(",")
    }

    /// A log-in is as good as the token it was made with.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// All tokens.
#[derive(Debug)]
pub struct Tokens {
    fixed: Vec<Grant>,
    file: Option<Mutex<TokenFile>>,
}

#[derive(Debug)]
struct TokenFile {
    path: PathBuf,
    looked: Instant,
    version: Version,
    grants: Arc<Vec<Grant>>,
}

/// What changes when a file is written or replaced.
type Version = Option<(SystemTime, u64, u64)>;

impl Tokens {
    pub fn new(fixed: &[Secret], file: Option<&Path>) -> Result<Tokens, String> {
        let grant =
            |t: &Secret| Grant { who: "--token".into(), scopes: vec![Scope::Admin], digest: digest(t.expose()) };
        let file = match file {
            None => None,
            Some(path) => {
                warn_if_others_can_read(path);
                let version = version(path);
                let grants = Arc::new(read(path)?);
                Some(Mutex::new(TokenFile { path: path.into(), looked: Instant::now(), version, grants }))
            }
        };
        Ok(Tokens { fixed: fixed.iter().map(grant).collect(), file })
    }

    /// Nobody needs a token.
    pub fn is_empty(&self) -> bool {
        self.fixed.is_empty() && self.file.is_none()
    }

    pub fn find(&self, token: &str) -> Option<Grant> {
        self.find_digest(&digest(token))
    }

    /// Every token is compared, each in constant time.
    pub fn find_digest(&self, given: &[u8; 32]) -> Option<Grant> {
        let from_file = self.file.as_ref().map(|file| file.lock().current());
        let all = self.fixed.iter().chain(from_file.iter().flat_map(|grants| grants.iter()));
        all.fold(None, |found, grant| if bool::from(grant.digest.ct_eq(given)) { Some(grant) } else { found }).cloned()
    }
}

impl TokenFile {
    /// The grants of the file as it is now. A file that cannot be read leaves those from before.
    fn current(&mut self) -> Arc<Vec<Grant>> {
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            let version = version(&self.path);
            if version != self.version {
                match read(&self.path) {
                    Ok(grants) => {
                        tracing::info!(file = %self.path.display(), tokens = grants.len(), "read the tokens again");
                        self.grants = Arc::new(grants);
                    }
                    Err(error) => tracing::error!(error, "cannot read the tokens again; those from before stay valid"),
                }
                self.version = version;
            }
        }
        self.grants.clone()
    }
}

#[cfg(unix)]
fn version(path: &Path) -> Version {
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::metadata(path).ok()?;
    Some((file.modified().ok()?, file.len(), file.ino()))
}

#[cfg(unix)]
fn warn_if_others_can_read(path: &Path) {
    use std::os::unix::fs::MetadataExt;
    if std::fs::metadata(path).is_ok_and(|file| file.mode() & 0o077 != 0) {
        tracing::warn!(file = %path.display(), "other users can read the tokens; run `chmod 600` on the file");
    }
}

fn read(path: &Path) -> Result<Vec<Grant>, String> {
    let bad = |why: String| format!("{}: {why}", path.display());
    let file = std::fs::File::open(path).map_err(|e| bad(e.to_string()))?;
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::io::Read::take(file, MAX_FILE_BYTES + 1), &mut text)
        .map_err(|e| bad(e.to_string()))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(bad(format!("the file is larger than {MAX_FILE_BYTES} bytes")));
    }
    parse(&text).map_err(bad)
}

fn parse(text: &str) -> Result<Vec<Grant>, String> {
    let lines = text.lines().map(str::trim).zip(1..);
    let lines: Vec<(&str, usize)> = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#')).collect();
    if lines.is_empty() {
        return Err("the file holds no token; write one, or lines of the form `SCOPES TOKEN`".into());
    }
    if lines.len() > MAX_TOKENS {
        return Err(format!("the file holds {} tokens, more than {MAX_TOKENS}", lines.len()));
    }
    let mut grants = Vec::with_capacity(lines.len());
    for (line, number) in &lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let scopes = scopes(words[0]);
        grants.push(match (scopes, &words[..]) {
            (Some(scopes), [_, token]) => {
                Grant { who: format!("line {number}").into(), scopes, digest: digest(token) }
            }
            (Some(scopes), [_, token, name]) => Grant { who: (*name).into(), scopes, digest: digest(token) },
            (None, _) if lines.len() == 1 => {
                Grant { who: "the token file".into(), scopes: vec![Scope::Admin], digest: digest(line) }
            }
            _ => {
                return Err(format!(
                    "line {number}: expected `SCOPES TOKEN` or `SCOPES TOKEN NAME`, where SCOPES are some of ingest, read and \
                     admin with commas between them"
                ));
            }
        });
    }
    Ok(grants)
}

fn scopes(text: &str) -> Option<Vec<Scope>> {
    text.split(',').map(|name| Scope::ALL.into_iter().find(|scope| scope.name() == name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who_and_what(grants: &[Grant]) -> Vec<(String, String)> {
        grants.iter().map(|g| (g.who.to_string(), g.scopes())).collect()
    }

    #[test]
    fn a_file_has_one_token_or_many_with_scopes() {
        let pair = |who: &str, scopes: &str| (who.to_string(), scopes.to_string());
        assert_eq!(who_and_what(&parse("open sesame\n").unwrap()), [pair("the token file", "admin")]);
        let many = parse("# who may do what\n\ningest abc trainers\nread,ingest def\nadmin ghi\n").unwrap();
        assert_eq!(
            who_and_what(&many),
            [pair("trainers", "ingest"), pair("line 4", "read,ingest"), pair("line 5", "admin")]
        );
        for bad in ["", "# nothing\n", "abc\ndef\n", "read\n", "raed abc\nread def\n", "read a b c\nread d\n"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert!(parse("raed abc\nread def\n").unwrap_err().contains("line 1: expected `SCOPES TOKEN`"));
    }

    #[test]
    fn a_scope_allows_what_it_says_and_admin_allows_all() {
        let tokens = parse("ingest i\nread r\nadmin a\n").unwrap();
        let allowed = |at: usize| Scope::ALL.map(|scope| tokens[at].allows(scope));
        assert_eq!((allowed(0), allowed(1), allowed(2)), ([true, false, false], [false, true, false], [true; 3]));
        for (method, path, scope) in [
            (Method::POST, "/v1/traces", Scope::Ingest),
            (Method::POST, "/opentelemetry.proto.collector.trace.v1.TraceService/Export", Scope::Ingest),
            (Method::GET, "/api/v1/runs", Scope::Read),
            (Method::GET, "/", Scope::Read),
            (Method::POST, "/api/v1/sql", Scope::Read),
            (Method::POST, "/prometheus/api/v1/query", Scope::Read),
            (Method::DELETE, "/api/v1/queries/7", Scope::Read),
            (Method::DELETE, "/api/v1/runs/a", Scope::Admin),
            (Method::PUT, "/api/v1/runs/a/tags", Scope::Admin),
            (Method::PUT, "/api/v1/trace-level", Scope::Admin),
            (Method::POST, "/api/v1/anything", Scope::Admin),
        ] {
            assert_eq!(Scope::of(&method, path), scope, "{method} {path}");
        }
    }

    #[test]
    fn a_file_that_changed_is_read_again_and_a_bad_one_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        std::fs::write(&path, "read old\n").unwrap();
        let tokens = Tokens::new(&[], Some(&path)).unwrap();
        let look_again =
            || tokens.file.as_ref().unwrap().lock().looked = Instant::now().checked_sub(LOOK_EVERY).unwrap();
        assert!(tokens.find("old").is_some() && tokens.find("new").is_none() && tokens.find("").is_none());
        std::fs::write(&path, "read new\nadmin newer\n").unwrap();
        look_again();
        assert!(tokens.find("old").is_none() && tokens.find("newer").unwrap().allows(Scope::Admin));
        for bad in ["", "admin\nread x\n"] {
            std::fs::write(&path, bad).unwrap();
            look_again();
            assert!(tokens.find("new").is_some(), "{bad:?}");
        }
        std::fs::remove_file(&path).unwrap();
        look_again();
        assert!(tokens.find("new").is_some());
        assert!(Tokens::new(&[], Some(&path)).unwrap_err().contains("tokens"));
    }
}
