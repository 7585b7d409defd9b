//! Checks rule files: `cargo run --features config --example check_rules FILE..`.
//!
//! Prints every problem with its line, column, path and code. The exit status is 0 where there are none, 1 where there
//! are some, and 2 where a file cannot be read.

use std::{env, process::ExitCode};

use tollgate::config::{Code, Rules};

/// What there is to print of one file, and the exit status.
fn check(path: &str) -> (String, u8) {
    match Rules::from_path(path) {
        Ok(rules) => {
            let names = rules.names();
            let needs = if names.is_empty() { String::new() } else { format!("; it needs {}", names.join(", ")) };
            (format!("{path}: fine{needs}"), 0)
        }
        Err(problems) => {
            let unread = problems.iter().any(|problem| problem.code() == Code::CannotRead);
            (problems.to_string(), if unread { 2 } else { 1 })
        }
    }
}

fn main() -> ExitCode {
    let files: Vec<_> = env::args().skip(1).collect();
    if files.is_empty() {
        eprintln!("usage: check_rules FILE..");
        return ExitCode::from(2);
    }
    let mut worst = 0;
    for file in files {
        let (text, status) = check(&file);
        if status == 0 {
            println!("{text}")
        } else {
            eprintln!("{text}")
        }
        worst = worst.max(status);
    }
    ExitCode::from(worst)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Checks a file of its own with this text.
    fn checked(name: &str, text: &str) -> (String, u8) {
        let directory = env::temp_dir().join(format!("check_rules-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        let (said, status) = check(path.to_str().unwrap());
        fs::remove_file(&path).unwrap();
        (said.replace(directory.to_str().unwrap(), ""), status)
    }

    #[test]
    fn a_file_without_problems_says_what_it_needs() {
        let fine = "[[policies]]\nid = 'account'\nkey = 'account'\nlimit = '10/s'\n";
        assert_eq!(checked("fine.toml", fine), ("/fine.toml: fine; it needs key \"account\"".into(), 0));
        assert_eq!(checked("empty.json", "{\"policies\": []}"), ("/empty.json: fine".into(), 0));
    }

    #[test]
    fn a_file_with_problems_names_each_with_its_place() {
        let (said, status) =
            checked("broken.toml", "[[policies]]\nid = 'a'\nkey = 'host'\nlimit = '10'\nmod = 'warn'\n");
        assert_eq!(status, 1);
        let begins: Vec<_> = said.lines().map(|line| line.split(": ").next().unwrap()).collect();
        assert_eq!(begins, ["/broken.toml:4:9", "/broken.toml:5:1"], "{said}");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_another_matter() {
        assert_eq!(check("no/such/file.toml").1, 2);
        assert_eq!(checked("rules.yaml", "policies: []").1, 2);
    }
}
