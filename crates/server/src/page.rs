//! The page, embedded into the binary, and the headers that keep it safe.

use std::collections::HashMap;
use std::io::Write;
use std::sync::LazyLock;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use base64::Engine as _;
use bytes::Bytes;
use parking_lot::Mutex;
use rust_embed::{EmbeddedFile, RustEmbed};
use sha2::{Digest, Sha256};

use crate::api::unknown_path;
use crate::problem::Problem;

#[derive(RustEmbed)]
#[folder = "$CARGO_MANIFEST_DIR/../../ui/dist"]
struct Assets;

/// The page as one file, with a place for the data.
#[derive(RustEmbed)]
#[folder = "$CARGO_MANIFEST_DIR/../../ui/dist-static"]
struct Viewer;

/// What `rollscope view` and `rollscope export html` fill. None in a build without the page.
pub fn viewer() -> Option<String> {
    Viewer::get("viewer.html").map(|file| String::from_utf8_lossy(&file.data).into_owned())
}

const PLACEHOLDER: &str = include_str!("placeholder.html");

/// The log-in page.
pub const LOGIN: &str = include_str!("login.html");

/// Scripts, styles and connections only from here. Two small pages have their style inside, which is allowed by its hash.
/// `blob:` is for images of conversations, which the page makes itself from bytes it has checked.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = |page: &str| {
        let style = page.split("<style>").nth(1).and_then(|rest| rest.split("</style>").next()).unwrap_or_default();
        base64::engine::general_purpose::STANDARD.encode(Sha256::digest(style))
    };
    let (login, placeholder) = (hash(LOGIN), hash(PLACEHOLDER));
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self' 'sha256-{login}' 'sha256-{placeholder}'; \
         img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; \
         frame-ancestors 'none'"
    );
    HeaderValue::from_str(&policy).expect("the policy is plain text")
});

const HEADERS: [(HeaderName, &str); 6] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    ),
];

/// On every answer. A stricter policy of the answer itself stays.
pub async fn security_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert_with(|| POLICY.clone());
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A file of the page; any other path that is not the API's is a view inside the page, so `index.html`.
pub async fn serve(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    if let Some(answer) = unknown_path(uri.path()) {
        return answer;
    }
    let path = uri.path().trim_start_matches('/');
    if method != Method::GET && method != Method::HEAD {
        return Problem::new(StatusCode::METHOD_NOT_ALLOWED, "use GET to read the page").into_response();
    }
    match Assets::get(path) {
        Some(file) if !path.is_empty() => asset(path, &file, &headers),
        // A file that is missing is missing; only paths without an extension are views.
        _ if path.rsplit('/').next().is_some_and(|name| name.contains('.')) => {
            Problem::not_found(format!("there is no /{path}")).into_response()
        }
        _ => match Assets::get("index.html") {
            Some(file) => asset("index.html", &file, &headers),
            None => ([(header::CACHE_CONTROL, "no-store")], Html(PLACEHOLDER)).into_response(),
        },
    }
}

fn asset(path: &str, file: &EmbeddedFile, headers: &HeaderMap) -> Response {
    let etag = format!("\"{}\"", hex::encode(&file.metadata.sha256_hash()[..16]));
    // Vite puts a hash of the content into the names under `assets/`.
    let cache = if path.starts_with("assets/") { "public, max-age=31536000, immutable" } else { "no-cache" };
    let mut out = HeaderMap::new();
    out.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    out.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        out.insert(header::ETAG, etag);
    }
    if headers.get(header::IF_NONE_MATCH).is_some_and(|v| v.as_bytes() == etag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, out).into_response();
    }
    let (kind, text) = content_type(path);
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    let gzip = headers.get(header::ACCEPT_ENCODING).and_then(|v| v.to_str().ok()).is_some_and(|v| v.contains("gzip"));
    if text && gzip {
        out.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        return (out, zipped(path, &file.data)).into_response();
    }
    (out, file.data.clone()).into_response()
}

/// Each file is compressed once, on its first request.
fn zipped(path: &str, data: &[u8]) -> Bytes {
    static ZIPPED: LazyLock<Mutex<HashMap<String, Bytes>>> = LazyLock::new(Mutex::default);
    let mut zipped = ZIPPED.lock();
    let entry = zipped.entry(path.to_string()).or_insert_with(|| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let written = encoder.write_all(data).and_then(|()| encoder.finish());
        written.expect("memory can be written to").into()
    });
    entry.clone()
}

/// The type by the name's ending, and whether compression helps. Unknown endings are bytes: never guessed from content.
fn content_type(path: &str) -> (&'static str, bool) {
    match path.rsplit('.').next() {
        Some("html") => ("text/html; charset=utf-8", true),
        Some("js" | "mjs") => ("text/javascript; charset=utf-8", true),
        Some("css") => ("text/css; charset=utf-8", true),
        Some("json" | "map") => ("application/json", true),
        Some("webmanifest") => ("application/manifest+json", true),
        Some("svg") => ("image/svg+xml", true),
        Some("wasm") => ("application/wasm", true),
        Some("txt") => ("text/plain; charset=utf-8", true),
        Some("png") => ("image/png", false),
        Some("ico") => ("image/x-icon", false),
        Some("woff2") => ("font/woff2", false),
        _ => ("application/octet-stream", false),
    }
}
