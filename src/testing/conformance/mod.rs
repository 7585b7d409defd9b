//! The suite that every [`Store`] must pass: one check for each numbered sentence of [its contract](Store#contract).
//!
//! # Examples
//!
//! ```
//! use tollgate::{store::MemoryStore, testing::conformance::Conformance};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
//! # runtime.block_on(async {
//! Conformance::of(async || MemoryStore::new())
//!     .given_time()
//!     .tracked_keys(MemoryStore::tracked_keys)
//!     .check()
//!     .await
//!     .unwrap_or_else(|violations| panic!("{violations}"));
//! # });
//! ```

mod adjusting;
mod bench;
mod deciding;
mod replacing;
mod together;
mod trying;

use std::{error::Error, fmt, sync::Arc};

use self::bench::Bench;
use crate::{
    bucket::Algorithm,
    key::Secret,
    store::Store,
    time::{BoxFuture, Clock, SystemClock},
};

/// Checks stores against the contract.
///
/// Each sentence is checked with each of the six algorithms that the store can [`bind`](Store::bind), on rules of names
/// of its own, so that stores on one server do not disturb each other. Limits are over a hundred days, so that a slow
/// machine changes nothing. Needs a tokio runtime with time enabled; nothing sleeps unless the store's `adjust` acts
/// later.
#[must_use]
pub struct Conformance<S> {
    make: Box<dyn Fn() -> BoxFuture<'static, S> + Send + Sync>,
    tracked_keys: Option<fn(&S) -> usize>,
    given_time: bool,
}

/// One sentence of the contract, with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Clause {
    /// Its number.
    pub number: usize,
    /// The sentence.
    pub says: &'static str,
}

/// How a store broke a sentence of the contract.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The sentence.
    pub clause: Clause,
    /// The algorithm it was checked with.
    pub algorithm: &'static str,
    /// What happened.
    pub what: String,
}

/// Every sentence that a store broke.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violations(Vec<Violation>);

type Check = for<'a> fn(&'a Bench) -> BoxFuture<'a, Result<(), String>>;

/// What a store is checked with.
const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::TokenBucket,
    Algorithm::FixedWindow,
    Algorithm::SlidingWindowLog,
    Algorithm::SlidingWindowCounter,
    Algorithm::LeakyBucket,
    Algorithm::InFlight,
];

/// The checks, in the order of the sentences.
const CHECKS: [Check; 24] = [
    |bench| Box::pin(deciding::order(bench)),
    |bench| Box::pin(deciding::all_or_nothing(bench)),
    |bench| Box::pin(deciding::refusals(bench)),
    |bench| Box::pin(deciding::whose(bench)),
    |bench| Box::pin(deciding::costs(bench)),
    |bench| Box::pin(trying::votes(bench)),
    |bench| Box::pin(deciding::keep(bench)),
    |bench| Box::pin(together::exactness(bench)),
    |bench| Box::pin(adjusting::back(bench)),
    |bench| Box::pin(adjusting::harmless(bench)),
    |bench| Box::pin(adjusting::more(bench)),
    |bench| Box::pin(adjusting::from_anywhere(bench)),
    |bench| Box::pin(adjusting::reset(bench)),
    |bench| Box::pin(together::dropped(bench)),
    |bench| Box::pin(deciding::limits(bench)),
    |bench| Box::pin(deciding::waits(bench)),
    |bench| Box::pin(deciding::turns(bench)),
    |bench| Box::pin(deciding::secret(bench)),
    |bench| Box::pin(deciding::probe(bench)),
    |bench| Box::pin(trying::in_place_of(bench)),
    |bench| Box::pin(replacing::goes_on(bench)),
    |bench| Box::pin(replacing::by_another_algorithm(bench)),
    |bench| Box::pin(replacing::unused(bench)),
    |bench| Box::pin(adjusting::places(bench)),
];

/// Returns the sentences of the contract that are checked.
pub fn clauses() -> impl Iterator<Item = Clause> {
    include_str!("../../store/contract.md").lines().filter_map(|line| {
        let (number, says) = line.split_once(". ")?;
        Some(Clause { number: number.parse().ok()?, says })
    })
}

impl<S: Store> Conformance<S> {
    /// Returns the suite for the stores that `make` returns. It is called often, and may return connections to one
    /// server. A closure that holds something returns a future that holds it too:
    /// `move || { let url = url.clone(); async move { .. } }`.
    pub fn of<F, T>(make: F) -> Self
    where
        F: Fn() -> T + Send + Sync + 'static,
        T: Future<Output = S> + Send + 'static,
    {
        Self { make: Box::new(move || Box::pin(make())), tracked_keys: None, given_time: false }
    }

    /// Says that the store decides at the time it is given and has no clock of its own, so that time can be checked
    /// too.
    pub fn given_time(mut self) -> Self {
        self.given_time = true;
        self
    }

    /// Says how many buckets a store holds, so that it can be checked that a refusal creates none.
    pub fn tracked_keys(mut self, tracked_keys: fn(&S) -> usize) -> Self {
        self.tracked_keys = Some(tracked_keys);
        self
    }

    /// Checks every sentence.
    ///
    /// # Errors
    ///
    /// With everything that was broken, where anything was; also where the store can bind none of the algorithms.
    pub async fn check(&self) -> Result<(), Violations> {
        let mut violations = Vec::new();
        let mut bound = 0;
        for algorithm in ALGORITHMS {
            if self.bench(&algorithm).await.place("bound", 6).is_err() {
                continue;
            }
            bound += 1;
            for (clause, check) in clauses().zip(CHECKS) {
                if let Err(what) = check(&self.bench(&algorithm).await).await {
                    violations.push(Violation { clause, algorithm: algorithm.name(), what });
                }
            }
        }
        if let (0, Some(clause)) = (bound, clauses().next()) {
            violations.push(Violation { clause, algorithm: "any", what: "no algorithm could be bound".into() });
        }
        if violations.is_empty() { Ok(()) } else { Err(Violations(violations)) }
    }

    async fn bench(&self, algorithm: &Algorithm) -> Bench {
        let store = Arc::new((self.make)().await);
        let tracked_keys = self.tracked_keys.map(|tracked_keys| {
            let store = Arc::clone(&store);
            Box::new(move || tracked_keys(&store)) as Box<dyn Fn() -> usize + Send + Sync>
        });
        // Two names that nobody else has: a random secret makes each number another text.
        let tag = crate::key::Key::from("a name of its own, longer than fifteen bytes").id(&Secret::random());
        Bench {
            store,
            algorithm: algorithm.clone(),
            now: SystemClock::new().now(),
            tag: tag.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect(),
            given_time: self.given_time,
            tracked_keys,
        }
    }
}

impl Violations {
    /// Returns them, in the order in which they were found.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Violation> {
        self.0.iter()
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, s) = (self.0.len(), if self.0.len() == 1 { "" } else { "s" });
        write!(f, "{count} violation{s} of the contract of a store:")?;
        for Violation { clause, algorithm, what } in &self.0 {
            write!(f, "\n{} ({algorithm}): {what}\n    {}", clause.number, clause.says)?;
        }
        Ok(())
    }
}

impl Error for Violations {}

impl<S> fmt::Debug for Conformance<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conformance").field("given_time", &self.given_time).finish_non_exhaustive()
    }
}
