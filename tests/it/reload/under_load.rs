//! Reloads while two threads ask as fast as they can.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use tollgate::{
    Limit, Limiter, Rule,
    bucket::{FixedWindow, SlidingWindowCounter, SlidingWindowLog, TokenBucket},
    time::ManualClock,
};

use super::{TODAY, rule};
use crate::random::Random;

const KEYS: u64 = 4;
const RELOADS: u64 = 200;
const STEP: Duration = Duration::from_millis(10);

/// What every rule set of a run has in common, so that there is something that they allow together.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// Whether the rule that is watched counts by other algorithms, too.
    changes_algorithm: bool,
    /// Whether it has other capacities, too.
    changes_capacity: bool,
}

/// A random set. The rule that is watched goes by one of two names and has up to 50 permits a second.
fn random_set(random: &mut Random, run: Run, name: &mut &'static str) -> (Vec<Rule<u64>>, u64) {
    let capacity = if run.changes_capacity { 18 + 2 * random.below(3) } else { 20 };
    let was = *name;
    if random.one_in(4) {
        *name = if was == "one" { "two" } else { "one" };
    }
    let bucket = Limit::per_second(5 + 5 * random.below(10)).burst(capacity);
    let window = Limit::per_second(capacity);
    let watched = match random.below(if run.changes_algorithm { 6 } else { 1 }) {
        0..=2 => rule(name, bucket).algorithm(TokenBucket),
        3 => rule(name, window).algorithm(FixedWindow),
        4 => rule(name, window).algorithm(SlidingWindowCounter),
        _ => rule(name, window).algorithm(SlidingWindowLog),
    };
    let mut set = vec![if was == *name { watched } else { watched.was(was) }];
    // Others around it, which never refuse but come and go and change places.
    for other in ["before", "behind"] {
        if random.one_in(2) {
            let place = random.below(set.len() as u64 + 1) as usize;
            set.insert(place, Rule::global(other, Limit::per_second(1_000_000 + random.below(9))));
        }
    }
    (set, capacity)
}

/// Runs 200 reloads beside two threads, and checks for each key that no more passed than all sets in force allow.
fn hammer(seed: u64, run: Run) {
    let (mut random, mut name, clock) = (Random::new(seed), "one", ManualClock::at(TODAY));
    let (first, mut capacity) = random_set(&mut random, run, &mut name);
    let limiter = Limiter::builder(first).clock(clock.clone()).build().unwrap();
    let (passed, asked, done) =
        ([const { AtomicU64::new(0) }; KEYS as usize], AtomicU64::new(0), AtomicBool::new(false));
    let (mut gifts, mut highest) = (0, capacity);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    for (key, passed) in passed.iter().enumerate() {
                        if limiter.check_now(&(key as u64)).unwrap().is_allowed() {
                            passed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    asked.fetch_add(1, Ordering::Release);
                }
            });
        }
        for reload in 0..RELOADS {
            let before = asked.load(Ordering::Acquire);
            // Both threads ask under each set, however the system schedules them.
            while asked.load(Ordering::Acquire) < before + 4 {
                thread::yield_now();
            }
            clock.advance(STEP);
            if reload % 10 == 5 {
                let (mut bad, _) = random_set(&mut random, run, &mut { name });
                bad.push(rule("bad", Limit::per_second(0)));
                limiter.reload(bad).unwrap_err();
            }
            let (set, next) = random_set(&mut random, run, &mut name);
            limiter.reload(set).unwrap();
            // What a raised capacity adds, and what a request of the set before may take the key back to.
            gifts += 3 * next.abs_diff(capacity);
            (capacity, highest) = (next, highest.max(next));
        }
        done.store(true, Ordering::Release);
    });
    assert_eq!((limiter.reloads().reloaded, limiter.reloads().failed), (RELOADS, RELOADS / 10));
    let time = STEP * u32::try_from(RELOADS).unwrap();
    // 50 a second and a capacity; what windows let through is added where there are any: one more at their edges.
    let mut most = highest + 50 * time.as_secs() + gifts;
    if run.changes_algorithm {
        most += highest * (time.as_secs() + 1);
    }
    let least = 5 * time.as_secs();
    let passed = passed.map(AtomicU64::into_inner);
    println!(
        "{RELOADS} reloads, {} rounds of both threads, seed {seed}, {run:?}: {passed:?} passed of each key, at most {most} are \
         allowed, {gifts} of them gifts of raised capacities",
        asked.into_inner()
    );
    for passed in passed {
        assert!(passed <= most, "{passed} passed, and all sets together allow {most}: {run:?}, seed {seed}");
        assert!(passed >= least, "only {passed} passed: {run:?}, seed {seed}");
    }
}

#[test]
fn two_hundred_reloads_under_load_admit_no_more_than_the_rules_in_force_allow() {
    for seed in 0..3 {
        for changes_algorithm in [false, true] {
            for changes_capacity in [false, true] {
                hammer(seed, Run { changes_algorithm, changes_capacity });
            }
        }
    }
}
