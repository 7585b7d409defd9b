//! A plain table of small entries with linear probing: one look in memory for most keys.
//!
//! A key is in the first slot from its home on that is its own; no slot between the two is empty. An entry that is as
//! good as absent may be overwritten where it stands, so there are no tombstones.

use crate::{bucket::Words, key::KeyId};

/// One key's place. Words of 32 bits, so that nothing is lost to alignment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot<W: Words> {
    key: [u32; 4],
    pub(super) era: u32,
    pub(super) words: W,
    _align: W::Align,
}

/// No key has this tag.
const EMPTY: [u32; 4] = [u32::MAX; 4];

fn split(key: KeyId) -> [u32; 4] {
    let whole = key.bits();
    #[allow(clippy::cast_possible_truncation, reason = "the four quarters of a u128 fit in a u32 each")]
    [whole as u32, (whole >> 32) as u32, (whole >> 64) as u32, (whole >> 96) as u32]
}

impl<W: Words> Slot<W> {
    pub(super) fn new(key: KeyId, era: u32, words: W) -> Self {
        Self { key: split(key), era, words, _align: W::Align::default() }
    }

    fn empty() -> Self {
        Self { key: EMPTY, era: 0, words: W::default(), _align: W::Align::default() }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        // The tag is in the first word, and no key has that of the empty slot.
        self.key.first() == EMPTY.first()
    }

    pub(super) fn key(&self) -> KeyId {
        let [a, b, c, d] = self.key.map(u128::from);
        KeyId::of(a | b << 32 | c << 64 | d << 96)
    }
}

/// Where a new key would go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vacancy {
    /// In place of an entry that is as good as absent.
    Reused(usize),
    /// In an empty slot.
    Empty(usize),
    /// Nowhere, before the table [grows](Dense::rebuild).
    None,
}

/// The table.
#[derive(Debug)]
pub(super) struct Dense<W: Words> {
    slots: Box<[Slot<W>]>,
    len: u32,
    /// How many entries may be inserted until the table is rebuilt, whether or not it has grown: what keeps it small
    /// when fewer keys come than before.
    until_rebuilt: u32,
}

/// How many of a hundred slots may be taken before a table is rebuilt, and how many more than it holds it has then: in
/// a small table few are walked past even where it is nearly full, and in a large one being rebuilt is what costs. With
/// these, ten thousand keys or more in as many shards as a million has take at most 55 bytes each, and one is moved
/// once to three times for each that comes.
const fn fullness(slots: usize) -> (usize, usize) {
    if slots < 100 { (90, 55) } else { (80, 70) }
}

/// A table has at least this many slots.
const FEWEST: usize = 8;

impl<W: Words> Dense<W> {
    pub(super) fn new() -> Self {
        Self { slots: Box::default(), len: 0, until_rebuilt: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// The slot at which the search for a key of this hash begins.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        // The lower half of the hash, as a fraction of the length. The upper half has chosen the table.
        let at = ((hash & 0xffff_ffff) * self.slots.len() as u64) >> 32;
        usize::try_from(at).unwrap_or(0)
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 < self.slots.len() { at + 1 } else { 0 }
    }

    /// Where a key is, or the empty slot at which the search for it has ended; a table without slots has none.
    #[inline]
    pub(super) fn seek(&self, key: KeyId, hash: u64) -> Result<usize, Option<usize>> {
        let key = split(key);
        let mut at = self.home(hash);
        loop {
            let slot = self.slots.get(at).ok_or(None)?;
            if slot.key == key {
                return Ok(at);
            }
            if slot.is_empty() {
                return Err(Some(at));
            }
            at = self.after(at);
        }
    }

    #[inline]
    pub(super) fn find(&self, key: KeyId, hash: u64) -> Option<usize> {
        self.seek(key, hash).ok()
    }

    #[inline]
    pub(super) fn find_mut(&mut self, key: KeyId, hash: u64) -> Option<&mut Slot<W>> {
        let at = self.find(key, hash)?;
        self.slots.get_mut(at)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Slot<W>> {
        self.slots.get_mut(at)
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&Slot<W>> {
        self.slots.get(at)
    }

    #[inline]
    pub(super) fn set(&mut self, at: usize, era: u32, words: W) {
        if let Some(slot) = self.slots.get_mut(at) {
            (slot.era, slot.words) = (era, words);
        }
    }

    /// Where a key that was not [found](Self::find) would go.
    #[inline]
    pub(super) fn vacancy(&self, hash: u64, is_absent: impl Fn(&Slot<W>) -> bool) -> Vacancy {
        let mut at = self.home(hash);
        while let Some(slot) = self.slots.get(at) {
            if slot.is_empty() {
                return self.vacancy_in(at);
            }
            if is_absent(slot) {
                return Vacancy::Reused(at);
            }
            at = self.after(at);
        }
        Vacancy::None
    }

    /// The vacancy in an empty slot. One stays empty, or no search would end.
    #[inline]
    pub(super) fn vacancy_in(&self, empty: usize) -> Vacancy {
        if self.len() + 1 < self.slots.len() { Vacancy::Empty(empty) } else { Vacancy::None }
    }

    /// Puts an entry into a vacancy.
    #[inline]
    pub(super) fn insert(&mut self, vacancy: Vacancy, slot: Slot<W>) {
        let (at, new) = match vacancy {
            Vacancy::Reused(at) => (at, 0),
            Vacancy::Empty(at) => (at, 1),
            Vacancy::None => return,
        };
        if let Some(place) = self.slots.get_mut(at) {
            *place = slot;
            self.len += new;
            self.until_rebuilt = self.until_rebuilt.saturating_sub(1);
        }
    }

    /// Whether it is time to [rebuild](Self::rebuild).
    pub(super) fn is_crowded(&self) -> bool {
        self.until_rebuilt == 0 || (self.len() + 1) * 100 > self.slots.len() * fullness(self.slots.len()).0
    }

    /// Takes an entry out. Those behind it move up, so that each can still be found.
    pub(super) fn remove(&mut self, at: usize, hash_of: impl Fn(KeyId) -> u64) {
        let (mut hole, mut next) = (at, self.after(at));
        while let Some(slot) = self.slots.get(next).copied().filter(|slot| !slot.is_empty()) {
            let home = self.home(hash_of(slot.key()));
            // It may move to the hole unless its home lies behind the hole, on the way to where it is.
            let stays = if hole <= next { hole < home && home <= next } else { hole < home || home <= next };
            if !stays {
                if let Some(place) = self.slots.get_mut(hole) {
                    *place = slot;
                }
                hole = next;
            }
            next = self.after(next);
        }
        if let Some(place) = self.slots.get_mut(hole).filter(|place| !place.is_empty()) {
            *place = Slot::empty();
            self.len -= 1;
        }
    }

    /// Drops what is not to be kept, makes room for one more, and returns how many were dropped.
    pub(super) fn rebuild(&mut self, mut keep: impl FnMut(&Slot<W>) -> bool, hash_of: impl Fn(KeyId) -> u64) -> usize {
        let (before, mut kept) = (self.len(), 0);
        for slot in &mut self.slots {
            if slot.is_empty() {
                continue;
            }
            if keep(slot) {
                kept += 1;
            } else {
                // Nobody searches here before the rebuilt table is in place.
                *slot = Slot::empty();
            }
        }
        let slots = ((kept + 1) * (100 + fullness(kept).1)).div_ceil(100).max(FEWEST);
        let old = std::mem::replace(&mut self.slots, vec![Slot::empty(); slots].into());
        for slot in old.iter().filter(|slot| !slot.is_empty()) {
            let mut at = self.home(hash_of(slot.key()));
            while self.slots.get(at).is_some_and(|taken| !taken.is_empty()) {
                at = self.after(at);
            }
            if let Some(place) = self.slots.get_mut(at) {
                *place = *slot;
            }
        }
        self.len = u32::try_from(kept).unwrap_or(u32::MAX);
        self.until_rebuilt = u32::try_from(slots).unwrap_or(u32::MAX);
        before - kept
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = &Slot<W>> {
        self.slots.iter().filter(|slot| !slot.is_empty())
    }

    pub(super) fn slots_mut(&mut self) -> impl Iterator<Item = &mut Slot<W>> {
        self.slots.iter_mut().filter(|slot| !slot.is_empty())
    }

    /// Gives all memory back.
    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests;
