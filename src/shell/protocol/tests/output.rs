//! Outputs: byte for byte, without end, and nobody waits for them.

use super::*;

#[test]
fn output_is_exact_whatever_it_is() {
    for_each(|sandbox| {
        let answer = sandbox.run(r"printf '\377\376a\000b\342\202'; printf abc >&2");
        let streams = streams_of(&answer);
        assert_eq!(streams.stdout.tail, b"\xff\xfea\0b\xe2\x82");
        assert_eq!(streams.stderr.tail, b"abc");
        assert_eq!(
            streams.stderr.sha256.as_deref(),
            Some("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
        );
        let bytes: Vec<u8> = (0..=255).collect();
        let answer = sandbox.run_job(&Job { stdin: Some(bytes.clone()), ..job("cat; cat /dev/null >&2") });
        assert_eq!(streams_of(&answer).stdout.tail, bytes);
    });
}

#[test]
fn of_a_long_output_the_beginning_and_the_end_are_told() {
    for_each(|sandbox| {
        let answer = sandbox.run("seq 1 200000; echo early; echo late >/dev/stderr; echo later >/dev/stderr");
        let streams = streams_of(&answer);
        assert_eq!(streams.stdout.bytes, 1_288_895 + 6);
        assert_eq!((streams.stdout.head.len(), streams.stdout.tail.len()), (FETCH.head, FETCH.tail));
        assert!(streams.stdout.head.starts_with(b"1\n2\n3\n"));
        assert!(streams.stdout.tail.ends_with(b"\n200000\nearly\n"));
        assert_eq!(streams.stderr.tail, b"late\nlater\n");
        let all: String = (1..=200_000).map(|n| format!("{n}\n")).chain(["early\n".to_owned()]).collect();
        let digest = Sha256::digest(all).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        assert_eq!(streams.stdout.sha256, Some(digest));
        let attempt = sandbox.attempt();
        sandbox.run_as(&attempt, &job("printf 0123456789"));
        for (head, tail, wanted) in
            [(3, 2, ("012", "89")), (5, 5, ("", "0123456789")), (0, 4, ("", "6789")), (4, 0, ("0123", ""))]
        {
            let text = sandbox.execute(&sandbox.workspace.wait(&attempt, 0, Fetch { head, tail }, &[]));
            let answer = Sandbox::parse(&attempt, &text);
            let stdout = &streams_of(&answer).stdout;
            assert_eq!((stdout.head.as_slice(), stdout.tail.as_slice()), (wanted.0.as_bytes(), wanted.1.as_bytes()));
        }
    });
}

/// The constants of the shipped runner would make this long.
fn small(text: &str) -> String {
    assert!(text.contains("\nKEPT_BYTES=67108864 ") && text.contains("\nTAIL_BYTES=1048576 "));
    text.replace("KEPT_BYTES=67108864", "KEPT_BYTES=65536").replace("TAIL_BYTES=1048576", "TAIL_BYTES=1000")
}

fn for_each_small(test: impl Fn(&mut Sandbox) + Sync) {
    std::thread::scope(|scope| {
        for shell in SHELLS {
            let test = &test;
            scope.spawn(move || test(&mut Sandbox::altered(shell, Launcher::OneShot, small)));
        }
    });
}

#[test]
fn beyond_the_cap_only_the_end_is_kept_and_all_is_counted() {
    for_each_small(|sandbox| {
        let attempt = sandbox.attempt();
        let answer = sandbox.run_as(&attempt, &job("seq 1 100000; echo last; echo fine >&2; exit 6"));
        let (code, how, out, err) = ended(&answer);
        assert_eq!((code, how, err.as_str()), (6, How::Full, "fine\n"));
        let stdout = &streams_of(&answer).stdout;
        assert_eq!((stdout.bytes, stdout.sha256.as_ref()), (588_895 + 5, None));
        let all: String = (1..=100_000).map(|n| format!("{n}\n")).chain(["last\n".to_owned()]).collect();
        assert_eq!(stdout.head, all.as_bytes()[..FETCH.head]);
        assert_eq!(out.len(), 1000);
        assert!(all.ends_with(&out), "{out}");
        let kept = std::fs::metadata(sandbox.files_of(&attempt).join("stdout")).unwrap().len();
        assert!((65536..=2 * 65536).contains(&kept), "{kept}");
        // Little more than what is kept: all of it is there.
        let answer = sandbox.run("head -c 66000 /dev/zero | tr '\\0' x; printf end");
        let stdout = &streams_of(&answer).stdout;
        assert_eq!(stdout.bytes, 66003);
        assert!(stdout.tail.ends_with(b"xend"));
        assert_eq!(stdout.tail.len(), FETCH.tail);
    });
}

#[test]
fn beyond_the_cap_too_a_background_process_holds_nobody() {
    for_each_small(|sandbox| {
        let answer = sandbox.run("seq 1 100000; sleep 300 & echo last");
        let (code, how, out, _) = ended(&answer);
        assert_eq!((code, how), (0, How::Background));
        assert_eq!(streams_of(&answer).stdout.bytes, 588_895 + 5);
        assert!(out.ends_with("\n100000\nlast\n"), "{out}");
    });
}

#[test]
fn what_is_left_in_the_background_fills_no_disk_and_is_not_ended() {
    for_each(|sandbox| {
        let attempt = sandbox.attempt();
        let script = "(while :; do echo x; n=$((n + 1)); echo $n >count; sleep 0.005; done) & echo $!";
        let (_, how, pid, _) = ended(&sandbox.run_as(&attempt, &job(script)));
        assert_eq!(how, How::Background);
        let pid = pid.lines().find(|line| *line != "x").unwrap().to_owned();
        let output = sandbox.files_of(&attempt).join("stdout");
        let size = || std::fs::metadata(&output).unwrap().len();
        let count = |s: &Sandbox| s.file("count").trim().parse().unwrap_or(0);
        let (before, counted): (u64, u64) = (size(), count(sandbox));
        sandbox.eventually("it goes on writing", |s| count(s) > counted + 40);
        assert!(alive(&pid), "it was ended by a closed output");
        assert_eq!(size(), before);
        assert!(signal("KILL", &pid));
    });
}

#[test]
fn a_full_disk_takes_the_output_and_nothing_else() {
    for_each_small(|sandbox| {
        // As a full disk does: writing more fails. What follows is longer than the limit (in blocks of 512 or 1024).
        let attempt = sandbox.attempt();
        let text = sandbox.workspace.one(&attempt, &job("seq 1 20000; echo done >&2; exit 7"), 20, FETCH, &[]);
        let answer = Sandbox::parse(&attempt, &sandbox.execute(&format!("ulimit -f 8\n{text}")));
        let (code, how, _, err) = ended(&answer);
        assert_eq!((code, how, err.as_str()), (7, How::OutputLost, "done\n"));
        let stdout = &streams_of(&answer).stdout;
        assert_eq!(stdout.sha256, None);
        assert!(stdout.bytes > 0 && stdout.tail.starts_with(b"1\n2\n"), "{}", stdout.bytes);
    });
}

#[test]
fn a_disk_that_is_really_full_keeps_no_outcome_back() {
    // A small file system over the attempts, seen by this one call alone; where that may not be made, the test above
    // has to do.
    let private = |text: &str| {
        let mut command = Command::new("unshare");
        command.args(["-r", "-m", "sh", "-c", text]).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    };
    let may = private("mount -t tmpfs tmpfs /mnt").stdin(Stdio::null()).status();
    if !may.is_ok_and(|status| status.success()) {
        println!("not run: no small file system may be made here (unshare); only the stand-in above was tested");
        return;
    }
    for shell in ["zsh", "bash", "dash"] {
        let sandbox = &mut Sandbox::start(shell, Launcher::OneShot);
        let attempt = sandbox.attempt();
        let text = sandbox.workspace.one(&attempt, &job("seq 1 200000; echo done >&2; exit 7"), 20, FETCH, &[]);
        std::fs::write(sandbox.dir.path().join("text"), text).unwrap();
        let at = sandbox.dir.path().display();
        let call = private(&format!(
            "mount -t tmpfs -o size=400k tmpfs {at}/home/.daytona-controller/lease/attempt && \
             HOME={at}/home PATH={at}/bin:$PATH exec sh {at}/text"
        ));
        let said = { call }.stdin(Stdio::null()).output().unwrap().stdout;
        let answer = Sandbox::parse(&attempt, &String::from_utf8(said).unwrap());
        assert_eq!((ended(&answer).0, ended(&answer).1), (7, How::OutputLost), "{shell}: {answer:?}");
        let streams = streams_of(&answer);
        assert!(streams.stdout.head.starts_with(b"1\n2\n"));
        assert_eq!((streams.stdout.sha256.as_ref(), streams.stderr.sha256.as_ref()), (None, None));
    }
}

#[test]
fn fifty_megabytes_are_kept_and_many_short_writes_too() {
    let sandbox = &mut Sandbox::start("dash", Launcher::OneShot);
    let answer = sandbox.run("head -c 50000000 /dev/zero");
    let stdout = &streams_of(&answer).stdout;
    assert_eq!(stdout.bytes, 50_000_000);
    assert!(stdout.sha256.is_some());
    let answer = sandbox.run("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i + 1)); done");
    let stdout = &streams_of(&answer).stdout;
    assert_eq!(stdout.bytes, (0..20_000).map(|n| format!("line {n}\n").len() as u64).sum::<u64>());
    assert!(stdout.tail.ends_with(b"line 19999\n"));
}
