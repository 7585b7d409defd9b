//! Time: the [`Clock`] a limiter reads, and [`Nanos`], the instants and spans it computes with.
//!
//! A limiter reads its clock **once** per request and hands the value on; nothing below it asks for the time again.
//! [`SystemClock`] is the default; [`ManualClock`] moves only when a test moves it.

mod epoch;
mod manual;
#[cfg(feature = "quanta")]
mod quanta;
mod system;

pub use manual::ManualClock;
#[cfg(feature = "quanta")]
pub use quanta::QuantaClock;
pub use system::SystemClock;

use std::{fmt, future::Future, pin::Pin, time::Duration};

/// A boxed future that can be sent between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The only source of "now" in the process.
///
/// # Contract
///
/// `now` SHOULD never go back. Where it does, buckets stay safe: less than a second back is treated as a thread that
/// came late, more as a clock that was set, and neither mints permits (see [the guide](crate::guide::limitations)).
pub trait Clock: Send + Sync + 'static {
    /// Returns the time since the Unix epoch.
    fn now(&self) -> Nanos;

    /// Returns a future that resolves once `now` has moved on by at least `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Nanoseconds: an instant since the Unix epoch, or a span between two of them.
///
/// There are no operators; every sum says what happens at the ends of the range. As an instant it reaches to the
/// year 2554.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::time::Nanos;
///
/// let second = Nanos::from_secs(1);
/// assert_eq!(second.saturating_add(Nanos::new(1)).get(), 1_000_000_001);
/// assert_eq!(second.saturating_sub(Nanos::from_secs(2)), Nanos::ZERO);
/// assert_eq!(Nanos::new(1).as_secs_ceil(), 1);
/// assert_eq!(Nanos::from(Duration::MAX), Nanos::MAX); // saturates
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(u64);

impl Nanos {
    /// No time at all, and the Unix epoch itself.
    pub const ZERO: Self = Self(0);
    /// The largest value, about 584 years.
    pub const MAX: Self = Self(u64::MAX);
    /// One second.
    pub const SECOND: Self = Self(1_000_000_000);

    /// Returns `nanos` nanoseconds.
    pub const fn new(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns `secs` seconds, or [`Nanos::MAX`] where they do not fit.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Returns `nanos`, or [`Nanos::MAX`] where it does not fit.
    pub(crate) fn saturating_from_u128(nanos: u128) -> Self {
        Self(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns the number of nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the sum, at most [`Nanos::MAX`].
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the difference, at least [`Nanos::ZERO`].
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns the difference, or `None` where `other` is the later one.
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(nanos) => Some(Self(nanos)),
            None => None,
        }
    }

    /// Returns whole seconds, a started second counted as a whole one.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000_000)
    }

    /// Returns the span as a [`Duration`]; exact.
    pub const fn as_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl From<Duration> for Nanos {
    /// Saturates at [`Nanos::MAX`].
    fn from(duration: Duration) -> Self {
        Self::saturating_from_u128(duration.as_nanos())
    }
}

impl From<Nanos> for Duration {
    fn from(nanos: Nanos) -> Self {
        nanos.as_duration()
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_duration())
    }
}
