//! What an entry says together with the policy it is an exception to.

use std::{collections::BTreeMap, time::Duration};

use super::{
    amount::Amount,
    data::{Algorithm, Allowance, Entry, File, Origin},
    duration::Span,
    read::{Count, step},
};
use crate::limit::Limit;

/// One entry of a policy: its own, or an exception.
pub(super) struct Alternative<'f> {
    pub(super) own: &'f Entry,
    pub(super) path: String,
    /// Whose exception it is, and that one's path.
    pub(super) policy: Option<(&'f Entry, &'f str)>,
}

/// A policy's entries. Its own is the first, where it says a limit.
pub(super) struct Alternatives<'f> {
    pub(super) policy: &'f Entry,
    pub(super) path: String,
    pub(super) entries: &'f [Entry],
}

impl<'f> Alternatives<'f> {
    pub(super) fn of(file: &'f File) -> impl Iterator<Item = Self> {
        file.policies.iter().flatten().enumerate().map(|(at, policy)| Self {
            policy: &policy.own,
            path: format!("policies[{at}]"),
            entries: &policy.entries,
        })
    }

    pub(super) fn each(&self) -> Vec<Alternative<'_>> {
        let mut all = Vec::with_capacity(self.entries.len() + 1);
        if says_amount(self.policy) || self.entries.is_empty() {
            all.push(Alternative { own: self.policy, path: self.path.clone(), policy: None });
        }
        all.extend(self.entries.iter().enumerate().map(|(at, own)| Alternative {
            own,
            path: format!("{}.entries[{at}]", self.path),
            policy: Some((self.policy, self.path.as_str())),
        }));
        all
    }
}

/// Whether it says how much. Who does, says all of it: nothing of that is taken from the policy.
pub(super) fn says_amount(entry: &Entry) -> bool {
    entry.limit.is_some()
        || entry.period.is_some()
        || entry.burst.is_some()
        || entry.in_flight.is_some()
        || entry.tier.is_some()
        || entry.tiers.is_some()
        || entry.customer.is_some()
        || entry.customers.is_some()
}

/// Whether it says anything of how requests are answered. Who does, says all of it.
fn says_outcome(entry: &Entry) -> bool {
    entry.count_only.is_some() || entry.give_back.is_some() || entry.give_back_unanswered.is_some()
}

impl<'f> Alternative<'f> {
    /// What it says in a field, or else its policy, and the path of who says it.
    pub(super) fn said<T>(&self, name: &str, field: impl Fn(&'f Entry) -> &'f Option<T>) -> Option<(&'f T, String)> {
        let own = field(self.own).as_ref().map(|value| (value, format!("{}{}", self.path, step(name, false))));
        own.or_else(|| {
            let (policy, path) = self.policy?;
            Some((field(policy).as_ref()?, format!("{path}{}", step(name, false))))
        })
    }

    pub(super) fn get<T>(&self, field: impl Fn(&'f Entry) -> &'f Option<T>) -> Option<&'f T> {
        self.said("", field).map(|(value, _)| value)
    }

    /// Who says how much, and the path.
    pub(super) fn amount(&self) -> (&'f Entry, &str) {
        match self.policy {
            Some((policy, path)) if !says_amount(self.own) => (policy, path),
            _ => (self.own, &self.path),
        }
    }

    /// Who says with which answers it counts, and the path.
    pub(super) fn outcomes(&self) -> (&'f Entry, &str) {
        match self.policy {
            Some((policy, path)) if !says_outcome(self.own) => (policy, path),
            _ => (self.own, &self.path),
        }
    }

    /// How it counts.
    pub(super) fn algorithm(&self) -> Algorithm {
        self.get(|entry| &entry.algorithm).copied().unwrap_or(Algorithm::TokenBucket)
    }

    pub(super) fn quotas(&self) -> Quotas<'f> {
        let (entry, _) = self.amount();
        let own = entry.limit.as_ref().and_then(|limit| Quota::of(limit, entry.period, entry.burst));
        Quotas {
            own: own.unwrap_or(Quota::Unlimited),
            tier: entry.tier.as_ref().map(|origin| (origin, quotas(entry.tiers.as_ref()))),
            customer: entry.customer.as_ref().map(|origin| (origin, quotas(entry.customers.as_ref()))),
        }
    }
}

fn quotas(allowances: Option<&BTreeMap<String, Allowance>>) -> BTreeMap<String, Quota> {
    let quota = |(name, allowance): (&String, &Allowance)| Some((name.clone(), Quota::allowed(allowance)?));
    allowances.into_iter().flatten().filter_map(quota).collect()
}

/// How much somebody may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Quota {
    Limit(Limit),
    Unlimited,
    Blocked,
}

impl Quota {
    /// `None` where a period is missing.
    pub(super) fn of(limit: &Amount, period: Option<Span>, burst: Option<Count>) -> Option<Self> {
        let rate = |permits, period: Duration| {
            let limit = Limit::new(permits, period);
            Self::Limit(burst.map_or(limit, |burst| limit.burst(burst.0)))
        };
        Some(match limit {
            Amount::Unlimited => Self::Unlimited,
            Amount::Blocked => Self::Blocked,
            Amount::Rate(permits, period) => rate(*permits, period.as_duration()),
            Amount::Permits(permits) => rate(*permits, period?.as_duration()),
        })
    }

    fn allowed(allowance: &Allowance) -> Option<Self> {
        match allowance {
            Allowance::Short(limit) => Self::of(limit, None, None),
            Allowance::Table(table) => Self::of(table.limit.as_ref()?, table.period, table.burst),
        }
    }
}

/// An entry's own quota, that of its tiers, and that of its customers.
pub(super) struct Quotas<'f> {
    pub(super) own: Quota,
    pub(super) tier: Option<(&'f Origin, BTreeMap<String, Quota>)>,
    pub(super) customer: Option<(&'f Origin, BTreeMap<String, Quota>)>,
}

impl Quotas<'_> {
    pub(super) fn each(&self) -> impl Iterator<Item = Quota> {
        let others = [&self.tier, &self.customer].into_iter().flatten().flat_map(|(_, quotas)| quotas.values());
        std::iter::once(self.own).chain(others.copied())
    }
}
