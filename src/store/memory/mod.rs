use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use smallvec::SmallVec;

use super::{Reply, Store};
use crate::{
    bucket::{Algorithm, FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket},
    charge::{Charge, Judged, RuleSpec, Slot, Taken, Verdicts},
    decision::{Outcome, Verdict},
    error::{StoreError, Unsupported},
    key::{KeyId, Secret},
    time::Nanos,
};

mod base;
mod buckets;
mod dense;
mod evict;
mod lock;
mod map;
mod overflow;
mod sharded;
mod table;

use map::MapTable;
use sharded::ShardedTable;
use table::{AnyTable, Settled};

/// Buckets in this process's memory; clones share them.
///
/// **All or nothing.** The buckets of one request are locked together, in one order for all requests, looked at, and
/// then all charged or none. A refusal inserts nothing.
///
/// **Bounded.** A bucket that answers as a fresh one is dropped: inline, a small map at a time, when an insertion has
/// filled its map; or all at once by [`sweep`](Self::sweep). No task runs in the background. A rule holds at most
/// [`max_keys`](MemoryStoreBuilder::max_keys); what happens to new keys then is the [`Overflow`] policy's choice, and a
/// bucket in use is never dropped for one, so a flood of new keys resets nobody.
///
/// Everything is gone when the process ends.
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
    /// **Locking** only while rules are bound, never on a request.
    places: Mutex<HashMap<Cow<'static, str>, Arc<Place>>>,
}

/// What a [`MemoryStore`] holds, and did since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MemoryCounts {
    /// Keys that have a bucket. Fresh buckets that were not dropped yet count.
    pub tracked_keys: usize,
    /// Decisions on keys for which there was no place, by [`Overflow`]; a sign of a flood, or of too low a
    /// [`max_keys`](MemoryStoreBuilder::max_keys).
    pub overflow_decisions: u64,
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
    /// overflow bucket. The default, with 16.
    Share(usize),
    /// It is refused with status 503.
    Refuse,
}

/// The table of one rule.
struct Place {
    /// Locks are taken in the order of these numbers. Tables without keys, whose one bucket everybody wants, have the
    /// highest, so that they are locked last and for the shortest time.
    number: u64,
    algorithm: Algorithm,
    keyed: bool,
    table: Box<dyn AnyTable>,
}

/// Numbers are unique in the process, so that even tables of different stores have one order.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);
const WITHOUT_KEYS: u64 = 1 << 63;

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
        self.places().values().map(|place| place.table.len()).sum()
    }

    /// Returns what the store holds and did, over all rules.
    ///
    /// A bucket in use is never dropped for another one, so there is nothing to tell of such evictions.
    pub fn counts(&self) -> MemoryCounts {
        let places = self.places();
        let tables = || places.values().map(|place| &place.table);
        MemoryCounts {
            tracked_keys: tables().map(|table| table.len()).sum(),
            overflow_decisions: tables().map(|table| table.overflowed()).sum(),
        }
    }

    /// Drops every bucket that answers at `now` as a fresh one, gives the memory back, and returns how many it
    /// dropped. Never needed; it shows what memory follows.
    ///
    /// **Locking**: one small map at a time.
    pub fn sweep(&self, now: Nanos) -> usize {
        let places: Vec<_> = self.places().values().cloned().collect();
        places.iter().map(|place| place.table.sweep(now)).sum()
    }

    fn places(&self) -> std::sync::MutexGuard<'_, HashMap<Cow<'static, str>, Arc<Place>>> {
        // Nothing that can panic runs under this lock but an allocation.
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

fn table_for(spec: &RuleSpec, bound: Bound) -> Box<dyn AnyTable> {
    match &spec.algorithm {
        Algorithm::TokenBucket => Box::new(ShardedTable::new(TokenBucket, spec, bound)),
        Algorithm::FixedWindow => Box::new(ShardedTable::new(FixedWindow, spec, bound)),
        Algorithm::SlidingWindowLog => Box::new(MapTable::new(SlidingWindowLog, spec, bound)),
        Algorithm::SlidingWindowCounter => Box::new(ShardedTable::new(SlidingWindowCounter, spec, bound)),
        Algorithm::LeakyBucket => Box::new(ShardedTable::new(LeakyBucket, spec, bound)),
        Algorithm::Custom(bucket) => Box::new(MapTable::new(bucket.clone(), spec, bound)),
    }
}

impl Store for MemoryStore {
    fn secret(&self) -> &Secret {
        &self.inner.secret
    }

    fn bind(&self, spec: &RuleSpec, _before: Option<&Slot>) -> Result<Slot, Unsupported> {
        let mut places = self.places();
        if let Some(place) = places.get(&spec.name) {
            if place.algorithm != spec.algorithm || place.keyed != spec.keyed {
                return Err(Unsupported::new(format!(
                    "another rule of this name on this store counts by the {}{}; give one of them another name, or its \
                     own store",
                    place.algorithm.name(),
                    if place.keyed { "" } else { " without keys" }
                )));
            }
            return Ok(Slot::shared(Arc::clone(place)));
        }
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed) | if spec.keyed { 0 } else { WITHOUT_KEYS };
        let place = Arc::new(Place {
            number,
            algorithm: spec.algorithm.clone(),
            keyed: spec.keyed,
            table: table_for(spec, self.inner.bound),
        });
        places.insert(spec.name.clone(), Arc::clone(&place));
        Ok(Slot::shared(place))
    }

    /// **Locking**: one lock a charge, all held together, in ascending order of the tables' numbers. No lock is held
    /// when it returns, nor while buckets are dropped.
    fn decide(&self, now: Nanos, charges: &[Charge<'_>], verdicts: &mut Verdicts) -> Reply<(), Verdicts> {
        Reply::Ready(match charges {
            [charge] => decide_alone(now, charge, verdicts),
            _ => Round::new(now, charges, verdicts).map(Round::run),
        })
    }

    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64) {
        if let Some(place) = taken.slot.clone().get::<Place>() {
            place.table.adjust(now, taken, cost);
        }
    }

    fn reset(&self, slot: &Slot, key: KeyId) -> Reply<()> {
        if let Some(place) = slot.get::<Place>() {
            place.table.forget(key);
        }
        Reply::Ready(Ok(()))
    }

    /// It cannot fail.
    fn has_fallback(&self) -> bool {
        true
    }
}

fn place<'a>(charge: &Charge<'a>) -> Result<&'a Place, StoreError> {
    charge.slot.get::<Place>().ok_or_else(|| StoreError::new("a slot of another kind of store"))
}

/// A request with one charge, which has nobody to wait for.
fn decide_alone(now: Nanos, charge: &Charge<'_>, verdicts: &mut Verdicts) -> Result<(), StoreError> {
    let table = &*place(charge)?.table;
    if table.visit_alone(now, charge, verdicts) {
        table.tidy(charge.key, now);
    }
    Ok(())
}

/// One request's charges, in the order in which their tables are locked.
struct Round<'a> {
    now: Nanos,
    charges: &'a [Charge<'a>],
    order: SmallVec<[(usize, &'a Place); 4]>,
    verdicts: &'a mut Verdicts,
    untidy: SmallVec<[(KeyId, &'a Place); 4]>,
    /// Whether keys for which there was no room have to take what the overflow policy gives them.
    final_try: bool,
    against: Against,
}

/// Which of a request's charges refuse it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Against {
    Nobody,
    /// This one alone.
    One(usize),
    Several,
}

impl Against {
    fn and(self, at: usize) -> Self {
        if self == Self::Nobody { Self::One(at) } else { Self::Several }
    }

    /// How a charge is settled: one that stands in another's place as if that one had not refused.
    fn settles(self, charge: &Charge<'_>) -> Settled {
        match self {
            Self::Nobody => Settled::Passed,
            Self::One(at) if charge.in_place_of == Some(at) => Settled::Passed,
            Self::One(_) | Self::Several => Settled::Refused,
        }
    }
}

impl<'a> Round<'a> {
    fn new(now: Nanos, charges: &'a [Charge<'a>], verdicts: &'a mut Verdicts) -> Result<Self, StoreError> {
        let mut order: SmallVec<[(usize, &'a Place); 4]> = SmallVec::new();
        for (at, charge) in charges.iter().enumerate() {
            order.push((at, place(charge)?));
        }
        let ascends = |order: &[(usize, &Place)]| order.is_sorted_by(|(_, one), (_, next)| one.number < next.number);
        if !ascends(&order) {
            order.sort_unstable_by_key(|(_, place)| place.number);
            if !ascends(&order) {
                // A second lock on the same table could wait for the first for ever.
                return Err(StoreError::new("two charges of one request on one rule"));
            }
        }
        let pending = Judged::new(Verdict::new(Outcome::Pass, 0, 0, None), None);
        verdicts.fill(pending, charges.len());
        Ok(Self { now, charges, order, verdicts, untidy: SmallVec::new(), final_try: false, against: Against::Nobody })
    }

    fn run(mut self) {
        if !self.visit(0) {
            // Nothing was charged. Make room with no lock held, then ask again.
            for (at, place) in &self.order {
                if let Some(charge) = self.charges.get(*at) {
                    place.table.make_room(charge.key, self.now);
                }
            }
            (self.final_try, self.against) = (true, Against::Nobody);
            self.visit(0);
            for (at, place) in &self.order {
                if self.verdicts.iter().nth(*at).is_some_and(|judged| judged.verdict.untracked) {
                    place.table.report_full();
                }
            }
        }
        for (key, place) in &self.untidy {
            place.table.tidy(*key, self.now);
        }
    }

    /// Locks and looks at the buckets from `depth` on, and on the way back charges them, or none. Returns whether there was
    /// room for all; where there was not, nothing is charged.
    fn visit(&mut self, depth: usize) -> bool {
        let Some(&(at, place)) = self.order.get(depth) else { return true };
        let Some(&charge) = self.charges.get(at) else { return false };
        let (now, final_try) = (self.now, self.final_try);
        let visit = place.table.visit(now, &charge, true, final_try, &mut |passes| {
            if !passes {
                self.against = self.against.and(at);
            }
            if self.visit(depth + 1) { self.against.settles(&charge) } else { Settled::NoRoom }
        });
        self.verdicts.set(at, visit.judged);
        if visit.untidy {
            self.untidy.push((charge.key, place));
        }
        visit.settled != Settled::NoRoom
    }
}
