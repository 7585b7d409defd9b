//! What a rule's table of buckets can do, whatever its kind.

use crate::{
    charge::{Charge, Judged, Taken, Verdicts},
    key::KeyId,
    limit::Limit,
    time::Nanos,
};

/// How the buckets of a request were settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settled {
    /// All charges that vote passed.
    Passed,
    /// One did not.
    Refused,
    /// A new key found no room; nothing was charged.
    NoRoom,
}

/// What a visit to one bucket came to.
pub(super) struct Visit {
    pub(super) settled: Settled,
    pub(super) judged: Judged,
    /// Whether the table wants to be [tidied](AnyTable::tidy) once no lock is held.
    pub(super) untidy: bool,
}

impl Visit {
    /// A visit that left nothing to do.
    pub(super) fn of((settled, judged): (Settled, Judged)) -> Self {
        Self { settled, judged, untidy: false }
    }
}

/// The buckets of one rule, whatever their state.
pub(super) trait AnyTable: Send + Sync {
    /// Locks the bucket of `charge`, looks at it, calls `next` with whether all passed so far, and when that returns
    /// charges the bucket as it was settled. **Locking**: the bucket's lock is held while `next` runs.
    fn visit(
        &self,
        now: Nanos,
        charge: &Charge<'_>,
        passing: bool,
        final_try: bool,
        next: &mut dyn FnMut(bool) -> Settled,
    ) -> Visit;
    /// As [`visit`](Self::visit) of a request's only charge, whose answer goes to `verdicts`. Returns whether the table wants
    /// to be [tidied](Self::tidy).
    fn visit_alone(&self, now: Nanos, charge: &Charge<'_>, verdicts: &mut Verdicts) -> bool;
    /// Sets what a taken charge stands at.
    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64);
    /// Drops the key's bucket.
    fn forget(&self, key: KeyId);
    /// Drops fresh buckets near that of `key`, or gives it more room.
    fn tidy(&self, key: KeyId, now: Nanos);
    /// Drops fresh buckets where a new `key` found no room.
    fn make_room(&self, key: KeyId, now: Nanos);
    /// Reports, once, that a key found no room. No lock is held.
    fn report_full(&self);
    /// Drops all fresh buckets and returns how many.
    fn sweep(&self, now: Nanos) -> usize;
    /// The number of buckets.
    fn len(&self) -> usize;
    /// How many decisions were on keys that had no place.
    fn overflowed(&self) -> u64;
}

/// What follows the only charge of a request: nothing.
#[inline]
pub(super) fn nothing_else(passing: bool) -> Settled {
    if passing { Settled::Passed } else { Settled::Refused }
}

/// [`AnyTable::visit_alone`] by way of [`AnyTable::visit`].
pub(super) fn visit_alone(table: &impl AnyTable, now: Nanos, charge: &Charge<'_>, verdicts: &mut Verdicts) -> bool {
    let mut visit = table.visit(now, charge, true, false, &mut nothing_else);
    if visit.settled == Settled::NoRoom {
        table.make_room(charge.key, now);
        visit = table.visit(now, charge, true, true, &mut nothing_else);
        if visit.judged.verdict.untracked {
            table.report_full();
        }
    }
    verdicts.push(visit.judged);
    visit.untidy
}

/// A bucket in its place.
#[derive(Debug, Clone)]
pub(super) struct Entry<S> {
    /// The limit it was last decided under.
    pub(super) limit: Limit,
    /// Which life of the bucket this is: what was charged before a reset, or before the clock was set back, does not come
    /// back after it.
    pub(super) era: u32,
    pub(super) state: S,
}
