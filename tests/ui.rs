//! The mistakes that newcomers make, what the compiler says of each, and beside it what they meant.
//!
//! After a change of the texts: `TOLLGATE_WRITE=1 cargo test --test ui`, and read the difference.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking, and says where")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

#[path = "ui/fixed/closure_without_a_type.rs"]
mod closure_with_a_type;
#[path = "ui/fixed/not_http_without_refuse_with.rs"]
mod not_http_with_refuse_with;
#[path = "ui/fixed/key_instead_of_option.rs"]
mod option_of_a_key;
#[path = "ui/fixed/refusal_of_another_body.rs"]
mod refusal_of_an_own_body;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn the_compiler_tells_newcomers_the_way_out() {
    let cases = names("tests/ui", "rs");
    assert!(cases.len() > 2, "{cases:?}");
    let package = package(&cases);
    let mut wrong = Vec::new();
    for case in &cases {
        let (path, said) = (case_file(case, "stderr"), compiled(&package, case));
        if env::var_os("TOLLGATE_WRITE").is_some() {
            fs::write(&path, &said).unwrap();
        } else if fs::read_to_string(&path).unwrap_or_default() != said {
            wrong.push(format!("{}: the compiler says now:\n{said}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert_eq!(names("tests/ui", "stderr"), cases, "each text has its mistake");
}

#[test]
fn each_way_out_is_one() {
    closure_with_a_type::main();
    not_http_with_refuse_with::main();
    option_of_a_key::main();
    refusal_of_an_own_body::main();
    let here =
        ["closure_without_a_type", "key_instead_of_option", "not_http_without_refuse_with", "refusal_of_another_body"];
    assert_eq!(names("tests/ui", "rs"), here, "each mistake has its way out, which is compiled with this file");
    assert_eq!(names("tests/ui/fixed", "rs"), here);
}

#[test]
fn a_text_names_places_as_they_are_in_the_tree_and_only_the_lines_of_its_case() {
    let said = [
        &format!("error: a `{{closure@{ROOT}/tests/ui/a.rs:1:2}}`"),
        &format!("  --> {ROOT}/tests/ui/a.rs:10:2"),
        "10 | fn a() {}",
        "help: a | b",
        &format!("  --> {ROOT}/src/b.rs:9:1"),
        " 9 | impl B | for C {}",
        "   | ^",
        "",
    ];
    let told = [
        "error: a `{closure@$DIR/tests/ui/a.rs:1:2}`",
        "  --> tests/ui/a.rs:10:2",
        "10 | fn a() {}",
        "help: a | b",
        "  --> src/b.rs",
        "   | impl B | for C {}",
        "   | ^",
        "",
    ];
    assert_eq!(portable(&said.join("\n")), told.join("\n"));
}

fn case_file(case: &str, kind: &str) -> PathBuf {
    Path::new(ROOT).join("tests/ui").join(case).with_extension(kind)
}

/// The names of a directory's files of one kind, in order, without their extensions.
fn names(directory: &str, kind: &str) -> Vec<String> {
    let files = fs::read_dir(Path::new(ROOT).join(directory)).unwrap().map(|entry| entry.unwrap().path());
    let of_kind = files.filter(|path| path.extension().is_some_and(|extension| extension == kind));
    let mut names: Vec<_> = of_kind.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// Writes a newcomer's package, with each case as a program, and returns its directory.
///
/// Its profile is ours, and what it depends on has the features with which the gate checks this crate's: what was built
/// there is not built once more.
fn package(cases: &[String]) -> PathBuf {
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("newcomer");
    let ours: toml::Table = fs::read_to_string(Path::new(ROOT).join("Cargo.toml")).unwrap().parse().unwrap();
    let profiles = ours.into_iter().filter(|(name, _)| name == "profile").collect::<toml::Table>();
    let program = |case: &String| format!("[[bin]]\nname = {case:?}\npath = {:?}\n", case_file(case, "rs"));
    let manifest = format!(
        r#"
[package]
name = "newcomer"
edition = "2024"
[workspace]
[dependencies]
tollgate = {{ path = {ROOT:?} }}
axum = {{ version = "0.8", default-features = false, features = ["tokio"] }}
tower = {{ version = "0.5", features = ["util"] }}
{}{profiles}"#,
        cases.iter().map(program).collect::<String>()
    );
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    // The versions are those of this package's own tests, which are there.
    fs::copy(Path::new(ROOT).join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
    package
}

/// Returns what the compiler says of a case, as it is in the tree.
fn compiled(package: &Path, case: &str) -> String {
    // Types are told in full, and in lines as wide as for a reader that is no terminal.
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["rustc", "--offline", "--quiet", "--profile", "check", "--message-format", "json", "--bin", case])
        .arg("--target-dir")
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap())
        .args(["--", "--verbose", "--diagnostic-width=140"])
        .current_dir(package)
        .output()
        .unwrap();
    let messages = String::from_utf8(output.stdout).unwrap();
    let messages = messages.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_case =
        messages.filter(|message| message["target"]["name"] == case).map(|message| message["message"].clone());
    let said = of_case.filter(|message| ["error", "warning"].iter().any(|level| message["level"] == *level));
    let said: Vec<_> = said.map(|message| portable(message["rendered"].as_str().unwrap())).collect();
    assert!(!said.is_empty(), "{case}: the compiler has nothing to say\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success(), "{case} is no mistake:\n{}", said.join("\n"));
    said.join("\n")
}

/// The text without what differs between two trees or changes with other code: where the tree is, and the lines of
/// other files than the case's own.
fn portable(text: &str) -> String {
    let mut elsewhere = false;
    let lines = text.trim_end().lines().map(|line| match line.split_once("--> ") {
        Some((gutter, place)) if gutter.trim().is_empty() => {
            let place = place.strip_prefix(ROOT).map_or(place, |place| &place[1..]);
            elsewhere = !place.starts_with("tests/ui/");
            let is_of_line = |last: char| elsewhere && (last == ':' || last.is_ascii_digit());
            format!("{gutter}--> {}\n", place.trim_end_matches(is_of_line))
        }
        _ => match line.split_once(" |") {
            Some((number, code)) if elsewhere && number.trim().bytes().all(|digit| digit.is_ascii_digit()) => {
                format!("{:width$} |{code}\n", "", width = number.len())
            }
            _ => line.replace(ROOT, "$DIR") + "\n",
        },
    });
    lines.collect()
}
