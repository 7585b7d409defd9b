use std::{fmt, sync::Arc};

use http::Response;
use smallvec::SmallVec;

use super::{Queue, Store};
use crate::{
    charge::{Ending, Taken},
    decision::RuleInfo,
    time::Clock,
};

/// What one request was charged and may still give back or settle, once.
///
/// Dropped, the charges **stand**, but for those that end with the request: places [in flight](crate::Limit::in_flight)
/// are free again. [`Limiter::reserve`](crate::Limiter::reserve) and
/// [`acquire_receipt`](crate::Limiter::acquire_receipt) return one, and in a handler
/// [`HeldReceipt::take`](super::HeldReceipt::take).
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
///
/// A place is held as long as the receipt is:
///
/// ```
/// use tollgate::{Key, Limit, Limiter, Rule};
///
/// let limiter = Limiter::new([Rule::new("exports", Limit::in_flight(1), |id: &u64| Some(Key::from(*id)))]);
/// let (_, receipt) = limiter.reserve_now(&7)?;
/// assert!(!limiter.reserve_now(&7)?.0.is_allowed());
/// drop(receipt);
/// assert!(limiter.reserve_now(&7)?.0.is_allowed());
/// # Ok::<(), tollgate::Error>(())
/// ```
#[must_use = "dropped, the charges stand, and places are free again"]
pub struct Receipt {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    rules: Arc<[RuleInfo]>,
    /// What becomes of each rule's charge; `None` where all stand.
    endings: Option<Arc<[Ending]>>,
    /// Who waits for each rule's places; `None` where nobody may.
    queues: Option<Arc<[Option<Arc<Queue>>]>>,
    taken: SmallVec<[(usize, Taken); 2]>,
    gives_back_on_drop: bool,
    /// What layers further out hold for the same request.
    outer: Option<Box<Receipt>>,
}

impl Receipt {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        rules: Arc<[RuleInfo]>,
        endings: Option<Arc<[Ending]>>,
        queues: Option<Arc<[Option<Arc<Queue>>]>>,
        taken: SmallVec<[(usize, Taken); 2]>,
    ) -> Self {
        Self { store, clock, rules, endings, queues, taken, gives_back_on_drop: false, outer: None }
    }

    /// Makes the charges come back when this is dropped, until [`started`](Self::started).
    pub(crate) fn until_started(&mut self) {
        self.gives_back_on_drop = true;
    }

    /// Says that the request has started: from now on a drop only ends what ends with the request.
    pub(crate) fn started(&mut self) {
        self.gives_back_on_drop = false;
    }

    /// As [`started`](Self::started), and returns this if anything of it ends with the request.
    pub(crate) fn start(mut self: Box<Self>) -> Option<Box<Self>> {
        self.started();
        let endings = self.endings.as_deref().unwrap_or_default();
        let ends = self.taken.iter().any(|(rule, _)| endings.get(*rule).is_some_and(|ending| !ending.stands()));
        ends.then_some(self)
    }

    /// Takes the charges of which `takes` is true out of this receipt, into one of their own; `None` where there are
    /// none.
    pub(super) fn take_out(&mut self, takes: impl Fn(&Ending) -> bool) -> Option<Self> {
        let mut taken = Self::new(
            Arc::clone(&self.store),
            Arc::clone(&self.clock),
            Arc::clone(&self.rules),
            self.endings.clone(),
            self.queues.clone(),
            SmallVec::new(),
        );
        std::mem::swap(&mut taken.taken, &mut self.taken);
        let endings = self.endings.as_deref().unwrap_or_default();
        let mut at = 0;
        while let Some((rule, _)) = taken.taken.get(at) {
            if endings.get(*rule).is_some_and(&takes) {
                at += 1;
            } else {
                self.taken.push(taken.taken.remove(at));
            }
        }
        (!taken.taken.is_empty()).then_some(taken)
    }

    /// Adds what a layer further out holds.
    pub(super) fn within(mut self, outer: Option<Self>) -> Self {
        self.outer = outer.map(Box::new);
        self
    }

    /// Lets the charges stand. Places are free again.
    pub fn keep(mut self) {
        self.gives_back_on_drop = false;
        let places = self.take_out(Ending::is_place);
        self.taken.clear();
        drop(places);
    }

    /// Gives every charge back, as far as time has not done so already.
    ///
    /// No bucket ends up with more than it would hold had the request never come. Exact where nothing else was
    /// charged to the bucket since; a little less may come back otherwise. A turn in a queue comes back only if nobody
    /// stands behind it.
    pub fn give_back(mut self) {
        self.gives_back_on_drop = true;
    }

    /// Sets what the request cost under every rule it was charged by: the rest comes back, or is charged in addition
    /// from now, which may leave a bucket in debt. Places are free again.
    pub fn settle(mut self, cost: u64) {
        self.gives_back_on_drop = false;
        let places = self.take_out(Ending::is_place);
        self.adjust(cost, |_| true);
        self.taken.clear();
        drop(places);
    }

    /// Sets what the request cost under the rule `name`; the others stay. Returns whether it was charged by that rule.
    pub fn settle_rule(&mut self, name: &str, cost: u64) -> bool {
        let Some(named) = self.rules.iter().position(|rule| rule.name == name) else { return false };
        if self.taken.iter().all(|(rule, _)| *rule != named) {
            return false;
        }
        // What is tried in its place costs the same.
        let rules = Arc::clone(&self.rules);
        let in_its_place = |rule: usize| rules.get(rule).is_some_and(|rule| rule.live == Some(named));
        self.adjust(cost, |rule| rule == named || in_its_place(rule));
        true
    }

    /// Asks the rules that depend on it how the request was answered
    /// ([`Rule::give_back_when`](crate::Rule::give_back_when),
    /// [`Rule::count_only_when`](crate::Rule::count_only_when)), and gives their charges back or lets them stand, once.
    /// Only the response's head is looked at. The layer does this itself.
    pub fn judge(&mut self, response: &Response<()>) {
        let Some(endings) = self.endings.clone() else { return };
        let Some(mut judged) = self.take_out(Ending::is_by_outcome) else { return };
        judged.adjust(0, |rule| match endings.get(rule) {
            Some(Ending::ByOutcome(outcome)) => (outcome.comes_back)(response),
            _ => false,
        });
        judged.taken.clear();
    }

    /// Sets what the request cost under each rule of which `changes` is true.
    fn adjust(&mut self, cost: u64, changes: impl Fn(usize) -> bool) {
        let mut now = None;
        for (rule, taken) in &mut self.taken {
            if changes(*rule) {
                let now = *now.get_or_insert_with(|| self.clock.now());
                let frees = cost < taken.cost;
                self.store.adjust(now, taken, cost);
                if frees && let Some(Some(queue)) = self.queues.as_deref().and_then(|queues| queues.get(*rule)) {
                    queue.call(taken.key);
                }
            }
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let endings = self.endings.take();
        let endings = endings.as_deref().unwrap_or_default();
        let all = self.gives_back_on_drop;
        self.adjust(0, |rule| all || endings.get(rule).is_some_and(Ending::comes_back_unanswered));
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipt").field("charges", &self.taken.len()).finish_non_exhaustive()
    }
}
