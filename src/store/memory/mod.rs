use std::{
    borrow::Cow,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use smallvec::SmallVec;

use super::{Reply, Store, lock};
use crate::{
    charge::{Charge, RuleSpec, Slot, Taken, Verdicts},
    error::Unsupported,
    key::{KeyId, Secret},
    limit::Limit,
    observe::Held,
    time::Nanos,
};

mod base;
mod beside;
mod buckets;
mod dense;
mod direct;
mod evict;
mod line;
mod map;
mod overflow;
mod places;
mod round;
mod sharded;
mod table;
mod together;

pub(crate) use direct::{Answer, Direct, Questions};
use line::{AnyBuckets, Table};
use table::{Alone, AnyTable};

/// Buckets in this process's memory; clones share them.
///
/// **All or nothing.** The buckets of one request are locked together, in one order for all requests, looked at, and
/// then all charged or none. A refusal inserts nothing.
///
/// **Bounded.** A bucket that answers as a fresh one is dropped: inline, a small map at a time, when an insertion has
/// filled its map; or all at once by [`sweep`](Self::sweep). No task runs in the background. A rule holds at most
/// [`max_keys`](MemoryStoreBuilder::max_keys); what happens to new keys then is the [`Overflow`] policy's choice, and a
/// bucket in use is never dropped for one, so a flood of new keys resets nobody. While less than a sixteenth of its
/// places is free, a bucket that answers as a fresh one again keeps its own for a second more, or for a fiftieth of
/// what a spent one takes to fill where that is less: who comes back by then is not put behind the flood.
///
/// Everything is gone when the process ends, and what a rule counted when the last limiter that has the rule is gone.
///
/// # Examples
///
/// Two limiters on one store share the counts of rules of equal name:
///
/// ```
/// use tollgate::{Key, Limit, Limiter, Rule, store::MemoryStore};
///
/// let store = MemoryStore::builder().max_keys(100_000).build();
/// let rule = || Rule::new("user", Limit::per_minute(1), |id: &u64| Some(Key::from(*id)));
/// let one = Limiter::builder([rule()]).store(store.clone()).build()?;
/// let other = Limiter::builder([rule()]).store(store.clone()).build()?;
/// assert!(one.check_now(&7)?.is_allowed());
/// assert!(!other.check_now(&7)?.is_allowed());
/// assert_eq!(store.tracked_keys(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

struct Inner {
    secret: Secret,
    bound: Bound,
    /// The places that some limiter has, in the order in which they were given out. **Locking** only while rules are
    /// bound, never on a request.
    places: Mutex<Vec<Weak<Place>>>,
}

/// What a [`MemoryStore`] holds, and did since it was made: over all rules, or of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MemoryCounts {
    /// Keys that have a bucket. Fresh buckets that were not dropped yet count.
    pub tracked_keys: usize,
    /// Decisions on keys for which there was no place, by [`Overflow`]; a sign of a flood, or of too low a
    /// [`max_keys`](MemoryStoreBuilder::max_keys).
    pub overflow_decisions: u64,
    /// Buckets that were dropped because they answered as fresh ones. No answer changes by that.
    pub evicted_keys: u64,
}

/// How many keys a rule may hold, and what happens to others.
#[derive(Debug, Clone, Copy)]
struct Bound {
    max_keys: usize,
    overflow: Overflow,
}

/// What happens to a new key while a rule holds as many keys as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overflow {
    /// It shares one of a few overflow buckets with other new keys: how many, at least 1. What a flood admits stays
    /// bounded, and a newcomer still has a chance. A key that gets a place of its own later starts from a copy of its
    /// overflow bucket; one of an [in-flight](crate::Limit::in_flight) rule gets none as long as anything runs in it. A
    /// [reset](crate::Limiter::reset) of a key that shares one forgets nothing, since it is others' too. The default,
    /// with 16.
    Share(usize),
    /// It is refused with status 503.
    Refuse,
}

/// A rule's place: it says under which name and limit a table is used, and by that the table lives.
struct Place {
    name: Cow<'static, str>,
    limit: Limit,
    table: Arc<Table>,
    told: Held,
}

/// Builds a [`MemoryStore`].
#[derive(Debug, Clone)]
#[must_use]
pub struct MemoryStoreBuilder {
    bound: Bound,
    secret: Option<Secret>,
}

impl MemoryStore {
    /// Returns an empty store for up to 1,000,000 keys a rule.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder { bound: Bound { max_keys: 1_000_000, overflow: Overflow::Share(16) }, secret: None }
    }

    /// Returns how many keys have a bucket, over all rules. Fresh buckets that were not dropped yet count.
    pub fn tracked_keys(&self) -> usize {
        self.counts().tracked_keys
    }

    /// Returns what the store holds and did, over all rules that some limiter has.
    ///
    /// A bucket in use is never dropped for another one: only those that answer as fresh ones are evicted.
    pub fn counts(&self) -> MemoryCounts {
        let (mut counts, mut rules): (_, SmallVec<[Arc<Table>; 8]>) = (MemoryCounts::default(), SmallVec::new());
        for table in self.tables() {
            // The tables of one rule count together.
            if !rules.iter().any(|counted| counted.is_kin_of(&table)) {
                let of_rule = table.buckets.kin().count.told();
                counts.tracked_keys += of_rule.tracked_keys;
                counts.overflow_decisions += of_rule.overflow_decisions;
                counts.evicted_keys += of_rule.evicted_keys;
                rules.push(table);
            }
        }
        counts
    }

    /// Drops every bucket that answers at `now` as a fresh one, gives the memory back, and returns how many it
    /// dropped. Never needed; it shows what memory follows.
    ///
    /// **Locking**: one small map at a time.
    pub fn sweep(&self, now: Nanos) -> usize {
        self.tables().iter().map(|table| table.buckets.sweep(now)).sum()
    }

    /// Every table, once.
    fn tables(&self) -> Vec<Arc<Table>> {
        let mut tables: Vec<Arc<Table>> = Vec::new();
        for place in places::live(&self.places()) {
            place.table.each(&mut |table| {
                if !tables.iter().any(|known| Arc::ptr_eq(known, table)) {
                    tables.push(Arc::clone(table));
                }
            });
        }
        tables
    }

    fn places(&self) -> MutexGuard<'_, Vec<Weak<Place>>> {
        self.inner.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryStoreBuilder {
    /// Sets how many keys each rule may hold; at least 1.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.bound.max_keys = max_keys.max(1);
        self
    }

    /// Sets what happens to new keys while a rule holds [`max_keys`](Self::max_keys).
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.bound.overflow = overflow;
        self
    }

    /// Sets the secret that long keys are fingerprinted under; random unless set.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Returns the store.
    pub fn build(self) -> MemoryStore {
        let secret = self.secret.unwrap_or_else(Secret::random);
        MemoryStore { inner: Arc::new(Inner { secret, bound: self.bound, places: Mutex::default() }) }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("max_keys", &self.inner.bound.max_keys)
            .field("overflow", &self.inner.bound.overflow)
            .finish_non_exhaustive()
    }
}

impl Store for MemoryStore {
    fn secret(&self) -> &Secret {
        &self.inner.secret
    }

    fn bind(&self, spec: &RuleSpec, before: Option<&Slot>) -> Result<Slot, Unsupported> {
        let mut places = self.places();
        let place = places::find(&places, spec, self.inner.bound, before.and_then(Slot::get))?;
        let place = Arc::new(place);
        places.retain(|place| place.strong_count() > 0);
        places.push(Arc::downgrade(&place));
        Ok(Slot::shared(place))
    }

    /// **Locking**: one lock a charge, all held together, in ascending order of the tables' numbers. No lock is held
    /// when it returns, nor while buckets are dropped.
    fn decide(&self, now: Nanos, charges: &[Charge<'_>], verdicts: &mut Verdicts) -> Reply<(), Verdicts> {
        if let [charge] = charges
            && let Some(AnyBuckets::Token(table)) = charge.slot.get::<Place>().map(|place| &place.table.buckets)
            && let Some(decided) = table.decide_usual(now, charge, verdicts)
        {
            if decided == Alone::Untidy {
                table.tidy(charge.key, now);
            }
            return Reply::Ready(Ok(()));
        }
        round::decide(now, charges, verdicts)
    }

    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64) {
        let slot = taken.slot.clone();
        let Some(place) = slot.get::<Place>() else { return };
        let mut table = Arc::clone(&place.table);
        while !table.buckets.adjust(now, taken, cost) {
            table = table.in_charge();
            taken.limit = table.limit_of(taken.limit);
        }
    }

    fn reset(&self, slot: &Slot, key: KeyId) -> Reply<()> {
        if let Some(place) = slot.get::<Place>() {
            place.table.in_charge().buckets.forget(key);
        }
        Reply::Ready(Ok(()))
    }

    /// It cannot fail.
    fn has_fallback(&self) -> bool {
        true
    }

    fn counts_of(&self, slot: &Slot) -> Option<MemoryCounts> {
        Some(slot.get::<Place>()?.table.buckets.kin().count.told())
    }

    /// Of the limiters that have a rule, the one that was made last tells.
    fn publish_metrics(&self) {
        let places: Vec<_> = places::live(&self.places()).collect();
        for (at, place) in places.iter().enumerate() {
            let is_last = !places.iter().take(at).any(|later| later.table.is_kin_of(&place.table));
            let count = &place.table.buckets.kin().count;
            place.told.publish(if is_last { count.get() } else { 0 }, &count.evicted, &count.overflowed);
        }
    }
}
