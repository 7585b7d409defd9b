//! What one shard's lock guards: a dense table, and beside it the few buckets that it cannot say.

use std::collections::HashMap;

use super::{
    base::was_set_back,
    dense::{Dense, Slot, Vacancy},
    sharded::ShardedTable,
    table::Entry,
};
use crate::{
    bucket::{Bucket, Packed},
    key::{KeyHash, KeyId},
    time::Nanos,
};

/// Buckets that no slot can say.
type Wide<B> = HashMap<KeyId, Entry<<B as Bucket>::State>, KeyHash>;

/// What a shard's lock guards.
pub(super) struct Buckets<B: Packed> {
    pub(super) dense: Dense<B::Words>,
    /// Made when the first such bucket comes.
    pub(super) wide: Option<Box<Wide<B>>>,
    /// The latest time that anything was charged or given back here, which stands for each bucket's own.
    pub(super) seen: Nanos,
    /// The latest time at which fresh buckets were dropped.
    pub(super) dropped: Nanos,
}

/// Where a bucket is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Dense(usize),
    Wide,
}

impl<B: Packed> Buckets<B> {
    pub(super) fn new() -> Self {
        Self { dense: Dense::new(), wide: None, seen: Nanos::ZERO, dropped: Nanos::ZERO }
    }

    /// The latest time that anything happened here.
    #[inline]
    pub(super) fn latest(&self) -> Nanos {
        self.seen.max(self.dropped)
    }

    /// A copy of a key's bucket, and where it is.
    #[inline]
    pub(super) fn find(&self, table: &ShardedTable<B>, key: KeyId, hash: u64) -> Option<(Place, Entry<B::State>)> {
        if let Some(at) = self.dense.find(key, hash) {
            return Some((Place::Dense(at), table.unpack(self.dense.get(at)?, self.seen)));
        }
        let entry = self.wide.as_ref()?.get(&key)?;
        Some((Place::Wide, entry.clone()))
    }

    /// Writes a bucket back to where it was found, or to where it fits now.
    #[inline]
    pub(super) fn write(
        &mut self,
        table: &ShardedTable<B>,
        key: KeyId,
        hash: u64,
        place: Place,
        entry: Entry<B::State>,
    ) {
        self.seen = self.seen.max(table.base.bucket.seen(&entry.state));
        match (place, table.pack(&entry)) {
            (Place::Dense(at), Some(words)) => self.dense.set(at, entry.era, words),
            (Place::Dense(at), None) => {
                self.dense.remove(at, |key| table.base.hash(key));
                self.widen(table, key, entry);
            }
            (Place::Wide, words) => self.write_wide(table, key, hash, words, entry),
        }
    }

    #[cold]
    fn write_wide(
        &mut self,
        table: &ShardedTable<B>,
        key: KeyId,
        hash: u64,
        words: Option<B::Words>,
        entry: Entry<B::State>,
    ) {
        let vacancy = words.map(|words| (words, self.dense.vacancy(hash, |_| false)));
        if let Some((words, vacancy @ Vacancy::Empty(_))) = vacancy {
            self.dense.insert(vacancy, Slot::new(key, entry.era, words));
            if let Some(wide) = &mut self.wide {
                wide.remove(&key);
            }
        } else {
            self.widen(table, key, entry);
        }
    }

    #[cold]
    fn widen(&mut self, table: &ShardedTable<B>, key: KeyId, entry: Entry<B::State>) {
        let wide = self.wide.get_or_insert_with(|| Box::new(HashMap::with_hasher(table.base.hash.clone())));
        wide.insert(key, entry);
    }

    /// Puts a new bucket where it fits. One that is as good as absent has gone for it where `vacancy` says so.
    pub(super) fn insert(
        &mut self,
        table: &ShardedTable<B>,
        key: KeyId,
        mut vacancy: Vacancy,
        hash: u64,
        entry: Entry<B::State>,
    ) {
        let now = table.base.bucket.seen(&entry.state);
        self.seen = self.seen.max(now);
        if let Vacancy::Reused(_) = vacancy {
            self.dropped = self.dropped.max(now);
        }
        match (table.pack(&entry), vacancy) {
            (Some(words), _) => {
                if vacancy == Vacancy::None {
                    self.rebuild(table, now);
                    vacancy = self.dense.vacancy(hash, |_| false);
                }
                self.dense.insert(vacancy, Slot::new(key, entry.era, words));
            }
            (None, Vacancy::Reused(at)) => {
                self.dense.remove(at, |key| table.base.hash(key));
                self.widen(table, key, entry);
            }
            (None, _) => self.widen(table, key, entry),
        }
    }

    /// Drops fresh buckets of the dense table and makes room in it. Returns how many went, and when the next goes.
    pub(super) fn rebuild(&mut self, table: &ShardedTable<B>, now: Nanos) -> (usize, Nanos) {
        let (seen, mut next) = (self.seen, Nanos::MAX);
        let keep = |slot: &Slot<B::Words>| {
            let fresh_at = table.fresh_at(slot, seen);
            next = if fresh_at > now { next.min(fresh_at) } else { next };
            fresh_at > now
        };
        self.dropped = self.dropped.max(now);
        let dropped = self.dense.rebuild(keep, |key| table.base.hash(key));
        table.base.count.release(dropped);
        (dropped, next)
    }

    /// Drops all fresh buckets. Returns how many went, and when the next goes.
    pub(super) fn sweep(&mut self, table: &ShardedTable<B>, now: Nanos) -> (usize, Nanos) {
        if was_set_back(self.latest(), now) {
            self.set_back(table, now);
        }
        self.dropped = self.dropped.max(now);
        let (mut dropped, mut next) = self.rebuild(table, now);
        if self.dense.len() == 0 {
            self.dense.clear();
        }
        if let Some(wide) = &mut self.wide {
            let before = wide.len();
            wide.retain(|_, entry| {
                let fresh_at = table.base.bucket.fresh_at(&entry.state, &entry.limit);
                next = if fresh_at > now { next.min(fresh_at) } else { next };
                fresh_at > now
            });
            table.base.count.release(before - wide.len());
            dropped += before - wide.len();
            if wide.is_empty() {
                self.wide = None;
            }
        }
        (dropped, next)
    }

    /// The clock was set back: every bucket keeps what was used, and goes on from `now`. Those that have times of their own
    /// see to that themselves.
    #[cold]
    pub(super) fn set_back(&mut self, table: &ShardedTable<B>, now: Nanos) {
        let (seen, bucket) = (self.seen, &table.base.bucket);
        self.dropped = self.dropped.min(now);
        let era = table.base.next_era();
        if !was_set_back(seen, now) {
            return;
        }
        self.seen = now;
        let mut too_wide = Vec::new();
        for slot in self.dense.slots_mut() {
            let state = bucket.unpack(slot.words, seen);
            let state = bucket.with_used(&table.limit, bucket.used(&state, &table.limit, seen), now);
            slot.era = era;
            match bucket.pack(&state) {
                Some(words) => slot.words = words,
                None => too_wide.push((slot.key(), Entry { limit: table.limit, era, state })),
            }
        }
        for (key, entry) in too_wide {
            if let Some(at) = self.dense.find(key, table.base.hash(key)) {
                self.dense.remove(at, |key| table.base.hash(key));
            }
            self.widen(table, key, entry);
        }
    }
}
