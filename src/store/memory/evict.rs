//! Which buckets are dropped, when, and how many there may be.
//!
//! A bucket that answers as a fresh one may go without changing any answer. An insertion that has doubled a small map
//! since the last time pays for dropping the fresh ones of that map, once no lock is held, so the work for each
//! insertion is constant on average and bounded by one small map.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dashmap::{DashMap, Entry as MapEntry};

use super::table::{Entry, Table};
use crate::{
    bucket::Bucket,
    key::{KeyHash, KeyId},
    time::Nanos,
};

/// The size at which a small map is first looked through.
const FIRST_SWEEP: usize = 16;

/// How many other small maps a key that finds no room asks for fresh buckets.
const LOOKS_FOR_ROOM: usize = 8;

/// How many keys there are and may be.
pub(super) struct Count {
    /// Relaxed is enough: it publishes nothing, and the bound holds because it is raised by compare-and-swap.
    now: AtomicUsize,
    max: usize,
}

/// Room for one key, given back unless kept.
#[must_use]
pub(super) struct Room<'a>(&'a Count);

impl Count {
    pub(super) fn up_to(max: usize) -> Self {
        Self { now: AtomicUsize::new(0), max }
    }

    /// Takes room for one more key, if there is any.
    pub(super) fn reserve(&self) -> Option<Room<'_>> {
        let raise = |now: usize| (now < self.max).then_some(now + 1);
        self.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise).ok().map(|_| Room(self))
    }

    pub(super) fn release(&self, keys: usize) {
        self.now.fetch_sub(keys, Ordering::Relaxed);
    }

    pub(super) fn has_room(&self) -> bool {
        self.get() < self.max
    }

    pub(super) fn get(&self) -> usize {
        self.now.load(Ordering::Relaxed)
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

    /// Whether the clock was set back since the last sweep.
    pub(super) fn was_set_back(&self, now: Nanos) -> bool {
        Nanos::new(self.swept.load(Ordering::Relaxed)).saturating_sub(now) >= Nanos::SECOND
    }

    /// The time at which a key without a bucket is judged: its bucket may have been dropped as fresh at a time that a
    /// thread that comes late has not reached yet.
    pub(super) fn not_before_last_sweep(&self, now: Nanos) -> Nanos {
        let swept = Nanos::new(self.swept.load(Ordering::Relaxed));
        match swept.checked_sub(now) {
            Some(late) if late < Nanos::SECOND => swept,
            _ => now,
        }
    }
}

impl<B: Bucket> Table<B> {
    pub(super) fn sweep_if_grown(&self, map: &SmallMap<B::State>, now: Nanos) {
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
            if self.count.has_room() {
                return;
            }
            let at = self.hand.fetch_add(1, Ordering::Relaxed) % self.maps.len().max(1);
            if let Some(map) = self.maps.get(at).and_then(std::sync::OnceLock::get).filter(|map| may_have_fresh(map)) {
                self.sweep_map(map, now, false);
                return;
            }
        }
    }

    /// Drops the fresh buckets of one map and returns how many. **Locking**: half of the map at a time.
    pub(super) fn sweep_map(&self, map: &SmallMap<B::State>, now: Nanos, shrink: bool) -> usize {
        if map.was_set_back(now) {
            // Begins again, or no late thread would be noticed until the old time has come.
            let _ = self.next_era();
            map.swept.store(now.get(), Ordering::Relaxed);
        }
        map.swept.fetch_max(now.get(), Ordering::Relaxed);
        // Raised before and lowered after, so that what is inserted meanwhile is not forgotten.
        map.nothing_fresh_before.store(u64::MAX, Ordering::Relaxed);
        let (mut dropped, mut kept, mut next_fresh) = (0, 0, Nanos::MAX);
        map.map.retain(|_, entry| {
            let fresh_at = self.bucket.fresh_at(&entry.state, &entry.limit);
            if fresh_at <= now {
                dropped += 1;
                self.count.release(1);
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
