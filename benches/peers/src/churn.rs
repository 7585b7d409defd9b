//! Every key new, and dead a tenth of a second later: what stays in memory, and how long the longest checks take.

use std::{num::NonZeroU32, time::Duration};

use governor::clock::FakeRelativeClock;
use tollgate::{
    Key, Limit,
    bucket::Algorithm,
    charge::{Charge, RuleSpec, Slot, Verdicts},
    store::{MemoryStore, Reply, Store},
    time::Clock,
};

use crate::{
    allocator,
    clock::DrivenClock,
    harness::{Report, Scale, percentile},
};

/// Time between two checks, on a clock that only this moves: so many keys are alive at any time, however fast we are.
const STEP: Duration = Duration::from_nanos(250);
const LIFE: Duration = Duration::from_millis(100);
const ALIVE: usize = (LIFE.as_nanos() / STEP.as_nanos()) as usize;
/// Checks in a turn, before another store has its turn.
const TURN: usize = 50_000;
/// What one live key needs: 16 bytes of key, a time, its remainder, and which life of the bucket it is.
const ENTRY: usize = 32;

/// A store that sees each key once.
trait Churned {
    fn check(&mut self, key: u64);
    /// What it does besides, when this much time has passed; part of the check in which it is due.
    fn every_life(&mut self) {}
}

struct Ours {
    store: MemoryStore,
    slot: Slot,
    limit: Limit,
    clock: DrivenClock,
}

impl Ours {
    /// A key is as new `life` after its one request.
    fn new(life: Duration) -> Self {
        // A second request would be refused, which is of no matter: none comes.
        let limit = Limit::new(1, life);
        let store = MemoryStore::builder().max_keys(20_000_000).build();
        let spec = RuleSpec::new("client", Algorithm::TokenBucket, limit);
        let slot = store.bind(&spec, None).expect("a memory store runs a token bucket");
        Self { store, slot, limit, clock: DrivenClock::new() }
    }
}

impl Churned for Ours {
    #[inline]
    fn check(&mut self, key: u64) {
        self.clock.advance(STEP.as_nanos() as u64);
        let charges = [Charge::new(&self.slot, Key::from(key).id(self.store.secret()), self.limit, 1)];
        let mut verdicts = Verdicts::new();
        let reply = self.store.decide(self.clock.now(), &charges, &mut verdicts);
        assert!(matches!(reply, Reply::Ready(Ok(()))), "a memory store answers at once");
        assert!(verdicts.iter().all(|judged| judged.verdict.outcome.passes()), "a first request was refused");
    }
}

type Governors = governor::RateLimiter<
    u64,
    governor::state::keyed::DashMapStateStore<u64>,
    FakeRelativeClock,
    governor::middleware::NoOpMiddleware<<FakeRelativeClock as governor::clock::Clock>::Instant>,
>;

/// governor, told to forget what is dead as often as a key dies, by the thread that checks.
struct Governor {
    limiter: Governors,
    clock: FakeRelativeClock,
}

impl Governor {
    fn new(life: Duration) -> Self {
        let clock = FakeRelativeClock::default();
        let quota = governor::Quota::with_period(life).expect("not zero").allow_burst(NonZeroU32::MIN);
        Self { limiter: Governors::new(quota, Default::default(), clock.clone()), clock }
    }
}

impl Churned for Governor {
    #[inline]
    fn check(&mut self, key: u64) {
        self.clock.advance(STEP);
        assert!(self.limiter.check_key(&key).is_ok(), "a first request was refused");
    }

    fn every_life(&mut self) {
        self.limiter.retain_recent();
    }
}

/// One store's measurement in progress.
struct Churn {
    name: &'static str,
    store: Box<dyn Churned>,
    times: Vec<u64>,
    held: i64,
    most_held: i64,
}

impl Churn {
    fn new(name: &'static str, make: impl FnOnce() -> Box<dyn Churned>, checks: usize) -> Self {
        // Room for all times before, so that nothing but the store asks for memory.
        let times = Vec::with_capacity(checks);
        let before = allocator::held();
        let store = make();
        let held = allocator::held() - before;
        Self { name, store, times, held, most_held: held }
    }

    fn turn(&mut self, clock: &quanta::Clock) {
        let before = allocator::held();
        for _ in 0..TURN {
            let key = self.times.len();
            let start = clock.raw();
            if key.is_multiple_of(ALIVE) {
                self.store.every_life();
            }
            self.store.check(key as u64);
            self.times.push(clock.delta_as_nanos(start, clock.raw()));
        }
        self.held += allocator::held() - before;
        // From when as many are alive as ever will be.
        if self.times.len() > 2 * ALIVE {
            self.most_held = self.most_held.max(self.held);
        }
    }
}

pub fn run(scale: Scale, report: &mut Report) {
    let checks = scale.pick(1_200_000, 12_000_000) / TURN * TURN;
    let mut churns = [
        Churn::new("tollgate", || Box::new(Ours::new(LIFE)), checks),
        Churn::new("tollgate, nothing ever dies", || Box::new(Ours::new(Duration::from_secs(1_000_000))), checks),
        Churn::new("governor, retain_recent", || Box::new(Governor::new(LIFE)), checks),
    ];
    let clock = quanta::Clock::new();
    for _ in 0..checks / TURN {
        for churn in &mut churns {
            churn.turn(&clock);
        }
    }
    report.table(
        &format!("Churn: {checks} keys, {ALIVE} of them alive at a time; ns"),
        &["mean", "p50", "p99.9", "p99.99", "max", "B/live key"],
    );
    let rows = churns.each_mut().map(|churn| {
        let mean = churn.times.iter().sum::<u64>() as f64 / churn.times.len() as f64;
        let mut at = |share| percentile(&mut churn.times, share) as f64;
        let row = [mean, at(0.5), at(0.999), at(0.9999), at(1.0), churn.most_held as f64 / ALIVE as f64];
        report.row(churn.name, &row);
        row
    });
    let [ours, never, governor] = rows;
    report.value("bytes", "churn_per_live_key", ours[5]);
    report.ratio("churn_memory_over_live_entries", ours[5], ENTRY as f64);
    report.ratio("churn_memory_over_governor", ours[5], governor[5]);
    report.ratio("churn_p9999_over_never_evicting", ours[3], never[3]);
    report.ratio("churn_max_over_never_evicting", ours[4], never[4]);
    report.ratio("churn_mean_over_governor", ours[0], governor[0]);
}
