//! What a client sees of rules that do not enforce: a warning, where the rule says so, and nothing else.

use axum::{Router, body::Body, extract::Request, http::Response, routing::get};
use tollgate::{RateLimitLayer, key, response::Headers};
use tower::ServiceExt;

use super::*;

fn warns(name: &'static str, limit: Limit) -> Rule<Request> {
    Rule::new(name, limit, key::header("x-key")).warn()
}

fn over(rules: Vec<Rule<Request>>, clock: &ManualClock) -> RateLimitLayer<Request> {
    Limiter::builder(rules).clock(clock.clone()).build().unwrap().into()
}

async fn ask(app: &Router) -> Response<Body> {
    let request = Request::builder().header("x-key", "ana").body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap()
}

fn warnings(response: &Response<Body>) -> Vec<&str> {
    response.headers().get_all("x-ratelimit-warning").iter().map(|value| value.to_str().unwrap()).collect()
}

fn hello() -> Router {
    Router::new().route("/", get(async || "hello"))
}

/// The warnings of four requests.
type Expected = [&'static [&'static str]; 4];

#[tokio::test]
async fn warnings_name_the_rules_that_would_refuse_and_how_long() {
    let minute = || warns("minute", Limit::per_minute(2));
    let day = || warns("day", Limit::per_day(1)).algorithm(FixedWindow);
    let never = || warns("never", Limit::per_minute(2)).cost(|_| 3);
    let shadow = || warns("hidden", Limit::per_minute(1)).shadow();
    let live = || Rule::new("live", Limit::per_minute(3), key::header("x-key"));
    const ROWS: usize = 6;
    // the rules; the warnings of the first four requests, one line each, none where there is no field
    let rows: [(Vec<Rule<Request>>, Expected); ROWS] = [
        (vec![minute()], [&[], &[], &["\"minute\";t=30"], &["\"minute\";t=30"]]),
        (vec![day()], [&[], &["\"day\";t=86400"], &["\"day\";t=86400"], &["\"day\";t=86400"]]),
        (vec![never()], [&["\"never\""]; 4]),
        (
            vec![never(), minute(), live()],
            [&["\"never\""], &["\"never\""], &["\"never\", \"minute\";t=30"], &[]], // the fourth is refused
        ),
        (vec![shadow(), live()], [&[]; 4]),
        (
            vec![live(), Rule::shadow_of("live", Limit::per_minute(1)).warn()],
            [&[], &["\"live.shadow\";t=60"], &["\"live.shadow\";t=60"], &[]],
        ),
    ];
    for (rules, expected) in rows {
        let clock = ManualClock::new();
        let named = format!("{rules:?}");
        let app = hello().layer(over(rules, &clock));
        for expected in expected {
            assert_eq!(warnings(&ask(&app).await), expected, "{named}");
        }
    }
}

#[tokio::test]
async fn every_style_of_headers_warns_and_layers_add_to_the_list() {
    let clock = ManualClock::new();
    for headers in [Headers::XRateLimit, Headers::Ietf, Headers::Both, Headers::None, Headers::custom(|_, _| ())] {
        let inner = over(vec![warns("inner", Limit::per_minute(1))], &clock).headers(headers.clone());
        let outer =
            over(vec![warns("outer", Limit::per_minute(1))], &clock).headers(headers).headers_on_refusals_only();
        let app = hello().layer(inner).layer(outer);
        assert!(warnings(&ask(&app).await).is_empty());
        assert_eq!(warnings(&ask(&app).await), ["\"inner\";t=60", "\"outer\";t=60"]);
    }
}

#[test]
fn the_warning_is_exposed_where_a_rule_warns() {
    let clock = ManualClock::new();
    let exposed = |rules| over(rules, &clock).expose_headers().iter().any(|name| name == "x-ratelimit-warning");
    assert!(exposed(vec![warns("r", Limit::per_minute(1))]));
    assert!(!exposed(vec![warns("r", Limit::per_minute(1)).shadow()]));
    assert!(!exposed(vec![]));
}

/// No field, no status, no body and no wait depends on a rule that only watches.
#[tokio::test]
async fn a_shadow_is_not_in_the_response() {
    let clock = ManualClock::new();
    let live = || Rule::new("live", Limit::per_minute(2), key::header("x-key"));
    let shadows = || {
        [
            Rule::global("all", Limit::per_hour(1)).shadow(),
            Rule::new("missing", Limit::per_hour(1), key::header("x-none"))
                .on_missing_key(MissingKey::Refuse(http_status(401)))
                .shadow(),
            Rule::new("nobody", Limit::per_hour(1), |_: &Request| Some(Key::unavailable("not there"))).shadow(),
            Rule::global("queue", Limit::per_hour(1).burst(9)).algorithm(LeakyBucket).shadow(),
            Rule::shadow_of("live", Limit::per_hour(1)),
        ]
    };
    for headers in [Headers::XRateLimit, Headers::XRateLimitEpoch, Headers::Both] {
        let plain = hello().layer(over(vec![live()], &clock).headers(headers.clone()));
        let beside = shadows().into_iter().chain([live()]).collect();
        let beside = hello().layer(over(beside, &clock).headers(headers));
        for _ in 0..4 {
            let mut seen = Vec::new();
            for app in [&plain, &beside] {
                let (head, body) = ask(app).await.into_parts();
                let body = axum::body::to_bytes(body, 9_999).await.unwrap();
                seen.push((head.status, format!("{:?}", head.headers), body));
            }
            assert_eq!(seen[0], seen[1]);
        }
    }
}
