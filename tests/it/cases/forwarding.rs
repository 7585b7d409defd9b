//! B42, forged forwarding headers: folbricht/routedns#549, h3js/srvx#229, long2ice/fastapi-limiter#10.

use std::net::SocketAddr;

use axum::{Router, body::Body, extract::Request, extract::connect_info::MockConnectInfo, routing::get};
use tollgate::{
    Limit, RateLimitLayer, Rule,
    key::{self, TrustedProxies},
};
use tower::ServiceExt;

type Sent = (&'static str, &'static str);

/// Whether two requests, each from a peer with header lines, share a count.
async fn share(proxies: TrustedProxies, one: (&str, &[Sent]), other: (&str, &[Sent])) -> bool {
    let rule = Rule::new("client", Limit::per_day(1), key::client_addr(proxies));
    let app = Router::new().route("/", get(|| async {})).layer(RateLimitLayer::new([rule]));
    let mut statuses = Vec::new();
    for (peer, headers) in [one, other] {
        let peer: SocketAddr = format!("{peer}:4000").parse().unwrap();
        let mut request = Request::new(Body::empty());
        for (name, value) in headers {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        statuses.push(app.clone().layer(MockConnectInfo(peer)).oneshot(request).await.unwrap().status().as_u16());
    }
    assert_eq!(statuses[0], 200);
    statuses[1] == 429
}

#[allow(clippy::type_complexity, reason = "the type of a table is its columns")]
#[tokio::test]
async fn no_client_chooses_its_own_address() {
    const XFF: &str = "x-forwarded-for";
    let proxies = || TrustedProxies::nets(["10.0.0.0/8"]);
    // Two peers that are no proxies are what they are, whatever they send.
    let plain = |peer: &'static str| (peer, [].as_slice());
    let rows: [(&str, TrustedProxies, (&str, &[Sent]), &str); 6] = [
        (
            "a forged line before the proxy's",
            proxies(),
            ("10.0.0.2", &[(XFF, "1.2.3.4"), (XFF, "203.0.113.9")]),
            "203.0.113.9",
        ),
        (
            "a forged element in the proxy's line",
            proxies(),
            ("10.0.0.2", &[(XFF, "1.2.3.4, 203.0.113.9, 10.0.0.7")]),
            "203.0.113.9",
        ),
        ("a peer that is no proxy", proxies(), ("198.51.100.1", &[(XFF, "1.2.3.4")]), "198.51.100.1"),
        ("a hop that cannot be read", proxies(), ("10.0.0.2", &[(XFF, "1.2.3.4, unknown")]), "10.0.0.2"),
        ("proxies all the way", proxies(), ("10.0.0.2", &[(XFF, "10.9.9.9, 10.0.0.7")]), "10.9.9.9"),
        (
            "RFC 7239",
            proxies().forwarded(),
            ("10.0.0.2", &[("forwarded", "for=\"[2001:db8::17]:4711\"")]),
            "[2001:db8::17]",
        ),
    ];
    for (what, proxies, sent, client) in rows {
        assert!(share(proxies.clone(), sent, plain(client)).await, "{what}: counts as {client}");
        assert!(!share(proxies, sent, plain("1.2.3.4")).await, "{what}: not as what was forged");
    }
}
