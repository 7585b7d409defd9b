//! Whatever has happened before, all ways to an answer lead to the same one: by a limiter that knows its store, and by
//! one that asks it as any other, and by a look before.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use tollgate::{
    Decision, Key, Limit, Limiter, MissingKey, Rule,
    bucket::{FixedWindow, SlidingWindowCounter},
    store::{MemoryStore, Overflow, Receipt, Store},
    time::{Clock, ManualClock, Nanos},
};

use super::runs;
use crate::{
    engine::Shared,
    random::{Random, each_seed},
};

/// What may happen in a history.
#[derive(Debug, Clone, Copy, Default)]
struct History {
    /// There is no room for all keys.
    full: bool,
    /// The clock is set back.
    set_back: bool,
    /// Reloads change algorithms.
    algorithms: bool,
}

#[derive(Debug, Clone, Copy)]
struct Request {
    key: u64,
    cost: u64,
    /// The rules that it is under, by bits.
    under: u64,
}

#[derive(Debug, Clone, Copy)]
struct Terms {
    at: usize,
    limit: Limit,
    algorithm: u64,
    overload: bool,
}

impl Terms {
    fn some(random: &mut Random, at: usize, algorithms: bool) -> Self {
        let algorithm = if algorithms && random.one_in(5) { 1 + random.below(2) } else { 0 };
        // Now and then one that is not of whole nanoseconds a permit.
        let period = if random.one_in(12) { 100 } else { 700 };
        let permits = [1, 2, 4, 7, 10][random.below(5) as usize];
        let (limit, burst) = (Limit::new(permits, Duration::from_millis(period)), 1 + random.below(12));
        let limit = if algorithm == 0 { limit.burst(burst) } else { limit };
        Self { at, limit, algorithm, overload: random.one_in(3) }
    }

    /// Of every three rules one has a key that may be missing, one shares a bucket among those without, and one has no
    /// keys.
    fn rule(self) -> Rule<Request> {
        let Self { at, limit, algorithm, overload } = self;
        let name = format!("r{at}");
        let rule = match at % 3 {
            0 => Rule::new(name, limit, |request: &Request| (request.key != 0).then(|| Key::from(request.key))),
            1 => Rule::new(name, limit, |request: &Request| (request.key != 1).then(|| Key::from(request.key / 2)))
                .on_missing_key(MissingKey::Share),
            _ => Rule::global(name, limit),
        };
        let rule = rule.when(move |request: &Request| request.under >> at & 1 == 1).cost(|request| request.cost);
        let rule = if overload { rule.overload() } else { rule };
        match algorithm {
            0 => rule,
            1 => rule.algorithm(FixedWindow),
            _ => rule.algorithm(SlidingWindowCounter),
        }
    }
}

fn rules(terms: &[Terms]) -> impl Iterator<Item = Rule<Request>> + '_ {
    terms.iter().map(|terms| terms.rule())
}

/// Two limiters that must not differ.
struct Twins {
    short: Limiter<Request>,
    long: Limiter<Request>,
}

impl Twins {
    fn new(terms: &[Terms], [short, long]: &[MemoryStore; 2], clock: &ManualClock) -> Self {
        let unknown = Shared(Arc::new(long.clone()));
        Self { short: built(terms, short.clone(), clock), long: built(terms, unknown, clock) }
    }

    /// The answers of both, which are one.
    fn both<T>(&self, ask: impl Fn(&Limiter<Request>) -> (Decision, T)) -> (Decision, [T; 2]) {
        let ((short, one), (long, other)) = (ask(&self.short), ask(&self.long));
        same(&short, &long);
        assert_eq!(short.at(), long.at());
        (short, [one, other])
    }
}

fn built(terms: &[Terms], store: impl Store, clock: &ManualClock) -> Limiter<Request> {
    Limiter::builder(rules(terms)).store(store).clock(clock.clone()).build().unwrap()
}

/// All that is told.
fn same(one: &Decision, other: &Decision) {
    assert!(one.rules().eq(other.rules()), "{one:?}\n{other:?}");
    assert_eq!((one.refusal(), one.delay(), one.wait()), (other.refusal(), other.delay(), other.wait()));
    assert_eq!((one.retry_after_secs(), one.tightest()), (other.retry_after_secs(), other.tightest()));
}

fn some_request(random: &mut Random, keys: u64) -> Request {
    let cost = match random.below(20) {
        0 => 0,
        1 => 20,
        2 => u64::MAX,
        _ => 1 + random.below(3),
    };
    let under = if random.one_in(3) { random.next() } else { u64::MAX };
    Request { key: random.below(keys), cost, under }
}

fn go_on(random: &mut Random, clock: &ManualClock, history: History) {
    let back = |nanos| clock.set(Nanos::new(clock.now().get() - nanos));
    match random.below(if history.set_back { 16 } else { 14 }) {
        0 => clock.advance(Duration::from_secs(10)),
        1..=4 => {}
        // A thread that comes late is judged by what happens to be kept in a full table.
        14 if !history.full => back(random.below(900_000_000)),
        14 | 15 => back(1_000_000_000 + random.below(3_000_000_000)),
        _ => clock.advance(Duration::from_nanos(random.below(150_000_000))),
    }
}

fn live_through(random: &mut Random, history: History) {
    let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
    let overflow = if random.one_in(2) { Overflow::Share(1) } else { Overflow::Refuse };
    // Of one part, so that it does not depend on their hashes which keys meet.
    let max_keys = if history.full { 1 + random.below(6) as usize } else { 1_000 };
    let stores = [(); 2].map(|()| MemoryStore::builder().max_keys(max_keys).overflow(overflow).build());
    let count = 1 + random.below(6) as usize;
    let mut terms: Vec<_> = (0..count).map(|at| Terms::some(random, at, history.algorithms)).collect();
    for last in 1..count {
        terms.swap(last, random.below(last as u64 + 1) as usize);
    }
    let twins: Vec<_> = (0..1 + random.below(2)).map(|_| Twins::new(&terms, &stores, &clock)).collect();
    let keys = match history {
        History { full: true, .. } => 8,
        History { set_back: true, .. } => 3,
        _ => [3, 40][random.below(2) as usize],
    };
    let mut receipts: Vec<(u64, [Receipt; 2])> = Vec::new();
    for _ in 0..80 {
        go_on(random, &clock, history);
        if history.full || history.set_back {
            for store in &stores {
                store.sweep(clock.now());
            }
        }
        let request = some_request(random, keys);
        let which = random.below(twins.len() as u64) as usize;
        let asked = &twins[which];
        match random.below(24) {
            0 => {
                for terms in &mut terms {
                    if random.one_in(2) {
                        *terms = Terms::some(random, terms.at, history.algorithms);
                    }
                }
                terms.rotate_left(random.below(count as u64) as usize);
                // Two algorithms at a time: whose numbers are told depends on which fresh buckets are still there.
                for (_, twins) in twins.iter().enumerate().filter(|(at, _)| history.algorithms || *at == which) {
                    let [one, other] = [&twins.short, &twins.long].map(|limiter| limiter.reload(rules(&terms)));
                    assert_eq!(one.unwrap(), other.unwrap());
                }
            }
            1 => {
                let name = format!("r{}", random.below(count as u64));
                for limiter in [&asked.short, &asked.long] {
                    limiter.reset(&name, Key::from(request.key)).now_or_never().unwrap().unwrap();
                }
            }
            2 | 3 => {
                let (_, both) = asked.both(|limiter| limiter.reserve_now(&request).unwrap());
                receipts.push((request.cost, both));
            }
            4 | 5 if !receipts.is_empty() => {
                let (cost, both) = receipts.swap_remove(random.below(receipts.len() as u64) as usize);
                let settled = if random.one_in(2) { 0 } else { cost.saturating_sub(1) };
                both.into_iter().for_each(|receipt| receipt.settle(settled));
            }
            _ => {
                let (looked, _) = asked.both(|limiter| (limiter.peek_now(&request).unwrap(), ()));
                let before = stores.each_ref().map(MemoryStore::tracked_keys);
                let (decided, _) = asked.both(|limiter| (limiter.check_now(&request).unwrap(), ()));
                assert_eq!(looked.is_allowed(), decided.is_allowed(), "{looked:?}\n{decided:?}");
                if !decided.is_allowed() {
                    assert!(stores.iter().zip(before).all(|(store, before)| store.tracked_keys() <= before));
                    // A look does not set a whole part of the table back.
                    if !history.set_back {
                        same(&looked, &decided);
                    }
                }
            }
        }
    }
}

fn each_history(history: History) {
    each_seed(runs() / 30, |random| live_through(random, history));
}

#[test]
fn all_ways_lead_to_one_answer() {
    each_history(History::default());
}

#[test]
fn all_ways_lead_to_one_answer_where_algorithms_change() {
    each_history(History { algorithms: true, ..History::default() });
}

#[test]
fn all_ways_lead_to_one_answer_where_the_clock_is_set_back() {
    each_history(History { set_back: true, ..History::default() });
}

#[test]
fn all_ways_lead_to_one_answer_where_there_is_no_room_for_all() {
    each_history(History { full: true, ..History::default() });
}

#[test]
fn all_ways_lead_to_one_answer_where_algorithms_change_and_there_is_no_room_for_all() {
    each_history(History { full: true, algorithms: true, ..History::default() });
}
