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

    /// Notes that a holder of `part.cost` places has `part.left` now, and returns what the server has to be told: nothing
    /// where that is not what it holds, because that was said before.
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

    /// Returns the names of all keys of which places are held.
    pub(super) fn names(&self) -> Vec<Vec<u8>> {
        self.lock().keys().cloned().collect()
    }

    /// Returns what is held of one key, as the server is told to renew it.
    pub(super) fn of(&self, name: &[u8]) -> Option<(Numbers, Vec<Part>)> {
        let renewed = |(&life, &cost): (&u64, &u64)| Part { cost, left: cost, mark: Mark::default(), life };
        self.lock().get(name).map(|of| (of.numbers, of.places.iter().map(renewed).collect()))
    }
}
