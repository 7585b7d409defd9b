//! Places: how many there are, who has them, and that none is lost.

use std::{
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use futures_util::FutureExt;
use tollgate::{
    ErrorKind, Key, Limit, RateLimitLayer,
    bucket::InFlight,
    decision::{Refusal, Wait},
    response::Headers,
    store::{Overflow, Receipt},
};
use tower::{Layer, Service, service_fn};

use super::*;

/// A client, the route it asks for, and how many places it takes.
#[derive(Debug, Clone, Copy)]
struct Call {
    client: u64,
    route: &'static str,
    cost: u64,
}

fn from(client: u64) -> Call {
    Call { client, route: "/", cost: 1 }
}

fn by_client(limit: Limit) -> Rule<Call> {
    Rule::new("client", limit, |call: &Call| Some(Key::from(call.client))).cost(|call| call.cost)
}

/// Decides, and returns the receipt of who passes.
fn enter(limiter: &Limiter<Call>, call: Call) -> Option<Receipt> {
    let (decision, receipt) = limiter.reserve_now(&call).unwrap();
    decision.is_allowed().then_some(receipt)
}

#[test]
fn places_are_counted_by_key_and_by_cost() {
    let limiter = limiter([by_client(Limit::in_flight(3))]);
    let two = enter(&limiter, Call { cost: 2, ..from(1) }).unwrap();
    assert!(enter(&limiter, Call { cost: 2, ..from(1) }).is_none());
    let one = enter(&limiter, from(1)).unwrap();
    assert!(enter(&limiter, from(1)).is_none());
    assert!(enter(&limiter, Call { cost: 3, ..from(2) }).is_some(), "another client has its own");
    drop(two);
    assert_eq!(used(&limiter, &from(1)), [1]);
    assert!(enter(&limiter, Call { cost: 4, ..from(1) }).is_none());
    drop(one);
    assert_eq!(used(&limiter, &from(1)), [0]);
}

#[test]
fn what_is_refused_is_told_that_nobody_knows_for_how_long_and_what_cannot_fit_that_it_never_will() {
    let rules = [by_client(Limit::in_flight(2)).retry_after(Duration::from_millis(2_500))];
    let limiter = limiter(rules);
    let held = enter(&limiter, Call { cost: 2, ..from(1) });
    let decision = limiter.peek_now(&from(1)).unwrap();
    assert_eq!(
        (decision.wait(), decision.retry_after(), decision.retry_after_secs()),
        (Some(Wait::Unknown), None, Some(3))
    );
    let verdict = decision.tightest().unwrap().verdict;
    assert_eq!((verdict.limit, verdict.remaining, verdict.reset, verdict.effective_window), (2, 0, None, None));
    let decision = limiter.peek_now(&Call { cost: 3, ..from(1) }).unwrap();
    assert_eq!((decision.wait(), decision.retry_after_secs()), (Some(Wait::Never), None));
    drop(held);
}

#[test]
fn a_known_wait_goes_before_an_unknown_one_unless_the_rule_asks_for_more() {
    for (asked, told) in [(Duration::from_secs(9), 60), (Duration::from_secs(90), 90)] {
        let limiter =
            limiter([by_client(Limit::in_flight(1)).retry_after(asked), Rule::global("rate", Limit::per_minute(1))]);
        let _held = enter(&limiter, from(1));
        let decision = limiter.peek_now(&from(1)).unwrap();
        assert_eq!(decision.retry_after(), Some(Duration::from_secs(60)), "the truth is not touched");
        assert_eq!(decision.retry_after_secs(), Some(told));
    }
}

#[test]
fn neither_reset_nor_time_nor_a_sweep_frees_a_place() {
    let (clock, store) = (ManualClock::new(), MemoryStore::new());
    let limiter =
        Limiter::builder([by_client(Limit::in_flight(2))]).clock(clock.clone()).store(store.clone()).build().unwrap();
    let held = enter(&limiter, from(1));
    limiter.reset("client", Key::from(1_u64)).now_or_never().unwrap().unwrap();
    clock.advance(Duration::from_secs(1_000_000_000));
    assert_eq!(store.sweep(limiter.clock().now()), 0);
    assert_eq!(used(&limiter, &from(1)), [1]);
    drop(held);
    assert_eq!(used(&limiter, &from(1)), [0]);
    assert_eq!((store.sweep(limiter.clock().now()), store.tracked_keys()), (1, 0), "nothing runs, nothing is kept");
}

#[test]
fn a_changed_limit_keeps_what_runs_and_frees_what_ends() {
    let limit = Arc::new(AtomicU64::new(4));
    let of = Arc::clone(&limit);
    let rule = by_client(Limit::in_flight(4)).limit_for(move |_| Limit::in_flight(of.load(Ordering::Relaxed)));
    let limiter = limiter([rule]);
    let mut held: Vec<_> = (0..4).map(|_| enter(&limiter, from(1)).unwrap()).collect();
    limit.store(2, Ordering::Relaxed);
    assert!(enter(&limiter, from(1)).is_none());
    held.truncate(2);
    assert!(enter(&limiter, from(1)).is_none(), "two run under a limit of two");
    held.truncate(1);
    let another = enter(&limiter, from(1)).expect("one of two is free");
    limit.store(3, Ordering::Relaxed);
    let third = enter(&limiter, from(1)).expect("a raise helps at once");
    assert!(enter(&limiter, from(1)).is_none());
    drop((held, another, third));
    assert_eq!(used(&limiter, &from(1)), [0], "whichever limit they were taken under");
}

#[test]
fn a_rate_given_to_a_rule_of_places_refuses_for_good() {
    let rule = by_client(Limit::in_flight(4)).limit_for(|_| Limit::per_second(4));
    let limiter = limiter([rule]);
    let decision = limiter.peek_now(&from(1)).unwrap();
    assert_eq!(decision.wait(), Some(Wait::Never));
}

#[test]
fn of_two_rules_a_request_that_one_refuses_holds_no_place_of_the_other() {
    for swapped in [false, true] {
        let rules = || {
            let mut rules = [
                Rule::global("global", Limit::in_flight(2)),
                Rule::new("route", Limit::in_flight(1), |call: &Call| Some(Key::from(call.route))),
                Rule::global("rate", Limit::per_minute(9)),
            ];
            if swapped {
                rules.reverse();
            }
            rules
        };
        let limiter = limiter(rules());
        let of = |call: &Call| {
            let mut used = used(&limiter, call);
            if swapped {
                used.reverse();
            }
            used
        };
        let first = enter(&limiter, from(1)).unwrap();
        for _ in 0..5 {
            assert!(enter(&limiter, from(2)).is_none(), "the route is taken");
        }
        assert_eq!(of(&from(1)), [1, 1, 1]);
        let other = Call { route: "/other", ..from(1) };
        let second = enter(&limiter, other).expect("one of two is free");
        assert!(enter(&limiter, Call { route: "/third", ..from(1) }).is_none(), "two run in all");
        assert_eq!(of(&Call { route: "/third", ..from(1) }), [2, 0, 2]);
        drop((first, second));
        assert_eq!((of(&from(1)), of(&other)), (vec![0, 0, 2], vec![0, 0, 2]));
    }
}

#[test]
fn groups_that_end_in_each_way_leave_both_rules_empty() {
    // Five that fail, five that answer early, five whose client leaves, five that are cut off: then exactly two pass.
    let rules = || {
        [
            Rule::global("global", Limit::in_flight(2)),
            Rule::new("route", Limit::in_flight(2), |request: &Asked| Some(Key::from(request.uri().path()))),
        ]
    };
    type Ends = fn(&RateLimitLayer<Asked>);
    let panics: Ends = |layer| {
        let inner = service_fn(|_: Asked| async { panic!("in the handler") as Result<Answered, Broken> });
        let response = std::panic::AssertUnwindSafe(layer.layer(inner).call(Asked::default())).catch_unwind();
        assert!(response.now_or_never().unwrap().is_err());
    };
    let answers: Ends = |layer| {
        let inner = service_fn(|_: Asked| async { Ok::<_, Broken>(unauthorized(Frames::known([]))) });
        drop(layer.layer(inner).call(Asked::default()).now_or_never().unwrap());
    };
    let leaves: Ends = |layer| {
        let inner = service_fn(|_: Asked| std::future::pending::<Result<Answered, Broken>>());
        assert!(layer.layer(inner).call(Asked::default()).now_or_never().is_none());
    };
    let fails: Ends = |layer| {
        let inner = service_fn(|_: Asked| async { Err::<Answered, _>(Broken(1)) });
        assert!(layer.layer(inner).call(Asked::default()).now_or_never().unwrap().is_err());
    };
    let limiter = limiter(rules());
    let layer = RateLimitLayer::from(limiter.clone());
    for ends in [panics, answers, leaves, fails] {
        for _ in 0..5 {
            ends(&layer);
        }
        assert_eq!(used(&limiter, &Asked::default()), [0, 0]);
    }
    let mut inner = layer.layer(service_fn(|_: Asked| async { Ok::<_, Broken>(ok(Frames::default())) }));
    let three: Vec<_> = (0..3).map(|_| inner.call(Asked::default()).now_or_never().unwrap().unwrap()).collect();
    let statuses: Vec<_> = three.iter().map(|response| response.status().as_u16()).collect();
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn a_check_that_could_not_free_a_place_is_an_error_and_takes_none() {
    let limiter = limiter([by_client(Limit::in_flight(1))]);
    let errors = [
        limiter.check_now(&from(1)).unwrap_err(),
        limiter.check(&from(1)).now_or_never().unwrap().unwrap_err(),
        limiter.acquire(&from(1)).now_or_never().unwrap().unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::NeedsReceipt);
        assert!(error.to_string().contains("use reserve"), "{error}");
    }
    assert_eq!(used(&limiter, &from(1)), [0]);
    assert!(limiter.peek_now(&from(1)).unwrap().is_allowed());
}

#[test]
fn what_is_given_back_or_settled_frees_the_place_once() {
    let limiter = limiter([by_client(Limit::in_flight(3)), Rule::global("rate", Limit::per_minute(9))]);
    let after = |end: fn(Receipt)| {
        let other = enter(&limiter, from(1)).unwrap();
        end(enter(&limiter, from(1)).unwrap());
        let used = used(&limiter, &from(1));
        other.give_back();
        used
    };
    assert_eq!(after(Receipt::give_back), [1, 1]);
    assert_eq!(after(drop), [1, 2]);
    assert_eq!(after(Receipt::keep), [1, 3]);
    assert_eq!(after(|receipt| receipt.settle(4)), [1, 7], "a cost is no number of places");
    let freed = |mut receipt: Receipt| {
        assert!(receipt.settle_rule("client", 0));
        assert!(receipt.settle_rule("rate", 0));
    };
    assert_eq!(after(freed), [1, 7]);
    assert_eq!(used(&limiter, &from(1)), [0, 6]);
}

#[test]
fn no_more_than_the_limit_run_at_any_instant_under_threads() {
    const PLACES: u64 = 8;
    let limiter = Arc::new(limiter([
        Rule::global("all", Limit::in_flight(PLACES)),
        Rule::new("client", Limit::in_flight(3), |call: &Call| Some(Key::from(call.client))),
    ]));
    let (running, peak, passed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let start = Barrier::new(16);
    thread::scope(|scope| {
        for thread in 0..16 {
            let (limiter, running, peak, passed, start) = (&limiter, &running, &peak, &passed, &start);
            scope.spawn(move || {
                start.wait();
                for turn in 0..400 {
                    if let Some(receipt) = enter(limiter, from((thread + turn) % 5)) {
                        peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        passed.fetch_add(1, Ordering::Relaxed);
                        thread::yield_now();
                        running.fetch_sub(1, Ordering::SeqCst);
                        drop(receipt);
                    }
                }
            });
        }
    });
    assert!(peak.load(Ordering::SeqCst) <= PLACES, "{peak:?} at once");
    assert!(passed.load(Ordering::Relaxed) > PLACES);
    assert_eq!((0..5).map(|client| used(&limiter, &from(client))).collect::<Vec<_>>(), vec![vec![0, 0]; 5]);
}

#[test]
fn a_full_table_evicts_nobody_who_runs_and_a_key_without_a_place_frees_what_it_took() {
    for overflow in [Overflow::Share(1), Overflow::Refuse] {
        let store = MemoryStore::builder().max_keys(2).overflow(overflow).build();
        let limiter = Limiter::builder([by_client(Limit::in_flight(2))]).store(store.clone()).build().unwrap();
        let held: Vec<_> = (0..2).map(|client| enter(&limiter, from(client)).unwrap()).collect();
        let third = enter(&limiter, from(2));
        assert_eq!(third.is_some(), matches!(overflow, Overflow::Share(_)));
        let fourth = enter(&limiter, from(3));
        let refused = limiter.peek_now(&from(4)).unwrap();
        if fourth.is_some() {
            assert_eq!(refused.refusal(), Some(Refusal::Overload), "the two of all others are taken");
        }
        assert_eq!((used(&limiter, &from(0)), used(&limiter, &from(1))), (vec![1], vec![1]));
        // Places of their own are free now. Whoever holds one of the others' has no second one of its own.
        drop(held);
        if let Some(fourth) = fourth {
            assert!(enter(&limiter, from(3)).is_none());
            drop(fourth);
            let again = enter(&limiter, from(3)).expect("one of two is free");
            assert!(enter(&limiter, from(2)).is_none(), "the third holds the other");
            drop((third, again));
        }
        let both: Vec<_> = (0..2).map(|_| enter(&limiter, from(3)).unwrap()).collect();
        assert!(enter(&limiter, from(3)).is_none());
        drop(both);
        assert_eq!((2..5).map(|client| used(&limiter, &from(client))).collect::<Vec<_>>(), vec![vec![0]; 3]);
    }
}

#[test]
fn clients_are_told_of_places_in_the_words_of_the_draft() {
    let limiter = limiter([Rule::global("downloads", Limit::in_flight(2)).retry_after(Duration::from_secs(5))]);
    let layer = RateLimitLayer::from(limiter).headers(Headers::Both);
    let mut service = layer.layer(service_fn(|_: Asked| async { Ok::<_, Broken>(ok(Frames::default())) }));
    let mut answer = || service.call(Asked::default()).now_or_never().unwrap().unwrap();
    let field = |response: &Response<_>, name: &str| {
        let values = response.headers().get_all(name).iter();
        values.map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>().join("|")
    };
    let (first, second, third) = (answer(), answer(), answer());
    for (response, left) in [(&first, "1"), (&second, "0"), (&third, "0")] {
        assert_eq!(field(response, "ratelimit-policy"), "\"downloads\";q=2;qu=\"concurrent-requests\"");
        assert_eq!(field(response, "ratelimit"), format!("\"downloads\";r={left}"));
        assert_eq!(field(response, "x-ratelimit-limit"), "2");
        assert_eq!(field(response, "x-ratelimit-remaining"), left);
        assert_eq!(field(response, "x-ratelimit-reset"), "");
    }
    assert_eq!((third.status().as_u16(), field(&third, "retry-after").as_str()), (429, "5"));
}

#[test]
fn an_algorithm_named_as_what_it_is_anyway_changes_nothing() {
    let limiter = limiter([by_client(Limit::in_flight(1)).algorithm(InFlight)]);
    let held = Mutex::new(enter(&limiter, from(1)));
    assert!(enter(&limiter, from(1)).is_none());
    drop(held);
    assert!(enter(&limiter, from(1)).is_some());
}
