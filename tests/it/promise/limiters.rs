//! The promise, of limiters on a memory store: receipts, sweeps, and requests that are held.

use std::time::Duration;

use tokio_test::task::{Spawn, spawn};
use tollgate::{
    Decision, Error, Key, Limit, Limiter, Rule,
    bucket::{Bucket, FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket},
    store::{MemoryStore, Receipt},
    time::{BoxFuture, Clock, ManualClock, Nanos},
};

use super::{OPERATIONS_A_RUN, Promise, Start, idle, runs, some_cost};
use crate::random::{Random, each_seed};

const TODAY: u64 = 1_700_000_000_000_000_000;

/// One key's limiter, its clock and store, and what it has let start.
struct Run {
    limit: Limit,
    limiter: Limiter<u64>,
    store: MemoryStore,
    clock: ManualClock,
    now: u64,
    /// The latest time charged, given back or swept at.
    judged_at: u64,
    starts: Vec<Start>,
    told_wait: u64,
    /// As the last decision said.
    remaining: u64,
}

impl Run {
    fn new<B: Promise>(limit: Limit, wait_up_to: Option<Duration>) -> Self {
        let (store, clock) = (MemoryStore::new(), ManualClock::at(Nanos::new(TODAY)));
        let rule = Rule::new("r", limit, |_: &u64| Some(Key::from("one"))).cost(|cost| *cost).algorithm(B::THIS);
        let rule = match wait_up_to {
            Some(longest) => rule.wait_up_to(longest),
            None => rule,
        };
        let limiter = Limiter::builder([rule]).store(store.clone()).clock(clock.clone()).build().unwrap();
        Self {
            limit,
            limiter,
            store,
            clock,
            now: TODAY,
            judged_at: 0,
            starts: Vec::new(),
            told_wait: 0,
            remaining: limit.capacity(),
        }
    }

    fn pass_time(&mut self, random: &mut Random) {
        self.now += idle(random, &self.limit, self.now, self.told_wait);
        self.clock.set(Nanos::new(self.now));
    }

    fn cost(&self, random: &mut Random) -> u64 {
        some_cost(random, &self.limit, self.remaining)
    }

    fn started(&mut self, decision: &Decision, at: u64, cost: u64) -> bool {
        if let Some(wait) = decision.retry_after() {
            self.told_wait = u64::try_from(wait.as_nanos()).unwrap();
        }
        self.remaining = decision.tightest().unwrap().verdict.remaining;
        let counts = decision.is_allowed() && cost > 0;
        if counts {
            self.starts.push(Start { at, cost });
        }
        counts
    }

    fn check<B: Promise>(&self, held: bool) {
        let mut standing: Vec<_> = self.starts.iter().filter(|start| start.cost > 0).copied().collect();
        standing.sort_by_key(|start| start.at);
        B::bounds(&self.limit, &standing, held);
    }
}

/// With receipts that come back late or in part, sweeps, and threads that come late.
fn keeps_the_promise<B: Promise>(in_steps: bool) {
    each_seed(runs(), |random| {
        let mut run = Run::new::<B>(B::some_limit(random), None);
        let mut receipts: Vec<(usize, Receipt)> = Vec::new();
        // A sweep leaves its time only where there is a place to leave it.
        let _ = run.limiter.peek_now(&1).unwrap();
        for _ in 0..OPERATIONS_A_RUN {
            run.pass_time(random);
            if random.one_in(6) {
                run.clock.set(Nanos::new(run.now - random.below(1_000_000_000)));
            }
            match random.below(8) {
                0 => {
                    run.store.sweep(Nanos::new(run.now));
                    if run.store.tracked_keys() == 0 {
                        // A bucket that was dropped is not missed by who comes late.
                        run.judged_at = run.judged_at.max(run.now);
                    }
                }
                1 | 2 if !receipts.is_empty() => {
                    run.check::<B>(false);
                    let place = random.below(receipts.len() as u64) as usize;
                    let (index, mut receipt) = receipts.swap_remove(place);
                    let start = &mut run.starts[index];
                    let less = random.up_to(start.cost);
                    let kept = start.cost;
                    match random.below(4) {
                        0 => drop(receipt),
                        1 => {
                            start.cost = less;
                            receipt.settle(less);
                        }
                        2 if in_steps => {
                            start.cost = less;
                            assert!(receipt.settle_rule("r", less));
                            receipts.push((index, receipt));
                        }
                        _ => {
                            start.cost = 0;
                            receipt.give_back();
                        }
                    }
                    // A bucket that was dropped sees nothing.
                    let sees = B::SEES_WHAT_COMES_BACK && run.store.tracked_keys() > 0;
                    if sees && run.starts[index].cost < kept {
                        run.judged_at = run.judged_at.max(run.clock.now().get());
                    }
                }
                _ => {
                    let cost = run.cost(random);
                    let (decision, receipt) = run.limiter.reserve_now(&cost).unwrap();
                    let at = run.clock.now().get().max(run.judged_at);
                    if run.started(&decision, at, cost) {
                        run.judged_at = at;
                        receipts.push((run.starts.len() - 1, receipt));
                    }
                }
            }
        }
        run.check::<B>(false);
    });
}

/// A request that is held, or that was answered when it was first polled.
struct Held {
    start: usize,
    acquire: Spawn<BoxFuture<'static, Result<Decision, Error>>>,
}

/// With requests that are held until their turn, and some that give it up.
fn starts_when_promised<B: Promise>(wait_up_to: impl Fn(&Limit, &mut Random) -> Option<Duration>) {
    each_seed(runs(), |random| {
        let limit = B::some_limit(random);
        let mut run = Run::new::<B>(limit, wait_up_to(&limit, random));
        let mut held: Vec<Held> = Vec::new();
        for _ in 0..OPERATIONS_A_RUN {
            run.pass_time(random);
            held.retain_mut(|held| {
                let starts = held.acquire.poll().is_ready();
                assert_eq!(starts, run.starts[held.start].at <= run.now, "{limit}: held for as long as was said");
                !starts
            });
            if random.one_in(4) && !held.is_empty() {
                let place = random.below(held.len() as u64) as usize;
                let cancelled = held.remove(place);
                run.starts[cancelled.start].cost = 0;
                continue;
            }
            let cost = run.cost(random);
            let told = run.limiter.peek_now(&cost).unwrap();
            let limiter = run.limiter.clone();
            let acquire: BoxFuture<'static, _> = Box::pin(async move { limiter.acquire(&cost).await });
            let mut acquire = spawn(acquire);
            let answered = acquire.poll().is_ready();
            assert_eq!(answered, told.delay() == Duration::ZERO, "{limit}: {told:?}");
            let starts_at = run.now.saturating_add(u64::try_from(told.delay().as_nanos()).unwrap());
            if run.started(&told, starts_at, cost) && !answered {
                held.push(Held { start: run.starts.len() - 1, acquire });
            }
        }
        run.check::<B>(true);
    });
}

#[test]
fn a_token_bucket_rule_keeps_its_promise_with_receipts_late_threads_and_sweeps() {
    keeps_the_promise::<TokenBucket>(false);
}

#[test]
fn a_leaky_bucket_rule_keeps_its_promise_with_receipts_late_threads_and_sweeps() {
    keeps_the_promise::<LeakyBucket>(false);
}

#[test]
fn a_fixed_window_rule_keeps_its_promise_with_receipts_late_threads_and_sweeps() {
    keeps_the_promise::<FixedWindow>(true);
}

#[test]
fn a_sliding_log_rule_keeps_its_promise_with_receipts_late_threads_and_sweeps() {
    keeps_the_promise::<SlidingWindowLog>(true);
}

#[test]
fn a_sliding_counter_rule_keeps_its_promise_with_receipts_late_threads_and_sweeps() {
    keeps_the_promise::<SlidingWindowCounter>(true);
}

#[test]
fn a_token_bucket_rule_keeps_its_promise_with_charges_given_back_in_steps() {
    keeps_the_promise::<TokenBucket>(true);
}

#[test]
fn a_leaky_bucket_rule_keeps_its_promise_with_charges_given_back_in_steps() {
    keeps_the_promise::<LeakyBucket>(true);
}

#[test]
fn requests_held_by_a_leaky_bucket_start_no_closer_than_the_rate_though_turns_are_given_up() {
    starts_when_promised::<LeakyBucket>(|_, _| None);
}

#[test]
fn requests_held_by_a_token_bucket_start_within_its_bound_though_turns_are_given_up() {
    starts_when_promised::<TokenBucket>(|limit, random| {
        let longest = TokenBucket::longest_wait(limit).saturating_mul(2).min(1 << 60);
        Some(Duration::from_nanos(1 + random.up_to(longest)))
    });
}

fn one_key(limit: Limit, algorithm: impl Bucket, clock: &ManualClock) -> Limiter<u64> {
    let rule = Rule::new("r", limit, |_: &u64| Some(Key::from("one"))).cost(|cost| *cost).algorithm(algorithm);
    Limiter::builder([rule]).clock(clock.clone()).build().unwrap()
}

#[test]
fn a_charge_that_came_back_in_part_does_not_take_later_charges_along() {
    let clock = ManualClock::at(Nanos::new(TODAY));
    let limiter = one_key(Limit::per_second(1).burst(10), TokenBucket, &clock);
    let (_, mut receipt) = limiter.reserve_now(&5).unwrap();
    assert!(receipt.settle_rule("r", 3));
    clock.advance(Duration::from_secs(3));
    assert!(limiter.check_now(&6).unwrap().is_allowed(), "full again, and six of ten taken");
    receipt.give_back();
    let left = limiter.peek_now(&0).unwrap().tightest().unwrap().verdict.remaining;
    assert_eq!(left, 4, "the first charge is long refilled");
}

#[test]
fn a_place_that_came_back_in_part_does_not_take_the_next_place_along() {
    let clock = ManualClock::at(Nanos::new(TODAY));
    let limiter = one_key(Limit::per_second(1).burst(10), LeakyBucket, &clock);
    let (_, mut receipt) = limiter.reserve_now(&5).unwrap();
    assert!(receipt.settle_rule("r", 3));
    let next = limiter.clone();
    let mut next = spawn(Box::pin(async move { next.acquire(&2).await.unwrap() }));
    assert!(next.poll().is_pending(), "it starts after three seconds, and is done after five");
    receipt.give_back();
    assert_eq!(limiter.peek_now(&1).unwrap().delay(), Duration::from_secs(5), "behind the one that waits");
}
