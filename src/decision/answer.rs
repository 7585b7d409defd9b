//! How a decision comes about: rules ask, and answer.

use super::{Basis, Decision, Outcome, Refusal, RuleInfo, Ruling, Source, Verdict, Wait};
use crate::{few::Few, time::Nanos};

impl Decision {
    /// Adds a rule that applies, before it has answered.
    #[inline]
    pub(crate) fn ask(&mut self, ruling: Ruling) {
        self.rulings.push(ruling);
    }

    /// The rules that apply.
    #[inline]
    pub(crate) fn asked(&self) -> &Few<Ruling> {
        &self.rulings
    }

    /// Takes the answers of `rules`, in the order in which they were asked, of those that could be. Returns whether
    /// there was one for each.
    #[inline]
    pub(crate) fn answer<'a>(&mut self, rules: &[RuleInfo], verdicts: impl IntoIterator<Item = &'a Verdict>) -> bool {
        let mut verdicts = verdicts.into_iter();
        for ruling in self.rulings.iter_mut() {
            if ruling.is_usable() {
                let Some(verdict) = verdicts.next() else { return false };
                ruling.answer(verdict);
            }
            if ruling.source().is_degraded() {
                self.basis = Basis::WithoutStore;
            }
            if ruling.passes() {
                self.delay = self.delay.max(ruling.delay());
                continue;
            }
            let overload = rules.get(ruling.rule()).is_some_and(|rule| rule.overload);
            let refusal = refusal_by(ruling, overload);
            if self.refusal.is_none_or(|before| weight(refusal) > weight(before)) {
                self.refusal = Some(refusal);
            }
        }
        self.tried.is_none() || self.answer_tried(verdicts)
    }

    /// As [`ask`](Self::ask) and [`answer`](Self::answer), of one rule.
    #[inline(always)]
    pub(crate) fn answered_by(&mut self, ruling: Ruling, rule: Option<&RuleInfo>) {
        if ruling.source().is_degraded() {
            self.basis = Basis::WithoutStore;
        }
        if ruling.passes() {
            self.delay = self.delay.max(ruling.delay());
        } else {
            self.refuse(refusal_by(&ruling, rule.is_some_and(|rule| rule.overload)));
        }
        self.rulings.push(ruling);
    }

    /// Adds a reason to refuse.
    #[inline]
    fn refuse(&mut self, refusal: Refusal) {
        if self.refusal.is_none_or(|before| weight(refusal) > weight(before)) {
            self.refusal = Some(refusal);
        }
    }

    /// Says that all rules have spoken, of the instant `at`.
    #[inline]
    pub(crate) fn decided_at(&mut self, at: Nanos) {
        self.at = at;
        if self.refusal.is_some() {
            self.delay = Nanos::ZERO;
        }
    }

    /// Refuses a request that may not start, since others wait for a place of this rule before it.
    pub(crate) fn refuse_for_place(&mut self, rule: usize, rules: &[RuleInfo]) {
        self.delay = Nanos::ZERO;
        let Some(ruling) = self.rulings.iter_mut().find(|ruling| ruling.rule() == rule) else {
            self.refusal.get_or_insert(Refusal::Limited);
            return;
        };
        // Where nobody counts, a failure policy has said what happens.
        if ruling.passes() && ruling.source().has_numbers() {
            let outcome = Outcome::Refuse(Wait::Unknown);
            ruling.answer(&Verdict { outcome, remaining: 0, ..ruling.verdict() });
            let refusal = refusal_by(ruling, rules.get(rule).is_some_and(|rule| rule.overload));
            self.refuse(refusal);
        }
    }
}

/// Why a rule that refused did.
pub(super) fn refusal_by(ruling: &Ruling, overload: bool) -> Refusal {
    match ruling.source() {
        Source::Policy => Refusal::StoreFailed,
        // A share of the limit cannot hold what the whole can: not this client's doing.
        Source::Fallback if ruling.refuses_for() == Some(Wait::Unknown) => Refusal::Overload,
        _ if overload || ruling.untracked() => Refusal::Overload,
        _ => Refusal::Limited,
    }
}

/// Which reason is told where rules refuse for several: a store that failed before all others, since nothing is known
/// then; and 429 as soon as one of the refusing rules holds against this client.
fn weight(refusal: Refusal) -> u8 {
    match refusal {
        Refusal::StoreFailed => 2,
        Refusal::Limited => 1,
        Refusal::Overload | Refusal::MissingKey { .. } => 0,
    }
}
