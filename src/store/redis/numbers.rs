//! A limit in the whole numbers that the script computes with, which are doubles: exact up to 2^53.

use crate::{bucket::Algorithm, limit::Limit};

/// Sums of two of these, of what is used and of what is asked for, are exact still.
const MOST: u64 = 1 << 52;

/// What a full bucket may have at most, so that a debt of as much again can be told.
const MOST_CAPACITY: u64 = 1 << 51;

/// As many places as nobody has; so many sums of these are exact.
const MOST_PLACES: u64 = 1 << 40;

/// Which algorithm the script runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingWindowCounter,
    SlidingWindowLog,
    InFlight,
}

impl Kind {
    pub(super) fn of(algorithm: &Algorithm) -> Option<Self> {
        match algorithm {
            Algorithm::TokenBucket => Some(Self::TokenBucket),
            Algorithm::LeakyBucket => Some(Self::LeakyBucket),
            Algorithm::FixedWindow => Some(Self::FixedWindow),
            Algorithm::SlidingWindowCounter => Some(Self::SlidingWindowCounter),
            Algorithm::SlidingWindowLog => Some(Self::SlidingWindowLog),
            Algorithm::InFlight => Some(Self::InFlight),
            _ => None,
        }
    }

    pub(super) fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }

    /// The script's number for it. What sets the two buckets apart is how much room a request needs.
    pub(super) fn code(self) -> u64 {
        match self {
            Self::TokenBucket | Self::LeakyBucket => 0,
            Self::FixedWindow => 1,
            Self::SlidingWindowCounter => 2,
            Self::SlidingWindowLog => 3,
            Self::InFlight => 4,
        }
    }

    /// Its part in the names of keys.
    pub(super) fn letter(self) -> char {
        match self {
            Self::TokenBucket => 't',
            Self::LeakyBucket => 'q',
            Self::FixedWindow => 'f',
            Self::SlidingWindowCounter => 'c',
            Self::SlidingWindowLog => 'l',
            Self::InFlight => 'p',
        }
    }
}

/// A limit's three numbers, named as in the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) kind: Kind,
    /// Units of a permit, or the window's length in microseconds, or in how many a place lapses.
    pub(super) a: u64,
    /// Units that a microsecond drains, or the window's permits, or places.
    pub(super) b: u64,
    /// Units of a full bucket, the most a window counts, or nothing.
    pub(super) c: u64,
}

impl Numbers {
    /// Returns the numbers of `limit`, or which of them is too large, and the way out.
    pub(super) fn new(kind: Kind, limit: &Limit) -> Result<Self, String> {
        match kind {
            Kind::TokenBucket | Kind::LeakyBucket => Self::bucket(kind, limit),
            Kind::InFlight => Self::places(limit),
            _ => Self::window(kind, limit),
        }
    }

    /// A permit is `period / g` units and a nanosecond drains `permits / g` of them, `g` their greatest common divisor:
    /// the units of the memory store. Where those are too many, the same per microsecond, which are up to a thousand
    /// times fewer.
    fn bucket(kind: Kind, limit: &Limit) -> Result<Self, String> {
        let (permits, period) = (u128::from(limit.permits()), u128::from(limit.period_nanos()));
        let drained = permits * 1_000;
        let finest = divisor(period, permits);
        let coarsest = divisor(period, drained);
        let capacity = u128::from(limit.capacity());
        let mut least = u128::MAX;
        for by in [finest, coarsest] {
            let (a, b) = (period / by, drained / by);
            let c = capacity.saturating_mul(a);
            least = least.min(c.max(b));
            if let (Some(a), Some(b), Some(c)) = (upto(a, MOST), upto(b, MOST_CAPACITY), upto(c, MOST_CAPACITY)) {
                return Ok(Self { kind, a, b, c });
            }
        }
        Err(format!(
            "at {limit} a bucket of {capacity} permits has {least} parts, and Redis counts exactly to {MOST_CAPACITY}; \
             lower the burst, choose a rate in rounder numbers (1,000 an hour, not 1,009), or use a window"
        ))
    }

    fn window(kind: Kind, limit: &Limit) -> Result<Self, String> {
        let nanos = limit.period_nanos();
        if !nanos.is_multiple_of(1_000) {
            return Err(format!(
                "the window of {:?} is no whole number of microseconds, which is how Redis tells the time; round it, or \
                 use the token bucket",
                limit.period()
            ));
        }
        let (a, b) = (nanos / 1_000, limit.permits());
        if a > MOST_CAPACITY {
            return Err(format!(
                "the window is {a} microseconds long, and Redis counts exactly to {MOST_CAPACITY}, which is 71 years; \
                 shorten it"
            ));
        }
        if b > MOST_CAPACITY {
            return Err(format!("{b} permits are more than Redis counts exactly, {MOST_CAPACITY}; lower the limit"));
        }
        let weighed = u128::from(a) * u128::from(b);
        if kind == Kind::SlidingWindowCounter && weighed > u128::from(MOST_CAPACITY) {
            return Err(format!(
                "{b} permits times a window of {a} microseconds are {weighed}, and Redis counts exactly to \
                 {MOST_CAPACITY}; lower the limit, shorten the window, or use the fixed window or the token bucket"
            ));
        }
        let c = if kind == Kind::SlidingWindowCounter { MOST / a.max(1) } else { MOST };
        let c = if kind == Kind::SlidingWindowLog { 0 } else { c };
        Ok(Self { kind, a, b, c })
    }

    fn places(limit: &Limit) -> Result<Self, String> {
        let b = limit.permits();
        if b > MOST_PLACES {
            return Err(format!("{b} places are more than Redis counts exactly, {MOST_PLACES}; lower the limit"));
        }
        Ok(Self { kind: Kind::InFlight, a: 0, b, c: 0 })
    }

    /// Sets in how many microseconds a place lapses, where it is about places.
    pub(super) fn lapsing_in(self, micros: u64) -> Self {
        if self.kind == Kind::InFlight { Self { a: micros, ..self } } else { self }
    }

    /// What `permits` permits are in the state's own numbers, at most what is as good as endless.
    pub(super) fn amount(&self, permits: u64) -> u64 {
        let each = if self.kind.is_bucket() { self.a } else { 1 };
        permits.saturating_mul(each).min(if self.kind == Kind::InFlight { MOST_PLACES } else { MOST })
    }
}

/// The greatest common divisor, at least 1.
fn divisor(mut one: u128, mut other: u128) -> u128 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one.max(1)
}

fn upto(number: u128, most: u64) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| *number <= most)
}

/// A whole number as a double; exact up to 2^53, which is all this store gives it.
#[allow(clippy::cast_precision_loss, reason = "numbers are checked to be below 2^53 where they come from")]
pub(super) fn double(number: u64) -> f64 {
    number as f64
}

/// A double of the script as a whole number: 0 where it is negative or none, the last there is where it is too large.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturating is what is wanted")]
pub(super) fn whole(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn counts_in_the_units_of_the_memory_store_where_they_fit() {
        let bucket = |limit| Numbers::new(Kind::TokenBucket, &limit).map(|numbers| (numbers.a, numbers.b, numbers.c));
        assert_eq!(bucket(Limit::per_second(10).burst(20)), Ok((100_000_000, 1_000, 2_000_000_000)));
        assert_eq!(bucket(Limit::per_second(3)), Ok((1_000_000_000, 3_000, 3_000_000_000)));
        assert_eq!(bucket(Limit::new(5, Duration::from_nanos(13))), Ok((13, 5_000, 65)));
        // One a year: in nanoseconds too large.
        assert_eq!(
            bucket(Limit::new(1, Duration::from_secs(365 * 86_400))),
            Ok((31_536_000_000_000, 1, 31_536_000_000_000))
        );
        assert_eq!(bucket(Limit::per_hour(1_009)), Ok((3_600_000_000, 1_009, 3_632_400_000_000)));
    }

    #[test]
    fn names_the_number_that_is_too_large_and_the_way_out() {
        let wrong = |kind, limit| Numbers::new(kind, &limit).expect_err("too large");
        let long = |permits, secs| Limit::new(permits, Duration::from_secs(secs));
        assert!(wrong(Kind::TokenBucket, long(1_000_003, 86_400)).contains("86400259200000000 parts"));
        assert!(wrong(Kind::FixedWindow, Limit::new(1, Duration::from_nanos(1_500))).contains("1.5µs is no whole"));
        assert!(wrong(Kind::FixedWindow, long(1, 80 * 365 * 86_400)).contains("71 years"));
        assert!(wrong(Kind::FixedWindow, Limit::per_second(u64::MAX)).contains("18446744073709551615 permits"));
        assert!(wrong(Kind::SlidingWindowCounter, long(100_000, 86_400)).contains("8640000000000000"));
    }
}
