use super::{
    Bucket, CustomBucket, FixedWindow, InFlight, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket,
};
use crate::limit::Limit;

/// Which strategy a rule runs: one of the six, or one of the user's own.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Algorithm {
    /// [`TokenBucket`].
    TokenBucket,
    /// [`FixedWindow`].
    FixedWindow,
    /// [`SlidingWindowLog`].
    SlidingWindowLog,
    /// [`SlidingWindowCounter`].
    SlidingWindowCounter,
    /// [`LeakyBucket`].
    LeakyBucket,
    /// [`InFlight`].
    InFlight,
    /// A [`Bucket`] of the user's own. A store that cannot run it says so when the rules are bound to it.
    Custom(CustomBucket),
}

impl Algorithm {
    /// Returns the strategy's name, as errors and logs give it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TokenBucket => "token bucket",
            Self::FixedWindow => "fixed window",
            Self::SlidingWindowLog => "sliding window log",
            Self::SlidingWindowCounter => "sliding window counter",
            Self::LeakyBucket => "leaky bucket",
            Self::InFlight => "limit on what is in flight",
            Self::Custom(_) => "custom bucket",
        }
    }

    /// Returns whether a request under this strategy is held until its turn by its nature.
    pub fn delays(&self) -> bool {
        matches!(self, Self::LeakyBucket)
    }

    /// Returns whether what a request takes is a place, which it holds until it has ended.
    pub fn holds_places(&self) -> bool {
        matches!(self, Self::InFlight)
    }

    /// Returns whether what was used under this strategy is used under `other` too, where a rule changes to it: places
    /// are held by whoever runs, and say nothing of a rate.
    pub(crate) fn carries_over_to(&self, other: &Self) -> bool {
        self.holds_places() == other.holds_places()
    }

    /// Returns what keeps the strategy from running `limit`, with the way out.
    pub(crate) fn check(&self, limit: &Limit) -> Result<(), &'static str> {
        if limit.is_in_flight() && !self.holds_places() {
            return Err(
                "a limit on what is in flight is no rate and has its own algorithm; drop .algorithm(..), or use \
                        a rate such as Limit::per_second(n)",
            );
        }
        match self {
            Self::TokenBucket => TokenBucket.check(limit),
            Self::FixedWindow => FixedWindow.check(limit),
            Self::SlidingWindowLog => SlidingWindowLog.check(limit),
            Self::SlidingWindowCounter => SlidingWindowCounter.check(limit),
            Self::LeakyBucket => LeakyBucket.check(limit),
            Self::InFlight => InFlight.check(limit),
            Self::Custom(bucket) => bucket.check(limit),
        }
    }
}
