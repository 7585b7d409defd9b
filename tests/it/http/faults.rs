//! Faults that other rate limiters were published with, each with its source, and what is right.

use axum::{extract::Request, http::Method};
use proptest::prelude::*;
use tollgate::{
    Limit, Rule,
    bucket::{FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog},
    time::Nanos,
};

use super::*;

fn cost_of(request: &Request) -> u64 {
    request.headers().get("x-cost").map_or(1, |cost| cost.to_str().unwrap().parse().unwrap())
}

async fn send_cost(app: &Router, cost: u64) -> Answer {
    send(app, request(Method::GET, &[("x-cost", &cost.to_string())])).await
}

/// Status and, of a refusal, `Retry-After`.
async fn told(app: &Router) -> (u16, Option<u64>) {
    let answer = get_root(app).await;
    (answer.status.as_u16(), answer.has("retry-after").then(|| answer.retry_after()))
}

#[tokio::test]
async fn a_wait_under_a_second_is_told_as_one_and_not_as_zero() {
    // brandur/redis-cell#56: a wait of 0.105712425 s was told as 0, so clients came back at once.
    let clock = ManualClock::new();
    let app = app([Rule::global("all", Limit::per_second(1))], &clock);
    assert_eq!(told(&app).await, (200, None));
    clock.advance(SECOND - Duration::from_nanos(105_712_425));
    assert_eq!(told(&app).await, (429, Some(1)));
    clock.advance(Duration::from_nanos(105_712_424));
    assert_eq!(told(&app).await, (429, Some(1)));
    clock.advance(Duration::from_nanos(1));
    assert_eq!(told(&app).await, (200, None));
}

#[tokio::test]
async fn a_window_that_ends_just_now_tells_neither_zero_nor_less() {
    // alisaifee/flask-limiter#62: at the edge of a window 0 was told, and then about -1,480,000,000: the expiry was
    // gone when it was read. traefik/traefik#8573: a wait that was told is long enough, and no longer than it need be.
    let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
    let app = app([Rule::global("all", Limit::new(1, SECOND * 10)).algorithm(FixedWindow)], &clock);
    assert_eq!(told(&app).await, (200, None));
    clock.advance(SECOND * 7);
    assert_eq!(told(&app).await, (429, Some(3)), "exactly three seconds are three, not four");
    clock.advance(Duration::from_nanos(2_999_900_000));
    assert_eq!(told(&app).await, (429, Some(1)));
    clock.advance(Duration::from_nanos(100_000));
    assert_eq!(told(&app).await, (200, None));
}

#[tokio::test]
async fn waits_are_told_in_digits_alone() {
    // getsentry/sentry#7919, SpaceTradersAPI/api-docs#24: "0.493" and "292.052427053" broke standard clients.
    for (wait, told) in [
        (Duration::from_millis(493), "1"),
        (Duration::from_nanos(292_052_427_053), "293"),
        (SECOND * 58, "58"),
        (SECOND * 1_000_000_000, "1000000000"),
    ] {
        let clock = ManualClock::new();
        let app = app([Rule::global("all", Limit::new(1, wait))], &clock);
        let _passed = get_root(&app).await;
        assert_eq!(get_root(&app).await.field("retry-after"), told);
    }
}

#[tokio::test]
async fn a_fixed_window_tells_what_is_left_of_it() {
    // dotnet/runtime#92557: the whole window was told, whenever it was asked.
    let clock = ManualClock::new();
    let app = app([Rule::global("all", Limit::per_minute(1)).algorithm(FixedWindow)], &clock);
    assert_eq!(told(&app).await, (200, None));
    clock.advance(SECOND * 45);
    assert_eq!(told(&app).await, (429, Some(15)));
    clock.advance(Duration::from_millis(14_500));
    assert_eq!(told(&app).await, (429, Some(1)));
    clock.advance(Duration::from_millis(500));
    assert_eq!(told(&app).await, (200, None));
}

#[tokio::test]
async fn what_costs_more_than_fits_is_refused_for_good_and_charges_nothing() {
    // boinkor-net/governor#11: one more than fits came back as an ordinary refusal with a time, so callers that
    // waited for it never finished.
    let limit = Limit::new(10, SECOND * 10);
    for rule in [
        Rule::global("all", limit),
        Rule::global("all", limit).algorithm(FixedWindow),
        Rule::global("all", limit).algorithm(SlidingWindowLog),
        Rule::global("all", limit).algorithm(SlidingWindowCounter),
        Rule::global("all", limit.burst(10)).algorithm(LeakyBucket),
    ] {
        let clock = ManualClock::new();
        let app = app([rule.cost(cost_of)], &clock);
        for cost in [11, u64::MAX] {
            let answer = send_cost(&app, cost).await;
            assert_eq!(answer.status, 429);
            assert!(!answer.has("retry-after"), "no wait helps");
            assert_eq!(answer.field("x-ratelimit-remaining"), "10");
            assert!(answer.problem()["detail"].as_str().unwrap().contains("waiting does not help"));
        }
        assert_eq!(send_cost(&app, 10).await.status, 200);
        assert_eq!(send_cost(&app, 0).await.field("x-ratelimit-remaining"), "0");
    }
}

#[tokio::test]
async fn remaining_follows_the_time() {
    // boinkor-net/governor#102: remaining was computed from the schedule alone and never from now, so it stuck at 0.
    let clock = ManualClock::new();
    let app = app([Rule::global("all", Limit::per_minute(5)).cost(cost_of)], &clock);
    let remaining = |answer: Answer| (answer.status.as_u16(), digits(answer.field("x-ratelimit-remaining")));
    assert_eq!(remaining(send_cost(&app, 4).await), (200, 1));
    assert_eq!(remaining(send_cost(&app, 1).await), (200, 0));
    assert_eq!(told(&app).await, (429, Some(12)));
    assert_eq!(remaining(send_cost(&app, 1).await), (429, 0));
    clock.advance(SECOND * 30);
    assert_eq!(remaining(send_cost(&app, 1).await), (200, 1)); // 2.5 were there, 1.5 are left
    clock.advance(SECOND * 90);
    assert_eq!(remaining(send_cost(&app, 1).await), (200, 4));
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Token,
    Window,
    Log,
    Counter,
    Leaky,
}

/// A rule of any kind, with costs that can fit.
fn any_rule() -> impl Strategy<Value = (Kind, u64, u64, u64)> {
    let kind =
        prop_oneof![Just(Kind::Token), Just(Kind::Window), Just(Kind::Log), Just(Kind::Counter), Just(Kind::Leaky)];
    // Periods from a nanosecond to hours, that rarely divide evenly.
    (kind, 1_u64..50, prop_oneof![1_u64..1_000, 1_u64..100_000_000_000, 1_u64..20_000_000_000_000], 1_u64..80)
}

fn any_pause() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1_u64..1_000_000, 1_u64..30_000_000_000]
}

fn rule((kind, permits, period, burst): (Kind, u64, u64, u64), at: usize) -> Rule<Request> {
    let limit = Limit::new(permits, Duration::from_nanos(period));
    let rule = |limit| Rule::global(["a", "b", "c"][at], limit).cost(cost_of);
    match kind {
        Kind::Token => rule(limit.burst(burst)),
        Kind::Window => rule(limit).algorithm(FixedWindow),
        Kind::Log => rule(limit).algorithm(SlidingWindowLog),
        Kind::Counter => rule(limit).algorithm(SlidingWindowCounter),
        Kind::Leaky => rule(limit.burst(burst)).algorithm(LeakyBucket),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// The contract of `Retry-After` with every well-behaved client.
    #[test]
    fn a_client_that_sleeps_as_told_and_has_no_rivals_is_admitted(
        kinds in proptest::collection::vec(any_rule(), 1..=3),
        start in 0_u64..2_000_000_000_000_000_000,
        steps in proptest::collection::vec((1_u64..6, any_pause()), 1..30),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let clock = ManualClock::at(Nanos::new(start));
        let app = app(kinds.into_iter().enumerate().map(|(at, kind)| rule(kind, at)), &clock);
        for (cost, pause) in steps {
            clock.advance(Duration::from_nanos(pause));
            let Some(refused) = settle(&runtime, &app, &clock, cost) else { continue };
            prop_assert_eq!(refused.status, 429);
            if !refused.has("retry-after") {
                continue; // it can never pass
            }
            clock.advance(SECOND * u32::try_from(refused.retry_after()).unwrap());
            let again = settle(&runtime, &app, &clock, cost);
            prop_assert!(again.is_none(), "{:?}", again.unwrap().headers);
        }
    }
}

/// Sends a request, sees it through if it is admitted, and returns its answer if it is refused.
fn settle(runtime: &tokio::runtime::Runtime, app: &Router, clock: &ManualClock, cost: u64) -> Option<Answer> {
    let mut answer = tokio_test::task::spawn(send_cost(app, cost));
    let _guard = runtime.enter();
    loop {
        match answer.poll() {
            std::task::Poll::Ready(answer) => return (answer.status != 200).then_some(answer),
            // Admitted, and held until its turn.
            std::task::Poll::Pending => clock.advance(SECOND * 1_000),
        }
    }
}
