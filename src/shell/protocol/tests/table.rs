//! The pass table: every script, in every shell, by both launchers; each in a session followed by proof that the
//! session's shell is alive.

use std::{collections::BTreeMap, fmt::Write as _, sync::Mutex};

use super::{
    scripts::{CARRIED, Case, DIED, GROUPS},
    *,
};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/protocol.md");
const BEGIN: &str = "<!-- pass table -->\n";
const END: &str = "<!-- /pass table -->";

#[test]
fn every_script_passes_and_the_document_says_so() {
    let passed: Mutex<BTreeMap<(usize, String), usize>> = Mutex::default();
    let failed: Mutex<Vec<String>> = Mutex::default();
    for_each(|sandbox| {
        let column = format!("{} {}", sandbox.shell, sandbox.launcher);
        for (row, (_, cases, persist)) in groups().enumerate() {
            for case in cases {
                let verdict = judge(sandbox, case, persist);
                if let Err(why) = &verdict {
                    failed.lock().unwrap().push(format!("{column}: {:?}: {why}", case.0));
                }
                *passed.lock().unwrap().entry((row, column.clone())).or_default() += usize::from(verdict.is_ok());
            }
        }
    });
    let table = render(&passed.into_inner().unwrap());
    let document = std::fs::read_to_string(DOCUMENT).unwrap();
    let (before, rest) = document.split_once(BEGIN).expect("docs/protocol.md has no place for the pass table");
    let (shown, after) = rest.split_once(END).expect("the pass table has no end");
    if std::env::var_os("UPDATE_PROTOCOL_TABLE").is_some() {
        std::fs::write(DOCUMENT, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    }
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
    assert!(
        shown == table || std::env::var_os("UPDATE_PROTOCOL_TABLE").is_some(),
        "docs/protocol.md shows another table; type: UPDATE_PROTOCOL_TABLE=1 cargo test -p daytona-controller --lib \
         every_script_passes\n{table}"
    );
}

/// Name, scripts, and whether they run with surroundings that carry over.
fn groups() -> impl Iterator<Item = (&'static str, &'static [Case], bool)> {
    GROUPS.iter().map(|(name, cases)| (*name, *cases, false)).chain([("with `Persist`", CARRIED, true)])
}

fn judge(sandbox: &mut Sandbox, (script, codes, out): &Case, persist: bool) -> Result<(), String> {
    if persist {
        // Each begins as the first one does.
        let _ = std::fs::remove_dir_all(sandbox.base().join("persist"));
    }
    let answer = sandbox.run_job(&Job { persist, ..job(script) });
    let right = match &answer {
        Answer::Died { .. } => codes.contains(&DIED),
        Answer::Done { killed: false, code, how: How::Full | How::Background, streams, .. } => {
            let exact = |out: &str| streams.stdout.tail == out.as_bytes() && streams.stdout.head.is_empty();
            codes.contains(code) && out.is_none_or(exact)
        }
        _ => false,
    };
    if !right {
        return Err(format!("{answer:.400?}"));
    }
    // The next script is the proof that the runner works on; this, that the shell itself does.
    if sandbox.launcher == Launcher::Session {
        let log = sandbox.feed("echo alive");
        sandbox.eventually(&format!("the session's shell is alive after {script:?}"), |_| log.output() == "alive\n");
    }
    Ok(())
}

fn render(passed: &BTreeMap<(usize, String), usize>) -> String {
    let launchers = [Launcher::Session, Launcher::OneShot];
    let columns: Vec<String> =
        SHELLS.iter().flat_map(|shell| launchers.map(|launcher| format!("{shell} {launcher}"))).collect();
    let mut table = format!("| scripts | of | {} |\n|---|---{}|\n", columns.join(" | "), "|---".repeat(columns.len()));
    for (row, (name, cases, _)) in groups().enumerate() {
        let _ = write!(table, "| {name} | {} |", cases.len());
        for column in &columns {
            let _ = write!(table, " {} |", passed.get(&(row, column.clone())).unwrap_or(&0));
        }
        table.push('\n');
    }
    table
}
