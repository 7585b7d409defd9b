//! A guarded store: whatever the store behind it does, decisions come in time and are what the rules say.

mod circuit;
mod fallback;
mod policies;
mod refusals;
mod reports;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tollgate::{
    Decision, FailurePolicy, Key, Limit, Limiter, Rule, StoreError, Unsupported,
    charge::{Charge, RuleSpec, Slot, Taken, Verdicts},
    key::{KeyId, Secret},
    store::{Guarded, GuardedBuilder, MemoryStore, Reply, Store},
    time::{ManualClock, Nanos},
};

use crate::support::OwnedCharge;

const DEADLINE: Duration = Duration::from_millis(25);
/// What a decision takes at most: tokio's timers count in milliseconds.
const IN_TIME: Duration = Duration::from_millis(26);

/// What a faulty store does at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Up,
    /// It answers when others have had a turn: for tests in which time goes on.
    Yields,
    /// It answers as well, but so much later.
    Slow(Duration),
    Hangs,
    FailsAtOnce,
    FailsLater,
    /// It answers too few charges.
    Forgets,
    /// Probes pass, requests do not.
    PassesProbes,
    /// It answers, and what is given back arrives when it is [up](Self::Up) again.
    GivesBackLater,
    /// It answers nobody who asks for what is asked for now, and others.
    Refuses,
}

/// A memory store that is somewhere else, and not always up. It charges at the moment it answers.
#[derive(Clone)]
struct Faulty {
    memory: MemoryStore,
    shared: Arc<Shared>,
}

struct Shared {
    mode: Mutex<Mode>,
    /// What is on its way back.
    later: Mutex<Vec<(Nanos, Taken, u64)>>,
    asked: AtomicUsize,
    probes: AtomicUsize,
    probing: AtomicUsize,
    /// The most probes that ever ran at once: a probe that panics would only end its own task.
    most_probing: AtomicUsize,
}

impl Faulty {
    fn new(mode: Mode) -> Self {
        let shared = Shared {
            mode: Mutex::new(mode),
            later: Mutex::default(),
            asked: AtomicUsize::new(0),
            probes: AtomicUsize::new(0),
            probing: AtomicUsize::new(0),
            most_probing: AtomicUsize::new(0),
        };
        Self { memory: MemoryStore::new(), shared: Arc::new(shared) }
    }

    fn turn(&self, mode: Mode) {
        *self.shared.mode.lock().unwrap() = mode;
        for (now, mut taken, cost) in std::mem::take(&mut *self.shared.later.lock().unwrap()) {
            self.memory.adjust(now, &mut taken, cost);
        }
    }

    fn mode(&self) -> Mode {
        *self.shared.mode.lock().unwrap()
    }

    /// How often it was asked for a decision; probes are not counted.
    fn asked(&self) -> usize {
        self.shared.asked.load(Ordering::Relaxed)
    }

    fn probes(&self) -> usize {
        self.shared.probes.load(Ordering::Relaxed)
    }

    fn answer(&self, now: Nanos, charges: &[Charge<'_>]) -> Reply<(), Verdicts> {
        let charges: Vec<_> = charges.iter().map(OwnedCharge::of).collect();
        let store = self.clone();
        let mode = self.mode();
        if mode == Mode::FailsAtOnce {
            return Reply::Ready(Err(StoreError::new("connection refused")));
        }
        Reply::Pending(Box::pin(async move {
            match mode {
                Mode::Slow(late) => sleep(late).await,
                Mode::Yields => tokio::task::yield_now().await,
                Mode::Hangs => std::future::pending().await,
                Mode::FailsLater | Mode::PassesProbes => {
                    sleep(Duration::from_millis(1)).await;
                    return Err(StoreError::new("connection reset"));
                }
                Mode::Refuses => return Err(StoreError::new("this key holds a list").of_one_request()),
                Mode::Up | Mode::FailsAtOnce | Mode::Forgets | Mode::GivesBackLater => {
                    sleep(Duration::from_millis(1)).await
                }
            }
            let charges: Vec<_> = charges.iter().map(OwnedCharge::borrowed).collect();
            let mut verdicts = Verdicts::new();
            let answered = if mode == Mode::Forgets { &charges[..charges.len() - 1] } else { &charges[..] };
            match store.memory.decide(now, answered, &mut verdicts) {
                Reply::Ready(decided) => decided.map(|()| verdicts),
                Reply::Pending(_) => unreachable!("a memory store answers at once"),
            }
        }))
    }
}

impl Store for Faulty {
    fn secret(&self) -> &Secret {
        self.memory.secret()
    }

    fn bind(&self, spec: &RuleSpec, before: Option<&Slot>) -> Result<Slot, Unsupported> {
        self.memory.bind(spec, before)
    }

    fn decide(&self, now: Nanos, charges: &[Charge<'_>], _: &mut Verdicts) -> Reply<(), Verdicts> {
        self.shared.asked.fetch_add(1, Ordering::Relaxed);
        self.answer(now, charges)
    }

    fn adjust(&self, now: Nanos, taken: &mut Taken, cost: u64) {
        if self.mode() == Mode::GivesBackLater {
            self.shared.later.lock().unwrap().push((now, taken.clone(), cost));
            taken.cost = cost;
            return;
        }
        self.memory.adjust(now, taken, cost);
    }

    fn reset(&self, slot: &Slot, key: KeyId) -> Reply<()> {
        let (store, slot) = (self.clone(), slot.clone());
        Reply::Pending(Box::pin(async move {
            match store.mode() {
                Mode::Up => sleep(Duration::from_millis(1)).await,
                _ => std::future::pending().await,
            }
            match store.memory.reset(&slot, key) {
                Reply::Ready(answer) => answer,
                Reply::Pending(_) => unreachable!("a memory store answers at once"),
            }
        }))
    }

    fn probe(&self, now: Nanos, charge: Charge<'_>) -> Reply<(), Verdicts> {
        self.shared.probes.fetch_add(1, Ordering::Relaxed);
        assert_eq!(charge.take, tollgate::charge::Take::Never, "a probe charges nobody");
        let running = OneProbe::begins(&self.shared);
        if self.mode() == Mode::PassesProbes {
            return Reply::Ready(Ok(()));
        }
        match self.answer(now, &[charge]) {
            Reply::Ready(answer) => Reply::Ready(answer),
            Reply::Pending(reply) => Reply::Pending(Box::pin(async move {
                let _running = running;
                reply.await
            })),
        }
    }
}

/// A probe that runs.
struct OneProbe(Arc<Shared>);

impl OneProbe {
    fn begins(shared: &Arc<Shared>) -> Self {
        let running = shared.probing.fetch_add(1, Ordering::Relaxed) + 1;
        shared.most_probing.fetch_max(running, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for OneProbe {
    fn drop(&mut self) {
        self.0.probing.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request: who sends it, and what it costs.
#[derive(Debug, Clone, Copy)]
struct Call {
    who: u64,
    cost: u64,
}

fn call(who: u64) -> Call {
    Call { who, cost: 1 }
}

fn rule(name: &'static str, limit: Limit) -> Rule<Call> {
    Rule::new(name, limit, |call: &Call| Some(Key::from(call.who))).cost(|call| call.cost)
}

/// A limiter over a guarded store that may be faulty.
struct Rig {
    store: Faulty,
    guarded: Guarded,
    clock: ManualClock,
    limiter: Limiter<Call>,
}

impl Rig {
    fn new(mode: Mode, on_failure: FailurePolicy, rules: impl IntoIterator<Item = Rule<Call>>) -> Self {
        Self::built(mode, on_failure, rules, |builder| builder)
    }

    fn built(
        mode: Mode,
        on_failure: FailurePolicy,
        rules: impl IntoIterator<Item = Rule<Call>>,
        set: impl FnOnce(GuardedBuilder) -> GuardedBuilder,
    ) -> Self {
        let store = Faulty::new(mode);
        let guarded = set(Guarded::builder(store.clone(), on_failure)).build();
        let clock = ManualClock::at(Nanos::from_secs(1_000_000));
        let limiter = Limiter::builder(rules).store(guarded.clone()).clock(clock.clone()).build().unwrap();
        Self { store, guarded, clock, limiter }
    }

    /// A decision, which has to come in time.
    async fn check(&self, call: Call) -> Decision {
        self.timed(call).await.0
    }

    async fn timed(&self, call: Call) -> (Decision, Duration) {
        let start = Instant::now();
        let decision = self.limiter.check(&call).await.expect("a guarded store always decides");
        let took = start.elapsed();
        assert!(took <= IN_TIME, "{took:?}");
        (decision, took)
    }

    /// How many of so many requests pass.
    async fn passes(&self, who: u64, requests: usize) -> usize {
        let mut passed = 0;
        for _ in 0..requests {
            passed += usize::from(self.check(call(who)).await.is_allowed());
        }
        passed
    }

    /// Fails the store until the circuit is open, with requests of nobody in particular.
    async fn break_down(&self) {
        self.store.turn(Mode::FailsLater);
        for nobody in 0..5 {
            let _ = self.check(call(1_000_000 + nobody)).await;
        }
        assert!(self.guarded.is_open());
    }

    /// Lets the store answer again, and waits for the circuit to close.
    async fn recover(&self) {
        self.store.turn(Mode::Up);
        for _ in 0..600 {
            sleep(Duration::from_millis(1)).await;
            if !self.guarded.is_open() {
                return;
            }
        }
        panic!("the circuit is still open");
    }
}
