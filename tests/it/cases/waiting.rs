//! The wait that is told: the time until the same request passes, and how it is written.

use proptest::prelude::*;
use tollgate::{
    bucket::Ask,
    decision::{Outcome, Wait},
};

use crate::engine::{Bench, Call, Kind, MS, S, at, per};

/// B07, antifuchs/ratelimit_meter#36: the time until the bucket is full was told, not the time to one more token.
#[test]
pub(crate) fn the_wait_is_until_the_request_fits_not_until_the_bucket_is_full() {
    let bench = Bench::new(Kind::TokenBucket, per(5, 5 * S));
    for left in (0..5).rev() {
        bench.passes(0, 1, left);
    }
    let refused = bench.check(0, 1);
    assert_eq!(refused.retry_after_secs(), Some(1));
    let verdict = refused.tightest().unwrap().verdict;
    assert_eq!(verdict.remaining, 0);
    assert_eq!(verdict.outcome, Outcome::Refuse(Wait::For(at(S))));
    assert_eq!(verdict.reset, Some(at(5 * S))); // another number, and told as one
    bench.refuses(0, 1, S);
    bench.refuses(999_999_999, 1, 1);
    bench.passes(S, 1, 0);
}

#[test]
pub(crate) fn the_wait_uses_the_burst_whatever_the_rate_is() {
    for (limit, cost, wait) in [
        (per(1, S).burst(5), 1, S),
        (per(1, S).burst(5), 3, 3 * S),
        (per(5, 5 * S), 5, 5 * S),
        (per(5, 5 * S).burst(10), 10, 10 * S),
        (per(100, S).burst(1), 1, 10 * MS),
        (per(3, S), 1, 333_333_334),
    ] {
        let bench = Bench::new(Kind::TokenBucket, limit);
        bench.passes(0, limit.capacity(), 0);
        bench.refuses(0, cost, wait);
        bench.refuses(wait - 1, cost, 1);
        bench.passes(wait, cost, 0);
    }
}

/// B09, alisaifee/limits#200: the wait was taken from the newest entry.
#[test]
pub(crate) fn a_log_waits_for_the_oldest_entries_that_make_room() {
    let log = Bench::new(Kind::SlidingWindowLog, per(2, 60 * S));
    log.passes(0, 1, 1);
    log.passes(10 * S, 1, 0);
    log.refuses(20 * S, 1, 40 * S);
    log.refuses(20 * S, 2, 50 * S);
}

#[test]
pub(crate) fn the_wait_of_a_log_grows_with_the_cost_entry_by_entry() {
    let log = Bench::new(Kind::SlidingWindowLog, per(5, 60 * S));
    log.passes(0, 2, 3);
    log.passes(10 * S, 1, 2);
    log.passes(20 * S, 2, 0);
    for (cost, wait) in [(1, 30), (2, 30), (3, 40), (4, 50), (5, 50)] {
        log.refuses(30 * S, cost, wait * S);
    }
    log.never(30 * S, 6, 0);
    // With two permits free, fewer entries have to go.
    for (cost, wait) in [(3, 10), (4, 20), (5, 20)] {
        log.refuses(60 * S, cost, wait * S);
    }
}

#[test]
pub(crate) fn the_wait_of_every_strategy_follows_its_own_clock_and_cost() {
    let token = Bench::new(Kind::TokenBucket, per(2, 60 * S));
    token.passes(0, 1, 1);
    token.passes(10 * S, 1, 0);
    token.refuses(20 * S, 1, 10 * S);
    token.refuses(20 * S, 2, 40 * S);
    let fixed = Bench::new(Kind::FixedWindow, per(2, 60 * S));
    fixed.passes(0, 1, 1);
    fixed.passes(10 * S, 1, 0);
    fixed.refuses(20 * S, 1, 40 * S);
    fixed.refuses(20 * S, 2, 40 * S);
    let counter = Bench::new(Kind::SlidingWindowCounter, per(2, 60 * S));
    counter.passes(0, 1, 1);
    counter.passes(10 * S, 1, 0);
    counter.refuses(20 * S, 1, 70 * S); // at 90 the two of the first window weigh one
    counter.refuses(20 * S, 2, 100 * S); // at 120 nothing
}

/// B11, dotnet/runtime#92557: the whole window was told whenever it was asked.
#[test]
pub(crate) fn a_window_waits_for_its_end_not_for_its_length() {
    let fixed = Bench::new(Kind::FixedWindow, per(1, 60 * S));
    fixed.passes(0, 1, 0);
    fixed.refuses(45 * S, 1, 15 * S);
    assert_eq!(fixed.check(45 * S, 1).retry_after_secs(), Some(15));
    fixed.refuses(59_500 * MS, 1, 500 * MS);
    assert_eq!(fixed.check(59_500 * MS, 1).retry_after_secs(), Some(1));
    fixed.refuses(60 * S - 1, 1, 1);
    fixed.passes(60 * S, 1, 0);
}

#[test]
pub(crate) fn every_refusal_tells_a_wait_that_ends_in_a_pass_unless_none_helps() {
    for kind in Kind::ALL {
        for (cost, now) in [(1, 0), (1, 45 * S), (3, 1), (5, 59_500 * MS)] {
            let mut bucket = kind.bucket(per(5, 60 * S));
            assert!(bucket.decide(0, Ask::new(5)).1.is_some());
            if bucket.look(now, Ask::new(cost)).outcome.passes() {
                continue;
            }
            let Outcome::Refuse(Wait::For(wait)) = bucket.look(now, Ask::new(cost)).outcome else {
                panic!("{kind:?} tells no wait for {cost} at {now}");
            };
            assert!(bucket.look(now + wait.get(), Ask::new(cost)).outcome.passes(), "{kind:?}");
            assert!(!bucket.look(now + wait.get() - 1, Ask::new(cost)).outcome.passes(), "{kind:?}");
            assert_eq!(bucket.look(now, Ask::new(6)).outcome, Outcome::Refuse(Wait::Never), "{kind:?}");
        }
    }
}

/// B12, alisaifee/flask-limiter#62, traefik/traefik#8573, brandur/redis-cell#56: told 0, less, or too early.
#[test]
pub(crate) fn the_told_seconds_are_rounded_up_and_at_least_one() {
    let bench = Bench::new(Kind::TokenBucket, per(1, S));
    bench.passes(0, 1, 0);
    bench.refuses(894_287_575, 1, 105_712_425);
    assert_eq!(bench.check(894_287_575, 1).retry_after_secs(), Some(1));

    let fixed = Bench::new(Kind::FixedWindow, per(1, 10 * S));
    fixed.passes(0, 1, 0);
    fixed.refuses(9_999_900_000, 1, 100_000);
    assert_eq!(fixed.check(9_999_900_000, 1).retry_after_secs(), Some(1));
    fixed.refuses(10 * S - 1, 1, 1);
    fixed.passes(10 * S, 1, 0);

    let bench = Bench::new(Kind::TokenBucket, per(1, 10 * S));
    bench.passes(0, 1, 0);
    for (now, wait, told) in [
        (7 * S - 1, 3 * S + 1, 4),
        (7 * S, 3 * S, 3),
        (7 * S + 1, 3 * S - 1, 3),
        (9 * S - 1, S + 1, 2),
        (9 * S, S, 1),
        (10 * S - 1, 1, 1),
    ] {
        bench.refuses(now, 1, wait);
        assert_eq!(bench.check(now, 1).retry_after_secs(), Some(told), "{wait}");
    }
}

/// Jitter taken both ways told half of the true wait.
#[test]
pub(crate) fn the_told_wait_is_never_below_the_true_one_however_often_it_is_asked() {
    for kind in Kind::REFUSING {
        let bench = Bench::new(kind, per(1, 30 * S));
        bench.passes(0, 1, 0);
        let wait = bench.check(0, 1).retry_after().unwrap();
        assert!(wait.as_secs() >= 30, "{kind:?}");
        for _ in 0..100 {
            let again = bench.check(0, 1);
            assert_eq!(again.retry_after(), Some(wait), "{kind:?}");
            assert!((wait.as_secs()..=wait.as_secs() * 6 / 5).contains(&again.retry_after_secs().unwrap()));
        }
    }
}

/// B51, getsentry/sentry#7919, SpaceTradersAPI/api-docs#24: seconds with a dot, or milliseconds.
#[test]
pub(crate) fn the_told_seconds_are_digits_only() {
    for (wait, told) in [
        (493 * MS, "1"),
        (292_052_427_053, "293"),
        (58 * S, "58"),
        (58 * S + 1, "59"),
        (60 * S, "60"), // and not 60000
        (1, "1"),
        (1_000_000_000 * S, "1000000000"),
        (1_000_000_000 * S - 1, "1000000000"),
    ] {
        let bench = Bench::new(Kind::TokenBucket, per(1, wait));
        bench.passes(0, 1, 0);
        bench.refuses(0, 1, wait);
        let text = bench.check(0, 1).retry_after_secs().unwrap().to_string();
        assert_eq!(text, told);
        assert!(!text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
    }
}

fn kind() -> impl Strategy<Value = Kind> {
    proptest::sample::select(Kind::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// B12: who sleeps for exactly what was told, and has no rivals, is admitted.
    #[test]
    fn a_client_that_sleeps_as_told_is_admitted(
        rules in proptest::collection::vec((kind(), 1_u64..60, 1_u64..100 * S), 1..4),
        calls in proptest::collection::vec((0_u64..20 * S, 1_u64..20), 1..20),
    ) {
        const NAMES: [&str; 3] = ["a", "b", "c"];
        let rules = rules.iter().zip(NAMES).map(|(&(kind, permits, period), name)| kind.rule(name, per(permits, period)));
        let bench = Bench::of(rules);
        let mut now = 0;
        for (pause, cost) in calls {
            now += pause;
            let decision = bench.check(now, cost);
            match (decision.is_allowed(), decision.retry_after_secs()) {
                (true, told) => prop_assert_eq!(told, None),
                (false, None) => prop_assert_eq!(decision.wait(), Some(Wait::Never)),
                (false, Some(secs)) => {
                    prop_assert!(secs >= 1);
                    now += secs * S;
                    let call = Call { client: 0, cost };
                    bench.set(now);
                    let again = bench.limiter.check_now(&call).unwrap();
                    prop_assert!(again.is_allowed(), "{decision:?}, then {again:?}");
                }
            }
        }
    }
}
