use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use super::Nanos;

/// How far the wall clock must be ahead before the epoch follows it, and how often it looks.
const STEP: u64 = Nanos::SECOND.get();

/// Unix time at the instant that a monotonic clock counts from. It follows the wall clock forward, as after a suspend,
/// and never back.
#[derive(Debug)]
pub(super) struct Epoch {
    /// Only ever raised. Relaxed is enough: it publishes nothing but itself, and a reader that sees an old value is one
    /// reading behind, as a thread that came late is.
    at: AtomicU64,
    /// Monotonic time at which the wall clock is due to be read again. Relaxed: two readers at once are harmless.
    next_look: AtomicU64,
}

impl Epoch {
    /// The present, at which the monotonic clock stands at zero.
    pub(super) fn new() -> Self {
        Self { at: AtomicU64::new(wall().get()), next_look: AtomicU64::new(STEP) }
    }

    /// Unix time when the monotonic clock stands at `elapsed`. About once a second the wall clock is followed, if
    /// `may_follow` then.
    #[inline]
    pub(super) fn now(&self, elapsed: u64, may_follow: impl FnOnce() -> bool) -> Nanos {
        if elapsed >= self.next_look.load(Ordering::Relaxed) {
            self.look_at_wall(elapsed, may_follow);
        }
        Nanos::new(self.at.load(Ordering::Relaxed).saturating_add(elapsed))
    }

    #[cold]
    fn look_at_wall(&self, elapsed: u64, may_follow: impl FnOnce() -> bool) {
        self.next_look.store(elapsed.saturating_add(STEP), Ordering::Relaxed);
        if !may_follow() {
            return;
        }
        let wall_epoch = wall().get().saturating_sub(elapsed);
        if wall_epoch > self.at.load(Ordering::Relaxed).saturating_add(STEP) {
            self.at.fetch_max(wall_epoch, Ordering::Relaxed);
        }
    }

    /// As if the wall clock had moved on and the monotonic clock had not.
    #[cfg(test)]
    pub(super) fn set_back(&self, by: Nanos) {
        self.at.fetch_sub(by.get(), Ordering::Relaxed);
        self.next_look.store(0, Ordering::Relaxed);
    }
}

/// Unix time by the wall clock; a wall clock before 1970 reads as 1970.
fn wall() -> Nanos {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(Nanos::ZERO, Nanos::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Nanos = Nanos::from_secs(3_600);

    #[test]
    fn follows_the_wall_clock_forward_only() {
        let epoch = Epoch::new();
        let before = epoch.now(7, || true);
        // As after a suspend of an hour: the monotonic clock did not move, the wall clock did.
        epoch.set_back(HOUR);
        assert!(epoch.now(7, || true) >= before);
        // The other way round (the wall clock was set back) nothing happens.
        epoch.at.fetch_add(HOUR.get(), Ordering::Relaxed);
        epoch.next_look.store(0, Ordering::Relaxed);
        assert!(epoch.now(7, || true) >= before.saturating_add(HOUR));
    }

    #[test]
    fn looks_once_a_second_and_only_where_it_may() {
        let epoch = Epoch::new();
        epoch.set_back(HOUR);
        let behind = epoch.now(0, || false);
        assert_eq!(epoch.now(STEP - 1, || unreachable!("it has just looked")).get(), behind.get() + STEP - 1);
        assert!(epoch.now(STEP, || true) >= behind.saturating_add(HOUR));
    }
}
