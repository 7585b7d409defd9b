//! What a rule and a store say to each other: plain data, without a request, a header or a closure in it.

mod ending;
mod failure;

pub(crate) use ending::{ByOutcome, Condition, Ending};
pub use failure::{FailurePolicy, Share};

use std::{any::Any, borrow::Cow, fmt, sync::Arc};

use crate::{
    bucket::{Algorithm, Mark},
    decision::{Source, Verdict},
    few::Few,
    key::KeyId,
    limit::Limit,
    time::Nanos,
};

/// What a store has to know of a rule to keep its buckets.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RuleSpec {
    /// The rule's name. Rules of equal name on one store share their counts.
    pub name: Cow<'static, str>,
    /// The name it had before, from which its counts go on.
    pub was: Option<Cow<'static, str>>,
    /// How it counts.
    pub algorithm: Algorithm,
    /// Its limit; a charge may carry another one.
    pub limit: Limit,
    /// Whether it has keys, or one count for all.
    pub keyed: bool,
    /// What happens to its requests while the store does not answer; `None` where the rule does not say.
    pub on_store_failure: Option<FailurePolicy>,
}

impl RuleSpec {
    /// Returns a rule that has keys, and does not say what happens while the store does not answer.
    ///
    /// [`Limiter::builder`](crate::Limiter::builder) makes these from its rules; a test of a store, or a program that
    /// uses one without a limiter, makes its own.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{
    ///     Key, Limit,
    ///     bucket::Algorithm,
    ///     charge::{Charge, RuleSpec, Verdicts},
    ///     store::{MemoryStore, Reply, Store},
    ///     time::Nanos,
    /// };
    ///
    /// let (store, limit) = (MemoryStore::new(), Limit::per_minute(1));
    /// let slot = store.bind(&RuleSpec::new("user", Algorithm::TokenBucket, limit), None)?;
    /// let charge = Charge::new(&slot, Key::from("ana").id(store.secret()), limit, 1);
    /// let passes = || {
    ///     let mut verdicts = Verdicts::new();
    ///     assert!(matches!(store.decide(Nanos::ZERO, &[charge], &mut verdicts), Reply::Ready(Ok(()))));
    ///     verdicts.iter().all(|judged| judged.verdict.outcome.passes())
    /// };
    /// assert!(passes());
    /// assert!(!passes());
    /// # Ok::<(), tollgate::Unsupported>(())
    /// ```
    pub fn new(name: impl Into<Cow<'static, str>>, algorithm: Algorithm, limit: Limit) -> Self {
        Self { name: name.into(), was: None, algorithm, limit, keyed: true, on_store_failure: None }
    }

    /// Sets the name it had before.
    #[must_use]
    pub fn was(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.was = Some(name.into());
        self
    }

    /// Sets that the rule has one count for all: its charges have [`KeyId::NONE`].
    #[must_use]
    pub fn global(mut self) -> Self {
        self.keyed = false;
        self
    }

    /// Sets what happens to the rule's requests while the store does not answer.
    #[must_use]
    pub fn on_store_failure(mut self, policy: FailurePolicy) -> Self {
        self.on_store_failure = Some(policy);
        self
    }
}

/// A store's own handle for a rule: where its buckets are. Cheap to clone.
#[derive(Clone)]
pub struct Slot(Arc<dyn Any + Send + Sync>);

impl Slot {
    /// Wraps what the store wants to find again.
    pub fn new<T: Any + Send + Sync>(place: T) -> Self {
        Self(Arc::new(place))
    }

    /// Wraps what the store shares with it.
    pub fn shared<T: Any + Send + Sync>(place: Arc<T>) -> Self {
        Self(place)
    }

    /// Returns what was wrapped, or `None` where another store made the slot.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl Slot {
    /// As [`get`](Self::get), to be kept.
    pub(crate) fn shared_as<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.0).downcast().ok()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slot(..)")
    }
}

/// When a charge is taken.
///
/// More may come. A store that is asked for one it does not know fails the decision with a
/// [`StoreError`](crate::StoreError).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Take {
    /// When it passes, and every charge that votes does.
    #[default]
    IfPassed,
    /// Whether or not the request passes.
    Always,
    /// Not at all: it only looks.
    Never,
}

/// One rule's part of a request.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Charge<'a> {
    /// Where the store keeps the rule's buckets.
    pub slot: &'a Slot,
    /// Whose bucket.
    pub key: KeyId,
    /// The limit in force for this request.
    pub limit: Limit,
    /// How many permits; zero only looks.
    pub cost: u64,
    /// How many permits must be left.
    pub keep: u64,
    /// How long the request may be held; zero where it may not.
    pub max_delay: Nanos,
    /// Whether it can refuse the request.
    pub votes: bool,
    /// When it is taken.
    pub take: Take,
    /// The number, among the request's charges, of the one in whose place this one stands: it is taken as if that one
    /// were not there. `None` for all but limits that are tried beside another one.
    pub in_place_of: Option<usize>,
}

impl<'a> Charge<'a> {
    /// Returns a charge of `cost` permits that votes and is taken if the request passes.
    pub const fn new(slot: &'a Slot, key: KeyId, limit: Limit, cost: u64) -> Self {
        Self {
            slot,
            key,
            limit,
            cost,
            keep: 0,
            max_delay: Nanos::ZERO,
            votes: true,
            take: Take::IfPassed,
            in_place_of: None,
        }
    }
}

/// A store's answer to one charge.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Judged {
    /// The bucket's answer; after the charge where it was taken.
    pub verdict: Verdict,
    /// Where the charge stands, where it was taken.
    pub mark: Option<Mark>,
    /// What the store knows the bucket by that it was taken from; any number.
    pub stamp: u64,
}

impl Judged {
    /// Returns an answer.
    pub const fn new(verdict: Verdict, mark: Option<Mark>) -> Self {
        Self { verdict, mark, stamp: 0 }
    }

    /// The answer to a charge that was taken.
    #[inline]
    pub(crate) const fn taken((verdict, mark): (Verdict, Mark)) -> Self {
        Self::new(verdict, Some(mark))
    }

    /// Sets what the store knows the bucket by; [`Taken::stamp`] has it again.
    #[must_use]
    pub const fn stamped(mut self, stamp: u64) -> Self {
        self.stamp = stamp;
        self
    }
}

/// A store's answers to a request's charges, in their order.
#[derive(Debug, Clone, Default)]
pub struct Verdicts {
    answers: Few<Judged>,
    /// For most stores nothing.
    beside: Option<Box<TakenBeside>>,
}

/// What was taken beside a request's charges, by their numbers.
#[derive(Debug, Clone, Default)]
struct TakenBeside(Vec<(usize, Taken)>);

impl Verdicts {
    /// Returns no answers yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the answer to the next charge.
    #[inline]
    pub fn push(&mut self, judged: Judged) {
        self.answers.push(judged);
    }

    /// As [`push`](Self::push), written where it stays.
    #[inline(always)]
    pub(crate) fn push_made(&mut self, make: impl FnOnce() -> Judged) {
        self.answers.push_made(make);
    }

    /// `count` answers, all the same for now.
    pub(crate) fn fill(&mut self, judged: Judged, count: usize) {
        self.answers = Few::alike(judged, count);
    }

    pub(crate) fn set(&mut self, at: usize, judged: Judged) {
        if let Some(place) = self.answers.get_mut(at) {
            *place = judged;
        }
    }

    /// Returns the answers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Judged> {
        self.answers.iter()
    }

    /// The answer, where there is one.
    #[inline]
    pub(crate) fn only(&self) -> Option<&Judged> {
        self.answers.only()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Says that charge number `at` was taken in a second place too, or there alone.
    pub(crate) fn put_beside(&mut self, at: usize, taken: Taken) {
        self.beside.get_or_insert_default().0.push((at, taken));
    }

    pub(crate) fn beside(&self, at: usize) -> Option<&Taken> {
        self.beside.as_ref()?.0.iter().find(|(charge, _)| *charge == at).map(|(_, taken)| taken)
    }
}

/// A charge that was taken and may be given back or settled.
///
/// A clone is the same charge, for a store that has to note what it changes later. Of several only one is to be
/// [adjusted](crate::store::Store::adjust): what comes back twice may be somebody else's.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Taken {
    /// Where the store keeps the rule's buckets.
    pub slot: Slot,
    /// Whose bucket.
    pub key: KeyId,
    /// The limit it was taken under.
    pub limit: Limit,
    /// What it stands at now.
    pub cost: u64,
    /// Where in the bucket it stands.
    pub mark: Mark,
    /// What the store gave with it: [`Judged::stamp`].
    pub stamp: u64,
    /// Whether the rule holds requests until their turn.
    pub delays: bool,
    /// What was charged in addition when it was settled, and where that stands; part of `cost`.
    pub added: Vec<(u64, Mark)>,
    /// Who judged it, and so who was charged.
    pub source: Source,
    /// The same charge in a second place of the store's.
    pub(crate) beside: Option<Box<Taken>>,
}

impl Taken {
    /// Returns a taken charge.
    pub const fn new(slot: Slot, key: KeyId, limit: Limit, cost: u64, mark: Mark) -> Self {
        Self {
            slot,
            key,
            limit,
            cost,
            mark,
            stamp: 0,
            delays: false,
            added: Vec::new(),
            source: Source::Store,
            beside: None,
        }
    }
}
