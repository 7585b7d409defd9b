use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use http::StatusCode;

use crate::{
    bucket::{Algorithm, Bucket},
    charge::{FailurePolicy, RuleSpec},
    decision::Mode,
    key::Key,
    limit::Limit,
    time::Nanos,
};

mod asked;
mod blocked;
mod cost;
mod ending;
mod explain;
mod former;
mod keys;
mod mode;
mod queue;
mod set;
#[cfg(tollgate_shadowed)]
mod shadowed;

pub(crate) use asked::{Applies, Reported};
use cost::Cost;
use ending::Ends;
pub use explain::{Application, ExplainedKey};
use keys::{By, KeyOf};
use mode::Beside;
pub(crate) use queue::Patience;
pub(crate) use set::Rules;
#[cfg(feature = "config")]
pub(crate) use set::too_dear;

/// A question about a request.
type Ask<Req, T> = Arc<dyn Fn(&Req) -> T + Send + Sync>;

/// A named [`Limit`]: whom it applies to, what it counts by, and how.
///
/// A name is `[a-z*][a-z0-9_.*-]*`, since it becomes a token in header fields, and is unique within a limiter. Rules
/// are checked when they are put together, by [`RateLimitLayer::new`](crate::RateLimitLayer::new) or
/// [`Limiter::builder`](crate::Limiter::builder).
///
/// # Examples
///
/// ```
/// use http::{Method, Request};
/// use tollgate::{Key, Limit, Rule, bucket::SlidingWindowLog, key};
///
/// let _: [Rule<Request<String>>; 3] = [
///     Rule::new("user", Limit::per_second(10).burst(20), key::header("x-user"))
///         .cost(|request| if request.method() == Method::GET { 1 } else { 5 }),
///     Rule::new("login", Limit::per_hour(5), key::header("x-account"))
///         .when(|request| request.uri().path() == "/login")
///         .algorithm(SlidingWindowLog),
///     Rule::global("everyone", Limit::in_flight(500)).overload(),
/// ];
/// ```
#[must_use]
pub struct Rule<Req> {
    name: Cow<'static, str>,
    was: Option<Cow<'static, str>>,
    limit: Limit,
    key: Option<Arc<dyn KeyOf<Req>>>,
    algorithm: Algorithm,
    cost: Cost<Req>,
    limit_for: Option<Ask<Req, Limit>>,
    when: Vec<Ask<Req, bool>>,
    on_missing_key: Option<MissingKey>,
    wait_up_to: Option<Duration>,
    overload: bool,
    on_store_failure: Option<FailurePolicy>,
    mode: Mode,
    beside: Option<Beside>,
    /// That it refuses everything is what it is for, and not reported.
    blocked: bool,
    ends: Ends,
    queue: Option<Patience>,
}

/// What a rule does with a request that has no key for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// The rule does not apply to it.
    Skip,
    /// All such requests share one bucket.
    Share,
    /// The request is refused with this status, and nothing is charged.
    Refuse(StatusCode),
}

impl<Req> Rule<Req> {
    /// Returns a rule that counts by the key that `key` returns; where it returns `None` (or an empty key) the rule
    /// does not apply, unless [`on_missing_key`](Self::on_missing_key) says otherwise.
    ///
    /// Write the type of the closure's argument: `|request: &Request| ..`. A closure that is kept in a variable, or put
    /// into the tuple of [`key::all`](crate::key::all), has to go through [`key::from_fn`](crate::key::from_fn).
    pub fn new<F>(name: impl Into<Cow<'static, str>>, limit: Limit, key: F) -> Self
    where
        F: for<'a> Fn(&'a Req) -> Option<Key<'a>> + Send + Sync + 'static,
    {
        Self::with_key(name.into(), limit, Some(Arc::new(By(key))))
    }

    /// Returns a rule with one count for all requests.
    ///
    /// Such a count is usually not the client's fault: see [`overload`](Self::overload).
    pub fn global(name: impl Into<Cow<'static, str>>, limit: Limit) -> Self {
        Self::with_key(name.into(), limit, None)
    }

    fn with_key(name: Cow<'static, str>, limit: Limit, key: Option<Arc<dyn KeyOf<Req>>>) -> Self {
        Self {
            name,
            was: None,
            limit,
            key,
            algorithm: if limit.is_in_flight() { Algorithm::InFlight } else { Algorithm::TokenBucket },
            cost: Cost::Fixed(1),
            limit_for: None,
            when: Vec::new(),
            on_missing_key: None,
            wait_up_to: None,
            overload: false,
            on_store_failure: None,
            mode: Mode::Enforce,
            beside: None,
            blocked: false,
            ends: Ends::default(),
            queue: None,
        }
    }

    /// Sets how the rule counts; [`TokenBucket`](crate::bucket::TokenBucket) unless set. A limit on what is
    /// [in flight](Limit::in_flight) has its own and takes no other.
    pub fn algorithm(mut self, algorithm: impl Bucket) -> Self {
        self.algorithm = algorithm.into_algorithm();
        if let Some(beside) = &mut self.beside {
            beside.has_algorithm = true;
        }
        self
    }

    /// Sets how many permits a request takes; one unless set. A cost of zero only looks and always passes; one above
    /// the capacity can never pass and is refused without a `Retry-After`.
    pub fn cost(mut self, cost: impl Fn(&Req) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Cost::Of(Arc::new(cost));
        self
    }

    /// Sets how many permits every request takes; from 1 to the capacity, which is checked when the rules are put
    /// together.
    pub fn fixed_cost(mut self, cost: u64) -> Self {
        self.cost = Cost::Fixed(cost);
        self
    }

    /// Sets the limit for each request, such as one per tier. There is one bucket per key: when a key's limit changes,
    /// time until then counts at the old rate and what was used stays used. What a smaller capacity cannot hold is
    /// forgiven, so lowering and raising a limit again can gift one capacity, **each time**. Do not give a key one
    /// limit for one kind of request and another for others: make them two rules.
    ///
    /// A limit the rule cannot run (zero, one for a leaky bucket without a burst, or one the store cannot count by)
    /// refuses the request as one that can never pass, and is reported once.
    pub fn limit_for(mut self, limit_for: impl Fn(&Req) -> Limit + Send + Sync + 'static) -> Self {
        self.limit_for = Some(Arc::new(limit_for));
        self
    }

    /// Applies the rule only to requests for which `when` is true; said several times, for which all are.
    pub fn when(mut self, when: impl Fn(&Req) -> bool + Send + Sync + 'static) -> Self {
        self.when.push(Arc::new(when));
        self
    }

    /// Sets what happens to a request without a key, or with one that is [unavailable](Key::unavailable). Unless set,
    /// the rule does **not apply** to a request without a key, which is reported once, and an unavailable key is
    /// answered with status 500. Say it wherever the limit protects something.
    pub fn on_missing_key(mut self, on_missing_key: MissingKey) -> Self {
        self.on_missing_key = Some(on_missing_key);
        self
    }

    /// Holds a request for up to `longest` instead of refusing it, where the layer or
    /// [`acquire`](crate::Limiter::acquire) asks. For the token bucket only: its permits are reserved now, and it
    /// starts when they are there. Other rules are judged and charged at its arrival.
    pub fn wait_up_to(mut self, longest: Duration) -> Self {
        self.wait_up_to = Some(longest);
        self
    }

    /// Says that a refusal by this rule is not the client's fault: it is answered with 503, unless another rule that
    /// is refuses too.
    pub fn overload(mut self) -> Self {
        self.overload = true;
        self
    }

    /// Sets what happens while the store does not answer. Unless set, a [`Guarded`](crate::store::Guarded) store's own
    /// policy holds, and behind any other store [`FailurePolicy::Refuse`]. Where the rules of one request differ, one
    /// that refuses refuses it. [`Limiter::check`](crate::Limiter::check) and its kin return the error of a store that
    /// is not guarded instead.
    pub fn on_store_failure(mut self, policy: FailurePolicy) -> Self {
        self.on_store_failure = Some(policy);
        self
    }

    /// Returns the rule's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn spec(&self) -> RuleSpec {
        let spec = RuleSpec::new(self.name.clone(), self.algorithm.clone(), self.limit);
        let spec = RuleSpec { was: self.was.clone(), on_store_failure: self.on_store_failure, ..spec };
        if self.is_keyed() { spec } else { spec.global() }
    }

    pub(crate) fn algorithm_name(&self) -> &'static str {
        self.algorithm.name()
    }

    pub(crate) fn is_keyed(&self) -> bool {
        self.key.is_some()
    }

    /// The limit it was made with.
    #[inline]
    pub(crate) fn made_with(&self) -> &Limit {
        &self.limit
    }

    pub(crate) fn is_overload(&self) -> bool {
        self.overload
    }

    /// Whether it refuses while a store that is not guarded does not answer.
    pub(crate) fn refuses_without_store(&self) -> bool {
        self.on_store_failure != Some(FailurePolicy::Allow)
    }

    /// How long a request of this rule may be held.
    pub(crate) fn max_delay(&self) -> Nanos {
        if self.algorithm.delays() { Nanos::MAX } else { self.wait_up_to.map_or(Nanos::ZERO, Nanos::from) }
    }
}

impl<Req> Clone for Rule<Req> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            was: self.was.clone(),
            limit: self.limit,
            key: self.key.clone(),
            algorithm: self.algorithm.clone(),
            cost: self.cost.clone(),
            limit_for: self.limit_for.clone(),
            when: self.when.clone(),
            on_missing_key: self.on_missing_key,
            wait_up_to: self.wait_up_to,
            overload: self.overload,
            on_store_failure: self.on_store_failure,
            mode: self.mode,
            beside: self.beside.clone(),
            blocked: self.blocked,
            ends: self.ends.clone(),
            queue: self.queue,
        }
    }
}

impl<Req> fmt::Debug for Rule<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("name", &self.name)
            .field("limit", &self.limit)
            .field("algorithm", &self.algorithm.name())
            .field("keyed", &self.key.is_some())
            .field("overload", &self.overload)
            .field("mode", &self.mode)
            .field("ending", &self.ending())
            .finish_non_exhaustive()
    }
}
