//! How text becomes words. Adjacent letters and digits are a word, in lower case. Chinese, Japanese and Korean
//! write no spaces: there every two neighbouring characters are a word, and the last one of a stretch is one by itself, so
//! that any piece of such text is found, down to a single character.

use tantivy::tokenizer::{Token, TokenStream, Tokenizer};

/// The name under which the index knows the tokenizer.
pub const NAME: &str = "words";

/// Longer words (keys, base64) are indexed by their beginning.
const MAX_WORD_BYTES: usize = 64;

/// One word of a text and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    pub from: usize,
    pub to: usize,
    pub text: String,
    pub position: usize,
}

/// Characters of scripts that do not separate words.
fn unspaced(c: char) -> bool {
    matches!(u32::from(c),
        0x2e80..=0x2fdf | 0x3005..=0x3007 | 0x3040..=0x30ff | 0x3100..=0x312f | 0x3130..=0x318f | 0x31a0..=0x31bf
        | 0x31f0..=0x31ff | 0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xa960..=0xa97f | 0xac00..=0xd7ff | 0xf900..=0xfaff
        | 0xff66..=0xff9f | 0x1100..=0x11ff | 0x20000..=0x3ffff)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word,
    Unspaced,
    Gap,
}

fn kind(c: char) -> Kind {
    if unspaced(c) {
        Kind::Unspaced
    } else if c.is_alphanumeric() {
        Kind::Word
    } else {
        Kind::Gap
    }
}

/// All words of a text, in order.
pub fn words(text: &str) -> Vec<Word> {
    let mut tokenizer = Words::default();
    let mut stream = tokenizer.token_stream(text);
    let mut all = Vec::new();
    while stream.advance() {
        let token = stream.token();
        all.push(Word {
            from: token.offset_from,
            to: token.offset_to,
            text: token.text.clone(),
            position: token.position,
        });
    }
    all
}

/// Whether a word is a piece of unspaced text: a search for a single such character looks for pairs that begin with it.
pub fn is_unspaced(word: &str) -> bool {
    word.chars().next().is_some_and(unspaced)
}

#[derive(Clone, Default)]
pub struct Words {
    token: Token,
}

pub struct WordStream<'a> {
    text: &'a str,
    at: usize,
    token: &'a mut Token,
}

impl Tokenizer for Words {
    type TokenStream<'a> = WordStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> WordStream<'a> {
        self.token.reset();
        WordStream { text, at: 0, token: &mut self.token }
    }
}

impl WordStream<'_> {
    /// The kind of the character at a place, and its length. Most text is ASCII, and most of indexing is this.
    #[inline]
    fn kind_at(&self, at: usize) -> Option<(Kind, usize)> {
        let byte = *self.text.as_bytes().get(at)?;
        if byte.is_ascii() {
            return Some((if byte.is_ascii_alphanumeric() { Kind::Word } else { Kind::Gap }, 1));
        }
        let c = self.text[at..].chars().next()?;
        Some((kind(c), c.len_utf8()))
    }

    fn set(&mut self, from: usize, to: usize, next: usize) {
        let token = &mut *self.token;
        token.position = token.position.wrapping_add(1);
        token.offset_from = from;
        token.offset_to = to;
        token.text.clear();
        let mut end = to.min(from + MAX_WORD_BYTES);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let word = &self.text[from..end];
        if word.is_ascii() {
            token.text.push_str(word);
            token.text.make_ascii_lowercase();
        } else {
            token.text.extend(word.chars().flat_map(char::to_lowercase));
        }
        self.at = next;
    }
}

impl TokenStream for WordStream<'_> {
    fn advance(&mut self) -> bool {
        let mut start = self.at;
        let mut end = loop {
            match self.kind_at(start) {
                None => return false,
                Some((Kind::Gap, bytes)) => start += bytes,
                Some((Kind::Unspaced, bytes)) => {
                    // Pairs overlap: the next one starts with the second character of this one.
                    let after = start + bytes;
                    let end = match self.kind_at(after) {
                        Some((Kind::Unspaced, bytes)) => after + bytes,
                        _ => after,
                    };
                    self.set(start, end, after);
                    return true;
                }
                Some((Kind::Word, bytes)) => break start + bytes,
            }
        };
        while let Some((Kind::Word, bytes)) = self.kind_at(end) {
            end += bytes;
        }
        self.set(start, end, end);
        true
    }

    fn token(&self) -> &Token {
        self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        self.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        words(text).into_iter().map(|w| w.text).collect()
    }

    #[test]
    fn words_are_lower_case_and_pairs_overlap() {
        assert_eq!(texts("Out_of memory: CUDA-12!"), ["out", "of", "memory", "cuda", "12"]);
        assert_eq!(texts("求前 项的和abc"), ["求前", "前", "项的", "的和", "和", "abc"]);
        assert_eq!(texts("ÄÖ straße"), ["äö", "straße"]);
        assert_eq!(texts(""), Vec::<String>::new());
        assert_eq!(texts("…—!"), Vec::<String>::new());
    }

    #[test]
    fn places_point_into_the_text_and_long_words_are_cut() {
        let text = "héllo 世界 x";
        for w in words(text) {
            assert_eq!(text[w.from..w.to].to_lowercase(), w.text);
        }
        let positions: Vec<usize> = words("a b 世界").iter().map(|w| w.position).collect();
        assert_eq!(positions, [0, 1, 2, 3]);
        assert_eq!(words(&"é".repeat(100))[0].text.len(), 64);
    }
}
