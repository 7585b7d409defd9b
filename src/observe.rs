//! Every event and metric this crate reports, and their no-op twins where the features `tracing` and `metrics` are off.
//! Never a key.
//!
//! Messages, levels and field names are part of the API, as are the names and labels of metrics: the guide lists them.

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "observe/no_metrics.rs"]
mod metrics;
mod outcome;
#[cfg(feature = "tracing")]
mod sampled;

pub(crate) use self::metrics::{Held, Waits};
pub(crate) use outcome::RuleOutcome;

use std::{
    borrow::Cow,
    fmt,
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use self::metrics::Metrics;
#[cfg(feature = "tracing")]
use sampled::Sampled;

/// A switch for what is reported only once. Relaxed is enough: it publishes nothing but itself.
#[derive(Debug, Default)]
pub(crate) struct Once(AtomicBool);

impl Once {
    /// Returns true the first time.
    fn first(&self) -> bool {
        !self.0.load(Ordering::Relaxed) && !self.0.swap(true, Ordering::Relaxed)
    }
}

/// How often something happened. Relaxed is enough: it publishes nothing but itself.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often something happened that is told as a metric now and then. Relaxed is enough: it publishes nothing but
/// itself.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    count: AtomicU64,
    /// How much of it was told.
    #[cfg(feature = "metrics")]
    told: AtomicU64,
}

impl Steps {
    pub(crate) fn add(&self, count: usize) {
        self.count.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// A rule did not apply, because its key was not there.
pub(crate) fn missing_key(once: &Once, rule: &str) {
    if once.first() {
        warn(
            rule,
            "a request had no key for this rule and was not limited by it (reported once); if that is wrong, check the \
             key closure and the order of the layers, or say what becomes of such requests: on_missing_key",
        );
    }
}

/// A key that has to be there is not.
pub(crate) fn unavailable_key(once: &Once, rule: &str, reason: &'static str) {
    if once.first() {
        error(rule, reason);
    }
}

/// A private peer sends a forwarding header, and no proxy is named.
pub(crate) fn unnamed_proxy(once: &Once) {
    if once.first() {
        warn_of_setup(
            "requests come from a private address with a forwarding header, so this is probably behind a proxy, and all \
             its clients share one key (reported once); name the proxy: key::client_addr(TrustedProxies::nets([..])), or in a rule file \
             `proxies` and the key \"client_addr\"",
        );
    }
}

/// `limit_for` gave a `limit` that cannot be run, because of a `problem`.
pub(crate) fn unusable_limit(once: &Once, rule: &str, limit: &dyn fmt::Display, problem: &dyn fmt::Display) {
    if once.first() {
        #[cfg(feature = "tracing")]
        tracing::error!(
            target: "tollgate",
            rule,
            %limit,
            %problem,
            "limit_for gave a limit that this rule cannot run, so the request was refused for good (reported once)"
        );
        #[cfg(not(feature = "tracing"))]
        let _ = (rule, limit, problem);
    }
}

/// A rule's table holds as many keys as it may.
pub(crate) fn table_full(once: &Once, rule: &str) {
    if once.first() {
        warn(
            rule,
            "as many keys are tracked as the memory store may hold, so new keys share overflow buckets or are refused \
             (reported once); raise max_keys if this is not an attack",
        );
    }
}

/// What a request waits for.
type Turn = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What is reported of the decisions of one limiter, whose rules are known by their numbers.
#[derive(Debug)]
pub(crate) struct Observed {
    metrics: Metrics,
    /// Of each rule.
    #[cfg(feature = "tracing")]
    refusals: Box<[Sampled]>,
    /// Of refusals by no rule: the store failed.
    #[cfg(feature = "tracing")]
    others: Sampled,
}

impl Observed {
    pub(crate) fn new(rules: impl ExactSizeIterator<Item = Cow<'static, str>>) -> Self {
        Self {
            #[cfg(feature = "tracing")]
            refusals: (0..rules.len()).map(|_| Sampled::default()).collect(),
            #[cfg(feature = "tracing")]
            others: Sampled::default(),
            metrics: Metrics::new(rules),
        }
    }

    /// A decision was made: what became of the request under each rule that it was asked of.
    #[inline]
    pub(crate) fn decided(&self, outcomes: impl Iterator<Item = (usize, RuleOutcome)>) {
        self.metrics.decided(outcomes);
    }

    /// Whether the decision of the instant `at` is one of those that are timed.
    #[inline]
    pub(crate) fn times(&self, at: u64) -> bool {
        self.metrics.times(at)
    }

    /// How long a decision took.
    pub(crate) fn took(&self, time: Duration) {
        self.metrics.took(time);
    }

    /// Whether the store should publish what it holds, at `now`: not more than once in ten seconds.
    #[inline]
    pub(crate) fn publishes(&self, now: u64) -> bool {
        self.metrics.publishes(now)
    }

    /// Counts one more request of `rule` that waits, until what is returned is dropped.
    pub(crate) fn waits(&self, rule: usize) -> Waits {
        self.metrics.waits(rule)
    }

    /// The same, until `turn` has come or is dropped.
    pub(crate) fn waits_until(&self, turn: Turn, rule: usize) -> Turn {
        self.metrics.waits_until(turn, rule)
    }

    /// A request was refused at `now` (nanoseconds since the Unix epoch), by these rules: at debug level, but for the
    /// first of each rule and then one a second.
    #[inline]
    pub(crate) fn refused<'a, Rules>(&self, now: u64, status: u16, rules: impl FnOnce() -> Rules)
    where
        Rules: Iterator<Item = (usize, &'a str)>,
    {
        #[cfg(feature = "tracing")]
        if tracing::enabled!(target: "tollgate", tracing::Level::INFO) {
            let mut any = false;
            for (number, rule) in rules() {
                any = true;
                match self.refusals.get(number).and_then(|refusals| refusals.tells(now)) {
                    Some(untold) => tracing::info!(target: "tollgate", rule, status, untold, "request refused"),
                    None => tracing::debug!(target: "tollgate", rule, status, "request refused"),
                }
            }
            if !any {
                match self.others.tells(now) {
                    Some(untold) => tracing::info!(target: "tollgate", status, untold, "request refused"),
                    None => tracing::debug!(target: "tollgate", status, "request refused"),
                }
            }
        }
        #[cfg(not(feature = "tracing"))]
        let _ = (now, status, rules);
    }
}

/// A request passes that a rule would have refused which does not enforce.
pub(crate) fn would_refuse(rule: &str) {
    debug(rule, "would refuse");
}

/// A request is refused that would have passed under the limit that is tried.
pub(crate) fn would_pass(rule: &str) {
    debug(rule, "would pass");
}

/// Whether a limiter's store answers, so that only changes are reported. Relaxed is enough: it publishes nothing but
/// itself.
#[derive(Debug, Default)]
pub(crate) struct StoreState {
    failing: AtomicBool,
}

impl StoreState {
    /// The store gave no answer.
    pub(crate) fn failed(&self, error: &(dyn std::error::Error + 'static)) {
        if !self.failing.swap(true, Ordering::Relaxed) {
            #[cfg(feature = "tracing")]
            tracing::warn!(
                target: "tollgate",
                error,
                "the store failed; requests are answered by the failure policy (reported once, until it answers)"
            );
            #[cfg(not(feature = "tracing"))]
            let _ = error;
        }
    }

    /// The store gave an answer.
    #[inline]
    pub(crate) fn answered(&self) {
        if self.failing.load(Ordering::Relaxed) && self.failing.swap(false, Ordering::Relaxed) {
            info("the store answers again");
        }
    }
}

/// A store failed a question, or did not answer in time.
pub(crate) fn store_failed() {
    metrics::store_failed();
}

/// Other rules came into force: so many that were not there before, that count in another way, and that are gone.
pub(crate) fn reloaded(added: usize, changed: usize, removed: usize) {
    metrics::reloaded("reloaded");
    #[cfg(feature = "tracing")]
    tracing::info!(target: "tollgate", added, changed, removed, "rules reloaded");
    #[cfg(not(feature = "tracing"))]
    let _ = (added, changed, removed);
}

/// Rules could not be read or put in force.
pub(crate) fn reload_failed(error: &(dyn std::error::Error + 'static)) {
    metrics::reloaded("failed");
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tollgate", error, "rules could not be reloaded; those in force stay");
    #[cfg(not(feature = "tracing"))]
    let _ = error;
}

/// A guarded store's circuit has opened: it is asked no more.
pub(crate) fn circuit_opened(error: &(dyn std::error::Error + 'static)) {
    metrics::circuit_opened();
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "tollgate",
        error,
        "the store failed several times in a row and is not asked until a probe succeeds; requests are answered by the \
         failure policy"
    );
    #[cfg(not(feature = "tracing"))]
    let _ = error;
}

/// A guarded store's circuit has closed again; so many decisions were made without the store since it was made.
pub(crate) fn circuit_closed(degraded: u64) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: "tollgate", degraded, "the store answers again");
    #[cfg(not(feature = "tracing"))]
    let _ = degraded;
}

/// A decision was made without the store.
pub(crate) fn degraded(error: &(dyn std::error::Error + 'static)) {
    #[cfg(feature = "tracing")]
    tracing::debug!(target: "tollgate", error, "decided without the store, by the failure policy");
    #[cfg(not(feature = "tracing"))]
    let _ = error;
}

fn info(message: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: "tollgate", "{message}");
    #[cfg(not(feature = "tracing"))]
    let _ = message;
}

/// The connection to a remote store broke, or could not be made.
#[cfg(feature = "redis")]
pub(crate) fn connection_lost(error: &(dyn std::error::Error + 'static)) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tollgate", error, "there is no connection to the store; it is being made again");
    #[cfg(not(feature = "tracing"))]
    let _ = error;
}

/// The connection to a remote store was made again.
#[cfg(feature = "redis")]
pub(crate) fn connected_again() {
    #[cfg(feature = "tracing")]
    tracing::info!(target: "tollgate", "the store is connected again");
}

/// What was given back did not reach a remote store.
#[cfg(feature = "redis")]
pub(crate) fn not_given_back(once: &Once) {
    if once.first() {
        warn_of_setup(
            "something that was given back or settled did not reach the store, because it failed meanwhile or too much \
             waited (reported once); it comes back with time",
        );
    }
}

fn warn_of_setup(message: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tollgate", "{message}");
    #[cfg(not(feature = "tracing"))]
    let _ = message;
}

fn debug(rule: &str, message: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::debug!(target: "tollgate", rule, "{message}");
    #[cfg(not(feature = "tracing"))]
    let _ = (rule, message);
}

fn warn(rule: &str, message: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "tollgate", rule, "{message}");
    #[cfg(not(feature = "tracing"))]
    let _ = (rule, message);
}

fn error(rule: &str, message: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "tollgate", rule, "{message}");
    #[cfg(not(feature = "tracing"))]
    let _ = (rule, message);
}
