use std::{error::Error as StdError, fmt, path::PathBuf, sync::Arc};

/// What kind of problem it is. The text of each, as [`as_str`](Self::as_str) gives it, is part of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Code {
    /// `cannot-read`: the file is not there, is no text, or has a name that ends in neither `.toml` nor `.json`.
    CannotRead,
    /// `syntax`: it is no TOML, or no JSON. Nothing else is said of such a text.
    Syntax,
    /// `too-large`: longer, deeper or more than a rule file may be.
    TooLarge,
    /// `unknown-field`: a table has a field that there is not.
    UnknownField,
    /// `repeated-field`: a table has a field twice.
    RepeatedField,
    /// `missing-field`: a field has to be there and is not.
    MissingField,
    /// `wrong-type`: a text where a number is expected, say.
    WrongType,
    /// `unknown-word`: not one of the few words that a field takes.
    UnknownWord,
    /// `unknown-name`: a name that is neither built in, nor registered, nor a list of the file.
    UnknownName,
    /// `bad-name`: a text that cannot be an id, a header, a method or a host.
    BadName,
    /// `bad-limit`: a text that says no limit.
    BadLimit,
    /// `bad-duration`: a text that says no span of time.
    BadDuration,
    /// `bad-path`: a path pattern that matches no path.
    BadPath,
    /// `bad-network`: neither an address, nor a network, nor a list of the file.
    BadNetwork,
    /// `out-of-range`: a number that is too small or too large.
    OutOfRange,
    /// `conflict`: two fields that cannot both be there, or one that is of no use beside another.
    Conflict,
    /// `repeated-id`: two entries or policies have one id.
    RepeatedId,
    /// `same-match`: two entries of a policy are for the same requests, so that neither is more specific.
    SameMatch,
    /// `cannot-work`: a rule that could not run, or would refuse everything.
    CannotWork,
}

impl Code {
    /// Returns its text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CannotRead => "cannot-read",
            Self::Syntax => "syntax",
            Self::TooLarge => "too-large",
            Self::UnknownField => "unknown-field",
            Self::RepeatedField => "repeated-field",
            Self::MissingField => "missing-field",
            Self::WrongType => "wrong-type",
            Self::UnknownWord => "unknown-word",
            Self::UnknownName => "unknown-name",
            Self::BadName => "bad-name",
            Self::BadLimit => "bad-limit",
            Self::BadDuration => "bad-duration",
            Self::BadPath => "bad-path",
            Self::BadNetwork => "bad-network",
            Self::OutOfRange => "out-of-range",
            Self::Conflict => "conflict",
            Self::RepeatedId => "repeated-id",
            Self::SameMatch => "same-match",
            Self::CannotWork => "cannot-work",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a value begins: line and column, both from 1, the column in characters.
pub(super) type Place = (usize, usize);

/// One thing that is wrong with a rule file: where, what, what is allowed, and a stable [`Code`].
///
/// Printed, it is `line:column: path: text [code]`; without the place where the rules were not read from a text, and
/// with the file in front where they were read from one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub(super) place: Option<Place>,
    pub(super) path: String,
    pub(super) text: String,
    pub(super) code: Code,
    pub(super) file: Option<Arc<PathBuf>>,
}

impl Problem {
    pub(super) fn new(code: Code, path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { place: None, path: path.into(), text: text.into(), code, file: None }
    }

    /// Returns the line, from 1, where it is known.
    pub fn line(&self) -> Option<usize> {
        self.place.map(|(line, _)| line)
    }

    /// Returns the column in characters, from 1, where it is known.
    pub fn column(&self) -> Option<usize> {
        self.place.map(|(_, column)| column)
    }

    /// Returns the path of the value or field, such as `policies[2].limit`; empty for the whole file.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns what is wrong, with the value and what is allowed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns what kind of problem it is.
    pub fn code(&self) -> Code {
        self.code
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
        }
        match self.place {
            Some((line, column)) => write!(f, "{line}:{column}: ")?,
            None if self.file.is_some() => f.write_str(" ")?,
            None => {}
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{} [{}]", self.text, self.code)
    }
}

/// Everything that is wrong with a rule file, in the order of the file; a line each where it is printed.
///
/// # Examples
///
/// ```
/// use tollgate::config::{self, Code, Format};
///
/// let problems = config::check("
/// [[policies]]
/// id = 'uploads'
/// key = 'peer_addr'
/// limit = '2/month'
/// brust = 5
/// ", Format::Toml).unwrap_err();
/// let codes: Vec<_> = problems.iter().map(|problem| problem.code()).collect();
/// assert_eq!(codes, [Code::BadLimit, Code::UnknownField]);
/// assert_eq!(
///     problems.to_string(),
///     "5:9: policies[0].limit: \"2/month\": a month has no fixed length and there are no calendar windows; write a \
///      number of days, such as \"30d\" [bad-limit]\n\
///      6:1: policies[0].brust: there is no field \"brust\"; did you mean \"burst\"? [unknown-field]"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

/// So many problems are told of one file; who has more has another kind of file.
const MOST: usize = 100;

impl Problems {
    /// Puts problems into the order of the file and finds their lines. There are none without a text.
    pub(super) fn of(mut found: Vec<(Option<usize>, Problem)>, text: Option<&str>) -> Self {
        found.sort_by_key(|(at, _)| *at);
        let more = found.len().saturating_sub(MOST);
        found.truncate(MOST);
        let (mut line, mut begin, mut seen) = (1, 0, 0);
        let mut problems: Vec<_> = found
            .into_iter()
            .map(|(at, problem)| {
                let place = at.zip(text).map(|(at, text)| {
                    let at = at.min(text.len());
                    let passed = text.as_bytes().get(seen..at).unwrap_or_default();
                    line += passed.iter().filter(|byte| **byte == b'\n').count();
                    begin = passed.iter().rposition(|byte| *byte == b'\n').map_or(begin, |newline| seen + newline + 1);
                    seen = at;
                    (line, text.get(begin..at).unwrap_or_default().chars().count() + 1)
                });
                Problem { place, ..problem }
            })
            .collect();
        if more > 0 {
            problems.push(Problem::new(Code::TooLarge, "", format!("and {more} more problems")));
        }
        Self(problems)
    }

    pub(super) fn one(problem: Problem) -> Self {
        Self(vec![problem])
    }

    /// Says which file they are of.
    pub(super) fn in_file(mut self, file: PathBuf) -> Self {
        let file = Arc::new(file);
        for problem in &mut self.0 {
            problem.file = Some(Arc::clone(&file));
        }
        self
    }

    /// Returns the problems; there is at least one. After a hundred the last only counts the others.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Problem> {
        self.0.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl StdError for Problems {}

/// A value as it is shown in a problem: quoted, without control characters, and not at any length.
pub(super) fn shown(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut chars = text.chars();
    let start: String = chars.by_ref().take(LONGEST).collect();
    let more = if chars.next().is_some() { ".." } else { "" };
    format!("\"{}{more}\"", start.escape_debug())
}

/// `a, b and c`.
pub(super) fn listed(names: &[&str]) -> String {
    match names {
        [] => "none".into(),
        [one] => (*one).into(),
        [start @ .., last] => format!("{} and {last}", start.join(", ")),
    }
}

/// What to say after an unknown word: the one that was meant, or else what there is.
pub(super) fn instead(word: &str, known: &[&str]) -> String {
    match closest(word, known) {
        Some(meant) => format!("did you mean \"{meant}\"?"),
        None => format!("there {} {}", if known.len() > 1 { "are" } else { "is" }, listed(known)),
    }
}

/// The known word that `word` is a slip of: a third of its letters may be wrong, or it lacks parts that only one word
/// has.
pub(super) fn closest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let within = |name: &&str| name.chars().count().div_ceil(3).min(3);
    let near = known.iter().filter(|_| word.len() < 64).map(|name| (distance(word, name), *name));
    let near = near.filter(|(steps, name)| *steps <= within(name)).min_by_key(|(steps, _)| *steps);
    let mut longer = known.iter().filter(|name| lacks_parts_of(word, name));
    near.map(|(_, name)| name).or_else(|| longer.next().copied().filter(|_| longer.next().is_none()))
}

/// Whether `word` is `name` without some of its parts, as `store_failure` is of `on_store_failure`.
fn lacks_parts_of(word: &str, name: &str) -> bool {
    let mut parts = name.split('_');
    word.len() > 2 && word.to_lowercase().split('_').all(|wanted| parts.any(|part| part == wanted))
}

/// How many letters have to be put in, left out, changed or swapped with their neighbour, case aside.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<_>, Vec<_>) = (one.to_lowercase().chars().collect(), other.to_lowercase().chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.iter().enumerate() {
        let mut next = vec![at + 1];
        for (to, wanted) in other.iter().enumerate() {
            let look = |row: &[usize], at: usize| row.get(at).copied().unwrap_or(usize::MAX / 2);
            let change = look(&row, to) + usize::from(letter != wanted);
            let mut steps = change.min(look(&row, to + 1) + 1).min(look(&next, to) + 1);
            if at > 0 && to > 0 && Some(letter) == other.get(to - 1) && one.get(at - 1) == Some(wanted) {
                steps = steps.min(look(&before, to - 1) + 1);
            }
            next.push(steps);
        }
        before = std::mem::replace(&mut row, next);
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_the_word_that_was_meant() {
        let known = ["limit", "period", "burst", "id", "wait_up_to", "on_missing_key", "on_store_failure"];
        for (slip, meant) in [
            ("brust", Some("burst")),
            ("Limit", Some("limit")),
            ("limits", Some("limit")),
            ("perod", Some("period")),
            ("wait_upto", Some("wait_up_to")),
            ("on_mising_keys", Some("on_missing_key")),
            ("wait", Some("wait_up_to")),
            ("missing_key", Some("on_missing_key")),
            ("On_Failure", Some("on_store_failure")),
            ("key_missing", None),
            ("on", None),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(closest(slip, &known), meant, "{slip}");
        }
    }

    #[test]
    fn a_long_value_is_cut_and_shows_no_control_characters() {
        assert_eq!(shown("a\u{1b}[1m\n"), "\"a\\u{1b}[1m\\n\"");
        assert_eq!(shown(&"x".repeat(100)), format!("\"{}..\"", "x".repeat(60)));
    }
}
