//! The shortest way to buckets there is: of a limiter whose store is a [`MemoryStore`](super::MemoryStore), and whose
//! rules ask in the usual way. It says and does what [`Store::decide`](crate::store::Store::decide) would.

use std::{array, cell::Cell, sync::Arc};

use super::{Place, line::AnyBuckets, together::MOST};
use crate::{
    bucket::{AtOnce, Packed, Quick, TokenBucket},
    charge::Slot,
    decision::Verdict,
    key::KeyId,
    limit::Limit,
    time::Nanos,
};

type Words = <TokenBucket as Packed>::Words;

/// A rule's place, known to be one of token buckets.
#[derive(Clone)]
pub(crate) struct Direct {
    /// The rule's number.
    rule: u32,
    place: Arc<Place>,
    /// When its table is locked: after those of lower numbers.
    turn: u64,
    /// What its limit is judged by.
    quick: Quick,
    /// Whether the rule's limit is the one that its table was made under, as most are.
    is_first_limit: bool,
}

/// What a bucket answered at once.
pub(crate) struct Answer {
    at_once: AtOnce<()>,
    quick: Quick,
    now: Nanos,
}

impl Direct {
    /// The place of a rule at `slot`, where it is such a one, under a limit that can be judged at once.
    pub(crate) fn at(slot: &Slot, rule: usize) -> Option<Self> {
        let place = slot.shared_as::<Place>()?;
        let AnyBuckets::Token(table) = &place.table.buckets else { return None };
        let is_first_limit = table.terms.limit == place.limit;
        let (quick, turn) = (table.base.bucket.quick(&place.limit)?, place.table.turn());
        let rule = u32::try_from(rule).unwrap_or(u32::MAX);
        Some(Self { rule, place, turn, quick, is_first_limit })
    }

    /// Whether each of them is of another table. A second lock on the same one could wait for the first for ever.
    pub(crate) fn are_apart(directs: &[Self]) -> bool {
        directs.iter().enumerate().all(|(at, one)| directs.iter().skip(at + 1).all(|other| one.turn != other.turn))
    }

    /// The rule's number.
    #[inline]
    pub(crate) fn rule(&self) -> usize {
        usize::try_from(self.rule).unwrap_or(usize::MAX)
    }

    /// Charges `cost` permits to the bucket of `key` under the rule's own limit, if it passes. `None`, and nothing was
    /// done, where that takes another way.
    ///
    /// **Locking**: the key's shard.
    #[inline]
    pub(crate) fn ask(&self, now: Nanos, key: KeyId, cost: u64) -> Option<Answer> {
        let AnyBuckets::Token(table) = &self.place.table.buckets else { return None };
        let hash = table.base.hash(key);
        let mut buckets = table.lock(hash);
        if !buckets.may_judge(table, self.limit(), now) {
            return None;
        }
        let slot = buckets.dense.find_mut(key, hash)?;
        let at_once = table.base.bucket.at_once(slot.words, &self.quick, now, cost)?;
        if let Some(words) = at_once.taken {
            slot.words = words;
            buckets.seen = now;
        }
        // What is left are sums.
        drop(buckets);
        Some(Answer { at_once: at_once.without_words(), quick: self.quick, now })
    }

    /// The limit to judge under, and whether the table was made under it.
    #[inline]
    fn limit(&self) -> (&Limit, bool) {
        (&self.place.limit, self.is_first_limit)
    }
}

/// What one of several rules asks.
pub(crate) struct Question<'a> {
    direct: &'a Direct,
    pub(crate) key: KeyId,
    pub(crate) cost: u64,
    /// What came of it.
    answer: Cell<Option<AtOnce<()>>>,
}

/// What the rules that apply to a request ask, in their order.
pub(crate) struct Questions<'a> {
    few: [Option<Question<'a>>; MOST],
    len: usize,
    /// Which of them are locked one after the other, and the turn of the last.
    order: [usize; MOST],
    last_turn: u64,
    more: Vec<Question<'a>>,
}

impl<'a> Questions<'a> {
    #[inline]
    pub(crate) fn new() -> Self {
        let order = array::from_fn(|at| at);
        Self { few: [const { None }; MOST], len: 0, order, last_turn: 0, more: Vec::new() }
    }

    #[inline]
    pub(crate) fn push(&mut self, direct: &'a Direct, key: KeyId, cost: u64) {
        let question = Question { direct, key, cost, answer: Cell::new(None) };
        let Some(place) = self.few.get_mut(self.len) else { return self.more.push(question) };
        *place = Some(question);
        self.len += 1;
        // Those of rules with keys mostly come in their order, and then the one without.
        if direct.turn < self.last_turn {
            self.put_in_order();
        } else {
            self.last_turn = direct.turn;
        }
    }

    /// Puts what came last where its turn is.
    #[inline(never)]
    fn put_in_order(&mut self) {
        let turn = |at: usize| Some(self.few.get(at)?.as_ref()?.direct.turn);
        if let Some(order) = self.order.get_mut(..self.len) {
            order.sort_unstable_by_key(|at| turn(*at));
        }
    }

    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Question<'a>> {
        self.few.iter().flatten().chain(&self.more)
    }

    /// The answers, where all were [asked](Self::ask).
    #[inline]
    pub(crate) fn answered(&self) -> impl Iterator<Item = (&Question<'a>, AtOnce<()>)> {
        self.few.iter().flatten().filter_map(|question| Some((question, question.answer.get()?)))
    }

    /// Charges all of them, under the rules' own limits, if all pass, and returns whether they did. `None`, and nothing
    /// was done, where that takes another way.
    ///
    /// **Locking**: each key's shard, in the order of their tables, each held until it is known whether all pass and it
    /// is charged.
    pub(crate) fn ask(&self, now: Nanos) -> Option<bool> {
        let order = self.order.get(..self.len).filter(|_| self.more.is_empty())?;
        // Where one of the keys is new, a refusal by another rule costs no more for it: most floods are of such.
        self.charge::<false>(now, order, true).or_else(|| self.charge::<true>(now, order, true))
    }

    /// Charges the buckets of those in `order`, if they pass and those before did (`passing`). With `NEW`, keys may be
    /// new ones, and there is an answer only where not all pass.
    fn charge<const NEW: bool>(&self, now: Nanos, order: &[usize], passing: bool) -> Option<bool> {
        let [at, later @ ..] = order else { return Some(passing) };
        let Question { direct, key, cost, answer } = self.few.get(*at)?.as_ref()?;
        let AnyBuckets::Token(table) = &direct.place.table.buckets else { return None };
        let hash = table.base.hash(*key);
        let mut buckets = table.lock(hash);
        if !buckets.may_judge(table, direct.limit(), now) {
            return None;
        }
        let found = buckets.dense.find(*key, hash);
        if found.is_none() && !(NEW && table.may_look_at_new(&buckets, now, *key, hash)) {
            return None;
        }
        let slot = found.and_then(|at| buckets.dense.get_mut(at));
        let words = slot.as_ref().map_or(Words::default(), |slot| slot.words);
        let at_once = table.base.bucket.at_once(words, &direct.quick, now, *cost)?;
        let passing = passing && at_once.taken.is_some();
        let all_pass = match later {
            [] if NEW && passing => return None,
            [] => passing,
            later => self.charge::<NEW>(now, later, passing)?,
        };
        if let (Some(words), Some(slot)) = (at_once.taken.filter(|_| all_pass), slot) {
            slot.words = words;
            buckets.seen = now;
        }
        // From the last lock to the first: most wait for the last. What is left are sums.
        drop(buckets);
        answer.set(Some(at_once.without_words()));
        Some(all_pass)
    }
}

impl Question<'_> {
    /// The rule's number.
    #[inline]
    pub(crate) fn rule(&self) -> usize {
        self.direct.rule()
    }

    /// The answer where all passed.
    #[inline]
    pub(crate) fn took(&self, answer: &AtOnce<()>, now: Nanos) -> Verdict {
        answer.took(&self.direct.quick, now).0
    }

    /// The answer where not all passed.
    #[inline]
    pub(crate) fn looked(&self, answer: &AtOnce<()>) -> Verdict {
        answer.looked(&self.direct.quick)
    }
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
