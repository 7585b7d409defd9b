//! Statuses, `Retry-After` and bodies of refusals.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tollgate::{
    MissingKey,
    charge::FailurePolicy,
    decision::Wait,
    key,
    response::Headers,
    store::{MemoryStore, Overflow},
};

use super::*;
use crate::support::Down;

const MINUTE: Limit = Limit::per_minute(9);

fn refusing(name: &'static str, wait: Wait) -> Rule<Request> {
    says(name, MINUTE, Outcome::Refuse(wait), 0, Some(Nanos::SECOND))
}

fn passing(name: &'static str) -> Rule<Request> {
    says(name, MINUTE, Outcome::Pass, 3, Some(Nanos::SECOND))
}

const THREE_SECONDS: Wait = Wait::For(Nanos::from_secs(3));

/// RFC 9110, 10.2.3: whole seconds. Rounded up, since a client that comes too early is refused again, and never zero.
#[test]
fn retry_after_is_the_wait_rounded_up() {
    const ROWS: usize = 10;
    let rows: [(Wait, Option<&str>); ROWS] = [
        (Wait::For(Nanos::ZERO), Some("1")),
        (Wait::For(Nanos::new(1)), Some("1")),
        (Wait::For(Nanos::SECOND), Some("1")),
        (Wait::For(Nanos::new(1_000_000_001)), Some("2")),
        (Wait::For(ms(59_200)), Some("60")),
        (Wait::For(Nanos::from_secs(86_400)), Some("86400")),
        // Longer than 2^31 s, which is no reason to say less than the truth.
        (Wait::For(Nanos::from_secs(2_147_483_648)), Some("2147483648")),
        (Wait::For(Nanos::MAX), Some("18446744074")),
        (Wait::Unknown, Some("1")),
        (Wait::Never, None),
    ];
    assert_eq!(rows.len(), ROWS);
    for (wait, right) in rows {
        let answer = get(&limited([refusing("p", wait)]));
        assert_eq!(answer.field("retry-after").as_deref(), right, "{wait:?}");
        assert_eq!(answer.status, 429);
        // RFC 9111, 5.2.2.5, for caches that do not know RFC 6585, 4.
        assert_eq!(answer.field("cache-control").as_deref(), Some("no-store"));
    }
}

#[test]
fn jitter_only_ever_adds() {
    for wait in [Nanos::new(1), Nanos::SECOND, Nanos::from_secs(100), Nanos::MAX] {
        let secs = wait.as_secs_ceil();
        for percent in [0, 1, 50, 100, 255] {
            let limit = layer([refusing("p", Wait::For(wait))], &ManualClock::new()).retry_jitter(percent);
            let told = get(&over(limit, hello())).number("retry-after").unwrap();
            // Twice the longest wait there is saturates.
            assert!((secs..=secs.saturating_mul(2)).contains(&told), "{wait:?} {percent} %: {told}");
        }
    }
}

/// The types are those of draft-ietf-httpapi-ratelimit-headers-11, 5; "about:blank" is RFC 9457's (4.2.1).
#[test]
fn a_problem_document_names_what_was_violated() {
    const QUOTA: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
    const REDUCED: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
    let no_key =
        || Rule::new("k", MINUTE, key::header("x-key")).on_missing_key(MissingKey::Refuse(401_u16.try_into().unwrap()));
    const ROWS: usize = 8;
    let rows: [(Vec<Rule<Request>>, u16, &str, &str, serde_json::Value, Option<u64>); ROWS] = [
        (
            vec![passing("burst"), refusing("daily", THREE_SECONDS)],
            429,
            QUOTA,
            "Quota Exceeded",
            json!(["daily"]),
            Some(3),
        ),
        (
            vec![refusing("burst", THREE_SECONDS), refusing("daily", Wait::For(Nanos::from_secs(40)))],
            429,
            QUOTA,
            "Quota Exceeded",
            json!(["burst", "daily"]),
            Some(40),
        ),
        (vec![refusing("burst", Wait::Never)], 429, QUOTA, "Quota Exceeded", json!(["burst"]), None),
        (
            vec![refusing("per-user_2.x*", Wait::Unknown)],
            429,
            QUOTA,
            "Quota Exceeded",
            json!(["per-user_2.x*"]),
            Some(1),
        ),
        (
            vec![refusing("all", THREE_SECONDS).overload(), passing("user")],
            503,
            REDUCED,
            "Temporary Reduced Capacity",
            json!(["all"]),
            Some(3),
        ),
        (
            vec![refusing("all", THREE_SECONDS).overload(), refusing("user", THREE_SECONDS)],
            429,
            QUOTA,
            "Quota Exceeded",
            json!(["all", "user"]),
            Some(3),
        ),
        (vec![no_key()], 401, "about:blank", "Unauthorized", json!(null), None),
        (
            vec![Rule::new("k", MINUTE, key::peer_addr())],
            500,
            "about:blank",
            "Internal Server Error",
            json!(null),
            None,
        ),
    ];
    assert_eq!(rows.len(), ROWS);
    for (rules, status, kind, title, violated, retry_after) in rows {
        let answer = get(&limited(rules));
        let problem = answer.problem();
        assert_eq!(answer.status, status, "{problem}");
        // RFC 9457, 3.1.3: the member is the response's own status.
        assert_eq!(problem["status"], status, "{problem}");
        assert_eq!((&problem["type"], &problem["title"]), (&json!(kind), &json!(title)), "{problem}");
        assert_eq!(problem["violated-policies"], violated, "{problem}");
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
        assert_eq!(answer.number("retry-after"), retry_after, "{problem}");
    }
}

/// Seconds only where they are known. `Retry-After` is a guess elsewhere, and the text says no more than what is known.
#[test]
fn the_detail_says_when_to_come_back_only_where_that_is_known() {
    let running = || Rule::global("running", Limit::in_flight(1)).retry_after(secs(7));
    let held = |rules: Vec<Rule<Request>>| {
        let layer = layer(rules, &ManualClock::new());
        let (_, receipt) = layer.limiter().reserve_now(&request(Method::GET, &[])).unwrap();
        std::mem::forget(receipt); // whoever has this place keeps it
        over(layer, hello())
    };
    const UNKNOWN: Wait = Wait::Unknown;
    const ROWS: usize = 8;
    let rows: [(Server, Option<u64>, &str); ROWS] = [
        (limited([refusing("p", THREE_SECONDS)]), Some(3), "The limit is used up; try again in 3 s."),
        (
            limited([refusing("p", THREE_SECONDS).overload()]),
            Some(3),
            "The service is at its capacity; try again in 3 s.",
        ),
        (held(vec![running()]), Some(7), "Too many requests are running; try again when some of them have ended."),
        (
            held(vec![running().overload()]),
            Some(7),
            "The service is at its capacity: too many requests are running. Try again when some of them have ended.",
        ),
        // A bucket of one's own need not say why.
        (
            limited([refusing("p", UNKNOWN)]),
            Some(1),
            "The limit is used up, and it is not known until when; try again later.",
        ),
        (
            limited([refusing("p", UNKNOWN).overload()]),
            Some(1),
            "The service is at its capacity, and it is not known until when; try again later.",
        ),
        // What is known to be too early is told.
        (
            limited([refusing("p", UNKNOWN), refusing("q", THREE_SECONDS)]),
            Some(3),
            "The limit is used up; try again in 3 s.",
        ),
        (
            limited([refusing("p", Wait::Never)]),
            None,
            "This request asks for more than its limit can ever hold; waiting does not help.",
        ),
    ];
    assert_eq!(rows.len(), ROWS);
    for (server, retry_after, detail) in rows {
        let answer = get(&server);
        assert_eq!((answer.number("retry-after"), &answer.problem()["detail"]), (retry_after, &json!(detail)));
        let as_text = send(&server, request(Method::GET, &[("accept", b"text/plain")]));
        assert_eq!((as_text.number("retry-after"), as_text.body), (retry_after, format!("{detail}\n")));
    }
}

/// Two refusals by the same rule, for the same cause and with the same `Retry-After`: one knows its wait, the other
/// does not.
#[test]
fn a_refusal_that_knows_its_wait_is_not_answered_as_one_that_does_not() {
    let store = MemoryStore::builder().max_keys(1).overflow(Overflow::Refuse).build();
    let rule = Rule::new("k", Limit::per_second(1), key::header("x-key")).overload();
    let limiter = Limiter::builder([rule]).clock(ManualClock::new()).store(store).build().unwrap();
    let server = over(limiter.into(), hello());
    let ask = |key: &'static [u8]| send(&server, request(Method::GET, &[("x-key", key), ("accept", b"text/plain")]));
    assert_eq!(ask(b"tracked").status, 200);
    for _ in 0..2 {
        for (key, text) in [
            (&b"tracked"[..], "The service is at its capacity; try again in 1 s.\n"),
            (b"other", "The service is at its capacity, and it is not known until when; try again later.\n"),
        ] {
            let answer = ask(key);
            assert_eq!((answer.status, answer.number("retry-after"), &*answer.body), (503, Some(1), text));
        }
    }
}

/// RFC 6585, 4: 429 is about this client; RFC 9110, 15.6.4: 503 is about the server.
#[test]
fn a_status_says_whose_limit_it_is() {
    let down = |policy| {
        let rule = Rule::global("p", MINUTE).on_store_failure(policy);
        let limiter = Limiter::builder([rule]).store(Down::new(true)).build().unwrap();
        over(RateLimitLayer::from(limiter).headers(Headers::Both), hello())
    };
    const ROWS: usize = 7;
    let rows: [(&str, Server, u16); ROWS] = [
        ("a client's rate", limited([refusing("p", THREE_SECONDS)]), 429),
        ("everybody's rate", limited([refusing("p", THREE_SECONDS).overload()]), 503),
        ("the store is down", down(FailurePolicy::Refuse), 503),
        ("the store is down, and may be", down(FailurePolicy::Allow), 200),
        ("no key, which is no mistake", limited([Rule::new("p", MINUTE, key::header("x-key"))]), 200),
        ("no peer address, which is one", limited([Rule::new("p", MINUTE, key::peer_addr())]), 500),
        (
            "no peer address, but it was said what then",
            limited([Rule::new("p", MINUTE, key::peer_addr()).on_missing_key(MissingKey::Share)]),
            200,
        ),
    ];
    assert_eq!(rows.len(), ROWS);
    for (case, server, status) in rows {
        let answer = get(&server);
        assert_eq!(answer.status, status, "{case}");
        let told = answer.headers.keys().any(|name| name.as_str().contains("ratelimit"));
        // Where nothing was counted nothing is told.
        assert_eq!(told, case.contains("rate") || case.ends_with("then"), "{case}: {:?}", answer.headers);
        assert_eq!(answer.body == "hello", status == 200, "{case}");
    }
}

#[test]
fn what_a_client_would_rather_read_is_honoured() {
    const PROBLEM: &str = "application/problem+json";
    const TEXT: &str = "text/plain; charset=utf-8";
    const ROWS: usize = 14;
    let rows: [(&[&str], &str); ROWS] = [
        (&[], PROBLEM),
        (&["text/html"], PROBLEM), // RFC 9457, 3: a client that asked for something else may be given it
        (&["application/json"], PROBLEM),
        (&["application/problem+json"], PROBLEM),
        (&["*/*"], PROBLEM),
        (&["text/plain"], TEXT),
        (&["text/*"], TEXT),
        (&["text/plain, application/json"], PROBLEM),
        (&["text/plain", "application/json"], PROBLEM),
        (&["text/plain", "application/json;q=0.5"], TEXT),
        (&["application/json;q=0.5", "text/plain"], TEXT),
        (&["text/plain;q=0"], PROBLEM),
        (&["text/plain;format=flowed;q=0.9, application/*;q=0.1"], TEXT),
        (&["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"], PROBLEM), // a browser
    ];
    assert_eq!(rows.len(), ROWS);
    for (accept, content_type) in rows {
        let fields: Vec<_> = accept.iter().map(|line| ("accept", line.as_bytes())).collect();
        let ask = |method| send(&limited([refusing("p", THREE_SECONDS)]), request(method, &fields));
        let answer = ask(Method::GET);
        assert_eq!(answer.field("content-type").as_deref(), Some(content_type), "{accept:?}");
        assert_eq!(answer.status, 429);
        assert!(answer.body.contains("try again in 3 s"), "{}", answer.body);
        // RFC 9110, 9.3.2: HEAD has the same fields and no content.
        let head = ask(Method::HEAD);
        assert_eq!((head.status, head.body.as_str(), head.ended_at_once), (429, "", true), "{accept:?}");
        assert_eq!(head.field("content-type"), answer.field("content-type"));
        assert_eq!(head.field("retry-after"), answer.field("retry-after"));
        // RFC 9110, 8.6: the length that the answer to GET has.
        assert_eq!(head.number("content-length"), Some(answer.body.len() as u64));
    }
}

/// A body that must not be read.
struct Untouched;

impl http_body::Body for Untouched {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("the body of a request that is refused is not read")
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(100_000_000)
    }
}

#[test]
fn a_request_is_refused_before_its_body_is_read() {
    for content_type in ["application/json", "application/grpc"] {
        let mut request = request(Method::POST, &[("content-type", content_type.as_bytes())]);
        *request.body_mut() = Body::new(Untouched);
        assert_ne!(send(&limited([refusing("p", THREE_SECONDS)]), request).field("retry-after"), None);
    }
}

/// RFC 9110, 10.1.1: a final status may come instead of 100, and spares the client its upload.
#[tokio::test]
async fn who_expects_100_continue_is_refused_at_once() {
    let app = axum::Router::new().route("/", axum::routing::post(async |body: Bytes| body.len().to_string()));
    let app = app.layer(layer([refusing("p", THREE_SECONDS)], &ManualClock::new()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let head =
        "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 100000000\r\nconnection: close\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        assert!(socket.read_buf(&mut answer).await.unwrap() > 0, "{answer:?}");
    }
    assert!(answer.starts_with(b"HTTP/1.1 429 "), "{}", String::from_utf8_lossy(&answer));
    server.abort();
}
