//! Memory follows active clients, under a cap that a flood cannot turn against anybody.

use std::time::Duration;

use tokio_test::block_on;
use tollgate::{
    Key, Limit, Limiter, Rule,
    bucket::{Bucket, FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket},
    store::{MemoryStore, Overflow},
    time::{Clock, ManualClock, Nanos},
};

const TODAY: Nanos = Nanos::from_secs(1_700_000_000);

/// As many keys as a flood has; fewer where the code is not optimized.
const FLOOD: u64 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };

fn rule(name: &'static str, limit: Limit) -> Rule<u64> {
    Rule::new(name, limit, |key: &u64| Some(Key::from(*key)))
}

fn on(store: &MemoryStore, clock: &ManualClock, rules: impl IntoIterator<Item = Rule<u64>>) -> Limiter<u64> {
    Limiter::builder(rules).store(store.clone()).clock(clock.clone()).build().unwrap()
}

fn passes(limiter: &Limiter<u64>, key: u64) -> bool {
    limiter.check_now(&key).unwrap().is_allowed()
}

#[test]
fn a_refusal_and_a_look_put_nothing_into_the_store() {
    let (store, clock) = (MemoryStore::new(), ManualClock::at(TODAY));
    let shared = Rule::global("all", Limit::per_hour(1));
    let limiter = on(&store, &clock, [rule("one", Limit::per_hour(9)), shared, rule("two", Limit::per_hour(9))]);
    assert!(limiter.peek_now(&1).unwrap().is_allowed());
    assert_eq!(store.tracked_keys(), 0, "peeked");
    assert!(passes(&limiter, 1));
    assert_eq!(store.tracked_keys(), 3);
    for key in 2..100 {
        assert!(!passes(&limiter, key));
    }
    assert_eq!(store.tracked_keys(), 3, "refused by a rule that has no keys");
    let too_much = on(&store, &clock, [rule("three", Limit::per_hour(9)).cost(|key| *key)]);
    assert!(!passes(&too_much, 10) && passes(&too_much, 0));
    assert_eq!(store.tracked_keys(), 3, "refused for its cost, or costs nothing");
}

#[test]
fn keys_that_came_once_are_gone_when_they_are_as_new() {
    let (store, clock) = (MemoryStore::new(), ManualClock::new());
    let limiter = on(&store, &clock, [rule("r", Limit::per_second(1))]);
    for key in 0..FLOOD {
        assert!(passes(&limiter, key));
    }
    assert_eq!(store.tracked_keys() as u64, FLOOD);
    clock.advance(Duration::from_secs(2));
    assert_eq!(store.sweep(clock.now()) as u64, FLOOD);
    assert_eq!(store.tracked_keys(), 0);
}

#[test]
fn a_flood_of_new_keys_stays_under_the_cap_and_gives_a_drained_key_nothing() {
    for (overflow, shared) in [(Overflow::Share(16), 16 * 5), (Overflow::Share(1), 5), (Overflow::Refuse, 0)] {
        let store = MemoryStore::builder().max_keys(10_000).overflow(overflow).build();
        let clock = ManualClock::at(TODAY);
        let limiter = on(&store, &clock, [rule("r", Limit::per_hour(5))]);
        let victim = u64::MAX;
        assert_eq!((0..9).filter(|_| passes(&limiter, victim)).count(), 5);
        let mut passed = 0;
        for key in 0..FLOOD {
            passed += u64::from(passes(&limiter, key));
            if key % 500 == 0 {
                assert!(store.tracked_keys() <= 10_000);
                assert!(!passes(&limiter, victim), "{overflow:?}: the flood has given the victim a fresh burst");
            }
        }
        assert_eq!(store.tracked_keys(), 10_000);
        assert_eq!(passed, 9_999 + shared, "{overflow:?}: what has a place, and what the others share");
        assert!(!passes(&limiter, victim));
        assert!(passes(&limiter, 7), "{overflow:?}: who has a place keeps it");
        let refused = limiter.check_now(&(FLOOD + 1)).unwrap();
        assert_eq!(refused.status(), 503, "{overflow:?}: not this key's fault");
        assert_eq!(store.counts().overflow_decisions, FLOOD - 9_999 + 1, "{overflow:?}");
        // Once the others are as new, there is room again.
        clock.advance(Duration::from_secs(3_600));
        assert!(passes(&limiter, FLOOD + 1), "{overflow:?}");
        assert!(!limiter.check_now(&(FLOOD + 1)).unwrap().tightest().unwrap().verdict.untracked);
    }
}

/// As a look at a new key in a full table of `algorithm` says, so it is.
fn looks_as_it_decides(algorithm: impl Bucket + Copy) {
    for overflow in [Overflow::Refuse, Overflow::Share(1)] {
        let store = MemoryStore::builder().max_keys(1).overflow(overflow).build();
        let clock = ManualClock::at(TODAY);
        let limiter = on(&store, &clock, [rule("r", Limit::per_hour(1)).algorithm(algorithm)]);
        assert!(limiter.peek_now(&1).unwrap().is_allowed() && passes(&limiter, 1));
        for newcomer in 2..5 {
            let looked = limiter.peek_now(&newcomer).unwrap();
            let asked = limiter.check_now(&newcomer).unwrap();
            assert_eq!(looked.refusal(), asked.refusal(), "{algorithm:?}, {overflow:?}: {newcomer}");
            assert!(looked.is_allowed() || looked.rules().eq(asked.rules()), "{looked:?} {asked:?}");
            assert_eq!(looked.is_allowed(), newcomer == 2 && overflow != Overflow::Refuse);
        }
        // A look finds the room that a request would.
        clock.advance(Duration::from_secs(3 * 3_600));
        let told: Vec<_> = (0..300).map(|_| limiter.peek_now(&6).unwrap().is_allowed()).collect();
        assert!(told.contains(&true), "{algorithm:?}, {overflow:?}");
        assert!(store.tracked_keys() <= 1);
    }
}

#[test]
fn a_look_at_a_key_without_a_place_says_what_its_request_would_be_told() {
    looks_as_it_decides(TokenBucket);
    looks_as_it_decides(FixedWindow);
    looks_as_it_decides(SlidingWindowCounter);
    looks_as_it_decides(SlidingWindowLog);
}

/// A key that goes on under `algorithm` takes its place along, which who looks before that knows of.
fn looks_into_the_table_before(algorithm: impl Bucket + Copy) {
    for overflow in [Overflow::Refuse, Overflow::Share(1)] {
        let store = MemoryStore::builder().max_keys(2).overflow(overflow).build();
        let rule = || rule("r", Limit::per_minute(3));
        let limiter = on(&store, &ManualClock::at(TODAY), [rule()]);
        assert!(passes(&limiter, 1) && passes(&limiter, 2));
        limiter.reload([rule().algorithm(algorithm)]).unwrap();
        // Those without a place use up what they share.
        while passes(&limiter, 3) {}
        let looked = limiter.peek_now(&1).unwrap();
        assert_eq!(looked.tightest().unwrap().verdict.remaining, 2, "{algorithm:?}, {overflow:?}");
        assert!(looked.is_allowed() && passes(&limiter, 1), "{algorithm:?}, {overflow:?}");
    }
}

#[test]
fn a_look_in_a_full_table_sees_what_a_key_has_used_under_the_algorithm_before() {
    looks_into_the_table_before(FixedWindow);
    looks_into_the_table_before(SlidingWindowCounter);
    looks_into_the_table_before(SlidingWindowLog);
}

#[test]
fn a_key_that_gets_a_place_goes_on_from_what_it_shared() {
    let store = MemoryStore::builder().max_keys(1).overflow(Overflow::Share(1)).build();
    let limiter = on(&store, &ManualClock::at(TODAY), [rule("r", Limit::per_hour(3))]);
    assert!(passes(&limiter, 1));
    assert!(passes(&limiter, 2) && passes(&limiter, 3), "both share one bucket of three");
    assert_eq!(store.tracked_keys(), 1);
    block_on(limiter.reset("r", Key::from(1_u64))).unwrap();
    let decision = limiter.check_now(&2).unwrap();
    assert!(decision.is_allowed());
    let verdict = decision.tightest().unwrap().verdict;
    assert!(!verdict.untracked, "it has a place now");
    assert_eq!(verdict.remaining, 0, "two of three were used where it came from");
    assert!(!passes(&limiter, 2));
}

#[test]
fn keys_that_come_and_go_are_dropped_along_the_way() {
    let (store, clock) = (MemoryStore::new(), ManualClock::at(TODAY));
    let limiter = on(&store, &clock, [rule("r", Limit::per_second(10))]);
    // A key is as new after 100 ms, in which 10,000 others come.
    let (live, mut most) = (10_000, 0);
    for key in 0..2 * FLOOD {
        clock.advance(Duration::from_micros(10));
        assert!(passes(&limiter, key));
        most = most.max(store.tracked_keys());
    }
    assert!(most <= 3 * live, "{most} keys were kept of which {live} are live");
}

#[test]
fn a_key_whose_charge_came_back_makes_room_for_another() {
    let store = MemoryStore::builder().max_keys(1).overflow(Overflow::Refuse).build();
    let clock = ManualClock::at(TODAY);
    let limiter = on(&store, &clock, [rule("r", Limit::per_hour(3))]);
    let (_, receipt) = limiter.reserve_now(&1).unwrap();
    // A key without room looks for it in a few places, and goes on from there the next time.
    let finds_room = || (0..300).any(|_| passes(&limiter, 2));
    assert!(!finds_room(), "there is room for one");
    receipt.give_back();
    assert!(!finds_room(), "the first is as new, and may come back within a second");
    clock.advance(Duration::from_secs(1));
    assert!(finds_room(), "it did not, so its place is free");
}

#[test]
fn who_comes_back_within_a_second_keeps_its_place_in_a_flood() {
    for overflow in [Overflow::Share(1), Overflow::Refuse] {
        let store = MemoryStore::builder().max_keys(500).overflow(overflow).build();
        let clock = ManualClock::at(TODAY);
        // As new half a second after it asked once, and fifty seconds after it used all.
        let limiter = on(
            &store,
            &clock,
            [rule("r", Limit::per_second(2).burst(100)).cost(|key| if *key == 0 { 1 } else { 100 })],
        );
        for ms in 0..100_000_u64 {
            if ms % 1_000 == 0 {
                let decision = limiter.check_now(&0).unwrap();
                assert!(decision.is_allowed(), "{overflow:?}: {ms}");
                assert!(!decision.tightest().unwrap().verdict.untracked, "{overflow:?}: {ms}");
            }
            passes(&limiter, ms + 1);
            clock.advance(Duration::from_millis(1));
        }
        assert!((490..=500).contains(&store.tracked_keys()), "{overflow:?}: {}", store.tracked_keys());
    }
}

fn lingers(bucket: impl Bucket + Copy, limit: Limit, fresh: u64, lingers: u64) {
    let store = MemoryStore::builder().max_keys(1).overflow(Overflow::Refuse).build();
    // On the hour, where windows begin.
    let clock = ManualClock::at(Nanos::from_secs(1_700_000_000 / 3_600 * 3_600));
    let all = limit.capacity();
    let limiter = on(&store, &clock, [rule("r", limit).algorithm(bucket).cost(move |_| all)]);
    // A key without room looks for it in a few places, and goes on from there the next time.
    let finds_room = || (0..300).any(|_| passes(&limiter, 2));
    assert!(passes(&limiter, 1));
    clock.advance(Duration::from_millis(fresh + lingers) - Duration::from_nanos(1));
    assert!(!finds_room(), "{bucket:?}, {limit:?}: too early");
    clock.advance(Duration::from_nanos(1));
    assert!(finds_room(), "{bucket:?}, {limit:?}: too late");
}

#[test]
fn a_place_stays_for_a_second_or_a_fiftieth_of_what_its_bucket_takes_to_fill_and_no_longer() {
    for (limit, fresh, more) in [
        (Limit::per_hour(10), 3_600_000, 1_000),
        (Limit::per_second(2).burst(100), 50_000, 1_000),
        (Limit::per_second(10), 1_000, 20),
        (Limit::per_second(500).burst(25), 50, 1),
    ] {
        lingers(TokenBucket, limit, fresh, more);
        if limit.capacity() == limit.permits() {
            lingers(FixedWindow, limit, fresh, more);
        }
    }
}

#[test]
fn a_thread_that_comes_late_after_a_sweep_finds_the_shared_bucket() {
    let store = MemoryStore::builder().max_keys(1).overflow(Overflow::Share(1)).build();
    let clock = ManualClock::at(TODAY);
    // The first key's place is taken for long; the others share ten per second.
    let limit = |key: &u64| if *key == 1 { Limit::per_hour(10) } else { Limit::per_second(10) };
    let limiter = on(&store, &clock, [rule("r", Limit::per_second(10)).limit_for(limit).cost(|_| 10)]);
    assert!(passes(&limiter, 1) && passes(&limiter, 2));
    clock.advance(Duration::from_secs(1));
    store.sweep(clock.now());
    clock.set(Nanos::new(clock.now().get() - 500_000_000));
    assert!(passes(&limiter, 2), "it is judged at the time of the sweep, at which all are back");
    clock.advance(Duration::from_millis(500));
    assert!(!passes(&limiter, 2), "a sweep drops no shared bucket");
    let left = limiter.peek_now(&2).unwrap().tightest().unwrap().verdict.remaining;
    assert_eq!(left, 0, "twenty have passed within the second, as many as capacity and rate allow");
}

fn is_as_new_after_a_reset(algorithm: impl Bucket + Copy) {
    let (store, clock) = (MemoryStore::new(), ManualClock::at(TODAY));
    let limit = Limit::per_hour(3);
    let limit = if algorithm.check(&limit).is_ok() { limit } else { limit.burst(3) };
    let limiter = on(&store, &clock, [rule("r", limit).algorithm(algorithm).cost(|_| 3)]);
    let new = limiter.peek_now(&1).unwrap().tightest().unwrap().verdict;
    assert!(passes(&limiter, 1) && passes(&limiter, 2) && !passes(&limiter, 1));
    block_on(limiter.reset("r", Key::from(1_u64))).unwrap();
    assert_eq!(store.tracked_keys(), 1, "the other key keeps its bucket");
    assert_eq!(limiter.peek_now(&1).unwrap().tightest().unwrap().verdict, new);
    assert!(passes(&limiter, 1) && !passes(&limiter, 2));
}

#[test]
fn a_key_is_as_new_after_a_reset() {
    is_as_new_after_a_reset(TokenBucket);
    is_as_new_after_a_reset(LeakyBucket);
    is_as_new_after_a_reset(FixedWindow);
    is_as_new_after_a_reset(SlidingWindowLog);
    is_as_new_after_a_reset(SlidingWindowCounter);
}

#[test]
fn whoever_comes_late_after_a_reset_finds_no_time_of_the_old_bucket() {
    let (store, clock) = (MemoryStore::new(), ManualClock::at(TODAY));
    let limiter = on(&store, &clock, [rule("r", Limit::per_second(10))]);
    assert!(passes(&limiter, 1));
    block_on(limiter.reset("r", Key::from(1_u64))).unwrap();
    clock.set(Nanos::new(TODAY.get() - 450_000_000));
    for used in 1..=2 {
        let told = limiter.check_now(&1).unwrap().tightest().unwrap().verdict;
        assert_eq!(told.reset, Some(Nanos::new(used * 100_000_000)), "{used} of ten a second");
    }
}

fn gives_nothing_back_to_its_successor(algorithm: impl Bucket) {
    let name = format!("{algorithm:?}");
    let (store, clock) = (MemoryStore::new(), ManualClock::at(TODAY));
    let limiter = on(&store, &clock, [rule("r", Limit::per_hour(10)).algorithm(algorithm).cost(|_| 5)]);
    let (_, receipt) = limiter.reserve_now(&1).unwrap();
    block_on(limiter.reset("r", Key::from(1_u64))).unwrap();
    assert!(passes(&limiter, 1) && passes(&limiter, 1));
    receipt.give_back();
    assert!(!passes(&limiter, 1), "{name}: what was charged before the reset has come back after it");
}

#[test]
fn a_charge_forgotten_by_a_reset_does_not_come_back_to_the_new_bucket() {
    gives_nothing_back_to_its_successor(TokenBucket);
    gives_nothing_back_to_its_successor(FixedWindow);
    gives_nothing_back_to_its_successor(SlidingWindowLog);
    gives_nothing_back_to_its_successor(SlidingWindowCounter);
}

#[test]
fn limiters_on_one_store_share_the_counts_of_rules_of_equal_name_and_no_others() {
    let (store, clock) = (MemoryStore::new(), ManualClock::at(TODAY));
    let limit = Limit::per_hour(2);
    let one = on(&store, &clock, [rule("user", limit)]);
    let other = on(&store.clone(), &clock, [rule("other", limit), rule("user", limit)]);
    let apart = on(&MemoryStore::new(), &clock, [rule("user", limit)]);
    assert!(passes(&one, 1) && passes(&other, 1));
    assert!(!passes(&one, 1) && !passes(&other, 1));
    assert!(passes(&apart, 1), "another store");
    assert_eq!(store.tracked_keys(), 2);
    let only_other = on(&store, &clock, [rule("other", limit)]);
    assert!(passes(&only_other, 1), "the refusals charged nothing under the other rule");
}

#[test]
fn a_second_rule_of_one_name_that_counts_otherwise_is_an_error_at_the_start() {
    let store = MemoryStore::new();
    let limit = Limit::per_hour(2);
    let _first = on(&store, &ManualClock::new(), [rule("user", limit)]);
    let other_algorithm = rule("user", limit).algorithm(FixedWindow);
    for second in [other_algorithm, Rule::global("user", limit)] {
        let error = Limiter::builder([second]).store(store.clone()).build().unwrap_err();
        assert_eq!((error.rule(), error.field()), ("user", "store"));
        assert!(error.to_string().contains("token bucket"), "{error}");
    }
}

#[test]
fn a_charge_from_before_the_clock_was_set_back_does_not_come_back_after_it() {
    for algorithm in [TokenBucket.into_rule(), FixedWindow.into_rule(), SlidingWindowCounter.into_rule()] {
        let clock = ManualClock::at(Nanos::from_secs(3_600));
        let limiter = on(&MemoryStore::new(), &clock, [algorithm.cost(|cost| *cost)]);
        let (_, receipt) = limiter.reserve_now(&4).unwrap();
        clock.set(Nanos::ZERO);
        assert!(passes(&limiter, 1));
        clock.set(Nanos::new(3_600_000_000_001));
        assert!(passes(&limiter, 10), "all is there again");
        receipt.give_back();
        assert_eq!(limiter.peek_now(&1).unwrap().tightest().unwrap().verdict.remaining, 0);
    }
}

/// A rule of ten per second with one count.
trait IntoRule: Bucket + Sized {
    fn into_rule(self) -> Rule<u64> {
        Rule::global("r", Limit::per_second(10)).algorithm(self)
    }
}

impl<B: Bucket> IntoRule for B {}
