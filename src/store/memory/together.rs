//! The usual decision on several charges, by the shortest way: of token buckets that are there already, each charged in
//! the usual way. It says and does what a [`Round`](super::round) would.

use smallvec::SmallVec;

use super::{
    buckets::Buckets,
    line::AnyBuckets,
    lock::MutexGuard,
    round::{Order, pending},
    sharded::{ShardedTable, Usual},
};
use crate::{
    bucket::{AtOnce, Packed, Quick, TokenBucket},
    charge::{Charge, Judged, Verdicts},
    time::Nanos,
};

/// As many charges as may be decided together without memory being asked for.
pub(super) const MOST: usize = 4;

/// A bucket that is locked and was looked at.
struct Held<'a> {
    /// Until it is let go of.
    buckets: Option<MutexGuard<'a, Buckets<TokenBucket>>>,
    /// Where it is; a new key's is nowhere yet.
    slot: Option<usize>,
    at_once: AtOnce<<TokenBucket as Packed>::Words>,
    quick: Quick,
    era: u32,
}

/// Decides, or does nothing and returns false where a charge is not a usual one.
///
/// **Locking**: one lock a charge, in the order given, all held until all are charged.
pub(super) fn decide(now: Nanos, charges: &[Charge<'_>], order: &Order<'_>, verdicts: &mut Verdicts) -> bool {
    if charges.len() > MOST {
        return false;
    }
    let (mut all_held, mut pass, mut are_known) = (SmallVec::<[(usize, Held<'_>); MOST]>::new(), true, true);
    for (at, table) in order {
        let held = match (&table.buckets, charges.get(*at)) {
            (AnyBuckets::Token(table), Some(charge)) => hold(table, now, charge),
            _ => None,
        };
        // What is locked by now is let go of.
        let Some(held) = held else { return false };
        pass &= held.passes();
        are_known &= held.slot.is_some();
        all_held.push((*at, held));
    }
    if pass && !are_known {
        // A place for a new key is found another way.
        return false;
    }
    if pass {
        all_held.iter_mut().for_each(|(_, held)| held.take(now));
    }
    // From the last lock to the first: most wait for the last.
    all_held.iter_mut().rev().for_each(|(_, held)| held.let_go());
    if all_held.iter().map(|(at, _)| *at).eq(0..charges.len()) {
        all_held.iter().for_each(|(_, held)| verdicts.push(held.judged(now, pass)));
        return true;
    }
    verdicts.fill(pending(), charges.len());
    all_held.iter().for_each(|(at, held)| verdicts.set(*at, held.judged(now, pass)));
    true
}

#[inline]
fn hold<'a>(table: &'a ShardedTable<TokenBucket>, now: Nanos, charge: &Charge<'_>) -> Option<Held<'a>> {
    // One that stands in another's place is settled otherwise than the others.
    let usual = if charge.in_place_of.is_none() { table.lock_for(now, charge)? } else { return None };
    let Usual { buckets, quick, hash, .. } = usual;
    let (slot, words, era) = match buckets.dense.find(charge.key, hash) {
        Some(slot) => buckets.dense.get(slot).map(|found| (Some(slot), found.words, found.era))?,
        // A new key is looked at where another rule refuses, so that a flood of them costs no more.
        None if table.may_look_at_new(&buckets, now, charge.key, hash) => (None, Default::default(), 0),
        None => return None,
    };
    let at_once = TokenBucket.at_once(words, &quick, now, charge.cost)?;
    Some(Held { buckets: Some(buckets), slot, at_once, quick, era })
}

impl Held<'_> {
    #[inline]
    fn passes(&self) -> bool {
        self.at_once.taken.is_some()
    }

    /// Unlocks the shard.
    #[inline]
    fn let_go(&mut self) {
        self.buckets = None;
    }

    #[inline]
    fn take(&mut self, now: Nanos) {
        if let (Some(buckets), Some(slot), Some(words)) = (&mut self.buckets, self.slot, self.at_once.taken) {
            buckets.dense.set(slot, self.era, words);
            buckets.seen = now;
        }
    }

    /// What came of it: a sum for which nothing has to be locked any more.
    #[inline]
    fn judged(&self, now: Nanos, taken: bool) -> Judged {
        let judged = match taken {
            true => Judged::taken(self.at_once.took(&self.quick, now)),
            false => Judged::new(self.at_once.looked(&self.quick), None),
        };
        judged.stamped(u64::from(self.era))
    }
}
