use std::{fmt, sync::Arc};

use super::{
    Hook, Inner, Limiter,
    core::{Bound, Core},
};
use crate::{
    charge::{Ending, FailurePolicy},
    decision::Decision,
    error::ConfigError,
    observe::{Observed, StoreState},
    rule::{Patience, Rule, Rules},
    store::{MemoryStore, Queue, Store},
    time::{Clock, SystemClock},
};

/// Builds a [`Limiter`].
#[must_use]
pub struct LimiterBuilder<Req> {
    rules: Vec<Rule<Req>>,
    store: Option<Arc<dyn Store>>,
    clock: Option<Arc<dyn Clock>>,
    on_decision: Option<Hook<Req>>,
}

impl<Req> LimiterBuilder<Req> {
    pub(super) fn new(rules: Vec<Rule<Req>>) -> Self {
        Self { rules, store: None, clock: None, on_decision: None }
    }

    /// Sets the store; a [`MemoryStore`] of its own unless set. Limiters given clones of one store share the counts of
    /// rules of equal name. Give such rules the same limit: a key that is asked for under two limits in turn is a key whose
    /// limit is lowered and raised each time (see [`Rule::limit_for`]).
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Sets the clock; [`SystemClock`] unless set.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Calls `hook` with every decision but those that only [`peek`](Limiter::peek), before the caller has it. It runs
    /// on the request's path, with no lock held: keep it short.
    pub fn on_decision(mut self, hook: impl Fn(&Req, &Decision) + Send + Sync + 'static) -> Self {
        self.on_decision = Some(Arc::new(hook));
        self
    }

    /// Puts the rules together and binds them to the store.
    ///
    /// # Errors
    ///
    /// Where a rule cannot work, or the store cannot run it.
    pub fn build(self) -> Result<Limiter<Req>, ConfigError> {
        let rules = Rules::new(self.rules)?;
        let store = self.store.unwrap_or_else(|| Arc::new(MemoryStore::new()));
        let bind = |rule: &Rule<Req>| {
            let spec = rule.spec();
            if matches!(spec.on_store_failure, Some(FailurePolicy::Fallback(_))) && !store.has_fallback() {
                return Err(ConfigError::new(
                    rule.name(),
                    "on_store_failure",
                    "this store has no local fallback; wrap it: store::Guarded::new(store, policy)",
                ));
            }
            let slot =
                store.bind(&spec, None).map_err(|why| ConfigError::new(rule.name(), "store", why.to_string()))?;
            let refuses_without_store = rule.refuses_without_store();
            Ok(Bound { slot, max_delay: rule.max_delay(), refuses_without_store })
        };
        let bound = rules.iter().map(|(rule, _)| bind(rule)).collect::<Result<_, _>>()?;
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        let endings: Arc<[_]> = rules.iter().map(|(rule, _)| rule.ending()).collect();
        let endings = (!endings.iter().all(Ending::stands)).then_some(endings);
        let queue = |rule: &Rule<Req>| {
            let Patience { most, longest } = rule.patience().filter(|_| rule.enforces())?;
            Some(Arc::new(Queue::new(most, longest)))
        };
        let queues: Arc<[_]> = rules.iter().map(|(rule, _)| queue(rule)).collect();
        let queues = queues.iter().any(Option::is_some).then_some(queues);
        let (info, secret, store_state) = (Arc::clone(rules.info()), store.secret().clone(), StoreState::default());
        let core = Arc::new(Core { bound, info, endings, queues, store, secret, clock, store_state });
        let observed = Observed::new(core.info.iter().map(|rule| rule.name.clone()));
        Ok(Limiter { inner: Arc::new(Inner { rules, core, on_decision: self.on_decision, observed }) })
    }
}

impl<Req> fmt::Debug for LimiterBuilder<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterBuilder").field("rules", &self.rules).finish_non_exhaustive()
    }
}
