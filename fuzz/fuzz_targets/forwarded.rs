//! Forwarding headers of any bytes: never a panic, and the client is the peer or an address that stands in a header.
#![no_main]

use std::net::IpAddr;

use http::{HeaderValue, Request};
use libfuzzer_sys::fuzz_target;
use tollgate::{
    Key,
    key::{self, Secret, TrustedProxies},
};

fn lines(data: &[u8]) -> impl Iterator<Item = HeaderValue> {
    data.split(|byte| *byte == b'\n').filter_map(|line| HeaderValue::from_bytes(line).ok())
}

fuzz_target!(|data: &[u8]| {
    let peer = IpAddr::from([10, 0, 0, 1]);
    let secret = Secret::new([7; 16]);
    let nets = || TrustedProxies::nets(["10.0.0.0/8", "fd00::/8"]).v6_prefix(128);
    for (name, proxies) in [
        ("x-forwarded-for", nets()),
        ("x-forwarded-for", TrustedProxies::hops(2).v6_prefix(128)),
        ("forwarded", nets().forwarded()),
        ("forwarded", TrustedProxies::hops(1).forwarded().v6_prefix(128)),
        ("cf-connecting-ip", nets().header("cf-connecting-ip")),
        ("cloudfront-viewer-address", nets().header("cloudfront-viewer-address")),
    ] {
        let mut request = Request::new(());
        request.extensions_mut().insert(peer);
        for line in lines(data) {
            request.headers_mut().append(name, line);
        }
        let by_client = key::client_addr(proxies);
        let client = by_client(&request).expect("a peer is known").id(&secret);
        if client == Key::from(peer).id(&secret) {
            continue;
        }
        // Whatever else it is, it was written in the header.
        let text: String = data.iter().filter(|byte| **byte != b'\\').map(|byte| char::from(*byte)).collect();
        let words = text.split(|char: char| !(char.is_ascii_hexdigit() || ".:".contains(char)));
        let mut written = words.flat_map(|word| {
            let without_port = word.rsplit_once(':').map_or(word, |(host, _)| host);
            [word.parse::<IpAddr>().ok(), without_port.parse().ok()]
        });
        assert!(written.any(|address| address.is_some_and(|address| Key::from(address).id(&secret) == client)));
    }
});
