//! Any text in a header or an address.

/// All but letters, digits and `-._~` as `%XX`, as RFC 3986 has it.
pub fn percent(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn what_is_not_plain_is_escaped() {
        assert_eq!(percent("grpo-7b_v1.2~x"), "grpo-7b_v1.2~x");
        assert_eq!(percent("a b/ü\n"), "a%20b%2F%C3%BC%0A");
    }
}
