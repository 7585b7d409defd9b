//! Where the layer fits, that all its copies count together, and that order is kept.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::{
    extract::{Request, connect_info::MockConnectInfo},
    handler::Handler,
    http::Method,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{MethodRouter, Route},
};
use futures_util::future::join_all;
use tollgate::{Key, Limit, RateLimitLayer, Rule, bucket::FixedWindow, key};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};

use super::*;

async fn hello_handler() -> &'static str {
    "hello"
}

fn five_a_minute() -> RateLimitLayer<Request> {
    layer([Rule::global("all", Limit::per_minute(5)).algorithm(FixedWindow)], &ManualClock::new())
}

fn three_routes(method: impl Fn() -> MethodRouter) -> Router {
    Router::new().route("/a", method()).route("/b", method()).route("/c", method())
}

fn to(path: &str) -> Request {
    Request::builder().uri(path).body(Body::empty()).unwrap()
}

type Cloneable = BoxCloneService<Request, Response, BoxError>;

/// A service as a server uses it: a clone for each connection.
fn boxed<S>(service: S) -> Cloneable
where
    S: Service<Request, Error: Into<BoxError>, Response: IntoResponse> + Clone + Send + 'static,
    S::Future: Send,
{
    BoxCloneService::new(service.map_response(IntoResponse::into_response).map_err(Into::into))
}

#[tokio::test]
async fn all_copies_of_a_layer_count_together() {
    // tokio-rs/axum#2582, tokio-rs/axum#2634: the count was in the service, and each connection or route had its own
    // copy of it, so 50 of 50 passed.
    let plain = || service_fn(|_: Request| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
    let per_route = five_a_minute();
    let handlers = five_a_minute();
    let ways: [(&str, Cloneable); 6] = [
        ("Router::layer", boxed(three_routes(|| get(hello_handler)).layer(five_a_minute()))),
        ("Router::route_layer", boxed(three_routes(|| get(hello_handler)).route_layer(five_a_minute()))),
        ("MethodRouter::layer", boxed(three_routes(|| get(hello_handler).layer(per_route.clone())))),
        ("Handler::layer", boxed(three_routes(|| get(hello_handler.layer(handlers.clone()))))),
        ("ServiceBuilder", boxed(ServiceBuilder::new().layer(five_a_minute()).service(plain()))),
        ("Layer::layer", boxed(five_a_minute().layer(plain()))),
    ];
    for (way, service) in ways {
        let connections = (0..50).map(|_| {
            let connection = service.clone();
            tokio::spawn(async move { connection.oneshot(to("/a")).await.unwrap().status() })
        });
        let mut passed =
            join_all(connections).await.into_iter().filter(|status| *status.as_ref().unwrap() == 200).count();
        assert_eq!(passed, 5, "{way}");
        for path in ["/a", "/b", "/c"] {
            for _ in 0..5 {
                let status = service.clone().oneshot(to(path)).await.unwrap().status();
                passed += usize::from(status == 200);
            }
        }
        assert_eq!(passed, 5, "{way}: five of 65");
    }
}

#[tokio::test]
async fn two_layers_count_apart() {
    let app = three_routes(|| get(hello_handler).layer(five_a_minute()));
    for path in ["/a", "/b", "/c"] {
        for at in 0..6 {
            assert_eq!(send(&app, to(path)).await.status.as_u16(), if at < 5 { 200 } else { 429 });
        }
    }
}

/// What a program that builds its layers from settings keeps and hands around.
struct Settings {
    limit: RateLimitLayer<Request>,
}

fn returned() -> impl Layer<
    Route,
    Service: Service<Request, Response: IntoResponse, Error = Infallible, Future: Send> + Clone + Send + Sync,
> + Clone {
    RateLimitLayer::new([Rule::new("path", Limit::per_minute(1), |request: &Request| {
        Some(Key::from(request.uri().path()))
    })])
}

#[tokio::test]
async fn the_types_are_inferred_wherever_a_layer_can_stand() {
    let kept = key::from_fn(|request: &Request| request.headers().get("x-key").map(|value| value.as_bytes().into()));
    let new = || RateLimitLayer::new([Rule::new("key", Limit::per_minute(1), key::header("x-key"))]);
    let settings = Settings { limit: new() };
    let apps: [Router; 9] = [
        hello().layer(new()),
        hello().route_layer(RateLimitLayer::new([Rule::global("all", Limit::per_minute(1))])),
        Router::new().route("/", get(hello_handler).layer(new())),
        Router::new().route("/", get(hello_handler.layer(new()))),
        hello().layer(RateLimitLayer::new([Rule::new("kept", Limit::per_minute(1), kept)])),
        hello().layer(RateLimitLayer::new([Rule::new("closure", Limit::per_minute(1), |request: &Request| {
            request.headers().get("x-key").map(|value| Key::from(value.as_bytes()))
        })])),
        hello().layer(settings.limit.clone()),
        hello().layer(returned()),
        hello().layer(RateLimitLayer::try_new([Rule::global("all", Limit::per_minute(1))]).unwrap()),
    ];
    for app in apps {
        let send = async || send(&app, request(Method::GET, &[("x-key", "k")])).await.status;
        assert_eq!((send().await.as_u16(), send().await.as_u16()), (200, 429));
    }

    // Under a timeout, whose errors are boxed.
    let mut timed = ServiceBuilder::new().timeout(SECOND).layer(new()).service(hello());
    assert_eq!(timed.ready().await.unwrap().call(request(Method::GET, &[])).await.unwrap().status(), 200);
    let mut limited = ServiceBuilder::new().layer(new()).timeout(SECOND).service(hello());
    assert_eq!(limited.ready().await.unwrap().call(request(Method::GET, &[])).await.unwrap().status(), 200);

    // A request that is a name and a response that is a number.
    let by_name = RateLimitLayer::new([Rule::new("name", Limit::per_minute(1), |name: &String| Some(Key::from(name)))])
        .refuse_with(|_, decision| u32::from(decision.status().as_u16()));
    let mut length = by_name.layer(service_fn(async |name: String| Ok::<u32, Infallible>(u32::from(name == "ana"))));
    assert_eq!(length.ready().await.unwrap().call("ana".into()).await, Ok(1));
    assert_eq!(length.ready().await.unwrap().call("ana".into()).await, Ok(429));
}

type Log = Arc<Mutex<Vec<&'static str>>>;

/// Tells where a request has been.
fn stop<T: Send + 'static>(log: &Log, name: &'static str, value: T) -> T {
    log.lock().unwrap().push(name);
    value
}

#[derive(Clone)]
struct User(String);

async fn authenticate(mut request: Request, next: Next) -> Response {
    match request.headers().get("x-token").and_then(|token| token.to_str().ok()) {
        Some(name) if name != "guess" => {
            let user = User(name.to_owned());
            request.extensions_mut().insert(user);
            next.run(request).await
        }
        _ => StatusCode::UNAUTHORIZED.into_response(),
    }
}

#[tokio::test]
async fn a_refused_request_never_reaches_what_is_further_in() {
    let (log, clock) = (Log::default(), ManualClock::new());
    let seen = |name: &'static str| {
        let log = Arc::clone(&log);
        middleware::from_fn(move |request: Request, next: Next| {
            let log = Arc::clone(&log);
            async move { next.run(stop(&log, name, request)).await }
        })
    };
    let (on_key, on_handler) = (Arc::clone(&log), Arc::clone(&log));
    let per_user = Rule::new("user", Limit::per_second(1).burst(2), move |request: &Request| {
        let user = request.extensions().get::<User>();
        stop(&on_key, "user limit", ());
        user.map(|user| Key::from(&user.0))
    });
    let per_address = Rule::new("address", Limit::per_minute(6), key::peer_addr());
    let app = Router::new()
        .route("/", get(move || async move { stop(&on_handler, "handler", "hello") }))
        .layer(layer([per_user], &clock))
        .layer(middleware::from_fn(authenticate))
        .layer(seen("authentication"))
        .layer(layer([per_address], &clock))
        .layer(seen("address limit"))
        .layer(MockConnectInfo(std::net::SocketAddr::from(([192, 0, 2, 1], 4_000))));

    const INSIDE: [&str; 4] = ["address limit", "authentication", "user limit", "handler"];
    for (token, status, way) in [
        ("ana", 200, &INSIDE[..4]),
        ("ana", 200, &INSIDE[..4]),
        ("ana", 429, &INSIDE[..3]),
        ("bob", 200, &INSIDE[..4]),
        ("guess", 401, &INSIDE[..2]),
        ("guess", 401, &INSIDE[..2]),
        // The outer limit is spent: a storm of guesses does not even reach the password check any more.
        ("guess", 429, &INSIDE[..1]),
        ("bob", 429, &INSIDE[..1]),
    ] {
        let answer = send(&app, request(Method::GET, &[("x-token", token)])).await;
        assert_eq!(answer.status.as_u16(), status, "{token}");
        assert_eq!(std::mem::take(&mut *log.lock().unwrap()), way, "{token} {status}");
    }
}
