//! What both kinds of table do with one bucket.

use std::{
    borrow::Cow,
    hash::BuildHasher,
    sync::{
        OnceLock,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
};

use super::{
    Bound, Overflow,
    evict::Count,
    overflow::{Shared, lock_shared},
    table::{Entry, Settled},
};
use crate::{
    bucket::{Ask, Bucket, GivenBack},
    charge::{Charge, Judged, RuleSpec, Take, Taken},
    key::{KeyHash, KeyId},
    limit::Limit,
    observe::{self, Counter, Once},
    time::Nanos,
};

/// A rule's strategy, how many keys it has and may have, and the buckets of keys without a place.
pub(super) struct Base<B: Bucket> {
    pub(super) bucket: B,
    pub(super) hash: KeyHash,
    pub(super) count: Count,
    /// Which part of the table is asked for room next. Relaxed: any order will do.
    pub(super) hand: AtomicUsize,
    name: Cow<'static, str>,
    pub(super) overflow: Overflow,
    /// Buckets shared by keys that have no place; made when the first such key comes.
    pub(super) shared: OnceLock<Box<[Shared<B::State>]>>,
    /// The lives begun by resets and set clocks. Relaxed is enough: it is raised under the lock of the bucket that goes,
    /// which whoever makes its successor takes after.
    era: AtomicU32,
    reported_full: Once,
    /// Decisions on keys that had no place.
    pub(super) overflowed: Counter,
}

/// When a bucket is judged, and how much later than the request's own time that is.
pub(super) type When = (Nanos, Nanos);

/// `now`, or the time `seen` by others that a thread which comes late has not reached yet.
pub(super) fn not_before(seen: Nanos, now: Nanos) -> Nanos {
    match seen.checked_sub(now) {
        Some(late) if late < Nanos::SECOND => seen,
        _ => now,
    }
}

/// Whether the clock that stood at `seen` was set back since.
pub(super) fn was_set_back(seen: Nanos, now: Nanos) -> bool {
    seen.saturating_sub(now) >= Nanos::SECOND
}

impl<B: Bucket> Base<B> {
    pub(super) fn new(bucket: B, spec: &RuleSpec, bound: Bound) -> Self {
        Self {
            bucket,
            hash: KeyHash::random(),
            count: Count::up_to(bound.max_keys),
            hand: AtomicUsize::new(0),
            name: spec.name.clone(),
            overflow: bound.overflow,
            shared: OnceLock::new(),
            era: AtomicU32::new(0),
            reported_full: Once::default(),
            overflowed: Counter::default(),
        }
    }

    pub(super) fn hash(&self, key: KeyId) -> u64 {
        self.hash.hash_one(key)
    }

    /// The present life of buckets that begin now.
    #[inline]
    pub(super) fn era(&self) -> u32 {
        self.era.load(Ordering::Relaxed)
    }

    /// What a key without a bucket starts from, and when to judge it: its bucket may have been dropped as fresh at
    /// `dropped`, a time that this thread may not have reached yet.
    pub(super) fn start(&self, dropped: Nanos, key: KeyId, limit: Limit, now: Nanos) -> (Entry<B::State>, When) {
        let shared = self.shared.get().and_then(|shared| lock_shared(shared, self.hash(key)));
        let mut entry = match shared.as_deref() {
            Some(Some(shared)) => Entry { era: self.era(), ..shared.clone() },
            _ => self.fresh(limit, now),
        };
        if was_set_back(dropped, now) {
            // The key's bucket may have been dropped at a time that comes again.
            entry.era = self.next_era();
        }
        let (judged_at, _) = self.bring(&mut entry, &limit, now);
        let judged_at = not_before(dropped, judged_at);
        (entry, (judged_at, judged_at.saturating_sub(now)))
    }

    pub(super) fn fresh(&self, limit: Limit, now: Nanos) -> Entry<B::State> {
        Entry { limit, era: self.era(), state: self.bucket.fresh(&limit, now) }
    }

    /// Looks at a bucket, lets the others be looked at, and takes the charge if it is settled so.
    #[inline]
    pub(super) fn settle(
        &self,
        entry: &mut Entry<B::State>,
        (judged_at, lag): When,
        charge: &Charge<'_>,
        passing: bool,
        mut next: impl FnMut(bool) -> Settled,
    ) -> (Settled, Judged) {
        let ask = Ask::new(charge.cost).keep(charge.keep).max_delay(charge.max_delay);
        let (outcome, verdict) = self.bucket.outcome(&entry.state, &entry.limit, judged_at, ask);
        let passes = outcome.passes();
        let settled = next(passing && (passes || !charge.votes));
        let take = charge.cost > 0
            && match (charge.take, settled) {
                (_, Settled::NoRoom) | (Take::Never, _) => false,
                (Take::Always, _) => true,
                (Take::IfPassed, settled) => settled == Settled::Passed && passes,
            };
        let (mut verdict, mark) = if take {
            let (verdict, mark) = self.bucket.take(&mut entry.state, &entry.limit, judged_at, ask);
            (verdict, Some(mark))
        } else {
            (verdict.unwrap_or_else(|| self.bucket.look(&entry.state, &entry.limit, judged_at, ask)), None)
        };
        if lag > Nanos::ZERO {
            verdict = verdict.seen_from_before(lag);
        }
        (settled, Judged::new(verdict, mark).stamped(u64::from(entry.era)))
    }

    /// Brings a bucket up to date, and returns when to judge it and how much later than `now` that is.
    #[inline]
    pub(super) fn bring(&self, entry: &mut Entry<B::State>, limit: &Limit, now: Nanos) -> When {
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
    #[inline]
    pub(super) fn is_current(&self, entry: &Entry<B::State>, charge: &Charge<'_>, now: Nanos) -> bool {
        entry.limit == charge.limit && self.bucket.seen(&entry.state).saturating_sub(now) < Nanos::SECOND
    }

    /// Changes what a taken charge stands at, from `standing` to what `taken` says.
    pub(super) fn change(&self, entry: &mut Entry<B::State>, judged_at: Nanos, taken: &mut Taken, standing: u64) {
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

    /// Changes what a taken charge of a key without a bucket stands at.
    pub(super) fn change_shared(&self, dropped: Nanos, now: Nanos, taken: &mut Taken, standing: u64) {
        let mut shared = self.shared_bucket(taken.key);
        if taken.cost > standing
            && let Some(shared) = shared.as_deref_mut()
        {
            // What is charged in addition counts, in the first overflow bucket there is too.
            let _ = shared.get_or_insert_with(|| self.fresh(taken.limit, now));
        }
        if let Some(entry) = shared.as_mut().and_then(|shared| shared.as_mut()) {
            let limit = entry.limit;
            let (judged_at, _) = self.bring(entry, &limit, now);
            self.change(entry, not_before(dropped, judged_at), taken, standing);
        }
    }

    pub(super) fn report_full(&self) {
        observe::table_full(&self.reported_full, &self.name);
    }
}
