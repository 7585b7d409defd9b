//! The tables of one rule, one behind the other: a rule that counts by another algorithm than before has another table.
//!
//! A key's bucket is in one of them. It leaves the older table inside the first decision by the newer one, under both
//! locks, the newer one's first; from then on whoever still decides by the older table does not find it there and is
//! sent on. A newer table begins to be one with the first request that is decided by it, so that rules which were bound
//! and then given up have changed nothing.

use std::{
    cmp::Reverse,
    ops::Deref,
    ptr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use super::{Bound, Place, evict::Count, map::MapTable, sharded::ShardedTable, table::AnyTable};
use crate::{
    bucket::{Algorithm, FixedWindow, InFlight, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket},
    charge::{Charge, RuleSpec},
    key::KeyHash,
    limit::Limit,
};

/// Numbers are unique in the process, so that even tables of different stores have one order.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);
const WITHOUT_KEYS: u64 = 1 << 63;

/// The buckets of a rule under one algorithm.
pub(super) struct Table {
    /// Locks are taken in the order of these numbers, which a rule's tables share: the newer one first. Rules without
    /// keys, whose one bucket everybody wants, have the highest, so that they are locked last and for the shortest
    /// time.
    number: u64,
    generation: u32,
    pub(super) algorithm: Algorithm,
    pub(super) keyed: bool,
    /// What is in force for a charge that was sent here under a limit that this algorithm cannot run.
    limit: Limit,
    pub(super) buckets: AnyBuckets,
}

/// The usual algorithm's buckets at hand, and those of others.
#[allow(clippy::large_enum_variant, reason = "one a rule, behind a counted reference; the larger one is the usual one")]
pub(super) enum AnyBuckets {
    Token(ShardedTable<TokenBucket>),
    Other(Box<dyn AnyTable>),
}

impl AnyBuckets {
    fn new(make: Make<'_>) -> Self {
        Self::Other(match &make.spec.algorithm {
            Algorithm::TokenBucket => return Self::Token(ShardedTable::new(TokenBucket, make)),
            Algorithm::FixedWindow => Box::new(ShardedTable::new(FixedWindow, make)),
            Algorithm::SlidingWindowLog => Box::new(MapTable::new(SlidingWindowLog, make)),
            Algorithm::SlidingWindowCounter => Box::new(ShardedTable::new(SlidingWindowCounter, make)),
            Algorithm::LeakyBucket => Box::new(ShardedTable::new(LeakyBucket, make)),
            Algorithm::InFlight => Box::new(MapTable::new(InFlight, make)),
            Algorithm::Custom(bucket) => Box::new(MapTable::new(bucket.clone(), make)),
        })
    }
}

impl Deref for AnyBuckets {
    type Target = dyn AnyTable;

    #[inline]
    fn deref(&self) -> &Self::Target {
        match self {
            Self::Token(table) => table,
            Self::Other(table) => &**table,
        }
    }
}

/// What is before a table, and what is behind it.
pub(super) struct Line {
    /// Whether there is a table before. Relaxed: it is set before anybody knows of the table, and a stale `true` costs
    /// a look.
    has_before: AtomicBool,
    before: Mutex<Option<Arc<Table>>>,
    /// Whether the table has taken its place behind the one before. Set with [`SUCCESSION`] held, and read under the
    /// lock of a bucket; it pairs with the store in [`Table::begin`].
    has_begun: AtomicBool,
    /// Whether a newer table has begun. It is set before any bucket leaves, and read under the lock of the bucket that
    /// is missed, which whoever took it away has held since.
    has_next: AtomicBool,
    next: Mutex<Option<Weak<Table>>>,
}

/// Held while a table begins, of whatever rule: once a table.
static SUCCESSION: Mutex<()> = Mutex::new(());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Line {
    /// The line of a table that will follow `before`.
    pub(super) fn behind(before: Option<Arc<Table>>) -> Self {
        let has_before = AtomicBool::new(before.is_some());
        let has_begun = AtomicBool::new(before.is_none());
        let (has_next, next) = (AtomicBool::new(false), Mutex::default());
        Self { has_before, before: Mutex::new(before), has_begun, has_next, next }
    }

    #[inline]
    pub(super) fn has_before(&self) -> bool {
        self.has_before.load(Ordering::Relaxed)
    }

    pub(super) fn before(&self) -> Option<Arc<Table>> {
        if self.has_before() { lock(&self.before).clone() } else { None }
    }

    /// The table whose keys come here next: the one before, or for who looks here before this one has begun, the newest
    /// that has. **Locking**: a bucket's lock may be held; nothing that is behind this table is looked at.
    pub(super) fn source(&self) -> Option<Arc<Table>> {
        let mut source = self.before()?;
        if !self.has_begun.load(Ordering::Acquire) {
            while let Some(next) = source.line().next().filter(|next| !ptr::eq(next.line(), self)) {
                source = next;
            }
        }
        Some(source)
    }

    /// Lets go of the tables before, of which there is nothing left.
    pub(super) fn let_go(&self) {
        self.has_before.store(false, Ordering::Relaxed);
        drop(lock(&self.before).take());
    }

    /// Whether a decision on a key that is not here has to be made by another table, or by this one once it has begun,
    /// which it need not have for who only `looks`.
    #[inline]
    pub(super) fn sends_on(&self, looks: bool) -> bool {
        self.has_next.load(Ordering::Acquire) || (!looks && !self.has_begun.load(Ordering::Acquire))
    }

    fn next(&self) -> Option<Arc<Table>> {
        if !self.has_next.load(Ordering::Acquire) {
            return None;
        }
        let next = self.alive();
        if next.is_none() {
            // Whoever counted by it is gone. Another one that begins meanwhile sets it again.
            let _turn = lock(&SUCCESSION);
            if self.alive().is_none() {
                self.has_next.store(false, Ordering::Release);
            }
        }
        next
    }

    fn alive(&self) -> Option<Arc<Table>> {
        lock(&self.next).as_ref()?.upgrade()
    }
}

impl Table {
    /// Makes the table of `spec`, behind `before`, where there is one.
    pub(super) fn new(spec: &RuleSpec, bound: Bound, before: Option<Arc<Self>>) -> Arc<Self> {
        let (number, generation, kin) = match &before {
            Some(before) => (before.number, before.generation + 1, before.buckets.kin().clone()),
            None => {
                let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed) | if spec.keyed { 0 } else { WITHOUT_KEYS };
                (number, 0, Kin::new(bound.max_keys))
            }
        };
        let (algorithm, keyed, limit) = (spec.algorithm.clone(), spec.keyed, spec.limit);
        let buckets = AnyBuckets::new(Make { spec, bound, kin, line: Line::behind(before) });
        Arc::new(Self { number, generation, algorithm, keyed, limit, buckets })
    }

    /// The order in which locks are taken.
    pub(super) fn order(&self) -> (u64, Reverse<u32>) {
        (self.number, Reverse(self.generation))
    }

    /// The rule's part of it.
    pub(super) fn turn(&self) -> u64 {
        self.number
    }

    /// Whether the tables are of one rule.
    pub(super) fn is_kin_of(&self, other: &Self) -> bool {
        self.number == other.number
    }

    pub(super) fn line(&self) -> &Line {
        self.buckets.line()
    }

    /// The newest table behind this one that has begun, or this one.
    pub(super) fn newest(self: &Arc<Self>) -> Arc<Self> {
        let mut newest = Arc::clone(self);
        while let Some(next) = newest.line().next() {
            newest = next;
        }
        newest
    }

    /// Takes its place behind the newest table that has begun.
    fn begin(self: &Arc<Self>) {
        let turn = lock(&SUCCESSION);
        if self.line().has_begun.load(Ordering::Acquire) {
            return;
        }
        let before = lock(&self.line().before).clone();
        if let Some(before) = before {
            let mut newest = before;
            while let Some(next) = newest.line().alive() {
                newest = next;
            }
            *lock(&newest.line().next) = Some(Arc::downgrade(self));
            newest.line().has_next.store(true, Ordering::Release);
            *lock(&self.line().before) = Some(newest);
        }
        // What was charged in a table before has another life than whatever begins here.
        self.buckets.kin().next_era();
        self.line().has_begun.store(true, Ordering::Release);
        drop(turn);
    }

    /// The table that decides on keys which this one has not.
    pub(super) fn in_charge(self: &Arc<Self>) -> Arc<Self> {
        self.begin();
        self.newest()
    }

    /// The limit for a charge that was sent here under `limit`.
    pub(super) fn limit_of(&self, limit: Limit) -> Limit {
        if self.algorithm.check(&limit).is_ok() { limit } else { self.limit }
    }

    /// Whether it will follow `other`, or does.
    pub(super) fn is_behind(&self, other: &Arc<Self>) -> bool {
        let mut before = self.line().before();
        while let Some(table) = before {
            if Arc::ptr_eq(&table, other) {
                return true;
            }
            before = table.line().before();
        }
        false
    }

    /// Sees to it that there are at most two tables before one that will follow this one: keys that nobody has asked
    /// for since the last but one go over as they were when something last happened to them.
    pub(super) fn shorten(&self) {
        let Some(before) = self.line().before() else { return };
        let Some(oldest) = before.line().before() else { return };
        oldest.buckets.each_key(&mut |key, seen| before.buckets.pull(key, seen));
        before.line().let_go();
    }

    /// Calls `f` with this table and all before it.
    pub(super) fn each(self: &Arc<Self>, f: &mut impl FnMut(&Arc<Self>)) {
        let mut table = Some(Arc::clone(self));
        while let Some(this) = table {
            f(&this);
            table = this.line().before();
        }
    }
}

/// Whether a charge's limit is its rule's own, so that most others will be under it.
pub(super) fn is_own_limit(charge: &Charge<'_>) -> bool {
    let is_own = |place: &Place| place.limit == charge.limit && !place.table.line().sends_on(true);
    charge.slot.get::<Place>().is_some_and(is_own)
}

/// What a table's buckets are made for.
pub(super) struct Make<'a> {
    pub(super) spec: &'a RuleSpec,
    pub(super) bound: Bound,
    pub(super) kin: Kin,
    pub(super) line: Line,
}

/// What the tables of one rule share.
#[derive(Clone)]
pub(super) struct Kin {
    pub(super) hash: KeyHash,
    pub(super) count: Arc<Count>,
    /// The lives begun by resets, changed limits and set clocks. Relaxed is enough within a table: it is raised under
    /// the lock of the bucket that goes, which whoever makes its successor takes after.
    era: Arc<AtomicU32>,
}

impl Kin {
    pub(super) fn new(max_keys: usize) -> Self {
        Self { hash: KeyHash::random(), count: Arc::new(Count::up_to(max_keys)), era: Arc::default() }
    }

    /// The present life of buckets that begin now.
    #[inline]
    pub(super) fn era(&self) -> u32 {
        self.era.load(Ordering::Relaxed)
    }

    pub(super) fn next_era(&self) -> u32 {
        self.era.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

#[cfg(test)]
mod tests;
