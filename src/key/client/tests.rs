use http::{HeaderMap, HeaderValue};

use super::*;

fn headers(name: &'static str, lines: &[&str]) -> HeaderMap {
    lines.iter().map(|line| (HeaderName::from_static(name), HeaderValue::from_str(line).unwrap())).collect()
}

fn client(proxies: &TrustedProxies, name: &'static str, lines: &[&str], peer: &str) -> String {
    proxies.client(&headers(name, lines), peer.parse().unwrap()).to_string()
}

#[test]
fn walks_x_forwarded_for_from_the_right() {
    let nets = TrustedProxies::nets(["10.0.0.0/8", "fd00::/8"]);
    // lines, peer, by networks, one hop, two hops
    let rows: &[(&[&str], &str, &str, &str, &str)] = &[
        (&[], "203.0.113.9", "203.0.113.9", "203.0.113.9", "203.0.113.9"),
        (&["198.51.100.7"], "203.0.113.9", "203.0.113.9", "198.51.100.7", "203.0.113.9"),
        (&["198.51.100.7"], "10.0.0.1", "198.51.100.7", "198.51.100.7", "10.0.0.1"),
        (&["6.6.6.6, 198.51.100.7"], "10.0.0.1", "198.51.100.7", "198.51.100.7", "6.6.6.6"),
        (&["6.6.6.6", "198.51.100.7"], "10.0.0.1", "198.51.100.7", "198.51.100.7", "6.6.6.6"),
        (&["198.51.100.7, 10.1.1.1"], "10.0.0.1", "198.51.100.7", "10.1.1.1", "198.51.100.7"),
        (&["6.6.6.6, 198.51.100.7, 10.1.1.1, 10.2.2.2"], "10.0.0.1", "198.51.100.7", "10.2.2.2", "10.1.1.1"),
        (&["198.51.100.7, garbage, 10.1.1.1"], "10.0.0.1", "10.1.1.1", "10.1.1.1", "10.0.0.1"),
        (&["garbage"], "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1"),
        (&["unknown"], "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1"),
        (&["10.9.9.9, 10.1.1.1"], "10.0.0.1", "10.9.9.9", "10.1.1.1", "10.9.9.9"),
        (&["198.51.100.7:51234"], "10.0.0.1", "198.51.100.7", "198.51.100.7", "10.0.0.1"),
        (&["[2001:db8::7]:51234"], "10.0.0.1", "2001:db8::7", "2001:db8::7", "10.0.0.1"),
        (&["2001:db8::7"], "10.0.0.1", "2001:db8::7", "2001:db8::7", "10.0.0.1"),
        (&["::ffff:198.51.100.7"], "::ffff:10.0.0.1", "198.51.100.7", "198.51.100.7", "10.0.0.1"),
        (&["198.51.100.7,"], "10.0.0.1", "198.51.100.7", "198.51.100.7", "10.0.0.1"),
        (&[" , ,198.51.100.7"], "10.0.0.1", "198.51.100.7", "198.51.100.7", "10.0.0.1"),
        (&["198.51.100.07"], "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1"),
        (&["198.51.100.7, fd00::5"], "10.0.0.1", "198.51.100.7", "fd00::5", "198.51.100.7"),
        (&["fe80::1%eth0"], "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1"),
    ];
    for (lines, peer, by_nets, one, two) in rows {
        assert_eq!(client(&nets, "x-forwarded-for", lines, peer), *by_nets, "{lines:?} by networks");
        assert_eq!(client(&TrustedProxies::hops(1), "x-forwarded-for", lines, peer), *one, "{lines:?} one hop");
        assert_eq!(client(&TrustedProxies::hops(2), "x-forwarded-for", lines, peer), *two, "{lines:?} two hops");
    }
    assert_eq!(client(&TrustedProxies::hops(0), "x-forwarded-for", &["198.51.100.7"], "10.0.0.1"), "10.0.0.1");
}

/// Every row of RFC 7239's forms, and what attackers make of its quotes; read behind 10.0.0.1.
#[test]
fn reads_forwarded_line_by_line() {
    let nets = TrustedProxies::nets(["10.0.0.0/8"]).forwarded();
    let peer = "10.0.0.1";
    let rows: &[(&[&str], &str)] = &[
        (&[r#"for="_gazonk""#], peer),
        (&[r#"For="[2001:db8:cafe::17]:4711""#], "2001:db8:cafe::17"),
        (&["for=192.0.2.60;proto=http;by=203.0.113.43"], "192.0.2.60"),
        (&["for=192.0.2.43, for=198.51.100.17"], "198.51.100.17"),
        (&[r#"for=192.0.2.43;host="a,b;c=d""#], "192.0.2.43"),
        (&[r#"for="192.0.2.43:47011""#], "192.0.2.43"),
        (&["for=192.0.2.43:47011"], "192.0.2.43"),
        (&[r#"for="192.0.2.1:_p-1""#], "192.0.2.1"),
        (&["for=unknown"], peer),
        (&["for=Unknown"], peer),
        (&[r#"for="[::ffff:1.2.3.4]""#], "1.2.3.4"),
        (&["for=2001:db8::1"], peer),
        (&[r#"for="2001:db8::1""#], peer),
        (&[r#"for="[2001:db8::1""#], peer),
        (&["proto=https"], peer),
        (&["for=1.1.1.1;for=2.2.2.2"], peer),
        (&["for = 1.1.1.1"], peer),
        (&[r#"for="1.1.1.1"#], peer),
        (&[r#"for="\1.2.3.4""#], "1.2.3.4"),
        (&[";;for=192.0.2.1;;proto=http;"], "192.0.2.1"),
        (&[""], peer),
        (&["for=x-foo"], peer),
        (&["for=192.0.2.1,,for=192.0.2.2"], "192.0.2.2"),
        (&[r#"for="x, for=203.0.113.9"#], peer),
        (&[r#"for=1.1.1.1;x=", for="[2001:db8::9]:123""#], peer),
        (&[r#"for="x"#, "for=203.0.113.9"], "203.0.113.9"),
        (&["for=203.0.113.9", r#"for="x"#], peer),
        (&["for=192.0.2.1; proto=https"], "192.0.2.1"),
        (&["for=198.51.100.17, for=10.3.3.3"], "198.51.100.17"),
        (&["for=198.51.100.17, for=secret, for=10.3.3.3"], "10.3.3.3"),
        (&[r#"a"b=c, for=203.0.113.9"#], peer),
    ];
    for (lines, right) in rows {
        assert_eq!(client(&nets, "forwarded", lines, peer), *right, "{lines:?}");
    }
    // A header that the proxies do not write is never read.
    assert_eq!(client(&nets, "x-forwarded-for", &["6.6.6.6"], peer), peer);
}

#[test]
fn reads_single_value_headers_only_from_proxies() {
    let cloudflare = TrustedProxies::nets(["10.0.0.0/8"]).header("cf-connecting-ip");
    let name = "cf-connecting-ip";
    assert_eq!(client(&cloudflare, name, &["198.51.100.7"], "10.0.0.1"), "198.51.100.7");
    assert_eq!(client(&cloudflare, name, &["198.51.100.7"], "203.0.113.9"), "203.0.113.9");
    assert_eq!(client(&cloudflare, name, &["198.51.100.7", "198.51.100.7"], "10.0.0.1"), "10.0.0.1");
    assert_eq!(client(&cloudflare, name, &["198.51.100.7, 1.2.3.4"], "10.0.0.1"), "10.0.0.1");
    let cloudfront = TrustedProxies::nets(["10.0.0.0/8"]).header("cloudfront-viewer-address");
    let name = "cloudfront-viewer-address";
    for (value, right) in [
        ("198.51.100.7:46532", "198.51.100.7"),
        ("2001:db8::7:46532", "2001:db8::7"),
        ("2001:db8::7:4653", "2001:db8::7"),
        ("[2001:db8::7]:46532", "2001:db8::7"),
        ("198.51.100.7", "10.0.0.1"),
        // Not an address and one port: nothing that a proxy writes.
        ("198.51.100.7:1:46532", "10.0.0.1"),
        ("[2001:db8::7]:1:46532", "10.0.0.1"),
        ("198.51.100.7:+80", "10.0.0.1"),
    ] {
        assert_eq!(client(&cloudfront, name, &[value], "10.0.0.1"), right, "{value}");
    }
}

#[test]
fn hostile_headers_give_an_answer_in_bounded_work() {
    let nets = TrustedProxies::nets(["10.0.0.0/8"]);
    let thousand = vec!["10.9.9.9, 10.8.8.8"; 1_000];
    assert_eq!(client(&nets, "x-forwarded-for", &thousand, "10.0.0.1"), "10.9.9.9");
    let long = "10.9.9.9,".repeat(100_000);
    assert_eq!(client(&nets, "x-forwarded-for", &[&long], "10.0.0.1"), "10.9.9.9");
    let quotes = "\"".repeat(100_000);
    assert_eq!(client(&nets.clone().forwarded(), "forwarded", &[&quotes], "10.0.0.1"), "10.0.0.1");
    assert_eq!(client(&nets.forwarded(), "forwarded", &vec!["for=\"x"; 1_000], "10.0.0.1"), "10.0.0.1");
    assert_eq!(client(&TrustedProxies::hops(usize::MAX), "x-forwarded-for", &[&long], "10.0.0.1"), "10.0.0.1");
    let mut binary = HeaderMap::new();
    binary.insert("x-forwarded-for", HeaderValue::from_bytes(b"\xff\xfe, 198.51.100.7, \x80").unwrap());
    let peer = "10.0.0.1".parse().unwrap();
    assert_eq!(TrustedProxies::nets(["10.0.0.0/8"]).client(&binary, peer), peer);
}

#[test]
fn says_which_network_cannot_be_read() {
    for bad in ["10.0.0.0/33", "10.0.0", "", "fd00::/129", "10.0.0.0/8 "] {
        let error = TrustedProxies::try_nets(["10.0.0.0/8", bad]).unwrap_err().to_string();
        assert!(error.contains(&format!("\"{bad}\"")) && error.contains("such as 10.0.0.0/8"), "{error}");
    }
}
