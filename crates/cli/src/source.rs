//! Where a command reads: in a folder or from a server, and how the server's URLs are written.

use std::path::PathBuf;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::args::SourceArgs;
use crate::config::DEFAULT_DATA;

pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7200";

/// What may stand in a part of a path as it is: letters, digits and the unreserved signs of RFC 3986.
const PATH_PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

pub fn encode_path_part(text: &str) -> String {
    utf8_percent_encode(text, PATH_PART).to_string()
}

/// The folder to read: the one named, or the default one if it exists and no server was named.
pub fn local_folder(source: &SourceArgs) -> Option<PathBuf> {
    match (&source.data, &source.server) {
        (Some(data), _) => Some(data.clone()),
        (None, Some(_)) => None,
        (None, None) => Some(PathBuf::from(DEFAULT_DATA)).filter(|d| d.is_dir()),
    }
}

pub fn server_url(source: &SourceArgs) -> String {
    source.server.clone().unwrap_or_else(|| DEFAULT_SERVER.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_paths() {
        assert_eq!(encode_path_part("a b/\u{fc}"), "a%20b%2F%C3%BC");
        assert_eq!(encode_path_part("a-b_c.d~e%"), "a-b_c.d~e%25");
    }
}
