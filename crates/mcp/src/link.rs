//! Addresses of the page.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

const PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, PART).to_string()
}

/// Where the page is, without a slash at the end: `http://127.0.0.1:7200`.
#[derive(Clone, Debug)]
pub struct Page(String);

impl Page {
    pub fn new(base: &str) -> Page {
        Page(base.trim_end_matches('/').to_string())
    }

    /// `to(&["run", id, "step", "7"])`
    pub(crate) fn to(&self, parts: &[&str]) -> String {
        let parts: Vec<String> = parts.iter().map(|part| encode(part)).collect();
        format!("{}/#/{}", self.0, parts.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_encoded() {
        let page = Page::new("http://h:1/");
        assert_eq!(page.to(&["run", "a b/c", "step", "7"]), "http://h:1/#/run/a%20b%2Fc/step/7");
        assert_eq!(page.to(&[]), "http://h:1/#/");
    }
}
