use rollscope_model::build::{ConversationsBuilder, NewConversation};

use super::*;
use crate::{Request, parse_search};

fn talks(texts: &[&str]) -> RecordBatch {
    let mut rows = ConversationsBuilder::default();
    for text in texts {
        let messages = format!(r#"[{{"role":"user","content":"{text}"}}]"#);
        rows.push(&NewConversation {
            id: text,
            run_id: "a",
            messages: &messages,
            message_count: 1,
            char_count: text.len() as i64,
            logged_ns: 1,
            ..NewConversation::default()
        });
    }
    rows.finish().unwrap()
}

/// The tar of the split of these conversations.
fn split(texts: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let tar = folder.path().join("tar");
    make([Ok(talks(texts))].into_iter(), &folder.path().join("index"), &tar).unwrap();
    std::fs::read(tar).unwrap()
}

struct World {
    _folder: tempfile::TempDir,
    search: Search,
    writer: IndexWriter,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let search = Search::create(&folder.path().join("index")).unwrap();
        let writer = search.inner.index.writer_with_num_threads(1, WRITER_BYTES).unwrap();
        World { _folder: folder, search, writer }
    }

    fn add(&self, tar: &[u8], rows: u64) -> Result<(), SearchError> {
        add(&mut &tar[..], &self.writer, rows)
    }

    fn found(&mut self, text: &str) -> Vec<String> {
        self.writer.commit().unwrap();
        self.search.inner.reader.reload().unwrap();
        let request = Request { search: parse_search(text).unwrap(), ..Request::default() };
        let mut ids: Vec<String> = self.search.ask(&request).unwrap().rows.into_iter().map(|row| row.id).collect();
        ids.sort();
        ids
    }
}

#[test]
fn a_split_is_found_like_what_was_indexed_here() {
    let mut world = World::new();
    let (_, fields) = schema::schema();
    let own = talks(&["the red fox"]);
    world.writer.add_document(Rows::new(&own).document(&fields, 0)).unwrap();
    world.add(&split(&["the brown fox", "a brown bear"]), 2).unwrap();
    world.add(&split(&["a polar bear"]), 1).unwrap();
    assert_eq!(world.found("fox"), ["the brown fox", "the red fox"]);
    assert_eq!(world.found("bear"), ["a brown bear", "a polar bear"]);
    // What comes later replaces and deletes what came with a split.
    world.writer.delete_term(tantivy::Term::from_field_text(fields.id, "a brown bear"));
    assert_eq!(world.found("brown"), ["the brown fox"]);
    assert_eq!(world.search.len(), 3);
}

#[test]
fn nothing_is_taken_of_a_split_that_is_damaged() {
    let whole = split(&["the brown fox", "a brown bear"]);
    let mut world = World::new();
    let mut refused = 0;
    for at in (0..whole.len()).step_by(61) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        // Some bytes of a tar file mean nothing: times, names of owners, what fills blocks up.
        match world.add(&damaged, 2) {
            Ok(()) => world = World::new(),
            Err(_) => refused += 1,
        }
        // After what it says about itself there are only zeros.
        if at % 3 == 0 && at < whole.len() - 1536 {
            assert!(world.add(&whole[..at], 2).is_err(), "cut at {at}");
        }
    }
    assert!(refused > 30, "{refused}");
    assert!(world.add(&whole, 3).is_err(), "another number of rows");
    assert!(world.add(b"", 0).is_err() && world.add(&[0; 4096], 0).is_err());
    assert!(world.found("brown").is_empty());
    world.add(&whole, 2).unwrap();
    assert_eq!(world.found("brown").len(), 2);
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in ["../../etc/passwd", "/0/idx", "0/other", "5/idx", "0/../1/idx"] {
        let mut bytes = Vec::new();
        {
            let mut archive = tar::Builder::new(&mut bytes);
            let mut header = tar::Header::new_gnu();
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_size(1);
            header.set_cksum();
            archive.append(&header, &b"x"[..]).unwrap();
            archive.finish().unwrap();
        }
        let why = World::new().add(&bytes, 1).unwrap_err().to_string();
        assert!(why.contains("unexpected file"), "{name}: {why}");
    }
}
