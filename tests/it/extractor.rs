//! The decision as an argument of a handler.

use std::time::Duration;

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    http::Method,
    routing::get,
};
use serde_json::{Value, json};
use tollgate::{
    Decision, Limit, Rule,
    bucket::{FixedWindow, LeakyBucket},
    key,
    time::ManualClock,
};
use tower::ServiceExt;

use crate::support::layer;

/// Tells everything the decision has.
fn told(decision: &Decision) -> Value {
    let rules: Vec<_> = decision
        .rules()
        .map(|rule| {
            let reset = rule.verdict.reset.map(|reset| reset.as_duration().as_secs());
            json!([rule.rule, rule.cost, rule.verdict.limit, rule.verdict.remaining, reset])
        })
        .collect();
    json!({
        "allowed": decision.is_allowed(),
        "status": decision.status().as_u16(),
        "delay": decision.delay().as_secs(),
        "at": decision.at().as_duration().as_secs(),
        "tightest": decision.tightest().map(|rule| rule.rule),
        "rules": rules,
    })
}

async fn required(decision: Decision) -> String {
    told(&decision).to_string()
}

async fn optional(decision: Option<Decision>) -> String {
    decision.as_ref().map_or(Value::Null, told).to_string()
}

/// A route that must have a decision and one that takes what there is.
fn routes() -> Router {
    Router::new().route("/required", get(required)).route("/optional", get(optional))
}

async fn ask(app: &Router, path: &str, fields: &[(&str, &str)]) -> (u16, String) {
    let mut request = Request::builder().method(Method::GET).uri(path);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let response = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), 1 << 16).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn numbers(app: &Router, path: &str, fields: &[(&str, &str)]) -> Value {
    let (status, body) = ask(app, path, fields).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn a_handler_is_told_every_number_of_the_decision() {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(1_000));
    let rules = [
        Rule::new("key", Limit::per_minute(10), key::header("x-key")).fixed_cost(3),
        Rule::global("all", Limit::per_hour(100)).algorithm(FixedWindow),
    ];
    let app = routes().layer(layer(rules, &clock).expose_decision());
    for path in ["/required", "/optional"] {
        // Each path has a key of its own; the window goes to 3,600.
        let all = if path == "/required" { 99 } else { 98 };
        assert_eq!(
            numbers(&app, path, &[("x-key", path)]).await,
            json!({
                "allowed": true,
                "status": 200,
                "delay": 0,
                "at": 1_000,
                "tightest": "key",
                "rules": [["key", 3, 10, 7, 18], ["all", 1, 100, all, 2_600]],
            })
        );
    }
    // A rule that does not apply is not in it.
    let without_key = numbers(&app, "/required", &[]).await;
    assert_eq!(without_key["rules"], json!([["all", 1, 100, 97, 2_600]]));
}

#[tokio::test]
async fn a_request_without_any_rule_still_has_a_decision() {
    let rule = Rule::new("key", Limit::per_minute(10), key::header("x-key"));
    let app = routes().layer(layer([rule], &ManualClock::new()).expose_decision());
    for path in ["/required", "/optional"] {
        let told = numbers(&app, path, &[]).await;
        assert_eq!((&told["allowed"], &told["tightest"], &told["rules"]), (&json!(true), &Value::Null, &json!([])));
    }
}

#[tokio::test]
async fn a_handler_whose_request_had_to_wait_sees_how_long() {
    let clock = ManualClock::new();
    let rule = Rule::global("paced", Limit::per_second(1).burst(3)).algorithm(LeakyBucket);
    let app = routes().layer(layer([rule], &clock).expose_decision());
    assert_eq!(numbers(&app, "/required", &[]).await["delay"], 0);
    let mut held = tokio_test::task::spawn(numbers(&app, "/required", &[]));
    assert!(held.poll().is_pending());
    clock.advance(Duration::from_secs(1));
    let told = held.await;
    assert_eq!((&told["delay"], &told["at"]), (&json!(1), &json!(0)), "as it was decided, before the wait");
}

#[tokio::test]
async fn a_handler_sees_the_layer_next_to_it() {
    let clock = ManualClock::new();
    let inner = layer([Rule::global("inner", Limit::per_minute(5))], &clock);
    let outer = || layer([Rule::global("outer", Limit::per_minute(9))], &clock).expose_decision();
    let both = routes().layer(inner.clone().expose_decision()).layer(outer());
    assert_eq!(numbers(&both, "/required", &[]).await["tightest"], "inner");
    // An inner layer that exposes nothing takes nothing away.
    let only_outer = routes().layer(inner).layer(outer());
    assert_eq!(numbers(&only_outer, "/required", &[]).await["tightest"], "outer");
}

#[tokio::test]
async fn a_decision_that_is_not_there_is_a_500_with_the_fix() {
    let clock = ManualClock::new();
    let unexposed = routes().layer(layer([Rule::global("all", Limit::per_minute(5))], &clock));
    // The layer is on another route.
    let elsewhere = routes().route(
        "/limited",
        get(required).layer(layer([Rule::global("all", Limit::per_minute(5))], &clock).expose_decision()),
    );
    for app in [unexposed, elsewhere.clone(), routes()] {
        let (status, body) = ask(&app, "/required", &[]).await;
        assert_eq!(status, 500);
        assert_eq!(body, "no rate limit decision: put a RateLimitLayer with .expose_decision() around this handler");
        assert_eq!(numbers(&app, "/optional", &[]).await, Value::Null, "no mistake for who can do without");
    }
    assert_eq!(numbers(&elsewhere, "/limited", &[]).await["tightest"], "all");
}

#[tokio::test]
async fn a_handler_with_state_and_other_arguments_takes_it_too() {
    use axum::extract::State;

    async fn left(State(name): State<&'static str>, decision: Decision, request: Request) -> String {
        let left = decision.tightest().map_or(0, |rule| rule.verdict.remaining);
        format!("{name}: {left} left, then {}", request.uri())
    }

    let limit = layer([Rule::global("all", Limit::per_minute(5))], &ManualClock::new()).expose_decision();
    let app = Router::new().route("/", get(left)).layer(limit).with_state("ana");
    assert_eq!(ask(&app, "/", &[]).await, (200, "ana: 4 left, then /".to_owned()));
}
