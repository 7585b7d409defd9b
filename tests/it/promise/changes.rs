//! Clocks that are set back, and limits that change.

use std::time::Duration;

use tollgate::{
    Key, Limit, Limiter, Rule,
    bucket::{Ask, Bucket, FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket, Used},
    decision::{Outcome, Wait},
    time::{Clock, ManualClock, Nanos},
};

use super::{Promise, for_each_algorithm, idle, runs, some_cost};
use crate::random::{Random, each_seed};

const TODAY: u64 = 1_700_000_000_000_000_000;

/// A bucket after some random charges, and the time it was last charged at.
fn used_bucket<B: Promise>(limit: &Limit, random: &mut Random) -> (B::State, u64) {
    let (mut now, mut charged_at) = (TODAY, TODAY);
    let mut state = B::THIS.fresh(limit, Nanos::new(now));
    let _ = B::THIS.take(&mut state, limit, Nanos::new(now), Ask::new(1));
    for _ in 0..10 {
        now += idle(random, limit, now, 0).min(1 << 55);
        let remaining = B::THIS.look(&state, limit, Nanos::new(now), Ask::new(0)).remaining;
        let ask = Ask::new(some_cost(random, limit, remaining)).max_delay(Nanos::MAX);
        if ask.cost > 0 && B::THIS.look(&state, limit, Nanos::new(now), Ask::new(ask.cost)).outcome.passes() {
            let _ = B::THIS.take(&mut state, limit, Nanos::new(now), ask);
            charged_at = now;
        }
    }
    (state, charged_at)
}

/// Nobody, whatever it costs, is told to wait for longer than an empty bucket needs to fill, or a window.
fn waits_are_short<B: Promise>(state: &B::State, limit: &Limit, now: Nanos, random: &mut Random) {
    for cost in [1, limit.capacity(), 1 + random.below(limit.capacity())] {
        match B::THIS.look(state, limit, now, Ask::new(cost)).outcome {
            Outcome::Pass => {}
            Outcome::Refuse(Wait::For(wait)) => {
                assert!(wait.get() <= B::longest_wait(limit), "{limit}: {cost} told to wait {wait:?}");
            }
            other => panic!("{limit}: {cost}: {other:?}"),
        }
    }
}

fn stays_used_when_the_clock_is_set_back<B: Promise>() {
    each_seed(runs() / 3, |random| {
        let limit = B::some_limit(random);
        let (mut state, charged_at) = used_bucket::<B>(&limit, random);
        let before = B::THIS.used(&state, &limit, Nanos::new(charged_at));
        let back = match random.below(3) {
            0 => 1_000_000_000,
            1 => 1_000_000_000 + random.below(1 << 50),
            _ => charged_at,
        };
        let now = Nanos::new(charged_at - back);
        let judged = B::THIS.judge_at(&mut state, &mut { limit }, &limit, now);
        assert_eq!(judged, now, "the bucket goes on from the new time");
        let after = B::THIS.used(&state, &limit, now);
        assert!(after >= before.min(Used::whole(limit.capacity())), "{limit}: {before:?} became {after:?}");
        waits_are_short::<B>(&state, &limit, now, random);
    });
}

#[test]
fn a_clock_set_back_leaves_used_what_was_used_and_makes_nobody_wait_long() {
    for_each_algorithm!(stays_used_when_the_clock_is_set_back);
}

fn a_drained_limiter_stays_drained_when_its_clock_is_set_back<B: Promise>() {
    each_seed(runs() / 3, |random| {
        let limit = B::some_limit(random);
        let clock = ManualClock::at(Nanos::new(TODAY + random.below(1 << 40)));
        let rule = Rule::new("r", limit, |_: &u64| Some(Key::from("one"))).cost(|cost| *cost).algorithm(B::THIS);
        let limiter = Limiter::builder([rule]).clock(clock.clone()).build().unwrap();
        assert!(limiter.check_now(&limit.capacity()).unwrap().is_allowed());
        let back = 1_000_000_000 + random.below(1 << 60);
        clock.set(Nanos::new(clock.now().get() - back));
        let refused = limiter.check_now(&1).unwrap();
        assert!(!refused.is_allowed(), "{limit}: the clock minted permits");
        let wait = refused.retry_after().unwrap();
        assert!(wait.as_nanos() <= B::longest_wait(&limit).into(), "{limit}: told to wait {wait:?}");
        clock.advance(wait);
        assert!(limiter.check_now(&1).unwrap().is_allowed(), "{limit}: {wait:?} was not the truth");
    });
}

#[test]
fn a_drained_key_stays_drained_when_the_clock_is_set_back_and_is_told_when_it_passes() {
    for_each_algorithm!(a_drained_limiter_stays_drained_when_its_clock_is_set_back);
}

/// A limit that another may change into.
fn another<B: Promise>(limit: &Limit, random: &mut Random) -> Limit {
    let same_period = |permits: u64| match limit.explicit_burst() {
        Some(burst) => Limit::new(permits, limit.period()).burst(burst),
        None => Limit::new(permits, limit.period()),
    };
    match random.below(3) {
        0 => B::some_limit(random),
        1 => same_period(limit.permits().div_ceil(2)),
        _ => same_period(limit.permits().max((limit.permits().saturating_mul(3) / 2).min(65_536))),
    }
}

fn stays_used_under_another_limit<B: Promise>() {
    each_seed(runs() / 3, |random| {
        let old = B::some_limit(random);
        let new = another::<B>(&old, random);
        let (state, charged_at) = used_bucket::<B>(&old, random);
        let now = Nanos::new(charged_at + random.below(1 << 30));
        let before = B::THIS.used(&state, &old, now);
        let mut moved = state;
        let judged = B::THIS.judge_at(&mut moved, &mut { old }, &new, now);
        assert_eq!(judged, now);
        let after = B::THIS.used(&moved, &new, now);
        // A log keeps its times, and in a shorter window fewer of them count.
        if new.period() >= old.period() || B::THIS.into_algorithm().name() != SlidingWindowLog.into_algorithm().name() {
            assert!(after >= before.min(Used::whole(new.capacity())), "{old} -> {new}: {before:?} became {after:?}");
        }
        assert!(after.ceil() <= before.ceil(), "{old} -> {new}: {before:?} became {after:?}");
        waits_are_short::<B>(&moved, &new, now, random);
        if B::THIS.into_algorithm().name() != LeakyBucket.into_algorithm().name() {
            let remaining = B::THIS.look(&moved, &new, now, Ask::new(0)).remaining;
            assert!(remaining >= new.capacity().saturating_sub(before.ceil()), "{old} -> {new}: a raise helps at once");
        }
    });
}

#[test]
fn a_changed_limit_keeps_what_was_used_and_a_lowered_one_makes_nobody_wait_long() {
    for_each_algorithm!(stays_used_under_another_limit);
}

/// A limiter whose requests say the permits of their tier.
fn tiers<B: Promise>(clock: &ManualClock) -> Limiter<u64> {
    let limit = |permits: u64| {
        let limit = Limit::new(permits, Duration::from_secs(60));
        if B::THIS.check(&limit).is_ok() { limit } else { limit.burst(permits) }
    };
    let rule = Rule::new("tier", limit(5), |_: &u64| Some(Key::from("one")))
        .limit_for(move |permits| limit(*permits))
        .algorithm(B::THIS);
    Limiter::builder([rule]).clock(clock.clone()).build().unwrap()
}

fn passes(limiter: &Limiter<u64>, tier: u64) -> u64 {
    (0..1_000).take_while(|_| limiter.check_now(&tier).unwrap().is_allowed()).count() as u64
}

fn a_raise_helps_at_once<B: Promise>() {
    let limiter = tiers::<B>(&ManualClock::at(Nanos::from_secs(1_700_000_010)));
    assert_eq!(passes(&limiter, 5), 5);
    assert_eq!(passes(&limiter, 8), 3, "what was used stays used, the rest is there at once");
    let lowered = limiter.check_now(&2).unwrap();
    let wait = lowered.retry_after().unwrap();
    assert!(
        wait.as_nanos() <= B::longest_wait(&Limit::new(2, Duration::from_secs(60))).into(),
        "told to wait {wait:?}"
    );
    assert!(passes(&limiter, 8) <= 6, "lowering and raising again gifts what the lower one could not hold at most");
}

#[test]
fn a_key_whose_tier_is_raised_has_the_difference_at_once() {
    a_raise_helps_at_once::<TokenBucket>();
    a_raise_helps_at_once::<FixedWindow>();
    a_raise_helps_at_once::<SlidingWindowLog>();
    a_raise_helps_at_once::<SlidingWindowCounter>();
}

#[test]
fn a_sliding_counter_keeps_what_the_previous_window_weighs_when_its_limit_is_lowered() {
    let (old, new) = (Limit::per_second(10), Limit::per_second(5));
    let mut state = SlidingWindowCounter.fresh(&old, Nanos::from_secs(1));
    let _ = SlidingWindowCounter.take(&mut state, &old, Nanos::from_secs(1), Ask::new(10));
    let now = Nanos::new(2_500_000_000);
    let mut moved = state;
    let _ = SlidingWindowCounter.judge_at(&mut moved, &mut { old }, &new, now);
    let used = |state, limit| SlidingWindowCounter.used(&state, limit, now);
    assert_eq!((used(state, &old), used(moved, &new)), (Used::whole(5), Used::whole(5)));
}
