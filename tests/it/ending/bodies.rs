//! What is wrapped around a body shows nothing of itself.

use futures_util::FutureExt;
use http_body_util::{BodyExt, Full};
use tollgate::{Limit, RateLimitLayer, ResponseBody};
use tower::{Layer, Service, service_fn};

use super::*;

#[test]
fn a_body_that_holds_a_place_is_the_inner_one_in_all_else() {
    let limiter = limiter([Rule::global("place", Limit::in_flight(1))]);
    let layer = RateLimitLayer::from(limiter.clone());
    let mut service =
        layer.layer(service_fn(|_: Asked| async { Ok::<_, Broken>(Response::new(Full::<Bytes>::from("hello"))) }));
    let response = service.call(Asked::default()).now_or_never().unwrap().unwrap();
    let body: ResponseBody<Full<Bytes>> = response.into_body();
    assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(5), false));
    assert_eq!(used(&limiter, &Asked::default()), [1], "to look at a body that has not ended ends nothing");
    let twin = body.clone();
    assert_eq!(body.collect().now_or_never().unwrap().unwrap().to_bytes(), "hello");
    assert_eq!(used(&limiter, &Asked::default()), [0]);
    // The first of them has ended what both held, once.
    let again = service.call(Asked::default()).now_or_never().unwrap().unwrap();
    drop(twin);
    assert_eq!(used(&limiter, &Asked::default()), [1]);
    drop(again);
    assert_eq!(used(&limiter, &Asked::default()), [0]);
}

#[test]
fn trailers_come_through() {
    let limiter = limiter([Rule::global("place", Limit::in_flight(1))]);
    let layer = RateLimitLayer::from(limiter);
    let mut service =
        layer.layer(service_fn(|_: Asked| async { Ok::<_, Broken>(ok(Frames::known([data(), trailers()]))) }));
    let response = service.call(Asked::default()).now_or_never().unwrap().unwrap();
    let collected = response.into_body().collect().now_or_never().unwrap().unwrap();
    assert!(collected.trailers().is_some());
    assert_eq!(collected.to_bytes(), "piece");
}
