use std::net::IpAddr;

use super::*;

fn id<'a>(key: impl Into<Key<'a>>) -> KeyId {
    key.into().id(&Secret::new([1; 16]))
}

#[test]
fn parts_cannot_run_together() {
    let long = "x".repeat(40);
    let keys = [
        id(("aa", "b")),
        id(("a", "ab")),
        id(("a:b", "c")),
        id(("a", "b:c")),
        id(("", "ab")),
        id(("ab", "")),
        id("ab"),
        id(("a", "b", "")),
        id(("a", "b")),
        id(("", "a", "b")),
        id(long.as_str()),
        id((long.as_str(), "")),
        id(("", long.as_str())),
        id(7_u64),
        id("7"),
        id("\u{7}"),
        id(-7_i64),
        id(u128::MAX),
        id(0_u64),
        id("\0"),
        id((7_u64, "7")),
        id(("7", 7_u64)),
        id(IpAddr::from([7, 0, 0, 0])),
        id(Key::address("::7".parse().unwrap(), 128)),
        id(Key::address("::".parse().unwrap(), 64)),
        id(Key::address("::".parse().unwrap(), 56)),
        KeyId::NONE,
    ];
    for (at, one) in keys.iter().enumerate() {
        for other in keys.iter().skip(at + 1) {
            assert_ne!(one.to_bytes(), other.to_bytes(), "{at}");
        }
    }
}

#[test]
fn the_same_identity_in_other_types_is_the_same_key() {
    assert_eq!(id("ana"), id(String::from("ana")));
    assert_eq!(id("ana"), id(b"ana".as_slice()));
    assert_eq!(id("ana"), id(Cow::from("ana")));
    assert_eq!(id(5_u8), id(5_u64));
    assert_eq!(id(5_i32), id(5_u64));
    assert_eq!(id(5_usize), Key::from(&5_u64).id(&Secret::new([1; 16])));
    assert_eq!(id("x".repeat(100)), id("x".repeat(100).as_str()));
    assert_eq!(id("::ffff:192.0.2.1".parse::<IpAddr>().unwrap()), id("192.0.2.1".parse::<IpAddr>().unwrap()));
}

#[test]
fn keys_that_share_a_beginning_are_apart_and_a_megabyte_is_one_id() {
    let key = |end: &str| id("0123456789".repeat(2) + end);
    assert_ne!(key("a"), key("b"));
    let megabyte = "k".repeat(1 << 20);
    assert_ne!(id(megabyte.as_str()), id(&megabyte[1..]));
}

#[test]
fn another_secret_gives_other_ids_to_long_keys() {
    let long = "a long key of more than fifteen bytes";
    assert_ne!(Key::from(long).id(&Secret::random()), Key::from(long).id(&Secret::random()));
}

#[test]
fn debug_and_ids_show_nothing() {
    for shown in
        [format!("{:?}", Key::from("secret")), format!("{:?}", id("secret")), format!("{:?}", Secret::random())]
    {
        assert!(!shown.contains("secret"), "{shown}");
    }
    assert_eq!(format!("{:?}", Key::from(("a", 1_u8))), "Key(tuple)");
}

#[test]
fn every_ipv6_prefix_length_masks() {
    let all = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse::<IpAddr>().unwrap();
    let mut seen = Vec::new();
    for prefix in 0..=128 {
        let bytes = id(Key::address(all, prefix)).to_bytes();
        assert!(!seen.contains(&bytes), "/{prefix}");
        seen.push(bytes);
    }
    assert_eq!(id(Key::address(all, 200)), id(Key::address(all, 128)));
}
