use std::collections::VecDeque;

use super::{Algorithm, Ask, Bucket, GivenBack, Mark, Used, fixed_window::NO_BURST};
use crate::{
    decision::{Outcome, Verdict, Wait},
    limit::Limit,
    time::Nanos,
};

/// The times of the admitted requests: exactly `n` in any trailing window.
///
/// An entry of time `s` counts at `t` while `t - s < W`. **Bounds** `n` in *any* window. **State** up to 16 bytes a
/// request in the window, which is why `n` is at most 65,536. Choose it for low limits that must be exact, such as five
/// attempts in fifteen minutes; at thousands per minute the [`SlidingWindowCounter`](super::SlidingWindowCounter)
/// costs a fraction.
///
/// # Examples
///
/// ```
/// use tollgate::{Limit, bucket::{Ask, Bucket, SlidingWindowLog}, decision::{Outcome, Wait}, time::Nanos};
///
/// let (bucket, limit) = (SlidingWindowLog, Limit::per_minute(1));
/// let mut state = bucket.fresh(&limit, Nanos::ZERO);
/// let _ = bucket.take(&mut state, &limit, Nanos::ZERO, Ask::new(1));
/// let ask = |at| bucket.look(&state, &limit, at, Ask::new(1)).outcome;
/// assert_eq!(ask(Nanos::from_secs(59)), Outcome::Refuse(Wait::For(Nanos::from_secs(1))));
/// assert_eq!(ask(Nanos::from_secs(60)), Outcome::Pass); // a request exactly one window old has left
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlidingWindowLog;

/// The state of [`SlidingWindowLog`]: when permits were taken, oldest first, and how many had been by then: sums, so
/// that a look at a long log is a search and not a walk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlidingWindowLogState {
    entries: VecDeque<(Nanos, u64)>,
    /// The sum before the first entry.
    gone: u64,
    seen: Nanos,
}

const MAX_PERMITS: u64 = 65_536;

/// A charge is kept as at most this much, which is as good as endless, so that sums stay far from the end of their
/// range.
const MAX_CHARGE: u64 = 1 << 40;

impl SlidingWindowLogState {
    /// The sum up to the last entry.
    fn sum(&self) -> u64 {
        self.entries.back().map_or(self.gone, |(_, sum)| *sum)
    }

    /// The sum before the entry number `place`.
    fn sum_before(&self, place: usize) -> u64 {
        let before = place.checked_sub(1).and_then(|before| self.entries.get(before));
        before.map_or(self.gone, |(_, sum)| *sum)
    }

    /// How many permits are in the window that ends at `now`.
    fn live(&self, limit: &Limit, now: Nanos) -> u64 {
        self.sum().saturating_sub(self.sum_before(self.expired(limit, now)))
    }

    /// How many entries have left the window that ends at `now`.
    fn expired(&self, limit: &Limit, now: Nanos) -> usize {
        let period = limit.period_nanos();
        self.entries.partition_point(|(at, _)| now.saturating_sub(*at).get() >= period)
    }

    fn drop_expired(&mut self, limit: &Limit, now: Nanos) {
        let expired = self.expired(limit, now);
        self.gone = self.sum_before(expired);
        self.entries.drain(..expired);
        if self.entries.is_empty() {
            self.gone = 0;
        } else if self.gone > 1 << 62 {
            // Once in a very long life: sums begin again.
            for (_, sum) in &mut self.entries {
                *sum -= self.gone;
            }
            self.gone = 0;
        }
    }
}

impl SlidingWindowLog {
    /// How long until `missing` of the oldest permits have left.
    fn wait(self, state: &SlidingWindowLogState, limit: &Limit, now: Nanos, missing: u64) -> Wait {
        let before = state.sum_before(state.expired(limit, now));
        let place = state.entries.partition_point(|(_, sum)| sum.saturating_sub(before) < missing);
        match state.entries.get(place) {
            Some((at, _)) => {
                let leaves = at.saturating_add(Nanos::new(limit.period_nanos()));
                Wait::For(leaves.saturating_sub(now))
            }
            None => Wait::Never,
        }
    }

    fn verdict(self, state: &SlidingWindowLogState, limit: &Limit, now: Nanos, outcome: Outcome, keep: u64) -> Verdict {
        let live = state.live(limit, now);
        let remaining = limit.permits().saturating_sub(live).saturating_sub(keep);
        let period = Nanos::new(limit.period_nanos());
        let oldest = state.entries.get(state.expired(limit, now));
        let window = oldest.map_or(period, |(at, _)| at.saturating_add(period).saturating_sub(now));
        Verdict::new(outcome, limit.permits(), remaining, Some(self.fresh_at(state, limit).saturating_sub(now)))
            .within(window)
    }
}

impl Bucket for SlidingWindowLog {
    type State = SlidingWindowLogState;

    fn fresh(&self, _limit: &Limit, _now: Nanos) -> SlidingWindowLogState {
        SlidingWindowLogState::default()
    }

    fn look(&self, state: &SlidingWindowLogState, limit: &Limit, now: Nanos, ask: Ask) -> Verdict {
        let live = state.live(limit, now);
        let outcome = match ask.needs(limit.permits()) {
            _ if ask.cost == 0 => Outcome::Pass,
            None => Outcome::Refuse(Wait::Never),
            Some(needs) => match live.saturating_add(needs).saturating_sub(limit.permits()) {
                0 => Outcome::Pass,
                missing => Outcome::Refuse(self.wait(state, limit, now, missing)),
            },
        };
        self.verdict(state, limit, now, outcome, ask.keep)
    }

    fn take(&self, state: &mut SlidingWindowLogState, limit: &Limit, now: Nanos, ask: Ask) -> (Verdict, Mark) {
        state.drop_expired(limit, now);
        state.seen = state.seen.max(now);
        let sum = state.sum().saturating_add(ask.cost.min(MAX_CHARGE));
        match state.entries.back_mut() {
            Some((at, last)) if *at == now => *last = sum,
            _ if ask.cost > 0 => state.entries.push_back((now, sum)),
            _ => {}
        }
        (self.verdict(state, limit, now, Outcome::Pass, ask.keep), Mark::new(now, 0))
    }

    fn give_back(&self, state: &mut SlidingWindowLogState, _limit: &Limit, _now: Nanos, charge: GivenBack) {
        let Ok(place) = state.entries.binary_search_by_key(&charge.mark.at, |(at, _)| *at) else { return };
        let before = state.sum_before(place);
        let count = state.entries.get(place).map_or(0, |(_, sum)| sum.saturating_sub(before));
        let back = charge.cost.min(count);
        for (_, sum) in state.entries.range_mut(place..) {
            *sum -= back;
        }
        if back == count {
            state.entries.remove(place);
        }
    }

    fn used(&self, state: &SlidingWindowLogState, limit: &Limit, now: Nanos) -> Used {
        Used::whole(state.live(limit, now))
    }

    fn with_used(&self, limit: &Limit, used: Used, now: Nanos) -> SlidingWindowLogState {
        let total = used.ceil().min(limit.permits());
        let entries = if total > 0 { VecDeque::from([(now, total)]) } else { VecDeque::new() };
        SlidingWindowLogState { entries, gone: 0, seen: now }
    }

    fn fresh_at(&self, state: &SlidingWindowLogState, limit: &Limit) -> Nanos {
        state.entries.back().map_or(Nanos::ZERO, |(at, _)| at.saturating_add(Nanos::new(limit.period_nanos())))
    }

    fn seen(&self, state: &SlidingWindowLogState) -> Nanos {
        state.seen
    }

    /// The entries stay, the newest as many as the new limit can hold.
    fn under(&self, state: &Self::State, old: &Limit, new: &Limit, now: Nanos) -> Self::State {
        let mut state = state.clone();
        state.drop_expired(old, now);
        state.gone = state.gone.max(state.sum().saturating_sub(new.permits()));
        while state.entries.front().is_some_and(|(_, sum)| *sum <= state.gone) {
            state.entries.pop_front();
        }
        state
    }

    fn check(&self, limit: &Limit) -> Result<(), &'static str> {
        if limit.explicit_burst().is_some() {
            Err(NO_BURST)
        } else if limit.permits() > MAX_PERMITS {
            Err("a log keeps at most 65536 permits; for more, use the sliding window counter")
        } else {
            Ok(())
        }
    }

    fn into_algorithm(self) -> Algorithm {
        Algorithm::SlidingWindowLog
    }
}
