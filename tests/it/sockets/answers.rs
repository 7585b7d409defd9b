//! Every field and every byte of the built-in answers, as they come out of a socket.

use std::convert::Infallible;

use axum::routing::get;
use http_body_util::Full;
use hyper_util::{server::conn::auto, service::TowerToHyperService};
use tollgate::{Limit, response::Headers};
use tower::{Layer, service_fn};

use super::*;

const PROBLEM: &str = concat!(
    r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","#,
    r#""status":429,"detail":"The limit is used up; try again in 30 s.","violated-policies":["all"]}"#,
);

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }).post(|| async { "done" }))
}

fn two_a_minute() -> [Rule<Request>; 1] {
    [Rule::global("all", Limit::per_minute(2))]
}

/// Asks for what passes twice and is refused then, and looks at everything there is.
async fn sees_everything(connection: &mut Connection, version: Version) {
    for (remaining, reset) in [("1", "30"), ("0", "60")] {
        let passed = connection.ask(Method::GET).await;
        assert_eq!((passed.status.as_u16(), passed.version), (200, version));
        assert_eq!(
            passed.fields(),
            [
                ("content-length", "5"),
                ("content-type", "text/plain; charset=utf-8"),
                ("x-ratelimit-limit", "2"),
                ("x-ratelimit-remaining", remaining),
                ("x-ratelimit-reset", reset),
            ]
        );
        assert_eq!(passed.body, "hello");
        assert!(passed.trailers.is_none());
    }

    let length = PROBLEM.len().to_string();
    let refused = [
        ("cache-control", "no-store"),
        ("content-length", &*length),
        ("content-type", "application/problem+json"),
        ("retry-after", "30"),
        ("x-ratelimit-limit", "2"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "60"),
    ];
    // HEAD is told what GET is, and has no body: what came would be read as the beginning of the next answer.
    for (method, body) in [(Method::GET, PROBLEM), (Method::HEAD, ""), (Method::POST, PROBLEM), (Method::HEAD, "")] {
        let answer = connection.ask(method.clone()).await;
        assert_eq!((answer.status.as_u16(), answer.version), (429, version), "{method}");
        assert_eq!(answer.fields(), refused, "{method}");
        assert_eq!(answer.body, body, "{method}");
        assert!(answer.trailers.is_none());
        assert_eq!(answer.headers.get_all("date").iter().count(), 1, "the server's own");
    }
}

#[tokio::test]
async fn every_field_and_byte_is_as_written_over_both_versions() {
    for version in BOTH {
        let clock = ManualClock::new();
        let server = Server::start(hello().layer(layer(two_a_minute(), &clock))).await;
        let mut connection = server.connect(version).await;
        sees_everything(&mut connection, version).await;
        // On the same connection whoever waited as long as it was told is let in.
        clock.advance(Duration::from_secs(30));
        assert_eq!(connection.ask(Method::GET).await.body, "hello");
        assert_eq!(server.accepted(), 1, "a refusal closes nothing");
    }
}

#[tokio::test]
async fn a_service_without_axum_answers_the_same() {
    for version in BOTH {
        let limiter = Limiter::builder([Rule::global("all", Limit::per_minute(2))]).clock(ManualClock::new());
        let layer: RateLimitLayer<hyper::Request<Incoming>> = limiter.build().unwrap().into();
        let service = layer.layer(service_fn(|_| async {
            let response = Response::builder().header("content-type", "text/plain; charset=utf-8");
            Ok::<_, Infallible>(response.body(Full::<Bytes>::from("hello")).unwrap())
        }));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let server = auto::Builder::new(TokioExecutor::new());
            server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await
        });
        sees_everything(&mut Connection::open(address, version).await, version).await;
    }
}

#[tokio::test]
async fn a_head_that_passes_is_as_without_the_layer() {
    for version in BOTH {
        let server = Server::start(hello().layer(layer(two_a_minute(), &ManualClock::new()))).await;
        let answer = server.connect(version).await.ask(Method::HEAD).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.headers["content-length"], "5");
        assert_eq!(answer.body, "");
        assert_eq!(answer.headers["x-ratelimit-remaining"], "1");
    }
}

#[tokio::test]
async fn the_other_fields_and_plain_text_come_through_as_written() {
    for version in BOTH {
        let limit = layer(two_a_minute(), &ManualClock::new()).headers(Headers::Both);
        let server = Server::start(hello().layer(limit)).await;
        let mut connection = server.connect(version).await;
        for _ in 0..2 {
            connection.ask(Method::GET).await;
        }
        let request = Request::builder().uri("/").header("accept", "text/plain").body(Body::empty()).unwrap();
        let answer = connection.send(request).await;
        assert_eq!(answer.status, 429);
        assert_eq!(
            answer.fields(),
            [
                ("cache-control", "no-store"),
                ("content-length", "41"),
                ("content-type", "text/plain; charset=utf-8"),
                ("ratelimit", r#""all";r=0;t=30"#),
                ("ratelimit-policy", r#""all";q=2;w=60"#),
                ("retry-after", "30"),
                ("x-ratelimit-limit", "2"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "60"),
            ]
        );
        assert_eq!(answer.body, "The limit is used up; try again in 30 s.\n");
    }
}
