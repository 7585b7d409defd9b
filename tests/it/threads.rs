//! Many threads at one instant: exactly the limit, and nobody waits for ever.

use std::{
    cell::Cell,
    collections::HashMap,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use tokio_test::task::spawn;
use tollgate::{
    Key, Limit, Limiter, Rule,
    bucket::{Bucket, FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket},
    store::MemoryStore,
    time::{BoxFuture, Clock, ManualClock, Nanos},
};

use crate::random::{Random, from_env};

const TODAY: Nanos = Nanos::from_secs(1_700_000_000);
const THREADS: u64 = 16;
const REQUESTS: u64 = 1_000;

/// Starts all threads at once; each calls `one` with the next number until `REQUESTS` were handed out. Returns how many
/// of them passed.
fn all_at_once(one: impl Fn(u64) -> bool + Sync) -> u64 {
    let (barrier, next) = (Barrier::new(THREADS as usize), AtomicU64::new(0));
    thread::scope(|scope| {
        let ask = || {
            barrier.wait();
            let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
            numbers.take_while(|number| *number < REQUESTS).filter(|number| one(*number)).count() as u64
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

fn limiter(rules: impl IntoIterator<Item = Rule<u64>>) -> Limiter<u64> {
    Limiter::builder(rules).clock(ManualClock::at(TODAY)).build().unwrap()
}

fn one_key(_: &u64) -> Option<Key<'_>> {
    Some(Key::from("everybody"))
}

fn exactly_the_limit_passes(algorithm: impl Bucket + Copy) {
    for rule in [Rule::new("r", Limit::per_hour(100), one_key), Rule::global("r", Limit::per_hour(100))] {
        let limiter = limiter([rule.algorithm(algorithm)]);
        assert_eq!(all_at_once(|number| limiter.check_now(&number).unwrap().is_allowed()), 100, "{limiter:?}");
        let left = limiter.peek_now(&0).unwrap().tightest().unwrap().verdict.remaining;
        assert_eq!(left, 0, "{limiter:?}");
    }
}

#[test]
fn threads_at_one_instant_share_exactly_the_tokens_there_are() {
    exactly_the_limit_passes(TokenBucket);
}

#[test]
fn threads_at_one_instant_share_exactly_the_permits_of_a_window() {
    exactly_the_limit_passes(FixedWindow);
    exactly_the_limit_passes(SlidingWindowLog);
    exactly_the_limit_passes(SlidingWindowCounter);
}

#[test]
fn threads_at_one_instant_share_exactly_the_places_of_a_queue() {
    let limit = Limit::per_hour(100).burst(100);
    let limiter = limiter([Rule::new("queue", limit, one_key).algorithm(LeakyBucket)]);
    let places = std::sync::Mutex::new(Vec::new());
    let passed = all_at_once(|number| {
        let limiter = limiter.clone();
        let acquire: BoxFuture<'static, _> = Box::pin(async move { limiter.acquire(&number).await.unwrap() });
        let mut acquire = spawn(acquire);
        match acquire.poll() {
            std::task::Poll::Ready(decision) => decision.is_allowed(),
            std::task::Poll::Pending => {
                // Kept, since a place that is given up comes back.
                places.lock().unwrap().push(acquire);
                true
            }
        }
    });
    assert_eq!(passed, 100);
    assert_eq!(places.into_inner().unwrap().len(), 99, "all but the first wait for their turn");
}

/// How much is used of the rule at `place`, over the keys that these requests have.
fn used(limiter: &Limiter<u64>, place: usize, requests: impl Iterator<Item = u64>) -> u64 {
    requests
        .map(|request| {
            let decision = limiter.peek_now(&request).unwrap();
            let verdict = decision.rules().nth(place).unwrap().verdict;
            verdict.limit - verdict.remaining
        })
        .sum()
}

#[test]
fn a_request_that_the_last_rule_refuses_is_counted_nowhere() {
    // The last rule refuses half of the requests; a tighter first one lets fewer than that through.
    for (first, passes) in [(2_000, 500), (300, 300)] {
        let limiter = limiter([
            Rule::global("all", Limit::per_hour(first)),
            Rule::new("tenth", Limit::per_hour(500), |n: &u64| Some(Key::from(n % 10))).algorithm(SlidingWindowLog),
            Rule::new("hundredth", Limit::per_hour(5), |n: &u64| Some(Key::from(n % 100))).algorithm(FixedWindow),
        ]);
        assert_eq!(all_at_once(|number| limiter.check_now(&number).unwrap().is_allowed()), passes);
        assert_eq!(used(&limiter, 0, 0..1), passes, "the global count");
        assert_eq!(used(&limiter, 1, 0..10), passes, "the counts by ten keys");
        assert_eq!(used(&limiter, 2, 0..100), passes, "the counts by a hundred keys");
    }
}

/// Four rules over few keys, so that everybody meets everybody.
fn crossed_rules() -> [Rule<u64>; 4] {
    let many = Limit::per_hour(1 << 40);
    [
        Rule::new("a", many, |n: &u64| Some(Key::from(n % 3))),
        Rule::new("b", many, |n: &u64| Some(Key::from(n % 5))).algorithm(FixedWindow),
        Rule::new("c", Limit::per_hour(1_000), |n: &u64| Some(Key::from(n % 7))).algorithm(SlidingWindowLog),
        Rule::global("d", many).algorithm(SlidingWindowCounter),
    ]
}

#[test]
fn rules_in_opposite_order_on_one_store_neither_lock_up_nor_miscount() {
    let (store, clock) = (MemoryStore::new(), ManualClock::at(TODAY));
    let build =
        |rules: Vec<Rule<u64>>| Limiter::builder(rules).store(store.clone()).clock(clock.clone()).build().unwrap();
    let forwards = build(crossed_rules().into());
    let backwards = build(crossed_rules().into_iter().rev().collect());
    let seconds = from_env("TOLLGATE_SECONDS", 1);
    let (done, all_done) = mpsc::channel();
    for seed in 0..4 {
        let limiter = if seed % 2 == 0 { forwards.clone() } else { backwards.clone() };
        let done = done.clone();
        thread::spawn(move || {
            let (mut random, mut passed) = (Random::new(seed), 0_u64);
            let until = Instant::now() + Duration::from_secs(seconds);
            // However slow the machine is, there are enough requests to use up everything.
            let mut rounds = 0;
            while rounds < 150 || Instant::now() < until {
                rounds += 1;
                for _ in 0..100 {
                    let (decision, receipt) = limiter.reserve_now(&random.below(105)).unwrap();
                    // What comes back under the last rule lets another in; under a bucket it comes back or is lost.
                    if decision.is_allowed() && random.one_in(4) {
                        receipt.give_back()
                    } else {
                        passed += u64::from(decision.is_allowed())
                    }
                }
            }
            done.send(passed).unwrap();
        });
    }
    let patience = Duration::from_secs(seconds + 60);
    let wait = |_| all_done.recv_timeout(patience).expect("a thread waits for ever, or has failed");
    let passed: u64 = (0..4).map(wait).sum();
    assert_eq!(passed, 7_000, "seven keys of a thousand permits");
    for (name, place, keys) in [("b", 1, 5), ("c", 2, 7), ("d", 3, 1)] {
        assert_eq!(used(&forwards, place, 0..keys), passed, "{name}");
    }
    assert!(used(&forwards, 0, 0..3) >= passed, "a token bucket may keep a little of what came back, never give more");
}

const KEYS: u64 = 40;
const PERMITS: u64 = 20;

/// Threads charge and give back while another drops fresh buckets; then everything is filled up. Returns how much
/// stands.
fn filled_while_swept(algorithm: impl Bucket) -> u64 {
    let (store, clock) = (MemoryStore::new(), ManualClock::at(TODAY));
    let rule = Rule::new("r", Limit::per_hour(PERMITS), |n: &u64| Some(Key::from(*n))).algorithm(algorithm);
    let limiter = Limiter::builder([rule]).store(store.clone()).clock(clock.clone()).build().unwrap();
    let (running, standing) = (AtomicBool::new(true), AtomicU64::new(0));
    thread::scope(|scope| {
        let sweeper = scope.spawn(|| {
            while running.load(Ordering::Relaxed) {
                store.sweep(clock.now());
            }
        });
        let charge = |seed| {
            let mut random = Random::new(seed);
            for _ in 0..4_000 {
                let (decision, receipt) = limiter.reserve_now(&random.below(KEYS)).unwrap();
                match decision.is_allowed() {
                    true if random.one_in(200) => _ = standing.fetch_add(1, Ordering::Relaxed),
                    true => receipt.give_back(),
                    false => {}
                }
            }
            for key in 0..KEYS {
                while limiter.check_now(&key).unwrap().is_allowed() {
                    standing.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let threads: Vec<_> = (0..4).map(|seed| scope.spawn(move || charge(seed))).collect();
        let results: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        running.store(false, Ordering::Relaxed);
        sweeper.join().unwrap();
        for result in results {
            result.unwrap();
        }
    });
    standing.into_inner()
}

#[test]
fn dropping_fresh_buckets_while_others_charge_and_give_back_lets_nobody_extra_through() {
    for standing in [
        filled_while_swept(FixedWindow),
        filled_while_swept(SlidingWindowLog),
        filled_while_swept(SlidingWindowCounter),
    ] {
        assert_eq!(standing, KEYS * PERMITS, "exactly what there is");
    }
    let standing = filled_while_swept(TokenBucket);
    assert!(standing <= KEYS * PERMITS, "{standing} is more than there is");
}

thread_local! {
    static READ: Cell<Nanos> = const { Cell::new(Nanos::ZERO) };
}

/// A clock that remembers what each thread was told last.
#[derive(Clone)]
struct Noting(ManualClock);

impl Clock for Noting {
    fn now(&self) -> Nanos {
        let now = self.0.now();
        READ.set(now);
        now
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
}

#[test]
fn a_window_holds_no_more_though_the_clock_moves_over_its_edge_while_threads_charge_and_sweep() {
    // All within a second: beyond, a thread that comes late would be taken for a clock that was set back.
    let (window, windows, asked_a_step) = (Duration::from_millis(10), 90, 40);
    let (store, clock) = (MemoryStore::new(), ManualClock::at(TODAY));
    let rule = Rule::new("r", Limit::new(PERMITS, window), one_key).algorithm(FixedWindow);
    let limiter = Limiter::builder([rule]).store(store.clone()).clock(Noting(clock.clone())).build().unwrap();
    let (asked, running) = (AtomicU64::new(0), AtomicBool::new(true));
    let starts = thread::scope(|scope| {
        scope.spawn(|| {
            for step in 1..=10 * windows {
                while asked.load(Ordering::Relaxed) < step * asked_a_step {
                    thread::yield_now();
                }
                clock.advance(window / 10);
                store.sweep(clock.now());
            }
            running.store(false, Ordering::Relaxed);
        });
        let ask = || {
            let mut ends = Vec::new();
            while running.load(Ordering::Relaxed) {
                let decision = limiter.check_now(&0).unwrap();
                asked.fetch_add(1, Ordering::Relaxed);
                if decision.is_allowed() {
                    let until_end = decision.tightest().unwrap().verdict.reset.unwrap();
                    ends.push(READ.get().saturating_add(until_end));
                }
            }
            ends
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let mut by_window: HashMap<u64, u64> = HashMap::new();
    for end in starts {
        *by_window.entry(end.get()).or_default() += 1;
    }
    for (end, passed) in by_window {
        assert!(passed <= PERMITS, "{passed} passed in the window that ended at {end}");
    }
}

#[test]
fn receipts_that_come_back_from_many_threads_leave_exactly_what_stands() {
    for algorithm in 0..4 {
        let rule = Rule::new("r", Limit::per_hour(10_000), one_key);
        let rule = match algorithm {
            0 => rule.algorithm(FixedWindow),
            1 => rule.algorithm(SlidingWindowLog),
            2 => rule.algorithm(SlidingWindowCounter),
            _ => rule,
        };
        let limiter = Arc::new(limiter([rule.cost(|number| 1 + number % 7)]));
        let stands = AtomicU64::new(0);
        let passed = all_at_once(|number| {
            let (decision, receipt) = limiter.reserve_now(&number).unwrap();
            let rest = number % 3;
            stands.fetch_add(rest.min(1 + number % 7), Ordering::Relaxed);
            match rest {
                0 => receipt.give_back(),
                rest => receipt.settle(rest.min(1 + number % 7)),
            }
            decision.is_allowed()
        });
        assert_eq!(passed, REQUESTS);
        let (used, stands) = (used(&limiter, 0, 0..1), stands.into_inner());
        // A token bucket never gives more back than is sure, however the threads cross.
        let exact = algorithm < 3;
        assert!(used == stands || (!exact && used > stands), "{limiter:?}: {used} used where {stands} stands");
    }
}
