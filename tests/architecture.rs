//! The shape of the crate, read from its sources: who may import whom, how long a file may be, who may read a clock.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking, and says where")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Floors: a module imports from lower ones and from its own subtree.
const FLOORS: [&[&str]; 9] = [
    &["time", "error", "observe", "few"],
    &["limit", "decision", "key"],
    &["bucket", "when"],
    &["charge"],
    &["store", "rule"],
    &["limiter"],
    &["response", "config"],
    &["body", "future", "service", "layer"],
    &["extract", "guide", "testing"],
];

/// Who besides may import whom: a response puts a refusal into a body, so it knows that type, and a decision tells the
/// limit that each rule was asked for.
const ALSO: [(&str, &str); 6] = [
    ("decision", "limit"),
    ("response", "body"),
    ("future", "body"),
    ("service", "future"),
    ("layer", "future"),
    ("layer", "service"),
];

const MAX_LINES: usize = 400;
/// As the formatter's.
const MAX_WIDTH: usize = 120;

/// One source file without comments and without the test module at its end.
struct Source {
    path: PathBuf,
    /// The path of its module from the root of the crate.
    module: Vec<String>,
    lines: Vec<String>,
}

impl Source {
    fn new(path: PathBuf, text: &str) -> Self {
        let mut module: Vec<_> = path
            .with_extension("")
            .iter()
            .map(|part| part.to_str().expect("source names are text").to_owned())
            .collect();
        if module.last().is_some_and(|last| last == "mod") {
            module.pop();
        }
        let own: Vec<_> = text.lines().take_while(|line| *line != "#[cfg(test)]").collect();
        let rest = text.lines().nth(own.len() + 1).unwrap_or("mod tests;");
        assert!(
            rest.starts_with("mod tests"),
            "{}: put what is only for tests into `mod tests` at its end",
            path.display()
        );
        Self { path, module, lines: own.iter().map(|line| code(line).to_owned()).collect() }
    }

    /// Returns the place of the first line that has one of `words`.
    fn find(&self, words: &[&str]) -> Option<String> {
        let has = |line: &String| words.iter().any(|word| line.contains(word));
        let at = self.lines.iter().position(has)?;
        Some(format!("{}:{}: {}", self.path.display(), at + 1, self.lines.get(at)?.trim()))
    }

    /// Returns the name of its module at the root.
    fn top(&self) -> &str {
        self.module.first().map_or("", String::as_str)
    }

    /// Returns the names at the crate's root that it refers to.
    fn imports(&self) -> Vec<String> {
        let text = self.lines.join("\n");
        let mut names = Vec::new();
        for (at, _) in text.match_indices("crate::") {
            if !text[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == '$') {
                names.extend(first_names(&text[at + "crate::".len()..]));
            }
        }
        // `super` from a module at the root is the crate.
        let up = "super::".repeat(self.module.len());
        let known = |name: &String| floor(name).is_some();
        for (at, _) in text.match_indices(&up) {
            if !text[..at].ends_with("super::") {
                names.extend(first_names(&text[at + up.len()..]).into_iter().filter(known));
            }
        }
        names
    }
}

/// The line without its comment.
fn code(line: &str) -> &str {
    let comment = line.match_indices("//").find(|(at, _)| !line[..*at].ends_with(':'));
    comment.map_or(line, |(at, _)| &line[..at])
}

/// The first segments of a path or of a list of paths in braces: `a` of `a::b`, `a` and `c` of `{a::b, c}`.
fn first_names(path: &str) -> Vec<String> {
    let name = |path: &str| path.trim().chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect();
    let Some(list) = path.strip_prefix('{') else { return vec![name(path)] };
    let (mut depth, mut names, mut entry) = (0, Vec::new(), String::new());
    for char in list.chars() {
        match char {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(name(&std::mem::take(&mut entry))),
            _ => {}
        }
        if depth == 0 && !matches!(char, ',' | '}') {
            entry.push(char);
        }
    }
    names.push(name(&entry));
    names.retain(|name: &String| !name.is_empty());
    names
}

fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

/// Returns what is wrong with an import, if anything.
fn check_import(from: &str, to: &str) -> Result<(), String> {
    if from == to || ALSO.contains(&(from, to)) {
        return Ok(());
    }
    let Some(to_floor) = floor(to) else {
        return Err(format!(
            "`crate::{to}` is on no floor: import from the module itself, or give a new one its floor"
        ));
    };
    let from_floor = floor(from).ok_or_else(|| format!("`{from}` is on no floor: give it one"))?;
    if to_floor < from_floor { Ok(()) } else { Err(format!("`{from}` may not import `{to}`, which is not below it")) }
}

/// All files of Rust under `src`, by their paths there.
fn texts() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut found, mut directories) = (Vec::new(), vec![root.clone()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                found.push((path.strip_prefix(&root).unwrap().to_owned(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 20, "only {} sources found", found.len());
    found
}

/// All sources but the root, which only re-exports, and files of tests.
fn sources() -> Vec<Source> {
    let is_one = |path: &Path| path != Path::new("lib.rs") && !path.ends_with("tests.rs");
    let texts = texts().into_iter().filter(|(path, _)| is_one(path));
    texts.map(|(path, text)| Source::new(path, &text)).collect()
}

/// Fails with all that was found.
#[track_caller]
fn none(found: Vec<String>) {
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn modules_import_only_from_below() {
    let mut wrong = Vec::new();
    for source in sources() {
        for name in source.imports() {
            if let Err(why) = check_import(source.top(), &name) {
                wrong.push(format!("{}: {why}", source.path.display()));
            }
        }
    }
    none(wrong);
}

#[test]
fn every_module_has_a_floor_and_every_floor_its_modules() {
    let modules: BTreeMap<_, _> = sources().iter().map(|source| (source.top().to_owned(), ())).collect();
    let named: Vec<_> = FLOORS.concat();
    none(modules.keys().filter(|module| !named.contains(&module.as_str())).cloned().collect());
    none(named.into_iter().filter(|name| !modules.contains_key(*name)).map(String::from).collect());
}

#[test]
fn no_file_is_too_long() {
    let long = |source: &Source| {
        let lines = source.lines.len();
        (lines > MAX_LINES).then(|| format!("{}: {lines} lines, at most {MAX_LINES}", source.path.display()))
    };
    none(sources().iter().filter_map(long).collect());
}

/// What the formatter leaves as it is. Tables and code in comments cannot be broken.
#[test]
fn no_comment_is_too_wide() {
    let mut wide = Vec::new();
    for (path, text) in texts() {
        let mut in_code = false;
        for (at, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            let comment = comment.trim_start_matches(['/', '!']).trim_start();
            in_code ^= comment.starts_with("```");
            if !in_code && !comment.starts_with(['|', '[']) && line.chars().count() > MAX_WIDTH {
                wide.push(format!("{}:{}: {} wide, at most {MAX_WIDTH}", path.display(), at + 1, line.chars().count()));
            }
        }
    }
    none(wide);
}

#[test]
fn only_the_clocks_read_a_clock() {
    let words = ["Instant::now", "SystemTime::now", "UNIX_EPOCH", ".elapsed()"];
    let others = sources().into_iter().filter(|source| source.top() != "time");
    none(others.filter_map(|source| source.find(&words)).collect());
}

#[test]
fn the_engine_and_the_service_know_no_features() {
    // A feature never changes what is decided, so there is nothing to switch there.
    let is_core = |source: &Source| ["bucket", "limiter", "service", "future"].contains(&source.top());
    none(sources().iter().filter(|source| is_core(source)).filter_map(|source| source.find(&["(feature"])).collect());
}

#[test]
fn nothing_but_tests_unwraps() {
    none(sources().iter().filter_map(|source| source.find(&["unwrap(", "expect("])).collect());
}

#[test]
fn a_bucket_knows_no_lock_and_no_thread() {
    let words = ["Mutex", "RwLock", "Atomic", "thread", "tokio"];
    none(sources().iter().filter(|source| source.top() == "bucket").filter_map(|source| source.find(&words)).collect());
}

#[test]
fn what_the_readme_links_to_is_there_in_the_docs_too() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let (readme, crate_docs) = (read("README.md"), read("src/lib.rs"));
    assert!(!readme.contains("]("), "links are given by their labels, so that the crate's docs can point elsewhere");
    let links = readme.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
    let to_files: Vec<_> = links.filter(|(_, target)| !target.starts_with("https://")).collect();
    assert!(to_files.len() > 5, "{to_files:?}");
    none(to_files.iter().filter(|(_, file)| !root.join(file).exists()).map(|(_, file)| (*file).into()).collect());
    let is_a_page = |label: &str| crate_docs.contains(&format!("\n//! [{label}]: crate::"));
    let pictures = read("pictures/links.md");
    let is_a_picture = |label: &str| pictures.contains(&format!("[{label}]: data:image/svg+xml;"));
    assert!(crate_docs.find("pictures/links.md") < crate_docs.find("README.md"), "of two definitions the first counts");
    let is_there =
        |(label, file): &(&str, &str)| if file.ends_with(".svg") { is_a_picture(label) } else { is_a_page(label) };
    none(to_files.iter().filter(|link| !is_there(link)).map(|(label, _)| (*label).into()).collect());
}

#[test]
fn the_reader_of_sources_sees_what_it_has_to() {
    let read = |path: &str, text: &str| Source::new(path.into(), text);
    let imports = |path, text| read(path, text).imports();

    let grouped =
        "use std::fmt;\nuse crate::{\n    a::{self, b, c::d},\n    e,\n    f::g as h,\n};\nlet x = crate::i::j();";
    assert_eq!(imports("store/memory/table.rs", grouped), ["a", "e", "f", "i"]);
    assert_eq!(imports("a.rs", "// crate::b\nuse crate::c; // crate::d\n/// [`e`](crate::E)"), ["c"]);
    assert_eq!(imports("a.rs", "use super::limiter::x;\nuse super::Thing;"), ["limiter"]);
    assert_eq!(imports("key/mod.rs", "use super::limiter::x;"), ["limiter"]);
    assert_eq!(imports("key/peer.rs", "use super::limiter;\nuse super::super::rule;"), ["rule"]);
    assert_eq!(imports("a.rs", "use other_crate::b;"), [""; 0]);
    assert_eq!(imports("a.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::layer;\n}"), [""; 0]);

    assert!(check_import("bucket", "limit").is_ok());
    assert!(check_import("layer", "service").is_ok());
    for (from, to) in [("limit", "bucket"), ("rule", "store"), ("store", "rule"), ("service", "layer"), ("key", "Key")]
    {
        assert!(check_import(from, to).is_err(), "{from} -> {to}");
    }
    assert_eq!(read("a.rs", "fn f() {}\nx.unwrap();").find(&["unwrap("]).as_deref(), Some("a.rs:2: x.unwrap();"));
    assert!(read("a.rs", "// x.unwrap()\nlet url = \"https://a\";").find(&["unwrap("]).is_none());
}
