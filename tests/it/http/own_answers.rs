//! Answers of the user's own, and what else can be had of a decision.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::{
    Extension,
    extract::Request,
    http::{Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use tollgate::{
    Decision, Key, Limit, Limiter, RateLimitLayer, Rule,
    bucket::LeakyBucket,
    decision::Refusal,
    response::{Headers, RefusalBody},
};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

use super::*;

fn once_a_minute() -> [Rule<Request>; 1] {
    [Rule::global("all", Limit::per_minute(1))]
}

#[tokio::test]
async fn an_answer_of_the_users_own_keeps_its_fields_and_gets_what_is_missing() {
    let clock = ManualClock::new();
    let teapot = layer(once_a_minute(), &clock).respond_with(|request: &Request, decision| {
        let text = format!("{} of {}", request.uri().path(), decision.violated().collect::<String>());
        (StatusCode::IM_A_TEAPOT, [("retry-after", "7"), ("x-own", "1"), ("content-type", "text/tea")], text)
            .into_response()
    });
    let app = hello().layer(teapot);
    let passed = get_root(&app).await;
    assert_eq!((passed.status, passed.limit_fields()), (StatusCode::OK, [1, 0, 60]));
    let refused = get_root(&app).await;
    assert_eq!((refused.status, refused.body.as_str()), (StatusCode::IM_A_TEAPOT, "/ of all"));
    assert_eq!((refused.field("retry-after"), refused.field("x-own")), ("7", "1"));
    assert_eq!(refused.field("content-type"), "text/tea");
    assert_eq!(refused.field("cache-control"), "no-store");
    assert_eq!(refused.limit_fields(), [1, 0, 60]);

    // Its own words on caching stay as well, and nothing is told where that was switched off.
    let cached = layer(once_a_minute(), &clock)
        .respond_with(|_: &Request, _| [("cache-control", "private")].into_response())
        .headers(Headers::None);
    let app = hello().layer(cached);
    let _passed = get_root(&app).await;
    let refused = get_root(&app).await;
    assert_eq!((refused.status, refused.field("cache-control")), (StatusCode::OK, "private"));
    assert_eq!(refused.retry_after(), 60);
    assert!(!refused.has_limit_fields());
}

#[tokio::test]
async fn an_answer_can_be_plain_bytes_beside_any_inner_body() {
    let clock = ManualClock::new();
    let plain = layer(once_a_minute(), &clock)
        .respond_with(|_: &Request, _| Response::new(RefusalBody::from("slow down")))
        .expose_decision();
    let app = hello().layer(plain);
    let _passed = get_root(&app).await;
    let response = app.clone().oneshot(request(Method::GET, &[])).await.unwrap();
    assert!(!response.extensions().get::<Decision>().unwrap().is_allowed());
    assert_eq!(get_root(&app).await.body, "slow down");
}

#[tokio::test]
async fn other_services_say_what_a_refusal_is() {
    let clock = ManualClock::new();
    let rule = Rule::new("word", Limit::per_minute(2), |word: &String| Some(Key::from(word)));
    let limiter = Limiter::builder([rule]).clock(clock.clone()).build().unwrap();
    let mut length = ServiceBuilder::new()
        .layer(RateLimitLayer::from(limiter).refuse_with(|word: &String, decision| {
            assert_eq!((word.as_str(), decision.refusal()), ("four", Some(Refusal::Limited)));
            u32::MAX
        }))
        .service(service_fn(|word: String| async move { Ok::<u32, Infallible>(u32::try_from(word.len()).unwrap()) }));
    let mut answers = Vec::new();
    for word in ["four", "four", "four", "seven", "four"] {
        answers.push(length.ready().await.unwrap().call(word.to_owned()).await.unwrap());
    }
    assert_eq!(answers, [4, 4, u32::MAX, 5, u32::MAX]);
}

/// Says what the decision in the request's extensions has left.
async fn told(decision: Option<Extension<Decision>>) -> String {
    decision.map_or("nothing".into(), |Extension(decision)| decision.tightest().unwrap().verdict.remaining.to_string())
}

#[tokio::test]
async fn the_decision_is_in_the_extensions_of_requests_and_responses_when_asked() {
    let clock = ManualClock::new();
    let rules = || [Rule::global("all", Limit::per_minute(2))];
    let route = || Router::new().route("/", get(told));
    let own = |_: &Request, _: &Decision| "no".into_response();
    for app in [
        route().layer(layer(rules(), &clock).expose_decision()),
        route().layer(layer(rules(), &clock).respond_with(own).expose_decision()),
        route().layer(layer(rules(), &clock).expose_decision().respond_with(own)),
    ] {
        for (body, allowed, left) in [(Some("1"), true, 1), (Some("0"), true, 0), (None, false, 0)] {
            let response = app.clone().oneshot(request(Method::GET, &[])).await.unwrap();
            let decision = response.extensions().get::<Decision>().expect("in the response").clone();
            assert_eq!(decision.is_allowed(), allowed);
            assert_eq!(decision.tightest().unwrap().verdict.remaining, left);
            if let Some(body) = body {
                let sent = axum::body::to_bytes(response.into_body(), 100).await.unwrap();
                assert_eq!(sent, body, "in the request");
            }
        }
    }
}

#[tokio::test]
async fn nothing_is_in_the_extensions_unless_asked() {
    let clock = ManualClock::new();
    let app = Router::new().route("/", get(told)).layer(layer(once_a_minute(), &clock));
    let passed = app.clone().oneshot(request(Method::GET, &[])).await.unwrap();
    assert!(passed.extensions().get::<Decision>().is_none());
    assert_eq!(axum::body::to_bytes(passed.into_body(), 100).await.unwrap(), "nothing");
    let refused = app.oneshot(request(Method::GET, &[])).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.extensions().get::<Decision>().is_none());
}

#[tokio::test]
async fn the_hook_sees_every_decision_once() {
    let (clock, seen) = (ManualClock::new(), Arc::new(Mutex::new(Vec::new())));
    let log = Arc::clone(&seen);
    let limiter = Limiter::builder([
        Rule::global("queue", Limit::per_second(1).burst(2)).algorithm(LeakyBucket),
        Rule::new("token", Limit::per_minute(9), |request: &Request| {
            Some(request.headers().get("x-token").map_or(Key::unavailable("no token"), |value| value.as_bytes().into()))
        }),
    ])
    .clock(clock.clone())
    .on_decision(move |request: &Request, decision| {
        log.lock().unwrap().push((request.method().clone(), decision.status().as_u16(), decision.delay()));
    })
    .build()
    .unwrap();
    let app = hello().layer(RateLimitLayer::from(limiter.clone()));
    let with_token = || request(Method::POST, &[("x-token", "t")]);

    assert_eq!(send(&app, with_token()).await.status, 200);
    let mut held = tokio_test::task::spawn(send(&app, with_token()));
    assert!(held.poll().is_pending());
    assert_eq!(send(&app, with_token()).await.status, 429);
    assert_eq!(get_root(&app).await.status, 500);
    clock.advance(SECOND);
    assert!(held.poll().is_ready());
    assert!(limiter.peek(&with_token()).await.unwrap().is_allowed());
    assert!(!limiter.check(&with_token()).await.unwrap().is_allowed());
    assert!(!limiter.check_now(&with_token()).unwrap().is_allowed());

    let (none, post) = (Duration::ZERO, Method::POST);
    let expected = [
        (post.clone(), 200, none),
        (post.clone(), 200, SECOND), // reported when it was decided, not again when its turn came
        (post.clone(), 429, none),
        (Method::GET, 500, none),
        // A peek decides nothing. The engine's own checks do.
        (post.clone(), 429, none),
        (post, 429, none),
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[tokio::test]
async fn an_answer_to_head_keeps_the_length_it_was_given() {
    let clock = ManualClock::new();
    let own = layer(once_a_minute(), &clock)
        .respond_with(|_: &Request, _| (StatusCode::TOO_MANY_REQUESTS, "slow down").into_response());
    let app = hello().layer(own);
    let _passed = get_root(&app).await;
    let head = send(&app, request(Method::HEAD, &[])).await;
    assert_eq!((head.field(header::CONTENT_LENGTH.as_str()), head.body.as_str()), ("9", ""));
}
