//! What the tests of the engine share: the strategies by name, a bucket without a store, and a limiter of one rule on
//! a clock that the test moves.

use std::{cell::RefCell, sync::Arc, time::Duration};

use tollgate::{
    Decision, Key, Limit, Limiter, LimiterBuilder, Rule, Unsupported,
    bucket::{
        Ask, Bucket, FixedWindow, GivenBack, LeakyBucket, Mark, SlidingWindowCounter, SlidingWindowLog, TokenBucket,
    },
    charge::{Charge, RuleSpec, Slot, Taken, Verdicts},
    decision::{Outcome, Verdict, Wait},
    key::{KeyId, Secret},
    store::{MemoryStore, Reply, Store},
    time::{Clock, ManualClock, Nanos},
};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const S: u64 = 1_000_000_000;
pub(crate) const DAY: u64 = 86_400 * S;

pub(crate) fn per(permits: u64, period_nanos: u64) -> Limit {
    Limit::new(permits, Duration::from_nanos(period_nanos))
}

pub(crate) fn at(nanos: u64) -> Nanos {
    Nanos::new(nanos)
}

/// The strategies, so that one test can run under each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    TokenBucket,
    FixedWindow,
    SlidingWindowLog,
    SlidingWindowCounter,
    LeakyBucket,
}

impl Kind {
    /// As the names of rules and files are written.
    pub(crate) const fn snake_case(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindowLog => "sliding_window_log",
            Self::SlidingWindowCounter => "sliding_window_counter",
            Self::LeakyBucket => "leaky_bucket",
        }
    }

    pub(crate) const ALL: [Self; 5] =
        [Self::TokenBucket, Self::FixedWindow, Self::SlidingWindowLog, Self::SlidingWindowCounter, Self::LeakyBucket];
    /// Those that refuse and never hold.
    pub(crate) const REFUSING: [Self; 4] =
        [Self::TokenBucket, Self::FixedWindow, Self::SlidingWindowLog, Self::SlidingWindowCounter];

    /// `limit` with the depth of queue that the leaky bucket has to be told.
    pub(crate) fn limit(self, limit: Limit) -> Limit {
        if self == Self::LeakyBucket { limit.burst(limit.capacity()) } else { limit }
    }

    pub(crate) fn named<Req>(self, rule: Rule<Req>) -> Rule<Req> {
        match self {
            Self::TokenBucket => rule.algorithm(TokenBucket),
            Self::FixedWindow => rule.algorithm(FixedWindow),
            Self::SlidingWindowLog => rule.algorithm(SlidingWindowLog),
            Self::SlidingWindowCounter => rule.algorithm(SlidingWindowCounter),
            Self::LeakyBucket => rule.algorithm(LeakyBucket),
        }
    }

    /// A rule over [`Call`]s, counted by client.
    pub(crate) fn rule(self, name: &'static str, limit: Limit) -> Rule<Call> {
        let rule = Rule::new(name, self.limit(limit), |call: &Call| Some(Key::from(call.client)));
        self.named(rule).cost(|call| call.cost)
    }

    /// One fresh bucket without a store.
    pub(crate) fn bucket(self, limit: Limit) -> Box<dyn PureBucket> {
        let limit = self.limit(limit);
        match self {
            Self::TokenBucket => Box::new(Pure::new(TokenBucket, limit)),
            Self::FixedWindow => Box::new(Pure::new(FixedWindow, limit)),
            Self::SlidingWindowLog => Box::new(Pure::new(SlidingWindowLog, limit)),
            Self::SlidingWindowCounter => Box::new(Pure::new(SlidingWindowCounter, limit)),
            Self::LeakyBucket => Box::new(Pure::new(LeakyBucket, limit)),
        }
    }
}

/// One bucket under one limit, whatever its strategy; times are nanoseconds.
pub(crate) trait PureBucket {
    /// Answers without changing anything.
    fn look(&self, now: u64, ask: Ask) -> Verdict;
    /// Answers, and charges what passes.
    fn decide(&mut self, now: u64, ask: Ask) -> (Verdict, Option<Mark>);
    fn give_back(&mut self, now: u64, charge: GivenBack);
    fn fresh_at(&self) -> u64;
    fn duplicate(&self) -> Box<dyn PureBucket>;
}

#[derive(Clone)]
struct Pure<B: Bucket + Clone> {
    bucket: B,
    limit: Limit,
    state: B::State,
}

impl<B: Bucket + Clone> Pure<B> {
    fn new(bucket: B, limit: Limit) -> Self {
        bucket.check(&limit).unwrap();
        let state = bucket.fresh(&limit, Nanos::ZERO);
        Self { bucket, limit, state }
    }

    /// Brings the state up to date; returns when it is judged and how much later than `now` that is.
    fn bring(&mut self, now: u64) -> (Nanos, u64) {
        let (mut held, limit) = (self.limit, self.limit);
        let judged = self.bucket.judge_at(&mut self.state, &mut held, &limit, at(now));
        (judged, judged.get().saturating_sub(now))
    }
}

/// What the caller of `lag` earlier than the bucket's time is told.
fn told(mut verdict: Verdict, lag: u64) -> Verdict {
    verdict.outcome = match verdict.outcome {
        Outcome::Delay(wait) => Outcome::Delay(at(wait.get() + lag)),
        Outcome::Refuse(Wait::For(wait)) => Outcome::Refuse(Wait::For(at(wait.get() + lag))),
        other => other,
    };
    verdict
}

impl<B: Bucket + Clone> PureBucket for Pure<B> {
    fn look(&self, now: u64, ask: Ask) -> Verdict {
        let mut copy = self.clone();
        let (judged, lag) = copy.bring(now);
        told(copy.bucket.look(&copy.state, &copy.limit, judged, ask), lag)
    }

    fn decide(&mut self, now: u64, ask: Ask) -> (Verdict, Option<Mark>) {
        let (judged, lag) = self.bring(now);
        let look = self.bucket.look(&self.state, &self.limit, judged, ask);
        if !look.outcome.passes() || ask.cost == 0 {
            return (told(look, lag), None);
        }
        let (verdict, mark) = self.bucket.take(&mut self.state, &self.limit, judged, ask);
        (told(verdict, lag), Some(mark))
    }

    fn give_back(&mut self, now: u64, charge: GivenBack) {
        let (judged, _) = self.bring(now);
        self.bucket.give_back(&mut self.state, &self.limit, judged, charge);
    }

    fn fresh_at(&self) -> u64 {
        self.bucket.fresh_at(&self.state, &self.limit).get()
    }

    fn duplicate(&self) -> Box<dyn PureBucket> {
        Box::new(self.clone())
    }
}

thread_local! {
    /// Where this thread's limiters count, if not in memory.
    static ELSEWHERE: RefCell<Option<Box<dyn Fn() -> Shared>>> = const { RefCell::new(None) };
}

/// A store behind a pointer, which answers at once.
pub(crate) struct Shared(pub(crate) Arc<dyn Store>);

impl Store for Shared {
    fn secret(&self) -> &Secret {
        self.0.secret()
    }

    fn bind(&self, spec: &RuleSpec, before: Option<&Slot>) -> Result<Slot, Unsupported> {
        self.0.bind(spec, before)
    }

    fn decide(&self, now: Nanos, charges: &[Charge<'_>], verdicts: &mut Verdicts) -> Reply<(), Verdicts> {
        self.0.decide(now, charges, verdicts)
    }

    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64) {
        self.0.adjust(now, taken, cost);
    }

    fn reset(&self, slot: &Slot, key: KeyId) -> Reply<()> {
        self.0.reset(slot, key)
    }
}

/// Runs a test of this thread with limiters that count in what `make` returns, a new one for each.
#[cfg(feature = "redis")]
pub(crate) fn elsewhere(make: impl Fn() -> Shared + 'static, test: impl FnOnce()) {
    ELSEWHERE.set(Some(Box::new(make)));
    test();
    ELSEWHERE.set(None);
}

/// A limiter's builder with the store that this thread's tests count in.
pub(crate) fn stored<Req: 'static>(builder: LimiterBuilder<Req>) -> LimiterBuilder<Req> {
    let store = ELSEWHERE.with_borrow(|make| make.as_ref().map(|make| make()));
    match store {
        Some(store) => builder.store(store),
        None => builder,
    }
}

/// How many nanoseconds a store's unit of time is: one in memory, and a microsecond elsewhere.
pub(crate) fn grain() -> u64 {
    ELSEWHERE.with_borrow(|make| if make.is_some() { 1_000 } else { 1 })
}

/// Whether two spans are the same, as far as the store can tell them apart.
pub(crate) fn same(one: u64, other: u64) -> bool {
    one.abs_diff(other) < grain()
}

/// What a request is to the limiters of these tests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) client: u64,
    pub(crate) cost: u64,
}

/// A limiter on a clock of its own; client 0 asks unless said otherwise.
pub(crate) struct Bench {
    pub(crate) limiter: Limiter<Call>,
    pub(crate) clock: ManualClock,
    pub(crate) store: MemoryStore,
    /// Whether a look says what [`Limiter::check`] would: not where a rule may hold a request.
    looks_as_it_checks: bool,
}

impl Bench {
    pub(crate) fn new(kind: Kind, limit: Limit) -> Self {
        Self { looks_as_it_checks: kind != Kind::LeakyBucket, ..Self::of([kind.rule("rule", limit)]) }
    }

    /// A limiter of `rules`, none of which holds a request.
    pub(crate) fn of(rules: impl IntoIterator<Item = Rule<Call>>) -> Self {
        Self::on(MemoryStore::new(), rules)
    }

    pub(crate) fn on(store: MemoryStore, rules: impl IntoIterator<Item = Rule<Call>>) -> Self {
        let clock = ManualClock::new();
        let limiter = stored(Limiter::builder(rules).clock(clock.clone()).store(store.clone())).build().unwrap();
        Self { limiter, clock, store, looks_as_it_checks: true }
    }

    pub(crate) fn set(&self, now: u64) {
        self.clock.set(at(now));
    }

    pub(crate) fn check(&self, now: u64, cost: u64) -> Decision {
        self.check_as(0, now, cost)
    }

    pub(crate) fn check_as(&self, client: u64, now: u64, cost: u64) -> Decision {
        if self.clock.now() != at(now) {
            self.set(now);
        }
        self.limiter.check_now(&Call { client, cost }).unwrap()
    }

    fn peek(&self, now: u64, cost: u64) -> Decision {
        self.set(now);
        self.limiter.peek_now(&Call { client: 0, cost }).unwrap()
    }

    /// How many of `times` requests of one permit pass.
    pub(crate) fn admitted(&self, now: u64, times: usize) -> usize {
        (0..times).filter(|_| self.check(now, 1).is_allowed()).count()
    }

    /// What would pass at once, without changing anything.
    pub(crate) fn remaining(&self, now: u64) -> u64 {
        self.peek(now, 0).tightest().unwrap().verdict.remaining
    }

    /// Checks a request that passes and leaves `remaining`.
    #[track_caller]
    pub(crate) fn passes(&self, now: u64, cost: u64, remaining: u64) {
        let decision = self.check(now, cost);
        assert!(decision.is_allowed(), "cost {cost} at {:?}: {decision:?}", at(now));
        assert_eq!(decision.retry_after_secs(), None, "{decision:?}");
        assert_eq!(decision.tightest().unwrap().verdict.remaining, remaining, "cost {cost} at {:?}", at(now));
    }

    /// Checks a request that is told to come back after `wait` nanoseconds, and that this is the truth: it would pass
    /// then, and would not one nanosecond earlier.
    #[track_caller]
    pub(crate) fn refuses(&self, now: u64, cost: u64, wait: u64) {
        let decision = self.check(now, cost);
        assert!(!decision.is_allowed(), "cost {cost} at {:?}: {decision:?}", at(now));
        let told = decision.retry_after().expect("a wait that ends").as_nanos() as u64;
        assert!(same(told, wait), "cost {cost} at {:?}: {told} instead of {wait}", at(now));
        assert_eq!(decision.retry_after_secs(), Some(wait.div_ceil(S).max(1)), "{decision:?}");
        self.wait_is_true(now, cost, wait);
    }

    /// A request refused at `now` for `wait` would pass then and not earlier, if nothing else happens.
    #[track_caller]
    pub(crate) fn wait_is_true(&self, now: u64, cost: u64, wait: u64) {
        if self.looks_as_it_checks {
            assert!(!self.peek(now + wait - 1, cost).is_allowed(), "cost {cost}, one nanosecond before {wait}");
            assert!(
                self.peek((now + wait).next_multiple_of(grain()), cost).is_allowed(),
                "cost {cost}, {wait} after {:?}",
                at(now)
            );
            self.set(now);
        }
    }

    /// Checks a request that can never pass: there is no time to come back at, and nothing has changed.
    #[track_caller]
    pub(crate) fn never(&self, now: u64, cost: u64, remaining: u64) {
        let decision = self.check(now, cost);
        assert!(!decision.is_allowed(), "cost {cost}: {decision:?}");
        assert_eq!(decision.wait(), Some(Wait::Never), "{decision:?}");
        assert_eq!((decision.retry_after(), decision.retry_after_secs()), (None, None), "{decision:?}");
        assert_eq!(decision.tightest().unwrap().verdict.remaining, remaining, "cost {cost}");
        assert_eq!(self.remaining(now), remaining, "after cost {cost}");
    }
}

/// What a decision says a rule has left.
#[track_caller]
pub(crate) fn remaining_of(decision: &Decision, rule: &str) -> u64 {
    decision.rules().find(|verdict| verdict.rule == rule).unwrap().verdict.remaining
}
