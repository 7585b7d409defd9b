use crate::limit::Limit;

/// What happens to a rule's requests while the store does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FailurePolicy {
    /// They pass: right where serving without a limit is better than not serving, such as public reads.
    Allow,
    /// They are refused with status 503: right where the limit is a protection, such as a login. The default, so that
    /// a limit is never off by accident.
    #[default]
    Refuse,
    /// They are judged by this process alone, under a share of the limit. The store has to be
    /// [`Guarded`](crate::store::Guarded), or never fail, as the memory store; on any other it is an error when rules
    /// are put together.
    Fallback(Share),
}

/// The share of a limit that one process grants by itself while the store does not answer.
///
/// Permits and burst are rounded up and at least 1; the period stays. A share of nothing, or of more than the whole, is
/// an error when rules are put together.
///
/// # Examples
///
/// ```
/// use tollgate::{Limit, charge::Share};
///
/// let limit = Limit::per_minute(100).burst(10);
/// assert_eq!(Share::one_in(4).of(&limit), Limit::per_minute(25).burst(3));
/// assert_eq!(Share::percent(50).of(&limit), Limit::per_minute(50).burst(5));
/// assert_eq!(Share::WHOLE.of(&limit), limit);
/// assert_eq!(Share::one_in(1_000).of(&limit), Limit::per_minute(1).burst(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    part: u32,
    whole: u32,
}

impl Share {
    /// The whole limit: each process grants all of it.
    pub const WHOLE: Self = Self { part: 1, whole: 1 };

    /// Returns one part in `processes`: together, that many processes grant the limit (a little more by rounding).
    pub const fn one_in(processes: u32) -> Self {
        Self { part: 1, whole: processes }
    }

    /// Returns `percent` hundredths, from 1 to 100.
    pub const fn percent(percent: u32) -> Self {
        Self { part: percent, whole: 100 }
    }

    /// Returns this share of `limit`.
    #[must_use]
    pub fn of(&self, limit: &Limit) -> Limit {
        let share = |permits: u64| {
            let part = u128::from(permits) * u128::from(self.part);
            u64::try_from(part.div_ceil(u128::from(self.whole.max(1)))).unwrap_or(u64::MAX).max(1)
        };
        let permits = share(limit.permits());
        let shared = if limit.is_in_flight() { Limit::in_flight(permits) } else { Limit::new(permits, limit.period()) };
        match limit.explicit_burst() {
            Some(burst) => shared.burst(share(burst)),
            None => shared,
        }
    }

    /// Returns what is wrong with the share, with the way out.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.part == 0 || self.whole == 0 {
            return Err("a share of nothing; use at least Share::percent(1), or FailurePolicy::Refuse");
        }
        if self.part > self.whole {
            return Err("a share of more than the whole limit; use Share::WHOLE at most");
        }
        Ok(())
    }
}

impl FailurePolicy {
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::Fallback(share) => share.check(),
            Self::Allow | Self::Refuse => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_up_and_never_to_nothing() {
        let permits = |share: Share, permits| share.of(&Limit::per_second(permits)).permits();
        assert_eq!(permits(Share::one_in(3), 9), 3);
        assert_eq!(permits(Share::one_in(3), 10), 4);
        assert_eq!(permits(Share::one_in(u32::MAX), 1), 1);
        assert_eq!(permits(Share::percent(1), 100), 1);
        assert_eq!(permits(Share::percent(1), 101), 2);
        assert_eq!(permits(Share::WHOLE, u64::MAX), u64::MAX);
        assert_eq!(permits(Share::one_in(2), u64::MAX), u64::MAX / 2 + 1);
        assert_eq!(Share::one_in(4).of(&Limit::in_flight(10)), Limit::in_flight(3));
    }

    #[test]
    fn nothing_and_more_than_all_are_no_shares() {
        for share in [Share::percent(0), Share::percent(101), Share::one_in(0)] {
            assert!(share.check().is_err(), "{share:?}");
        }
        for share in [Share::percent(1), Share::percent(100), Share::one_in(1), Share::one_in(u32::MAX), Share::WHOLE] {
            assert_eq!(share.check(), Ok(()), "{share:?}");
        }
    }
}
