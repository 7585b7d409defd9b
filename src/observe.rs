//! Every event this crate reports, and their no-op twins where the `tracing` feature is off. Never a key.
//!
//! Messages, levels and field names are part of the API.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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

/// A rule did not apply, because its key was not there.
pub(crate) fn missing_key(once: &Once, rule: &str) {
    if once.first() {
        warn(
            rule,
            "a request had no key for this rule and was not limited by it (reported once); if that is wrong, check the \
             key closure and the order of the layers, or say .on_missing_key(..)",
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
             its clients share one key (reported once); name the proxy: key::client_addr(TrustedProxies::nets([..]))",
        );
    }
}

/// `limit_for` gave a limit that cannot be run.
pub(crate) fn unusable_limit(once: &Once, rule: &str) {
    if once.first() {
        error(
            rule,
            "limit_for gave a limit that this rule cannot run (zero, or one its algorithm does not take), so the request \
             was refused for good (reported once); return a limit that passes the same checks as the rule's own",
        );
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

/// A request was refused.
pub(crate) fn refused(rules: impl Iterator<Item = impl AsRef<str>>, status: u16) {
    #[cfg(feature = "tracing")]
    if tracing::enabled!(target: "tollgate", tracing::Level::DEBUG) {
        let mut any = false;
        for rule in rules {
            any = true;
            tracing::debug!(target: "tollgate", rule = rule.as_ref(), status, "request refused");
        }
        if !any {
            // Not by a limit: a key was missing, or the store failed.
            tracing::debug!(target: "tollgate", status, "request refused");
        }
    }
    #[cfg(not(feature = "tracing"))]
    let _ = (rules, status);
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

/// A guarded store's circuit has opened: it is asked no more.
pub(crate) fn circuit_opened(error: &(dyn std::error::Error + 'static)) {
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
