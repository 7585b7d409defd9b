use super::{GivenBack, Mark, Used};
use crate::{limit::Limit, time::Nanos};

/// One key's schedule, the state of [`TokenBucket`](super::TokenBucket) and [`LeakyBucket`](super::LeakyBucket): the
/// time at which nothing is used any more (the generic cell rate algorithm's theoretical arrival time), exactly.
///
/// With `n` permits per period `W` in lowest terms, a permit is `W` units and a nanosecond drains `n` of them, so every
/// rate is exact in integers: what is used at `t` is `(full_at - t) * n + rest` units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Schedule {
    /// When nothing is used any more, less `rest`.
    full_at: Nanos,
    /// The remainder of that time in units, below `n`.
    rest: u64,
    /// How much of the schedule before its end was given back from its middle: the end of the schedule, that marks
    /// count in, is `full_at + hole`. Rounded up, so that a mark never looks closer to the end than it is.
    hole: Nanos,
    /// The latest time charged or given back at.
    seen: Nanos,
}

impl Schedule {
    /// The schedule that ends at `full_at` and `rest`, with no hole in it.
    #[inline]
    pub(super) const fn full_at(full_at: Nanos, rest: u64, seen: Nanos) -> Self {
        Self { full_at, rest, hole: Nanos::ZERO, seen }
    }

    /// When nothing is used any more, and the remainder; `None` where there is a hole in the schedule.
    #[inline]
    pub(super) fn without_hole(&self) -> Option<(Nanos, u64)> {
        (self.hole == Nanos::ZERO).then_some((self.full_at, self.rest))
    }

    /// Returns a schedule of which `units` are used at `now`, a permit being `units_per_permit` of them: for stores
    /// that keep it elsewhere. Exact where the limit's period in nanoseconds, in lowest terms with its permits, is a
    /// multiple of that, and otherwise rounded up; nothing is known of what was given back from its middle.
    pub fn using(limit: &Limit, now: Nanos, units: u64, units_per_permit: u64) -> Self {
        let (whole, per) = (u128::from(units) * units_of(limit, 1), u128::from(units_per_permit.max(1)));
        let mut schedule = Self { seen: now, full_at: now, ..Self::default() };
        schedule.set_used_units(limit, now, whole.div_ceil(per));
        schedule
    }

    /// Notes that something came back at `now`, whether or not it fits.
    pub(super) fn see(&mut self, now: Nanos) {
        self.seen = self.seen.max(now);
    }

    pub(super) const fn seen(&self) -> Nanos {
        self.seen
    }

    /// When the schedule's end has passed, and with it every mark in it.
    pub(super) fn fresh_at(&self) -> Nanos {
        self.full_at.saturating_add(self.hole).saturating_add(Nanos::new(u64::from(self.rest > 0)))
    }

    /// Whether `cost` permits more would end after the last instant there is, where they could not be kept.
    #[inline]
    pub(super) fn outlasts_time(&self, limit: &Limit, now: Nanos, cost: u64) -> bool {
        let late = now.get() > u64::MAX / 2; // 2262 and after: nobody pays for this before
        late && {
            let units = self.used_units(limit, now).saturating_add(units_of(limit, cost));
            divided(units, limit.drain()).0 > u128::from(u64::MAX - now.get())
        }
    }

    /// What is used at `now`, in units.
    #[inline]
    pub(super) fn used_units(&self, limit: &Limit, now: Nanos) -> u128 {
        match self.full_at.checked_sub(now) {
            Some(ahead) => u128::from(ahead.get()) * u128::from(limit.drain()) + u128::from(self.rest),
            None => 0,
        }
    }

    #[inline]
    fn set_used_units(&mut self, limit: &Limit, now: Nanos, units: u128) {
        let (ahead, rest) = divided(units, limit.drain());
        match u64::try_from(ahead).ok().and_then(|ahead| now.get().checked_add(ahead)) {
            Some(full_at) => {
                self.full_at = Nanos::new(full_at);
                self.rest = rest;
            }
            None => {
                // Further than time reaches: used up until then.
                self.full_at = Nanos::MAX;
                self.rest = 0;
            }
        }
    }

    /// Appends `cost` permits at `now` and returns the mark of their end.
    #[inline]
    pub(super) fn push(&mut self, limit: &Limit, now: Nanos, cost: u64) -> Mark {
        if self.full_at < now {
            // Idle until now: what was given back of the time that has passed is gone.
            self.hole = self.fresh_at().saturating_sub(now);
        }
        let units = self.used_units(limit, now).saturating_add(units_of(limit, cost));
        self.set_used_units(limit, now, units);
        self.seen = self.seen.max(now);
        Mark::new(self.full_at.saturating_add(self.hole), self.rest)
    }

    /// What was appended behind `mark`, in units; `None` where the mark is not of this schedule.
    pub(super) fn behind(&self, limit: &Limit, mark: Mark) -> Option<u128> {
        let end = self.full_at.saturating_add(self.hole);
        let whole = u128::from(end.checked_sub(mark.at)?.get()) * u128::from(limit.drain());
        (whole + u128::from(self.rest)).checked_sub(u128::from(mark.fraction))
    }

    /// Gives a charge back: at most what is still used of it, counting what was charged later as used last.
    ///
    /// Had the charge never happened, everything behind it would stand earlier by at most what is used now less what
    /// is behind it, so this never returns more than that. It is exact for the last charge.
    pub(super) fn give_back(&mut self, limit: &Limit, now: Nanos, charge: GivenBack) {
        let Some(behind) = self.behind(limit, charge.mark) else { return };
        let used = self.used_units(limit, now);
        let back = used.saturating_sub(behind).min(units_of(limit, charge.cost));
        if back == 0 {
            return;
        }
        self.set_used_units(limit, now, used - back);
        // A charge that goes from the end altogether takes the end with it. Where a part of it stands, its mark does
        // too.
        if behind > 0 || charge.left > 0 {
            let hole = drain_time(limit, back);
            self.hole = self.hole.saturating_add(hole);
        }
    }

    pub(super) fn used(&self, limit: &Limit, now: Nanos) -> Used {
        Used::ratio(self.used_units(limit, now), limit.permit())
    }

    pub(super) fn with_used(limit: &Limit, used: Used, now: Nanos) -> Self {
        let mut schedule = Self { seen: now, full_at: now, ..Self::default() };
        schedule.set_used_units(limit, now, used.of(limit.permit()).min(units_of(limit, limit.capacity())));
        schedule
    }
}

/// `permits` in units.
#[inline]
pub(super) fn units_of(limit: &Limit, permits: u64) -> u128 {
    u128::from(permits) * u128::from(limit.permit())
}

/// How long `units` take to drain, rounded up.
#[inline]
pub(super) fn drain_time(limit: &Limit, units: u128) -> Nanos {
    let (whole, rest) = divided(units, limit.drain());
    Nanos::saturating_from_u128(whole).saturating_add(Nanos::new(u64::from(rest > 0)))
}

/// Divides, and is quick about one, and what fits in 64 bits, which together is nearly everything.
#[inline]
pub(super) fn divided(units: u128, by: u64) -> (u128, u64) {
    match (u64::try_from(units), by.max(1)) {
        (_, 1) => (units, 0),
        (Ok(units), by) => (u128::from(units / by), units % by),
        (Err(_), by) => (units / u128::from(by), u64::try_from(units % u128::from(by)).unwrap_or(u64::MAX)),
    }
}
