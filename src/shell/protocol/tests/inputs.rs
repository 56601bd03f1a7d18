//! What a script is given: environment, standard input, working directory, interpreter, arguments.

use super::*;

fn with_env(script: &str, env: &[(&str, &[u8])]) -> Job {
    Job { env: env.iter().map(|(name, value)| ((*name).to_owned(), value.to_vec())).collect(), ..job(script) }
}

/// The same job so that its text carries it, and so that files do.
fn both_ways(job: &Job) -> [Job; 2] {
    [job.clone(), Job { secret: true, ..job.clone() }]
}

#[test]
fn a_variable_has_the_value_that_was_given() {
    let odd: &[(&str, &[u8])] = &[
        ("QUOTES", b"it's \"a\" `b` $c \\ \\n !!"),
        ("SEVERAL", b"one\n  two \n\nexport FOUR='4'\n"),
        ("SPACES", b"  a\tb  "),
        ("EMPTY", b""),
        ("UNICODE", "grüße 🦀 ÁÂÈ".as_bytes()),
        ("CR", b"a\r\nb\r"),
        ("_x1", b"-n"),
    ];
    for_each(|sandbox| {
        let script = "for name in QUOTES SEVERAL SPACES EMPTY UNICODE CR _x1; do\n\
            eval \"value=\\$$name\"; printf '<%s>' \"$value\"; done; echo; env | grep -c ^FOUR=";
        let mut expected: Vec<u8> = Vec::new();
        for (_, value) in odd {
            expected.extend([b"<", *value, b">"].concat());
        }
        expected.extend(b"\n0\n");
        for job in both_ways(&with_env(script, odd)) {
            assert_eq!(sandbox.workspace.uploads(&sandbox.attempt(), &job).is_empty(), !job.secret);
            let answer = sandbox.run_job(&job);
            // `grep -c` counts a line of SEVERAL, which looks like a variable in what `env` prints.
            let shown = String::from_utf8_lossy(&streams_of(&answer).stdout.tail).replace("\n1\n", "\n0\n");
            assert_eq!(shown, String::from_utf8_lossy(&expected).replace("\n1\n", "\n0\n"));
        }
        let bytes: Vec<u8> = (1..=255).collect();
        let answer = sandbox.run_job(&with_env("printf %s \"$BYTES\"", &[("BYTES", &bytes)]));
        assert_eq!(streams_of(&answer).stdout.tail, bytes);
    });
}

#[test]
fn no_variable_of_ours_is_in_the_way_of_one_of_theirs() {
    // All that the runner uses by itself, and what shells and programs give a meaning to.
    let ours = assigned_in(&[RUNNER, KEEPING].concat());
    assert!(ours.contains(&"begin".to_owned()) && ours.len() > 40, "{ours:?}");
    for_each(|sandbox| {
        let special = ["IFS", "HOME", "CDPATH", "ENV", "LC_ALL", "TERM", "status", "path", "argv", "DTC_ATTEMPT"];
        let names: Vec<String> = ours.iter().cloned().chain(special.map(str::to_owned)).collect();
        let env = names.iter().map(|name| (name.clone(), b"/nowhere x".to_vec())).collect();
        let script: String =
            names.iter().fold(String::new(), |script, name| script + &format!("echo \"{name}=${name}\"\n"));
        let job = Job { env, ..job(&(script + "exit 4")) };
        for job in both_ways(&job) {
            let (code, how, out, _) = ended(&sandbox.run_job(&job));
            assert_eq!((code, how), (4, How::Full));
            for name in names.iter().filter(|name| !["IFS", "DTC_ATTEMPT"].contains(&name.as_str())) {
                assert!(out.contains(&format!("{name}=/nowhere x\n")), "{name}: {out}");
            }
        }
        // Not even the variable in which programs are looked for.
        let answer = sandbox.run_job(&with_env("echo $PATH; exit 5", &[("PATH", b"/nowhere")]));
        assert_eq!((ended(&answer).0, ended(&answer).1), (5, How::Full), "{answer:?}");
    });
}

/// Names of the variables that a shell script assigns.
fn assigned_in(script: &str) -> Vec<String> {
    let mut names: Vec<String> = script
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .flat_map(|line| line.split([' ', ';', '{', '(']))
        .filter_map(|word| Some(word.split_once('=')?.0.to_owned()))
        .filter(|name| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn a_variable_that_cannot_be_set_fails_its_own_command() {
    for_each_with(&[Launcher::OneShot], |sandbox| {
        let answer = sandbox.run_job(&with_env("echo ran", &[("UID", b"7")]));
        let (_, how, out, err) = ended(&answer);
        // In bash it is read-only; in zsh it is our own user, who may either not be changed or has no rights here.
        match sandbox.shell {
            "bash" | "zsh" => {
                assert_eq!((how, out.as_str()), (How::NotStarted, ""), "{answer:?}");
                assert!(!err.is_empty());
            }
            shell => assert_eq!((how, out.as_str()), (How::Full, "ran\n"), "{shell}: {answer:?}"),
        }
    });
}

#[test]
fn standard_input_is_what_was_given_or_empty() {
    for_each(|sandbox| {
        assert_eq!(sandbox.result("cat; read line || exit 9").0, 9);
        let answer = sandbox.run_job(&Job { stdin: Some(b"a\nb".to_vec()), ..job("read first; echo $first; cat") });
        assert_eq!(ended(&answer).2, "a\nb");
        let answer = sandbox.run_job(&Job { stdin: Some(Vec::new()), ..job("cat; echo end") });
        assert_eq!(ended(&answer).2, "end\n");
        let long = vec![b'x'; 300_000];
        let answer = sandbox.run_job(&Job { stdin: Some(long), ..job("wc -c | tr -d ' '") });
        assert_eq!(ended(&answer).2, "300000\n");
    });
}

#[test]
fn what_is_secret_is_on_no_disk_while_the_script_runs() {
    for_each(|sandbox| {
        let secret = Job {
            secret: true,
            stdin: Some(b"sesame".to_vec()),
            ..with_env(
                "echo $KEY; cat; echo; ls \"$DIR\" | tr '\\n' ' '; ls -l \"$0\"",
                &[("KEY", b"opens"), ("DIR", b"")],
            )
        };
        let attempt = sandbox.attempt();
        let dir = sandbox.files_of(&attempt);
        let mut secret = secret;
        secret.env[1].1 = dir.to_str().unwrap().as_bytes().to_vec();
        assert!(!sandbox.workspace.run(&attempt, &secret).contains("opens"));
        let (_, _, out, _) = ended(&sandbox.run_as(&attempt, &secret));
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[..2], ["opens", "sesame"]);
        assert!(lines[2].contains("-rw-------"), "{out}");
        let left: Vec<&str> = lines[2].split(' ').collect();
        assert!(left.contains(&"script") && !left.contains(&"env") && !left.contains(&"stdin"), "{out}");
        assert!(!sandbox.base().join("input").join(&attempt.id).exists());
    });
}

#[test]
fn a_working_directory_is_taken_as_it_is_or_nothing_starts() {
    for_each(|sandbox| {
        let odd = "it's a \"dir\" ü";
        std::fs::create_dir_all(sandbox.work().join(odd)).unwrap();
        let at = |dir: &str| Job { working_dir: Some(dir.to_owned()), ..job("pwd") };
        let work = sandbox.work();
        let work = work.to_str().unwrap();
        for (dir, expected) in [(odd, format!("{work}/{odd}")), (".", work.to_owned()), ("/", "/".to_owned())] {
            let (_, _, out, _) = ended(&sandbox.run_job(&at(dir)));
            assert_eq!(out.trim_end().trim_end_matches("/."), expected);
        }
        std::fs::write(sandbox.work().join("file"), "").unwrap();
        for dir in ["missing", "/missing", "file"] {
            let answer = sandbox.run_job(&at(dir));
            let (code, how, out, err) = ended(&answer);
            assert_eq!((code, how, out.as_str()), (126, How::NotStarted, ""));
            assert!(err.contains(dir), "{err}");
        }
        std::fs::remove_dir_all(sandbox.work()).unwrap();
        let (code, how, _, err) = ended(&sandbox.run("echo no"));
        assert_eq!((code, how), (126, How::NotStarted));
        assert!(err.contains("home/work"), "{err}");
    });
}

#[test]
fn an_interpreter_reads_the_script_or_nothing_starts() {
    for_each(|sandbox| {
        let by = |words: &[&str], script: &str| Job {
            interpreter: words.iter().map(|word| (*word).to_owned()).collect(),
            ..job(script)
        };
        let answer = sandbox.run_job(&by(&["sh", "-u", "-e"], "echo $-; false; echo no"));
        let (code, _, out, _) = ended(&answer);
        assert_eq!(code, 1);
        assert!(out.contains('u') && out.contains('e') && !out.contains("no"), "{out}");
        let answer = sandbox.run_job(&by(&["cat", "-"], "a script\r\nthat is text: é"));
        assert_eq!(ended(&answer).2, "a script\r\nthat is text: é\n");
        for missing in ["no-such-program", "/no/such/program", "-x", "/etc", "/etc/passwd", "--"] {
            let answer = sandbox.run_job(&by(&[missing], "echo no"));
            let (code, how, out, err) = ended(&answer);
            assert_eq!((code, how, out.as_str()), (127, How::NotStarted, ""), "{missing}");
            assert!(err.contains(missing), "{err}");
        }
        // It is looked for where the job says.
        let tools = sandbox.work().join("tools");
        std::fs::create_dir_all(&tools).unwrap();
        std::os::unix::fs::symlink(sandbox.dir.path().join("bin/sh"), tools.join("own-shell")).unwrap();
        let path = tools.to_str().unwrap().as_bytes().to_vec();
        let found = Job { env: vec![("PATH".to_owned(), path)], ..by(&["own-shell"], "echo found") };
        if sandbox.shell != "busybox" {
            assert_eq!(ended(&sandbox.run_job(&found)).2, "found\n");
        }
    });
}

#[test]
fn arguments_are_never_read_again() {
    for_each(|sandbox| {
        let words: Vec<String> =
            ["printf", "<%s>", "a b", "it's", "$HOME `x` \"y\" *", "", "-n", "\\", "line\nline", "é"]
                .map(str::to_owned)
                .to_vec();
        let answer = sandbox.run_job(&Job { script: Job::argv(&words).unwrap(), ..Job::default() });
        assert_eq!(ended(&answer).2, "<a b><it's><$HOME `x` \"y\" *><><-n><\\><line\nline><é>");
        std::fs::write(sandbox.work().join("-odd"), "#!/bin/sh\necho odd \"$@\"\n").unwrap();
        Command::new("chmod").arg("+x").arg(sandbox.work().join("-odd")).status().unwrap();
        let path = format!("{}:/bin:/usr/bin", sandbox.work().display());
        let words: Vec<String> = ["-odd", "-x", "--"].map(str::to_owned).to_vec();
        // A profile may set the variable; the script has the last word.
        let script = [format!("PATH='{path}'\n").as_bytes(), &Job::argv(&words).unwrap()].concat();
        let answer = sandbox.run_job(&Job { script, ..Job::default() });
        assert_eq!(ended(&answer).2, "odd -x --\n", "{answer:?}");
        let missing = sandbox.run_job(&Job { script: Job::argv(&["-no".to_owned()]).unwrap(), ..Job::default() });
        assert_eq!(ended(&missing).0, 127);
    });
}

#[test]
fn a_script_arrives_byte_for_byte() {
    let attempt = "DTC-attempt";
    let scripts: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"# nothing".to_vec(),
        b"line\n\n\n".to_vec(),
        b"  spaces \t\n\\ back\\\n'\"`$x".to_vec(),
        b"crlf\r\nend\r".to_vec(),
        "ÀÁÂÃÄÅÆÇÈÉ \u{7f}\u{81}\u{88} ".as_bytes().to_vec(),
        "grüße 🦀 \u{fffd}\u{1}\u{2}\u{1b}[0m\n".as_bytes().to_vec(),
        format!("{attempt}\nDTC-SCRIPT\ndtc1 done\nexport A='\n").into_bytes(),
        (1..=255).collect(),
        b"x\n".repeat(2048),
        b"x".repeat(4095),
        b"x".repeat(4096),
        b"x".repeat(300_000),
    ];
    for_each(|sandbox| {
        for (script, env) in scripts.iter().zip([true, false].into_iter().cycle()) {
            let attempt = sandbox.attempt();
            let script = [script.as_slice(), format!("\nDTC-{}\nlast", attempt.id).as_bytes()].concat();
            let env = if env { vec![("A".to_owned(), b"x\ny".to_vec())] } else { Vec::new() };
            let all = Job { script: script.clone(), env, interpreter: vec!["cat".to_owned()], ..Job::default() };
            let uploaded = !sandbox.workspace.uploads(&attempt, &all).is_empty();
            let long = exports(&all).len() + script.len() + 1 > LONGEST_INLINE;
            assert_eq!(uploaded, long || str::from_utf8(&script).is_err());
            assert!(sandbox.workspace.run(&attempt, &all).len() < LONGEST_INLINE + 700);
            Sandbox::upload(&sandbox.workspace.uploads(&attempt, &all));
            sandbox.text(&attempt, &all);
            sandbox.eventually("it is over", |s| s.files_of(&attempt).join("exit").exists());
            let out = std::fs::read(sandbox.files_of(&attempt).join("stdout")).unwrap();
            assert!(out == script || out == [&script[..], b"\n"].concat(), "{}", String::from_utf8_lossy(&script));
        }
    });
}
