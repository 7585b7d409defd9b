//! The part of a limiter that does not know the request's type.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use crate::{
    bucket::Mark,
    charge::{Charge, Ending, Slot, Take, Taken, Verdicts},
    decision::{Decision, RuleInfo, Ruling},
    error::{Error, ErrorKind, StoreError},
    few::Few,
    key::{KeyId, Secret},
    limit::Limit,
    observe::{self, StoreState},
    store::{Direct, Queue, Receipt, Store},
    time::{BoxFuture, Clock, Nanos},
};

/// What is left of a limiter without the request's type, so that it can go into a future of its own.
pub(super) struct Core {
    pub(super) bound: Vec<Bound>,
    pub(super) info: Arc<[RuleInfo]>,
    /// What becomes of each rule's charges; `None` where all stand, as they mostly do.
    pub(super) endings: Option<Arc<[Ending]>>,
    /// The lines of rules that have one; `None` where none has.
    pub(super) queues: Option<Arc<[Option<Arc<Queue>>]>>,
    pub(super) store: Arc<dyn Store>,
    /// Whether it is a memory store itself, and nothing around one.
    pub(super) in_memory: bool,
    /// The store's.
    pub(super) secret: Secret,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) store_state: Arc<StoreState>,
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
    /// The rules that applied.
    pub(crate) rules: SmallVec<[usize; 3]>,
}

impl From<Box<Unanswered>> for Error {
    fn from(unanswered: Box<Unanswered>) -> Self {
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
    /// The same, of a request that has asked before and is counted already.
    Again,
    /// Only look, of a request that is not counted yet, to see what there is to wait for, or because others go first.
    Enter,
    /// Only look.
    Peek,
}

impl Intent {
    fn may_wait(self) -> bool {
        !matches!(self, Self::Start | Self::Reserve)
    }

    fn only_looks(self) -> bool {
        matches!(self, Self::Enter | Self::Peek)
    }

    /// Whether what becomes of the request under a rule that it has no key for counts.
    pub(super) fn counts(self) -> bool {
        !matches!(self, Self::Again | Self::Peek)
    }

    /// Whether what was charged has to be at hand. `ends` says whether something of it ends with the request.
    fn wants_receipt(self, decision: &Decision, ends: bool) -> bool {
        match self {
            Self::Reserve => decision.is_allowed(),
            Self::StartOrHold | Self::Again => decision.is_allowed() && (ends || decision.delay() > Duration::ZERO),
            Self::Start | Self::Enter | Self::Peek => false,
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
    Ready(Result<Option<Box<Receipt>>, Box<Unanswered>>),
    Pending(BoxFuture<'static, Result<Judgement, Box<Unanswered>>>),
}

/// Whose bucket was charged, and under which limit: what of a charge is not in its ruling.
#[derive(Debug, Clone, Copy)]
pub(super) struct Charged {
    key: KeyId,
    limit: Limit,
}

impl From<&Charge<'_>> for Charged {
    fn from(charge: &Charge<'_>) -> Self {
        Self { key: charge.key, limit: charge.limit }
    }
}

pub(super) type Charges<'a> = SmallVec<[Charge<'a>; 3]>;

impl Bound {
    /// What the rule charges a request.
    #[inline]
    pub(super) fn charge(&self, key: KeyId, limit: Limit, cost: u64, intent: Intent) -> Charge<'_> {
        let mut charge = Charge::new(&self.slot, key, limit, cost);
        if intent.may_wait() {
            charge.max_delay = self.max_delay;
        }
        if intent.only_looks() {
            charge.take = Take::Never;
        }
        charge
    }
}

impl Core {
    /// The rules' buckets, where the limiter's own store is in memory and nothing stands before it.
    pub(super) fn directs(&self) -> impl Iterator<Item = Option<Direct>> {
        self.bound.iter().enumerate().map(|(at, bound)| Direct::at(&bound.slot, at).filter(|_| self.in_memory))
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
        charged: impl Iterator<Item = Charged>,
        intent: Intent,
        decision: &mut Decision,
    ) -> Result<Option<Box<Receipt>>, Box<Unanswered>> {
        if !decision.answer(&self.info, verdicts.iter().map(|judged| &judged.verdict)) {
            return self.failed(now, StoreError::new("the store left charges unanswered"), decision);
        }
        if verdicts.iter().len() > 0 {
            self.store_state.answered();
        }
        decision.decided_at(now);
        let ends = self.endings.is_some()
            && decision.asked().iter().chain(decision.tried()).any(|asked| !self.stands(asked.rule()));
        if !intent.wants_receipt(decision, ends) {
            return Ok(None);
        }
        Ok(Some(Box::new(self.receipt(self.taken(decision, verdicts, charged)))))
    }

    /// Writes what can be said where the store failed: nothing, unless only rules had asked that do not enforce.
    #[cold]
    pub(super) fn failed(
        &self,
        now: Nanos,
        error: StoreError,
        decision: &mut Decision,
    ) -> Result<Option<Box<Receipt>>, Box<Unanswered>> {
        if !decision.asked().is_empty() {
            return Err(self.unanswered(decision.asked(), error));
        }
        self.store_state.failed(&error);
        decision.unanswered_tried();
        decision.decided_at(now);
        Ok(None)
    }

    /// What the rules that applied say of a store that failed.
    #[cold]
    pub(super) fn unanswered(&self, asked: &Few<Ruling>, error: StoreError) -> Box<Unanswered> {
        observe::store_failed();
        let refuses = |asked: &Ruling| self.bound.get(asked.rule()).is_none_or(|bound| bound.refuses_without_store);
        let rules = asked.iter().map(Ruling::rule).collect();
        Box::new(Unanswered { error: error.into(), refuses: asked.iter().any(refuses), rules })
    }

    fn taken(
        &self,
        decision: &Decision,
        verdicts: &Verdicts,
        charged: impl Iterator<Item = Charged>,
    ) -> SmallVec<[(usize, Taken); 2]> {
        let usable = decision.asked().iter().chain(decision.tried()).filter(|asked| asked.is_usable());
        let taken =
            usable.zip(charged).zip(verdicts.iter()).enumerate().filter_map(|(at, ((asked, charged), judged))| {
                let bound = self.bound.get(asked.rule())?;
                // What cost nothing so far was not taken, but may be settled to more.
                let mark = if asked.cost == 0 { Mark::default() } else { judged.mark? };
                let mut taken = Taken::new(bound.slot.clone(), charged.key, charged.limit, asked.cost, mark);
                taken.stamp = judged.stamp;
                taken.delays = bound.max_delay > Nanos::ZERO;
                taken.source = judged.verdict.source;
                taken.beside = verdicts.beside(at).map(|beside| Box::new(beside.clone()));
                Some((asked.rule(), taken))
            });
        taken.collect()
    }

    pub(super) fn receipt(&self, taken: SmallVec<[(usize, Taken); 2]>) -> Receipt {
        let (store, clock, info) = (Arc::clone(&self.store), Arc::clone(&self.clock), Arc::clone(&self.info));
        Receipt::new(store, clock, info, self.endings.clone(), self.queues.clone(), taken)
    }

    /// Whether a rule's charges stand whatever becomes of the request.
    pub(super) fn stands(&self, rule: usize) -> bool {
        self.endings.as_deref().and_then(|endings| endings.get(rule)).is_none_or(Ending::stands)
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
