//! The index follows the store: nothing is missed, nothing is read twice, and what is gone is forgotten.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollscope_search::{Follower, Search};

use crate::{T0, Talk, World, talk};

#[test]
fn after_a_restart_only_new_rows_are_read() {
    let world = World::empty();
    world.add(&[talk("1", "red fox"), talk("2", "red hen")]);
    assert_eq!(world.catch_up(), 2);
    let world = world.restart();
    assert_eq!(world.find("red"), ["1", "2"], "the commit is on disk");
    assert_eq!(world.catch_up(), 0);
    world.add(&[talk("3", "red cat")]);
    let world = world.restart();
    assert_eq!(world.catch_up(), 1);
    assert_eq!(world.find("red"), ["1", "2", "3"]);
}

#[test]
fn rows_that_only_move_are_not_read_again() {
    let world = World::empty();
    world.add(&[talk("1", "red fox")]);
    assert_eq!(world.catch_up(), 1);
    world.flush();
    assert_eq!(world.catch_up(), 0, "from the tail into a segment");
    world.add(&[talk("2", "red hen")]);
    world.flush();
    world.runtime.block_on(world.store.compact()).unwrap();
    assert_eq!(world.catch_up(), 1, "two segments merged: one of them was known");
    assert_eq!(world.find("red"), ["1", "2"]);
    assert_eq!(world.search.len(), 2);
}

#[test]
fn an_index_that_is_older_than_the_store_catches_up() {
    let world = World::empty();
    world.add(&[talk("1", "red fox")]);
    world.catch_up();
    let backup = world.dir.path().join("backup");
    copy(&world.index_dir(), &backup);
    world.add(&[talk("2", "red hen")]);
    world.flush();
    world.add(&[talk("3", "red cat")]);
    assert_eq!(world.catch_up(), 2);
    std::fs::remove_dir_all(world.index_dir()).unwrap();
    copy(&backup, &world.index_dir());
    let world = world.restart();
    assert_eq!(world.find("red"), ["1"]);
    assert_eq!(world.catch_up(), 2);
    assert_eq!(world.find("red"), ["1", "2", "3"]);
    assert_eq!(world.search.len(), 3);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in from.read_dir().unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_conversation_that_is_logged_again_replaces_the_old_one() {
    for flushed in [false, true] {
        let world = World::empty();
        world.add(&[talk("1", "red fox"), talk("2", "red hen")]);
        if flushed {
            world.flush();
        }
        world.catch_up();
        world.add(&[Talk { logged_ns: T0 + 1, ..talk("1", "a blue fox now") }]);
        assert_eq!(world.catch_up(), 1, "flushed: {flushed}");
        assert_eq!(world.find("red"), ["2"]);
        assert_eq!(world.find("fox"), ["1"]);
        // A segment that still has the old row must not bring it back.
        let world = world.restart();
        assert_eq!(world.catch_up(), 0);
        assert_eq!(world.find("red"), ["2"]);
        world.flush();
        assert_eq!(world.catch_up(), 0);
        assert_eq!((world.find("blue"), world.search.len()), (vec!["1".to_string()], 2));
    }
}

#[test]
fn an_index_made_from_replaced_rows_has_only_the_new_ones() {
    let world = World::empty();
    world.add(&[talk("1", "red fox"), talk("2", "red hen")]);
    world.flush();
    world.add(&[Talk { logged_ns: T0 + 1, ..talk("1", "a blue fox now") }]);
    assert_eq!(world.catch_up(), 2);
    assert_eq!(world.find("red"), ["2"]);
    assert_eq!(world.find("blue"), ["1"]);
}

#[test]
fn a_deleted_run_leaves_the_index() {
    for flushed in [false, true] {
        let world = World::empty();
        world.add(&[talk("1", "red fox"), Talk { run: "b", ..talk("2", "red hen") }]);
        if flushed {
            world.flush();
        }
        world.catch_up();
        assert_eq!(world.find("red"), ["1", "2"]);
        assert!(world.runtime.block_on(world.store.delete_run("b")).unwrap());
        world.catch_up();
        assert_eq!(world.find("red"), ["1"], "flushed: {flushed}");
        // A run may come back under the same name.
        world.add(&[Talk { run: "b", ..talk("3", "red cat") }]);
        assert_eq!(world.catch_up(), 1);
        assert_eq!(world.find("red"), ["1", "3"]);
    }
}

#[test]
fn rows_of_a_damaged_segment_leave_the_index_and_the_rest_of_the_run_stays() {
    let world = World::empty();
    world.add(&[talk("1", "red fox")]);
    world.flush();
    let folder = world.dir.path().join("store/conversations/run=a");
    let first = folder.read_dir().unwrap().next().unwrap().unwrap().path();
    world.add(&[talk("2", "red hen")]);
    world.flush();
    world.add(&[talk("3", "red cat")]);
    assert_eq!(world.catch_up(), 3);
    std::fs::write(&first, "not a segment").unwrap();
    let world = world.restart();
    world.catch_up();
    assert_eq!(world.find("red"), ["2", "3"]);
}

#[test]
fn a_follower_sees_what_is_appended_and_commits_it() {
    let world = World::empty();
    world.add(&[talk("1", "red fox")]);
    let mut follower = {
        let _runtime = world.runtime.enter();
        let source = Arc::new(world.store.clone());
        Follower::start(world.search.clone(), source, world.store.changes(), world.store.vitals()).unwrap()
    };
    let until = |what: &str, done: &dyn Fn() -> bool| {
        let started = Instant::now();
        while !done() {
            assert!(started.elapsed() < Duration::from_secs(120), "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until("what was there before", &|| world.find("red") == ["1"]);
    world.add(&[talk("2", "red hen")]);
    until("what came since", &|| world.find("red") == ["1", "2"]);
    until("the count", &|| follower.status().added == 2);
    follower.stop();
    assert_eq!(follower.status().failure, None);
    let read = Search::open_existing(&world.index_dir()).unwrap();
    assert_eq!(read.len(), 2, "the commit is on disk");
    drop(follower);
    // The next one takes the lock of the index, and goes on where this one ended.
    world.add(&[talk("3", "red cat")]);
    assert_eq!(world.catch_up(), 1);
}

/// Nobody has searched for it yet, and nothing new comes.
#[test]
fn a_follower_builds_a_damaged_index_again() {
    let world = World::empty();
    world.add(&[talk("1", "red fox"), talk("2", "red hen")]);
    world.catch_up();
    let stored = world.index_dir().read_dir().unwrap().map(|entry| entry.unwrap().path());
    for file in stored.filter(|path| path.extension().is_some_and(|end| end == "store")) {
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[10] ^= 1;
        std::fs::write(&file, bytes).unwrap();
    }
    let world = world.restart();
    let mut follower = {
        let _runtime = world.runtime.enter();
        let source = Arc::new(world.store.clone());
        Follower::start(world.search.clone(), source, world.store.changes(), world.store.vitals()).unwrap()
    };
    let started = Instant::now();
    while follower.status().added != 2 {
        assert!(started.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(20));
    }
    follower.stop();
    assert_eq!(world.find("red"), ["1", "2"]);
    assert_eq!(follower.status().failure, None);
}
