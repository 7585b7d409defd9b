//! The shortest way to buckets there is: of a limiter whose store is a [`MemoryStore`](super::MemoryStore), and whose rules ask in
//! the usual way. It says and does what [`Store::decide`](crate::store::Store::decide) would.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Place,
    buckets::Buckets,
    line::{AnyBuckets, Table},
    sharded::ShardedTable,
    together::{Held, MOST},
};
use crate::{
    bucket::{AtOnce, Packed, Quick, TokenBucket},
    charge::Slot,
    decision::Verdict,
    key::KeyId,
    time::Nanos,
};

/// A rule's place, known to be one of token buckets.
#[derive(Clone)]
pub(crate) struct Direct {
    place: Arc<Place>,
    /// Whether the rule's limit is the one that its table was made under, as most are.
    is_first_limit: bool,
}

/// What a bucket answered at once.
pub(crate) struct Answer {
    at_once: AtOnce<<TokenBucket as Packed>::Words>,
    quick: Quick,
    now: Nanos,
}

impl Direct {
    /// The place at `slot`, where it is such a one.
    pub(crate) fn at(slot: &Slot) -> Option<Self> {
        let place = slot.shared_as::<Place>()?;
        let AnyBuckets::Token(table) = &place.table.buckets else { return None };
        let is_first_limit = table.terms.limit == place.limit;
        Some(Self { place, is_first_limit })
    }

    /// Charges `cost` permits to the bucket of `key` under the rule's own limit, if it passes. `None`, and nothing was done, where
    /// that takes another way.
    ///
    /// **Locking**: the key's shard.
    #[inline]
    pub(crate) fn ask(&self, now: Nanos, key: KeyId, cost: u64) -> Option<Answer> {
        let AnyBuckets::Token(table) = &self.place.table.buckets else { return None };
        let hash = table.base.hash(key);
        let mut buckets = table.lock(hash);
        let quick = self.quick(table, &buckets, now)?;
        let slot = buckets.dense.find_mut(key, hash)?;
        let at_once = table.base.bucket.at_once(slot.words, &quick, now, cost)?;
        if let Some(words) = at_once.taken {
            slot.words = words;
            buckets.seen = now;
        }
        // What is left are sums.
        drop(buckets);
        Some(Answer { at_once, quick, now })
    }

    #[inline]
    fn quick(&self, table: &ShardedTable<TokenBucket>, buckets: &Buckets<TokenBucket>, now: Nanos) -> Option<Quick> {
        let terms = buckets.terms_under(table, self.is_first_limit, &self.place.limit)?;
        terms.quick.filter(|_| now >= buckets.latest())
    }

    #[inline]
    fn hold(&self, now: Nanos, key: KeyId, cost: u64) -> Option<Held<'_>> {
        let AnyBuckets::Token(table) = &self.place.table.buckets else { return None };
        let hash = table.base.hash(key);
        let buckets = table.lock(hash);
        let quick = self.quick(table, &buckets, now)?;
        Held::look(buckets, (key, hash), quick, now, cost)
    }
}

/// What one of several rules asks.
pub(crate) struct Question<'a> {
    /// The rule's number.
    pub(crate) rule: usize,
    pub(crate) direct: Option<&'a Direct>,
    pub(crate) key: KeyId,
    pub(crate) cost: u64,
}

/// Charges all of them, under the rules' own limits, if all pass; calls `answered` with each and its answer, in their order.
/// Returns false, and nothing was done, where that takes another way.
///
/// **Locking**: each key's shard, in the order of their tables, all held until all are charged.
#[inline]
pub(crate) fn ask_all(
    now: Nanos,
    questions: &[Question<'_>],
    mut answered: impl FnMut(&Question<'_>, &Verdict),
) -> bool {
    if questions.len() > MOST {
        return false;
    }
    let mut all_held = AllHeld::new();
    let Some(passed) = charge_all(now, questions, &mut all_held) else { return false };
    for (at, question) in questions.iter().enumerate() {
        if let Some((_, held)) = all_held.iter().find(|(of, _)| *of == at) {
            answered(question, &held.judged(now, passed).verdict);
        }
    }
    true
}

type AllHeld<'a> = SmallVec<[(usize, Held<'a>); MOST]>;

#[inline]
fn charge_all<'a>(now: Nanos, questions: &[Question<'a>], all_held: &mut AllHeld<'a>) -> Option<bool> {
    let mut order = SmallVec::<[(usize, &Table); MOST]>::new();
    for (at, question) in questions.iter().enumerate() {
        order.push((at, &*question.direct?.place.table));
    }
    let ascends = |order: &[(usize, &Table)]| {
        order.is_sorted_by(|(_, one), (_, next)| one.order() < next.order() && !one.is_kin_of(next))
    };
    if !ascends(&order) {
        order.sort_unstable_by_key(|(_, table)| table.order());
        if !ascends(&order) {
            return None;
        }
    }
    let mut passed = true;
    for (at, _) in &order {
        let Question { direct, key, cost, .. } = questions.get(*at)?;
        // Where one cannot, what is locked by now is let go of.
        let held = (*direct)?.hold(now, *key, *cost)?;
        passed &= held.passes();
        all_held.push((*at, held));
    }
    if passed {
        all_held.iter_mut().for_each(|(_, held)| held.take(now));
    }
    // From the last lock to the first: most wait for the last.
    all_held.iter_mut().rev().for_each(|(_, held)| held.let_go());
    Some(passed)
}

impl Answer {
    #[inline]
    pub(crate) fn passes(&self) -> bool {
        self.at_once.taken.is_some()
    }

    /// When it was asked.
    #[inline]
    pub(crate) fn at(&self) -> Nanos {
        self.now
    }

    /// The bucket's answer, after the charge where it was taken.
    #[inline]
    pub(crate) fn verdict(&self) -> Verdict {
        match self.passes() {
            true => self.at_once.took(&self.quick, self.now).0,
            false => self.at_once.looked(&self.quick),
        }
    }
}
