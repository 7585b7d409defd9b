use std::time::Duration;

use super::{BoxFuture, Clock, Nanos, epoch::Epoch};

/// The default clock: tokio's monotonic [`Instant`](tokio::time::Instant), counted from the Unix epoch.
///
/// The wall clock is read when the clock is made and about once a second after that. Between, and whatever happens to
/// the wall clock, time moves with the monotonic clock and **never goes back**. When the wall clock is found more than
/// a second ahead, as after a suspend, this clock jumps forward to it. While tokio's time is paused it follows the
/// paused time alone, so tests with `tokio::time::pause` just work.
///
/// Only what waits needs tokio's timer: [`sleep`](Clock::sleep) panics outside of a runtime that has it, and so does a
/// request that [waits for its turn](crate::Limiter::acquire) there. Elsewhere use a clock of your own around this one.
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
    epoch: Epoch,
}

impl SystemClock {
    /// Reads the wall clock and starts counting from it.
    pub fn new() -> Self {
        Self { base: tokio::time::Instant::now(), epoch: Epoch::new() }
    }

    /// Whether tokio's time moves with the real one. A paused clock stands still while the real one moves on. The wall
    /// clock can only be found a second ahead of a paused clock once the two are about as far apart.
    fn is_real() -> bool {
        let ours = tokio::time::Instant::now().into_std();
        let real = std::time::Instant::now();
        let apart = real.saturating_duration_since(ours).max(ours.saturating_duration_since(real));
        apart <= Duration::from_millis(100)
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Nanos {
        let elapsed = Nanos::from(self.base.elapsed()).get();
        self.epoch.now(elapsed, Self::is_real)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let before = clock.now();
        clock.epoch.set_back(Nanos::from_secs(3_600));
        assert_eq!(before.saturating_sub(clock.now()), Nanos::from_secs(3_600));
    }
}
