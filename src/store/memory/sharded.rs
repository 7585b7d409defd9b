//! Buckets of a fixed size: dense tables, each behind a lock of its own and small enough that no work under it is long.
//!
//! A bucket that answers as a fresh one is as good as absent, so a new key takes the place of the first such bucket it
//! walks past, and nothing ever has to be swept. What a [`Slot`] cannot say (another limit than the rule's own, numbers
//! beyond 32 bits, a schedule with a hole in it) is kept beside the dense table, under the same lock.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use self::moving::Found;
use super::{
    base::{Base, Known, When, was_set_back},
    beside::Terms,
    buckets::Buckets,
    dense::{Slot, Vacancy},
    evict::lingers,
    line::{self, Kin, Line, Make},
    lock::{Mutex, MutexGuard},
    table::{Alone, AnyTable, Entry, Inherited, Settled, Visit, visit_alone},
};
use crate::{
    bucket::Packed,
    charge::{Charge, Take, Taken, Verdicts},
    key::KeyId,
    limit::Limit,
    time::Nanos,
};

mod moving;
mod usual;

pub(super) use usual::Usual;

/// How many keys there are to a shard where the table is full, about. No work under a lock is over more than twice as
/// many.
const KEYS: usize = 1_024;

/// How many shards there are at most, all made with the first key: beyond 64 million keys a shard has more of them.
const MOST_SHARDS: usize = 1 << 16;

/// How many other shards a key that finds no room asks for fresh buckets.
const LOOKS_FOR_ROOM: usize = 8;

/// The buckets of one rule.
pub(super) struct ShardedTable<B: Packed> {
    pub(super) base: Base<B>,
    /// What the buckets of most shards are judged under.
    pub(super) terms: Terms,
    /// How long buckets under the first limit stay while there is no room.
    pub(super) lingers: Nanos,
    shards: OnceLock<Box<[Shard<B>]>>,
    shard_count: usize,
}

/// A part of the buckets. On a cache line of its own, so that threads with different keys do not meet.
#[repr(align(64))]
struct Shard<B: Packed> {
    /// No bucket that is here is fresh before this time. Written under the lock only. Relaxed: without it, a hint for
    /// those that look for room.
    nothing_fresh_before: AtomicU64,
    buckets: Mutex<Buckets<B>>,
}

impl<B: Packed> ShardedTable<B> {
    pub(super) fn new(bucket: B, make: Make<'_>) -> Self {
        let shard_count = if make.spec.keyed { make.bound.max_keys.div_ceil(KEYS).min(MOST_SHARDS) } else { 1 };
        let (terms, lingers) = (Terms::new(&bucket, make.spec.limit), lingers(&make.spec.limit));
        Self { base: Base::new(bucket, make), terms, lingers, shards: OnceLock::new(), shard_count }
    }

    fn shards(&self) -> &[Shard<B>] {
        self.shards.get_or_init(|| (0..self.shard_count).map(|_| Shard::new(Buckets::new())).collect())
    }

    #[inline]
    fn shard(&self, hash: u64) -> &Shard<B> {
        let shards = self.shards();
        // The upper half of the hash, as a fraction of the number of shards.
        let at = usize::try_from(((hash >> 32) * shards.len() as u64) >> 32).unwrap_or(0);
        #[allow(
            clippy::indexing_slicing,
            reason = "a fraction of the length is below it, and there is at least one shard"
        )]
        &shards[at]
    }

    /// Locks the shard of a key.
    #[inline]
    pub(super) fn lock(&self, hash: u64) -> MutexGuard<'_, Buckets<B>> {
        self.shard(hash).buckets.lock()
    }

    #[inline]
    pub(super) fn unpack(&self, slot: &Slot<B::Words>, limit: &Limit, seen: Nanos) -> Entry<B::State> {
        Entry { limit: *limit, era: slot.era, state: self.base.bucket.unpack(slot.words, seen) }
    }

    #[inline]
    pub(super) fn fresh_at(&self, slot: &Slot<B::Words>, limit: &Limit, seen: Nanos) -> Nanos {
        self.base.bucket.fresh_at(&self.base.bucket.unpack(slot.words, seen), limit)
    }

    #[allow(clippy::too_many_arguments, reason = "the other half of `visit`, apart because it is rarely run")]
    fn visit_new(
        &self,
        shard: &Shard<B>,
        buckets: &mut Buckets<B>,
        now: Nanos,
        charge: &Charge<'_>,
        passing: bool,
        final_try: bool,
        known: Known,
        hash: u64,
        next: &mut dyn FnMut(bool) -> Settled,
    ) -> Visit {
        let (mut entry, when) = self.base.start(charge.key, known, charge.limit, now);
        if self.base.needs_no_room(charge) {
            let has_room = charge.cost == 0 || self.may_find_room(shard, buckets, hash, when);
            let (settled, mut judged) = self.base.settle(&mut entry, when, charge, passing, next);
            judged.verdict.untracked = !has_room;
            return Visit::of((settled, judged));
        }
        let vacancy = self.vacancy(buckets, hash, when);
        let room = match vacancy {
            Vacancy::Reused(_) => None,
            _ => match self.base.kin.count.reserve() {
                Some(room) => Some(room),
                None if final_try => {
                    return Visit::of(self.base.visit_untracked(known, now, charge, passing, next));
                }
                None => return Visit::to_no_end(Settled::NoRoom),
            },
        };
        let (settled, judged) = self.base.settle(&mut entry, when, charge, passing, next);
        if judged.mark.is_none() {
            return Visit::of((settled, judged));
        }
        shard.has_fresh_at(self.base.bucket.fresh_at(&entry.state, &entry.limit));
        buckets.insert(self, charge.key, vacancy, hash, entry);
        match room {
            Some(room) => room.keep(),
            None => self.base.kin.count.replace(),
        }
        Visit { settled, judged, untidy: self.is_untidy(buckets) }
    }

    /// Whether a new key may find a place, as far as its own shard tells.
    fn may_find_room(&self, shard: &Shard<B>, buckets: &Buckets<B>, hash: u64, when: When) -> bool {
        self.base.kin.count.has_room()
            || matches!(self.vacancy(buckets, hash, when), Vacancy::Reused(_))
            || (!buckets.is_empty() && shard.may_have_fresh(self.base.kin.count.droppable(when.0, self.lingers)))
    }

    fn is_untidy(&self, buckets: &Buckets<B>) -> bool {
        buckets.dense.is_crowded() || self.base.line.has_before()
    }

    fn vacancy(&self, buckets: &Buckets<B>, hash: u64, (judged_at, _): When) -> Vacancy {
        let (limit, by) = (&buckets.terms(self).limit, self.base.kin.count.droppable(judged_at, self.lingers));
        buckets.dense.vacancy(hash, |slot| self.fresh_at(slot, limit, buckets.seen) <= by)
    }
}

impl<B: Packed> Shard<B> {
    fn new(buckets: Buckets<B>) -> Self {
        Self { nothing_fresh_before: AtomicU64::new(0), buckets: Mutex::new(buckets) }
    }

    /// Notes that a bucket will be fresh at `fresh_at`, maybe earlier than all others here. Under the lock.
    fn has_fresh_at(&self, fresh_at: Nanos) {
        if fresh_at.get() < self.nothing_fresh_before.load(Ordering::Relaxed) {
            self.nothing_fresh_before.store(fresh_at.get(), Ordering::Relaxed);
        }
    }

    /// The clock was set back: what was to be fresh at some time is so earlier now.
    #[cold]
    fn set_back(&self, table: &ShardedTable<B>, buckets: &mut Buckets<B>, now: Nanos) {
        buckets.set_back(table, now);
        self.has_fresh_at(Nanos::ZERO);
    }

    fn may_have_fresh(&self, now: Nanos) -> bool {
        self.nothing_fresh_before.load(Ordering::Relaxed) <= now.get()
    }

    fn sweep(&self, table: &ShardedTable<B>, now: Nanos, by: Nanos) -> usize {
        let mut buckets = self.buckets.lock();
        let (dropped, next) = buckets.sweep(table, now, by);
        self.nothing_fresh_before.store(next.get(), Ordering::Relaxed);
        dropped
    }
}

impl<B: Packed> AnyTable for ShardedTable<B> {
    fn visit(
        &self,
        now: Nanos,
        charge: &Charge<'_>,
        passing: bool,
        final_try: bool,
        next: &mut dyn FnMut(bool) -> Settled,
    ) -> Visit {
        if let Some(visit) = self.visit_usual(now, charge, passing, &mut *next) {
            return visit;
        }
        let hash = self.base.hash(charge.key);
        let shard = self.shard(hash);
        let mut buckets = shard.buckets.lock();
        // Who only looks changes nothing, not even what a changed limit or clock would.
        let looks = charge.take == Take::Never;
        if was_set_back(buckets.latest(), now) && !looks {
            shard.set_back(self, &mut buckets, now);
        }
        if charge.limit != buckets.terms(self).limit && !looks && line::is_own_limit(charge) {
            buckets.go_under(self, charge.limit);
        }
        let (place, mut entry) = match buckets.find(self, charge.key, hash) {
            Some(found) => found,
            None if self.base.line.sends_on(looks) => return Visit::to_no_end(Settled::Elsewhere),
            None => match self.inherit(&mut buckets, charge.key, &charge.limit, now, looks) {
                Found::Here(place, entry) => (place, entry),
                Found::Copy(mut copy) => {
                    let when = self.base.bring(&mut copy, &charge.limit, now);
                    return Visit::of(self.base.settle(&mut copy, when, charge, passing, next));
                }
                Found::Nowhere(known) => {
                    return self.visit_new(shard, &mut buckets, now, charge, passing, final_try, known, hash, next);
                }
            },
        };
        let changes = !self.base.is_current(&entry, charge, now);
        let when = self.base.bring(&mut entry, &charge.limit, now);
        let (settled, judged) = self.base.settle(&mut entry, when, charge, passing, next);
        if judged.mark.is_some() || (changes && !looks) {
            if changes {
                shard.has_fresh_at(self.base.bucket.fresh_at(&entry.state, &entry.limit));
            }
            buckets.write(self, charge.key, hash, place, entry);
        }
        Visit { settled, judged, untidy: self.is_untidy(&buckets) }
    }

    #[inline]
    fn visit_alone(&self, now: Nanos, charge: &Charge<'_>, verdicts: &mut Verdicts) -> Alone {
        match self.decide_usual(now, charge, verdicts) {
            Some(alone) => alone,
            None => visit_alone(self, now, charge, verdicts),
        }
    }

    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64) -> bool {
        self.adjust_here(now, taken, cost)
    }

    fn forget(&self, key: KeyId) {
        self.forget_here(key);
    }

    fn hand_over(&self, key: KeyId, now: Nanos, looks: bool) -> Inherited {
        self.give(key, now, looks)
    }

    fn pull(&self, key: KeyId, now: Nanos) {
        let mut buckets = self.shard(self.base.hash(key)).buckets.lock();
        if buckets.find(self, key, self.base.hash(key)).is_none() {
            let limit = buckets.terms(self).limit;
            let _ = self.inherit(&mut buckets, key, &limit, now, false);
        }
    }

    fn each_key(&self, f: &mut dyn FnMut(KeyId, Nanos)) {
        for shard in self.shards.get().into_iter().flatten() {
            let keys = shard.buckets.lock().keys(self);
            for (key, seen) in keys {
                f(key, seen);
            }
        }
    }

    fn line(&self) -> &Line {
        &self.base.line
    }

    fn kin(&self) -> &Kin {
        &self.base.kin
    }

    fn tidy(&self, key: KeyId, now: Nanos) {
        let shard = self.shard(self.base.hash(key));
        let mut buckets = shard.buckets.lock();
        if buckets.dense.is_crowded() {
            if shard.may_have_fresh(now) {
                let (_, next) = buckets.rebuild(self, self.base.kin.count.droppable(now, self.lingers));
                // What is kept beside the dense table was not looked at.
                if !buckets.has_beside() {
                    shard.nothing_fresh_before.store(next.get(), Ordering::Relaxed);
                }
            } else {
                buckets.dense.rebuild(|_| true, |key| self.base.hash(key));
            }
        }
        drop(buckets);
        self.base.drain_before(now);
    }

    fn make_room(&self, key: KeyId, now: Nanos) {
        let (own, by) = (self.shard(self.base.hash(key)), self.base.kin.count.droppable(now, self.lingers));
        if own.may_have_fresh(by) {
            own.sweep(self, now, by);
        }
        let shards = self.shards();
        for _ in 0..LOOKS_FOR_ROOM {
            if self.base.kin.count.has_room() {
                return;
            }
            let at = self.base.hand.fetch_add(1, Ordering::Relaxed) % shards.len().max(1);
            if let Some(shard) = shards.get(at).filter(|shard| shard.may_have_fresh(by)) {
                shard.sweep(self, now, by);
                return;
            }
        }
    }

    fn report_full(&self) {
        self.base.report_full();
    }

    fn sweep(&self, now: Nanos) -> usize {
        // The few shared buckets stay: a thread that comes late has to find them.
        let dropped =
            self.shards.get().map_or(0, |shards| shards.iter().map(|shard| shard.sweep(self, now, now)).sum());
        self.base.drain_before(now);
        dropped
    }

    fn drain(&self, now: Nanos) -> bool {
        self.base.drain_before(now);
        let Some(shards) = self.shards.get() else { return self.base.is_drained(true, 1, now) };
        let at = self.base.hand.fetch_add(1, Ordering::Relaxed) % shards.len().max(1);
        let Some(shard) = shards.get(at) else { return false };
        if shard.may_have_fresh(now) {
            shard.sweep(self, now, now);
        }
        let is_empty = shard.buckets.lock().is_empty();
        self.base.is_drained(is_empty, shards.len(), now)
    }
}

#[cfg(test)]
mod tests;
