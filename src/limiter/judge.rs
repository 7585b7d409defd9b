//! The decision itself.

use std::{iter, slice, sync::Arc};

use http::StatusCode;
use smallvec::SmallVec;

use super::{
    Generation, Plain,
    core::{Charged, Charges, Intent, Judgement, Judging},
};
use crate::{
    charge::{Charge, Judged, Take, Verdicts},
    decision::{Decision, Outcome, Refusal, Ruling, Verdict},
    rule::Applies,
    store::{Answer, Question, Reply, ask_all},
    time::Nanos,
};

/// What one rule in memory has answered at once, and what it was asked for.
pub(crate) struct Answered {
    answer: Answer,
    cost: u64,
}

impl Answered {
    #[inline]
    pub(crate) fn passes(&self) -> bool {
        self.answer.passes()
    }

    #[inline]
    pub(crate) fn at(&self) -> Nanos {
        self.answer.at()
    }

    #[inline]
    pub(crate) fn verdict(&self) -> Verdict {
        self.answer.verdict()
    }
}

impl<Req> Generation<Req> {
    /// Judges a request, and writes the answer into `decision` where it is there at once.
    #[inline]
    pub(crate) fn judge(&self, request: &Req, intent: Intent, decision: &mut Decision) -> Judging {
        match self.answer(request, intent, decision) {
            Ok(answered) => {
                self.decide_by(&answered, decision);
                Judging::Ready(Ok(None))
            }
            Err(judging) => judging,
        }
    }

    /// As [`judge`](Self::judge), but leaves it to the caller to [write](Self::decide_by) an answer into the decision that one
    /// [plain](super::Generation) rule in memory has given: most are not looked at any closer.
    #[inline]
    pub(crate) fn answer(&self, request: &Req, intent: Intent, decision: &mut Decision) -> Result<Answered, Judging> {
        match (self.plain, intent) {
            (Plain::One, Intent::Start | Intent::StartOrHold) => self.answer_plain(request, intent, decision),
            (Plain::Several, Intent::Start | Intent::StartOrHold) => Err(self.judge_plain(request, intent, decision)),
            _ => Err(self.judge_all(request, intent, decision)),
        }
    }

    /// Writes the answer of the only rule into a decision of which nothing was said yet.
    #[inline]
    pub(crate) fn decide_by(&self, answered: &Answered, decision: &mut Decision) {
        let ruling = Ruling::answered(0, answered.cost, &answered.answer.verdict());
        decision.answered_by(ruling, self.core.info.first());
        decision.decided_at(answered.answer.at());
    }

    #[inline]
    fn answer_plain(&self, request: &Req, intent: Intent, decision: &mut Decision) -> Result<Answered, Judging> {
        let core = &*self.core;
        let ([(rule, reported)], [bound]) = (self.rules.enforcing(), core.bound.as_slice()) else {
            return Err(self.judge_all(request, intent, decision));
        };
        if !rule.holds(request) {
            decision.decided_at(core.clock.now());
            return Err(Judging::Ready(Ok(None)));
        }
        let key = match rule.key_of(request, &core.secret, reported) {
            Ok(Some(key)) => key,
            without => return Err(self.judge_without_key(without.err(), intent, decision)),
        };
        let cost = rule.cost_of(request);
        // Read after the user's closures: one that takes a second must not look like a clock that was set back.
        let now = core.clock.now();
        match bound.direct.as_ref().and_then(|direct| direct.ask(now, key, cost)) {
            Some(answer) => Ok(Answered { answer, cost }),
            None => Err(self.judge_charge(now, bound.charge(key, *rule.made_with(), cost, intent), intent, decision)),
        }
    }

    /// A request has no key for the only rule.
    #[cold]
    fn judge_without_key(
        &self,
        refused: Option<(StatusCode, &'static str)>,
        intent: Intent,
        decision: &mut Decision,
    ) -> Judging {
        if let Some((status, reason)) = refused {
            return self.refuse_without_key(0, Refusal::MissingKey { status, reason }, intent, decision);
        }
        self.missing_key(0, intent);
        decision.decided_at(self.core.clock.now());
        Judging::Ready(Ok(None))
    }

    /// Asks the store for the only charge of a request.
    fn judge_charge(&self, now: Nanos, charge: Charge<'_>, intent: Intent, decision: &mut Decision) -> Judging {
        let core = &*self.core;
        let mut verdicts = Verdicts::new();
        let reply = match core.store.decide(now, slice::from_ref(&charge), &mut verdicts) {
            Reply::Ready(Ok(())) => {
                if let Some(Judged { verdict, .. }) = verdicts.only()
                    && !matches!(verdict.outcome, Outcome::Delay(_))
                {
                    core.store_state.answered();
                    decision.answered_by(Ruling::answered(0, charge.cost, verdict), core.info.first());
                    decision.decided_at(now);
                    return Judging::Ready(Ok(None));
                }
                Reply::Ready(Ok(()))
            }
            reply => reply,
        };
        decision.ask(Ruling::asked(0, charge.cost, None, true));
        self.conclude(now, reply, &verdicts, iter::once(Charged::from(&charge)), intent, decision)
    }

    /// As [`judge_all`](Self::judge_all), where all rules are [plain](super::Plain) and in memory.
    fn judge_plain(&self, request: &Req, intent: Intent, decision: &mut Decision) -> Judging {
        let core = &*self.core;
        let mut questions = SmallVec::<[Question<'_>; 3]>::new();
        for ((at, (rule, reported)), bound) in self.rules.enforcing().iter().enumerate().zip(&core.bound) {
            if !rule.holds(request) {
                continue;
            }
            match rule.key_of(request, &core.secret, reported) {
                Ok(Some(key)) => {
                    let (direct, cost) = (bound.direct.as_ref(), rule.cost_of(request));
                    questions.push(Question { rule: at, direct, key, cost });
                }
                Ok(None) => self.missing_key(at, intent),
                Err((status, reason)) => {
                    return self.refuse_without_key(at, Refusal::MissingKey { status, reason }, intent, decision);
                }
            }
        }
        // Read after the user's closures: one that takes a second must not look like a clock that was set back.
        let now = core.clock.now();
        let has_answers = ask_all(now, &questions, |question, verdict| {
            decision.answered_by(Ruling::answered(question.rule, question.cost, verdict), core.info.get(question.rule));
        });
        if has_answers {
            decision.decided_at(now);
            return Judging::Ready(Ok(None));
        }
        let mut charges = Charges::new();
        for Question { rule: at, key, cost, .. } in &questions {
            if let (Some(bound), Some(rule)) = (core.bound.get(*at), self.rules.get(*at)) {
                decision.ask(Ruling::asked(*at, *cost, None, true));
                charges.push(bound.charge(*key, *rule.made_with(), *cost, intent));
            }
        }
        self.judge_charges(now, &charges, intent, decision)
    }

    /// Asks every rule, and the store for all that apply.
    fn judge_all(&self, request: &Req, intent: Intent, decision: &mut Decision) -> Judging {
        let (rules, core) = (&self.rules, &self.core);
        let (mut charges, mut all_usable) = (Charges::new(), true);
        for ((at, (rule, reported)), bound) in rules.enforcing().iter().enumerate().zip(&core.bound) {
            if !rule.holds(request) {
                continue;
            }
            match rule.applied(request, &core.secret, reported) {
                Applies::NoKey => self.missing_key(at, intent),
                Applies::Yes { key, limit, cost, usable } => {
                    decision.ask(Ruling::asked(at, cost, limit.as_ref(), usable));
                    if usable {
                        charges.push(bound.charge(key, limit.unwrap_or(*rule.made_with()), cost, intent));
                    }
                    all_usable &= usable;
                }
                Applies::Refused { status, reason } => {
                    return self.refuse_without_key(at, Refusal::MissingKey { status, reason }, intent, decision);
                }
            }
        }
        if rules.tries() {
            self.ask_tried(request, intent, decision, &mut charges);
        }
        if !all_usable {
            charges.iter_mut().for_each(|charge| charge.take = Take::Never);
        }
        // Read after the user's closures: one that takes a second must not look like a clock that was set back.
        let now = core.clock.now();
        self.judge_charges(now, &charges, intent, decision)
    }

    /// Asks the store for all that apply.
    fn judge_charges(&self, now: Nanos, charges: &[Charge<'_>], intent: Intent, decision: &mut Decision) -> Judging {
        let core = &*self.core;
        let mut verdicts = Verdicts::new();
        let reply = match charges {
            [] => Reply::Ready(Ok(())),
            charges => core.store.decide(now, charges, &mut verdicts),
        };
        let charged = charges.iter().map(Charged::from);
        match reply {
            Reply::Ready(Ok(())) => Judging::Ready(core.settle(now, &verdicts, charged, intent, decision)),
            reply => self.conclude(now, reply, &verdicts, charged, intent, decision),
        }
    }

    /// What comes of a store's answer that is not the usual one.
    #[cold]
    fn conclude(
        &self,
        now: Nanos,
        reply: Reply<(), Verdicts>,
        verdicts: &Verdicts,
        charged: impl Iterator<Item = Charged>,
        intent: Intent,
        decision: &mut Decision,
    ) -> Judging {
        let core = &self.core;
        match reply {
            Reply::Ready(Ok(())) => Judging::Ready(core.settle(now, verdicts, charged, intent, decision)),
            Reply::Ready(Err(error)) => Judging::Ready(core.failed(now, error, decision)),
            Reply::Pending(reply) => {
                let charged: Vec<_> = charged.collect();
                let (core, mut decision) = (Arc::clone(core), std::mem::replace(decision, core.undecided()));
                decision.name(&core.info);
                Judging::Pending(Box::pin(async move {
                    let receipt = match reply.await {
                        Ok(verdicts) => core.settle(now, &verdicts, charged.into_iter(), intent, &mut decision)?,
                        Err(error) => core.failed(now, error, &mut decision)?,
                    };
                    Ok(Judgement { decision, receipt })
                }))
            }
        }
    }

    /// A rule whose key is not there says what the request is answered with.
    #[cold]
    fn refuse_without_key(&self, rule: usize, refusal: Refusal, intent: Intent, decision: &mut Decision) -> Judging {
        self.missing_key(rule, intent);
        *decision = Decision::refused(Arc::clone(&self.core.info), refusal, self.core.clock.now());
        Judging::Ready(Ok(None))
    }
}
