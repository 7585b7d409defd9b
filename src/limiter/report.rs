//! What a limiter tells of its decisions: to the log, as metrics, and to the user's hook.

use std::{iter, sync::Arc};

use super::{
    Generation, Limiter,
    core::{Intent, Unanswered},
};
use crate::{
    decision::Decision,
    observe::RuleOutcome,
    time::{BoxFuture, Nanos},
};

impl<Req> Limiter<Req> {
    /// Tells the installed [recorder](crate::guide::observing) what the store holds, for a page of metrics that is
    /// about to be read. Without it that is told along with a decision, at most once in ten seconds. Does nothing
    /// without the feature `metrics`.
    pub fn publish_metrics(&self) {
        self.in_force().core.store.publish_metrics();
    }
}

impl<Req> Generation<Req> {
    /// The answer where the store failed: what the rules that applied say of that.
    pub(crate) fn without_store(&self, unanswered: &Unanswered) -> Decision {
        let core = &self.core;
        core.store_state.failed(&unanswered.error);
        let outcome = if unanswered.refuses { RuleOutcome::DegradedClosed } else { RuleOutcome::DegradedOpen };
        self.observed.decided(unanswered.rules.iter().map(|rule| (*rule, outcome)));
        let (info, now) = (Arc::clone(&core.info), core.clock.now());
        if unanswered.refuses { Decision::store_failed(info, now) } else { Decision::unguarded(info, now) }
    }

    /// As [`report`](Self::report), of a decision of which nobody else wants the rules' names but for `names_rules`.
    #[inline]
    pub(crate) fn name_and_report(&self, request: &Req, decision: &mut Decision, names_rules: bool) {
        let is_told = !decision.is_allowed() || self.on_decision.is_some() || self.rules.tries();
        if names_rules || is_told {
            decision.name(&self.core.info);
        }
        if is_told {
            self.report(request, decision);
        } else {
            self.count(decision);
        }
    }

    /// Reports a decision that is final.
    #[inline]
    pub(crate) fn report(&self, request: &Req, decision: &Decision) {
        self.count(decision);
        if !decision.is_allowed() {
            let (now, status) = (decision.at().get(), decision.status().as_u16());
            self.observed.refused(now, status, || decision.numbered_refusing());
        }
        if self.rules.tries() {
            self.report_tried(decision);
        }
        if let Some(hook) = &self.on_decision {
            hook(request, decision);
        }
    }

    /// Waits for the turn of a request that passes with a delay.
    pub(crate) fn turn(&self, decision: &Decision) -> BoxFuture<'static, ()> {
        let sleep = self.core.clock.sleep(decision.delay());
        match decision.held_by() {
            Some(rule) => self.observed.waits_until(sleep, rule),
            None => sleep,
        }
    }

    /// A request had no key for a rule.
    pub(super) fn missing_key(&self, rule: usize, intent: Intent) {
        if intent.counts() {
            self.observed.decided(iter::once((rule, RuleOutcome::MissingKey)));
        }
    }

    /// Whether nobody but the metrics wants to know of a request that passes.
    #[inline]
    pub(crate) fn is_unwatched(&self) -> bool {
        self.on_decision.is_none()
    }

    /// Counts a request that the only rule has let pass.
    #[inline]
    pub(crate) fn count_pass(&self, at: Nanos) {
        self.observed.decided(iter::once((0, RuleOutcome::Allowed)));
        self.time_and_publish(at);
    }

    #[inline]
    fn count(&self, decision: &Decision) {
        self.observed.decided(decision.outcomes(&self.core.info));
        self.time_and_publish(decision.at());
    }

    #[inline]
    fn time_and_publish(&self, at: Nanos) {
        if self.observed.times(at.get()) {
            self.observed.took(self.core.clock.now().saturating_sub(at).as_duration());
        }
        if self.observed.publishes(at.get()) {
            self.core.store.publish_metrics();
        }
    }
}
