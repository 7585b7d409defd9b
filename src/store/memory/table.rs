//! What a rule's table of buckets can do, whatever its kind.

use super::line::{Kin, Line};
use crate::{
    bucket::Used,
    charge::{Charge, Judged, Taken, Verdicts},
    decision::{Outcome, Verdict},
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
    /// Another of the rule's tables has to decide; nothing was charged.
    Elsewhere,
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

    /// A visit that came to nothing.
    pub(super) fn to_no_end(settled: Settled) -> Self {
        Self::of((settled, Judged::new(Verdict::new(Outcome::Pass, 0, 0, None), None)))
    }
}

/// What the only charge of a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alone {
    Judged,
    /// As `Judged`, and the table wants to be [tidied](AnyTable::tidy).
    Untidy,
    /// Nothing: another of the rule's tables has to decide.
    Elsewhere,
}

impl Alone {
    #[inline]
    pub(super) fn judged(visit: Visit, verdicts: &mut Verdicts) -> Self {
        verdicts.push(visit.judged);
        Self::tidied(visit.untidy)
    }

    /// It was judged, and the table wants to be tidied or not.
    #[inline]
    pub(super) fn tidied(untidy: bool) -> Self {
        if untidy { Self::Untidy } else { Self::Judged }
    }
}

/// How much of a bucket is used, and when.
pub(super) type UsedAt = (Used, Nanos);

/// What a table says of a key whose bucket is to be in a newer one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inherited {
    /// How much is used, and when, where the key is known or shared a bucket.
    pub(super) used: Option<UsedAt>,
    /// Whether it is its own bucket's, which unless somebody only looks is gone now; its room is the newer one's.
    pub(super) is_own: bool,
    /// A time at which the key's bucket may have been dropped as fresh.
    pub(super) dropped: Nanos,
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
    /// As [`visit`](Self::visit) of a request's only charge, whose answer goes to `verdicts`.
    fn visit_alone(&self, now: Nanos, charge: &Charge<'_>, verdicts: &mut Verdicts) -> Alone;
    /// Sets what a taken charge stands at. Returns false where another of the rule's tables has to.
    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64) -> bool;
    /// Drops the key's bucket, here and in the tables before.
    fn forget(&self, key: KeyId);
    /// Says how much of a key is used here or in the tables before, and unless it only `looks` lets go of its bucket:
    /// it keeps its room, and is the caller's.
    fn hand_over(&self, key: KeyId, now: Nanos, looks: bool) -> Inherited;
    /// Takes over the key's bucket, if it has one in a table before and none here.
    fn pull(&self, key: KeyId, now: Nanos);
    /// Calls `f` with each key and the latest time that anything happened to it. No lock is held meanwhile.
    fn each_key(&self, f: &mut dyn FnMut(KeyId, Nanos));
    /// Which tables are before and behind.
    fn line(&self) -> &Line;
    /// What it shares with them.
    fn kin(&self) -> &Kin;
    /// Drops fresh buckets near that of `key`, or gives it more room.
    fn tidy(&self, key: KeyId, now: Nanos);
    /// Drops fresh buckets where a new `key` found no room.
    fn make_room(&self, key: KeyId, now: Nanos);
    /// Reports, once, that a key found no room. No lock is held.
    fn report_full(&self);
    /// Drops all fresh buckets and returns how many.
    fn sweep(&self, now: Nanos) -> usize;
    /// Drops fresh buckets of one part, of a table that no key comes to any more, and returns whether nothing is left.
    fn drain(&self, now: Nanos) -> bool;
}

/// What follows the only charge of a request: nothing.
#[inline]
pub(super) fn nothing_else(passing: bool) -> Settled {
    if passing { Settled::Passed } else { Settled::Refused }
}

/// [`AnyTable::visit_alone`] by way of [`AnyTable::visit`].
pub(super) fn visit_alone(table: &impl AnyTable, now: Nanos, charge: &Charge<'_>, verdicts: &mut Verdicts) -> Alone {
    let mut visit = table.visit(now, charge, true, false, &mut nothing_else);
    if visit.settled == Settled::NoRoom {
        table.make_room(charge.key, now);
        visit = table.visit(now, charge, true, true, &mut nothing_else);
        if visit.judged.verdict.untracked {
            table.report_full();
        }
    }
    if visit.settled == Settled::Elsewhere { Alone::Elsewhere } else { Alone::judged(visit, verdicts) }
}

/// A bucket in its place.
#[derive(Debug, Clone)]
pub(super) struct Entry<S> {
    /// The limit it was last decided under.
    pub(super) limit: Limit,
    /// Which life of the bucket this is: what was charged before a reset, or before the clock was set back, does not
    /// come back after it.
    pub(super) era: u32,
    pub(super) state: S,
}
