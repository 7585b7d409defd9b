//! Buckets that own memory, and those of users: in small maps, so that dropping the fresh ones of one is a short work.
//!
//! A bucket that answers as a fresh one may go without changing any answer. An insertion that has doubled a small map
//! since the last time pays for dropping the fresh ones of that map, once no lock is held, so the work for each
//! insertion is constant on average and bounded by one small map.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use dashmap::{DashMap, Entry as MapEntry};

use super::{
    base::{Base, Known, was_set_back},
    line::{Kin, Line, Make},
    table::{Alone, AnyTable, Entry, Inherited, Settled, Visit, visit_alone},
};
use crate::{
    bucket::Bucket,
    charge::{Charge, Take, Taken, Verdicts},
    key::{KeyHash, KeyId},
    limit::Limit,
    time::Nanos,
};

/// The size at which a small map is first looked through.
const FIRST_SWEEP: usize = 16;

/// How many other small maps a key that finds no room asks for fresh buckets.
const LOOKS_FOR_ROOM: usize = 8;

/// With a million keys about 2,000 in each of a map's two halves.
const MAPS: usize = 256;

/// How many keys a small map has at least, where the table is full.
const FEWEST_KEYS: usize = 64;

/// The buckets of one rule.
pub(super) struct MapTable<B: Bucket> {
    base: Base<B>,
    /// The limit of buckets that nobody asked for yet since they came here.
    limit: Limit,
    maps: Box<[OnceLock<SmallMap<B::State>>]>,
}

/// A part of a rule's buckets that is looked through at once.
pub(super) struct SmallMap<S> {
    map: DashMap<KeyId, Entry<S>, KeyHash>,
    /// How many keys it has when it is looked through next. Relaxed: a hint.
    sweep_at: AtomicUsize,
    /// No bucket that was here at the last sweep is fresh before this time. Relaxed: a hint.
    nothing_fresh_before: AtomicU64,
    /// The latest time at which fresh buckets were dropped. Relaxed is enough: it is raised before the first bucket
    /// goes, under the lock that whoever misses that bucket takes after.
    swept: AtomicU64,
}

impl<S: Clone> SmallMap<S> {
    pub(super) fn new(hash: KeyHash) -> Self {
        // Two is the least number of shards there is.
        let map = DashMap::with_capacity_and_hasher_and_shard_amount(0, hash, 2);
        Self {
            map,
            sweep_at: AtomicUsize::new(FIRST_SWEEP),
            nothing_fresh_before: AtomicU64::new(0),
            swept: AtomicU64::new(0),
        }
    }

    /// **Locking**: the half of the map that holds `key`, as long as the entry lives.
    pub(super) fn entry(&self, key: KeyId) -> MapEntry<'_, KeyId, Entry<S>> {
        self.map.entry(key)
    }

    /// Notes that a bucket will be fresh at `fresh_at`, maybe earlier than all others here.
    pub(super) fn has_fresh_at(&self, fresh_at: Nanos) {
        self.nothing_fresh_before.fetch_min(fresh_at.get(), Ordering::Relaxed);
    }

    fn swept(&self) -> Nanos {
        Nanos::new(self.swept.load(Ordering::Relaxed))
    }
}

impl<B: Bucket> MapTable<B> {
    pub(super) fn new(bucket: B, make: Make<'_>) -> Self {
        // A small table has fewer maps, so that whoever looks for room looks through much of it.
        let maps = if make.spec.keyed { (make.bound.max_keys / FEWEST_KEYS).clamp(1, MAPS) } else { 1 };
        let limit = make.spec.limit;
        Self { base: Base::new(bucket, make), limit, maps: (0..maps).map(|_| OnceLock::new()).collect() }
    }

    fn map_of(&self, key: KeyId) -> &SmallMap<B::State> {
        // Bits that the maps themselves do not use: they take the upper byte and the lower half.
        let at = (self.base.hash(key) >> 40) % self.maps.len().max(1) as u64;
        let at = usize::try_from(at).unwrap_or(0);
        #[allow(clippy::indexing_slicing, reason = "`at` is below the length, which is not zero")]
        self.maps[at].get_or_init(|| SmallMap::new(self.base.kin.hash.clone()))
    }

    fn sweep_if_grown(&self, map: &SmallMap<B::State>, now: Nanos) {
        if map.map.len() >= map.sweep_at.load(Ordering::Relaxed) {
            self.sweep_map(map, now, false);
        }
    }

    /// Looks through the key's own map, and one more of the next few, where there can be anything fresh.
    pub(super) fn sweep_for_room(&self, map: &SmallMap<B::State>, now: Nanos) {
        let may_have_fresh = |map: &SmallMap<B::State>| map.nothing_fresh_before.load(Ordering::Relaxed) <= now.get();
        if may_have_fresh(map) {
            self.sweep_map(map, now, false);
        }
        for _ in 0..LOOKS_FOR_ROOM {
            if self.base.kin.count.has_room() {
                return;
            }
            let at = self.base.hand.fetch_add(1, Ordering::Relaxed) % self.maps.len().max(1);
            if let Some(map) = self.maps.get(at).and_then(std::sync::OnceLock::get).filter(|map| may_have_fresh(map)) {
                self.sweep_map(map, now, false);
                return;
            }
        }
    }

    /// Whether a new key may find a place, as far as its own map tells.
    fn may_find_room(&self, map: &SmallMap<B::State>, now: Nanos) -> bool {
        self.base.kin.count.has_room() || map.nothing_fresh_before.load(Ordering::Relaxed) <= now.get()
    }

    /// Drops the fresh buckets of one map and returns how many. **Locking**: half of the map at a time.
    pub(super) fn sweep_map(&self, map: &SmallMap<B::State>, now: Nanos, shrink: bool) -> usize {
        if was_set_back(map.swept(), now) {
            // Begins again, or no late thread would be noticed until the old time has come.
            let _ = self.base.kin.next_era();
            map.swept.store(now.get(), Ordering::Relaxed);
        }
        map.swept.fetch_max(now.get(), Ordering::Relaxed);
        // Raised before and lowered after, so that what is inserted meanwhile is not forgotten.
        map.nothing_fresh_before.store(u64::MAX, Ordering::Relaxed);
        let (mut dropped, mut kept, mut next_fresh) = (0, 0, Nanos::MAX);
        map.map.retain(|_, entry| {
            let fresh_at = self.base.bucket.fresh_at(&entry.state, &entry.limit);
            if fresh_at <= now {
                dropped += 1;
                self.base.kin.count.evict(1);
                return false;
            }
            kept += 1;
            next_fresh = next_fresh.min(fresh_at);
            true
        });
        map.nothing_fresh_before.fetch_min(next_fresh.get(), Ordering::Relaxed);
        map.sweep_at.store((2 * kept).max(FIRST_SWEEP), Ordering::Relaxed);
        if shrink || kept * 4 < map.map.capacity() {
            map.map.shrink_to_fit();
        }
        dropped
    }
}

impl<B: Bucket> AnyTable for MapTable<B> {
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
            MapEntry::Occupied(held)
                if charge.take == Take::Never && !self.base.is_current(held.get(), charge, now) =>
            {
                let mut copy = held.get().clone();
                let when = self.base.bring(&mut copy, &charge.limit, now);
                return Visit::of(self.base.settle(&mut copy, when, charge, passing, next));
            }
            MapEntry::Occupied(mut held) => {
                let entry = held.get_mut();
                let changes = !self.base.is_current(entry, charge, now);
                let when = self.base.bring(entry, &charge.limit, now);
                let visit = Visit::of(self.base.settle(entry, when, charge, passing, next));
                if changes {
                    map.has_fresh_at(self.base.bucket.fresh_at(&entry.state, &entry.limit));
                }
                return visit;
            }
            MapEntry::Vacant(vacant) => vacant,
        };
        let looks = charge.take == Take::Never;
        if self.base.line.sends_on(looks) {
            return Visit::to_no_end(Settled::Elsewhere);
        }
        let inherited = self.base.inherit(charge.key, map.swept(), now, looks);
        if let Some(used) = inherited.used.filter(|_| inherited.is_own) {
            if looks {
                let mut copy = self.base.using(used, charge.limit);
                let when = self.base.bring(&mut copy, &charge.limit, now);
                return Visit::of(self.base.settle(&mut copy, when, charge, passing, next));
            }
            let mut held = vacant.insert_entry(self.base.using(used, charge.limit));
            let entry = held.get_mut();
            let when = self.base.bring(entry, &charge.limit, now);
            let visit = self.base.settle(entry, when, charge, passing, next);
            map.has_fresh_at(self.base.bucket.fresh_at(&entry.state, &entry.limit));
            return Visit { untidy: true, ..Visit::of(visit) };
        }
        let known = Known::from(inherited);
        if self.base.may_hold_in_shared(charge.key) {
            return Visit::of(self.base.visit_untracked(known, now, charge, passing, next));
        }
        let needs_no_room = self.base.needs_no_room(charge);
        let room = if needs_no_room { None } else { self.base.kin.count.reserve() };
        if room.is_none() && !needs_no_room {
            if !final_try {
                return Visit::to_no_end(Settled::NoRoom);
            }
            return Visit::of(self.base.visit_untracked(known, now, charge, passing, next));
        }
        let (mut entry, when) = self.base.start(charge.key, known, charge.limit, now);
        let (settled, mut judged) = self.base.settle(&mut entry, when, charge, passing, next);
        judged.verdict.untracked = needs_no_room && charge.cost > 0 && !self.may_find_room(map, now);
        let inserted = judged.mark.is_some();
        if let (true, Some(room)) = (inserted, room) {
            map.has_fresh_at(self.base.bucket.fresh_at(&entry.state, &entry.limit));
            vacant.insert(entry);
            room.keep();
        }
        Visit { settled, judged, untidy: inserted }
    }

    fn visit_alone(&self, now: Nanos, charge: &Charge<'_>, verdicts: &mut Verdicts) -> Alone {
        visit_alone(self, now, charge, verdicts)
    }

    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64) -> bool {
        let standing = taken.cost;
        if standing == cost {
            return true;
        }
        let map = self.map_of(taken.key);
        let change = |entry: &mut Entry<B::State>, taken: &mut Taken| {
            let limit = entry.limit;
            let (judged_at, _) = self.base.bring(entry, &limit, now);
            self.base.change(entry, judged_at, taken, standing);
            map.has_fresh_at(self.base.bucket.fresh_at(&entry.state, &entry.limit));
        };
        let vacant = match map.entry(taken.key) {
            MapEntry::Occupied(mut held) => {
                taken.cost = cost;
                change(held.get_mut(), taken);
                return true;
            }
            MapEntry::Vacant(_) if self.base.line.sends_on(false) => return false,
            MapEntry::Vacant(vacant) => vacant,
        };
        taken.cost = cost;
        let inherited = self.base.inherit(taken.key, map.swept(), now, false);
        if let Some(used) = inherited.used.filter(|_| inherited.is_own) {
            change(vacant.insert_entry(self.base.using(used, taken.limit)).get_mut(), taken);
            return true;
        }
        let known = Known::from(inherited);
        // What was charged to a bucket that is fresh by now is back already; what is charged in addition counts.
        if self.base.may_hold_in_shared(taken.key) {
            self.base.change_shared(known, now, taken, standing);
            return true;
        }
        match self.base.kin.count.reserve().filter(|_| cost > standing) {
            Some(room) => {
                let (mut entry, (judged_at, _)) = self.base.start(taken.key, known, taken.limit, now);
                self.base.change(&mut entry, judged_at, taken, standing);
                map.has_fresh_at(self.base.bucket.fresh_at(&entry.state, &entry.limit));
                vacant.insert(entry);
                room.keep();
            }
            None => self.base.change_shared(known, now, taken, standing),
        }
        true
    }

    fn forget(&self, key: KeyId) {
        // Whoever holds places still runs.
        if self.base.bucket.holds_places() {
            return;
        }
        let entry = self.map_of(key).entry(key);
        // Under the same lock, or a decision could bring it here meanwhile.
        if let Some(before) = self.base.line.before() {
            before.buckets.forget(key);
        }
        if let MapEntry::Occupied(held) = entry {
            let _ = self.base.kin.next_era();
            held.remove();
            self.base.kin.count.release(1);
        }
    }

    fn hand_over(&self, key: KeyId, now: Nanos, looks: bool) -> Inherited {
        let map = self.map_of(key);
        let dropped = map.swept();
        match map.entry(key) {
            MapEntry::Occupied(held) => {
                let used = Some(self.base.used(held.get().clone(), now));
                if !looks {
                    held.remove();
                }
                Inherited { used, is_own: true, dropped }
            }
            MapEntry::Vacant(_) => self.base.hand_over_unknown(key, dropped, now, looks),
        }
    }

    fn pull(&self, key: KeyId, now: Nanos) {
        let map = self.map_of(key);
        if let MapEntry::Vacant(vacant) = map.entry(key) {
            let inherited = self.base.inherit(key, map.swept(), now, false);
            if let Some(used) = inherited.used.filter(|_| inherited.is_own) {
                let entry = self.base.using(used, self.limit);
                map.has_fresh_at(self.base.bucket.fresh_at(&entry.state, &entry.limit));
                vacant.insert(entry);
            }
        }
    }

    fn each_key(&self, f: &mut dyn FnMut(KeyId, Nanos)) {
        for map in self.maps.iter().filter_map(OnceLock::get) {
            let seen = |entry: &Entry<B::State>| self.base.bucket.seen(&entry.state);
            let keys: Vec<_> = map.map.iter().map(|entry| (*entry.key(), seen(entry.value()))).collect();
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
        self.sweep_if_grown(self.map_of(key), now);
        self.base.drain_before(now);
    }

    fn make_room(&self, key: KeyId, now: Nanos) {
        self.sweep_for_room(self.map_of(key), now);
    }

    fn report_full(&self) {
        self.base.report_full();
    }

    fn sweep(&self, now: Nanos) -> usize {
        // The few shared buckets stay: a thread that comes late has to find them.
        let dropped = self.maps.iter().filter_map(OnceLock::get).map(|map| self.sweep_map(map, now, true)).sum();
        self.base.drain_before(now);
        dropped
    }

    fn drain(&self, now: Nanos) -> bool {
        self.base.drain_before(now);
        let at = self.base.hand.fetch_add(1, Ordering::Relaxed) % self.maps.len().max(1);
        let map = self.maps.get(at).and_then(OnceLock::get);
        if let Some(map) = map.filter(|map| map.nothing_fresh_before.load(Ordering::Relaxed) <= now.get()) {
            self.sweep_map(map, now, true);
        }
        self.base.is_drained(map.is_none_or(|map| map.map.is_empty()), self.maps.len(), now)
    }
}
