//! The golden CRDs: what the binary prints, what is in `crds/` and what the chart installs are the same.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of this is tests"
)]

use std::{collections::BTreeMap, path::Path, process::Command};

type Files = BTreeMap<String, String>;

fn files(directory: &Path) -> Files {
    let entries = std::fs::read_dir(directory).unwrap();
    entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect()
}

fn golden(directory: &str) -> Files {
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(directory))
}

fn crds(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_daytona-controller")).arg("crds").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A difference in one line, rather than two files of some hundred lines each.
fn same(ours: &Files, golden: &Files, how: &str) {
    let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(ours), names(golden), "{how}");
    for (name, text) in ours {
        for (number, (new, old)) in text.lines().zip(golden[name].lines()).enumerate() {
            assert_eq!(new, old, "{name}:{}: {how}", number + 1);
        }
        assert!(*text == golden[name], "{name} differs in length: {how}");
    }
}

/// Case 63.
#[test]
fn the_golden_files_are_what_the_binary_writes() {
    let directory = tempfile::tempdir().unwrap();
    crds(&["--directory", directory.path().to_str().unwrap()]);
    let how = "type: cargo run --package daytona-controller -- crds --directory crds";
    same(&files(directory.path()), &golden("crds"), how);
}

#[test]
fn without_a_directory_all_are_printed() {
    let all: Vec<String> = golden("crds").into_values().collect();
    assert_eq!(crds(&[]), all.join("---\n"));
}

/// A copy, since a chart is packaged as it lies there, without following links out of it.
#[test]
fn the_chart_installs_the_golden_files() {
    let how = "type: cp crds/*.yaml charts/daytona-controller/crds/";
    same(&golden("crds"), &golden("charts/daytona-controller/crds"), how);
}
