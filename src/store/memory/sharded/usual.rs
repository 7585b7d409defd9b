//! The usual decision, by the shortest way: a charge that votes and is taken if all pass, under the limit of most.

use super::{
    super::{
        buckets::Buckets,
        dense::{Slot, Vacancy},
        lock::MutexGuard,
        table::{Alone, Settled, Visit, nothing_else},
    },
    Shard, ShardedTable,
};
use crate::{
    bucket::{Packed, Quick},
    charge::{Charge, Judged, Take, Verdicts},
    time::Nanos,
};

/// Whether a charge is as most are.
#[inline]
fn is_usual(charge: &Charge<'_>) -> bool {
    charge.take == Take::IfPassed && charge.votes && charge.keep == 0 && charge.max_delay == Nanos::ZERO
}

impl<B: Packed> ShardedTable<B> {
    /// The usual decision on a request's only charge. `None`, and nothing was done, where it takes another way.
    #[inline]
    pub(in super::super) fn decide_usual(
        &self,
        now: Nanos,
        charge: &Charge<'_>,
        verdicts: &mut Verdicts,
    ) -> Option<Alone> {
        if !is_usual(charge) {
            return None;
        }
        let hash = self.base.hash(charge.key);
        let shard = self.shard(hash);
        let mut guard = shard.buckets.lock();
        let buckets = &mut *guard;
        let quick = self.quick_for(buckets, now, charge)?;
        let at = match buckets.dense.seek(charge.key, hash) {
            Ok(at) => at,
            Err(end) => {
                let visit = self.visit_unknown(shard, buckets, now, charge, (hash, end, &quick), true, nothing_else)?;
                return Some(Alone::judged(visit, verdicts));
            }
        };
        let slot = buckets.dense.get_mut(at)?;
        let at_once = self.base.bucket.at_once(slot.words, &quick, now, charge.cost)?;
        let era = u64::from(slot.era);
        if let Some(words) = at_once.taken {
            slot.words = words;
            buckets.seen = now;
        }
        // What is left are sums.
        drop(guard);
        let judged = match at_once.taken {
            Some(_) => Judged::taken(at_once.took(&quick, now)),
            None => Judged::new(at_once.looked(&quick), None),
        };
        verdicts.push(judged.stamped(era));
        Some(Alone::Judged)
    }

    /// Locks the shard of a charge that is as most are, and returns its hash too.
    #[inline]
    pub(in super::super) fn lock_for(&self, charge: &Charge<'_>) -> Option<(MutexGuard<'_, Buckets<B>>, u64)> {
        let hash = self.base.hash(charge.key);
        is_usual(charge).then(|| (self.lock(hash), hash))
    }

    /// What the buckets of a shard are judged by at once, where the charge is under the same limit as they are, and nothing here
    /// was later than it.
    #[inline]
    pub(in super::super) fn quick_for(&self, buckets: &Buckets<B>, now: Nanos, charge: &Charge<'_>) -> Option<Quick> {
        let terms = buckets.terms(self);
        terms.quick.filter(|_| charge.limit == terms.limit && now >= buckets.latest())
    }

    /// The usual visit, by the shortest way; `None` where it is another.
    #[inline]
    pub(super) fn visit_usual(
        &self,
        now: Nanos,
        charge: &Charge<'_>,
        passing: bool,
        mut next: impl FnMut(bool) -> Settled,
    ) -> Option<Visit> {
        if !is_usual(charge) {
            return None;
        }
        let hash = self.base.hash(charge.key);
        let shard = self.shard(hash);
        let mut guard = shard.buckets.lock();
        let buckets = &mut *guard;
        let quick = self.quick_for(buckets, now, charge)?;
        let at = match buckets.dense.seek(charge.key, hash) {
            Ok(at) => at,
            Err(end) => return self.visit_unknown(shard, buckets, now, charge, (hash, end, &quick), passing, next),
        };
        let slot = buckets.dense.get_mut(at)?;
        let at_once = self.base.bucket.at_once(slot.words, &quick, now, charge.cost)?;
        let (settled, era) = (next(passing && at_once.taken.is_some()), slot.era);
        let taken = at_once.taken.filter(|_| settled == Settled::Passed);
        if let Some(words) = taken {
            slot.words = words;
            buckets.seen = now;
        }
        // What is left are sums.
        drop(guard);
        let judged = match taken {
            Some(_) => Judged::taken(at_once.took(&quick, now)),
            None => Judged::new(at_once.looked(&quick), None),
        };
        Some(Visit::of((settled, judged.stamped(u64::from(era)))))
    }

    /// The usual visit of a new key that has room and is known nowhere else.
    #[inline(never)]
    #[allow(clippy::too_many_arguments, reason = "the other half of `visit_usual`, apart because it is run once a key")]
    fn visit_unknown(
        &self,
        shard: &Shard<B>,
        buckets: &mut Buckets<B>,
        now: Nanos,
        charge: &Charge<'_>,
        (hash, end, quick): (u64, Option<usize>, &Quick),
        passing: bool,
        mut next: impl FnMut(bool) -> Settled,
    ) -> Option<Visit> {
        if self.base.may_know_elsewhere()
            || now < self.base.emptied()
            || (buckets.has_beside() && buckets.find_beside(self, charge.key, hash).is_some())
        {
            return None;
        }
        let at_once = self.base.bucket.at_once(B::Words::default(), quick, now, charge.cost)?;
        let words = at_once.taken?;
        let vacancy = match shard.may_have_fresh(now) {
            true => self.vacancy(buckets, hash, (now, Nanos::ZERO)),
            false => end.map_or(Vacancy::None, |empty| buckets.dense.vacancy_in(empty)),
        };
        let room = match vacancy {
            Vacancy::Reused(_) => None,
            Vacancy::Empty(_) => Some(self.base.kin.count.reserve()?),
            Vacancy::None => return None,
        };
        let (settled, era) = (next(passing), self.base.kin.era());
        if settled != Settled::Passed {
            return Some(Visit::of((settled, Judged::new(at_once.looked(quick), None))));
        }
        let slot = Slot::new(charge.key, era, words);
        buckets.dense.insert(vacancy, slot);
        match room {
            Some(room) => room.keep(),
            None => {
                buckets.dropped = now;
                self.base.kin.count.replace();
            }
        }
        buckets.seen = now;
        shard.has_fresh_at(self.fresh_at(&slot, &charge.limit, now));
        let judged = Judged::taken(at_once.took(quick, now)).stamped(u64::from(era));
        Some(Visit { settled, judged, untidy: buckets.dense.is_crowded() })
    }
}
