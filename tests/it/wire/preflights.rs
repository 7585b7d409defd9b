//! CORS preflights (Fetch, 4.8 "CORS-preflight fetch"): a browser's own question, which should cost its user nothing.

use tollgate::{key, response::Headers, when};

use super::*;

const ORIGIN: (&str, &[u8]) = ("origin", b"https://example.com");
const ASKS_METHOD: (&str, &[u8]) = ("access-control-request-method", b"PUT");
const ASKS_HEADERS: (&str, &[u8]) = ("access-control-request-headers", b"x-own");

#[test]
fn only_a_real_preflight_is_one() {
    const ROWS: usize = 9;
    let rows: [(Method, &[(&'static str, &[u8])], bool); ROWS] = [
        (Method::OPTIONS, &[ORIGIN, ASKS_METHOD], true),
        (Method::OPTIONS, &[ORIGIN, ASKS_METHOD, ASKS_HEADERS], true),
        (Method::OPTIONS, &[], false),
        (Method::OPTIONS, &[ORIGIN], false),
        (Method::OPTIONS, &[ASKS_METHOD], false),
        (Method::OPTIONS, &[ORIGIN, ASKS_HEADERS], false),
        (Method::GET, &[ORIGIN, ASKS_METHOD], false),
        (Method::HEAD, &[ORIGIN, ASKS_METHOD], false),
        (Method::PUT, &[ORIGIN, ASKS_METHOD, ASKS_HEADERS], false),
    ];
    assert_eq!(rows.len(), ROWS);
    for (method, fields, preflight) in rows {
        let rule = || Rule::global("p", Limit::per_minute(1)).when(when::not(when::preflight()));
        let server = limited([rule()]);
        for at in 0..3 {
            let answer = send(&server, request(method.clone(), fields));
            // What is no preflight is an ordinary request, and limited.
            let status = if preflight || at == 0 { 200 } else { 429 };
            assert_eq!(answer.status, status, "{method} {fields:?}");
            assert_eq!(answer.field("x-ratelimit-limit").is_some(), !preflight, "{method} {fields:?}");
        }
    }
}

/// Anyone can send the two fields, so a limit by address that counts preflights too belongs around the one that does
/// not.
#[test]
fn a_flood_of_preflights_meets_the_limit_further_out() {
    let clock = ManualClock::new();
    let inner = layer([Rule::global("calls", Limit::per_minute(2)).when(when::not(when::preflight()))], &clock);
    let outer = layer([Rule::new("address", Limit::per_minute(5), key::peer_addr())], &clock);
    let server = over(outer, over(inner, hello()));
    let preflight = |peer: [u8; 4]| {
        let mut request = request(Method::OPTIONS, &[ORIGIN, ASKS_METHOD]);
        request.extensions_mut().insert(IpAddr::from(peer));
        request
    };
    let statuses: Vec<_> = (0..7).map(|_| send(&server, preflight([192, 0, 2, 1])).status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    assert_eq!(send(&server, preflight([192, 0, 2, 2])).status, 200, "others are not held to account");
}

/// A CORS layer replaces `Access-Control-Expose-Headers`, so it has to be given the names.
#[test]
fn the_fields_of_a_style_are_the_ones_to_expose() {
    const X: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    const IETF: [&str; 2] = ["ratelimit-policy", "ratelimit"];
    const ROWS: usize = 6;
    let rows: [(Headers, Vec<&str>); ROWS] = [
        (Headers::XRateLimit, X.to_vec()),
        (Headers::XRateLimitEpoch, X.to_vec()),
        (Headers::Ietf, IETF.to_vec()),
        (Headers::Both, [X.as_slice(), &IETF].concat()),
        (Headers::None, vec![]),
        (Headers::custom(|_, _| {}), vec![]),
    ];
    assert_eq!(rows.len(), ROWS);
    for (headers, names) in rows {
        let limit =
            layer::<Request>([Rule::global("p", Limit::per_minute(1))], &ManualClock::new()).headers(headers.clone());
        let right = [vec!["retry-after"], names].concat();
        assert_eq!(limit.expose_headers(), right, "{headers:?}");
        assert_eq!(headers.names(), right, "{headers:?}");
    }
}
