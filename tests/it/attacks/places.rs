//! Places in flight, and the lines of those who wait for one.

use std::{
    collections::VecDeque,
    future::pending,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    task::{Context, Poll, Wake, Waker},
};

use tokio_test::{assert_pending, task};
use tollgate::{RateLimitLayer, bucket::LeakyBucket, store::Receipt, time::BoxFuture};
use tower::{Layer, Service};

use super::*;
use crate::{
    random::{Random, each_seed, from_env},
    soon::ends,
    support::limiter,
};

/// A request: whose, and how many places it takes.
type Ask = (u64, u64);

const LONGEST: Duration = Duration::from_secs(30);

fn places(most: u64) -> Rule<Ask> {
    Rule::new("places", Limit::in_flight(most), |ask: &Ask| Some(Key::from(ask.0))).cost(|ask: &Ask| ask.1)
}

fn free(limiter: &Limiter<Ask>, key: u64) -> u64 {
    let decision = limiter.peek_now(&(key, 1)).unwrap();
    decision.rules().find(|rule| rule.rule == "places").unwrap().verdict.remaining
}

/// One client that is over its rate cannot fill the line for what all share.
#[test]
fn who_is_refused_anyway_stands_in_nobodys_way() {
    let clock = ManualClock::new();
    let rate = Rule::new("rate", Limit::per_minute(1), |ask: &Ask| Some(Key::from(ask.0)));
    let all = Rule::global("all", Limit::in_flight(2)).cost(|ask: &Ask| ask.1).queue(2, LONGEST);
    let limiter = limiter(vec![rate, all], &clock);
    let acquire = |ask: Ask| {
        let limiter = limiter.clone();
        task::spawn(async move { limiter.acquire_receipt(&ask).await.unwrap() })
    };
    let Poll::Ready((_, held)) = acquire((1, 2)).poll() else { panic!("the places are free") };
    let mut first = acquire((2, 1));
    assert_pending!(first.poll());
    for (refused, rule) in [((1, 1), "rate"), ((1, 1), "rate"), ((3, 3), "all")] {
        let Poll::Ready((decision, _)) = acquire(refused).poll() else { panic!("{refused:?} waits for nothing") };
        assert_eq!(decision.violated().next(), Some(rule));
    }
    let mut second = acquire((4, 1));
    assert_pending!(second.poll(), "there is room in the line");
    drop(held);
    assert!(first.poll().is_ready() && second.poll().is_ready());
}

/// Answers at once, and breaks when it is told to.
#[derive(Clone)]
struct Breaks(Arc<AtomicBool>);

impl Service<Ask> for Breaks {
    type Response = u64;
    type Error = &'static str;
    type Future = std::future::Ready<Result<u64, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(if self.0.load(Ordering::Relaxed) { Err("broken") } else { Ok(()) })
    }

    fn call(&mut self, ask: Ask) -> Self::Future {
        std::future::ready(Ok(ask.0))
    }
}

#[test]
fn a_service_that_breaks_while_a_request_was_held_frees_the_place_before_the_future_is_dropped() {
    let clock = ManualClock::new();
    let starts = Rule::global("starts", Limit::per_second(1).burst(9)).algorithm(LeakyBucket);
    let limiter = limiter(vec![starts, places(1)], &clock);
    let broken = Arc::new(AtomicBool::new(false));
    let mut limited = RateLimitLayer::from(limiter.clone()).refuse_with(|_, _| 0).layer(Breaks(Arc::clone(&broken)));
    assert!(task::spawn(limited.call((1, 1))).poll().is_ready());
    let mut held = task::spawn(limited.call((2, 1)));
    assert_pending!(held.poll());
    assert_eq!(free(&limiter, 2), 0);
    broken.store(true, Ordering::Relaxed);
    clock.advance(Duration::from_secs(1));
    assert_eq!(held.poll(), Poll::Ready(Err("broken")));
    assert_eq!(free(&limiter, 2), 1);
}

/// Keeps no waker itself.
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Nanos {
        Nanos::ZERO
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(pending())
    }
}

/// A waker that is the last to know of something which, dropped, looks at the lines.
struct LeadsBack(Limiter<Ask>);

impl Wake for LeadsBack {
    fn wake(self: Arc<Self>) {}
}

impl Drop for LeadsBack {
    fn drop(&mut self) {
        assert!(!self.0.reserve_now(&(1, 1)).unwrap().0.is_allowed());
    }
}

#[test]
fn a_waker_may_lead_back_to_the_line_that_keeps_it() {
    for polled_again in [false, true] {
        ends("deadlock: the waker was dropped under the line's lock", move || {
            let limiter = Limiter::builder([places(1).queue(9, LONGEST)]).clock(Stopped).build().unwrap();
            let (_, _held) = limiter.reserve_now(&(1, 1)).unwrap();
            let mut waits = Box::pin(limiter.acquire_receipt(&(1, 1)));
            let waker = Waker::from(Arc::new(LeadsBack(limiter.clone())));
            assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            drop(waker);
            if polled_again {
                assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            }
            drop(waits);
        });
    }
}

/// A place that was never counted must not free somebody else's.
#[test]
fn what_is_settled_beyond_all_counting_frees_nobody_elses_place() {
    let limiter = limiter(vec![places(4)], &ManualClock::new());
    let (_, mut greedy) = limiter.reserve_now(&(1, 1)).unwrap();
    let (_, other) = limiter.reserve_now(&(1, 1)).unwrap();
    assert!(greedy.settle_rule("places", u64::MAX));
    assert_eq!(free(&limiter, 1), 0);
    drop(greedy);
    assert_eq!(free(&limiter, 1), 3);
    drop(other);
    assert_eq!(free(&limiter, 1), 4);
}

#[test]
fn what_is_settled_where_nobody_counts_frees_nobody_elses_place() {
    let store = MemoryStore::builder().max_keys(1).overflow(Overflow::Refuse).build();
    let limiter = Limiter::builder([places(2)]).store(store).clock(ManualClock::new()).build().unwrap();
    let (_, full) = limiter.reserve_now(&(2, 1)).unwrap();
    let (_, mut nothing) = limiter.reserve_now(&(1, 0)).unwrap();
    assert!(nothing.settle_rule("places", 1), "there is no room for this key");
    drop(full);
    let (_, _own) = limiter.reserve_now(&(1, 1)).unwrap();
    assert_eq!(free(&limiter, 1), 1);
    drop(nothing);
    assert_eq!(free(&limiter, 1), 1);
}

/// What a random walk does to the places of a few keys, and what they should be.
struct Walk {
    clock: ManualClock,
    store: MemoryStore,
    limiter: Limiter<Ask>,
    most: Arc<AtomicU64>,
    keys: u64,
    /// Whose, how many, and what ends them.
    held: VecDeque<(u64, u64, Receipt)>,
}

impl Walk {
    fn new(random: &mut Random) -> Self {
        let (clock, most) = (ManualClock::at(Nanos::from_secs(10_000)), Arc::new(AtomicU64::new(3)));
        let overflow = Overflow::Share(1 + random.below(3) as usize);
        let store = MemoryStore::builder().max_keys(1 + random.below(4) as usize).overflow(overflow).build();
        let limiter = Limiter::builder([Self::rule(&most)]).store(store.clone()).clock(clock.clone()).build().unwrap();
        Self { clock, store, limiter, most, keys: 1 + random.below(8), held: VecDeque::new() }
    }

    fn rule(most: &Arc<AtomicU64>) -> Rule<Ask> {
        let most = Arc::clone(most);
        places(3).limit_for(move |_| Limit::in_flight(most.load(Ordering::Relaxed)))
    }

    fn step(&mut self, random: &mut Random) {
        let (key, most) = (random.below(self.keys), self.most.load(Ordering::Relaxed));
        match random.below(16) {
            0..=6 => {
                let cost = random.below(3);
                let runs: u64 = self.held.iter().filter(|held| held.0 == key).map(|held| held.1).sum();
                let (decision, receipt) = self.limiter.reserve_now(&(key, cost)).unwrap();
                if decision.is_allowed() {
                    assert!(cost == 0 || runs + cost <= most, "{runs} + {cost} of {most}");
                    self.held.push_back((key, cost, receipt));
                } else {
                    assert!(cost > most || self.held.iter().any(|held| held.1 > 0), "nothing runs: {decision:?}");
                }
            }
            7..=9 => {
                self.held.rotate_left((random.below(9) as usize).min(self.held.len()));
                let Some((_, _, receipt)) = self.held.pop_front() else { return };
                match random.below(4) {
                    0 => receipt.give_back(),
                    1 => receipt.keep(),
                    2 => receipt.settle(random.below(5)),
                    _ => drop(receipt),
                }
            }
            10 => {
                if let Some((_, cost, receipt)) = self.held.front_mut() {
                    *cost = random.below(5);
                    assert!(receipt.settle_rule("places", *cost) || self.store.tracked_keys() > 0);
                }
            }
            11 => self.most.store(1 + random.below(5), Ordering::Relaxed),
            12 => self.clock.set(Nanos::from_secs(random.below(20_000))),
            13 => drop(self.store.sweep(self.clock.now())),
            14 => tokio_test::block_on(self.limiter.reset("places", Key::from(key))).unwrap(),
            _ => self.reload(key, random),
        }
    }

    fn reload(&self, key: u64, random: &mut Random) {
        let rule = || Self::rule(&self.most);
        let between = match random.below(4) {
            0 => vec![rule()],
            1 => vec![],
            2 => vec![rule().named("other").was("places")],
            _ => vec![Rule::new("places", Limit::per_second(5), |ask: &Ask| Some(Key::from(ask.0)))],
        };
        self.limiter.reload(between).unwrap();
        drop(self.limiter.reserve_now(&(key, 1)).unwrap());
        let back = if self.limiter.peek_now(&(key, 1)).unwrap().rules().any(|rule| rule.rule == "other") {
            rule().was("other")
        } else {
            rule()
        };
        self.limiter.reload([back]).unwrap();
    }
}

#[test]
fn no_place_is_lost_or_freed_twice_whatever_happens_to_its_rule_meanwhile() {
    each_seed(from_env("TOLLGATE_PLACES", 100), |random| {
        let mut walk = Walk::new(random);
        for _ in 0..200 {
            walk.step(random);
        }
        walk.held.clear();
        walk.most.store(3, Ordering::Relaxed);
        walk.store.sweep(walk.clock.now());
        assert_eq!(walk.store.tracked_keys(), 0);
        assert!((0..walk.keys).all(|key| free(&walk.limiter, key) == 3));
    });
}
