//! Rules from a file: TOML or JSON, checked whole, with each problem where it stands.
//!
//! [The guide](crate::guide::rules_as_data) says what a file may say.
//!
//! ```
//! use http::Request;
//! use tollgate::{Limiter, config::{Registry, Rules}};
//!
//! let rules = Rules::from_toml(r#"
//! [[policies]]
//! id = "key"
//! key = { header = "x-api-key" }
//! limit = "100/1m"
//!
//! [[policies.entries]]
//! id = "uploads"
//! match = { method = "POST", path = "/files/{*path}" }
//! limit = "2/1m"
//! "#)?;
//! let limiter = Limiter::new(rules.build(&Registry::new())?);
//!
//! let upload = Request::post("/files/a.txt").header("x-api-key", "k1").body(())?;
//! let other = Request::get("/").header("x-api-key", "k1").body(())?;
//! assert_eq!(limiter.check_now(&upload)?.tightest().map(|rule| rule.rule), Some("uploads"));
//! assert_eq!(limiter.check_now(&other)?.tightest().map(|rule| rule.rule), Some("key"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod amount;
mod build;
mod check;
mod data;
mod duration;
mod forms;
mod keys;
mod matching;
mod node;
mod outcome;
mod problem;
mod read;
mod registry;
mod resolve;
mod shape;
mod texts;
#[cfg(feature = "watch")]
mod watch;

pub use problem::{Code, Problem, Problems};
pub use registry::Registry;
#[cfg(feature = "watch")]
pub use watch::Watch;

use std::{collections::BTreeMap, fmt, fs, io, path::Path, path::PathBuf, sync::Arc};

use http::Request;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use self::{
    check::Checker,
    data::File,
    node::Node,
    read::{Read, Reader},
};
use crate::rule::Rule;

/// No rule file is longer, in bytes.
const LONGEST: usize = 1 << 20;

/// How a rule file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// TOML 1.0 and what 1.1 adds.
    Toml,
    /// JSON as RFC 8259 has it: no comments, no trailing commas.
    Json,
}

/// What a rule file says: read, and checked as far as that is possible without the program's [`Registry`].
///
/// It can also be a part of a program's own settings, since it is `Deserialize`; problems have no lines then. What is
/// serialized is read back as an equal value, though not with its comments and short forms.
///
/// # Examples
///
/// ```
/// use tollgate::config::Rules;
///
/// let toml = "
/// [[policies]]
/// id = 'address'
/// key = 'peer_addr'
/// limit = 300
/// period = '1m'
/// ";
/// let json = r#"{"policies": [{"id": "address", "key": "peer_addr", "limit": "300 per minute"}]}"#;
/// let (from_toml, from_json) = (Rules::from_toml(toml)?, Rules::from_json(json)?);
/// assert_ne!(from_toml, from_json); // two ways to say it
/// assert_eq!(Rules::from_json(&serde_json::to_string(&from_toml)?)?, from_toml);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Rules {
    file: File,
    source: Arc<Source>,
}

/// Where rules were read from, so that what is found out later can be told with its place.
#[derive(Debug, Default)]
struct Source {
    text: Option<String>,
    path: Option<PathBuf>,
    places: BTreeMap<String, usize>,
}

/// Reads and checks a rule file, and returns everything that is wrong with it at once.
///
/// Whether the names it refers to are registered is known only to [`Rules::build`]; [`Rules::names`] lists them.
///
/// # Errors
///
/// All problems. Where the text is no TOML or JSON at all, only those.
pub fn check(text: &str, format: Format) -> Result<Rules, Problems> {
    Rules::read(text, format, None)
}

impl Rules {
    /// Reads and checks TOML.
    ///
    /// # Errors
    ///
    /// As [`check`].
    pub fn from_toml(text: &str) -> Result<Self, Problems> {
        check(text, Format::Toml)
    }

    /// Reads and checks JSON.
    ///
    /// # Errors
    ///
    /// As [`check`].
    pub fn from_json(text: &str) -> Result<Self, Problems> {
        check(text, Format::Json)
    }

    /// Reads and checks a file whose name ends in `.toml` or `.json`. It blocks for as long as reading the file takes.
    ///
    /// # Errors
    ///
    /// As [`check`]; each problem begins with the file's name. One problem of the code [`Code::CannotRead`] where the
    /// file cannot be read.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::config::{Code, Rules};
    ///
    /// let problems = Rules::from_path("no/such/rules.toml").unwrap_err();
    /// assert!(problems.iter().all(|problem| problem.code() == Code::CannotRead));
    /// assert!(problems.to_string().starts_with("no/such/rules.toml: "));
    /// ```
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self, Problems> {
        let (format, text) = Self::text_of(path.as_ref())?;
        Self::read(&text, format, Some(path.as_ref().into()))
    }

    /// What a file has in it, and how that is written.
    fn text_of(path: &Path) -> Result<(Format, String), Problems> {
        let cannot = |text: String| Problems::one(Problem::new(Code::CannotRead, "", text)).in_file(path.into());
        let format = match path.extension().and_then(|end| end.to_str()) {
            Some("toml") => Format::Toml,
            Some("json") => Format::Json,
            _ => return Err(cannot("a rule file's name ends in .toml or .json".into())),
        };
        let text = read_to_string(path).map_err(|error| cannot(format!("cannot be read: {error}")))?;
        Ok((format, text))
    }

    fn read(text: &str, format: Format, path: Option<PathBuf>) -> Result<Self, Problems> {
        let mut source = Source { text: None, path, places: BTreeMap::new() };
        if text.len() > LONGEST {
            let text = format!("{} bytes are more than {LONGEST}, the most a rule file may have", text.len());
            return Err(source.problems(vec![(None, Problem::new(Code::TooLarge, "", text))]));
        }
        // A byte order mark is no part of the text.
        let mark = text.len() - text.trim_start_matches('\u{feff}').len();
        let body = text.get(mark..).unwrap_or_default();
        let parsed = match format {
            Format::Toml => node::from_toml(body),
            Format::Json => node::from_json(body),
        };
        source.text = Some(body.into());
        match parsed {
            Ok(node) => Self::of(&node, source),
            Err(wrong) => Err(source.problems(wrong.into_iter().map(|(at, problem)| (Some(at), problem)).collect())),
        }
    }

    fn of(node: &Node, mut source: Source) -> Result<Self, Problems> {
        let mut reader = Reader::default();
        let file = File::read(node, &mut reader);
        let (found, places) = reader.into_parts();
        source.places = places;
        let mut problems: Vec<_> = found.into_iter().map(|(at, problem)| (Some(at), problem)).collect();
        if let Some(file) = &file {
            let later = Checker::run(file, &source.places);
            problems.extend(later.into_iter().map(|problem| (source.place(problem.path()).or(Some(0)), problem)));
        }
        match file {
            Some(file) if problems.is_empty() => Ok(Self { file, source: Arc::new(source) }),
            _ => Err(source.problems(problems)),
        }
    }

    /// Makes the rules, with the closures that they refer to by name. A rule has the `id` of its entry as its name, and
    /// the rules are in the order of the file.
    ///
    /// # Errors
    ///
    /// All names that are not registered, each with the names there are.
    pub fn build<B: 'static>(&self, registry: &Registry<B>) -> Result<Vec<Rule<Request<B>>>, Problems> {
        build::build(&self.file, registry).map_err(|problems| {
            let placed = problems.into_iter().map(|problem| (self.source.place(problem.path()), problem));
            self.source.problems(placed.collect())
        })
    }

    /// Returns what the rules refer to and is not built in, such as `key "account"`: what the program has to register.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::config::Rules;
    ///
    /// let rules = Rules::from_toml("
    /// [[policies]]
    /// id = 'account'
    /// key = { first = ['account', 'peer_addr'] }
    /// limit = '10/s'
    /// cost = 'points'
    /// ")?;
    /// assert_eq!(rules.names(), ["cost \"points\"", "key \"account\""]);
    /// # Ok::<(), tollgate::config::Problems>(())
    /// ```
    pub fn names(&self) -> Vec<String> {
        build::names(&self.file)
    }
}

/// Reads no more than what is needed to see that a file is too long.
fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(fs::File::open(path)?, LONGEST as u64 + 1), &mut text)?;
    Ok(text)
}

impl Source {
    /// Where the value of this path begins, or else the nearest one around it.
    fn place(&self, path: &str) -> Option<usize> {
        let mut path = path;
        loop {
            if let Some(at) = self.places.get(path) {
                return Some(*at);
            }
            // Names in quotes may have dots in them: what is cut then is only longer.
            path = path.get(..path.rfind(['.', '['])?)?;
        }
    }

    fn problems(&self, found: Vec<(Option<usize>, Problem)>) -> Problems {
        let problems = Problems::of(found, self.text.as_deref());
        match &self.path {
            Some(path) => problems.in_file(path.clone()),
            None => problems,
        }
    }
}

/// Shows how many policies there are and where they come from, and nothing of what they say: customers may be named by
/// their keys.
impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies = self.file.policies.iter().flatten().count();
        f.debug_struct("Rules").field("policies", &policies).field("path", &self.source.path).finish_non_exhaustive()
    }
}

impl PartialEq for Rules {
    /// What they say counts, not where they were read from.
    fn eq(&self, other: &Self) -> bool {
        self.file == other.file
    }
}

impl Serialize for Rules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.file.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Rules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let node = Node::deserialize(deserializer)?;
        Self::of(&node, Source::default()).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests;
