//! Every fault through the whole stack: a guard over the Redis store, with each policy. See the figures with
//! `--nocapture`.

use std::time::Instant;

use tokio::{task::block_in_place, time::sleep};
use tollgate::{
    Decision, FailurePolicy, Key, Limit, Limiter, Rule,
    bucket::FixedWindow,
    charge::Share,
    store::{Guarded, RedisStore},
};

use super::{
    Duration,
    asking::Asking,
    comes_to,
    late::Lateness,
    proxy::Proxy,
    secret,
    server::{Server, free_port},
    until,
};

const DEADLINE: Duration = Duration::from_millis(25);
/// What is up is used again after at most this.
const BACK: Duration = Duration::from_millis(500);
/// So long a guard may take to find out that it is no use to ask: five deadlines, and a busy machine.
const FINDS_OUT: Duration = Duration::from_millis(250);
/// A limit that is never used up, over a year, so that what was charged can be counted afterwards.
const WIDE: u64 = 1_000_000;
/// A limit that is used up all the time: so many a second, and as many at once.
const NARROW: u64 = 20;
const PROCESSES: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Open,
    Closed,
    Share,
}

const WAYS: [Way; 3] = [Way::Open, Way::Closed, Way::Share];

impl Way {
    fn policy(self) -> FailurePolicy {
        match self {
            Self::Open => FailurePolicy::Allow,
            Self::Closed => FailurePolicy::Refuse,
            Self::Share => FailurePolicy::Fallback(Share::one_in(PROCESSES)),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Call {
    way: Way,
    narrow: bool,
}

fn rules() -> Vec<Rule<Call>> {
    let year = Duration::from_secs(365 * 86_400);
    let mut rules = Vec::new();
    for (way, wide, narrow) in [
        (Way::Open, "open.wide", "open.narrow"),
        (Way::Closed, "closed.wide", "closed.narrow"),
        (Way::Share, "share.wide", "share.narrow"),
    ] {
        let rule = Rule::new(wide, Limit::new(WIDE, year), |_: &Call| Some(Key::from(7_u64))).algorithm(FixedWindow);
        rules.push(rule.when(move |call| call.way == way && !call.narrow).on_store_failure(way.policy()));
        let rule = Rule::new(narrow, Limit::per_second(NARROW), |_: &Call| Some(Key::from(7_u64)));
        rules.push(rule.when(move |call| call.way == way && call.narrow).on_store_failure(way.policy()));
    }
    rules
}

/// How long what goes wrong is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// No decision notices.
    Never,
    /// Some do, and then there is a new connection.
    Shortly,
    /// Every decision does, until it is over.
    Throughout,
}

struct Fault {
    name: &'static str,
    server: &'static [&'static str],
    lasts: Duration,
    begins: fn(&mut Bench),
    /// What has to happen again and again for it to last.
    goes_on: fn(&mut Bench),
    ends: fn(&mut Bench),
    seen: Seen,
    /// Whether the server forgets what it knew.
    forgets: bool,
    /// How many answers may be lost on their way: charges that nobody knows of.
    lost: u64,
    /// How many connections may be made, whatever the time it lasts.
    connects: usize,
}

impl Fault {
    /// Where nobody may notice anything, nobody is late on a busy machine either.
    fn deadline(&self) -> Duration {
        if self.seen == Seen::Never { 40 * DEADLINE } else { DEADLINE }
    }
}

/// A second of a server that refuses everything.
const PLAIN: Fault = Fault {
    name: "",
    server: &[],
    lasts: Duration::from_secs(1),
    begins: |_| {},
    goes_on: |_| {},
    ends: |_| {},
    seen: Seen::Throughout,
    forgets: false,
    lost: 0,
    connects: usize::MAX,
};

fn faults() -> Vec<Fault> {
    vec![
        Fault {
            name: "SIGKILL",
            lasts: Duration::from_secs(3),
            begins: |bench| bench.server.kill(),
            ends: |bench| bench.start_again(&[]),
            forgets: true,
            ..PLAIN
        },
        Fault {
            name: "SIGSTOP",
            lasts: Duration::from_secs(5),
            begins: |bench| bench.server.stop(),
            ends: |bench| bench.server.go_on(),
            ..PLAIN
        },
        Fault {
            name: "black hole",
            begins: |bench| bench.proxy.swallow_all(),
            ends: |bench| bench.proxy.let_new_ones_through(),
            lost: 64,
            ..PLAIN
        },
        Fault {
            name: "one connection a black hole",
            begins: |bench| bench.proxy.swallow_existing(),
            seen: Seen::Shortly,
            lost: 64,
            connects: 6,
            ..PLAIN
        },
        Fault {
            name: "READONLY",
            begins: |bench| bench.tell(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]),
            ends: |bench| bench.tell(&["REPLICAOF", "NO", "ONE"]),
            ..PLAIN
        },
        Fault {
            name: "OOM",
            server: &["--maxmemory-policy", "noeviction"],
            begins: |bench| bench.tell(&["CONFIG", "SET", "maxmemory", "1"]),
            ends: |bench| bench.tell(&["CONFIG", "SET", "maxmemory", "0"]),
            ..PLAIN
        },
        Fault {
            name: "BUSY",
            server: &["--busy-reply-threshold", "100"],
            begins: |bench| {
                let mut connection = bench.server.ask();
                std::thread::spawn(move || {
                    // Ends with its script, or with its server.
                    let _ = ::redis::Script::new("while true do end").invoke::<()>(&mut connection);
                });
            },
            ends: |bench| bench.tell(&["SCRIPT", "KILL"]),
            ..PLAIN
        },
        Fault {
            name: "LOADING",
            begins: |bench| {
                bench.tell(&["DEBUG", "POPULATE", "20000"]);
                bench.tell(&["SAVE"]);
                bench.server.kill();
                let slowly = ["--key-load-delay", "50", "--loading-process-events-interval-bytes", "1024"];
                bench.server.start_again(&slowly);
            },
            lasts: Duration::ZERO,
            ends: |bench| bench.comes_up(),
            forgets: true,
            // What was charged when it was saved, and answered when it was killed.
            lost: 64,
            ..PLAIN
        },
        Fault {
            name: "maxclients",
            begins: |bench| {
                bench.tell(&["CONFIG", "SET", "maxclients", "1"]);
                bench.tell(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            },
            ends: |bench| bench.tell(&["CONFIG", "SET", "maxclients", "1000"]),
            lost: 64,
            ..PLAIN
        },
        Fault {
            name: "SCRIPT FLUSH",
            begins: |bench| bench.tell(&["SCRIPT", "FLUSH"]),
            goes_on: |bench| bench.tell(&["SCRIPT", "FLUSH"]),
            seen: Seen::Never,
            connects: 1,
            ..PLAIN
        },
        Fault {
            name: "half a reply",
            begins: |bench| bench.proxy.cut_next_reply(),
            seen: Seen::Shortly,
            lost: 64,
            connects: 6,
            ..PLAIN
        },
    ]
}

/// A server, the way to it, a connection of the test's own past that way, and what is asked.
struct Bench {
    server: Server,
    proxy: Proxy,
    asks: ::redis::Connection,
    store: RedisStore,
    guarded: Guarded,
    limiter: Limiter<Call>,
}

impl Bench {
    async fn new(fault: &Fault) -> Self {
        let server = Server::start_with(fault.server);
        let proxy = Proxy::before(server.address()).await;
        let deadline = fault.deadline();
        let store = RedisStore::builder(&proxy.url(), secret()).deadline(deadline).connect().await.unwrap();
        let guarded = Guarded::builder(store.clone(), FailurePolicy::Refuse).deadline(deadline).build();
        let limiter = Limiter::builder(rules()).store(guarded.clone()).build().unwrap();
        Self { asks: server.ask(), server, proxy, store, guarded, limiter }
    }

    fn tell(&mut self, command: &[&str]) {
        let mut parts = command.iter();
        let mut run = ::redis::cmd(parts.next().unwrap());
        for part in parts {
            run.arg(*part);
        }
        block_in_place(|| run.query::<::redis::Value>(&mut self.asks))
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    }

    fn comes_up(&mut self) {
        block_in_place(|| assert!(self.server.comes_up(), "it does not come up again"));
        self.asks = self.server.ask();
    }

    fn start_again(&mut self, more: &[&str]) {
        self.server.start_again(more);
        self.comes_up();
    }

    /// How much of the wide limit is used, as the server knows.
    async fn used(&self, way: Way) -> u64 {
        let limiter = Limiter::builder(rules()).store(self.guarded.clone()).build().unwrap();
        let mut used = None;
        until("an answer of the server's", async || {
            let decision = limiter.peek(&Call { way, narrow: false }).await.unwrap();
            used = (!decision.is_degraded()).then(|| WIDE - decision.tightest().unwrap().verdict.remaining);
            used.is_some()
        })
        .await;
        used.unwrap()
    }

    /// Waits until what is used is what passed, and what may have been lost.
    async fn settles(&self, fault: &Fault, way: Way, passed: u64) {
        let right = |used| {
            if fault.forgets { used <= passed + fault.lost } else { (passed..=passed + fault.lost).contains(&used) }
        };
        comes_to(&format!("{}, {way:?}", fault.name), Ok(()), async || {
            self.store.flush().await.unwrap();
            let used = self.used(way).await;
            if right(used) { Ok(()) } else { Err(format!("{used} used, and {passed} passed")) }
        })
        .await;
    }

    /// How many of many requests pass a narrow limit, and whether one passes later.
    async fn is_limited(&self, fault: &Fault, way: Way) {
        let call = Call { way, narrow: true };
        let begun = Instant::now();
        let mut passed = 0;
        for _ in 0..10 * NARROW {
            passed += u64::from(self.limiter.check(&call).await.unwrap().is_allowed());
        }
        let most = NARROW + NARROW * begun.elapsed().as_millis() as u64 / 1_000 + 1;
        assert!(passed <= most, "{}, {way:?}: {passed} passed in {:?}", fault.name, begun.elapsed());
        let passes = async || self.limiter.check(&call).await.unwrap().is_allowed();
        until(&format!("{}, {way:?}: a request passes again", fault.name), passes).await;
    }
}

struct Asked {
    call: Call,
    at: Instant,
    took: Duration,
    decision: Decision,
}

/// Asks everything every few milliseconds. All goes well where the server decides.
fn ask_on(limiter: &Limiter<Call>) -> Asking<Asked> {
    let limiter = limiter.clone();
    let all = WAYS.map(|way| [false, true].map(|narrow| Call { way, narrow }));
    let ask = move || {
        <[_; 2 * WAYS.len()]>::try_from(all.concat()).unwrap().map(|call| {
            let limiter = limiter.clone();
            async move {
                let at = Instant::now();
                let decision = limiter.check(&call).await.unwrap();
                Asked { call, at, took: at.elapsed(), decision }
            }
        })
    };
    let well = |asked: &Asked| !asked.call.narrow && !asked.decision.is_degraded();
    Asking::begin(Duration::from_millis(4), well, ask)
}

fn as_chosen(fault: &Fault, asked: &Asked) {
    let Asked { call, decision, .. } = asked;
    let told = || format!("{}, {call:?}: {decision:?}", fault.name);
    match (call.way, decision.is_degraded()) {
        (Way::Open, true) => assert!(decision.is_allowed(), "{}", told()),
        (Way::Closed, true) => {
            assert!(!decision.is_allowed() && decision.status().as_u16() == 503, "{}", told());
            assert_eq!(decision.retry_after_secs(), Some(1), "{}", told());
        }
        (Way::Share, true) if call.narrow => {}
        // A quarter of the wide limit is not used up either.
        (Way::Share, true) => assert!(decision.is_allowed(), "{}", told()),
        (_, false) => assert!(call.narrow || decision.is_allowed(), "{}", told()),
    }
}

async fn run(fault: &Fault) {
    let mut bench = Bench::new(fault).await;
    let asking = ask_on(&bench.limiter);
    let lateness = Lateness::begin();
    asking.goes_well(200).await;
    let from = Instant::now();
    (fault.begins)(&mut bench);
    while from.elapsed() < fault.lasts {
        sleep(Duration::from_millis(2)).await;
        (fault.goes_on)(&mut bench);
    }
    let to = Instant::now();
    (fault.ends)(&mut bench);
    let up = if fault.seen == Seen::Throughout { Instant::now() } else { from };
    asking.goes_well(300).await;
    let all = asking.end().await;
    let late = lateness.end().await;

    let mut took: Vec<_> = all.iter().map(|asked| asked.took).collect();
    took.sort_unstable();
    let p99 = took[took.len() * 99 / 100];
    let degraded = all.iter().filter(|asked| asked.decision.is_degraded()).count();
    let after = all.iter().filter(|asked| asked.at > up + Duration::from_millis(1) && !asked.decision.is_degraded());
    // Remembered refusals are the store's word too, but only an answer shows that it is back.
    let back = after.filter(|asked| !asked.call.narrow).map(|asked| asked.at).min().expect("it comes back");
    let (counts, connects) = (bench.guarded.counts(), bench.proxy.connects());
    println!(
        "{:<28} {:>5} decisions, {degraded:>5} degraded, p99 {:>5.1} ms, longest {:>5.1} ms, back after {:>3} ms, \
         {connects} connects, {} probes, timers late by {:.1} ms",
        fault.name,
        all.len(),
        p99.as_secs_f64() * 1e3,
        took[took.len() - 1].as_secs_f64() * 1e3,
        back.duration_since(up).as_millis(),
        counts.probes,
        late.as_secs_f64() * 1e3,
    );
    assert!(
        p99 <= fault.deadline() + Duration::from_millis(5) + late,
        "{}: p99 {p99:?}, timers late by {late:?}",
        fault.name
    );
    assert!(back.duration_since(up) <= BACK + late, "{}: back after {:?}", fault.name, back.duration_since(up));
    // The first pauses are short; later there are few a second, and the probe's.
    let most = fault.connects.min(8 + 5 * (up.duration_since(from).as_secs_f64().ceil() as usize));
    assert!(connects <= most, "{}: {connects} connects", fault.name);
    all.iter().for_each(|asked| as_chosen(fault, asked));
    let during = |asked: &&Asked| asked.at > from + FINDS_OUT + late && asked.at < to && !asked.call.narrow;
    match fault.seen {
        Seen::Never => assert_eq!(degraded, 0, "{}", fault.name),
        Seen::Shortly => assert!((1..500).contains(&degraded), "{}: {degraded} degraded", fault.name),
        Seen::Throughout => {
            let answered = all.iter().filter(during).filter(|asked| !asked.decision.is_degraded()).count();
            assert_eq!(answered, 0, "{}: decisions by the store while it is away", fault.name);
            assert!(counts.opened >= 1 && degraded > 100, "{}: {counts:?}", fault.name);
        }
    }
    for way in WAYS {
        let by_store = all.iter().filter(|asked| asked.call.way == way && !asked.decision.is_degraded());
        let passed = by_store.filter(|asked| !asked.call.narrow && asked.decision.is_allowed()).count();
        bench.settles(fault, way, passed as u64).await;
        bench.is_limited(fault, way).await;
    }
    let keys: Vec<String> = bench.server.run(&["KEYS", "tg1:*"]);
    for key in keys {
        let ends: i64 = bench.server.run(&["PTTL", &key]);
        assert_ne!(ends, -1, "{}: {key} never ends", fault.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_every_fault_each_rule_does_what_was_chosen_and_the_server_is_used_again_within_half_a_second() {
    let only = std::env::var("TOLLGATE_FAULT").ok();
    for fault in faults().iter().filter(|fault| only.as_deref().is_none_or(|only| only == fault.name)) {
        run(fault).await;
    }
}

/// The guard gives up before the store does, and the store has to notice all the same that nothing comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_is_noticed_by_a_store_that_waits_longer_than_its_guard() {
    let server = Server::start();
    let proxy = Proxy::before(server.address()).await;
    let store = RedisStore::builder(&proxy.url(), secret()).deadline(4 * DEADLINE).connect().await.unwrap();
    let guarded = Guarded::builder(store, FailurePolicy::Refuse).deadline(DEADLINE).opens_after(1_000).build();
    let limiter = Limiter::builder(rules()).store(guarded).build().unwrap();
    let call = Call { way: Way::Closed, narrow: false };
    assert!(limiter.check(&call).await.unwrap().is_allowed());
    proxy.swallow_existing();
    let from = Instant::now();
    let finds_out = until("it finds out", async || limiter.check(&call).await.unwrap().is_allowed());
    tokio::time::timeout(Duration::from_secs(3), finds_out).await.expect("as soon as that");
    println!("a guard of 25 ms over a store of 100 ms: back after {:?}", from.elapsed());
    assert_eq!(proxy.connects(), 2);
}

/// An attacker who keeps on is refused here, until the wait that was told is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_most_one_in_a_hundred_of_a_denied_flood_reaches_the_server() {
    const FLOOD: u64 = 100_000;
    const TASKS: u64 = 16;
    let server = Server::start();
    let store = RedisStore::builder(&server.url(), secret()).deadline(Duration::from_secs(1)).connect().await.unwrap();
    let guarded = Guarded::builder(store, FailurePolicy::Refuse).deadline(Duration::from_secs(1)).build();
    // One a second: what comes free is asked for by everybody who knows, and there are few of those moments.
    let rule = Rule::new("login", Limit::per_minute(60), |id: &u64| Some(Key::from(*id)));
    let limiter = Limiter::builder([rule]).store(guarded.clone()).build().unwrap();
    server.run::<()>(&["CONFIG", "RESETSTAT"]);
    while limiter.check(&7).await.unwrap().is_allowed() {}
    let begun = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut passed = 0;
                for _ in 0..FLOOD / TASKS {
                    passed += u64::from(limiter.check(&7).await.unwrap().is_allowed());
                }
                passed
            })
        })
        .collect();
    let mut passed = 0;
    for task in tasks {
        passed += task.await.unwrap();
    }
    let took = begun.elapsed();
    let stats: String = server.run(&["INFO", "commandstats"]);
    let calls = |command: &str| -> u64 {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    let seen = calls("evalsha") + calls("eval");
    println!("{FLOOD} requests in {took:?}: {seen} reached the server, {passed} passed, {:?}", guarded.counts());
    assert!(seen <= FLOOD / 100, "{seen} of {FLOOD} reached the server");
    assert!(seen >= 1 && guarded.counts().remembered >= FLOOD * 99 / 100, "{:?}", guarded.counts());
    assert!(passed <= took.as_secs() + 2, "{passed} passed in {took:?}");
}
