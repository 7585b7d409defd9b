use super::{
    Algorithm, Ask, Bucket, GivenBack, Mark, Schedule, Used,
    schedule::{divided, drain_time, units_of},
};
use crate::{
    decision::{Outcome, Verdict, Wait},
    limit::Limit,
    time::Nanos,
};

/// The default: a bucket of `burst` tokens that refills at a steady rate; a request takes as many as it costs.
///
/// **Bounds** at most `burst + rate * T` in *any* interval `T`. **State** 12 bytes a key. Kept as a schedule (the
/// generic cell rate algorithm, ITU-T I.371), so there is no timer and no rounding. Choose another strategy when the
/// number in a window has to be exact ([`SlidingWindowLog`](super::SlidingWindowLog)) or requests should be spread
/// out rather than refused ([`LeakyBucket`](super::LeakyBucket)).
///
/// A request that may be held ([`Rule::wait_up_to`](crate::Rule::wait_up_to)) reserves tokens that are not there yet
/// and starts when they are.
///
/// # Examples
///
/// ```
/// use tollgate::{Limit, bucket::{Ask, Bucket, TokenBucket}, decision::{Outcome, Wait}, time::Nanos};
///
/// let (bucket, limit) = (TokenBucket, Limit::per_second(5));
/// let mut state = bucket.fresh(&limit, Nanos::ZERO);
/// let (verdict, _) = bucket.take(&mut state, &limit, Nanos::ZERO, Ask::new(5));
/// assert_eq!(verdict.remaining, 0);
/// let verdict = bucket.look(&state, &limit, Nanos::ZERO, Ask::new(1));
/// assert_eq!(verdict.outcome, Outcome::Refuse(Wait::For(Nanos::new(200_000_000))));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenBucket;

impl TokenBucket {
    #[inline]
    fn passes(self, state: &Schedule, limit: &Limit, now: Nanos, ask: Ask) -> Outcome {
        let capacity = units_of(limit, limit.capacity());
        match ask.needs(limit.capacity()) {
            _ if ask.cost == 0 => Outcome::Pass,
            None => Outcome::Refuse(Wait::Never),
            Some(needs) if state.outlasts_time(limit, now, needs) => {
                Outcome::Refuse(Wait::For(drain_time(limit, units_of(limit, needs))))
            }
            Some(needs) => {
                let needed = state.used_units(limit, now).saturating_add(units_of(limit, needs));
                match needed.saturating_sub(capacity) {
                    0 => Outcome::Pass,
                    missing => {
                        let wait = drain_time(limit, missing);
                        match wait.checked_sub(ask.max_delay) {
                            None | Some(Nanos::ZERO) => Outcome::Delay(wait),
                            Some(longer) => Outcome::Refuse(Wait::For(longer)),
                        }
                    }
                }
            }
        }
    }

    #[inline]
    fn verdict(self, state: &Schedule, limit: &Limit, now: Nanos, outcome: Outcome, keep: u64) -> Verdict {
        let (used, capacity) = (state.used_units(limit, now), units_of(limit, limit.capacity()));
        let tokens = capacity.saturating_sub(used);
        let whole = u64::try_from(divided(tokens, limit.permit()).0).unwrap_or(u64::MAX);
        // As long as the tokens take to come at the rate; without a whole one, until there is one.
        let window = match whole {
            0 => used.saturating_sub(capacity.saturating_sub(units_of(limit, 1))),
            _ => tokens,
        };
        Verdict::new(outcome, limit.capacity(), whole.saturating_sub(keep), Some(drain_time(limit, used)))
            .within(drain_time(limit, window))
    }
}

impl Bucket for TokenBucket {
    type State = Schedule;

    fn fresh(&self, _limit: &Limit, _now: Nanos) -> Schedule {
        Schedule::default()
    }

    fn look(&self, state: &Schedule, limit: &Limit, now: Nanos, ask: Ask) -> Verdict {
        self.verdict(state, limit, now, self.passes(state, limit, now, ask), ask.keep)
    }

    #[inline]
    fn outcome(&self, state: &Schedule, limit: &Limit, now: Nanos, ask: Ask) -> (Outcome, Option<Verdict>) {
        (self.passes(state, limit, now, ask), None)
    }

    #[inline]
    fn take(&self, state: &mut Schedule, limit: &Limit, now: Nanos, ask: Ask) -> (Verdict, Mark) {
        let mark = state.push(limit, now, ask.cost);
        let wanted = state.used_units(limit, now).saturating_add(units_of(limit, ask.keep));
        let missing = wanted.saturating_sub(units_of(limit, limit.capacity()));
        let outcome = match missing {
            1.. if ask.max_delay > Nanos::ZERO => Outcome::Delay(drain_time(limit, missing)),
            _ => Outcome::Pass,
        };
        (self.verdict(state, limit, now, outcome, ask.keep), mark)
    }

    fn give_back(&self, state: &mut Schedule, limit: &Limit, now: Nanos, charge: GivenBack) {
        state.see(now);
        // Who waits behind the charge was promised a turn and keeps it. A token returned before that turn would let
        // somebody else start at the same time.
        let somebody_waits = state.used_units(limit, now) > units_of(limit, limit.capacity());
        if charge.delays && somebody_waits && state.behind(limit, charge.mark) != Some(0) {
            return;
        }
        state.give_back(limit, now, charge);
    }

    fn used(&self, state: &Schedule, limit: &Limit, now: Nanos) -> Used {
        state.used(limit, now)
    }

    fn with_used(&self, limit: &Limit, used: Used, now: Nanos) -> Schedule {
        Schedule::with_used(limit, used, now)
    }

    fn fresh_at(&self, state: &Schedule, _limit: &Limit) -> Nanos {
        state.fresh_at()
    }

    fn seen(&self, state: &Schedule) -> Nanos {
        state.seen()
    }

    fn into_algorithm(self) -> Algorithm {
        Algorithm::TokenBucket
    }
}
