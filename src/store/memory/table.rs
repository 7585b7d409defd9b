use std::{
    borrow::Cow,
    hash::BuildHasher,
    sync::{
        OnceLock,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
};

use dashmap::Entry as MapEntry;

use super::{
    Bound, Overflow,
    evict::{Count, SmallMap},
    overflow::{Shared, lock_shared},
};
use crate::{
    bucket::{Ask, Bucket, GivenBack},
    charge::{Charge, Judged, RuleSpec, Take, Taken},
    decision::{Outcome, Verdict},
    key::{KeyHash, KeyId},
    limit::Limit,
    observe::{self, Once},
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
    pub(super) inserted: bool,
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
    /// Sets what a taken charge stands at.
    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64);
    /// Drops the key's bucket.
    fn forget(&self, key: KeyId);
    /// Drops fresh buckets from the small map of `key`, where it has grown since the last time.
    fn tidy(&self, key: KeyId, now: Nanos);
    /// Drops fresh buckets where a new `key` found no room.
    fn make_room(&self, key: KeyId, now: Nanos);
    /// Reports, once, that a key found no room. No lock is held.
    fn report_full(&self);
    /// Drops all fresh buckets and returns how many.
    fn sweep(&self, now: Nanos) -> usize;
    /// The number of buckets.
    fn len(&self) -> usize;
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

/// The buckets of one rule: small maps, so that dropping the fresh ones of one is a short work.
pub(super) struct Table<B: Bucket> {
    pub(super) bucket: B,
    pub(super) maps: Box<[OnceLock<SmallMap<B::State>>]>,
    hash: KeyHash,
    pub(super) count: Count,
    /// Which small map is asked for room next. Relaxed: any order will do.
    pub(super) hand: AtomicUsize,
    name: Cow<'static, str>,
    pub(super) overflow: Overflow,
    /// Buckets shared by keys that have no place; made when the first such key comes.
    pub(super) shared: OnceLock<Box<[Shared<B::State>]>>,
    /// The lives begun by resets and set clocks. Relaxed is enough: it is raised under the lock of the bucket that goes,
    /// which whoever makes its successor takes after.
    era: AtomicU32,
    reported_full: Once,
}

/// With a million keys about 2,000 in each of a map's two halves.
const MAPS: usize = 256;

/// How many keys a small map has at least, where the table is full.
const FEWEST_KEYS: usize = 64;

impl<B: Bucket> Table<B> {
    pub(super) fn new(bucket: B, spec: &RuleSpec, bound: Bound) -> Self {
        // A small table has fewer maps, so that whoever looks for room looks through much of it.
        let maps = if spec.keyed { (bound.max_keys / FEWEST_KEYS).clamp(1, MAPS) } else { 1 };
        Self {
            bucket,
            maps: (0..maps).map(|_| OnceLock::new()).collect(),
            hash: KeyHash::random(),
            count: Count::up_to(bound.max_keys),
            hand: AtomicUsize::new(0),
            name: spec.name.clone(),
            overflow: bound.overflow,
            shared: OnceLock::new(),
            era: AtomicU32::new(0),
            reported_full: Once::default(),
        }
    }

    fn map_of(&self, key: KeyId) -> &SmallMap<B::State> {
        // Bits that the maps themselves do not use: they take the upper byte and the lower half.
        let at = (self.hash(key) >> 40) % self.maps.len().max(1) as u64;
        let at = usize::try_from(at).unwrap_or(0);
        #[allow(clippy::indexing_slicing, reason = "`at` is below the length, which is not zero")]
        self.maps[at].get_or_init(|| SmallMap::new(self.hash.clone()))
    }

    pub(super) fn hash(&self, key: KeyId) -> u64 {
        self.hash.hash_one(key)
    }

    /// What a key without a bucket starts from, when to judge it, and how much later than `now` that is.
    fn start(
        &self,
        map: &SmallMap<B::State>,
        key: KeyId,
        limit: Limit,
        now: Nanos,
    ) -> (Entry<B::State>, (Nanos, Nanos)) {
        let shared = self.shared.get().and_then(|shared| lock_shared(shared, self.hash(key)));
        let mut entry = match shared.as_deref() {
            Some(Some(shared)) => Entry { era: self.era.load(Ordering::Relaxed), ..shared.clone() },
            _ => self.fresh(limit, now),
        };
        if map.was_set_back(now) {
            // The key's bucket may have been dropped at a time that comes again.
            entry.era = self.next_era();
        }
        let (judged_at, _) = self.bring(&mut entry, &limit, now);
        let judged_at = map.not_before_last_sweep(judged_at);
        (entry, (judged_at, judged_at.saturating_sub(now)))
    }

    pub(super) fn fresh(&self, limit: Limit, now: Nanos) -> Entry<B::State> {
        Entry { limit, era: self.era.load(Ordering::Relaxed), state: self.bucket.fresh(&limit, now) }
    }

    /// Looks at a bucket, lets the others be looked at, and takes the charge if it is settled so.
    pub(super) fn settle(
        &self,
        entry: &mut Entry<B::State>,
        (judged_at, lag): (Nanos, Nanos),
        charge: &Charge<'_>,
        passing: bool,
        next: &mut dyn FnMut(bool) -> Settled,
    ) -> (Settled, Judged) {
        let ask = Ask::new(charge.cost).keep(charge.keep).max_delay(charge.max_delay);
        let look = self.bucket.look(&entry.state, &entry.limit, judged_at, ask).seen_from_before(lag);
        let passes = look.outcome.passes();
        let settled = next(passing && (passes || !charge.votes));
        let take = charge.cost > 0
            && match (charge.take, settled) {
                (_, Settled::NoRoom) | (Take::Never, _) => false,
                (Take::Always, _) => true,
                (Take::IfPassed, settled) => settled == Settled::Passed && passes,
            };
        if !take {
            return (settled, Judged::new(look, None));
        }
        let (verdict, mark) = self.bucket.take(&mut entry.state, &entry.limit, judged_at, ask);
        (settled, Judged::new(verdict.seen_from_before(lag), Some(mark)).stamped(u64::from(entry.era)))
    }

    /// Brings a bucket up to date, and returns when to judge it and how much later than `now` that is.
    pub(super) fn bring(&self, entry: &mut Entry<B::State>, limit: &Limit, now: Nanos) -> (Nanos, Nanos) {
        if entry.limit != *limit || self.bucket.seen(&entry.state).saturating_sub(now) >= Nanos::SECOND {
            // Marks from before a changed limit count what was forgiven; those from before the clock was set back are in
            // times that come again.
            entry.era = self.next_era();
        }
        let judged_at = self.bucket.judge_at(&mut entry.state, &mut entry.limit, limit, now);
        (judged_at, judged_at.saturating_sub(now))
    }

    pub(super) fn next_era(&self) -> u32 {
        self.era.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Whether bringing the bucket up to date would leave it as it is.
    fn is_current(&self, entry: &Entry<B::State>, charge: &Charge<'_>, now: Nanos) -> bool {
        entry.limit == charge.limit && self.bucket.seen(&entry.state).saturating_sub(now) < Nanos::SECOND
    }

    /// Changes what a taken charge stands at, from `standing` to what `taken` says.
    fn change(&self, entry: &mut Entry<B::State>, judged_at: Nanos, taken: &mut Taken, standing: u64) {
        let limit = entry.limit;
        let Some(mut back) = standing.checked_sub(taken.cost) else {
            let more = taken.cost - standing;
            let (_, mark) = self.bucket.take(&mut entry.state, &limit, judged_at, Ask::new(more));
            taken.added.push((more, mark));
            return;
        };
        // A mark counts in its own limit's time; under another one it says nothing.
        let same_time = limit.permits() == taken.limit.permits() && limit.period() == taken.limit.period();
        let counts = same_time && taken.stamp == u64::from(entry.era);
        let delays = taken.delays;
        let mut give_back = |cost, mark, left| {
            if counts && cost > 0 {
                let charge = GivenBack::new(cost, mark).leaves(left).delays(delays);
                self.bucket.give_back(&mut entry.state, &limit, judged_at, charge);
            }
        };
        // What was charged last comes back first.
        while let Some((added, mark)) = taken.added.pop_if(|_| back > 0) {
            let part = back.min(added);
            back -= part;
            give_back(part, mark, added - part);
            if added > part {
                taken.added.push((added - part, mark));
            }
        }
        give_back(back, taken.mark, taken.cost);
    }
}

impl<B: Bucket> AnyTable for Table<B> {
    fn visit(
        &self,
        now: Nanos,
        charge: &Charge<'_>,
        passing: bool,
        final_try: bool,
        next: &mut dyn FnMut(bool) -> Settled,
    ) -> Visit {
        let map = self.map_of(charge.key);
        let vacant = match map.entry(charge.key) {
            // Who only looks changes nothing, not even what a changed limit or clock would.
            MapEntry::Occupied(held) if charge.take == Take::Never && !self.is_current(held.get(), charge, now) => {
                let mut copy = held.get().clone();
                let when = self.bring(&mut copy, &charge.limit, now);
                let (settled, judged) = self.settle(&mut copy, when, charge, passing, next);
                return Visit { settled, judged, inserted: false };
            }
            MapEntry::Occupied(mut held) => {
                let entry = held.get_mut();
                let changes = !self.is_current(entry, charge, now);
                let when = self.bring(entry, &charge.limit, now);
                let (settled, judged) = self.settle(entry, when, charge, passing, next);
                if changes {
                    map.has_fresh_at(self.bucket.fresh_at(&entry.state, &entry.limit));
                }
                return Visit { settled, judged, inserted: false };
            }
            MapEntry::Vacant(vacant) => vacant,
        };
        let only_looks = charge.take == Take::Never || charge.cost == 0;
        let room = if only_looks { None } else { self.count.reserve() };
        if room.is_none() && !only_looks {
            if !final_try {
                let verdict = Verdict::new(Outcome::Pass, 0, 0, None);
                return Visit { settled: Settled::NoRoom, judged: Judged::new(verdict, None), inserted: false };
            }
            let (settled, judged) = self.visit_untracked(map, now, charge, passing, next);
            return Visit { settled, judged, inserted: false };
        }
        let (mut entry, when) = self.start(map, charge.key, charge.limit, now);
        let (settled, judged) = self.settle(&mut entry, when, charge, passing, next);
        let inserted = judged.mark.is_some();
        if let (true, Some(room)) = (inserted, room) {
            map.has_fresh_at(self.bucket.fresh_at(&entry.state, &entry.limit));
            vacant.insert(entry);
            room.keep();
        }
        Visit { settled, judged, inserted }
    }

    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64) {
        let standing = std::mem::replace(&mut taken.cost, cost);
        if standing == cost {
            return;
        }
        let map = self.map_of(taken.key);
        match map.entry(taken.key) {
            MapEntry::Occupied(mut held) => {
                let entry = held.get_mut();
                let limit = entry.limit;
                let (judged_at, _) = self.bring(entry, &limit, now);
                self.change(entry, judged_at, taken, standing);
                map.has_fresh_at(self.bucket.fresh_at(&entry.state, &entry.limit));
            }
            // What was charged to a bucket that is fresh by now is back already; what is charged in addition counts.
            MapEntry::Vacant(vacant) => match self.count.reserve().filter(|_| cost > standing) {
                Some(room) => {
                    let (mut entry, (judged_at, _)) = self.start(map, taken.key, taken.limit, now);
                    self.change(&mut entry, judged_at, taken, standing);
                    map.has_fresh_at(self.bucket.fresh_at(&entry.state, &entry.limit));
                    vacant.insert(entry);
                    room.keep();
                }
                None => {
                    let mut shared = self.shared_bucket(taken.key);
                    if cost > standing
                        && let Some(shared) = shared.as_deref_mut()
                    {
                        // What is charged in addition counts, in the first overflow bucket there is too.
                        let _ = shared.get_or_insert_with(|| self.fresh(taken.limit, now));
                    }
                    if let Some(entry) = shared.as_mut().and_then(|shared| shared.as_mut()) {
                        let limit = entry.limit;
                        let (judged_at, _) = self.bring(entry, &limit, now);
                        let judged_at = map.not_before_last_sweep(judged_at);
                        self.change(entry, judged_at, taken, standing);
                    }
                }
            },
        }
    }

    fn forget(&self, key: KeyId) {
        if let MapEntry::Occupied(held) = self.map_of(key).entry(key) {
            let _ = self.next_era();
            held.remove();
            self.count.release(1);
        }
    }

    fn tidy(&self, key: KeyId, now: Nanos) {
        self.sweep_if_grown(self.map_of(key), now);
    }

    fn make_room(&self, key: KeyId, now: Nanos) {
        self.sweep_for_room(self.map_of(key), now);
    }

    fn report_full(&self) {
        observe::table_full(&self.reported_full, &self.name);
    }

    fn sweep(&self, now: Nanos) -> usize {
        // The few shared buckets stay: a thread that comes late has to find them.
        self.maps.iter().filter_map(OnceLock::get).map(|map| self.sweep_map(map, now, true)).sum()
    }

    fn len(&self) -> usize {
        self.count.get()
    }
}
