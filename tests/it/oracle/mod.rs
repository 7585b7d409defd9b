//! Every algorithm against a naive model of it: a literal token bucket, a queue, a list of charges.
//!
//! The models keep whole numbers of parts (a permit has as many parts as its period has nanoseconds), so that they are
//! exact too, but say what they mean in another way than the sources do.

mod leaky_bucket;
mod token_bucket;
mod windows;

use tollgate::{
    Limit,
    bucket::{Ask, Bucket, FixedWindow, GivenBack, LeakyBucket, Mark, SlidingWindowCounter, TokenBucket, Used},
    decision::{Outcome, Wait},
    time::Nanos,
};

use crate::random::{Random, each_seed, from_env, period};

/// What the model says of a request.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    outcome: Outcome,
    remaining: u64,
    reset: u64,
}

/// An algorithm, said naively. Times never go back.
trait Model {
    fn new(limit: &Limit) -> Self;

    /// What `ask` would be answered at `now`.
    fn answer(&self, now: u64, ask: Ask) -> Answer;

    /// What a charge of `ask` is answered, once it has been taken at `now`.
    fn after_take(&self, now: u64, ask: Ask, before: &Answer) -> Answer {
        let outcome = match before.outcome {
            Outcome::Delay(delay) if ask.max_delay > Nanos::ZERO => Outcome::Delay(delay),
            _ => Outcome::Pass,
        };
        Answer { outcome, ..self.answer(now, Ask::new(0).keep(ask.keep)) }
    }

    /// Charges `cost` at `now`, as the charge after the last one.
    fn take(&mut self, now: u64, cost: u64);

    /// Gives `back` of the `charge`-th charge back at `now`; the bucket says that `held` is used after it.
    fn give_back(&mut self, now: u64, charge: usize, back: u64, held: Used);
}

/// One charge that the driver may still give back.
struct Given {
    number: usize,
    cost: u64,
    mark: Mark,
}

const OPERATIONS_A_RUN: u64 = 100;

/// Drives the bucket and its model with the same random operations.
fn compare<B: Bucket + Copy, M: Model>(
    bucket: B,
    limit_of: impl Fn(&mut Random) -> Limit,
    delay_of: impl Fn(&Limit, &mut Random) -> Nanos,
) {
    let operations = from_env("TOLLGATE_OPERATIONS", 100_000);
    each_seed(operations.div_ceil(OPERATIONS_A_RUN), |random| {
        let limit = limit_of(random);
        assert_eq!(bucket.check(&limit), Ok(()));
        Run::<B, M>::new(bucket, limit, delay_of(&limit, random), random).operate(random);
    });
}

struct Run<B: Bucket, M> {
    bucket: B,
    limit: Limit,
    max_delay: Nanos,
    state: B::State,
    model: M,
    now: u64,
    told_wait: u64,
    remaining: u64,
    taken: usize,
    given: Vec<Given>,
}

impl<B: Bucket, M: Model> Run<B, M> {
    fn new(bucket: B, limit: Limit, max_delay: Nanos, random: &mut Random) -> Self {
        // The epoch, today, and the edge of a window.
        let now = match random.below(4) {
            0 => 0,
            1 => period(&limit) - 1,
            _ => 1_700_000_000_000_000_000 + random.below(10_000_000_000),
        };
        let state = bucket.fresh(&limit, Nanos::new(now));
        let (model, remaining) = (M::new(&limit), limit.capacity());
        Self { bucket, limit, max_delay, state, model, now, told_wait: 0, remaining, taken: 0, given: Vec::new() }
    }

    fn operate(&mut self, random: &mut Random) {
        for _ in 0..OPERATIONS_A_RUN {
            self.now += self.idle(random);
            match random.below(20) {
                0..=13 => self.ask(random),
                // More than there is room for, as settling up charges; where a count can hold it.
                14 if self.limit.capacity() < u64::MAX => {
                    self.take(Ask::new(1 + random.up_to(self.limit.capacity().min(1 << 56))));
                }
                14 | 15 => self.drop_if_fresh(),
                _ => self.give_back(random),
            }
        }
    }

    /// How long nothing happens, with a bound so that time does not run out.
    fn idle(&self, random: &mut Random) -> u64 {
        let period = period(&self.limit);
        let idle = match random.below(20) {
            0..=7 => 0,
            8 => 1,
            9 => random.below(20),
            10 => random.below(period.div_ceil(self.limit.permits()).saturating_mul(3) + 1),
            11 => random.up_to(period),
            12..=14 => self.told_wait,
            15 => self.told_wait.saturating_sub(1),
            // Exactly to the edge of a window, and just short of it.
            16 => period - self.now % period,
            17 => (period - self.now % period) - 1,
            18 => random.up_to(period.saturating_mul(3)),
            _ => period.saturating_mul(2),
        };
        idle.min(u64::MAX / 2 / OPERATIONS_A_RUN)
    }

    fn at(&self) -> Nanos {
        Nanos::new(self.now)
    }

    fn ask(&mut self, random: &mut Random) {
        let capacity = self.limit.capacity();
        let cost = match random.below(12) {
            0 => 0,
            1..=4 => 1,
            5 | 6 => random.below(5),
            7 => random.up_to(capacity),
            8 => self.remaining,
            9 => self.remaining.saturating_add(1),
            10 => capacity,
            _ => capacity.saturating_add(1 + random.below(3)),
        };
        // The sum is kept within what there is; beyond it is a case of its own.
        let keep = if random.one_in(8) { random.below(4).min(u64::MAX - cost) } else { 0 };
        let ask = Ask::new(cost).keep(keep).max_delay(self.max_delay);
        let verdict = self.bucket.look(&self.state, &self.limit, self.at(), ask);
        let answer = Answer {
            outcome: verdict.outcome,
            remaining: verdict.remaining,
            reset: verdict.reset.expect("time alone tells").get(),
        };
        assert_eq!(answer, self.model.answer(self.now, ask), "{} at {}: {ask:?}", self.limit, self.now);
        self.remaining = verdict.remaining;
        match verdict.outcome {
            Outcome::Refuse(Wait::For(wait)) => self.wait_is_true(ask, wait.get()),
            Outcome::Refuse(_) => {}
            _ if cost > 0 => self.take(ask),
            _ => {}
        }
    }

    /// The same request passes after the told wait and not one step earlier.
    fn wait_is_true(&mut self, ask: Ask, wait: u64) {
        let passes = |at: u64| self.bucket.look(&self.state, &self.limit, Nanos::new(at), ask).outcome.passes();
        assert!(wait > 0, "{}: told to wait for no time", self.limit);
        assert!(passes(self.now + wait), "{} at {}: {ask:?} does not pass after {wait}", self.limit, self.now);
        assert!(!passes(self.now + wait - 1), "{} at {}: {ask:?} passes before {wait}", self.limit, self.now);
        self.told_wait = wait;
    }

    fn take(&mut self, ask: Ask) {
        let before = self.model.answer(self.now, ask);
        let (verdict, mark) = self.bucket.take(&mut self.state, &self.limit, Nanos::new(self.now), ask);
        self.model.take(self.now, ask.cost);
        let after = Answer {
            outcome: verdict.outcome,
            remaining: verdict.remaining,
            reset: verdict.reset.expect("time alone tells").get(),
        };
        assert_eq!(after, self.model.after_take(self.now, ask, &before), "{} at {}: {ask:?}", self.limit, self.now);
        self.given.push(Given { number: self.taken, cost: ask.cost, mark });
        self.taken += 1;
        self.remaining = verdict.remaining;
    }

    /// A charge is given back once, whole or in part: that it is only once is what a `Receipt` sees to.
    fn give_back(&mut self, random: &mut Random) {
        let Some(last) = self.given.len().checked_sub(1) else { return };
        let place = if random.one_in(2) { last } else { random.up_to(last as u64) as usize };
        let given = self.given.remove(place);
        let back = if random.one_in(4) { random.up_to(given.cost) } else { given.cost };
        let charge = GivenBack::new(back, given.mark).delays(self.max_delay > Nanos::ZERO);
        self.bucket.give_back(&mut self.state, &self.limit, Nanos::new(self.now), charge);
        let held = self.bucket.used(&self.state, &self.limit, self.at());
        self.model.give_back(self.now, given.number, back, held);
    }

    /// What may be dropped is dropped, and nothing that follows may show it.
    fn drop_if_fresh(&mut self) {
        if self.bucket.fresh_at(&self.state, &self.limit) <= self.at() {
            self.state = self.bucket.fresh(&self.limit, self.at());
        }
    }
}

/// Parts that drain at `rate` a nanosecond: how long until `parts` are gone, rounded up.
fn time_for(parts: i128, rate: i128) -> u64 {
    if parts <= 0 { 0 } else { u64::try_from((parts + rate - 1) / rate).unwrap() }
}

fn needs_more_than_there_is(bucket: impl Bucket) {
    let limit = Limit::new(u64::MAX, std::time::Duration::from_secs(1));
    let limit = if bucket.check(&limit).is_ok() { limit } else { limit.burst(u64::MAX) };
    let state = bucket.fresh(&limit, Nanos::ZERO);
    let verdict = bucket.look(&state, &limit, Nanos::ZERO, Ask::new(u64::MAX).keep(1));
    assert_eq!(verdict.outcome, Outcome::Refuse(Wait::Never), "{bucket:?}");
}

#[test]
fn a_cost_and_what_must_be_left_are_not_taken_for_less_where_their_sum_is_too_large() {
    needs_more_than_there_is(TokenBucket);
    needs_more_than_there_is(LeakyBucket);
    needs_more_than_there_is(FixedWindow);
    needs_more_than_there_is(SlidingWindowCounter);
}
