//! What is remembered of a lease's files, and when commands need not wait.

use serde_json::json;

use super::*;

fn lease(generation: i64, content: &str) -> SandboxLease {
    let files = json!({ "files": [{ "path": "f", "content": content }] });
    let mut lease = SandboxLease::new("l", serde_json::from_value(files).unwrap());
    lease.metadata.generation = Some(generation);
    lease
}

fn wanted(digest: &str) -> Files {
    Files::Wanted(Some(digest.to_owned()))
}

#[test]
fn commands_are_woken_whenever_the_files_are_in_step_again() {
    let memory = Memory::default();
    let look = |in_step| {
        let was_behind = memory.is_behind("l");
        memory.learn("l", memory.changes("l"), Key::new(&lease(1, "x")), wanted("a"));
        memory.note("l", was_behind, in_step)
    };
    assert_eq!([look(false), look(true), look(true)], [false, true, false]);
    // Said to have changed, and found as it was.
    memory.changed("l");
    assert!(memory.is_behind("l") && look(true) && !memory.is_behind("l"));
}

#[test]
fn a_renewal_is_no_reason_to_read_the_sources_again() {
    let memory = Memory::default();
    memory.learn("l", memory.changes("l"), Key::new(&lease(1, "x")), wanted("a"));
    assert!(memory.known("l", &lease(2, "x")).is_some());
    assert!(memory.known("l", &lease(3, "y")).is_none());
    memory.changed("l");
    assert!(memory.known("l", &lease(2, "x")).is_none());
}

#[test]
fn what_cannot_be_written_is_tried_ever_more_rarely() {
    let memory = Memory::default();
    let fail = |digest: &str| memory.fail("l", Some(digest.to_owned()), "full".to_owned());
    let minutes = Duration::from_mins;
    assert!(fail("a") <= minutes(1) / 2 && fail("a") > minutes(1) / 2);
    (0..9).for_each(|_| {
        fail("a");
    });
    assert!((minutes(7)..=minutes(10)).contains(&fail("a")));
    assert!(memory.failure("l", Some("a")).is_some() && memory.failure("l", Some("b")).is_none());
    assert!(fail("b") <= minutes(1) / 2, "other files are another matter");
    memory.worked("l");
    assert!(memory.failure("l", Some("b")).is_none());
}

#[test]
fn a_long_reason_keeps_its_end() {
    let text = format!("/{}: a directory is there", "x".repeat(1000));
    let short = ends(&text, 100);
    assert!(short.starts_with("/xx") && short.ends_with("x: a directory is there") && short.chars().count() == 101);
    assert_eq!(ends("/a: b", 100), "/a: b");
}
