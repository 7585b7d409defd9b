//! Whose count it is.

use std::collections::HashMap;

use proptest::prelude::*;
use tollgate::{Key, Limit, Limiter, Rule, key::Secret, time::ManualClock};

use crate::engine::{Kind, stored};

type Pair = (String, String);

fn by_pair(kind: Kind) -> Limiter<Pair> {
    let rule = Rule::new("pair", kind.limit(Limit::per_minute(1)), |pair: &Pair| Some(Key::from((&pair.0, &pair.1))));
    stored(Limiter::builder([kind.named(rule)]).clock(ManualClock::new())).build().unwrap()
}

fn passes(limiter: &Limiter<Pair>, one: &str, other: &str) -> bool {
    limiter.check_now(&(one.to_owned(), other.to_owned())).unwrap().is_allowed()
}

/// B40, go-chi/httprate#18, better-auth/better-auth#7300, ashita-ai/tessera#185: parts joined to the same text.
#[test]
pub(crate) fn parts_that_join_to_the_same_text_are_different_keys() {
    for kind in Kind::ALL {
        let limiter = by_pair(kind);
        for (one, other) in [
            ("aa", "b"),
            ("a", "ab"),
            ("a:b", "c"),
            ("a", "b:c"),
            ("", "ab"),
            ("ab", ""),
            ("a\0", "b"),
            ("a", "\0b"),
            ("a|", "b"),
            ("a", "|b"),
            ("\\", ":"),
            ("\\:", ""),
            ("1", "2"),
            ("2", "1"),
            ("A", "b"),
        ] {
            assert!(passes(&limiter, one, other), "{kind:?}: {one:?} {other:?}");
            assert!(!passes(&limiter, one, other), "{kind:?}: {one:?} {other:?}");
        }
    }
}

#[test]
pub(crate) fn keys_that_begin_alike_or_are_long_are_different_keys() {
    let limiter = by_pair(Kind::TokenBucket);
    let megabyte = "k".repeat(1 << 20);
    let keys = [
        "sk_live_0123456789a".to_owned(),
        "sk_live_0123456789b".to_owned(),
        "sk_live_01".to_owned(),
        "sk_live_012345678".to_owned(),
        "0123456789abcdef".to_owned(),
        "0123456789abcde".to_owned(),
        format!("{megabyte}x"),
        format!("{megabyte}y"),
        megabyte.clone(),
    ];
    for key in &keys {
        assert!(passes(&limiter, key, ""), "{} bytes", key.len());
    }
    for key in &keys {
        assert!(!passes(&limiter, key, ""), "{} bytes", key.len());
    }
}

#[test]
pub(crate) fn a_text_a_number_and_one_part_more_are_different_keys() {
    let secret = Secret::random();
    let keys = [
        Key::from("7"),
        Key::from(7_u64),
        Key::from("7").and(Key::from("")),
        Key::from("").and(Key::from("7")),
        Key::from("7").and(Key::from("7")),
        Key::from("77"),
        Key::from(77_u64),
        Key::from(7_u64).and(Key::from(7_u64)),
        Key::from((7_u64, "7")),
        Key::from(("7", 7_u64)),
        Key::from(("", "", "7")),
        Key::from(("", "7", "")),
    ];
    for (at, one) in keys.iter().enumerate() {
        for other in &keys[at + 1..] {
            assert_ne!(one.id(&secret), other.id(&secret));
        }
    }
}

#[test]
pub(crate) fn the_same_key_under_two_rules_has_two_counts() {
    let rule = |name: &'static str| Rule::new(name, Limit::per_minute(1), |key: &&str| Some(Key::from(*key)));
    let (one, other) = (rule("one").when(|key| *key != "skip"), rule("other").when(|key| *key != "ana"));
    let limiter = stored(Limiter::builder([one, other]).clock(ManualClock::new())).build().unwrap();
    assert!(limiter.check_now(&"ana").unwrap().is_allowed()); // `one` only
    assert!(limiter.check_now(&"bo").unwrap().is_allowed()); // both
    let refused = limiter.check_now(&"ana").unwrap();
    assert_eq!(refused.violated().collect::<Vec<_>>(), ["one"]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// B40: different lists of parts give different keys, equal ones equal keys.
    #[test]
    fn different_parts_are_different_keys(
        lists in proptest::collection::vec(proptest::collection::vec("[ab:/|\\\\\0]{0,4}", 1..4), 2..40),
    ) {
        let secret = Secret::new([7; 16]);
        let mut seen = HashMap::new();
        for list in lists {
            let (first, rest) = list.split_first().unwrap();
            let key = rest.iter().fold(Key::from(first.as_str()), |key, part| key.and(Key::from(part.as_str())));
            if let Some(before) = seen.insert(key.id(&secret), list.clone()) {
                prop_assert_eq!(&before, &list);
            }
        }
    }
}
