//! What a rate limiter is asked to prove: its promises, its edge cases, and the extensions that are asked for next.

use std::{sync::Barrier, thread, time::Duration};

use tollgate::{
    Key, Limit, Limiter, Rule,
    bucket::{Ask, Bucket, FixedWindow, GivenBack, Used},
    decision::Wait,
    time::ManualClock,
};

use crate::engine::{Bench, Call, Kind, MS, S, at, per, remaining_of};

mod review;

/// A request as the web layer has it.
#[derive(Clone)]
struct Request {
    user: &'static str,
    ip: String,
    endpoint: &'static str,
    premium: bool,
}

impl Request {
    fn from(user: &'static str, ip: impl Into<String>) -> Self {
        Self { user, ip: ip.into(), endpoint: "/api", premium: false }
    }
}

fn per_user(limit: Limit) -> Rule<Request> {
    Rule::new("user", limit, |request: &Request| Some(Key::from(request.user)))
}

fn per_ip(limit: Limit) -> Rule<Request> {
    Rule::new("ip", limit, |request: &Request| Some(Key::from(&request.ip)))
}

fn limiter(rules: impl IntoIterator<Item = Rule<Request>>) -> (Limiter<Request>, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::builder(rules).clock(clock.clone()).build().unwrap(), clock)
}

fn allowed(limiter: &Limiter<Request>, request: &Request, times: usize) -> usize {
    (0..times).filter(|_| limiter.check_now(request).unwrap().is_allowed()).count()
}

// How it is proved.

#[test]
fn a_fixed_window_really_lets_twice_the_limit_through_at_an_edge() {
    let (limiter, clock) = limiter([per_user(Limit::per_second(10)).algorithm(FixedWindow)]);
    let ana = Request::from("ana", "10.0.0.1");
    clock.set(at(S - MS));
    assert_eq!(allowed(&limiter, &ana, 11), 10);
    clock.set(at(S));
    assert_eq!(allowed(&limiter, &ana, 11), 10); // twenty in a millisecond
}

#[test]
fn no_other_strategy_lets_twice_the_limit_through_at_an_edge() {
    for (kind, at_the_edge) in [(Kind::TokenBucket, 0), (Kind::SlidingWindowLog, 0), (Kind::SlidingWindowCounter, 0)] {
        let bench = Bench::new(kind, Limit::per_second(10));
        assert_eq!(bench.admitted(S - MS, 11), 10, "{kind:?}");
        assert_eq!(bench.admitted(S, 11), at_the_edge, "{kind:?}");
    }
}

#[test]
fn a_token_bucket_refills_at_exactly_the_rate_and_says_when_to_retry() {
    let (limiter, clock) = limiter([per_user(Limit::per_second(10))]);
    let ana = Request::from("ana", "10.0.0.1");
    assert_eq!(allowed(&limiter, &ana, 10), 10);
    let refused = limiter.check_now(&ana).unwrap();
    assert!(!refused.is_allowed());
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(100)));
    for _ in 0..1_000 {
        clock.advance(Duration::from_nanos(99_999_999));
        assert_eq!(allowed(&limiter, &ana, 1), 0);
        clock.advance(Duration::from_nanos(1));
        assert_eq!(allowed(&limiter, &ana, 2), 1);
    }
}

#[test]
fn a_request_refused_by_one_rule_leaves_the_others_untouched() {
    let (limiter, _clock) = limiter([per_user(Limit::per_second(5)), per_ip(Limit::per_second(1))]);
    assert_eq!(allowed(&limiter, &Request::from("ana", "10.0.0.1"), 1), 1);
    assert_eq!(allowed(&limiter, &Request::from("bo", "10.0.0.1"), 5), 0);
    let from_elsewhere = |n| Request::from("bo", format!("10.0.0.{}", n + 2));
    assert_eq!((0..6).map(|n| allowed(&limiter, &from_elsewhere(n), 1)).collect::<Vec<_>>(), [1, 1, 1, 1, 1, 0]);
}

#[test]
fn idle_clients_are_forgotten_after_one_full_period() {
    let bench = Bench::new(Kind::TokenBucket, Limit::per_second(10));
    for client in 0..1_000 {
        assert!(bench.check_as(client, 0, 1).is_allowed());
    }
    assert!(bench.check_as(0, 0, 9).is_allowed()); // this one needs the full period
    assert_eq!(bench.store.tracked_keys(), 1_000);
    bench.store.sweep(at(S - 1));
    assert_eq!(bench.store.tracked_keys(), 1);
    bench.store.sweep(at(S));
    assert_eq!(bench.store.tracked_keys(), 0);
}

#[test]
fn sixteen_threads_get_exactly_the_limit() {
    let bench = Bench::new(Kind::TokenBucket, Limit::per_second(100));
    let barrier = Barrier::new(16);
    let passed: usize = thread::scope(|scope| {
        let caller = |calls: usize| {
            let (barrier, limiter) = (&barrier, &bench.limiter);
            move || {
                barrier.wait();
                let call = Call { client: 0, cost: 1 };
                (0..calls).filter(|_| limiter.check_now(&call).unwrap().is_allowed()).count()
            }
        };
        // 1,000 requests: eight threads of 62 and eight of 63.
        let callers: Vec<_> = (0..16).map(|thread| scope.spawn(caller(62 + thread % 2))).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    assert_eq!(passed, 100);
}

// Every edge case, and where it is handled.

#[test]
fn the_first_requests_of_a_new_client_find_one_full_bucket() {
    for round in 0..50 {
        let bench = Bench::new(Kind::TokenBucket, Limit::per_second(10));
        let barrier = Barrier::new(8);
        let passed: usize = thread::scope(|scope| {
            let caller = || {
                barrier.wait();
                let call = Call { client: round, cost: 1 };
                (0..4).filter(|_| bench.limiter.check_now(&call).unwrap().is_allowed()).count()
            };
            let callers: Vec<_> = (0..8).map(|_| scope.spawn(caller)).collect();
            callers.into_iter().map(|caller| caller.join().unwrap()).sum()
        });
        assert_eq!((passed, bench.store.tracked_keys()), (10, 1));
    }
}

#[test]
fn a_clock_that_goes_back_adds_and_removes_nothing() {
    let bench = Bench::new(Kind::TokenBucket, Limit::per_second(10));
    bench.passes(10 * S, 4, 6);
    assert_eq!(bench.remaining(10 * S - 500 * MS), 6);
    bench.passes(10 * S - 500 * MS, 1, 5);
    assert_eq!(bench.remaining(10 * S), 5);
    assert_eq!(bench.remaining(5 * S), 5); // a step
    bench.passes(5 * S, 5, 0);
    bench.refuses(5 * S, 1, 100 * MS);
}

#[test]
fn a_long_pause_fills_the_bucket_to_its_size_and_no_further() {
    let bench = Bench::new(Kind::TokenBucket, Limit::per_second(10).burst(15));
    bench.passes(0, 15, 0);
    assert_eq!(bench.admitted(86_400 * S, 100), 15);
}

#[test]
fn a_refund_after_the_window_moved_on_leaves_the_count_at_zero() {
    let limit = Limit::per_second(10);
    let mut state = FixedWindow.fresh(&limit, at(0));
    let (_, mark) = FixedWindow.take(&mut state, &limit, at(0), Ask::new(3));
    FixedWindow.give_back(&mut state, &limit, at(S), GivenBack::new(3, mark));
    assert_eq!(FixedWindow.used(&state, &limit, at(S)), Used::ZERO);
    assert_eq!(FixedWindow.look(&state, &limit, at(S), Ask::new(1)).remaining, 10);
    let bench = Bench::new(Kind::FixedWindow, limit);
    let (_, receipt) = bench.limiter.reserve_now(&Call { client: 0, cost: 3 }).unwrap();
    bench.set(S);
    receipt.give_back();
    assert_eq!(bench.admitted(S, 50), 10);
}

#[test]
fn a_refund_never_fills_a_bucket_over_its_size() {
    let bench = Bench::new(Kind::TokenBucket, Limit::per_second(10));
    let (_, receipt) = bench.limiter.reserve_now(&Call { client: 0, cost: 5 }).unwrap();
    bench.set(300 * MS);
    assert_eq!(bench.remaining(300 * MS), 8);
    receipt.give_back();
    assert_eq!(bench.remaining(300 * MS), 10);
    assert_eq!(bench.admitted(300 * MS, 50), 10);
}

#[test]
fn a_limit_without_tokens_is_an_error_before_the_first_request() {
    for kind in Kind::ALL {
        let error = Limiter::builder([kind.rule("empty", Limit::per_second(0))]).build().unwrap_err();
        assert_eq!((error.rule(), error.field()), ("empty", "limit"));
        assert!(error.to_string().contains("0 permits would refuse everything"), "{error}");
    }
    let error = Limiter::builder([Kind::TokenBucket.rule("empty", Limit::per_second(1).burst(0))]).build().unwrap_err();
    assert_eq!(error.field(), "burst");
    let error = Limiter::builder([Kind::TokenBucket.rule("empty", per(1, 0))]).build().unwrap_err();
    assert_eq!(error.field(), "period");
}

#[test]
#[should_panic(expected = "0 permits would refuse everything")]
fn a_limit_without_tokens_panics_where_no_error_is_asked_for() {
    let _ = Limiter::new([Kind::TokenBucket.rule("empty", Limit::per_second(0))]);
}

/// Elsewhere, one extra token for the client whose bucket went while a request held it.
#[test]
fn sweeps_under_way_give_no_client_an_extra_token() {
    for kind in Kind::REFUSING {
        let bench = Bench::new(kind, Limit::per_second(100));
        bench.set(7 * S);
        let barrier = Barrier::new(17);
        let passed: usize = thread::scope(|scope| {
            let sweeper = scope.spawn(|| {
                barrier.wait();
                (0..200).map(|_| bench.store.sweep(at(7 * S))).sum::<usize>()
            });
            let caller = || {
                barrier.wait();
                (0..100).filter(|_| bench.limiter.check_now(&Call { client: 0, cost: 1 }).unwrap().is_allowed()).count()
            };
            let callers: Vec<_> = (0..16).map(|_| scope.spawn(caller)).collect();
            let passed = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
            assert_eq!(sweeper.join().unwrap(), 0); // a bucket in use is not a fresh one
            passed
        });
        assert_eq!(passed, 100, "{kind:?}");
    }
}

/// Buckets that are fresh, swept, and made again between two requests of one instant.
#[test]
fn a_bucket_swept_at_the_very_instant_it_is_fresh_gives_one_full_bucket() {
    let bench = Bench::new(Kind::TokenBucket, Limit::per_second(100));
    for second in 0..20 {
        bench.set(second * S);
        let barrier = Barrier::new(9);
        let passed: usize = thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                for _ in 0..50 {
                    bench.store.sweep(at(second * S));
                }
            });
            let caller = || {
                barrier.wait();
                (0..50).filter(|_| bench.limiter.check_now(&Call { client: 0, cost: 1 }).unwrap().is_allowed()).count()
            };
            let callers: Vec<_> = (0..8).map(|_| scope.spawn(caller)).collect();
            callers.into_iter().map(|caller| caller.join().unwrap()).sum()
        });
        assert_eq!(passed, 100, "at {second} s");
    }
}

// What is asked for next.

#[test]
fn premium_users_have_a_limit_of_their_own_and_an_upgrade_helps_at_once() {
    let tiers = |request: &Request| if request.premium { Limit::per_second(100) } else { Limit::per_second(10) };
    let (limiter, _clock) = limiter([per_user(Limit::per_second(10)).limit_for(tiers)]);
    let free = Request::from("ana", "10.0.0.1");
    let premium = Request { premium: true, ..Request::from("bo", "10.0.0.2") };
    assert_eq!(allowed(&limiter, &free, 200), 10);
    assert_eq!(allowed(&limiter, &premium, 200), 100);
    // Ana upgrades: the ten she used stay used.
    let upgraded = Request { premium: true, ..free };
    assert_eq!(allowed(&limiter, &upgraded, 200), 90);
}

#[test]
fn an_endpoint_may_cost_ten_and_what_can_never_pass_is_refused_as_such() {
    let costs = |request: &Request| match request.endpoint {
        "/search" => 10,
        "/export" => 20,
        _ => 1,
    };
    let (limiter, clock) = limiter([per_user(Limit::per_second(10)).cost(costs), per_ip(Limit::per_second(1_000))]);
    let read = Request::from("ana", "10.0.0.1");
    let search = Request { endpoint: "/search", ..read.clone() };
    let export = Request { endpoint: "/export", ..read.clone() };
    let refused = limiter.check_now(&export).unwrap();
    assert_eq!((refused.wait(), refused.retry_after_secs()), (Some(Wait::Never), None));
    assert_eq!(allowed(&limiter, &search, 2), 1);
    let refused = limiter.check_now(&search).unwrap();
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(1))); // until there are ten
    assert_eq!(remaining_of(&refused, "ip"), 999); // neither refusal took anything there
    clock.set(at(S / 2));
    assert_eq!(allowed(&limiter, &search, 1), 0);
    assert_eq!(allowed(&limiter, &read, 9), 5);
    clock.set(at(S / 2 + S));
    assert_eq!(allowed(&limiter, &search, 1), 1);
}

#[test]
fn a_rule_may_count_by_endpoint() {
    let by_endpoint = Rule::new("endpoint", Limit::per_second(2), |request: &Request| {
        Some(Key::from((request.user, request.endpoint)))
    });
    let (limiter, _clock) = limiter([by_endpoint]);
    let api = Request::from("ana", "10.0.0.1");
    let search = Request { endpoint: "/search", ..api.clone() };
    assert_eq!((allowed(&limiter, &api, 5), allowed(&limiter, &search, 5)), (2, 2));
}
