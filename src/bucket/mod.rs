//! The strategies: one key's state under one algorithm, advanced only by pure functions.
//!
//! | algorithm | choose it for | what it truly bounds |
//! |---|---|---|
//! | [`TokenBucket`] (default) | most things: bursts up to a capacity, then a steady rate | `burst + rate * T` in any interval `T` |
//! | [`SlidingWindowLog`] | low limits that must be exact: logins, one-time codes | `n` in any trailing window |
//! | [`SlidingWindowCounter`] | a window without the double burst at its edge, in constant space | `n` per aligned window, under `2n` in any |
//! | [`FixedWindow`] | coarse quotas per hour or day | `n` per aligned window, `2n` around an edge |
//! | [`LeakyBucket`] | smoothing what goes to a strict downstream: requests are **held** | starts never closer than the rate |
//! | [`InFlight`] | slow or streamed answers, of which only so many may run at a time | `n` at any instant |
//!
//! All arithmetic is on integers with remainders carried, so three per second is three per second for ever. A type of
//! your own that implements [`Bucket`] works wherever these do.

mod algorithm;
mod custom;
mod fixed_window;
mod in_flight;
mod leaky_bucket;
mod packed;
mod schedule;
mod sliding_window_counter;
mod sliding_window_log;
mod token_bucket;

pub use algorithm::Algorithm;
pub use custom::{CustomBucket, CustomState};
pub use fixed_window::{FixedWindow, FixedWindowState};
pub use in_flight::{InFlight, InFlightState};
pub use leaky_bucket::LeakyBucket;
pub(crate) use packed::{AtOnce, Packed, Quick, Words};
pub use schedule::Schedule;
pub use sliding_window_counter::{SlidingWindowCounter, SlidingWindowCounterState};
pub use sliding_window_log::{SlidingWindowLog, SlidingWindowLogState};
pub use token_bucket::TokenBucket;

use crate::{
    decision::{Outcome, Verdict},
    limit::Limit,
    time::Nanos,
};

/// A time this much earlier than what a bucket has seen, or more, means that the clock was set back; anything less is
/// a thread that came late.
const STEPPED: Nanos = Nanos::SECOND;

/// What one request asks of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ask {
    /// How many permits the request takes. Zero only looks, and passes.
    pub cost: u64,
    /// How many permits must be left after it.
    pub keep: u64,
    /// How long the request may be held until its turn; zero where it may not.
    pub max_delay: Nanos,
}

impl Ask {
    /// Asks for `cost` permits, now.
    pub const fn new(cost: u64) -> Self {
        Self { cost, keep: 0, max_delay: Nanos::ZERO }
    }

    /// Asks that `keep` permits be left.
    #[must_use]
    pub const fn keep(mut self, keep: u64) -> Self {
        self.keep = keep;
        self
    }

    /// Allows the request to be held for `max_delay`.
    #[must_use]
    pub const fn max_delay(mut self, max_delay: Nanos) -> Self {
        self.max_delay = max_delay;
        self
    }

    /// What has to be there for the request to pass, unless that is more than `capacity`.
    pub(crate) fn needs(&self, capacity: u64) -> Option<u64> {
        self.cost.checked_add(self.keep).filter(|needs| *needs <= capacity)
    }
}

/// Where in its bucket's schedule a charge stands, so that it can be given back to where it was taken.
///
/// What the two numbers mean is up to the bucket that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Mark {
    /// An instant.
    pub at: Nanos,
    /// Its fraction, or anything else.
    pub fraction: u64,
}

impl Mark {
    /// Returns a mark at `at` plus a fraction of a nanosecond in the bucket's own unit.
    pub const fn new(at: Nanos, fraction: u64) -> Self {
        Self { at, fraction }
    }
}

/// A charge, or a part of one, that is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GivenBack {
    /// How many permits come back.
    pub cost: u64,
    /// How many of the charge still stand after that.
    pub left: u64,
    /// The mark that [`Bucket::take`] returned for the charge.
    pub mark: Mark,
    /// Whether the rule holds requests until their turn.
    pub delays: bool,
}

impl GivenBack {
    /// Returns the whole charge of `cost` permits at `mark`, of a rule that does not delay.
    pub const fn new(cost: u64, mark: Mark) -> Self {
        Self { cost, left: 0, mark, delays: false }
    }

    /// Says that `left` permits of the charge still stand.
    #[must_use]
    pub const fn leaves(mut self, left: u64) -> Self {
        self.left = left;
        self
    }

    /// Says that the rule holds requests until their turn.
    #[must_use]
    pub const fn delays(mut self, delays: bool) -> Self {
        self.delays = delays;
        self
    }
}

/// An exact amount of permits used, to 2^-64 of a permit.
///
/// It carries usage from one limit, or one algorithm, to another.
///
/// ```
/// use tollgate::bucket::Used;
///
/// assert_eq!(Used::whole(3).ceil(), 3);
/// assert_eq!(Used::ratio(7, 2).ceil(), 4);
/// assert_eq!(Used::ratio(7, 2).of(2), 7); // three and a half permits of two units each
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Used(u128);

impl Used {
    /// Nothing used.
    pub const ZERO: Self = Self(0);

    /// Returns `permits` permits.
    pub const fn whole(permits: u64) -> Self {
        Self((permits as u128) << 64)
    }

    /// Returns `units / units_per_permit` permits, rounded down to 2^-64 and saturating.
    pub fn ratio(units: u128, units_per_permit: u64) -> Self {
        let per = u128::from(units_per_permit.max(1));
        match u64::try_from(units / per) {
            Ok(whole) => Self((u128::from(whole) << 64) | (((units % per) << 64) / per)),
            Err(_) => Self(u128::MAX),
        }
    }

    /// Returns the amount in whole permits, rounded up and saturating.
    pub fn ceil(self) -> u64 {
        self.whole_part().saturating_add(u64::from(self.fraction() > 0))
    }

    /// Returns the amount in units of which a permit has `units_per_permit`, rounded up. What [`ratio`](Self::ratio)
    /// was given comes back unchanged.
    pub fn of(self, units_per_permit: u64) -> u128 {
        let per = u128::from(units_per_permit);
        let fraction = u128::from(self.fraction()) * per;
        let fraction = (fraction >> 64) + u128::from(fraction & u128::from(u64::MAX) != 0);
        (u128::from(self.whole_part()) * per).saturating_add(fraction)
    }

    #[allow(clippy::cast_possible_truncation, reason = "the upper half of a u128 fits in a u64")]
    fn whole_part(self) -> u64 {
        (self.0 >> 64) as u64
    }

    #[allow(clippy::cast_possible_truncation, reason = "the lower half is what is asked for")]
    fn fraction(self) -> u64 {
        self.0 as u64
    }
}

/// A strategy: how one key's state answers, is charged, and is given back to.
///
/// Everything is a function of the state, the limit, the time and what is asked; a bucket sees no lock, no clock and
/// no request. The store calls [`look`](Self::look) for every rule of a request first, and [`take`](Self::take) only
/// when all of them pass.
///
/// # Contract
///
/// - `look` MUST NOT say that a cost passes for which `take` would break the limit, or that would leave less than
///   [`Ask::keep`]; saying no too often is only strict.
/// - `take` MUST charge exactly what it was asked, and answer with the numbers after the charge.
/// - `give_back` MUST NOT leave more than there would be had the charge never happened, and MUST be harmless however
///   late it comes. A charge is given back once, and to the bucket it was taken from or that bucket's successor; stores
///   see to that.
/// - A state at or after [`fresh_at`](Self::fresh_at) MUST answer as a fresh one does, since it may be dropped.
/// - Nothing may panic, block, or call back into the limiter: the state's lock is held.
/// - The store MUST bring the state up to date before it asks, as [`MemoryStore`](crate::store::MemoryStore) does: a
///   time less than a second before [`seen`](Self::seen) is judged at that; after a clock that was set back further the
///   state goes on from the new time by [`used`](Self::used) and [`with_used`](Self::with_used), and after a change of
///   the limit by [`under`](Self::under).
///
/// # Examples
///
/// A bucket that lets each key through once, ever:
///
/// ```
/// use tollgate::{
///     Key, Limit, Limiter, Rule,
///     bucket::{Ask, Bucket, GivenBack, Mark, Used},
///     decision::{Outcome, Verdict, Wait},
///     time::Nanos,
/// };
///
/// #[derive(Debug)]
/// struct Once;
///
/// impl Bucket for Once {
///     type State = u64;
///
///     fn fresh(&self, _: &Limit, _: Nanos) -> u64 {
///         0
///     }
///     fn look(&self, used: &u64, limit: &Limit, _: Nanos, ask: Ask) -> Verdict {
///         let left = limit.permits().saturating_sub(*used);
///         let passes = ask.cost == 0 || ask.cost.saturating_add(ask.keep) <= left;
///         let outcome = if passes { Outcome::Pass } else { Outcome::Refuse(Wait::Never) };
///         Verdict::new(outcome, limit.permits(), left, None)
///     }
///     fn take(&self, used: &mut u64, limit: &Limit, now: Nanos, ask: Ask) -> (Verdict, Mark) {
///         *used = used.saturating_add(ask.cost);
///         let left = limit.permits().saturating_sub(*used);
///         (Verdict::new(Outcome::Pass, limit.permits(), left, None), Mark::default())
///     }
///     fn give_back(&self, used: &mut u64, _: &Limit, _: Nanos, charge: GivenBack) {
///         *used = used.saturating_sub(charge.cost);
///     }
///     fn used(&self, used: &u64, _: &Limit, _: Nanos) -> Used {
///         Used::whole(*used)
///     }
///     fn with_used(&self, _: &Limit, used: Used, _: Nanos) -> u64 {
///         used.ceil()
///     }
///     fn fresh_at(&self, _: &u64, _: &Limit) -> Nanos {
///         Nanos::MAX // never forgotten
///     }
/// }
///
/// let rule = Rule::new("once", Limit::per_second(1), |id: &u64| Some(Key::from(*id))).algorithm(Once);
/// let limiter = Limiter::new([rule]);
/// assert!(limiter.check_now(&7)?.is_allowed());
/// assert!(!limiter.check_now(&7)?.is_allowed());
/// # Ok::<(), tollgate::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no rate limiting strategy",
    note = "use one of `TokenBucket`, `FixedWindow`, `SlidingWindowLog`, `SlidingWindowCounter`, `LeakyBucket`, \
            `InFlight`, or implement `tollgate::bucket::Bucket`"
)]
pub trait Bucket: Send + Sync + std::fmt::Debug + 'static {
    /// One key's state.
    type State: Clone + Send + Sync + 'static;

    /// Returns the state of a key that was never seen.
    fn fresh(&self, limit: &Limit, now: Nanos) -> Self::State;

    /// Answers without changing anything.
    fn look(&self, state: &Self::State, limit: &Limit, now: Nanos, ask: Ask) -> Verdict;

    /// Returns the outcome of [`look`](Self::look), and the numbers where it does not tell sooner without: the store
    /// needs them only of a request that does not pass.
    #[doc(hidden)]
    fn outcome(&self, state: &Self::State, limit: &Limit, now: Nanos, ask: Ask) -> (Outcome, Option<Verdict>) {
        let verdict = self.look(state, limit, now, ask);
        (verdict.outcome, Some(verdict))
    }

    /// Charges `ask.cost`, whether or not there is room, and returns the numbers afterwards. The outcome is a delay
    /// where the request has to be held, and otherwise a pass.
    fn take(&self, state: &mut Self::State, limit: &Limit, now: Nanos, ask: Ask) -> (Verdict, Mark);

    /// Gives a charge back, or a part of it.
    fn give_back(&self, state: &mut Self::State, limit: &Limit, now: Nanos, charge: GivenBack);

    /// Returns how much is used at `now`.
    fn used(&self, state: &Self::State, limit: &Limit, now: Nanos) -> Used;

    /// Returns a state of which `used` is used at `now`; what the capacity cannot hold is forgiven.
    fn with_used(&self, limit: &Limit, used: Used, now: Nanos) -> Self::State;

    /// Returns when the state answers as a fresh one does, if nothing else happens.
    fn fresh_at(&self, state: &Self::State, limit: &Limit) -> Nanos;

    /// Returns the latest time the state was charged at, so that a time before it can be told. A bucket that returns
    /// zero is always judged at the time given.
    fn seen(&self, _state: &Self::State) -> Nanos {
        Nanos::ZERO
    }

    /// Returns the state under a changed limit. Time up to `now` counts at the old rate; then what was used stays
    /// used, in permits.
    fn under(&self, state: &Self::State, old: &Limit, new: &Limit, now: Nanos) -> Self::State {
        self.with_used(new, self.used(state, old, now), now)
    }

    /// Returns what keeps this strategy from running `limit`, if anything; a message that names the way out.
    ///
    /// Zero permits, a zero period and spans over [`Limit::MAX_SPAN`] are found elsewhere.
    fn check(&self, _limit: &Limit) -> Result<(), &'static str> {
        Ok(())
    }

    /// Whether what is taken is a place: held until it is given back, whatever happens to time, limit or key meanwhile.
    #[doc(hidden)]
    fn holds_places(&self) -> bool {
        false
    }

    /// Brings `state` up to date for a decision at `now` and returns the time to judge it at.
    ///
    /// A time less than a second before what the bucket has seen is a thread that came late: it is judged at the
    /// bucket's time. One further back is a clock that was set: the bucket keeps what was used and goes on from `now`.
    /// A changed limit takes over what was used.
    #[doc(hidden)]
    fn judge_at(&self, state: &mut Self::State, old: &mut Limit, new: &Limit, now: Nanos) -> Nanos {
        let seen = self.seen(state);
        let judged = match seen.checked_sub(now) {
            Some(back) if back >= STEPPED => {
                *state = self.with_used(old, self.used(state, old, seen), now);
                now
            }
            Some(_) => seen,
            None => now,
        };
        if old != new {
            *state = self.under(state, old, new, judged);
            *old = *new;
        }
        judged
    }

    /// How rules name the strategy.
    #[doc(hidden)]
    fn into_algorithm(self) -> Algorithm
    where
        Self: Sized,
    {
        Algorithm::Custom(CustomBucket::new(self))
    }
}

#[cfg(test)]
mod tests;
