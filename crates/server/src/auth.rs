//! Who may come in. With tokens: `Authorization: Bearer`, or the cookie that the log-in page sets; the token's scopes decide what
//! for ([`crate::tokens`]). Without (loopback only,
//! unless the operator insists): a request must be meant for this machine, so that a web page whose name was pointed at
//! 127.0.0.1 (DNS rebinding) gets nothing. With or without: a page of another site may link to our page, and nothing else. It
//! may not change anything, and it may not request anything that costs work, even if it could not read the response: an `<img>`
//! is enough to send a query.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Redirect, Response};
use parking_lot::Mutex;

use crate::StartError;
use crate::audit::{Audit, Entry};
use crate::config::ServerConfig;
use crate::connections::Connection;
use crate::ingest::grpc;
use crate::metrics::{Counters, add};
use crate::problem::Problem;
use crate::rates::Rates;
use crate::tokens::{Grant, Scope, Tokens};

const COOKIE: &str = "rollscope_session";
const SESSION: Duration = Duration::from_secs(30 * 24 * 3600);
/// Log-ins remembered; the oldest goes first.
const MAX_SESSIONS: usize = 1024;
/// A wrong token at the log-in page costs this long.
const WRONG_TOKEN_DELAY: Duration = Duration::from_millis(500);
/// The largest body of a log-in, and how long it may take to arrive.
const LOGIN_BYTES: usize = 16 << 10;
const LOGIN_PATIENCE: Duration = Duration::from_secs(10);

/// Open without a token: they report whether the server is alive, and nothing else.
const OPEN_PATHS: &[&str] = &["/healthz", "/readyz", "/login"];

pub struct Auth {
    tokens: Tokens,
    secure_cookie: bool,
    sessions: Mutex<HashMap<String, Session>>,
    rates: Rates,
    audit: Audit,
    counters: Arc<Counters>,
}

/// A log-in.
struct Session {
    since: Instant,
    /// Of its token. When that is gone, so is the log-in.
    token: [u8; 32],
}

impl Auth {
    pub fn new(config: &ServerConfig, counters: Arc<Counters>) -> Result<Arc<Self>, StartError> {
        if config.tokens.iter().any(|t| t.expose().trim().is_empty()) {
            return Err(StartError::EmptyToken);
        }
        Ok(Arc::new(Auth {
            tokens: Tokens::new(&config.tokens, config.token_file.as_deref()).map_err(StartError::TokenFile)?,
            secure_cookie: config.tls.is_some(),
            sessions: Mutex::default(),
            rates: Rates::new(&config.limits),
            audit: Audit::new(config.audit_log.as_deref()),
            counters,
        }))
    }

    /// What a request may do. None: it has no valid token.
    fn grant(&self, headers: &HeaderMap) -> Option<Grant> {
        if self.tokens.is_empty() {
            return Some(Grant::everything());
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()).and_then(|v| {
            let (scheme, token) = v.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
        });
        match bearer {
            Some(token) => self.tokens.find(token),
            None => {
                let token = {
                    let sessions = self.sessions.lock();
                    sessions.get(session_cookie(headers)?).filter(|s| s.since.elapsed() < SESSION)?.token
                };
                self.tokens.find_digest(&token)
            }
        }
    }

    fn new_session(&self, grant: &Grant) -> String {
        let id = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        let mut sessions = self.sessions.lock();
        sessions.retain(|_, session| session.since.elapsed() < SESSION);
        if sessions.len() >= MAX_SESSIONS
            && let Some(oldest) = sessions.iter().min_by_key(|(_, session)| session.since).map(|(id, _)| id.clone())
        {
            sessions.remove(&oldest);
        }
        sessions.insert(id.clone(), Session { since: Instant::now(), token: grant.digest() });
        id
    }
}

fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|v| v.to_str().ok());
    cookies.flat_map(|v| v.split(';')).find_map(|c| c.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

/// The access rules of one listener.
#[derive(Clone)]
pub struct Door {
    pub auth: Arc<Auth>,
    pub bound: SocketAddr,
}

/// Runs before every handler.
pub async fn guard(State(door): State<Door>, request: Request, next: Next) -> Response {
    let auth = &door.auth;
    let connection = request.extensions().get::<Arc<Connection>>().cloned();
    let peer = connection.as_ref().map(|c| c.peer());
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    let grant = auth.grant(request.headers());
    let scope = Scope::of(&method, &path);
    let verdict = door.judge(&request, grant.as_ref(), scope, peer);
    let refused = verdict.is_err();
    let response = match verdict {
        Ok(()) => {
            if let (Some(connection), Some(_)) = (&connection, &grant) {
                connection.know();
            }
            next.run(request).await
        }
        Err(problem) => refuse(problem, &request),
    };
    let status = response.status();
    let who = grant.as_ref().map_or("nobody", |grant| &grant.who);
    let entry = Entry { peer, who, method: method.as_str(), path: &path, status: status.as_u16() };
    if refused || status == StatusCode::UNAUTHORIZED {
        add(&auth.counters.refused, 1);
        auth.audit.refused(&entry);
    } else if scope == Scope::Admin && !OPEN_PATHS.contains(&entry.path) {
        auth.audit.changed(&entry);
    }
    response
}

/// The problem in the form that the sender understands: the log-in page, gRPC, or JSON.
fn refuse(problem: Problem, request: &Request) -> Response {
    let (headers, path) = (request.headers(), request.uri().path());
    let wants_page = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).is_some_and(|v| v.contains("text/html"));
    if problem.status() == StatusCode::UNAUTHORIZED
        && wants_page
        && request.method() == Method::GET
        && !path.starts_with("/api/")
    {
        return (StatusCode::UNAUTHORIZED, page("")).into_response();
    }
    if !grpc::is_grpc(headers) {
        return problem.into_response();
    }
    grpc::error(match problem.status() {
        StatusCode::UNAUTHORIZED => {
            tonic::Status::unauthenticated("send the server's token as `authorization: Bearer TOKEN`")
        }
        StatusCode::TOO_MANY_REQUESTS => tonic::Status::unavailable(problem.detail()),
        _ => tonic::Status::permission_denied(problem.detail()),
    })
}

impl Door {
    fn judge(
        &self,
        request: &Request,
        grant: Option<&Grant>,
        scope: Scope,
        peer: Option<IpAddr>,
    ) -> Result<(), Problem> {
        let (method, path, headers) = (request.method(), request.uri().path(), request.headers());
        if let Some(peer) = peer
            && let Err((limit, value)) = self.auth.rates.count(peer, grant.is_some())
        {
            return Err(Problem::too_many(
                limit,
                format!(
                    "more than {limit} = {value} requests per second from {peer}; send less often or raise the limit"
                ),
            ));
        }
        if let Some(problem) = self.foreign(method, path, host_of(request.uri(), headers), headers) {
            return Err(problem);
        }
        if OPEN_PATHS.contains(&path) {
            return Ok(());
        }
        match grant {
            None => {
                add(&self.auth.counters.unauthorized, 1);
                Err(Problem::unauthorized("send the server's token as `Authorization: Bearer TOKEN`"))
            }
            Some(grant) if !grant.allows(scope) => Err(Problem::forbidden(format!(
                "this token allows `{}`, and this request needs `{}`; use another token",
                grant.scopes(),
                scope.name()
            ))),
            Some(_) => Ok(()),
        }
    }

    fn foreign(&self, method: &Method, path: &str, host: Option<&str>, headers: &HeaderMap) -> Option<Problem> {
        if self.auth.tokens.is_empty()
            && self.bound.ip().is_loopback()
            && let Some(host) = host
            && !is_local(host, self.bound)
        {
            return Some(Problem::forbidden(format!(
                "this server accepts requests for localhost only, not for `{host}`; to use another name, start it with --token-file"
            )));
        }
        let site = other_site(host, headers)?;
        match *method {
            Method::GET | Method::HEAD | Method::OPTIONS if is_page(path) => None,
            Method::GET | Method::HEAD | Method::OPTIONS => Some(Problem::forbidden(format!(
                "a page of {site} may not read `{path}`; use rollscope's own page or a program"
            ))),
            _ => Some(Problem::forbidden(format!(
                "a page of {site} may not change anything on this server; use rollscope's own page or a program"
            ))),
        }
    }
}

/// The page's own files and health checks: any site may link to these. Everything else costs work.
fn is_page(path: &str) -> bool {
    !["/api/", "/prometheus/", "/jaeger/", "/metrics", "/v1/", crate::MCP].iter().any(|costly| path.starts_with(costly))
}

/// The site whose page makes the browser send this, if it is not ours. Programs do not send this.
fn other_site(host: Option<&str>, headers: &HeaderMap) -> Option<String> {
    // Another port of this machine is the page's own development server.
    let local = host.is_some_and(|host| is_loopback_name(name_of(host)));
    if let Some(origin) = headers.get(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or("null");
        let same = origin.split_once("://").is_some_and(|(_, origin)| {
            host.is_some_and(|host| host == origin) || (local && is_loopback_name(name_of(origin)))
        });
        return (!same).then(|| format!("`{origin}`"));
    }
    match headers.get("sec-fetch-site")?.as_bytes() {
        b"same-origin" | b"none" => None,
        b"same-site" if local => None,
        _ => Some("another site".to_string()),
    }
}

fn host_of<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(header::HOST).map(|v| v.to_str().unwrap_or("")),
    }
}

/// Without the port: `[::1]:80` and `a:80` become `::1` and `a`.
fn name_of(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

fn is_loopback_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn is_local(host: &str, bound: SocketAddr) -> bool {
    let name = name_of(host);
    is_loopback_name(name) || name.parse::<IpAddr>().is_ok_and(|ip| ip == bound.ip())
}

/// `GET /login`.
pub async fn login_page() -> Html<String> {
    page("")
}

/// `POST /login`, from the page's form or as JSON `{"token": ...}`.
pub async fn login(State(auth): State<Arc<Auth>>, headers: HeaderMap, body: Body) -> Response {
    let read = tokio::time::timeout(LOGIN_PATIENCE, axum::body::to_bytes(body, LOGIN_BYTES)).await;
    let Ok(Ok(body)) = read else {
        return Problem::bad_request(format!("a log-in has at most {LOGIN_BYTES} bytes; send them at once"))
            .into_response();
    };
    let body = String::from_utf8_lossy(&body);
    let is_json = headers.get(header::CONTENT_TYPE).is_some_and(|v| v.as_bytes().starts_with(b"application/json"));
    let token = if is_json {
        serde_json::from_str::<serde_json::Value>(&body).ok().and_then(|v| Some(v.get("token")?.as_str()?.to_string()))
    } else {
        crate::params::pairs(&body).find(|(key, _)| key == "token").map(|(_, value)| value)
    };
    let found = token.and_then(|token| auth.tokens.find(&token));
    let Some(grant) = found.as_ref().filter(|grant| grant.allows(Scope::Read)) else {
        add(&auth.counters.unauthorized, 1);
        tokio::time::sleep(WRONG_TOKEN_DELAY).await;
        let why = if found.is_some() { "This token does not allow `read`." } else { "Wrong token." };
        return match is_json {
            true => Problem::unauthorized(why).into_response(),
            false => (StatusCode::UNAUTHORIZED, page(why)).into_response(),
        };
    };
    let secure = if auth.secure_cookie { "; Secure" } else { "" };
    let cookie = format!(
        "{COOKIE}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{secure}",
        auth.new_session(grant),
        SESSION.as_secs()
    );
    let mut response = match is_json {
        true => StatusCode::NO_CONTENT.into_response(),
        false => Redirect::to("/").into_response(),
    };
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// The log-in page: no script, nothing from elsewhere.
fn page(message: &str) -> Html<String> {
    Html(crate::page::LOGIN.replace("{message}", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollscope_app::secret::Secret;

    fn door(tokens: &[&str]) -> Door {
        let config =
            ServerConfig { tokens: tokens.iter().map(|t| Secret::new(*t)).collect(), ..ServerConfig::default() };
        Door { auth: Auth::new(&config, Arc::default()).unwrap(), bound: "127.0.0.1:7200".parse().unwrap() }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(k, v)| (header::HeaderName::from_static(k), v.parse().unwrap())).collect()
    }

    #[test]
    fn names_of_this_machine_are_local() {
        let bound = "127.0.0.1:7200".parse().unwrap();
        for good in ["localhost", "localhost:7200", "LOCALHOST:1", "127.0.0.1:7200", "127.8.8.8", "[::1]:7200", "[::1]"]
        {
            assert!(is_local(good, bound), "{good}");
        }
        for bad in ["evil.example", "localhost.evil.example:7200", "10.0.0.1", "", "127.0.0.1.evil.example"] {
            assert!(!is_local(bad, bound), "{bad}");
        }
    }

    #[test]
    fn pages_of_other_sites_may_link_to_the_page_and_no_more() {
        let door = door(&["t"]);
        let refused = |method: Method, path: &str, host: &str, pairs: &[(&'static str, &str)]| {
            door.foreign(&method, path, Some(host), &headers(pairs)).is_some()
        };
        let (evil, own) = (("origin", "https://evil.example"), ("origin", "http://localhost:5173"));
        assert!(refused(Method::POST, "/api/v1/sql", "localhost:7200", &[evil]));
        assert!(!refused(Method::POST, "/api/v1/sql", "127.0.0.1:7200", &[own]));
        assert!(refused(Method::POST, "/api/v1/sql", "box.example:7200", &[own]));
        assert!(!refused(Method::POST, "/api/v1/sql", "a:1", &[("origin", "http://a:1")]));
        assert!(refused(Method::POST, "/api/v1/sql", "a:1", &[("origin", "null")]));
        assert!(!refused(Method::DELETE, "/api/v1/runs/a", "a:1", &[]));
        for path in ["/api/v1/runs", "/prometheus/api/v1/query", "/jaeger/api/traces", "/metrics", "/metrics/run/a"] {
            assert!(refused(Method::GET, path, "localhost:7200", &[evil]));
            assert!(refused(Method::GET, path, "localhost:7200", &[("sec-fetch-site", "cross-site")]), "{path}");
            assert!(refused(Method::HEAD, path, "box.example:7200", &[("sec-fetch-site", "same-site")]), "{path}");
            for ours in ["same-origin", "none", "same-site"] {
                assert!(!refused(Method::GET, path, "localhost:7200", &[("sec-fetch-site", ours)]), "{path} {ours}");
            }
            assert!(!refused(Method::GET, path, "localhost:7200", &[]), "a program asks for {path}");
        }
        for path in ["/", "/assets/index.js", "/healthz"] {
            assert!(!refused(Method::GET, path, "localhost:7200", &[("sec-fetch-site", "cross-site")]), "{path}");
        }
    }

    #[test]
    fn tokens_and_sessions() {
        let door = door(&["first", "second"]);
        for (value, good) in [
            ("Bearer first", true),
            ("bearer second", true),
            ("Bearer third", false),
            ("Basic first", false),
            ("first", false),
        ] {
            assert_eq!(door.auth.grant(&headers(&[("authorization", value)])).is_some(), good, "{value}");
        }
        let first = door.auth.tokens.find("first").unwrap();
        let session = door.auth.new_session(&first);
        let cookie = |id: &str| door.auth.grant(&headers(&[("cookie", &format!("a=b; {COOKIE}={id}"))]));
        assert_eq!(cookie(&session), Some(first.clone()));
        assert!(cookie(&format!("x{session}")).is_none());
        for _ in 0..MAX_SESSIONS {
            door.auth.new_session(&first);
        }
        assert_eq!(door.auth.sessions.lock().len(), MAX_SESSIONS);
        assert!(cookie(&session).is_none());
    }
}
