mod builder;
mod core;
mod explain;
mod judge;
mod reload;
mod report;
mod stats;
mod tried;
mod waiting;

pub(crate) use self::core::{Intent, Judgement, Judging, Unanswered};
pub use builder::LimiterBuilder;
pub use explain::{ExplainedRule, Explanation};
pub(crate) use judge::{Answered, Unanswerable};
use reload::Shared;
pub use reload::{ReloadCounts, Reloaded};
pub use stats::RuleStats;

use std::{fmt, sync::Arc, time::Duration};

use smallvec::SmallVec;

use self::core::{Bound, Core};
pub(crate) use self::waiting::Waiting;
use crate::{
    decision::Decision,
    error::{Error, ErrorKind},
    key::{Key, KeyId},
    observe::Observed,
    rule::{Rule, Rules},
    store::{Direct, Receipt, Reply},
    time::Clock,
};

/// The whole engine without a service: rules, a store and a clock. Clones share everything.
///
/// Use it directly for jobs, websockets and other protocols; [`RateLimitLayer`](crate::RateLimitLayer) puts it in
/// front of a tower service.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, Limit, Limiter, Rule};
///
/// struct Job {
///     tenant: String,
///     pages: u64,
/// }
///
/// let limiter = Limiter::new([
///     Rule::new("tenant", Limit::per_minute(100), |job: &Job| Some(Key::from(&job.tenant))).cost(|job| job.pages),
///     Rule::global("all", Limit::per_minute(1_000)).cost(|job: &Job| job.pages).overload(),
/// ]);
/// let job = Job { tenant: "acme".into(), pages: 60 };
/// assert!(limiter.check_now(&job)?.is_allowed());
/// assert!(!limiter.check_now(&job)?.is_allowed()); // 40 left for the tenant, and the refusal charged nothing
/// # Ok::<(), tollgate::Error>(())
/// ```
pub struct Limiter<Req> {
    shared: Arc<Shared<Req>>,
}

/// The rules in force, and what they were bound to: what a request sees of the limiter, from beginning to end.
pub(crate) struct Generation<Req> {
    rules: Rules<Req>,
    core: Arc<Core>,
    plain: Plain,
    on_decision: Option<Hook<Req>>,
    observed: Observed,
}

/// Whether there is nothing about the rules but a limit each, so that most steps of a decision can be left out.
enum Plain {
    No,
    /// The only one; with its buckets, where they are in memory.
    One(Option<Direct>),
    /// Each of them in memory.
    Several(Box<[Direct]>),
}

type Hook<Req> = Arc<dyn Fn(&Req, &Decision) + Send + Sync>;

impl<Req> Limiter<Req> {
    /// Returns a limiter over `rules` with a memory store and the system clock.
    ///
    /// # Panics
    ///
    /// Where the rules cannot work; [`builder`](Self::builder) returns that as an error.
    #[track_caller]
    pub fn new(rules: impl IntoIterator<Item = Rule<Req>>) -> Self {
        match Self::builder(rules).build() {
            Ok(limiter) => limiter,
            #[allow(clippy::panic, reason = "documented, at the caller's line, with a fallible twin")]
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns a builder over `rules`.
    pub fn builder(rules: impl IntoIterator<Item = Rule<Req>>) -> LimiterBuilder<Req> {
        LimiterBuilder::new(rules.into_iter().collect())
    }

    /// Decides whether `request` passes **now**, and charges it if it does. Where a rule would delay it, it is refused
    /// and charged nothing. The future holds `request`: [in a handler](crate::guide::layers) give it the head alone.
    ///
    /// # Errors
    ///
    /// Where the store fails. Where a rule of the limiter is [in flight](crate::Limit::in_flight) or counts by outcome,
    /// always ([`ErrorKind::NeedsReceipt`]): use [`reserve`](Self::reserve), whose receipt ends what was charged.
    ///
    /// # Cancel safety
    ///
    /// The memory store answers at once, so there is nothing to cancel.
    pub async fn check(&self, request: &Req) -> Result<Decision, Error> {
        let rules = self.generation();
        rules.needs_no_receipt()?;
        let mut decision = rules.undecided();
        rules.judge(request, Intent::Start, &mut decision).wait(&mut decision).await?;
        rules.report(request, &decision);
        Ok(decision)
    }

    /// As [`check`](Self::check), for plain threads.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), and where the store does not answer at once ([`ErrorKind::NotReady`]).
    #[inline]
    pub fn check_now(&self, request: &Req) -> Result<Decision, Error> {
        let rules = self.in_force();
        let answered = rules.at_once(request);
        match &answered {
            Ok(answered) if answered.passes() && rules.is_unwatched() => {
                rules.count_pass(answered.at());
                // Written where it is returned.
                Ok(rules.passed(answered))
            }
            _ => rules.check_otherwise(request, answered),
        }
    }

    /// As [`check`](Self::check), but where a rule lets the request wait for its turn
    /// ([`LeakyBucket`](crate::bucket::LeakyBucket), [`Rule::wait_up_to`], [`Rule::queue`]) it waits. A refusal is
    /// returned at once.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits, every charge is given back; a turn comes back only if nobody stands behind it.
    pub async fn acquire(&self, request: &Req) -> Result<Decision, Error> {
        let rules = self.generation();
        rules.needs_no_receipt()?;
        Ok(rules.start_in_turn(request).await?.0)
    }

    /// As [`acquire`](Self::acquire), and returns what ends with the request: dropped, places
    /// [in flight](crate::Limit::in_flight) are free again, and what else was charged stands. Only that is in the
    /// receipt: to give other charges back, take one from [`reserve`](Self::reserve).
    ///
    /// # Errors
    ///
    /// Where the store fails.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Limit, Limiter, Rule, bucket::LeakyBucket};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let limiter = Limiter::new([
    ///     Rule::global("starts", Limit::per_second(1_000).burst(10)).algorithm(LeakyBucket),
    ///     Rule::new("exports", Limit::in_flight(2), |tenant: &&str| Some(Key::from(*tenant))),
    /// ]);
    /// let (_, first) = limiter.acquire_receipt(&"acme").await?;
    /// let (second, _second) = limiter.acquire_receipt(&"acme").await?; // a millisecond later
    /// assert!(second.is_allowed());
    /// assert!(!limiter.acquire_receipt(&"acme").await?.0.is_allowed());
    /// drop(first); // its work is done
    /// assert!(limiter.acquire_receipt(&"acme").await?.0.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn acquire_receipt(&self, request: &Req) -> Result<(Decision, Receipt), Error> {
        let rules = self.generation();
        let (decision, receipt) = rules.start_in_turn(request).await?;
        Ok((decision, rules.receipt_or_none(receipt)))
    }

    /// As [`check`](Self::check), and returns what was charged, which may be given back or settled, and ends when it is
    /// dropped where it ends with the request.
    ///
    /// # Errors
    ///
    /// Where the store fails.
    pub async fn reserve(&self, request: &Req) -> Result<(Decision, Receipt), Error> {
        let rules = self.generation();
        let mut decision = rules.undecided();
        let (intent, others_wait) = rules.reserves(request);
        let receipt = rules.judge(request, intent, &mut decision).wait(&mut decision).await?;
        rules.refuse_behind(others_wait, &mut decision);
        rules.report(request, &decision);
        Ok((decision, rules.receipt_or_none(receipt)))
    }

    /// As [`reserve`](Self::reserve), for plain threads.
    ///
    /// # Errors
    ///
    /// Where the store fails, or does not answer at once ([`ErrorKind::NotReady`]).
    pub fn reserve_now(&self, request: &Req) -> Result<(Decision, Receipt), Error> {
        let rules = self.in_force();
        let mut decision = rules.undecided();
        let (intent, others_wait) = rules.reserves(request);
        let receipt = rules.judge(request, intent, &mut decision).now()?;
        rules.refuse_behind(others_wait, &mut decision);
        rules.report(request, &decision);
        Ok((decision, rules.receipt_or_none(receipt)))
    }

    /// Returns what [`acquire`](Self::acquire) would decide, and changes nothing. The request is looked at when this is
    /// called, and not held.
    ///
    /// # Errors
    ///
    /// Where the store fails.
    pub fn peek(&self, request: &Req) -> impl Future<Output = Result<Decision, Error>> + Send + use<Req> {
        let rules = self.generation();
        let mut decision = rules.undecided();
        let judging = rules.judge(request, Intent::Peek, &mut decision);
        async move {
            judging.wait(&mut decision).await?;
            Ok(decision)
        }
    }

    /// As [`peek`](Self::peek), for plain threads.
    ///
    /// # Errors
    ///
    /// Where the store fails, or does not answer at once ([`ErrorKind::NotReady`]).
    pub fn peek_now(&self, request: &Req) -> Result<Decision, Error> {
        let rules = self.in_force();
        let mut decision = rules.undecided();
        rules.judge(request, Intent::Peek, &mut decision).now()?;
        Ok(decision)
    }

    /// Forgets what `key` has used under the rule `name`; places that are held stay so until they are free. A rule
    /// without keys has one count, whatever `key` says.
    ///
    /// # Errors
    ///
    /// Where there is no such rule ([`ErrorKind::UnknownRule`]), or the store fails.
    pub async fn reset(&self, name: &str, key: Key<'_>) -> Result<(), Error> {
        let inner = self.generation();
        let (at, rule, bound) = inner.find(name)?;
        let key = if rule.is_keyed() { key.id(inner.core.store.secret()) } else { KeyId::NONE };
        let reset = async |bound: &Bound| match inner.core.store.reset(&bound.slot, key) {
            Reply::Ready(result) => result,
            Reply::Pending(reply) => reply.await,
        };
        reset(bound).await?;
        // What is tried in its place has seen the same.
        for (info, bound) in inner.core.info.iter().zip(&inner.core.bound) {
            if info.live == Some(at) {
                reset(bound).await?;
            }
        }
        Ok(())
    }

    /// Returns the clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }
}

impl<Req> Generation<Req> {
    /// Ends a check that the only rule has not simply let pass.
    #[inline(never)]
    fn check_otherwise(&self, request: &Req, answered: Result<Answered, Unanswerable>) -> Result<Decision, Error> {
        self.needs_no_receipt()?;
        let mut decision = self.undecided();
        match answered {
            Ok(answered) => self.decide_by(&answered, &mut decision),
            Err(why) => drop(self.judge_otherwise(why, request, Intent::Start, &mut decision).now()?),
        }
        self.report(request, &decision);
        Ok(decision)
    }

    /// The rule of a name, its number and its place; or which names there are.
    fn find(&self, name: &str) -> Result<(usize, &Rule<Req>, &Bound), Error> {
        let at = self.rules.position(name);
        let found = at.and_then(|at| Some((at, self.rules.get(at)?, self.core.bound.get(at)?)));
        found.ok_or_else(|| Error::unknown_rule(name, self.rules.iter().map(|(rule, _)| rule.name())))
    }

    async fn start_in_turn(&self, request: &Req) -> Result<(Decision, Option<Box<Receipt>>), Error> {
        let mut decision = self.undecided();
        let mut receipt = self.judge_in_line(request, &mut decision).await?;
        self.report(request, &decision);
        if let Some(receipt) = &mut receipt {
            if decision.delay() > Duration::ZERO {
                receipt.until_started();
                self.turn(&decision).await;
            }
            receipt.started();
        }
        Ok((decision, receipt))
    }

    /// A place that nobody can free must not be taken.
    #[inline]
    fn needs_no_receipt(&self) -> Result<(), Error> {
        let Some(endings) = self.core.endings.as_deref() else { return Ok(()) };
        // Who does not enforce only looks then.
        if endings.iter().take(self.rules.enforcing().len()).any(|ending| !ending.stands()) {
            return Err(Error::new(ErrorKind::NeedsReceipt));
        }
        Ok(())
    }

    pub(crate) fn receipt_or_none(&self, receipt: Option<Box<Receipt>>) -> Receipt {
        receipt.map_or_else(|| self.core.receipt(SmallVec::new()), |receipt| *receipt)
    }

    /// A decision that nothing was said of yet, for [`judge`](Self::judge) to write into: it is too large to be handed
    /// around.
    #[inline]
    pub(crate) fn undecided(&self) -> Decision {
        self.core.undecided()
    }
}

impl<Req> Clone for Limiter<Req> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<Req> fmt::Debug for Limiter<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generation = self.in_force();
        let rules: Vec<_> = generation.rules.iter().map(|(rule, _)| rule).collect();
        f.debug_struct("Limiter").field("rules", &rules).finish_non_exhaustive()
    }
}
