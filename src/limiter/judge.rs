//! The decision itself.

use std::{iter, slice, sync::Arc};

use http::StatusCode;

use super::{
    Generation, Plain,
    core::{Charged, Charges, Intent, Judgement, Judging},
};
use crate::{
    charge::{Charge, Judged, Take, Verdicts},
    decision::{Decision, Outcome, RuleVerdict, Ruling},
    key::KeyId,
    limit::Limit,
    rule::Applies,
    store::{Answer, Direct, Questions, Reply},
    time::Nanos,
};

/// What one rule in memory has answered at once, and what it was asked for.
pub(crate) struct Answered {
    answer: Answer,
    cost: u64,
}

/// Why there is no answer at once, and how far the question had come. No closure of the user's is called twice for a
/// request.
pub(crate) enum Unanswerable {
    /// There is not one plain rule, and nobody was asked for anything.
    Unasked,
    /// A condition of the rule does not hold.
    DoesNotApply,
    /// Its key is not there, and what the request is refused with, if it is.
    NoKey(Option<(StatusCode, &'static str)>),
    /// The store has to be asked for more than the key's bucket.
    Charge { now: Nanos, key: KeyId, cost: u64 },
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
}

impl<Req> Generation<Req> {
    /// Judges a request, and writes the answer into `decision` where it is there at once.
    #[inline]
    pub(crate) fn judge(&self, request: &Req, intent: Intent, decision: &mut Decision) -> Judging {
        let answer = match intent {
            Intent::Start | Intent::StartOrHold => self.at_once(request),
            _ => Err(Unanswerable::Unasked),
        };
        match answer {
            Ok(answered) => {
                self.decide_by(&answered, decision);
                Judging::Ready(Ok(None))
            }
            Err(why) => self.judge_otherwise(why, request, intent, decision),
        }
    }

    /// Asks the only rule, where it is [plain](super::Plain) and in memory. It is left to the caller to
    /// [write](Self::decide_by) a decision: most are not looked at any closer. Who holds no place for the request, and
    /// means to start it, goes on from another answer with [`judge_otherwise`](Self::judge_otherwise).
    #[inline]
    pub(crate) fn at_once(&self, request: &Req) -> Result<Answered, Unanswerable> {
        let core = &*self.core;
        let (Plain::One(direct), [(rule, reported)]) = (&self.plain, self.rules.enforcing()) else {
            return Err(Unanswerable::Unasked);
        };
        if !rule.holds(request) {
            return Err(Unanswerable::DoesNotApply);
        }
        let key = match rule.key_of(request, &core.secret, reported) {
            Ok(Some(key)) => key,
            without => return Err(Unanswerable::NoKey(without.err())),
        };
        let cost = rule.cost_of(request);
        // Read after the user's closures: one that takes a second must not look like a clock that was set back.
        let now = core.clock.now();
        match direct.as_ref().and_then(|direct| direct.ask(now, key, cost)) {
            Some(answer) => Ok(Answered { answer, cost }),
            None => Err(Unanswerable::Charge { now, key, cost }),
        }
    }

    /// Goes on from where the only rule gave no answer at once, or judges a request by all rules.
    #[inline(never)]
    pub(crate) fn judge_otherwise(
        &self,
        why: Unanswerable,
        request: &Req,
        intent: Intent,
        decision: &mut Decision,
    ) -> Judging {
        match (why, self.rules.enforcing(), self.core.bound.as_slice()) {
            (Unanswerable::DoesNotApply, ..) => {
                decision.decided_at(self.core.clock.now());
                Judging::Ready(Ok(None))
            }
            (Unanswerable::NoKey(refused), ..) => self.judge_without_key(refused, intent, decision),
            (Unanswerable::Charge { now, key, cost }, [(rule, _)], [bound]) => {
                self.judge_charge(now, bound.charge(key, *rule.made_with(), cost, intent), intent, decision)
            }
            _ => match &self.plain {
                Plain::Several(directs) if matches!(intent, Intent::Start | Intent::StartOrHold) => {
                    self.judge_plain(directs, request, intent, decision)
                }
                _ => self.judge_all(request, intent, decision),
            },
        }
    }

    /// Writes the answer of the only rule into a decision of which nothing was said yet.
    #[inline]
    pub(crate) fn decide_by(&self, answered: &Answered, decision: &mut Decision) {
        let ruling = Ruling::answered(0, answered.cost, &answered.answer.verdict());
        decision.answered_by(ruling, self.core.info.first());
        decision.decided_at(answered.answer.at());
    }

    /// What the only rule says.
    #[inline]
    pub(crate) fn told(&self, answered: &Answered) -> RuleVerdict<'_> {
        let (rule, limit) = self.core.info.first().map_or(("", Limit::per_second(0)), |info| (&*info.name, info.limit));
        RuleVerdict { rule, cost: answered.cost, limit, verdict: answered.answer.verdict() }
    }

    /// The decision by the only rule, which has let a request pass.
    #[inline]
    pub(crate) fn passed(&self, answered: &Answered) -> Decision {
        let ruling = Ruling::answered(0, answered.cost, &answered.answer.verdict());
        Decision::passed_by(Arc::clone(&self.core.info), ruling, answered.answer.at())
    }

    /// A request has no key for the only rule.
    #[cold]
    fn judge_without_key(
        &self,
        refused: Option<(StatusCode, &'static str)>,
        intent: Intent,
        decision: &mut Decision,
    ) -> Judging {
        if let Some(answer) = refused {
            return self.refuse_without_key(0, answer, intent, decision);
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
    fn judge_plain(&self, directs: &[Direct], request: &Req, intent: Intent, decision: &mut Decision) -> Judging {
        let core = &*self.core;
        let mut questions = Questions::new();
        for ((rule, reported), direct) in self.rules.enforcing().iter().zip(directs) {
            if !rule.holds(request) {
                continue;
            }
            match rule.key_of(request, &core.secret, reported) {
                Ok(Some(key)) => questions.push(direct, key, rule.cost_of(request)),
                Ok(None) => self.missing_key(direct.rule(), intent),
                Err(answer) => return self.refuse_without_key(direct.rule(), answer, intent, decision),
            }
        }
        // Read after the user's closures: one that takes a second must not look like a clock that was set back.
        let now = core.clock.now();
        if let Some(all_pass) = questions.ask(now) {
            self.decide_by_all(&questions, now, all_pass, decision);
            return Judging::Ready(Ok(None));
        }
        let mut charges = Charges::new();
        for question in questions.iter() {
            let (at, cost) = (question.rule(), question.cost);
            if let (Some(bound), Some(rule)) = (core.bound.get(at), self.rules.get(at)) {
                decision.ask(Ruling::asked(at, cost, None, true));
                charges.push(bound.charge(question.key, *rule.made_with(), cost, intent));
            }
        }
        self.judge_charges(now, &charges, intent, decision)
    }

    /// Writes the answers of several rules into a decision of which nothing was said yet.
    #[inline(never)]
    fn decide_by_all(&self, questions: &Questions<'_>, now: Nanos, all_pass: bool, decision: &mut Decision) {
        for (question, answer) in questions.answered() {
            let (rule, cost) = (question.rule(), question.cost);
            if all_pass {
                decision.answered_by(Ruling::answered(rule, cost, &question.took(&answer, now)), None);
            } else {
                let ruling = Ruling::answered(rule, cost, &question.looked(&answer));
                decision.answered_by(ruling, self.core.info.get(rule));
            }
        }
        decision.decided_at(now);
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
                    return self.refuse_without_key(at, (status, reason), intent, decision);
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
    fn refuse_without_key(
        &self,
        rule: usize,
        answer: (StatusCode, &'static str),
        intent: Intent,
        decision: &mut Decision,
    ) -> Judging {
        self.missing_key(rule, intent);
        *decision = Decision::without_key(Arc::clone(&self.core.info), rule, answer, self.core.clock.now());
        Judging::Ready(Ok(None))
    }
}
