//! Ten million new keys against a cap of a hundred thousand, on a clock that only this moves: who is let in that should
//! not be, who is kept out, and what memory does.

use tollgate::{
    Key, Limit,
    bucket::Algorithm,
    charge::{Charge, RuleSpec, Slot, Verdicts},
    store::{MemoryStore, Reply, Store},
    time::{Clock, Nanos},
};

use crate::{
    allocator,
    clock::DrivenClock,
    harness::{Report, Scale},
};

const CAP: usize = 100_000;
const ACTIVE: u64 = 1_000;
const HONEST: u64 = 1_000;
/// Each step is a millisecond: the honest ask a thousand times a second together, the flood ten times as often.
const STEP: Nanos = Nanos::new(1_000_000);
const FLOOD_A_STEP: u64 = 10;
/// An active client asks four times a second, twice what it is granted.
const ACTIVE_A_STEP: u64 = 4;

/// A limit and a way to flood it.
struct Scenario {
    name: &'static str,
    algorithm: Algorithm,
    limit: fn() -> Limit,
    /// What each key of the flood asks for.
    flood_cost: u64,
}

const SCENARIOS: [Scenario; 3] = [
    // A key that asked once is as new half a second later: the flood never fills the table.
    Scenario {
        name: "one_each",
        algorithm: Algorithm::TokenBucket,
        limit: || Limit::per_second(2).burst(100),
        flood_cost: 1,
    },
    // A key that used its whole burst counts for fifty seconds: five times as many as there is room for.
    Scenario {
        name: "whole_burst",
        algorithm: Algorithm::TokenBucket,
        limit: || Limit::per_second(2).burst(100),
        flood_cost: 100,
    },
    // A key counts to the end of the window, however little it asked for.
    Scenario { name: "window", algorithm: Algorithm::FixedWindow, limit: || Limit::per_minute(120), flood_cost: 1 },
];

/// Whoever asks, by kind and number: no two are the same key.
#[derive(Clone, Copy)]
enum Who {
    Active(u64),
    Honest(u64),
    Flood(u64),
}

struct Answer {
    passed: bool,
    tracked: bool,
}

struct Table {
    store: MemoryStore,
    slot: Slot,
    limit: Limit,
    clock: DrivenClock,
}

impl Table {
    fn new(scenario: &Scenario) -> Self {
        let (store, limit) = (MemoryStore::builder().max_keys(CAP).build(), (scenario.limit)());
        let spec = RuleSpec::new("client", scenario.algorithm.clone(), limit);
        let slot = store.bind(&spec, None).expect("a memory store runs this");
        Self { store, slot, limit, clock: DrivenClock::new() }
    }

    fn ask(&self, who: Who, cost: u64) -> Answer {
        let number = match who {
            Who::Active(number) => number,
            Who::Honest(number) => 1 << 40 | number,
            Who::Flood(number) => 1 << 41 | number,
        };
        let charges = [Charge::new(&self.slot, Key::from(number).id(self.store.secret()), self.limit, cost)];
        let mut verdicts = Verdicts::new();
        let reply = self.store.decide(self.clock.now(), &charges, &mut verdicts);
        assert!(matches!(reply, Reply::Ready(Ok(()))), "a memory store answers at once");
        let verdict = verdicts.iter().next().expect("an answer to each charge").verdict;
        Answer { passed: verdict.outcome.passes(), tracked: !verdict.untracked }
    }
}

/// What an active client may do, reckoned apart from the store: charged whatever the store let pass.
#[derive(Clone, Copy, Default)]
struct Account {
    /// Token bucket: when it is full, in nanoseconds. Fixed window: the window's number, and the count in it.
    full_at: u64,
    window: u64,
    used: u64,
}

impl Account {
    /// Returns whether one more is within the limit.
    fn may(&mut self, algorithm: &Algorithm, limit: &Limit, now: u64) -> bool {
        let period = limit.period().as_nanos() as u64;
        match algorithm {
            Algorithm::TokenBucket => {
                let each = period / limit.permits();
                self.full_at.max(now) + each <= now + each * limit.capacity()
            }
            Algorithm::FixedWindow => {
                if self.window != now / period {
                    (self.window, self.used) = (now / period, 0);
                }
                self.used < limit.permits()
            }
            other => panic!("no account for {other:?}"),
        }
    }

    fn charge(&mut self, limit: &Limit, now: u64) {
        self.full_at = self.full_at.max(now) + limit.period().as_nanos() as u64 / limit.permits();
        self.used += 1;
    }
}

#[derive(Default)]
struct Tally {
    bypassed: u64,
    tracked_refused: u64,
    untracked_refused: u64,
    active_passed: u64,
    honest_asked: u64,
    honest_served: u64,
    flood_passed: u64,
}

pub fn run(scale: Scale, report: &mut Report) {
    let keys = scale.pick(1_000_000, 10_000_000);
    report.table(
        &format!("Flood: {keys} new keys against a cap of {CAP}"),
        &[
            "bypass",
            "tracked ref.",
            "untr. ref.",
            "honest %",
            "flood pass %",
            "B before",
            "B at cap",
            "B at end",
            "RSS MB",
        ],
    );
    for scenario in &SCENARIOS {
        flood(scenario, keys, report);
    }
}

fn flood(scenario: &Scenario, keys: u64, report: &mut Report) {
    let before_all = allocator::held();
    let table = Table::new(scenario);
    let mut accounts = vec![Account::default(); ACTIVE as usize];
    let accounts_size = (accounts.len() * size_of::<Account>()) as i64;
    let held = || (allocator::held() - before_all - accounts_size) as f64;
    let mut tally = Tally::default();
    // Two minutes in which the active ones come to their limit, before anybody else is there.
    for step in 0..120_000 {
        actives(scenario, &table, &mut accounts, step, &mut tally);
        table.clock.advance(STEP.get());
    }
    let (before, steps) = (held(), keys / FLOOD_A_STEP);
    // The honest ones come when the flood has filled what it can, and long before the next window begins.
    let honest_from = steps.min(80_000) / 2;
    let mut at_cap = before;
    for step in 0..steps {
        actives(scenario, &table, &mut accounts, step, &mut tally);
        for number in 0..FLOOD_A_STEP {
            let answer = table.ask(Who::Flood(step * FLOOD_A_STEP + number), scenario.flood_cost);
            tally.flood_passed += u64::from(answer.passed);
        }
        if step >= honest_from {
            let answer = table.ask(Who::Honest(step % HONEST), 1);
            tally.honest_asked += 1;
            tally.honest_served += u64::from(answer.passed);
        }
        if step == steps.min(60_000) / 2 {
            at_cap = held();
        }
        table.clock.advance(STEP.get());
    }
    assert!(tally.active_passed > 0 && tally.honest_asked > 0, "nobody asked");
    let served = tally.honest_served as f64 / tally.honest_asked as f64;
    let row = [
        tally.bypassed as f64,
        tally.tracked_refused as f64,
        tally.untracked_refused as f64,
        served * 100.0,
        tally.flood_passed as f64 / keys as f64 * 100.0,
        before,
        at_cap,
        held(),
        allocator::resident() as f64 / 1e6,
    ];
    let name = scenario.name;
    report.row(name, &row);
    report.value("flood", &format!("{name}_tracked_keys_at_end"), table.store.tracked_keys() as f64);
    report.ratio(format!("flood_bypass_{name}"), row[0], 1.0);
    report.ratio(format!("flood_tracked_refused_{name}"), row[1], 1.0);
    report.ratio(format!("flood_memory_{name}_end_over_cap"), row[7], row[6]);
    report.ratio(format!("flood_honest_served_{name}"), served, 1.0);
}

fn actives(scenario: &Scenario, table: &Table, accounts: &mut [Account], step: u64, tally: &mut Tally) {
    for number in 0..ACTIVE_A_STEP {
        let number = (step * ACTIVE_A_STEP + number) % ACTIVE;
        let (account, now) = (&mut accounts[number as usize], table.clock.now().get());
        let may = account.may(&scenario.algorithm, &table.limit, now);
        let answer = table.ask(Who::Active(number), 1);
        match (answer.passed, may) {
            (true, true) => tally.active_passed += 1,
            (true, false) => tally.bypassed += 1,
            (false, true) if answer.tracked => tally.tracked_refused += 1,
            (false, true) => tally.untracked_refused += 1,
            (false, false) => {}
        }
        if answer.passed {
            account.charge(&table.limit, now);
        }
    }
}
