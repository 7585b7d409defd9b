//! A clock that the measurement moves. Everything else reads the processor's own counter, as governor does by default.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tollgate::time::{BoxFuture, Clock, Nanos};

/// A clock that stands still until the measurement moves it; clones share the time.
#[derive(Clone, Default)]
pub struct DrivenClock(Arc<AtomicU64>);

impl DrivenClock {
    /// Returns a clock that stands at a time when buckets have a past.
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(Nanos::from_secs(1_000_000).get())))
    }

    /// Moves on. Only ever one thread does.
    pub fn advance(&self, nanos: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + nanos, Ordering::Relaxed);
    }
}

impl Clock for DrivenClock {
    #[inline]
    fn now(&self) -> Nanos {
        Nanos::new(self.0.load(Ordering::Relaxed))
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(async { panic!("nothing measured on a driven clock waits") })
    }
}
