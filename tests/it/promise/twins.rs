//! Two limiters that must answer alike.

use std::{sync::Arc, time::Duration};

use tollgate::{
    Decision, Key, Limit, Limiter, Rule,
    bucket::{Ask, FixedWindow, SlidingWindowCounter, SlidingWindowLog},
    decision::Verdict,
    store::{MemoryStore, Store},
    time::{ManualClock, Nanos},
};

use super::{Promise, for_each_algorithm, idle, runs, some_cost};
use crate::{
    engine::Shared,
    random::{Random, each_seed},
};

#[derive(Debug, Clone, Copy)]
struct Request {
    key: u64,
    cost: u64,
}

/// Five rules, one per algorithm that answers at once and one more without keys, in the order given.
fn limiter(order: &[usize], clock: &ManualClock) -> Limiter<Request> {
    let limit = |permits| Limit::new(permits, Duration::from_millis(700));
    let rule = |name: &'static str, permits| {
        Rule::new(name, limit(permits), |request: &Request| Some(Key::from(request.key))).cost(|request| request.cost)
    };
    let rules = [
        rule("token", 6),
        rule("fixed", 7).algorithm(FixedWindow),
        rule("log", 7).algorithm(SlidingWindowLog),
        rule("counter", 8).algorithm(SlidingWindowCounter),
        Rule::global("all", limit(11)).cost(|request: &Request| request.cost),
    ];
    let rules = order.iter().map(|place| rules[*place].clone());
    Limiter::builder(rules).clock(clock.clone()).build().unwrap()
}

/// All that a client could see, whatever the order of the rules.
#[derive(Debug, PartialEq)]
struct Seen {
    retry_after: Option<Duration>,
    status: u16,
    rules: Vec<(String, u64, Verdict)>,
}

fn seen(decision: &Decision) -> Seen {
    let mut rules: Vec<_> = decision.rules().map(|rule| (rule.rule.to_owned(), rule.cost, rule.verdict)).collect();
    rules.sort_by(|one, other| one.0.cmp(&other.0));
    Seen { retry_after: decision.retry_after(), status: decision.status().as_u16(), rules }
}

fn some_request(random: &mut Random) -> Request {
    let cost = if random.one_in(12) { 20 } else { random.below(4) };
    Request { key: random.below(3), cost }
}

#[test]
fn the_order_of_the_rules_does_not_change_the_answer() {
    each_seed(runs() / 10, |random| {
        let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
        let (one, other) = (limiter(&[0, 1, 2, 3, 4], &clock), limiter(&[4, 2, 0, 3, 1], &clock));
        for _ in 0..60 {
            clock.advance(Duration::from_nanos(random.below(200_000_000)));
            let request = some_request(random);
            let (one, one_receipt) = one.reserve_now(&request).unwrap();
            let (other, other_receipt) = other.reserve_now(&request).unwrap();
            assert_eq!(seen(&one), seen(&other), "{request:?}");
            if random.one_in(4) {
                one_receipt.give_back();
                other_receipt.give_back();
            }
        }
    });
}

/// Which of six rules a request is under, and what it asks of them.
#[derive(Debug)]
struct Under {
    rules: [bool; 6],
    request: Request,
}

/// Six token buckets and nothing more about them, every other one without keys.
fn plain(order: &[usize], store: impl Store, clock: &ManualClock) -> Limiter<Under> {
    let rule = |at: usize| {
        let (name, limit) = (format!("r{at}"), Limit::new([4, 5, 7, 8, 10, 14][at], Duration::from_millis(700)));
        let rule = match at % 2 {
            0 => Rule::new(name, limit, |under: &Under| Some(Key::from(under.request.key))),
            _ => Rule::global(name, limit),
        };
        rule.when(move |under: &Under| under.rules[at]).cost(|under: &Under| under.request.cost)
    };
    Limiter::builder(order.iter().map(|at| rule(*at))).store(store).clock(clock.clone()).build().unwrap()
}

#[test]
fn plain_rules_answer_alike_in_any_order_and_where_nothing_is_known_of_their_store() {
    each_seed(runs() / 10, |random| {
        let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
        let mut order = [0, 1, 2, 3, 4, 5];
        for last in 1..order.len() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        let (one, other) =
            (plain(&order, MemoryStore::new(), &clock), plain(&order, Shared(Arc::new(MemoryStore::new())), &clock));
        let sorted = plain(&[0, 1, 2, 3, 4, 5], MemoryStore::new(), &clock);
        for _ in 0..60 {
            clock.advance(Duration::from_nanos(random.below(200_000_000)));
            let under = Under { rules: [(); 6].map(|()| random.one_in(2)), request: some_request(random) };
            let (one, other) = (one.check_now(&under).unwrap(), other.check_now(&under).unwrap());
            assert!(one.rules().eq(other.rules()), "{order:?} {under:?}: {one:?} {other:?}");
            assert_eq!((one.at(), one.delay(), one.refusal()), (other.at(), other.delay(), other.refusal()));
            assert_eq!(seen(&one), seen(&sorted.check_now(&under).unwrap()), "{order:?} {under:?}");
        }
    });
}

#[test]
fn new_keys_are_refused_alike_where_nothing_is_known_of_their_store_and_leave_nothing() {
    each_seed(runs() / 10, |random| {
        let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
        let store = MemoryStore::new();
        let mut order = [0, 1, 2, 3, 4, 5];
        for last in 1..order.len() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        let (one, other) =
            (plain(&order, store.clone(), &clock), plain(&order, Shared(Arc::new(MemoryStore::new())), &clock));
        for _ in 0..60 {
            clock.advance(Duration::from_nanos(random.below(100_000_000)));
            let request = Request { key: random.below(40), cost: 1 + random.below(5) };
            let under = Under { rules: [(); 6].map(|()| !random.one_in(4)), request };
            let before = store.tracked_keys();
            let (one, other) = (one.check_now(&under).unwrap(), other.check_now(&under).unwrap());
            assert!(one.rules().eq(other.rules()), "{order:?} {under:?}: {one:?} {other:?}");
            assert_eq!(one.refusal(), other.refusal(), "{order:?} {under:?}");
            assert!(one.is_allowed() || store.tracked_keys() <= before, "{order:?} {under:?}");
        }
    });
}

#[test]
fn a_refusal_by_any_rule_changes_nothing_under_the_others() {
    each_seed(runs() / 10, |random| {
        let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
        let (quiet, pestered) = (limiter(&[0, 1, 2, 3, 4], &clock), limiter(&[0, 1, 2, 3, 4], &clock));
        for _ in 0..60 {
            clock.advance(Duration::from_nanos(random.below(200_000_000)));
            for _ in 0..3 {
                let extra = some_request(random);
                if !pestered.peek_now(&extra).unwrap().is_allowed() {
                    assert!(!pestered.check_now(&extra).unwrap().is_allowed());
                }
            }
            let request = some_request(random);
            let (one, other) = (quiet.check_now(&request).unwrap(), pestered.check_now(&request).unwrap());
            assert_eq!(seen(&one), seen(&other), "{request:?}");
        }
    });
}

/// What fits at once may as well be taken in two parts.
fn two_parts_are_as_good_as_one<B: Promise>()
where
    B::State: PartialEq + std::fmt::Debug,
{
    each_seed(runs() / 10, |random| {
        let limit = B::some_limit(random);
        let mut now = 1_700_000_000_000_000_000;
        let mut state = B::THIS.fresh(&limit, Nanos::new(now));
        for _ in 0..20 {
            now += idle(random, &limit, now, 0);
            let at = Nanos::new(now);
            let remaining = B::THIS.look(&state, &limit, at, Ask::new(0)).remaining;
            let cost = some_cost(random, &limit, remaining);
            if cost == 0 || !B::THIS.look(&state, &limit, at, Ask::new(cost)).outcome.passes() {
                continue;
            }
            let (first, mut parts) = (random.up_to(cost), state.clone());
            for part in [first, cost - first] {
                let ask = Ask::new(part).max_delay(Nanos::MAX);
                assert!(B::THIS.look(&parts, &limit, at, ask).outcome.passes(), "{limit}: {part} of {cost}");
                if part > 0 {
                    let _ = B::THIS.take(&mut parts, &limit, at, ask);
                }
            }
            let _ = B::THIS.take(&mut state, &limit, at, Ask::new(cost));
            assert_eq!(parts, state, "{limit}: {first} of {cost}");
        }
    });
}

#[test]
fn what_fits_at_once_may_as_well_be_taken_in_two_parts() {
    for_each_algorithm!(two_parts_are_as_good_as_one);
}

/// A charge that comes back before anything else happens leaves no trace.
fn given_back_at_once_is_as_never_taken<B: Promise>() {
    each_seed(runs() / 10, |random| {
        let limit = B::some_limit(random);
        let (mut now, mut told) = (1_700_000_000_000_000_000, 0);
        let clock = ManualClock::at(Nanos::new(now));
        let rule = || Rule::new("r", limit, |_: &u64| Some(Key::from("one"))).cost(|cost| *cost).algorithm(B::THIS);
        let limiter = || Limiter::builder([rule()]).clock(clock.clone()).build().unwrap();
        let (one, other) = (limiter(), limiter());
        for _ in 0..20 {
            now += idle(random, &limit, now, told);
            clock.set(Nanos::new(now));
            let cost = some_cost(random, &limit, limit.capacity());
            let (decision, receipt) = one.reserve_now(&cost).unwrap();
            let comes_back = random.one_in(2);
            if comes_back {
                receipt.give_back();
                receipt_is_gone(&one, &other);
            } else {
                assert_eq!(decision.is_allowed(), other.check_now(&cost).unwrap().is_allowed());
                told = decision.retry_after().map_or(0, |wait| u64::try_from(wait.as_nanos()).unwrap());
            }
        }
    });
}

fn receipt_is_gone(one: &Limiter<u64>, other: &Limiter<u64>) {
    for cost in [0, 1, 5, 1_000, u64::MAX] {
        let (one, other) = (one.peek_now(&cost).unwrap(), other.peek_now(&cost).unwrap());
        assert_eq!(one.tightest(), other.tightest());
    }
}

#[test]
fn a_charge_given_back_at_once_leaves_no_trace() {
    for_each_algorithm!(given_back_at_once_is_as_never_taken);
}

#[test]
fn a_request_that_costs_nothing_changes_nothing() {
    let clock = ManualClock::new();
    let one = limiter(&[0, 1, 2, 3, 4], &clock);
    for key in 0..3 {
        assert!(one.check_now(&Request { key, cost: 0 }).unwrap().is_allowed());
        let peeked = one.peek_now(&Request { key, cost: 6 }).unwrap();
        assert!(peeked.is_allowed(), "{peeked:?}");
    }
}
