use super::{
    Algorithm, Ask, Bucket, GivenBack, Mark, Schedule, Used,
    schedule::{drain_time, units_of},
};
use crate::{
    decision::{Outcome, Verdict, Wait},
    limit::Limit,
    time::Nanos,
};

/// A queue of depth `burst` that drains at the rate: requests are **held** until the work ahead of them is done.
///
/// **Bounds** starts: never closer together than the rate allows. **State** 12 bytes a key. **Costs** latency: an
/// admitted request waits `work ahead / rate`. A burst of five at five per second starts at 0, 0.2, 0.4, 0.6 and
/// 0.8 s. Choose it in front of something with a strict contract of its own; to protect your own service, refusing
/// with a [`TokenBucket`](super::TokenBucket) is cheaper, since a held request holds its connection.
///
/// The depth must be said: [`Limit::burst`]. A caller that cannot hold a request
/// ([`Limiter::check`](crate::Limiter::check)) is refused where a delay would be due, so `remaining` (what passes at
/// once) is the whole depth while nothing is queued and zero otherwise.
///
/// # Examples
///
/// ```
/// use tollgate::{Limit, bucket::{Ask, Bucket, LeakyBucket}, decision::Outcome, time::Nanos};
///
/// let (bucket, limit) = (LeakyBucket, Limit::per_second(5).burst(5));
/// let ask = Ask::new(1).max_delay(Nanos::MAX);
/// let mut state = bucket.fresh(&limit, Nanos::ZERO);
/// assert_eq!(bucket.take(&mut state, &limit, Nanos::ZERO, ask).0.outcome, Outcome::Pass);
/// let (second, _) = bucket.take(&mut state, &limit, Nanos::ZERO, ask);
/// assert_eq!(second.outcome, Outcome::Delay(Nanos::new(200_000_000)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeakyBucket;

impl LeakyBucket {
    #[inline]
    fn passes(self, state: &Schedule, limit: &Limit, now: Nanos, ask: Ask) -> Outcome {
        let queued = state.used_units(limit, now);
        match ask.needs(limit.capacity()) {
            _ if ask.cost == 0 => Outcome::Pass,
            None => Outcome::Refuse(Wait::Never),
            Some(needs) if state.outlasts_time(limit, now, needs) => {
                Outcome::Refuse(Wait::For(drain_time(limit, units_of(limit, needs))))
            }
            Some(needs) => {
                let needed = queued.saturating_add(units_of(limit, needs));
                let until_room = drain_time(limit, needed.saturating_sub(units_of(limit, limit.capacity())));
                let delay = drain_time(limit, queued);
                let until_short = delay.saturating_sub(ask.max_delay);
                match (until_room.max(until_short), delay) {
                    (Nanos::ZERO, Nanos::ZERO) => Outcome::Pass,
                    (Nanos::ZERO, delay) => Outcome::Delay(delay),
                    (wait, _) => Outcome::Refuse(Wait::For(wait)),
                }
            }
        }
    }

    fn verdict(self, state: &Schedule, limit: &Limit, now: Nanos, outcome: Outcome, keep: u64) -> Verdict {
        let used = state.used_units(limit, now);
        let remaining = if used == 0 { limit.capacity().saturating_sub(keep) } else { 0 };
        let window = if used == 0 { units_of(limit, limit.capacity()) } else { used };
        Verdict::new(outcome, limit.capacity(), remaining, Some(drain_time(limit, used)))
            .within(drain_time(limit, window))
    }
}

impl Bucket for LeakyBucket {
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

    fn take(&self, state: &mut Schedule, limit: &Limit, now: Nanos, ask: Ask) -> (Verdict, Mark) {
        let delay = if ask.cost == 0 { Nanos::ZERO } else { drain_time(limit, state.used_units(limit, now)) };
        let mark = state.push(limit, now, ask.cost);
        let outcome = match delay {
            Nanos::ZERO => Outcome::Pass,
            delay if ask.max_delay > Nanos::ZERO => Outcome::Delay(delay),
            _ => Outcome::Pass,
        };
        (self.verdict(state, limit, now, outcome, ask.keep), mark)
    }

    fn give_back(&self, state: &mut Schedule, limit: &Limit, now: Nanos, charge: GivenBack) {
        state.see(now);
        // Who stands behind the charge was promised a turn and keeps it, so only the last place can be returned.
        if state.behind(limit, charge.mark) == Some(0) {
            state.give_back(limit, now, charge);
        }
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

    fn check(&self, limit: &Limit) -> Result<(), &'static str> {
        match limit.explicit_burst() {
            Some(_) => Ok(()),
            None => Err("a leaky bucket needs the depth of its queue; say it with .burst(depth)"),
        }
    }

    fn into_algorithm(self) -> Algorithm {
        Algorithm::LeakyBucket
    }
}
