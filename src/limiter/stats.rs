//! What a limiter tells of one rule.

use super::Limiter;
use crate::{
    decision::{Differences, Mode, Tally},
    error::Error,
    limit::Limit,
    store::MemoryCounts,
};

/// What is known of a rule in force: how it counts, and what was counted anyway. [`Limiter::stats`] returns it.
///
/// Decisions are not in it: a count that all threads raise would cost each of them more than the decision does. The
/// [metrics](crate::guide::observing) have them, by rule and outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleStats {
    /// What it means that it refuses.
    pub mode: Mode,
    /// How it counts.
    pub algorithm: &'static str,
    /// The limit it was made with; [`limit_for`](crate::Rule::limit_for) may give others.
    pub limit: Limit,
    /// The keys that this process holds, and what became of others; `None` where buckets are elsewhere, as in Redis.
    pub keys: Option<MemoryCounts>,
    /// Requests that wait for a place at the moment; `None` where the rule has no [queue](crate::Rule::queue).
    pub waiting: Option<usize>,
    /// How often it would have decided otherwise than what is in force; `None` where it enforces.
    pub differences: Option<Differences>,
}

impl<Req> Limiter<Req> {
    /// Returns what is known of the rule `name`. It asks nobody, and costs requests nothing.
    ///
    /// # Errors
    ///
    /// Where there is no such rule ([`ErrorKind::UnknownRule`](crate::ErrorKind::UnknownRule)); the text names those
    /// there are.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Limit, Limiter, Rule};
    ///
    /// let limiter = Limiter::new([
    ///     Rule::new("user", Limit::per_minute(3), |id: &u64| Some(Key::from(*id))),
    ///     Rule::global("all", Limit::per_second(900)),
    /// ]);
    /// for id in 0..5 {
    ///     assert!(limiter.check_now(&id)?.is_allowed());
    /// }
    /// let stats = limiter.stats("user")?;
    /// assert_eq!((stats.algorithm, stats.limit), ("token bucket", Limit::per_minute(3)));
    /// assert_eq!(stats.keys.unwrap().tracked_keys, 5);
    /// assert_eq!(limiter.stats("usr").unwrap_err().to_string(), r#"there is no rule "usr"; there are "user", "all""#);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn stats(&self, name: &str) -> Result<RuleStats, Error> {
        let rules = self.in_force();
        let (at, rule, bound) = rules.find(name)?;
        let queue = rules.core.queues.as_deref().and_then(|queues| queues.get(at)?.as_ref());
        Ok(RuleStats {
            mode: rule.in_mode(),
            algorithm: rule.algorithm_name(),
            limit: *rule.made_with(),
            keys: rules.core.store.counts_of(&bound.slot),
            waiting: queue.map(|queue| queue.waiting()),
            differences: rules.rules.tally(at).map(Tally::get),
        })
    }
}
