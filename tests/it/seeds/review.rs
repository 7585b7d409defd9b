//! What a review of the design looks for: the seam for strategies, keys and scopes, rules that stay as they are, the
//! meaning of a wait, what memory follows, and a clock that is given.

use std::time::Duration;

use tollgate::{
    Key, Limit, Limiter, Rule,
    bucket::{Ask, Bucket, GivenBack, Mark, Used},
    decision::{Outcome, Verdict, Wait},
    store::MemoryStore,
    time::{ManualClock, Nanos},
};

use crate::engine::{Bench, Kind, MS, S, at, per};

/// A strategy of the user's own: each key passes `permits` times, ever.
#[derive(Debug)]
struct Once;

impl Bucket for Once {
    type State = u64;

    fn fresh(&self, _: &Limit, _: Nanos) -> u64 {
        0
    }
    fn look(&self, used: &u64, limit: &Limit, _: Nanos, ask: Ask) -> Verdict {
        let left = limit.permits().saturating_sub(*used);
        let outcome = if ask.cost <= left { Outcome::Pass } else { Outcome::Refuse(Wait::Never) };
        Verdict::new(outcome, limit.permits(), left, None)
    }
    fn take(&self, used: &mut u64, limit: &Limit, now: Nanos, ask: Ask) -> (Verdict, Mark) {
        *used = used.saturating_add(ask.cost);
        (self.look(used, limit, now, Ask::new(0)), Mark::default())
    }
    fn give_back(&self, used: &mut u64, _: &Limit, _: Nanos, charge: GivenBack) {
        *used = used.saturating_sub(charge.cost);
    }
    fn used(&self, used: &u64, _: &Limit, _: Nanos) -> Used {
        Used::whole(*used)
    }
    fn with_used(&self, _: &Limit, used: Used, _: Nanos) -> u64 {
        used.ceil()
    }
    fn fresh_at(&self, _: &u64, _: &Limit) -> Nanos {
        Nanos::MAX
    }
}

#[test]
fn the_strategy_is_one_word_of_the_rule_and_may_be_the_users_own() {
    let limit = Limit::per_second(3);
    for kind in Kind::REFUSING {
        assert_eq!(Bench::new(kind, limit).admitted(0, 10), 3, "{kind:?}");
    }
    let rule = Rule::new("user", limit, |user: &&str| Some(Key::from(*user))).algorithm(Once);
    let clock = ManualClock::new();
    let limiter = Limiter::builder([rule]).clock(clock.clone()).build().unwrap();
    assert_eq!((0..10).filter(|_| limiter.check_now(&"ana").unwrap().is_allowed()).count(), 3);
    clock.set(at(3_600 * S));
    assert_eq!(limiter.check_now(&"ana").unwrap().wait(), Some(Wait::Never));
}

/// Tokens and a log of times mean different things, so a state is never read by another strategy.
#[test]
fn a_name_cannot_change_its_strategy_on_a_store_that_has_counts_under_it() {
    let store = MemoryStore::new();
    let bench = Bench::on(store.clone(), [Kind::TokenBucket.rule("user", Limit::per_second(3))]);
    bench.passes(0, 3, 0);
    let error = Limiter::builder([Kind::SlidingWindowLog.rule("user", Limit::per_second(3))])
        .store(store.clone())
        .build()
        .unwrap_err();
    assert_eq!((error.rule(), error.field()), ("user", "store"));
    let renamed = Bench::on(store, [Kind::SlidingWindowLog.rule("user-log", Limit::per_second(3))]);
    renamed.passes(0, 3, 0);
}

#[test]
fn clients_and_scopes_are_exhausted_and_recover_apart() {
    for (kind, recovers) in [
        (Kind::TokenBucket, S),
        (Kind::FixedWindow, 3 * S),
        (Kind::SlidingWindowLog, 3 * S),
        (Kind::SlidingWindowCounter, 4 * S),
    ] {
        let read = kind.rule("read", per(3, 3 * S)).when(|call| call.client < 10);
        let upload = kind.rule("upload", per(3, 3 * S)).when(|call| call.client >= 10);
        let bench = Bench::of([read, upload]);
        for (client, now) in [(1, 0), (2, 0), (11, 0), (12, 0)] {
            for _ in 0..3 {
                assert!(bench.check_as(client, now, 1).is_allowed(), "{kind:?} {client}");
            }
            let refused = bench.check_as(client, now, 1);
            assert_eq!(refused.retry_after(), Some(Duration::from_nanos(recovers)), "{kind:?} {client}");
        }
        for client in [1, 2, 11, 12] {
            assert!(!bench.check_as(client, recovers - 1, 1).is_allowed(), "{kind:?}: just before");
        }
        for client in [1, 2, 11, 12] {
            assert!(bench.check_as(client, recovers, 1).is_allowed(), "{kind:?}: exactly at");
        }
    }
}

#[test]
fn a_limiter_keeps_the_rules_it_was_built_from() {
    let limit = Limit::per_second(3);
    let wider = limit.burst(100); // another value; the first is as it was
    let rule = Kind::TokenBucket.rule("user", limit);
    let raised = rule.clone().limit_for(move |_| wider);
    let (one, other) = (Bench::of([rule]), Bench::of([raised]));
    assert_eq!((one.admitted(0, 200), other.admitted(0, 200)), (3, 100));
}

#[test]
fn retry_after_means_the_window_the_next_token_or_the_oldest_entry() {
    for (kind, wait) in [
        (Kind::TokenBucket, 1_250 * MS),      // one token each 1.5 s since 0.25 s
        (Kind::FixedWindow, 2_500 * MS),      // the window ends at 3 s
        (Kind::SlidingWindowLog, 2_750 * MS), // the oldest entry leaves at 3.25 s
        (Kind::SlidingWindowCounter, 4 * S),  // at 4.5 s the two of the first window weigh one
    ] {
        let bench = Bench::new(kind, per(2, 3 * S));
        bench.passes(250 * MS, 1, 1);
        bench.passes(500 * MS, 1, 0);
        bench.refuses(500 * MS, 1, wait);
    }
}

#[test]
fn a_log_forgets_what_has_left_it_and_its_client_after_that() {
    let bench = Bench::new(Kind::SlidingWindowLog, per(3, 3 * S));
    for now in 0..100_u64 {
        // Three in any three seconds: two, one and none, again and again.
        assert_eq!(bench.admitted(now * S, 2), [2, 1, 0][usize::try_from(now % 3).unwrap()], "at {now} s");
    }
    assert_eq!(bench.store.tracked_keys(), 1);
    assert_eq!(bench.store.sweep(at(102 * S - 1)), 0);
    assert_eq!(bench.store.sweep(at(102 * S)), 1);
}

/// Limit 3 per 3 s: allow, allow, allow, deny (retry after 1000 ms); after 1000 ms: allow.
#[test]
fn three_per_three_seconds_recovers_one_after_one_second() {
    let clock = ManualClock::at(at(10 * S));
    let rule = Rule::new("free-tier", Limit::new(3, Duration::from_secs(3)), |key: &&str| Some(Key::from(*key)));
    let limiter = Limiter::builder([rule]).clock(clock.clone()).build().unwrap();
    let format = || {
        let decision = limiter.check_now(&"api-key-7").unwrap();
        match decision.retry_after() {
            None => "allow".to_owned(),
            Some(wait) => format!("deny (retry after {}ms)", wait.as_millis()),
        }
    };
    assert_eq!([format(), format(), format(), format()], ["allow", "allow", "allow", "deny (retry after 1000ms)"]);
    clock.advance(Duration::from_millis(1_000));
    assert_eq!(format(), "allow");
}
