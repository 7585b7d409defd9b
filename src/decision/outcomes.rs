//! What is counted of a decision.

use super::{Decision, Difference, Refusal, RuleInfo, Ruling, Source, refusal_by};
use crate::{observe::RuleOutcome, time::Nanos};

impl Decision {
    /// What became of the request under each rule that was asked, by the rule's number.
    #[inline]
    pub(crate) fn outcomes(&self, rules: &[RuleInfo]) -> impl Iterator<Item = (usize, RuleOutcome)> {
        self.rulings.iter().map(|ruling| (ruling.rule(), self.outcome(ruling, rules)))
    }

    #[inline]
    fn outcome(&self, ruling: &Ruling, rules: &[RuleInfo]) -> RuleOutcome {
        if !ruling.passes() {
            let overload = rules.get(ruling.rule()).is_some_and(|rule| rule.overload);
            return match (ruling.source(), refusal_by(ruling, overload)) {
                (Source::Policy, _) => RuleOutcome::DegradedClosed,
                (Source::Fallback, _) => RuleOutcome::FallbackRefused,
                (_, Refusal::Overload) => RuleOutcome::Overload,
                _ => RuleOutcome::Refused,
            };
        }
        self.passed(ruling.source())
    }

    /// What became of a request that a rule would let pass.
    #[inline]
    fn passed(&self, source: Source) -> RuleOutcome {
        match source {
            _ if self.refusal.is_some() => RuleOutcome::RefusedByAnother,
            Source::Policy => RuleOutcome::DegradedOpen,
            Source::Fallback => RuleOutcome::Fallback,
            Source::Store | Source::Remembered | Source::Unasked => RuleOutcome::Allowed,
        }
    }

    /// The same of the rules that do not enforce.
    pub(crate) fn shadow_outcomes(&self) -> impl Iterator<Item = (usize, RuleOutcome)> {
        self.numbered_shadows().map(|(rule, shadow)| {
            let outcome = match shadow.difference() {
                Some(Difference::WouldRefuse) => RuleOutcome::WouldRefuse,
                _ => self.passed(shadow.verdict.source),
            };
            (rule, outcome)
        })
    }

    /// The rules that refused by a count, and the one that did for want of a key, by their numbers.
    pub(crate) fn numbered_refusing(&self) -> impl Iterator<Item = (usize, &str)> {
        let rules = self.violated_rules().chain(self.basis.without_key());
        rules.map(|rule| (rule, self.infos().get(rule).map_or("", |info| &*info.name)))
    }

    /// The number of the rule for which the request is held longest, if it is held.
    pub(crate) fn held_by(&self) -> Option<usize> {
        let holds = |ruling: &&Ruling| self.delay > Nanos::ZERO && ruling.delay() == self.delay;
        self.rulings.iter().find(holds).map(Ruling::rule)
    }
}
