//! A lease's files while somebody else is at them: a newer plan, or who clears up.

use std::os::unix::fs::PermissionsExt;

use super::{files::leftovers, *};

impl Sandbox {
    /// Has a program of the sandbox hang until it is let go, and then do what it is to do.
    fn hang(&self, program: &str) -> impl Fn() + use<> {
        let slow = self.dir.path().join("bin").join(program);
        let real = std::fs::read_link(&slow).unwrap_or_else(|_| in_path(program));
        let was_there = std::fs::remove_file(&slow).is_ok();
        let text = format!(
            "#!/bin/sh\necho >\"$HOME/hangs\"; until [ -e \"$HOME/go\" ]; do sleep 0.02; done; exec {} \"$@\"\n",
            if was_there { format!("busybox {program}") } else { real.display().to_string() }
        );
        std::fs::write(&slow, text).unwrap();
        std::fs::set_permissions(&slow, std::fs::Permissions::from_mode(0o755)).unwrap();
        move || {
            std::fs::remove_file(&slow).unwrap();
            if was_there {
                std::os::unix::fs::symlink(&real, &slow).unwrap();
            }
        }
    }

    fn hangs(&self) {
        self.eventually("it hangs", |s| s.dir.path().join("home/hangs").exists());
    }

    fn let_go(&self) {
        std::fs::write(self.dir.path().join("home/go"), "").unwrap();
    }
}

impl Sandbox {
    /// A newer plan comes while this program of an older one's hangs.
    fn newer_plan_while(&self, program: &str) {
        assert_eq!(self.file_all(&[self.wanted("gone", "x")]), Ok(()));
        let old = self.attempt().id;
        let files = [self.wanted("hangs", "x"), self.wanted("z", "old")];
        Self::upload(&self.workspace.stage(&old, files.to_vec()));
        let mend = self.hang(program);
        let mut running = self.spawn(&self.workspace.file(&old));
        self.hangs();
        mend();
        let said = filed(&old, &self.execute(&self.workspace.file(&old)));
        assert_eq!(said, Err(Unfiled::Busy), "a copy of it does nothing");
        assert_eq!(self.file_all(&[self.wanted("gone", "new"), self.wanted("z", "new")]), Ok(()));
        running.wait().unwrap();
        // What it was waiting for comes too late.
        self.let_go();
        self.eventually("nothing of it is left", |s| s.processes().is_empty());
        assert!(!self.work().join("hangs").exists() && !leftovers(&self.work()));
        assert_eq!((self.file("z"), self.file("gone")), ("new".to_owned(), "new".to_owned()), "{program}");
        assert_eq!(self.staged(), 0);
    }
}

/// Where the one before is still at it, it is ended, with all that it has started: what it knows is old.
#[test]
fn the_newest_plan_counts() {
    for program in ["cat", "rm", "mv"] {
        for_each_with(&[Launcher::OneShot], |sandbox| sandbox.newer_plan_while(program));
    }
}

/// Its programs are no group of their own then.
#[test]
fn the_newest_plan_counts_without_setsid_too() {
    for program in ["cat", "mv"] {
        let sandbox = Sandbox::start("busybox", Launcher::OneShot);
        std::fs::remove_file(sandbox.dir.path().join("bin/setsid")).unwrap();
        sandbox.newer_plan_while(program);
    }
}

/// Whoever clears up ends it first: a secret must not be left half written, nor our files taken away for a lost plan.
#[test]
fn who_removes_what_was_staged_ends_who_is_at_it() {
    for with in ["sweep", "remove"] {
        for_each_with(&[Launcher::OneShot], |sandbox| {
            assert_eq!(sandbox.file_all(&[sandbox.wanted("kept", "one")]), Ok(()));
            let id = sandbox.attempt().id;
            let files = [sandbox.wanted("kept", "one"), sandbox.wanted("new", "secret")];
            Sandbox::upload(&sandbox.workspace.stage(&id, files.to_vec()));
            let mend = sandbox.hang("mv");
            let stage = sandbox.base().with_file_name("files").join("stage");
            let mut running = sandbox.spawn(&sandbox.workspace.file(&id));
            sandbox.hangs();
            mend();
            assert!(leftovers(&sandbox.work()) && stage.read_dir().unwrap().count() == 1);
            sandbox.execute(&if with == "sweep" {
                sandbox.workspace.sweep(MARK, &[])
            } else {
                sandbox.workspace.remove()
            });
            running.wait().unwrap();
            sandbox.let_go();
            sandbox.eventually("nothing of it is left", |s| s.processes().is_empty());
            assert!(!sandbox.work().join("new").exists() && !leftovers(&sandbox.work()), "{with}");
            assert_eq!((sandbox.file("kept"), sandbox.staged()), ("one".to_owned(), 0), "{with}");
        });
    }
}

/// A plan whose content has gone says nothing of what may go.
#[test]
fn where_the_stage_disappears_nothing_is_removed() {
    for_each_with(&[Launcher::OneShot], |sandbox| {
        let files = [sandbox.wanted("a", "one"), sandbox.wanted("b", "one"), sandbox.wanted("gone", "one")];
        assert_eq!(sandbox.file_all(&files), Ok(()));
        let id = sandbox.attempt().id;
        Sandbox::upload(&sandbox.workspace.stage(&id, files[..2].to_vec()));
        let mend = sandbox.hang("rm");
        let running = sandbox.spawn(&sandbox.workspace.file(&id));
        sandbox.hangs();
        mend();
        std::fs::remove_dir_all(sandbox.base().with_file_name("files").join("stage")).unwrap();
        sandbox.let_go();
        let said = running.wait_with_output().unwrap().stdout;
        assert_eq!(filed(&id, &String::from_utf8(said).unwrap()), Err(Unfiled::Incomplete));
        assert_eq!((sandbox.file("a"), sandbox.file("b")), ("one".to_owned(), "one".to_owned()));
    });
}
