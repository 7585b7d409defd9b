//! A store that is down: what passes and what does not is what the rules say, and never by accident.

use axum::{Router, body::Body, extract::Request, routing::get};
use tokio_test::{assert_ready_err, assert_ready_ok, task};
use tollgate::{
    Decision, ErrorKind, Key, Limit, Limiter, RateLimitLayer, Rule,
    charge::FailurePolicy::{self, Allow, Refuse},
    decision::{Refusal, Wait},
};
use tower::ServiceExt;

use crate::support::Down;

fn rule(name: &'static str, policy: FailurePolicy) -> Rule<Request> {
    Rule::global(name, Limit::per_second(1)).on_store_failure(policy)
}

fn is_write(request: &Request) -> bool {
    request.method() == "POST"
}

/// The response to a request whose rules meet a store that is down.
async fn answer(rules: Vec<Rule<Request>>, at_once: bool, method: &str) -> axum::response::Response {
    let limiter = Limiter::builder(rules).store(Down::new(at_once)).build().unwrap();
    let app = Router::new()
        .route("/", get(|| async { "hello" }).post(|| async { "done" }))
        .layer(RateLimitLayer::from(limiter).expose_decision());
    app.oneshot(Request::builder().method(method).body(Body::empty()).unwrap()).await.unwrap()
}

fn has_limit_fields(response: &axum::response::Response) -> bool {
    response.headers().keys().any(|name| name.as_str().contains("ratelimit"))
}

#[tokio::test]
async fn refuses_with_503_unless_told_otherwise() {
    for at_once in [true, false] {
        let by_default = Rule::global("a", Limit::per_second(1));
        for rules in [vec![by_default], vec![rule("a", Refuse)], vec![rule("a", Allow), rule("b", Refuse)]] {
            let response = answer(rules, at_once, "GET").await;
            assert_eq!(response.status(), 503);
            assert_eq!(response.headers()["retry-after"], "1");
            assert_eq!(response.headers()["cache-control"], "no-store");
            assert_eq!(response.headers()["content-type"], "application/problem+json");
            // Nobody knows the numbers, so none are told.
            assert!(!has_limit_fields(&response));
            let decision = response.extensions().get::<Decision>().unwrap();
            assert!(decision.is_degraded() && !decision.is_allowed());
            assert_eq!((decision.refusal(), decision.wait()), (Some(Refusal::StoreFailed), Some(Wait::Unknown)));
            assert!(decision.tightest().is_none());

            let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
            let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(problem["status"], 503);
            // A temporary condition of the service and not this client's quota.
            assert!(problem["type"].as_str().unwrap().ends_with("#temporary-reduced-capacity"), "{problem}");
            assert!(problem.get("violated-policies").is_none());
        }
    }
}

#[tokio::test]
async fn lets_requests_pass_where_every_rule_says_so() {
    for at_once in [true, false] {
        let response = answer(vec![rule("a", Allow), rule("b", Allow)], at_once, "GET").await;
        assert_eq!(response.status(), 200);
        assert!(!has_limit_fields(&response));
        assert!(!response.headers().contains_key("retry-after"));
        let decision = response.extensions().get::<Decision>().unwrap();
        assert!(decision.is_degraded() && decision.is_allowed());
        assert_eq!((decision.refusal(), decision.wait()), (None, None));
    }
}

#[tokio::test]
async fn only_the_rules_that_apply_have_a_say() {
    for at_once in [true, false] {
        let rules = || vec![rule("reads", Allow), rule("writes", Refuse).when(is_write)];
        assert_eq!(answer(rules(), at_once, "GET").await.status(), 200);
        assert_eq!(answer(rules(), at_once, "POST").await.status(), 503);
        // A request without a key is not the rule's, whether or not the store is up.
        let keyed = Rule::new("user", Limit::per_second(1), |_: &Request| None::<Key<'_>>).on_store_failure(Refuse);
        let response = answer(vec![keyed], at_once, "GET").await;
        assert_eq!(response.status(), 200);
        let decision = response.extensions().get::<Decision>().unwrap();
        assert!(!decision.is_degraded(), "the store was not needed");
    }
}

#[test]
fn the_engine_returns_the_stores_error_and_decides_nothing() {
    let limiter = |at_once| {
        Limiter::builder([Rule::<u8>::global("a", Limit::per_second(1))]).store(Down::new(at_once)).build().unwrap()
    };
    for at_once in [true, false] {
        let limiter = limiter(at_once);
        for error in [
            assert_ready_err!(task::spawn(limiter.check(&1)).poll()),
            assert_ready_err!(task::spawn(limiter.acquire(&1)).poll()),
            assert_ready_err!(task::spawn(limiter.peek(&1)).poll()),
            assert_ready_err!(task::spawn(limiter.reset("a", Key::from(1_u8))).poll()),
        ] {
            assert_eq!(error.kind(), ErrorKind::Store);
            let source = std::error::Error::source(&error).expect("the store's own error is the source");
            assert_eq!(source.to_string(), "connection refused");
        }
    }
    assert_eq!(limiter(true).check_now(&1).unwrap_err().kind(), ErrorKind::Store);
    assert_eq!(limiter(false).check_now(&1).unwrap_err().kind(), ErrorKind::NotReady);
    // No rule applies: no store is asked.
    let idle = Limiter::builder([Rule::<u8>::global("a", Limit::per_second(1)).when(|_| false)])
        .store(Down::new(false))
        .build()
        .unwrap();
    let decision = assert_ready_ok!(task::spawn(idle.check(&1)).poll());
    assert!(decision.is_allowed() && !decision.is_degraded());
}
