//! How many buckets there may be, and how long one that nobody needs stays while there is no room.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::MemoryCounts;
use crate::{limit::Limit, observe::Steps, time::Nanos};

/// How long a bucket that is fresh again stays while there is hardly any room: the least of this and of a fiftieth of
/// the time that a spent one needs. Who asks once a second keeps the place; a flood that may hold one for as long as
/// its bucket takes to fill holds it a fiftieth longer.
const LINGERS: Nanos = Nanos::from_secs(1);

pub(super) fn lingers(limit: &Limit) -> Nanos {
    let to_fill = u128::from(limit.capacity()) * u128::from(limit.period_nanos()) / u128::from(limit.permits().max(1));
    Nanos::new(u64::try_from(to_fill / 50).unwrap_or(u64::MAX)).min(LINGERS)
}

/// How many keys there are and may be.
pub(super) struct Count {
    /// Relaxed is enough: it publishes nothing, and the bound holds because it is raised by compare-and-swap.
    now: AtomicUsize,
    max: usize,
    /// Buckets that were dropped because they answered as fresh ones.
    pub(super) evicted: Steps,
    /// Decisions on keys that had no place.
    pub(super) overflowed: Steps,
}

/// Room for one key, given back unless kept.
#[must_use]
pub(super) struct Room<'a>(&'a Count);

impl Count {
    pub(super) fn up_to(max: usize) -> Self {
        Self { now: AtomicUsize::new(0), max, evicted: Steps::default(), overflowed: Steps::default() }
    }

    /// Takes room for one more key, if there is any.
    pub(super) fn reserve(&self) -> Option<Room<'_>> {
        let raise = |now: usize| (now < self.max).then_some(now + 1);
        self.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise).ok().map(|_| Room(self))
    }

    pub(super) fn release(&self, keys: usize) {
        self.now.fetch_sub(keys, Ordering::Relaxed);
    }

    /// Says that so many buckets were dropped because they answered as fresh ones.
    pub(super) fn evict(&self, keys: usize) {
        self.release(keys);
        self.evicted.add(keys);
    }

    /// Says that a new bucket took the place of one that answered as a fresh one.
    pub(super) fn replace(&self) {
        self.evicted.add(1);
    }

    pub(super) fn has_room(&self) -> bool {
        self.get() < self.max
    }

    /// Buckets that were fresh at this time may be dropped `now`: all that are, or while there is no room to speak of,
    /// which is less than a sixteenth, those that nobody came back for.
    #[inline]
    pub(super) fn droppable(&self, now: Nanos, lingers: Nanos) -> Nanos {
        if self.get() < self.max - self.max / 16 { now } else { now.saturating_sub(lingers) }
    }

    pub(super) fn get(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    /// What there is and was, as it is told.
    pub(super) fn told(&self) -> MemoryCounts {
        MemoryCounts {
            tracked_keys: self.get(),
            overflow_decisions: self.overflowed.get(),
            evicted_keys: self.evicted.get(),
        }
    }
}

impl Room<'_> {
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.0.release(1);
    }
}
