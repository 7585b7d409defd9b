//! What both kinds of table do with one bucket.

use std::{
    borrow::Cow,
    hash::BuildHasher,
    sync::{
        OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use super::{
    Overflow,
    line::{Kin, Line, Make},
    overflow::{Shared, lock_one, lock_shared, shared_stamp},
    table::{Entry, Inherited, Settled, UsedAt},
};
use crate::{
    bucket::{Ask, Bucket, GivenBack},
    charge::{Charge, Judged, Take, Taken},
    key::KeyId,
    limit::Limit,
    observe::{self, Once},
    time::Nanos,
};

/// A rule's strategy, how many keys it has and may have, and the buckets of keys without a place.
pub(super) struct Base<B: Bucket> {
    pub(super) bucket: B,
    pub(super) kin: Kin,
    pub(super) line: Line,
    /// Which part of the table is asked for room next. Relaxed: any order will do.
    pub(super) hand: AtomicUsize,
    name: Cow<'static, str>,
    pub(super) overflow: Overflow,
    /// Buckets shared by keys that have no place; made when the first such key comes.
    pub(super) shared: OnceLock<Box<[Shared<B::State>]>>,
    /// The time at which the tables before were found empty: any bucket there may have been dropped as fresh then.
    /// Relaxed would do for a thread that comes late; it is raised before the tables go.
    emptied: AtomicU64,
    /// How many parts of the table in a row were found empty, once a newer one is in charge. Relaxed: only one thread
    /// at a time is likely to look, and a count too low means looking again.
    empty_parts: AtomicUsize,
    reported_full: Once,
}

/// What is known of a key that has no bucket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    /// A time at which its bucket may have been dropped as fresh.
    pub(super) dropped: Nanos,
    /// How much it has used by another algorithm.
    pub(super) used: Option<UsedAt>,
}

impl From<Inherited> for Known {
    fn from(Inherited { dropped, used, .. }: Inherited) -> Self {
        Self { dropped, used }
    }
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
    pub(super) fn new(bucket: B, Make { spec, bound, kin, line }: Make<'_>) -> Self {
        Self {
            bucket,
            kin,
            line,
            hand: AtomicUsize::new(0),
            name: spec.name.clone(),
            overflow: bound.overflow,
            shared: OnceLock::new(),
            emptied: AtomicU64::new(0),
            empty_parts: AtomicUsize::new(0),
            reported_full: Once::default(),
        }
    }

    pub(super) fn hash(&self, key: KeyId) -> u64 {
        self.kin.hash.hash_one(key)
    }

    /// The time at which any bucket of the tables before may have been dropped.
    #[inline]
    pub(super) fn emptied(&self) -> Nanos {
        Nanos::new(self.emptied.load(Ordering::Relaxed))
    }

    /// Whether a new key's first decision is more than its own: it may be known to another table, or shared a bucket.
    #[inline]
    pub(super) fn may_know_elsewhere(&self) -> bool {
        self.line.has_before() || self.line.sends_on(false) || self.shared.get().is_some()
    }

    /// Whether the bucket to judge by is the same where there is room for one more key and where there is none: who
    /// only looks is answered as the shared bucket would answer, where there are such.
    pub(super) fn needs_no_room(&self, charge: &Charge<'_>) -> bool {
        charge.cost == 0 || (charge.take == Take::Never && matches!(self.overflow, Overflow::Share(_)))
    }

    /// What a key without a bucket starts from, and when to judge it: its bucket may have been dropped as fresh at
    /// `dropped`, a time that this thread may not have reached yet.
    pub(super) fn start(&self, key: KeyId, known: Known, limit: Limit, now: Nanos) -> (Entry<B::State>, When) {
        let Known { dropped, used } = known;
        // Places held in a shared bucket are others'; nobody would free them in a copy.
        let copied = self.shared.get().filter(|_| !self.bucket.holds_places());
        let shared = copied.and_then(|shared| lock_shared(shared, self.hash(key)));
        let mut entry = match (shared.as_deref(), used) {
            (Some(Some(shared)), _) => Entry { era: self.kin.era(), ..shared.clone() },
            (_, Some(used)) => self.using(used, limit),
            (_, None) => self.fresh(limit, now),
        };
        if was_set_back(dropped, now) {
            // The key's bucket may have been dropped at a time that comes again.
            entry.era = self.kin.next_era();
        }
        let (judged_at, _) = self.bring(&mut entry, &limit, now);
        let judged_at = not_before(dropped, judged_at);
        (entry, (judged_at, judged_at.saturating_sub(now)))
    }

    pub(super) fn fresh(&self, limit: Limit, now: Nanos) -> Entry<B::State> {
        Entry { limit, era: self.kin.era(), state: self.bucket.fresh(&limit, now) }
    }

    /// A bucket that begins with what was used by another algorithm.
    pub(super) fn using(&self, (used, at): UsedAt, limit: Limit) -> Entry<B::State> {
        Entry { limit, era: self.kin.next_era(), state: self.bucket.with_used(&limit, used, at) }
    }

    /// What the tables before know of a key.
    pub(super) fn inherit(&self, key: KeyId, dropped: Nanos, now: Nanos, looks: bool) -> Inherited {
        let dropped = dropped.max(self.emptied());
        match self.line.source() {
            Some(source) => {
                let inherited = source.buckets.hand_over(key, now, looks);
                Inherited { dropped: inherited.dropped.max(dropped), ..inherited }
            }
            None => Inherited { used: None, is_own: false, dropped },
        }
    }

    /// What is known here, or in the tables before, of a key that has no bucket here.
    pub(super) fn hand_over_unknown(&self, key: KeyId, dropped: Nanos, now: Nanos, looks: bool) -> Inherited {
        let inherited = self.inherit(key, dropped, now, looks);
        if inherited.is_own {
            return inherited;
        }
        let shared = self.shared.get().and_then(|shared| lock_shared(shared, self.hash(key)));
        let used = shared.as_deref().and_then(|shared| shared.clone()).map(|entry| self.used(entry, now));
        Inherited { used: used.or(inherited.used), ..inherited }
    }

    /// How much of a bucket is used.
    pub(super) fn used(&self, mut entry: Entry<B::State>, now: Nanos) -> UsedAt {
        let limit = entry.limit;
        let (judged_at, _) = self.bring(&mut entry, &limit, now);
        (self.bucket.used(&entry.state, &limit, judged_at), judged_at)
    }

    /// Notes whether a part of the table is empty, and returns whether all of `parts` are, and nobody shares a bucket.
    pub(super) fn is_drained(&self, part_is_empty: bool, parts: usize, now: Nanos) -> bool {
        if !part_is_empty || self.line.has_before() {
            self.empty_parts.store(0, Ordering::Relaxed);
            return false;
        }
        let fresh = |entry: Entry<B::State>| self.bucket.fresh_at(&entry.state, &entry.limit) <= now;
        let shared_is_fresh = |shared: &Shared<B::State>| lock_one(shared).clone().is_none_or(fresh);
        self.empty_parts.fetch_add(1, Ordering::Relaxed) + 1 >= parts
            && self.shared.get().is_none_or(|shared| shared.iter().all(shared_is_fresh))
    }

    /// Drops a part of what is fresh in the tables before, and lets go of them when there is nothing left.
    pub(super) fn drain_before(&self, now: Nanos) {
        if let Some(before) = self.line.before()
            && before.buckets.drain(now)
        {
            self.emptied.fetch_max(now.get(), Ordering::Relaxed);
            self.line.let_go();
        }
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
                (_, Settled::NoRoom | Settled::Elsewhere) | (Take::Never, _) => false,
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
            // Marks from before a changed limit count what was forgiven; those from before the clock was set back are
            // in times that come again.
            entry.era = self.kin.next_era();
        }
        let judged_at = self.bucket.judge_at(&mut entry.state, &mut entry.limit, limit, now);
        (judged_at, judged_at.saturating_sub(now))
    }

    /// Whether bringing the bucket up to date would leave it as it is.
    #[inline]
    pub(super) fn is_current(&self, entry: &Entry<B::State>, charge: &Charge<'_>, now: Nanos) -> bool {
        entry.limit == charge.limit && self.bucket.seen(&entry.state).saturating_sub(now) < Nanos::SECOND
    }

    /// Changes what a charge taken from a key's own bucket stands at, from `standing` to what `taken` says.
    pub(super) fn change(&self, entry: &mut Entry<B::State>, judged_at: Nanos, taken: &mut Taken, standing: u64) {
        // It may have begun as a copy of a shared bucket, with what the key was charged there.
        let counts = [u64::from(entry.era), shared_stamp(entry)].contains(&taken.stamp);
        self.change_if(counts, entry, judged_at, taken, standing);
    }

    /// As [`change`](Self::change), where `counts` says whether it was charged in this life of the bucket.
    fn change_if(&self, counts: bool, entry: &mut Entry<B::State>, judged_at: Nanos, taken: &mut Taken, standing: u64) {
        let limit = entry.limit;
        let Some(mut back) = standing.checked_sub(taken.cost) else {
            let mut more = taken.cost - standing;
            if self.bucket.holds_places() {
                // Each place comes back as it was counted, so none can be taken that is not.
                more = more.min(u64::MAX - self.bucket.used(&entry.state, &limit, judged_at).ceil());
                taken.cost = standing + more;
            }
            let (_, mark) = self.bucket.take(&mut entry.state, &limit, judged_at, Ask::new(more));
            taken.added.push((more, mark));
            return;
        };
        // A mark counts in its own limit's time; under another one it says nothing. A place has no time.
        let same_time = limit.permits() == taken.limit.permits() && limit.period() == taken.limit.period();
        let counts = self.bucket.holds_places() || counts && same_time;
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
    pub(super) fn change_shared(&self, known: Known, now: Nanos, taken: &mut Taken, standing: u64) {
        let mut shared = self.shared_bucket(taken.key);
        if taken.cost > standing
            && let Some(shared) = shared.as_deref_mut()
        {
            // What is charged in addition counts, in the first overflow bucket there is too.
            let _ = shared.get_or_insert_with(|| self.shared_start(known, taken.limit, now));
        }
        let Some(entry) = shared.as_mut().and_then(|shared| shared.as_mut()) else {
            // Nobody counts what is charged in addition, so nothing of it may come back.
            taken.cost = taken.cost.min(standing);
            return;
        };
        let limit = entry.limit;
        let (judged_at, _) = self.bring(entry, &limit, now);
        let counts = taken.stamp == shared_stamp(entry);
        self.change_if(counts, entry, not_before(known.dropped, judged_at), taken, standing);
    }

    pub(super) fn report_full(&self) {
        observe::table_full(&self.reported_full, &self.name);
    }
}
