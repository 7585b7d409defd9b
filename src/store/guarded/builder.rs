use std::{fmt, sync::Arc, time::Duration};

use super::{Circuit, Guarded, Inner, Refusals};
use crate::{
    charge::FailurePolicy,
    store::{MemoryStore, Store},
    time::Nanos,
};

/// Builds a [`Guarded`] store.
#[must_use]
pub struct GuardedBuilder {
    store: Box<dyn Store>,
    on_failure: FailurePolicy,
    deadline: Duration,
    opens_after: u32,
    remember_refusals: usize,
    remember_at_most: Duration,
    fallback_keys: usize,
}

impl GuardedBuilder {
    pub(super) fn new(store: Box<dyn Store>, on_failure: FailurePolicy) -> Self {
        Self {
            store,
            on_failure,
            deadline: Duration::from_millis(25),
            opens_after: 5,
            remember_refusals: 100_000,
            remember_at_most: Duration::from_secs(60),
            fallback_keys: 1_000_000,
        }
    }

    /// Sets how long a decision may take, whatever the store does; 25 ms unless set. Timers count in milliseconds, so
    /// it may be one more.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets after how many failures in a row the store is asked no more; 5 unless set, at least 1.
    pub fn opens_after(mut self, failures: u32) -> Self {
        self.opens_after = failures;
        self
    }

    /// Sets how many refusals may be remembered; 100,000 unless set, fewer than 2 for none. Where there are more, the
    /// oldest are forgotten. One takes 150 to 300 bytes, and 100,000 of them 17 MB.
    pub fn remember_refusals(mut self, refusals: usize) -> Self {
        self.remember_refusals = refusals;
        self
    }

    /// Sets how long a refusal is remembered where its wait is longer; 60 s unless set. This is how late a process may
    /// notice what another one gave back or reset.
    pub fn remember_at_most(mut self, longest: Duration) -> Self {
        self.remember_at_most = longest;
        self
    }

    /// Sets how many keys each rule's fallback may hold; 1,000,000 unless set.
    pub fn fallback_keys(mut self, max_keys: usize) -> Self {
        self.fallback_keys = max_keys;
        self
    }

    /// Returns the guarded store.
    pub fn build(self) -> Guarded {
        let inner = Inner {
            store: self.store,
            on_failure: self.on_failure,
            deadline: self.deadline,
            circuit: Circuit::new(self.opens_after),
            refusals: Refusals::new(self.remember_refusals, Nanos::from(self.remember_at_most)),
            local: MemoryStore::builder().max_keys(self.fallback_keys).build(),
            numbers: Default::default(),
            counts: Default::default(),
        };
        Guarded { inner: Arc::new(inner) }
    }
}

impl fmt::Debug for GuardedBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedBuilder")
            .field("on_failure", &self.on_failure)
            .field("deadline", &self.deadline)
            .field("opens_after", &self.opens_after)
            .field("remember_refusals", &self.remember_refusals)
            .field("remember_at_most", &self.remember_at_most)
            .field("fallback_keys", &self.fallback_keys)
            .finish_non_exhaustive()
    }
}
