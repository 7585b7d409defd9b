//! Clocks: the one that governor reads too, and one that the measurement moves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tollgate::time::{BoxFuture, Clock, Nanos};

/// The processor's own counter, which governor reads by default, so that both sides read the same clock.
///
/// To be replaced by the library's own clock of this kind as soon as there is one.
#[derive(Clone)]
pub struct QuantaClock {
    clock: quanta::Clock,
    /// What the counter said when the wall clock was read, and what the wall clock said.
    base: quanta::Instant,
    epoch: u64,
}

impl QuantaClock {
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).expect("the wall clock is past 1970");
        Self { base: clock.now(), clock, epoch: Nanos::from(wall).get() }
    }
}

impl Clock for QuantaClock {
    #[inline]
    fn now(&self) -> Nanos {
        let moved = self.clock.now().duration_since(self.base).as_nanos();
        Nanos::new(self.epoch + moved as u64)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

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
