//! Whatever the rules and the traffic, the fields can be read and agree with each other.

use proptest::prelude::*;
use tollgate::{
    bucket::{FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog},
    response::Headers,
};

use super::*;

const NAMES: [&str; 4] = ["a", "*", "per-user_2.x", "z.9*-_"];

#[derive(Debug, Clone, Copy)]
enum Kind {
    Token,
    Window,
    Log,
    Counter,
    Leaky,
}

/// A rule, and how often its cost is taken for one request.
fn any_rule() -> impl Strategy<Value = (Kind, u64, u64, u64, u64)> {
    let kind =
        prop_oneof![Just(Kind::Token), Just(Kind::Window), Just(Kind::Log), Just(Kind::Counter), Just(Kind::Leaky)];
    let permits = prop_oneof![1_u64..20, 1_u64..65_536];
    let period = prop_oneof![1_u64..2_000, 1_u64..4_000_000_000, 1_u64..90_000_000_000_000];
    (kind, permits, period, 1_u64..200, 0_u64..4)
}

fn rule(at: usize, (kind, permits, period, burst, times): (Kind, u64, u64, u64, u64)) -> Rule<Request> {
    let limit = Limit::new(permits, Duration::from_nanos(period));
    let rule = |limit| {
        Rule::global(NAMES[at], limit).cost(move |request: &Request| {
            request.headers()["x-cost"].to_str().unwrap().parse::<u64>().unwrap().saturating_mul(times)
        })
    };
    match kind {
        Kind::Token => rule(limit.burst(burst)),
        Kind::Window => rule(limit).algorithm(FixedWindow),
        Kind::Log => rule(limit).algorithm(SlidingWindowLog),
        Kind::Counter => rule(limit).algorithm(SlidingWindowCounter),
        Kind::Leaky => rule(limit.burst(burst)).algorithm(LeakyBucket),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn fields_can_be_read_and_agree_with_each_other(
        rules in proptest::collection::vec(any_rule(), 1..=4),
        start in 0_u64..2_000_000_000_000_000_000,
        steps in proptest::collection::vec(
            (prop_oneof![0_u64..4, 0_u64..100, Just(u64::MAX)], prop_oneof![Just(0), 0_u64..3_000_000_000]),
            1..30,
        ),
    ) {
        let clock = ManualClock::at(Nanos::new(start));
        let names = &NAMES[..rules.len()];
        let rules = rules.into_iter().enumerate().map(|(at, kind)| rule(at, kind));
        let server = over(layer(rules, &clock).headers(Headers::Both), hello());
        for (cost, pause) in steps {
            clock.advance(Duration::from_nanos(pause));
            // A request that is held goes away again.
            let request = request(Method::GET, &[("x-cost", cost.to_string().as_bytes())]);
            let Some(answer) = try_send(&server, request) else { continue };
            let (policies, limits) = answer.limits();
            let told: Vec<_> = policies.iter().map(|policy| policy.name.as_str()).collect();
            prop_assert_eq!(&told, names);
            for policy in &policies {
                prop_assert!(policy.count >= 1 && policy.secs.is_some_and(|window| window >= 1), "{:?}", policy);
            }
            let quota = |name: &str| policies.iter().find(|policy| policy.name == name).map(|policy| policy.count);
            for limit in &limits {
                prop_assert!(Some(limit.count) <= quota(&limit.name), "{:?} of {:?}", limit, policies);
                prop_assert!(limit.count > 0 || limit.secs != Some(0), "{:?}: come back at once", limit);
            }
            let retry_after = answer.number("retry-after");
            if answer.status == 200 {
                let told: Vec<_> = limits.iter().map(|limit| limit.name.as_str()).collect();
                prop_assert_eq!(&told, names);
                prop_assert_eq!(retry_after, None);
            } else {
                prop_assert_eq!(answer.status, 429);
                // Exactly the rules that refused, in both places.
                let violated: Vec<_> = limits.iter().map(|limit| serde_json::json!(limit.name)).collect();
                prop_assert!(!violated.is_empty());
                prop_assert_eq!(&answer.problem()["violated-policies"], &serde_json::Value::from(violated));
                if let Some(retry_after) = retry_after {
                    // Draft 11, 6: not earlier than the end of any window that is told.
                    let ends = limits.iter().filter_map(|limit| limit.secs).max();
                    prop_assert!(retry_after >= 1 && Some(retry_after) >= ends, "{} {:?}", retry_after, limits);
                }
            }
            let [limit, remaining] = ["limit", "remaining"].map(|name| answer.number(&format!("x-ratelimit-{name}")));
            prop_assert!(remaining.is_some() && remaining <= limit);
        }
    }
}
