//! Other rules while requests are decided.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};

use super::{
    Generation, Hook, Limiter, Plain,
    core::{Bound, Core},
};
use crate::{
    charge::{Ending, FailurePolicy},
    error::ConfigError,
    observe::{self, Counter, Observed},
    rule::{Patience, Rule, Rules},
    store::{Direct, Queue, Store},
    time::{Clock, Nanos},
};

/// What all clones of a limiter share.
pub(super) struct Shared<Req> {
    in_force: ArcSwap<Generation<Req>>,
    pub(super) clock: Arc<dyn Clock>,
    /// **Locking** only while rules are reloaded, so that one set follows the other; never on a request.
    turn: Mutex<Turn>,
    reloaded: Counter,
    failed: Counter,
}

/// What a set of rules has to fit, beside the store.
#[derive(Debug, Default)]
struct Turn {
    /// Whether there is a layer that cannot say how a request was answered.
    outcomes_unread: bool,
}

/// What a [reload](Limiter::reload) changed: names of rules, in the order of the set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Reloaded {
    /// Those that were not in the set before.
    pub added: Vec<String>,
    /// Those that go on from other counts or in another way: under another limit, algorithm or name.
    pub changed: Vec<String>,
    /// Those that go on as they were. Conditions, keys and costs are closures, which nobody can compare.
    pub kept: Vec<String>,
    /// Those that are not in the set any more.
    pub removed: Vec<String>,
}

/// How often the rules of a [`Limiter`] were [reloaded](Limiter::reload), and how often that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ReloadCounts {
    /// Sets that came into force, the first one not counted.
    pub reloaded: u64,
    /// Sets that were refused.
    pub failed: u64,
}

impl<Req> Generation<Req> {
    fn new(rules: Rules<Req>, core: Core, on_decision: Option<Hook<Req>>) -> Self {
        let observed = Observed::new(core.info.iter().map(|rule| rule.name.clone()));
        let plain = plain(&rules, &core);
        Self { rules, core: Arc::new(core), plain, on_decision, observed }
    }
}

impl<Req> Shared<Req> {
    pub(super) fn new(
        rules: Rules<Req>,
        (store, in_memory): (Arc<dyn Store>, bool),
        clock: Arc<dyn Clock>,
        on_decision: Option<Hook<Req>>,
    ) -> Result<Self, ConfigError> {
        let bound = bind(&rules, &*store, None)?;
        let (info, secret) = (Arc::clone(rules.info()), store.secret().clone());
        let (clock_too, store_state) = (Arc::clone(&clock), Arc::default());
        let (endings, queues) = (endings(&rules), queues(&rules, None));
        let core = Core { bound, info, endings, queues, store, in_memory, secret, clock: clock_too, store_state };
        let first = Generation::new(rules, core, on_decision);
        let in_force = ArcSwap::from_pointee(first);
        Ok(Self { in_force, clock, turn: Mutex::default(), reloaded: Counter::default(), failed: Counter::default() })
    }
}

impl<Req> Limiter<Req> {
    /// The rules in force, for as long as a request is decided by them.
    #[inline]
    pub(crate) fn in_force(&self) -> Guard<Arc<Generation<Req>>> {
        self.shared.in_force.load()
    }

    /// As [`in_force`](Self::in_force), for longer.
    pub(crate) fn generation(&self) -> Arc<Generation<Req>> {
        self.shared.in_force.load_full()
    }

    /// Puts other rules in force, for this limiter and all its clones, while requests go on.
    ///
    /// The new set is checked and bound as a whole, as by [`LimiterBuilder::build`](crate::LimiterBuilder::build), and
    /// then comes into force in one step: each request is decided by one set or the other. Where anything is wrong,
    /// nothing changes.
    ///
    /// **What was used stays used.** The name of a rule is its identity:
    ///
    /// - A rule that is in both sets goes on with its counts, whatever else about it changes. Under another limit each
    ///   key's time until its next decision counts at the old rate; a raise helps at once, and what a lower capacity
    ///   cannot hold is forgiven. Lowering a limit and raising it again can give a key one capacity, and nothing else
    ///   about a reload can.
    /// - Under another algorithm a key starts as if as much were used as the old one says.
    /// - [`Rule::was`] says that a rule had another name.
    /// - A rule that is not in the new set is forgotten with the last request that was decided by the old one. If a
    ///   later set has it again, it starts afresh.
    /// - A rule that counted for all and now has keys, or the other way around, starts afresh.
    ///
    /// Requests on their way, also those that wait for a place, end by the rules they began with: what they give back
    /// comes back to where it counts now, and places in flight stay taken until they end.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Limit, Limiter, Rule};
    ///
    /// let user = |limit| Rule::new("user", limit, |id: &u64| Some(Key::from(*id)));
    /// let limiter = Limiter::new([user(Limit::per_hour(2))]);
    /// assert!(limiter.check_now(&7)?.is_allowed() && limiter.check_now(&7)?.is_allowed());
    /// assert!(!limiter.check_now(&7)?.is_allowed());
    ///
    /// let reloaded = limiter.reload([user(Limit::per_hour(3)), Rule::global("all", Limit::per_second(900))])?;
    /// assert_eq!((reloaded.changed, reloaded.added), (vec!["user".to_owned()], vec!["all".to_owned()]));
    /// assert!(limiter.check_now(&7)?.is_allowed()); // two of three were used
    /// assert!(!limiter.check_now(&7)?.is_allowed());
    ///
    /// let error = limiter.reload([user(Limit::per_hour(0))]).unwrap_err();
    /// assert_eq!(error.field(), "limit");
    /// assert!(!limiter.check_now(&7)?.is_allowed()); // nothing has changed
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Where a rule of the new set cannot work, or the store cannot run it, or a layer was made by
    /// [`refuse_with`](crate::RateLimitLayer::refuse_with) and it counts by outcome. The rules in force stay, and the
    /// failure is [counted](Self::reloads) and logged.
    pub fn reload(&self, rules: impl IntoIterator<Item = Rule<Req>>) -> Result<Reloaded, ConfigError> {
        // The rules come from the caller's iterator, which may take its time or reload itself.
        let rules: Vec<_> = rules.into_iter().collect();
        let reloaded = Rules::new(rules).and_then(|rules| self.replace(rules));
        match &reloaded {
            Ok(reloaded) => {
                self.shared.reloaded.add_one();
                observe::reloaded(reloaded.added.len(), reloaded.changed.len(), reloaded.removed.len());
            }
            Err(error) => self.reload_failed(error),
        }
        reloaded
    }

    /// Returns how often the rules were reloaded, and how often that failed.
    pub fn reloads(&self) -> ReloadCounts {
        ReloadCounts { reloaded: self.shared.reloaded.get(), failed: self.shared.failed.get() }
    }

    /// Counts and logs that rules could not be read, as [`reload`](Self::reload) does where they cannot be put in
    /// force. For who reads them from somewhere.
    pub fn reload_failed(&self, error: &(dyn std::error::Error + 'static)) {
        self.shared.failed.add_one();
        observe::reload_failed(error);
    }

    /// Says that a layer of this limiter cannot tell how a request was answered. Returns the name of a rule in force
    /// that has to know, if there is one; otherwise none will come into force either.
    pub(crate) fn reads_no_outcomes(&self) -> Option<String> {
        let mut turn = self.shared.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let judged = judged_by_outcome(&self.in_force().rules).map(|(rule, _)| rule.to_owned());
        turn.outcomes_unread |= judged.is_none();
        judged
    }

    fn replace(&self, mut rules: Rules<Req>) -> Result<Reloaded, ConfigError> {
        let turn = self.shared.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.generation();
        let bound = match bind_after(&before, &rules, &turn) {
            Ok(bound) => bound,
            Err(error) => {
                drop(turn);
                return Err(error);
            }
        };
        rules.go_on_from(&before.rules);
        let reloaded = compare(&rules, &before.rules);
        let core = Core {
            bound,
            info: Arc::clone(rules.info()),
            endings: endings(&rules),
            queues: queues(&rules, Some(&before)),
            store: Arc::clone(&before.core.store),
            in_memory: before.core.in_memory,
            secret: before.core.secret.clone(),
            clock: Arc::clone(&before.core.clock),
            store_state: Arc::clone(&before.core.store_state),
        };
        let next = Generation::new(rules, core, before.on_decision.clone());
        self.shared.in_force.store(Arc::new(next));
        // What the closures of rules own may reload too when it is dropped, so the turn ends before the rules do: those
        // that were in force here, those that are refused above.
        drop(turn);
        Ok(reloaded)
    }
}

/// As [`bind`], for rules that take the place of those `before`.
fn bind_after<Req>(before: &Arc<Generation<Req>>, rules: &Rules<Req>, turn: &Turn) -> Result<Vec<Bound>, ConfigError> {
    if let Some((rule, field)) = judged_by_outcome(rules).filter(|_| turn.outcomes_unread) {
        return Err(ConfigError::new(
            rule,
            field,
            "a layer of this limiter does not say how a response is to be read, since it was made by refuse_with; make \
             it by refuse_with_outcome, or drop it",
        ));
    }
    bind(rules, &*before.core.store, Some(before))
}

/// Whether all rules enforce, and let a request pass or not: they hold none back, have one limit for all and do not ask
/// how they end.
fn plain<Req>(rules: &Rules<Req>, core: &Core) -> Plain {
    let is_plain = |(rule, _): &(Rule<Req>, _)| rule.max_delay() == Nanos::ZERO && rule.has_one_limit();
    let are_plain = rules.enforcing().iter().all(is_plain);
    match rules.enforcing().len() {
        _ if !are_plain || rules.tries() || core.endings.is_some() || core.queues.is_some() => Plain::No,
        1 => Plain::One(core.directs().next().flatten()),
        _ => {
            let directs: Option<Box<[Direct]>> = core.directs().collect();
            directs.filter(|directs| Direct::are_apart(directs)).map_or(Plain::No, Plain::Several)
        }
    }
}

/// Gives every rule its place in the store, that of the rule it replaces where there is one.
fn bind<Req>(
    rules: &Rules<Req>,
    store: &dyn Store,
    before: Option<&Arc<Generation<Req>>>,
) -> Result<Vec<Bound>, ConfigError> {
    let bind = |(rule, _): &(Rule<Req>, _)| {
        let spec = rule.spec();
        if matches!(spec.on_store_failure, Some(FailurePolicy::Fallback(_))) && !store.has_fallback() {
            return Err(ConfigError::new(
                rule.name(),
                "on_store_failure",
                "this store has no local fallback; wrap it: store::Guarded::new(store, policy)",
            ));
        }
        let before = before.and_then(|before| before.core.bound.get(before.rules.position_before(rule)?));
        let slot = store
            .bind(&spec, before.map(|before| &before.slot))
            .map_err(|why| ConfigError::new(rule.name(), "store", why.to_string()))?;
        Ok(Bound { slot, max_delay: rule.max_delay(), refuses_without_store: rule.refuses_without_store() })
    };
    rules.iter().map(bind).collect()
}

/// What becomes of charges when requests end, unless all of them stand.
fn endings<Req>(rules: &Rules<Req>) -> Option<Arc<[Ending]>> {
    let endings: Arc<[_]> = rules.iter().map(|(rule, _)| rule.ending()).collect();
    (!endings.iter().all(Ending::stands)).then_some(endings)
}

/// The first rule whose charges depend on how a request is answered, and by which field.
fn judged_by_outcome<Req>(rules: &Rules<Req>) -> Option<(&str, &'static str)> {
    rules.iter().find_map(|(rule, _)| Some((rule.name(), rule.judges_by()?)))
}

/// The lines of rules that have one, with those who wait in them for the rules before.
///
/// Lines are joined in the order of the rules. Those of rules that have changed places begin anew, or somebody could
/// wait at the head of each for the head of the other.
fn queues<Req>(rules: &Rules<Req>, before: Option<&Generation<Req>>) -> Option<Arc<[Option<Arc<Queue>>]>> {
    let mut furthest = None;
    let queue = |(rule, _): &(Rule<Req>, _)| {
        let Patience { most, longest } = rule.patience().filter(|_| rule.enforces())?;
        let old = before.and_then(|before| {
            let at = before.rules.position_before(rule)?;
            let queue = before.core.queues.as_deref()?.get(at)?.as_ref()?;
            (furthest < Some(at)).then(|| {
                furthest = Some(at);
                queue.going_on(most, longest)
            })
        });
        Some(Arc::new(old.unwrap_or_else(|| Queue::new(most, longest))))
    };
    let queues: Arc<[_]> = rules.iter().map(queue).collect();
    queues.iter().any(Option::is_some).then_some(queues)
}

fn compare<Req>(rules: &Rules<Req>, before: &Rules<Req>) -> Reloaded {
    let mut reloaded = Reloaded::default();
    let mut went_on = Vec::new();
    for (rule, _) in rules.iter() {
        let old = before.position_before(rule);
        went_on.extend(old);
        let list = match old.and_then(|old| before.get(old)) {
            None => &mut reloaded.added,
            Some(old) if old.counts_as(rule) => &mut reloaded.kept,
            Some(_) => &mut reloaded.changed,
        };
        list.push(rule.name().to_owned());
    }
    let gone = before.iter().enumerate().filter(|(at, _)| !went_on.contains(at));
    reloaded.removed = gone.map(|(_, (rule, _))| rule.name().to_owned()).collect();
    reloaded
}
