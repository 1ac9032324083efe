//! Bytes of neighbouring tokens, as texts.

use std::fmt::Write;

/// The text of each token. Together they are the text of the sequence, except for bytes that are no character: these are escaped.
/// A token inside of a character has no text.
pub fn texts<'a>(ids: &[i32], piece: impl Fn(i32) -> Option<&'a [u8]>) -> Vec<String> {
    let mut out = vec![String::new(); ids.len()];
    let mut bytes: Vec<u8> = Vec::new();
    // The tokens that the bytes come from, each with the first of its bytes.
    let mut starts: Vec<(usize, usize)> = Vec::new();
    for (at, id) in ids.iter().enumerate() {
        match piece(*id) {
            Some(piece) => {
                starts.push((at, bytes.len()));
                bytes.extend_from_slice(piece);
            }
            // An id without a token is a text of its own, and ends what was before it.
            None => {
                assign(&bytes, &starts, &mut out);
                bytes.clear();
                starts.clear();
                out[at] = format!("<{id}>");
            }
        }
        // Most tokens end with a character: there is no need to keep more than one of them.
        if bytes.last().is_some_and(u8::is_ascii) {
            assign(&bytes, &starts, &mut out);
            bytes.clear();
            starts.clear();
        }
    }
    assign(&bytes, &starts, &mut out);
    out
}

/// Gives each character to the token that it begins in.
fn assign(bytes: &[u8], starts: &[(usize, usize)], out: &mut [String]) {
    let (mut next, mut at) = (0, 0);
    let mut owner = |at: usize| {
        while starts.get(next + 1).is_some_and(|(_, start)| *start <= at) {
            next += 1;
        }
        starts[next].0
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            out[owner(at)].push(c);
            at += c.len_utf8();
        }
        for byte in chunk.invalid() {
            let _ = write!(out[owner(at)], "\\x{byte:02X}");
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pieces: &[&[u8]]) -> Vec<String> {
        let ids: Vec<i32> = (0..pieces.len() as i32).collect();
        texts(&ids, |id| Some(pieces[id as usize]).filter(|piece| *piece != b"?"))
    }

    #[test]
    fn characters_belong_to_the_token_that_they_begin_in() {
        assert_eq!(of(&[b"a", b" b", b""]), ["a", " b", ""]);
        // An emoji in four tokens, and one that shares a token with the end of another.
        assert_eq!(of(&[b"\xF0", b"\x9F", b"\x98", b"\x80", b"!"]), ["😀", "", "", "", "!"]);
        assert_eq!(of(&[b"x\xC3", b"\xA9\xC3", b"\xA9"]), ["xé", "é", ""]);
    }

    #[test]
    fn bytes_that_are_no_character_are_escaped() {
        assert_eq!(of(&[b"\xF0\x9F", b"a"]), ["\\xF0\\x9F", "a"]);
        assert_eq!(of(&[b"a", b"\x98", b"\xE2\x96"]), ["a", "\\x98", "\\xE2\\x96"]);
        assert_eq!(of(&[b"\xF0\x9F", b"?", b"\x98\x80"]), ["\\xF0\\x9F", "<1>", "\\x98\\x80"]);
        assert_eq!(texts(&[-1, 7], |_| None), ["<-1>", "<7>"]);
    }
}
