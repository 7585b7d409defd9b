use std::sync::{Arc, PoisonError};

use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::{
    Guarded, Inner, Place,
    asked::Asked,
    circuit::Ticket,
    count,
    fallback::Fallback,
    place_of,
    probe::in_time,
    refusals::{Numbered, Recall},
};
use crate::{
    bucket::Algorithm,
    charge::{Charge, FailurePolicy, RuleSpec, Slot, Taken, Verdicts},
    decision::Source,
    error::{StoreError, Unsupported},
    key::{KeyId, Secret},
    observe,
    store::{MemoryCounts, Reply, Store},
    time::Nanos,
};

impl Inner {
    /// Decides by the policies, and says so.
    fn degraded(
        &self,
        now: Nanos,
        charges: &[Charge<'_>],
        error: &StoreError,
        verdicts: &mut Verdicts,
    ) -> Result<(), StoreError> {
        count(&self.counts.degraded);
        observe::degraded(error);
        self.decide_without(now, charges, verdicts)
    }

    fn forget(&self, place: &Place, key: KeyId) {
        if let Some(number) = place.number() {
            self.refusals.forget(number, key);
        }
    }

    /// Acts on the store's answer.
    fn conclude(
        self: &Arc<Self>,
        question: &Question<'_>,
        answer: Result<(), StoreError>,
        verdicts: &mut Verdicts,
    ) -> Result<(), StoreError> {
        let Question { now, charges, ticket, seen } = question;
        let complete = |()| match verdicts.iter().len() == charges.len() {
            true => Ok(()),
            false => Err(StoreError::new("the store left charges unanswered")),
        };
        match answer.and_then(complete) {
            Ok(()) => {
                if self.circuit.succeeded(*ticket) {
                    self.has_closed();
                }
                self.refusals.remember(*now, &numbered(charges), verdicts, seen);
                self.keep_warm(*now, charges, verdicts);
                Ok(())
            }
            Err(error) => {
                count(&self.counts.failed);
                observe::store_failed();
                // Without a runtime nobody would close it again.
                if !error.is_of_one_request() && Handle::try_current().is_ok() && self.circuit.failed(*ticket) {
                    count(&self.counts.opened);
                    observe::circuit_opened(&error);
                    self.is_probed(*now, charges);
                }
                self.degraded(*now, charges, &error, verdicts)
            }
        }
    }
}

/// What the store was asked, and when.
struct Question<'a> {
    now: Nanos,
    charges: &'a [Charge<'a>],
    ticket: Ticket,
    seen: SmallVec<[u64; 3]>,
}

fn numbered<'a>(charges: &'a [Charge<'a>]) -> SmallVec<[Numbered<'a>; 3]> {
    charges.iter().map(|charge| (charge, place_of(charge).and_then(Place::number))).collect()
}

impl Store for Guarded {
    fn secret(&self) -> &Secret {
        self.inner.store.secret()
    }

    fn bind(&self, spec: &RuleSpec, before: Option<&Slot>) -> Result<Slot, Unsupported> {
        let inner = &*self.inner;
        let policy = spec.on_store_failure.unwrap_or(inner.on_failure);
        policy.check().map_err(Unsupported::new)?;
        let before = before.and_then(|slot| slot.get::<Place>());
        let slot = inner.store.bind(spec, before.map(|before| &before.slot))?;
        let fallback = match policy {
            FailurePolicy::Fallback(share) => {
                let local = RuleSpec { limit: share.of(&spec.limit), ..spec.clone() };
                let before = before.and_then(|before| before.fallback.as_ref()).map(|fallback| &fallback.slot);
                Some(Fallback { slot: inner.local.bind(&local, before)?, share })
            }
            FailurePolicy::Allow | FailurePolicy::Refuse => None,
        };
        let number = inner.numbers.lock().unwrap_or_else(PoisonError::into_inner).of(spec);
        inner.refusals.clear();
        // What a bucket of the user's own refuses it may grant later, or for a higher cost.
        let number = (!matches!(spec.algorithm, Algorithm::Custom(_))).then_some(number);
        Ok(Slot::new(Place { slot, policy, fallback, number }))
    }

    fn decide(&self, now: Nanos, charges: &[Charge<'_>], verdicts: &mut Verdicts) -> Reply<(), Verdicts> {
        let inner = &self.inner;
        let mut theirs = SmallVec::<[Charge<'_>; 3]>::new();
        for charge in charges {
            let Some(place) = place_of(charge) else {
                return Reply::Ready(Err(StoreError::new("a slot of another kind of store")));
            };
            theirs.push(Charge { slot: &place.slot, ..*charge });
        }
        let seen = match inner.refusals.recall(now, &numbered(charges), verdicts) {
            Recall::Ask(seen) => seen,
            Recall::Refused => {
                count(&inner.counts.remembered);
                return Reply::Ready(Ok(()));
            }
        };
        let Some(ticket) = inner.admit(now, charges) else {
            let error = StoreError::new("the store failed several times in a row and is not asked");
            return Reply::Ready(inner.degraded(now, charges, &error, verdicts));
        };
        count(&inner.counts.asked);
        match inner.store.decide(now, &theirs, verdicts) {
            Reply::Ready(answer) => {
                Reply::Ready(inner.conclude(&Question { now, charges, ticket, seen }, answer, verdicts))
            }
            Reply::Pending(reply) => {
                let inner = Arc::clone(inner);
                let asked: SmallVec<[Asked; 3]> = charges.iter().map(Asked::of).collect();
                Reply::Pending(Box::pin(async move {
                    let (answer, mut verdicts) = match in_time(inner.deadline, reply).await {
                        Ok(verdicts) => (Ok(()), verdicts),
                        Err(error) => (Err(error), Verdicts::new()),
                    };
                    let charges: SmallVec<[Charge<'_>; 3]> = asked.iter().map(Asked::charge).collect();
                    inner.conclude(&Question { now, charges: &charges, ticket, seen }, answer, &mut verdicts)?;
                    Ok(verdicts)
                }))
            }
        }
    }

    /// What was charged here comes back here, and what the store charged, there.
    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64) {
        let slot = taken.slot.clone();
        let Some(place) = slot.get::<Place>() else { return };
        let gives_back = cost < taken.cost;
        match taken.source {
            Source::Store => {
                self.inner.adjust_here(now, place, taken, cost);
                taken.slot = place.slot.clone();
                self.inner.store.adjust(now, taken, cost);
                taken.slot = slot.clone();
            }
            Source::Fallback => {
                self.inner.adjust_here(now, place, taken, cost);
                taken.cost = cost;
            }
            // Nobody was charged.
            Source::Policy | Source::Unasked | Source::Remembered => taken.cost = cost,
        }
        // After the change: what was asked before this is not remembered, and what is asked after it knows of it, or
        // soon will.
        if let (true, Some(number)) = (gives_back, place.number()) {
            self.inner.refusals.comes_back(now, number, taken.key);
        }
    }

    /// Forgets it here at once, and in the store within the deadline.
    fn reset(&self, slot: &Slot, key: KeyId) -> Reply<()> {
        let Some(place) = slot.get::<Place>() else { return Reply::Ready(Ok(())) };
        if let Some(fallback) = &place.fallback {
            // The memory store answers at once.
            drop(self.inner.local.reset(&fallback.slot, key));
        }
        let reply = self.inner.store.reset(&place.slot, key);
        self.inner.forget(place, key);
        match reply {
            Reply::Ready(answer) => Reply::Ready(answer),
            Reply::Pending(reply) => {
                let (inner, slot) = (Arc::clone(&self.inner), slot.clone());
                Reply::Pending(Box::pin(async move {
                    let answer = in_time(inner.deadline, reply).await;
                    if let Some(place) = slot.get::<Place>() {
                        // What was refused while it was on its way.
                        inner.forget(place, key);
                    }
                    answer
                }))
            }
        }
    }

    fn has_fallback(&self) -> bool {
        true
    }

    fn counts_of(&self, slot: &Slot) -> Option<MemoryCounts> {
        self.inner.store.counts_of(&slot.get::<Place>()?.slot)
    }

    fn publish_metrics(&self) {
        self.inner.store.publish_metrics();
    }
}
