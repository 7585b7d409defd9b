use super::{Algorithm, Ask, Bucket, GivenBack, Mark, Used};
use crate::{
    decision::{Outcome, Verdict, Wait},
    limit::Limit,
    time::Nanos,
};

pub(super) const NO_BURST: &str =
    "a window has no burst of its own; drop .burst(..), or use the token bucket for a burst apart from the rate";

/// Counts in windows aligned to the Unix epoch: `n` in `[kW, (k+1)W)`.
///
/// **Bounds** `n` per aligned window, and so up to `2n` around an edge. **State** 12 bytes a key. Choose it for coarse
/// quotas (10,000 a day) where the edge does not matter and "resets at midnight UTC" is the promise; nowhere else.
///
/// # Examples
///
/// ```
/// use tollgate::{Limit, bucket::{Ask, Bucket, FixedWindow}, decision::{Outcome, Wait}, time::Nanos};
///
/// let (bucket, limit) = (FixedWindow, Limit::per_minute(5));
/// let now = Nanos::from_secs(12);
/// let mut state = bucket.fresh(&limit, now);
/// let _ = bucket.take(&mut state, &limit, now, Ask::new(5));
/// let verdict = bucket.look(&state, &limit, now, Ask::new(1));
/// assert_eq!(verdict.outcome, Outcome::Refuse(Wait::For(Nanos::from_secs(48))));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FixedWindow;

/// The state of [`FixedWindow`]: the latest time charged at, which names the window, and the count in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FixedWindowState {
    pub(super) seen: Nanos,
    pub(super) count: u64,
}

/// The number of the window that holds `now`.
pub(super) fn window_of(limit: &Limit, now: Nanos) -> u64 {
    now.get() / limit.period_nanos().max(1)
}

/// When the window number `window` begins; saturating.
pub(super) fn window_start(limit: &Limit, window: u64) -> Nanos {
    Nanos::new(window.saturating_mul(limit.period_nanos()))
}

/// How long until the window that holds `now` ends; at least one nanosecond.
pub(super) fn until_window_end(limit: &Limit, now: Nanos) -> Nanos {
    let period = limit.period_nanos().max(1);
    Nanos::new(period - now.get() % period)
}

impl FixedWindowState {
    /// Returns a state last charged at `seen`, with `count` permits used in that window: for stores that keep it
    /// elsewhere.
    pub const fn new(seen: Nanos, count: u64) -> Self {
        Self { seen, count }
    }

    fn count_at(&self, limit: &Limit, now: Nanos) -> u64 {
        if window_of(limit, self.seen) == window_of(limit, now) { self.count } else { 0 }
    }
}

impl FixedWindow {
    fn verdict(self, count: u64, limit: &Limit, now: Nanos, outcome: Outcome, keep: u64) -> Verdict {
        let remaining = limit.permits().saturating_sub(count).saturating_sub(keep);
        Verdict::new(outcome, limit.permits(), remaining, Some(until_window_end(limit, now)))
    }
}

impl Bucket for FixedWindow {
    type State = FixedWindowState;

    fn fresh(&self, _limit: &Limit, _now: Nanos) -> FixedWindowState {
        FixedWindowState::default()
    }

    fn look(&self, state: &FixedWindowState, limit: &Limit, now: Nanos, ask: Ask) -> Verdict {
        let count = state.count_at(limit, now);
        let outcome = match ask.needs(limit.permits()) {
            _ if ask.cost == 0 => Outcome::Pass,
            None => Outcome::Refuse(Wait::Never),
            Some(needs) if needs <= limit.permits().saturating_sub(count) => Outcome::Pass,
            Some(_) => Outcome::Refuse(Wait::For(until_window_end(limit, now))),
        };
        self.verdict(count, limit, now, outcome, ask.keep)
    }

    fn take(&self, state: &mut FixedWindowState, limit: &Limit, now: Nanos, ask: Ask) -> (Verdict, Mark) {
        let count = state.count_at(limit, now).saturating_add(ask.cost);
        *state = FixedWindowState { seen: now, count };
        (self.verdict(count, limit, now, Outcome::Pass, ask.keep), Mark::new(now, 0))
    }

    fn give_back(&self, state: &mut FixedWindowState, limit: &Limit, _now: Nanos, charge: GivenBack) {
        if window_of(limit, charge.mark.at) == window_of(limit, state.seen) {
            state.count = state.count.saturating_sub(charge.cost);
        }
    }

    fn used(&self, state: &FixedWindowState, limit: &Limit, now: Nanos) -> Used {
        Used::whole(state.count_at(limit, now))
    }

    fn with_used(&self, limit: &Limit, used: Used, now: Nanos) -> FixedWindowState {
        FixedWindowState { seen: now, count: used.ceil().min(limit.permits()) }
    }

    fn fresh_at(&self, state: &FixedWindowState, limit: &Limit) -> Nanos {
        if state.count == 0 {
            return Nanos::ZERO;
        }
        state.seen.saturating_add(until_window_end(limit, state.seen))
    }

    fn seen(&self, state: &FixedWindowState) -> Nanos {
        state.seen
    }

    fn check(&self, limit: &Limit) -> Result<(), &'static str> {
        if limit.explicit_burst().is_some() { Err(NO_BURST) } else { Ok(()) }
    }

    fn into_algorithm(self) -> Algorithm {
        Algorithm::FixedWindow
    }
}
