//! Working directory and exported variables carry over, and nothing else does.

use super::*;

fn persist(script: &str) -> Job {
    Job { persist: true, ..job(script) }
}

impl Sandbox {
    fn carry(&mut self, script: &str) -> (i32, String, String) {
        let (code, _, out, err) = ended(&self.run_job(&persist(script)));
        (code, out, err)
    }
}

#[test]
fn directory_and_variables_carry_over_and_only_to_those_that_ask() {
    for_each(|sandbox| {
        let value = "it's \"a\" `b` $c \\ *\n  two\n\ttab ü 🦀\n";
        std::fs::write(sandbox.work().join("value"), value).unwrap();
        let odd = "an \"odd\" $dir\nwith 'quotes'";
        std::fs::create_dir(sandbox.work().join(odd)).unwrap();
        std::fs::write(sandbox.work().join("odd"), odd).unwrap();
        let keep = "export V=\"$(cat value; echo x)\" GONE=1; PLAIN=1; V=${V%x}; cd \"$(cat odd)\"";
        assert_eq!(sandbox.carry(keep), (0, String::new(), String::new()));
        let (_, out, err) = sandbox.carry("printf '%s' \"$V\"; pwd; echo \"${PLAIN-none} $GONE\"; unset GONE");
        let work = sandbox.work();
        assert_eq!(out, format!("{value}{}/{odd}\nnone 1\n", work.display()), "{err}");
        assert_eq!(sandbox.carry("echo ${GONE-none}; cd ..").1, "none\n");
        assert_eq!(sandbox.carry("pwd").1, format!("{}\n", work.display()));
        assert_eq!(sandbox.output("echo ${V-none}; export V=isolated; cd /").as_str(), "none\n");
        assert_eq!(sandbox.carry("printf '%s' \"$V\"; pwd").1, format!("{value}{}\n", work.display()));
    });
}

#[test]
fn however_a_script_ends_what_it_did_carries_over() {
    for_each(|sandbox| {
        let ends = [
            ("export A=1; exit 7", 7, "1"),
            ("export A=2; set -eu; false; export A=no", 1, "2"),
            ("export A=3; return 5; export A=no", 5, "3"),
            ("export A=4; (exit 9)", 9, "4"),
            ("export A=5 PATH=; hash -r 2>/dev/null; no-such-program; exit 0", 0, "5"),
            ("export A=6; cd /; set -- x y; IFS=x; umask 777; exit 3", 3, "6"),
            ("trap 'echo mine' EXIT; export A=7", 0, "7"),
        ];
        let path = sandbox.output("echo $PATH").trim().to_owned();
        for (script, code, value) in ends {
            let script = format!("PATH='{path}'\n{script}");
            assert_eq!(sandbox.carry(&script).0, code, "{script}");
            assert_eq!(sandbox.carry("echo $A").1, format!("{value}\n"), "{script}");
        }
        assert_eq!(sandbox.carry("export A=no; kill -9 $$").0, 137);
        assert_eq!(sandbox.carry("echo $A").1, "7\n", "the state before stays");
        assert_eq!(sandbox.carry("export A=no; exec true").0, 0);
        assert_eq!(sandbox.carry("echo $A").1, "7\n");
        let state = sandbox.base().join("persist");
        assert_eq!(state.read_dir().unwrap().count(), 1, "half a state is left");
    });
}

#[test]
fn what_was_set_for_one_command_does_not_carry_over() {
    for_each(|sandbox| {
        for secret in [false, true] {
            let env = vec![("KEY".to_owned(), b"se'cret\nx".to_vec()), ("A".to_owned(), b"given".to_vec())];
            let given = Job { env, secret, ..persist("printf '%s %s.' \"$KEY\" \"$A\"; export B=kept; cd /tmp") };
            assert_eq!(ended(&sandbox.run_job(&given)).2, "se'cret\nx given.");
            let (_, out, _) = sandbox.carry("echo ${KEY-none} ${A-none} $B ${DTC_DIRECTORY-none}; pwd");
            assert_eq!(out, "none none kept none\n/tmp\n");
            let state = std::fs::read_to_string(sandbox.base().join("persist/state")).unwrap();
            assert!(!state.contains("se'cret") && !state.contains("DTC_ATTEMPT"), "{state}");
        }
        // It wins over what carried over, too.
        let env = vec![("B".to_owned(), b"new".to_vec())];
        assert_eq!(ended(&sandbox.run_job(&Job { env, ..persist("echo $B") })).2, "new\n");
        let input = Job { stdin: Some(b"typed\n".to_vec()), ..persist("read line; echo $line") };
        assert_eq!(ended(&sandbox.run_job(&input)).2, "typed\n");
    });
}

#[test]
fn a_value_that_carries_over_outlives_one_that_was_given() {
    for_each(|sandbox| {
        sandbox.carry("export B=\"it's\nkept\" C=c D=d");
        let names = ["B", "D", "KEY", "PATH"];
        let path = format!("{}:/usr/bin:/bin", sandbox.dir.path().join("bin").display());
        for secret in [false, true] {
            let env = names.map(|name| {
                (name.to_owned(), if name == "PATH" { path.clone() } else { "new".to_owned() }.into_bytes())
            });
            let given = Job { env: env.to_vec(), secret, ..persist("echo $B $D $KEY; unset B; D=other C=changed") };
            assert_eq!(ended(&sandbox.run_job(&given)).2, "new new new\n");
            let (_, out, err) = sandbox.carry("echo \"$B\" $C $D ${KEY-none}; [ \"$PATH\" ] && ls -d /");
            assert_eq!(out, "it's\nkept changed d none\n/\n", "{err}");
        }
    });
}

#[test]
fn where_it_is_kept_is_made_again_and_tidied() {
    for_each(|sandbox| {
        let state = sandbox.base().join("persist");
        sandbox.carry("export A=1; rm -rf \"$HOME\"/.daytona-controller/*/persist");
        assert_eq!(sandbox.carry("echo $A").1, "1\n", "the directory was not made again");
        std::fs::write(state.join("state.12"), "half of it").unwrap();
        std::fs::write(state.join("state.new"), "half of it").unwrap();
        assert_eq!(sandbox.carry("echo $A").1, "1\n");
        assert_eq!(state.read_dir().unwrap().count(), 1);
        // No line of ours is in what is traced.
        let (code, _, err) = sandbox.carry("set -x; (exit 3)");
        assert_eq!((code, err.contains("dtc_"), err.contains("exit 3")), (3, false, true), "{err}");
        let (code, _, err) = sandbox.carry("set -x; exit 3");
        assert_eq!((code, err.contains("dtc_")), (3, false), "{err}");
    });
}

#[test]
fn a_directory_that_is_gone_is_told() {
    for_each(|sandbox| {
        sandbox.carry("mkdir sub; cd sub; rmdir ../sub");
        let work = sandbox.work();
        let (code, out, err) = sandbox.carry("pwd");
        assert_eq!((code, out), (0, format!("{}\n", work.display())));
        assert!(err.contains("sub is gone"), "{err}");
        sandbox.carry("cd /tmp");
        let placed = Job { working_dir: Some("/usr".to_owned()), ..persist("pwd") };
        assert_eq!(ended(&sandbox.run_job(&placed)).2, "/usr\n");
        let placed = Job { working_dir: Some("nowhere".to_owned()), ..persist("touch ran") };
        assert_eq!(ended(&sandbox.run_job(&placed)).1, How::NotStarted);
        assert_eq!(sandbox.carry("pwd").1, "/usr\n", "what did not start changed something");
    });
}

#[test]
fn each_shell_may_be_the_one_that_reads_the_script() {
    for_each_with(&[Launcher::OneShot], |sandbox| {
        let shells: &[&str] = if sandbox.shell == "busybox" { &["ash"] } else { &["zsh", "bash", "dash"] };
        for shell in shells {
            let by = |script: &str| Job { interpreter: vec![(*shell).to_owned()], ..persist(script) };
            let (code, _, out, err) = ended(&sandbox.run_job(&by("echo $#; export S=\"a  'b'\"; cd /usr; exit 3")));
            assert_eq!((code, out.as_str(), err.as_str()), (3, "0\n", ""), "{shell}");
            assert_eq!(ended(&sandbox.run_job(&by("echo \"$S\"; pwd; unset S"))).2, "a  'b'\n/usr\n", "{shell}");
            assert_eq!(ended(&sandbox.run_job(&by("echo \"${S-none}\""))).2, "none\n", "{shell}");
        }
    });
}
