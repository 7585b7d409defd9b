use std::{fmt, sync::Arc};

use smallvec::SmallVec;

use crate::{
    charge::{Charge, FailurePolicy, Slot, Take, Taken, Verdicts},
    decision::{Decision, Outcome, Refusal, RuleInfo, Ruling, Rulings, Verdict, Wait},
    error::{ConfigError, Error, ErrorKind, StoreError},
    key::{Key, KeyId},
    limit::Limit,
    observe,
    rule::{Applies, Rule, Rules},
    store::{MemoryStore, Receipt, Reply, Store},
    time::{BoxFuture, Clock, Nanos, SystemClock},
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
    inner: Arc<Inner<Req>>,
}

struct Inner<Req> {
    rules: Rules<Req>,
    core: Arc<Core>,
    on_decision: Option<Hook<Req>>,
}

/// What is left of a limiter without the request's type, so that it can go into a future of its own.
struct Core {
    bound: Vec<Bound>,
    info: Arc<[RuleInfo]>,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
}

/// A rule's place in the store, and how long it may hold a request.
struct Bound {
    slot: Slot,
    max_delay: Nanos,
}

type Hook<Req> = Arc<dyn Fn(&Req, &Decision) + Send + Sync>;

/// Builds a [`Limiter`].
#[must_use]
pub struct LimiterBuilder<Req> {
    rules: Vec<Rule<Req>>,
    store: Option<Arc<dyn Store>>,
    clock: Option<Arc<dyn Clock>>,
    on_decision: Option<Hook<Req>>,
}

/// What the caller means to do with the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Start now, or not at all.
    Start,
    /// Start now, or when its turn comes.
    StartOrHold,
    /// Only look.
    Peek,
}

/// A decision and what was charged for it.
pub(crate) struct Judgement {
    pub(crate) decision: Decision,
    /// Boxed, since few requests have one.
    pub(crate) receipt: Option<Box<Receipt>>,
}

/// A judgement, at once or later.
#[allow(clippy::large_enum_variant, reason = "the large one is the usual one, and must not be allocated")]
pub(crate) enum Judging {
    Ready(Result<Judgement, Error>),
    Pending(BoxFuture<'static, Result<Judgement, Error>>),
}

/// One rule that applies to a request.
#[derive(Debug, Clone, Copy)]
struct Applied {
    rule: usize,
    key: KeyId,
    limit: Limit,
    cost: u64,
    usable: bool,
}

type AppliedRules = SmallVec<[Applied; 3]>;

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
        LimiterBuilder { rules: rules.into_iter().collect(), store: None, clock: None, on_decision: None }
    }

    /// Decides whether `request` passes **now**, and charges it if it does. Where a rule would delay it, it is refused
    /// and charged nothing.
    ///
    /// # Errors
    ///
    /// Where the store fails.
    ///
    /// # Cancel safety
    ///
    /// The memory store answers at once, so there is nothing to cancel.
    pub async fn check(&self, request: &Req) -> Result<Decision, Error> {
        let judgement = self.judge(request, Intent::Start, false).wait().await?;
        Ok(self.reported(request, judgement).decision)
    }

    /// As [`check`](Self::check), for plain threads.
    ///
    /// # Errors
    ///
    /// Where the store fails, or does not answer at once ([`ErrorKind::NotReady`]).
    pub fn check_now(&self, request: &Req) -> Result<Decision, Error> {
        let judgement = self.judge(request, Intent::Start, false).now()?;
        Ok(self.reported(request, judgement).decision)
    }

    /// As [`check`](Self::check), but where a rule lets the request wait for its turn
    /// ([`LeakyBucket`](crate::bucket::LeakyBucket), [`Rule::wait_up_to`]) it waits. A refusal is returned at once.
    ///
    /// # Errors
    ///
    /// Where the store fails.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits, every charge is given back; a turn comes back only if nobody stands behind it.
    pub async fn acquire(&self, request: &Req) -> Result<Decision, Error> {
        let judgement = self.judge(request, Intent::StartOrHold, false).wait().await?;
        let judgement = self.reported(request, judgement);
        if let Some(mut receipt) = judgement.receipt {
            receipt.until_started();
            self.inner.core.clock.sleep(judgement.decision.delay()).await;
            receipt.keep();
        }
        Ok(judgement.decision)
    }

    /// As [`check`](Self::check), and returns what was charged, which may be given back or settled.
    ///
    /// # Errors
    ///
    /// Where the store fails.
    pub async fn reserve(&self, request: &Req) -> Result<(Decision, Receipt), Error> {
        let judgement = self.judge(request, Intent::Start, true).wait().await?;
        Ok(self.with_receipt(self.reported(request, judgement)))
    }

    /// As [`reserve`](Self::reserve), for plain threads.
    ///
    /// # Errors
    ///
    /// Where the store fails, or does not answer at once ([`ErrorKind::NotReady`]).
    pub fn reserve_now(&self, request: &Req) -> Result<(Decision, Receipt), Error> {
        let judgement = self.judge(request, Intent::Start, true).now()?;
        Ok(self.with_receipt(self.reported(request, judgement)))
    }

    fn with_receipt(&self, judgement: Judgement) -> (Decision, Receipt) {
        let receipt = judgement.receipt.map(|receipt| *receipt);
        (judgement.decision, receipt.unwrap_or_else(|| self.inner.core.receipt(SmallVec::new())))
    }

    /// Returns what [`acquire`](Self::acquire) would decide, and changes nothing.
    ///
    /// # Errors
    ///
    /// Where the store fails.
    pub async fn peek(&self, request: &Req) -> Result<Decision, Error> {
        Ok(self.judge(request, Intent::Peek, false).wait().await?.decision)
    }

    /// As [`peek`](Self::peek), for plain threads.
    ///
    /// # Errors
    ///
    /// Where the store fails, or does not answer at once ([`ErrorKind::NotReady`]).
    pub fn peek_now(&self, request: &Req) -> Result<Decision, Error> {
        Ok(self.judge(request, Intent::Peek, false).now()?.decision)
    }

    /// Forgets what `key` has used under the rule `name`. A rule without keys has one count, whatever `key` says.
    ///
    /// # Errors
    ///
    /// Where there is no such rule, or the store fails.
    pub async fn reset(&self, name: &str, key: Key<'_>) -> Result<(), Error> {
        let inner = &*self.inner;
        let at = inner.rules.position(name).ok_or_else(|| Error::new(ErrorKind::UnknownRule))?;
        let (Some(rule), Some(bound)) = (inner.rules.get(at), inner.core.bound.get(at)) else {
            return Err(Error::new(ErrorKind::UnknownRule));
        };
        let key = if rule.is_keyed() { key.id(inner.core.store.secret()) } else { KeyId::NONE };
        match inner.core.store.reset(&bound.slot, key) {
            Reply::Ready(result) => Ok(result?),
            Reply::Pending(reply) => Ok(reply.await?),
        }
    }

    /// Returns the clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.core.clock
    }

    /// Decides. With `keep_receipt`, what was charged is returned; so it is where the request has to be held.
    pub(crate) fn judge(&self, request: &Req, intent: Intent, keep_receipt: bool) -> Judging {
        let (rules, core) = (&self.inner.rules, &self.inner.core);
        let now = core.clock.now();
        let secret = core.store.secret();
        let mut applied = AppliedRules::new();
        for (at, (rule, reported)) in rules.iter().enumerate() {
            match rule.applies(request, secret, reported) {
                Applies::No => {}
                Applies::Yes { key, limit, cost, usable } => {
                    applied.push(Applied { rule: at, key, limit, cost, usable });
                }
                Applies::Refused { status, reason } => {
                    let refusal = Refusal::MissingKey { status, reason };
                    let decision = Decision::refused(Arc::clone(&core.info), refusal, now);
                    return Judging::Ready(Ok(Judgement { decision, receipt: None }));
                }
            }
        }
        match core.decide(now, &applied, intent) {
            Reply::Ready(verdicts) => Judging::Ready(core.judgement(now, verdicts, &applied, keep_receipt)),
            Reply::Pending(reply) => {
                let core = Arc::clone(core);
                Judging::Pending(Box::pin(async move { core.judgement(now, reply.await, &applied, keep_receipt) }))
            }
        }
    }

    /// The answer where the store failed: what the rules of `request` say of that.
    pub(crate) fn without_store(&self, request: &Req, error: &Error) -> Decision {
        let inner = &*self.inner;
        let secret = inner.core.store.secret();
        let closed = inner.rules.iter().any(|(rule, reported)| {
            rule.failure_policy() == FailurePolicy::Refuse
                && matches!(rule.applies(request, secret, reported), Applies::Yes { .. })
        });
        observe::store_failed(error, !closed);
        let (info, now) = (Arc::clone(&inner.core.info), inner.core.clock.now());
        if closed { Decision::refused(info, Refusal::StoreFailed, now) } else { Decision::unguarded(info, now) }
    }

    fn reported(&self, request: &Req, judgement: Judgement) -> Judgement {
        self.report(request, &judgement.decision);
        judgement
    }

    /// Reports a decision that is final: to the log, and to the user's hook.
    pub(crate) fn report(&self, request: &Req, decision: &Decision) {
        if !decision.is_allowed() {
            observe::refused(decision.violated(), decision.status().as_u16());
        }
        if let Some(hook) = &self.inner.on_decision {
            hook(request, decision);
        }
    }
}

impl Core {
    fn decide(&self, now: Nanos, applied: &[Applied], intent: Intent) -> Reply<Verdicts> {
        let all_usable = applied.iter().all(|applied| applied.usable);
        let mut charges: SmallVec<[Charge<'_>; 3]> = SmallVec::new();
        for applied in applied.iter().filter(|applied| applied.usable) {
            let Some(bound) = self.bound.get(applied.rule) else {
                return Reply::Ready(Err(StoreError::new("a rule is not bound")));
            };
            let mut charge = Charge::new(&bound.slot, applied.key, applied.limit, applied.cost);
            if intent != Intent::Start {
                charge.max_delay = bound.max_delay;
            }
            if intent == Intent::Peek || !all_usable {
                charge.take = Take::Never;
            }
            charges.push(charge);
        }
        if charges.is_empty() {
            return Reply::Ready(Ok(Verdicts::new()));
        }
        self.store.decide(now, &charges)
    }

    fn judgement(
        &self,
        now: Nanos,
        verdicts: Result<Verdicts, StoreError>,
        applied: &[Applied],
        keep_receipt: bool,
    ) -> Result<Judgement, Error> {
        let verdicts = verdicts?;
        let mut judged = verdicts.iter();
        let mut rulings = Rulings::new();
        for applied in applied {
            let verdict = if applied.usable {
                judged.next().ok_or_else(|| StoreError::new("the store left charges unanswered"))?.verdict
            } else {
                Verdict::new(Outcome::Refuse(Wait::Never), 0, 0, None)
            };
            rulings.push(Ruling { rule: applied.rule, cost: applied.cost, limit: applied.limit, verdict });
        }
        let decision = Decision::of(Arc::clone(&self.info), rulings, now);
        let wants_receipt = decision.is_allowed() && (keep_receipt || decision.delay() > std::time::Duration::ZERO);
        let receipt = wants_receipt.then(|| Box::new(self.receipt(self.taken(&verdicts, applied))));
        Ok(Judgement { decision, receipt })
    }

    fn taken(&self, verdicts: &Verdicts, applied: &[Applied]) -> SmallVec<[(usize, Taken); 2]> {
        let usable = applied.iter().filter(|applied| applied.usable);
        let taken = usable.zip(verdicts.iter()).filter_map(|(applied, judged)| {
            let bound = self.bound.get(applied.rule)?;
            let mut taken = Taken::new(bound.slot.clone(), applied.key, applied.limit, applied.cost, judged.mark?);
            taken.stamp = judged.stamp;
            taken.delays = bound.max_delay > Nanos::ZERO;
            Some((applied.rule, taken))
        });
        taken.collect()
    }

    fn receipt(&self, taken: SmallVec<[(usize, Taken); 2]>) -> Receipt {
        Receipt::new(Arc::clone(&self.store), Arc::clone(&self.clock), Arc::clone(&self.info), taken)
    }
}

impl Judging {
    async fn wait(self) -> Result<Judgement, Error> {
        match self {
            Self::Ready(judgement) => judgement,
            Self::Pending(judgement) => judgement.await,
        }
    }

    fn now(self) -> Result<Judgement, Error> {
        match self {
            Self::Ready(judgement) => judgement,
            Self::Pending(_) => Err(Error::new(ErrorKind::NotReady)),
        }
    }
}

impl<Req> LimiterBuilder<Req> {
    /// Sets the store; a [`MemoryStore`] of its own unless set. Limiters given clones of one store share the counts of
    /// rules of equal name.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Sets the clock; [`SystemClock`] unless set.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Calls `hook` with every decision but those that only [`peek`](Limiter::peek), before the caller has it. It runs
    /// on the request's path, with no lock held: keep it short.
    pub fn on_decision(mut self, hook: impl Fn(&Req, &Decision) + Send + Sync + 'static) -> Self {
        self.on_decision = Some(Arc::new(hook));
        self
    }

    /// Puts the rules together and binds them to the store.
    ///
    /// # Errors
    ///
    /// Where a rule cannot work, or the store cannot run it.
    pub fn build(self) -> Result<Limiter<Req>, ConfigError> {
        let rules = Rules::new(self.rules)?;
        let store = self.store.unwrap_or_else(|| Arc::new(MemoryStore::new()));
        let bind = |rule: &Rule<Req>| match store.bind(&rule.spec(), None) {
            Ok(slot) => Ok(Bound { slot, max_delay: rule.max_delay() }),
            Err(why) => Err(ConfigError::new(rule.name(), "store", why.to_string())),
        };
        let bound = rules.iter().map(|(rule, _)| bind(rule)).collect::<Result<_, _>>()?;
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        let core = Arc::new(Core { bound, info: Arc::clone(rules.info()), store, clock });
        Ok(Limiter { inner: Arc::new(Inner { rules, core, on_decision: self.on_decision }) })
    }
}

impl<Req> Clone for Limiter<Req> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<Req> fmt::Debug for Limiter<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<_> = self.inner.rules.iter().map(|(rule, _)| rule).collect();
        f.debug_struct("Limiter").field("rules", &rules).finish_non_exhaustive()
    }
}

impl<Req> fmt::Debug for LimiterBuilder<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterBuilder").field("rules", &self.rules).finish_non_exhaustive()
    }
}
