//! Buckets of a fixed size: dense tables, each behind a lock of its own and small enough that no work under it is long.
//!
//! A bucket that answers as a fresh one is as good as absent, so a new key takes the place of the first such bucket it
//! walks past, and nothing ever has to be swept. What a [`Slot`] cannot say (another limit than the rule's own, numbers
//! beyond 32 bits, a schedule with a hole in it) is kept beside the dense table, under the same lock.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use super::{
    Bound,
    base::{Base, When, was_set_back},
    buckets::Buckets,
    dense::{Slot, Vacancy},
    lock::Mutex,
    table::{AnyTable, Entry, Settled, Visit, nothing_else, visit_alone},
};
use crate::{
    bucket::{Packed, Quick},
    charge::{Charge, Judged, RuleSpec, Take, Taken, Verdicts},
    decision::{Outcome, Verdict},
    key::KeyId,
    limit::Limit,
    time::Nanos,
};

/// How many keys there are to a shard where the table is full, about. No work under a lock is over more than twice as many.
const KEYS: usize = 1_024;

/// How many other shards a key that finds no room asks for fresh buckets.
const LOOKS_FOR_ROOM: usize = 8;

/// The buckets of one rule.
pub(super) struct ShardedTable<B: Packed> {
    pub(super) base: Base<B>,
    /// The limit of buckets in the dense tables.
    pub(super) limit: Limit,
    /// For judging under it by the shortest way, where there is one.
    quick: Option<Quick>,
    shards: OnceLock<Box<[Shard<B>]>>,
    shard_count: usize,
}

/// A part of the buckets. On a cache line of its own, so that threads with different keys do not meet.
#[repr(align(64))]
struct Shard<B: Packed> {
    /// No bucket that is here is fresh before this time. Relaxed: a hint for those that look for room.
    nothing_fresh_before: AtomicU64,
    buckets: Mutex<Buckets<B>>,
}

impl<B: Packed> ShardedTable<B> {
    pub(super) fn new(bucket: B, spec: &RuleSpec, bound: Bound) -> Self {
        let shard_count = if spec.keyed { bound.max_keys.div_ceil(KEYS) } else { 1 };
        let quick = bucket.quick(&spec.limit);
        Self { base: Base::new(bucket, spec, bound), limit: spec.limit, quick, shards: OnceLock::new(), shard_count }
    }

    fn shards(&self) -> &[Shard<B>] {
        self.shards.get_or_init(|| (0..self.shard_count).map(|_| Shard::new()).collect())
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

    #[inline]
    pub(super) fn unpack(&self, slot: &Slot<B::Words>, seen: Nanos) -> Entry<B::State> {
        Entry { limit: self.limit, era: slot.era, state: self.base.bucket.unpack(slot.words, seen) }
    }

    #[inline]
    pub(super) fn pack(&self, entry: &Entry<B::State>) -> Option<B::Words> {
        if entry.limit == self.limit { self.base.bucket.pack(&entry.state) } else { None }
    }

    #[inline]
    pub(super) fn fresh_at(&self, slot: &Slot<B::Words>, seen: Nanos) -> Nanos {
        self.base.bucket.fresh_at(&self.base.bucket.unpack(slot.words, seen), &self.limit)
    }

    /// What it takes to judge a charge by the shortest way, if it is one of the usual ones.
    #[inline]
    fn quick_for(&self, charge: &Charge<'_>) -> Option<&Quick> {
        let usual =
            charge.take == Take::IfPassed && charge.votes && charge.keep == 0 && charge.max_delay == Nanos::ZERO;
        self.quick.as_ref().filter(|_| usual && charge.limit == self.limit)
    }

    /// The usual visit, by the shortest way; `None` where it is another.
    #[inline]
    fn visit_usual(
        &self,
        now: Nanos,
        charge: &Charge<'_>,
        passing: bool,
        mut next: impl FnMut(bool) -> Settled,
    ) -> Option<Visit> {
        let quick = self.quick_for(charge)?;
        let hash = self.base.hash(charge.key);
        let shard = self.shard(hash);
        let mut guard = shard.buckets.lock();
        let buckets = &mut *guard;
        if now < buckets.latest() {
            return None;
        }
        let Some(slot) = buckets.dense.find_mut(charge.key, hash) else {
            return self.visit_unknown(shard, buckets, now, charge, (hash, quick), passing, next);
        };
        let at_once = self.base.bucket.at_once(slot.words, quick, now, charge.cost)?;
        let (settled, era) = (next(passing && at_once.taken.is_some()), slot.era);
        let taken = at_once.taken.filter(|_| settled == Settled::Passed);
        if let Some(words) = taken {
            slot.words = words;
            buckets.seen = now;
        }
        // What is left are sums.
        drop(guard);
        let judged = match taken {
            Some(_) => Judged::taken(at_once.took(quick, now)),
            None => Judged::new(at_once.looked(quick), None),
        };
        Some(Visit::of((settled, judged.stamped(u64::from(era)))))
    }

    /// The usual visit of a new key that has room and shared no bucket before.
    #[allow(clippy::too_many_arguments, reason = "the other half of `visit_usual`, apart because it is run once a key")]
    fn visit_unknown(
        &self,
        shard: &Shard<B>,
        buckets: &mut Buckets<B>,
        now: Nanos,
        charge: &Charge<'_>,
        (hash, quick): (u64, &Quick),
        passing: bool,
        mut next: impl FnMut(bool) -> Settled,
    ) -> Option<Visit> {
        let is_wide = |key| buckets.wide.as_ref().is_some_and(|wide| wide.contains_key(&key));
        if self.base.shared.get().is_some() || is_wide(charge.key) {
            return None;
        }
        let at_once = self.base.bucket.at_once(B::Words::default(), quick, now, charge.cost)?;
        let words = at_once.taken?;
        let vacancy = self.vacancy(buckets, hash, (now, Nanos::ZERO));
        let room = match vacancy {
            Vacancy::Reused(_) => None,
            Vacancy::Empty(_) => Some(self.base.count.reserve()?),
            Vacancy::None => return None,
        };
        let (settled, era) = (next(passing), self.base.era());
        if settled != Settled::Passed {
            return Some(Visit::of((settled, Judged::new(at_once.looked(quick), None))));
        }
        let slot = Slot::new(charge.key, era, words);
        buckets.dense.insert(vacancy, slot);
        match room {
            Some(room) => room.keep(),
            None => buckets.dropped = now,
        }
        buckets.seen = now;
        shard.has_fresh_at(self.fresh_at(&slot, now));
        let judged = Judged::taken(at_once.took(quick, now)).stamped(u64::from(era));
        Some(Visit { settled, judged, untidy: buckets.dense.is_crowded() })
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
        hash: u64,
        next: &mut dyn FnMut(bool) -> Settled,
    ) -> Visit {
        let (mut entry, when) = self.base.start(buckets.dropped, charge.key, charge.limit, now);
        if charge.take == Take::Never || charge.cost == 0 {
            return Visit::of(self.base.settle(&mut entry, when, charge, passing, next));
        }
        let vacancy = self.vacancy(buckets, hash, when);
        let room = match vacancy {
            Vacancy::Reused(_) => None,
            _ => match self.base.count.reserve() {
                Some(room) => Some(room),
                None if final_try => {
                    let dropped = buckets.dropped;
                    return Visit::of(self.base.visit_untracked(dropped, now, charge, passing, next));
                }
                None => {
                    let nothing = Judged::new(Verdict::new(Outcome::Pass, 0, 0, None), None);
                    return Visit::of((Settled::NoRoom, nothing));
                }
            },
        };
        let (settled, judged) = self.base.settle(&mut entry, when, charge, passing, next);
        if judged.mark.is_none() {
            return Visit::of((settled, judged));
        }
        shard.has_fresh_at(self.base.bucket.fresh_at(&entry.state, &entry.limit));
        buckets.insert(self, charge.key, vacancy, hash, entry);
        if let Some(room) = room {
            room.keep();
        }
        Visit { settled, judged, untidy: buckets.dense.is_crowded() }
    }

    fn vacancy(&self, buckets: &Buckets<B>, hash: u64, (judged_at, _): When) -> Vacancy {
        buckets.dense.vacancy(hash, |slot| self.fresh_at(slot, buckets.seen) <= judged_at)
    }
}

impl<B: Packed> Shard<B> {
    fn new() -> Self {
        Self { nothing_fresh_before: AtomicU64::new(0), buckets: Mutex::new(Buckets::new()) }
    }

    /// Notes that a bucket will be fresh at `fresh_at`, maybe earlier than all others here. Under the lock.
    fn has_fresh_at(&self, fresh_at: Nanos) {
        self.nothing_fresh_before.fetch_min(fresh_at.get(), Ordering::Relaxed);
    }

    fn may_have_fresh(&self, now: Nanos) -> bool {
        self.nothing_fresh_before.load(Ordering::Relaxed) <= now.get()
    }

    fn sweep(&self, table: &ShardedTable<B>, now: Nanos) -> usize {
        let mut buckets = self.buckets.lock();
        let (dropped, next) = buckets.sweep(table, now);
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
            buckets.set_back(self, now);
        }
        let Some((place, mut entry)) = buckets.find(self, charge.key, hash) else {
            return self.visit_new(shard, &mut buckets, now, charge, passing, final_try, hash, next);
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
        Visit::of((settled, judged))
    }

    #[inline]
    fn visit_alone(&self, now: Nanos, charge: &Charge<'_>, verdicts: &mut Verdicts) -> bool {
        match self.visit_usual(now, charge, true, nothing_else) {
            Some(visit) => {
                verdicts.push(visit.judged);
                visit.untidy
            }
            None => visit_alone(self, now, charge, verdicts),
        }
    }

    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64) {
        let standing = std::mem::replace(&mut taken.cost, cost);
        if standing == cost {
            return;
        }
        let hash = self.base.hash(taken.key);
        let shard = self.shard(hash);
        let mut buckets = shard.buckets.lock();
        if was_set_back(buckets.latest(), now) {
            buckets.set_back(self, now);
        }
        if let Some((place, mut entry)) = buckets.find(self, taken.key, hash) {
            let limit = entry.limit;
            let (judged_at, _) = self.base.bring(&mut entry, &limit, now);
            self.base.change(&mut entry, judged_at, taken, standing);
            shard.has_fresh_at(self.base.bucket.fresh_at(&entry.state, &entry.limit));
            buckets.write(self, taken.key, hash, place, entry);
            return;
        }
        // What was charged to a bucket that is fresh by now is back already; what is charged in addition counts.
        match self.base.count.reserve().filter(|_| cost > standing) {
            Some(room) => {
                let (mut entry, when) = self.base.start(buckets.dropped, taken.key, taken.limit, now);
                self.base.change(&mut entry, when.0, taken, standing);
                shard.has_fresh_at(self.base.bucket.fresh_at(&entry.state, &entry.limit));
                let vacancy = buckets.dense.vacancy(hash, |_| false);
                buckets.insert(self, taken.key, vacancy, hash, entry);
                room.keep();
            }
            None => self.base.change_shared(buckets.dropped, now, taken, standing),
        }
    }

    fn forget(&self, key: KeyId) {
        let hash = self.base.hash(key);
        let mut buckets = self.shard(hash).buckets.lock();
        let gone = match buckets.dense.find(key, hash) {
            Some(at) => {
                buckets.dense.remove(at, |key| self.base.hash(key));
                true
            }
            None => buckets.wide.as_mut().is_some_and(|wide| wide.remove(&key).is_some()),
        };
        if gone {
            let _ = self.base.next_era();
            self.base.count.release(1);
        }
    }

    fn tidy(&self, key: KeyId, now: Nanos) {
        let shard = self.shard(self.base.hash(key));
        let mut buckets = shard.buckets.lock();
        if buckets.dense.is_crowded() {
            let (_, next) = buckets.rebuild(self, now);
            // What is kept beside the dense table was not looked at.
            if buckets.wide.is_none() {
                shard.nothing_fresh_before.store(next.get(), Ordering::Relaxed);
            }
        }
    }

    fn make_room(&self, key: KeyId, now: Nanos) {
        let own = self.shard(self.base.hash(key));
        if own.may_have_fresh(now) {
            own.sweep(self, now);
        }
        let shards = self.shards();
        for _ in 0..LOOKS_FOR_ROOM {
            if self.base.count.has_room() {
                return;
            }
            let at = self.base.hand.fetch_add(1, Ordering::Relaxed) % shards.len().max(1);
            if let Some(shard) = shards.get(at).filter(|shard| shard.may_have_fresh(now)) {
                shard.sweep(self, now);
                return;
            }
        }
    }

    fn report_full(&self) {
        self.base.report_full();
    }

    fn sweep(&self, now: Nanos) -> usize {
        // The few shared buckets stay: a thread that comes late has to find them.
        self.shards.get().map_or(0, |shards| shards.iter().map(|shard| shard.sweep(self, now)).sum())
    }

    fn len(&self) -> usize {
        self.base.count.get()
    }

    fn overflowed(&self) -> u64 {
        self.base.overflowed.get()
    }
}
