//! Where buckets live: the [`Store`] contract, the [`MemoryStore`], and [`Guarded`] for stores that can fail.

mod guarded;
mod held;
mod lock;
mod memory;
mod queue;
mod receipt;
#[cfg(feature = "redis")]
mod redis;

pub use guarded::{Guarded, GuardedBuilder, GuardedCounts};
pub use held::HeldReceipt;
pub(crate) use held::{EndsOnDrop, Ongoing};
pub(crate) use memory::{Answer, Direct, Questions};
pub use memory::{MemoryCounts, MemoryStore, MemoryStoreBuilder, Overflow};
pub(crate) use queue::{Queue, Ticket};
pub use receipt::Receipt;
#[cfg(feature = "redis")]
pub use redis::{RedisStore, RedisStoreBuilder};

use crate::{
    charge::{Charge, RuleSpec, Slot, Taken, Verdicts},
    error::{StoreError, Unsupported},
    key::{KeyId, Secret},
    time::{BoxFuture, Nanos},
};

/// A store's answer: at once, or later.
///
/// What comes later may be of another type: [`Store::decide`] writes what it knows at once into the caller's
/// [`Verdicts`], and returns verdicts of its own where it has to ask somebody.
pub enum Reply<Now, Later = Now> {
    /// Here it is.
    Ready(Result<Now, StoreError>),
    /// It will come.
    Pending(BoxFuture<'static, Result<Later, StoreError>>),
}

impl<Now: std::fmt::Debug, Later> std::fmt::Debug for Reply<Now, Later> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ready(result) => f.debug_tuple("Ready").field(result).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}

/// Where buckets live: one atomic operation over all charges of a request.
///
#[doc = include_str!("contract.md")]
///
/// # Examples
///
/// A store that lets everything pass and keeps nothing:
///
/// ```
/// use tollgate::{
///     Key, Limit, Limiter, Rule,
///     charge::{Charge, Judged, RuleSpec, Slot, Taken, Verdicts},
///     decision::{Outcome, Verdict},
///     key::{KeyId, Secret},
///     store::{Reply, Store},
///     time::Nanos,
/// };
///
/// struct Open(Secret);
///
/// impl Store for Open {
///     fn secret(&self) -> &Secret {
///         &self.0
///     }
///     fn bind(&self, _: &RuleSpec, _: Option<&Slot>) -> Result<Slot, tollgate::Unsupported> {
///         Ok(Slot::new(()))
///     }
///     fn decide(&self, _: Nanos, charges: &[Charge<'_>], verdicts: &mut Verdicts) -> Reply<(), Verdicts> {
///         for charge in charges {
///             let limit = charge.limit.capacity();
///             verdicts.push(Judged::new(Verdict::new(Outcome::Pass, limit, limit, None), None));
///         }
///         Reply::Ready(Ok(()))
///     }
///     fn adjust(&self, _: Nanos, _: &mut Taken, _: u64) {}
///     fn reset(&self, _: &Slot, _: KeyId) -> Reply<()> {
///         Reply::Ready(Ok(()))
///     }
/// }
///
/// let rule = Rule::new("open", Limit::per_second(1), |id: &u64| Some(Key::from(*id)));
/// let limiter = Limiter::builder([rule]).store(Open(Secret::random())).build()?;
/// assert!((0..9).all(|_| limiter.check_now(&7).unwrap().is_allowed()));
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
pub trait Store: Send + Sync + 'static {
    /// Returns the secret under which the limiter turns keys into [`KeyId`]s. It MUST stay the same.
    fn secret(&self) -> &Secret;

    /// Returns the place of a rule's buckets, or why the store cannot run it. `before` is the rule's place in a set of
    /// rules that this one replaces.
    fn bind(&self, spec: &RuleSpec, before: Option<&Slot>) -> Result<Slot, Unsupported>;

    /// Judges all charges of a request at `now`, and takes them.
    ///
    /// A store that answers at once pushes its answers to `verdicts`, which is empty, and returns
    /// `Reply::Ready(Ok(()))`; one that has to ask somebody returns them by its future.
    fn decide(&self, now: Nanos, charges: &[Charge<'_>], verdicts: &mut Verdicts) -> Reply<(), Verdicts>;

    /// Sets what a taken charge stands at, in `taken` too: zero gives it back, less gives a part back, and more counts
    /// from now and may make debt.
    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64);

    /// Forgets what a key has used. In-flight counts are not touched.
    fn reset(&self, slot: &Slot, key: KeyId) -> Reply<()>;

    /// Returns whether rules with [`FailurePolicy::Fallback`](crate::charge::FailurePolicy::Fallback) are answered
    /// while the buckets cannot be reached: because there is a fallback, or because that cannot happen. Unless
    /// overridden there is none, and such a rule is an error when rules are put together. A store around another one
    /// asks that one.
    fn has_fallback(&self) -> bool {
        false
    }

    /// Returns what this process holds of a rule's buckets, for [`Limiter::stats`](crate::Limiter::stats); `None` where
    /// they are elsewhere, or nobody counts them. Unless overridden it is `None`; a store around another one asks that
    /// one.
    fn counts_of(&self, _slot: &Slot) -> Option<MemoryCounts> {
        None
    }

    /// Tells the installed [recorder](crate::guide::observing) what the store holds, by rule, where it holds anything
    /// in this process. Called along with a decision, at most once in ten seconds a limiter, and by
    /// [`Limiter::publish_metrics`](crate::Limiter::publish_metrics). Unless overridden nothing is told; a store around
    /// another one asks that one.
    fn publish_metrics(&self) {}

    /// Finds out whether the store would answer requests again, for a [`Guarded`] store whose circuit is open. `charge`
    /// only looks: it is [never](crate::charge::Take::Never) taken.
    ///
    /// It MAY take longer than a decision may: it is given 100 ms, or the deadline where that is longer.
    ///
    /// Unless overridden it is decided as any other. A store in which looking can succeed while charging fails (a
    /// replica, a server that is full) SHOULD override it and find that out.
    fn probe(&self, now: Nanos, charge: Charge<'_>) -> Reply<(), Verdicts> {
        self.decide(now, &[charge], &mut Verdicts::new())
    }
}
