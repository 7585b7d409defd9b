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
    bucket::{AtOnce, Packed, Quick},
    charge::{Charge, Judged, Take, Verdicts},
    key::KeyId,
    time::Nanos,
};

/// Whether a charge is as most are.
#[inline]
fn is_usual(charge: &Charge<'_>) -> bool {
    charge.take == Take::IfPassed && charge.votes && charge.keep == 0 && charge.max_delay == Nanos::ZERO
}

/// The shard of a charge that is as most are.
pub(in super::super) struct Usual<'a, B: Packed> {
    shard: &'a Shard<B>,
    pub(in super::super) buckets: MutexGuard<'a, Buckets<B>>,
    /// What its buckets are judged by.
    pub(in super::super) quick: Quick,
    /// The key's.
    pub(in super::super) hash: u64,
}

/// What came of a key that was not there.
struct Unknown<W> {
    settled: Settled,
    at_once: AtOnce<W>,
    /// The life of its bucket, where it was put in.
    era: Option<u32>,
    untidy: bool,
}

impl<B: Packed> ShardedTable<B> {
    /// The usual decision on a request's only charge. `None`, and nothing was done, where it takes another way.
    #[inline(always)]
    pub(in super::super) fn decide_usual(
        &self,
        now: Nanos,
        charge: &Charge<'_>,
        verdicts: &mut Verdicts,
    ) -> Option<Alone> {
        let Usual { shard, buckets: mut guard, quick, hash } = self.lock_for(now, charge)?;
        let buckets = &mut *guard;
        let at = match buckets.dense.seek(charge.key, hash) {
            Ok(at) => at,
            Err(end) => return self.decide_unknown(shard, buckets, now, charge, (hash, end, &quick), verdicts),
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
        match at_once.taken {
            Some(_) => verdicts.push_made(move || Judged::taken(at_once.took(&quick, now)).stamped(era)),
            None => verdicts.push_made(move || Judged::new(at_once.looked(&quick), None).stamped(era)),
        }
        Some(Alone::Judged)
    }

    /// The other half of [`decide_usual`](Self::decide_usual), for a key that is not there.
    #[inline(never)]
    fn decide_unknown(
        &self,
        shard: &Shard<B>,
        buckets: &mut Buckets<B>,
        now: Nanos,
        charge: &Charge<'_>,
        found: (u64, Option<usize>, &Quick),
        verdicts: &mut Verdicts,
    ) -> Option<Alone> {
        let new = self.put_unknown(shard, buckets, now, charge, found, true, nothing_else)?;
        verdicts.push_made(|| new.judged(found.2, now));
        Some(Alone::tidied(new.untidy))
    }

    /// Locks the shard of a charge that is as most are, where its buckets can be judged at once.
    #[inline(always)]
    pub(in super::super) fn lock_for(&self, now: Nanos, charge: &Charge<'_>) -> Option<Usual<'_, B>> {
        if !is_usual(charge) {
            return None;
        }
        // Compared before anything is locked.
        let is_first = charge.limit == self.terms.limit;
        let hash = self.base.hash(charge.key);
        let shard = self.shard(hash);
        let buckets = shard.buckets.lock();
        let may_judge = buckets.may_judge(self, (&charge.limit, is_first), now);
        let quick = buckets.terms(self).quick.filter(|_| may_judge)?;
        Some(Usual { shard, buckets, quick, hash })
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
        let Usual { shard, buckets: mut guard, quick, hash } = self.lock_for(now, charge)?;
        let buckets = &mut *guard;
        let at = match buckets.dense.seek(charge.key, hash) {
            Ok(at) => at,
            Err(end) => {
                let new = self.put_unknown(shard, buckets, now, charge, (hash, end, &quick), passing, next)?;
                return Some(Visit { settled: new.settled, judged: new.judged(&quick, now), untidy: new.untidy });
            }
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

    /// Whether a key that is not in the dense table is known nowhere else either, so that its bucket is a fresh one.
    #[inline]
    fn is_new(&self, buckets: &Buckets<B>, now: Nanos, key: KeyId, hash: u64) -> bool {
        !self.base.may_know_elsewhere()
            && now >= self.base.emptied()
            && !(buckets.has_beside() && buckets.find_beside(self, key, hash).is_some())
    }

    /// Whether a key that is not in the dense table is to be judged by a fresh bucket, and would find room for it.
    #[inline(never)]
    pub(in super::super) fn may_look_at_new(&self, buckets: &Buckets<B>, now: Nanos, key: KeyId, hash: u64) -> bool {
        self.is_new(buckets, now, key, hash) && self.base.kin.count.has_room()
    }

    /// Looks at the bucket of a new key that has room and is known nowhere else, lets the others be looked at, and puts
    /// it in if it is settled so.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "what two ways have in common, each of which knows all of these")]
    fn put_unknown(
        &self,
        shard: &Shard<B>,
        buckets: &mut Buckets<B>,
        now: Nanos,
        charge: &Charge<'_>,
        (hash, end, quick): (u64, Option<usize>, &Quick),
        passing: bool,
        mut next: impl FnMut(bool) -> Settled,
    ) -> Option<Unknown<B::Words>> {
        if !self.is_new(buckets, now, charge.key, hash) {
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
            return Some(Unknown { settled, at_once, era: None, untidy: false });
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
        Some(Unknown { settled, at_once, era: Some(era), untidy: buckets.dense.is_crowded() })
    }
}

impl<W> Unknown<W> {
    #[inline]
    fn judged(&self, quick: &Quick, now: Nanos) -> Judged {
        match self.era {
            Some(era) => Judged::taken(self.at_once.took(quick, now)).stamped(u64::from(era)),
            None => Judged::new(self.at_once.looked(quick), None),
        }
    }
}
