use super::{Algorithm, Ask, Bucket, GivenBack, Mark, Used};
use crate::{
    decision::{Outcome, Verdict, Wait},
    limit::Limit,
    time::Nanos,
};

/// Counts what runs: `n` places, each held from the decision until it is given back.
///
/// **Bounds** `n` at any instant. **State** 8 bytes a key, while anything runs. It is what a rule with
/// [`Limit::in_flight`] counts by, and nothing else can run such a limit. Choose it where requests are slow or their
/// answers are streamed, so that their number says less than how many there are at a time; beside a rate, for which it
/// is no substitute: a fast client can pass a thousand requests a second through one place.
///
/// Nobody knows when a place is free again, so a refusal's wait is [`Unknown`](Wait::Unknown). Time changes nothing,
/// and neither does a changed limit or a reset: what runs stays counted until it ends.
///
/// # Examples
///
/// ```
/// use tollgate::{Limit, bucket::{Ask, Bucket, GivenBack, InFlight}, decision::{Outcome, Wait}, time::Nanos};
///
/// let (bucket, limit, now) = (InFlight, Limit::in_flight(2), Nanos::ZERO);
/// let mut state = bucket.fresh(&limit, now);
/// let (verdict, mark) = bucket.take(&mut state, &limit, now, Ask::new(2));
/// assert_eq!(verdict.remaining, 0);
/// let later = Nanos::from_secs(1_000_000);
/// assert_eq!(bucket.look(&state, &limit, later, Ask::new(1)).outcome, Outcome::Refuse(Wait::Unknown));
/// bucket.give_back(&mut state, &limit, later, GivenBack::new(2, mark));
/// assert_eq!(bucket.look(&state, &limit, later, Ask::new(1)).outcome, Outcome::Pass);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InFlight;

/// The state of [`InFlight`]: how many places are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InFlightState {
    running: u64,
}

impl InFlightState {
    /// Returns a state of which `running` places are held: for stores that keep it elsewhere.
    pub const fn new(running: u64) -> Self {
        Self { running }
    }

    /// Returns how many places are held.
    pub const fn running(&self) -> u64 {
        self.running
    }

    fn verdict(self, limit: &Limit, outcome: Outcome, keep: u64) -> Verdict {
        let remaining = limit.permits().saturating_sub(self.running).saturating_sub(keep);
        Verdict::new(outcome, limit.permits(), remaining, None)
    }
}

impl Bucket for InFlight {
    type State = InFlightState;

    fn fresh(&self, _limit: &Limit, _now: Nanos) -> InFlightState {
        InFlightState::default()
    }

    fn look(&self, state: &InFlightState, limit: &Limit, _now: Nanos, ask: Ask) -> Verdict {
        let outcome = match ask.needs(limit.permits()) {
            _ if ask.cost == 0 => Outcome::Pass,
            None => Outcome::Refuse(Wait::Never),
            Some(needs) if needs <= limit.permits().saturating_sub(state.running) => Outcome::Pass,
            Some(_) => Outcome::Refuse(Wait::Unknown),
        };
        state.verdict(limit, outcome, ask.keep)
    }

    fn take(&self, state: &mut InFlightState, limit: &Limit, now: Nanos, ask: Ask) -> (Verdict, Mark) {
        state.running = state.running.saturating_add(ask.cost);
        (state.verdict(limit, Outcome::Pass, ask.keep), Mark::new(now, 0))
    }

    fn give_back(&self, state: &mut InFlightState, _limit: &Limit, _now: Nanos, charge: GivenBack) {
        state.running = state.running.saturating_sub(charge.cost);
    }

    fn used(&self, state: &InFlightState, _limit: &Limit, _now: Nanos) -> Used {
        Used::whole(state.running)
    }

    /// Forgives nothing: whatever the limit, what runs is still running.
    fn with_used(&self, _limit: &Limit, used: Used, _now: Nanos) -> InFlightState {
        InFlightState { running: used.ceil() }
    }

    /// While anything runs, never.
    fn fresh_at(&self, state: &InFlightState, _limit: &Limit) -> Nanos {
        if state.running == 0 { Nanos::ZERO } else { Nanos::MAX }
    }

    fn check(&self, limit: &Limit) -> Result<(), &'static str> {
        if !limit.is_in_flight() {
            return Err(
                "a rate does not say how many may run at a time; use Limit::in_flight(n), or drop .algorithm(..)",
            );
        }
        if limit.explicit_burst().is_some() {
            return Err("places have no burst; drop .burst(..) and say how many there are: Limit::in_flight(n)");
        }
        Ok(())
    }

    fn holds_places(&self) -> bool {
        true
    }

    fn into_algorithm(self) -> Algorithm {
        Algorithm::InFlight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Limit = Limit::in_flight(3);

    fn asked(state: &InFlightState, limit: &Limit, ask: Ask) -> Outcome {
        InFlight.look(state, limit, Nanos::ZERO, ask).outcome
    }

    #[test]
    fn as_many_run_as_there_are_places_and_not_one_more() {
        let unknown = Outcome::Refuse(Wait::Unknown);
        for (running, ask, outcome) in [
            (0, Ask::new(3), Outcome::Pass),
            (2, Ask::new(1), Outcome::Pass),
            (3, Ask::new(1), unknown),
            (3, Ask::new(0), Outcome::Pass),
            (2, Ask::new(2), unknown),
            (1, Ask::new(1).keep(1), Outcome::Pass),
            (1, Ask::new(1).keep(2), unknown),
            (0, Ask::new(4), Outcome::Refuse(Wait::Never)),
            (0, Ask::new(1).keep(3), Outcome::Refuse(Wait::Never)),
            (9, Ask::new(1), unknown),
            (u64::MAX, Ask::new(u64::MAX), Outcome::Refuse(Wait::Never)),
        ] {
            assert_eq!(asked(&InFlightState::new(running), &LIMIT, ask), outcome, "{running} {ask:?}");
        }
    }

    #[test]
    fn a_changed_limit_forgets_nothing_that_runs() {
        let mut state = InFlightState::new(3);
        let (mut limit, fewer) = (LIMIT, Limit::in_flight(1));
        let _ = InFlight.judge_at(&mut state, &mut limit, &fewer, Nanos::ZERO);
        assert_eq!((state.running(), limit), (3, fewer));
        let more = Limit::in_flight(5);
        let _ = InFlight.judge_at(&mut state, &mut limit, &more, Nanos::ZERO);
        assert_eq!(InFlight.look(&state, &more, Nanos::ZERO, Ask::new(1)).remaining, 2);
    }

    #[test]
    fn whatever_the_clock_does_what_runs_runs() {
        let mut state = InFlightState::default();
        let mut limit = LIMIT;
        let (_, mark) = InFlight.take(&mut state, &limit, Nanos::MAX, Ask::new(2));
        for now in [Nanos::ZERO, Nanos::from_secs(1), Nanos::MAX] {
            assert_eq!(InFlight.judge_at(&mut state, &mut limit, &LIMIT, now), now);
            assert_eq!((state.running(), InFlight.fresh_at(&state, &limit)), (2, Nanos::MAX));
        }
        InFlight.give_back(&mut state, &limit, Nanos::ZERO, GivenBack::new(2, mark));
        InFlight.give_back(&mut state, &limit, Nanos::ZERO, GivenBack::new(2, mark));
        assert_eq!((state.running(), InFlight.fresh_at(&state, &limit)), (0, Nanos::ZERO));
    }
}
