//! What the store refused, until the wait that it told is over: an attacker who keeps on does not reach the store.

use std::{
    collections::HashMap,
    hash::BuildHasher,
    sync::{Mutex, MutexGuard, PoisonError},
};

use smallvec::SmallVec;

use crate::{
    charge::{Charge, Judged, Take, Verdicts},
    decision::{Outcome, Source, Verdict, Wait},
    key::{KeyHash, KeyId},
    limit::Limit,
    time::Nanos,
};

/// So many parts have a lock of their own, where there are enough entries for them.
const PARTS: usize = 64;

/// For so long what comes back may be on its way: a store may act on it later.
const ON_ITS_WAY: Nanos = Nanos::SECOND;

/// So many times of what came back are kept in each part, for keys that fall together.
const RETURNS: usize = 16;

/// Later than any time is.
const NEVER: Nanos = Nanos::MAX;

/// Which rule, and whose bucket.
type Whose = (u64, KeyId);

/// A bounded memory of refusals. **Locking**: one part at a time, for one look.
pub(super) struct Refusals {
    parts: Box<[Mutex<Part>]>,
    hash: KeyHash,
    longest: Nanos,
}

/// Two generations of entries, so that the oldest go, half a part at once and without a search: when the young ones are
/// as many as may be, they become the old ones, and those before them go.
struct Part {
    young: HashMap<Whose, Refused, KeyHash>,
    old: HashMap<Whose, Refused, KeyHash>,
    /// How many a generation may hold.
    most: usize,
    /// How often something here was forgotten. An answer to a question from before that is not remembered: it may have
    /// been overtaken by a charge that came back.
    forgotten: u64,
    /// When something came back last, to the key or to one that falls together with it.
    returned: [Nanos; RETURNS],
}

#[derive(Debug, Clone, Copy)]
struct Refused {
    limit: Limit,
    /// The least that was refused, `keep` included.
    needs: u64,
    max_delay: Nanos,
    noted: Nanos,
    until: Nanos,
    forget_at: Nanos,
    told_limit: u64,
    remaining: u64,
    /// When the told `reset` and `effective_window` end; [`NEVER`] where none was told.
    reset_at: Nanos,
    window_ends: Nanos,
}

/// What the memory says of a request.
pub(super) enum Recall {
    /// It is refused; the verdicts are written.
    Refused,
    /// The store has to be asked. What has to be unchanged for its refusals to be remembered, for each charge.
    Ask(SmallVec<[u64; 3]>),
}

/// A charge and its rule's number; `None` where the rule's refusals are not remembered.
pub(super) type Numbered<'a> = (&'a Charge<'a>, Option<u64>);

impl Refusals {
    /// Remembers up to `size` refusals, and none for longer than `longest`.
    pub(super) fn new(size: usize, longest: Nanos) -> Self {
        let parts = (size / 2).min(PARTS);
        let hash = KeyHash::random();
        let part = |at: usize| {
            // A part more or less, so that all together are not more than `size`.
            let most = (size / 2 + parts - 1 - at) / parts;
            let (young, old) = (HashMap::with_hasher(hash.clone()), HashMap::with_hasher(hash.clone()));
            Mutex::new(Part { young, old, most, forgotten: 0, returned: [Nanos::ZERO; RETURNS] })
        };
        Self { parts: (0..parts).map(part).collect(), hash: hash.clone(), longest }
    }

    fn part(&self, whose: &Whose) -> Option<MutexGuard<'_, Part>> {
        // Bits that the maps themselves do not use: they take the upper byte and the lower half.
        let at = (self.hash.hash_one(whose) >> 40) % self.parts.len().max(1) as u64;
        // Nothing that can panic runs under this lock but an allocation.
        self.parts.get(usize::try_from(at).ok()?).map(|part| part.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Answers a request of which one charge is known to be refused.
    pub(super) fn recall(&self, now: Nanos, charges: &[Numbered<'_>], verdicts: &mut Verdicts) -> Recall {
        let mut seen = SmallVec::new();
        let mut refused: SmallVec<[Option<Verdict>; 3]> = SmallVec::new();
        for (charge, number) in charges {
            let part = number.and_then(|number| Some(((number, charge.key), self.part(&(number, charge.key))?)));
            let Some((whose, mut part)) = part else {
                seen.push(0);
                refused.push(None);
                continue;
            };
            refused.push(part.verdict(&whose, now, charge));
            seen.push(part.forgotten);
        }
        // What is charged all the same has to reach the store: in any case, or as if the one that is refused were not
        // there.
        let refuses_but = |but: usize| refused.iter().enumerate().any(|(at, refused)| at != but && refused.is_some());
        let has_to_ask = charges.iter().any(|(charge, _)| {
            charge.take == Take::Always || charge.in_place_of.is_some_and(|live| !refuses_but(live))
        });
        if has_to_ask || refused.iter().all(Option::is_none) {
            return Recall::Ask(seen);
        }
        for ((charge, _), refused) in charges.iter().zip(refused) {
            let limit = charge.limit.capacity();
            let unasked = || Verdict::new(Outcome::Pass, limit, limit, None).from_source(Source::Unasked);
            verdicts.push(Judged::new(refused.unwrap_or_else(unasked), None));
        }
        Recall::Refused
    }

    /// Remembers what the store refused.
    pub(super) fn remember(&self, now: Nanos, charges: &[Numbered<'_>], verdicts: &Verdicts, seen: &[u64]) {
        for (((charge, number), judged), seen) in charges.iter().zip(verdicts.iter()).zip(seen) {
            let Outcome::Refuse(Wait::For(wait)) = judged.verdict.outcome else { continue };
            let Some(number) = number.filter(|_| is_plain(charge) && !judged.verdict.untracked) else { continue };
            let until = now.saturating_add(wait);
            let ends = |span: Option<Nanos>| span.map_or(NEVER, |span| now.saturating_add(span));
            let refused = Refused {
                limit: charge.limit,
                needs: charge.cost.saturating_add(charge.keep),
                max_delay: charge.max_delay,
                noted: now,
                until,
                forget_at: until.min(now.saturating_add(self.longest)),
                told_limit: judged.verdict.limit,
                remaining: judged.verdict.remaining,
                reset_at: ends(judged.verdict.reset),
                window_ends: ends(judged.verdict.effective_window),
            };
            let whose = (number, charge.key);
            if let Some(mut part) = self.part(&whose).filter(|part| part.forgotten == *seen) {
                // What came back just before may reach the store after this answer.
                let arrived = part.returned(self.place(&whose)).saturating_add(ON_ITS_WAY);
                let forget_at = if now < arrived { refused.forget_at.min(arrived) } else { refused.forget_at };
                part.insert(whose, Refused { forget_at, ..refused });
            }
        }
    }

    /// Forgets one key's refusals under one rule.
    pub(super) fn forget(&self, number: u64, key: KeyId) {
        let whose = (number, key);
        if let Some(mut part) = self.part(&whose) {
            part.forget(&whose);
        }
    }

    /// Forgets one key's refusals under one rule, to which something comes back at `now` or soon after.
    pub(super) fn comes_back(&self, now: Nanos, number: u64, key: KeyId) {
        let whose = (number, key);
        let place = self.place(&whose);
        if let Some(mut part) = self.part(&whose) {
            part.forget(&whose);
            if let Some(returned) = part.returned.get_mut(place) {
                *returned = now;
            }
        }
    }

    /// Where in its part it is kept when something came back.
    fn place(&self, whose: &Whose) -> usize {
        // Bits behind those that choose the part.
        usize::try_from((self.hash.hash_one(whose) >> 46) % RETURNS as u64).unwrap_or(0)
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            part.young.clear();
            part.old.clear();
            part.forgotten = part.forgotten.wrapping_add(1);
        }
    }

    /// How many refusals are remembered; some may be over.
    pub(super) fn len(&self) -> usize {
        let len = |part: &Mutex<Part>| {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            part.young.len() + part.old.len()
        };
        self.parts.iter().map(len).sum()
    }
}

/// Whether the charge can refuse a request, and is taken only if the request passes.
fn is_plain(charge: &Charge<'_>) -> bool {
    charge.votes && charge.take == Take::IfPassed && charge.cost > 0
}

impl Part {
    /// The verdict on a charge that is known to be refused.
    fn verdict(&mut self, whose: &Whose, now: Nanos, charge: &Charge<'_>) -> Option<Verdict> {
        let refused = *self.young.get(whose).or_else(|| self.old.get(whose))?;
        if refused.limit != charge.limit && charge.take != Take::Never {
            // The bucket is about to be changed to this limit, and what was said under the other one may not hold
            // after.
            self.forget(whose);
            return None;
        }
        let was_set_back = refused.noted.saturating_sub(now) >= Nanos::SECOND;
        if refused.forget_at <= now || was_set_back {
            self.young.remove(whose);
            self.old.remove(whose);
            return None;
        }
        let as_much = charge.cost.saturating_add(charge.keep) >= refused.needs && charge.max_delay <= refused.max_delay;
        // Before it was noted: a thread that comes late.
        if refused.limit != charge.limit || !is_plain(charge) || !as_much || now < refused.noted {
            return None;
        }
        let outcome = Outcome::Refuse(Wait::For(refused.until.saturating_sub(now)));
        let left = |end: Nanos| (end != NEVER).then(|| end.saturating_sub(now));
        let mut verdict = Verdict::new(outcome, refused.told_limit, refused.remaining, left(refused.reset_at));
        verdict.effective_window = left(refused.window_ends);
        Some(verdict.from_source(Source::Remembered))
    }

    fn returned(&self, place: usize) -> Nanos {
        self.returned.get(place).copied().unwrap_or_default()
    }

    fn insert(&mut self, whose: Whose, refused: Refused) {
        self.old.remove(&whose);
        if self.young.len() >= self.most && !self.young.contains_key(&whose) {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(whose, refused);
    }

    fn forget(&mut self, whose: &Whose) {
        self.young.remove(whose);
        self.old.remove(whose);
        self.forgotten = self.forgotten.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests;
