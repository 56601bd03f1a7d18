//! `docs/lease.md`: every field of a lease with the tests that show what it does. A test names the fields that it shows by
//! a doc comment `Fields: a, b.c`; here the page is made from those comments and from the CRD, and a field that no test
//! shows is an error.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "all of this is tests"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::{Path, PathBuf},
};

use serde_json::Value;

const UPDATE: &str = "UPDATE_LEASE_PAGE";

const HEAD: &str = "# Every field of a SandboxLease, and the tests that show what it does\n\n\
    Made by `UPDATE_LEASE_PAGE=1 cargo test --test lease_page`; do not edit. `cargo test` fails when a field has no test \
    here.\nThe whole text of a field: `kubectl explain sandboxlease.spec.FIELD`. What a status means: [api.md](api.md).\n";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The fields of an object of the schema, with their texts; those of objects within it too, but no deeper.
fn fields(schema: &Value, within: &str) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let deeper = within.is_empty() && field["properties"].as_object().is_some_and(|fields| !fields.is_empty());
        if deeper {
            all.extend(fields_of(field, name));
        } else {
            all.push((format!("{within}{name}"), field.clone()));
        }
    }
    all
}

fn fields_of(field: &Value, name: &str) -> Vec<(String, Value)> {
    fields(field, &format!("{name}."))
}

fn sources(directory: &Path, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push(path);
        }
    }
}

/// The tests by the fields that they say they show.
fn tests() -> BTreeMap<String, BTreeSet<String>> {
    let mut files = Vec::new();
    for directory in ["src", "tests/e2e"] {
        sources(&root().join(directory), &mut files);
    }
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files {
        let module = file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let mut shown: Vec<String> = Vec::new();
        let mut continued = false;
        for line in std::fs::read_to_string(&file).unwrap().lines().map(str::trim) {
            let said = line.strip_prefix("/// ");
            if let Some(names) =
                said.and_then(|said| said.strip_prefix("Fields: ").or_else(|| continued.then_some(said)))
            {
                shown.extend(names.split(',').map(|name| name.trim().trim_end_matches('.').to_owned()));
                shown.retain(|name| !name.is_empty());
                continued = names.ends_with(',');
            } else if let Some((_, name)) = line.split_once("fn ").filter(|_| !shown.is_empty()) {
                let name = name.split('(').next().unwrap();
                for field in shown.drain(..) {
                    all.entry(field).or_default().insert(format!("`{name}` ({module})"));
                }
            }
        }
        assert!(shown.is_empty(), "{module}: no test follows {shown:?}");
    }
    all
}

fn table(schema: &Value, prefix: &str, tests: &mut BTreeMap<String, BTreeSet<String>>) -> (String, Vec<String>) {
    let mut text = "| field | what it is | shown by |\n|---|---|---|\n".to_owned();
    let mut missing = Vec::new();
    for (name, field) in fields(schema, "") {
        let description = field["description"].as_str().unwrap_or_default();
        let sentence = description.split_inclusive(". ").next().unwrap_or_default().trim().replace('|', "\\|");
        let default = field.get("default").map(|default| format!(" Default: `{default}`.")).unwrap_or_default();
        let shown = tests.remove(&format!("{prefix}{name}")).unwrap_or_default();
        if shown.is_empty() {
            missing.push(format!("{prefix}{name}"));
        }
        let shown = shown.into_iter().collect::<Vec<_>>().join("<br>");
        let _ = writeln!(text, "| `{name}` | {sentence}{default} | {shown} |");
    }
    (text, missing)
}

#[test]
fn every_field_of_a_lease_is_shown_by_a_test() {
    let crd = std::fs::read_to_string(root().join("crds/sandboxleases.yaml")).unwrap();
    let crd: Value = serde_saphyr::from_str(&crd).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    let mut tests = tests();
    let (spec, mut missing) = table(&schema["spec"], "", &mut tests);
    let (status, without) = table(&schema["status"], "status.", &mut tests);
    missing.extend(without);
    assert_eq!(missing, Vec::<String>::new(), "no test shows these fields");
    let unknown: Vec<&String> = tests.keys().collect();
    assert_eq!(unknown, Vec::<&String>::new(), "there are no such fields, but tests that name them");

    let page = format!("{HEAD}\n## spec\n\n{spec}\n## status\n\n{status}");
    let path = root().join("docs/lease.md");
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "docs/lease.md is not up to date; type: {UPDATE}=1 cargo test --test lease_page");
}
