use std::time::Duration;

use super::{BoxFuture, Clock, Nanos, epoch::Epoch};

/// A clock on the processor's own time stamp counter: less than half of what reading
/// [`SystemClock`](super::SystemClock) costs. Feature `quanta`.
///
/// **Build it once** and share it, as a limiter does: building calibrates the counter, which takes milliseconds, and
/// may trap to the hypervisor in a virtual machine. Where the counter cannot be relied on, the system's monotonic clock
/// is read instead.
///
/// It counts from the Unix epoch and follows the wall clock forward, exactly as the system clock does. It does **not**
/// follow tokio's paused time: a test that pauses time wants the system clock.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, Limit, Limiter, Rule, time::QuantaClock};
///
/// let rule = Rule::new("user", Limit::per_second(10), |id: &u64| Some(Key::from(*id)));
/// let limiter = Limiter::builder([rule]).clock(QuantaClock::new()).build()?;
/// assert!(limiter.check_now(&7)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct QuantaClock {
    clock: quanta::Clock,
    /// The counter when the clock was made.
    base: u64,
    epoch: Epoch,
}

impl QuantaClock {
    /// Calibrates the counter, reads the wall clock and starts counting from it.
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        Self { base: clock.raw(), clock, epoch: Epoch::new() }
    }
}

impl Default for QuantaClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for QuantaClock {
    fn now(&self) -> Nanos {
        let elapsed = self.clock.delta_as_nanos(self.base, self.clock.raw());
        self.epoch.now(elapsed, || true)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SystemClock;

    #[test]
    fn tells_the_time_of_the_system_clock() {
        let (system, quanta) = (SystemClock::new(), QuantaClock::new());
        let (before, now) = (system.now(), quanta.now());
        let apart = now.saturating_sub(before).max(before.saturating_sub(now));
        assert!(apart < Nanos::SECOND, "{apart:?}");
    }

    #[test]
    fn does_not_go_back() {
        let clock = QuantaClock::new();
        let mut last = clock.now();
        for _ in 0..100_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }
}
