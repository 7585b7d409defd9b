use tollgate::{
    Limit,
    bucket::{Ask, FixedWindow, SlidingWindowCounter, SlidingWindowLog, Used},
    decision::{Outcome, Wait},
    time::Nanos,
};

use super::{Answer, Model, compare};
use crate::random::{log_limit, period, window_limit};

/// A list of all charges ever made, with what still stands of each.
#[derive(Debug)]
struct Charges {
    permits: u128,
    period: u64,
    list: Vec<(u64, u64)>,
}

impl Charges {
    fn new(limit: &Limit) -> Self {
        Self { permits: limit.permits().into(), period: period(limit), list: Vec::new() }
    }

    fn sum(&self, counts: impl Fn(u64) -> bool) -> u128 {
        self.list.iter().filter(|(at, _)| counts(*at)).map(|(_, cost)| u128::from(*cost)).sum()
    }

    /// What was charged in the window of this number.
    fn window(&self, number: u64) -> u128 {
        self.sum(|at| at / self.period == number)
    }

    fn until_edge(&self, now: u64) -> u64 {
        (now / self.period + 1) * self.period - now
    }

    /// The answer where `fits(at, permits)` says whether so many permits fit at that time and `wait` when they will.
    fn answer(
        &self,
        now: u64,
        ask: Ask,
        reset: u64,
        fits: impl Fn(u64, u128) -> bool,
        wait: impl Fn(u128) -> u64,
    ) -> Answer {
        let needs = u128::from(ask.cost) + u128::from(ask.keep);
        let outcome = if ask.cost == 0 || fits(now, needs) {
            Outcome::Pass
        } else if needs > self.permits {
            Outcome::Refuse(Wait::Never)
        } else {
            Outcome::Refuse(Wait::For(Nanos::new(wait(needs))))
        };
        // Halving: 0 always fits as far as `remaining` goes.
        let (mut remaining, mut too_much) = (0, self.permits + 1);
        while too_much - remaining > 1 {
            let middle = remaining + (too_much - remaining) / 2;
            if fits(now, middle) { remaining = middle } else { too_much = middle }
        }
        let remaining = u64::try_from(remaining).unwrap().saturating_sub(ask.keep);
        Answer { outcome, remaining, reset }
    }

    fn take(&mut self, now: u64, cost: u64) {
        self.list.push((now, cost));
    }

    fn give_back(&mut self, charge: usize, back: u64) {
        self.list[charge].1 -= back;
    }
}

macro_rules! window_model {
    ($name:ident) => {
        #[derive(Debug)]
        struct $name(Charges);

        impl Model for $name {
            fn new(limit: &Limit) -> Self {
                Self(Charges::new(limit))
            }
            fn answer(&self, now: u64, ask: Ask) -> Answer {
                self.answer_at(now, ask)
            }
            fn take(&mut self, now: u64, cost: u64) {
                self.0.take(now, cost);
            }
            fn give_back(&mut self, _now: u64, charge: usize, back: u64, _held: Used) {
                self.0.give_back(charge, back);
            }
        }
    };
}

window_model!(Fixed);
window_model!(Log);
window_model!(Counter);

impl Fixed {
    fn answer_at(&self, now: u64, ask: Ask) -> Answer {
        let Self(charges) = self;
        let fits = |at: u64, permits: u128| charges.window(at / charges.period) + permits <= charges.permits;
        let edge = charges.until_edge(now);
        charges.answer(now, ask, edge, fits, |_| edge)
    }
}

impl Log {
    fn answer_at(&self, now: u64, ask: Ask) -> Answer {
        let Self(charges) = self;
        let fits = |now: u64, permits: u128| {
            charges.sum(|at| at <= now && now - at < charges.period) + permits <= charges.permits
        };
        let standing = || charges.list.iter().filter(|(_, cost)| *cost > 0).map(|(at, _)| at + charges.period);
        let reset = standing().max().unwrap_or(0).saturating_sub(now);
        // Nothing changes but when an entry leaves.
        let wait = |needs| standing().filter(|leaves| *leaves > now && fits(*leaves, needs)).min().unwrap() - now;
        charges.answer(now, ask, reset, fits, wait)
    }
}

impl Counter {
    fn answer_at(&self, now: u64, ask: Ask) -> Answer {
        let Self(charges) = self;
        let period = u128::from(charges.period);
        let fits = |at: u64, permits: u128| {
            let number = at / charges.period;
            let previous = number.checked_sub(1).map_or(0, |previous| charges.window(previous));
            let covered = u128::from(charges.until_edge(at));
            previous * covered + (charges.window(number) + permits) * period <= charges.permits * period
        };
        // The estimate only falls while nothing happens, and is nothing after two windows.
        let wait = |needs| {
            let (mut too_early, mut late) = (0, 2 * charges.period);
            while late - too_early > 1 {
                let middle = too_early + (late - too_early) / 2;
                if fits(now + middle, needs) { late = middle } else { too_early = middle }
            }
            late
        };
        charges.answer(now, ask, charges.until_edge(now), fits, wait)
    }
}

#[test]
fn a_fixed_window_answers_as_a_list_of_charges() {
    compare::<_, Fixed>(FixedWindow, window_limit, |_, _| Nanos::ZERO);
}

#[test]
fn a_sliding_log_answers_as_a_list_of_charges() {
    compare::<_, Log>(SlidingWindowLog, log_limit, |_, _| Nanos::ZERO);
}

#[test]
fn a_sliding_counter_answers_as_a_list_of_charges() {
    compare::<_, Counter>(SlidingWindowCounter, window_limit, |_, _| Nanos::ZERO);
}
