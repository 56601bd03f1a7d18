//! A lease's files: whole or not at all, nothing removed that is not ours, and the user's own left alone.

use std::os::unix::fs::PermissionsExt;

use super::*;

const ODD: &str = "it's \"odd\" \\n $HOME * ünï😀 -x ";

impl Sandbox {
    /// Stages and files them; what was said about it.
    pub(super) fn file_all(&self, files: &[File]) -> Result<(), Unfiled> {
        let id = self.attempt().id;
        Self::upload(&self.workspace.stage(&id, files.to_vec()));
        filed(&id, &self.execute(&self.workspace.file(&id)))
    }

    pub(super) fn wanted(&self, name: &str, content: &str) -> File {
        File {
            path: self.work().join(name).to_str().unwrap().to_owned(),
            mode: "0640".to_owned(),
            once: false,
            content: content.as_bytes().to_vec(),
        }
    }

    pub(super) fn once(&self, name: &str, content: &str) -> File {
        File { once: true, ..self.wanted(name, content) }
    }

    pub(super) fn staged(&self) -> usize {
        self.base().with_file_name("files").join("stage").read_dir().map_or(0, Iterator::count)
    }
}

/// All names below a directory, and whether they are ours by name.
pub(super) fn leftovers(dir: &Path) -> bool {
    dir.read_dir().unwrap().map(|entry| entry.unwrap()).any(|entry| {
        entry.file_name().to_string_lossy().starts_with(".dtc-new")
            || (entry.file_type().unwrap().is_dir() && leftovers(&entry.path()))
    })
}

#[test]
fn files_are_put_replaced_and_removed_as_they_are_wanted() {
    for_each_with(&[Launcher::OneShot], |sandbox| {
        let odd = format!("{ODD}/{ODD}");
        let binary = File { content: vec![0, 255, b'\r', b'\n'], ..sandbox.wanted("empty/binary", "") };
        let first = [
            sandbox.wanted(&odd, "odd"),
            sandbox.wanted("a/gone", "gone"),
            sandbox.wanted("empty/none", ""),
            binary.clone(),
            sandbox.once("a/mine", "first"),
            sandbox.once("a/once", "first"),
        ];
        assert_eq!(sandbox.file_all(&first), Ok(()));
        assert_eq!(
            (sandbox.file(&odd), sandbox.file("a/gone"), sandbox.file("a/mine")),
            ("odd".to_owned(), "gone".to_owned(), "first".to_owned())
        );
        assert_eq!(std::fs::read(sandbox.work().join("empty/binary")).unwrap(), binary.content);
        assert!(sandbox.work().join("empty/none").exists());
        let mode = |name: &str| sandbox.work().join(name).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&odd), mode("a")), (0o640, 0o755));
        // The user's own changes, and a file of the user's beside ours.
        std::fs::write(sandbox.work().join("a/mine"), "theirs").unwrap();
        std::fs::remove_file(sandbox.work().join("a/once")).unwrap();
        std::fs::write(sandbox.work().join("a/other"), "theirs").unwrap();
        std::fs::write(sandbox.work().join("a/foreign"), "theirs").unwrap();
        let second = [
            File { mode: "600".to_owned(), ..sandbox.wanted(&odd, "odd") },
            sandbox.wanted("a/foreign", "ours"),
            // Where a file was there is a directory now.
            sandbox.wanted("a/gone/deeper", "new"),
            sandbox.once("a/mine", "second"),
            sandbox.once("a/late", "second"),
        ];
        assert_eq!(sandbox.file_all(&second), Ok(()));
        assert_eq!((mode(&odd), sandbox.file("a/foreign")), (0o600, "ours".to_owned()));
        assert_eq!((sandbox.file("a/gone/deeper"), sandbox.file("a/mine")), ("new".to_owned(), "theirs".to_owned()));
        assert_eq!((sandbox.file("a/late"), sandbox.file("a/other")), ("second".to_owned(), "theirs".to_owned()));
        assert!(!sandbox.work().join("empty/none").exists() && !sandbox.work().join("empty/binary").exists());
        assert_eq!(sandbox.file_all(&[]), Ok(()));
        for gone in [odd.as_str(), "a/foreign", "a/gone/deeper"] {
            assert!(!sandbox.work().join(gone).exists(), "{gone}");
        }
        assert_eq!((sandbox.file("a/mine"), sandbox.file("a/late")), ("theirs".to_owned(), "second".to_owned()));
        // Written once means once, also when it was away in between.
        assert_eq!(sandbox.file_all(&[sandbox.once("a/once", "second"), sandbox.once("a/mine", "second")]), Ok(()));
        assert!(!sandbox.work().join("a/once").exists() && sandbox.file("a/mine") == "theirs");
        assert!(!leftovers(&sandbox.work()) && sandbox.staged() == 0);
    });
}

#[test]
fn whose_a_file_is_can_change() {
    for_each_with(&[Launcher::OneShot], |sandbox| {
        assert_eq!(sandbox.file_all(&[sandbox.wanted("f", "one")]), Ok(()));
        assert_eq!(sandbox.file_all(&[sandbox.once("f", "two")]), Ok(()));
        assert_eq!(sandbox.file_all(&[]), Ok(()));
        assert_eq!(sandbox.file("f"), "two", "it is the user's");
        assert_eq!(sandbox.file_all(&[sandbox.wanted("f", "three")]), Ok(()));
        assert_eq!(sandbox.file("f"), "three");
        assert_eq!(sandbox.file_all(&[]), Ok(()));
        assert!(!sandbox.work().join("f").exists());
        // It was taken away as the lease's, so it is written again.
        assert_eq!(sandbox.file_all(&[sandbox.once("f", "four")]), Ok(()));
        assert_eq!(sandbox.file("f"), "four");
    });
}

/// What is right keeps its time; what is not is another file, so that a second name of it stays as it is.
#[test]
fn what_is_right_is_left_alone() {
    for_each_with(&[Launcher::OneShot], |sandbox| {
        let file = |mode: &str| File { mode: mode.to_owned(), ..sandbox.wanted("f", "x") };
        assert_eq!(sandbox.file_all(&[file("0640")]), Ok(()));
        let work = sandbox.work();
        std::fs::hard_link(work.join("f"), work.join("other")).unwrap();
        let number = |name: &str| std::os::unix::fs::MetadataExt::ino(&work.join(name).metadata().unwrap());
        assert_eq!(sandbox.file_all(&[file("640")]), Ok(()));
        assert_eq!(number("f"), number("other"));
        assert_eq!(sandbox.file_all(&[file("0600")]), Ok(()));
        let mode = |name: &str| work.join(name).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("f"), mode("other")), (0o600, 0o640));
    });
}

#[test]
fn nothing_is_removed_through_a_link_that_came_later() {
    for_each_with(&[Launcher::OneShot], |sandbox| {
        let (work, link) = (sandbox.work(), std::os::unix::fs::symlink::<&str, PathBuf>);
        for dir in ["mine", "one", "two"] {
            std::fs::create_dir(work.join(dir)).unwrap();
            std::fs::write(work.join(dir).join("key"), "theirs").unwrap();
        }
        std::fs::write(work.join("two/gone"), "theirs").unwrap();
        link("one", work.join("link")).unwrap();
        let (moved, gone) = (sandbox.wanted("link/key", "ours"), sandbox.wanted("link/gone", "ours"));
        assert_eq!(sandbox.file_all(&[sandbox.wanted("conf/key", "ours"), moved.clone(), gone]), Ok(()));
        assert_eq!((sandbox.file("one/key"), sandbox.file("one/gone")), ("ours".to_owned(), "ours".to_owned()));
        // The user moves the links, or puts one in the place of a directory.
        std::fs::remove_dir_all(work.join("conf")).unwrap();
        link("mine", work.join("conf")).unwrap();
        std::fs::remove_file(work.join("link")).unwrap();
        link("two", work.join("link")).unwrap();
        assert_eq!(sandbox.file_all(&[moved]), Ok(()));
        assert_eq!((sandbox.file("mine/key"), sandbox.file("two/gone")), ("theirs".to_owned(), "theirs".to_owned()));
        assert_eq!(sandbox.file("two/key"), "ours");
        assert!(!work.join("one/key").exists() && !work.join("one/gone").exists(), "ours is left behind");
        assert_eq!(sandbox.file_all(&[]), Ok(()));
        assert!(!work.join("two/key").exists() && !leftovers(&work));
    });
}

/// What was written once must not be written again because nobody knew that it was.
#[test]
fn that_a_file_was_written_once_is_noted_first() {
    for_each_with(&[Launcher::OneShot], |sandbox| {
        let written = sandbox.base().with_file_name("files").join("written");
        assert_eq!(sandbox.file_all(&[]), Ok(()));
        let file = sandbox.once("f", "ours");
        let note = written.join(format!("{}.new", super::super::files::key(&file.path)));
        std::fs::create_dir(&note).unwrap();
        let Err(Unfiled::Failed(failed)) = sandbox.file_all(std::slice::from_ref(&file)) else { panic!("it was said") };
        assert!(failed.len() == 1 && failed[0].ends_with("it cannot be noted that it was written"), "{failed:?}");
        assert!(!sandbox.work().join("f").exists());
        std::fs::remove_dir(&note).unwrap();
        // One that was ended in between, before it was written and after.
        std::fs::write(&note, "").unwrap();
        assert_eq!(sandbox.file_all(std::slice::from_ref(&file)), Ok(()));
        assert_eq!(sandbox.file("f"), "ours");
        std::fs::rename(note.with_extension(""), &note).unwrap();
        std::fs::write(sandbox.work().join("f"), "edited").unwrap();
        assert_eq!(sandbox.file_all(&[file]), Ok(()));
        assert_eq!(sandbox.file("f"), "edited");
    });
}

#[test]
fn what_one_lease_has_left_the_next_one_knows() {
    for_each_with(&[Launcher::OneShot], |sandbox| {
        assert_eq!(sandbox.file_all(&[sandbox.once("mine", "one"), sandbox.wanted("theirs", "one")]), Ok(()));
        std::fs::write(sandbox.work().join("mine"), "edited").unwrap();
        let home = sandbox.dir.path().join("home");
        sandbox.workspace = Workspace::new(home.to_str().unwrap(), sandbox.work().to_str().unwrap(), "another");
        assert_eq!(sandbox.execute(&sandbox.workspace.set_up()).trim(), Workspace::SET_UP);
        assert_eq!(sandbox.file_all(&[sandbox.once("mine", "two")]), Ok(()));
        assert_eq!(sandbox.file("mine"), "edited");
        assert!(!sandbox.work().join("theirs").exists());
    });
}

/// An upload makes the directories that are missing as everybody's.
#[test]
fn nobody_else_can_read_what_was_staged() {
    for_each_with(&[Launcher::OneShot], |sandbox| {
        let files = sandbox.base().with_file_name("files");
        let mode = |dir: &Path| dir.metadata().unwrap().permissions().mode() & 0o077;
        assert_eq!(sandbox.file_all(&[]), Ok(()));
        assert_eq!(mode(&files), 0);
        let kept = files.parent().unwrap();
        std::fs::remove_dir_all(kept).unwrap();
        Sandbox::upload(&sandbox.workspace.stage("x", vec![sandbox.wanted("f", "x")]));
        assert_ne!(mode(kept), 0);
        assert_eq!(sandbox.execute(&sandbox.workspace.set_up()).trim(), Workspace::SET_UP);
        assert_eq!(mode(kept), 0);
    });
}

#[test]
fn what_cannot_be_written_is_named_and_holds_up_nothing_else() {
    for_each_with(&[Launcher::OneShot], |sandbox| {
        std::fs::create_dir_all(sandbox.work().join("dir/full")).unwrap();
        std::fs::write(sandbox.work().join("file"), "theirs").unwrap();
        let files = [
            sandbox.wanted("dir", "x"),
            sandbox.wanted("file/below", "x"),
            sandbox.once("dir/full", "x"),
            sandbox.wanted("z", "z"),
        ];
        let Err(Unfiled::Failed(failed)) = sandbox.file_all(&files) else { panic!("it was said to work") };
        let work = sandbox.work();
        let starts =
            |number: usize, name: &str| failed[number].starts_with(&format!("{}: ", work.join(name).display()));
        assert!(
            failed.len() == 3 && starts(0, "dir") && starts(1, "file/below") && starts(2, "dir/full"),
            "{failed:?}"
        );
        assert!(failed[0].contains("a directory is there"), "{failed:?}");
        assert_eq!((sandbox.file("z"), sandbox.file("file")), ("z".to_owned(), "theirs".to_owned()));
        assert!(!leftovers(&work) && sandbox.staged() == 0);
        // What could not be written is not ours.
        assert_eq!(sandbox.file_all(&[]), Ok(()));
        assert!(work.join("dir/full").is_dir() && !work.join("z").exists());
        // What has become somebody's directory is not removed.
        assert_eq!(sandbox.file_all(&[sandbox.wanted("y", "y")]), Ok(()));
        std::fs::remove_file(work.join("y")).unwrap();
        std::fs::create_dir(work.join("y")).unwrap();
        assert_eq!(sandbox.file_all(&[]), Ok(()));
        assert!(work.join("y").is_dir());
        // A link is replaced, not followed.
        std::os::unix::fs::symlink("file", work.join("link")).unwrap();
        assert_eq!(sandbox.file_all(&[sandbox.wanted("link", "ours")]), Ok(()));
        assert_eq!((sandbox.file("link"), sandbox.file("file")), ("ours".to_owned(), "theirs".to_owned()));
        std::os::unix::fs::symlink("y", work.join("to-dir")).unwrap();
        assert_eq!(sandbox.file_all(&[sandbox.wanted("to-dir", "ours")]), Ok(()));
        assert!(sandbox.file("to-dir") == "ours" && work.join("y").read_dir().unwrap().next().is_none());
    });
}

#[test]
fn an_upload_that_is_not_whole_changes_nothing() {
    for_each_with(&[Launcher::OneShot], |sandbox| {
        assert_eq!(sandbox.file_all(&[sandbox.wanted("a", "one"), sandbox.wanted("b", "one")]), Ok(()));
        let files = [sandbox.wanted("a", "two"), sandbox.wanted("c", "two")];
        for cut in 0..4 {
            let id = sandbox.attempt().id;
            let mut uploads = sandbox.workspace.stage(&id, files.to_vec());
            match cut {
                0 => drop(uploads.remove(0)),
                1 => drop(uploads.pop()),
                2 => drop(uploads[1].content.pop()),
                _ => uploads[2].content.truncate(60),
            }
            Sandbox::upload(&uploads);
            let said = filed(&id, &sandbox.execute(&sandbox.workspace.file(&id)));
            assert_eq!(said, Err(Unfiled::Incomplete), "{cut}");
            assert_eq!((sandbox.file("a"), sandbox.file("b")), ("one".to_owned(), "one".to_owned()), "{cut}");
        }
        // One that nobody filed, as after a crash, goes with the next; its text, late, does nothing.
        let id = sandbox.attempt().id;
        Sandbox::upload(&sandbox.workspace.stage(&id, vec![sandbox.wanted("a", "late")]));
        assert_eq!(sandbox.file_all(&files), Ok(()));
        assert_eq!(sandbox.staged(), 0);
        assert!(filed(&id, &sandbox.execute(&sandbox.workspace.file(&id))).is_err());
        assert_eq!((sandbox.file("a"), sandbox.file("c")), ("two".to_owned(), "two".to_owned()));
        // So does a sweep.
        Sandbox::upload(&sandbox.workspace.stage(&id, vec![sandbox.wanted("a", "late")]));
        sandbox.execute(&sandbox.workspace.sweep(MARK, &[]));
        assert_eq!(sandbox.staged(), 0);
    });
}

/// A reader in a loop never sees half a file, nor none.
#[test]
fn a_reader_sees_one_whole_or_the_other() {
    for_each_with(&[Launcher::OneShot], |sandbox| {
        let versions = ["a", "b"].map(|letter| sandbox.wanted("f", &letter.repeat(300_000)));
        assert_eq!(sandbox.file_all(&versions[..1]), Ok(()));
        let path = sandbox.work().join("f");
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = 0;
                while !done.load(Ordering::Relaxed) {
                    let text = std::fs::read(&path).unwrap();
                    assert!(text.len() == 300_000 && text.iter().all(|b| *b == text[0]));
                    seen += 1;
                }
                seen
            });
            for n in 1..8 {
                assert_eq!(sandbox.file_all(&versions[n % 2..=n % 2]), Ok(()));
            }
            done.store(true, Ordering::Relaxed);
            assert!(reader.join().unwrap() > 0);
        });
    });
}

#[test]
fn only_a_whole_answer_counts() {
    let failed = |paths: &[&str]| Err(Unfiled::Failed(paths.iter().map(|p| (*p).to_owned()).collect()));
    assert_eq!(filed("i", "locale?\ndtc1 i filed\n"), Ok(()));
    assert_eq!(
        filed("i", "dtc1 i failed /a b: why\ndtc1 i failed /c: d\ndtc1 i unfinished\n"),
        failed(&["/a b: why", "/c: d"])
    );
    assert_eq!(filed("i", "dtc1 i incomplete"), Err(Unfiled::Incomplete));
    assert_eq!(filed("i", "dtc1 i busy"), Err(Unfiled::Busy));
    for text in ["", "dtc1 j filed", "dtc1 i failed /a: b", "dtc1 i failed /a: b\ndtc1 i filed", "sh: not found"] {
        assert_eq!(filed("i", text), Err(Unfiled::Garbled), "{text}");
    }
    let file = File { path: "/p".to_owned(), mode: String::new(), once: false, content: b"hunter2".to_vec() };
    assert_eq!(format!("{file:?}"), "File(/p, 7 bytes)");
}
