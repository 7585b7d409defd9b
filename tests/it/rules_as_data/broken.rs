//! Files that cannot work, and every word that is said of them.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

use tollgate::config::{self, Code, Format, Registry, Rules};

fn files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules/broken");
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths.filter(|path| path.extension().is_some_and(|end| end != "txt")).collect();
    files.sort();
    files
}

fn problems(path: &Path) -> config::Problems {
    let text = fs::read_to_string(path).unwrap();
    let format = if path.extension().is_some_and(|end| end == "json") { Format::Json } else { Format::Toml };
    match config::check(&text, format) {
        Err(problems) => problems,
        Ok(rules) => match rules.build(&Registry::<()>::new()) {
            Err(problems) => problems,
            Ok(_) => panic!("{} has no problem", path.display()),
        },
    }
}

/// Each file has what is said of it beside it, as `.txt`. `TOLLGATE_WRITE` writes that anew, to be read by a person.
#[test]
fn of_every_broken_file_just_this_is_said() {
    let files = files();
    assert!(files.len() >= 30, "{}", files.len());
    for path in files {
        let said = problems(&path).to_string() + "\n";
        let beside = PathBuf::from(format!("{}.txt", path.display()));
        if env::var_os("TOLLGATE_WRITE").is_some() {
            fs::write(&beside, &said).unwrap();
        }
        let expected = fs::read_to_string(&beside).unwrap_or_else(|error| panic!("{}: {error}", beside.display()));
        assert_eq!(said, expected, "{}", path.display());
    }
}

#[test]
fn every_code_but_that_of_files_that_cannot_be_read_is_among_them() {
    let seen: BTreeSet<_> =
        files().iter().flat_map(|path| problems(path).iter().map(|one| one.code()).collect::<Vec<_>>()).collect();
    let all = [
        Code::Syntax,
        Code::TooLarge,
        Code::UnknownField,
        Code::RepeatedField,
        Code::MissingField,
        Code::WrongType,
        Code::UnknownWord,
        Code::UnknownName,
        Code::BadName,
        Code::BadLimit,
        Code::BadDuration,
        Code::BadPath,
        Code::BadNetwork,
        Code::OutOfRange,
        Code::Conflict,
        Code::RepeatedId,
        Code::SameMatch,
        Code::CannotWork,
    ];
    assert_eq!(seen, BTreeSet::from(all));
}

#[test]
fn a_problem_knows_where_and_what_it_is() {
    let problems = Rules::from_toml("policies = [\n  { id = 'a', key = 'host', limit = '5/m' },\n]\n").unwrap_err();
    let [problem] = problems.iter().collect::<Vec<_>>()[..] else { panic!("{problems}") };
    assert_eq!((problem.line(), problem.column()), (Some(2), Some(37)));
    assert_eq!(
        (problem.path(), problem.code(), problem.code().as_str()),
        ("policies[0].limit", Code::BadLimit, "bad-limit")
    );
    assert!(problem.text().starts_with("\"5/m\": "), "{}", problem.text());
}

#[test]
fn a_file_longer_than_a_mebibyte_is_not_read() {
    let long = format!("policies = []\n#{}", "x".repeat(1 << 20));
    let problems = Rules::from_toml(&long).unwrap_err();
    assert_eq!(problems.to_string(), "1048591 bytes are more than 1048576, the most a rule file may have [too-large]");
}

#[test]
fn of_very_many_problems_a_hundred_are_told_and_the_others_counted() {
    let many = format!("policies = [{}]", "1,".repeat(250));
    let problems = Rules::from_toml(&many).unwrap_err();
    assert_eq!(problems.iter().len(), 101);
    assert_eq!(problems.iter().last().unwrap().to_string(), "and 150 more problems [too-large]");
}

#[test]
fn more_than_a_thousand_entries_are_too_many() {
    let entry = |n: usize| format!("[[policies]]\nid = 'a{n}'\nkey = 'global'\nlimit = '1/s'\n");
    let rules = |count: usize| (0..count).map(entry).collect::<String>();
    assert_eq!(Rules::from_toml(&rules(1_000)).unwrap().build(&Registry::<()>::new()).unwrap().len(), 1_000);
    let problems = Rules::from_toml(&rules(1_001)).unwrap_err();
    assert!(problems.to_string().contains("policies[1000]: there are more than 1000 entries in all"), "{problems}");
}

#[test]
fn names_that_are_not_registered_are_told_with_those_that_are_and_with_their_places() {
    let rules = Rules::from_toml(
        "[[policies]]\nid = 'a'\nkey = { first = ['acount', 'peer_adr'] }\nlimit = '1/s'\ncost = 'points'\ntier = 'plan'\n\
         tiers.pro = '2/s'\nmatch = { condition = ['prefligth', 'is-paid'], values = { mode = 'test' } }\n",
    )
    .unwrap();
    let registry = Registry::<()>::new().key("account", |_| None).condition("is-paid", |_| true);
    assert_eq!(
        rules.build(&registry).unwrap_err().to_string(),
        "3:18: policies[0].key.first[0]: there is no key \"acount\"; did you mean \"account\"? [unknown-name]\n\
         3:28: policies[0].key.first[1]: there is no key \"peer_adr\"; did you mean \"peer_addr\"? [unknown-name]\n\
         5:8: policies[0].cost: there is no cost \"points\", and none is registered [unknown-name]\n\
         6:8: policies[0].tier: there is no value \"plan\", and none is registered [unknown-name]\n\
         8:24: policies[0].match.condition[0]: there is no condition \"prefligth\"; did you mean \"preflight\"? [unknown-name]\n\
         8:67: policies[0].match.values.mode: there is no value \"mode\", and none is registered [unknown-name]"
    );
}

#[test]
fn a_registered_name_hides_nothing_that_is_built_in() {
    let rules = Rules::from_toml("policies = []").unwrap();
    let registry = Registry::<()>::new().key("host", |_| None).cost("points", |_| 1).cost("points", |_| 2);
    assert_eq!(
        rules.build(&registry).unwrap_err().to_string(),
        "the program registers the key \"host\", which is built in or there already; give it another name [conflict]\n\
         the program registers the cost \"points\", which is built in or there already; give it another name [conflict]"
    );
}
