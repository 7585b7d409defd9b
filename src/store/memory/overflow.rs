//! Keys for which there is no place, because a rule holds as many as it may.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{
    Overflow,
    base::{Base, Known, not_before},
    table::{Entry, Settled},
};
use crate::{
    bucket::Bucket,
    charge::{Charge, Judged, Take},
    decision::{Outcome, Verdict, Wait},
    key::KeyId,
    limit::Limit,
    time::Nanos,
};

/// How many overflow buckets there are at most.
const MOST_SHARED: usize = 1 << 16;

/// A bucket that keys without a place share; none until the first.
pub(super) type Shared<S> = Mutex<Option<Entry<S>>>;

impl<B: Bucket> Base<B> {
    /// The shared bucket of a key that has no place. **Locking**: after the key's part of the table, never before.
    pub(super) fn shared_bucket(&self, key: KeyId) -> Option<MutexGuard<'_, Option<Entry<B::State>>>> {
        let Overflow::Share(buckets) = self.overflow else { return None };
        let shared = self.shared.get_or_init(|| (0..buckets.clamp(1, MOST_SHARED)).map(|_| Mutex::new(None)).collect());
        lock_shared(shared, self.hash(key))
    }

    /// What a shared bucket begins with: keys that had no place in a table before shared the same one there.
    pub(super) fn shared_start(&self, known: Known, limit: Limit, now: Nanos) -> Entry<B::State> {
        known.used.map_or_else(|| self.fresh(limit, now), |used| self.using(used, limit))
    }

    /// Whether what `key` holds may be in a shared bucket: places have to be freed where they were taken, so a key gets
    /// no bucket of its own meanwhile, and one that has its own holds nothing in a shared one. **Locking**: as
    /// [`shared_bucket`](Self::shared_bucket).
    pub(super) fn may_hold_in_shared(&self, key: KeyId) -> bool {
        let shared = self.shared.get().filter(|_| self.bucket.holds_places());
        let shared = shared.and_then(|shared| lock_shared(shared, self.hash(key)));
        let held = |entry: &Entry<B::State>| self.bucket.fresh_at(&entry.state, &entry.limit) > Nanos::ZERO;
        shared.is_some_and(|entry| entry.as_ref().is_some_and(held))
    }

    /// A new key for which there is no place.
    pub(super) fn visit_untracked(
        &self,
        known: Known,
        now: Nanos,
        charge: &Charge<'_>,
        passing: bool,
        mut next: impl FnMut(bool) -> Settled,
    ) -> (Settled, Judged) {
        let (settled, mut judged) = match self.shared_bucket(charge.key) {
            Some(mut shared) => {
                let held = shared.get_or_insert_with(|| self.shared_start(known, charge.limit, now));
                let own = held.limit;
                let _ = self.bring(held, &own, now);
                // Keys of several limits meet here. What a smaller one cannot hold must not be forgiven for the others,
                // so only a charge that fits takes its limit along.
                let mut copy = (own != charge.limit).then(|| held.clone());
                let entry = copy.as_mut().unwrap_or(held);
                let (judged_at, _) = self.bring(entry, &charge.limit, now);
                // The key's own bucket may have been dropped as fresh at a time this thread has not reached yet.
                let judged_at = not_before(known.dropped, judged_at);
                let when = (judged_at, judged_at.saturating_sub(now));
                let (settled, judged) = self.settle(entry, when, charge, passing, &mut next);
                let judged = judged.stamped(shared_stamp(entry));
                if let (Some(copy), Some(_)) = (copy, judged.mark) {
                    *held = copy;
                }
                (settled, judged)
            }
            None => {
                let verdict = Verdict::new(Outcome::Refuse(Wait::Unknown), charge.limit.capacity(), 0, None);
                (next(passing && !charge.votes), Judged::new(verdict, None))
            }
        };
        judged.verdict.untracked = true;
        if charge.take != Take::Never {
            self.kin.count.overflowed.add(1);
        }
        (settled, judged)
    }
}

/// What a charge to a shared bucket is stamped with. No charge to a key's own bucket has this stamp: that must not come
/// back to those who share one, once its key has lost its place.
pub(super) fn shared_stamp<S>(entry: &Entry<S>) -> u64 {
    u64::from(entry.era) | 1 << 32
}

pub(super) fn lock_shared<T>(shared: &[Mutex<T>], hash: u64) -> Option<MutexGuard<'_, T>> {
    // Bits that have not chosen the small map.
    let at = usize::try_from((hash & 0xffff_ffff) % shared.len().max(1) as u64).ok()?;
    shared.get(at).map(lock_one)
}

pub(super) fn lock_one<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
