//! A rule's place on the server, and which of them some limiter has.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use super::{
    names,
    numbers::{Kind, Numbers},
};
use crate::{
    bucket::Algorithm,
    charge::{Charge, RuleSpec, Take},
    error::Unsupported,
    limit::Limit,
    observe::{self, Once},
};

/// A rule's place: what its keys begin with, and its limit's numbers.
pub(super) struct Place {
    name: Cow<'static, str>,
    pub(super) prefix: String,
    algorithm: Algorithm,
    keyed: bool,
    limit: Limit,
    pub(super) numbers: Numbers,
    unusable: Once,
}

impl Place {
    /// The numbers of `limit`, or why Redis cannot count by it.
    pub(super) fn numbers(&self, limit: &Limit) -> Result<Numbers, String> {
        if *limit == self.limit {
            return Ok(self.numbers);
        }
        Numbers::new(self.numbers.kind, limit).map(|numbers| numbers.lapsing_in(self.numbers.a))
    }

    /// What is asked for `charge`; where its limit cannot be counted by, what can never pass.
    pub(super) fn countable<'a>(&self, charge: &Charge<'a>) -> (Numbers, Charge<'a>) {
        match self.numbers(&charge.limit) {
            Ok(numbers) => (numbers, *charge),
            Err(problem) => {
                observe::unusable_limit(&self.unusable, &self.name, &charge.limit, &problem);
                (self.numbers, Charge { limit: self.limit, keep: u64::MAX, take: Take::Never, ..*charge })
            }
        }
    }
}

/// The places that some limiter has, by name. **Locking** only while rules are bound, never on a request.
#[derive(Default)]
pub(super) struct Places(Mutex<HashMap<Cow<'static, str>, Weak<Place>>>);

impl Places {
    /// Returns the rule's place, which may be there already. Who holds places in flight lapses after `expiry`.
    pub(super) fn find(&self, spec: &RuleSpec, deployment: &str, expiry: Duration) -> Result<Arc<Place>, Unsupported> {
        let Some(kind) = Kind::of(&spec.algorithm) else {
            return Err(Unsupported::new(
                "a bucket of one's own runs in this process, and this store's buckets run on the Redis server; use one of \
                 the algorithms there are, or give the rule a limiter of its own with a memory store",
            ));
        };
        let numbers = Numbers::new(kind, &spec.limit)
            .map_err(Unsupported::new)?
            .lapsing_in(u64::try_from(expiry.as_micros()).unwrap_or(u64::MAX));
        // A rule that was renamed stays where other processes and the next ones look for it.
        let name = spec.was.as_ref().unwrap_or(&spec.name);
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|_, place| place.strong_count() > 0);
        if let Some(place) = places.get(name).and_then(Weak::upgrade) {
            if place.algorithm != spec.algorithm || place.keyed != spec.keyed {
                return Err(Unsupported::new(format!(
                    "a rule of this name on this store counts by the {}{} already (the same one, where this is a reload); \
                     give this one another name, or its own store",
                    place.algorithm.name(),
                    if place.keyed { "" } else { " without keys" }
                )));
            }
            if place.limit == spec.limit {
                return Ok(place);
            }
        }
        let place = Arc::new(Place {
            name: spec.name.clone(),
            prefix: names::prefix(deployment, name, kind.letter()),
            algorithm: spec.algorithm.clone(),
            keyed: spec.keyed,
            limit: spec.limit,
            numbers,
            unusable: Once::default(),
        });
        places.insert(name.clone(), Arc::downgrade(&place));
        Ok(place)
    }
}
