//! Buckets that are charged or dropped elsewhere than in a decision, or come from another table and go to one.

use super::{
    super::{
        base::{Known, was_set_back},
        buckets::{Buckets, Place},
        table::{Entry, Inherited},
    },
    ShardedTable,
};
use crate::{bucket::Packed, charge::Taken, key::KeyId, limit::Limit, time::Nanos};

/// What the tables before had of a key.
pub(super) enum Found<S> {
    /// Its bucket, which is here now.
    Here(Place, Entry<S>),
    /// For who only looks, what that would be.
    Copy(Entry<S>),
    Nowhere(Known),
}

impl<B: Packed> ShardedTable<B> {
    /// Takes over what the tables before have of a key that is not here. Who only looks takes nothing.
    pub(super) fn inherit(
        &self,
        buckets: &mut Buckets<B>,
        key: KeyId,
        limit: &Limit,
        now: Nanos,
        looks: bool,
    ) -> Found<B::State> {
        let inherited = self.base.inherit(key, buckets.dropped, now, looks);
        let Some(used) = inherited.used.filter(|_| inherited.is_own) else {
            return Found::Nowhere(inherited.into());
        };
        let entry = self.base.using(used, *limit);
        if looks {
            return Found::Copy(entry);
        }
        let hash = self.base.hash(key);
        self.shard(hash).has_fresh_at(self.base.bucket.fresh_at(&entry.state, &entry.limit));
        let vacancy = buckets.dense.vacancy(hash, |_| false);
        buckets.insert(self, key, vacancy, hash, entry);
        match buckets.find(self, key, hash) {
            Some((place, entry)) => Found::Here(place, entry),
            None => Found::Nowhere(inherited.into()),
        }
    }

    /// [`AnyTable::hand_over`](super::AnyTable::hand_over).
    pub(super) fn give(&self, key: KeyId, now: Nanos, looks: bool) -> Inherited {
        let hash = self.base.hash(key);
        let shard = self.shard(hash);
        let mut buckets = shard.buckets.lock();
        if was_set_back(buckets.latest(), now) && !looks {
            shard.set_back(self, &mut buckets, now);
        }
        let dropped = buckets.dropped;
        let Some((place, entry)) = buckets.find(self, key, hash) else {
            return self.base.hand_over_unknown(key, dropped, now, looks);
        };
        if !looks {
            buckets.remove(self, key, place);
        }
        Inherited { used: Some(self.base.used(entry, now)), is_own: true, dropped }
    }

    /// [`AnyTable::adjust`](super::AnyTable::adjust).
    pub(super) fn adjust_here(&self, now: Nanos, taken: &mut Taken, cost: u64) -> bool {
        let standing = taken.cost;
        if standing == cost {
            return true;
        }
        let hash = self.base.hash(taken.key);
        let shard = self.shard(hash);
        let mut buckets = shard.buckets.lock();
        if was_set_back(buckets.latest(), now) {
            shard.set_back(self, &mut buckets, now);
        }
        let mut found = buckets.find(self, taken.key, hash);
        let mut known = Known { dropped: buckets.dropped, used: None };
        if found.is_none() {
            if self.base.line.sends_on(false) {
                return false;
            }
            match self.inherit(&mut buckets, taken.key, &taken.limit, now, false) {
                Found::Here(place, entry) => found = Some((place, entry)),
                Found::Nowhere(unknown) => known = unknown,
                Found::Copy(_) => {}
            }
        }
        taken.cost = cost;
        if let Some((place, mut entry)) = found {
            let limit = entry.limit;
            let (judged_at, _) = self.base.bring(&mut entry, &limit, now);
            self.base.change(&mut entry, judged_at, taken, standing);
            shard.has_fresh_at(self.base.bucket.fresh_at(&entry.state, &entry.limit));
            buckets.write(self, taken.key, hash, place, entry);
            return true;
        }
        // What was charged to a bucket that is fresh by now is back already; what is charged in addition counts.
        match self.base.kin.count.reserve().filter(|_| cost > standing) {
            Some(room) => {
                let (mut entry, when) = self.base.start(taken.key, known, taken.limit, now);
                self.base.change(&mut entry, when.0, taken, standing);
                shard.has_fresh_at(self.base.bucket.fresh_at(&entry.state, &entry.limit));
                let vacancy = buckets.dense.vacancy(hash, |_| false);
                buckets.insert(self, taken.key, vacancy, hash, entry);
                room.keep();
            }
            None => self.base.change_shared(known, now, taken, standing),
        }
        true
    }

    /// [`AnyTable::forget`](super::AnyTable::forget).
    pub(super) fn forget_here(&self, key: KeyId) {
        let hash = self.base.hash(key);
        let mut buckets = self.shard(hash).buckets.lock();
        if let Some((place, _)) = buckets.find(self, key, hash) {
            buckets.forget(self, key, place);
            let _ = self.base.kin.next_era();
            self.base.kin.count.release(1);
        }
        // Under the same lock, or a decision could bring it here meanwhile.
        if let Some(before) = self.base.line.before() {
            before.buckets.forget(key);
        }
    }
}
