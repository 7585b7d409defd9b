use std::{any::Any, fmt, sync::Arc};

use super::{Hook, Limiter, Shared};
use crate::{
    decision::Decision,
    error::ConfigError,
    rule::{Rule, Rules},
    store::{MemoryStore, Store},
    time::{Clock, SystemClock},
};

/// Builds a [`Limiter`].
#[must_use]
pub struct LimiterBuilder<Req> {
    rules: Vec<Rule<Req>>,
    store: Option<Arc<dyn Store>>,
    /// Whether the store is a [`MemoryStore`] itself, and nothing around one.
    in_memory: bool,
    clock: Option<Arc<dyn Clock>>,
    on_decision: Option<Hook<Req>>,
}

impl<Req> LimiterBuilder<Req> {
    pub(super) fn new(rules: Vec<Rule<Req>>) -> Self {
        Self { rules, store: None, in_memory: true, clock: None, on_decision: None }
    }

    /// Sets the store; a [`MemoryStore`] of its own unless set. Limiters given clones of one store share the counts of
    /// rules of equal name. Give such rules the same limit: a key that is asked for under two limits in turn is a key
    /// whose limit is lowered and raised each time (see [`Rule::limit_for`]).
    pub fn store(mut self, store: impl Store) -> Self {
        self.in_memory = (&store as &dyn Any).is::<MemoryStore>();
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
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        let shared = Shared::new(rules, (store, self.in_memory), clock, self.on_decision)?;
        Ok(Limiter { shared: Arc::new(shared) })
    }
}

impl<Req> fmt::Debug for LimiterBuilder<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterBuilder").field("rules", &self.rules).finish_non_exhaustive()
    }
}
