//! What is decided without the store, and the buckets in this process that are kept warm for that.

use smallvec::SmallVec;

use super::{Inner, Place, place_of};
use crate::{
    charge::{Charge, FailurePolicy, Judged, Share, Slot, Take, Taken, Verdicts},
    decision::{Outcome, Source, Verdict, Wait},
    error::StoreError,
    limit::Limit,
    store::{Reply, Store},
    time::Nanos,
};

/// A rule's buckets in this process.
pub(super) struct Fallback {
    pub(super) slot: Slot,
    pub(super) share: Share,
}

/// How often a charge that does not fit into a bucket kept warm is cut to what is left: others may be quicker.
const TRIES: usize = 3;

impl Inner {
    /// Decides by the rules' failure policies. Where one refuses, the others charge nothing that depends on passing.
    pub(super) fn decide_without(
        &self,
        now: Nanos,
        charges: &[Charge<'_>],
        verdicts: &mut Verdicts,
    ) -> Result<(), StoreError> {
        verdicts.clear();
        let policy = |charge: &Charge<'_>| place_of(charge).map_or(FailurePolicy::Refuse, |place| place.policy);
        let refuses = |charge: &Charge<'_>| charge.votes && policy(charge) == FailurePolicy::Refuse;
        let fallback = |charge| place_of(charge).and_then(|place| place.fallback.as_ref());
        // A charge's number among those that are judged here.
        let number_here = |at: usize| {
            let before = charges.iter().take(at).filter(|charge| fallback(charge).is_some()).count();
            charges.get(at).and_then(fallback).map(|_| before)
        };
        let mut local = SmallVec::<[Charge<'_>; 3]>::new();
        for charge in charges {
            let Some(fallback) = fallback(charge) else { continue };
            let mut others = charges.iter().enumerate().filter(|(at, _)| charge.in_place_of != Some(*at));
            let refused = charge.take == Take::IfPassed && others.any(|(_, other)| refuses(other));
            let take = if refused { Take::Never } else { charge.take };
            let in_place_of = charge.in_place_of.and_then(number_here);
            let limit = fallback.share.of(&charge.limit);
            local.push(Charge { slot: &fallback.slot, limit, take, in_place_of, ..*charge });
        }
        let mut judged_here = Verdicts::new();
        if !local.is_empty() {
            at_once(self.local.decide(now, &local, &mut judged_here))?;
        }
        let mut here = local.iter().zip(judged_here.iter());
        for (at, charge) in charges.iter().enumerate() {
            let limit = charge.limit.capacity();
            let by_policy = |outcome| Judged::new(Verdict::new(outcome, limit, limit, None), None);
            let mut judged = match policy(charge) {
                FailurePolicy::Refuse if charge.votes => by_policy(Outcome::Refuse(Wait::Unknown)),
                FailurePolicy::Refuse | FailurePolicy::Allow => by_policy(Outcome::Pass),
                FailurePolicy::Fallback(_) => {
                    let (local, judged) = here.next().ok_or_else(|| StoreError::new("a fallback is missing"))?;
                    if let Some(mark) = judged.mark {
                        let mut taken = Taken::new(local.slot.clone(), local.key, local.limit, local.cost, mark);
                        (taken.stamp, taken.delays) = (judged.stamp, local.max_delay > Nanos::ZERO);
                        verdicts.put_beside(at, taken);
                    }
                    let mut judged = *judged;
                    let whole_can_hold = charge.cost.saturating_add(charge.keep) <= limit;
                    if judged.verdict.outcome == Outcome::Refuse(Wait::Never) && whole_can_hold {
                        // It passes once the store is back, and nobody knows when that is.
                        judged.verdict.outcome = Outcome::Refuse(Wait::Unknown);
                    }
                    judged
                }
            };
            let counted = matches!(policy(charge), FailurePolicy::Fallback(_));
            judged.verdict.source = if counted { Source::Fallback } else { Source::Policy };
            verdicts.push(judged);
        }
        Ok(())
    }

    /// Charges what the store has charged to this process's own buckets too, so that an outage gives nobody a fresh
    /// burst.
    ///
    /// No more than fits: a process that is given more than its share of a client's requests would pile up a debt that
    /// outlives any outage.
    pub(super) fn keep_warm(&self, now: Nanos, charges: &[Charge<'_>], verdicts: &mut Verdicts) {
        for (at, charge) in charges.iter().enumerate() {
            let Some(fallback) = place_of(charge).and_then(|place| place.fallback.as_ref()) else { continue };
            if verdicts.iter().nth(at).is_none_or(|judged| judged.mark.is_none()) {
                continue;
            }
            let limit = fallback.share.of(&charge.limit);
            let charge = Charge { slot: &fallback.slot, limit, keep: 0, ..*charge };
            if let Some(taken) = self.charge_what_fits(now, charge) {
                verdicts.put_beside(at, taken);
            }
        }
    }

    fn charge_what_fits(&self, now: Nanos, charge: Charge<'_>) -> Option<Taken> {
        let mut cost = charge.cost.min(charge.limit.capacity());
        for _ in 0..TRIES {
            let charge = Charge { cost, votes: true, take: Take::IfPassed, ..charge };
            let mut verdicts = Verdicts::new();
            at_once(self.local.decide(now, &[charge], &mut verdicts)).ok()?;
            let judged = verdicts.iter().next()?;
            if let Some(mark) = judged.mark {
                let mut taken = Taken::new(charge.slot.clone(), charge.key, charge.limit, cost, mark);
                (taken.stamp, taken.delays) = (judged.stamp, charge.max_delay > Nanos::ZERO);
                return Some(taken);
            }
            cost = judged.verdict.remaining.min(cost);
            if cost == 0 {
                return None;
            }
        }
        None
    }

    /// Changes what a charge stands at in this process's own bucket, from `standing` to `cost`.
    pub(super) fn adjust_here(&self, now: Nanos, place: &Place, taken: &mut Taken, cost: u64) {
        let Some(fallback) = &place.fallback else { return };
        let standing = taken.cost;
        let limit: Limit = fallback.share.of(&taken.limit);
        let nothing_yet =
            || Box::new(Taken::new(fallback.slot.clone(), taken.key, limit, 0, crate::bucket::Mark::default()));
        let here = match &mut taken.beside {
            Some(here) => here,
            // Nothing was charged anywhere, so what is charged now is all there is.
            None if standing == 0 => taken.beside.insert(nothing_yet()),
            None => return,
        };
        let Some(more) = cost.checked_sub(standing) else {
            let less = cost.min(here.cost);
            return self.local.adjust(now, here, less);
        };
        if taken.source == Source::Fallback {
            let cost = here.cost.saturating_add(more);
            return self.local.adjust(now, here, cost);
        }
        let charge = Charge::new(&fallback.slot, here.key, here.limit, more);
        if let Some(also) = self.charge_what_fits(now, charge) {
            here.cost = here.cost.saturating_add(also.cost);
            here.added.push((also.cost, also.mark));
        }
    }
}

/// The answer of a memory store, which answers at once.
fn at_once(reply: Reply<(), Verdicts>) -> Result<(), StoreError> {
    match reply {
        Reply::Ready(answer) => answer,
        Reply::Pending(_) => Err(StoreError::new("the fallback does not answer at once")),
    }
}
