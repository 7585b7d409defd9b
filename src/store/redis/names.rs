//! The names of keys: `tg1:{deployment}:rule:algorithm:key`.
//!
//! The version is that of what the keys hold. The part in braces, the same in all keys of a deployment, keeps them on
//! one node of a cluster, so that one script sees all keys of a request.

use crate::key::{KeyId, Secret};

const VERSION: &str = "tg1";

/// Returns what all keys of a rule begin with.
pub(super) fn prefix(deployment: &str, rule: &str, letter: char) -> String {
    format!("{VERSION}:{{{deployment}}}:{rule}:{letter}:")
}

/// Returns the name of the key that a probe writes, which no rule's key has.
pub(super) fn probe(deployment: &str) -> String {
    format!("{VERSION}:{{{deployment}}}:probe")
}

/// Whether a deployment's name keeps its parts of a key's name apart.
pub(super) fn is_deployment(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Appends the name of `key`'s bucket to `name`.
pub(super) fn write(name: &mut Vec<u8>, prefix: &str, key: KeyId, secret: &Secret, in_plain: bool) {
    name.reserve(prefix.len() + 33);
    name.extend_from_slice(prefix.as_bytes());
    match in_plain.then(|| key.readable()).flatten() {
        _ if key == KeyId::NONE => name.push(b'-'),
        Some(text) => name.extend_from_slice(text.as_bytes()),
        None => {
            name.push(b'#');
            for byte in secret.veil(key) {
                name.extend([byte >> 4, byte & 15].map(|digit| digit + if digit < 10 { b'0' } else { b'a' - 10 }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    fn named(key: Key<'_>, in_plain: bool) -> String {
        let secret = Secret::new([7; 16]);
        let mut name = Vec::new();
        write(&mut name, "p:", key.id(&secret), &secret, in_plain);
        String::from_utf8(name).unwrap()
    }

    #[test]
    fn shows_nothing_of_a_key_unless_asked() {
        let address: std::net::IpAddr = "203.0.113.7".parse().unwrap();
        for key in [Key::from("ana"), Key::from(7_u64), Key::from(address), Key::from("longer than fifteen bytes")] {
            let name = named(key, false);
            assert_eq!((name.len(), name.starts_with("p:#")), (35, true), "{name}");
        }
        assert_ne!(named(Key::from("ana"), false), named(Key::from("bob"), false));
    }

    #[test]
    fn writes_short_keys_as_text_on_request() {
        let (v4, v6): (std::net::IpAddr, std::net::IpAddr) =
            ("203.0.113.7".parse().unwrap(), "2001:db8:1:2:3::4".parse().unwrap());
        assert_eq!(named(Key::from("ana"), true), "p:text:ana");
        assert_eq!(named(Key::from("a}:{b c"), true), "p:text:a%7D%3A%7Bb%20c");
        assert_eq!(named(Key::from(7_u64), true), "p:number:7");
        assert_eq!(named(Key::from(-7_i64), true), "p:number:-7");
        assert_eq!(named(Key::from(v4), true), "p:ip:203.0.113.7");
        assert_eq!(named(Key::address(v6, 64), true), "p:ip:2001%3Adb8%3A1%3A2%3A%3A%2F64");
        // What does not fit is no text any more.
        assert!(named(Key::from("longer than fifteen bytes"), true).starts_with("p:#"));
        assert!(named(Key::from(v6), true).starts_with("p:#"));
    }
}
