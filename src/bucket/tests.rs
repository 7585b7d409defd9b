use proptest::prelude::*;

use super::*;
use crate::decision::{Outcome, Wait};

const S: u64 = 1_000_000_000;

fn at(nanos: u64) -> Nanos {
    Nanos::new(nanos)
}

/// Tokens in a token bucket now.
fn tokens(state: &Schedule, limit: &Limit, now: u64) -> u64 {
    TokenBucket.look(state, limit, at(now), Ask::new(1)).remaining
}

fn take(state: &mut Schedule, limit: &Limit, now: u64, cost: u64) -> Mark {
    assert!(TokenBucket.look(state, limit, at(now), Ask::new(cost)).outcome.passes());
    TokenBucket.take(state, limit, at(now), Ask::new(cost)).1
}

fn give(state: &mut Schedule, limit: &Limit, now: u64, cost: u64, mark: Mark) {
    TokenBucket.give_back(state, limit, at(now), GivenBack::new(cost, mark));
}

#[test]
fn gives_back_no_more_than_the_bucket_would_hold() {
    // 1/s, capacity 3: A and B at 0, A returned at 0, C at 1.2, B returned at 1.2 leaves 2.
    let limit = Limit::per_second(1).burst(3);
    let mut state = Schedule::default();
    let a = take(&mut state, &limit, 0, 1);
    let b = take(&mut state, &limit, 0, 1);
    give(&mut state, &limit, 0, 1, a);
    assert_eq!(tokens(&state, &limit, 0), 2);
    let _ = take(&mut state, &limit, 1_200_000_000, 1);
    give(&mut state, &limit, 1_200_000_000, 1, b);
    assert_eq!(tokens(&state, &limit, 1_200_000_000), 2);
}

#[test]
fn a_state_is_kept_until_no_mark_in_it_can_matter() {
    let limit = Limit::per_second(1).burst(3);
    let mut state = Schedule::default();
    let a = take(&mut state, &limit, 0, 1);
    let b = take(&mut state, &limit, 0, 1);
    give(&mut state, &limit, 0, 1, a);
    // Full at 1 s, but B's mark reaches to 2 s: dropped at 1.2 s, B would come back twice.
    assert_eq!(TokenBucket.fresh_at(&state, &limit), at(2 * S));
    give(&mut state, &limit, 0, 1, b);
    assert_eq!(tokens(&state, &limit, 0), 3);
}

#[test]
fn the_last_charge_comes_back_exactly_and_only_once() {
    let limit = Limit::new(7, std::time::Duration::from_secs(13)).burst(20);
    let mut state = Schedule::default();
    let _ = take(&mut state, &limit, 5, 3);
    let before = state;
    let mark = take(&mut state, &limit, 5, 9);
    give(&mut state, &limit, 5, 9, mark);
    assert_eq!(state, before);
    give(&mut state, &limit, 5, 9, mark);
    assert_eq!(state, before);
}

#[test]
fn a_cancelled_turn_returns_only_if_it_was_the_last() {
    let limit = Limit::per_second(1).burst(1);
    let ask = Ask::new(1).max_delay(at(10 * S));
    let mut state = Schedule::default();
    let turn = |state: &mut Schedule, now: u64| {
        let (verdict, mark) = TokenBucket.take(state, &limit, at(now), ask);
        (verdict.outcome, mark)
    };
    assert_eq!(turn(&mut state, 0).0, Outcome::Pass);
    let (y, y_mark) = turn(&mut state, 0);
    assert_eq!(y, Outcome::Delay(at(S)));
    let (z, z_mark) = turn(&mut state, 0);
    assert_eq!(z, Outcome::Delay(at(2 * S)));
    let back = |mark| GivenBack::new(1, mark).delays(true);
    // Y is in front of Z, which was promised 2 s and keeps it: nothing returns.
    let before = state.used_units(&limit, at(S / 2));
    TokenBucket.give_back(&mut state, &limit, at(S / 2), back(y_mark));
    assert_eq!(state.used_units(&limit, at(S / 2)), before);
    // Z was last; who comes then starts at 2 s in its stead.
    TokenBucket.give_back(&mut state, &limit, at(S / 2), back(z_mark));
    assert_eq!(turn(&mut state, S / 2).0, Outcome::Delay(at(2 * S - S / 2)));
}

#[test]
fn usage_carries_over_exactly_under_the_same_limit_and_never_shrinks_under_another() {
    let limits = [
        Limit::per_second(3),
        Limit::per_second(10).burst(25),
        Limit::new(7, std::time::Duration::from_nanos(13)),
        Limit::per_day(1_000_003),
    ];
    for old in limits {
        let mut state = Schedule::default();
        let _ = TokenBucket.take(&mut state, &old, at(77), Ask::new(2));
        let units = state.used_units(&old, at(91));
        let same = Schedule::with_used(&old, state.used(&old, at(91)), at(91));
        assert_eq!(same.used_units(&old, at(91)), units, "{old}");
        for new in limits {
            let moved = Schedule::with_used(&new, state.used(&old, at(91)), at(91));
            // Units / units a permit is the number of permits: compare over the common denominator. 2^-64 of a permit
            // is lost at most.
            let was = units * u128::from(new.permit());
            let is = moved.used_units(&new, at(91)) * u128::from(old.permit());
            assert!(is >= was.saturating_sub(1), "{old} -> {new}: {was} {is}");
        }
    }
}

#[test]
fn a_bucket_judges_a_late_thread_at_its_own_time_and_goes_on_after_a_step() {
    let limit = Limit::per_second(10);
    let (mut held, mut state) = (limit, Schedule::default());
    let _ = TokenBucket.take(&mut state, &limit, at(3_600 * S), Ask::new(10));
    let judged = TokenBucket.judge_at(&mut state, &mut held, &limit, at(3_600 * S - 999_999_999));
    assert_eq!(judged, at(3_600 * S));
    let judged = TokenBucket.judge_at(&mut state, &mut held, &limit, at(0));
    assert_eq!(judged, at(0));
    let outcome = TokenBucket.look(&state, &limit, judged, Ask::new(1)).outcome;
    assert_eq!(outcome, Outcome::Refuse(Wait::For(at(S / 10))));
}

#[test]
fn extremes_do_not_wrap() {
    let biggest = Limit::new(u64::MAX, Limit::MAX_SPAN);
    let slowest = Limit::new(1, Limit::MAX_SPAN);
    for limit in [biggest, slowest, Limit::new(u64::MAX, std::time::Duration::from_nanos(1))] {
        for now in [0, 1, u64::MAX / 2, u64::MAX] {
            for cost in [0, 1, u64::MAX] {
                let ask = Ask::new(cost).keep(cost);
                let mut state = Schedule::default();
                let _ = TokenBucket.look(&state, &limit, at(now), ask);
                let (_, mark) = TokenBucket.take(&mut state, &limit, at(now), ask);
                give(&mut state, &limit, now, cost, mark);
                let mut state = FixedWindowState::default();
                let _ = FixedWindow.take(&mut state, &limit, at(now), ask);
                let _ = FixedWindow.look(&state, &limit, at(now), ask);
                let mut state = SlidingWindowCounterState::default();
                let _ = SlidingWindowCounter.take(&mut state, &limit, at(now), ask);
                let _ = SlidingWindowCounter.take(&mut state, &limit, at(now), ask);
                let _ = SlidingWindowCounter.look(&state, &limit, at(now), ask);
                let mut state = SlidingWindowLogState::default();
                let _ = SlidingWindowLog.take(&mut state, &limit, at(now), ask);
                let _ = SlidingWindowLog.take(&mut state, &limit, at(now), ask);
                let _ = SlidingWindowLog.look(&state, &limit, at(now), ask);
            }
        }
    }
}

#[test]
fn what_is_packed_comes_out_as_it_went_in_and_what_does_not_fit_is_not_packed() {
    let limit = Limit::per_second(3);
    let mut state = Schedule::default();
    let (_, first) = TokenBucket.take(&mut state, &limit, at(77), Ask::new(1));
    let _ = TokenBucket.take(&mut state, &limit, at(77), Ask::new(1));
    let words = TokenBucket.pack(&state).unwrap();
    assert_eq!(TokenBucket.unpack(words, state.seen()), state);
    // A hole in the middle, and a remainder beyond 32 bits.
    TokenBucket.give_back(&mut state, &limit, at(77), GivenBack::new(1, first));
    assert_eq!(TokenBucket.pack(&state), None);
    let odd = Limit::new(10_000_000_019, std::time::Duration::from_secs(1));
    let mut state = Schedule::default();
    let _ = TokenBucket.take(&mut state, &odd, at(77), Ask::new(7));
    assert_eq!(LeakyBucket.pack(&state), None);

    let mut window = FixedWindow.fresh(&limit, at(0));
    let _ = FixedWindow.take(&mut window, &limit, at(5), Ask::new(2));
    assert_eq!(FixedWindow.unpack(FixedWindow.pack(&window).unwrap(), at(9)), window);
    let _ = FixedWindow.take(&mut window, &limit, at(5), Ask::new(1 << 32));
    assert_eq!(FixedWindow.pack(&window), None);

    let mut counter = SlidingWindowCounter.fresh(&limit, at(0));
    let _ = SlidingWindowCounter.take(&mut counter, &limit, at(5), Ask::new(2));
    let _ = SlidingWindowCounter.take(&mut counter, &limit, at(1_000_000_005), Ask::new(1));
    assert_eq!(SlidingWindowCounter.unpack(SlidingWindowCounter.pack(&counter).unwrap(), at(9)), counter);
    let _ = SlidingWindowCounter.take(&mut counter, &limit, at(1_000_000_005), Ask::new(1 << 32));
    assert_eq!(SlidingWindowCounter.pack(&counter), None);
}

proptest! {
    /// The short way and the long way are the same sum.
    #[test]
    fn what_is_taken_at_once_is_what_is_looked_at_and_taken(
        permits in 1_u64..2_000,
        period in 1_u64..5_000,
        burst in proptest::option::of(1_u64..3_000),
        steps in proptest::collection::vec((0_u64..20_000, 0_u64..40), 1..40),
    ) {
        let limit = Limit::new(permits, std::time::Duration::from_nanos(permits * period));
        let limit = burst.map_or(limit, |burst| limit.burst(burst));
        let (mut words, mut now) = ([0; 3], Nanos::from_secs(1_790_000_000));
        for (pause, cost) in steps {
            now = now.saturating_add(Nanos::new(pause));
            let mut state = TokenBucket.unpack(words, now);
            let ask = Ask::new(cost);
            let look = TokenBucket.look(&state, &limit, now, ask);
            let quick = TokenBucket.quick(&limit).unwrap();
            let Some(at_once) = TokenBucket.at_once(words, &quick, now, cost) else {
                prop_assert!(cost == 0 || cost > limit.capacity());
                continue;
            };
            prop_assert_eq!(at_once.looked(&quick), look);
            prop_assert_eq!(at_once.taken.is_some(), look.outcome.passes());
            if let Some(packed) = at_once.taken {
                prop_assert_eq!(at_once.took(&quick, now), TokenBucket.take(&mut state, &limit, now, ask));
                prop_assert_eq!(Some(packed), TokenBucket.pack(&state));
                words = packed;
            }
        }
    }
}
