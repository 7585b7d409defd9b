//! What an attacker would try: each was possible once.

mod places;
mod reloads;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::Request;
use tollgate::{
    Key, Limit, Limiter, MissingKey, Rule,
    bucket::{Ask, Bucket, FixedWindow, GivenBack, Mark, SlidingWindowCounter, SlidingWindowLog, TokenBucket, Used},
    store::{MemoryStore, Overflow},
    time::{Clock, ManualClock, Nanos},
};

use crate::soon::ends;

fn ms(ms: u64) -> Nanos {
    Nanos::new(ms * 1_000_000)
}

fn limiter(rule: Rule<u64>, store: &MemoryStore, clock: &ManualClock) -> Limiter<u64> {
    Limiter::builder([rule]).store(store.clone()).clock(clock.clone()).build().unwrap()
}
fn keyed(limit: Limit) -> Rule<u64> {
    Rule::new("k", limit, |id: &u64| Some(Key::from(*id)))
}
fn passes(l: &Limiter<u64>, key: u64, tries: u32) -> u32 {
    (0..tries).map(|_| u32::from(l.check_now(&key).unwrap().is_allowed())).sum()
}

fn late_overflow(algorithm: impl Bucket) -> u32 {
    let (store, clock) = (MemoryStore::builder().max_keys(1).build(), ManualClock::at(ms(100_000)));
    let l = limiter(keyed(Limit::per_second(5)).algorithm(algorithm), &store, &clock);
    let first = {
        clock.set(ms(100_900));
        passes(&l, 1, 9)
    };
    clock.set(ms(101_950));
    assert!(l.check_now(&2).unwrap().is_allowed()); // takes the room of 1, which is fresh
    assert_eq!(store.tracked_keys(), 1);
    clock.set(ms(100_990)); // 960 ms late
    let late = passes(&l, 1, 9);
    clock.set(ms(101_960));
    first + late + passes(&l, 1, 9) // two windows, or 5 and 1.06 s of 5 per second
}
#[test]
fn a_late_thread_gets_no_third_window_from_what_new_keys_share() {
    let sum = late_overflow(FixedWindow);
    assert!(sum <= 10, "{sum}");
}
#[test]
fn a_late_thread_gets_no_more_from_what_new_keys_share_than_a_log_holds() {
    let sum = late_overflow(SlidingWindowLog);
    assert!(sum <= 10, "{sum}");
}
#[test]
fn a_late_thread_gets_no_tokens_from_what_new_keys_share() {
    let sum = late_overflow(TokenBucket);
    assert!(sum <= 10, "{sum}");
}

fn flip(algorithm: impl Bucket + Clone) -> u64 {
    let n = Arc::new(AtomicU64::new(100));
    let m = n.clone();
    let (store, clock) = (MemoryStore::new(), ManualClock::at(Nanos::from_secs(3_600_000)));
    let rule =
        keyed(Limit::per_hour(100)).algorithm(algorithm).limit_for(move |_| Limit::per_hour(m.load(Ordering::SeqCst)));
    let l = limiter(rule.cost(|_| 10), &store, &clock);
    let mut receipts = vec![];
    for _ in 0..10 {
        let (d, r) = l.reserve_now(&1).unwrap();
        assert!(d.is_allowed());
        receipts.push(r);
    }
    n.store(10, Ordering::SeqCst);
    assert!(!l.check_now(&1).unwrap().is_allowed()); // lowered: used is 10 now
    n.store(100, Ordering::SeqCst);
    assert_eq!(passes(&l, 1, 20), 9); // the gift that the docs tell of
    for r in receipts {
        r.give_back();
    } // "After the key's limit changed, nothing comes back."
    u64::from(passes(&l, 1, 20)) * 10
}
#[test]
fn a_token_bucket_whose_limit_went_and_came_back_returns_nothing_of_others() {
    assert_eq!(flip(TokenBucket), 0);
}
#[test]
fn a_fixed_window_whose_limit_went_and_came_back_returns_nothing_of_others() {
    assert_eq!(flip(FixedWindow), 0);
}
#[test]
fn a_log_whose_limit_went_and_came_back_returns_nothing_of_others() {
    assert_eq!(flip(SlidingWindowLog), 0);
}
#[test]
fn a_counter_whose_limit_went_and_came_back_returns_nothing_of_others() {
    assert_eq!(flip(SlidingWindowCounter), 0);
}

#[test]
fn a_reset_key_gets_nothing_back_though_new_keys_once_shared() {
    let (store, clock) = (MemoryStore::builder().max_keys(2).build(), ManualClock::at(Nanos::from_secs(1000)));
    let l = limiter(keyed(Limit::per_minute(5)).algorithm(FixedWindow), &store, &clock);
    assert!(l.check_now(&8).unwrap().is_allowed());
    assert!(l.check_now(&9).unwrap().is_allowed());
    for k in 100..400 {
        let _ = l.check_now(&k).unwrap();
    } // fills all overflow buckets, used up
    clock.set(Nanos::from_secs(2000)); // everything is fresh
    let mut receipts = vec![];
    for _ in 0..5 {
        let (d, r) = l.reserve_now(&1).unwrap();
        assert!(d.is_allowed());
        receipts.push(r);
    }
    assert!(!l.check_now(&1).unwrap().is_allowed());
    tokio_test::block_on(l.reset("k", Key::from(1_u64))).unwrap();
    assert_eq!(passes(&l, 1, 9), 5);
    for r in receipts {
        r.give_back();
    }
    assert_eq!(passes(&l, 1, 9), 0, "what was charged before a reset came back after it");
}

#[test]
fn newcomers_find_the_room_of_buckets_that_a_faster_limit_has_made_fresh() {
    let n = Arc::new(AtomicU64::new(3_600));
    let m = n.clone();
    let (store, clock) = (
        MemoryStore::builder().max_keys(4).overflow(Overflow::Refuse).build(),
        ManualClock::at(Nanos::from_secs(1000)),
    );
    let l = limiter(
        keyed(Limit::per_hour(10)).limit_for(move |_| Limit::new(10, Duration::from_secs(m.load(Ordering::SeqCst)))),
        &store,
        &clock,
    );
    for k in 1..=4 {
        assert_eq!(passes(&l, k, 10), 10);
    }
    assert!(!l.check_now(&5).unwrap().is_allowed()); // looks for room: none is fresh before long
    n.store(1, Ordering::SeqCst); // a faster rate
    clock.advance(Duration::from_secs(1));
    for k in 1..=4 {
        let _ = l.check_now(&k).unwrap();
    }
    clock.advance(Duration::from_secs(100)); // all four are fresh since long
    assert!(l.check_now(&5).unwrap().is_allowed(), "fresh buckets hold the room: 503 for new keys");
}

#[test]
fn late_threads_are_noticed_again_after_the_clock_was_set_back() {
    let (store, clock) = (MemoryStore::new(), ManualClock::at(Nanos::from_secs(5_000)));
    let l = limiter(keyed(Limit::per_second(5)).algorithm(FixedWindow), &store, &clock);
    let _ = store.sweep(clock.now());
    assert!(l.check_now(&1).unwrap().is_allowed());
    clock.set(Nanos::from_secs(6_000));
    let _ = store.sweep(clock.now());
    clock.set(ms(1_000_900)); // set back
    assert_eq!(passes(&l, 1, 9), 5);
    clock.set(ms(1_001_050));
    assert_eq!(store.sweep(clock.now()), 1);
    clock.set(ms(1_000_950)); // 100 ms late
    let late = passes(&l, 1, 9);
    clock.set(ms(1_001_060));
    assert_eq!(late + passes(&l, 1, 9), 5, "three times the limit in two windows");
}
#[test]
fn a_charge_whose_bucket_was_swept_does_not_come_back_when_its_time_comes_again() {
    let (store, clock) = (MemoryStore::new(), ManualClock::at(Nanos::from_secs(5_000)));
    let l = limiter(keyed(Limit::per_minute(5)).algorithm(FixedWindow), &store, &clock);
    let rs: Vec<_> = (0..5).map(|_| l.reserve_now(&1).unwrap().1).collect();
    clock.set(Nanos::from_secs(5_100));
    assert_eq!(store.sweep(clock.now()), 1);
    clock.set(Nanos::from_secs(5_000)); // set back
    assert_eq!(passes(&l, 1, 9), 5);
    for r in rs {
        r.give_back();
    }
    assert_eq!(passes(&l, 1, 9), 0, "what was charged before the clock was set back came back after it");
}

#[test]
fn what_cost_nothing_at_first_can_be_settled_to_more() {
    let (store, clock) = (MemoryStore::new(), ManualClock::new());
    let l = limiter(keyed(Limit::per_minute(1000)).cost(|_| 0), &store, &clock);
    let (d, r) = l.reserve_now(&1).unwrap();
    assert!(d.is_allowed());
    r.settle(300);
    assert_eq!(l.peek_now(&1).unwrap().tightest().unwrap().verdict.remaining, 700);
}

#[test]
fn conditions_said_twice_both_count() {
    let l = Limiter::new([keyed(Limit::per_minute(1)).when(|k| *k > 10).when(|k| *k < 20)]);
    assert!(l.peek_now(&5).unwrap().tightest().is_none(), "the first condition was dropped in silence");
}
#[test]
fn a_rule_without_keys_cannot_say_what_a_missing_key_means() {
    let bad = |rule: Rule<u64>| Limiter::builder([rule]).build().is_err();
    let g = || Rule::<u64>::global("g", Limit::per_second(1));
    assert!(
        bad(g().on_missing_key(MissingKey::Refuse(http::StatusCode::BAD_REQUEST))),
        "on_missing_key on a keyless rule"
    );
}
#[test]
fn a_missing_key_is_not_refused_with_a_success() {
    let bad = |rule: Rule<u64>| Limiter::builder([rule]).build().is_err();
    assert!(
        bad(keyed(Limit::per_second(1)).on_missing_key(MissingKey::Refuse(http::StatusCode::NO_CONTENT))),
        "204 as a refusal"
    );
}

#[test]
fn a_bucket_at_the_end_of_time_refuses() {
    for now in [u64::MAX, u64::MAX - 1, u64::MAX - 500_000_000] {
        let (store, clock) = (MemoryStore::new(), ManualClock::at(Nanos::new(now)));
        let l = limiter(keyed(Limit::per_second(10)), &store, &clock);
        let passed = passes(&l, 1, 1000);
        assert!(passed <= 10, "{passed} at {now}");
    }
}

#[test]
fn a_network_of_mapped_addresses_is_the_ipv4_network() {
    let office = tollgate::when::peer_in(["::ffff:192.0.2.0/120"]);
    let from = |a: &str| Request::builder().extension(a.parse::<std::net::IpAddr>().unwrap()).body(()).unwrap();
    assert!(office(&from("192.0.2.9")));
}

#[test]
fn a_subscriber_may_use_the_limiter_it_hears_from() {
    use tracing::{Subscriber, span};
    struct Sub(Limiter<u64>);
    impl Subscriber for Sub {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            let _ = self.0.check_now(&2);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }
    let (store, clock) = (MemoryStore::builder().max_keys(1).build(), ManualClock::new());
    let l = limiter(keyed(Limit::per_minute(5)), &store, &clock);
    ends("deadlock: the event was sent under the bucket's lock", move || {
        let _g = tracing::subscriber::set_default(Sub(l.clone()));
        let _ = l.check_now(&1);
        let _ = l.check_now(&2);
    });
}

#[test]
fn tiers_that_share_a_bucket_forgive_each_other_nothing() {
    let (store, clock) = (
        MemoryStore::builder().max_keys(1).overflow(Overflow::Share(1)).build(),
        ManualClock::at(Nanos::from_secs(1000)),
    );
    let l = limiter(
        keyed(Limit::per_hour(100)).limit_for(|k| if k % 2 == 0 { Limit::per_hour(100) } else { Limit::per_hour(1) }),
        &store,
        &clock,
    );
    let _ = l.check_now(&7);
    let mut pass = 0;
    for round in 0..50_u64 {
        pass += passes(&l, 1000, 200);
        let _ = l.check_now(&(2001 + 2 * round));
    }
    assert!(pass <= 100);
}
#[test]
fn grpc_web_in_any_form_of_messages_is_answered_in_kind() {
    use tower::{Layer, Service, ServiceExt};
    tokio_test::block_on(async {
        let layer = tollgate::RateLimitLayer::new([Rule::<Request<String>>::new(
            "k",
            Limit::per_minute(1),
            |_: &Request<String>| Some(Key::from(1_u64)),
        )]);
        let mut s = layer.layer(tower::service_fn(|_: Request<String>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(http_body_util::Full::<bytes::Bytes>::default()))
        }));
        let mut last = None;
        for _ in 0..2 {
            let r = Request::post("/").header("content-type", "application/grpc-web+json").body(String::new()).unwrap();
            last = Some(s.ready().await.unwrap().call(r).await.unwrap());
        }
        assert_eq!(last.unwrap().status(), 200);
    });
}
static BOOM: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
#[test]
fn a_strategy_that_panics_in_a_sweep_takes_no_room_along() {
    #[derive(Debug)]
    struct P;
    use tollgate::decision::{Outcome, Verdict};
    impl Bucket for P {
        type State = u64;
        fn fresh(&self, _: &Limit, _: Nanos) -> u64 {
            0
        }
        fn look(&self, _: &u64, l: &Limit, _: Nanos, _: Ask) -> Verdict {
            Verdict::new(Outcome::Pass, l.permits(), 1, None)
        }
        fn take(&self, s: &mut u64, l: &Limit, n: Nanos, a: Ask) -> (Verdict, Mark) {
            *s = n.get();
            (self.look(s, l, n, a), Mark::default())
        }
        fn give_back(&self, _: &mut u64, _: &Limit, _: Nanos, _: GivenBack) {}
        fn used(&self, _: &u64, _: &Limit, _: Nanos) -> Used {
            Used::ZERO
        }
        fn with_used(&self, _: &Limit, _: Used, _: Nanos) -> u64 {
            0
        }
        fn fresh_at(&self, s: &u64, _: &Limit) -> Nanos {
            assert!(*s != 7 || !BOOM.load(Ordering::SeqCst), "boom");
            Nanos::ZERO
        }
    }
    let (store, clock) = (MemoryStore::builder().max_keys(63).build(), ManualClock::new());
    let l = limiter(keyed(Limit::per_second(1)).algorithm(P), &store, &clock);
    for k in 0..15 {
        clock.set(Nanos::new(if k == 7 { 7 } else { 0 }));
        let _ = l.check_now(&k);
    }
    BOOM.store(true, Ordering::SeqCst);
    let s = store.clone();
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || s.sweep(Nanos::new(9))));
    BOOM.store(false, Ordering::SeqCst);
    store.sweep(Nanos::new(9));
    assert_eq!(store.tracked_keys(), 0, "room is lost for ever");
}
#[test]
fn endlessly_many_shared_buckets_are_bounded() {
    let (store, clock) =
        (MemoryStore::builder().max_keys(1).overflow(Overflow::Share(usize::MAX)).build(), ManualClock::new());
    let l = limiter(keyed(Limit::per_second(1)), &store, &clock);
    let _ = l.check_now(&1).unwrap();
    let _ = l.check_now(&2).unwrap();
}
#[test]
fn settling_up_counts_though_there_is_no_room_and_nobody_shares_yet() {
    let (store, clock) = (
        MemoryStore::builder().max_keys(1).overflow(Overflow::Share(1)).build(),
        ManualClock::at(Nanos::from_secs(1000)),
    );
    let l = limiter(keyed(Limit::per_minute(1000)), &store, &clock);
    let (_, r) = l.reserve_now(&1).unwrap();
    clock.advance(Duration::from_secs(60));
    for _ in 0..1000 {
        let _ = l.check_now(&2).unwrap();
    } // takes the room
    r.settle(2001);
    assert!(!l.check_now(&1).unwrap().is_allowed(), "what was settled up was charged nowhere");
}

/// The time is read after the user's closures, so one that takes long does not look like a clock that was set back.
#[test]
fn a_slow_closure_does_not_turn_the_clock_back() {
    let clock = ManualClock::at(Nanos::from_secs(1_000));
    let limiter: Arc<OnceLock<Limiter<u64>>> = Arc::default();
    let (others, moved) = (Arc::clone(&limiter), clock.clone());
    let cost = move |id: &u64| {
        if *id == 11 {
            moved.advance(Duration::from_millis(1_300));
            assert_eq!(passes(others.get().unwrap(), 1, 9), 5);
        }
        1
    };
    let rule = Rule::new("k", Limit::per_second(5), |id: &u64| Some(Key::from(*id % 10))).cost(cost);
    let built = Limiter::builder([rule]).clock(clock).build().unwrap();
    let limiter = limiter.get_or_init(|| built);
    assert!(!limiter.check_now(&11).unwrap().is_allowed());
    assert_eq!(passes(limiter, 1, 9), 0);
}

#[test]
fn what_new_keys_share_goes_on_after_the_clock_was_set_back() {
    let store = MemoryStore::builder().max_keys(1).overflow(Overflow::Share(1)).build();
    let clock = ManualClock::at(Nanos::from_secs(3_600));
    let tier = |id: &u64| if *id == 3 { Limit::per_second(20) } else { Limit::per_second(10) };
    let l = limiter(keyed(Limit::per_second(10)).limit_for(tier), &store, &clock);
    assert_eq!((passes(&l, 1, 1), passes(&l, 2, 20)), (1, 10));
    clock.set(Nanos::ZERO);
    assert_eq!((passes(&l, 2, 9), passes(&l, 3, 9)), (0, 9), "what was used stays used, and no more");
    clock.set(Nanos::from_secs(1));
    assert!(passes(&l, 2, 1) == 1 && passes(&l, 3, 1) == 1, "an empty bucket has filled since");
}

/// A log that never runs empty counts what it holds, however much has gone through it.
#[test]
fn a_log_counts_after_charges_of_any_size() {
    let clock = ManualClock::at(Nanos::from_secs(1_000));
    let l = limiter(keyed(Limit::per_second(5)).algorithm(SlidingWindowLog), &MemoryStore::new(), &clock);
    let (_, receipt) = l.reserve_now(&1).unwrap();
    receipt.settle(u64::MAX);
    assert_eq!(passes(&l, 1, 9), 0);
    for _ in 0..3 {
        clock.advance(Duration::from_secs(1));
        assert_eq!(passes(&l, 1, 9), 5);
    }
}
