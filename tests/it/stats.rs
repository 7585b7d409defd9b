//! What is told of one rule.

use tollgate::{
    ErrorKind, FailurePolicy, Key, Limit, Limiter, Mode, Rule,
    bucket::FixedWindow,
    charge::Share,
    store::{Guarded, MemoryStore, Overflow},
    time::{ManualClock, Nanos},
};

use crate::support::Remote;

fn by_id(name: &'static str, limit: Limit) -> Rule<u64> {
    Rule::new(name, limit, |id: &u64| Some(Key::from(*id)))
}

#[test]
fn keys_that_are_tracked_dropped_and_without_a_place_are_told_by_rule() {
    let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
    let store = MemoryStore::builder().max_keys(100).overflow(Overflow::Refuse).build();
    let rules = || [by_id("user", Limit::per_second(1)), by_id("even", Limit::per_second(9)).when(|id| id % 2 == 0)];
    let limiter = Limiter::builder(rules()).store(store.clone()).clock(clock.clone()).build().unwrap();
    for id in 0..100 {
        assert!(limiter.check_now(&id).unwrap().is_allowed());
    }
    assert!((100..110).all(|id| !limiter.check_now(&id).unwrap().is_allowed()));
    let keys = |name| limiter.stats(name).unwrap().keys.unwrap();
    assert_eq!((keys("user").tracked_keys, keys("user").overflow_decisions), (100, 10));
    assert_eq!((keys("even").tracked_keys, keys("even").overflow_decisions), (50, 0));
    assert_eq!(store.counts().tracked_keys, 150);
    clock.advance(std::time::Duration::from_secs(2));
    store.sweep(Nanos::from_secs(1_700_000_002));
    assert_eq!((keys("user").tracked_keys, keys("user").evicted_keys), (0, 100));
    // What was counted goes on with the rule, whatever becomes of it.
    limiter.reload([by_id("new", Limit::per_second(3)).algorithm(FixedWindow).was("user")]).unwrap();
    let stats = limiter.stats("new").unwrap();
    assert_eq!((stats.algorithm, stats.limit, stats.mode), ("fixed window", Limit::per_second(3), Mode::Enforce));
    assert_eq!(stats.keys.unwrap().evicted_keys, 100);
    assert_eq!(limiter.stats("user").unwrap_err().kind(), ErrorKind::UnknownRule);
}

#[test]
fn who_waits_and_what_would_be_decided_otherwise_is_told_where_there_is_such_a_thing() {
    let rules = [
        by_id("jobs", Limit::in_flight(1)).queue(5, std::time::Duration::from_secs(9)),
        by_id("tried", Limit::per_hour(1)).shadow(),
    ];
    let limiter = Limiter::builder(rules).clock(ManualClock::new()).build().unwrap();
    let (_, _first) = limiter.reserve_now(&7).unwrap();
    let mut waits = tokio_test::task::spawn(limiter.acquire_receipt(&7));
    assert!(waits.poll().is_pending());
    let (jobs, tried) = (limiter.stats("jobs").unwrap(), limiter.stats("tried").unwrap());
    assert_eq!((jobs.waiting, jobs.differences), (Some(1), None));
    assert_eq!((tried.waiting, tried.mode), (None, Mode::Shadow));
    assert_eq!(tried.differences.map(|differences| differences.both_pass), Some(1));
}

/// A guard tells what the store behind it holds in this process; of one that is elsewhere nobody knows.
#[test]
fn keys_that_are_elsewhere_are_not_told() {
    let stats = |limiter: Limiter<u64>| limiter.stats("a").unwrap().keys.map(|keys| keys.tracked_keys);
    let rule = || [by_id("a", Limit::per_hour(5))];
    let guarded = Guarded::new(MemoryStore::new(), FailurePolicy::Refuse);
    let limiter = Limiter::builder(rule()).store(guarded).build().unwrap();
    assert!(limiter.check_now(&1).unwrap().is_allowed());
    assert_eq!(stats(limiter), Some(1));
    let remote = Remote::over(&MemoryStore::new());
    let guarded = Guarded::new(remote.clone(), FailurePolicy::Fallback(Share::WHOLE));
    assert_eq!(stats(Limiter::builder(rule()).store(guarded).build().unwrap()), None);
    assert_eq!(stats(Limiter::builder(rule()).store(remote).build().unwrap()), None);
}

#[test]
fn a_name_that_no_rule_has_is_an_error_that_tells_the_names_there_are() {
    let says = |limiter: &Limiter<u64>| limiter.stats("usr").unwrap_err().to_string();
    assert_eq!(says(&Limiter::new([])), "there is no rule \"usr\"; no rule is in force");
    let two = Limiter::new([by_id("user", Limit::per_hour(5)), by_id("all", Limit::per_hour(5))]);
    assert_eq!(says(&two), "there is no rule \"usr\"; there are \"user\", \"all\"");
    let reset = tokio_test::block_on(two.reset("usr", Key::from(1_u64))).unwrap_err();
    assert_eq!((reset.kind(), reset.to_string()), (ErrorKind::UnknownRule, says(&two)));
    let many = Limiter::new((0..30).map(|at| Rule::global(format!("r{at}"), Limit::per_hour(5))));
    assert!(says(&many).ends_with("\"r18\", \"r19\" and 10 others"), "{}", says(&many));
}
