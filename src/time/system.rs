use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{BoxFuture, Clock, Nanos};

/// How far the wall clock must be ahead before the clock follows it, and how often it looks.
const STEP: u64 = Nanos::SECOND.get();

/// The default clock: tokio's monotonic [`Instant`](tokio::time::Instant), counted from the Unix epoch.
///
/// The wall clock is read when the clock is made and about once a second after that. Between, and whatever happens to
/// the wall clock, time moves with the monotonic clock and **never goes back**. When the wall clock is found more than
/// a second ahead, as after a suspend, this clock jumps forward to it. While tokio's time is paused it follows the
/// paused time alone, so tests with `tokio::time::pause` just work.
///
/// # Examples
///
/// ```
/// use tollgate::time::{Clock, SystemClock};
///
/// let clock = SystemClock::new();
/// let first = clock.now();
/// assert!(clock.now() >= first);
/// ```
#[derive(Debug)]
pub struct SystemClock {
    base: tokio::time::Instant,
    /// Unix time at `base`; only ever raised. Relaxed is enough: it publishes nothing but itself, and a reader that
    /// sees an old value is one reading behind, as a thread that came late is.
    epoch: AtomicU64,
    /// Monotonic time at which the wall clock is due to be read again. Relaxed: two readers at once are harmless.
    next_look: AtomicU64,
}

impl SystemClock {
    /// Reads the wall clock and starts counting from it.
    pub fn new() -> Self {
        let base = tokio::time::Instant::now();
        Self { base, epoch: AtomicU64::new(wall().get()), next_look: AtomicU64::new(STEP) }
    }

    /// Follows the wall clock forward, unless tokio's time is paused.
    #[cold]
    fn look_at_wall(&self, elapsed: u64) {
        self.next_look.store(elapsed.saturating_add(STEP), Ordering::Relaxed);
        let ours = tokio::time::Instant::now().into_std();
        let real = std::time::Instant::now();
        let apart = real.saturating_duration_since(ours).max(ours.saturating_duration_since(real));
        // A paused clock stands still while the real one moves on. The wall clock can only be found a second ahead of
        // a paused clock once the two are about as far apart.
        if apart > Duration::from_millis(100) {
            return;
        }
        let epoch = self.epoch.load(Ordering::Relaxed);
        let wall_epoch = wall().get().saturating_sub(elapsed);
        if wall_epoch > epoch.saturating_add(STEP) {
            self.epoch.fetch_max(wall_epoch, Ordering::Relaxed);
        }
    }
}

/// Unix time by the wall clock; a wall clock before 1970 reads as 1970.
fn wall() -> Nanos {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(Nanos::ZERO, Nanos::from)
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Nanos {
        let elapsed = Nanos::from(self.base.elapsed()).get();
        if elapsed >= self.next_look.load(Ordering::Relaxed) {
            self.look_at_wall(elapsed);
        }
        Nanos::new(self.epoch.load(Ordering::Relaxed).saturating_add(elapsed))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_wall_clock_forward_only() {
        let clock = SystemClock::new();
        let before = clock.now();
        // As after a suspend of an hour: the monotonic clock did not move, the wall clock did.
        clock.epoch.fetch_sub(3_600 * STEP, Ordering::Relaxed);
        assert!(clock.now() < before);
        // A look that was interrupted between its readings is left for the next one.
        for _ in 0..100 {
            clock.look_at_wall(Nanos::from(clock.base.elapsed()).get());
        }
        assert!(clock.now() >= before);
        // The other way round (the wall clock was set back) nothing happens.
        clock.epoch.fetch_add(3_600 * STEP, Ordering::Relaxed);
        let ahead = clock.now();
        clock.look_at_wall(Nanos::from(clock.base.elapsed()).get());
        assert!(clock.now() >= ahead);
    }

    #[tokio::test(start_paused = true)]
    async fn rides_on_paused_time() {
        let clock = SystemClock::new();
        let start = clock.now();
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now().saturating_sub(start), Nanos::from_secs(90));
        clock.sleep(Duration::from_secs(10)).await;
        assert!(clock.now().saturating_sub(start) >= Nanos::from_secs(100));
    }

    #[tokio::test(start_paused = true)]
    async fn ignores_the_wall_clock_while_time_is_paused() {
        let clock = SystemClock::new();
        tokio::time::advance(Duration::from_secs(5)).await;
        let epoch = clock.epoch.fetch_sub(3_600 * STEP, Ordering::Relaxed) - 3_600 * STEP;
        clock.look_at_wall(Nanos::from(clock.base.elapsed()).get());
        assert_eq!(clock.epoch.load(Ordering::Relaxed), epoch);
    }
}
