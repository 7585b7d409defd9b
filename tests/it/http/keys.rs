//! Whom requests are counted by.

use std::net::SocketAddr;

use axum::{
    body::Body,
    extract::{ConnectInfo, Request, connect_info::MockConnectInfo},
    http::{HeaderValue, Method, header::HeaderMap},
};
use tollgate::{Key, Limit, MissingKey, Rule, key};

use super::*;

/// One request a minute for each key; a request without one is a 400.
fn app_by<F>(key: F) -> Router
where
    F: for<'a> Fn(&'a Request) -> Option<Key<'a>> + Send + Sync + 'static,
{
    let rule = Rule::new("who", Limit::per_minute(1), key);
    app([rule.on_missing_key(MissingKey::Refuse(StatusCode::BAD_REQUEST))], &ManualClock::new())
}

async fn status(app: &Router, request: Request) -> u16 {
    send(app, request).await.status.as_u16()
}

fn from(addr: &str) -> Request {
    let addr: SocketAddr = addr.parse().unwrap();
    Request::builder().extension(ConnectInfo(addr)).body(Body::empty()).unwrap()
}

fn with(fields: &[(&str, &str)]) -> Request {
    request(Method::GET, fields)
}

#[tokio::test]
async fn peers_are_told_apart_by_address_and_not_by_port() {
    let app = app_by(key::peer_addr());
    for (addr, expected) in [
        ("192.0.2.1:1000", 200),
        ("192.0.2.1:2000", 429),
        ("192.0.2.2:1000", 200),
        // The same host over a socket that listens on both families.
        ("[::ffff:192.0.2.1]:1000", 429),
        ("[::ffff:192.0.2.2]:1000", 429),
        ("[::ffff:192.0.2.3]:1000", 200),
        ("192.0.2.3:1000", 429),
        // One customer holds a whole /64.
        ("[2001:db8:0:1::1]:1000", 200),
        ("[2001:db8:0:1:ffff:ffff:ffff:ffff]:1", 429),
        ("[2001:db8:0:2::1]:1000", 200),
        ("[2001:db8:0:0:ffff::1]:1000", 200),
        // An IPv6 address that holds the same bytes as an IPv4 one is another.
        ("[c000:201::]:1000", 200),
    ] {
        assert_eq!(status(&app, from(addr)).await, expected, "{addr}");
    }
}

#[tokio::test]
async fn the_prefix_of_ipv6_can_be_chosen() {
    for (prefix, same, other) in [
        (48, "[2001:db8:1:ffff::1]:1", "[2001:db8:2::1]:1"),
        (56, "[2001:db8:1:ff::1]:1", "[2001:db8:1:100::1]:1"),
        (128, "[2001:db8:1::1]:9", "[2001:db8:1::2]:1"),
        (0, "[fe80::1]:1", "192.0.2.1:1"),
    ] {
        let app = app_by(key::peer_addr_by(prefix));
        assert_eq!(status(&app, from("[2001:db8:1::1]:1")).await, 200);
        assert_eq!(status(&app, from(same)).await, 429, "/{prefix}");
        assert_eq!(status(&app, from(other)).await, 200, "/{prefix}");
    }
}

#[tokio::test]
async fn a_mock_address_is_used_where_no_connection_is() {
    let mock = |addr: &str| app_by(key::peer_addr()).layer(MockConnectInfo(addr.parse::<SocketAddr>().unwrap()));
    let app = mock("192.0.2.1:1000");
    assert_eq!(status(&app, with(&[])).await, 200);
    assert_eq!(status(&app, with(&[])).await, 429);
    assert_eq!(status(&app, from("192.0.2.7:1")).await, 200, "a real connection goes before the mock");
}

#[tokio::test]
async fn forwarding_fields_of_a_client_are_not_believed() {
    let app = app_by(key::peer_addr());
    for at in 0..3 {
        let mut request = from("192.0.2.1:1000");
        for name in ["x-forwarded-for", "forwarded", "x-real-ip"] {
            request.headers_mut().insert(name, format!("198.51.100.{at}").parse().unwrap());
        }
        assert_eq!(status(&app, request).await, if at == 0 { 200 } else { 429 });
    }
}

#[tokio::test]
async fn a_field_counts_byte_by_byte_whatever_is_in_it() {
    let app = app_by(key::header("x-key"));
    let megabyte = "k".repeat(1 << 20);
    let almost = format!("{}j", &megabyte[1..]);
    let values: [&[u8]; 9] = [
        b"k",
        b"K",
        b"k k",
        &[0xff, 0xfe],
        &[0xff, 0xfd],
        &[0xc3, 0xa9], // the same letter in UTF-8
        &[0xe9],       // and in Latin-1
        megabyte.as_bytes(),
        almost.as_bytes(),
    ];
    for expected in [200, 429] {
        for value in values {
            let mut request = with(&[]);
            request.headers_mut().insert("x-key", HeaderValue::from_bytes(value).unwrap());
            assert_eq!(status(&app, request).await, expected);
        }
    }
}

#[tokio::test]
async fn an_empty_or_absent_field_is_a_missing_key() {
    let app = app_by(key::header("x-key"));
    assert_eq!(status(&app, with(&[])).await, 400);
    assert_eq!(status(&app, with(&[("x-key", "")])).await, 400);
    assert_eq!(status(&app, with(&[("x-key", "k")])).await, 200);
}

#[tokio::test]
async fn of_several_lines_the_first_counts() {
    let app = app_by(key::header("x-key"));
    assert_eq!(status(&app, with(&[("x-key", "a"), ("x-key", "b")])).await, 200);
    assert_eq!(status(&app, with(&[("x-key", "a"), ("x-key", "c")])).await, 429);
    assert_eq!(status(&app, with(&[("x-key", "b"), ("x-key", "a")])).await, 200);
}

#[derive(Clone)]
struct User(u64);

fn by_user(user: &User) -> Key<'_> {
    Key::from(user.0)
}

fn signed_in(id: u64, fields: &[(&str, &str)]) -> Request {
    let mut request = with(fields);
    request.extensions_mut().insert(User(id));
    request
}

#[tokio::test]
async fn what_authentication_left_in_the_extensions_counts() {
    let app = app_by(key::extension(by_user));
    assert_eq!(status(&app, with(&[])).await, 400);
    for expected in [200, 429] {
        for id in [0, 1, u64::MAX] {
            assert_eq!(status(&app, signed_in(id, &[])).await, expected);
        }
    }
}

#[tokio::test]
async fn several_keys_count_together_only_where_all_of_them_agree() {
    let app = app_by(key::all((key::extension(by_user), key::header("x-device"))));
    for (id, device, expected) in [(1, "a", 200), (1, "b", 200), (2, "a", 200), (1, "a", 429), (2, "b", 200)] {
        assert_eq!(status(&app, signed_in(id, &[("x-device", device)])).await, expected, "{id} {device}");
    }
    assert_eq!(status(&app, signed_in(1, &[])).await, 400, "one of them is missing");
    assert_eq!(status(&app, with(&[("x-device", "a")])).await, 400);
}

#[tokio::test]
async fn parts_of_a_key_cannot_run_together() {
    let app = app_by(key::all((key::header("x-a"), key::header("x-b"))));
    for (a, b) in [("a:b", "c"), ("a", "b:c"), ("ab", "c"), ("a", "bc"), ("a:b:c", "-")] {
        assert_eq!(status(&app, with(&[("x-a", a), ("x-b", b)])).await, 200, "{a} {b}");
    }
}

#[tokio::test]
async fn an_empty_part_is_a_missing_part() {
    // Else a client that may leave a field empty has a count of its own beside the one it was given.
    let app = app_by(key::all((key::header("x-a"), key::header("x-b"))));
    assert_eq!(status(&app, with(&[("x-a", "a")])).await, 400);
    assert_eq!(status(&app, with(&[("x-a", "a"), ("x-b", "")])).await, 400);
    assert_eq!(status(&app, with(&[("x-a", ""), ("x-b", "b")])).await, 400);
}

#[tokio::test]
async fn the_first_key_that_is_there_counts() {
    let app = app_by(key::first((key::extension(by_user), key::header("x-key"), key::peer_addr())));
    assert_eq!(status(&app, signed_in(1, &[("x-key", "k")])).await, 200);
    assert_eq!(status(&app, signed_in(1, &[("x-key", "other")])).await, 429);
    assert_eq!(status(&app, with(&[("x-key", "k")])).await, 200);
    assert_eq!(status(&app, with(&[("x-key", "k")])).await, 429);

    // An empty field is passed over, and the address is there to fall back on.
    let mut empty = from("192.0.2.1:1");
    empty.headers_mut().insert("x-key", HeaderValue::from_static(""));
    assert_eq!(status(&app, empty).await, 200);
    assert_eq!(status(&app, from("192.0.2.1:2")).await, 429);

    // Nothing there, and the last resort was never wired.
    let unwired = app_by(key::first((key::header("x-key"), key::header("x-other"))));
    assert_eq!(status(&unwired, with(&[])).await, 400);
}

#[tokio::test]
async fn the_same_value_from_another_place_is_another_key() {
    // Else anybody could use up a user's count by sending the user's name as a session.
    let app = app_by(key::first((key::header("x-user"), key::header("x-session"))));
    assert_eq!(status(&app, with(&[("x-session", "ana")])).await, 200);
    assert_eq!(status(&app, with(&[("x-session", "ana")])).await, 429);
    assert_eq!(status(&app, with(&[("x-user", "ana")])).await, 200);
}

#[tokio::test]
async fn a_closure_may_borrow_from_anywhere_in_the_request() {
    let app = app_by(|request| {
        let fields: &HeaderMap = request.headers();
        let host = fields.get("host")?.to_str().ok()?;
        Some(Key::from((host, request.uri().query().unwrap_or_default())))
    });
    let ask = |host, uri: &str| Request::builder().uri(uri).header("host", host).body(Body::empty()).unwrap();
    for (host, uri, expected) in [("a", "/?x", 200), ("a", "/?y", 200), ("b", "/?x", 200), ("a", "/?x", 429)] {
        assert_eq!(status(&app, ask(host, uri)).await, expected);
    }
}
