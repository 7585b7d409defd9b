use super::{
    Algorithm, Ask, Bucket, GivenBack, Mark, Used,
    fixed_window::{NO_BURST, until_window_end, window_of, window_start},
};
use crate::{
    decision::{Outcome, Verdict, Wait},
    limit::Limit,
    time::Nanos,
};

/// Two aligned windows, the previous one weighted by how much of it the trailing window still covers.
///
/// **Bounds** `n` per aligned window and fewer than `2n` in any trailing one; no doubling at an edge after a window of
/// evenly spread requests, which is what the weight assumes. **State** 16 bytes a key, whatever the limit. Choose it
/// for "about n per window" at scale; where `n` has to be exact, choose
/// [`SlidingWindowLog`](super::SlidingWindowLog).
///
/// The estimate is never rounded: `previous * (W - e) + (current + cost) * W <= n * W`, `e` into the current window.
///
/// # Examples
///
/// ```
/// use tollgate::{Limit, bucket::{Ask, Bucket, SlidingWindowCounter}, decision::{Outcome, Wait}, time::Nanos};
///
/// let (bucket, limit) = (SlidingWindowCounter, Limit::per_second(5));
/// let mut state = bucket.fresh(&limit, Nanos::ZERO);
/// let _ = bucket.take(&mut state, &limit, Nanos::ZERO, Ask::new(5));
/// // At 1.0 s the five still weigh five; at 1.2 s they weigh four.
/// let verdict = bucket.look(&state, &limit, Nanos::ZERO, Ask::new(1));
/// assert_eq!(verdict.outcome, Outcome::Refuse(Wait::For(Nanos::new(1_200_000_000))));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlidingWindowCounter;

/// The state of [`SlidingWindowCounter`]: the latest time charged at, which names the current window, and two counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlidingWindowCounterState {
    pub(super) seen: Nanos,
    pub(super) previous: u64,
    pub(super) current: u64,
}

impl SlidingWindowCounterState {
    /// Returns a state last charged at `seen`, with what was used in the window before and in that one: for stores that
    /// keep it elsewhere.
    pub const fn new(seen: Nanos, previous: u64, current: u64) -> Self {
        Self { seen, previous, current }
    }

    /// The state with the window that holds `now` as its current one.
    fn rolled(&self, limit: &Limit, now: Nanos) -> Self {
        let (held, asked) = (window_of(limit, self.seen), window_of(limit, now));
        let (previous, current) = match asked.saturating_sub(held) {
            0 => (self.previous, self.current),
            1 => (self.current, 0),
            _ => (0, 0),
        };
        Self { seen: now, previous, current }
    }

    /// What the previous window still weighs, in permits times `W`.
    fn weight(&self, limit: &Limit) -> u128 {
        u128::from(self.previous) * u128::from(until_window_end(limit, self.seen).get())
    }
}

/// How many nanoseconds of a window `count` may still weigh in to leave `room` permits free of it: the largest `x`
/// with `count * x <= room * W`.
fn covered(count: u64, room: u64, period: u64) -> Nanos {
    match count {
        0 => Nanos::new(period),
        count => Nanos::saturating_from_u128(u128::from(room) * u128::from(period) / u128::from(count)),
    }
}

impl SlidingWindowCounter {
    /// How long `needs` permits have to wait; `state` is rolled to now and `needs` is at most the limit.
    fn wait(self, state: &SlidingWindowCounterState, limit: &Limit, needs: u64) -> Nanos {
        let period = limit.period_nanos();
        let left = until_window_end(limit, state.seen);
        let room = limit.permits().saturating_sub(state.current);
        if let Some(room) = room.checked_sub(needs) {
            // In this window, as the previous one weighs less and less.
            return left.saturating_sub(covered(state.previous, room, period));
        }
        // In the next window, as this one does.
        let covered = covered(state.current, limit.permits().saturating_sub(needs), period);
        left.saturating_add(Nanos::new(period).saturating_sub(covered))
    }

    fn verdict(self, state: &SlidingWindowCounterState, limit: &Limit, outcome: Outcome, keep: u64) -> Verdict {
        let weight = state.weight(limit).div_ceil(u128::from(limit.period_nanos().max(1)));
        let weight = u64::try_from(weight).unwrap_or(u64::MAX);
        let remaining = limit.permits().saturating_sub(state.current).saturating_sub(weight).saturating_sub(keep);
        Verdict::new(outcome, limit.permits(), remaining, Some(until_window_end(limit, state.seen)))
    }
}

impl Bucket for SlidingWindowCounter {
    type State = SlidingWindowCounterState;

    fn fresh(&self, _limit: &Limit, _now: Nanos) -> SlidingWindowCounterState {
        SlidingWindowCounterState::default()
    }

    fn look(&self, state: &SlidingWindowCounterState, limit: &Limit, now: Nanos, ask: Ask) -> Verdict {
        let state = state.rolled(limit, now);
        let outcome = match ask.needs(limit.permits()) {
            _ if ask.cost == 0 => Outcome::Pass,
            None => Outcome::Refuse(Wait::Never),
            Some(needs) => match self.wait(&state, limit, needs) {
                Nanos::ZERO => Outcome::Pass,
                wait => Outcome::Refuse(Wait::For(wait)),
            },
        };
        self.verdict(&state, limit, outcome, ask.keep)
    }

    fn take(&self, state: &mut SlidingWindowCounterState, limit: &Limit, now: Nanos, ask: Ask) -> (Verdict, Mark) {
        *state = state.rolled(limit, now);
        state.current = state.current.saturating_add(ask.cost);
        (self.verdict(state, limit, Outcome::Pass, ask.keep), Mark::new(now, 0))
    }

    fn give_back(&self, state: &mut SlidingWindowCounterState, limit: &Limit, _now: Nanos, charge: GivenBack) {
        match window_of(limit, state.seen).checked_sub(window_of(limit, charge.mark.at)) {
            Some(0) => state.current = state.current.saturating_sub(charge.cost),
            Some(1) => state.previous = state.previous.saturating_sub(charge.cost),
            _ => {}
        }
    }

    fn used(&self, state: &SlidingWindowCounterState, limit: &Limit, now: Nanos) -> Used {
        let state = state.rolled(limit, now);
        let current = u128::from(state.current) * u128::from(limit.period_nanos());
        Used::ratio(state.weight(limit).saturating_add(current), limit.period_nanos())
    }

    fn with_used(&self, limit: &Limit, used: Used, now: Nanos) -> SlidingWindowCounterState {
        SlidingWindowCounterState { seen: now, previous: 0, current: used.ceil().min(limit.permits()) }
    }

    fn fresh_at(&self, state: &SlidingWindowCounterState, limit: &Limit) -> Nanos {
        let ends_after = match (state.previous, state.current) {
            (0, 0) => return Nanos::ZERO,
            (_, 0) => 1,
            _ => 2,
        };
        window_start(limit, window_of(limit, state.seen).saturating_add(ends_after))
    }

    fn seen(&self, state: &SlidingWindowCounterState) -> Nanos {
        state.seen
    }

    /// Windows of the same length carry both counts, the previous one whole: what it weighs stays used, and it is gone
    /// with this window anyhow. Others carry only the estimate.
    fn under(&self, state: &Self::State, old: &Limit, new: &Limit, now: Nanos) -> Self::State {
        if old.period() != new.period() {
            return self.with_used(new, self.used(state, old, now), now);
        }
        let state = state.rolled(old, now);
        SlidingWindowCounterState { current: state.current.min(new.permits()), ..state }
    }

    fn check(&self, limit: &Limit) -> Result<(), &'static str> {
        if limit.explicit_burst().is_some() { Err(NO_BURST) } else { Ok(()) }
    }

    fn into_algorithm(self) -> Algorithm {
        Algorithm::SlidingWindowCounter
    }
}
