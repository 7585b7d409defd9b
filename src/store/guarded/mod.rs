mod asked;
mod builder;
mod circuit;
mod decide;
mod fallback;
mod probe;
mod refusals;

pub use builder::GuardedBuilder;

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use self::{circuit::Circuit, fallback::Fallback, refusals::Refusals};
use super::{MemoryStore, Store};
use crate::charge::{Charge, FailurePolicy, RuleSpec, Slot};

/// Any store, with a deadline, a circuit breaker, a failure policy for each rule, and a memory of refusals. Clones
/// share everything.
///
/// - **One deadline a decision**, 25 ms unless set: whatever the store does, a decision takes no longer.
/// - **A circuit breaker.** After 5 failures in a row, unless set otherwise, the store is asked no more and decisions
///   are made at once. A task in the background probes it, one probe at a time, after 25 ms and then ever more rarely,
///   up to every 350 ms; requests are never the probe. One that succeeds closes the circuit.
/// - **A policy for each rule**: what [`Rule::on_store_failure`](crate::Rule::on_store_failure) says, and for rules
///   that do not say, the one given here. The rules of a request that cannot be decided by the store say together: if
///   one of them [refuses](FailurePolicy::Refuse), it is refused with 503 and `Retry-After`; otherwise those with a
///   [fallback](FailurePolicy::Fallback) judge it, all or nothing, in this process's memory, and those that
///   [allow](FailurePolicy::Allow) let it pass. Such decisions [say so](crate::Decision::is_degraded).
/// - **Warm fallbacks.** While the store answers, what it charges is charged to the fallback too, up to its share, so
///   that an outage gives nobody a fresh burst. What was granted in an outage is not told to the store afterwards.
/// - **A memory of refusals.** What the store refused is refused here until the wait it told is over (at most a minute,
///   unless set), if a request asks for as much or more under the same limit: whoever keeps on does not reach the
///   store. The told wait is then a lower bound. A charge of that key that comes back, a
///   [reset](crate::Limiter::reset), rules put together anew, and a circuit that closes make it forget, and for a
///   second after a charge came back, which may take the store a moment, nothing is remembered for longer; what other
///   processes give back is noticed when the time is over. Requests charged [in any case](crate::charge::Take::Always),
///   and those that only look, always ask the store. It holds too while the store does not answer, whatever the policy.
///
/// Deadline and probe need a tokio runtime with time enabled, as remote stores do themselves. Outside of a runtime
/// there is no deadline, and the store is asked every time.
///
/// [The guide](crate::guide::failure) says which policy is for what, and what happens in each fault.
///
/// # Examples
///
/// ```
/// use tollgate::{
///     FailurePolicy, Key, Limit, Limiter, Rule,
///     charge::Share,
///     store::{Guarded, MemoryStore},
/// };
///
/// # let remote = MemoryStore::new();
/// // Each of four processes grants a quarter of a limit by itself while the remote store is down ..
/// let store = Guarded::new(remote, FailurePolicy::Fallback(Share::one_in(4)));
/// let limiter = Limiter::builder([
///     Rule::new("user", Limit::per_minute(100), |id: &u64| Some(Key::from(*id))),
///     // .. but nobody tries passwords without a limit.
///     Rule::new("login", Limit::per_minute(5), |id| Some(Key::from(*id))).on_store_failure(FailurePolicy::Refuse),
/// ])
/// .store(store.clone())
/// .build()?;
/// assert!(limiter.check_now(&7)?.is_allowed());
/// assert!(!store.is_open());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Guarded {
    inner: Arc<Inner>,
}

struct Inner {
    store: Box<dyn Store>,
    on_failure: FailurePolicy,
    deadline: Duration,
    circuit: Circuit,
    refusals: Refusals,
    /// The fallbacks of all rules that have one.
    local: MemoryStore,
    /// **Locking** only while rules are bound.
    numbers: Mutex<Numbers>,
    counts: Counters,
}

/// A rule's place: the store's own, and what is kept here.
struct Place {
    slot: Slot,
    policy: FailurePolicy,
    fallback: Option<Fallback>,
    /// `None` where a refusal says nothing of other requests, or of later ones.
    number: Option<Arc<u64>>,
}

impl Place {
    fn number(&self) -> Option<u64> {
        self.number.as_deref().copied()
    }
}

/// The numbers under which refusals of the rules are remembered, by name and algorithm, of those rules that somebody
/// has.
#[derive(Default)]
struct Numbers {
    next: u64,
    of: HashMap<(Cow<'static, str>, &'static str), Weak<u64>>,
}

impl Numbers {
    fn of(&mut self, spec: &RuleSpec) -> Arc<u64> {
        self.of.retain(|_, number| number.strong_count() > 0);
        // What was refused by another algorithm says nothing of this one.
        let rule = (spec.name.clone(), spec.algorithm.name());
        self.of.get(&rule).and_then(Weak::upgrade).unwrap_or_else(|| {
            let number = Arc::new(self.next);
            self.next += 1;
            self.of.insert(rule, Arc::downgrade(&number));
            number
        })
    }
}

fn place_of<'a>(charge: &Charge<'a>) -> Option<&'a Place> {
    charge.slot.get::<Place>()
}

/// What a [`Guarded`] store did since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct GuardedCounts {
    /// Decisions that the store was asked for.
    pub asked: u64,
    /// Of those, how many it failed, or did not answer in time.
    pub failed: u64,
    /// Decisions by the failure policies, whether or not the store was asked.
    pub degraded: u64,
    /// Decisions by the memory of refusals.
    pub remembered: u64,
    /// How often the circuit opened.
    pub opened: u64,
    /// Probes that were sent.
    pub probes: u64,
}

/// Relaxed, all of them: they publish nothing.
#[derive(Default)]
struct Counters {
    asked: AtomicU64,
    failed: AtomicU64,
    degraded: AtomicU64,
    remembered: AtomicU64,
    opened: AtomicU64,
    probes: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Guarded {
    /// Returns a guard around `store`, with `on_failure` for rules that do not say what happens while it does not
    /// answer.
    pub fn new(store: impl Store, on_failure: FailurePolicy) -> Self {
        Self::builder(store, on_failure).build()
    }

    /// Returns a builder.
    pub fn builder(store: impl Store, on_failure: FailurePolicy) -> GuardedBuilder {
        GuardedBuilder::new(Box::new(store), on_failure)
    }

    /// Returns whether the circuit is open: the store is not asked at the moment.
    pub fn is_open(&self) -> bool {
        self.inner.circuit.is_open()
    }

    /// Returns what it did so far, for metrics.
    pub fn counts(&self) -> GuardedCounts {
        let counts = &self.inner.counts;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GuardedCounts {
            asked: read(&counts.asked),
            failed: read(&counts.failed),
            degraded: read(&counts.degraded),
            remembered: read(&counts.remembered),
            opened: read(&counts.opened),
            probes: read(&counts.probes),
        }
    }

    /// Returns how many refusals are remembered at the moment; some may be over.
    pub fn remembered_refusals(&self) -> usize {
        self.inner.refusals.len()
    }
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded")
            .field("on_failure", &self.inner.on_failure)
            .field("deadline", &self.inner.deadline)
            .field("is_open", &self.is_open())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bucket::Algorithm, limit::Limit};

    #[test]
    fn rules_that_nobody_has_any_more_leave_no_number_behind() {
        let mut numbers = Numbers::default();
        let spec = |name: String| RuleSpec::new(name, Algorithm::TokenBucket, Limit::per_second(1));
        let kept = numbers.of(&spec("kept".into()));
        let others: Vec<_> = (0..100).map(|at| *numbers.of(&spec(format!("rule-{at}")))).collect();
        assert!(numbers.of.len() <= 2, "{}", numbers.of.len());
        assert_eq!(numbers.of(&spec("kept".into())), kept);
        assert!(!others.contains(&kept));
        assert!(!others.contains(&numbers.of(&spec("rule-1".into()))), "what was remembered of it is another rule's");
    }
}
