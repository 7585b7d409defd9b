//! Several rules on one request, and one rule on several routes.

use std::{collections::BTreeMap, thread};

use proptest::prelude::*;
use tollgate::{Decision, Key, Limit, Limiter, Rule, bucket::FixedWindow, store::MemoryStore, time::ManualClock};

use crate::engine::{Bench, Call, Kind, S, per, remaining_of};

/// A bench of these rules, in this order or the reverse.
fn in_order(swapped: bool, rules: &[(&'static str, Kind, Limit)]) -> Bench {
    let mut rules: Vec<_> = rules.iter().map(|&(name, kind, limit)| kind.rule(name, limit)).collect();
    if swapped {
        rules.reverse();
    }
    Bench::of(rules)
}

fn names(decision: &Decision) -> Vec<&str> {
    let mut names: Vec<_> = decision.violated().collect();
    names.sort_unstable();
    names
}

/// B25, getsentry/relay#4787, ravangen/graphql-rate-limit#129, envoyproxy/ratelimit#427: what one rule refused was
/// charged by the other.
#[test]
pub(crate) fn a_request_refused_by_one_rule_is_charged_by_none_in_either_order() {
    for swapped in [false, true] {
        let rules = [("r1", Kind::FixedWindow, per(10, 60 * S)), ("r2", Kind::FixedWindow, per(30, 1_800 * S))];
        let bench = in_order(swapped, &rules);
        for (now, left_of_r2, refused_by, retry_after) in
            [(0, 20, vec!["r1"], 60), (60, 10, vec!["r1"], 60), (120, 0, vec!["r1", "r2"], 1_680)]
        {
            for n in 1..=15 {
                let decision = bench.check(now * S, 1);
                assert_eq!(decision.is_allowed(), n <= 10, "{n} at {now}");
                if n >= 10 {
                    assert_eq!(remaining_of(&decision, "r1"), 0);
                    assert_eq!(remaining_of(&decision, "r2"), left_of_r2, "{n} at {now}");
                }
                if n > 10 {
                    assert_eq!(names(&decision), refused_by);
                    assert_eq!(decision.retry_after_secs(), Some(retry_after));
                }
            }
        }
        let decision = bench.check(120 * S, 1);
        let waits: BTreeMap<_, _> = decision.rules().map(|rule| (rule.rule, rule.verdict.outcome)).collect();
        let wait =
            |secs| tollgate::decision::Outcome::Refuse(tollgate::decision::Wait::For(crate::engine::at(secs * S)));
        assert_eq!((waits["r1"], waits["r2"]), (wait(60), wait(1_680)));
        assert_eq!(decision.tightest().unwrap().rule, "r2");
        bench.refuses(120 * S, 1, 1_680 * S);
        bench.refuses(1_800 * S - 1, 1, 1);
        bench.passes(1_800 * S, 1, 9);
    }
}

#[test]
pub(crate) fn no_pair_of_strategies_charges_a_refused_request() {
    for inner in Kind::REFUSING {
        for outer in Kind::REFUSING {
            for swapped in [false, true] {
                let rules = [("narrow", inner, per(2, 60 * S)), ("wide", outer, per(5, 60 * S))];
                let bench = in_order(swapped, &rules);
                assert_eq!(bench.admitted(0, 50), 2);
                let decision = bench.check(0, 1);
                assert_eq!((remaining_of(&decision, "narrow"), remaining_of(&decision, "wide")), (0, 3));
                assert_eq!(names(&decision), ["narrow"], "{inner:?} {outer:?}");
            }
        }
    }
}

#[test]
pub(crate) fn a_refusal_by_a_rule_for_all_costs_no_client_anything() {
    for swapped in [false, true] {
        let all = Rule::global("all", per(3, 60 * S)).cost(|call: &Call| call.cost).overload();
        let mut rules = vec![Kind::TokenBucket.rule("client", per(3, 60 * S)), all];
        if swapped {
            rules.reverse();
        }
        let bench = Bench::of(rules);
        assert!(bench.check_as(1, 0, 3).is_allowed());
        for client in 2..20 {
            let decision = bench.check_as(client, 0, 1);
            assert_eq!(names(&decision), ["all"]);
            assert_eq!(remaining_of(&decision, "client"), 3);
            assert_eq!(decision.status(), 503);
        }
        // Refused clients got no entry either: the one for all, and client 1.
        assert_eq!(bench.store.tracked_keys(), 2);
        assert_eq!(bench.check_as(1, 0, 1).status(), 429); // now its own limit is a cause as well
    }
}

#[test]
pub(crate) fn a_refusal_by_the_last_of_five_rules_charges_none_of_the_four_before() {
    let kinds = Kind::REFUSING.into_iter().zip(["a", "b", "c", "d"]).map(|(kind, name)| kind.rule(name, per(9, S)));
    let last = Kind::SlidingWindowLog.rule("last", per(1, S)).when(|call| call.cost == 2);
    let bench = Bench::of(kinds.chain([last]));
    for _ in 0..10 {
        assert_eq!(names(&bench.check(0, 2)), ["last"]);
    }
    let decision = bench.check(0, 1);
    for name in ["a", "b", "c", "d"] {
        assert_eq!(remaining_of(&decision, name), 8);
    }
}

/// B43, tokio-rs/axum#2582, tower-rs/tower#764, traefik/traefik#13706: each clone had a count of its own.
#[test]
pub(crate) fn clones_of_a_limiter_have_one_count_on_all_connections_and_routes() {
    let bench = Bench::new(Kind::FixedWindow, per(5, 60 * S));
    let call = |limiter: &Limiter<Call>| limiter.check_now(&Call { client: 0, cost: 1 }).unwrap().is_allowed();
    let connections: Vec<_> = (0..50).map(|_| bench.limiter.clone()).collect();
    let passed: usize = thread::scope(|scope| {
        let running: Vec<_> =
            connections.iter().map(|limiter| scope.spawn(move || usize::from(call(limiter)))).collect();
        running.into_iter().map(|connection| connection.join().unwrap()).sum()
    });
    assert_eq!(passed, 5);
    // Three routes, each with a clone of a clone; the original may be gone.
    let routes: Vec<_> = connections[..3].to_vec();
    drop(connections);
    let later = routes.iter().flat_map(|limiter| (0..5).map(move |_| call(limiter))).filter(|passed| *passed).count();
    assert_eq!(passed + later, 5);
}

/// In a proxy, memory counted by route and the shared store by rule.
#[test]
pub(crate) fn limiters_on_one_store_share_the_counts_of_rules_of_equal_name_only() {
    let (store, clock) = (MemoryStore::new(), ManualClock::new());
    let limiter = |name: &'static str| {
        let rule = Kind::FixedWindow.rule(name, per(5, 60 * S));
        Limiter::builder([rule]).store(store.clone()).clock(clock.clone()).build().unwrap()
    };
    let call = Call { client: 0, cost: 1 };
    let passed = |limiter: &Limiter<Call>| (0..5).filter(|_| limiter.check_now(&call).unwrap().is_allowed()).count();
    assert_eq!([passed(&limiter("api")), passed(&limiter("api")), passed(&limiter("api"))], [5, 0, 0]);
    assert_eq!(passed(&limiter("login")), 5);
    // Without a store of their own making they share nothing.
    assert_eq!([passed(&Bench::new(Kind::FixedWindow, per(5, 60 * S)).limiter); 2], [5, 5]);
}

#[test]
pub(crate) fn counts_are_apart_by_route_where_the_route_is_in_the_key() {
    struct Request(&'static str, u64);
    let shared = Rule::new("shared", per(15, 60 * S), |request: &Request| Some(Key::from(request.1)));
    let apart = Rule::new("apart", per(5, 60 * S), |request: &Request| Some(Key::from((request.0, request.1))));
    let limiter = Limiter::builder([shared.algorithm(FixedWindow), apart.algorithm(FixedWindow)])
        .clock(ManualClock::new())
        .build()
        .unwrap();
    for route in ["/a", "/b", "/c"] {
        let passed = (0..10).filter(|_| limiter.check_now(&Request(route, 7)).unwrap().is_allowed()).count();
        assert_eq!(passed, 5, "{route}");
    }
    let refused = limiter.check_now(&Request("/d", 7)).unwrap();
    assert_eq!(names(&refused), ["shared"]); // 15 of the client, on whatever route
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    /// B25: what each rule has charged is what was admitted, whatever refused the rest.
    #[test]
    fn every_rule_has_charged_exactly_what_was_admitted(
        rules in proptest::collection::vec((proptest::sample::select(Kind::REFUSING.to_vec()), 1_u64..40), 2..=5),
        costs in proptest::collection::vec(0_u64..12, 1..60),
        swapped in any::<bool>(),
    ) {
        let rules: Vec<_> =
            rules.iter().zip(NAMES).map(|(&(kind, permits), name)| (name, kind, per(permits, 3_600 * S))).collect();
        let bench = in_order(swapped, &rules);
        let mut admitted = 0;
        for cost in costs {
            let decision = bench.check(0, cost);
            let fits = rules.iter().all(|(_, _, limit)| admitted + cost <= limit.permits());
            prop_assert_eq!(decision.is_allowed(), cost == 0 || fits);
            if decision.is_allowed() {
                admitted += cost;
            }
            for (name, _, limit) in &rules {
                prop_assert_eq!(remaining_of(&decision, name), limit.permits() - admitted);
            }
        }
    }

    /// The order of the rules changes no number.
    #[test]
    fn the_order_of_the_rules_changes_nothing(
        rules in proptest::collection::vec(
            (proptest::sample::select(Kind::ALL.to_vec()), 1_u64..40, 1_u64..10 * S), 2..=5,
        ),
        calls in proptest::collection::vec((0_u64..2 * S, 0_u64..12), 1..40),
    ) {
        let rules: Vec<_> = rules
            .iter()
            .zip(NAMES)
            .map(|(&(kind, permits, period), name)| (name, kind, per(permits, period)))
            .collect();
        let (one, other) = (in_order(false, &rules), in_order(true, &rules));
        let mut now = 0;
        for (pause, cost) in calls {
            now += pause;
            let (one, other) = (one.check(now, cost), other.check(now, cost));
            prop_assert_eq!(one.is_allowed(), other.is_allowed());
            prop_assert_eq!(one.wait(), other.wait());
            let verdicts = |decision: &Decision| -> Vec<_> {
                NAMES.iter().filter_map(|name| decision.rules().find(|rule| rule.rule == *name)).map(|rule| rule.verdict).collect()
            };
            prop_assert_eq!(verdicts(&one), verdicts(&other));
        }
    }
}
