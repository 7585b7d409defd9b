//! Charges that are given back.

use proptest::prelude::*;
use tollgate::{
    Limit,
    bucket::{Ask, GivenBack},
    store::Receipt,
};

use crate::engine::{Bench, Call, Kind, MS, PureBucket, S, per};

#[track_caller]
fn reserve(bench: &Bench, now: u64, cost: u64) -> Receipt {
    bench.set(now);
    let (decision, receipt) = bench.limiter.reserve_now(&Call { client: 0, cost }).unwrap();
    assert!(decision.is_allowed());
    receipt
}

/// B27, golang/go#56924, golang/go#69419, thrasher-corp/gocryptotrader#2371, ar-io/ar-io-node#489: later use shrank
/// what came back, or an estimate came back that had not been charged.
#[test]
pub(crate) fn what_comes_back_is_what_was_charged_once() {
    let bench = Bench::new(Kind::TokenBucket, per(10, S).burst(20));
    bench.passes(0, 15, 5);
    let mut a = reserve(&bench, 100 * MS, 6);
    assert_eq!(bench.remaining(100 * MS), 0);
    bench.passes(200 * MS, 1, 0);
    assert_eq!(bench.remaining(300 * MS), 1);
    bench.set(300 * MS);
    assert!(a.settle_rule("rule", 0));
    assert_eq!(bench.remaining(300 * MS), 7);
    assert!(a.settle_rule("rule", 0));
    a.give_back(); // and a third time
    assert_eq!(bench.remaining(300 * MS), 7);
    bench.refuses(300 * MS, 8, 100 * MS); // 7 exactly: the eighth is there at 0.4

    assert_eq!(bench.remaining(9_900 * MS), 20);
    let late = reserve(&bench, 9_900 * MS, 6);
    assert_eq!(bench.remaining(9_900 * MS), 14);
    assert_eq!(bench.remaining(10 * S), 15);
    late.give_back();
    assert_eq!(bench.remaining(10 * S), 20);
}

#[test]
pub(crate) fn what_time_has_refilled_and_the_cap_has_cut_off_does_not_come_back() {
    let bench = Bench::new(Kind::TokenBucket, per(10, S).burst(20));
    let six = reserve(&bench, 0, 6);
    assert_eq!(bench.remaining(0), 14);
    bench.passes(600 * MS, 20, 0);
    six.give_back();
    assert_eq!(bench.remaining(600 * MS), 0);
    bench.refuses(600 * MS, 1, 100 * MS);
    // The same on the bucket itself.
    let mut bucket = Kind::TokenBucket.bucket(per(10, S).burst(20));
    let six = bucket.decide(0, Ask::new(6)).1.unwrap();
    assert_eq!(bucket.decide(600 * MS, Ask::new(20)).0.remaining, 0);
    bucket.give_back(600 * MS, GivenBack::new(6, six));
    assert_eq!(bucket.look(600 * MS, Ask::new(0)).remaining, 0);
}

#[test]
pub(crate) fn a_charge_is_worth_less_the_more_of_it_time_has_refilled() {
    // Full bucket, six charged at 0: given back at 0.1 x n with nothing else charged, the bucket is full.
    for tenths in 0..=7 {
        let bench = Bench::new(Kind::TokenBucket, per(10, S).burst(20));
        let six = reserve(&bench, 0, 6);
        assert_eq!(bench.remaining(tenths * 100 * MS), (14 + tenths).min(20));
        six.give_back();
        assert_eq!(bench.remaining(tenths * 100 * MS), 20, "after {tenths} tenths");
    }
    // With a bucket that another charge keeps from being full, all of it comes back.
    let bench = Bench::new(Kind::TokenBucket, per(10, S).burst(20));
    bench.passes(0, 14, 6);
    let six = reserve(&bench, 0, 6);
    bench.set(S);
    assert_eq!(bench.remaining(S), 10);
    six.give_back();
    assert_eq!(bench.remaining(S), 16);
}

/// The estimate was 5, the charge was 1.
#[test]
pub(crate) fn settling_changes_the_charge_by_the_difference() {
    for kind in Kind::REFUSING {
        let bench = Bench::new(kind, per(20, 60 * S));
        reserve(&bench, 0, 5).settle(1);
        assert_eq!(bench.remaining(0), 19, "{kind:?}");
        reserve(&bench, 0, 1).settle(5);
        assert_eq!(bench.remaining(0), 14, "{kind:?}");
        let mut receipt = reserve(&bench, 0, 10);
        assert!(receipt.settle_rule("rule", 0));
        assert!(!receipt.settle_rule("other", 0));
        assert_eq!(bench.remaining(0), 14, "{kind:?}");
        drop(receipt);
        reserve(&bench, 0, 7).keep();
        drop(reserve(&bench, 0, 7)); // dropped, it stands
        assert_eq!(bench.remaining(0), 0, "{kind:?}");
    }
}

/// Settled first, for an answer that was shorter or longer than expected, and then cancelled after all.
#[test]
pub(crate) fn a_settled_charge_can_still_be_given_back() {
    for kind in Kind::REFUSING {
        for (cost, settled) in [(10, 4), (4, 10)] {
            let bench = Bench::new(kind, per(20, 60 * S));
            let mut receipt = reserve(&bench, 0, cost);
            assert!(receipt.settle_rule("rule", settled));
            assert_eq!(bench.remaining(0), 20 - settled, "{kind:?}");
            receipt.give_back();
            assert_eq!(bench.remaining(0), 20, "{kind:?}: {cost}, settled to {settled}");
        }
    }
}

#[test]
pub(crate) fn a_window_takes_back_only_what_still_counts_in_it() {
    for (kind, now, before, after) in [
        (Kind::FixedWindow, 60 * S - 1, 4, 10),
        (Kind::FixedWindow, 60 * S, 10, 10),
        (Kind::SlidingWindowLog, 65 * S - 1, 4, 10),
        (Kind::SlidingWindowLog, 65 * S, 10, 10),
        // The previous window weighs six permits by half.
        (Kind::SlidingWindowCounter, 90 * S, 7, 10),
        (Kind::SlidingWindowCounter, 120 * S, 10, 10),
        (Kind::SlidingWindowCounter, 180 * S, 10, 10),
    ] {
        let bench = Bench::new(kind, per(10, 60 * S));
        let six = reserve(&bench, 5 * S, 6);
        assert_eq!(bench.remaining(now), before, "{kind:?} at {now}");
        six.give_back();
        assert_eq!(bench.remaining(now), after, "{kind:?} at {now}");
        bench.never(now, 11, 10);
    }
    // Where the window that moved on has charges of its own, they stand.
    for kind in Kind::REFUSING {
        let bench = Bench::new(kind, per(10, 60 * S));
        let six = reserve(&bench, 5 * S, 6);
        bench.passes(200 * S, 3, 7);
        six.give_back();
        assert_eq!(bench.remaining(200 * S), 7, "{kind:?}");
    }
}

#[test]
pub(crate) fn a_charge_under_several_rules_comes_back_under_all() {
    let rules = Kind::REFUSING.into_iter().zip(["a", "b", "c", "d"]).map(|(kind, name)| kind.rule(name, per(9, S)));
    let bench = Bench::of(rules);
    reserve(&bench, 0, 4).give_back();
    let decision = bench.check(0, 1);
    assert!(decision.rules().all(|rule| rule.verdict.remaining == 8), "{decision:?}");
}

#[test]
pub(crate) fn a_bucket_takes_no_charge_back_twice() {
    for kind in Kind::REFUSING {
        let mut bucket = kind.bucket(per(20, 2 * S));
        let _ = bucket.decide(0, Ask::new(13));
        let a = bucket.decide(0, Ask::new(6)).1.unwrap();
        bucket.give_back(0, GivenBack::new(6, a));
        assert_eq!(bucket.look(0, Ask::new(0)).remaining, 7, "{kind:?}");
        if kind == Kind::TokenBucket {
            // A window knows its charges by their time only, which two of one instant share.
            bucket.give_back(0, GivenBack::new(6, a));
            assert_eq!(bucket.look(0, Ask::new(0)).remaining, 7, "{kind:?}");
        }
    }
}

/// The most that any cost up to `limit` finds, now and later.
fn answers(bucket: &dyn PureBucket, now: u64, limit: Limit) -> Vec<tollgate::decision::Verdict> {
    let period = u64::try_from(limit.period().as_nanos()).unwrap();
    let later = [0, 1, period / 7, period / 2, period - 1, period, period + period / 3, 2 * period];
    later
        .iter()
        .flat_map(|later| (0..=limit.capacity() + 1).map(move |cost| bucket.look(now + later, Ask::new(cost))))
        .collect()
}

/// A bucket after charges of these costs at these times, as far as they passed.
fn after(kind: Kind, limit: Limit, calls: &[(u64, u64)]) -> (Box<dyn PureBucket>, u64) {
    let (mut bucket, mut now) = (kind.bucket(limit), 0);
    for (pause, cost) in calls {
        now += pause;
        let _ = bucket.decide(now, Ask::new(*cost));
    }
    (bucket, now)
}

fn calls() -> impl Strategy<Value = Vec<(u64, u64)>> {
    proptest::collection::vec((prop_oneof![Just(0), 0_u64..S], 1_u64..12), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// B27: charged and given back at one instant is as if nothing had been.
    #[test]
    fn charged_and_given_back_at_once_changes_no_answer(
        kind in proptest::sample::select(Kind::ALL.to_vec()),
        (permits, period) in (1_u64..12, 1_u64..3 * S),
        before in calls(), pause in 0_u64..S, cost in 1_u64..12,
    ) {
        let limit = per(permits, period);
        let (mut bucket, now) = after(kind, limit, &before);
        let now = now + pause;
        let untouched = bucket.duplicate();
        if let (_, Some(mark)) = bucket.decide(now, Ask::new(cost)) {
            bucket.give_back(now, GivenBack::new(cost, mark));
        }
        prop_assert_eq!(answers(&*bucket, now, limit), answers(&*untouched, now, limit));
    }

    /// However late it is given back, there is never more than had the charge never happened.
    #[test]
    fn a_charge_given_back_never_leaves_more_than_without_it(
        kind in proptest::sample::select(Kind::REFUSING.to_vec()),
        (permits, burst, period) in (1_u64..12, 1_u64..24, 1_u64..3 * S),
        before in calls(), cost in 1_u64..12, between in calls(), pause in 0_u64..S,
    ) {
        let limit = if kind == Kind::TokenBucket { per(permits, period).burst(burst) } else { per(permits, period) };
        let (mut bucket, mut now) = after(kind, limit, &before);
        let mut without = bucket.duplicate();
        let Some(mark) = bucket.decide(now, Ask::new(cost)).1 else { return Ok(()) };
        for (pause, cost) in between {
            now += pause;
            // What passed beside the charge passes without it.
            if bucket.decide(now, Ask::new(cost)).1.is_some() {
                prop_assert!(without.decide(now, Ask::new(cost)).1.is_some());
            }
        }
        now += pause;
        bucket.give_back(now, GivenBack::new(cost, mark));
        for later in [0, 1, period / 3, period - 1, period, 2 * period] {
            let (with, without) = (bucket.look(now + later, Ask::new(0)), without.look(now + later, Ask::new(0)));
            prop_assert!(with.remaining <= without.remaining, "{kind:?} {later}: {with:?}, {without:?}");
        }
    }
}
