//! The parser.

use super::*;

const DIGEST: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

fn attempt() -> Attempt {
    Attempt::new("0b8e9f9e-command", 1, MARK)
}

fn parse(text: &str) -> Result<Answer, Garbled> {
    Answer::parse(&attempt(), text)
}

#[test]
fn an_answer_that_is_cut_or_foreign_says_nothing() {
    let good = format!(
        "dtc1 0b8e9f9e-command-1 done 0 1.00 1.25 full\nstdout 9 - 61 6f6b\nstderr 3 {DIGEST} - 616263\n\
         dtc1 0b8e9f9e-command-1 end\n"
    );
    assert!(matches!(parse(&good), Ok(Answer::Done { milliseconds: 250, .. })));
    assert_eq!(parse(good.trim_end()), parse(&good), "Daytona may take the last newline");
    for end in 0..good.len() - 1 {
        assert_eq!(parse(good.get(..end).unwrap()), Err(Garbled), "{}", good.get(..end).unwrap());
    }
    let noisy = format!("bash: warning: setlocale: LC_ALL: cannot change locale\n{good}");
    assert_eq!(parse(&noisy), parse(&good));
    // Anything more, wherever it is.
    for (at, byte) in good.char_indices().map(|(at, _)| at).flat_map(|at| [(at, 'x'), (at, ' '), (at, '\n')]) {
        let mut forged = good.clone();
        forged.insert(at, byte);
        if at > 0 && forged != good {
            assert_eq!(parse(&forged), Err(Garbled), "{forged}");
        }
    }
    for bad in ["", "ok", "dtc1 0b8e9f9e-command-11 running", "dtc1 other running", "502 Bad Gateway"] {
        assert_eq!(parse(bad), Err(Garbled), "{bad}");
    }
}

#[test]
fn every_state_needs_its_end() {
    let states = [
        ("running", Answer::Running),
        ("unseen", Answer::Unseen),
        ("fenced", Answer::Fenced),
        ("cleared", Answer::Cleared),
        ("lost", Answer::Lost),
        ("survivors 12 345", Answer::Survivors(vec![12, 345])),
        ("early 12", Answer::Early(12)),
    ];
    for (state, answer) in states {
        let text = format!("dtc1 0b8e9f9e-command-1 {state}");
        assert_eq!(parse(&text), Err(Garbled), "{text}");
        assert_eq!(parse(&format!("{text}\ndtc1 0b8e9f9e-command-1 end\n")), Ok(answer));
        assert_eq!(parse(&format!("{text} x\ndtc1 0b8e9f9e-command-1 end\n")), Err(Garbled));
        assert_eq!(parse(&format!("{text}\ndtc1 0b8e9f9e-command-1 end\nmore\n")), Err(Garbled));
    }
}

#[test]
fn what_does_not_add_up_says_nothing() {
    let answer = |state: &str, stdout: &str| {
        parse(&format!("dtc1 0b8e9f9e-command-1 {state}\n{stdout}\nstderr 0 - - -\ndtc1 0b8e9f9e-command-1 end\n"))
    };
    let done = "done 0 1.00 1.25 full";
    let Ok(Answer::Died { streams, session_lives: true }) = answer("died alive", "stdout 3 - 61 62") else {
        panic!("not died")
    };
    assert_eq!((streams.stdout.head, streams.stdout.tail), (b"a".to_vec(), b"b".to_vec()));
    assert!(matches!(answer("died gone", "stdout 0 - - -"), Ok(Answer::Died { session_lives: false, .. })));
    assert!(answer(done, "stdout 2 - - 6162").is_ok());
    assert!(answer(done, "stdout 9 - - -").is_ok(), "nothing was asked for");
    for bad in [
        "stdout 1 - - 6162",
        "stdout 2 - 61 62",
        "stdout 2 - 6162 -",
        "stdout 2 -  6162",
        "stdout 2 - - 616",
        "stdout 2 - - 61G2",
        "stdout -2 - - -",
        "stdout +2 - - 6162",
        "stdout 2 abc - 6162",
        "stdout 2 - - 6162 ",
        "stdout 2 - - 6162 -",
        "stderr 2 - - 6162",
    ] {
        assert_eq!(answer(done, bad), Err(Garbled), "{bad}");
    }
    for bad in [
        "done 0 -92233720368547758.07 92233720368547758.07 full",
        "done 0 1.00 1.25 fully",
        "done -1 1.00 1.25 full",
        "done 0 1.00 full",
        "died",
        "died maybe",
    ] {
        assert_eq!(answer(bad, "stdout 0 - - -"), Err(Garbled), "{bad}");
    }
}
