//! Many threads on one key, at one instant.

use std::{sync::Barrier, thread, time::Duration};

use tokio_test::task;
use tollgate::{Limiter, Rule};

use crate::engine::{Bench, Call, Kind, MS, S, per, remaining_of};

const THREADS: usize = 64;
const CALLS: usize = 50;
const CALL: Call = Call { client: 0, cost: 1 };

/// How many of 64 x 50 calls pass.
fn stampede(limiter: &Limiter<Call>) -> usize {
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        let caller = || {
            barrier.wait();
            (0..CALLS).filter(|_| limiter.check_now(&CALL).unwrap().is_allowed()).count()
        };
        let callers: Vec<_> = (0..THREADS).map(|_| scope.spawn(caller)).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    })
}

/// B49, TerminalWitchcraft/actix-ratelimit#16, langgenius/dify#39177: read and write were two steps.
#[test]
pub(crate) fn exactly_the_limit_passes_of_a_stampede_under_every_strategy() {
    for kind in Kind::REFUSING {
        let bench = Bench::new(kind, per(100, 60 * S));
        bench.set(7 * S);
        assert_eq!(stampede(&bench.limiter), 100, "{kind:?}");
        assert_eq!(bench.remaining(7 * S), 0, "{kind:?}");
        assert_eq!(stampede(&bench.limiter), 0, "{kind:?}");
        assert_eq!(bench.store.tracked_keys(), 1, "{kind:?}");
        bench.set(127 * S);
        assert_eq!(stampede(&bench.limiter), 100, "{kind:?}, two windows later");
    }
    // Nobody is held, so one starts now.
    let queue = Bench::new(Kind::LeakyBucket, per(100, 60 * S));
    assert_eq!(stampede(&queue.limiter), 1);
}

#[test]
pub(crate) fn a_stampede_gets_exactly_the_places_of_a_queue_each_with_a_turn_of_its_own() {
    let bench = Bench::new(Kind::LeakyBucket, per(100, S));
    let (start, end) = (Barrier::new(THREADS), Barrier::new(THREADS));
    let mut turns: Vec<Duration> = thread::scope(|scope| {
        let caller = || {
            start.wait();
            let mut held = Vec::new();
            let mut turns = Vec::new();
            for _ in 0..CALLS {
                let due = bench.limiter.peek_now(&CALL).unwrap().delay();
                let mut turn = task::spawn(bench.limiter.acquire(&CALL));
                match turn.poll() {
                    std::task::Poll::Ready(decision) => {
                        let decision = decision.unwrap();
                        if decision.is_allowed() {
                            turns.push(decision.delay());
                        }
                    }
                    std::task::Poll::Pending => {
                        assert!(due <= Duration::from_millis(990));
                        held.push(turn);
                    }
                }
            }
            // All hold their turns until everybody has asked, since a turn that is dropped may come back.
            if end.wait().is_leader() {
                bench.clock.advance(Duration::from_secs(1));
            }
            end.wait();
            turns.extend(held.into_iter().map(|mut turn| match turn.poll() {
                std::task::Poll::Ready(decision) => decision.unwrap().delay(),
                std::task::Poll::Pending => panic!("held for more than its turn"),
            }));
            turns
        };
        let callers: Vec<_> = (0..THREADS).map(|_| scope.spawn(caller)).collect();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });
    turns.sort_unstable();
    let expected: Vec<_> = (0..100).map(|turn| Duration::from_nanos(turn * 10 * MS)).collect();
    assert_eq!(turns, expected);
}

#[test]
pub(crate) fn two_rules_have_charged_what_passed_of_a_stampede() {
    for kind in Kind::REFUSING {
        for (one, other) in [(100, 120), (120, 100)] {
            let bench = Bench::of([kind.rule("one", per(one, 60 * S)), kind.rule("other", per(other, 60 * S))]);
            assert_eq!(stampede(&bench.limiter), 100, "{kind:?}");
            let decision = bench.check(0, 1);
            assert_eq!(remaining_of(&decision, "one"), one - 100, "{kind:?}");
            assert_eq!(remaining_of(&decision, "other"), other - 100, "{kind:?}");
        }
    }
}

/// Rules in opposite orders on one store: no deadlock, and one count.
#[test]
pub(crate) fn limiters_with_opposite_orders_of_rules_stampede_together() {
    let global = || Rule::global("all", per(100, 60 * S)).cost(|call: &Call| call.cost);
    let bench = Bench::of([Kind::TokenBucket.rule("client", per(150, 60 * S)), global()]);
    let other = Limiter::builder([global(), Kind::TokenBucket.rule("client", per(150, 60 * S))])
        .store(bench.store.clone())
        .clock(bench.clock.clone())
        .build()
        .unwrap();
    let passed: usize = thread::scope(|scope| {
        let one = scope.spawn(|| stampede(&bench.limiter));
        let other = scope.spawn(|| stampede(&other));
        one.join().unwrap() + other.join().unwrap()
    });
    assert_eq!(passed, 100);
    assert_eq!(remaining_of(&bench.check(0, 1), "client"), 50);
}

/// The stored number went below 0 and was read back as a huge one.
#[test]
pub(crate) fn nothing_is_left_below_zero_when_charges_come_back_during_a_stampede() {
    for kind in Kind::REFUSING {
        let bench = Bench::new(kind, per(100, 60 * S));
        let barrier = Barrier::new(THREADS);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    for _ in 0..CALLS {
                        let (_, receipt) = bench.limiter.reserve_now(&CALL).unwrap();
                        receipt.give_back();
                    }
                });
            }
        });
        let (left, all) = (bench.remaining(0), 100);
        assert!(left <= all, "{kind:?}");
        if kind != Kind::TokenBucket {
            assert_eq!(left, all, "{kind:?}"); // a window's charge comes back whole
        }
        assert_eq!(bench.admitted(120 * S, 200), 100, "{kind:?}");
    }
}
