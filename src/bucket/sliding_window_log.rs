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

/// The state of [`SlidingWindowLog`]: when how many permits were taken, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlidingWindowLogState {
    entries: VecDeque<(Nanos, u64)>,
    total: u64,
    seen: Nanos,
}

const MAX_PERMITS: u64 = 65_536;

impl SlidingWindowLogState {
    /// How many permits are in the window that ends at `now`.
    fn live(&self, limit: &Limit, now: Nanos) -> u64 {
        let expired: u64 = self.expired(limit, now).map(|(_, count)| *count).fold(0, u64::saturating_add);
        self.total.saturating_sub(expired)
    }

    fn expired(&self, limit: &Limit, now: Nanos) -> impl Iterator<Item = &(Nanos, u64)> {
        let period = limit.period_nanos();
        self.entries.iter().take_while(move |(at, _)| now.saturating_sub(*at).get() >= period)
    }

    fn drop_expired(&mut self, limit: &Limit, now: Nanos) {
        let gone = self.expired(limit, now).count();
        for (_, count) in self.entries.drain(..gone) {
            self.total = self.total.saturating_sub(count);
        }
    }
}

impl SlidingWindowLog {
    /// How long until `missing` of the oldest permits have left.
    fn wait(self, state: &SlidingWindowLogState, limit: &Limit, now: Nanos, missing: u64) -> Wait {
        let expired = state.expired(limit, now).count();
        let mut left = 0_u64;
        for (at, count) in state.entries.iter().skip(expired) {
            left = left.saturating_add(*count);
            if left >= missing {
                let leaves = at.saturating_add(Nanos::new(limit.period_nanos()));
                return Wait::For(leaves.saturating_sub(now));
            }
        }
        Wait::Never
    }

    fn verdict(self, state: &SlidingWindowLogState, limit: &Limit, now: Nanos, outcome: Outcome, keep: u64) -> Verdict {
        let live = state.live(limit, now);
        let remaining = limit.permits().saturating_sub(live).saturating_sub(keep);
        let period = Nanos::new(limit.period_nanos());
        let oldest = state.entries.get(state.expired(limit, now).count());
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
        state.total = state.total.saturating_add(ask.cost);
        state.seen = state.seen.max(now);
        match state.entries.back_mut() {
            Some((at, count)) if *at == now => *count = count.saturating_add(ask.cost),
            _ if ask.cost > 0 => state.entries.push_back((now, ask.cost)),
            _ => {}
        }
        (self.verdict(state, limit, now, Outcome::Pass, ask.keep), Mark::new(now, 0))
    }

    fn give_back(&self, state: &mut SlidingWindowLogState, _limit: &Limit, _now: Nanos, charge: GivenBack) {
        let Ok(place) = state.entries.binary_search_by_key(&charge.mark.at, |(at, _)| *at) else { return };
        let Some((_, count)) = state.entries.get_mut(place) else { return };
        let back = charge.cost.min(*count);
        *count -= back;
        state.total = state.total.saturating_sub(back);
        if *count == 0 {
            state.entries.remove(place);
        }
    }

    fn used(&self, state: &SlidingWindowLogState, limit: &Limit, now: Nanos) -> Used {
        Used::whole(state.live(limit, now))
    }

    fn with_used(&self, limit: &Limit, used: Used, now: Nanos) -> SlidingWindowLogState {
        let total = used.ceil().min(limit.permits());
        let entries = if total > 0 { VecDeque::from([(now, total)]) } else { VecDeque::new() };
        SlidingWindowLogState { entries, total, seen: now }
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
        let mut forgiven = state.total.saturating_sub(new.permits());
        while let Some((_, count)) = state.entries.front_mut().filter(|_| forgiven > 0) {
            let gone = forgiven.min(*count);
            *count -= gone;
            forgiven -= gone;
            state.total -= gone;
            if *count == 0 {
                state.entries.pop_front();
            }
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
