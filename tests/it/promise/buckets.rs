//! The promise, of the buckets themselves.

use tollgate::{
    Limit,
    bucket::{
        Ask, Bucket, FixedWindow, GivenBack, LeakyBucket, Mark, SlidingWindowCounter, SlidingWindowLog, TokenBucket,
    },
    decision::{Outcome, Wait},
    time::Nanos,
};

use super::{OPERATIONS_A_RUN, Promise, Start, idle, runs, some_cost};
use crate::random::{Random, each_seed};

struct Given {
    start: usize,
    mark: Mark,
}

/// One bucket, asked as a store asks it.
struct Run<B: Promise> {
    limit: Limit,
    held: Limit,
    max_delay: Nanos,
    state: B::State,
    now: u64,
    /// The latest time charged at, which is when a thread that comes late is judged.
    charged_at: u64,
    starts: Vec<Start>,
    given: Vec<Given>,
    told_wait: u64,
}

impl<B: Promise> Run<B> {
    fn new(limit: Limit, max_delay: Nanos) -> Self {
        let now = 1_700_000_000_000_000_000;
        let state = B::THIS.fresh(&limit, Nanos::new(now));
        let (starts, given) = (Vec::new(), Vec::new());
        Self { limit, held: limit, max_delay, state, now, charged_at: 0, starts, given, told_wait: 0 }
    }

    fn operate(&mut self, random: &mut Random) {
        for _ in 0..OPERATIONS_A_RUN {
            self.now += idle(random, &self.limit, self.now, self.told_wait);
            let late = if random.one_in(6) { random.below(1_000_000_000) } else { 0 };
            let judged = B::THIS.judge_at(&mut self.state, &mut self.held, &self.limit, Nanos::new(self.now - late));
            assert_eq!(
                judged.get(),
                (self.now - late).max(self.charged_at),
                "a late thread is judged at the bucket's time"
            );
            if random.one_in(4) {
                self.check();
                self.give_back(random, judged);
            } else {
                self.ask(random, judged);
            }
        }
        self.check();
    }

    fn ask(&mut self, random: &mut Random, now: Nanos) {
        let remaining = B::THIS.look(&self.state, &self.limit, now, Ask::new(0)).remaining;
        let ask = Ask::new(some_cost(random, &self.limit, remaining)).max_delay(self.max_delay);
        let delay = match B::THIS.look(&self.state, &self.limit, now, ask).outcome {
            Outcome::Pass => Nanos::ZERO,
            Outcome::Delay(delay) => delay,
            Outcome::Refuse(Wait::For(wait)) => return self.told_wait = wait.get(),
            Outcome::Refuse(_) => return,
            other => panic!("an outcome nobody knows: {other:?}"),
        };
        if ask.cost == 0 {
            return;
        }
        assert!(delay <= self.max_delay);
        let (verdict, mark) = B::THIS.take(&mut self.state, &self.limit, now, ask);
        let told = match verdict.outcome {
            Outcome::Delay(told) => told,
            _ => Nanos::ZERO,
        };
        assert_eq!(told, delay, "the delay that was told first is the one that holds");
        self.charged_at = now.get();
        self.given.push(Given { start: self.starts.len(), mark });
        self.starts.push(Start { at: now.get() + delay.get(), cost: ask.cost });
    }

    fn give_back(&mut self, random: &mut Random, now: Nanos) {
        let Some(last) = self.given.len().checked_sub(1) else { return };
        let place = if random.one_in(2) { last } else { random.up_to(last as u64) as usize };
        let given = self.given.remove(place);
        let start = &mut self.starts[given.start];
        // Only what has started can turn out to cost less than it was charged.
        let in_part = start.at <= now.get() && random.one_in(4);
        let back = if in_part { random.up_to(start.cost) } else { start.cost };
        start.cost -= back;
        let charge = GivenBack::new(back, given.mark).delays(self.max_delay > Nanos::ZERO);
        B::THIS.give_back(&mut self.state, &self.limit, now, charge);
    }

    /// Also before something comes back: until then it stood.
    fn check(&self) {
        let mut standing: Vec<_> = self.starts.iter().filter(|start| start.cost > 0).copied().collect();
        standing.sort_by_key(|start| start.at);
        B::bounds(&self.limit, &standing, self.max_delay > Nanos::ZERO);
    }
}

fn keeps_the_promise<B: Promise>(delay_of: impl Fn(&Limit, &mut Random) -> Nanos) {
    each_seed(runs(), |random| {
        let limit = B::some_limit(random);
        Run::<B>::new(limit, delay_of(&limit, random)).operate(random);
    });
}

#[test]
fn a_token_bucket_lets_through_its_capacity_and_the_rate_in_any_interval() {
    keeps_the_promise::<TokenBucket>(|_, _| Nanos::ZERO);
}

#[test]
fn a_token_bucket_that_holds_requests_starts_no_more_with_turns_cancelled() {
    keeps_the_promise::<TokenBucket>(|limit, random| {
        Nanos::new(1 + random.up_to(TokenBucket::longest_wait(limit).saturating_mul(2).min(1 << 60)))
    });
}

#[test]
fn a_leaky_bucket_starts_requests_no_closer_than_the_rate() {
    keeps_the_promise::<LeakyBucket>(
        |_, random| if random.one_in(2) { Nanos::MAX } else { Nanos::new(random.below(1 << 33)) },
    );
}

#[test]
fn a_fixed_window_lets_no_more_through_than_its_permits() {
    keeps_the_promise::<FixedWindow>(|_, _| Nanos::ZERO);
}

#[test]
fn a_sliding_log_lets_no_more_through_in_any_window() {
    keeps_the_promise::<SlidingWindowLog>(|_, _| Nanos::ZERO);
}

#[test]
fn a_sliding_counter_lets_fewer_than_twice_its_permits_through_in_any_window() {
    keeps_the_promise::<SlidingWindowCounter>(|_, _| Nanos::ZERO);
}

#[test]
fn evenly_spread_requests_do_not_double_at_the_edge_of_a_sliding_counters_windows() {
    each_seed(runs() / 10, |random| {
        let permits = 2 + random.below(40);
        let period = permits * (1 + random.below(1_000));
        let limit = Limit::new(permits, std::time::Duration::from_nanos(period));
        let mut state = SlidingWindowCounter.fresh(&limit, Nanos::ZERO);
        for number in 0..permits {
            let at = Nanos::new(number * period / permits);
            assert!(SlidingWindowCounter.look(&state, &limit, at, Ask::new(1)).outcome.passes());
            let _ = SlidingWindowCounter.take(&mut state, &limit, at, Ask::new(1));
        }
        // Whoever asks for all there is, as often as there is any, gets no more than time has made room for.
        let mut passed = 0;
        let mut at = period;
        while at < 2 * period {
            let remaining = SlidingWindowCounter.look(&state, &limit, Nanos::new(at), Ask::new(0)).remaining;
            if remaining > 0 {
                let _ = SlidingWindowCounter.take(&mut state, &limit, Nanos::new(at), Ask::new(remaining));
                passed += remaining;
            }
            let still_in = (0..permits).filter(|number| at - number * period / permits < period).count() as u64;
            assert!(passed + still_in <= permits, "{limit}: {passed} and {still_in} at {at}");
            at += 1 + random.below(period / 50 + 1);
        }
    });
}
