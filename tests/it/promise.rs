//! Never more than the limit, counting the charges that stood, whatever comes back and when.

mod buckets;
mod changes;
mod limiters;
pub(crate) mod outcomes;
mod twins;
mod ways;

use tollgate::{
    Limit,
    bucket::{Bucket, FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket},
};

use crate::random::{Random, bucket_limit, from_env, log_limit, period, queue_limit, window_limit};

const OPERATIONS_A_RUN: u64 = 40;

fn runs() -> u64 {
    from_env("TOLLGATE_RUNS", 3_000)
}

/// A charge that stands: when its request starts, and what it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    at: u64,
    cost: u64,
}

/// What an algorithm promises of the requests it let start.
pub(crate) trait Promise: Bucket + Copy {
    const THIS: Self;
    /// Whether a charge that comes back counts as seen: whoever comes late after it is judged at that time.
    const SEES_WHAT_COMES_BACK: bool = false;

    /// A limit that it can run.
    fn some_limit(random: &mut Random) -> Limit;

    /// How many requests it may let start; `starts` are in their order. With `held`, some were held until their turn.
    fn bounds(limit: &Limit, starts: &[Start], held: bool);

    /// How long anybody may be told to wait, with an empty bucket or a full window.
    fn longest_wait(limit: &Limit) -> u64 {
        period(limit)
    }
}

fn time_to_fill(limit: &Limit) -> u64 {
    let parts = u128::from(limit.capacity()) * u128::from(period(limit));
    u64::try_from(parts.div_ceil(limit.permits().into())).unwrap()
}

/// Calls `check` for every interval that begins and ends with a start: what all in it took, what all but the last took,
/// and how long it is.
fn each_interval(starts: &[Start], mut check: impl FnMut(u128, u128, u64) -> bool) {
    for (place, first) in starts.iter().enumerate() {
        let mut taken = 0;
        for last in &starts[place..] {
            let before = taken;
            taken += u128::from(last.cost);
            assert!(check(taken, before, last.at - first.at), "from {first:?} to {last:?} in {starts:?}");
        }
    }
}

fn in_aligned_windows(limit: &Limit, starts: &[Start]) {
    let window = |start: &Start| start.at / period(limit);
    for together in starts.chunk_by(|one, next| window(one) == window(next)) {
        let taken: u128 = together.iter().map(|start| u128::from(start.cost)).sum();
        assert!(taken <= limit.permits().into(), "{limit}: too many in one window: {together:?}");
    }
}

impl Promise for TokenBucket {
    const THIS: Self = Self;
    const SEES_WHAT_COMES_BACK: bool = true;

    fn some_limit(random: &mut Random) -> Limit {
        bucket_limit(random)
    }

    /// Starts that were held are rounded up to the nanosecond, so the tokens of less than one more may be there.
    fn bounds(limit: &Limit, starts: &[Start], held: bool) {
        let (token, drip) = (u128::from(period(limit)), u128::from(limit.permits()));
        each_interval(starts, |taken, _, length| {
            let most = u128::from(limit.capacity()) * token + drip * u128::from(length);
            if held { taken * token < most + drip } else { taken * token <= most }
        });
    }

    fn longest_wait(limit: &Limit) -> u64 {
        time_to_fill(limit)
    }
}

impl Promise for LeakyBucket {
    const THIS: Self = Self;
    const SEES_WHAT_COMES_BACK: bool = true;

    fn some_limit(random: &mut Random) -> Limit {
        queue_limit(random)
    }

    /// The next starts no sooner than the work before it is done; as starts are rounded up to the nanosecond, two may
    /// be less than one nanosecond closer, however many lie between them.
    fn bounds(limit: &Limit, starts: &[Start], _held: bool) {
        let (permit, pace) = (u128::from(period(limit)), u128::from(limit.permits()));
        each_interval(starts, |_, before, length| before == 0 || before * permit < pace * (u128::from(length) + 1));
    }

    fn longest_wait(limit: &Limit) -> u64 {
        time_to_fill(limit)
    }
}

impl Promise for FixedWindow {
    const THIS: Self = Self;

    fn some_limit(random: &mut Random) -> Limit {
        window_limit(random)
    }

    fn bounds(limit: &Limit, starts: &[Start], _held: bool) {
        in_aligned_windows(limit, starts);
    }
}

impl Promise for SlidingWindowLog {
    const THIS: Self = Self;

    fn some_limit(random: &mut Random) -> Limit {
        log_limit(random)
    }

    fn bounds(limit: &Limit, starts: &[Start], _held: bool) {
        each_interval(starts, |taken, _, length| length >= period(limit) || taken <= limit.permits().into());
    }
}

impl Promise for SlidingWindowCounter {
    const THIS: Self = Self;

    fn some_limit(random: &mut Random) -> Limit {
        window_limit(random)
    }

    fn bounds(limit: &Limit, starts: &[Start], _held: bool) {
        in_aligned_windows(limit, starts);
        each_interval(starts, |taken, _, length| length >= period(limit) || taken < 2 * u128::from(limit.permits()));
    }

    fn longest_wait(limit: &Limit) -> u64 {
        2 * period(limit)
    }
}

/// How long nothing happens.
fn idle(random: &mut Random, limit: &Limit, now: u64, told_wait: u64) -> u64 {
    let period = period(limit);
    let idle = match random.below(16) {
        0..=5 => 0,
        6 => 1,
        7 => random.below(20),
        8 => random.below(period.div_ceil(limit.permits()) * 3 + 1),
        9 | 10 => random.up_to(period),
        11 | 12 => told_wait,
        13 => period - now % period,
        14 => random.up_to(period * 2),
        _ => time_to_fill(limit),
    };
    idle.min(u64::MAX / 4 / OPERATIONS_A_RUN)
}

/// What a request costs: mostly little, sometimes all there is, sometimes too much.
fn some_cost(random: &mut Random, limit: &Limit, remaining: u64) -> u64 {
    match random.below(10) {
        0..=3 => 1,
        4 | 5 => random.below(5),
        6 => random.up_to(limit.capacity()),
        7 => remaining,
        8 => limit.capacity(),
        _ => limit.capacity().saturating_add(1),
    }
}

/// Calls a generic function with every algorithm.
macro_rules! for_each_algorithm {
    ($function:ident) => {
        $function::<tollgate::bucket::TokenBucket>();
        $function::<tollgate::bucket::LeakyBucket>();
        $function::<tollgate::bucket::FixedWindow>();
        $function::<tollgate::bucket::SlidingWindowLog>();
        $function::<tollgate::bucket::SlidingWindowCounter>();
    };
}
use for_each_algorithm;
