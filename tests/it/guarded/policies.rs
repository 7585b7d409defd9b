//! What the rules of one request say together while the store does not answer.

use axum::{Router, body::Body, extract::Request, routing::get};
use tollgate::{
    RateLimitLayer,
    charge::Share,
    decision::{Outcome, Refusal, Source, Wait},
    response::Headers,
};
use tower::ServiceExt;

use super::*;

const ALLOW: FailurePolicy = FailurePolicy::Allow;
const REFUSE: FailurePolicy = FailurePolicy::Refuse;
const HALF: FailurePolicy = FailurePolicy::Fallback(Share::percent(50));

fn limit() -> Limit {
    Limit::per_minute(4)
}

#[tokio::test(start_paused = true)]
async fn the_rules_of_a_request_say_it_together() {
    const ROWS: usize = 10;
    // policies, how many of ten requests pass, how the others are refused
    let rows: [(&[FailurePolicy], usize, Option<Refusal>); ROWS] = [
        (&[ALLOW], 10, None),
        (&[REFUSE], 0, Some(Refusal::StoreFailed)),
        (&[HALF], 2, Some(Refusal::Limited)),
        (&[ALLOW, ALLOW], 10, None),
        (&[ALLOW, REFUSE], 0, Some(Refusal::StoreFailed)),
        (&[REFUSE, ALLOW], 0, Some(Refusal::StoreFailed)),
        (&[ALLOW, HALF], 2, Some(Refusal::Limited)),
        (&[HALF, REFUSE], 0, Some(Refusal::StoreFailed)),
        (&[HALF, HALF], 2, Some(Refusal::Limited)),
        (&[HALF, ALLOW, REFUSE], 0, Some(Refusal::StoreFailed)),
    ];
    assert_eq!(rows.len(), ROWS);
    for mode in [Mode::FailsAtOnce, Mode::FailsLater, Mode::Hangs] {
        for (policies, passes, refusal) in &rows {
            let names = ["a", "b", "c"].iter().zip(*policies);
            let rules = names.map(|(name, policy)| rule(name, limit()).on_store_failure(*policy));
            // The default is the opposite, and none of these rules lets it decide.
            let default = if policies.contains(&REFUSE) { ALLOW } else { REFUSE };
            let rig = Rig::new(mode, default, rules);
            for nth in 0..10 {
                let decision = rig.check(call(7)).await;
                assert!(decision.is_degraded(), "{policies:?}");
                let expected = if nth < *passes { None } else { *refusal };
                assert_eq!(decision.refusal(), expected, "{mode:?} {policies:?} {nth}");
                for (rule, policy) in decision.rules().zip(*policies) {
                    let source = if *policy == HALF { Source::Fallback } else { Source::Policy };
                    assert_eq!(rule.verdict.source, source);
                }
                if expected == Some(Refusal::StoreFailed) {
                    assert_eq!((decision.wait(), decision.retry_after_secs()), (Some(Wait::Unknown), Some(1)));
                    assert!(decision.tightest().is_none());
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn rules_that_do_not_say_follow_the_guard() {
    for (default, passes) in [(ALLOW, 10), (REFUSE, 0), (HALF, 2)] {
        let rig = Rig::new(Mode::FailsAtOnce, default, [rule("r", limit())]);
        assert_eq!(rig.passes(7, 10).await, passes, "{default:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_is_charged_nothing_in_the_fallback() {
    // By a rule that refuses without the store, ..
    let rules = [rule("a", limit()).on_store_failure(HALF), rule("b", limit()).when(|call: &Call| call.cost > 1)];
    let rig = Rig::new(Mode::FailsAtOnce, REFUSE, rules);
    for _ in 0..10 {
        assert!(!rig.check(Call { who: 7, cost: 2 }).await.is_allowed());
    }
    assert_eq!(rig.passes(7, 10).await, 2);
    // .. and by another fallback: all or nothing.
    let dear = Rule::global("b", Limit::per_minute(2)).when(|call: &Call| call.cost > 1).cost(|call| call.cost);
    let rig = Rig::new(Mode::FailsAtOnce, HALF, [rule("a", limit()), dear]);
    for _ in 0..10 {
        assert!(!rig.check(Call { who: 7, cost: 2 }).await.is_allowed());
    }
    assert_eq!(rig.passes(7, 10).await, 2);
}

#[tokio::test(start_paused = true)]
async fn what_only_the_whole_limit_can_hold_is_refused_for_now() {
    let rig = Rig::new(Mode::FailsAtOnce, HALF, [rule("r", limit())]);
    let dear = rig.check(Call { who: 7, cost: 3 }).await;
    assert_eq!((dear.refusal(), dear.wait()), (Some(Refusal::Overload), Some(Wait::Unknown)));
    assert_eq!(dear.status(), 503);
    // What the whole cannot hold either never passes.
    let dearer = rig.check(Call { who: 7, cost: 5 }).await;
    assert_eq!((dearer.refusal(), dearer.wait()), (Some(Refusal::Limited), Some(Wait::Never)));
}

#[tokio::test(start_paused = true)]
async fn peeking_asks_the_fallback_and_changes_nothing() {
    let rig = Rig::new(Mode::FailsAtOnce, HALF, [rule("r", limit())]);
    for _ in 0..10 {
        let peek = rig.limiter.peek(&call(7)).await.unwrap();
        assert_eq!(peek.tightest().unwrap().verdict.remaining, 2);
        assert!(peek.is_degraded());
    }
    assert_eq!(rig.passes(7, 10).await, 2);
    let peek = rig.limiter.peek(&call(7)).await.unwrap();
    assert_eq!(peek.rules().next().unwrap().verdict.outcome, Outcome::Refuse(Wait::For(Nanos::from_secs(30))));
}

async fn answers(policies: [FailurePolicy; 2], headers: Headers) -> Vec<axum::response::Response> {
    let rules: [Rule<Request>; 2] = [
        Rule::global("a", limit()).on_store_failure(policies[0]),
        Rule::global("b", limit()).on_store_failure(policies[1]),
    ];
    let store = Guarded::new(Faulty::new(Mode::FailsAtOnce), ALLOW);
    let limiter = Limiter::builder(rules).store(store).clock(ManualClock::new()).build().unwrap();
    let layer = RateLimitLayer::from(limiter).headers(headers);
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(app.clone().oneshot(Request::new(Body::empty())).await.unwrap());
    }
    answers
}

fn fields(response: &axum::response::Response) -> Vec<String> {
    let named = response.headers().iter().filter(|(name, _)| name.as_str().contains("ratelimit"));
    named.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
}

#[tokio::test]
async fn clients_are_told_only_what_somebody_counted() {
    for response in answers([ALLOW, ALLOW], Headers::Both).await {
        assert_eq!((response.status().as_u16(), fields(&response)), (200, vec![]));
    }
    for response in answers([REFUSE, HALF], Headers::Both).await {
        assert_eq!((response.status().as_u16(), fields(&response)), (503, vec![]));
        assert_eq!(response.headers()["retry-after"], "1");
        let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert!(problem["type"].as_str().unwrap().ends_with("#temporary-reduced-capacity"), "{problem}");
        assert!(problem.get("violated-policies").is_none(), "{problem}");
    }
    let told = answers([ALLOW, HALF], Headers::Both).await;
    assert_eq!(told.iter().map(|response| response.status().as_u16()).collect::<Vec<_>>(), [200, 200, 429]);
    assert_eq!(
        fields(&told[0]),
        [
            "x-ratelimit-limit: 2",
            "x-ratelimit-remaining: 1",
            "x-ratelimit-reset: 30",
            "ratelimit-policy: \"b\";q=2;w=60",
            "ratelimit: \"b\";r=1;t=30",
        ]
    );
    assert_eq!(told[2].headers()["retry-after"], "30");
}

#[test]
fn a_fallback_needs_somebody_who_has_one() {
    let rules = || [rule("r", limit()).on_store_failure(HALF)];
    let error = Limiter::builder(rules()).store(Faulty::new(Mode::Up)).build().unwrap_err();
    assert_eq!((error.rule(), error.field()), ("r", "on_store_failure"));
    assert!(error.to_string().contains("Guarded::new"), "{error}");
    // The memory store never needs it.
    assert!(Limiter::builder(rules()).build().unwrap().check_now(&call(7)).unwrap().is_allowed());
    // The guard's own policy is checked when the first rule meets it.
    for share in [Share::percent(0), Share::percent(101), Share::one_in(0)] {
        let store = Guarded::new(Faulty::new(Mode::Up), FailurePolicy::Fallback(share));
        let error = Limiter::builder([rule("r", limit())]).store(store).build().unwrap_err();
        assert_eq!(error.field(), "store");
        assert!(error.to_string().contains("share"), "{error}");
    }
}
