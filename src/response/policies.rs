//! `RateLimit-Policy` as it is on most responses of a layer: of every rule, each with the limit it was made with.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderValue;

use super::{
    headers::{begin_limit, end_limit, list, render_policies},
    told::Lists,
};
use crate::decision::{Decision, RuleInfo, RuleVerdict};

/// What was written for the first such response since the rules came in force.
#[derive(Debug, Clone, Default)]
pub(super) struct Policies(Arc<Places>);

#[derive(Debug, Default)]
struct Places {
    /// Of the first rules, which most layers have for good: found without a count of who is looking.
    first: OnceLock<Rendered>,
    /// Of those that a reload has put in force.
    later: ArcSwapOption<Rendered>,
}

#[derive(Debug)]
struct Rendered {
    /// The rules that it is of: a reload puts others in force.
    rules: Arc<[RuleInfo]>,
    policies: HeaderValue,
    /// How the list of limits begins, where it is of one rule.
    limit_begins: Bytes,
}

impl Policies {
    pub(super) fn of(&self, decision: &Decision) -> Option<HeaderValue> {
        let Some(rules) = decision.names().filter(|_| decision.is_by_every_rule_as_made()) else {
            return render_policies(decision);
        };
        let known = self.find(|rendered| Arc::ptr_eq(&rendered.rules, rules).then(|| rendered.policies.clone()));
        if known.is_some() {
            return known;
        }
        // Both texts are kept, so each is in memory of its own: a block is written again when nobody has a text in it.
        let mut limit_begins = BytesMut::new();
        if let Some(rule) = rules.first() {
            begin_limit(&mut limit_begins, &rule.name);
        }
        let rendered = Rendered {
            rules: Arc::clone(rules),
            policies: HeaderValue::from_bytes(render_policies(decision)?.as_bytes()).ok()?,
            limit_begins: limit_begins.freeze(),
        };
        let policies = rendered.policies.clone();
        if let Err(rendered) = self.0.first.set(rendered) {
            self.0.later.store(Some(Arc::new(rendered)));
        }
        Some(policies)
    }

    /// What is told of the only rule there is, which lets a request pass; `None` until the policies were written once.
    #[inline(never)]
    pub(super) fn told_of_pass(&self, rule: &RuleVerdict<'_>) -> Option<Lists> {
        self.find(|rendered| rendered.told_of_pass(rule))
    }

    #[inline]
    fn find<T>(&self, look: impl Fn(&Rendered) -> Option<T>) -> Option<T> {
        let first = self.0.first.get().and_then(&look);
        first.or_else(|| self.0.later.load().as_deref().and_then(look))
    }
}

impl Rendered {
    #[inline]
    fn told_of_pass(&self, rule: &RuleVerdict<'_>) -> Option<Lists> {
        let [info] = &*self.rules else { return None };
        // What is written depends on nothing else.
        if !std::ptr::eq(&*info.name, rule.rule) || info.limit != rule.limit {
            return None;
        }
        let limits = list(|limits| {
            limits.put_slice(&self.limit_begins);
            end_limit(limits, &rule.verdict);
        });
        Some(Lists { policies: Some(self.policies.clone()), limits })
    }
}
