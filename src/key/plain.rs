//! A key as text, for who may see it.

use super::{Key, Part, Repr};

impl Key<'_> {
    /// Returns the kind of the key, and its value as text. Of a fingerprint nothing is told.
    pub(crate) fn in_plain(&self) -> (&'static str, String) {
        match &self.repr {
            Repr::One(part) => (kind(part), text(part)),
            Repr::Many(parts) => {
                let values = parts.iter().filter(|part| !matches!(part, Part::Branch(_))).map(text);
                ("tuple", values.collect::<Vec<_>>().join(" + "))
            }
            Repr::Unavailable(reason) => ("unavailable", (*reason).to_owned()),
        }
    }
}

fn kind(part: &Part<'_>) -> &'static str {
    match part {
        Part::Bytes(_) => "text",
        Part::Secret(_) => "fingerprint",
        Part::Number(_) | Part::Negative(_) => "number",
        Part::Address(..) => "ip",
        Part::Branch(_) => "tuple",
    }
}

fn text(part: &Part<'_>) -> String {
    match part {
        Part::Bytes(bytes) => String::from_utf8_lossy(bytes).escape_debug().to_string(),
        Part::Secret(_) => "..".to_owned(),
        Part::Number(bytes) => u128::from_le_bytes(*bytes).to_string(),
        Part::Negative(bytes) => format!("-{}", u128::from_le_bytes(*bytes)),
        Part::Address(address, prefix) if address.is_ipv6() && *prefix < 128 => format!("{address}/{prefix}"),
        Part::Address(address, _) => address.to_string(),
        Part::Branch(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn tells_all_of_a_key_but_a_credential() {
        let v6: IpAddr = "2001:db8:1:2:3::4".parse().unwrap();
        for (key, kind, text) in [
            (Key::from("ana\n"), "text", "ana\\n"),
            (Key::from(7_u64), "number", "7"),
            (Key::from(-7_i64), "number", "-7"),
            (Key::address(v6, 64), "ip", "2001:db8:1:2::/64"),
            (Key::from(v6), "ip", "2001:db8:1:2:3::4"),
            (Key::fingerprint(b"secret"), "fingerprint", ".."),
            (Key::from(("a", 7_u64)), "tuple", "a + 7"),
            (Key::from("a").and(Key::fingerprint(b"secret")), "tuple", "a + .."),
        ] {
            assert_eq!(key.in_plain(), (kind, text.to_owned()));
        }
    }
}
