use std::{fmt, sync::Arc};

use smallvec::SmallVec;

use super::Store;
use crate::{charge::Taken, decision::RuleInfo, time::Clock};

/// What one request was charged and may still give back or settle, once.
///
/// Dropped, the charges **stand**. [`Limiter::reserve`](crate::Limiter::reserve) returns one.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, Limit, Limiter, Rule};
///
/// let rule = Rule::new("tokens", Limit::per_minute(1_000), |id: &u64| Some(Key::from(*id))).cost(|_| 800);
/// let limiter = Limiter::new([rule]);
/// let (decision, receipt) = limiter.reserve_now(&7)?; // the estimate
/// assert!(decision.is_allowed());
/// receipt.settle(300); // what it really was
/// assert_eq!(limiter.peek_now(&7)?.tightest().unwrap().verdict.remaining, 700);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[must_use = "dropped, the charges stand"]
pub struct Receipt {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    rules: Arc<[RuleInfo]>,
    taken: SmallVec<[(usize, Taken); 2]>,
    gives_back_on_drop: bool,
}

impl Receipt {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        rules: Arc<[RuleInfo]>,
        taken: SmallVec<[(usize, Taken); 2]>,
    ) -> Self {
        Self { store, clock, rules, taken, gives_back_on_drop: false }
    }

    /// Makes the charges come back when this is dropped, until [`keep`](Self::keep).
    pub(crate) fn until_started(&mut self) {
        self.gives_back_on_drop = true;
    }

    /// Lets the charges stand.
    pub fn keep(mut self) {
        self.gives_back_on_drop = false;
    }

    /// Gives every charge back, as far as time has not done so already.
    ///
    /// No bucket ends up with more than it would hold had the request never come. Exact where nothing else was
    /// charged to the bucket since; a little less may come back otherwise. A turn in a queue comes back only if nobody
    /// stands behind it.
    pub fn give_back(mut self) {
        self.adjust_all(0);
    }

    /// Sets what the request cost under every rule it was charged by: the rest comes back, or is charged in addition
    /// from now, which may leave a bucket in debt.
    pub fn settle(mut self, cost: u64) {
        self.gives_back_on_drop = false;
        self.adjust_all(cost);
    }

    /// Sets what the request cost under the rule `name`; the others stay. Returns whether it was charged by that rule.
    pub fn settle_rule(&mut self, name: &str, cost: u64) -> bool {
        let now = self.clock.now();
        let Some(named) = self.rules.iter().position(|rule| rule.name == name) else { return false };
        let mut was_charged = false;
        for (rule, taken) in &mut self.taken {
            // What is tried in its place costs the same.
            let in_its_place = self.rules.get(*rule).is_some_and(|rule| rule.live == Some(named));
            if *rule == named || in_its_place {
                self.store.adjust(now, taken, cost);
                was_charged |= *rule == named;
            }
        }
        was_charged
    }

    fn adjust_all(&mut self, cost: u64) {
        if self.taken.is_empty() {
            return;
        }
        let now = self.clock.now();
        for (_, taken) in &mut self.taken {
            self.store.adjust(now, taken, cost);
        }
        self.taken.clear();
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if self.gives_back_on_drop {
            self.adjust_all(0);
        }
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipt").field("charges", &self.taken.len()).finish_non_exhaustive()
    }
}
