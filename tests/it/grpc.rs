//! A tonic server behind the layer, on a loopback socket, and a tonic client that knows nothing of it.

mod counter;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::http::{self, StatusCode};
use futures_util::{StreamExt, stream};
use tokio::net::TcpListener;
use tollgate::{
    Key, Limit, Limiter, MissingKey, RateLimitLayer, Rule, charge::FailurePolicy, key, time::ManualClock, when,
};
use tonic::{
    Code, Status,
    body::Body,
    server::NamedService,
    transport::{Endpoint, Server, server::TcpIncoming},
};
use tonic_types::StatusExt;
use tower::Layer;

use counter::{Client, Counter, number};

use crate::support::{Down, layer};

type Request = http::Request<Body>;

/// Binds a socket of its own.
async fn incoming() -> (SocketAddr, TcpIncoming) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    (listener.local_addr().unwrap(), listener.into())
}

/// Serves a counter behind the layer.
async fn serve(limit: RateLimitLayer<Request>, counter: Counter) -> SocketAddr {
    let (address, incoming) = incoming().await;
    let server = Server::builder().layer(limit).add_service(counter);
    tokio::spawn(server.serve_with_incoming(incoming));
    address
}

async fn connect_from(address: SocketAddr, from: Option<IpAddr>) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap().local_address(from);
    Client::new(endpoint.connect().await.unwrap())
}

async fn connect(address: SocketAddr) -> Client {
    connect_from(address, None).await
}

/// What a client library takes its wait from.
fn retry_delay(status: &Status) -> Option<Duration> {
    let details = status.check_error_details().expect("details that can be read");
    details.retry_info()?.retry_delay
}

#[track_caller]
fn is_refused(status: &Status, wait: Duration) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(status.message(), "rate limit exceeded");
    assert_eq!(retry_delay(status), Some(wait), "{status:?}");
}

fn field<'a>(status: &'a Status, name: &str) -> Option<&'a str> {
    status.metadata().get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn calls_of_every_kind_pass_untouched_and_are_refused_with_their_wait() {
    let clock = ManualClock::new();
    let counter = Counter::default();
    let calls = Arc::clone(&counter.calls);
    let address = serve(layer([Rule::global("calls", Limit::per_minute(4))], &clock), counter).await;
    let mut client = connect(address).await;

    let doubled = client.double(21).await.unwrap();
    assert_eq!(doubled.get_ref().value, 42);
    for (name, value) in [("x-own", "kept"), ("x-ratelimit-remaining", "3")] {
        assert_eq!(doubled.metadata().get(name).unwrap(), value);
    }
    let failed = client.double(13).await.unwrap_err();
    assert_eq!((failed.code(), failed.message()), (Code::InvalidArgument, "no"), "its own error");
    let mut numbers = client.count(3).await.unwrap();
    for value in 1..=3 {
        assert_eq!(numbers.message().await.unwrap(), Some(number(value)));
    }
    let end = numbers.message().await.unwrap_err();
    assert_eq!((end.code(), end.message()), (Code::OutOfRange, "no more numbers"), "from its trailers");
    assert_eq!(client.sum(stream::iter([1, 2, 3, 4].map(number))).await.unwrap(), 10);
    assert_eq!(calls.load(Ordering::Relaxed), 4);

    // A quarter of a minute each, and half a second of it is over.
    clock.advance(Duration::from_millis(500));
    let wait = Duration::from_millis(14_500);
    let unary = client.double(21).await.unwrap_err();
    is_refused(&unary, wait);
    // Seconds for those who look at fields, rounded up; and nothing that was not asked for.
    for (name, value) in [
        ("retry-after", Some("15")),
        ("cache-control", Some("no-store")),
        ("x-ratelimit-limit", Some("4")),
        ("x-ratelimit-remaining", Some("0")),
        ("x-ratelimit-reset", Some("60")),
        ("content-type", Some("application/grpc")),
        ("grpc-retry-pushback-ms", None),
    ] {
        assert_eq!(field(&unary, name), value, "{name}");
    }
    is_refused(&client.count(3).await.expect_err("no stream"), wait);
    is_refused(&client.sum(stream::iter([number(1)])).await.unwrap_err(), wait);
    // Not even a stream of the client's that never ends is waited for.
    let endless = tokio::time::timeout(Duration::from_secs(20), client.sum(stream::pending()));
    is_refused(&endless.await.expect("an answer").unwrap_err(), wait);
    assert_eq!(calls.load(Ordering::Relaxed), 4, "no refused call came in");

    clock.advance(wait);
    assert_eq!(client.double(4).await.unwrap().into_inner(), number(8), "on the same connection");
}

#[tokio::test]
async fn a_call_counts_once_however_long_it_streams() {
    let clock = ManualClock::new();
    let address = serve(layer([Rule::global("calls", Limit::per_minute(2))], &clock), Counter::default()).await;
    let mut client = connect(address).await;
    assert_eq!(
        client.count(1_000).await.unwrap().filter(|number| std::future::ready(number.is_ok())).count().await,
        1_000
    );
    assert_eq!(client.sum(stream::iter((1..=1_000).map(number))).await.unwrap(), 500_500);
    is_refused(&client.double(1).await.unwrap_err(), Duration::from_secs(30));
}

// Only Linux has all of 127.0.0.0/8 without being told.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn peers_are_told_apart_by_tonics_connect_info() {
    let rule = Rule::new("address", Limit::per_minute(2), key::peer_addr());
    let address = serve(layer([rule], &ManualClock::new()), Counter::default()).await;
    for last in [1, 2] {
        let from = IpAddr::from([127, 0, 0, last]);
        // Two connections of one client.
        for (at, passes) in [true, true, false].into_iter().enumerate() {
            let mut client = connect_from(address, Some(from)).await;
            assert_eq!(client.double(1).await.is_ok(), passes, "{from} {at}");
        }
    }
}

#[tokio::test]
async fn a_limited_service_keeps_its_name_and_its_neighbours_are_not_limited() {
    fn name<S: NamedService>(_: &S) -> &'static str {
        S::NAME
    }

    #[derive(Clone)]
    struct Free(Counter);

    impl NamedService for Free {
        const NAME: &'static str = "test.Free";
    }

    impl tower::Service<Request> for Free {
        type Response = http::Response<Body>;
        type Error = std::convert::Infallible;
        type Future = <Counter as tower::Service<Request>>::Future;

        fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
            self.0.poll_ready(cx)
        }

        fn call(&mut self, request: Request) -> Self::Future {
            self.0.call(request)
        }
    }

    let limit = layer([Rule::new("address", Limit::per_minute(1), key::peer_addr())], &ManualClock::new());
    let limited = limit.layer(Counter::default());
    assert_eq!(name(&limited), "test.Counter");
    let free = Counter::default();
    let free_calls = Arc::clone(&free.calls);
    let (address, incoming) = incoming().await;
    let server = Server::builder().add_service(limited).add_service(Free(free));
    tokio::spawn(server.serve_with_incoming(incoming));

    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut client = Client::new(channel.clone());
    assert_eq!(client.double(2).await.unwrap().into_inner(), number(4));
    is_refused(&client.double(2).await.unwrap_err(), Duration::from_secs(60));
    for at in 1..=3 {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<counter::Number, counter::Number>::default();
        let path = http::uri::PathAndQuery::from_static("/test.Free/Double");
        let status = grpc.unary(tonic::Request::new(number(2)), path, codec).await.unwrap_err();
        // The counter inside does not know this path, but it was asked.
        assert_eq!((status.code(), free_calls.load(Ordering::Relaxed)), (Code::Unimplemented, at));
    }
}

#[tokio::test]
async fn methods_have_limits_of_their_own() {
    let method = key::path_param("/test.Counter/{method}", "method");
    let rules = [
        Rule::new("method", Limit::per_minute(2), method),
        Rule::global("doubles", Limit::per_minute(1)).when(when::path("/test.Counter/Double")),
    ];
    let address = serve(layer(rules, &ManualClock::new()), Counter::default()).await;
    let mut client = connect(address).await;
    assert!(client.double(1).await.is_ok());
    is_refused(&client.double(1).await.unwrap_err(), Duration::from_secs(60));
    for _ in 0..2 {
        assert!(client.count(1).await.is_ok());
    }
    is_refused(&client.count(1).await.expect_err("no stream"), Duration::from_secs(30));
    assert!(client.sum(stream::empty()).await.is_ok());
}

#[tokio::test]
async fn clients_are_pushed_back_when_that_was_asked_for() {
    let clock = ManualClock::new();
    let rules = [
        Rule::global("calls", Limit::per_minute(4)),
        // More than it can ever hold.
        Rule::global("sums", Limit::per_minute(1)).when(when::path("/test.Counter/Sum")).cost(|_| 2),
    ];
    let address = serve(layer(rules, &clock).grpc_pushback(), Counter::default()).await;
    let mut client = connect(address).await;

    let never = client.sum(stream::empty()).await.unwrap_err();
    assert_eq!((never.code(), field(&never, "grpc-retry-pushback-ms")), (Code::ResourceExhausted, Some("-1")));
    assert_eq!((retry_delay(&never), field(&never, "retry-after")), (None, None));

    for _ in 0..4 {
        let passed = client.double(1).await.unwrap();
        assert!(!passed.metadata().contains_key("grpc-retry-pushback-ms"));
    }
    clock.advance(Duration::from_micros(499_100));
    let refused = client.double(1).await.unwrap_err();
    is_refused(&refused, Duration::from_micros(14_500_900));
    assert_eq!(field(&refused, "grpc-retry-pushback-ms"), Some("14501"), "rounded up");
}

#[tokio::test]
async fn other_refusals_have_the_codes_that_mean_them() {
    let by_token = |status| {
        Rule::new("token", Limit::per_minute(1), |request: &Request| {
            request.headers().get("x-token").map(|token| Key::from(token.as_bytes()))
        })
        .on_missing_key(MissingKey::Refuse(status))
    };
    let clock = ManualClock::new();
    for (limit, code, message) in [
        (layer([by_token(StatusCode::UNAUTHORIZED)], &clock), Code::Unauthenticated, None),
        (layer([by_token(StatusCode::FORBIDDEN)], &clock), Code::PermissionDenied, None),
        (layer([by_token(StatusCode::BAD_REQUEST)], &clock), Code::InvalidArgument, None),
        (
            layer([Rule::global("all", Limit::per_minute(1)).overload().cost(|_| 2)], &clock),
            Code::ResourceExhausted,
            Some("the service is at its capacity"),
        ),
        (
            RateLimitLayer::from(
                Limiter::builder([Rule::global("all", Limit::per_minute(1)).on_store_failure(FailurePolicy::Refuse)])
                    .store(Down::new(false))
                    .build()
                    .unwrap(),
            ),
            Code::Unavailable,
            Some("the rate limit cannot be checked"),
        ),
    ] {
        let counter = Counter::default();
        let calls = Arc::clone(&counter.calls);
        let status = connect(serve(limit, counter).await).await.double(1).await.unwrap_err();
        assert_eq!(status.code(), code, "{status:?}");
        assert!(message.is_none_or(|message| message == status.message()), "{status:?}");
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        // Only who can come back is told when.
        let wait = (code == Code::Unavailable).then_some(Duration::from_secs(1));
        assert_eq!(retry_delay(&status), wait, "{code:?}");
    }
}
