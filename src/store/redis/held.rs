//! The places that this process holds, which are renewed for as long as they are in here.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{numbers::Numbers, script::Part};
use crate::bucket::Mark;

/// Who holds places, by the names of their keys. **Locking** for as long as it takes to note one.
#[derive(Default)]
pub(super) struct Held(Mutex<HashMap<Vec<u8>, Holders>>);

struct Holders {
    numbers: Numbers,
    /// The holders' lives, and how many places they have.
    places: HashMap<u64, u64>,
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Holders>> {
        // Nothing that can panic runs under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that places were taken.
    pub(super) fn take(&self, name: &[u8], numbers: Numbers, life: u64, cost: u64) {
        let mut held = self.lock();
        match held.get_mut(name) {
            Some(holders) => {
                holders.places.insert(life, cost);
            }
            None => {
                held.insert(name.to_vec(), Holders { numbers, places: HashMap::from([(life, cost)]) });
            }
        }
    }

    /// Notes that a holder of `part.cost` places has `part.left` now, and returns what the server has to be told:
    /// nothing where that is not what it holds, because that was said before.
    pub(super) fn change(&self, name: &[u8], numbers: Numbers, part: Part) -> Option<Part> {
        let Part { cost, left, life, .. } = part;
        if cost == left {
            return None;
        }
        let mut held = self.lock();
        let standing = held.get(name).and_then(|holders| holders.places.get(&life)).copied().unwrap_or(0);
        if standing != cost {
            return None;
        }
        if left > 0 {
            drop(held);
            self.take(name, numbers, life, left);
            return Some(if cost == 0 { Part { cost: left, ..part } } else { part });
        }
        if let Some(holders) = held.get_mut(name) {
            holders.places.remove(&life);
            if holders.places.is_empty() {
                held.remove(name);
            }
        }
        Some(part)
    }

    /// Returns who holds places now, in lists of up to `most` of one key.
    pub(super) fn lists(&self, most: usize) -> Vec<(Vec<u8>, Vec<u64>)> {
        let mut lists = Vec::new();
        for (name, of) in self.lock().iter() {
            let lives: Vec<_> = of.places.keys().copied().collect();
            lists.extend(lives.chunks(most).map(|lives| (name.clone(), lives.to_vec())));
        }
        lists
    }

    /// Returns what some holders of one key have still, as the server is told to renew it.
    pub(super) fn still(&self, name: &[u8], lives: &[u64]) -> Option<(Numbers, Vec<Part>)> {
        let held = self.lock();
        let of = held.get(name)?;
        let renewed = |life: &u64| {
            let cost = *of.places.get(life)?;
            Some(Part { cost, left: cost, mark: Mark::default(), life: *life })
        };
        let parts: Vec<_> = lives.iter().filter_map(renewed).collect();
        (!parts.is_empty()).then_some((of.numbers, parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{limit::Limit, store::redis::numbers::Kind};

    #[test]
    fn lists_are_short_and_say_of_each_holder_only_what_it_has_still() {
        let (held, numbers) = (Held::default(), Numbers::new(Kind::InFlight, &Limit::in_flight(9)).unwrap());
        let names = [b"one".as_slice(), b"two"];
        for life in 1..=600 {
            held.take(names[usize::from(life > 590)], numbers, life, 2);
        }
        let lists = held.lists(256);
        let mut lengths: Vec<_> = lists.iter().map(|(_, lives)| lives.len()).collect();
        lengths.sort_unstable();
        assert_eq!(lengths, [10, 78, 256, 256]);
        let change = |life, left| {
            let part = Part { cost: 2, left, mark: Mark::default(), life };
            assert!(held.change(names[usize::from(life > 590)], numbers, part).is_some());
        };
        (2..=600).for_each(|life| change(life, 0));
        change(1, 3);
        let still = lists.iter().filter_map(|(name, lives)| held.still(name, lives));
        let still: Vec<_> = still.flat_map(|(_, parts)| parts).map(|part| (part.life, part.cost, part.left)).collect();
        assert_eq!(still, [(1, 3, 3)]);
    }
}
