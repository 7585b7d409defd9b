use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc};

/// What is wrong with rules that were put together: the rule, the field, the value, and the way out.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, Limit, Limiter, Rule};
///
/// let rule = Rule::new("user", Limit::per_second(0), |id: &u64| Some(Key::from(*id)));
/// let error = Limiter::builder([rule]).build().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "rule \"user\": limit: 0 permits would refuse everything; use at least 1, or Rule::blocked(name) where that is meant"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    rule: String,
    field: &'static str,
    problem: Cow<'static, str>,
}

impl ConfigError {
    pub(crate) fn new(rule: impl Into<String>, field: &'static str, problem: impl Into<Cow<'static, str>>) -> Self {
        Self { rule: rule.into(), field, problem: problem.into() }
    }

    /// Returns the name of the rule.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Returns which part of the rule it is: `name`, `limit`, `period`, `burst`, `store` where the store cannot run it,
    /// or else the method of [`Rule`](crate::Rule) that said it, such as `cost` or `on_missing_key`.
    pub fn field(&self) -> &'static str {
        self.field
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule \"{}\": {}: {}", self.rule.escape_debug(), self.field, self.problem)
    }
}

impl StdError for ConfigError {}

/// Why a store cannot run a rule, with the way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported(Cow<'static, str>);

impl Unsupported {
    /// Returns the reason `why`: lower case, without a full stop, with the way out.
    pub fn new(why: impl Into<Cow<'static, str>>) -> Self {
        Self(why.into())
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Unsupported {}

/// Why a store gave no answer.
#[derive(Debug, Clone)]
// One word, so that an answer which mostly is none of these is small.
pub struct StoreError(Arc<Failure>);

#[derive(Debug, Clone)]
struct Failure {
    message: Cow<'static, str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    of_one_request: bool,
}

impl StoreError {
    /// Returns an error that says `message`.
    pub fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(Failure { message: message.into(), source: None, of_one_request: false }))
    }

    /// Returns an error that says `message` and was caused by `source`.
    pub fn caused_by(message: impl Into<Cow<'static, str>>, source: impl StdError + Send + Sync + 'static) -> Self {
        let source: Arc<dyn StdError + Send + Sync> = Arc::new(source);
        Self(Arc::new(Failure { message: message.into(), source: Some(source), of_one_request: false }))
    }

    /// Says that the store answers others, and only what this request asks for has no answer: a key that something else
    /// was written to, say. A [`Guarded`](crate::store::Guarded) store goes on asking.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::StoreError;
    ///
    /// let error = StoreError::new("this key holds a list");
    /// assert!(!error.is_of_one_request());
    /// assert!(error.of_one_request().is_of_one_request());
    /// ```
    #[must_use]
    pub fn of_one_request(self) -> Self {
        Self(Arc::new(Failure { of_one_request: true, ..Arc::unwrap_or_clone(self.0) }))
    }

    /// Returns whether the store answers others.
    pub fn is_of_one_request(&self) -> bool {
        self.0.of_one_request
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}

/// How many names of rules an error tells.
const TOLD_NAMES: usize = 20;

/// Why a limiter gave no decision.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    /// What is said in place of what its kind says.
    says: Option<Arc<str>>,
    source: Option<StoreError>,
}

/// The kinds of [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store failed; its own error is the source.
    Store,
    /// The store does not answer at once, so a synchronous caller gets no answer from it.
    NotReady,
    /// There is no rule of this name; the text names those there are.
    UnknownRule,
    /// A rule's charges end with the request ([in flight](crate::Limit::in_flight), or counted by outcome), and what
    /// was asked for returns nothing to end them by.
    NeedsReceipt,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind) -> Self {
        Self { kind, says: None, source: None }
    }

    /// There is no rule `name` among those of the names `known`.
    pub(crate) fn unknown_rule<'a>(name: &str, known: impl ExactSizeIterator<Item = &'a str>) -> Self {
        let others = known.len().saturating_sub(TOLD_NAMES);
        let told: Vec<_> = known.take(TOLD_NAMES).map(|name| format!("{name:?}")).collect();
        let known = match (told.is_empty(), others) {
            (true, _) => "no rule is in force".into(),
            (false, 0) => format!("there are {}", told.join(", ")),
            (false, others) => format!("there are {} and {others} others", told.join(", ")),
        };
        let says = format!("there is no rule {name:?}; {known}");
        Self { kind: ErrorKind::UnknownRule, says: Some(says.into()), source: None }
    }

    /// Returns what kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl From<StoreError> for Error {
    fn from(source: StoreError) -> Self {
        Self { kind: ErrorKind::Store, says: None, source: Some(source) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(says) = &self.says {
            return f.write_str(says);
        }
        f.write_str(match self.kind {
            ErrorKind::Store => "the store of the rate limiter failed",
            ErrorKind::NotReady => "the store does not answer at once; use the asynchronous form",
            ErrorKind::UnknownRule => "there is no rule of this name",
            ErrorKind::NeedsReceipt => {
                "a rule's charges end with the request (in flight, or counted by outcome), and a check returns nothing to \
                 end them by; use reserve or acquire_receipt, and drop the receipt when the work is done"
            }
        })
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| source as &(dyn StdError + 'static))
    }
}
