//! Whose request it is: forwarding fields as proxies send them, and addresses brought to one form.

use tollgate::{
    Key,
    key::{self, KeyId, Secret, TrustedProxies},
    when,
};

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn id(key: &Key<'_>) -> KeyId {
    key.id(&Secret::new([7; 16]))
}

/// The key of the client behind these proxies.
fn client(proxies: &TrustedProxies, name: &'static str, lines: &[&str], peer: &str) -> KeyId {
    let extractor = key::client_addr(proxies.clone());
    id(&extractor(&from(ip(peer), name, lines)).expect("an address"))
}

const XFF: &str = "x-forwarded-for";

#[test]
fn what_well_known_proxies_send_is_read() {
    let nets = || TrustedProxies::nets(["10.0.0.0/8", "fd00::/8"]);
    const ROWS: usize = 22;
    let rows: [(&str, TrustedProxies, &'static str, &[&str], &str, &str); ROWS] = [
        ("a load balancer that appends", nets(), XFF, &["6.6.6.6, 198.51.100.7"], "10.0.0.1", "198.51.100.7"),
        ("one that sends the port", nets(), XFF, &["198.51.100.7:4711"], "10.0.0.1", "198.51.100.7"),
        (
            "one that appends client and itself",
            TrustedProxies::hops(2),
            XFF,
            &["6.6.6.6, 198.51.100.7, 203.0.113.200"],
            "35.191.0.9",
            "198.51.100.7",
        ),
        (
            "a gateway whose hops all have ports",
            nets(),
            XFF,
            &["198.51.100.7:51234, 10.1.1.1:443"],
            "10.0.0.1",
            "198.51.100.7",
        ),
        ("one that adds a line", nets(), XFF, &["6.6.6.6", "198.51.100.7"], "10.0.0.1", "198.51.100.7"),
        (
            "cloudflare",
            nets().header("cf-connecting-ip"),
            "cf-connecting-ip",
            &["198.51.100.7"],
            "10.0.0.1",
            "198.51.100.7",
        ),
        (
            "cloudflare, IPv6",
            nets().header("cf-connecting-ip"),
            "cf-connecting-ip",
            &["2001:db8:7::1"],
            "10.0.0.1",
            "2001:db8:7::2",
        ),
        (
            "past cloudflare",
            nets().header("cf-connecting-ip"),
            "cf-connecting-ip",
            &["198.51.100.7"],
            "203.0.113.9",
            "203.0.113.9",
        ),
        (
            "cloudflare, twice",
            nets().header("cf-connecting-ip"),
            "cf-connecting-ip",
            &["198.51.100.7", "1.2.3.4"],
            "10.0.0.1",
            "10.0.0.1",
        ),
        (
            "true-client-ip",
            nets().header("true-client-ip"),
            "true-client-ip",
            &["198.51.100.7"],
            "10.0.0.1",
            "198.51.100.7",
        ),
        ("fly", nets().header("fly-client-ip"), "fly-client-ip", &["198.51.100.7"], "fd00::1", "198.51.100.7"),
        (
            "fastly",
            nets().header("fastly-client-ip"),
            "fastly-client-ip",
            &["198.51.100.7"],
            "::ffff:10.0.0.1",
            "198.51.100.7",
        ),
        (
            "envoy",
            nets().header("x-envoy-external-address"),
            "x-envoy-external-address",
            &["198.51.100.7"],
            "10.0.0.1",
            "198.51.100.7",
        ),
        ("nginx", nets().header("x-real-ip"), "x-real-ip", &[" 198.51.100.7\t"], "10.0.0.1", "198.51.100.7"),
        (
            "nginx that passes a list on",
            nets().header("x-real-ip"),
            "x-real-ip",
            &["198.51.100.7, 1.2.3.4"],
            "10.0.0.1",
            "10.0.0.1",
        ),
        ("nothing in it", nets().header("x-real-ip"), "x-real-ip", &[""], "10.0.0.1", "10.0.0.1"),
        ("no address", nets().header("x-real-ip"), "x-real-ip", &["unknown"], "10.0.0.1", "10.0.0.1"),
        (
            "behind one hop anywhere",
            TrustedProxies::hops(1).header("x-real-ip"),
            "x-real-ip",
            &["198.51.100.7"],
            "203.0.113.9",
            "198.51.100.7",
        ),
        (
            "behind none",
            TrustedProxies::hops(0).header("x-real-ip"),
            "x-real-ip",
            &["198.51.100.7"],
            "203.0.113.9",
            "203.0.113.9",
        ),
        (
            "cloudfront",
            nets().header("cloudfront-viewer-address"),
            "cloudfront-viewer-address",
            &["198.51.100.7:46532"],
            "10.0.0.1",
            "198.51.100.7",
        ),
        (
            "cloudfront, IPv6",
            nets().header("cloudfront-viewer-address"),
            "cloudfront-viewer-address",
            &["2001:db8:7::1:46532"],
            "10.0.0.1",
            "2001:db8:7::1",
        ),
        (
            "cloudfront, in brackets",
            nets().header("cloudfront-viewer-address"),
            "cloudfront-viewer-address",
            &["[2001:db8:7::1]:46532"],
            "10.0.0.1",
            "2001:db8:7::1",
        ),
    ];
    assert_eq!(rows.len(), ROWS);
    for (who, proxies, name, lines, peer, right) in rows {
        assert_eq!(client(&proxies, name, lines, peer), id(&Key::address(ip(right), 64)), "{who}");
    }
}

/// RFC 7239 counted by hops; that `Forwarded` is walked by networks is tested beside the reader.
#[test]
fn forwarded_elements_are_counted_from_the_right() {
    const PEER: &str = "10.0.0.1";
    const ROWS: usize = 9;
    // lines; one hop, two hops
    let rows: [(&[&str], &str, &str); ROWS] = [
        (&["for=192.0.2.43, for=198.51.100.17"], "198.51.100.17", "192.0.2.43"),
        (&["for=192.0.2.43", "for=198.51.100.17"], "198.51.100.17", "192.0.2.43"),
        (&["for=192.0.2.43,,for=198.51.100.17,"], "198.51.100.17", "192.0.2.43"),
        (&["for=192.0.2.43, for=unknown"], PEER, "192.0.2.43"),
        (&["for=192.0.2.43, for=\"_hidden\""], PEER, "192.0.2.43"),
        (&["for=192.0.2.43, proto=https"], PEER, "192.0.2.43"),
        (&["for=192.0.2.43;host=\"a,b;c=d\""], "192.0.2.43", PEER),
        // The line that a client sent cannot be read; the one that its proxy added can.
        (&["for=\"x", "for=198.51.100.17"], "198.51.100.17", PEER),
        (&[], PEER, PEER),
    ];
    assert_eq!(rows.len(), ROWS);
    for (lines, one, two) in rows {
        for (hops, right) in [(0, PEER), (1, one), (2, two), (usize::MAX, PEER)] {
            let proxies = TrustedProxies::hops(hops).forwarded();
            assert_eq!(
                client(&proxies, "forwarded", lines, PEER),
                id(&Key::address(ip(right), 64)),
                "{lines:?} {hops}"
            );
        }
    }
}

/// Whatever the configured proxies do not write, a client can.
#[test]
fn no_other_header_than_the_named_one_is_read() {
    let nets = || TrustedProxies::nets(["10.0.0.0/8"]);
    const ROWS: usize = 4;
    let rows: [(&str, TrustedProxies); ROWS] = [
        (XFF, nets()),
        ("forwarded", nets().forwarded()),
        ("x-real-ip", nets().header("x-real-ip")),
        ("cf-connecting-ip", nets().header("cf-connecting-ip")),
    ];
    assert_eq!(rows.len(), ROWS);
    let names: Vec<_> = rows.iter().map(|(name, _)| *name).collect();
    for (named, proxies) in &rows {
        for name in names.iter().filter(|name| *name != named) {
            let line = if *name == "forwarded" { "for=6.6.6.6" } else { "6.6.6.6" };
            assert_eq!(
                client(proxies, name, &[line], "10.0.0.1"),
                id(&Key::address(ip("10.0.0.1"), 64)),
                "{named} {name}"
            );
        }
    }
}

/// RFC 4291, 2.5.5.2: a mapped address is an IPv4 one. It has to be unmapped before it is compared with networks, and
/// before it is masked: CVE-2026-30827 masked first, and all IPv4 clients of a dual-stack socket shared one count.
#[test]
fn addresses_are_brought_to_one_form_and_grouped() {
    const ROWS: usize = 12;
    // address; its group by /64, /56 and /48
    let rows: [(&str, [&str; 3]); ROWS] = [
        ("2001:db8:1234:5678:9abc:def0:1:2", ["2001:db8:1234:5678::", "2001:db8:1234:5600::", "2001:db8:1234::"]),
        ("123:ABC::89", ["123:abc::", "123:abc::", "123:abc::"]),
        ("2001:db8:1234:5678::1.2.3.4", ["2001:db8:1234:5678::", "2001:db8:1234:5600::", "2001:db8:1234::"]),
        ("::ffff:203.0.113.9", ["203.0.113.9"; 3]),
        ("::ffff:203.0.113.10", ["203.0.113.10"; 3]),
        ("::1", ["::"; 3]),
        ("198.51.100.7", ["198.51.100.7"; 3]),
        // Translators' prefixes (RFC 6052, RFC 8215) are networks like any other.
        ("64:ff9b::c000:221", ["64:ff9b::"; 3]),
        ("64:ff9b:1:2345::1", ["64:ff9b:1:2345::", "64:ff9b:1:2300::", "64:ff9b:1::"]),
        // So are those of tunnels: a site of 6to4 is a /48, a server of Teredo a /64.
        ("2002:c000:204::1", ["2002:c000:204::"; 3]),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", ["2001:0:4136:e378::", "2001:0:4136:e300::", "2001:0:4136::"]),
        ("::203.0.113.9", ["::"; 3]), // "compatible", long gone (RFC 4291, 2.5.5.1): not an IPv4 address
    ];
    assert_eq!(rows.len(), ROWS);
    for (address, groups) in rows {
        for (prefix, group) in [64, 56, 48].into_iter().zip(groups) {
            let by_peer = key::peer_addr_by(prefix);
            let key = id(&by_peer(&from(ip(address), XFF, &[])).unwrap());
            assert_eq!(key, id(&Key::address(ip(group), prefix)), "{address}/{prefix}");
            assert_eq!(key, id(&Key::address(ip(address), prefix)), "{address}/{prefix} of a key of one's own");
            // The group itself, not only that it was made the same way.
            match ip(group) {
                IpAddr::V4(v4) => assert_eq!(key, id(&Key::from(v4)), "{address}/{prefix}"),
                IpAddr::V6(v6) => {
                    let bytes = usize::from(prefix / 8);
                    assert_eq!(key.to_bytes()[2..2 + bytes], v6.octets()[..bytes], "{address}/{prefix}");
                    assert_eq!(v6.octets()[bytes..], [0; 16][bytes..], "a group has no more bits");
                }
            }
            // The same client, told by a proxy.
            let proxies = TrustedProxies::nets(["10.0.0.1"]).v6_prefix(prefix);
            assert_eq!(client(&proxies, XFF, &[address], "::ffff:10.0.0.1"), key, "{address}/{prefix} behind a proxy");
        }
    }
    // Those that are apart are apart.
    for (at, (_, groups)) in rows.iter().enumerate() {
        for (_, others) in &rows[at + 1..] {
            if groups[0] != others[0] {
                assert_ne!(id(&Key::address(ip(groups[0]), 64)), id(&Key::address(ip(others[0]), 64)));
            }
        }
    }
}

#[test]
fn conditions_see_the_client_that_the_keys_see() {
    let nets = || TrustedProxies::nets(["10.0.0.0/8"]);
    const ROWS: usize = 8;
    // lines, peer; whether client and peer are in 198.51.100.0/24 or 2001:db8::/32
    let rows: [(&[&str], &str, bool, bool); ROWS] = [
        (&["198.51.100.7"], "10.0.0.1", true, false),
        (&["::ffff:198.51.100.7"], "::ffff:10.0.0.1", true, false),
        (&["2001:db8::7"], "10.0.0.1", true, false),
        (&["198.51.100.7"], "203.0.113.9", false, false),
        (&["203.0.113.9"], "198.51.100.7", true, true),
        (&["203.0.113.9"], "::ffff:198.51.100.7", true, true),
        (&["198.51.100.7, garbage"], "10.0.0.1", false, false),
        (&[], "10.0.0.1", false, false),
    ];
    assert_eq!(rows.len(), ROWS);
    let office = ["198.51.100.0/24", "2001:db8::/32"];
    for (lines, peer, client, itself) in rows {
        let request = from(ip(peer), XFF, lines);
        assert_eq!(when::client_in(nets(), office)(&request), client, "{lines:?} {peer}");
        assert_eq!(when::peer_in(office)(&request), itself, "{lines:?} {peer}");
    }
    // Where nobody knows the peer, nobody is let in.
    let nobody = request(Method::GET, &[(XFF, b"198.51.100.7")]);
    assert!(!when::client_in(nets(), office)(&nobody) && !when::peer_in(["0.0.0.0/0", "::/0"])(&nobody));
}
