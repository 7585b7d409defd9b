use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use http::{Request, Response};

use crate::key::{DynExtractor, Key};

pub(super) type Cost<B> = Arc<dyn Fn(&Request<B>) -> u64 + Send + Sync>;
pub(super) type Condition<B> = Arc<dyn Fn(&Request<B>) -> bool + Send + Sync>;
pub(super) type Origin<B> = Arc<dyn for<'a> Fn(&'a Request<B>) -> Option<Cow<'a, str>> + Send + Sync>;
pub(super) type Outcome = Arc<dyn Fn(&Response<()>) -> bool + Send + Sync>;

/// The names of the keys that are built in.
pub(super) const KEYS: &[&str] = &[
    "global",
    "peer_addr",
    "client_addr",
    "bearer_token",
    "host",
    "method",
    #[cfg(feature = "axum")]
    "matched_path",
];
/// The names of the conditions that are built in.
pub(super) const CONDITIONS: &[&str] = &["preflight"];
/// The names of the outcomes that are built in.
pub(super) const OUTCOMES: &[&str] = &["1xx", "2xx", "3xx", "4xx", "5xx", "failures", "successes"];

/// What a rule file may refer to by name: closures of the program over the whole request.
///
/// Conditions and values may be asked more than once for a request: they should be cheap, and give the same answer.
///
/// # Examples
///
/// ```
/// use http::Request;
/// use tollgate::{Key, Limiter, config::{Registry, Rules}};
///
/// #[derive(Clone)]
/// struct Account { id: u64, plan: &'static str }
///
/// let rules = Rules::from_toml("
/// [[policies]]
/// id = 'account'
/// key = 'account'
/// limit = '2/1m'
/// cost = 'points'
/// tier = 'plan'
/// tiers.pro = '100/1m'
/// ")?;
/// let account = |request: &Request<()>| request.extensions().get::<Account>().cloned();
/// let registry = Registry::new()
///     .key("account", move |request| Some(Key::from(account(request)?.id)))
///     .value("plan", move |request| Some(account(request)?.plan.into()))
///     .cost("points", |request: &Request<()>| if request.uri().path() == "/search" { 2 } else { 1 });
/// let limiter = Limiter::new(rules.build(&registry)?);
///
/// let request = |id, plan| Request::get("/search").extension(Account { id, plan }).body(()).unwrap();
/// assert!(limiter.check_now(&request(1, "free"))?.is_allowed());
/// assert!(!limiter.check_now(&request(1, "free"))?.is_allowed());
/// assert_eq!(limiter.check_now(&request(2, "pro"))?.tightest().map(|rule| rule.verdict.remaining), Some(98));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct Registry<B> {
    pub(super) keys: BTreeMap<String, DynExtractor<Request<B>>>,
    pub(super) costs: BTreeMap<String, Cost<B>>,
    pub(super) conditions: BTreeMap<String, Condition<B>>,
    pub(super) values: BTreeMap<String, Origin<B>>,
    pub(super) outcomes: BTreeMap<String, Outcome>,
    /// Names that were given twice, or are built in.
    pub(super) taken: Vec<String>,
}

impl<B> Registry<B> {
    /// Returns a registry without names of its own.
    pub fn new() -> Self {
        Self {
            keys: BTreeMap::new(),
            costs: BTreeMap::new(),
            conditions: BTreeMap::new(),
            values: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            taken: Vec::new(),
        }
    }

    /// Registers an extractor, for `key = "name"`. A name that is built in, or there already, is a problem when rules
    /// are built; so with the others.
    pub fn key<F>(mut self, name: impl Into<String>, key: F) -> Self
    where
        F: for<'a> Fn(&'a Request<B>) -> Option<Key<'a>> + Send + Sync + 'static,
    {
        let name = name.into();
        if KEYS.contains(&name.as_str()) || self.keys.insert(name.clone(), Arc::new(key)).is_some() {
            self.taken.push(format!("key \"{name}\""));
        }
        self
    }

    /// Registers a cost, for `cost = "name"`.
    pub fn cost(mut self, name: impl Into<String>, cost: impl Fn(&Request<B>) -> u64 + Send + Sync + 'static) -> Self {
        let name = name.into();
        if self.costs.insert(name.clone(), Arc::new(cost)).is_some() {
            self.taken.push(format!("cost \"{name}\""));
        }
        self
    }

    /// Registers a condition, for `match.condition = "name"`.
    pub fn condition(
        mut self,
        name: impl Into<String>,
        condition: impl Fn(&Request<B>) -> bool + Send + Sync + 'static,
    ) -> Self {
        let name = name.into();
        if CONDITIONS.contains(&name.as_str()) || self.conditions.insert(name.clone(), Arc::new(condition)).is_some() {
            self.taken.push(format!("condition \"{name}\""));
        }
        self
    }

    /// Registers a value, such as the account's plan, for `tier = "name"`, `customer = "name"` and `match.values.name`.
    pub fn value<F>(mut self, name: impl Into<String>, value: F) -> Self
    where
        F: for<'a> Fn(&'a Request<B>) -> Option<Cow<'a, str>> + Send + Sync + 'static,
    {
        let name = name.into();
        if self.values.insert(name.clone(), Arc::new(value)).is_some() {
            self.taken.push(format!("value \"{name}\""));
        }
        self
    }

    /// Registers an outcome, which is asked of the response's head, for `count_only = "name"` and `give_back = "name"`.
    pub fn outcome(
        mut self,
        name: impl Into<String>,
        outcome: impl Fn(&Response<()>) -> bool + Send + Sync + 'static,
    ) -> Self {
        let name = name.into();
        if OUTCOMES.contains(&name.as_str()) || self.outcomes.insert(name.clone(), Arc::new(outcome)).is_some() {
            self.taken.push(format!("outcome \"{name}\""));
        }
        self
    }
}

impl<B> Default for Registry<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> Clone for Registry<B> {
    fn clone(&self) -> Self {
        Self {
            keys: self.keys.clone(),
            costs: self.costs.clone(),
            conditions: self.conditions.clone(),
            values: self.values.clone(),
            outcomes: self.outcomes.clone(),
            taken: self.taken.clone(),
        }
    }
}

impl<B> fmt::Debug for Registry<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("keys", &self.keys.keys())
            .field("costs", &self.costs.keys())
            .field("conditions", &self.conditions.keys())
            .field("values", &self.values.keys())
            .field("outcomes", &self.outcomes.keys())
            .finish()
    }
}
