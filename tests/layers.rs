//! Imports point one way: each layer uses only what stands before it in the list at the head of `src/lib.rs`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of this is tests"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// What a layer must not name although its place in the list would let it, as the list says in words.
const NEVER: [(&str, &[&str]); 5] = [
    ("shell", &["kube", "k8s_openapi", "reqwest", "tokio", "std::time::SystemTime"]),
    ("daytona", &["kube", "k8s_openapi", "crate::api", "crate::shell"]),
    ("plan", &["kube::Client", "kube::Api", "reqwest", "tokio", "async fn"]),
    ("cluster", &["reqwest", "crate::daytona", "crate::plan"]),
    ("api", &["reqwest", "tokio", "async fn"]),
];

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Each module's place in the list.
fn layers() -> BTreeMap<String, usize> {
    let lib = fs::read_to_string(src().join("lib.rs")).unwrap();
    let listed = lib.lines().filter_map(|line| {
        let (number, rest) = line.strip_prefix("//! ")?.split_once(". [`")?;
        let (names, _) = rest.rsplit_once("]:")?;
        Some((number.parse::<usize>().ok()?, names.to_owned()))
    });
    let name = |name: &str| name.trim_matches(['[', '`', ']', ' ']).replace("mod@", "");
    listed.flat_map(|(place, names)| names.split(',').map(|n| (name(n), place)).collect::<Vec<_>>()).collect()
}

/// All Rust files of a module: `name.rs` and what is in `name/`.
fn files(module: &str) -> Vec<PathBuf> {
    fn walk(path: PathBuf, found: &mut Vec<PathBuf>) {
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                walk(entry.unwrap().path(), found);
            }
        } else if path.extension().is_some_and(|e| e == "rs") && path.is_file() {
            found.push(path);
        }
    }
    let mut found = Vec::new();
    walk(src().join(module), &mut found);
    walk(src().join(format!("{module}.rs")), &mut found);
    found
}

/// The file without comments.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The modules that `crate::…` names, also those of `crate::{…, …}`.
fn used(code: &str) -> BTreeSet<String> {
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut found = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let Some(group) = rest.strip_prefix('{') else {
            found.insert(word(rest));
            continue;
        };
        let (mut depth, mut start) = (0_usize, true);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => start = true,
                c if start && !c.is_whitespace() => {
                    found.insert(word(group.split_at(at).1));
                    start = false;
                }
                _ => {}
            }
        }
    }
    found
}

#[test]
fn each_layer_uses_only_what_stands_before_it() {
    let layers = layers();
    let mut wrong = Vec::new();
    for (module, place) in &layers {
        let files = files(module);
        assert!(!files.is_empty(), "lib.rs lists {module}, but there is no such module");
        for file in files {
            for used in used(&code(&file)) {
                match layers.get(&used) {
                    Some(other) if used == *module || other < place => {}
                    // The last layer's parts stand side by side.
                    Some(other) if other == place => {}
                    _ => wrong.push(format!("{}: crate::{used}", file.display())),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "against the order in src/lib.rs:\n{}", wrong.join("\n"));
}

#[test]
fn every_module_is_in_the_list() {
    let lib = fs::read_to_string(src().join("lib.rs")).unwrap();
    let modules: BTreeSet<String> =
        lib.lines().filter_map(|l| Some(l.strip_prefix("pub mod ")?.trim_end_matches(';').to_owned())).collect();
    assert_eq!(modules, layers().into_keys().collect());
}

#[test]
fn layers_keep_out_of_what_is_not_theirs() {
    let mut wrong = Vec::new();
    for (module, never) in NEVER {
        for file in files(module) {
            let code = code(&file);
            // Tests may do more: run a shell, wait for time to pass.
            let (code, _) = code.split_once("#[cfg(test)]").unwrap_or((&code, ""));
            if file.ends_with("tests.rs") {
                continue;
            }
            let is_whole = |at: usize, name: &str| {
                let (before, rest) = code.split_at(at);
                let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                !inside(before.chars().last()) && !inside(rest.split_at(name.len()).1.chars().next())
            };
            for name in never {
                if code.match_indices(name).any(|(at, _)| is_whole(at, name)) {
                    wrong.push(format!("{}: {name}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn imports_are_found() {
    let code = "use crate::{\n    api::{A, b::C}, plan::lease as x,\n    shell,\n};\nlet y = crate::config::z(); pub(crate) fn f() {}";
    assert_eq!(used(code).into_iter().collect::<Vec<_>>(), ["api", "config", "plan", "shell"]);
}
