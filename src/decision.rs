//! The answer to one request, with every rule's numbers.

mod answer;
mod mode;
mod outcomes;
mod ruling;
mod shadow;
mod verdict;

use answer::refusal_by;
pub use mode::Mode;
pub(crate) use ruling::Ruling;
pub(crate) use shadow::Tally;
use shadow::Tried;
pub use shadow::{Difference, Differences, ShadowVerdict};
pub use verdict::{Outcome, Source, Verdict, Wait};

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use http::StatusCode;

use crate::{few::Few, limit::Limit, time::Nanos};

/// What a decision has to know of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleInfo {
    pub(crate) name: Cow<'static, str>,
    pub(crate) overload: bool,
    /// The limit it was made with; a request may be under another one.
    pub(crate) limit: Limit,
    pub(crate) mode: Mode,
    /// The number of the rule beside which it is tried.
    pub(crate) live: Option<usize>,
    /// What clients are told to wait where nobody knows.
    pub(crate) unknown_wait_secs: u64,
}

/// Why a request did not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// This client has used up a limit: status 429.
    Limited,
    /// Not this client but the whole is the cause, by a rule marked [`overload`](crate::Rule::overload) or because a
    /// store can hold no more keys: status 503.
    Overload,
    /// A key that had to be there was not, and the rule says what to answer.
    MissingKey {
        /// What to answer.
        status: StatusCode,
        /// Why, and the way out.
        reason: &'static str,
    },
    /// The store did not answer, and a rule says that nothing may pass then: status 503.
    StoreFailed,
}

/// What a decision rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Basis {
    /// The store's count, or no rule at all.
    Count,
    /// A failure policy, since the store was needed and did not answer.
    WithoutStore,
    /// That there is no key for the rule of this number.
    NoKeyFor(u32),
}

impl Basis {
    fn no_key_for(rule: usize) -> Self {
        Self::NoKeyFor(u32::try_from(rule).unwrap_or(u32::MAX))
    }

    /// The number of the rule for which there is no key.
    fn without_key(self) -> Option<usize> {
        match self {
            Self::NoKeyFor(rule) => usize::try_from(rule).ok(),
            Self::Count | Self::WithoutStore => None,
        }
    }
}

/// The answer to one request: whether it passes, and every applying rule's numbers, all judged at one instant.
///
/// Rules that do not [enforce](Mode) are in [`shadows`](Self::shadows), and in nothing else.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Key, Limit, Limiter, Rule, time::ManualClock};
///
/// let limiter = Limiter::builder([Rule::new("client", Limit::per_minute(1), |name: &&str| Some(Key::from(*name)))])
///     .clock(ManualClock::new())
///     .build()?;
/// assert!(limiter.check_now(&"ana")?.is_allowed());
/// let decision = limiter.check_now(&"ana")?;
/// assert!(!decision.is_allowed());
/// assert_eq!(decision.retry_after(), Some(Duration::from_secs(60)));
/// assert_eq!(decision.violated().collect::<Vec<_>>(), ["client"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Decision {
    /// `None` where nobody will ask for a rule's name.
    rules: Option<Arc<[RuleInfo]>>,
    rulings: Few<Ruling>,
    refusal: Option<Refusal>,
    delay: Nanos,
    at: Nanos,
    basis: Basis,
    /// What rules say that do not enforce; there are few.
    tried: Option<Box<Tried>>,
}

/// A rule's name and numbers, as [`Decision::rules`] lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleVerdict<'a> {
    /// The rule's name.
    pub rule: &'a str,
    /// What this request costs under the rule.
    pub cost: u64,
    /// The limit in force for this request.
    pub limit: Limit,
    /// The rule's answer and numbers. A refusal charges nothing, so where the request was refused these are the
    /// numbers of an untouched bucket.
    pub verdict: Verdict,
}

impl Decision {
    /// A pass by no rule so far.
    #[inline]
    pub(crate) fn undecided(rules: Arc<[RuleInfo]>) -> Self {
        Self { rules: Some(rules), ..Self::unnamed() }
    }

    /// A pass by no rule so far, of rules that are [named](Self::name) when somebody wants to know.
    #[inline]
    pub(crate) fn unnamed() -> Self {
        Self {
            rules: None,
            rulings: Few::new(),
            refusal: None,
            delay: Nanos::ZERO,
            at: Nanos::ZERO,
            basis: Basis::Count,
            tried: None,
        }
    }

    /// A pass at once by one rule, by the store's count.
    #[inline]
    pub(crate) fn passed_by(rules: Arc<[RuleInfo]>, ruling: Ruling, at: Nanos) -> Self {
        Self {
            rules: Some(rules),
            rulings: Few::one(ruling),
            refusal: None,
            delay: Nanos::ZERO,
            at,
            basis: Basis::Count,
            tried: None,
        }
    }

    /// Says what there is to know of the limiter's rules.
    #[inline]
    pub(crate) fn name(&mut self, rules: &Arc<[RuleInfo]>) {
        self.rules.get_or_insert_with(|| Arc::clone(rules));
    }

    /// A refusal because the store did not answer.
    pub(crate) fn store_failed(rules: Arc<[RuleInfo]>, at: Nanos) -> Self {
        Self { refusal: Some(Refusal::StoreFailed), ..Self::unguarded(rules, at) }
    }

    /// A refusal because there is no key for `rule`, which says what is answered then.
    pub(crate) fn without_key(
        rules: Arc<[RuleInfo]>,
        rule: usize,
        (status, reason): (StatusCode, &'static str),
        at: Nanos,
    ) -> Self {
        let (refusal, basis) = (Some(Refusal::MissingKey { status, reason }), Basis::no_key_for(rule));
        Self { refusal, basis, at, ..Self::undecided(rules) }
    }

    /// A pass although the store did not answer.
    pub(crate) fn unguarded(rules: Arc<[RuleInfo]>, at: Nanos) -> Self {
        Self { at, basis: Basis::WithoutStore, ..Self::undecided(rules) }
    }

    /// Returns whether the request passes.
    pub fn is_allowed(&self) -> bool {
        self.refusal.is_none()
    }

    /// Returns why the request does not pass, or `None` where it does.
    pub fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// Returns whether the store failed for some rule, so that this answer comes from a failure policy and not from the
    /// store's count. [`Verdict::source`] says it for each rule.
    pub fn is_degraded(&self) -> bool {
        self.basis == Basis::WithoutStore
    }

    /// Returns the status that a refusal is answered with, 200 where the request passes.
    pub fn status(&self) -> StatusCode {
        match self.refusal {
            None => StatusCode::OK,
            Some(Refusal::Limited) => StatusCode::TOO_MANY_REQUESTS,
            Some(Refusal::Overload | Refusal::StoreFailed) => StatusCode::SERVICE_UNAVAILABLE,
            Some(Refusal::MissingKey { status, .. }) => status,
        }
    }

    /// Returns the instant at which all rules were judged.
    pub fn at(&self) -> Nanos {
        self.at
    }

    /// Returns how long an allowed request has to be held before it may start; zero for most.
    ///
    /// [`Limiter::acquire`](crate::Limiter::acquire) and the layer hold it themselves.
    pub fn delay(&self) -> Duration {
        self.delay.as_duration()
    }

    /// Returns how long the same request has to wait to pass, if nothing else happens: the longest wait among the
    /// refusing rules, and *never* if one of them says never. `None` where no rule refuses.
    pub fn wait(&self) -> Option<Wait> {
        if self.refusal == Some(Refusal::StoreFailed) {
            return Some(Wait::Unknown);
        }
        self.rulings.iter().filter_map(Ruling::refuses_for).reduce(Wait::or_longer)
    }

    /// Returns the longest known wait among the refusing rules: the same request passes then and not one step
    /// earlier, if nothing else happens. `None` where the request passes, can never pass, or nobody knows when.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.wait() {
            Some(Wait::For(wait)) => Some(wait.as_duration()),
            _ => None,
        }
    }

    /// Returns the value of `Retry-After`: the wait in whole seconds, rounded up, at least 1; where the wait is not
    /// known, 1 or what the [rule says](crate::Rule::retry_after), the longest of several. `None` where the request
    /// passes or never can.
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.secs_told(self.wait()?)
    }

    /// What a client is told that has to wait for `wait`.
    pub(crate) fn secs_told(&self, wait: Wait) -> Option<u64> {
        Some(wait.retry_after_secs()?.max(self.unknown_wait_secs()))
    }

    /// What the rules that refuse and do not know for how long tell; at least 1.
    fn unknown_wait_secs(&self) -> u64 {
        let unknown = self.rulings.iter().filter(|ruling| ruling.refuses_for() == Some(Wait::Unknown));
        unknown
            .filter_map(|ruling| Some(self.rules.as_deref()?.get(ruling.rule())?.unknown_wait_secs))
            .fold(1, u64::max)
    }

    /// Returns the rule whose numbers clients are told. A refusal goes before a pass, *never* before the longest wait
    /// before an unknown one; among passes the one with the least remaining per cost; the first where equal. `None`
    /// where no rule applied, or where the store failed and nobody knows the numbers.
    pub fn tightest(&self) -> Option<RuleVerdict<'_>> {
        self.tightest_ruling().map(|ruling| self.named(ruling))
    }

    /// What clients are told of.
    pub(crate) fn tightest_ruling(&self) -> Option<&Ruling> {
        if self.refusal == Some(Refusal::StoreFailed) {
            return None;
        }
        let mut tightest: Option<&Ruling> = None;
        for ruling in self.rulings.iter().filter(|ruling| ruling.source().has_numbers()) {
            if tightest.is_none_or(|best| ruling.is_tighter_than(best)) {
                tightest = Some(ruling);
            }
        }
        tightest
    }

    /// Returns every rule that applied, in the order of the rules.
    pub fn rules(&self) -> impl Iterator<Item = RuleVerdict<'_>> {
        self.rulings.iter().map(|ruling| self.named(ruling))
    }

    /// Returns the names of the rules that refused by a count, in the order of the rules.
    pub fn violated(&self) -> impl Iterator<Item = &str> {
        self.violated_rulings().map(|ruling| self.named(ruling).rule)
    }

    fn violated_rulings(&self) -> impl Iterator<Item = &Ruling> {
        self.rulings.iter().filter(|ruling| !ruling.passes() && ruling.source().has_numbers())
    }

    /// The numbers of the rules that refused by a count.
    pub(crate) fn violated_rules(&self) -> impl Iterator<Item = usize> {
        self.violated_rulings().map(Ruling::rule)
    }

    /// What there is to know of the limiter's rules, where they are [named](Self::name).
    pub(crate) fn names(&self) -> Option<&Arc<[RuleInfo]>> {
        self.rules.as_ref()
    }

    /// Whether every rule applied, each under the limit it was made with, and the store counted.
    pub(crate) fn is_by_every_rule_as_made(&self) -> bool {
        let as_made = |ruling: &Ruling| ruling.is_as_made() && ruling.source().tells_whole_limit();
        let enforcing = self.infos().iter().filter(|rule| rule.mode == Mode::Enforce);
        self.rules.is_some() && enforcing.count() == self.rulings.iter().len() && self.rulings.iter().all(as_made)
    }

    fn infos(&self) -> &[RuleInfo] {
        self.rules.as_deref().unwrap_or(&[])
    }

    fn named(&self, ruling: &Ruling) -> RuleVerdict<'_> {
        let info = self.infos().get(ruling.rule());
        RuleVerdict {
            rule: info.map_or("", |info| &info.name),
            cost: ruling.cost,
            limit: info.map_or(Limit::per_second(0), |info| ruling.limit(info)),
            verdict: ruling.verdict(),
        }
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("refusal", &self.refusal)
            .field("delay", &self.delay)
            .field("degraded", &self.is_degraded())
            .field("rules", &self.rules().collect::<Vec<_>>())
            .field("shadows", &self.shadows().collect::<Vec<_>>())
            .finish()
    }
}

#[cfg(test)]
mod tests;
