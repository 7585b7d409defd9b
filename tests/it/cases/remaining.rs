//! What is told to be left, and what can never pass.

use std::time::Duration;

use futures_util::FutureExt;
use tollgate::{Key, Limit, Limiter, Rule, bucket::Ask, decision::Wait};

use crate::engine::{Bench, Call, Kind, MS, S, per};

/// B13, boinkor-net/governor#102: the figure came from the schedule alone, never from now, and stuck at 0.
#[test]
pub(crate) fn remaining_grows_again_while_time_passes() {
    let bench = Bench::new(Kind::TokenBucket, per(5, 60 * S));
    bench.passes(0, 4, 1);
    bench.passes(0, 1, 0);
    bench.refuses(0, 1, 12 * S);
    assert_eq!(bench.remaining(0), 0);
    bench.passes(30 * S, 1, 1);
    bench.passes(120 * S, 1, 4);
}

#[test]
pub(crate) fn remaining_changes_at_the_nanosecond_at_which_the_cost_would_pass() {
    let bench = Bench::new(Kind::TokenBucket, per(5, 60 * S));
    bench.passes(0, 5, 0);
    for tokens in 1..=5 {
        assert_eq!(bench.remaining(12 * tokens * S - 1), tokens - 1);
        assert_eq!(bench.remaining(12 * tokens * S), tokens);
        assert_eq!(bench.remaining(12 * tokens * S + 1), tokens);
    }
    assert_eq!(bench.remaining(3_600 * S), 5);
}

#[test]
pub(crate) fn remaining_is_the_largest_cost_that_would_pass_and_stays_within_the_limit() {
    for kind in Kind::ALL {
        let mut bucket = kind.bucket(per(7, 13 * S));
        let mut now = 0;
        for step in 0..200 {
            now += step * 37 * MS;
            let (verdict, _) = bucket.decide(now, Ask::new(1 + step % 4));
            assert!(verdict.remaining <= verdict.limit, "{kind:?}");
            let remaining = bucket.look(now, Ask::new(0)).remaining;
            assert_eq!(remaining, bucket.look(now, Ask::new(100)).remaining, "{kind:?}: whatever is asked");
            assert!(bucket.look(now, Ask::new(remaining)).outcome.passes(), "{kind:?}: {remaining} at {now}");
            assert!(!bucket.look(now, Ask::new(remaining + 1)).outcome.passes(), "{kind:?}: {remaining} at {now}");
        }
    }
}

#[test]
pub(crate) fn every_strategy_has_everything_again_after_a_long_pause() {
    for kind in Kind::ALL {
        let bench = Bench::new(kind, per(5, 60 * S));
        bench.passes(0, 5, 0);
        assert_eq!(bench.remaining(0), 0, "{kind:?}");
        assert_eq!(bench.remaining(120 * S), 5, "{kind:?}");
        let left = if kind == Kind::LeakyBucket { 0 } else { 4 };
        bench.passes(120 * S, 1, left);
    }
}

#[test]
pub(crate) fn a_refusal_tells_what_is_left_and_leaves_it() {
    for kind in Kind::REFUSING {
        let bench = Bench::new(kind, per(5, 60 * S));
        bench.passes(0, 3, 2);
        for _ in 0..50 {
            let refused = bench.check(0, 3);
            assert!(!refused.is_allowed());
            assert_eq!(refused.tightest().unwrap().verdict.remaining, 2, "{kind:?}");
        }
        bench.passes(0, 2, 0);
    }
}

/// B22, boinkor-net/governor#11, bucket4j/bucket4j#220, throttled/throttled#81: a finite wait for what never fits.
#[test]
pub(crate) fn a_cost_above_the_capacity_is_told_that_it_can_never_pass() {
    let bench = Bench::new(Kind::TokenBucket, per(10, 10 * S));
    bench.never(0, 11, 10);
    bench.passes(0, 10, 0);
    let bench = Bench::new(Kind::TokenBucket, per(3, 2 * S));
    bench.never(0, 4, 3);
    bench.passes(0, 3, 0);
    bench.refuses(0, 3, 2 * S);
}

#[test]
pub(crate) fn no_strategy_makes_anybody_wait_for_what_never_fits() {
    for kind in Kind::ALL {
        for cost in [11, 12, 1_000, u64::MAX] {
            let bench = Bench::new(kind, per(10, 10 * S));
            bench.never(0, cost, 10);
            bench.passes(0, 10, 0);
            bench.never(0, cost, 0); // used up, it is still never
            bench.never(300 * S, cost, 10);
        }
    }
}

#[test]
pub(crate) fn the_burst_and_not_the_rate_decides_what_never_fits() {
    let wide = Bench::new(Kind::TokenBucket, per(10, S).burst(20));
    wide.never(0, 21, 20);
    wide.passes(0, 20, 0);
    let narrow = Bench::new(Kind::TokenBucket, per(10, S).burst(3));
    narrow.never(0, 4, 3);
    narrow.passes(0, 3, 0);
}

#[test]
pub(crate) fn who_would_wait_is_told_at_once_that_it_can_never_pass() {
    let held = Rule::new("held", Limit::per_second(3), |call: &Call| Some(Key::from(call.client)))
        .cost(|call| call.cost)
        .wait_up_to(Duration::from_secs(3_600));
    for rule in [held, Kind::LeakyBucket.rule("queue", Limit::per_second(3))] {
        let bench = Bench::of([rule]);
        let decision = bench.limiter.acquire(&Call { client: 0, cost: 4 }).now_or_never().unwrap().unwrap();
        assert!(!decision.is_allowed());
        assert_eq!(decision.wait(), Some(Wait::Never));
        assert_eq!(bench.store.tracked_keys(), 0);
    }
}

#[test]
pub(crate) fn one_rule_that_says_never_hides_the_wait_of_another() {
    for swapped in [false, true] {
        let mut rules =
            vec![Kind::TokenBucket.rule("small", per(3, S)), Kind::FixedWindow.rule("large", per(10, 60 * S))];
        if swapped {
            rules.reverse();
        }
        let bench = Bench::of(rules);
        assert!(bench.check(0, 3).is_allowed());
        assert!(bench.check(S, 3).is_allowed());
        assert!(bench.check(2 * S, 3).is_allowed());
        let decision = bench.check(3 * S, 4); // `large` has 1 left and a wait, `small` none
        assert_eq!(decision.violated().count(), 2);
        assert_eq!((decision.wait(), decision.retry_after_secs()), (Some(Wait::Never), None));
        assert_eq!(decision.tightest().unwrap().rule, "small");
    }
}

#[test]
pub(crate) fn a_fixed_cost_above_the_capacity_is_an_error_before_the_first_request() {
    for kind in Kind::ALL {
        let rule = |cost| {
            let rule = Rule::new("uploads", kind.limit(per(10, S)), |call: &Call| Some(Key::from(call.client)));
            kind.named(rule).fixed_cost(cost)
        };
        let error = Limiter::builder([rule(11)]).build().unwrap_err();
        assert_eq!((error.rule(), error.field()), ("uploads", "cost"));
        assert!(error.to_string().contains("11 is above the capacity of 10"), "{error}");
        assert!(Limiter::builder([rule(10)]).build().is_ok());
    }
}
