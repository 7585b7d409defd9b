use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{BoxFuture, Clock, Nanos};

/// A clock that stands still until it is moved by hand. Clones share the same time.
///
/// Sleepers wake when the clock has been moved far enough, so a request held by a rule that delays is released by
/// [`advance`](Self::advance).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::time::{Clock, ManualClock, Nanos};
///
/// let clock = ManualClock::new();
/// assert_eq!(clock.now(), Nanos::ZERO);
/// clock.advance(Duration::from_millis(1_500));
/// assert_eq!(clock.now().as_duration(), Duration::from_millis(1_500));
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock {
    now: Arc<watch::Sender<Nanos>>,
}

impl ManualClock {
    /// Returns a clock that stands at the Unix epoch.
    pub fn new() -> Self {
        Self::at(Nanos::ZERO)
    }

    /// Returns a clock that stands at `now`.
    pub fn at(now: Nanos) -> Self {
        Self { now: Arc::new(watch::Sender::new(now)) }
    }

    /// Moves the clock on by `duration` (saturating) and wakes who waited for it.
    pub fn advance(&self, duration: Duration) {
        self.now.send_modify(|now| *now = now.saturating_add(Nanos::from(duration)));
    }

    /// Sets the clock, **backwards too**, to show what a clock that is set back does.
    pub fn set(&self, now: Nanos) {
        self.now.send_replace(now);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        *self.now.borrow()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let until = self.now().saturating_add(Nanos::from(duration));
        let (clock, mut moved) = (Arc::clone(&self.now), self.now.subscribe());
        Box::pin(async move {
            // The sender is kept alive by `clock`, so the wait cannot end early.
            let _ = moved.wait_for(|now| *now >= until).await;
            drop(clock);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakes_a_sleeper_at_its_time_and_not_before() {
        let clock = ManualClock::new();
        let mut sleep = tokio_test::task::spawn(clock.sleep(Duration::from_secs(2)));
        assert!(sleep.poll().is_pending());
        clock.advance(Duration::from_nanos(1_999_999_999));
        assert!(sleep.poll().is_pending());
        clock.advance(Duration::from_nanos(1));
        assert!(sleep.is_woken());
        assert!(sleep.poll().is_ready());
    }
}
