//! The part of a limiter that does not know the request's type.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use crate::{
    bucket::Mark,
    charge::{Charge, Slot, Take, Taken, Verdicts},
    decision::{Decision, Outcome, RuleInfo, Ruling, Verdict, Wait},
    error::{Error, ErrorKind, StoreError},
    key::KeyId,
    limit::Limit,
    observe::StoreState,
    store::{Receipt, Reply, Store},
    time::{BoxFuture, Clock, Nanos},
};

/// What is left of a limiter without the request's type, so that it can go into a future of its own.
pub(super) struct Core {
    pub(super) bound: Vec<Bound>,
    pub(super) info: Arc<[RuleInfo]>,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) store_state: StoreState,
}

/// A rule's place in the store, how long it may hold a request, and whether it refuses while there is no answer.
pub(super) struct Bound {
    pub(super) slot: Slot,
    pub(super) max_delay: Nanos,
    pub(super) refuses_without_store: bool,
}

/// A store gave no answer, and what the rules that applied say of that.
pub(crate) struct Unanswered {
    pub(crate) error: Error,
    pub(crate) refuses: bool,
}

impl From<Unanswered> for Error {
    fn from(unanswered: Unanswered) -> Self {
        unanswered.error
    }
}

/// What the caller means to do with the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Start now, or not at all.
    Start,
    /// Start now, or not at all, and maybe give back or settle later.
    Reserve,
    /// Start now, or when its turn comes.
    StartOrHold,
    /// Only look.
    Peek,
}

impl Intent {
    fn may_wait(self) -> bool {
        matches!(self, Self::StartOrHold | Self::Peek)
    }

    /// Whether what was charged has to be at hand.
    fn wants_receipt(self, decision: &Decision) -> bool {
        match self {
            Self::Reserve => decision.is_allowed(),
            Self::StartOrHold => decision.is_allowed() && decision.delay() > Duration::ZERO,
            Self::Start | Self::Peek => false,
        }
    }
}

/// A decision and what was charged for it.
pub(crate) struct Judgement {
    pub(crate) decision: Decision,
    /// Boxed, since few requests have one.
    pub(crate) receipt: Option<Box<Receipt>>,
}

/// A judgement, at once or later.
pub(crate) enum Judging {
    /// The decision is where the caller had room for it; the receipt is here.
    Ready(Result<Option<Box<Receipt>>, Unanswered>),
    Pending(BoxFuture<'static, Result<Judgement, Unanswered>>),
}

/// One rule that applies to a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Applied {
    pub(super) rule: usize,
    pub(super) key: KeyId,
    pub(super) limit: Limit,
    pub(super) cost: u64,
    pub(super) usable: bool,
}

pub(super) type AppliedRules = SmallVec<[Applied; 3]>;

impl Core {
    #[inline]
    pub(super) fn decide(
        &self,
        now: Nanos,
        applied: &[Applied],
        intent: Intent,
        verdicts: &mut Verdicts,
    ) -> Reply<(), Verdicts> {
        let all_usable = applied.iter().all(|applied| applied.usable);
        let mut charges: SmallVec<[Charge<'_>; 3]> = SmallVec::new();
        for applied in applied.iter().filter(|applied| applied.usable) {
            let Some(bound) = self.bound.get(applied.rule) else {
                return Reply::Ready(Err(StoreError::new("a rule is not bound")));
            };
            let mut charge = Charge::new(&bound.slot, applied.key, applied.limit, applied.cost);
            if intent.may_wait() {
                charge.max_delay = bound.max_delay;
            }
            if intent == Intent::Peek || !all_usable {
                charge.take = Take::Never;
            }
            charges.push(charge);
        }
        if charges.is_empty() {
            return Reply::Ready(Ok(()));
        }
        self.store.decide(now, &charges, verdicts)
    }

    /// A decision that nothing was said of yet.
    #[inline]
    pub(super) fn undecided(&self) -> Decision {
        Decision::undecided(Arc::clone(&self.info))
    }

    /// Writes what the store said into `decision`, and returns the receipt, where one is wanted.
    #[inline]
    pub(super) fn settle(
        &self,
        now: Nanos,
        verdicts: &Verdicts,
        applied: &[Applied],
        intent: Intent,
        decision: &mut Decision,
    ) -> Result<Option<Box<Receipt>>, Unanswered> {
        let mut judged = verdicts.iter();
        for applied_rule in applied {
            let verdict = if applied_rule.usable {
                match judged.next() {
                    Some(judged) => judged.verdict,
                    None => {
                        let error = StoreError::new("the store left charges unanswered");
                        return Err(self.unanswered(applied, error));
                    }
                }
            } else {
                Verdict::new(Outcome::Refuse(Wait::Never), 0, 0, None)
            };
            let Applied { rule, cost, limit, .. } = *applied_rule;
            decision.add(Ruling { rule, cost, limit, verdict });
        }
        if verdicts.iter().len() > 0 {
            self.store_state.answered();
        }
        decision.decided_at(now);
        Ok(intent.wants_receipt(decision).then(|| Box::new(self.receipt(self.taken(verdicts, applied)))))
    }

    /// As [`settle`](Self::settle), of a store that answered later.
    pub(super) fn judgement(
        &self,
        now: Nanos,
        verdicts: &Verdicts,
        applied: &[Applied],
        intent: Intent,
    ) -> Result<Judgement, Unanswered> {
        let mut decision = self.undecided();
        let receipt = self.settle(now, verdicts, applied, intent, &mut decision)?;
        Ok(Judgement { decision, receipt })
    }

    /// What the rules that applied say of a store that failed.
    #[cold]
    pub(super) fn unanswered(&self, applied: &[Applied], error: StoreError) -> Unanswered {
        let refuses = |applied: &Applied| self.bound.get(applied.rule).is_none_or(|bound| bound.refuses_without_store);
        Unanswered { error: error.into(), refuses: applied.iter().any(refuses) }
    }

    fn taken(&self, verdicts: &Verdicts, applied: &[Applied]) -> SmallVec<[(usize, Taken); 2]> {
        let usable = applied.iter().filter(|applied| applied.usable);
        let taken = usable.zip(verdicts.iter()).enumerate().filter_map(|(at, (applied, judged))| {
            let bound = self.bound.get(applied.rule)?;
            // What cost nothing so far was not taken, but may be settled to more.
            let mark = if applied.cost == 0 { Mark::default() } else { judged.mark? };
            let mut taken = Taken::new(bound.slot.clone(), applied.key, applied.limit, applied.cost, mark);
            taken.stamp = judged.stamp;
            taken.delays = bound.max_delay > Nanos::ZERO;
            taken.source = judged.verdict.source;
            taken.beside = verdicts.beside(at).map(|beside| Box::new(beside.clone()));
            Some((applied.rule, taken))
        });
        taken.collect()
    }

    pub(super) fn receipt(&self, taken: SmallVec<[(usize, Taken); 2]>) -> Receipt {
        Receipt::new(Arc::clone(&self.store), Arc::clone(&self.clock), Arc::clone(&self.info), taken)
    }
}

impl Judging {
    /// Waits for the store, writes what it says into `decision`, and returns the receipt.
    pub(super) async fn wait(self, decision: &mut Decision) -> Result<Option<Box<Receipt>>, Error> {
        match self {
            Self::Ready(receipt) => Ok(receipt?),
            Self::Pending(judgement) => {
                let judgement = judgement.await?;
                *decision = judgement.decision;
                Ok(judgement.receipt)
            }
        }
    }

    #[inline]
    pub(super) fn now(self) -> Result<Option<Box<Receipt>>, Error> {
        match self {
            Self::Ready(receipt) => Ok(receipt?),
            Self::Pending(_) => Err(Error::new(ErrorKind::NotReady)),
        }
    }
}
