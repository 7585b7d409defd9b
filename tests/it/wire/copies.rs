//! What is kept of earlier answers changes none: a layer that has answered much answers as one that was made for this
//! request.

use std::{convert::Infallible, future::ready, sync::Arc, time::Duration};

use futures_util::FutureExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tollgate::{
    Decision, Limit, Limiter, MissingKey, RateLimitLayer, Rule, key,
    response::Headers,
    store::MemoryStore,
    time::{ManualClock, Nanos},
};
use tower::{Layer, Service, service_fn};

use crate::{
    engine::Shared,
    random::{Random, each_seed, from_env},
};

type Layered = RateLimitLayer<Request<()>>;

fn some_rules(random: &mut Random, count: u64) -> Vec<Rule<Request<()>>> {
    let some = |random: &mut Random, from: [u64; 3]| from[random.below(3) as usize];
    let rule = |at| {
        let period = Duration::from_secs(some(random, [1, 60, 20_000]));
        let limit = Limit::new(some(random, [1, 2, 5]), period).burst(some(random, [1, 3, 12_000]));
        let rule = match at {
            0 => Rule::new("one", limit, key::header("x-key")),
            _ => Rule::global("all", limit),
        };
        let cost = |request: &Request<()>| Some(request.headers().get("x-cost")?.to_str().ok()?.parse().unwrap());
        let rule = rule.cost(move |request| cost(request).unwrap_or(1));
        let rule = match at == 0 && random.one_in(4) {
            true => rule.on_missing_key(MissingKey::Refuse(StatusCode::UNAUTHORIZED)),
            false => rule,
        };
        if random.one_in(3) { rule.overload() } else { rule }
    };
    (0..count).map(rule).collect()
}

fn some_style(random: &mut Random) -> Headers {
    match random.below(6) {
        0 => Headers::XRateLimit,
        1 => Headers::XRateLimitEpoch,
        2 => Headers::Ietf,
        3 => Headers::Both,
        4 => Headers::None,
        _ => Headers::custom(|decision, headers| {
            if let Some(rule) = decision.tightest() {
                headers.insert("x-left", rule.verdict.remaining.into());
            }
        }),
    }
}

fn some_request(random: &mut Random) -> Request<()> {
    let mut request = Request::builder().method(if random.one_in(4) { Method::HEAD } else { Method::GET });
    if !random.one_in(8) {
        request = request.header("x-key", if random.one_in(2) { "a" } else { "b" });
    }
    let cost = if random.one_in(4) { 13_000 } else { random.below(4) };
    for (name, value, times) in [
        ("x-cost", cost.to_string(), 5),
        ("x-inner", random.below(4).to_string(), 6),
        ("accept", "text/plain".to_owned(), 6),
        ("content-type", "application/grpc".to_owned(), 12),
    ] {
        if random.one_in(times) {
            request = request.header(name, value);
        }
    }
    request.body(()).unwrap()
}

/// The whole answer, as text.
fn answer(layer: &Layered, asked: &Request<()>) -> String {
    // Some requests are refused further in, or so it looks.
    let inner = service_fn(|request: Request<()>| {
        let seen = format!("{:?}", request.extensions().get::<Decision>());
        let mut response = Response::new(Full::<bytes::Bytes>::from(seen));
        if let Some(told) = request.headers().get("x-inner") {
            response.headers_mut().insert("retry-after", told.clone());
            response.headers_mut().insert("x-ratelimit-remaining", told.clone());
        }
        ready(Ok::<_, Infallible>(response))
    });
    let mut request = Request::new(());
    *request.method_mut() = asked.method().clone();
    *request.headers_mut() = asked.headers().clone();
    let (head, body) = layer.layer(inner).call(request).now_or_never().unwrap().unwrap().into_parts();
    let body = body.collect().now_or_never().unwrap().unwrap();
    let (decision, extensions) = (head.extensions.get::<Decision>(), head.extensions.len());
    let trailers = body.trailers().cloned();
    format!(
        "{} {:?} {:?} {decision:?} {extensions} {trailers:?} {:?}",
        head.status,
        head.version,
        head.headers.iter().collect::<Vec<_>>(),
        body.to_bytes()
    )
}

#[test]
fn an_answer_does_not_depend_on_those_before() {
    each_seed(from_env("TOLLGATE_RUNS", 200), |random| {
        let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
        let count = 1 + random.below(2);
        let first = some_rules(random, count);
        let limiter = Limiter::builder(first.clone()).clock(clock.clone()).build().unwrap();
        // Nothing is known of its store, and somebody hears of every decision.
        let elsewhere = Shared(Arc::new(MemoryStore::new()));
        let long =
            Limiter::builder(first).store(elsewhere).clock(clock.clone()).on_decision(|_, _| {}).build().unwrap();
        let (exposes, on_refusals_only) = (random.one_in(3), random.one_in(4));
        let dressed = |layer: Layered, style: &Headers| {
            let layer = layer.headers(style.clone());
            let layer = if exposes { layer.expose_decision() } else { layer };
            if on_refusals_only { layer.headers_on_refusals_only() } else { layer }
        };
        // Two styles of one layer.
        let (styles, base) = ([(); 2].map(|()| some_style(random)), Layered::from(limiter.clone()));
        let layers = styles.each_ref().map(|style| dressed(base.clone(), style));
        for _ in 0..60 {
            match random.below(6) {
                0 => clock.advance(Duration::from_secs(random.below(9))),
                1 | 2 => clock.advance(Duration::from_millis(random.below(900))),
                _ => {}
            }
            if random.one_in(40) {
                let next = some_rules(random, count);
                assert_eq!(limiter.reload(next.clone()).unwrap(), long.reload(next).unwrap());
            }
            let (request, which) = (some_request(random), random.below(2) as usize);
            let anew = dressed(Layered::from(long.clone()), &styles[which]);
            assert_eq!(answer(&layers[which], &request), answer(&anew, &request), "{styles:?} {request:?}");
        }
    });
}
