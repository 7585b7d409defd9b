//! What is counted, and for how long.

use std::thread;

use tollgate::bucket::{Ask, GivenBack};

use crate::engine::{Bench, Call, DAY, Kind, MS, S, per};

/// B02, marketcalls/openalgo#1830: an entry exactly one window old still counted.
#[test]
pub(crate) fn a_log_entry_stops_counting_exactly_one_window_after_it() {
    let log = Bench::new(Kind::SlidingWindowLog, per(1, 60 * S));
    log.passes(0, 1, 0);
    log.refuses(59_999 * MS, 1, MS);
    assert_eq!(log.check(59_999 * MS, 1).retry_after_secs(), Some(1));
    log.refuses(60 * S - 1, 1, 1);
    log.passes(60 * S, 1, 0);
    log.refuses(60 * S + 1, 1, 60 * S - 1);
    log.refuses(120 * S - 1, 1, 1);
    log.passes(120 * S + 1, 1, 0);
}

#[test]
pub(crate) fn a_log_entry_in_the_middle_of_a_window_lasts_one_window_too() {
    let log = Bench::new(Kind::SlidingWindowLog, per(2, 60 * S));
    log.passes(17 * S + 3, 1, 1);
    log.passes(17 * S + 4, 1, 0);
    log.refuses(77 * S + 2, 1, 1);
    log.passes(77 * S + 3, 1, 0);
    log.passes(77 * S + 4, 1, 0);
    // Entries of one instant leave together.
    let log = Bench::new(Kind::SlidingWindowLog, per(4, 60 * S));
    log.passes(5, 3, 1);
    log.passes(6, 1, 0);
    log.refuses(60 * S + 4, 3, 1);
    log.passes(60 * S + 5, 3, 0);
}

#[test]
pub(crate) fn every_strategy_frees_its_permit_exactly_when_it_says() {
    for (kind, free_at) in [
        (Kind::TokenBucket, 60 * S),
        (Kind::FixedWindow, 60 * S),
        // The first window weighs until the second has ended.
        (Kind::SlidingWindowCounter, 120 * S),
        (Kind::LeakyBucket, 60 * S),
    ] {
        let bench = Bench::new(kind, per(1, 60 * S));
        bench.passes(0, 1, 0);
        bench.refuses(59_999 * MS, 1, free_at - 59_999 * MS);
        bench.refuses(free_at - 1, 1, 1);
        bench.passes(free_at, 1, 0);
        assert!(!bench.check(free_at + 1, 1).is_allowed(), "{kind:?}");
    }
}

#[test]
pub(crate) fn a_pure_log_counts_an_entry_in_a_half_open_window() {
    let mut log = Kind::SlidingWindowLog.bucket(per(1, 60 * S));
    assert!(log.decide(0, Ask::new(1)).1.is_some());
    for (now, passes) in [(59_999 * MS, false), (60 * S - 1, false), (60 * S, true), (60 * S + 1, true)] {
        assert_eq!(log.look(now, Ask::new(1)).outcome.passes(), passes, "{now}");
    }
    assert_eq!(log.fresh_at(), 60 * S);
}

/// B04, udoprog/leaky-bucket#30: an hour of idling bought any number of tokens.
#[test]
pub(crate) fn an_idle_hour_buys_no_more_than_the_capacity() {
    let bench = Bench::new(Kind::TokenBucket, per(10, S));
    bench.passes(0, 10, 0);
    assert_eq!(bench.admitted(3_600 * S, 10), 10);
    bench.refuses(3_600 * S, 1, 100 * MS);
    assert_eq!(bench.admitted(3_600 * S, 39), 0);
    // One that is larger than the bucket does not fit however long it was idle.
    let bench = Bench::new(Kind::TokenBucket, per(10, S));
    bench.passes(0, 10, 0);
    bench.never(3_600 * S, 11, 10);
    bench.passes(3_600 * S, 10, 0);
}

#[test]
pub(crate) fn no_strategy_saves_up_while_it_is_idle() {
    for kind in Kind::REFUSING {
        for idle in [3_600 * S, 3_600 * S + 1, 365 * DAY, 292 * 365 * DAY - 1] {
            let bench = Bench::new(kind, per(10, S));
            assert_eq!(bench.admitted(0, 50), 10, "{kind:?}");
            assert_eq!(bench.admitted(idle, 50), 10, "{kind:?} after {idle}");
            bench.never(idle + 5 * S, 11, 10);
        }
    }
    // A queue holds as many as it is deep, and starts one at once.
    let mut queue = Kind::LeakyBucket.bucket(per(10, S));
    let ask = Ask::new(1).max_delay(tollgate::time::Nanos::MAX);
    for now in [0, 3_600 * S] {
        assert_eq!((0..50).filter(|_| queue.decide(now, ask).1.is_some()).count(), 10);
    }
}

#[test]
pub(crate) fn a_pause_shorter_than_the_refill_buys_exactly_its_share() {
    let bench = Bench::new(Kind::TokenBucket, per(10, S).burst(25));
    bench.passes(0, 25, 0);
    assert_eq!(bench.admitted(2_499_999_999, 50), 24);
    assert_eq!(bench.admitted(2_500_000_000, 50), 1);
    assert_eq!(bench.admitted(7 * S, 50), 25);
}

/// B35, sockudo/sockudo#251: entries of one instant overwrote each other.
#[test]
pub(crate) fn requests_of_one_instant_are_counted_one_by_one() {
    let log = Bench::new(Kind::SlidingWindowLog, per(5, 60 * S));
    assert_eq!(log.admitted(7 * S, 10), 5);
    let log = Bench::new(Kind::SlidingWindowLog, per(5, 60 * S));
    log.passes(7 * S, 3, 2);
    log.refuses(7 * S, 3, 60 * S);
    assert_eq!(log.remaining(7 * S), 2);
}

#[test]
pub(crate) fn one_of_two_entries_of_one_instant_comes_back_alone() {
    for kind in Kind::REFUSING {
        let bench = Bench::new(kind, per(5, 60 * S));
        bench.set(7 * S);
        let (_, one) = bench.limiter.reserve_now(&Call { client: 0, cost: 2 }).unwrap();
        let (_, other) = bench.limiter.reserve_now(&Call { client: 0, cost: 2 }).unwrap();
        assert_eq!(bench.remaining(7 * S), 1, "{kind:?}");
        one.give_back();
        assert_eq!(bench.remaining(7 * S), 3, "{kind:?}");
        other.give_back();
        assert_eq!(bench.remaining(7 * S), 5, "{kind:?}");
    }
    let mut log = Kind::SlidingWindowLog.bucket(per(5, 60 * S));
    let mark = log.decide(S, Ask::new(1)).1.unwrap();
    let _ = log.decide(S, Ask::new(1));
    log.give_back(S, GivenBack::new(1, mark));
    assert_eq!(log.look(S, Ask::new(1)).remaining, 4);
}

#[test]
pub(crate) fn every_strategy_counts_requests_of_one_instant_one_by_one() {
    for kind in Kind::REFUSING {
        let bench = Bench::new(kind, per(5, 60 * S));
        assert_eq!(bench.admitted(7 * S, 10), 5, "{kind:?}");
        let bench = Bench::new(kind, per(5, 60 * S));
        bench.passes(7 * S, 3, 2);
        assert!(!bench.check(7 * S, 3).is_allowed(), "{kind:?}");
        bench.passes(7 * S, 2, 0);
    }
}

#[test]
pub(crate) fn sixteen_connections_at_one_instant_are_counted_one_by_one() {
    let log = Bench::new(Kind::SlidingWindowLog, per(5, 60 * S));
    log.set(7 * S);
    let barrier = std::sync::Barrier::new(16);
    let admitted: usize = thread::scope(|scope| {
        let one = || {
            barrier.wait();
            usize::from(log.limiter.check_now(&Call { client: 0, cost: 1 }).unwrap().is_allowed())
        };
        let connections: Vec<_> = (0..16).map(|_| scope.spawn(one)).collect();
        connections.into_iter().map(|connection| connection.join().unwrap()).sum()
    });
    assert_eq!(admitted, 5);
}

/// Times cut to whole seconds made 10,000 requests of 19 seconds into 19.
#[test]
pub(crate) fn requests_within_one_second_are_not_one_entry() {
    let log = Bench::new(Kind::SlidingWindowLog, per(50, 60 * S));
    assert_eq!((0..10_000).filter(|n| log.check(n * 1_900_000, 1).is_allowed()).count(), 50);
}
