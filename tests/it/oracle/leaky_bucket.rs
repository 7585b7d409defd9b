use tollgate::{
    Limit,
    bucket::{Ask, LeakyBucket, Used},
    decision::{Outcome, Wait},
    time::Nanos,
};

use super::{Answer, Model, compare, time_for};
use crate::random::{period, queue_limit};

/// A queue of work that is done at a steady rate.
#[derive(Debug)]
struct Queue {
    /// Parts done each nanosecond.
    pace: i128,
    /// Parts of one permit.
    permit: i128,
    depth: u64,
    /// Parts of work there were `at` that time.
    work: i128,
    at: u64,
    /// How many were charged.
    charges: usize,
    /// The places whose turn nobody stands behind once those after them are gone: number, time, work before, parts.
    places: Vec<(usize, u64, i128, i128)>,
}

impl Queue {
    fn left_of(&self, work: i128, nanos: u64) -> i128 {
        work.saturating_sub(self.pace.saturating_mul(i128::from(nanos))).max(0)
    }

    fn work(&self, now: u64) -> i128 {
        self.left_of(self.work, now - self.at)
    }
}

impl Model for Queue {
    fn new(limit: &Limit) -> Self {
        let (pace, permit) = (i128::from(limit.permits()), i128::from(period(limit)));
        Self { pace, permit, depth: limit.capacity(), work: 0, at: 0, charges: 0, places: Vec::new() }
    }

    fn answer(&self, now: u64, ask: Ask) -> Answer {
        let work = self.work(now);
        let full = i128::from(self.depth) * self.permit;
        let needs = (i128::from(ask.cost) + i128::from(ask.keep)) * self.permit;
        let ahead = time_for(work, self.pace);
        let until_room = time_for(work + needs - full, self.pace);
        let until_short = ahead.saturating_sub(ask.max_delay.get());
        let outcome = if ask.cost == 0 {
            Outcome::Pass
        } else if needs > full {
            Outcome::Refuse(Wait::Never)
        } else if until_room > 0 || until_short > 0 {
            Outcome::Refuse(Wait::For(Nanos::new(until_room.max(until_short))))
        } else if ahead > 0 {
            Outcome::Delay(Nanos::new(ahead))
        } else {
            Outcome::Pass
        };
        let remaining = if work == 0 { self.depth.saturating_sub(ask.keep) } else { 0 };
        Answer { outcome, remaining, reset: ahead }
    }

    fn after_take(&self, now: u64, ask: Ask, before: &Answer) -> Answer {
        // A charge that was forced waits its turn too, where it may: behind what was there before it.
        let outcome = match before.reset {
            ahead if ahead > 0 && ask.max_delay > Nanos::ZERO => Outcome::Delay(Nanos::new(ahead)),
            _ => Outcome::Pass,
        };
        Answer { outcome, ..self.answer(now, Ask::new(0).keep(ask.keep)) }
    }

    fn take(&mut self, now: u64, cost: u64) {
        let (work, parts) = (self.work(now), i128::from(cost) * self.permit);
        self.places.push((self.charges, now, work, parts));
        self.charges += 1;
        (self.work, self.at) = (work + parts, now);
    }

    fn give_back(&mut self, now: u64, charge: usize, back: u64, held: Used) {
        let mut work = self.work(now);
        match self.places.last() {
            Some(&(last, then, before, parts)) if last == charge => {
                let rest = parts - i128::from(back) * self.permit;
                work = self.left_of(before + rest, now - then);
                self.places.pop();
                if rest > 0 {
                    self.places.clear();
                }
            }
            // Somebody stands behind it and keeps his turn. He may leave later, but this charge has had its chance.
            _ => {
                let place = self.places.iter().position(|(number, ..)| *number == charge);
                if let Some(place) = place {
                    self.places.drain(..=place);
                }
            }
        }
        (self.work, self.at) = (work, now);
        let held = i128::try_from(held.of(u64::try_from(self.permit).unwrap())).unwrap();
        assert_eq!(held, work, "{self:?} at {now}: charge {charge} gave back {back}");
    }
}

#[test]
fn a_leaky_bucket_answers_as_a_queue() {
    compare::<_, Queue>(LeakyBucket, queue_limit, |_, random| match random.below(4) {
        0 => Nanos::ZERO,
        1 => Nanos::new(1 + random.below(3_000_000_000)),
        2 => Nanos::new(1 + random.below(20)),
        _ => Nanos::MAX,
    });
}
