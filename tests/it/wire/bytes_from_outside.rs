//! Bytes that no honest client sends, to every extractor and condition: an answer that is defined, and no panic.

use tollgate::{
    Key, MissingKey,
    key::{self, TrustedProxies},
    when,
};

use super::*;

type Extractor = Box<dyn for<'a> Fn(&'a Request) -> Option<Key<'a>> + Send + Sync>;
type Condition = Box<dyn Fn(&Request) -> bool + Send + Sync>;

const SHAPES: [&str; 7] = ["empty", "non-UTF-8", "binary", "a megabyte", "separators", "a thousand lines", "spaces"];

const NAMES: [&str; 12] = [
    "x-key",
    "authorization",
    "cookie",
    "host",
    "x-forwarded-for",
    "forwarded",
    "cf-connecting-ip",
    "cloudfront-viewer-address",
    "accept",
    "content-type",
    "origin",
    "x-ratelimit-remaining",
];

/// A request whose fields all have this shape, from an address whose word counts.
fn hostile(shape: &str) -> Request {
    // All bytes that a field can have (RFC 9110, 5.5): no control but the tab.
    let binary: Vec<u8> = (0_u8..=255).filter(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f)).collect();
    let (value, lines) = match shape {
        "empty" => (vec![], 1),
        "non-UTF-8" => (vec![0xff, 0xfe, 0xc3], 1),
        "binary" => (binary, 1),
        "a megabyte" => (vec![b'a'; 1 << 20], 1),
        "separators" => (b",;=\"[]:@\\%&".repeat(10_000), 1),
        "a thousand lines" => (vec![b'a'], 1_000),
        "spaces" => (vec![b' '; 1_000], 1),
        other => unreachable!("{other}"),
    };
    // As long as a URI can be.
    let uri = format!("/users/{}?q={}", "%ff".repeat(9_000), "%F0%9F&+=".repeat(4_000));
    let mut request = Request::builder().uri(uri).body(Body::empty()).unwrap();
    request.extensions_mut().insert(IpAddr::from([10, 0, 0, 1]));
    for name in NAMES {
        let before: &[u8] = match name {
            "authorization" => b"Bearer ",
            "cookie" => b"sid=",
            _ => b"",
        };
        let value = HeaderValue::from_bytes(&[before, &value].concat()).unwrap();
        for _ in 0..lines {
            request.headers_mut().append(HeaderName::from_static(name), value.clone());
        }
    }
    request
}

/// The same request again. Its values are shared, since a megabyte takes long to check.
fn again(request: &Request) -> Request {
    let mut again = Request::new(Body::empty());
    *again.uri_mut() = request.uri().clone();
    *again.headers_mut() = request.headers().clone();
    *again.extensions_mut() = request.extensions().clone();
    again
}

/// For each extractor and each shape of [`SHAPES`]: `k` for a key, `p` for the peer's address, `-` for none.
#[test]
fn every_extractor_gives_a_defined_answer() {
    let nets = || TrustedProxies::nets(["10.0.0.0/8"]);
    let by_header = || key::header("x-key");
    const ROWS: usize = 20;
    let rows: [(&str, Extractor, &str); ROWS] = [
        ("header", Box::new(by_header()), "-kkkkkk"),
        ("an absent header", Box::new(key::header("x-other")), "-------"),
        ("bearer token", Box::new(key::bearer_token()), "-kkkkk-"),
        ("cookie", Box::new(key::cookie("sid")), "-kkkkk-"),
        ("another cookie", Box::new(key::cookie("other")), "-------"),
        ("host", Box::new(key::host()), "---kkkk"),
        ("method", Box::new(key::method()), "kkkkkkk"),
        ("query", Box::new(key::query("q")), "kkkkkkk"),
        ("another parameter", Box::new(key::query("other")), "-------"),
        ("path", Box::new(key::path_param("/users/{id}", "id")), "kkkkkkk"),
        ("another path", Box::new(key::path_param("/shops/{id}", "id")), "-------"),
        ("matched path", Box::new(key::matched_path()), "-------"),
        ("peer", Box::new(key::peer_addr()), "ppppppp"),
        ("X-Forwarded-For", Box::new(key::client_addr(nets())), "ppppppp"),
        ("Forwarded", Box::new(key::client_addr(nets().forwarded())), "ppppppp"),
        ("one address", Box::new(key::client_addr(nets().header("cf-connecting-ip"))), "ppppppp"),
        ("one with a port", Box::new(key::client_addr(nets().header("cloudfront-viewer-address"))), "ppppppp"),
        ("hops", Box::new(key::client_addr(TrustedProxies::hops(64))), "ppppppp"),
        ("all", Box::new(key::all((by_header(), key::peer_addr()))), "-kkkkkk"),
        ("first", Box::new(key::first((by_header(), key::peer_addr()))), "kkkkkkk"),
    ];
    assert_eq!(rows.len(), ROWS);
    let requests = SHAPES.map(hostile);
    let secret = key::Secret::new([7; 16]);
    let peer = Key::address([10, 0, 0, 1].into(), 64).id(&secret);
    for (who, extractor, right) in rows {
        let answers = requests.iter().map(|request| match extractor(request).filter(|key| !key.is_empty()) {
            None => '-',
            Some(key) if key.id(&secret) == peer => 'p',
            Some(_) => 'k',
        });
        assert_eq!(answers.collect::<String>(), right, "{who}");
        // And through a limiter: the same bytes count together.
        let rule = Rule::new("who", Limit::per_minute(1), extractor);
        let server = limited([rule.on_missing_key(MissingKey::Refuse(400_u16.try_into().unwrap()))]);
        for (request, answer) in requests.iter().zip(right.chars()) {
            let statuses = [(); 2].map(|()| send(&server, again(request)).status);
            match answer {
                '-' => assert_eq!(statuses, [400, 400], "{who}"),
                _ => assert_eq!(statuses[1], 429, "{who}"),
            }
        }
    }
}

/// For each condition and each shape of [`SHAPES`]: whether it holds.
#[test]
fn every_condition_gives_a_defined_answer() {
    let nets = || TrustedProxies::nets(["10.0.0.0/8"]);
    const ROWS: usize = 15;
    let rows: [(&str, Condition, &str); ROWS] = [
        ("method", Box::new(when::method(Method::GET)), "yyyyyyy"),
        ("host", Box::new(when::host("a")), "-----y-"),
        ("path", Box::new(when::path("/users/{id}")), "yyyyyyy"),
        ("another path", Box::new(when::path("/users/{id}/posts")), "-------"),
        ("header", Box::new(when::header("x-key")), "yyyyyyy"),
        ("an absent header", Box::new(when::header("x-other")), "-------"),
        ("header is", Box::new(when::header_is("x-key", "a")), "-----y-"),
        ("header is empty", Box::new(when::header_is("x-key", "")), "y------"),
        ("peer", Box::new(when::peer_in(["10.0.0.0/8"])), "yyyyyyy"),
        ("client", Box::new(when::client_in(nets(), ["10.0.0.0/8"])), "yyyyyyy"),
        ("client by Forwarded", Box::new(when::client_in(nets().forwarded(), ["192.0.2.0/24"])), "-------"),
        ("preflight", Box::new(when::preflight()), "-------"),
        ("not", Box::new(when::not(when::host("a"))), "yyyyy-y"),
        ("all", Box::new(when::all((when::header("x-key"), when::host("a")))), "-----y-"),
        ("any", Box::new(when::any((when::preflight(), when::host("a")))), "-----y-"),
    ];
    assert_eq!(rows.len(), ROWS);
    let requests = SHAPES.map(hostile);
    for (which, condition, right) in rows {
        let answers = requests.iter().map(|request| if condition(request) { 'y' } else { '-' });
        assert_eq!(answers.collect::<String>(), right, "{which}");
        let server = limited([Rule::global("p", Limit::per_minute(1)).when(condition)]);
        for (request, holds) in requests.iter().zip(right.chars()) {
            let answer = send(&server, again(request));
            assert_eq!(answer.field("x-ratelimit-limit").is_some(), holds == 'y', "{which}");
        }
    }
}

/// `Accept` and `Content-Type` decide what a refusal looks like, whatever is in them.
#[test]
fn refusals_negotiate_with_anything() {
    let server = limited([says("p", Limit::per_minute(1), Outcome::Refuse(tollgate::decision::Wait::Never), 0, None)]);
    for shape in SHAPES {
        let hostile = hostile(shape);
        for method in [Method::GET, Method::POST] {
            let mut request = again(&hostile);
            *request.method_mut() = method;
            let answer = send(&server, request);
            assert_eq!((answer.status, &answer.problem()["status"]), (429, &serde_json::json!(429)), "{shape}");
        }
    }
}
