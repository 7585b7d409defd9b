//! What several areas need: limiters by a clock that the test moves, stores that answer late or not at all, and a
//! service that notices a broken tower contract.

use std::{
    fmt,
    future::{Ready, ready},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use tokio::sync::Semaphore;
use tollgate::{
    Limiter, RateLimitLayer, Rule, StoreError, Unsupported,
    charge::{Charge, RuleSpec, Slot, Take, Taken, Verdicts},
    key::{KeyId, Secret},
    store::{MemoryStore, Reply, Store},
    time::{ManualClock, Nanos},
};
use tower::Service;

/// A limiter by a clock that the test moves.
pub(crate) fn limiter<Req>(rules: impl IntoIterator<Item = Rule<Req>>, clock: &ManualClock) -> Limiter<Req> {
    Limiter::builder(rules).clock(clock.clone()).build().unwrap()
}

/// A layer by a clock that the test moves.
pub(crate) fn layer<Req>(rules: impl IntoIterator<Item = Rule<Req>>, clock: &ManualClock) -> RateLimitLayer<Req> {
    limiter(rules, clock).into()
}

/// A memory store behind a wire: it answers when it is told to, and charges at that moment. Whoever is given a clone
/// of `memory` sees the counts at once.
#[derive(Clone)]
pub(crate) struct Remote {
    memory: MemoryStore,
    answers: Arc<Semaphore>,
}

impl Remote {
    pub(crate) fn over(memory: &MemoryStore) -> Self {
        Self { memory: memory.clone(), answers: Arc::new(Semaphore::new(0)) }
    }

    /// Lets every question be answered that the tests can ask.
    pub(crate) fn answers_always(&self) {
        self.answers.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    /// Lets one question more be answered.
    pub(crate) fn answer(&self) {
        self.answers.add_permits(1);
    }
}

/// A [`Charge`] that does not borrow its slot.
pub(crate) struct OwnedCharge {
    slot: Slot,
    pub(crate) key: KeyId,
    pub(crate) limit: tollgate::Limit,
    cost: u64,
    pub(crate) keep: u64,
    pub(crate) max_delay: Nanos,
    pub(crate) votes: bool,
    take: Take,
    pub(crate) in_place_of: Option<usize>,
}

impl OwnedCharge {
    pub(crate) fn of(charge: &Charge<'_>) -> Self {
        Self {
            slot: charge.slot.clone(),
            key: charge.key,
            limit: charge.limit,
            cost: charge.cost,
            keep: charge.keep,
            max_delay: charge.max_delay,
            votes: charge.votes,
            take: charge.take,
            in_place_of: charge.in_place_of,
        }
    }

    pub(crate) fn borrowed(&self) -> Charge<'_> {
        let mut charge = Charge::new(&self.slot, self.key, self.limit, self.cost);
        (charge.keep, charge.max_delay) = (self.keep, self.max_delay);
        (charge.votes, charge.take) = (self.votes, self.take);
        charge.in_place_of = self.in_place_of;
        charge
    }
}

impl Store for Remote {
    fn secret(&self) -> &Secret {
        self.memory.secret()
    }

    fn bind(&self, spec: &RuleSpec, before: Option<&Slot>) -> Result<Slot, Unsupported> {
        self.memory.bind(spec, before)
    }

    fn decide(&self, now: Nanos, charges: &[Charge<'_>], _: &mut Verdicts) -> Reply<(), Verdicts> {
        let charges: Vec<_> = charges.iter().map(OwnedCharge::of).collect();
        let Self { memory, answers } = self.clone();
        Reply::Pending(Box::pin(async move {
            answers.acquire().await.expect("never closed").forget();
            let charges: Vec<_> = charges.iter().map(OwnedCharge::borrowed).collect();
            let mut verdicts = Verdicts::new();
            match memory.decide(now, &charges, &mut verdicts) {
                Reply::Ready(decided) => decided.map(|()| verdicts),
                Reply::Pending(_) => unreachable!("a memory store answers at once"),
            }
        }))
    }

    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64) {
        self.memory.adjust(now, taken, cost);
    }

    fn reset(&self, slot: &Slot, key: KeyId) -> Reply<()> {
        self.memory.reset(slot, key)
    }
}

/// A store that is down: it says so at once, or after a while.
pub(crate) struct Down {
    secret: Secret,
    at_once: bool,
}

impl Down {
    pub(crate) fn new(at_once: bool) -> Self {
        Self { secret: Secret::random(), at_once }
    }
}

impl Store for Down {
    fn secret(&self) -> &Secret {
        &self.secret
    }

    fn bind(&self, _: &RuleSpec, _: Option<&Slot>) -> Result<Slot, Unsupported> {
        Ok(Slot::new(()))
    }

    fn decide(&self, _: Nanos, _: &[Charge<'_>], _: &mut Verdicts) -> Reply<(), Verdicts> {
        let error = StoreError::new("connection refused");
        if self.at_once { Reply::Ready(Err(error)) } else { Reply::Pending(Box::pin(async { Err(error) })) }
    }

    fn adjust(&self, _: Nanos, _: &mut Taken, _: u64) {
        unreachable!("nothing was ever charged")
    }

    fn reset(&self, _: &Slot, _: KeyId) -> Reply<()> {
        Reply::Ready(Err(StoreError::new("connection refused")))
    }
}

/// An error of the inner service, to see that it comes out as it went in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) u32);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken {}", self.0)
    }
}

impl std::error::Error for Broken {}

/// An echo that panics when `call` comes without a `poll_ready` on this very instance that said `Ready`: each call
/// uses its readiness up, and a clone has none.
pub(crate) struct Probe {
    ready: bool,
    calls: Arc<AtomicUsize>,
}

impl Probe {
    pub(crate) fn new() -> Self {
        Self { ready: false, calls: Arc::default() }
    }

    /// Returns how often this service or a clone was called.
    pub(crate) fn calls(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.calls)
    }
}

impl Clone for Probe {
    fn clone(&self) -> Self {
        Self { ready: false, calls: Arc::clone(&self.calls) }
    }
}

impl<Req> Service<Req> for Probe {
    type Response = Req;
    type Error = Broken;
    type Future = Ready<Result<Req, Broken>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called on an instance that was not made ready");
        self.calls.fetch_add(1, Ordering::Relaxed);
        ready(Ok(request))
    }
}

#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Subscribers that hear nothing and are never gone. While there is one alone, who is the first to log a line asks the
/// subscriber of its own thread whether anybody wants it, and where that is none the line is off for all.
static OTHERS: LazyLock<[tracing::Dispatch; 2]> = LazyLock::new(|| {
    [(); 2].map(|()| {
        let hears = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(std::io::sink);
        tracing::Dispatch::new(hears.finish())
    })
});

/// The lines that this crate logs while `work` runs on this thread.
pub(crate) fn logged(level: tracing::Level, work: impl FnOnce()) -> Vec<String> {
    LazyLock::force(&OTHERS);
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .without_time()
        .with_writer(log.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, work);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    text.lines().filter(|line| line.contains("tollgate")).map(|line| line.trim().to_owned()).collect()
}
