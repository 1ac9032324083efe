//! The object store behind a URL. Credentials come the usual ways: the environment, for S3 also a profile, and what the machine is given.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use url::Url;

use crate::LakeError;

/// Does this name a lake, and not a folder?
pub fn is_url(data: &str) -> bool {
    data.split_once("://")
        .is_some_and(|(scheme, _)| scheme.bytes().all(|b| b.is_ascii_alphanumeric()) && !scheme.is_empty())
}

/// The store and the prefix in it.
pub fn connect(text: &str) -> Result<(Arc<dyn ObjectStore>, Path), LakeError> {
    let wrong = |why: &str| LakeError::Url { url: text.into(), why: why.into() };
    let url = Url::parse(text).map_err(|e| wrong(&e.to_string()))?;
    if url.host_str().is_none_or(str::is_empty) {
        return Err(wrong("it names no bucket"));
    }
    let prefix = Path::parse(url.path().trim_matches('/')).map_err(|e| wrong(&e.to_string()))?;
    let unusable = |e: object_store::Error| crate::unusable(text, &e);
    let objects: Arc<dyn ObjectStore> = match url.scheme() {
        "s3" => Arc::new(s3(text).build().map_err(unusable)?),
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_url(text).with_retry(retries());
            Arc::new(builder.with_client_options(client(None)).build().map_err(unusable)?)
        }
        "az" => {
            let builder = MicrosoftAzureBuilder::from_env().with_url(text).with_retry(retries());
            let endpoint = set("AZURE_STORAGE_ENDPOINT").or_else(|| set("AZURE_ENDPOINT"));
            Arc::new(builder.with_client_options(client(endpoint.as_deref())).build().map_err(unusable)?)
        }
        other => return Err(wrong(&format!("`{other}` is not a scheme of an object store"))),
    };
    Ok((objects, prefix))
}

/// The store and the log try again themselves, and say so. Here, only what passes by at once.
fn retries() -> RetryConfig {
    let backoff =
        BackoffConfig { init_backoff: Duration::from_millis(50), max_backoff: Duration::from_secs(1), base: 2.0 };
    RetryConfig { backoff, max_retries: 3, retry_timeout: Duration::from_secs(15) }
}

fn client(endpoint: Option<&str>) -> ClientOptions {
    let options =
        ClientOptions::new().with_timeout(Duration::from_secs(60)).with_connect_timeout(Duration::from_secs(5));
    // Whoever names such an address means it.
    options.with_allow_http(endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")))
}

/// A variable of the environment that is not empty.
fn set(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn s3(url: &str) -> AmazonS3Builder {
    let mut builder = AmazonS3Builder::from_env().with_url(url).with_retry(retries());
    let endpoint = set("AWS_ENDPOINT_URL_S3").or_else(|| set("AWS_ENDPOINT_URL")).or_else(|| set("AWS_ENDPOINT"));
    let options = client(endpoint.as_deref());
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if set("AWS_ACCESS_KEY_ID").is_none() {
        let profile = set("AWS_PROFILE").unwrap_or_else(|| "default".into());
        let found = profile_of(&profile);
        if let (Some(key), Some(secret)) = (found.get("aws_access_key_id"), found.get("aws_secret_access_key")) {
            builder = builder.with_access_key_id(key).with_secret_access_key(secret);
            if let Some(token) = found.get("aws_session_token") {
                builder = builder.with_token(token);
            }
        }
        if let (None, None, Some(region)) = (set("AWS_REGION"), set("AWS_DEFAULT_REGION"), found.get("region")) {
            builder = builder.with_region(region);
        }
    }
    builder.with_client_options(options)
}

/// What the files of the AWS tools say of a profile.
fn profile_of(profile: &str) -> HashMap<String, String> {
    let file = |variable: &str, name: &str| {
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".aws").join(name));
        let path = std::env::var_os(variable).map(PathBuf::from).or_else(home)?;
        std::fs::read_to_string(path).ok()
    };
    let mut found = HashMap::new();
    for text in
        [file("AWS_CONFIG_FILE", "config"), file("AWS_SHARED_CREDENTIALS_FILE", "credentials")].into_iter().flatten()
    {
        found.extend(section(&text, profile));
    }
    found
}

fn section(text: &str, profile: &str) -> HashMap<String, String> {
    let mut found = HashMap::new();
    let mut is_it = false;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let name = name.trim();
            is_it = name.strip_prefix("profile ").unwrap_or(name).trim() == profile;
        } else if is_it
            && !line.starts_with(['#', ';'])
            && let Some((key, value)) = line.split_once('=')
        {
            found.insert(key.trim().to_lowercase(), value.trim().to_string());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_folders_are_told_apart() {
        for url in ["s3://b/p", "gs://b", "az://c/p", "memory://x"] {
            assert!(is_url(url), "{url}");
        }
        for folder in ["rollscope-data", "/data/s3:/x", "./a://b", "C:\\x", "://x"] {
            assert!(!is_url(folder), "{folder}");
        }
    }

    #[test]
    fn a_profile_is_found_among_others() {
        let text = "[default]\naws_access_key_id = A\n\n[profile team]\n# no = yes\nregion=eu-west-1\nAWS_SECRET_ACCESS_KEY = s=s\n[x]\nregion = y";
        let found = section(text, "team");
        assert_eq!(found.get("region").map(String::as_str), Some("eu-west-1"));
        assert_eq!(found.get("aws_secret_access_key").map(String::as_str), Some("s=s"));
        assert_eq!(found.len(), 2);
        assert_eq!(section(text, "default").len(), 1);
        assert!(section(text, "none").is_empty());
    }
}
