//! Requests that wait in front of a service.

use std::convert::Infallible;

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tollgate::{RateLimitLayer, key};
use tower::{Layer, Service};

use super::*;
use crate::support::{Probe, Remote};

type Body = Full<bytes::Bytes>;

fn ask() -> Request<Body> {
    Request::builder().header("x-key", "ana").body(Body::default()).unwrap()
}

fn layer(most: usize, clock: &ManualClock) -> RateLimitLayer<Request<Body>> {
    let rule = Rule::new("places", Limit::in_flight(1), key::header("x-key")).queue(most, LONGEST);
    Limiter::builder([rule]).clock(clock.clone()).build().unwrap().into()
}

/// Answers at once; the place is held until the body is dropped.
fn service() -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone {
    tower::service_fn(async |_: Request<Body>| Ok(Response::new(Body::from("hello"))))
}

fn status<B>(answer: Poll<Result<Response<B>, Infallible>>) -> Option<StatusCode> {
    match answer {
        Poll::Ready(answer) => Some(answer.unwrap().status()),
        Poll::Pending => None,
    }
}

#[test]
fn a_request_waits_until_the_body_before_it_has_ended() {
    let clock = ManualClock::new();
    let layer = layer(2, &clock);
    let mut limited = layer.layer(service());
    let mut first = tokio_test::task::spawn(limited.call(ask()));
    let Poll::Ready(Ok(streaming)) = first.poll() else { panic!("the first passes") };
    let [mut second, mut third, mut fourth] = [(); 3].map(|()| tokio_test::task::spawn(limited.call(ask())));
    assert!(second.poll().is_pending());
    assert!(third.poll().is_pending());
    assert_eq!(status(fourth.poll()), Some(StatusCode::TOO_MANY_REQUESTS), "there is room for two");
    assert_eq!(layer.limiter().waiting("places"), Some(2));
    drop(streaming);
    assert!(second.is_woken() && !third.is_woken());
    let Poll::Ready(Ok(streaming)) = second.poll() else { panic!("it is its turn") };
    assert!(third.poll().is_pending());
    clock.advance(LONGEST);
    assert_eq!(status(third.poll()), Some(StatusCode::TOO_MANY_REQUESTS), "its longest wait is over");
    drop(streaming);
    let mut fifth = tokio_test::task::spawn(limited.call(ask()));
    assert_eq!(status(fifth.poll()), Some(StatusCode::OK));
}

/// While a request waits nothing of the inner service's readiness is held, and it is asked again before it is called.
#[test]
fn the_service_is_asked_to_be_ready_again_after_a_wait() {
    let clock = ManualClock::new();
    let probe = Probe::new();
    let calls = probe.calls();
    let rule = Rule::new("places", Limit::in_flight(1), |_: &u64| Some(Key::from("all"))).queue(9, LONGEST);
    let limiter = Limiter::builder([rule]).clock(clock.clone()).build().unwrap();
    let layer = RateLimitLayer::from(limiter.clone()).refuse_with(|_, _| 0);
    let mut limited = layer.layer(probe);
    let (_, held) = limiter.reserve_now(&0).unwrap();
    let mut ready = tokio_test::task::spawn(std::future::poll_fn(|cx| limited.poll_ready(cx)));
    assert!(ready.poll().is_ready());
    drop(ready);
    let mut waits = tokio_test::task::spawn(limited.call(7));
    assert!(waits.poll().is_pending());
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    drop(held);
    assert!(matches!(waits.poll(), Poll::Ready(Ok(7))));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

type Happens = fn(&ManualClock, &mut Vec<Receipt>);

/// A table of where a request that waits may be dropped: it leaves its line, and its place goes to the next.
#[test]
fn a_request_dropped_at_any_point_of_its_wait_leaves_nothing_behind() {
    const ROWS: usize = 4;
    let rows: [(&str, Happens); ROWS] = [
        ("at once", |_, _| ()),
        ("when it was called", |_, held| held.clear()),
        ("when it asks again", |clock, _| clock.advance(Duration::from_millis(100))),
        ("when its time is over", |clock, _| clock.advance(LONGEST)),
    ];
    for polled in [false, true] {
        for (what, happens) in &rows {
            let clock = ManualClock::new();
            let rule = Rule::new("places", Limit::in_flight(1), key::header("x-key")).queue(2, LONGEST * 9);
            let limiter = Limiter::builder([rule]).clock(clock.clone()).build().unwrap();
            let mut limited = RateLimitLayer::from(limiter.clone()).layer(service());
            let mut held = vec![limiter.reserve_now(&ask()).unwrap().1];
            let mut first = tokio_test::task::spawn(limited.call(ask()));
            let mut next = tokio_test::task::spawn(limited.call(ask()));
            if polled {
                assert!(first.poll().is_pending());
            }
            assert!(next.poll().is_pending());
            happens(&clock, &mut held);
            drop(first);
            held.clear();
            assert_eq!(status(next.poll()), Some(StatusCode::OK), "{what}, polled {polled}");
            assert_eq!(limiter.waiting("places"), Some(0), "{what}, polled {polled}");
            drop(next);
            assert!(limiter.reserve_now(&ask()).unwrap().0.is_allowed(), "{what}, polled {polled}");
        }
    }
}

/// A store that answers later is asked at each turn, and a wait that is dropped meanwhile leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn a_request_waits_at_a_store_that_answers_later() {
    let memory = MemoryStore::new();
    let store = Remote::over(&memory);
    let rule = || Rule::new("places", Limit::in_flight(1), key::header("x-key")).queue(2, LONGEST);
    let limiter = Limiter::builder([rule()]).store(store.clone()).build().unwrap();
    let elsewhere = Limiter::builder([rule()]).store(memory).build().unwrap();
    let mut limited = RateLimitLayer::from(limiter.clone()).layer(service());
    let (_, held) = elsewhere.reserve_now(&ask()).unwrap();
    let mut waits = tokio_test::task::spawn(limited.call(ask()));
    assert!(waits.poll().is_pending());
    store.answer(); // it has no place
    assert!(waits.poll().is_pending());
    assert_eq!(limiter.waiting("places"), Some(1));
    store.answer(); // nor has it once it stands in line
    assert!(waits.poll().is_pending());
    drop(held);
    tokio::time::advance(Duration::from_millis(101)).await;
    assert!(waits.is_woken());
    assert!(waits.poll().is_pending());
    store.answer();
    assert_eq!(status(waits.poll()), Some(StatusCode::OK));
    assert_eq!(limiter.waiting("places"), Some(0));
}
