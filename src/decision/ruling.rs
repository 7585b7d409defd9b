//! One rule's part of a decision, packed: decisions are handed around, and a verdict with all that it may say is large.

use std::time::Duration;

use super::{Outcome, RuleInfo, Source, Verdict, Wait};
use crate::{limit::Limit, time::Nanos};

/// What a rule said of a request, and what it was asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ruling {
    rule: u32,
    kind: Kind,
    source: Source,
    flags: u8,
    pub(crate) cost: u64,
    /// The limit as clients are told it.
    told: u64,
    pub(crate) remaining: u64,
    /// Of a delay, or of a refusal that says how long.
    wait: Nanos,
    reset: Nanos,
    window: Nanos,
    other: Option<OtherLimit>,
}

const HAS_RESET: u8 = 1;
const HAS_WINDOW: u8 = 2;
const UNTRACKED: u8 = 4;
/// The rule could be asked at all.
const USABLE: u8 = 8;

/// An [`Outcome`] without its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Pass,
    Delay,
    RefuseUnknown,
    RefuseFor,
    RefuseNever,
}

/// A limit for this request that is not the one the rule was made with.
#[derive(Debug, Clone, Copy)]
struct OtherLimit {
    permits: u64,
    period: Nanos,
    burst: Option<u64>,
}

impl Ruling {
    /// A rule that was asked for `cost` permits, under another limit than it was made with where there is one, and has
    /// not answered yet. One that cannot run its limit refuses for good.
    #[inline]
    pub(crate) fn asked(rule: usize, cost: u64, other: Option<&Limit>, usable: bool) -> Self {
        Self {
            rule: u32::try_from(rule).unwrap_or(u32::MAX),
            kind: Kind::RefuseNever,
            source: Source::Store,
            flags: if usable { USABLE } else { 0 },
            cost,
            told: 0,
            remaining: 0,
            wait: Nanos::ZERO,
            reset: Nanos::ZERO,
            window: Nanos::ZERO,
            other: other.map(OtherLimit::new),
        }
    }

    /// A rule that was asked under the limit it was made with, and its answer.
    #[inline]
    pub(crate) fn answered(rule: usize, cost: u64, verdict: &Verdict) -> Self {
        let mut ruling = Self::asked(rule, cost, None, true);
        ruling.answer(verdict);
        ruling
    }

    /// A rule that refuses because its key is not there, which nobody is asked about.
    pub(crate) fn without_key(rule: usize) -> Self {
        Self { kind: Kind::RefuseUnknown, source: Source::Unasked, ..Self::asked(rule, 0, None, false) }
    }

    /// Takes the rule's answer.
    #[inline(always)]
    pub(crate) fn answer(&mut self, verdict: &Verdict) {
        (self.kind, self.wait) = match verdict.outcome {
            Outcome::Pass => (Kind::Pass, Nanos::ZERO),
            Outcome::Delay(wait) => (Kind::Delay, wait),
            Outcome::Refuse(Wait::For(wait)) => (Kind::RefuseFor, wait),
            Outcome::Refuse(Wait::Unknown) => (Kind::RefuseUnknown, Nanos::ZERO),
            Outcome::Refuse(Wait::Never) => (Kind::RefuseNever, Nanos::ZERO),
        };
        (self.told, self.remaining) = (verdict.limit, verdict.remaining);
        self.reset = verdict.reset.unwrap_or(Nanos::ZERO);
        self.window = verdict.effective_window.unwrap_or(Nanos::ZERO);
        let flag = |is: bool, flag: u8| u8::from(is) * flag;
        self.flags = USABLE
            | flag(verdict.reset.is_some(), HAS_RESET)
            | flag(verdict.effective_window.is_some(), HAS_WINDOW)
            | flag(verdict.untracked, UNTRACKED);
        self.source = verdict.source;
    }

    #[inline]
    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The rule's number among the limiter's.
    #[inline]
    pub(crate) fn rule(&self) -> usize {
        usize::try_from(self.rule).unwrap_or(usize::MAX)
    }

    #[inline]
    pub(crate) fn is_usable(&self) -> bool {
        self.has(USABLE)
    }

    #[inline]
    pub(crate) fn source(&self) -> Source {
        self.source
    }

    #[inline]
    pub(crate) fn untracked(&self) -> bool {
        self.has(UNTRACKED)
    }

    #[inline]
    pub(crate) fn passes(&self) -> bool {
        self.kind <= Kind::Delay
    }

    /// How long the request has to be held for it, if it passes.
    #[inline]
    pub(crate) fn delay(&self) -> Nanos {
        if self.kind == Kind::Delay { self.wait } else { Nanos::ZERO }
    }

    /// The wait that it refuses with, if it refuses.
    #[inline]
    pub(crate) fn refuses_for(&self) -> Option<Wait> {
        match self.kind {
            Kind::Pass | Kind::Delay => None,
            Kind::RefuseUnknown => Some(Wait::Unknown),
            Kind::RefuseFor => Some(Wait::For(self.wait)),
            Kind::RefuseNever => Some(Wait::Never),
        }
    }

    /// Whether it was asked under the limit that it was made with.
    #[inline]
    pub(crate) fn is_as_made(&self) -> bool {
        self.other.is_none()
    }

    /// The limit in force.
    pub(crate) fn limit(&self, info: &RuleInfo) -> Limit {
        self.other.map_or(info.limit, |other| other.limit())
    }

    /// What the rule said.
    #[inline]
    pub(crate) fn verdict(&self) -> Verdict {
        let outcome = match (self.refuses_for(), self.kind) {
            (Some(wait), _) => Outcome::Refuse(wait),
            (None, Kind::Delay) => Outcome::Delay(self.wait),
            (None, _) => Outcome::Pass,
        };
        let mut verdict = Verdict::new(outcome, self.told, self.remaining, self.has(HAS_RESET).then_some(self.reset));
        verdict.effective_window = self.has(HAS_WINDOW).then_some(self.window);
        verdict.untracked = self.untracked();
        verdict.source = self.source;
        verdict
    }

    /// Whether clients are told of this rule rather than of `other`.
    pub(crate) fn is_tighter_than(&self, other: &Self) -> bool {
        // Passes and delays are one rank; among refusals the longest wait goes before an unknown one, and never before
        // all.
        let rank = |ruling: &Self| match ruling.kind {
            Kind::Pass | Kind::Delay => (Kind::Pass, Nanos::ZERO),
            kind => (kind, ruling.wait),
        };
        let (ours, theirs) = (rank(self), rank(other));
        if ours != theirs || ours.0 > Kind::Pass {
            return ours > theirs;
        }
        // remaining / cost < other.remaining / other.cost, without dividing
        let weigh = |ruling: &Self, by: &Self| u128::from(ruling.remaining) * u128::from(by.cost.max(1));
        weigh(self, other) < weigh(other, self)
    }
}

impl OtherLimit {
    #[cold]
    fn new(limit: &Limit) -> Self {
        Self { permits: limit.permits(), period: Nanos::from(limit.period()), burst: limit.explicit_burst() }
    }

    fn limit(&self) -> Limit {
        let limit = Limit::new(self.permits, Duration::from(self.period));
        self.burst.map_or(limit, |burst| limit.burst(burst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_the_rule_said() {
        let outcomes = [
            Outcome::Pass,
            Outcome::Delay(Nanos::new(7)),
            Outcome::Refuse(Wait::For(Nanos::new(9))),
            Outcome::Refuse(Wait::Unknown),
            Outcome::Refuse(Wait::Never),
        ];
        let made_with = Limit::per_second(5);
        let info = RuleInfo {
            name: "one".into(),
            overload: false,
            limit: made_with,
            mode: crate::Mode::Enforce,
            live: None,
            unknown_wait_secs: 1,
        };
        for (outcome, source) in outcomes.into_iter().flat_map(|outcome| {
            [Source::Store, Source::Remembered, Source::Unasked, Source::Fallback, Source::Policy].map(|s| (outcome, s))
        }) {
            for (reset, window) in [(None, None), (Some(1), None), (None, Some(2)), (Some(3), Some(0))] {
                for limit in [made_with, Limit::new(7, Duration::from_nanos(21)), Limit::per_day(u64::MAX).burst(0)] {
                    let mut verdict = Verdict::new(outcome, 5, 4, reset.map(Nanos::new)).from_source(source);
                    verdict.effective_window = window.map(Nanos::new);
                    verdict.untracked = window.is_none();
                    let other = (limit != made_with).then_some(&limit);
                    let mut ruling = Ruling::asked(3, 2, other, true);
                    ruling.answer(&verdict);
                    assert_eq!(ruling.verdict(), verdict);
                    assert_eq!((ruling.rule(), ruling.cost, ruling.limit(&info)), (3, 2, limit));
                    assert_eq!(ruling.is_as_made(), limit == made_with);
                }
            }
        }
    }

    #[test]
    fn a_decision_of_up_to_three_rules_is_small_enough_to_hand_around() {
        assert!(size_of::<crate::decision::Decision>() <= 360, "{}", size_of::<crate::decision::Decision>());
    }
}
