//! What one shard's lock guards: a dense table, and beside it the few buckets that it cannot say.
//!
//! A dense table is under one limit. When the rule is given another one, a new one begins, and each bucket moves into
//! it inside its first decision under the new limit.

use super::{
    base::was_set_back,
    beside::{Beside, Former, Terms},
    dense::{Dense, Slot, Vacancy},
    sharded::ShardedTable,
    table::Entry,
};
use crate::{bucket::Packed, key::KeyId, limit::Limit, time::Nanos};

/// What a shard's lock guards. Small, so that a shard is one cache line, and many shards with few keys are little.
pub(super) struct Buckets<B: Packed> {
    pub(super) dense: Dense<B::Words>,
    /// The latest time that anything was charged or given back here, which stands for each bucket's own.
    pub(super) seen: Nanos,
    /// The latest time at which fresh buckets were dropped, or looked for everywhere.
    pub(super) dropped: Nanos,
    /// What few shards have.
    beside: Option<Box<Beside<B>>>,
}

/// Where a bucket is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Dense(usize),
    /// In which table of a former limit, and where.
    Former(usize, usize),
    Wide,
}

impl<B: Packed> Buckets<B> {
    pub(super) fn new() -> Self {
        Self { dense: Dense::new(), seen: Nanos::ZERO, dropped: Nanos::ZERO, beside: None }
    }

    /// What the buckets in the dense table are judged under.
    #[inline]
    pub(super) fn terms<'a>(&'a self, table: &'a ShardedTable<B>) -> &'a Terms {
        self.beside.as_ref().and_then(|beside| beside.terms.as_ref()).unwrap_or(&table.terms)
    }

    /// Whether the buckets in the dense table are judged under `limit`, and nothing here was later than `now`;
    /// `is_first` where the limit is the one of the table's making.
    #[inline]
    pub(super) fn may_judge(&self, table: &ShardedTable<B>, (limit, is_first): (&Limit, bool), now: Nanos) -> bool {
        ((is_first && self.beside.is_none()) || self.terms(table).limit == *limit) && now >= self.latest()
    }

    fn beside(&mut self, table: &ShardedTable<B>) -> &mut Beside<B> {
        self.beside.get_or_insert_with(|| Box::new(Beside::new(table.base.kin.hash.clone())))
    }

    /// Lets go of what there is nothing left of.
    fn tidy_beside(&mut self) {
        if self.beside.as_mut().is_some_and(|beside| beside.tidy()) {
            self.beside = None;
        }
    }

    /// The latest time that anything happened here.
    #[inline]
    pub(super) fn latest(&self) -> Nanos {
        self.seen.max(self.dropped)
    }

    /// Whether there is nothing here.
    pub(super) fn is_empty(&self) -> bool {
        self.dense.len() == 0 && !self.has_beside()
    }

    /// Whether there are buckets that are not in the dense table.
    #[inline]
    pub(super) fn has_beside(&self) -> bool {
        self.beside.as_ref().is_some_and(|beside| !beside.is_empty())
    }

    /// A copy of a key's bucket, and where it is.
    #[inline]
    pub(super) fn find(&self, table: &ShardedTable<B>, key: KeyId, hash: u64) -> Option<(Place, Entry<B::State>)> {
        if let Some(at) = self.dense.find(key, hash) {
            return Some((Place::Dense(at), table.unpack(self.dense.get(at)?, &self.terms(table).limit, self.seen)));
        }
        self.find_beside(table, key, hash)
    }

    /// As [`find`](Self::find), of a key that is not in the dense table.
    pub(super) fn find_beside(
        &self,
        table: &ShardedTable<B>,
        key: KeyId,
        hash: u64,
    ) -> Option<(Place, Entry<B::State>)> {
        let beside = self.beside.as_ref()?;
        for (number, former) in beside.former.iter().enumerate() {
            if let Some(at) = former.dense.find(key, hash) {
                let entry = table.unpack(former.dense.get(at)?, &former.limit, self.seen);
                return Some((Place::Former(number, at), entry));
            }
        }
        let entry = beside.wide.get(&key)?;
        Some((Place::Wide, entry.clone()))
    }

    /// Makes `limit` that of the dense table. No bucket changes.
    #[cold]
    pub(super) fn go_under(&mut self, table: &ShardedTable<B>, limit: Limit) {
        let (old, seen) = (self.terms(table).limit, self.seen);
        let beside = self.beside(table);
        let dense = match beside.former.iter().position(|former| former.limit == limit) {
            Some(number) => beside.former.remove(number).dense,
            None => Dense::new(),
        };
        beside.terms = (limit != table.terms.limit).then(|| Terms::new(&table.base.bucket, limit));
        let dense = std::mem::replace(&mut self.dense, dense);
        self.beside(table).keep_former(Former { limit: old, dense }, |slot, limit| table.unpack(slot, limit, seen));
        self.tidy_beside();
    }

    /// Takes a bucket out for good. With the last one goes the time that was the bucket's: whoever comes late begins a
    /// new one.
    pub(super) fn forget(&mut self, table: &ShardedTable<B>, key: KeyId, place: Place) {
        self.remove(table, key, place);
        if self.is_empty() {
            self.seen = Nanos::ZERO;
        }
    }

    /// Takes a bucket out.
    pub(super) fn remove(&mut self, table: &ShardedTable<B>, key: KeyId, place: Place) {
        match place {
            Place::Dense(at) => self.dense.remove(at, |key| table.base.hash(key)),
            Place::Former(number, at) => {
                if let Some(former) = self.former(number) {
                    former.dense.remove(at, |key| table.base.hash(key));
                }
                self.tidy_beside();
            }
            Place::Wide => {
                if let Some(beside) = &mut self.beside {
                    beside.wide.remove(&key);
                }
                self.tidy_beside();
            }
        }
    }

    fn former(&mut self, number: usize) -> Option<&mut Former<B>> {
        self.beside.as_mut()?.former.get_mut(number)
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
        match (place, self.pack(table, &entry)) {
            (Place::Dense(at), Some(words)) => self.dense.set(at, entry.era, words),
            (Place::Dense(at), None) => {
                self.dense.remove(at, |key| table.base.hash(key));
                self.widen(table, key, entry);
            }
            (Place::Former(number, at), words) => self.write_former(table, key, hash, (number, at), words, entry),
            (Place::Wide, words) => self.write_wide(table, key, hash, words, entry),
        }
    }

    /// The words of a bucket that fits into the dense table.
    #[inline]
    fn pack(&self, table: &ShardedTable<B>, entry: &Entry<B::State>) -> Option<B::Words> {
        if entry.limit == self.terms(table).limit { table.base.bucket.pack(&entry.state) } else { None }
    }

    #[cold]
    fn write_former(
        &mut self,
        table: &ShardedTable<B>,
        key: KeyId,
        hash: u64,
        (number, at): (usize, usize),
        words: Option<B::Words>,
        entry: Entry<B::State>,
    ) {
        let stays = self.former(number).filter(|former| former.limit == entry.limit);
        if let Some(former) = stays
            && let Some(words) = table.base.bucket.pack(&entry.state)
        {
            former.dense.set(at, entry.era, words);
            return;
        }
        self.remove(table, key, Place::Former(number, at));
        self.write_wide(table, key, hash, words, entry);
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
            self.remove(table, key, Place::Wide);
        } else {
            self.widen(table, key, entry);
        }
    }

    #[cold]
    fn widen(&mut self, table: &ShardedTable<B>, key: KeyId, entry: Entry<B::State>) {
        self.beside(table).wide.insert(key, entry);
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
        match (self.pack(table, &entry), vacancy) {
            (Some(words), _) => {
                if vacancy == Vacancy::None {
                    self.rebuild(table, table.base.kin.count.droppable(now, table.lingers));
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

    /// Drops the buckets of the dense table that were fresh at `by` and makes room in it. Returns how many went, and
    /// when the next is fresh.
    pub(super) fn rebuild(&mut self, table: &ShardedTable<B>, by: Nanos) -> (usize, Nanos) {
        let (seen, limit, mut next) = (self.seen, self.terms(table).limit, Nanos::MAX);
        let keep = |slot: &Slot<B::Words>| {
            let fresh_at = table.fresh_at(slot, &limit, seen);
            next = if fresh_at > by { next.min(fresh_at) } else { next };
            fresh_at > by
        };
        let dropped = self.dense.rebuild(keep, |key| table.base.hash(key));
        if dropped > 0 {
            self.dropped = self.dropped.max(by);
        }
        table.base.kin.count.evict(dropped);
        (dropped, next)
    }

    /// Drops all buckets that were fresh at `by`, now or a little before. Returns how many went, and when the next is
    /// fresh.
    pub(super) fn sweep(&mut self, table: &ShardedTable<B>, now: Nanos, by: Nanos) -> (usize, Nanos) {
        if was_set_back(self.latest(), now) {
            self.set_back(table, now);
        }
        self.dropped = self.dropped.max(by);
        let (mut dropped, mut next) = self.rebuild(table, by);
        if self.dense.len() == 0 {
            self.dense.clear();
        }
        if let Some(beside) = &mut self.beside {
            for Former { limit, dense } in &mut beside.former {
                let keep = |slot: &Slot<B::Words>| {
                    let fresh_at = table.fresh_at(slot, limit, self.seen);
                    next = if fresh_at > by { next.min(fresh_at) } else { next };
                    fresh_at > by
                };
                let gone = dense.rebuild(keep, |key| table.base.hash(key));
                table.base.kin.count.evict(gone);
                dropped += gone;
            }
            let before = beside.wide.len();
            beside.wide.retain(|_, entry| {
                let fresh_at = table.base.bucket.fresh_at(&entry.state, &entry.limit);
                next = if fresh_at > by { next.min(fresh_at) } else { next };
                fresh_at > by
            });
            table.base.kin.count.evict(before - beside.wide.len());
            dropped += before - beside.wide.len();
        }
        self.tidy_beside();
        (dropped, next)
    }

    /// The clock was set back: every bucket keeps what was used, and goes on from `now`. Those that have times of their
    /// own see to that themselves.
    #[cold]
    pub(super) fn set_back(&mut self, table: &ShardedTable<B>, now: Nanos) {
        let (seen, bucket) = (self.seen, &table.base.bucket);
        self.dropped = self.dropped.min(now);
        let era = table.base.kin.next_era();
        if !was_set_back(seen, now) {
            return;
        }
        self.seen = now;
        let mut too_wide = Vec::new();
        let own = self.terms(table).limit;
        let former = self.beside.iter_mut().flat_map(|beside| &mut beside.former);
        let tables = former.map(|former| (former.limit, &mut former.dense));
        for (limit, dense) in tables.chain([(own, &mut self.dense)]) {
            for slot in dense.slots_mut() {
                let state = bucket.unpack(slot.words, seen);
                let state = bucket.with_used(&limit, bucket.used(&state, &limit, seen), now);
                slot.era = era;
                match bucket.pack(&state) {
                    Some(words) => slot.words = words,
                    None => too_wide.push((slot.key(), Entry { limit, era, state })),
                }
            }
        }
        for (key, entry) in too_wide {
            if let Some((place, _)) = self.find(table, key, table.base.hash(key)) {
                self.remove(table, key, place);
            }
            self.widen(table, key, entry);
        }
    }

    /// The keys of all buckets here, and the latest time that anything happened to them.
    pub(super) fn keys(&self, table: &ShardedTable<B>) -> Vec<(KeyId, Nanos)> {
        let former = self.beside.iter().flat_map(|beside| &beside.former);
        let dense = former.flat_map(|former| former.dense.slots()).chain(self.dense.slots());
        let dense = dense.map(|slot| (slot.key(), self.seen));
        let wide = self.beside.iter().flat_map(|beside| &beside.wide);
        dense.chain(wide.map(|(key, entry)| (*key, table.base.bucket.seen(&entry.state)))).collect()
    }
}
